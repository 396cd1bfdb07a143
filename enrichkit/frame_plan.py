"""What one `enrich_frame` is: keys located, types and names checked, and the DataFrame that `carriers.frame` makes."""

from __future__ import annotations

import datetime as dt
import decimal
import inspect
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql import types as t

from .carriers import frame
from .errors import ConfigError
from .frame_slices import FrameTask
from .options import did_you_mean
from .plan import Plan, make_plan, pack
from .types import details_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from .connector import ConnectorConfig, Returns

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
"""What a part of a key is in Python, by the name of its type."""


@dataclass(frozen=True, kw_only=True)
class Join:
    """The arguments of `enrich_frame`, which describes them."""

    on: Sequence[Column | str]
    into: str | None
    how: str
    many: bool | str
    ordered: bool
    barrier: Column | str | None
    columns: Sequence[str] | None
    returns: Returns | None


def join(df: DataFrame, source: str | ConnectorConfig, wanted: Join, options: Mapping[str, Any]) -> DataFrame:
    """Return *df* with the columns that *wanted* asks of *source*; raises `ConfigError`, on the driver."""
    plan, value = make_plan(
        source,
        len(wanted.on),
        wanted.returns,
        options,
        many=bool(wanted.many),
        shape=lambda name, declared: _shaped(name, declared, wanted),
    )
    explode = wanted.many is True
    if explode:
        assert isinstance(value, t.ArrayType)
        value = value.elementType
    if plan.options.details:
        value = details_of(value)
    added = [t.StructField(wanted.into or plan.source, value)]
    spread = wanted.into is None and isinstance(value, t.StructType)
    if isinstance(value, t.StructType) and spread:
        added = value.fields
    same = str if str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true" else str.lower
    _check_clashes(df.columns, [field.name for field in added], same)

    parts = [*wanted.on, *([] if wanted.barrier is None else [wanted.barrier])]
    widened, places = _located(df, parts, same)
    own, behind = widened.schema.fields[: len(df.columns)], widened.schema.fields
    keys = places[: len(wanted.on)]
    for field in [behind[place] for place in keys]:
        _check_key(field, plan)
    if wanted.barrier is not None:
        _check_barrier(behind[places[-1]])
    for field in own:
        _check_passes(field)
    task = FrameTask(
        plan=pack(plan),
        width=len(own),
        keys=tuple(keys),
        names=tuple(f"c{n}" for n in range(len(own), len(own) + len(added))),
        spread=spread,
        inner=wanted.how == "inner",
        explode=explode,
        ordered=wanted.ordered,
        barrier=places[-1] if wanted.barrier is not None else None,
    )
    # Numbered, because Spark looks the columns of mapInArrow up by name, and a name may hold a dot or occur twice. The
    # schema hands metadata on, such as the watermark of an event time.
    schema = t.StructType(
        [
            t.StructField(f"c{n}", field.dataType, field.nullable, field.metadata)
            for n, field in enumerate([*own, *added])
        ]
    )
    numbered = widened.toDF(*(f"c{n}" for n in range(len(behind))))
    result = frame(numbered, pickle.dumps(task), schema, plan.source)
    return result.toDF(*(field.name for field in [*own, *added]))


def _shaped(source: str, declared: t.DataType, wanted: Join) -> t.DataType:
    """The type of an answer: of the chosen fields, once or as a list of matches."""
    if wanted.columns is not None:
        declared = _chosen(source, declared, wanted.columns)
    return t.ArrayType(declared) if wanted.many else declared


def _chosen(source: str, declared: t.DataType, columns: Sequence[str]) -> t.StructType:
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


def _check_clashes(there: Sequence[str], added: Sequence[str], same: Any) -> None:
    taken = {same(name) for name in there}
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


def _located(df: DataFrame, parts: Sequence[Column | str], same: Any) -> tuple[DataFrame, list[int]]:
    """
    Return *df* with those of *parts* behind it that are not columns of it as they are, and the number of each part.

    A name is resolved by Spark unless it can only mean one column, so that `a.b` and an ambiguous name mean what they
    mean elsewhere.
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


def _check_passes(field: t.StructField) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    # PySpark 4.2 and newer do not convert a timestamp without a zone, older ones take none.
    zone: Any = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
    try:
        to_arrow_type(field.dataType, **zone)
    except (PySparkException, TypeError) as error:
        raise ConfigError(
            f"The column {field.name!r} has the type {field.dataType.simpleString()}, which Spark does not hand to "
            "Python; enrich_frame() needs all columns there. Drop or convert it before, or use enrich(), which needs "
            "the key only."
        ) from error
