"""Names of tables and columns: legal or not, and quoted so that whatever they hold stays a name."""

from __future__ import annotations

from enrichkit.errors import ConfigError

__all__ = ["check_name", "quote", "split_table"]

# NAMEDATALEN - 1. The server silently cuts longer names, and the shorter one may belong to another table:
# https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-IDENTIFIERS
MAX_BYTES = 63

_SYSTEM_SCHEMAS = ("pg_catalog", "information_schema", "pg_toast")


def quote(name: str) -> str:
    """
    Return *name* as a quoted SQL identifier.

    >>> quote('we"ird')
    '"we""ird"'
    """
    return '"' + name.replace('"', '""') + '"'


def check_name(field: str, name: object, what: str) -> str:
    """Return *name* if PostgreSQL can have a *what* of that name; raises `ConfigError` that speaks of *field*."""
    if not isinstance(name, str):
        raise ConfigError(f"PostgresConfig.{field} holds {name!r}; it must be the name of a {what}, a str.")
    if not name:
        raise ConfigError(
            f"PostgresConfig.{field} holds an empty name; it must be the name of a {what}, 1 to {MAX_BYTES} bytes long."
        )
    if "\0" in name or not _is_utf8(name):
        raise ConfigError(
            f"PostgresConfig.{field} holds {name!a}; the name of a {what} cannot hold a NUL or half a surrogate pair. "
            "Remove that character."
        )
    if name == "*":
        hint = "Leave columns empty for all columns but the key." if field == "columns" else "Write its name."
        raise ConfigError(f"PostgresConfig.{field} holds '*'; it must be the name of a {what}. {hint}")
    size = len(name.encode())
    if size > MAX_BYTES:
        raise ConfigError(
            f"PostgresConfig.{field} holds {name[:20] + '...'!r}, {size} bytes long; PostgreSQL cuts names after "
            f"{MAX_BYTES} bytes, so it could mean another {what}. Write the name as the catalog has it."
        )
    return name


def split_table(table: object) -> tuple[str, str]:
    """
    Return (schema, table) of `"table"`, `"schema.table"` or a tuple; raises `ConfigError`.

    A name is everything before or after the dot, as the catalog spells it: case counts and quotes are part of it.

    >>> split_table("app.users"), split_table("users; DROP TABLE users--")
    (('app', 'users'), ('public', 'users; DROP TABLE users--'))
    """
    parts = tuple(table.split(".")) if isinstance(table, str) else table
    if isinstance(parts, tuple) and len(parts) == 1:
        parts = ("public", *parts)
    if not isinstance(parts, tuple) or len(parts) != 2:
        raise ConfigError(
            f"PostgresConfig.table is {table!r}; it must be 'table', 'schema.table', or a tuple (schema, table) "
            "when a name itself holds a dot."
        )
    schema, name = (check_name("table", part, what) for part, what in zip(parts, ("schema", "table"), strict=True))
    if schema in _SYSTEM_SCHEMAS:
        raise ConfigError(
            f"PostgresConfig.table is in the system schema {schema!r}; it must be a table of your own. "
            "To read the catalog, say so in query=."
        )
    return schema, name


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
