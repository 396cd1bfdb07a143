"""
From an answer to values: find the value inside, match a bulk answer to its keys.

The parts of a document that are values are cut out as JSON text (`msgspec.Raw`), not decoded: the engine decodes them
once, against the declared type. Here they are only checked to be whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from enrichkit.connector import Failure, Key
from enrichkit.errors import ContractError, PermanentError

from .document import ABSENT, Path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .config import HttpConfig

__all__ = ["Answers", "EchoMismatchError"]

_whole = msgspec.json.Decoder(Raw)
_list = msgspec.json.Decoder(list[Raw])
_object = msgspec.json.Decoder(dict[str, Raw])
_string = msgspec.json.Decoder(str)

_NOT_JSON = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class EchoMismatchError(Exception):
    """The answer repeats another key than the one that was asked: replies were mixed up on the way."""


class Answers:
    """How the answers of one source are read. Made once; holds no state of a call."""

    def __init__(self, config: HttpConfig) -> None:
        self.is_text = str(config.returns).strip().lower() == "string"
        envelope, brackets, inner = (config.value or "").partition("[]")
        if not brackets:
            envelope, inner = "", envelope
        self._envelope = Path(envelope) if envelope else None
        self._value = Path(inner.removeprefix(".")) if inner else None
        self._key_field = config.key_field
        self._echo = Path(config.key_field) if config.key_field else None

    def of_one(self, key: str, body: bytes, charset: str | None, *, many: bool, framed: bool) -> Any:
        """
        Return the value in the answer to one key, or `ABSENT`.

        Args:
            key: The key as text, to compare with what the answer repeats.
            body: The answer.
            charset: Its charset, for text; None: UTF-8.
            many: The value is a list of matches.
            framed: The length of the body was announced, so that it is known to be whole.

        Raises:
            EchoMismatchError: It is the answer to another key.
            PermanentError: It is not JSON, has another shape, or may be cut off.
        """
        as_it_is = self.is_text and self._value is None and not many
        if as_it_is and framed and self._echo is None:
            return _decoded(body, charset)
        try:
            document = _checked(body, framed)
            if self._echo is not None and self._repeated_key(document) != key:
                raise EchoMismatchError
            return _decoded(body, charset) if as_it_is else self._value_in(document, many)
        except _NOT_JSON:
            raise (_not_framed() if as_it_is and not framed else _not_json(body)) from None

    def of_many(self, keys: Mapping[str, Key], body: bytes, *, many: bool, framed: bool) -> dict[Key, Any]:
        """
        Return the values in a bulk answer, under the keys that were asked; absent are the misses.

        Args:
            keys: The keys, each under its text, in the order in which they were asked.
            body: The answer.
            many: Each value is a list of matches.
            framed: The length of the body was announced.

        Raises:
            ContractError: The answer is no list or object, or does not fit the keys.
            EchoMismatchError: An element repeats another key than the one whose name it stands under.
            PermanentError: It is not JSON, has another shape, or may be cut off.
        """
        try:
            document = _checked(body, framed)
            if self._envelope is not None:
                document = self._envelope.find(document)
            first = b"" if document is ABSENT else document[:1]
            if first == b"{":
                return self._by_name(keys, _object.decode(document), many)
            if first == b"[":
                elements = _list.decode(document)
                return (
                    self._by_order(keys, elements, many) if self._echo is None else self._by_echo(keys, elements, many)
                )
        except _NOT_JSON:
            raise _not_json(body) from None
        raise ContractError(
            "The bulk answer is neither a list nor an object, so its values belong to no key. Let the service answer "
            "with a list in the order of the keys or an object by key, or say in HttpConfig.value where in the answer "
            "that is, as in 'results[]'."
        )

    def _by_order(self, keys: Mapping[str, Key], elements: Sequence[Raw], many: bool) -> dict[Key, Any]:
        if len(elements) != len(keys):
            raise ContractError(
                f"The bulk answer is a list of {len(elements):,} for {len(keys):,} keys; it must have one element for "
                "each key, in their order, null for a key that the service does not hold. If it leaves keys out, set "
                "HttpConfig.key_field."
            )
        found = {}
        for key, element in zip(keys.values(), elements, strict=True):
            document = bytes(element)
            if document != b"null" and (value := self._element(document, many)) is not ABSENT:
                found[key] = value
        return found

    def _by_name(self, keys: Mapping[str, Key], elements: Mapping[str, Raw], many: bool) -> dict[Key, Any]:
        if not elements.keys() <= keys.keys():
            raise _not_asked(sum(name not in keys for name in elements))
        found = {}
        for name, element in elements.items():
            document = bytes(element)
            if self._echo is not None and document != b"null" and self._repeated_key(document) != name:
                raise EchoMismatchError
            value = self._element(document, many)
            if value is not ABSENT:
                found[keys[name]] = value
        return found

    def _by_echo(self, keys: Mapping[str, Key], elements: Sequence[Raw], many: bool) -> dict[Key, Any]:
        by_name: dict[str, list[Any]] = {}
        for element in elements:
            document = bytes(element)
            if document == b"null":  # for a key that the service does not hold; it does not say for which
                continue
            value = self._element(document, many=False)
            by_name.setdefault(self._repeated_key(document), []).extend([] if value is ABSENT else [value])
        if not by_name.keys() <= keys.keys():
            raise _not_asked(sum(name not in keys for name in by_name))
        if many:
            return {keys[name]: _failed(matches) or matches for name, matches in by_name.items() if matches}
        twice = Failure(
            PermanentError("The bulk answer holds this key more than once; many=True takes all its matches.")
        )
        return {keys[name]: matches[0] if len(matches) == 1 else twice for name, matches in by_name.items() if matches}

    def _element(self, document: bytes, many: bool) -> Any:
        """Return the value of one key of many; what is wrong with it is this key's trouble only."""
        try:
            return self._value_in(document, many)
        except PermanentError as error:
            return Failure(error)
        except _NOT_JSON:
            return Failure(_not_json(document))

    def _value_in(self, document: bytes, many: bool) -> Any:
        if self._value is not None:
            document = ABSENT if document == b"null" else self._value.find(document)
            if document is ABSENT:
                return ABSENT
        if not many:
            return self._document(document)
        if document == b"null":
            return ABSENT
        if document[:1] != b"[":
            raise PermanentError(
                "The value is not a list; with many=True it must be one, with an element for each match."
            )
        return [self._document(bytes(match)) for match in _list.decode(document)] or ABSENT

    def _document(self, document: bytes) -> bytes | str | None:
        if document == b"null":
            return None
        if not self.is_text:
            return document
        # As Spark's get_json_object: a string without its quotes, anything else as its JSON.
        return _string.decode(document) if document[:1] == b'"' else document.decode()

    def _repeated_key(self, document: bytes) -> str:
        assert self._echo is not None
        found = self._echo.find(document)
        if found is ABSENT:
            raise PermanentError(
                f"The answer does not repeat the key at {self._key_field!r}, so it is not known whose it is. "
                "Correct HttpConfig.key_field, or leave it out."
            )
        return _string.decode(found) if found[:1] == b'"' else found.decode()


def _checked(body: bytes, framed: bool) -> bytes:
    """Return the JSON document in *body* without the blanks around it."""
    document = bytes(_whole.decode(body))
    # An object, list or string has an end of its own; half of the number 12 is a number, too.
    if not framed and document[:1] not in (b"{", b"[", b'"'):
        raise _not_framed()
    return document


def _failed(matches: Sequence[Any]) -> Failure | None:
    """Return the first failure among *matches*: what is wrong with one is wrong with its key."""
    return next((match for match in matches if isinstance(match, Failure)), None)


def _not_framed() -> PermanentError:
    return PermanentError(
        "The answer has neither a Content-Length nor chunks, and is no JSON object, list or string, so a whole one "
        "looks like one that was cut off. Let the service send a Content-Length."
    )


def _not_json(body: bytes) -> PermanentError:
    return PermanentError(
        f"The answer of {len(body):,} bytes is no JSON document: malformed, cut off, not UTF-8, or nested too deep. "
        "Only returns='string' takes other text."
    )


def _decoded(body: bytes, charset: str | None) -> str:
    try:
        return body.decode(charset or "utf-8")
    except (UnicodeError, LookupError):
        raise PermanentError("The answer is not text in the charset that it names, UTF-8 when it names none.") from None


def _not_asked(count: int) -> ContractError:
    return ContractError(
        f"The bulk answer holds {count:,} key(s) that were not asked for, so none of it can be trusted. Check "
        "HttpConfig.key_field, and in which form the service repeats a key."
    )
