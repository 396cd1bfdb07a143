"""
The statement that writes rows, and the check that the table gives back what was written.

    INSERT INTO `shop`.`users` (`id`, `name`) VALUES (7, 'a'), (8, 'b')
    ON DUPLICATE KEY UPDATE `name` = VALUES(`name`)

The update also happens for a duplicate in another unique index of the table, and for a different key that the collation
treats as equal. In both cases, the statement changes the row of another key. The check then finds no row of the written
key, and the transaction is rolled back.
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from enrichkit.errors import FatalError, PermanentError
from enrichkit.sql import check_stored, rows_of

from .columns import quote

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from enrichkit.plugin import Key, Value

    from .config import MariadbConfig
    from .statement import Statement

    Fetch = Callable[..., Awaitable[Sequence[Sequence[Any]]]]

__all__ = ["Writer", "make_writer"]

# In these three statements, names are compared as bytes, see `catalog.py`.
_TABLE = """
SELECT t.TABLE_TYPE, t.ENGINE, e.TRANSACTIONS
FROM information_schema.TABLES AS t LEFT JOIN information_schema.ENGINES AS e ON e.ENGINE = t.ENGINE
WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME = %s
    AND BINARY t.TABLE_SCHEMA = BINARY %s AND BINARY t.TABLE_NAME = BINARY %s
"""
_INDEXES = """
SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND BINARY TABLE_SCHEMA = BINARY %s AND BINARY TABLE_NAME = BINARY %s
    AND NON_UNIQUE = 0
"""
_NULLABLE = """
SELECT IS_NULLABLE FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND BINARY TABLE_SCHEMA = BINARY %s AND BINARY TABLE_NAME = BINARY %s
    AND BINARY COLUMN_NAME = BINARY %s
"""

# Numbers of the errors that say that a value is out of range, too long, or not of the type of its column.
# https://mariadb.com/docs/server/reference/error-codes
_UNFIT = {1264, 1265, 1292, 1366, 1406, 1411}


async def make_writer(fetch: Fetch, config: MariadbConfig, statement: Statement) -> Writer:
    """
    Return the writer for the table of *config*; raises `FatalError` if the server's catalog shows that values cannot be
    written to it.
    """
    database, table = config.database_and_table()
    names, source = (database, table, database, table), statement.source
    [(kind, engine, transactions)] = await fetch(_TABLE, *names)
    if kind != "BASE TABLE":
        raise FatalError(
            f"MariadbConfig.writable is True, and {source} is a view; values can only be written to a table. Name the "
            "table."
        )
    if transactions != "YES":
        raise FatalError(
            f"MariadbConfig.writable is True, and {source} has the engine {engine}, which has no transactions: what a "
            "write changes could not be undone. Use a table of the engine InnoDB."
        )
    indexes: dict[str, set[str | None]] = {}
    for index, column, prefix in await fetch(_INDEXES, *names):
        # None stands for a column of which only a prefix is indexed.
        indexes.setdefault(index, set()).add(column if prefix is None else None)
    if set(config.key_columns) not in indexes.values():
        columns = ", ".join(map(quote, config.key_columns))
        make = f"CREATE UNIQUE INDEX {quote(f'{table}_by_key'[:64])} ON {statement.table} ({columns})"
        raise source.not_unique(make.replace("%%", "%"))
    [(nullable,)] = [("YES",)] if config.expires is None else await fetch(_NULLABLE, *names, config.expires)
    return Writer(config, statement, keeps=nullable == "YES")


class Writer:
    """
    The writer of rows to one table.

    Args:
        config: Config of the source.
        statement: The statement that looks keys up.
        keeps: Whether rows that never expire can be written, i.e. whether the column that `MariadbConfig.expires` names
            can be NULL.

    Attributes:
        statement: The *statement*.
    """

    def __init__(self, config: MariadbConfig, statement: Statement, *, keeps: bool) -> None:
        self.statement = statement
        self._keys, self._expires, self._keeps = config.key_columns, config.expires, keeps

    async def write(self, fetch: Fetch, values: Mapping[Key, Value], ttl: float | None, timeout: float) -> None:
        """
        Write *values* in the transaction of a session, and check what the table gives back.

        Args:
            fetch: Function that executes a statement in the session. The caller commits the transaction, or rolls it
                back after an error.
            values: One or more values by key.
            ttl: Seconds after which the values expire; None: never.
            timeout: Seconds after which the server stops a statement.

        Raises:
            PermanentError: A key or a value cannot be written, or the table gives back a different one.
            FatalError: *ttl* is None and the column that `MariadbConfig.expires` names cannot be NULL, or keys have too
                many or too few parts.
        """
        statement, source = self.statement, self.statement.source
        if ttl is None and not self._keeps:
            raise FatalError(
                f"MariadbConfig.expires names the column {self._expires!r} of {source}, which cannot be NULL, and "
                "values without a ttl are to be kept for ever. Let the column be NULL, or set ttl in tiers(...)."
            )
        request = statement.request(list(values))
        for failure in request.answers.values():
            raise failure.error
        rows = rows_of(values, list(statement.types), source)
        names = list(next(iter(rows.values())))
        # All workers write in the same order, so that two workers that write the same keys cannot deadlock.
        literals = sorted(
            (
                (
                    *map(_literal, source.parts_of(key)),
                    *(self._literal(name, row[name]) for name in names),
                )
                for key, row in rows.items()
            ),
            key=lambda row: tuple(map(str, row[: len(self._keys)])),
        )
        try:
            for some in self._packets(literals, self.statement.room(self._insert(names, [], ttl)[0])):
                sql, arguments = self._insert(names, some, ttl)
                await fetch(sql, timeout, *arguments)
        except Exception as error:
            number = error.args[0] if error.args else None
            if number not in _UNFIT:
                raise
            written = ", ".join(f"{name!r} {statement.types[name]}" for name in names)
            raise PermanentError(
                f"Nothing was written to {source}: a value does not fit its column, error {number}. The columns are "
                f"{written}. Give them types that hold each value of the source, or name other columns in "
                "MariadbConfig.columns."
            ) from None
        answers = await fetch(statement.sql_of_all, timeout, request.offset, request.document)
        check_stored(source, rows, statement.read(answers, request, many=False), statement.types)

    def _insert(
        self, names: Sequence[str], literals: Sequence[Sequence[Any]], ttl: float | None
    ) -> tuple[str, list[Any]]:
        """Return the INSERT for the rows *literals*, and its arguments."""
        targets = [*self._keys, *names]
        row = ", ".join(["%s"] * len(targets))
        if self._expires is not None:
            targets.append(self._expires)
            # If the number of microseconds is NULL, so is the sum, and the row never expires.
            row += ", UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND"
            literals = [(*each, None if ttl is None else round(ttl * 1e6)) for each in literals]
        columns = ", ".join(map(quote, targets))
        update = ", ".join(f"{quote(name)} = VALUES({quote(name)})" for name in targets[len(self._keys) :])
        sql = (
            f"SET STATEMENT max_statement_time = %s FOR INSERT INTO {self.statement.table} ({columns}) "  # noqa: S608 - quoted names
            f"VALUES {', '.join([f'({row})'] * len(literals))} ON DUPLICATE KEY UPDATE {update}"
        )
        return sql, [literal for each in literals for literal in each]

    def _packets(self, literals: Sequence[Sequence[Any]], room: int) -> Iterator[Sequence[Sequence[Any]]]:
        """Yield the rows in groups of at most *room* bytes each; raises `PermanentError` for a row that is larger."""
        some: list[Sequence[Any]] = []
        size = 0
        for row in literals:
            # asyncmy may escape every byte, which doubles the size. The quotes and the comma of a value take less than
            # 30 bytes; the brackets of the row and the expiry take less than 60.
            texts = [each if isinstance(each, bytes) else str(each).encode() for each in row]
            more = 2 * sum(map(len, texts)) + 30 * (len(row) + 2)
            if more > room:
                most = self.statement.max_packet
                raise PermanentError(
                    f"A row may need a statement of {more + most - room} bytes; the server takes {most} bytes at once. "
                    "Raise max_allowed_packet of the server."
                )
            if size + more > room:
                yield some
                some, size = [], 0
            some.append(row)
            size += more
        yield some

    def _literal(self, name: str, value: Any) -> Any:
        try:
            return _literal(value)
        # A time in the first or last hours of the calendar may be out of range after its conversion to UTC.
        except (ValueError, OverflowError):
            raise self.statement.source.changed(name, self.statement.types[name]) from None


def _literal(value: Any) -> int | float | str | bytes | None:
    """Return *value* as an object that asyncmy can write as a literal; raises ValueError if there is none."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, int):
        return int(value)  # a bool is written as 0 or 1, as MariaDB stores it
    if isinstance(value, str):
        value.encode()  # half a surrogate pair raises UnicodeEncodeError, a ValueError
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dt.datetime):
        return str(value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None))
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    raise ValueError
