"""
The translation of failed requests into transient, permanent and fatal errors.

The errors of the client are distinguished by their causes and not by their class, because the client raises a
`ConnectTimeoutError` also for a slow response on an open connection. The texts of the client's errors never
leave this module, because they hold the address with key and query.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError, UnavailableError
from enrichkit.plugin import files_exhausted

if TYPE_CHECKING:
    from pyreqwest.exceptions import PyreqwestError
    from pyreqwest.response import Response

__all__ = [
    "CONNECT_TIMEOUT",
    "SUCCESS",
    "UNAVAILABLE",
    "LimitedError",
    "asked_wait",
    "client_error",
    "header",
    "milliseconds",
    "moment",
    "retry_after",
    "status_error",
]

CONNECT_TIMEOUT = 2.0
SUCCESS = (200, 201, 203)

# These statuses are retried like most 5xx: with 408 the server gave up waiting for the request, and with 429 it has had
# too many requests (RFC 9110, section 15.5.9; RFC 6585, section 4).
_RETRIED = (408, 429)
# Statuses by which a service, or a gateway in front of it, says that it accepts no request at present, whatever the key
# (RFC 9110, sections 15.6.3 to 15.6.5; RFC 6585, section 4).
UNAVAILABLE = (429, 502, 503, 504)
# The statuses in `UNAVAILABLE` by which a service says that it gets more requests than it accepts.
_BUSY = (429, 503)
# 5xx that are not retried, because the server does not support the method (501) or the HTTP version (505); see RFC
# 9110, sections 15.6.2 and 15.6.6.
_NOT_RETRIED = (501, 505)
_MILLISECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?").fullmatch
_LONGEST_WAIT = 86_400.0  # seconds; a longer wait is shortened to this one

_PROXY_REFUSES = re.compile(r"proxy authorization required|proxy authentication required", re.IGNORECASE)
# Texts by which the client's libraries (hyper, rustls) name the cause of an error. They are matched, and never shown.
_NEVER_SENT = "client error (Connect)"
_UNTRUSTED = re.compile(
    r"invalid peer certificate|received fatal alert: \w*(?:certificate|unknown_?ca|access_?denied)", re.IGNORECASE
)
# The text "bytes remaining on stream" says that an HTTP/2 connection ended inside a frame.
_CUT_OFF = re.compile(r"end of file|\beof\b|reset|closed|broken pipe|bytes remaining on stream", re.IGNORECASE)
_UNKNOWN_NAME = re.compile(r"(?:name|node).*not known|does not resolve|no address associated", re.IGNORECASE)
# The client passes on an error of the operating system only as text, such as "Too many open files (os error 24)", so
# the number of the error is taken from this text.
_TOO_MANY_FILES = re.compile(r"too many open files.*\(os error ([0-9]+)\)", re.IGNORECASE)
_NO_CONNECTION = {
    re.compile(r"dns error"): "its name has no address",
    re.compile(r"refused"): "refused",
    re.compile(r"deadline has elapsed|timed out"): f"none within {CONNECT_TIMEOUT:g} s",
    re.compile(r"\btls\b|corrupt message|received fatal alert"): (
        "the TLS handshake broke off. The service may speak no TLS there, none from 1.2 on, or want a certificate"
    ),
}


class LimitedError(UnavailableError):
    """The service answered 429: because of a limit, it refused the request before it did anything."""


REFUSES = (
    "The service answered {}: it refuses the credentials, or misses some, so no key can be looked up. Correct "
    "HttpConfig.headers, for example {{'Authorization': Secret.env('NAME')}}."
)


def status_error(status: int, response: Response, limited: type[UnavailableError] = UnavailableError) -> ConnectorError:
    """Return the error for a *status* that is neither a success nor a miss; *limited* is the error class for a 429."""
    if status == 407:
        return FatalError(
            "A proxy on the way to the service answered 407: it refuses the credentials, or misses some, so no key can "
            "be looked up. Set HttpConfig.proxy_auth to a Secret that holds 'user:password'."
        )
    if status in (401, 403):
        return FatalError(REFUSES.format(status))
    if status in _RETRIED or (500 <= status < 600 and status not in _NOT_RETRIED):
        wait = asked_wait(response)
        text = f"The service answered {status}."
        if status not in UNAVAILABLE:
            return TransientError(text, retry_after=wait)
        kind = limited if status == 429 else UnavailableError
        return kind(text, retry_after=wait, busy=status in _BUSY)
    if 300 <= status < 400:
        return PermanentError(
            f"The service answered {status}, a redirect, which is not followed: it could lead keys and credentials "
            "elsewhere. Write the final address into HttpConfig.url."
        )
    also = ", or set HttpConfig.missing_when='empty'" if status == 204 else ""
    return PermanentError(
        f"The service answered {status}; a value comes with 200, 201 or 203. If {status} says that the service does "
        f"not hold the key, add it to HttpConfig.missing{also}."
    )


def asked_wait(response: Response) -> float | None:
    """Return the seconds that *response* asks the client to wait, or None if it does not ask for a wait."""
    try:
        values = response.get_header_all("retry-after")
    except ValueError:  # a value that is not ASCII is malformed, and so is ignored
        values = []
    wait = milliseconds(header(response, "retry-after-ms"))
    return retry_after(values, header(response, "date")) if wait is None else wait


def header(response: Response, name: str) -> str | None:
    """
    Return the value of the header *name*, or None if *response* does not have it.

    The client refuses to return a value that is not ASCII. In place of such a value, the result is a fixed text, which
    every caller takes for a malformed value.
    """
    try:
        return response.get_header(name)
    except ValueError:
        return "(not ASCII)"


def retry_after(values: list[str], date: str | None) -> float | None:
    """
    Return the longest wait in seconds among the *values* of Retry-After, or None if there is none; malformed values are
    ignored.

    A wait until a given moment is counted from the *date* of the response, so that the clock of this machine does not
    matter. If the response has no valid *date*, the wait is counted from now.

    >>> retry_after(["1", " 5 ", "-1", "nan", "1e9"], None)
    5.0
    >>> retry_after(["Wed, 21 Oct 2026 07:28:30 GMT"], "Wed, 21 Oct 2026 07:28:00 GMT")
    30.0
    """
    waits = []
    for value in map(str.strip, values):
        if value.isascii() and value.isdigit():
            waits.append(min(float(value[:20]), _LONGEST_WAIT))
        elif (end := moment(value)) is not None:
            start = moment(date or "") or datetime.now(UTC)
            waits.append(min(max((end - start).total_seconds(), 0.0), _LONGEST_WAIT))
    return max(waits, default=None)


def milliseconds(text: str | None) -> float | None:
    """
    Return the seconds in *text*, the value of the header `Retry-After-Ms`; return None if it is absent or malformed.
    Services of language models send this header in addition to Retry-After.

    >>> milliseconds("250"), milliseconds("soon")
    (0.25, None)
    """
    return min(float(text) / 1000, _LONGEST_WAIT) if text and _MILLISECONDS(text) else None


def moment(text: str) -> datetime | None:
    """Return the moment in *text*, a date in the format of HTTP headers, or None if it is malformed."""
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):  # a malformed date can raise each of the four
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _no_connection(causes: list[str]) -> str:
    """Return why no connection was made, according to *causes*, the error texts of the client's libraries."""
    for found in filter(None, map(_TOO_MANY_FILES.search, causes)):
        if (exhausted := files_exhausted(OSError(int(found[1]), ""))) is not None:
            return exhausted
    return next((why for pattern, why in _NO_CONNECTION.items() if any(map(pattern.search, causes))), "it failed")


def client_error(error: PyreqwestError, origin: str, timeout: float) -> tuple[ConnectorError, bool]:
    """
    Return the `ConnectorError` for an exception of the client, and whether it is certain that the request was not sent.

    Args:
        error: The exception.
        origin: Scheme, host and port, for the message.
        timeout: Timeout of the request in seconds, for the message.
    """
    details = getattr(error, "details", None) or {}
    causes = [cause["message"] for cause in details.get("causes") or () if "://" not in cause["message"]]
    unsent = _NEVER_SENT in causes
    if any(map(_UNTRUSTED.search, causes)):
        return FatalError(
            f"The TLS handshake with {origin} failed: its certificate is not trusted here, or ours not there. "
            "Set HttpConfig.tls_ca, or tls_cert and tls_key."
        ), unsent
    if any(map(_PROXY_REFUSES.search, causes)):
        return FatalError(
            f"A proxy on the way to {origin} answered 407: it refuses the credentials, or misses some, so no key can "
            "be looked up. Set HttpConfig.proxy_auth to a Secret that holds 'user:password'."
        ), unsent
    if unsent:
        message = f"No connection to {origin}: {_no_connection(causes)}."
        # A host name that is not found may be misspelled, and then waiting for the service does not help.
        if any(map(_UNKNOWN_NAME.search, causes)):
            return TransientError(message), True
        return UnavailableError(message, sent=False), True
    if isinstance(error, TimeoutError):
        return TransientError(f"No complete answer from {origin} within {timeout:.3g} s."), False
    # The class `DecodeError`, unlike the client's other error classes, is reliable: hyper could not parse the response,
    # or the response was cut off.
    cut_off = bool(causes) and _CUT_OFF.search(causes[-1]) is not None
    if any(cls.__name__ == "DecodeError" for cls in type(error).__mro__) and not cut_off:
        return PermanentError(
            f"The answer from {origin} is not valid HTTP: its head, length or chunks are malformed or too long."
        ), False
    # If this connector itself has closed the client, the error does not mean that the service is unavailable.
    closed = any(cls.__name__ == "ClientClosedError" for cls in type(error).__mro__)
    kind = TransientError if closed else UnavailableError
    return kind(f"The connection to {origin} broke before the answer was complete."), False
