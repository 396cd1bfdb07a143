"""The TLS context of a connector: the certificate files of its config become an `ssl.SSLContext`."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import Protocol

from .errors import FatalError
from .secrets import redact

__all__ = ["RenewedContext", "TlsFiles", "file_stamp", "tls_context"]

_MESSAGE = (
    "A certificate of {config} cannot be used on this worker: {reason}. tls_ca, tls_cert and tls_key must be paths of "
    "PEM files there."
)


class TlsFiles(Protocol):
    """A config that names certificate files on the worker, each as a path or None."""

    @property
    def tls_ca(self) -> str | None:
        """The certificates to trust; None: the certificates of the system."""

    @property
    def tls_cert(self) -> str | None:
        """The certificate of the client."""

    @property
    def tls_key(self) -> str | None:
        """The private key of the client; None: the key is in `tls_cert`."""


def tls_context(config: TlsFiles, *secrets: str | None, verify: bool = True, message: str = _MESSAGE) -> ssl.SSLContext:
    """
    Return a context for TLS 1.2 or later that verifies the server with the certificates of *config*.

    The caller should keep the context and use it for all connections, because reading the certificates of the system
    takes 10 ms.

    Args:
        config: Config with the fields `tls_ca`, `tls_cert` and `tls_key`.
        secrets: Secrets that the message of an error must not show.
        verify: False for a context that checks neither the certificate nor the host name of the server.
        message: Template of the message of an error; `{config}` is the class of *config*, `{reason}` what failed.

    Raises:
        FatalError: A file cannot be read, or holds no certificate or key in PEM.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class AcmeConfig:
    ...     tls_ca: str | None = None
    ...     tls_cert: str | None = None
    ...     tls_key: str | None = None
    >>> tls_context(AcmeConfig()).check_hostname
    True
    >>> tls_context(AcmeConfig(tls_ca="/no/such/file"))
    Traceback (most recent call last):
    enrichkit.errors.FatalError: A certificate of AcmeConfig cannot be used on this worker: No such file or directory. \
tls_ca, tls_cert and tls_key must be paths of PEM files there.
    """
    try:
        context = ssl.create_default_context(cafile=config.tls_ca)
        if config.tls_cert is not None:
            context.load_cert_chain(config.tls_cert, config.tls_key)
    except OSError as error:  # ssl.SSLError is a subclass of OSError
        reason = redact(error.strerror or type(error).__name__, *secrets)
        raise FatalError(message.format(config=type(config).__name__, reason=reason)) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def file_stamp(*paths: str | None) -> tuple[object, ...]:
    """
    Return a value that changes when one of the files at *paths* is changed or replaced; None stands for no file.

    The value also changes when a file disappears or becomes inaccessible. Kubernetes replaces a file by linking to
    another folder, which changes the value, too.
    """
    return tuple(None if path is None else _stamp_of(path) for path in paths)


def _stamp_of(path: str) -> tuple[int, int, int] | str:
    try:
        found = os.stat(path)
    except OSError as error:
        return type(error).__name__
    return found.st_mtime_ns, found.st_size, found.st_ino


class RenewedContext:
    """
    The TLS context for the next connection: a new context when the files that the config names have changed.

    While files are being replaced, they may not match each other, or may be incomplete. Then the previous context is
    used, and the files are read again for the next connection.

    Args:
        make: Function that makes a context. Its `FatalError` is passed on only while there is no context yet.
        config: The config that names the files.

    Calling the object returns the context, or raises `FatalError` if the first context cannot be made.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], config: TlsFiles) -> None:
        self._make = make
        self._paths = (config.tls_ca, config.tls_cert, config.tls_key)
        self._context: ssl.SSLContext | None = None
        self._read: tuple[object, ...] = ()

    @property
    def has_files(self) -> bool:
        """Whether the config names certificate files, which may be replaced while the job runs."""
        return any(self._paths)

    def stamp(self) -> tuple[object, ...]:
        """Return a value that changes when one of the files changes, see `file_stamp`."""
        return file_stamp(*self._paths)

    def __call__(self) -> ssl.SSLContext:
        stamp = self.stamp()
        if self._context is None or stamp != self._read:
            try:
                self._context, self._read = self._make(), stamp
            except FatalError:
                if self._context is None:
                    raise
        return self._context
