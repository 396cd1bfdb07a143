"""Plans one call of `enrich_frame`: locates key columns, checks types and names, and makes the resulting DataFrame."""

from __future__ import annotations

import datetime as dt
import decimal
import inspect
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql import types as t

from ..errors import ConfigError, did_you_mean
from ..plan import FrameTask, Plan
from ..values.types import details_of
from .pickling import pack
from .planner import make_plan, names_of
from .udf import frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from ..interface import ConnectorConfig, Returns
    from ..sources.tiers import Tiers

__all__ = ["Join", "join"]

_PYTHON: dict[str, type] = {
    "string": str,
    "char": str,
    "varchar": str,
    "binary": bytes,
    "boolean": bool,
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "decimal": decimal.Decimal,
    "date": dt.date,
    "timestamp": dt.datetime,
    "timestamp_ntz": dt.datetime,
    "time": dt.time,
    "daytimeinterval": dt.timedelta,
}
"""The Python type of one part of a key, by the name of its Spark type."""


@dataclass(frozen=True, kw_only=True)
class Join:
    """The arguments of one call of `enrich_frame`, whose docstring describes them."""

    on: Sequence[Column | str]
    into: str | None
    how: str
    many: bool | str
    ordered: bool
    barrier: Column | str | None
    columns: Sequence[str] | None
    shuffle: bool | int
    returns: Returns | None


def join(
    df: DataFrame, source: str | ConnectorConfig | Tiers, arguments: Join, options: Mapping[str, Any]
) -> DataFrame:
    """Return *df* with the columns from *source* that *arguments* describe. Raises `ConfigError` on the driver."""
    plan, answer_type = make_plan(
        source,
        len(arguments.on),
        arguments.returns,
        options,
        many=bool(arguments.many),
        shape=lambda name, declared: _answer_type(name, declared, arguments),
        names=names_of(arguments.on),
    )
    added, spread = _added_fields(answer_type, plan, arguments)
    same = str if str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true" else str.lower
    _check_clashes(df.columns, [field.name for field in added], same)

    parts = [*arguments.on, *([] if arguments.barrier is None else [arguments.barrier])]
    widened, places = _locate_columns(df, parts, same)
    fields = widened.schema.fields
    own, keys = fields[: len(df.columns)], places[: len(arguments.on)]
    for place in keys:
        _check_key(fields[place], plan)
    if arguments.barrier is not None:
        _check_barrier(fields[places[-1]])
    for field in own:
        _check_convertible(field)
    task = FrameTask(
        plan=pack(plan),
        width=len(own),
        keys=tuple(keys),
        names=tuple(f"c{n}" for n in range(len(own), len(own) + len(added))),
        spread=spread,
        inner=arguments.how == "inner",
        explode=arguments.many is True,
        ordered=arguments.ordered,
        barrier=places[-1] if arguments.barrier is not None else None,
    )
    # Columns get numbers as names, because Spark looks up the columns of mapInArrow by name, and a name may hold a dot
    # or occur twice. The schema passes metadata on, such as the watermark of an event time.
    schema = t.StructType(
        [
            t.StructField(f"c{n}", field.dataType, field.nullable, field.metadata)
            for n, field in enumerate([*own, *added])
        ]
    )
    numbered = widened.toDF(*(f"c{n}" for n in range(len(fields))))
    if arguments.shuffle:
        numbered = _shuffled(numbered, keys, None if arguments.shuffle is True else arguments.shuffle)
    result = frame(numbered, pickle.dumps(task), schema, plan.source)
    return result.toDF(*(field.name for field in [*own, *added]))


def _shuffled(numbered: DataFrame, keys: Sequence[int], partitions: int | None) -> DataFrame:
    """
    Return *numbered* with all rows of a key in one partition, and the rows without a key spread over all partitions.

    Spark's adaptive execution may merge small partitions, but it splits none, so all rows of a key stay in one task.
    The hint REBALANCE is not used, because with it Spark would also split partitions, so that the rows of one key could
    get to two tasks. Rows without a key are spread by a hash of their other columns and of the partition that they come
    from. A random number would be wrong here, because a repeated task of the shuffle has to send each row to the same
    partition as before.
    """
    columns = [F.col(f"c{place}") for place in keys]
    null = reduce(or_, (column.isNull() for column in columns))
    others = [
        F.col(field.name)
        for place, field in enumerate(numbered.schema.fields)
        if place not in keys and field.dataType.typeName() in _PYTHON
    ]
    spread = F.when(null, F.xxhash64(F.spark_partition_id(), *others))
    if partitions is None:
        return numbered.repartition(*columns, spread)
    return numbered.repartition(partitions, *columns, spread)


def _answer_type(source: str, declared: t.DataType, arguments: Join) -> t.DataType:
    """Return the type of an answer: one value with the chosen fields, or a list of such values."""
    if arguments.columns is not None:
        declared = _select_fields(source, declared, arguments.columns)
    return t.ArrayType(declared) if arguments.many else declared


def _added_fields(answer_type: t.DataType, plan: Plan, arguments: Join) -> tuple[list[t.StructField], bool]:
    """Return the fields that are added to the DataFrame, and whether they are the fields of a struct value."""
    value = answer_type
    if arguments.many is True:
        assert isinstance(value, t.ArrayType)
        value = value.elementType
    if plan.options.details:
        value = details_of(value, plan.units)
    if arguments.into is None and isinstance(value, t.StructType):
        return value.fields, True
    return [t.StructField(arguments.into or plan.source, value)], False


def _select_fields(source: str, declared: t.DataType, columns: Sequence[str]) -> t.StructType:
    names = list(columns)
    if not isinstance(declared, t.StructType):
        raise ConfigError(
            f"columns is {names!r}, but a value of {source!r} is of the type {declared.simpleString()}, which has no "
            "fields; columns= chooses fields of a struct. Leave columns= out, or declare a struct with returns=."
        )
    for name in names:
        if name not in declared.names:
            raise ConfigError(
                f"columns names {name!r}, which a value of {source!r} does not have."
                f"{did_you_mean(str(name), declared.names)} Its fields: {', '.join(declared.names)}. Name some of them."
            )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"columns names {twice[0]!r} twice; a field can be kept once. Name it once.")
    return t.StructType([declared[name] for name in names])


def _check_clashes(columns: Sequence[str], added: Sequence[str], same: Any) -> None:
    """
    Raise a `ConfigError` when a column would occur twice.

    Args:
        columns: Names of the columns of the DataFrame.
        added: Names of the columns of values.
        same: Function that returns equal texts for names that are the same to Spark, such as `id` and `ID` by default.
    """
    taken = {same(name) for name in columns}
    clashing = [name for name in added if same(name) in taken]
    if clashing:
        s = "s" * (len(clashing) != 1)
        raise ConfigError(
            f"The value would add the column{s} {', '.join(map(repr, clashing))}, which the DataFrame has already. "
            "Put the values into a column of another name with into=, choose other fields with columns=, or rename the "
            "DataFrame's."
        )
    alike = [name for name in added if [*map(same, added)].count(same(name)) > 1]
    if alike:
        raise ConfigError(
            f"The value would add the columns {', '.join(map(repr, alike))}, which Spark does not tell apart. Put the "
            "values into one column with into=, choose some of the fields with columns=, or set "
            "spark.sql.caseSensitive to true."
        )


def _locate_columns(df: DataFrame, parts: Sequence[Column | str], same: Any) -> tuple[DataFrame, list[int]]:
    """
    Find the columns that *parts* mean; each part is a column or a name.

    A name that can only mean one column is looked up here. Spark resolves any other name, so that `a.b` and an
    ambiguous name mean the same as in any other expression.

    Args:
        df: The DataFrame of the user.
        parts: The key columns, and the barrier if there is one.
        same: Function that returns equal texts for names that are the same to Spark, such as `id` and `ID` by default.

    Returns:
        *df*, with a column appended for each part that is not the plain name of a column of *df*; and for each part the
        index of its column.
    """
    names = [same(name) for name in df.columns]
    places: list[int] = []
    more: list[Column] = []
    for part in parts:
        if isinstance(part, str) and names.count(same(part)) == 1 and not {".", "`"} & set(part):
            places.append(names.index(same(part)))
        elif isinstance(part, str) and same(part) not in names and not {".", "`"} & set(part):
            raise ConfigError(
                f"The DataFrame has no column {part!r}.{did_you_mean(part, df.columns)} Its columns: "
                f"{', '.join(df.columns)}. Name one of them, or pass an expression."
            )
        else:
            places.append(len(names) + len(more))
            more.append(F.col(part) if isinstance(part, str) else part)
    widened = df.select("*", *more) if more else df
    if len(widened.columns) != len(names) + len(more):
        raise ConfigError(
            f"on or barrier holds an expression that makes several columns: {widened.columns[len(names) :]!r}; each "
            "must be one column. Name them one by one."
        )
    return widened, places


def _check_key(field: t.StructField, plan: Plan) -> None:
    name = field.dataType.typeName()
    if name not in _PYTHON and name != "void":
        raise ConfigError(
            f"The key column {field.name!r} has the type {field.dataType.simpleString()}, which is no key; allowed are "
            "string, binary, boolean, number, date and timestamp columns. Pass its parts as several key columns, or "
            "cast it to string."
        )
    taken = plan.connector.key_types
    if taken and name != "void" and _PYTHON[name] not in taken:
        raise ConfigError(
            f"The key column {field.name!r} has the type {field.dataType.simpleString()}, which is "
            f"{_PYTHON[name].__name__} in Python; a key of {plan.source!r} must be one of "
            f"{', '.join(kind.__name__ for kind in taken)}. Cast it, for example to string."
        )


def _check_barrier(field: t.StructField) -> None:
    name = field.dataType.typeName()
    if name not in _PYTHON and name != "void":
        raise ConfigError(
            f"The barrier column {field.name!r} has the type {field.dataType.simpleString()}, whose values are not "
            "compared; allowed are string, binary, boolean, number, date and timestamp columns. Name a part of it."
        )


def _check_convertible(field: t.StructField) -> None:
    """Raise a `ConfigError` when Spark cannot convert *field* to Arrow."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    # PySpark 4.2 and newer need a time zone to convert a timestamp; older versions have no such argument.
    zone: Any = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
    try:
        to_arrow_type(field.dataType, **zone)
    except (PySparkException, TypeError) as error:
        raise ConfigError(
            f"The column {field.name!r} has the type {field.dataType.simpleString()}, which Spark does not hand to "
            "Python; enrich_frame() needs all columns there. Drop or convert it before, or use enrich(), which needs "
            "the key only."
        ) from error
