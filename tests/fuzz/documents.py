"""Texts that are JSON, or nearly: with doubled names, huge numbers, bad UTF-8, and what JSON does not have."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st

from .fuzzing import mutants

__all__ = ["DOUBLED", "HALF", "TOO_DEEP", "parsed", "texts"]

NUMBERS = [b"0", b"-0", b"7", b"-1", b"127", b"128", b"2147483648", b"9007199254740993", b"9223372036854775807"]
NUMBERS += [
    b"9223372036854775808",
    b"123456789012345678901234567890",
    b"1.5",
    b"-0.0",
    b"1.10",
    b"1e5",
    b"1E+2",
    b"1e400",
]
NUMBERS += [b"-1e-400", b"0.1234567890123456789012345678901234567890", b"16777217", b"3.5e38"]
STRINGS = [
    b'""',
    b'"a"',
    b'"true"',
    b'"7"',
    b'"\\u00e9"',
    '"é名🙂"'.encode(),
    b'"\\ud83d\\ude00"',
    b'"\\u0000"',
    b'"AQI="',
]
STRINGS += [
    b'"2024-01-31"',
    b'"2024-01-31T10:00:00Z"',
    b'"2024-01-31T10:00:00.1234567+02:00"',
    b'"10:00:00.5"',
    b'"1.10"',
]
STRINGS += [b'"P1DT2H3.5S"', b'"0001-01-01T00:00:00+23:59"', b'"9999-12-31T23:59:59-23:59"', b'"24:00:00"', b'"=AQI"']
BAD = [b"NaN", b"Infinity", b"-Infinity", b"nul", b"True", b"01", b"+1", b".5", b"1.", b"1e", b"0x1", b"'a'", b'"\\x"']
BAD += [
    b'"\t"',
    b'"\0"',
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"\xc0\x80"',
    b'"\\u12"',
    b'"a',
]
NAMES = [
    b'"name"',
    b'"tier"',
    b'"user"',
    b'"sizes"',
    b'"id"',
    b'"data"',
    b'"profile"',
    b'"results"',
    b'"a"',
    b'""',
    b'"7"',
]
NAMES += [
    b'"-0"',
    b'"0"',
    b'"+7"',
    b'"\\u006eame"',
    '"名"'.encode(),
    b'"\\u540d"',
    b'"\xff"',
    b'"\\ud800"',
    b'"2024-01-31"',
]
TOKENS = [*NUMBERS, *STRINGS, *BAD, *NAMES, b"null", b"true", b"false", b"[", b"]", b"{", b"}", b",", b":", b" ", b"\n"]
TOKENS += [b"\xef\xbb\xbf", b"\xff\xfe", b"/**/", b"\0", b"[" * 300, b'{"a":' * 300, b"1" * 400]

DOUBLED, HALF, TOO_DEEP = "doubled names", "half of a surrogate pair", "too deep"
_HALF = re.compile(rb"\\u[dD][89a-fA-F]").search  # or a whole pair

blanks = st.sampled_from([b"", b"", b"", b" ", b"\r\n\t"])
leaves = st.one_of(
    st.sampled_from([b"null", b"true", b"false", *NUMBERS]),
    st.sampled_from(STRINGS),
    st.sampled_from(BAD),
    st.integers().map(lambda number: b"%d" % number),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda number: repr(number).encode()),
    st.text(max_size=6).map(lambda text: json.dumps(text).encode()),
    st.text(max_size=6).map(lambda text: json.dumps(text, ensure_ascii=False).encode()),
)


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[bytes]) -> bytes:
    blank = draw(blanks)
    return b"[%b%b]" % (blank, (b"," + blank).join(draw(st.lists(inner, max_size=4))))


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[bytes]) -> bytes:
    blank = draw(blanks)
    pairs = draw(st.lists(st.tuples(st.sampled_from(NAMES), inner), max_size=5))
    return b"{%b%b}" % (blank, (b"," + blank).join(name + blank + b":" + value for name, value in pairs))


whole = st.recursive(leaves, lambda inner: arrays(inner) | objects(inner), max_leaves=8)
texts = st.one_of(whole, whole, mutants(whole, TOKENS), st.binary(max_size=20))
"""Documents, documents that were changed, and any bytes."""


def parsed(text: bytes) -> tuple[Any, str]:
    """
    Return what Python's own parser makes of *text*, and `DOUBLED`, `HALF`, `TOO_DEEP` or nothing.

    All digits of numbers are kept, as text. Bytes that are not UTF-8 are kept as surrogates.

    Raises:
        ValueError: The text is not JSON.
    """
    remark = HALF if _HALF(text) else ""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal remark
        if len(dict(items)) < len(items):
            remark = DOUBLED
        return dict(items)

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        document = json.loads(
            text.decode(errors="surrogateescape"),
            parse_int=lambda digits: ("number", digits),
            parse_float=lambda digits: ("number", digits),
            parse_constant=refuse,
            object_pairs_hook=pairs,
        )
    except RecursionError:
        return None, TOO_DEEP
    return document, remark
