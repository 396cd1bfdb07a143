"""Responses as values, for `raw=True`: the value of a key is the status, body and headers of its response."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from enrichkit.errors import ConfigError, PermanentError

from .client import Reply, receive
from .faults import UNAVAILABLE
from .response_reader import decoded, not_framed

if TYPE_CHECKING:
    from pyreqwest.response import Response

__all__ = ["RAW_RETURNS", "RAW_STATUSES", "RawReceiver", "check_raw_returns"]

RAW_RETURNS = "status int, body string"
RAW_STATUSES = frozenset(range(200, 1000)) - frozenset(UNAVAILABLE)

# Matches the type in the form that users write (`status int, body string`), and in the form that the planner writes
# (`struct<status:int,body:string>`).
_RAW_TYPE = re.compile(
    r"(struct<)?status(?::| )int,body(?::| )string(,headers(?::| )map<string,string>)?(?(1)>)", re.IGNORECASE
).fullmatch
# Responses with these statuses have no body: they end after the headers (RFC 9112, section 6.3).
_WITHOUT_BODY = (204, 304)


def check_raw_returns(returns: Any) -> None:
    """
    Raise `ConfigError` if *returns* is text, but not the DDL of a whole response. A type that is not given as text is
    not checked.
    """
    if isinstance(returns, str) and not _RAW_TYPE(_compact(returns)):
        raise ConfigError(
            f"HttpConfig.returns is {returns!r} with raw; it must be '{RAW_RETURNS}' or "
            f"'{RAW_RETURNS}, headers map<string,string>'. Write one of them, or leave returns out."
        )


def _compact(ddl: str) -> str:
    text = re.sub(r"\s+", " ", ddl.replace("`", "").strip())
    return re.sub(r" ?([:,<>]) ?", r"\1", text)


class RawReceiver:
    """
    A reader of whole responses.

    Args:
        returns: DDL of the value; if it has the field `headers`, a value holds the headers, too.
    """

    def __init__(self, returns: str) -> None:
        self._with_headers = "headers" in returns.lower()

    async def receive(self, response: Response, limit: int, *, text: bool) -> Reply:
        """
        Read *response* and return a reply whose body is a JSON document with the status, the body and, if the declared
        type has them, the headers of *response*; see `client.receive`.
        """
        body, charset, framed = await receive(response, limit, text=True)
        status = response.status
        if not framed and status not in _WITHOUT_BODY:
            raise not_framed()
        document: dict[str, Any] = {"status": status, "body": decoded(body, charset)}
        if self._with_headers:
            document["headers"] = _headers(response)
        return msgspec.json.encode(document), None, True


def _headers(response: Response) -> dict[str, str]:
    """
    Return the headers by lower-case name. `Set-Cookie` is left out, because cookies are credentials, and because
    several cookies cannot be joined by commas.
    """
    found: dict[str, str] = {}
    try:
        for name, value in response.headers.items():
            if name.lower() != "set-cookie":
                found[name.lower()] = f"{found[name.lower()]}, {value}" if name.lower() in found else value
    except ValueError:
        raise PermanentError(
            "The answer has a header that is not ASCII, so its value depends on who reads it. Leave headers out of "
            "HttpConfig.returns."
        ) from None
    return found
