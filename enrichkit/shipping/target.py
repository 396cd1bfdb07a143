"""The Python and the platform for which an archive is made."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

from ..errors import ConfigError, did_you_mean

__all__ = ["PLATFORMS", "Target"]

PLATFORMS = {"linux-x86_64": "x86_64", "linux-aarch64": "aarch64"}
"""The platforms of executors, each with the name of its processor in wheels."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
GLIBC = ("2_28", "2_17")
"""Versions of glibc that wheels may ask for: the version of Debian 10 and RHEL 8, and an older one."""


@dataclass(frozen=True)
class Target:
    """
    The Python and the platform of the executors.

    Attributes:
        python: Python's version, `3.11` to `3.14`; PySpark requires the same version on the driver.
        platform: `linux-x86_64` or `linux-aarch64`.

    Raises:
        ConfigError: enrichkit does not support this Python or platform.
    """

    python: str
    platform: str

    def __post_init__(self) -> None:
        for name, value, allowed in (("python", self.python, PYTHONS), ("platform", self.platform, tuple(PLATFORMS))):
            if value not in allowed:
                raise ConfigError(
                    f"{name} is {value!r}; it must be one of {', '.join(allowed)}.{did_you_mean(value, allowed)}"
                )

    @classmethod
    def here(cls) -> Target:
        """Return the Python and platform of this process; raises `ConfigError` if enrichkit does not support them."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return cls(version, f"{platform.system().lower()}-{platform.machine().lower()}")

    @property
    def machine(self) -> str:
        """Name of the processor, as in the file names of wheels."""
        return PLATFORMS[self.platform]

    @property
    def uv_platform(self) -> str:
        """The platform as uv names it."""
        return f"{self.machine}-manylinux_{GLIBC[0]}"

    @property
    def pip_platforms(self) -> list[str]:
        """The platforms that wheels may be built for, as pip names them; the one with the newest glibc comes first."""
        return [f"manylinux_{version}_{self.machine}" for version in GLIBC] + [f"manylinux2014_{self.machine}"]

    def __str__(self) -> str:
        return f"Python {self.python} on {self.platform}"
