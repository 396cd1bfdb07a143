"""Archives for executors: what is in them, and that a broken one is refused before a job is submitted with it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit import ConfigError, __version__
from enrichkit.shipping import Manifest, Target, check_archive, pack

from .pace import at_pace

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow  # uv packs some archives, and programs try them

ROOT = Path(__file__).parent.parent
HERE = Target.here()
OTHER = Target(HERE.python, "linux-aarch64" if HERE.platform == "linux-x86_64" else "linux-x86_64")
OLDER = Target("3.11" if HERE.python != "3.11" else "3.12", HERE.platform)


@pytest.fixture(scope="session", autouse=True)
def uv_on_path() -> None:
    """The uv of `./run`, where the machine has none of its own."""
    os.environ["PATH"] = f"{os.environ['PATH']}{os.pathsep}{ROOT / '.tools/bin'}"


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare archive with redis and http."""
    path = tmp_path_factory.mktemp("packed") / "good.tar.gz"
    pack(["redis", "http"], output=path, bare=True)
    return path


@pytest.fixture
def unpacked(good: Path, tmp_path: Path) -> Path:
    """The files of the archive, for a test to break."""
    with tarfile.open(good) as tar:
        tar.extractall(tmp_path / "files")
    return tmp_path / "files"


def packed_again(folder: Path, path: Path, *, said: Callable[[dict[str, Any]], Any] | None = None) -> Path:
    """Write *folder* as an archive whose manifest has the right hashes, after *said* has changed it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    manifest["files"] = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names if name != "manifest.json"
    }
    if said is not None:
        said(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for entry in sorted(folder.iterdir()):
            tar.add(entry, entry.name)
    return path


def refusal(path: Path, **arguments: Any) -> str:
    """Return why *path* is refused, without its beginning; in less than five seconds."""
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        check_archive(path, **arguments)
    assert time.monotonic() - began < at_pace(5.0)
    begin = f"The archive {path.name} cannot be used: "
    assert str(caught.value).startswith(begin)
    return str(caught.value).removeprefix(begin)


def test_an_archive_starts_without_anything_of_this_environment(good: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere; the Python is the one of which the test's environment was made."""
    said = check_archive(good, plugins=["redis"])
    assert (said.enrichkit, said.python, said.platform, said.bare) == (__version__, HERE.python, HERE.platform, True)
    assert said.plugins == ("http", "redis")
    assert {"enrichkit", "enrichkit-http", "enrichkit-redis", "hiredis", "msgspec", "pluggy"} <= said.packages.keys()
    assert not {"pyspark", "pyarrow", "pandas", "numpy"} & said.packages.keys()
    with tarfile.open(good) as tar:
        tar.extractall(tmp_path)
        assert not [member.name for member in tar.getmembers() if member.issym() or member.islnk()]
    program = "import enrichkit_redis, hiredis, sys; print(enrichkit_redis.__file__, 'pyspark' in sys.modules)"
    base = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]  # of CPython
    pyarrow = str(Path(sys.modules["pyarrow"].__file__ or "").parent.parent) if "pyarrow" in sys.modules else ""
    environment = {"PATH": os.defpath, "ENRICHKIT_PYTHON": base, "PYTHONPATH": pyarrow}
    done = subprocess.run([tmp_path / "bin/python", "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [str(tmp_path / "site/enrichkit_redis/__init__.py"), "False"], done.stderr


def test_equal_packages_make_equal_bytes(good: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.tar.gz"
    pack(["http", "redis"], output=again, bare=True)
    assert again.read_bytes() == good.read_bytes()


def test_an_archive_with_pyarrow_has_at_most_60_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "whole.tar.gz"
    said = pack(["redis", "http"], output=path)
    assert "pyarrow" in said.packages
    assert not {"pyspark", "py4j"} & said.packages.keys()
    assert path.stat().st_size <= 60e6


def test_an_archive_for_another_machine_has_its_wheels(tmp_path: Path) -> None:
    path = tmp_path / "other.tar.gz"
    target = Target(OLDER.python, OTHER.platform)
    said = pack(["redis"], output=path, bare=True, target=target)
    assert (said.python, said.platform) == (OLDER.python, OTHER.platform)
    assert check_archive(path, target=target) == said
    assert refusal(path) == (
        f"it is for Python {OLDER.python}, and the executors run {HERE.python}. Pack it with --python {HERE.python}."
    )


def test_a_project_adds_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package/__init__.py").write_text("WORD = 'mine'\n")
    (tmp_path / "helpers.py").write_text("from my_package import WORD\n")
    monkeypatch.chdir(tmp_path)
    pack(["redis"], output="mine.tar.gz", bare=True, extra=["my_package", "helpers.py"])
    with tarfile.open("mine.tar.gz") as tar:
        assert {"site/my_package/__init__.py", "site/helpers.py"} <= set(tar.getnames())


def test_an_executor_without_that_python_says_so(good: Path, tmp_path: Path) -> None:
    with tarfile.open(good) as tar:
        tar.extractall(tmp_path)
    (tmp_path / "tools").mkdir()
    for tool in ("sh", "dirname"):
        (tmp_path / "tools" / tool).symlink_to(shutil.which(tool) or "")
    done = subprocess.run(
        [tmp_path / "bin/python", "-c", "1"], env={"PATH": str(tmp_path / "tools")}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"enrichkit: this machine has no Python {HERE.python}, for which the archive was packed. Pack it for another "
        "one with enrichkit pack --python, or name its path with spark.executorEnv.ENRICHKIT_PYTHON.\n"
    )


# --- ten broken archives


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.tar.gz") == "there is no such file. Make one with: enrichkit pack"


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "text.tar.gz"
    path.write_text("text")
    assert refusal(path) == (
        "it is no gzipped tar file, or it is cut (ReadError). Copy it again, or make a new one with: enrichkit pack"
    )


@pytest.mark.parametrize("share", [0.1, 0.5, 0.999])
def test_a_file_that_is_cut(good: Path, tmp_path: Path, share: float) -> None:
    path = tmp_path / "cut.tar.gz"
    path.write_bytes(good.read_bytes()[: int(good.stat().st_size * share)])
    assert refusal(path) in {
        f"it is no gzipped tar file, or it is cut ({error}). Copy it again, or make a new one with: enrichkit pack"
        for error in ("EOFError", "ReadError")
    }


def test_a_virtual_environment_that_somebody_has_packed(unpacked: Path, tmp_path: Path) -> None:
    (unpacked / "bin/python3").symlink_to("/home/builder/.local/bin/python3")
    assert refusal(packed_again(unpacked, tmp_path / "link.tar.gz")) == (
        "bin/python3 is a link to /home/builder/.local/bin/python3, which executors do not have; packed virtual "
        "environments have such links to the Python of the machine that made them. Make an archive without: enrichkit "
        "pack"
    )


@pytest.mark.parametrize("name", ["../outside.py", "/etc/outside.py"])
def test_a_file_that_would_lie_outside(unpacked: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "outside.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(unpacked / "manifest.json", "manifest.json")
        tar.addfile(tarfile.TarInfo(name))
    assert refusal(path) == f"{name} is no file inside the archive's own folder. Make a new one: enrichkit pack"


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "else.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(__file__, "lib/python/test.py")
    assert refusal(path) == (
        "it has no manifest.json, so enrichkit pack has not made it. Make one with: enrichkit pack"
    )


def test_an_archive_of_another_version(unpacked: Path, tmp_path: Path) -> None:
    path = packed_again(unpacked, tmp_path / "old.tar.gz", said=lambda said: said.update(enrichkit="0.0.9"))
    assert refusal(path) == (
        f"it has enrichkit 0.0.9, and this driver has {__version__}; the two must be the same. Pack it again on this "
        "machine."
    )


def test_an_archive_for_another_platform(unpacked: Path, tmp_path: Path) -> None:
    path = packed_again(unpacked, tmp_path / "arm.tar.gz", said=lambda said: said.update(platform=OTHER.platform))
    assert refusal(path) == (
        f"it is for {OTHER.platform}, and the executors are {HERE.platform}. Pack it with --platform {HERE.platform}."
    )


def test_a_library_for_another_processor(unpacked: Path, tmp_path: Path) -> None:
    library = next((unpacked / "site/msgspec").glob("*.so"))
    content = bytearray(library.read_bytes())
    content[18] = 183 if HERE.platform == "linux-x86_64" else 62
    library.write_bytes(content)
    assert refusal(packed_again(unpacked, tmp_path / "mixed.tar.gz")) == (
        f"site/msgspec/{library.name} is compiled for {OTHER.platform}, not for {HERE.platform}. Pack it with "
        f"--platform {HERE.platform}."
    )


def test_a_library_for_another_python(unpacked: Path, tmp_path: Path) -> None:
    library = next((unpacked / "site/msgspec").glob("*.so"))
    other = library.rename(library.with_name("_core.cpython-39-x86_64-linux-gnu.so"))
    assert refusal(packed_again(unpacked, tmp_path / "mixed.tar.gz")) == (
        f"site/msgspec/{other.name} is compiled for Python 3.9, not for {HERE.python}. Pack it with --python "
        f"{HERE.python}."
    )


def test_a_connector_that_is_not_in_it(good: Path) -> None:
    assert refusal(good, plugins=["http", "postgres"]) == (
        "it has no connector 'postgres'. It has: http, redis. Pack it with: enrichkit pack http redis postgres"
    )


def test_a_driver_that_is_not_in_it(unpacked: Path, tmp_path: Path) -> None:
    for folder in (unpacked / "site").glob("hiredis*"):
        shutil.rmtree(folder)
    path = packed_again(unpacked, tmp_path / "driver.tar.gz", said=lambda said: said["packages"].pop("hiredis"))
    assert refusal(path) == (
        "enrichkit-redis needs hiredis, which is not in it. Pack it again with enrichkit pack, or add it: enrichkit "
        "pack --with hiredis"
    )


def test_a_file_that_has_changed(unpacked: Path, tmp_path: Path) -> None:
    def said(manifest: dict[str, Any]) -> None:
        manifest["files"]["site/enrichkit/options.py"] = "0" * 64

    assert refusal(packed_again(unpacked, tmp_path / "changed.tar.gz", said=said)) == (
        "site/enrichkit/options.py is not what was packed: its bytes have changed. Make a new one with: enrichkit pack"
    )


def test_an_archive_that_does_not_start(unpacked: Path, tmp_path: Path) -> None:
    (unpacked / "site/enrichkit_http/__init__.py").write_text("import nowhere\n")
    assert refusal(packed_again(unpacked, tmp_path / "start.tar.gz")) == (
        "it does not start: enrichkit_http: ModuleNotFoundError: No module named 'nowhere'. Make a new one with: "
        "enrichkit pack"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output": "env.zip"}, "output is 'env.zip'; its name must end in .tar.gz, which Spark unpacks."),
        (
            {"output": "/nowhere/env.tar.gz"},
            "output is '/nowhere/env.tar.gz', and there is no folder '/nowhere'. Make it first.",
        ),
        (
            {"names": ["rediss"]},
            (
                "There is no connector 'rediss' on this machine. Did you mean 'redis'? Connectors: http, llm, mariadb, "
                "postgres, redis, sqlite. Install its package here first, as on the executors."
            ),
        ),
    ],
)
def test_a_slip_is_told(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        pack(**{"output": tmp_path / "env.tar.gz", **arguments})
    assert str(caught.value) == message


def test_there_is_no_such_target() -> None:
    with pytest.raises(ConfigError) as caught:
        Target("3.11", "linux-x86-64")
    assert str(caught.value) == (
        "platform is 'linux-x86-64'; it must be one of linux-x86_64, linux-aarch64. Did you mean 'linux-x86_64'?"
    )
    with pytest.raises(ConfigError):
        Manifest.read(b'{"format": 2}')
