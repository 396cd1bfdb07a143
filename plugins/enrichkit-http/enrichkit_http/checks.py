"""The checks of `HttpConfig`: one function for each field whose check takes more than one line."""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote_plus, urlsplit

import msgspec

from enrichkit.errors import ConfigError
from enrichkit.plugin import Secret

from .template import Body, check_separated

if TYPE_CHECKING:
    from .fields import Named

__all__ = [
    "body_text",
    "check_path",
    "credential_in",
    "credential_named",
    "is_local",
    "masked",
    "names_in",
    "split_url",
    "statuses",
]

# Finds a character that RFC 3986 does not allow outside a fragment. The client's URL parser would rewrite such a
# character.
_NOT_IN_URL = re.compile(r"[^A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%{}-]|%(?![0-9A-Fa-f]{2})").search
_HOST_NAME = re.compile(
    r"[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
).fullmatch
_ENDS_IN_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)").fullmatch
# Matches names of fields joined by dots. A name with a quote, backslash or control character is no match, because
# msgspec, which finds the fields in a response, does not accept such a name.
_PATH = re.compile(r"[^.\[\]\"\\\x00-\x1f]+(?:\.[^.\[\]\"\\\x00-\x1f]+)*").fullmatch
# Matches names of query parameters and form fields that look like credentials. The name `sort_key`, for example, is no
# match.
_IN_QUERY = re.compile(
    r"(?:^key|api_?key|access_?key|auth|token|secret|password|signature|session)$", re.IGNORECASE
).search


def split_url(url: Any) -> SplitResult:
    """Return the parts of an address template; raises `ConfigError` for a text that cannot be such a template."""
    if not isinstance(url, str):
        raise ConfigError(
            f"HttpConfig.url is a {type(url).__name__}; it must be text, as in 'https://api.example/users/{{0}}'."
        )
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in ("http", "https"):
        raise ConfigError(
            f"HttpConfig.url starts with {url[:5]!r}; it must start with 'https://' or 'http://', "
            "for example 'https://api.example/users/{0}'."
        )
    strange = _NOT_IN_URL(url)
    if strange is not None:
        raise ConfigError(
            f"HttpConfig.url holds {strange[0]!r} at position {strange.start()}; an address holds letters, digits and "
            "-._~:/?[]@!$&'()*+,;= and %XX. Percent-encode it, '%20' for a space; leave out a fragment ('#...')."
        )
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    if "@" in authority:
        raise ConfigError(
            "HttpConfig.url holds a user name or password before the host, which ends up in plans and logs. Write "
            "headers={'Authorization': Secret.env('NAME')}, with 'Basic ' and the base64 of 'user:password' in NAME."
        )
    if "{" in authority or "}" in authority:
        raise ConfigError(
            "HttpConfig.url holds a placeholder in its host or port; a key may choose a path segment or the value of a "
            "query parameter, never where the request goes. Register one source for each host."
        )
    parts = _parts(url, authority)
    check_separated(url)  # raises `ConfigError`, also for a brace that belongs to no placeholder
    if any(segment.lower().replace("%2e", ".") in (".", "..") for segment in parts.path.split("/")):
        raise ConfigError(
            "HttpConfig.url has a path segment '.' or '..', which clients resolve differently. Write the path it "
            "leads to."
        )
    for name, _, _ in _parameters(parts.query):
        if "{" in name:
            raise ConfigError(
                "HttpConfig.url holds a placeholder in the name of a query parameter; a key may be its value. Write "
                "'?id={0}'."
            )
    return parts


def _parameters(query: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the equals sign and the value of each parameter; sign and value may be empty."""
    return (pair.partition("=") for pair in query.split("&"))


def _parts(url: str, authority: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        parts.port  # noqa: B018  # a property that raises `ValueError` for a wrong port
        # '127.1' and '0x7f000001' are rejected, because some parsers take them for IP addresses and others for host
        # names.
        if authority.startswith("["):
            ipaddress.IPv6Address(host)
        elif _ENDS_IN_NUMBER(host):
            ipaddress.IPv4Address(host)
        elif not _HOST_NAME(host):
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"HttpConfig.url names the host {authority!r}; it must be a name, an IPv4 address of four decimal numbers "
            "or an IPv6 address in brackets, and a port up to 65535 after a colon. Write 'api.example:8443'."
        ) from None
    return parts


def is_local(host: str) -> bool:
    """
    Return whether *host* is this machine, so that no request to it crosses a network.

    >>> is_local("127.0.0.9"), is_local("localhost"), is_local("10.0.0.1"), is_local("localhost.example")
    (True, True, False, False)
    >>> is_local("::1"), is_local("::ffff:127.0.0.1"), is_local("::ffff:10.0.0.1")
    (True, True, False)
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    # Before Python 3.13, `is_loopback` ignores the IPv4 address inside an IPv6 address, so `ipv4_mapped` is checked.
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def credential_in(query: str) -> str | None:
    """
    Return the first name in *query* that looks like a credential and has a value without placeholders, or None.

    >>> credential_in("id={0}&apiKey=abc"), credential_in("key={0}&sort_key=name")
    ('apiKey', None)
    """
    return next((name for name, _, value in _parameters(query) if value and "{" not in value and _IN_QUERY(name)), None)


def credential_named(pairs: Iterable[Named]) -> str | None:
    """
    Return the first name in *pairs* whose value is a `Secret`, or that looks like a credential and has a value without
    placeholders; return None if there is no such name.
    """
    for name, value in pairs:
        if isinstance(value, Secret) or (value and "{" not in value and _IN_QUERY(name)):
            return name
    return None


def names_in(query: str) -> set[str]:
    """
    Return the names of the parameters of *query*, decoded.

    >>> sorted(names_in("id={0}&na%20me=x"))
    ['id', 'na me']
    """
    return {unquote_plus(name) for name, _, _ in _parameters(query)}


def body_text(body: Any) -> str:
    """Return the body template *body*, which is data or JSON text, as JSON text."""
    try:
        text = body if isinstance(body, str) else json.dumps(body, allow_nan=False)
        data = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        Body(text)  # raises an error for wrong braces
        return msgspec.json.encode(data).decode()
    except ConfigError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        # Half of a surrogate pair raises a `ValueError`, and too deep nesting raises a `RecursionError`.
        raise ConfigError(
            f"HttpConfig.body is not JSON ({error}); it must be data made of dict, list, str, int, float, bool and "
            'None, or JSON text. Write {"id": "{0}"}.'
        ) from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):  # msgspec would encode infinity as null
        raise ValueError("a number is out of the range of a double")
    return number


def check_path(field: str, path: Any, *, brackets: bool) -> None:
    """
    Raise `ConfigError` for a *path* that does not consist of names joined by dots.

    Args:
        field: Name of the config field that holds the path.
        path: The path; None is accepted.
        brackets: True when `[]` may separate the path to a list from the path inside each element.
    """
    if path is None:
        return
    envelope, separator, inner = path.partition("[]") if isinstance(path, str) else ("", "", "")
    if (
        separator
        and brackets
        and (envelope == "" or _PATH(envelope))
        and (inner == "" or (inner[0] == "." and _PATH(inner[1:])))
    ):
        return
    if not isinstance(path, str) or not _PATH(path):
        raise ConfigError(
            f"HttpConfig.{field} is {path!r}; it must be names of fields joined by dots, as in 'data.profile'"
            + (" (with bulk also 'results[].profile')." if field == "value" else ".")
        )


def masked(url: str) -> str:
    """
    Return *url* with each value in its query replaced by `***`, unless the value holds a placeholder.

    >>> masked("https://api.example/u/{0}?in={1}&token=abc")
    'https://api.example/u/{0}?in={1}&token=***'
    """
    address, mark, query = url.partition("?")
    shown = (f"{name}{sign}{value if '{' in value or not value else '***'}" for name, sign, value in _parameters(query))
    return address + mark + "&".join(shown)


def statuses(values: Iterable[Any] | Any) -> tuple[int, ...]:
    """
    Return *values*, the statuses that mean a miss, as a tuple; raises `ConfigError` for values that are not allowed.
    """
    if isinstance(values, Iterable):
        checked = tuple(values)
        if all(type(status) is int and (status == 204 or 400 <= status < 500) for status in checked):
            return checked
    raise ConfigError(
        f"HttpConfig.missing is {values!r}; it must hold statuses from 400 to 499, or 204. Write (404, 410)."
    )
