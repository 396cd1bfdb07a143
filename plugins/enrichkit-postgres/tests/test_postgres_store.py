"""Tables as tiers on a real server: rows whose time is over, and what `store_many` writes and refuses."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import time
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import pytest
from enrichkit_postgres import PostgresConfig, PostgresConnector

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError
from enrichkit.plugin import Call
from enrichkit.testing import fault_proxy, open_connector
from tests.pace import at_pace

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from enrichkit import local
    from enrichkit.testing.proxy import FaultProxy

    Sql = Callable[[str], str]

pytestmark = [pytest.mark.service, pytest.mark.slow]


@pytest.fixture
def sql(postgres_server: local.PostgresServer, postgres_dsn: str) -> Sql:
    """The function that runs statements in the database of this test."""
    return lambda text: postgres_server.execute(text, postgres_dsn.rpartition("/")[2])


def with_connector(config: PostgresConfig, use: Callable[[PostgresConnector], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with open_connector(config) as connector:
            return await use(connector)

    return asyncio.run(run())


def lookup(config: PostgresConfig, keys: Sequence[Any]) -> dict[Any, Any]:
    async def use(connector: PostgresConnector) -> dict[Any, Any]:
        return dict(await connector.fetch_many(keys, Call(timeout=10.0)))

    found: dict[Any, Any] = with_connector(config, use)
    return found


def listed(config: PostgresConfig, *kinds: type) -> list[Any]:
    async def use(connector: PostgresConnector) -> list[Any]:
        return [key async for page in connector.scan(kinds, 2) for key in page]

    found: list[Any] = with_connector(config, use)
    return found


def store(config: PostgresConfig, *writes: Mapping[Any, Any], ttl: float | None = None) -> None:
    async def use(connector: PostgresConnector) -> None:
        for values in writes:
            await connector.store_many(values, ttl)

    with_connector(config, use)


def refusal(config: PostgresConfig, values: Mapping[Any, Any], ttl: float | None = None) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        store(config, values, ttl=ttl)
    return caught.value


# Rows whose time is over ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["int", "bigint", "text", "uuid"])
def test_a_row_whose_time_is_over_is_absent(sql: Sql, postgres_dsn: str, key: str) -> None:
    ids: list[Any] = [f"00000000-0000-0000-0000-00000000000{n}" for n in range(3)] if key == "uuid" else list(range(3))
    if key == "text":
        ids = list(map(str, ids))
    sql(
        f"CREATE TABLE kept (id {key}, until timestamptz, name text);"
        f"INSERT INTO kept VALUES ('{ids[0]}', now() - interval '1 s', 'old'), ('{ids[1]}', now() + '1 h', 'new'),"
        f" ('{ids[2]}', NULL, 'for ever'), ('{ids[2]}', now() - interval '1 s', 'another row');"
    )
    config = PostgresConfig(dsn=postgres_dsn, table="kept", expires="until")
    assert lookup(config, ids) == {ids[1]: "new", ids[2]: "for ever"}
    assert sorted(listed(config, type(ids[0]))) == ids[1:]
    sql("CREATE INDEX ON kept (id)")
    assert lookup(config, ids) == {ids[1]: "new", ids[2]: "for ever"}


def test_a_row_with_two_key_columns_ends_with_its_time(sql: Sql, postgres_dsn: str) -> None:
    sql(
        'CREATE TABLE kept (a int, b text, "the ""end""" timestamptz, name text);'
        "INSERT INTO kept VALUES (1, 'x', now() - interval '1 s', 'old'), (1, 'y', now() + '1 h', 'new')"
    )
    config = PostgresConfig(dsn=postgres_dsn, table="kept", key=("a", "b"), expires='the "end"')
    assert lookup(config, [(1, "x"), (1, "y")]) == {(1, "y"): "new"}
    assert listed(config, int, str) == [(1, "y")]


def test_the_column_of_the_time_must_be_a_time(sql: Sql, postgres_dsn: str) -> None:
    sql("CREATE TABLE kept (id int, until timestamp, name text)")
    with pytest.raises(FatalError) as caught:
        lookup(PostgresConfig(dsn=postgres_dsn, table="kept", expires="until"), [1])
    assert str(caught.value) == (
        "PostgresConfig.expires names the column 'until' of the table public.kept, which has the type timestamp; it "
        "must be timestamptz. Name another column, or change the type of this one."
    )


# What is written ----------------------------------------------------------------------------------------------------


@pytest.fixture
def users(sql: Sql, postgres_dsn: str) -> PostgresConfig:
    """A table with a column that the config does not name."""
    sql(
        "CREATE TABLE users (id int PRIMARY KEY, name text, tier int, note text DEFAULT 'new');"
        "INSERT INTO users VALUES (1, 'one', 1, 'kept'), (2, 'two', 2, 'kept')"
    )
    return PostgresConfig(dsn=postgres_dsn, table="users", columns=("name", "tier"), writable=True)


def test_rows_are_inserted_or_replaced_and_other_columns_stay(sql: Sql, users: PostgresConfig) -> None:
    store(users, {2: {"name": "zwei", "tier": None}, 3: {"name": "it's \\ 100% $1", "tier": 3}})
    assert sql("SELECT * FROM users ORDER BY id").splitlines() == [
        "1|one|1|kept",
        "2|zwei||kept",
        "3|it's \\ 100% $1|3|new",
    ]
    assert lookup(users, [2, 3])[3] == {"name": "it's \\ 100% $1", "tier": 3}
    store(users, {2: {"tier": 7}})
    assert sql("SELECT * FROM users WHERE id = 2") == "2|zwei|7|kept", "a value may have some of the columns"


VALUES = {
    "boolean": True,
    "smallint": -(2**15),
    "bigint": 2**63 - 1,
    "real": 0.5,
    "double precision": 0.1,
    "numeric(10, 2)": Decimal("12345678.90"),
    "numeric": Decimal("1e-10"),
    "text": "\N{SNOWMAN} \\ ' \" {}",
    "varchar(3)": "abc",
    "uuid": "00000000-0000-0000-0000-00000000000a",
    "json": '{"b":1, "a": [1.10]}',
    "jsonb": '{"b":1, "a": [1.10]}',
    "bytea": b"\x00\xff\\",
    "date": dt.date(999, 12, 31),
    "timestamp": dt.datetime(2024, 2, 29, 23, 59, 59, 999999),
    "timestamptz": dt.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=dt.timezone(dt.timedelta(hours=-5.5))),
    "mood": "so, so",
    "positive": 7,
    "text[]": ["a", None, '{"}', ""],
    "numeric(4, 1)[]": [Decimal("1.5"), Decimal(2)],
    "timestamptz[]": [dt.datetime(2024, 2, 29, tzinfo=dt.UTC)],
    "bytea[]": [b"\x00"],
}


def test_each_type_comes_back_as_it_was(sql: Sql, postgres_dsn: str) -> None:
    sql("CREATE TYPE mood AS ENUM ('so, so', 'well'); CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
    columns = ", ".join(f"c{n} {type_}" for n, type_ in enumerate(VALUES))
    sql(f"CREATE TABLE every (id text PRIMARY KEY, {columns})")
    config = PostgresConfig(dsn=postgres_dsn, table="every", writable=True)
    value = {f"c{n}": value for n, value in enumerate(VALUES.values())}
    store(config, {"a": value, "b": dict.fromkeys(value), "c": value})
    found = lookup(config, ["a", "b", "c"])
    assert found["b"] == dict.fromkeys(value)
    assert found["a"] == found["c"] == value | {f"c{list(VALUES).index('jsonb')}": '{"a": [1.10], "b": 1}'}
    store(PostgresConfig(dsn=postgres_dsn, table="every", columns=("c4",), writable=True), {"n": math.nan})
    assert sql("SELECT c4 FROM every WHERE id = 'n'") == "NaN"


CHANGED = [
    ("numeric(4,1)", Decimal("1.25"), "numeric(4,1)"),
    ("varchar(3)", "abcd", "character varying(3)"),
    ("char(3)", "ab", "character(3)"),
    ("real", 0.1, "real"),
    ("timestamp(0)", dt.datetime(2024, 1, 1, 0, 0, 0, 500000), "timestamp(0) without time zone"),
    ("timestamp", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "timestamp without time zone"),
    ("uuid", "00000000-0000-0000-0000-00000000000A", "uuid"),
    ("inet", "10.0.0.1", "inet"),
    ("jsonb", '{"a": 1, "a": 2, "b": 1.0}x', None),
    ("text", "secret\0", "text"),
    ("text", "secret\ud800", "text"),
    ("text", dt.timedelta(1), "text"),
    ("text", 7, "text"),
    ("text[]", ["a", "b\0"], "text[]"),
    ("smallint", 2**15, None),
    ("int", "seven", None),
    ("int[]", 7, None),
]


@pytest.mark.parametrize(("type_", "value", "shown"), CHANGED, ids=[str(n) for n in range(len(CHANGED))])
def test_a_value_that_would_come_back_as_another_is_not_written(
    sql: Sql, postgres_dsn: str, type_: str, value: Any, shown: str | None
) -> None:
    sql(f"CREATE TABLE kept (id int PRIMARY KEY, v {type_}, name text)")
    error = refusal(
        PostgresConfig(dsn=postgres_dsn, table="kept", writable=True), {1: {"v": None}, 2: {"v": value}, 3: {"v": None}}
    )
    assert type(error) is PermanentError
    if shown is None:
        assert str(error).startswith(
            "Nothing was written to the table public.kept: a value is none of the type of its column, "
        )
        assert str(error).endswith(
            ". Give them types that hold each value of the source, or name other columns in PostgresConfig.columns."
        )
        assert " The columns are 'v' " in str(error)
    else:
        assert str(error) == (
            f"Nothing was written to the table public.kept: its column 'v', of the type {shown}, would not give a "
            "value back as it is, because it rounds, cuts, pads or changes it. Give the column a type that holds each "
            "value of the source, or name other columns in PostgresConfig.columns."
        )
    assert sql("SELECT count(*) FROM kept") == "0", "the other rows of the call are not written either"


def test_a_value_out_of_range_names_the_types(sql: Sql, postgres_dsn: str) -> None:
    sql("CREATE TABLE kept (id int PRIMARY KEY, v numeric(3,1))")
    config = PostgresConfig(dsn=postgres_dsn, table="kept", writable=True)
    assert str(refusal(config, {1: Decimal(12345)})) == (
        "Nothing was written to the table public.kept: a value is none of the type of its column, "
        "NumericValueOutOfRangeError, SQLSTATE 22003. The columns are 'v' numeric(3,1). Give them types that hold "
        "each value of the source, or name other columns in PostgresConfig.columns."
    )


def test_a_row_that_a_trigger_hides_is_told(sql: Sql, users: PostgresConfig) -> None:
    sql(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER t BEFORE INSERT ON users FOR EACH ROW EXECUTE FUNCTION nothing()"
    )
    assert str(refusal(users, {5: {"name": "five", "tier": 5}})) == (
        "Nothing was written to the table public.users: a row that was written is not found by its key. Look for a "
        "trigger or a rule that changes or hides rows, and for keys that the table holds in another spelling."
    )


def test_a_value_of_another_form_is_refused(users: PostgresConfig) -> None:
    end = (
        "; all values of a call must be mappings with the same names, which must be value columns of the table "
        "public.users: 'name', 'tier'."
    )
    for values, what in (
        ({1: {"name": "a"}, 2: {"name": "a", "tier": 1}}, "a mapping with the fields 'name', 'tier'"),
        ({1: {"nome": "a"}}, "a mapping with the fields 'nome'"),
        ({1: "a"}, "str"),
    ):
        assert str(refusal(users, values)) == f"A value to write is {what}{end}"


def test_a_key_that_the_column_cannot_hold_is_refused(users: PostgresConfig) -> None:
    assert str(refusal(users, {"1": {"tier": 1}})) == (
        "The key was not sent: the key column 'id' of the table public.users is int4 and was given a value of the type "
        "str; it takes int from -2147483648 to 2147483647. Cast or filter the key in Spark."
    )


# When it may write --------------------------------------------------------------------------------------------------


def test_a_config_that_does_not_let_it_write_says_so(sql: Sql, users: PostgresConfig) -> None:
    closed = PostgresConfig(dsn=users.dsn, table="users", columns=("tier",))
    assert PostgresConnector(users).cannot_store == ""
    assert str(refusal(closed, {1: 5})) == "PostgresConfig.writable is False; set it to True if the table may change."
    query = PostgresConfig(dsn=users.dsn, query="SELECT id, tier FROM users WHERE id = ANY($1)", writable=True)
    assert str(refusal(query, {1: 5})) == "PostgresConfig.query takes no values; name a table."
    assert str(refusal(users, {1: {"tier": 5}}, ttl=1.0)) == (
        "Values were to be forgotten after 1 s, and PostgresConfig.expires names no column for that time. Name one, or "
        "leave ttl out."
    )
    assert sql("SELECT tier FROM users WHERE id = 1") == "1"


@pytest.mark.parametrize(
    "index",
    [
        "CREATE INDEX ON kept (id)",
        "CREATE UNIQUE INDEX ON kept (id, name)",
        "CREATE UNIQUE INDEX ON kept (id) WHERE id > 0",
        "CREATE UNIQUE INDEX ON kept ((id + 1))",
    ],
)
def test_a_table_without_a_unique_index_of_the_keys_is_refused_until_it_has_one(
    sql: Sql, postgres_dsn: str, index: str
) -> None:
    sql(f"CREATE TABLE kept (id int NOT NULL, name text); {index}")
    config = PostgresConfig(dsn=postgres_dsn, table="kept", writable=True)
    error = refusal(config, {1: "a"})
    assert type(error) is FatalError
    statement = 'CREATE UNIQUE INDEX ON "public"."kept" ("id")'
    assert str(error) == (
        "PostgresConfig.writable is True, and the table public.kept has no unique index over exactly the columns of "
        f"PostgresConfig.key, 'id', by which a write finds the row that it replaces. Make one: {statement}"
    )

    async def use(connector: PostgresConnector) -> None:
        with pytest.raises(FatalError):
            await connector.store_many({1: "a"}, None)
        sql(statement)
        await connector.store_many({1: "a"}, None)

    with_connector(config, use)
    assert sql("SELECT * FROM kept") == "1|a"


def test_the_index_may_have_the_key_columns_in_another_order(sql: Sql, postgres_dsn: str) -> None:
    sql("CREATE TABLE kept (a int, b text, name text); CREATE UNIQUE INDEX ON kept (b, a) INCLUDE (name)")
    config = PostgresConfig(dsn=postgres_dsn, table="kept", key=("a", "b"), writable=True)
    store(config, {(1, "x"): "one"}, {(1, "x"): "two", (2, "x"): "three"})
    assert sql("SELECT * FROM kept ORDER BY a").splitlines() == ["1|x|two", "2|x|three"]


def test_a_view_and_a_key_column_that_is_not_exact_are_refused(sql: Sql, users: PostgresConfig) -> None:
    sql("CREATE VIEW seen AS SELECT * FROM users; CREATE TABLE padded (id char(5) PRIMARY KEY, name text)")
    assert str(refusal(PostgresConfig(dsn=users.dsn, table="seen", columns=("tier",), writable=True), {1: 1})) == (
        "PostgresConfig.writable is True, and the table public.seen is a view or a foreign table; values can only be "
        "written to a table. Name the table."
    )
    assert str(refusal(PostgresConfig(dsn=users.dsn, table="padded", writable=True), {"a": "b"})) == (
        "PostgresConfig.writable is True, and the key column 'id' of the table public.padded has the type "
        "character(5), which finds texts equal that are not the same: the value of one key would be given to another. "
        "Write to a table whose key column compares exactly."
    )


def test_a_role_that_may_only_read_is_told_what_it_needs(sql: Sql, users: PostgresConfig) -> None:
    role = f"reader_of_{users.dsn.rpartition('/')[2]}"  # roles are those of the server, which other tests use, too
    sql(f"CREATE ROLE {role} LOGIN; GRANT SELECT ON users TO {role}")
    config = PostgresConfig(dsn=users.dsn.replace("postgres@", f"{role}@"), table="users", writable=True)
    assert lookup(config, [1])[1]["name"] == "one"
    error = refusal(config, {1: {"name": "eins"}})
    assert type(error) is FatalError
    assert str(error).endswith(
        "says: permission denied for table users, InsufficientPrivilegeError, SQLSTATE 42501. Grant SELECT on it to "
        "this user, and INSERT and UPDATE if PostgresConfig.writable is True."
    )
    assert sql("SELECT name FROM users WHERE id = 1") == "one"


def test_lookups_stay_read_only(sql: Sql, users: PostgresConfig) -> None:
    async def use(connector: PostgresConnector) -> list[str]:
        await connector.store_many({1: {"tier": 5}}, None)

        async def ask(connection: Any, timeout: float) -> list[str]:
            names = ("transaction_read_only", "default_transaction_read_only")
            return [await connection.fetchval(f"SHOW {name}", timeout=timeout) for name in names]

        return await connector.opened()[0].run(ask, 5.0)

    assert with_connector(users, use) == ["on", "on"]


# Time -----------------------------------------------------------------------------------------------------------------


def test_a_written_row_serves_for_its_time(sql: Sql, postgres_dsn: str) -> None:
    sql("CREATE TABLE kept (id int PRIMARY KEY, until timestamptz, name text)")
    config = PostgresConfig(dsn=postgres_dsn, table="kept", expires="until", writable=True)
    assert PostgresConnector(config).stores_ttl
    store(config, {1: "a", 2: "b"}, ttl=3600.0)
    store(config, {2: "c"})
    until = sql("SELECT until IS NULL, until - now() BETWEEN '59 min' AND '1 h' FROM kept ORDER BY id").splitlines()
    assert until == ["f|t", "t|"]
    store(config, {1: "d"}, ttl=0.001)
    time.sleep(0.01)
    assert lookup(config, [1, 2]) == {2: "c"}
    store(config, {1: "e"}, ttl=3600.0)
    assert lookup(config, [1, 2]) == {1: "e", 2: "c"}


# Several at once ------------------------------------------------------------------------------------------------------


def test_two_writers_of_the_same_keys_wait_for_each_other(sql: Sql, postgres_dsn: str) -> None:
    """Each group is written as a whole, and none of them ends in a deadlock."""
    sql("CREATE TABLE kept (id int PRIMARY KEY, name text)")
    config = PostgresConfig(dsn=postgres_dsn, table="kept", writable=True)
    keys = list(range(200))

    async def run() -> None:
        async with open_connector(config) as one, open_connector(config) as two:
            for _ in range(10):
                await asyncio.gather(
                    *(
                        connector.store_many(dict.fromkeys(order, name), None)
                        for connector, name, order in (
                            (one, "one", keys),
                            (two, "two", keys[::-1]),
                            (one, "three", keys[100:] + keys[:100]),
                            (two, "four", keys),
                        )
                    )
                )
                found = dict(await one.fetch_many(keys, Call(timeout=10.0)))
                assert len(found) == 200
                assert len(set(found.values())) == 1

    asyncio.run(run())


def test_a_row_that_another_session_holds_is_a_transient_error(sql: Sql, users: PostgresConfig) -> None:
    class Hurried(PostgresConnector):
        write_timeout = at_pace(1.0)  # the server's own limit, which is meant, is a tenth less

    async def run() -> str:
        import asyncpg

        other = await asyncpg.connect(users.dsn, ssl=False)
        connector = Hurried(users)
        await connector.open()
        try:
            await other.execute("BEGIN; UPDATE users SET tier = 9 WHERE id = 1")
            with pytest.raises(TransientError) as caught:
                await connector.store_many({1: {"tier": 5}}, None)
            await other.execute("COMMIT")
            await connector.store_many({2: {"tier": 5}}, None)
            return str(caught.value)
        finally:
            await connector.close()
            await other.close()

    assert "SQLSTATE 57014" in asyncio.run(run())
    assert sql("SELECT tier FROM users ORDER BY id").splitlines() == ["9", "5"]


def test_a_cancelled_write_writes_nothing_and_leaves_the_connector_usable(sql: Sql, users: PostgresConfig) -> None:
    async def run() -> None:
        import asyncpg

        other = await asyncpg.connect(users.dsn, ssl=False)
        async with open_connector(users) as connector:
            await other.execute("BEGIN; UPDATE users SET tier = 9 WHERE id = 1")
            write = asyncio.create_task(connector.store_many({1: {"tier": 5}, 2: {"tier": 5}}, None))
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT%'"
            while sql(waits) == "0":  # not by the session in a transaction, which sees one state of it
                await asyncio.sleep(0.005)
            write.cancel()
            with pytest.raises(asyncio.CancelledError):
                await write
            await other.execute("ROLLBACK")
            await connector.store_many({1: {"tier": 6}}, None)
        await other.close()

    asyncio.run(run())
    assert sql("SELECT tier FROM users ORDER BY id").splitlines() == ["6", "2"]


@pytest.mark.parametrize("direction", ["to server", "to client"])
def test_a_connection_that_breaks_in_a_write_writes_all_or_nothing(
    postgres_server: local.PostgresServer, sql: Sql, users: PostgresConfig, direction: Literal["to server", "to client"]
) -> None:
    """Wherever it breaks, from the first message of the transaction on."""
    values = {n: {"name": f"new{n}", "tier": 5} for n in range(1, 51)}
    outcomes = set()

    async def run(config: PostgresConfig, proxy: FaultProxy) -> None:
        async with open_connector(config) as connector:
            for size in (1, 100, 300, 500, 700, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000):
                await connector.store_many({1: {"name": "old", "tier": 1}}, None)
                proxy.reset_after(size, direction=direction, times=1)
                try:
                    await connector.store_many(values, None)
                    outcomes.add("written")
                except ConnectorError as error:
                    outcomes.add(type(error).__name__)
                proxy.heal()
                await connector.store_many({51: {"name": "more", "tier": 1}}, None)
                count = await asyncio.to_thread(sql, "SELECT count(*) FROM users WHERE tier = 5")
                assert count in ("0", "50")
                await asyncio.to_thread(sql, "DELETE FROM users")

    with fault_proxy(postgres_server.host, postgres_server.port) as proxy:
        asyncio.run(run(replace(users, dsn=proxy.url(users.dsn)), proxy))
    assert outcomes == {"written", "UnavailableError"}
