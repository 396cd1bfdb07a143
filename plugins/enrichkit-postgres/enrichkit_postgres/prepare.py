"""The SQL of a source: one SELECT over a table, or one SELECT around the user's query."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from enrichkit.errors import FatalError, TransientError
from enrichkit.sql import Source, quote, subquery

from .aggregates import INTEGERS, Aggregate, as_array, as_integers, as_texts
from .catalog import Column, columns_of_query, columns_of_table
from .listing import Listing
from .pgtypes import KeyColumn, KeyType, ValueColumn, equality, key_type, value_column
from .statement import Statement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .config import PostgresConfig

    SelectedColumn: TypeAlias = tuple[str, Callable[[str], Aggregate]]
    """The SQL of a column, and the function that returns its aggregate."""

__all__ = ["prepare"]

# With this number of value columns or more, texts are sent as arrays, because a SELECT can have at most 1,664 columns,
# and the aggregate `as_texts` needs two of them for each column of texts.
MANY = 800
_LOOKED_UP = "booleans, numbers, strings, uuid, bytea, dates, timestamps and enums"


async def prepare(connection: Any, config: PostgresConfig) -> Statement:
    """Return the statement for *config*; raises `FatalError` if the server's catalog shows that the config is wrong."""
    make = _table_statement if config.table is not None else _query_statement
    statement = await make(connection, config)
    statement.source.check_fields(statement.names)
    # The statement is executed once without keys. This execution finds no rows, but raises errors that only an
    # execution finds, such as missing privileges.
    await statement.fetch(connection, statement.request([]))
    return statement


async def _table_statement(connection: Any, config: PostgresConfig) -> Statement:
    schema, table = config.schema_and_table()
    source = Source(config, f"the table {schema}.{table}")
    columns = await columns_of_table(connection, config)
    key_columns, value_columns = source.choose(columns)
    serves = _serves(source, columns)
    keys = [_key_column(column, source) for column in key_columns]
    values = {column.name: value_column(column.type, f"t.{quote(column.name)}") for column in value_columns}
    from_table = f"{quote(schema)}.{quote(table)} AS t"
    listing = Listing(from_table, keys, serves)
    numbered = len(keys) > 1 or not keys[0].type.exact
    if numbered:
        arrays = ", ".join(column.parameter(i) for i, column in enumerate(keys, 1))
        names = ", ".join(f"k{i}" for i in range(1, len(keys) + 1))
        on = " AND ".join(f"t.{quote(column.name)} {column.equals} k.k{i}" for i, column in enumerate(keys, 1))
        first: SelectedColumn = (f"k.n + ${len(keys) + 1}::pg_catalog.int8", partial(as_integers, type_name="int8"))
        body = f"FROM unnest({arrays}) WITH ORDINALITY AS k ({names}, n) JOIN {from_table} ON {on}{serves}"
    else:
        name, (key,) = f"t.{quote(keys[0].name)}", keys
        first = _returned_key(name, key, connection, null=False)
        if key.type.joined and key_columns[0].indexed:
            # The keys come as one text. Without the subquery, a generic plan that reads the whole table would split the
            # text again for each row.
            body = f"FROM {from_table} WHERE {name} = ANY ((SELECT {key.parameter(1)})::{key.array}){serves}"
        else:
            # The keys are sent as an array, so that the planner sees the elements and can decide to hash them.
            key = replace(key, type=replace(key.type, joined=False))
            keys, body = [key], f"FROM {from_table} WHERE {name} = ANY ({key.parameter(1)}){serves}"
    sql, aggregates = _select([first], values, body, connection, len(keys) + numbered)
    return Statement(
        source=source,
        sql=sql,
        keys=keys,
        values=values,
        width=1,
        numbered=numbered,
        aggregates=aggregates,
        foreign_row=lambda: TransientError(
            f"A row of {source} came back that was not asked for; the connection was closed."
        ),
        listing=listing,
    )


def _serves(source: Source, columns: Mapping[str, Column]) -> str:
    """Return SQL that begins with `AND` and is true for rows that have not expired; empty if rows never expire."""
    expiry = source.expiry(columns)
    if expiry is None:
        return ""
    if expiry.type.name != "timestamptz" or not expiry.type.builtin:
        raise source.not_a_time(expiry.type.name, "timestamptz")
    name = f"t.{quote(expiry.name)}"
    return f" AND ({name} IS NULL OR {name} > pg_catalog.now())"


async def _query_statement(connection: Any, config: PostgresConfig) -> Statement:
    from_query = f"{subquery(config.query or '')} AS t"
    columns, parameters = await columns_of_query(connection, f"SELECT * FROM {from_query}")  # noqa: S608 - the user's own query
    _check_columns(config, [column.name for column in columns], len(parameters))
    source = Source(config, "the query")
    width = len(config.key_columns)
    keys = []
    for number, (column, element) in enumerate(zip(columns, parameters, strict=False), 1):
        returned = _key_column(column, source)
        sent = None if element is None else key_type(element)
        if element is None or sent is None or sent.types != returned.type.types:
            raise FatalError(
                f"PostgresConfig.query takes ${number} as another type than an array of its key column "
                f"{column.name!r}, which is {column.type.name}. Write ${number}::{column.type.name}[] in the query."
            )
        keys.append(replace(returned, type=_encoded_by_driver(sent, returned.type), array=element.array or ""))
    values = {column.name: value_column(column.type, f"t.{quote(column.name)}") for column in columns[width:]}
    first = [_returned_key(f"t.{quote(column.name)}", column, connection, null=True) for column in keys]
    sql, aggregates = _select(first, values, f"FROM {from_query}", connection, len(keys))
    return Statement(
        source=source,
        sql=sql,
        keys=keys,
        values=values,
        width=width,
        numbered=False,
        aggregates=aggregates,
        foreign_row=lambda: FatalError(
            f"PostgresConfig.query returned a key in {_listed(config.key_columns)} that it was not asked for. "
            "It must return the keys as they were given, for example by joining the table to unnest($1)."
        ),
    )


def _check_columns(config: PostgresConfig, names: Sequence[str], parameters: int) -> None:
    """Check the names of the columns that a query returns, and the number of its parameters; raises `FatalError`."""
    keys = config.key_columns
    if tuple(names[: len(keys)]) != keys or len(names) == len(keys) or len(set(names)) < len(names):
        raise FatalError(
            f"PostgresConfig.query returns the columns {_listed(names)}; they must be the key columns "
            f"{_listed(keys)}, then one or more value columns, all with different names. Rename them with AS, or name "
            "the key in PostgresConfig.key."
        )
    if parameters != len(keys):
        raise FatalError(
            f"PostgresConfig.query has {parameters} parameters; it must have {len(keys)}, one array of keys for "
            "each key column."
        )


def _key_column(column: Column, source: Source) -> KeyColumn:
    type_ = key_type(column.type, exact_collation=column.exact)
    if type_ is None or column.type.array is None:
        raise source.not_a_key(column.name, column.type.name, _LOOKED_UP)
    return KeyColumn(column.name, column.type.name, type_, column.type.array, equality(column.type))


def _encoded_by_driver(sent: KeyType, returned: KeyType) -> KeyType:
    """
    Return the `KeyType` for the keys of a user's query. asyncpg sends these keys in its own encoding and not as text,
    because the query declares the types of its parameters.

    Args:
        sent: Type of one key in the array that is the parameter.
        returned: Type of the key column that the query returns.
    """
    sent = replace(sent, as_text=False, joined=False, exact=returned.exact, returned_as=returned.returned_as)
    if sent.types not in ((date,), (datetime,)):
        return sent

    def holds(keys: Sequence[Any]) -> bool:
        plain = (key.replace(tzinfo=None) if isinstance(key, datetime) else key for key in keys)
        return sent.holds(keys) and _EXTREMES.isdisjoint(plain)

    allowed = f"{sent.allowed}, neither the first nor the last that Python knows, which the driver takes for infinity"
    return replace(sent, holds=holds, allowed=allowed)


_EXTREMES = {date.min, date.max, datetime.min, datetime.max}


def _returned_key(name: str, column: KeyColumn, connection: Any, *, null: bool) -> SelectedColumn:
    """
    Return the SQL that selects the key column, and the function that returns its aggregate.

    Args:
        name: SQL of the column.
        column: The key column.
        connection: Connection to the server.
        null: Whether the column can be NULL: True for a query, because a query can return NULL as a key.
    """
    if column.type.types == (str,):
        return f"{name}::pg_catalog.text", _text_aggregate(connection)
    if column.type_name in INTEGERS and not null:
        return name, partial(as_integers, type_name=column.type_name)
    return name, as_array


def _text_aggregate(connection: Any) -> Callable[[str], Aggregate]:
    """
    Return the function that makes the aggregate of a column of texts. This is `as_texts`, except in a database with the
    encoding SQL_ASCII, whose texts may have any encoding; there it is `as_array`.
    """
    unknown = getattr(connection.get_settings(), "server_encoding", "SQL_ASCII") == "SQL_ASCII"
    return as_array if unknown else as_texts


def _select(
    first: Sequence[SelectedColumn], values: Mapping[str, ValueColumn], body: str, connection: Any, parameters: int
) -> tuple[str, list[Aggregate]]:
    """
    Return the SQL of the statement, and a list with the aggregate of each column; the list is empty if the statement
    returns plain rows.

    The statement selects the key columns *first*, then the *values*. If some value column can have values that Spark
    cannot hold, one more column follows. For each row, this column holds the number of the first value column with such
    a value, or NULL if there is no such value. The last column repeats the number of the call. This number is one more
    parameter, after the *parameters* parameters of *body*. A statement that returns plain rows has a column `mark`
    before this last column, see `Statement.fetch`.
    """
    number = f"${parameters + 1}::pg_catalog.int8"
    texts = _text_aggregate(connection) if len(values) < MANY else as_array
    refused = " ".join(
        f"WHEN {column.refused} THEN {i}" for i, column in enumerate(values.values(), 1) if column.refused
    )
    columns: list[SelectedColumn] = [
        *first,
        *((column.select, texts if column.is_text else as_array) for column in values.values()),
        *([(f"CASE {refused} END", as_array)] if refused else []),
    ]
    if any(
        column.ddl.startswith("array<") for column in values.values()
    ):  # array_agg() of an array column needs arrays of equal length, so the statement returns plain rows
        rows = ", ".join(f"{sql} AS c{n}" for n, (sql, _) in enumerate(columns))
        return (
            f"SELECT s.*, o.number FROM (SELECT {number} AS number) AS o "  # noqa: S608 - the user's own query
            f"LEFT JOIN (SELECT {rows}, true AS mark {body}) AS s ON true"
        ), []
    aggregates = [aggregate(sql) for sql, aggregate in columns]
    rows = ", ".join(f"{aggregate.sql} AS c{n}" for n, aggregate in enumerate(aggregates))
    functions = ", ".join(
        function.format(f"s.c{n}") for n, aggregate in enumerate(aggregates) for function in aggregate.functions
    )
    # OFFSET 0 keeps the planner from merging the subquery into the outer SELECT; otherwise each aggregate would compute
    # its column again.
    return f"SELECT {functions}, {number} FROM (SELECT {rows} {body} OFFSET 0) AS s", aggregates  # noqa: S608 - the user's own query


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "(none)"
