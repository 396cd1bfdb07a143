"""The checks behind `HttpConfig`, one function for each field that needs more than a line."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from enrichkit.errors import ConfigError
from enrichkit.secrets import Secret

from .template import Body, Url

__all__ = [
    "Header",
    "body_text",
    "check_header_value",
    "check_path",
    "credential_in",
    "header_pairs",
    "holds_credential",
    "is_local",
    "split_url",
]

Header = tuple[str, str | Secret]

# RFC 9110, sections 5.6.2 and 5.5: a name is a token; a value is visible ASCII with blanks inside.
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+").fullmatch
_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?").fullmatch
# RFC 3986 without fragment; what is not in it, the client's URL parser would rewrite.
_NOT_IN_URL = re.compile(r"[^A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%{}-]|%(?![0-9A-Fa-f]{2})").search
_HOST_NAME = re.compile(
    r"[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?(?:\.[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
).fullmatch
_ENDS_IN_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)").fullmatch
_PATH = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+)*").fullmatch
_CREDENTIAL = re.compile(r"auth|cookie|token|secret|password|key|signature|session", re.IGNORECASE).search
# Of a query parameter; narrower, for `sort_key=name` is none.
_IN_QUERY = re.compile(
    r"(?:^key|api_?key|access_?key|auth|token|secret|password|signature|session)$", re.IGNORECASE
).search

# Framing belongs to the client; a second opinion on it is how requests are smuggled.
_FRAMING = ("connection", "content-length", "expect", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")


def split_url(url: Any) -> SplitResult:
    """Return the parts of an address template; raises `ConfigError` with the reason why it is none."""
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
    Url(url)  # says what is wrong with its braces
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
    """Yield name, sign and value of each parameter."""
    return (pair.partition("=") for pair in query.split("&"))


def _parts(url: str, authority: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        parts.port  # noqa: B018  # a property that raises
        # '127.1' and '0x7f000001' are addresses to some parsers and names to others.
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
    Tell whether *host* is this machine, so that nothing sent there crosses a network.

    >>> is_local("127.0.0.9"), is_local("localhost"), is_local("10.0.0.1"), is_local("localhost.example")
    (True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def header_pairs(headers: Any) -> tuple[Header, ...]:
    """Return *headers*, a mapping or pairs, as a tuple of checked pairs."""
    try:
        pairs = tuple((name, value) for name, value in (headers.items() if isinstance(headers, Mapping) else headers))
    except (TypeError, ValueError):
        raise ConfigError(
            f"HttpConfig.headers is a {type(headers).__name__} that holds no pairs; it must be a mapping of names to "
            "texts or secrets. Write {'X-Api-Key': Secret.env('API_KEY')}."
        ) from None
    seen = set()
    for name, value in pairs:
        if not isinstance(name, str) or not _TOKEN(name):
            raise ConfigError(
                f"HttpConfig.headers has the name {name!r}; a name consists of letters, digits and !#$%&'*+-.^_`|~, "
                "without blanks or a colon. Write 'X-Api-Key'."
            )
        if name.lower() in seen:
            raise ConfigError(
                f"HttpConfig.headers names {name!r} twice; each header may be given once. Join the values by commas."
            )
        if name.lower() in _FRAMING:
            raise ConfigError(f"HttpConfig.headers sets {name!r}, which belongs to the HTTP client. Leave it out.")
        if isinstance(value, str):
            check_header_value(name, value)
        elif not isinstance(value, Secret):
            raise ConfigError(
                f"HttpConfig.headers gives {name!r} a {type(value).__name__}; a value is text or a Secret. Write "
                "Secret.env('NAME')."
            )
        seen.add(name.lower())
    return pairs


def check_header_value(name: str, value: str) -> None:
    """Refuse a value that would not arrive as it is; called again on the worker for a resolved secret."""
    if not _VALUE(value):
        raise ConfigError(
            f"HttpConfig.headers gives {name!r} a value with a line break, a control or non-ASCII character, or a "
            "blank at an end; a value is visible ASCII, blanks inside. Take the character out; the value is not shown, "
            "it may be a secret."
        )


def holds_credential(header: Header) -> bool:
    """Tell whether a header looks like one that others must not read."""
    name, value = header
    return isinstance(value, Secret) or _CREDENTIAL(name) is not None


def credential_in(query: str) -> str | None:
    """
    Return the name of the first parameter of *query* that looks like a credential and is no key's.

    >>> credential_in("id={0}&apiKey=abc"), credential_in("key={0}&sort_key=name")
    ('apiKey', None)
    """
    return next((name for name, _, value in _parameters(query) if value and "{" not in value and _IN_QUERY(name)), None)


def body_text(body: Any) -> str:
    """Return a body template, data or JSON text, as JSON text."""
    try:
        text = body if isinstance(body, str) else json.dumps(body, allow_nan=False)
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"HttpConfig.body is not JSON ({error}); it must be data made of dict, list, str, int, float, bool and "
            'None, or JSON text. Write {"id": "{0}"}.'
        ) from error
    Body(text)  # says what is wrong with its braces
    return msgspec.json.encode(data).decode()


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def check_path(field: str, path: Any, *, brackets: bool) -> None:
    """Refuse a *path* that is not names joined by dots; with *brackets*, `[]` may stand between two of them."""
    if path is None:
        return
    envelope, found, inner = path.partition("[]") if isinstance(path, str) else ("", "", "")
    if (
        found
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
    Return *url* without the values of its query, unless the key chooses them.

    >>> masked("https://api.example/u/{0}?in={1}&token=abc")
    'https://api.example/u/{0}?in={1}&token=***'
    """
    address, mark, query = url.partition("?")
    shown = (f"{name}{sign}{value if '{' in value or not value else '***'}" for name, sign, value in _parameters(query))
    return address + mark + "&".join(shown)


def statuses(values: Iterable[Any] | Any) -> tuple[int, ...]:
    """Return the statuses that mean a miss as a tuple."""
    if isinstance(values, Iterable):
        found = tuple(values)
        if all(type(status) is int and (status == 204 or 400 <= status < 500) for status in found):
            return found
    raise ConfigError(
        f"HttpConfig.missing is {values!r}; it must hold statuses from 400 to 499, or 204. Write (404, 410)."
    )
