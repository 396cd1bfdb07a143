"""Between pandas and Arrow, for the pandas carrier only; the Arrow carrier and its workers need no pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from .keys import no_key, out_of_years
from .types import is_variant

__all__ = ["frame_of", "keys_of"]

_NAN = np.float32("nan")
"""Stays a NaN where pyarrow takes the NaN of a Python float for a null, as it does for objects from pandas."""


def keys_of(columns: Sequence[pd.Series]) -> list[pa.Array[Any]]:
    """
    Return one Arrow array per key column.

    Args:
        columns: For each key column a Series of arrays of one key, or of none for null, whose own arrays keep their
            exact type; then for each key column a Series of instants as text, which is all null when the key is no
            timestamp.

    Raises:
        ConfigError: A map column is no key.
        TaskFailedError: On a worker: a timestamp outside the years 1 to 9999, which Python cannot hold.
    """
    half = len(columns) // 2
    return [_keys(*pair) for pair in zip(columns[:half], columns[half:], strict=True)]


def _keys(column: pd.Series, instants: pd.Series) -> pa.Array[Any]:
    if instants.notna().any():
        return _timestamps(instants)
    parts = column.tolist()
    held = np.fromiter((part is not None and len(part) > 0 for part in parts), dtype=bool, count=len(parts))
    if not held.any():
        return pa.nulls(len(parts))
    flat = np.concatenate([part for part, has in zip(parts, held, strict=True) if has])
    try:
        values = pa.array(flat.tolist() if flat.dtype == object else flat)
    except pa.ArrowTypeError as error:  # a dict whose keys are no names of fields
        raise no_key("map") from error
    if held.all():
        return values
    places = np.cumsum(held) - 1
    return values.take(pa.array(places, mask=~held))


def _timestamps(instants: pd.Series) -> pa.Array[Any]:
    """Read texts such as 2026-11-01T04:15:00.000000ZAD."""
    texts: Any = pa.array(instants, pa.string(), from_pandas=True)
    try:
        # With the era BC for AD, or with a year of five digits, it is no ISO text.
        return pc.replace_substring_regex(texts, "AD$", "").cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        raise out_of_years("timestamp") from None  # Arrow's error shows the key


def frame_of(array: pa.Array[Any]) -> pd.DataFrame:
    """
    Return *array* as the one column of the envelope struct.

    An Arrow-backed Series loses nothing on the way. Nested values go as Python objects, because PySpark's own converter
    for them takes nothing else.
    """
    if pa.types.is_nested(array.type):
        return pd.DataFrame({"value": pd.Series(_plain(array), dtype=object)})
    return pd.DataFrame({"value": pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([array])))})


def _plain(array: pa.Array[Any]) -> list[Any]:
    """Return *array* as Python objects, maps as dicts, variants as PySpark's, at any depth."""
    plain: list[Any] = array.to_pylist()
    if _must_be_marked(array.type) or _holds_nan(array):
        return [_marked(value, array.type) for value in plain]
    return plain


def _must_be_marked(data_type: pa.DataType) -> bool:
    if pa.types.is_map(data_type) or is_variant(data_type):
        return True
    return any(_must_be_marked(data_type.field(index).type) for index in range(data_type.num_fields))


def _holds_nan(array: Any) -> bool:
    if pa.types.is_floating(array.type):
        return bool(pc.any(pc.is_nan(array)).as_py())
    if pa.types.is_map(array.type):
        return _holds_nan(array.keys) or _holds_nan(array.items)
    if pa.types.is_struct(array.type):
        return any(map(_holds_nan, array.flatten()))
    return bool(pa.types.is_list(array.type)) and _holds_nan(array.flatten())


def _marked(value: Any, data_type: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_map(data_type):  # a list of pairs; to_pylist makes dicts since pyarrow 20 only
        key_type, item_type = data_type.key_type, data_type.item_type
        return {_marked(key, key_type): _marked(item, item_type) for key, item in value}
    if is_variant(data_type):
        from pyspark.sql.types import VariantVal  # absent from PySpark 3.5, as variants are

        return VariantVal(value["value"], value["metadata"])
    if pa.types.is_struct(data_type):
        return {field.name: _marked(value[field.name], field.type) for field in data_type}
    if pa.types.is_list(data_type):
        return [_marked(part, data_type.value_type) for part in value]
    return _NAN if isinstance(value, float) and value != value else value
