"""Tables as tiers on a real server: rows whose time is over, and what `store_many` writes and refuses."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import re
import time
from bisect import bisect
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_mariadb import MariadbConfig, MariadbConnector

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError
from enrichkit.plugin import Call
from enrichkit.testing import open_connector

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

    from .conftest import Ask

    Sql = Callable[[str], str]

# The first test starts the server, which takes long on a busy machine.
pytestmark = [pytest.mark.service, pytest.mark.apt]


def with_connector(config: MariadbConfig, use: Callable[[MariadbConnector], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with open_connector(config) as connector:
            return await use(connector)

    return asyncio.run(run())


def lookup(config: MariadbConfig, keys: Sequence[Any]) -> dict[Any, Any]:
    async def use(connector: MariadbConnector) -> dict[Any, Any]:
        return dict(await connector.fetch_many(keys, Call(timeout=10.0)))

    found: dict[Any, Any] = with_connector(config, use)
    return found


def listed(config: MariadbConfig, *kinds: type) -> list[Any]:
    async def use(connector: MariadbConnector) -> list[Any]:
        return [key async for page in connector.scan(kinds, 2) for key in page]

    found: list[Any] = with_connector(config, use)
    return found


def store(config: MariadbConfig, *writes: Mapping[Any, Any], ttl: float | None = None) -> None:
    async def use(connector: MariadbConnector) -> None:
        for values in writes:
            await connector.store_many(values, ttl)

    with_connector(config, use)


def refusal(config: MariadbConfig, values: Mapping[Any, Any], ttl: float | None = None) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        store(config, values, ttl=ttl)
    return caught.value


# Rows whose time is over ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ["timestamp(6) NULL", "datetime", "datetime(6)"])
def test_a_row_whose_time_is_over_is_absent(sql: Sql, url: str, type_: str) -> None:
    sql(f"CREATE TABLE kept (id int, `un%til` {type_}, name text)")
    sql(
        "SET time_zone = '+00:00'; INSERT INTO kept VALUES (0, UTC_TIMESTAMP() - INTERVAL 1 SECOND, 'old'), "
        "(1, UTC_TIMESTAMP() + INTERVAL 1 HOUR, 'new'), (2, NULL, 'for ever'), "
        "(2, UTC_TIMESTAMP() - INTERVAL 1 SECOND, 'another row')"
    )
    config = MariadbConfig(url=url, table="kept", expires="un%til")
    assert lookup(config, [0, 1, 2]) == {1: "new", 2: "for ever"}
    assert listed(config, int) == [1, 2]


def test_the_column_of_the_time_must_be_a_time(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE kept (id int, until int, name text)")
    assert str(ask.failure(url, table="kept", expires="until")) == (
        f"MariadbConfig.expires names the column 'until' of the table {url.rpartition('/')[2]}.kept, which has the "
        "type int(11); it must be timestamp(6), or datetime(6) in UTC. Name another column, or change the type of this "
        "one."
    )


# What is written ----------------------------------------------------------------------------------------------------


@pytest.fixture
def users(sql: Sql, url: str) -> MariadbConfig:
    """A table with a column that the config does not name."""
    sql("CREATE TABLE users (id int PRIMARY KEY, name text, `ti%er` int, note varchar(9) DEFAULT 'new')")
    sql("INSERT INTO users VALUES (1, 'one', 1, 'kept'), (2, 'two', 2, 'kept')")
    return MariadbConfig(url=url, table="users", columns=("name", "ti%er"), writable=True)


def test_rows_are_inserted_or_replaced_and_other_columns_stay(sql: Sql, users: MariadbConfig) -> None:
    store(users, {2: {"name": "zwei", "ti%er": None}, 3: {"name": "it's \\ 100% %s", "ti%er": 3}})
    assert sql("SELECT * FROM users ORDER BY id").splitlines() == [
        "1\tone\t1\tkept",
        "2\tzwei\tNULL\tkept",
        "3\tit's \\\\ 100% %s\t3\tnew",
    ]
    assert lookup(users, [3])[3] == {"name": "it's \\ 100% %s", "ti%er": 3}
    store(users, {2: {"ti%er": 7}})
    assert sql("SELECT * FROM users WHERE id = 2") == "2\tzwei\t7\tkept"


VALUES: list[tuple[str, Any]] = [
    ("tinyint", -128),
    ("bigint unsigned", 2**64 - 1),
    ("boolean", 1),
    ("bit(1)", True),
    ("bit(9)", 511),
    ("year", 2024),
    ("float", 0.5),
    ("double", 0.1),
    ("decimal(10,2)", Decimal("12345678.90")),
    ("decimal(20,10)", Decimal("1E-10")),
    ("varchar(3)", "a\U0001f600c"),
    ("text", "\N{SNOWMAN} \\ ' \" % %s \0"),
    ("json", '{"b":1, "a": [1.10]}'),
    ("enum('so, so', 'well')", "so, so"),
    ("uuid", "00000000-0000-0000-0000-00000000000a"),
    ("blob", b"\x00\xff\\'%"),
    ("date", dt.date(999, 12, 31)),
    ("datetime(6)", dt.datetime(2024, 2, 29, 23, 59, 59, 999999)),
    ("timestamp(6) NULL", dt.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=dt.timezone(dt.timedelta(hours=-5.5)))),
]


def test_each_type_comes_back_as_it_was(sql: Sql, url: str) -> None:
    columns = ", ".join(f"c{n} {type_}" for n, (type_, _) in enumerate(VALUES))
    sql(f"CREATE TABLE every (id varchar(9) PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
    config = MariadbConfig(url=url, table="every", writable=True)
    value = {f"c{n}": value for n, (_, value) in enumerate(VALUES)}
    store(config, {"a": value, "b": dict.fromkeys(value), "c": value})
    assert lookup(config, ["a", "b", "c"]) == {"a": value, "b": dict.fromkeys(value), "c": value}


@pytest.mark.parametrize(
    ("type_", "key"),
    [
        ("bigint unsigned", 2**64 - 1),
        ("decimal(5,2)", Decimal("1.50")),
        ("varbinary(9)", b"\x00\xff'%"),
        ("double", 0.1),
        ("date", dt.date(2024, 2, 29)),
        ("datetime(6)", dt.datetime(2024, 2, 29, 1, 2, 3, 4)),
        ("timestamp(6)", dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=dt.UTC)),
        ("uuid", "0000000000000000000000000000000A"),
        ("enum('x', 'y')", "y"),
    ],
)
def test_each_type_of_key_is_written(sql: Sql, url: str, type_: str, key: Any) -> None:
    sql(f"CREATE TABLE kept (id {type_} PRIMARY KEY, name text)")
    config = MariadbConfig(url=url, table="kept", writable=True)
    store(config, {key: "one"}, {key: "two"})
    assert lookup(config, [key]) == {key: "two"}
    assert sql("SELECT count(*) FROM kept") == "1"


CHANGED: list[tuple[str, Any, int | None]] = [
    ("decimal(4,1)", Decimal("1.25"), None),
    ("float", 0.1, None),
    ("datetime", dt.datetime(2024, 1, 1, 0, 0, 0, 500000), None),
    ("datetime(6)", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None),
    ("char(5)", "ab ", None),
    ("binary(3)", b"ab", None),
    ("uuid", "00000000-0000-0000-0000-00000000000A", None),
    ("int", "7", None),
    ("double", math.nan, None),
    ("text", "secret\ud800", None),
    ("text", ["secret"], None),
    ("timestamp(6) NULL", dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), None),
    ("varchar(3)", "secret", 1406),
    ("tinyint", 128, 1264),
    ("int", "secret", 1366),
    ("varchar(9) CHARACTER SET latin1", "\N{SNOWMAN}", 1366),
    ("enum('x', 'y')", "z", 1265),
    ("date", "2024-02-30", 1292),
]


@pytest.mark.parametrize(("type_", "value", "number"), CHANGED, ids=[str(n) for n in range(len(CHANGED))])
def test_a_value_that_would_come_back_as_another_is_not_written(
    sql: Sql, url: str, type_: str, value: Any, number: int | None
) -> None:
    sql(f"CREATE TABLE kept (id int PRIMARY KEY, v {type_})")
    error = refusal(MariadbConfig(url=url, table="kept", writable=True), {1: None, 2: value, 3: None})
    assert type(error) is PermanentError
    table = f"the table {url.rpartition('/')[2]}.kept"
    full = sql(
        "SELECT COLUMN_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND COLUMN_NAME = 'v'"
    )
    if number is None:
        assert str(error) == (
            f"Nothing was written to {table}: its column 'v', of the type {full}, would not give a value back as it "
            "is, because it rounds, cuts, pads or changes it. Give the column a type that holds each value of the "
            "source, or name other columns in MariadbConfig.columns."
        )
    else:
        assert str(error) == (
            f"Nothing was written to {table}: a value does not fit its column, error {number}. The columns are 'v' "
            f"{full}. Give them types that hold each value of the source, or name other columns in "
            "MariadbConfig.columns."
        )
    assert sql("SELECT count(*) FROM kept") == "0", "the other rows of the call are not written either"


@pytest.mark.parametrize("other", ["A", "a ", "\N{LATIN SMALL LETTER A WITH ACUTE}"])
def test_a_key_that_the_collation_finds_equal_takes_no_row_of_another(sql: Sql, url: str, other: str) -> None:
    sql("CREATE TABLE kept (id varchar(9) COLLATE utf8mb4_general_ci PRIMARY KEY, name text)")
    config = MariadbConfig(url=url, table="kept", writable=True)
    store(config, {"a": "one"})
    assert str(refusal(config, {other: "two", "b": "three"})) == (
        f"Nothing was written to the table {url.rpartition('/')[2]}.kept: a row that was written is not found by its "
        "key. Look for a trigger or a rule that changes or hides rows, and for keys that the table holds in another "
        "spelling."
    )
    assert sql("SELECT * FROM kept") == "a\tone"


def test_another_unique_index_takes_no_row_of_another_key(sql: Sql, url: str) -> None:
    sql("CREATE TABLE kept (id int PRIMARY KEY, name varchar(9) UNIQUE)")
    config = MariadbConfig(url=url, table="kept", writable=True)
    store(config, {1: "one"})
    assert type(refusal(config, {2: "one"})) is PermanentError
    assert sql("SELECT * FROM kept") == "1\tone"


def test_a_key_that_the_column_cannot_hold_and_a_column_without_a_default_are_told(sql: Sql, url: str) -> None:
    sql("CREATE TABLE kept (id int PRIMARY KEY, name text, due int NOT NULL)")
    config = MariadbConfig(url=url, table="kept", columns=("name",), writable=True)
    assert str(refusal(config, {"1": "a"})) == (
        f"The key was not sent: the key column 'id' of the table {url.rpartition('/')[2]}.kept is int(11) and was "
        "given a value of the type str; it takes int from -2147483648 to 2147483647. Cast or filter the key in Spark."
    )
    error = refusal(config, {1: "a"})
    assert type(error) is PermanentError
    assert str(error).endswith(
        "says: error 1364. A column that is neither in MariadbConfig.key nor in columns needs a default value."
    )


@pytest.fixture
def packet(sql: Sql) -> Iterator[int]:
    """Bytes that the server takes at once: few, because a write has 4.5 s, also on a busy machine."""
    before = sql("SELECT @@GLOBAL.max_allowed_packet")
    sql(f"SET GLOBAL max_allowed_packet = {2**20}")
    yield 2**20
    sql(f"SET GLOBAL max_allowed_packet = {before}")


def test_values_that_are_too_long_for_one_statement_are_written_in_several(sql: Sql, url: str, packet: int) -> None:
    sql("CREATE TABLE kept (id int PRIMARY KEY, name longtext)")
    config = MariadbConfig(url=url, table="kept", writable=True)
    values = {n: chr(97 + n) * (packet // 5) for n in range(3)}
    store(config, values)
    assert lookup(config, [0, 1, 2]) == values
    message = str(refusal(config, {5: "short", 6: "'" * (packet // 2)}))
    assert message.startswith("A row may need a statement of ")
    assert message.endswith(f" bytes; the server takes {packet} bytes at once. Raise max_allowed_packet of the server.")
    assert lookup(config, [5, 6]) == {}


def test_a_value_beside_long_names_is_written_or_refused_before_the_server_hangs_up(
    sql: Sql, url: str, packet: int
) -> None:
    others = [f"{n:02}{'€' * 62}" for n in range(99)]  # the longest names; a character takes three bytes
    sql(f"CREATE TABLE kept (id int PRIMARY KEY, name longtext, {', '.join(f'`{name}` int' for name in others)})")
    config = MariadbConfig(url=url, table="kept", writable=True)

    def row(length: int) -> dict[int, dict[str, str | None]]:
        return {1: {"name": "'" * length, **dict.fromkeys(others)}}

    def is_refused(length: int) -> bool:
        try:
            store(config, row(length))
        except PermanentError:
            return True
        return False

    most = bisect(range(packet), False, key=is_refused) - 1
    assert packet * 0.4 < most < packet * 0.5
    told = re.fullmatch(
        rf"A row may need a statement of (\d+) bytes; the server takes {packet} bytes at once. "
        r"Raise max_allowed_packet of the server\.",
        str(refusal(config, row(most + 1))),
    )
    assert told is not None
    assert packet < int(told[1]) < packet + 10
    store(config, row(most))
    assert lookup(config, [1])[1]["name"] == "'" * most


# When it may write --------------------------------------------------------------------------------------------------


def test_a_config_that_does_not_let_it_write_says_so(sql: Sql, users: MariadbConfig) -> None:
    closed = MariadbConfig(url=users.url, table="users", columns=("name",))
    assert MariadbConnector(users).cannot_store == ""
    assert str(refusal(closed, {1: "x"})) == "MariadbConfig.writable is False; set it to True if the table may change."
    assert str(refusal(users, {1: {"name": "x"}}, ttl=1.0)) == (
        "Values were to be forgotten after 1 s, and MariadbConfig.expires names no column for that time. Name one, or "
        "leave ttl out."
    )
    assert sql("SELECT name FROM users WHERE id = 1") == "one"


@pytest.mark.parametrize("index", ["INDEX (`the%id`)", "UNIQUE (`the%id`, name)", "UNIQUE (name)"])
def test_a_table_without_a_unique_index_of_the_keys_is_refused_until_it_has_one(sql: Sql, url: str, index: str) -> None:
    sql(f"CREATE TABLE kept (`the%id` int, name varchar(9), {index})")
    database = url.rpartition("/")[2]
    statement = f"CREATE UNIQUE INDEX `kept_by_key` ON `{database}`.`kept` (`the%id`)"

    async def use(connector: MariadbConnector) -> None:
        with pytest.raises(FatalError) as caught:
            await connector.store_many({1: "a"}, None)
        assert str(caught.value) == (
            f"MariadbConfig.writable is True, and the table {database}.kept has no unique index over exactly the "
            "columns of MariadbConfig.key, 'the%id', by which a write finds the row that it replaces. Make one: "
            f"{statement}"
        )
        sql(statement)
        await connector.store_many({1: "a"}, None)

    with_connector(MariadbConfig(url=url, table="kept", key="the%id", writable=True), use)
    assert sql("SELECT * FROM kept") == "1\ta"


def test_an_index_of_a_prefix_is_no_index_of_the_key(sql: Sql, url: str) -> None:
    sql("CREATE TABLE kept (id varchar(9), name text, UNIQUE (id(3)))")
    config = MariadbConfig(url=url, table="kept", writable=True)
    assert "has no unique index over exactly the columns" in str(refusal(config, {"a": "b"}))


def test_a_view_and_a_table_without_transactions_are_refused(sql: Sql, users: MariadbConfig) -> None:
    database = users.url.rpartition("/")[2]
    sql("CREATE VIEW seen AS SELECT * FROM users")
    sql("CREATE TABLE plain (id int PRIMARY KEY, name text) ENGINE = MyISAM")
    assert str(refusal(MariadbConfig(url=users.url, table="seen", columns=("name",), writable=True), {1: "a"})) == (
        f"MariadbConfig.writable is True, and the table {database}.seen is a view; values can only be written to a "
        "table. Name the table."
    )
    assert str(refusal(MariadbConfig(url=users.url, table="plain", writable=True), {1: "a"})) == (
        f"MariadbConfig.writable is True, and the table {database}.plain has the engine MyISAM, which has no "
        "transactions: what a write changes could not be undone. Use a table of the engine InnoDB."
    )


def test_a_user_that_may_only_read_is_told_what_it_needs(sql: Sql, users: MariadbConfig) -> None:
    database = users.url.rpartition("/")[2]
    user = f"reader_{database}"[:32]
    sql(f"CREATE USER {user}; GRANT SELECT ON {database}.users TO {user}")
    address = users.url.partition("@")[2]
    config = MariadbConfig(url=f"mariadb://{user}@{address}", table="users", columns=("name",), writable=True)
    assert lookup(config, [1]) == {1: "one"}
    error = refusal(config, {1: "eins"})
    assert type(error) is FatalError
    assert str(error).endswith(
        "Grant SELECT on the table to this user, and INSERT and UPDATE if MariadbConfig.writable is True."
    )
    assert sql("SELECT name FROM users WHERE id = 1") == "one"


def test_lookups_stay_read_only(sql: Sql, users: MariadbConfig) -> None:
    database = users.url.rpartition("/")[2]

    async def use(connector: MariadbConnector) -> None:
        await connector.store_many({1: {"ti%er": 5}}, None)
        with pytest.raises(FatalError, match=r"error 1792\."):
            await connector.opened()[0].run(
                lambda session, timeout: session.fetch(f"DELETE FROM {database}.users"), 5.0
            )

    with_connector(users, use)
    assert sql("SELECT `ti%er` FROM users ORDER BY id").split() == ["5", "2"]


# Time -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ["timestamp(6) NULL", "datetime(6)", "datetime"])
def test_a_written_row_serves_for_its_time(sql: Sql, url: str, type_: str) -> None:
    sql(f"CREATE TABLE kept (id int PRIMARY KEY, `until` {type_}, name text)")
    config = MariadbConfig(url=url, table="kept", expires="until", writable=True)
    assert MariadbConnector(config).stores_ttl
    store(config, {1: "a", 2: "b"}, ttl=3600.0)
    store(config, {2: "c"})
    left = "TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), `until`) BETWEEN 3500 AND 3600"
    assert sql(f"SET time_zone = '+00:00'; SELECT {left} FROM kept ORDER BY id").split() == ["1", "NULL"]
    store(config, {1: "d"}, ttl=0.001)
    time.sleep(0.01)
    assert lookup(config, [1, 2]) == {2: "c"}
    store(config, {1: "e"}, ttl=3600.0)
    assert lookup(config, [1, 2]) == {1: "e", 2: "c"}


def test_a_column_of_the_time_that_cannot_be_null_needs_a_ttl(sql: Sql, url: str) -> None:
    sql("CREATE TABLE kept (id int PRIMARY KEY, `until` timestamp(6) NOT NULL DEFAULT '2000-01-01', name text)")
    config = MariadbConfig(url=url, table="kept", expires="until", writable=True)
    store(config, {1: "a"}, ttl=3600.0)
    assert str(refusal(config, {2: "b"})) == (
        f"MariadbConfig.expires names the column 'until' of the table {url.rpartition('/')[2]}.kept, which cannot be "
        "NULL, and values without a ttl are to be kept for ever. Let the column be NULL, or set ttl in tiers(...)."
    )
    assert lookup(config, [1, 2]) == {1: "a"}


# Several at once ------------------------------------------------------------------------------------------------------


def test_two_writers_of_the_same_keys_wait_for_each_other(sql: Sql, url: str) -> None:
    """Each group is written as a whole, and none of them ends in a deadlock."""
    sql("CREATE TABLE kept (id int PRIMARY KEY, name text)")
    config = MariadbConfig(url=url, table="kept", writable=True)
    keys = list(range(200))

    async def run() -> None:
        async with open_connector(config) as one, open_connector(config) as two:
            for round_ in range(10):
                if round_ % 3 == 0:
                    await asyncio.to_thread(sql, "DELETE FROM kept")
                await asyncio.gather(
                    one.store_many(dict.fromkeys(keys, "one"), None),
                    two.store_many(dict.fromkeys(keys[::-1], "two"), None),
                    one.store_many(dict.fromkeys(keys[100:] + keys[:100], "three"), None),
                    two.store_many(dict.fromkeys(keys, "four"), None),
                )
                found = dict(await one.fetch_many(keys, Call(timeout=10.0)))
                assert len(found) == 200
                assert len(set(found.values())) == 1

    asyncio.run(run())


def test_a_row_that_another_session_holds_is_a_transient_error(sql: Sql, users: MariadbConfig) -> None:
    class Hurried(MariadbConnector):
        write_timeout = 0.3

    database = users.url.rpartition("/")[2]

    async def run() -> None:
        async with open_connector(users) as holder:
            connector = Hurried(users)
            await connector.open()
            held, done = asyncio.Event(), asyncio.Event()

            async def hold(session: Any, timeout: float) -> None:
                await session.fetch("START TRANSACTION")
                await session.fetch(f"UPDATE {database}.users SET `ti%%er` = 9 WHERE id = 1")
                held.set()
                await done.wait()
                await session.fetch("COMMIT")

            await holder.store_many({2: {"name": "zwei"}}, None)
            holding = asyncio.create_task(holder.opened_to_write(None)[0].run(hold, 20.0))
            await asyncio.wait_for(held.wait(), 10.0)
            with pytest.raises(TransientError):
                await connector.store_many({1: {"ti%er": 5}}, None)
            done.set()
            await holding
            await connector.store_many({2: {"ti%er": 5}}, None)
            await connector.close()

    asyncio.run(run())
    assert sql("SELECT `ti%er` FROM users ORDER BY id").split() == ["9", "5"]
