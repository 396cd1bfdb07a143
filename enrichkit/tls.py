"""The TLS context of a connector: the certificate files of its config become an `ssl.SSLContext`."""

from __future__ import annotations

import ssl
from typing import Protocol

from .errors import FatalError
from .secrets import redact

__all__ = ["TlsFiles", "tls_context"]

_MESSAGE = (
    "A certificate of {config} cannot be used on this worker: {reason}. tls_ca, tls_cert and tls_key must be paths of "
    "PEM files there."
)


class TlsFiles(Protocol):
    """A config that names certificate files on the worker, each as a path or None."""

    @property
    def tls_ca(self) -> str | None:
        """The certificates to trust; None: those of the system."""

    @property
    def tls_cert(self) -> str | None:
        """The certificate of the client."""

    @property
    def tls_key(self) -> str | None:
        """The private key of the client; None: the key is in `tls_cert`."""


def tls_context(config: TlsFiles, *secrets: str | None, verify: bool = True, message: str = _MESSAGE) -> ssl.SSLContext:
    """
    Return a context for TLS 1.2 or later that verifies the server with the certificates of *config*.

    The caller keeps the context, because reading the certificates of the system takes 10 ms.

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
