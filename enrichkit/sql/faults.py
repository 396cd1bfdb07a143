"""The meaning of faults that the client packages of all databases report in the same way."""

from __future__ import annotations

import ssl

__all__ = ["tls_fault"]


def tls_fault(error: BaseException) -> str | None:
    """
    Return the reason that OpenSSL gives for refusing a TLS connection, or None if *error* is no such refusal.

    If the server closes the connection during the handshake, for example because it restarts, that is no refusal, and
    the result is None.

    >>> tls_fault(OSError("reset")) is tls_fault(ssl.SSLEOFError()) is None
    True
    """
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None
    return getattr(error, "verify_message", None) or str(error.reason) or type(error).__name__
