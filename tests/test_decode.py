"""Decoding: the matrix of declared type, encoding and value, and what holds for all values."""

from __future__ import annotations

import base64
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import itertools
import json
import math
import struct
import uuid
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enrichkit.errors import ConfigError, PermanentError
from enrichkit.values.decode import decoder

UNHURRIED = settings(deadline=None)  # a busy machine stalls now and then

D = decimal.Decimal
UTC = dt.UTC
BERLIN = dt.timezone(dt.timedelta(hours=2))

STRING, BINARY, BOOL = pa.string(), pa.binary(), pa.bool_()
TINYINT, SMALLINT, INT, BIGINT = pa.int8(), pa.int16(), pa.int32(), pa.int64()
FLOAT, DOUBLE, DECIMAL = pa.float32(), pa.float64(), pa.decimal128(5, 2)
DATE, TIME, SPAN = pa.date32(), pa.time64("ns"), pa.duration("us")
TIMESTAMP, TIMESTAMP_NTZ = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
INTS, TAGS, LEVELS = pa.list_(BIGINT), pa.map_(STRING, STRING), pa.map_(INT, STRING)
USER = pa.struct([("name", STRING), ("tier", INT)])
NESTED = pa.struct([("user", USER), ("sizes", INTS)])

INT_TAKES = {
    TINYINT: "an int from -128 to 127",
    INT: "an int from -2147483648 to 2147483647",
    BIGINT: "an int from -9223372036854775808 to 9223372036854775807",
}
JSON_DOCUMENT = "one JSON document in UTF-8"
DECIMAL_FITS = "with at most 2 digits after the point and 5 in all"
WITH_ZONE = "a timestamp with a time zone such as 2024-01-31T10:00:00.123456Z"
WITHOUT_ZONE = "a timestamp without a time zone such as 2024-01-31T10:00:00.123456"


@dataclasses.dataclass(frozen=True)
class Error:
    """The parts of an error message."""

    type_name: str
    problem: str
    takes: str
    part: str = ""

    def __str__(self) -> str:
        where = f"The part {self.part!r} of the value" if self.part else "The value"
        return (
            f"{where} does not fit the declared type {self.type_name}: {self.problem}; it must be {self.takes}. "
            "Change the source, or declare another type with returns=."
        )


class Tier(enum.IntEnum):
    GOLD = 1


class Colour(enum.StrEnum):
    RED = "red"


@dataclasses.dataclass
class UserClass:
    name: str
    tier: int


class UserTuple(NamedTuple):
    name: str
    tier: int


class Record:
    """Like a record of asyncpg or sqlite3: has keys and items, but is no Mapping."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def keys(self) -> Any:
        return self.fields.keys()

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


PYTHON = [
    (STRING, "Ann", "Ann"),
    (STRING, "", ""),
    (STRING, "nul\x00 and \U0001f600", "nul\x00 and \U0001f600"),
    (STRING, Colour.RED, "red"),
    (STRING, np.str_("Ann"), "Ann"),
    (STRING, uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (STRING, b"Ann", Error("string", "it is of type bytes", "a str or UUID without lone surrogates")),
    (STRING, 1, Error("string", "it is of type int", "a str or UUID without lone surrogates")),
    (STRING, "a\ud800", Error("string", "it holds half of a surrogate pair", "a str or UUID without lone surrogates")),
    (BINARY, b"\xff\x00", b"\xff\x00"),
    (BINARY, bytearray(b"ab"), b"ab"),
    (BINARY, memoryview(b"abcd")[::2], b"ac"),
    (BINARY, "ab", Error("binary", "it is of type str", "bytes, bytearray or memoryview")),
    (BOOL, True, True),
    (BOOL, np.bool_(False), False),
    (BOOL, 1, Error("boolean", "it is of type int", "a bool")),
    (BOOL, "true", Error("boolean", "it is of type str", "a bool")),
    (TINYINT, -128, -128),
    (TINYINT, 128, Error("tinyint", "it is out of range", INT_TAKES[TINYINT])),
    (SMALLINT, 32767, 32767),
    (INT, Tier.GOLD, 1),
    (INT, np.int64(7), 7),
    (INT, True, Error("int", "it is of type bool", INT_TAKES[INT])),
    (INT, 1.0, Error("int", "it is of type float", INT_TAKES[INT])),
    (INT, "1", Error("int", "it is of type str", INT_TAKES[INT])),
    (INT, float("nan"), Error("int", "it is of type float", INT_TAKES[INT])),
    (INT, D(1), Error("int", "it is of type Decimal", INT_TAKES[INT])),
    (BIGINT, 2**63 - 1, 2**63 - 1),
    (BIGINT, -(2**63), -(2**63)),
    (BIGINT, 2**63, Error("bigint", "it is out of range", INT_TAKES[BIGINT])),
    (BIGINT, 10**5000, Error("bigint", "it is out of range", INT_TAKES[BIGINT])),
    (BIGINT, np.datetime64("2024-01-31", "ns"), Error("bigint", "it is of type datetime64", INT_TAKES[BIGINT])),
    (BIGINT, pd.NA, Error("bigint", "it is of type NAType", INT_TAKES[BIGINT])),
    (DOUBLE, 1.5, 1.5),
    (DOUBLE, math.nan, math.nan),
    (DOUBLE, -math.inf, -math.inf),
    (DOUBLE, 2**53, 2.0**53),
    (DOUBLE, 2**60, 2.0**60),
    (DOUBLE, np.float32(0.5), 0.5),
    (
        DOUBLE,
        2**53 + 1,
        Error(
            "double",
            "it is a whole number that this type does not hold exactly",
            "a float, or an int it holds exactly",
        ),
    ),
    (DOUBLE, 10**400, Error("double", "it is out of range", "a float, or an int it holds exactly")),
    (DOUBLE, True, Error("double", "it is of type bool", "a float, or an int it holds exactly")),
    (DOUBLE, D("1.5"), Error("double", "it is of type Decimal", "a float, or an int it holds exactly")),
    (FLOAT, 0.1, struct.unpack("f", struct.pack("f", 0.1))[0]),
    (FLOAT, math.inf, math.inf),
    (FLOAT, 2**24, 2.0**24),
    (FLOAT, 1e300, Error("float", "it is out of range", "a float, or an int it holds exactly")),
    (
        FLOAT,
        2**24 + 1,
        Error(
            "float", "it is a whole number that this type does not hold exactly", "a float, or an int it holds exactly"
        ),
    ),
    (DECIMAL, D("1.5"), D("1.50")),
    (DECIMAL, D("-1.5E+1"), D("-15.00")),
    (DECIMAL, D("1.500"), D("1.50")),
    (DECIMAL, 999, D("999.00")),
    (
        DECIMAL,
        D("1.555"),
        Error("decimal(5,2)", "it has too many digits after the point", f"a Decimal or int {DECIMAL_FITS}"),
    ),
    (DECIMAL, D("1000"), Error("decimal(5,2)", "it is out of range", f"a Decimal or int {DECIMAL_FITS}")),
    (DECIMAL, D("NaN"), Error("decimal(5,2)", "it is not finite", f"a Decimal or int {DECIMAL_FITS}")),
    (DECIMAL, D("-Infinity"), Error("decimal(5,2)", "it is not finite", f"a Decimal or int {DECIMAL_FITS}")),
    (DECIMAL, 1.5, Error("decimal(5,2)", "it is of type float", f"a Decimal or int {DECIMAL_FITS}")),
    (DECIMAL, True, Error("decimal(5,2)", "it is of type bool", f"a Decimal or int {DECIMAL_FITS}")),
    (DECIMAL, "1.5", Error("decimal(5,2)", "it is of type str", f"a Decimal or int {DECIMAL_FITS}")),
    (DATE, dt.date(2024, 1, 31), dt.date(2024, 1, 31)),
    (DATE, dt.datetime(2024, 1, 31), Error("date", "it is of type datetime", "a date, not a datetime")),
    (DATE, "2024-01-31", Error("date", "it is of type str", "a date, not a datetime")),
    (TIMESTAMP, dt.datetime(2024, 1, 31, 10, tzinfo=BERLIN), dt.datetime(2024, 1, 31, 8, tzinfo=UTC)),
    (
        TIMESTAMP,
        pd.Timestamp("2024-01-31T10:00:00.123456Z"),
        dt.datetime(2024, 1, 31, 10, 0, 0, 123456, tzinfo=UTC),
    ),
    (TIMESTAMP, dt.datetime(2024, 1, 31), Error("timestamp", "it has no time zone", "a datetime with a time zone")),
    (
        TIMESTAMP,
        pd.Timestamp("2024-01-31T10:00:00.123456789Z"),
        Error("timestamp", "it has digits beyond microseconds", "a datetime with a time zone"),
    ),
    (TIMESTAMP, pd.NaT, Error("timestamp", "it is no point in time", "a datetime with a time zone")),
    (TIMESTAMP, 1706695200, Error("timestamp", "it is of type int", "a datetime with a time zone")),
    (TIMESTAMP, dt.date(2024, 1, 31), Error("timestamp", "it is of type date", "a datetime with a time zone")),
    (TIMESTAMP_NTZ, dt.datetime(2024, 1, 31, 10), dt.datetime(2024, 1, 31, 10)),
    (
        TIMESTAMP_NTZ,
        dt.datetime(2024, 1, 31, tzinfo=UTC),
        Error("timestamp_ntz", "it has a time zone", "a datetime without a time zone"),
    ),
    (TIME, dt.time(10, 0, 0, 1), dt.time(10, 0, 0, 1)),
    (TIME, dt.time(10, tzinfo=UTC), Error("time", "it has a time zone", "a time without tzinfo")),
    (SPAN, dt.timedelta(days=-1, microseconds=1), dt.timedelta(days=-1, microseconds=1)),
    (
        SPAN,
        dt.timedelta.max,
        Error("interval day to second", "it is out of range", "a timedelta below 292,000 years"),
    ),
    (INTS, [1, None], [1, None]),
    (INTS, (1, 2), [1, 2]),
    (INTS, {1}, [1]),
    (INTS, np.array([1, 2]), [1, 2]),
    (INTS, "12", Error("array<bigint>", "it is of type str", "a list, tuple or set")),
    (INTS, [1, "2"], Error("bigint", "it is of type str", INT_TAKES[BIGINT], part="[1]")),
    (TAGS, {"a": "b", "c": None}, [("a", "b"), ("c", None)]),
    (TAGS, collections.OrderedDict(a="b"), [("a", "b")]),
    (TAGS, [("a", "b")], Error("map<string,string>", "it is of type list", "a mapping")),
    (TAGS, {None: "b"}, Error("map<string,string>", "one of its keys is null", "a mapping without null keys")),
    (
        TAGS,
        {1: "b"},
        Error("string", "it is of type int", "a str or UUID without lone surrogates", part="{key}"),
    ),
    (USER, {"name": "Ann", "tier": 1}, {"name": "Ann", "tier": 1}),
    (USER, {"name": "Ann", "more": object()}, {"name": "Ann", "tier": None}),
    (USER, {}, {"name": None, "tier": None}),
    (USER, UserClass("Ann", 1), {"name": "Ann", "tier": 1}),
    (USER, UserTuple("Ann", 1), {"name": "Ann", "tier": 1}),
    (USER, Record(name="Ann", tier=1), {"name": "Ann", "tier": 1}),
    (
        USER,
        ("Ann", 1),
        Error("struct<name:string,tier:int>", "it is of type tuple", "a mapping, dataclass or NamedTuple"),
    ),
    (
        USER,
        {b"name": "Ann"},
        Error(
            "struct<name:string,tier:int>",
            "one of its keys is of type bytes",
            "a mapping, dataclass or NamedTuple with names as keys",
        ),
    ),
    (USER, {"tier": "1"}, Error("int", "it is of type str", INT_TAKES[INT], part="tier")),
    (NESTED, {"user": {"tier": 2**31}}, Error("int", "it is out of range", INT_TAKES[INT], part="user.tier")),
    (NESTED, {"sizes": [1, 2.5]}, Error("bigint", "it is of type float", INT_TAKES[BIGINT], part="sizes[1]")),
    (pa.null(), 1, Error("void", "it is not null", "None")),
]

WHOLE = "a whole number from -2147483648 to 2147483647"
BIG_WHOLE = "a whole number from -9223372036854775808 to 9223372036854775807"
JSON = [
    (STRING, b'"gold"', "gold"),
    (STRING, b'  "gold" ', "gold"),
    (STRING, b' {"a": [1, 2]}\n', '{"a": [1, 2]}'),
    (STRING, b"12.50", "12.50"),
    (STRING, '"g\\u00f6ld"', "göld"),
    (STRING, b"null", None),
    (STRING, b"gold", Error("string", "it is not JSON (Expecting value at character 0)", JSON_DOCUMENT)),
    (STRING, b'{"a": "\xff"}', Error("string", "it is not UTF-8", "a string")),
    (STRING, b'"\xff"', Error("string", "it is not UTF-8", "a string")),
    (STRING, b"\xff", Error("string", "it is not UTF-8", JSON_DOCUMENT)),
    (STRING, b"1" * 5000, "1" * 5000),
    (STRING, b'"\\ud800"', Error("string", "it holds half of a surrogate pair", "a string")),
    (STRING, '{"a": "\ud800"}', Error("string", "it holds half of a surrogate pair", "a string")),
    (STRING, b'"gold" 1', Error("string", "it goes on after the end of the document at character 7", JSON_DOCUMENT)),
    (BINARY, b'"/wA="', b"\xff\x00"),
    (BINARY, b'"/wA"', Error("binary", "it is not of that form", "a base64 string")),
    (BOOL, b"true", True),
    (BOOL, b"1", Error("boolean", "it is a whole number", "true or false")),
    (BOOL, b'"true"', Error("boolean", "it is a string", "true or false")),
    (INT, b"7", 7),
    (INT, b"null", None),
    (INT, b'"7"', Error("int", "it is a string", WHOLE)),
    (INT, b"7.0", Error("int", "it is a number with a fraction or exponent", WHOLE)),
    (INT, b"true", Error("int", "it is a boolean", WHOLE)),
    (INT, b"[7]", Error("int", "it is an array", WHOLE)),
    (INT, b"2147483648", Error("int", "it is out of range", WHOLE)),
    (BIGINT, b"9223372036854775807", 2**63 - 1),
    (BIGINT, b"9223372036854775808", Error("bigint", "it is out of range", BIG_WHOLE)),
    (BIGINT, b"1" * 5000, Error("bigint", "it is out of range", BIG_WHOLE)),
    (BIGINT, b"-" + b"1" * 5000, Error("bigint", "it is out of range", BIG_WHOLE)),
    (DOUBLE, b"1" * 5000, Error("double", "it is out of range", "a number in its range, exact if whole")),
    (DECIMAL, b"1" * 5000, Error("decimal(5,2)", "it is out of range", f"a number or string of digits {DECIMAL_FITS}")),
    (DOUBLE, b"0.1", 0.1),
    (DOUBLE, b"1", 1.0),
    (DOUBLE, b"1e400", Error("double", "it is out of range", "a number in its range, exact if whole")),
    (
        DOUBLE,
        b"9007199254740993",
        Error(
            "double",
            "it is a whole number that this type does not hold exactly",
            "a number in its range, exact if whole",
        ),
    ),
    (DOUBLE, b"NaN", Error("double", "it holds NaN, which is not JSON", JSON_DOCUMENT)),
    (DOUBLE, b'"1.5"', Error("double", "it is a string", "a number in its range, exact if whole")),
    (FLOAT, b"1e39", Error("float", "it is out of range", "a number in its range, exact if whole")),
    (DECIMAL, b"1.10", D("1.10")),
    (DECIMAL, b'"1.10"', D("1.10")),
    (DECIMAL, b"7", D("7.00")),
    (
        DECIMAL,
        b"1.101",
        Error("decimal(5,2)", "it has too many digits after the point", f"a number or string of digits {DECIMAL_FITS}"),
    ),
    (
        DECIMAL,
        b'"1_0"',
        Error("decimal(5,2)", "it is not of that form", f"a number or string of digits {DECIMAL_FITS}"),
    ),
    (DATE, b'"2024-01-31"', dt.date(2024, 1, 31)),
    (DATE, b'"2024-01-31T00:00:00"', Error("date", "it is not of that form", "a date such as 2024-01-31")),
    (DATE, b'"2024-02-31"', Error("date", "it is not of that form", "a date such as 2024-01-31")),
    (TIMESTAMP, b'"2024-01-31T10:00:00.1Z"', dt.datetime(2024, 1, 31, 10, 0, 0, 100000, tzinfo=UTC)),
    (TIMESTAMP, b'"2024-01-31 10:00+02:00"', dt.datetime(2024, 1, 31, 8, tzinfo=UTC)),
    (TIMESTAMP, b'"2024-01-31T10:00:00.123456000Z"', dt.datetime(2024, 1, 31, 10, 0, 0, 123456, tzinfo=UTC)),
    (TIMESTAMP, b'"2024-01-31T10:00:00"', Error("timestamp", "it has no time zone", WITH_ZONE)),
    (TIMESTAMP, b'"2024-01-31T10:00:00.1234567Z"', Error("timestamp", "it has digits beyond microseconds", WITH_ZONE)),
    (TIMESTAMP, b"1706695200", Error("timestamp", "it is a whole number", WITH_ZONE)),
    (TIMESTAMP_NTZ, b'"2024-01-31T10:00:00"', dt.datetime(2024, 1, 31, 10)),
    (TIMESTAMP_NTZ, b'"2024-01-31T10:00:00Z"', Error("timestamp_ntz", "it has a time zone", WITHOUT_ZONE)),
    (TIME, b'"10:00:00.5"', dt.time(10, 0, 0, 500000)),
    (SPAN, b'"P1DT2H3.5S"', dt.timedelta(days=1, hours=2, seconds=3.5)),
    (INTS, b"[1, null]", [1, None]),
    (INTS, b"{}", Error("array<bigint>", "it is an object", "an array")),
    (TAGS, b'{"a": "b"}', [("a", "b")]),
    (TAGS, b'{"a": 1}', Error("string", "it is a whole number", "a string", part="{value}")),
    (LEVELS, b'{"1": "a", "-2": null}', [(1, "a"), (-2, None)]),
    (
        LEVELS,
        b'{"1": "a", "+1": "b"}',
        Error("map<int,string>", "two of its keys are the same", "an object whose keys differ"),
    ),
    (
        LEVELS,
        b'{"0": "a", "-0": "b"}',
        Error("map<int,string>", "two of its keys are the same", "an object whose keys differ"),
    ),
    (pa.map_(DATE, INT), b'{"2024-01-31": 1}', [(dt.date(2024, 1, 31), 1)]),
    (USER, b'{"name": "Ann", "tier": 1, "more": {}}', {"name": "Ann", "tier": 1}),
    (USER, b'{"tier": 1, "more": ["\xff", {"\xff": %b}]}' % (b"1" * 5000), {"name": None, "tier": 1}),
    (USER, b'{"name": "\xff", "tier": 1}', Error("string", "it is not UTF-8", "a string", part="name")),
    (TAGS, b'{"\xff": "b"}', Error("string", "it is not UTF-8", "UTF-8 text", part="{key}")),
    (USER, b'{"tier": 1, "tier": 2}', {"name": None, "tier": 2}),
    (USER, b'{"name": {}}', Error("string", "it is an object", "a string", part="name")),
    (USER, b"[]", Error("struct<name:string,tier:int>", "it is an array", "an object")),
    (USER, b"", Error("struct<name:string,tier:int>", "it is empty", JSON_DOCUMENT)),
    (USER, b"\xef\xbb\xbf{}", Error("struct<name:string,tier:int>", "it begins with a byte order mark", JSON_DOCUMENT)),
    (
        USER,
        b"{} {}",
        Error("struct<name:string,tier:int>", "it goes on after the end of the document at character 3", JSON_DOCUMENT),
    ),
    (
        USER,
        b"<html>",
        Error("struct<name:string,tier:int>", "it is not JSON (Expecting value at character 0)", JSON_DOCUMENT),
    ),
    (USER, b"[" * 100_000, Error("struct<name:string,tier:int>", "it is nested too deeply", JSON_DOCUMENT)),
    (USER, {"name": "Ann"}, Error("struct<name:string,tier:int>", "it is of type dict", JSON_DOCUMENT)),
    (NESTED, b'{"user": {"tier": 1}, "sizes": [2]}', {"user": {"name": None, "tier": 1}, "sizes": [2]}),
]

DIGITS = "digits of a number from -2147483648 to 2147483647"
TEXT = [
    (STRING, "göld".encode(), "göld"),
    (STRING, "gold", "gold"),
    (STRING, b"", ""),
    (STRING, b"\xff", Error("string", "it is not UTF-8", "UTF-8 text")),
    (STRING, "\ud800", Error("string", "it holds half of a surrogate pair", "UTF-8 text")),
    (STRING, 1, Error("string", "it is of type int", "UTF-8 text")),
    (BINARY, b"\xff", b"\xff"),
    (BINARY, "ö", "ö".encode()),
    (BOOL, b"true", True),
    (BOOL, b"0", False),
    (BOOL, "FALSE", False),
    (BOOL, b"yes", Error("boolean", "it is not of that form", "true, false, 1 or 0")),
    (INT, b"-12", -12),
    (INT, "+012", 12),
    (INT, b" 12", Error("int", "it is not of that form", DIGITS)),
    (INT, b"1_2", Error("int", "it is not of that form", DIGITS)),
    (INT, b"1,2", Error("int", "it is not of that form", DIGITS)),
    (INT, "١", Error("int", "it is not of that form", DIGITS)),  # noqa: RUF001  an Arabic digit, which int() takes
    (INT, b"12.0", Error("int", "it is not of that form", DIGITS)),
    (INT, b"", Error("int", "it is not of that form", DIGITS)),
    (INT, b"2147483648", Error("int", "it is out of range", DIGITS)),
    (INT, b"1" * 5000, Error("int", "it is out of range", DIGITS)),
    (DOUBLE, b"1.5e3", 1500.0),
    (DOUBLE, b"nan", math.nan),
    (DOUBLE, b"-inf", -math.inf),
    (DOUBLE, b"1e400", Error("double", "it is out of range", "a number in its range")),
    (DOUBLE, b"0x10", Error("double", "it is not of that form", "a number in its range")),
    (FLOAT, b"-1e39", Error("float", "it is out of range", "a number in its range")),
    (DECIMAL, b"1.1", D("1.10")),
    (DECIMAL, b"nan", Error("decimal(5,2)", "it is not of that form", f"a number {DECIMAL_FITS}")),
    (DECIMAL, b"1e999999999999999999999", Error("decimal(5,2)", "it is out of range", f"a number {DECIMAL_FITS}")),
    (DATE, b"2024-01-31", dt.date(2024, 1, 31)),
    (DATE, b"20240131", Error("date", "it is not of that form", "a date such as 2024-01-31")),
    (TIMESTAMP, b"2024-01-31T10:00:00+02:00", dt.datetime(2024, 1, 31, 8, tzinfo=UTC)),
    (TIMESTAMP, b"2024-01-31T10:00:00", Error("timestamp", "it has no time zone", WITH_ZONE)),
    (TIMESTAMP_NTZ, b"2024-01-31 10:00", dt.datetime(2024, 1, 31, 10)),
    (
        TIME,
        b"24:00:00",
        Error("time", "it is not of that form", "a time of day such as 10:00:00.123456 without a zone"),
    ),
    (SPAN, b"-PT1M", dt.timedelta(minutes=-1)),
    (SPAN, b"P", Error("interval day to second", "it is not of that form", "an ISO 8601 duration such as P1DT2H3.5S")),
    (USER, {b"name": b"Ann", b"tier": b"1"}, {"name": "Ann", "tier": 1}),
    (USER, {"name": "Ann", "tier": "1", "more": ""}, {"name": "Ann", "tier": 1}),
    (USER, {b"name": b"Ann", "tier": b"1"}, {"name": "Ann", "tier": 1}),
    (USER, {b"name": None}, {"name": None, "tier": None}),
    (USER, b'{"name": "Ann"}', {"name": "Ann", "tier": None}),
    (USER, {b"tier": b"gold"}, Error("int", "it is not of that form", DIGITS, part="tier")),
    (USER, [b"Ann"], Error("struct<name:string,tier:int>", "it is of type list", "a mapping")),
    (TAGS, {b"a": b"b", b"c": None}, [("a", "b"), ("c", None)]),
    (LEVELS, {b"1": b"a", "2": "b"}, [(1, "a"), (2, "b")]),
    (
        LEVELS,
        {b"1": b"a", b"01": b"b"},
        Error("map<int,string>", "two of its keys are the same", "a mapping whose keys differ"),
    ),
    (INTS, b"[1, 2]", [1, 2]),
    (INTS, b"1, 2", Error("array<bigint>", "it goes on after the end of the document at character 1", JSON_DOCUMENT)),
    (NESTED, {b"user": b'{"tier": 1}', b"sizes": b"[1]"}, {"user": {"name": None, "tier": 1}, "sizes": [1]}),
]

MATRIX = [
    pytest.param(data_type, encoding, raw, expected, id=f"{encoding}-{data_type}-{index}")
    for encoding, rows in (("python", PYTHON), ("json", JSON), ("text", TEXT))
    for index, (data_type, raw, expected) in enumerate(rows)
]


def same(expected: Any, actual: Any) -> bool:
    """Equality in which NaN is NaN."""
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(actual, float) and math.isnan(actual)
    if isinstance(expected, list | tuple):
        return len(expected) == len(actual) and all(itertools.starmap(same, zip(expected, actual, strict=True)))
    if isinstance(expected, dict):
        return expected.keys() == actual.keys() and all(same(expected[key], actual[key]) for key in expected)
    return type(expected) is type(actual) and expected == actual


def through_arrow(values: list[Any], data_type: pa.DataType) -> list[Any]:
    array = pa.array(values, data_type)
    array.validate(full=True)
    return array.to_pylist()


@pytest.mark.parametrize(("data_type", "encoding", "raw", "expected"), MATRIX)
@pytest.mark.parametrize("company", [0, 40], ids=["alone", "in company"])
def test_each_value_is_exact_or_an_error(
    data_type: pa.DataType, encoding: Any, raw: Any, expected: Any, company: int
) -> None:
    """In company: other answers of the same call are nulls, and the call goes through the fast way or its chunks."""
    before, after = company // 2, company - company // 2

    values, errors = decoder(data_type, encoding)([None] * before + [raw] + [None] * after)

    if isinstance(expected, Error):
        assert {before: str(expected)} == {index: str(error) for index, error in errors.items()}
        assert [None] * (company + 1) == values
    else:
        assert errors == {}
        arrived = through_arrow(values, data_type)
        assert same([None] * before + [expected] + [None] * after, arrived), arrived


# Types, and for each a strategy of values that it holds without loss.

MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=st.sampled_from([UTC, BERLIN]))
LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    STRING: st.text(st.characters(codec="utf-8")),
    pa.large_string(): st.text(st.characters(codec="utf-8")),
    BINARY: st.binary(),
    BOOL: st.booleans(),
    **{
        kind: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        for kind, bits in [(TINYINT, 8), (SMALLINT, 16), (INT, 32), (BIGINT, 64)]
    },
    FLOAT: st.floats(width=32),
    DOUBLE: st.floats(),
    pa.decimal128(38, 18): st.decimals(
        allow_nan=False, allow_infinity=False, places=18, min_value=-1e15, max_value=1e15
    ),
    pa.decimal128(5, 0): st.integers(-99999, 99999).map(D),
    DECIMAL: st.integers(-99999, 99999).map(lambda cents: D(cents).scaleb(-2)),
    DATE: st.dates(),
    TIMESTAMP: MOMENTS,
    TIMESTAMP_NTZ: st.datetimes(),
    TIME: st.times(),
    SPAN: st.timedeltas(dt.timedelta(days=-1_000_000), dt.timedelta(days=1_000_000)),
    pa.null(): st.none(),
}


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


@st.composite
def typed(draw: st.DrawFn, depth: int = 2, json_keys: bool = False) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A declared type and the strategy of its values."""
    shape = draw(st.sampled_from(["leaf", "list", "map", "struct"])) if depth else "leaf"
    if shape == "leaf":
        return draw(st.sampled_from(list(LEAVES.items())))
    if shape == "list":
        item, values = draw(typed(depth - 1))
        return pa.list_(item), st.lists(nullable(values), max_size=4)
    if shape == "map":
        key = draw(st.sampled_from([STRING, BIGINT, DATE]))
        item, values = draw(typed(depth - 1))
        return pa.map_(key, item), st.dictionaries(LEAVES[key], nullable(values), max_size=4)
    parts = [draw(typed(depth - 1)) for _ in range(draw(st.integers(1, 4)))]
    fields = {f"field {index}": nullable(values) for index, (_, values) in enumerate(parts)}
    return pa.struct([(f"field {index}", part) for index, (part, _) in enumerate(parts)]), st.fixed_dictionaries(fields)


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    data_type, values = draw(typed())
    return data_type, draw(st.lists(nullable(values), max_size=6))


def as_arrow_gives_it(value: Any, data_type: Any) -> Any:
    """What `to_pylist` makes of *value*."""
    if value is None:
        return None
    if pa.types.is_struct(data_type):
        return {field.name: as_arrow_gives_it(value[field.name], field.type) for field in data_type}
    if pa.types.is_map(data_type):
        return [(key, as_arrow_gives_it(item, data_type.item_type)) for key, item in value.items()]
    if pa.types.is_list(data_type):
        return [as_arrow_gives_it(item, data_type.value_type) for item in value]
    return value.astimezone(UTC) if data_type == TIMESTAMP else value


def json_of(value: Any, data_type: Any) -> Any:
    """*value* in the terms of JSON, as a careful service writes it."""
    if value is None:
        return None
    if pa.types.is_struct(data_type):
        return {field.name: json_of(value[field.name], field.type) for field in data_type}
    if pa.types.is_map(data_type):
        return {text_of(key, data_type.key_type).decode(): json_of(v, data_type.item_type) for key, v in value.items()}
    if pa.types.is_list(data_type):
        return [json_of(item, data_type.value_type) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value if isinstance(value, str | bool | int | float) else text_of(value, data_type).decode()


def text_of(value: Any, data_type: Any) -> Any:
    """*value* as Redis holds it."""
    if value is None or isinstance(value, bytes):
        return value
    if pa.types.is_struct(data_type):
        return {field.name.encode(): text_of(value[field.name], field.type) for field in data_type}
    if pa.types.is_map(data_type):
        return {text_of(k, data_type.key_type): text_of(v, data_type.item_type) for k, v in value.items()}
    if pa.types.is_list(data_type):
        return json.dumps(json_of(value, data_type)).encode()
    if isinstance(value, dt.timedelta):
        return msgspec.to_builtins(value).encode()
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat().encode()
    return str(value).lower().encode() if isinstance(value, bool) else str(value).encode()


def has_not_finite(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(has_not_finite, value))
    if isinstance(value, dict):
        return any(map(has_not_finite, value.values()))
    return isinstance(value, float) and not math.isfinite(value)


def assert_survives(data_type: pa.DataType, encoding: Any, raw: list[Any], expected: list[Any]) -> None:
    values, errors = decoder(data_type, encoding)(raw)
    assert {index: str(error) for index, error in errors.items()} == {}
    arrived = through_arrow(values, data_type)
    assert same([as_arrow_gives_it(value, data_type) for value in expected], arrived), arrived


@UNHURRIED
@given(columns())
def test_every_python_value_of_every_type_survives(column: tuple[pa.DataType, list[Any]]) -> None:
    data_type, expected = column
    assert_survives(data_type, "python", expected, expected)


@UNHURRIED
@given(columns())
def test_every_value_survives_json(column: tuple[pa.DataType, list[Any]]) -> None:
    data_type, expected = column
    expected = [None if has_not_finite(value) else value for value in expected]
    raw = [None if value is None else json.dumps(json_of(value, data_type)).encode() for value in expected]
    if data_type in (FLOAT, DOUBLE):
        expected = [None if value is None else float(value) for value in expected]
    assert_survives(data_type, "json", raw, expected)


@UNHURRIED
@given(columns())
def test_every_value_survives_text(column: tuple[pa.DataType, list[Any]]) -> None:
    data_type, expected = column
    # What a list inside a text holds is JSON, which has no NaN.
    nested = "list" in str(data_type)
    expected = [None if nested and has_not_finite(value) else value for value in expected]
    assert_survives(data_type, "text", [text_of(value, data_type) for value in expected], expected)


JUNK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.sampled_from(
            [2**53 + 1, 2**63, 10**400, 1e300, math.nan, math.inf, pd.NaT, pd.NA, D("sNaN"), D("1E+999999")]
        ),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(
            ["\ud800", "12", "1.50", "true", "nan", "2024-01-31", "2024-01-31T10:00:00.1234567Z", "[1]", "{}"]
        ),
        st.binary(max_size=5),
        st.decimals(),
        st.dates(),
        st.datetimes(timezones=st.sampled_from([None, UTC, BERLIN])),
        st.times(timezones=st.sampled_from([None, UTC])),
        st.timedeltas(),
        st.uuids(),
        st.sampled_from([np.int64(1), np.float32(1.5), np.datetime64("2024-01-31"), np.array([1, 2]), object()]),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["field 0", "field 1", b"field 0", "7", 7, None]), inner, max_size=3)
    ),
    max_leaves=5,
)


@UNHURRIED
@given(typed(), st.lists(JUNK, max_size=20), st.sampled_from(["python", "json", "text"]))
def test_a_bad_answer_does_not_touch_its_neighbours(
    kind: tuple[pa.DataType, Any], raw: list[Any], encoding: Any
) -> None:
    """The values and errors of a call are those of its answers one by one, and Arrow takes the values."""
    data_type, _ = kind
    decode = decoder(data_type, encoding)

    values, errors = decode(raw)

    alone = [decode([value]) for value in raw]
    assert same(through_arrow([one[0] for one, _ in alone], data_type), through_arrow(values, data_type))
    assert {i: str(e[0]) for i, (_, e) in enumerate(alone) if e} == {i: str(e) for i, e in errors.items()}
    assert len(raw) == len(values)
    assert all(type(error) is PermanentError for error in errors.values())


@UNHURRIED
@given(st.binary(max_size=30) | st.text(max_size=30).map(lambda text: json.dumps(text).encode()), typed())
def test_no_bytes_fail_a_call(raw: bytes, kind: tuple[pa.DataType, Any]) -> None:
    data_type, _ = kind
    for encoding in ("json", "text", "python"):
        values, _ = decoder(data_type, encoding)([raw, None])
        through_arrow(values, data_type)


@UNHURRIED
@given(typed(), st.sampled_from(["python", "json", "text"]))
def test_no_message_shows_a_value(kind: tuple[pa.DataType, Any], encoding: Any) -> None:
    data_type, _ = kind
    secrets: list[Any] = [
        "s3cret",
        b"s3cret",
        {"s3cret": "s3cret"},
        {"field 0": "s3cret"},
        ["s3cret"],
        b'{"field 0": ["s3cret"]}',
    ]

    _, errors = decoder(data_type, encoding)([*secrets, b'"s3cret"', b'{"s3cret": s3cret}', b'"s3cret'])

    assert [str(error) for error in errors.values() if "s3cret" in str(error)] == []


def test_one_poisoned_answer_leaves_a_thousand_others() -> None:
    raw: list[Any] = [b'{"name": "Ann", "tier": %d}' % index for index in range(1000)]
    raw[500] = b"<html>"

    values, errors = decoder(USER, "json")(raw)

    assert list(errors) == [500]
    assert [{"name": "Ann", "tier": i} if i != 500 else None for i in range(1000)] == values


def test_values_are_copies_that_the_connector_can_no_longer_change() -> None:
    answer = {"name": "Ann", "tier": 1}

    values, _ = decoder(USER, "python")([answer])
    answer["tier"] = "not an int"

    assert values == [{"name": "Ann", "tier": 1}]


def test_an_object_that_raises_when_looked_at_is_that_keys_error() -> None:
    class Broken(collections.UserDict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            raise LookupError("s3cret")

    values, errors = decoder(USER, "python")([{"tier": 1}, Broken(tier=1)])

    assert [value and {"tier": value["tier"]} for value in values] == [{"tier": 1}, None]
    assert (
        str(errors[1])
        == "The value cannot be read: looking at it raised LookupError; it must be a plain Python object. "
        "Convert it in the connector."
    )


@pytest.mark.parametrize(
    ("encoding", "raw"),
    [("python", dt.datetime(1, 1, 1, tzinfo=BERLIN)), ("json", b'"0001-01-01T00:00:00+02:00"')],
)
@pytest.mark.parametrize("company", [0, 40])
def test_an_instant_that_is_in_year_0_in_utc_is_exact(encoding: Any, raw: Any, company: int) -> None:
    values, errors = decoder(TIMESTAMP, encoding)([raw, *["junk"] * company])

    micros = pa.array(values[:1], TIMESTAMP).cast(BIGINT).to_pylist()
    assert micros == [-62135596800_000_000 - 7200_000_000]
    assert len(errors) == company


def test_no_answers_are_no_values() -> None:
    for encoding in ("python", "json", "text"):
        assert decoder(USER, encoding)([]) == ([], {})


@pytest.mark.parametrize(
    ("data_type", "name"),
    [
        (pa.uint8(), "uint8"),
        (pa.timestamp("ns", tz="UTC"), "timestamp[ns, tz=UTC]"),
        (pa.list_(pa.dictionary(pa.int8(), STRING)), "dictionary<values=string, indices=int8, ordered=0>"),
        (pa.large_list(INT), "array<int>"),
        (pa.map_(INTS, INT), "array<bigint> as the key of a map"),
    ],
)
def test_a_type_that_a_worker_does_not_build_is_refused_by_name(data_type: pa.DataType, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        decoder(data_type, "python")

    assert str(error.value) == (
        f"A worker does not build the type {name}; allowed are string, binary, boolean, tinyint, smallint, int, "
        "bigint, float, double, decimal, date, timestamp, timestamp_ntz, time, interval day to second, array, map with "
        "plain keys, struct, variant and void. Declare another type with returns=."
    )


def test_two_fields_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        decoder(pa.struct([("a", INT), ("a", INT)]), "json")

    assert (
        str(error.value)
        == "The type struct<a:int,a:int> has two fields of one name; names must differ. Rename one in returns=."
    )


def test_an_encoding_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        decoder(INT, "xml")

    assert str(error.value) == (
        "The encoding of a connector is 'xml'; it must be 'python', 'json' or 'text'. Set it in the connector's class."
    )


@pytest.mark.parametrize("name", ["名", "naïve", "éé", "plain"])
def test_a_field_is_found_whatever_script_its_name_is_in(name: str) -> None:
    """msgspec does not find a field of a TypedDict by such a name, unless it is the very same object."""
    data_type = pa.struct([("outer", pa.list_(pa.struct([(name, pa.string())])))])
    value = {"outer": [{name.encode().decode(): "x"}]}
    assert decoder(data_type, "python")([value]) == ([value], {})
    assert decoder(data_type, "json")([json.dumps(value, ensure_ascii=False).encode()]) == ([value], {})
    flat = pa.struct([(name, pa.string())])
    assert decoder(flat, "text")([{name.encode(): b"x"}]) == ([{name: "x"}], {})
