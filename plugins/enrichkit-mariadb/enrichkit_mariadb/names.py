"""Names of databases, tables and columns: legal or not, and quoted so that whatever they hold stays a name."""

from __future__ import annotations

from enrichkit.errors import ConfigError

__all__ = ["check_name", "quote", "split_table"]

# https://mariadb.com/docs/server/reference/sql-structure/sql-language-structure/identifier-names
MAX_LENGTH = 64

_SYSTEM = ("information_schema", "mysql", "performance_schema", "sys")


def quote(name: str) -> str:
    """
    Return *name* as a quoted SQL identifier, in a statement that takes parameters as `%s`.

    >>> quote("we`ird 100%")
    '`we``ird 100%%`'
    """
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


def check_name(field: str, name: object, what: str) -> str:
    """Return *name* if MariaDB can have a *what* of that name; raises `ConfigError` that speaks of *field*."""
    if not isinstance(name, str):
        raise ConfigError(f"MariadbConfig.{field} holds {name!r}; it must be the name of a {what}, a str.")
    if not 0 < len(name) <= MAX_LENGTH:
        shown = f"{name[:20] + '...'!r}, {len(name)} characters long" if name else "an empty name"
        raise ConfigError(
            f"MariadbConfig.{field} holds {shown}; it must be the name of a {what}, 1 to {MAX_LENGTH} characters long. "
            "Write the name as the server has it."
        )
    # https://mariadb.com/docs/server/reference/sql-structure/sql-language-structure/identifier-names#further-rules
    if any(ord(c) == 0 or ord(c) > 0xFFFF or 0xD800 <= ord(c) < 0xE000 for c in name) or name[-1] == " ":
        raise ConfigError(
            f"MariadbConfig.{field} holds {name!a}; the name of a {what} cannot hold a NUL or a character above "
            "U+FFFF, nor end with a space. Remove that character."
        )
    if name == "*":
        hint = "Leave columns empty for all columns but the key." if field == "columns" else "Write its name."
        raise ConfigError(f"MariadbConfig.{field} holds '*'; it must be the name of a {what}. {hint}")
    return name


def split_table(table: object, database: str | None) -> tuple[str, str]:
    """
    Return (database, table) of `"table"`, `"database.table"` or a tuple; raises `ConfigError`.

    A name is everything before or after the dot, as the server spells it: case counts and quotes are part of it.

    Args:
        table: What the user gave.
        database: That of the URL, for a table without one.

    >>> split_table("shop.users", None), split_table("users; DROP TABLE users--", "shop")
    (('shop', 'users'), ('shop', 'users; DROP TABLE users--'))
    """
    parts = tuple(table.split(".")) if isinstance(table, str) else table
    if isinstance(parts, tuple) and len(parts) == 1:
        if database is None:
            raise ConfigError(
                f"MariadbConfig.table is {table!r} and the url names no database; one of them must name it. Write "
                "table='database.table', or end the url with the database."
            )
        parts = (database, *parts)
    if not isinstance(parts, tuple) or len(parts) != 2:
        raise ConfigError(
            f"MariadbConfig.table is {table!r}; it must be 'table', 'database.table', or a tuple (database, table) "
            "when a name itself holds a dot."
        )
    where, name = (check_name("table", part, what) for part, what in zip(parts, ("database", "table"), strict=True))
    if where.lower() in _SYSTEM:
        raise ConfigError(
            f"MariadbConfig.table is in the system database {where!r}; it must be a table of your own. Make a view in "
            "a database of yours to read it."
        )
    return where, name
