"""Tables as tiers in a real file: rows whose time is over, and what `store_many` writes and refuses."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import sqlite3
import time
from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_sqlite import SqliteConfig, SqliteConnector, database

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError
from enrichkit.plugin import Call
from enrichkit.testing import open_connector

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Path of an empty file."""
    file = tmp_path / "kept.db"
    file.touch()
    return str(file)


def sql(path: str, statement: str, *arguments: Any) -> list[Any]:
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(statement, arguments).fetchall()


def with_connector(config: SqliteConfig, use: Callable[[SqliteConnector], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with open_connector(config) as connector:
            return await use(connector)

    return asyncio.run(run())


def lookup(config: SqliteConfig, keys: Sequence[Any]) -> dict[Any, Any]:
    async def use(connector: SqliteConnector) -> dict[Any, Any]:
        return dict(await connector.fetch_many(keys, Call(timeout=10.0)))

    found: dict[Any, Any] = with_connector(config, use)
    return found


def listed(config: SqliteConfig, *kinds: type) -> list[Any]:
    async def use(connector: SqliteConnector) -> list[Any]:
        return [key async for page in connector.scan(kinds, 2) for key in page]

    found: list[Any] = with_connector(config, use)
    return found


def store(config: SqliteConfig, *writes: Mapping[Any, Any], ttl: float | None = None) -> None:
    async def use(connector: SqliteConnector) -> None:
        for values in writes:
            await connector.store_many(values, ttl)

    with_connector(config, use)


def refusal(config: SqliteConfig, values: Mapping[Any, Any], ttl: float | None = None) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        store(config, values, ttl=ttl)
    return caught.value


# Rows whose time is over ------------------------------------------------------------------------------------------


def test_a_row_whose_time_is_over_is_absent(path: str) -> None:
    sql(path, "CREATE TABLE kept (id INTEGER, until REAL, name TEXT)")
    now = time.time()
    rows = [(0, now - 1.0, "old"), (1, now + 3600.0, "new"), (2, None, "for ever"), (2, now - 1.0, "another row")]
    for row in rows:
        sql(path, "INSERT INTO kept VALUES (?, ?, ?)", *row)
    config = SqliteConfig(path=path, table="kept", expires="until")
    assert lookup(config, [0, 1, 2]) == {1: "new", 2: "for ever"}
    assert listed(config, int) == [1, 2]


def test_the_column_of_the_time_must_be_a_time(path: str) -> None:
    sql(path, "CREATE TABLE kept (id INTEGER, until TEXT, name TEXT)")
    with pytest.raises(FatalError) as caught:
        lookup(SqliteConfig(path=path, table="kept", expires="until"), [1])
    assert str(caught.value) == (
        "SqliteConfig.expires names the column 'until' of the table 'kept', which has the type 'TEXT'; it must be "
        "REAL, with seconds since 1970. Name another column, or change the type of this one."
    )


# What is written ----------------------------------------------------------------------------------------------------


@pytest.fixture
def users(path: str) -> SqliteConfig:
    """A table with a column that the config does not name."""
    sql(path, "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT, tier INTEGER, note TEXT DEFAULT 'new')")
    sql(path, "INSERT INTO users VALUES (1, 'one', 1, 'kept'), (2, 'two', 2, 'kept')")
    return SqliteConfig(path=path, table="users", columns=("name", "tier"), writable=True)


def test_rows_are_inserted_or_replaced_and_other_columns_stay(users: SqliteConfig) -> None:
    store(users, {2: {"name": "zwei", "tier": None}, 3: {"name": "it's ?1", "tier": 3}})
    rows = [(1, "one", 1, "kept"), (2, "zwei", None, "kept"), (3, "it's ?1", 3, "new")]
    assert sql(users.path, "SELECT * FROM users ORDER BY id") == rows
    store(users, {2: {"tier": 7}})
    assert sql(users.path, "SELECT * FROM users WHERE id = 2") == [(2, "zwei", 7, "kept")]


VALUES: list[tuple[str, str, Any, Any]] = [
    ("INTEGER", "bigint", -(2**63), "-9223372036854775808"),
    ("INT", "smallint", 7, "7"),
    ("BOOLEAN", "boolean", True, "1"),
    ("REAL", "double", 0.1, "0.1"),
    ("REAL", "double", 7.0, "7.0"),
    ("NUMERIC", "double", 7.0, "7"),
    ("TEXT", "string", "\N{SNOWMAN} '", "\N{SNOWMAN} '"),
    ("TEXT", "string", "7", "7"),
    ("BLOB", "binary", b"\x00\xff", b"\x00\xff"),
    ("TEXT", "decimal(20,10)", Decimal("1E-10"), "0.0000000001"),
    ("DECIMAL(10,2)", "decimal(10,2)", Decimal("7.00"), "7"),
    ("TEXT", "date", dt.date(999, 12, 31), "0999-12-31"),
    ("TEXT", "timestamp_ntz", dt.datetime(2024, 2, 29, 1, 2, 3, 4), "2024-02-29T01:02:03.000004"),
    ("TEXT", "timestamp", dt.datetime(2024, 2, 29, tzinfo=dt.UTC), "2024-02-29T00:00:00+00:00"),
    ("TEXT", "array<string>", ["a", None, '"'], '["a", null, "\\""]'),
    ("TEXT", "struct<a:int,b:double>", {"a": 1, "b": 0.5}, '{"a": 1, "b": 0.5}'),
    ("TEXT", "struct<a:boolean,b:boolean>", {"a": True, "b": None}, '{"a": true, "b": null}'),
    ("", "string", "7", "7"),
]


@pytest.mark.parametrize(("declared", "returns", "value", "text"), VALUES)
def test_each_type_comes_back_as_it_was(path: str, declared: str, returns: str, value: Any, text: Any) -> None:
    sql(path, f"CREATE TABLE kept (id TEXT PRIMARY KEY, v {declared})")
    config = SqliteConfig(path=path, table="kept", returns=returns, writable=True)
    store(config, {"a": value, "b": None})
    found = lookup(config, ["a", "b"])
    assert found == {"a": text, "b": None}
    store(config, {"c": found["a"]})  # what `fetch_many` returns is taken, too
    assert lookup(config, ["c"]) == {"c": text}


CHANGED: list[tuple[str, str, Any]] = [
    ("REAL", "double", math.nan),
    ("REAL", "double", math.inf),
    ("INTEGER", "bigint", 2**63),
    ("INTEGER", "string", "12"),
    ("NUMERIC", "decimal(10,2)", Decimal("1.25")),
    ("TEXT", "bigint", 7),
    ("TEXT", "string", "secret\ud800"),
    ("TEXT", "array<double>", [math.nan]),
    ("TEXT", "array<binary>", [b"a"]),
    ("TEXT", "array<string>", ["secret\ud800"]),
    ("TEXT", "map<int,int>", {1: 2}),
    ("TEXT", "string", dt.timedelta(1)),
]


@pytest.mark.parametrize(("declared", "returns", "value"), CHANGED)
def test_a_value_that_would_come_back_as_another_is_not_written(
    path: str, declared: str, returns: str, value: Any
) -> None:
    sql(path, f"CREATE TABLE kept (id INTEGER PRIMARY KEY, v {declared})")
    error = refusal(SqliteConfig(path=path, table="kept", returns=returns, writable=True), {1: None, 2: value, 3: None})
    assert type(error) is PermanentError
    start = "Nothing was written to the table 'kept': "
    assert str(error) == (
        f"{start}its column 'v', of the type {declared}, would not give a value back as it is, because it rounds, "
        "cuts, pads or changes it. Give the column a type that holds each value of the source, or name other columns "
        "in SqliteConfig.columns."
    ) or (
        str(error).startswith(f"{start}The column 'v' of the table 'kept' holds a value of the storage class ")
        and str(error).endswith(". Correct the row, or declare another type with returns=.")
    )
    assert sql(path, "SELECT count(*) FROM kept") == [(0,)], "the other rows of the call are not written either"


def test_a_key_that_the_table_holds_in_another_form_is_not_written(path: str) -> None:
    sql(path, "CREATE TABLE kept (id NUMERIC UNIQUE, name TEXT)")
    assert str(refusal(SqliteConfig(path=path, table="kept", writable=True), {"12": "a"})) == (
        "Nothing was written to the table 'kept': a row that was written is not found by its key. Look for a trigger "
        "or a rule that changes or hides rows, and for keys that the table holds in another spelling."
    )
    assert sql(path, "SELECT count(*) FROM kept") == [(0,)]


def test_a_key_that_the_column_cannot_hold_is_refused(users: SqliteConfig) -> None:
    assert str(refusal(users, {"1": {"tier": 1}})) == (
        "The key was not sent: the key column 'id' of the table 'users' is INTEGER and was given a value of the type "
        "str; it takes int. Cast or filter the key in Spark."
    )


def test_a_constraint_that_refuses_a_row_is_told(path: str) -> None:
    sql(path, "CREATE TABLE kept (id INTEGER PRIMARY KEY, name TEXT, due TEXT NOT NULL)")
    config = SqliteConfig(path=path, table="kept", columns=("name",), writable=True)
    error = refusal(config, {1: "secret"})
    assert type(error) is PermanentError
    assert str(error) == (
        f"SQLite cannot write {path} (SQLITE_CONSTRAINT_NOTNULL). A constraint of the table refuses a row: look for "
        "columns that may not be NULL, and for checks."
    )


# When it may write --------------------------------------------------------------------------------------------------


def test_a_config_that_does_not_let_it_write_says_so(users: SqliteConfig) -> None:
    closed = SqliteConfig(path=users.path, table="users", columns=("tier",))
    assert SqliteConnector(users).cannot_store == ""
    assert str(refusal(closed, {1: 5})) == "SqliteConfig.writable is False; set it to True if the table may change."
    query = SqliteConfig(path=users.path, query="SELECT tier FROM users WHERE id = ?1", returns="int", writable=True)
    assert str(refusal(query, {1: 5})) == "SqliteConfig.query takes no values; name a table."
    assert str(refusal(users, {1: {"tier": 5}}, ttl=1.0)) == (
        "Values were to be forgotten after 1 s, and SqliteConfig.expires names no column for that time. Name one, or "
        "leave ttl out."
    )
    assert sql(users.path, "SELECT tier FROM users WHERE id = 1") == [(1,)]


@pytest.mark.parametrize(
    "index",
    [
        'CREATE INDEX kept_id ON kept ("the id")',
        'CREATE UNIQUE INDEX both ON kept ("the id", name)',
        'CREATE UNIQUE INDEX some ON kept ("the id") WHERE name > 0',
    ],
)
def test_a_table_without_a_unique_index_of_the_keys_is_refused_until_it_has_one(path: str, index: str) -> None:
    sql(path, 'CREATE TABLE kept ("the id" INTEGER, name TEXT)')
    sql(path, index)
    statement = 'CREATE UNIQUE INDEX "kept_by_key" ON "kept" ("the id")'

    async def use(connector: SqliteConnector) -> None:
        with pytest.raises(FatalError) as caught:
            await connector.store_many({1: "a"}, None)
        assert str(caught.value) == (
            "SqliteConfig.writable is True, and the table 'kept' has no unique index over exactly the columns of "
            f"SqliteConfig.key, 'the id', by which a write finds the row that it replaces. Make one: {statement}"
        )
        sql(path, statement)
        await connector.store_many({1: "a"}, None)

    with_connector(SqliteConfig(path=path, table="kept", key="the id", writable=True), use)
    assert sql(path, "SELECT * FROM kept") == [(1, "a")]


def test_a_view_and_a_key_column_that_is_not_exact_are_refused(users: SqliteConfig) -> None:
    sql(users.path, "CREATE VIEW seen AS SELECT * FROM users")
    sql(users.path, "CREATE TABLE lax (id TEXT COLLATE NOCASE PRIMARY KEY, name TEXT)")
    assert str(refusal(SqliteConfig(path=users.path, table="seen", columns=("tier",), writable=True), {1: 1})) == (
        "SqliteConfig.writable is True, and the table 'seen' is a view; values can only be written to a table. Name "
        "the table."
    )
    assert str(refusal(SqliteConfig(path=users.path, table="lax", writable=True), {"a": "b"})) == (
        "SqliteConfig.writable is True, and the key column 'id' of the table 'lax' has the type TEXT, which finds "
        "texts equal that are not the same: the value of one key would be given to another. Write to a table whose "
        "key column compares exactly."
    )


def test_an_index_that_finds_other_texts_equal_replaces_no_row(path: str) -> None:
    sql(path, "CREATE TABLE kept (id TEXT, name TEXT)")
    sql(path, "CREATE UNIQUE INDEX lax ON kept (id COLLATE NOCASE)")
    config = SqliteConfig(path=path, table="kept", writable=True)
    with pytest.raises(ConnectorError):
        store(config, {"a": "one"}, {"A": "two"})
    assert sql(path, "SELECT * FROM kept WHERE name = 'two'") == []


def test_lookups_stay_read_only(users: SqliteConfig) -> None:
    async def use(connector: SqliteConnector) -> None:
        await connector.store_many({1: {"tier": 5}}, None)
        with pytest.raises(FatalError) as caught:
            await connector.opened()[0].run(lambda connection: connection.execute("DELETE FROM users"))
        assert str(caught.value) == (
            f"SQLite cannot read {users.path} (SQLITE_READONLY): attempt to write a readonly database. The user of the "
            "Spark worker must be able to write to it, and to its folder."
        )

    with_connector(users, use)
    assert sql(users.path, "SELECT tier FROM users ORDER BY id") == [(5,), (2,)]


# Time -----------------------------------------------------------------------------------------------------------------


def test_a_written_row_serves_for_its_time(path: str) -> None:
    sql(path, "CREATE TABLE kept (id INTEGER PRIMARY KEY, until REAL, name TEXT)")
    config = SqliteConfig(path=path, table="kept", expires="until", writable=True)
    assert SqliteConnector(config).stores_ttl
    before = time.time()
    store(config, {1: "a", 2: "b"}, ttl=3600.0)
    store(config, {2: "c"})
    [(first,), (second,)] = sql(path, "SELECT until FROM kept ORDER BY id")
    assert before + 3600.0 <= first <= time.time() + 3600.0
    assert second is None
    store(config, {1: "d"}, ttl=1e-6)
    time.sleep(0.01)
    assert lookup(config, [1, 2]) == {2: "c"}
    store(config, {1: "e"}, ttl=3600.0)
    assert lookup(config, [1, 2]) == {1: "e", 2: "c"}


# Several at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_two_writers_of_the_same_keys_wait_for_each_other(path: str, mode: str) -> None:
    """Each group is written as a whole."""
    sql(path, f"PRAGMA journal_mode = {mode}")
    sql(path, "CREATE TABLE kept (id INTEGER PRIMARY KEY, name TEXT)")
    config = SqliteConfig(path=path, table="kept", writable=True)
    keys = list(range(200))

    async def run() -> None:
        async with open_connector(config) as one, open_connector(config) as two:
            for _ in range(5):
                await asyncio.gather(
                    one.store_many(dict.fromkeys(keys, "one"), None),
                    two.store_many(dict.fromkeys(keys[::-1], "two"), None),
                    one.store_many(dict.fromkeys(keys[::-1], "three"), None),
                    two.store_many(dict.fromkeys(keys, "four"), None),
                )
                found = dict(await one.fetch_many(keys, Call(timeout=10.0)))
                assert len(found) == 200
                assert len(set(found.values())) == 1

    asyncio.run(run())


def test_a_locked_file_is_a_transient_error_after_a_bounded_wait(
    users: SqliteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WRITE_BUSY_TIMEOUT", 0.05)

    async def use(connector: SqliteConnector) -> str:
        with closing(sqlite3.connect(users.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(TransientError) as caught:
                await connector.store_many({1: {"tier": 5}}, None)
            other.execute("ROLLBACK")
        await connector.store_many({2: {"tier": 5}}, None)
        return str(caught.value)

    assert with_connector(users, use) == (
        f"SQLite cannot write {users.path} (SQLITE_BUSY): database is locked. Another process writes to it; in WAL "
        "mode readers would not have to wait."
    )
    assert sql(users.path, "SELECT tier FROM users ORDER BY id") == [(1,), (5,)]


def test_a_write_behind_others_is_a_transient_error_after_its_time(users: SqliteConfig) -> None:
    class Hurried(SqliteConnector):
        write_timeout = 0.1

    async def run() -> str:
        connector = Hurried(users)
        await connector.open()
        with closing(sqlite3.connect(users.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            errors = await asyncio.gather(
                *(connector.store_many({1: {"tier": n}}, None) for n in range(3)), return_exceptions=True
            )
            other.execute("ROLLBACK")
        await connector.close()
        assert {type(error) for error in errors} == {TransientError}
        assert len({str(error) for error in errors}) == 1
        return str(errors[0])

    assert asyncio.run(run()) == (
        f"SQLite has not written to {users.path} within 0.1 s, while other writes were before it."
    )
    assert sql(users.path, "SELECT tier FROM users WHERE id = 1") == [(1,)]


def test_a_cancelled_write_writes_nothing_and_leaves_the_connector_usable(users: SqliteConfig) -> None:
    async def use(connector: SqliteConnector) -> None:
        with closing(sqlite3.connect(users.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            write = asyncio.create_task(connector.store_many({1: {"tier": 5}}, None))
            await asyncio.sleep(0.02)
            write.cancel()
            with pytest.raises(asyncio.CancelledError):
                await write
            other.execute("ROLLBACK")
        await connector.store_many({2: {"tier": 6}}, None)

    with_connector(users, use)
    assert sql(users.path, "SELECT tier FROM users ORDER BY id") == [(1,), (6,)]
