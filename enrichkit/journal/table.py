"""The tables of a journal: a table has the answers of one source with the same key types and the same declared type."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from ..errors import JournalError

__all__ = ["DataType", "Schema", "Table", "key_type"]

DataType: TypeAlias = "pa.DataType"
Schema: TypeAlias = "pa.Schema"

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
_PLAIN = (
    (_TEXT, pa.string()),
    (_BYTES, pa.binary()),
    ((pa.types.is_uint64,), pa.uint64()),
    ((pa.types.is_integer,), pa.int64()),
    ((pa.types.is_floating,), pa.float64()),
    ((pa.types.is_boolean,), pa.bool_()),
    ((pa.types.is_date,), pa.date32()),
    ((pa.types.is_time,), pa.time64("us")),
    ((pa.types.is_duration,), pa.duration("us")),
)


def key_type(data_type: DataType) -> DataType:
    """
    Return the type in which a key column is stored.

    Types whose equal values are the same key, such as int and bigint, are stored as one type. So a journal that was
    written for an int column also serves a bigint column. The values 1, 1.0, 1.00, True and "1" are stored as five
    different types, so they are never the same key.

    Raises:
        JournalError: *data_type* cannot be the type of a key.

    >>> str(key_type(pa.int32())), str(key_type(pa.decimal128(10, 2)))
    ('int64', 'decimal128(38, 2)')
    """
    if pa.types.is_dictionary(data_type):
        return key_type(data_type.value_type)
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", data_type.tz and "UTC")
    if pa.types.is_decimal(data_type):
        wide = data_type.precision > 38
        return pa.decimal256(76, data_type.scale) if wide else pa.decimal128(38, data_type.scale)
    for are_of, stored in _PLAIN:
        if any(is_of(data_type) for is_of in are_of):
            return stored
    raise JournalError(
        f"A key column has the type {data_type}, which a journal does not hold; allowed are text, bytes, numbers, "
        "booleans, dates and times. Cast the column to string."
    )


@dataclass(frozen=True)
class Table:
    """
    The answers of one source with one config or query, the same key types and the same declared type.

    Attributes:
        source: Name of the source, only for people to read; `digest` does not depend on it.
        fingerprint: A text that changes with everything that may change an answer: config, query, prompt. Only a hash
            of this text is stored.
        key_types: Arrow type of each part of a key, converted by `key_type`.
        value_type: The declared type, as an Arrow type.

    >>> old = Table("users", "SELECT tier", (pa.int32(),), pa.string())
    >>> old.digest == Table("users", "SELECT tier", (pa.int64(),), pa.string()).digest
    True
    >>> old.digest == Table("users", "SELECT name", (pa.int32(),), pa.string()).digest
    False
    """

    source: str
    fingerprint: str
    key_types: tuple[DataType, ...]
    value_type: DataType

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_types", tuple(map(key_type, self.key_types)))

    @functools.cached_property
    def schema(self) -> Schema:
        """Columns of a block: `key0`, `key1` and so on, `value`, and `found`, which is false for a miss."""
        keys = [pa.field(f"key{number}", data_type) for number, data_type in enumerate(self.key_types)]
        return pa.schema([*keys, pa.field("value", self.value_type), pa.field("found", pa.bool_())])

    @functools.cached_property
    def digest(self) -> str:
        """Name of the folder that holds the table."""
        # The hash covers the types as text, because their serialized form may change with the version of pyarrow.
        parts = [self.fingerprint, [*map(str, self.key_types)], str(self.value_type)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
