"""
The reading of responses: finding the values in a document, and the key of each value in a bulk response.

Values are cut out of a document as JSON text (`msgspec.Raw`) and not decoded, because the engine decodes each value
later, against the declared type. This module only checks that the JSON is whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from enrichkit.errors import ContractError, PermanentError
from enrichkit.plugin import Absent, Failure, Key

from .document import ABSENT, Path, as_utf8, encoding_of
from .verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .config import HttpConfig

__all__ = ["NOT_JSON", "EchoMismatchError", "ResponseReader", "checked", "decoded", "not_framed", "not_json"]

_document = msgspec.json.Decoder(Raw)
_list = msgspec.json.Decoder(list[Raw])
_object = msgspec.json.Decoder(dict[str, Raw])
_string = msgspec.json.Decoder(str)

NOT_JSON = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class EchoMismatchError(Exception):
    """The response repeats another key than the key of the request: responses were mixed up on the way."""


class ResponseReader:
    """
    A reader of the responses of a source. It keeps nothing from one response to the next.

    Attributes:
        is_text: True when a value is text; False when it is JSON.
    """

    def __init__(self, config: HttpConfig) -> None:
        self.is_text = str(config.returns).strip().lower() == "string"
        # If answers have pages, `Pages` has joined the lists at `value`, and this class gets the joined list, in which
        # there is no path to follow.
        value = None if config.next_page else config.value
        envelope, brackets, inner = (value or "").partition("[]")
        if not brackets:
            envelope, inner = "", envelope
        self._envelope = Path(envelope) if envelope else None
        self._value = Path(inner.removeprefix(".")) if inner else None
        # Joined pages are read as JSON even if a value is text, so that a null in place of the list stays a null.
        self._whole = self.is_text and self._value is None and config.next_page is None
        self._key_field = config.key_field
        self._verdict = Verdict(config)
        self._looks = self._verdict.asked and not config.next_page  # `Pages` has checked each page
        self._echo = Path(config.key_field) if config.key_field else None

    def read_one(self, key: str, body: bytes, charset: str | None, *, many: bool, framed: bool) -> Any:
        """
        Return the value in the response to one key; `ABSENT` or an `Absent` for a miss.

        Args:
            key: The key as text, for the comparison with the key that the response repeats.
            body: Body of the response.
            charset: Declared charset of a body of text. If None, the charset is that of the byte order
            mark, or UTF-8 if there is no such mark.
            many: True when the value is a list of matches.
            framed: True when the service announced the length of the body, so that the body is known to be whole.

        Raises:
            EchoMismatchError: The response repeats another key.
            PermanentError: The body is not JSON, has another shape, or may be cut off.
        """
        whole_body = self._whole and not many
        if whole_body and framed and self._echo is None and not self._looks:
            return decoded(body, charset)
        try:
            document = checked(as_utf8(body, charset) if self.is_text else body, framed)
            if self._looks:
                self._verdict.check(document)
            if self._echo is not None and self._repeated_key(document) != key:
                raise EchoMismatchError
            return decoded(body, charset) if whole_body else self._value_in(document, many)
        except NOT_JSON:
            raise (not_framed() if whole_body and not framed else not_json(body, of_one=True)) from None

    def read_bulk(
        self, keys: Mapping[str, Key], body: bytes, charset: str | None, *, many: bool, framed: bool
    ) -> dict[Key, Any]:
        """
        Return the values in a bulk response, each by its key; a key that is not in the result is a miss.

        Args:
            keys: The keys by their texts, in the order of the request.
            body: Body of the response.
            charset: Declared charset of a body of text. If None, the charset is that of the byte order
            mark, or UTF-8 if there is no such mark.
            many: True when each value is a list of matches.
            framed: True when the service announced the length of the body.

        Raises:
            ContractError: The document is neither a list nor an object, or its elements do not fit the keys of the
                request.
            EchoMismatchError: An element of an object repeats another key than its own name in the object.
            PermanentError: The body is not JSON, has another shape, or may be cut off.
        """
        try:
            document = checked(as_utf8(body, charset) if self.is_text else body, framed)
            if self._envelope is not None:
                if self._looks:
                    self._verdict.check(document)
                document = self._envelope.find(document)
            first = b"" if document is ABSENT else document[:1]
            if first == b"{":
                return self._from_object(keys, _object.decode(document), many)
            if first == b"[":
                from_list = self._from_ordered_list if self._echo is None else self._from_list_with_keys
                return from_list(keys, _list.decode(document), many)
        except NOT_JSON:
            raise not_json(body) from None
        raise ContractError(
            "The bulk answer is neither a list nor an object, so its values belong to no key. Let the service answer "
            "with a list in the order of the keys or an object by key, or say in HttpConfig.value where in the answer "
            "that is, as in 'results[]'."
        )

    def _from_ordered_list(self, keys: Mapping[str, Key], elements: Sequence[Raw], many: bool) -> dict[Key, Any]:
        if len(elements) != len(keys):
            raise ContractError(
                f"The bulk answer is a list of {len(elements):,} for {len(keys):,} keys; it must have one element for "
                "each key, in their order, null for a key that the service does not hold. If it leaves keys out, set "
                "HttpConfig.key_field."
            )
        answers = {}
        for key, element in zip(keys.values(), elements, strict=True):
            document = bytes(element)
            if document != b"null" and (value := self._element(document, many)) is not ABSENT:
                answers[key] = value
        return answers

    def _from_object(self, keys: Mapping[str, Key], elements: Mapping[str, Raw], many: bool) -> dict[Key, Any]:
        if not elements.keys() <= keys.keys():
            raise _foreign_keys(sum(name not in keys for name in elements))
        answers = {}
        for name, element in elements.items():
            document = bytes(element)
            if self._echo is not None and document != b"null" and self._repeated_key(document) != name:
                raise EchoMismatchError
            value = self._element(document, many)
            if value is not ABSENT:
                answers[keys[name]] = value
        return answers

    def _from_list_with_keys(self, keys: Mapping[str, Key], elements: Sequence[Raw], many: bool) -> dict[Key, Any]:
        by_name: dict[str, list[Any]] = {}
        absent: dict[str, Absent] = {}
        for element in elements:
            document = bytes(element)
            # A null says that the service does not hold one of the keys, but not which one. It is skipped, because a
            # key without an element is a miss anyway.
            if document == b"null":
                continue
            value = self._element(document, many=False)
            name = self._repeated_key(document)
            by_name.setdefault(name, []).extend([] if value is ABSENT or isinstance(value, Absent) else [value])
            if isinstance(value, Absent):
                absent[name] = value
        if not by_name.keys() <= keys.keys():
            raise _foreign_keys(sum(name not in keys for name in by_name))
        if many:
            return {keys[name]: _first_failure(matches) or matches for name, matches in by_name.items() if matches}
        twice = Failure(
            PermanentError("The bulk answer holds this key more than once; many=True takes all its matches.")
        )
        return {
            keys[name]: absent[name] if not matches else matches[0] if len(matches) == 1 else twice
            for name, matches in by_name.items()
            if matches or name in absent
        }

    def _element(self, document: bytes, many: bool) -> Any:
        """
        Return the value of one key of a bulk response; `ABSENT` or an `Absent` for a miss; a `Failure` for an error
        that concerns only this key.
        """
        try:
            if self._looks and self._envelope is None:
                self._verdict.check(document)
            return self._value_in(document, many)
        except PermanentError as error:
            return Failure(error)
        except NOT_JSON:
            return Failure(not_json(document))

    def _value_in(self, document: bytes, many: bool) -> Any:
        if self._value is not None:
            found = ABSENT if document == b"null" else self._value.find(document)
            if found is ABSENT:
                return ABSENT if document == b"null" else self._value.absent(document)
            document = found
        if not many:
            return self._encoded(document)
        if document == b"null":
            return ABSENT
        if document[:1] != b"[":
            raise PermanentError(
                "The value is not a list; with many=True it must be one, with an element for each match."
            )
        return [self._encoded(bytes(match)) for match in _list.decode(document)] or ABSENT

    def _encoded(self, document: bytes) -> bytes | str | None:
        """Return the value in the JSON *document* as text if `is_text` is True, otherwise as JSON; None for a null."""
        if document == b"null":
            return None
        if not self.is_text:
            return document
        # Like Spark's `get_json_object`, return a string without its quotes, and any other value as its JSON text.
        return _string.decode(document) if document[:1] == b'"' else document.decode()

    def _repeated_key(self, document: bytes) -> str:
        assert self._echo is not None
        echo = self._echo.find(document)
        if echo is ABSENT:
            raise PermanentError(
                f"The answer does not repeat the key at {self._key_field!r}, so it is not known whose it is. "
                "Correct HttpConfig.key_field, or leave it out."
            )
        return _string.decode(echo) if echo[:1] == b'"' else echo.decode()


def checked(body: bytes, framed: bool) -> bytes:
    """Return the JSON document in *body* without the blanks around it."""
    document = bytes(_document.decode(body))
    # If the protocol does not mark the end of the body, only an object, list or string shows that it is whole. A number
    # that was cut off, such as 1 instead of 12, is valid JSON, too.
    if not framed and document[:1] not in (b"{", b"[", b'"'):
        raise not_framed()
    return document


def _first_failure(matches: Sequence[Any]) -> Failure | None:
    """Return the first failure in *matches*, or None. A single failed match makes the whole key fail."""
    return next((match for match in matches if isinstance(match, Failure)), None)


def not_framed() -> PermanentError:
    """
    Return the error for a body that may be cut off, because neither the protocol nor the body itself marks its end.
    """
    return PermanentError(
        "The answer has neither a Content-Length nor chunks, and is no JSON object, list or string, so a whole one "
        "looks like one that was cut off. Let the service send a Content-Length."
    )


def not_json(body: bytes, *, of_one: bool = False) -> PermanentError:
    """Return the error for a body that is not a JSON document. *of_one* is True if *body* answers one key."""
    if of_one and not body.strip():
        return PermanentError(
            "The answer is empty, and no JSON document. If that says that the service does not hold the key, set "
            "HttpConfig.missing_when='empty'."
        )
    return PermanentError(
        f"The answer of {len(body):,} bytes is no JSON document: malformed, cut off, not UTF-8, or nested too deep. "
        "Only returns='string' takes other text."
    )


def decoded(body: bytes, charset: str | None) -> str:
    """
    Return *body* as text, without the byte order mark, which would otherwise become a character of the value.

    Raises:
        PermanentError: The bytes are not text in the *charset*.
    """
    try:
        return body.decode(encoding_of(body, charset)).removeprefix("\ufeff")
    except (UnicodeError, LookupError):
        raise PermanentError(
            f"The answer is not text in the charset {charset!r} that it names."
            if charset
            else "The answer is not text in UTF-8, the charset of an answer that names none."
        ) from None


def _foreign_keys(count: int) -> ContractError:
    return ContractError(
        f"The bulk answer holds {count:,} key(s) that were not asked for, so none of it can be trusted. Check "
        "HttpConfig.key_field, and in which form the service repeats a key."
    )
