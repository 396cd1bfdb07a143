"""Makes an archive, and checks that executors can use it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigError
from ..version import VERSION
from .archive import Manifest, write
from .checks import check_archive
from .collect import collect
from .target import Target

__all__ = ["pack"]


def pack(
    names: Sequence[str] = (),
    *,
    output: str | Path = "enrichkit-env.tar.gz",
    extra: Sequence[str] = (),
    target: Target | None = None,
    bare: bool = False,
    executor_python: str | None = None,
) -> Manifest:
    """
    Write an archive of the packages that executors need, and check it as an executor would use it.

    Args:
        names: Names of connectors, such as `redis`; empty: all connectors that this machine has.
        output: Path of the archive, which ends in `.tar.gz`.
        extra: Further code: the folder of a package, the file of a module, the path of a project, or a requirement such
            as `boto3`.
        target: Python and platform of the executors; None: those of this process.
        bare: Whether to leave out pyarrow, pandas and NumPy, because the executors have them.
        executor_python: Path of the Python on the executors; None: a Python of the right version on their PATH.

    Raises:
        ConfigError: An argument is wrong, a package has no wheel for the target, or the archive does not start.
    """
    path = Path(output)
    if not path.name.endswith(".tar.gz"):
        raise ConfigError(f"output is {str(output)!r}; its name must end in .tar.gz, which Spark unpacks.")
    if not path.parent.is_dir():
        raise ConfigError(f"output is {str(output)!r}, and there is no folder {str(path.parent)!r}. Make it first.")
    target = target or Target.here()
    with tempfile.TemporaryDirectory(prefix="enrichkit-pack-") as place:
        site = Path(place, "site")
        site.mkdir()
        found = collect(names, extra, target, site, bare=bare)
        manifest = Manifest(VERSION, target.python, target.platform, bare, found.plugins, found.packages, {})
        candidate = Path(place, path.name)
        write(site, candidate, manifest, executor_python)
        checked = check_archive(candidate, target=target)
        path.write_bytes(candidate.read_bytes())
    return checked
