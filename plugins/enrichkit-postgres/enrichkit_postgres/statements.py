"""The two statements: one over a table, one around the user's query."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from enrichkit.errors import FatalError, TransientError
from enrichkit.sql import Source, quote

from .catalog import Column, columns_of_query, columns_of_table
from .gathered import INTEGERS, Gathered, as_array, as_integers, as_texts
from .lookup import Lookup
from .pgtypes import Kept, KeyType, Taken, equality, key_type, value_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .config import PostgresConfig

    Selected: TypeAlias = tuple[str, Callable[[str], Gathered]]  # the SQL of a column, and how it comes as one

__all__ = ["prepare"]

MANY = 800  # columns, of which the server selects 1,664 at most, and a text is two
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
        first: Selected = (f"k.n + ${len(taken) + 1}::pg_catalog.int8", partial(as_integers, pg="int8"))
        body = f"FROM unnest({arrays}) WITH ORDINALITY AS k ({keys}, n) JOIN {where} ON {on}"
    else:
        name, (key,) = f"t.{quote(taken[0].name)}", taken
        first = _sent_back(name, key, connection, null=False)
        if key.key.joined and key_columns[0].indexed:
            # A subquery: a plan for any keys, if it reads the whole table, would take the text apart for each row.
            body = f"FROM {where} WHERE {name} = ANY ((SELECT {key.parameter(1)})::{key.array})"
        else:
            # An array: for those keys the planner knows that it should hash them.
            key = replace(key, key=replace(key.key, joined=False))
            taken, body = [key], f"FROM {where} WHERE {name} = ANY ({key.parameter(1)})"
    sql, gathered = _statement([first], kept, body, connection)
    return Lookup(
        source=source,
        sql=sql,
        taken=taken,
        kept=kept,
        width=1,
        numbered=numbered,
        gathered=gathered,
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
    first = [_sent_back(f"t.{quote(column.name)}", column, connection, null=True) for column in taken]
    sql, gathered = _statement(first, kept, f"FROM {inner}", connection)
    return Lookup(
        source=source,
        sql=sql,
        taken=taken,
        kept=kept,
        width=len(keys),
        numbered=False,
        gathered=gathered,
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
    given = replace(given, as_text=False, joined=False, exact=returned.exact, same=returned.same)
    if given.types not in ((date,), (datetime,)):
        return given

    def holds(keys: Sequence[Any]) -> bool:
        plain = (key.replace(tzinfo=None) if isinstance(key, datetime) else key for key in keys)
        return given.holds(keys) and _EXTREMES.isdisjoint(plain)

    allowed = f"{given.allowed}, neither the first nor the last that Python knows, which the driver takes for infinity"
    return replace(given, holds=holds, allowed=allowed)


_EXTREMES = {date.min, date.max, datetime.min, datetime.max}


def _sent_back(name: str, column: Taken, connection: Any, *, null: bool) -> Selected:
    """How the key in *column*, which is *name* in SQL, is sent back. A query may return *null* instead of a key."""
    if column.key.types == (str,):
        return f"{name}::pg_catalog.text", _gather_texts(connection)
    if column.pg in INTEGERS and not null:
        return name, partial(as_integers, pg=column.pg)
    return name, as_array


def _gather_texts(connection: Any) -> Callable[[str], Gathered]:
    """How texts come as one; SQL_ASCII does not say what their bytes mean."""
    unknown = getattr(connection.get_settings(), "server_encoding", "SQL_ASCII") == "SQL_ASCII"
    return as_array if unknown else as_texts


def _statement(
    first: Sequence[Selected], kept: Mapping[str, Kept], body: str, connection: Any
) -> tuple[str, list[Gathered]]:
    """Return the SQL that selects the keys, the values, and why one is refused; and how each column comes as one."""
    texts = _gather_texts(connection) if len(kept) < MANY else as_array
    refused = " ".join(f"WHEN {column.refused} THEN {i}" for i, column in enumerate(kept.values(), 1) if column.refused)
    columns: list[Selected] = [
        *first,
        *((column.select, texts if column.is_text else as_array) for column in kept.values()),
        *([(f"CASE {refused} END", as_array)] if refused else []),
    ]
    if any(column.ddl.startswith("array<") for column in kept.values()):  # array_agg() takes arrays of one length only
        return f"SELECT {', '.join(sql for sql, _ in columns)} {body}", []
    gathered = [gather(sql) for sql, gather in columns]
    rows = ", ".join(f"{column.sql} AS c{n}" for n, column in enumerate(gathered))
    one = ", ".join(part.format(f"s.c{n}") for n, column in enumerate(gathered) for part in column.aggregates)
    # OFFSET 0: without it the planner computes a column again for each of its aggregates.
    return f"SELECT {one} FROM (SELECT {rows} {body} OFFSET 0) AS s", gathered  # noqa: S608 - the user's own query


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "(none)"
