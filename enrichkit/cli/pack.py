"""`pack`: makes an archive of the packages that executors need, or inspects an archive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..shipping import Manifest, Target, check_archive, pack
from ..shipping.lines import lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["check", "make"]


@dataclass(frozen=True)
class Packed:
    """
    An archive that executors can use.

    Attributes:
        path: Path of the archive.
        bytes: Size of the archive.
        python: Version of Python on the executors.
        platform: Platform of the executors.
        bare: Whether the archive lacks pyarrow, pandas and NumPy; if so, the executors must have them.
        plugins: Names of the connectors in the archive.
        packages: Versions of the packages in the archive, by name.
    """

    path: str
    bytes: int
    python: str
    platform: str
    bare: bool
    plugins: tuple[str, ...]
    packages: Mapping[str, str]

    @classmethod
    def of(cls, path: str, said: Manifest) -> Packed:
        """Return the description of the archive *path*, whose manifest is *said*."""
        size = Path(path).stat().st_size
        return cls(path, size, said.python, said.platform, said.bare, said.plugins, said.packages)

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        head = f"{self.path}: {self.bytes / 1e6:.1f} MB, for Python {self.python} on {self.platform}"
        return f"{head}\n{packages}\n\n{lines(self.path, self.python, self.platform, bare=self.bare)}"


def make(
    names: Sequence[str],
    *,
    output: str,
    extra: Sequence[str],
    python: str | None,
    platform: str | None,
    bare: bool,
    executor_python: str | None,
) -> Packed:
    """Pack the connectors *names*, or all connectors if *names* is empty; see `enrichkit.shipping.pack`."""
    target = _target(python, platform)
    manifest = pack(names, output=output, extra=extra, target=target, bare=bare, executor_python=executor_python)
    return Packed.of(output, manifest)


def check(path: str, names: Sequence[str], *, python: str | None, platform: str | None) -> Packed:
    """Inspect the archive *path*, which must have the connectors *names*."""
    manifest = check_archive(path, target=_target(python, platform), plugins=names)
    return Packed.of(path, manifest)


def _target(python: str | None, platform: str | None) -> Target:
    here = Target.here()
    return Target(python or here.python, platform or here.platform)
