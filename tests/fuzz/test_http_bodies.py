"""
Whatever a service answers with 200, its body is a part of the document as Python's `json` reads it, or an error.

The connector and its client are real, and so are the requests: they go to a service on loopback.
"""

from __future__ import annotations

import codecs
import contextlib
import enum
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig, HttpConnector

from enrichkit.errors import ConnectorError, ContractError, PermanentError, TransientError
from enrichkit.plugin import Absent, Call, Failure

from .documents import DOUBLED, HALF, TOO_DEEP, parsed, texts
from .fuzzing import effort, explore, kept
from .raw_http import RawService

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = ["7", "a", "名"]
SINGLE: dict[str, dict[str, Any]] = {
    "whole": {},
    "at a path": {"value": "data.profile"},
    "at a path in any script": {"value": "名"},
    "with the key": {"key_field": "id", "value": "data"},
}
BULK: dict[str, dict[str, Any]] = {
    "in order": {},
    "in order, at a path": {"value": "results[].data"},
    "with keys": {"key_field": "id"},
    "with keys, at a path": {"key_field": "id", "value": "results[].data"},
}


MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class Said(enum.Enum):
    """What an answer says that holds no value."""

    ERROR = enum.auto()
    MISS = enum.auto()


ERROR, MISS = Said.ERROR, Said.MISS


class Lookups:
    """A service, and an open connector for each of the ways to read its answers."""

    def __init__(self, service: RawService) -> None:
        self.service = service
        self.single = {name: self._open(url=service.url + "/{}", **fields) for name, fields in SINGLE.items()}
        self.bulk = {name: self._open(url=service.url, bulk=True, **fields) for name, fields in BULK.items()}

    def _open(self, **fields: Any) -> HttpConnector:
        connector = HttpConnector(HttpConfig(returns="a int", **fields))
        self.service.run(connector.open())
        return connector

    def close(self) -> None:
        for connector in (*self.single.values(), *self.bulk.values()):
            self.service.run(connector.close())

    def answers(self, connector: HttpConnector, keys: list[str], *, many: bool) -> dict[str, Any] | ConnectorError:
        """
        Return the answers, or the error of the whole call; any other exception fails the test.

        A key without a value at the path is left out, like any other miss.
        """
        try:
            answers = self.service.run(connector.fetch_many(keys, Call(timeout=5.0, many=many)))
        except ConnectorError as error:
            return error
        return {key: answer for key, answer in answers.items() if not isinstance(answer, Absent)}


@pytest.fixture(scope="module")
def lookups() -> Iterator[Lookups]:
    with RawService() as service, contextlib.closing(Lookups(service)) as made:
        yield made


def without_mark(text: bytes) -> bytes:
    """Return *text* as the connector reads it: in UTF-8, without a byte order mark, which may name another encoding."""
    for mark, encoding in MARKS.items():
        if text.startswith(mark):
            return text.decode(encoding).encode()
    return text


def at_path(document: Any, path: str) -> Any:
    """Return the part of *document* at *path*, `MISS` when it is absent, and `ERROR` when the way is no object."""
    for name in path.split("."):
        if document is None:
            return MISS  # a null before the end of the way; a null at its end is a null
        if not isinstance(document, dict):
            return ERROR
        if name not in document:
            return MISS
        document = document[name]
    return document


def plain(answer: Any) -> Any:
    """Return what an answer of the connector says: JSON as `parsed` gives it."""
    if isinstance(answer, Failure):
        assert type(answer.error) is PermanentError
        assert not answer.rejected
        return ERROR
    if isinstance(answer, list):
        return [plain(element) for element in answer]
    return None if answer is None else parsed(answer)[0]


def check_single(lookups: Lookups, text: bytes) -> None:
    try:
        document, remark = parsed(without_mark(text))
    except ValueError:
        document, remark = ..., ""
    lookups.service.body = text
    for name, connector in lookups.single.items():
        fields = SINGLE[name]
        for many in (False, True):
            answers = lookups.answers(connector, ["7"], many=many)
            if isinstance(answers, ConnectorError):
                mismatch = isinstance(answers, TransientError) and "key_field" in fields
                assert mismatch or type(answers) is PermanentError
                said: Any = ERROR
            else:
                assert answers.keys() <= {"7"}
                said = plain(answers["7"]) if answers else MISS
            if remark == TOO_DEEP:
                continue  # Python's own parser gives up; that the connector says something is all that is known
            right = ERROR if document is ... else expected(document, fields, many=many)
            # Of two fields of one name the last one counts, but the first one may be an error of the whole; and so may
            # half of a surrogate pair in a part that nobody has asked for.
            assert said == right or (said == ERROR and remark in (DOUBLED, HALF)), (name, many)


def expected(document: Any, fields: dict[str, Any], *, many: bool) -> Any:
    if "key_field" in fields and at_path(document, fields["key_field"]) not in ("7", ("number", "7")):
        return ERROR
    part = at_path(document, fields["value"]) if "value" in fields else document
    if not many or part in (MISS, ERROR):
        return part
    if part is None:
        return MISS
    return ERROR if not isinstance(part, list) else part or MISS


def check_bulk(lookups: Lookups, text: bytes) -> None:
    try:
        document, remark = parsed(without_mark(text))
    except ValueError:
        document, remark = ..., ""
    lookups.service.body = text
    for name, connector in lookups.bulk.items():
        answers = lookups.answers(connector, KEYS, many=False)
        if isinstance(answers, ConnectorError):
            mismatch = isinstance(answers, TransientError) and "key_field" in BULK[name]
            assert mismatch or type(answers) in (PermanentError, ContractError)
            continue
        assert document is not ..., "what is not JSON is no answer"
        assert answers.keys() <= set(KEYS)
        if remark not in (DOUBLED, TOO_DEEP):
            elements = elements_by_key(document, BULK[name])
            for key in KEYS:
                assert (plain(answers[key]) if key in answers else MISS) == elements.get(key, MISS), (name, key)


def elements_by_key(document: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the right answer to each key of a bulk response; a key without one is a miss."""
    path, brackets, inner = fields.get("value", "").partition("[].")
    elements = at_path(document, path) if brackets else document
    if isinstance(elements, dict):
        pairs = list(elements.items())
    elif "key_field" not in fields:
        pairs = [(key, element) for key, element in zip(KEYS, elements, strict=True) if element is not None]
    else:
        kept_elements = [element for element in elements if element is not None]
        pairs = [(_key(at_path(element, fields["key_field"])), element) for element in kept_elements]
    found: dict[str, Any] = {}
    for key, element in pairs:
        value = element if not inner else MISS if element is None else at_path(element, inner)
        if value != MISS:
            found[key] = ERROR if key in found else value
    return found


def _key(said: Any) -> str:
    return str(said[1] if isinstance(said, tuple) else said)


@pytest.mark.parametrize("text", kept("json"))
def test_a_kept_body_is_a_part_of_the_document_or_an_error(lookups: Lookups, text: bytes) -> None:
    check_single(lookups, text)
    check_bulk(lookups, text)


@effort
def test_any_body_for_one_key_is_a_part_of_the_document_or_an_error(lookups: Lookups, effort: int) -> None:
    explore(lambda text: check_single(lookups, text), texts, 100 * effort)


@pytest.mark.slow
@effort
def test_any_body_for_many_keys_gives_each_key_its_own_part_or_an_error(lookups: Lookups, effort: int) -> None:
    explore(lambda text: check_bulk(lookups, text), texts, 150 * effort)


def test_the_paths_and_the_keys_of_the_corpus_are_found(lookups: Lookups) -> None:
    """The checks above would also hold if every answer were an error."""
    lookups.service.body = b'{"id": 7, "data": {"profile": [1]}, "\xe5\x90\x8d": 2}'
    found = {name: lookups.answers(connector, ["7"], many=False) for name, connector in lookups.single.items()}
    assert found == {
        "whole": {"7": lookups.service.body},
        "at a path": {"7": b"[1]"},
        "at a path in any script": {"7": b"2"},
        "with the key": {"7": b'{"profile": [1]}'},
    }
    lookups.service.body = '{"results": [{"id": "名", "data": 1}, {"id": 7, "data": null}, {"id": "a"}]}'.encode()
    assert {"名": b"1", "7": None} == lookups.answers(lookups.bulk["with keys, at a path"], KEYS, many=False)
