"""
The Spark types that can be declared, and the Arrow types that a worker builds for them.

| Spark | Arrow | | Spark | Arrow |
|---|---|---|---|---|
| string | string | | timestamp | timestamp[us, tz=UTC] |
| binary | binary | | timestamp_ntz | timestamp[us] |
| boolean | bool | | time | time64[ns] |
| tinyint, smallint, int, bigint | int8, int16, int32, int64 | | interval day to second | duration[us] |
| float, double | float32, float64 | | array | list |
| decimal(p,s) | decimal128(p,s) | | map, struct | map, struct |
| date | date32 | | variant | struct of two binaries |
| void | null | | | |

Every field is nullable, even if the declaration says otherwise, because a lookup may find nothing. Spark would refuse a
null in a non-null field, but only after the lookup has been made. Char and varchar are refused, because a worker cannot
apply their rules for length and padding.
"""

from __future__ import annotations

import re
import typing
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import ConfigError
from .annotations import annotated_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import DataType, StructType

    from ..interface import Returns

__all__ = ["SUPPORTED", "arrow_type_of", "ddl_of", "details_of", "is_variant", "spark_name"]

_EXAMPLE = "for example 'name string, tier int' for a struct, or 'bigint'"
SUPPORTED = (
    "string, binary, boolean, tinyint, smallint, int, bigint, float, double, decimal, date, timestamp, timestamp_ntz, "
    "time, interval day to second, array, map with plain keys, struct, variant and void"
)
_INSTEAD = {
    "char": "declare string",
    "varchar": "declare string",
    "yearmonthinterval": "declare int, a number of months",
    "interval": "declare interval day to second",
    "daytimeinterval": "declare interval day to second",
    "time": "declare time(6)",
    "udt": "declare its SQL type",
}

# The keys are names of Spark types and not classes, because not every version of PySpark has the types `time` and
# `variant`.
_ARROW: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("ns"),
    "daytimeinterval": pa.duration("us"),
    "void": pa.null(),
    "variant": pa.struct(
        [
            pa.field("value", pa.binary(), nullable=False),
            pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
        ]
    ),
}
_SPARK: dict[pa.DataType, str] = {
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.time64("ns"): "time",
    pa.duration("us"): "interval day to second",
    pa.null(): "void",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def arrow_type_of(returns: Returns) -> tuple[DataType, pa.DataType]:
    """
    Return the Spark type of one value, with all fields nullable, and the Arrow type that a worker builds for it.

    Args:
        returns: DDL text, a PySpark type, a `pyarrow.Schema` or `pyarrow.DataType`, a dataclass or `TypedDict` of
            annotated fields, or another annotation (`annotations.py`). DDL that is a list of fields without
            ``struct<>`` declares a struct. DDL needs a Spark session, because Spark itself parses it.

    Raises:
        ConfigError: On the driver: the text is not DDL, there is no session, or a worker cannot build the type.
    """
    declared = _declared(returns)
    if declared is None:
        if not (isinstance(returns, type) or typing.get_origin(returns) or hasattr(returns, "__supertype__")):
            raise ConfigError(
                f"returns is {returns!r}, which is no Spark type; it must be DDL text, {_EXAMPLE}, a PySpark type, an "
                "Arrow type or schema, or a dataclass or TypedDict with annotated fields. Write it as DDL."
            )
        declared = annotated_type(returns, _declared)
    return _spark_and_arrow(declared, "")


def ddl_of(data_type: DataType) -> str:
    """
    Return *data_type* as DDL that Spark can parse. PySpark's `simpleString` is not enough, because it does not quote
    field names.

    >>> from pyspark.sql.types import LongType, StructField, StructType
    >>> ddl_of(StructType([StructField("tier", LongType()), StructField("first name", LongType())]))
    'struct<tier:bigint,`first name`:bigint>'
    """
    from pyspark.sql import types as t

    if isinstance(data_type, t.StructType):
        return f"struct<{','.join(f'{_quoted(field.name)}:{ddl_of(field.dataType)}' for field in data_type)}>"
    if isinstance(data_type, t.ArrayType):
        return f"array<{ddl_of(data_type.elementType)}>"
    if isinstance(data_type, t.MapType):
        return f"map<{ddl_of(data_type.keyType)},{ddl_of(data_type.valueType)}>"
    return data_type.simpleString()


def details_of(value: DataType, units: Sequence[str] = ()) -> StructType:
    """
    Return the Spark type of the column that holds, with ``details=True``, values of the type *value* and their details.

    Args:
        value: Spark type of one value.
        units: Units in which the source reports the cost of a call; empty if it reports none.
    """
    from pyspark.sql import types as t

    fields = {"value": value, "status": t.StringType(), "error": t.StringType(), "attempts": t.IntegerType()}
    fields |= {"latency": t.DoubleType(), "origin": t.StringType()}
    if units:
        fields["spent"] = t.StructType([t.StructField(unit, t.DoubleType()) for unit in units])
    return t.StructType([t.StructField(name, data_type) for name, data_type in fields.items()])


def spark_name(data_type: Any) -> str:
    """
    Return Spark's name of an Arrow type, for messages; Arrow's own name when Spark has no such type.

    >>> spark_name(pa.list_(pa.struct([("tier", pa.int32())])))
    'array<struct<tier:int>>'
    """
    if is_variant(data_type):
        return "variant"
    if pa.types.is_struct(data_type):
        return f"struct<{','.join(f'{field.name}:{spark_name(field.type)}' for field in data_type)}>"
    if pa.types.is_map(data_type):
        return f"map<{spark_name(data_type.key_type)},{spark_name(data_type.item_type)}>"
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return f"array<{spark_name(data_type.value_type)}>"
    if pa.types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if pa.types.is_timestamp(data_type) and data_type.unit == "us" and data_type.tz is not None:
        return "timestamp"
    return _SPARK.get(data_type, str(data_type))


def is_variant(data_type: Any) -> bool:
    """
    Return whether *data_type* is Arrow's type for a variant.

    This is a struct of value and metadata in which a field has Spark's mark, the Arrow metadata `variant`: `true`.
    """
    if not pa.types.is_struct(data_type) or {field.name for field in data_type} != {"value", "metadata"}:
        return False
    return any((field.metadata or {}).get(b"variant") == b"true" for field in data_type)


def _quoted(name: str) -> str:
    return name if _NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _declared(returns: Any) -> DataType | None:
    """
    Return the type that *returns* declares if it is text, a Spark type or an Arrow type; None for any other object.
    """
    from pyspark.sql.types import DataType

    if isinstance(returns, str):
        return _parse(returns)
    if isinstance(returns, pa.Schema | pa.DataType):
        return _of_arrow(pa.struct(returns) if isinstance(returns, pa.Schema) else returns)
    if isinstance(returns, DataType):
        return returns
    return None


def _parse(ddl: str) -> DataType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import _parse_datatype_string  # DataType.fromDDL calls it, but PySpark 3.5 has no fromDDL

    try:
        return _parse_datatype_string(ddl)
    except (PySparkException, AssertionError, RuntimeError) as error:
        # Without a session, classic Spark and Spark Connect raise different errors, and neither message says why a
        # session is needed. So both errors get another message here.
        if not isinstance(error, PySparkException) or "SESSION" in str(error).partition("]")[0]:
            raise ConfigError(
                f"returns is {ddl!r}, and DDL is parsed by Spark, but no Spark session is active. Start one first with "
                "SparkSession.builder.getOrCreate(), or pass a type object such as pyspark.sql.types.LongType()."
            ) from error
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ConfigError(
            f"returns is {ddl!r}, which is no Spark type; it must be DDL, {_EXAMPLE}. Spark says: {reason}"
        ) from error


def _of_arrow(data_type: pa.DataType) -> DataType:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        return from_arrow_type(data_type, prefer_timestamp_ntz=True)
    except PySparkException as error:
        raise ConfigError(
            f"returns holds the Arrow type {data_type}, parts of which have no Spark type; allowed are the Arrow types "
            f"of {SUPPORTED}. Write it as DDL."
        ) from error


def _spark_and_arrow(data_type: DataType, path: str) -> tuple[DataType, pa.DataType]:
    """Return *data_type* with all fields nullable, and its Arrow type; *path* is its path in the whole type."""
    from pyspark.sql import types as t

    if isinstance(data_type, t.StructType):
        return _struct_types(data_type, path)
    if isinstance(data_type, t.ArrayType):
        spark_item, item = _spark_and_arrow(data_type.elementType, f"{path}[]")
        return t.ArrayType(spark_item, True), pa.list_(pa.field("element", item))
    if isinstance(data_type, t.MapType):
        spark_key, key = _spark_and_arrow(data_type.keyType, f"{path}{{key}}")
        spark_item, item = _spark_and_arrow(data_type.valueType, f"{path}{{value}}")
        if pa.types.is_nested(key):
            raise ConfigError(
                f"returns declares {data_type.simpleString()}{_at(path)}; the key of a map must be a plain type, for "
                "example string. Declare an array of structs with the fields key and value."
            )
        return t.MapType(spark_key, spark_item, True), pa.map_(key, item)
    return data_type, _plain_arrow_type(data_type, path)


def _struct_types(struct: StructType, path: str) -> tuple[StructType, pa.DataType]:
    from pyspark.sql import types as t

    names = struct.names
    if not names:
        raise ConfigError(
            f"returns declares a struct{_at(path)} without fields; it needs one, {_EXAMPLE}. Name a field."
        )
    repeated = sorted({field for field in names if names.count(field) > 1})
    if repeated:
        raise ConfigError(
            f"returns declares the field {repeated[0]!r}{_at(path)} twice; names must differ. Rename one."
        )
    parts = [(field, *_spark_and_arrow(field.dataType, f"{path}.{field.name}".lstrip("."))) for field in struct]
    spark = t.StructType([t.StructField(field.name, part, True, field.metadata) for field, part, _ in parts])
    return spark, pa.struct([(field.name, arrow) for field, _, arrow in parts])


def _plain_arrow_type(data_type: DataType, path: str) -> pa.DataType:
    from pyspark.sql import types as t

    name = data_type.typeName()
    if isinstance(data_type, t.DecimalType):
        if not (1 <= data_type.precision <= 38 and data_type.scale <= data_type.precision):
            raise ConfigError(
                f"returns declares {data_type.simpleString()}{_at(path)}; a decimal has 1 to 38 digits, and at most as "
                "many after the point. Declare fewer digits, or a string."
            )
        return pa.decimal128(data_type.precision, data_type.scale)
    if isinstance(data_type, t.UserDefinedType):
        name = "udt"
    # Two kinds of types are refused, because a worker cannot cut a value to fit them: intervals with fewer fields than
    # day to second, and times with fewer than six digits of a second.
    is_partial = isinstance(data_type, t.DayTimeIntervalType) and data_type != t.DayTimeIntervalType()
    if name not in _ARROW or is_partial or getattr(data_type, "precision", 6) != 6:
        instead = _INSTEAD.get(name, "declare another type")
        raise ConfigError(
            f"returns declares {data_type.simpleString()}{_at(path)}, which a worker cannot build; allowed are "
            f"{SUPPORTED}. For this one, {instead}."
        )
    return _ARROW[name]


def _at(path: str) -> str:
    return f" at {path!r}" if path else ""
