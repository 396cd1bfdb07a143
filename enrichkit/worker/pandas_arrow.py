"""
Conversion between pandas and Arrow.

Only jobs with `carrier="pandas"`, whose columns travel between Spark and the workers as pandas Series, use this module;
with the carrier `"arrow"`, the workers need no pandas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ..values.types import is_variant
from .keys import key_type_error, key_year_error

__all__ = ["frame_of", "keys_of"]

_NAN = np.float32("nan")
"""A NaN that pyarrow keeps when it converts objects from pandas. A NaN that is a Python float would become a null."""


def keys_of(columns: Sequence[pd.Series]) -> list[pa.Array[Any]]:
    """
    Return one Arrow array per key column.

    Args:
        columns: Three Series for each key column, in three groups. The first group has the Series of arrays, which keep
            the exact type of the keys: an array holds one key, or nothing for a null. The second group has the Series
            of texts as bytes, all null unless the keys are texts. The third group has the Series of timestamps as
            texts, all null unless the keys are timestamps.

    Raises:
        ConfigError: A key column is a map.
        TaskFailedError: On a worker: a timestamp lies outside the years 1 to 9999, the only ones that Python can hold.
    """
    third = len(columns) // 3
    parts = (columns[:third], columns[third : 2 * third], columns[2 * third :])
    return [_key_array(*part) for part in zip(*parts, strict=True)]


def _key_array(column: pd.Series, texts: pd.Series, instants: pd.Series) -> pa.Array[Any]:
    if texts.notna().any():
        # The bytes become strings by a view, which checks nothing, because a text of Spark may hold bytes that are not
        # UTF-8; the connector decides what to do with such a text.
        return pa.array(texts, pa.binary(), from_pandas=True).view(pa.string())
    if instants.notna().any():
        return _parse_timestamps(instants)
    parts = column.tolist()
    is_valid = np.fromiter((part is not None and len(part) > 0 for part in parts), dtype=bool, count=len(parts))
    if not is_valid.any():
        return pa.nulls(len(parts))
    flat = np.concatenate([part for part, valid in zip(parts, is_valid, strict=True) if valid])
    try:
        values = pa.array(flat.tolist() if flat.dtype == object else flat)
    except pa.ArrowTypeError as error:  # a key is a map, whose dict pyarrow takes for a struct with invalid names
        raise key_type_error("map") from error
    if is_valid.all():
        return values
    places = np.cumsum(is_valid) - 1
    return values.take(pa.array(places, mask=~is_valid))


def _parse_timestamps(instants: pd.Series) -> pa.Array[Any]:
    """Parse texts such as 2026-11-01T04:15:00.000000ZAD."""
    texts: Any = pa.array(instants, pa.string(), from_pandas=True)
    try:
        # A text with the era BC instead of AD, or with a year of five digits, is not in ISO format: the cast raises.
        return pc.replace_substring_regex(texts, "AD$", "").cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        raise key_year_error("timestamp") from None  # Arrow's error would show the key, which may be confidential


def frame_of(array: pa.Array[Any]) -> pd.DataFrame:
    """
    Return a frame with *array* as its only column, `value`: the field of the struct that Spark gets.

    An Arrow-backed Series keeps each value exactly. Nested values travel as Python objects, because PySpark's own
    converter takes no other form of them.
    """
    if pa.types.is_nested(array.type):
        return pd.DataFrame({"value": pd.Series(_nested_objects(array), dtype=object)})
    return pd.DataFrame({"value": pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([array])))})


def _nested_objects(array: pa.Array[Any]) -> list[Any]:
    """Return *array* as Python objects that PySpark converts; see `_convert`."""
    objects: list[Any] = array.to_pylist()
    if _needs_conversion(array.type) or _holds_nan(array):
        return [_convert(value, array.type) for value in objects]
    return objects


def _needs_conversion(data_type: pa.DataType) -> bool:
    if pa.types.is_map(data_type) or is_variant(data_type):
        return True
    return any(_needs_conversion(data_type.field(index).type) for index in range(data_type.num_fields))


def _holds_nan(array: Any) -> bool:
    if pa.types.is_floating(array.type):
        return bool(pc.any(pc.is_nan(array)).as_py())
    if pa.types.is_map(array.type):
        return _holds_nan(array.keys) or _holds_nan(array.items)
    if pa.types.is_struct(array.type):
        return any(map(_holds_nan, array.flatten()))
    return bool(pa.types.is_list(array.type)) and _holds_nan(array.flatten())


def _convert(value: Any, data_type: Any) -> Any:
    """Return *value* with maps as dicts, variants as PySpark's `VariantVal`, and each NaN as `_NAN`, at any depth."""
    if value is None:
        return None
    if pa.types.is_map(data_type):  # a list of pairs: to_pylist can make dicts only since pyarrow 20
        key_type, item_type = data_type.key_type, data_type.item_type
        return {_convert(key, key_type): _convert(item, item_type) for key, item in value}
    if is_variant(data_type):
        from pyspark.sql.types import VariantVal  # PySpark 3.5 has neither variants nor this class

        return VariantVal(value["value"], value["metadata"])
    if pa.types.is_struct(data_type):
        return {field.name: _convert(value[field.name], field.type) for field in data_type}
    if pa.types.is_list(data_type):
        return [_convert(part, data_type.value_type) for part in value]
    return _NAN if isinstance(value, float) and value != value else value
