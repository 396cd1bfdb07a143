"""The wheels of all packages: `./run wheels` builds them, pip installs them, and they work without the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import enrichkit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.more, pytest.mark.service, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parent.parent
DRIVERS = {
    "http": "pyreqwest",
    "llm": "pyreqwest",
    "mariadb": "asyncmy",
    "postgres": "asyncpg",
    "redis": "hiredis",
    "sqlite": None,
}
BASES = {"llm": "http"}
"""The plugin that a plugin stands on."""
PACKAGES = ("enrichkit", *sorted(path.name.replace("-", "_") for path in (ROOT / "plugins").iterdir()))


def environment() -> dict[str, str]:
    """Return the environment variables without those that lead to the checkout, and with the system's certificates."""
    unwanted = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in unwanted}
    if "SSL_CERT_FILE" not in env and Path("/etc/ssl/certs/ca-certificates.crt").exists():
        env["UV_SYSTEM_CERTS"] = "1"
    return env


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def uv() -> str:
    """The path of the uv that `./run` uses. It must run: a pyenv shim may exist and not work."""
    for candidate in (shutil.which("uv"), str(ROOT / ".tools/bin/uv")):
        if candidate and Path(candidate).exists():
            done = subprocess.run([candidate, "--version"], capture_output=True)
            if done.returncode == 0:
                return candidate
    raise AssertionError("There is no uv, neither on the PATH nor in .tools. Run: ./run setup")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheels that `./run wheels` builds in a copy of the checkout."""
    source = tmp_path_factory.mktemp("source") / "checkout"
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "dist", "build")
    source.mkdir()
    for name in ("enrichkit", "plugins"):
        shutil.copytree(ROOT / name, source / name, ignore=unwanted)
    for name in ("run", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    if (ROOT / ".tools").exists():  # so that `./run` need not install uv again
        (source / ".tools").symlink_to(ROOT / ".tools")
    target = source / "dist"
    printed = run("./run", "wheels", cwd=source).splitlines()
    assert f"The wheels of enrichkit and its plugins are in {target}:" == printed[0]
    assert sorted(path.name for path in target.glob("*.whl")) == sorted(printed[1:])
    (target / ".gitignore").unlink(missing_ok=True)
    return target


@pytest.fixture(scope="module")
def clean(uv: str, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The Python of an environment into which pip has installed only `enrichkit[redis]`."""
    folder = tmp_path_factory.mktemp("clean")
    run(uv, "venv", "--quiet", "--seed", "--python", sys.executable, folder / "venv", cwd=folder)
    python = folder / "venv/bin/python"
    run(*pip(python), "--find-links", wheels, "enrichkit[redis]", cwd=folder)
    yield python
    shutil.rmtree(folder)


def pip(python: Path) -> tuple[str | Path, ...]:
    return (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore")


@pytest.fixture
def program(clean: Path, tmp_path: Path) -> Callable[..., str]:
    """A function that runs a program in the clean environment, outside the checkout, and returns its output."""
    return lambda text, *arguments: run(clean, "-I", "-c", textwrap.dedent(text), *arguments, cwd=tmp_path)


def test_there_is_a_wheel_of_each_package(wheels: Path) -> None:
    assert [f"{name}-{enrichkit.__version__}-py3-none-any.whl" for name in PACKAGES] == sorted(
        path.name for path in wheels.iterdir()
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_a_wheel_holds_only_its_package(wheels: Path, package: str) -> None:
    (path,) = wheels.glob(f"{package}-*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        headers = Parser().parsestr(wheel.read(metadata).decode())
    assert {package, metadata.partition("/")[0]} == {name.partition("/")[0] for name in names}
    assert f"{package}/py.typed" in names
    assert not [name for name in names if "test_" in name or "__pycache__" in name]
    assert "Apache-2.0" == headers["License-Expression"]
    assert ">=3.11" == headers["Requires-Python"]
    assert (headers.get_payload() or "").strip(), "the description must be the README"


def test_an_extra_installs_its_plugin_and_driver_and_no_other(program: Callable[..., str]) -> None:
    installed = program(
        """
        from importlib.metadata import distributions
        print(*sorted({d.name.lower().replace("_", "-") for d in distributions()}))
        """
    ).split()
    assert {"enrichkit", "enrichkit-redis", "hiredis", "pyarrow", "msgspec", "pluggy"} <= set(installed)
    assert not not_of("redis") & set(installed)


def of(*plugins: str) -> set[str | None]:
    """Return the names of the packages of *plugins*, of those that they stand on, and of their drivers."""
    parts = {*plugins, *(BASES[plugin] for plugin in plugins if plugin in BASES)}
    return {name for part in parts for name in (f"enrichkit-{part}", DRIVERS[part])} - {None}


def not_of(*plugins: str) -> set[str | None]:
    """Return the names of the packages and drivers of all plugins that *plugins* do without, and Spark's."""
    own = of(*plugins)
    others = {name for part, driver in DRIVERS.items() for name in (f"enrichkit-{part}", driver)} - own
    return {"pyspark", "pandas", "numpy", "py4j", *others} - {None}


@pytest.mark.parametrize("plugin", DRIVERS)
def test_pip_resolves_an_extra_to_its_plugin_and_driver_and_no_other(
    plugin: str, clean: Path, wheels: Path, tmp_path: Path
) -> None:
    """A dry run of pip, as if the environment were empty."""
    report = tmp_path / "report.json"
    options = ("--dry-run", "--ignore-installed", "--report", report, "--find-links", wheels)
    run(*pip(clean), *options, f"enrichkit[{plugin}]", cwd=tmp_path)
    names = {part["metadata"]["name"].lower().replace("_", "-") for part in json.loads(report.read_text())["install"]}
    assert {"enrichkit", "pyarrow", "msgspec", "pluggy", *of(plugin)} <= names
    assert not not_of(plugin) & names


def test_only_the_installed_plugin_is_listed_and_it_loads(program: Callable[..., str]) -> None:
    printed = program(
        """
        import enrichkit
        from enrichkit.sources.registry import load, require_driver
        print(enrichkit.connectors())
        require_driver(load("redis"))
        print(load("redis").__module__, enrichkit.__file__)
        """
    )
    first, second = printed.splitlines()
    assert f"{{'redis': Plugin(name='redis', package='enrichkit-redis', version='{enrichkit.__version__}')}}" == first
    assert second.startswith("enrichkit_redis.connector ")
    assert str(ROOT) not in second


@pytest.mark.parametrize("name", sorted(DRIVERS.keys() - {"redis"}))
def test_the_error_for_another_connector_has_the_pip_command(program: Callable[..., str], name: str) -> None:
    printed = program(
        """
        import sys
        import enrichkit
        try:
            enrichkit.enrich(sys.argv[1], "user_id")
        except enrichkit.UnknownConnectorError as error:
            print(error)
        """,
        name,
    )
    assert printed == f"The connector {name!r} is not installed. Run: pip install 'enrichkit[{name}]'\n"


def test_keys_are_looked_up_on_a_server_without_the_checkout_and_without_spark(
    program: Callable[..., str], redis_url: str
) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.mset({f"u{n}": f"value {n}" for n in range(1000)})
    printed = program(
        """
        import sys
        import pyarrow as pa
        from enrichkit.worker.assemble import assemble
        from enrichkit.values.decode import decoder
        from enrichkit.engine.engine import Engine
        from enrichkit.engine.bridge import Bridge
        from enrichkit.engine.loop import loop_thread
        from enrichkit.engine.run import Run
        from enrichkit.worker.keys import encode
        from enrichkit.options import Options
        from enrichkit.outcome import Outcomes
        from enrichkit_redis import RedisConfig, RedisConnector

        config, options = RedisConfig(url=sys.argv[1]), Options()
        decode = decoder(pa.string(), RedisConnector(config).encoding)
        loop = loop_thread()

        def run(emit):
            engine = loop.engine("engine", lambda: Engine(RedisConnector(config), 4))
            return Run(engine, "redis", options, decode, emit, batch_size=100)

        bridge = Bridge(loop, 10_000, 10_000, "redis", options, run)
        rows = pa.array([None if n % 7 == 0 else f"u{n % 1100}" for n in range(3000)])
        keys, codes = encode([rows])
        slices = [Outcomes(keys, len(rows), codes)]
        parts = list(bridge.process(iter(slices)))
        values = assemble(parts[0].outcomes.values, codes, pa.string()).to_pylist()
        wanted = [
            f"value {n % 1100}" if n % 7 and n % 1100 < 1000 else None for n in range(3000)
        ]
        print(values == wanted, len(parts))
        """,
        redis_url,
    )
    assert printed == "True 1\n"


def test_the_other_plugins_can_be_added(clean: Path, wheels: Path, program: Callable[..., str], tmp_path: Path) -> None:
    """This must be the last test of the module, because it changes the environment."""
    run(*pip(clean), "--find-links", wheels, "enrichkit[http,llm,mariadb,postgres,sqlite]", cwd=tmp_path)
    printed = program(
        """
        import enrichkit
        from enrichkit.sources.registry import load, require_driver
        for name in enrichkit.connectors():
            require_driver(load(name))
            print(name, load(name).__module__.partition(".")[0])
        """
    )
    assert [f"{name} enrichkit_{name}" for name in DRIVERS] == printed.splitlines()
