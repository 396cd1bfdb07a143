"""
Which value of a source becomes what in a column of which type: the pairs that docs/types.md lists and Spark is asked.

`python tests/type_matrix.py` writes the tables of the page anew.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import uuid
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "types.md"
UTC = dt.UTC
BERLIN = dt.timezone(dt.timedelta(hours=2))


@dataclass(frozen=True)
class Error:
    """The value is an error of its row; *problem* is what the message says of it."""

    problem: str


@dataclass(frozen=True)
class Coerced:
    """The value is another Python object, but nothing of it is lost that the declared type can hold."""

    value: Any


@dataclass(frozen=True)
class Pair:
    """
    One line of the matrix.

    Attributes:
        declared: The Spark type, as DDL.
        given: The value: an object (python), the text of a JSON document or of a field of a hash, an SQL literal.
        result: The value in the column when it is the same, `Coerced` or `Error`.
        column: The type of the Postgres column.
    """

    declared: str
    given: Any
    result: Any
    column: str = ""

    @property
    def ok(self) -> bool:
        return not isinstance(self.result, Error)

    @property
    def value(self) -> Any:
        return self.result.value if isinstance(self.result, Coerced) else self.result

    def line(self, section: str) -> str:
        """The pair as a line of the table in *section*."""
        kind = type(self.result).__name__.lower() if isinstance(self.result, Error | Coerced) else "exact"
        result = self.result.problem if isinstance(self.result, Error) else f"`{_shown(self.value)}`"
        given = _shown(self.given) if section == "python" else _text(self.given)
        column = [f"`{self.column}`"] if self.column else []
        return "| " + " | ".join([*column, f"`{self.declared}`", f"`{given}`", kind, result]) + " |"


def _shown(value: Any) -> str:
    text = repr(value).replace("datetime.", "").replace("timezone.utc", "UTC").replace("tzinfo=UTC", "UTC")
    return re.sub(r"tzinfo=timezone\(timedelta\(seconds=7200\)\)", "+02:00", text)


def _text(given: str | bytes) -> str:
    text = given if isinstance(given, str) else given.decode("utf-8", "backslashreplace")
    text = text.replace("\n", "\\n").replace("\ufeff", "\\ufeff")
    return text if 0 < len(text) < 60 else f"{text[:9]}..." if text else "(nothing)"


TOO_BIG = "it is a whole number that this type does not hold exactly"
FORM = "it is not of that form"
RANGE = "it is out of range"
DIGITS = "it has too many digits after the point"
BEYOND = "it has digits beyond microseconds"
MOMENT = dt.datetime(2024, 1, 31, 10, 0, 0, 123456)

PYTHON = [
    Pair("string", "名 \U0001f600 'x'", "名 \U0001f600 'x'"),
    Pair("string", uuid.UUID(int=1), Coerced("00000000-0000-0000-0000-000000000001")),
    Pair("string", 1, Error("it is of type int")),
    Pair("string", b"Ann", Error("it is of type bytes")),
    Pair("string", "a\ud800", Error("it holds half of a surrogate pair")),
    Pair("binary", b"\xff\x00", b"\xff\x00"),
    Pair("binary", "ab", Error("it is of type str")),
    Pair("boolean", True, True),
    Pair("boolean", 1, Error("it is of type int")),
    Pair("tinyint", 127, 127),
    Pair("tinyint", 128, Error(RANGE)),
    Pair("smallint", -32769, Error(RANGE)),
    Pair("int", 2**31 - 1, 2**31 - 1),
    Pair("int", 2**31, Error(RANGE)),
    Pair("int", "1", Error("it is of type str")),
    Pair("int", 1.0, Error("it is of type float")),
    Pair("int", True, Error("it is of type bool")),
    Pair("int", math.nan, Error("it is of type float")),
    Pair("bigint", 2**63 - 1, 2**63 - 1),
    Pair("bigint", 2**63, Error(RANGE)),
    Pair("float", 0.1, Coerced(0.10000000149011612)),
    Pair("float", 1e300, Error(RANGE)),
    Pair("double", 0.1, 0.1),
    Pair("double", math.nan, math.nan),
    Pair("double", -math.inf, -math.inf),
    Pair("double", 2**53, Coerced(float(2**53))),
    Pair("double", 2**53 + 1, Error(TOO_BIG)),
    Pair("double", Decimal("1.5"), Error("it is of type Decimal")),
    Pair("decimal(5,2)", Decimal("1.5"), Coerced(Decimal("1.50"))),
    Pair("decimal(5,2)", 999, Coerced(Decimal("999.00"))),
    Pair("decimal(5,2)", Decimal("1.555"), Error(DIGITS)),
    Pair("decimal(5,2)", 1000, Error(RANGE)),
    Pair("decimal(5,2)", 1.5, Error("it is of type float")),
    Pair("decimal(5,2)", Decimal("NaN"), Error("it is not finite")),
    Pair("date", dt.date(2024, 1, 31), dt.date(2024, 1, 31)),
    Pair("date", dt.datetime(2024, 1, 31), Error("it is of type datetime")),
    Pair("timestamp", MOMENT.replace(tzinfo=BERLIN), Coerced(MOMENT.replace(hour=8, tzinfo=UTC))),
    Pair("timestamp", MOMENT, Error("it has no time zone")),
    Pair("timestamp", 1706695200, Error("it is of type int")),
    Pair("timestamp_ntz", MOMENT, MOMENT),
    Pair("timestamp_ntz", MOMENT.replace(tzinfo=UTC), Error("it has a time zone")),
    Pair("interval day to second", dt.timedelta(days=-1, microseconds=1), dt.timedelta(days=-1, microseconds=1)),
    Pair("interval day to second", dt.timedelta.max, Error(RANGE)),
    Pair("array<bigint>", (1, None), Coerced([1, None])),
    Pair("array<bigint>", "12", Error("it is of type str")),
    Pair("map<string,int>", {"a": 1, "b": None}, {"a": 1, "b": None}),
    Pair("map<string,int>", [("a", 1)], Error("it is of type list")),
    Pair("struct<a:int,b:string>", {"a": 1, "more": 2}, Coerced({"a": 1, "b": None})),
    Pair("struct<a:int,b:string>", (1, "x"), Error("it is of type tuple")),
]

JSON = [
    Pair("string", b'"g\\u00f6ld"', "göld"),
    Pair("string", b"12.50", Error("it is a number with a fraction or exponent")),
    Pair("binary", b'"/wA="', Coerced(b"\xff\x00")),
    Pair("binary", b'"/wA"', Error(FORM)),
    Pair("boolean", b"true", True),
    Pair("boolean", b"1", Error("it is a whole number")),
    Pair("boolean", b'"true"', Error("it is a string")),
    Pair("tinyint", b"128", Error(RANGE)),
    Pair("int", b"7", 7),
    Pair("int", b'"7"', Error("it is a string")),
    Pair("int", b"7.0", Error("it is a number with a fraction or exponent")),
    Pair("int", b"true", Error("it is a boolean")),
    Pair("int", b"2147483648", Error(RANGE)),
    Pair("bigint", b"9223372036854775807", 2**63 - 1),
    Pair("bigint", b"9223372036854775808", Error(RANGE)),
    Pair("float", b"1e39", Error(RANGE)),
    Pair("double", b"0.1", 0.1),
    Pair("double", b"1", Coerced(1.0)),
    Pair("double", b"9007199254740993", Error(TOO_BIG)),
    Pair("double", b"1e400", Error(RANGE)),
    Pair("double", b'"NaN"', Error("it is a string")),
    Pair("decimal(5,2)", b"1.10", Decimal("1.10")),
    Pair("decimal(5,2)", b'"1.1"', Coerced(Decimal("1.10"))),
    Pair("decimal(38,18)", b"0.123456789012345678", Decimal("0.123456789012345678")),
    Pair("decimal(5,2)", b"1.101", Error(DIGITS)),
    Pair("date", b'"2024-01-31"', Coerced(dt.date(2024, 1, 31))),
    Pair("date", b'"2024-02-31"', Error(FORM)),
    Pair("date", b'"2024-01-31T00:00:00"', Error(FORM)),
    Pair("timestamp", b'"2024-01-31T10:00:00.123456+02:00"', Coerced(MOMENT.replace(hour=8, tzinfo=UTC))),
    Pair("timestamp", b'"2024-01-31T10:00:00"', Error("it has no time zone")),
    Pair("timestamp", b'"2024-01-31T10:00:00.1234567Z"', Error(BEYOND)),
    Pair("timestamp", b"1706695200", Error("it is a whole number")),
    Pair("timestamp_ntz", b'"2024-01-31T10:00:00.123456"', Coerced(MOMENT)),
    Pair("timestamp_ntz", b'"2024-01-31T10:00:00Z"', Error("it has a time zone")),
    Pair("interval day to second", b'"P1DT2H3.5S"', Coerced(dt.timedelta(days=1, hours=2, seconds=3.5))),
    Pair("interval day to second", b'"P1M"', Error(FORM)),
    Pair("array<int>", b"[1, null]", [1, None]),
    Pair("array<int>", b"{}", Error("it is an object")),
    Pair("map<int,string>", b'{"7": "a"}', Coerced({7: "a"})),
    Pair("map<string,int>", b'{"a": null}', {"a": None}),
    Pair("struct<a:int,b:string>", b'{"a": 1, "a": 2, "more": 3}', Coerced({"a": 2, "b": None})),
    Pair("struct<a:int,b:string>", b"[1]", Error("it is an array")),
]

DOCUMENTS = [
    Pair("int", b" 7\n", 7),
    Pair("int", b"null", None),
    Pair("int", b'"7"', Error("it is a string")),
    Pair("int", b"", Error("it is empty")),
    Pair("int", b"{", Error("it is not JSON (Expecting property name enclosed in double quotes at character 1)")),
    Pair("int", b"7 8", Error("it goes on after the end of the document at character 2")),
    Pair("int", b"\xff", Error("it is not UTF-8")),
    Pair("int", b"\xef\xbb\xbf7", Error("it begins with a byte order mark")),
    Pair("int", b"NaN", Error("it holds NaN, which is not JSON")),
    Pair("int", b"[" * 5000, Error("it is nested too deeply")),
]

TEXT = [
    Pair("string", "名".encode(), "名"),
    Pair("string", b"\xff", Error("it is not UTF-8")),
    Pair("binary", b"\xff", b"\xff"),
    Pair("boolean", b"1", Coerced(True)),
    Pair("boolean", b"TRUE", Coerced(True)),
    Pair("boolean", b"yes", Error(FORM)),
    Pair("tinyint", b"128", Error(RANGE)),
    Pair("int", b"+7", Coerced(7)),
    Pair("int", b" 7", Error(FORM)),
    Pair("int", b"1_000", Error(FORM)),
    Pair("int", b"7.0", Error(FORM)),
    Pair("int", b"", Error(FORM)),
    Pair("bigint", b"9223372036854775808", Error(RANGE)),
    Pair("double", b"1e3", Coerced(1000.0)),
    Pair("double", b"nan", Coerced(math.nan)),
    Pair("double", b"1e400", Error(RANGE)),
    Pair("double", b"0x10", Error(FORM)),
    Pair("decimal(5,2)", b"1.5", Coerced(Decimal("1.50"))),
    Pair("decimal(5,2)", b"1.555", Error(DIGITS)),
    Pair("decimal(5,2)", b"NaN", Error(FORM)),
    Pair("date", b"2024-01-31", Coerced(dt.date(2024, 1, 31))),
    Pair("date", b"31.01.2024", Error(FORM)),
    Pair("timestamp", b"2024-01-31 10:00:00.123456Z", Coerced(MOMENT.replace(tzinfo=UTC))),
    Pair("timestamp", b"2024-01-31 10:00:00", Error("it has no time zone")),
    Pair("timestamp_ntz", b"2024-01-31 10:00:00.123456", Coerced(MOMENT)),
    Pair("array<int>", b"[1, 2]", Coerced([1, 2])),
    Pair("array<int>", b"1,2", Error("it goes on after the end of the document at character 1")),
    Pair("struct<a:int,b:string>", b'{"a": 1}', Coerced({"a": 1, "b": None})),
]

_LIMITS = "holds infinity, NaN, or a value out of the range of its Spark type"

POSTGRES = [
    Pair("boolean", "true", True, "bool"),
    Pair("int", "true", Error("it is of type bool"), "bool"),
    Pair("smallint", "-32768", -32768, "int2"),
    Pair("bigint", "7", 7, "int4"),
    Pair("string", "7", Error("it is of type int"), "int4"),
    Pair("int", "2147483647", 2**31 - 1, "int8"),
    Pair("int", "2147483648", Error(RANGE), "int8"),
    Pair("double", "9007199254740993", Error(TOO_BIG), "int8"),
    Pair("bigint", "4294967295", 2**32 - 1, "oid"),
    Pair("float", "1.5", 1.5, "float4"),
    Pair("double", "'NaN'", math.nan, "float8"),
    Pair("decimal(5,2)", "1.5", Error("it is of type float"), "float8"),
    Pair("decimal(10,2)", "1.50", Decimal("1.50"), "numeric(10,2)"),
    Pair("decimal(38,18)", "1.5", Coerced(Decimal("1.5").quantize(Decimal(1).scaleb(-18))), "numeric"),
    Pair("decimal(5,2)", "1.555", Error(DIGITS), "numeric"),
    Pair("decimal(38,18)", "'NaN'", Error(_LIMITS), "numeric"),
    Pair("decimal(38,18)", "'Infinity'", Error(_LIMITS), "numeric"),
    Pair("decimal(38,0)", "1e40", Error(_LIMITS), "numeric"),
    Pair("double", "1.5", Error("it is of type Decimal"), "numeric"),
    Pair("string", "'7'", "7", "text"),
    Pair("int", "'7'", Error("it is of type str"), "text"),
    Pair("timestamp", "'2024-01-31T10:00:00Z'", Error("it is of type str"), "text"),
    Pair("string", "'ab'", "ab  ", "char(4)"),
    Pair("string", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "uuid"),
    Pair("binary", r"'\x00ff'", b"\x00\xff", "bytea"),
    Pair("string", r"'\x00ff'", Error("it is of type bytes"), "bytea"),
    Pair("date", "'9999-12-31'", dt.date(9999, 12, 31), "date"),
    Pair("date", "'infinity'", Error(_LIMITS), "date"),
    Pair("timestamp", "'2024-01-31'", Error("it is of type date"), "date"),
    Pair("timestamp_ntz", "'2024-01-31 10:00:00.123456'", MOMENT, "timestamp"),
    Pair("timestamp", "'2024-01-31 10:00:00'", Error("it has no time zone"), "timestamp"),
    Pair("timestamp", "'2024-01-31 10:00:00.123456+02'", MOMENT.replace(hour=8, tzinfo=UTC), "timestamptz"),
    Pair("timestamp_ntz", "'2024-01-31 10:00:00+02'", Error("it has a time zone"), "timestamptz"),
    Pair("timestamp", "'-infinity'", Error(_LIMITS), "timestamptz"),
    Pair("timestamp", "'10000-01-01Z'", Error(_LIMITS), "timestamptz"),
    Pair("string", "'24:00'", "24:00:00", "time"),
    Pair("string", "'1 month 2 days 3:00'", "P1M2DT3H", "interval"),
    Pair("interval day to second", "'2 days'", Error("it is of type str"), "interval"),
    Pair("string", """'{"a":  1}'""", '{"a":  1}', "json"),
    Pair("string", """'{"a":  1}'""", '{"a": 1}', "jsonb"),
    Pair("struct<a:int>", """'{"a": 1}'""", Error("it is of type str"), "jsonb"),
    Pair("array<int>", "'{1,NULL,3}'", [1, None, 3], "int4[]"),
    Pair("array<string>", "'{1}'", Error("it is of type int"), "int4[]"),
    Pair("array<decimal(20,2)>", "'{1.25,NULL}'", [Decimal("1.25"), None], "numeric[]"),
    Pair("array<decimal(38,18)>", "'{1,NaN}'", Error(_LIMITS), "numeric[]"),
    Pair("string", "'happy'", "happy", "mood"),
    Pair("decimal(8,2)", "1.25", Decimal("1.25"), "price"),
    Pair("string", "'[1,4)'", "[1,4)", "int4range"),
    Pair("string", "'10.0.0.0/8'", "10.0.0.0/8", "inet"),
]
SCHEMA = "CREATE TYPE mood AS ENUM ('happy', 'sad'); CREATE DOMAIN price AS numeric(8,2) CHECK (VALUE > 0)"
"""What the columns of `POSTGRES` need."""

SECTIONS = {
    "python": (PYTHON, "| declared | value | | becomes |\n|---|---|---|---|"),
    "json": (JSON, "| declared | JSON | | becomes |\n|---|---|---|---|"),
    "documents": (DOCUMENTS, "| declared | document | | becomes |\n|---|---|---|---|"),
    "text": (TEXT, "| declared | text | | becomes |\n|---|---|---|---|"),
    "postgres": (POSTGRES, "| column | declared | value | | becomes |\n|---|---|---|---|---|"),
}


def struct_of(pairs: list[Pair]) -> str:
    """The DDL of a struct with a field for each pair: `f0` for the first."""
    return ", ".join(f"f{index} {pair.declared}" for index, pair in enumerate(pairs))


def page(text: str) -> str:
    """*text* with its tables, each behind a comment with the name of its section, as the pairs say."""
    for name, (pairs, head) in SECTIONS.items():
        table = "\n".join([head, *(pair.line(name) for pair in pairs)])
        text = re.sub(rf"(<!-- {name} -->\n\n)(?:\|.*\n)*", lambda match, table=table: f"{match[1]}{table}\n", text)
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
