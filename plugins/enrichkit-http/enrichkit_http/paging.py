"""The pages of one key's answer. Their lists become one list; if a page fails, the whole answer is an error."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from enrichkit.errors import ConfigError, PermanentError

from .addresses import named_address
from .checks import check_path, names_in
from .document import ABSENT, TOO_LARGE, Path, as_utf8, too_large
from .response_reader import NOT_JSON, checked, not_json
from .verdict import Verdict

if TYPE_CHECKING:
    from .asking import Asking, Send
    from .client import Reply
    from .config import HttpConfig

__all__ = ["Pages", "check_paging"]

MAX_TOKEN = 4096

_list = msgspec.json.Decoder(list[msgspec.Raw])


def check_paging(config: HttpConfig, query: str) -> None:
    """Raise `ConfigError` if a paging field is wrong or contradicts another field; *query* is the query of `url`."""
    check_path("next_page", config.next_page, brackets=False)
    if type(config.max_pages) is not int or not 1 <= config.max_pages <= 10_000:
        raise ConfigError(
            f"HttpConfig.max_pages is {config.max_pages!r}; it must be a whole number from 1 to 10,000. Write 100, or "
            "leave it out."
        )
    if config.page_param is not None:
        _check_page_param(config, query)
    if config.next_page is None:
        return
    if config.method != "GET" or config.raw or config.key_field is not None:
        other = "raw" if config.raw else "key_field" if config.key_field is not None else f"method {config.method!r}"
        raise ConfigError(
            f"HttpConfig.next_page is given with {other}; only the pages of a GET are joined, and a page repeats no "
            "key. Leave one of them out."
        )
    if config.value is None:
        raise ConfigError(
            "HttpConfig.next_page is given without value; value must be the path to the list that each page holds a "
            "part of. Write value='items'."
        )


def _check_page_param(config: HttpConfig, query: str) -> None:
    name = config.page_param
    if not isinstance(name, str) or not name.isascii() or not name.isprintable() or not name:
        raise ConfigError(
            f"HttpConfig.page_param is {name!r}; it must be the name of a parameter of the query, in ASCII. Write "
            "'cursor'."
        )
    if config.next_page is None:
        raise ConfigError(
            "HttpConfig.page_param is given without next_page; next_page says where in a response the token of the "
            "next page is. Write next_page='next_cursor'."
        )
    if name in names_in(query) or name in dict(config.param_pairs):
        raise ConfigError(
            f"HttpConfig.page_param is {name!r}, a parameter that url or params has too; the token of a page would "
            "be its second value. Leave it out there."
        )


class Pages:
    """
    A sender of requests that asks for all pages of an answer and joins them.

    Args:
        send: Function that sends one request.
        config: Config of the source, with `next_page` and `value`.
    """

    def __init__(self, send: Send, config: HttpConfig) -> None:
        assert config.next_page is not None
        assert config.value is not None
        self._send = send
        self._config = config
        self._next = Path(config.next_page)
        self._items = Path(config.value)
        self._verdict = Verdict(config)
        self._max_bytes = config.max_bytes or 0

    async def send(self, asking: Asking) -> Reply | None:
        """
        Ask for all pages and return their lists as one JSON list, or None for a miss; see `Sender.request`.

        The timeout of the request *asking* and the limit `max_bytes` apply to all pages together.
        """
        deadline = monotonic() + asking.timeout
        asked: set[str] = set()
        elements: list[msgspec.Raw] = []
        size = 0
        page: str | None = asking.url
        while page is not None:
            asked.add(page)
            try:
                part = asking.within(deadline - monotonic())._replace(url=page, limit=self._max_bytes - size)
                reply = await self._send(part)
            except PermanentError as error:
                if str(error).startswith(TOO_LARGE):
                    raise too_large(self._max_bytes, pages=True) from None
                raise
            if reply is None and len(asked) == 1:
                return None
            found, reference = self._parts_of(reply, len(asked))
            if len(asked) == 1 and (found is ABSENT or found == b"null"):
                return None if found is ABSENT else (b"null", None, True)
            elements += _elements(found, len(asked), self._config.value)
            size += len(reply[0]) if reply is not None else 0
            page = self._page_after(asking.url, page, reference, asked)
        return b"[" + b",".join(map(bytes, elements)) + b"]", None, True

    def _parts_of(self, reply: Reply | None, number: int) -> tuple[Any, Any]:
        """Return the JSON text of a page's list (or `ABSENT`), and the page's reference to the next page (or None)."""
        if reply is None:
            raise PermanentError(
                f"The service does not hold page {number} of the answer, which the page before names; the other pages "
                "alone are not the answer. Ask its owner."
            )
        body, charset, framed = reply
        document = as_utf8(body, charset)
        try:
            whole = checked(document, framed)
            if self._verdict.asked:
                self._verdict.check(whole)
            reference = self._next.find(whole)
            return self._items.find(whole), None if reference is ABSENT else msgspec.json.decode(reference)
        except NOT_JSON:
            raise not_json(document) from None

    def _page_after(self, first: str, page: str, reference: Any, asked: set[str]) -> str | None:
        """Return the address of the page after *page*, or None after the last page."""
        if reference is None or reference is False or reference == "":
            return None
        name = self._config.page_param
        named = (
            named_address(page, reference, self._config.secret_params)
            if name is None
            else _with(first, name, reference)
        )
        if not isinstance(named, str):
            raise PermanentError(
                f"The next page that the answer names at {self._config.next_page!r} is not asked for: {named}. Correct "
                "HttpConfig.next_page, and set page_param if the service sends a token and no address."
            )
        if named in asked:
            raise PermanentError(
                "The answer names a next page that this lookup has asked for already, so it would never end. Correct "
                "HttpConfig.next_page."
            )
        if len(asked) >= self._config.max_pages:
            raise PermanentError(
                f"The answer has more than {self._config.max_pages:,} pages, as many as HttpConfig.max_pages allows; a "
                "part of it is no answer. Raise max_pages, or ask for larger pages."
            )
        return named


def _with(first: str, name: str, token: Any) -> str | ValueError:
    """Return the address *first* with *token* as its parameter *name*, or an error that says why *token* is refused."""
    if type(token) is int:
        token = str(token)
    if not isinstance(token, str) or len(token) > MAX_TOKEN or not token.isprintable():
        return ValueError(f"it is no token: a whole number, or text of at most {MAX_TOKEN:,} characters, is allowed")
    return f"{first}{'&' if '?' in first else '?'}{quote(name, safe='')}={quote(token, safe='')}"


def _elements(found: Any, number: int, path: str | None) -> list[msgspec.Raw]:
    if found is ABSENT or found[:1] != b"[":
        raise PermanentError(
            f"Page {number} of the answer has no list at {path!r}; each page must have one. Correct HttpConfig.value."
        )
    return _list.decode(found)
