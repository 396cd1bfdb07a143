"""Certificates for the tests of TLS, those of the plugins too."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout")


class Authority:
    """A certificate authority in a folder, made by the openssl program; nobody outside the tests trusts it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.file = str(folder / f"{name}.pem")
        extensions = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        self._openssl(
            "req", "-x509", *_NEW_KEY, f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", *extensions
        )

    def issue(self, name: str, alternative: str = "IP:127.0.0.1", days: int = 2) -> tuple[str, str]:
        """Return the paths of a new certificate and its key."""
        self._openssl("req", *_NEW_KEY, f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={alternative}\nbasicConstraints=CA:FALSE\n")
        signer = ("-CA", f"{self.name}.pem", "-CAkey", f"{self.name}.key", "-CAcreateserial")
        dates = ("-days", str(days), "-extfile", f"{name}.ext")
        self._openssl("x509", "-req", "-in", f"{name}.csr", *signer, "-out", f"{name}.pem", *dates)
        return str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Authority]:
    """`authority(name)`: a new one."""
    return lambda name: Authority(tmp_path_factory.mktemp(name), name)
