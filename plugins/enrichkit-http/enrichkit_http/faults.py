"""
What a failed request means: try again, not this key, or nothing at all.

The client's errors are judged by their causes and not by their class, because a slow answer on an open connection is
a `ConnectTimeoutError` there; and their text never leaves this module, because it holds the address with key and query.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError

if TYPE_CHECKING:
    from pyreqwest.exceptions import PyreqwestError
    from pyreqwest.response import Response

__all__ = ["CONNECT_TIMEOUT", "SUCCESS", "header", "of_client", "of_status", "retry_after"]

CONNECT_TIMEOUT = 2.0
SUCCESS = (200, 201, 203)

# Beside every 5xx: the server gave up waiting for the request, or has had too many (RFC 9110, 15.5.9; RFC 6585, 4).
_RETRIED = (408, 429)
# The request is of a kind that it does not support (RFC 9110, sections 15.6.2 and 15.6.6).
_NOT_RETRIED = (501, 505)
_LONGEST_WAIT = 86_400.0  # the engine clamps it to what the lookup has left

# Causes that the client's libraries (hyper, rustls) give; they are matched, and never shown.
_NEVER_SENT = "client error (Connect)"
_UNTRUSTED = re.compile(
    r"invalid peer certificate|received fatal alert: \w*(?:certificate|unknown_?ca|access_?denied)", re.IGNORECASE
)
# "Bytes remaining on stream": a connection of HTTP/2 that ends inside a frame.
_CUT_OFF = re.compile(r"end of file|\beof\b|reset|closed|broken pipe|bytes remaining on stream", re.IGNORECASE)
_NO_CONNECTION = {
    re.compile(r"dns error"): "its name has no address",
    re.compile(r"refused"): "refused",
    re.compile(r"deadline has elapsed|timed out"): f"none within {CONNECT_TIMEOUT:g} s",
    re.compile(r"\btls\b|corrupt message|received fatal alert"): (
        "the TLS handshake broke off. The service may speak no TLS there, none from 1.2 on, or want a certificate"
    ),
}


def of_status(status: int, response: Response) -> ConnectorError:
    """Return the error for an answer whose status is neither a success nor a miss."""
    if status in (401, 403, 407):
        return FatalError(
            f"The service answered {status}: it refuses the credentials, or misses some, so no key can be looked up. "
            "Correct HttpConfig.headers, for example {'Authorization': Secret.env('NAME')}."
        )
    if status in _RETRIED or (500 <= status < 600 and status not in _NOT_RETRIED):
        try:
            asked = response.get_header_all("retry-after")
        except ValueError:  # not ASCII, hence malformed
            asked = []
        wait = retry_after(asked, header(response, "date"))
        return TransientError(f"The service answered {status}.", retry_after=wait)
    if 300 <= status < 400:
        return PermanentError(
            f"The service answered {status}, a redirect, which is not followed: it could lead keys and credentials "
            "elsewhere. Write the final address into HttpConfig.url."
        )
    return PermanentError(
        f"The service answered {status}; a value comes with 200, 201 or 203. If {status} says that the service does "
        "not hold the key, add it to HttpConfig.missing."
    )


def header(response: Response, name: str) -> str | None:
    """Return a header's value; what is not ASCII, which the client refuses to show, is the same as a wrong value."""
    try:
        return response.get_header(name)
    except ValueError:
        return "(not ASCII)"


def retry_after(values: list[str], date: str | None) -> float | None:
    """
    Return the seconds that Retry-After asks for, or None: the longest if there are several, and none that is malformed.

    A moment in time is counted from the answer's own *date*, so that no clock of ours matters.

    >>> retry_after(["1", " 5 ", "-1", "nan", "1e9"], None)
    5.0
    >>> retry_after(["Wed, 21 Oct 2026 07:28:30 GMT"], "Wed, 21 Oct 2026 07:28:00 GMT")
    30.0
    """
    waits = []
    for value in map(str.strip, values):
        if value.isascii() and value.isdigit():
            waits.append(min(float(value[:20]), _LONGEST_WAIT))
        elif (moment := _moment(value)) is not None:
            began = _moment(date or "") or datetime.now(UTC)
            waits.append(min(max((moment - began).total_seconds(), 0.0), _LONGEST_WAIT))
    return max(waits, default=None)


def _moment(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):  # the parser of the standard library raises them all
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def of_client(error: PyreqwestError, origin: str, timeout: float) -> tuple[ConnectorError, bool]:
    """
    Return what an exception of the client means, and whether the request certainly was not sent.

    Args:
        error: The exception.
        origin: Scheme, host and port, for the message.
        timeout: Seconds that the request had.
    """
    details = getattr(error, "details", None) or {}
    causes = [cause["message"] for cause in details.get("causes") or () if "://" not in cause["message"]]
    unsent = _NEVER_SENT in causes
    if any(map(_UNTRUSTED.search, causes)):
        return FatalError(
            f"The TLS handshake with {origin} failed: its certificate is not trusted here, or ours not there. "
            "Set HttpConfig.tls_ca, or tls_cert and tls_key."
        ), unsent
    if unsent:
        whys = (why for pattern, why in _NO_CONNECTION.items() if any(map(pattern.search, causes)))
        return TransientError(f"No connection to {origin}: {next(whys, 'it failed')}."), True
    if isinstance(error, TimeoutError):
        return TransientError(f"No complete answer from {origin} within {timeout:.3g} s."), False
    # This class name is right: it is what hyper cannot parse, or half of what it can.
    cut_off = bool(causes) and _CUT_OFF.search(causes[-1]) is not None
    if any(cls.__name__ == "DecodeError" for cls in type(error).__mro__) and not cut_off:
        return PermanentError(
            f"The answer from {origin} is not valid HTTP: its head, length or chunks are malformed or too long."
        ), False
    return TransientError(f"The connection to {origin} broke before the answer was complete."), False
