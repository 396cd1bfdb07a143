"""The columns of a table or a query, from the catalog of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from enrichkit.sql import no_table

from .pgtypes import PgType

if TYPE_CHECKING:
    from .config import PostgresConfig

__all__ = ["Column", "columns_of_query", "columns_of_table"]


@dataclass(frozen=True, slots=True)
class Column:
    """
    A column of a table or query.

    Attributes:
        name: Name as the catalog spells it.
        type: Type of the column.
        exact: Whether the collation of the column treats texts as equal only if they are identical.
        indexed: Whether a B-tree index begins with the column and covers all rows, i.e. is not partial.
        sql: SQL of the type, with its length or precision; if the type is a domain, the SQL is the name of the domain.
    """

    name: str
    type: PgType
    exact: bool = True
    indexed: bool = False
    sql: str = ""


_TABLE = """
SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""

_TABLES = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
ORDER BY n.nspname <> $1, 1, 2 LIMIT 2000
"""

_COLUMNS = """
SELECT a.attname::text, a.atttypid, a.atttypmod, coalesce(c.collisdeterministic, true), EXISTS (
    SELECT FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid JOIN pg_catalog.pg_am m ON m.oid = x.relam
    WHERE i.indrelid = a.attrelid AND i.indkey[0] = a.attnum AND i.indisvalid AND i.indpred IS NULL
        AND m.amname = 'btree'
), pg_catalog.format_type(a.atttypid, a.atttypmod)
FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

# A domain is replaced by its base type, with the typmod (length or precision) of the domain. The same is done for a
# domain that is the element type of an array.
_TYPES = """
WITH RECURSIVE step (n, oid, typmod) AS (
    SELECT u.n, u.oid, u.typmod
    FROM unnest($1::pg_catalog.oid[], $2::pg_catalog.int4[]) WITH ORDINALITY AS u (oid, typmod, n)
    UNION ALL
    SELECT s.n, t.typbasetype, CASE WHEN s.typmod < 0 THEN t.typtypmod ELSE s.typmod END
    FROM step s JOIN pg_catalog.pg_type t ON t.oid = s.oid WHERE t.typtype = 'd'
), part (n, oid, typmod) AS (
    SELECT s.n, e.oid, s.typmod
    FROM step s JOIN pg_catalog.pg_type t ON t.oid = s.oid
    JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
    UNION ALL
    SELECT p.n, e.typbasetype, CASE WHEN p.typmod < 0 THEN e.typtypmod ELSE p.typmod END
    FROM part p JOIN pg_catalog.pg_type e ON e.oid = p.oid WHERE e.typtype = 'd'
)
SELECT t.typname::text, t.typnamespace = 'pg_catalog'::regnamespace, t.typtype::text, t.typcategory::text,
    coalesce(p.typmod, s.typmod),
    -- format_type alone would write char(n) as "character", which is char(1) and cuts the keys.
    CASE WHEN t.typarray = 0 THEN NULL WHEN t.typnamespace = 'pg_catalog'::regnamespace
        THEN 'pg_catalog.' || pg_catalog.quote_ident(t.typname) || '[]'
        ELSE pg_catalog.format_type(t.typarray, NULL) END,
    (SELECT n.nspname::text FROM pg_catalog.pg_operator o JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
        WHERE o.oprname = '=' AND o.oprleft = t.oid AND o.oprright = t.oid LIMIT 1),
    CASE WHEN e.typnamespace = 'pg_catalog'::regnamespace THEN e.typname::text WHEN e.oid IS NOT NULL THEN '' END,
    e.oid,
    CASE WHEN p.oid <> t.typelem AND e.typnamespace = 'pg_catalog'::regnamespace
        THEN 'pg_catalog.' || pg_catalog.quote_ident(e.typname) || '[]' END
FROM step s JOIN pg_catalog.pg_type t ON t.oid = s.oid
LEFT JOIN (part p JOIN pg_catalog.pg_type e ON e.oid = p.oid AND e.typtype <> 'd') ON p.n = s.n
WHERE t.typtype <> 'd' ORDER BY s.n
"""


async def columns_of_table(connection: Any, config: PostgresConfig) -> dict[str, Column]:
    """Return the columns of a table, view or foreign table by name; raises `FatalError` when the table is missing."""
    schema, table = config.schema_and_table()
    tables = await connection.fetch(_TABLE, schema, table)
    if not tables:
        names = await connection.fetch(_TABLES, schema)
        elsewhere = sorted(where for where, name in names if name == table)
        hint = f" The schema {elsewhere[0]!r} has one: write table='{elsewhere[0]}.{table}'." if elsewhere else ""
        here = [name for where, name in names if where == schema]
        raise no_table(config, table, f"the schema {schema!r}", here, hint)
    rows = await connection.fetch(_COLUMNS, tables[0][0])
    types = await _types(connection, [(oid, typmod) for _, oid, typmod, *_ in rows])
    return {name: Column(name, type_, *flags) for (name, _, _, *flags), type_ in zip(rows, types, strict=True)}


async def columns_of_query(connection: Any, query: str) -> tuple[list[Column], list[PgType | None]]:
    """
    Return the columns of *query*, and for each of its parameters the type of the elements, or None if the parameter is
    no array.
    """
    statement = await connection.prepare(query)
    attributes, parameters = statement.get_attributes(), statement.get_parameters()
    types = await _types(connection, [(part.oid, -1) for part in (*(a.type for a in attributes), *parameters)])
    columns = [Column(a.name, type_) for a, type_ in zip(attributes, types[: len(attributes)], strict=True)]
    elements = [type_.element_oid for type_ in types[len(attributes) :]]
    element_types = iter(await _types(connection, [(oid, -1) for oid in elements if oid is not None]))
    return columns, [None if oid is None else next(element_types) for oid in elements]


async def _types(connection: Any, types: list[tuple[int, int]]) -> list[PgType]:
    if not types:
        return []
    rows = await connection.fetch(_TYPES, [oid for oid, _ in types], [typmod for _, typmod in types])
    return [PgType(*row) for row in rows]
