"""
MariaDB's types: the Spark type and the SQL of a value column, and the keys that a key column takes.

The statement selects each value as a type that the text protocol carries without loss, and that asyncmy always reads as
the same Python type. Without this conversion the server sends a FLOAT with six digits (16777216 arrives as 16777200),
and asyncmy reads a BIT as bytes and a zero date as text, although it reads all other dates as dates.

Texts arrive as utf8mb4. Some character sets have bytes without a Unicode character, and the server would send a `?`, or
U+FFFD, in their place. In a column with such a character set, the statement replaces each value that has such bytes by
an empty text, and puts a `=` in front of each other value. So an empty text tells the connector that the value cannot
be read.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Column", "KeyType", "ValueType", "key_type", "quote", "value_type"]


def quote(name: str) -> str:
    """
    Return *name* as a quoted SQL identifier, with each `%` doubled, because `%s` is a parameter of the statement.

    >>> quote("we`ird 100%")
    '`we``ird 100%%`'
    """
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


@dataclass(frozen=True, slots=True)
class Column:
    """
    A column as the server describes it.

    Attributes:
        name: Name as the server spells it.
        type: Name of the type, for example `int`.
        full: Type with length and sign, for example `int(10) unsigned`.
        charset: Character set of a column of texts; None for other types.
        collation: Collation of a column of texts; None for other types.
        precision: Number of digits of a number, or of bits of a BIT; None for other types.
        scale: Number of digits after the decimal point; None or 0 for a type without such digits.
        as_bytes: True to read each text as its stored bytes instead of its characters, and in a key column to look up
            these bytes.
    """

    name: str
    type: str
    full: str
    charset: str | None = None
    collation: str | None = None
    precision: int | None = None
    scale: int | None = None
    as_bytes: bool = False

    @property
    def is_text(self) -> bool:
        """Whether the column is a column of texts, which has a character set."""
        return self.type in _TEXTS

    @property
    def maps_all(self) -> bool:
        """Whether the character set of this column of texts maps all bytes to Unicode."""
        return self.charset in _MAPS_ALL

    @property
    def unsigned(self) -> bool:
        """Whether the column is an unsigned number."""
        return "unsigned" in self.full

    @property
    def sql(self) -> str:
        """SQL of the column in a statement that names the table `t`."""
        return f"t.{quote(self.name)}"


@dataclass(frozen=True, slots=True)
class ValueType:
    """
    The Spark type of a value column, and its SQL.

    Attributes:
        ddl: Spark type.
        select: SQL of the value.
        decode: Function that takes an object that asyncmy has read and returns the value, or raises ValueError; None if
            that object is already the value.
    """

    ddl: str
    select: str
    decode: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class KeyType:
    """
    The keys that a type of key column takes, and their encoding.

    The server's `=` only selects candidates: with some collations, 'A' is equal to 'a' and to 'a ', and the server may
    round a key. Python's `==` then decides whether the key column of a returned row equals the key.

    Attributes:
        types: Python types of the keys.
        allowed: The allowed keys in words, for messages.
        column: SQL type of the column of keys in `JSON_TABLE`.
        equals: SQL that converts a key to the form with which the key column is compared; `{}` stands for the column of
            keys in `JSON_TABLE`. Because the key is converted and not the key column, the comparison can use an index.
        holds: Function that takes a list of keys of these *types*, and returns whether the column can hold all of them.
            The statement calls it once with all keys of a call, and again with each single key only if the first result
            is False.
        encode: Function that takes a key and returns its value in JSON; None if the key itself is that value.
        returned_as: Function that takes a key and returns the decoded value of the key column in a row with this key;
            None if that value is the key itself.
        unmapped: SQL of a condition that is true when the column's character set lacks a character of a key; `{}`
            stands for the key. None: the condition is not needed, because a key with such a character can have no row.
    """

    types: tuple[type, ...]
    allowed: str
    column: str
    equals: str = "{}"
    holds: Callable[[Sequence[Any]], bool] = lambda keys: True
    encode: Callable[[Any], Any] | None = None
    returned_as: Callable[[Any], Any] | None = None
    unmapped: str | None = None


# Values -----------------------------------------------------------------------------------------------------------

_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_AS_TEXT = ("time", "uuid", "inet4", "inet6")


def value_type(column: Column) -> ValueType | None:
    """Return the Spark type and the SQL of *column*, or None when Spark has no such type."""
    name, sql = column.type, column.sql
    if name in _BITS:
        return ValueType(_integer(_BITS[name], column.unsigned), sql)
    if name == "decimal":
        return ValueType(f"decimal({min(column.precision or 38, 38)},{min(column.scale or 0, 38)})", sql)
    if name in ("float", "double"):
        return ValueType(name, f"CAST({sql} AS DOUBLE)")
    if name == "bit":
        ddl = "boolean" if column.precision == 1 else _integer(64, column.precision == 64)
        return ValueType(ddl, f"CAST({sql} AS UNSIGNED)", bool if ddl == "boolean" else None)
    if name == "year":
        return ValueType("smallint", f"CAST({sql} AS UNSIGNED)")
    if name in _TEXTS:
        return _text_type(column)
    if name in _BYTES:
        return ValueType("binary", sql)
    if name in _AS_TEXT:
        return ValueType("string", f"CAST({sql} AS CHAR)")
    if name in _TIMES:
        ddl, decode = _TIMES[name]
        return ValueType(ddl, f"CAST({sql} AS CHAR)", decode)
    return None


def _text_type(column: Column) -> ValueType:
    if column.as_bytes:
        return ValueType("binary", f"CAST({column.sql} AS BINARY)")
    if column.maps_all:
        return ValueType("string", column.sql)
    return ValueType("string", f"IF({_is_replaced(column)}, '', CONCAT('=', {column.sql}))", _text)


# The character sets that map all bytes to Unicode: the Unicode sets that cannot hold a lone surrogate, and latin1,
# because MariaDB maps each of its bytes to a character. latin1 is the default of servers before 11.6, so tables with
# this default need no check.
_MAPS_ALL = ("utf8mb4", "utf8mb3", "utf8", "utf16", "utf16le", "latin1")
# By character set, the pattern that finds a lone surrogate in the hexadecimal digits of a text. For a lone surrogate,
# the server sends three bytes that are not UTF-8, and asyncmy cannot decode them.
_SURROGATES = {"ucs2": "^(.{4})*D[89A-F]", "utf32": "^(.{8})*0000D[89A-F]"}


def _is_replaced(column: Column) -> str:
    """
    Return the SQL of a condition that is true if the server cannot send the text in *column* unchanged as utf8mb4.

    The server sends `?` or U+FFFD for a character that it cannot convert. So the condition is true if the text in
    utf8mb4 has more `?` than the stored bytes, or has a U+FFFD. This is reliable for all character sets that this
    module does not list in `_MAPS_ALL` or `_SURROGATES`. They have no U+FFFD, and in their texts a byte 0x3F is always
    a `?`, never the second byte of a character.
    """
    if column.charset in _SURROGATES:
        return f"HEX({column.sql}) RLIKE '{_SURROGATES[column.charset]}'"
    stored, sent = (f"CAST({sql} AS BINARY)" for sql in (column.sql, f"CONVERT({column.sql} USING utf8mb4)"))
    return f"{_questions(sent)} > {_questions(stored)} OR INSTR({sent}, X'EFBFBD')"


def _is_unmapped(key: str, column: Column) -> str:
    """
    Return the SQL of a condition that is true if the character set of *column* lacks a character of a text; *key* is
    the SQL of this text in utf8mb4.
    """
    sent, stored = (f"CAST({sql} AS BINARY)" for sql in (key, f"CONVERT({key} USING {column.charset})"))
    if column.charset in _SURROGATES:
        return f"CAST(CONVERT(CONVERT({key} USING {column.charset}) USING utf8mb4) AS BINARY) <> {sent}"
    return f"{_questions(stored)} > {_questions(sent)}"


def _questions(sql: str) -> str:
    """Return the SQL that counts the bytes 0x3F in *sql*, which is the SQL of a binary value."""
    return f"LENGTH({sql}) - LENGTH(REPLACE({sql}, '?', ''))"


def _text(marked: str) -> str:
    if not marked:
        raise ValueError
    return marked[1:]


def _integer(bits: int, unsigned: bool) -> str:
    """Return the smallest type of Spark that can hold each integer of *bits* bits; Spark's integers are all signed."""
    needed = bits + unsigned
    return next((ddl for size, ddl in _INTEGERS.items() if needed <= size), "decimal(20,0)")


_INTEGERS = {8: "tinyint", 16: "smallint", 32: "int", 64: "bigint"}


def _utc_datetime(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)  # the session's time zone is UTC


# These decoders raise ValueError for dates such as 0000-00-00 and the 31st of February, which a server with a lax
# `sql_mode` stores.
_TIMES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "date": ("date", dt.date.fromisoformat),
    "datetime": ("timestamp_ntz", dt.datetime.fromisoformat),
    "timestamp": ("timestamp_ltz", _utc_datetime),
}


# Keys -------------------------------------------------------------------------------------------------------------


def key_type(column: Column) -> KeyType | None:
    """Return the keys that *column* takes, or None when it cannot be a key column."""
    name = column.type
    if name in _BITS:
        bits = _BITS[name]
        low, high = (0, 2**bits - 1) if column.unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        sql = "BIGINT UNSIGNED" if column.unsigned else "BIGINT"
        if bits == 64 and column.unsigned:  # Spark has no unsigned integer and reads this column as decimal(20,0)
            return KeyType(
                (int, Decimal), f"int or Decimal from 0 to {high}", sql, holds=_are_unsigned_bigints, encode=int
            )
        return KeyType(
            (int,), f"int from {low} to {high}", sql, holds=lambda keys: low <= min(keys) and max(keys) <= high
        )
    if name == "decimal":
        sql = f"DECIMAL({column.precision},{column.scale})"
        return KeyType((Decimal, int), "Decimal or int, finite", sql, holds=_are_finite, encode=str)
    if name in _TEXTS and name != "set":
        equals = f"CONVERT({{}} USING {column.charset}) COLLATE {column.collation}"
        if column.as_bytes:
            return KeyType((bytes,), "bytes", _TEXT, equals.format("UNHEX({})"), encode=bytes.hex)
        unmapped = None if column.maps_all else _is_unmapped("{0}", column)
        return KeyType((str,), "str without half a surrogate pair", _TEXT, equals, holds=_are_texts, unmapped=unmapped)
    if name in _BYTES:
        return KeyType((bytes,), "bytes", _TEXT, "UNHEX({})", encode=bytes.hex)
    return _KEYS.get(name)


_TEXT = "LONGTEXT CHARACTER SET utf8mb4"
_UUID = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")


def _are_unsigned_bigints(keys: Sequence[Decimal | int]) -> bool:
    if Decimal in set(map(type, keys)) and not (_are_finite(keys) and all(key == int(key) for key in keys)):
        return False
    return min(keys) >= 0 and max(keys) < 2**64


def _are_finite(keys: Sequence[Decimal | int]) -> bool:
    return all(Decimal(key).is_finite() for key in keys)


def _are_texts(keys: Sequence[str]) -> bool:
    try:
        # Joined, all keys are checked by one scan in C. In the joined text, half a surrogate pair stays invalid even
        # next to the other half.
        "".join(keys).encode()
    except UnicodeEncodeError:
        return False
    return True


def _are_uuids(keys: Sequence[str]) -> bool:
    return all(map(_UUID.fullmatch, keys))


def _uuid_text(key: str) -> str:
    digits = key.replace("-", "").lower()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _are_local(keys: Sequence[dt.datetime]) -> bool:
    return all(key.tzinfo is None for key in keys)


def _are_instants(keys: Sequence[dt.datetime]) -> bool:
    return all(key.tzinfo is not None for key in keys)


def _in_utc(key: dt.datetime) -> dt.datetime:
    return key.astimezone(dt.UTC)


def _utc_text(key: dt.datetime) -> str:
    return str(_in_utc(key).replace(tzinfo=None))


_KEYS = {
    "double": KeyType(
        (float,), "float, neither NaN nor infinite", "DOUBLE", holds=lambda keys: all(map(isfinite, keys))
    ),
    "date": KeyType((dt.date,), "date", "DATE", encode=str),
    "datetime": KeyType((dt.datetime,), "datetime without a time zone", "DATETIME(6)", holds=_are_local, encode=str),
    # Keys are compared in UTC, because Python treats equal times of two zones as unequal in the hour that is repeated
    # when daylight saving time ends (PEP 495).
    "timestamp": KeyType(
        (dt.datetime,),
        "datetime with a time zone",
        "DATETIME(6)",
        holds=_are_instants,
        encode=_utc_text,
        returned_as=_in_utc,
    ),
    "uuid": KeyType(
        (str,),
        "str of 32 hexadecimal digits",
        _TEXT,
        "CAST({} AS UUID)",
        holds=_are_uuids,
        encode=_uuid_text,
        returned_as=_uuid_text,
    ),
}
