"""The two statements: one over a table, one around the user's query."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from enrichkit.errors import FatalError, TransientError
from enrichkit.sql import Source, quote

from .catalog import Column, columns_of_query, columns_of_table
from .lookup import Lookup
from .pgtypes import Kept, KeyType, Taken, equality, key_type, value_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .config import PostgresConfig

__all__ = ["prepare"]

_LOOKED_UP = "booleans, numbers, strings, uuid, bytea, dates, timestamps and enums"


async def prepare(connection: Any, config: PostgresConfig) -> Lookup:
    """Return the lookup that *config* means, checked against the server's catalog; raises `FatalError`."""
    lookup = await (_of_query(connection, config) if config.table is None else _of_table(connection, config))
    lookup.source.check_fields(lookup.names)
    # Without keys it returns nothing, but finds what only execution finds: missing privileges.
    await connection.fetch(lookup.sql, *lookup.ask([]).arguments)
    return lookup


async def _of_table(connection: Any, config: PostgresConfig) -> Lookup:
    schema, table = config.schema_and_table()
    source = Source(config, f"the table {schema}.{table}")
    key_columns, values = source.choose(await columns_of_table(connection, config))
    taken = [_taken(column, source) for column in key_columns]
    kept = {column.name: value_type(column.type, f"t.{quote(column.name)}") for column in values}
    where = f"{quote(schema)}.{quote(table)} AS t"
    numbered = len(taken) > 1 or not taken[0].key.exact
    if numbered:
        arrays = ", ".join(column.parameter(i) for i, column in enumerate(taken, 1))
        keys = ", ".join(f"k{i}" for i in range(1, len(taken) + 1))
        on = " AND ".join(f"t.{quote(column.name)} {column.equals} k.k{i}" for i, column in enumerate(taken, 1))
        first = f"k.n + ${len(taken) + 1}::pg_catalog.int8"
        body = f"FROM unnest({arrays}) WITH ORDINALITY AS k ({keys}, n) JOIN {where} ON {on}"
    else:
        name = f"t.{quote(taken[0].name)}"
        first = f"{name}::pg_catalog.text" if taken[0].key.types == (str,) else name
        body = f"FROM {where} WHERE {name} = ANY ({taken[0].parameter(1)})"
    return Lookup(
        source=source,
        sql=f"SELECT {_select([first], kept)} {body}",
        taken=taken,
        kept=kept,
        width=1,
        numbered=numbered,
        gathered=_gathered(kept),
        foreign=lambda: TransientError(
            f"A row of {source} came back that was not asked for; the connection was closed."
        ),
    )


async def _of_query(connection: Any, config: PostgresConfig) -> Lookup:
    # As a subquery it can be nothing but one SELECT. The line break ends a comment of its last line.
    inner = f"(\n{(config.query or '').rstrip().rstrip(';')}\n) AS t"
    columns, parameters = await columns_of_query(connection, f"SELECT * FROM {inner}")  # noqa: S608 - the user's own query
    names = [column.name for column in columns]
    keys = config.key_columns
    if tuple(names[: len(keys)]) != keys or len(names) == len(keys) or len(set(names)) < len(names):
        raise FatalError(
            f"PostgresConfig.query returns the columns {_listed(names)}; they must be the key columns "
            f"{_listed(keys)}, then one or more value columns, all with different names. Rename them with AS, or name "
            "the key in PostgresConfig.key."
        )
    if len(parameters) != len(keys):
        raise FatalError(
            f"PostgresConfig.query has {len(parameters)} parameters; it must have {len(keys)}, one array of keys for "
            "each key column."
        )
    source = Source(config, "the query")
    taken = []
    for number, (column, element) in enumerate(zip(columns, parameters, strict=False), 1):
        returned = _taken(column, source)
        given = None if element is None else key_type(element)
        if element is None or given is None or given.types != returned.key.types:
            raise FatalError(
                f"PostgresConfig.query takes ${number} as another type than an array of its key column "
                f"{column.name!r}, which is {column.type.name}. Write ${number}::{column.type.name}[] in the query."
            )
        taken.append(replace(returned, key=_of_driver(given, returned.key), array=element.array or ""))
    kept = {column.name: value_type(column.type, f"t.{quote(column.name)}") for column in columns[len(keys) :]}
    first = [f"t.{quote(c.name)}" + ("::pg_catalog.text" if c.key.types == (str,) else "") for c in taken]
    return Lookup(
        source=source,
        sql=f"SELECT {_select(first, kept)} FROM {inner}",  # noqa: S608 - the user's own query
        taken=taken,
        kept=kept,
        width=len(keys),
        numbered=False,
        gathered=_gathered(kept),
        foreign=lambda: FatalError(
            f"PostgresConfig.query returned a key in {_listed(keys)} that it was not asked for. "
            "It must return the keys as they were given, for example by joining the table to unnest($1)."
        ),
    )


def _taken(column: Column, source: Source) -> Taken:
    key = key_type(column.type, exact_collation=column.exact)
    if key is None or column.type.array is None:
        raise source.not_a_key(column.name, column.type.name, _LOOKED_UP)
    return Taken(column.name, column.type.name, key, column.type.array, equality(column.type))


def _of_driver(given: KeyType, returned: KeyType) -> KeyType:
    """What *given* takes when the driver encodes it itself, because the query says what `$1` is."""
    given = replace(given, as_text=False, exact=returned.exact, same=returned.same)
    if given.types not in ((date,), (datetime,)):
        return given

    def holds(keys: Sequence[Any]) -> bool:
        plain = (key.replace(tzinfo=None) if isinstance(key, datetime) else key for key in keys)
        return given.holds(keys) and _EXTREMES.isdisjoint(plain)

    allowed = f"{given.allowed}, neither the first nor the last that Python knows, which the driver takes for infinity"
    return replace(given, holds=holds, allowed=allowed)


_EXTREMES = {date.min, date.max, datetime.min, datetime.max}


def _select(first: Sequence[str], kept: Mapping[str, Kept]) -> str:
    refused = " ".join(f"WHEN {column.refused} THEN {i}" for i, column in enumerate(kept.values(), 1) if column.refused)
    values = [column.select for column in kept.values()]
    columns = [*first, *values, *([f"CASE {refused} END"] if refused else [])]
    if _gathered(kept):
        columns = [f"pg_catalog.array_agg({column})" for column in columns]
    return ", ".join(columns)


def _gathered(kept: Mapping[str, Kept]) -> bool:
    """Whether each column comes as one array. Arrays of arrays must have one length, so theirs come row by row."""
    return not any(column.ddl.startswith("array<") for column in kept.values())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "(none)"
