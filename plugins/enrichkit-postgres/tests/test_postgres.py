"""
The postgres connector against a real server: right answers, hostile keys and names, faults, and what leaks out.

One long file, because all of it asks through the few functions at the top.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import pickle
import platform
import random
import re
import signal
import socket
import struct
import threading
import time
import tracemalloc
import zoneinfo
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import asyncpg
import pyarrow as pa
import pytest
from enrichkit_postgres import PostgresConfig, PostgresConnector, enrichkit_connector

from enrichkit import local
from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError, UnavailableError
from enrichkit.interface import connector_of
from enrichkit.plugin import Answers, Call, Failure, Keys, Secret
from enrichkit.testing import open_connector
from enrichkit.testing.proxy import fault_proxy
from enrichkit.worker.keys import encode
from tests.pace import at_pace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from enrichkit.testing.proxy import Chunk, FaultProxy

pytestmark = pytest.mark.service

UTC = dt.UTC


def opened(dsn: str, *, capacity: int = 4, **config: Any) -> contextlib.AbstractAsyncContextManager[PostgresConnector]:
    return open_connector(PostgresConfig(dsn=dsn, **config), capacity=capacity)


def lookup(
    dsn: str, keys: Sequence[Any], *, many: bool = False, timeout: float = 10.0, **config: Any
) -> dict[Any, Any]:
    async def run() -> dict[Any, Any]:
        async with opened(dsn, **config) as connector:
            return dict(await connector.fetch_many(keys, Call(timeout=timeout, many=many)))

    return asyncio.run(run())


def describe(dsn: str, **config: Any) -> str | None:
    async def run() -> str | None:
        async with opened(dsn, **config) as connector:
            return await connector.describe()

    return asyncio.run(run())


def failure(dsn: str, keys: Sequence[Any] = (1,), **config: Any) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        lookup(dsn, list(keys), **config)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    return caught.value


def error_of(answer: Any) -> str:
    assert isinstance(answer, Failure), answer
    return f"{type(answer.error).__name__}{', rejected' if answer.rejected else ''}: {answer.error}"


@pytest.fixture(scope="module")
def database(postgres_server):
    dsn = postgres_server.create_database()
    yield dsn
    postgres_server.drop_database(dsn)


@pytest.fixture
def dsn(postgres_server, database):
    """The DSN of a database that holds nothing. To empty it is ten times as fast as to create another."""
    name = database.rpartition("/")[2]
    schemas = postgres_server.execute(
        "SELECT string_agg(quote_ident(nspname), ',') FROM pg_namespace WHERE nspname !~ '^pg_|^information_schema$'",
        name,
    )
    postgres_server.execute(
        f"DROP SCHEMA {schemas} CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC", name
    )
    return database


@pytest.fixture
def sql(postgres_server, dsn):
    """Runs statements in the database of this test."""
    return lambda text: postgres_server.execute(text, database=dsn.rpartition("/")[2])


@pytest.fixture
def users(sql, dsn):
    """The DSN of a database with 1,000 users; user i has the name `name<i>` and the tier i % 5."""
    sql("CREATE TABLE users (id int PRIMARY KEY, name text, tier int)")
    sql("INSERT INTO users SELECT i, 'name' || i, i % 5 FROM generate_series(0, 999) AS i")
    return dsn


# Answers ----------------------------------------------------------------------------------------------------------


def test_one_value_column_gives_its_value_and_several_give_a_mapping(users):
    assert lookup(users, [1, 7, 5000], table="users", columns=("name",)) == {1: "name1", 7: "name7"}
    expected = {1: {"tier": 1, "name": "name1"}}
    assert expected == lookup(users, [1, -1], table="users", columns=("tier", "name"))
    assert expected == lookup(users, [1], table="public.users")
    assert describe(users, table="users") == "name string, tier int"
    assert describe(users, table="users", columns=("tier",)) == "int"
    assert describe(users, table="users", returns="name string") == "name string"


def test_the_key_may_be_a_value_column_too(users):
    assert lookup(users, [3], table="users", columns=("id", "tier")) == {3: {"id": 3, "tier": 3}}


def test_a_stored_null_is_none_and_a_missing_key_is_absent(sql, users):
    sql("UPDATE users SET name = NULL WHERE id = 2")
    assert lookup(users, [1, 2, 1001], table="users", columns=("name",)) == {1: "name1", 2: None}
    sql("UPDATE users SET tier = NULL WHERE id = 2")
    assert lookup(users, [2, 1001], table="users") == {2: {"name": None, "tier": None}}


def test_several_key_columns_form_one_key(sql, dsn):
    sql("CREATE TABLE stays (tenant text, number int, city text, PRIMARY KEY (tenant, number))")
    sql("INSERT INTO stays VALUES ('a', 1, 'Rome'), ('a', 2, NULL), ('b', 1, 'Oslo'), ('a:1', 1, 'Bern')")
    config = {"table": "stays", "key": ("tenant", "number")}
    expected = {("a", 1): "Rome", ("a", 2): None, ("b", 1): "Oslo"}
    assert expected == lookup(dsn, [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("1", 1)], **config)
    answers = lookup(dsn, [("b", 1), ("b", "1"), (1, 1), ("a", ("a",))], **config)
    assert answers.pop(("b", 1)) == "Oslo"
    assert [error_of(answer) for answer in answers.values()] == [
        f"PermanentError, rejected: The key was not sent: the key column {column} and was given a value of the type "
        f"{given}; it takes {takes}. Cast or filter the key in Spark."
        for column, given, takes in (
            ("'number' of the table public.stays is int4", "str", "int from -2147483648 to 2147483647"),
            ("'tenant' of the table public.stays is text", "int", "str without NUL and without half a surrogate pair"),
            ("'number' of the table public.stays is int4", "tuple", "int from -2147483648 to 2147483647"),
        )
    ]


def test_a_key_of_another_shape_than_the_config_fails_the_task(users):
    expected = (
        "The number of parts of a key is not the number of columns in PostgresConfig.key: 'id'. "
        "Name as many key columns in enrich(...) as in PostgresConfig.key."
    )
    with pytest.raises(FatalError) as caught:
        lookup(users, [(1, 2)], table="users")
    assert expected == str(caught.value)
    with pytest.raises(FatalError) as caught:
        lookup(users, [1], table="users", key=("id", "tier"))
    assert expected.replace("'id'", "'id', 'tier'") == str(caught.value)


def test_forty_thousand_keys_in_one_call_and_in_four(sql, users):
    sql("INSERT INTO users SELECT i, 'name' || i, 0 FROM generate_series(1000, 39999) AS i")
    keys = random.Random(1).sample(range(80_000), 40_000)
    expected = {key: f"name{key}" for key in keys if key < 40_000}
    assert expected == lookup(users, keys, table="users", columns=("name",))

    async def run() -> dict[int, str]:
        found = {}
        async with opened(users, table="users", columns=("name",)) as connector:
            size = connector.max_batch_size
            calls = [connector.fetch_many(keys[i : i + size], Call(timeout=10)) for i in range(0, len(keys), size)]
            for answer in await asyncio.gather(*calls):
                found |= answer
        return found

    assert expected == asyncio.run(run())


def test_two_rows_for_one_key_are_an_error_of_that_key_or_a_list(sql, dsn):
    sql("CREATE TABLE visits (who text, page text)")
    sql("INSERT INTO visits VALUES ('a', 'x'), ('b', 'y'), ('b', 'z'), ('b', NULL)")
    config = {"table": "visits", "key": "who"}
    answers = lookup(dsn, ["a", "b", "c"], **config)
    assert answers.pop("a") == "x"
    assert error_of(answers.pop("b")) == (
        "PermanentError: 3 rows of the table public.visits have the same key, and only one row is allowed: 'who' is "
        "not unique. Use enrich_frame(..., many=True) to get them all, or a key that is unique."
    )
    assert answers == {}
    assert lookup(dsn, ["a", "b", "c"], many=True, **config) == {"a": ["x"], "b": ["y", "z", None]}


def test_a_row_that_was_not_asked_for_is_never_an_answer(sql, users):
    sql("CREATE TABLE pairs (a int, b int, v text)")

    async def run(**config: Any) -> str:
        row = (struct.pack(">i", 3) if config["key"] == "id" else struct.pack(">q", 3), struct.pack(">i", 5), b"name3")
        async with opened(users, **config) as connector:
            request = connector._statement.request([1, 2] if config["key"] == "id" else [(1, 1), (2, 2)])
            with pytest.raises(TransientError) as caught:
                connector._statement.read([row], request, False)
            return str(caught.value)

    expected = "A row of the table public.{} came back that was not asked for; the connection was closed."
    assert expected.format("users") == asyncio.run(run(table="users", key="id", columns=("name",)))
    assert expected.format("pairs") == asyncio.run(run(table="pairs", key=("a", "b")))


@pytest.mark.parametrize("type_", ["text", "text[]"])  # the reply is one row of aggregates, or a row for each key
def test_a_reply_to_another_call_is_noticed_also_where_it_has_no_row(sql, database, postgres_server, type_):
    sql(f"CREATE TABLE t (id int PRIMARY KEY, v {type_}); INSERT INTO t VALUES (1, '{{a}}'), (2, '{{b}}')")

    async def run(proxy: FaultProxy) -> list[Any]:
        async with opened(proxy.url(database), table="t", capacity=2) as connector:

            async def ask(*keys: int) -> list[Any]:
                calls = (connector.fetch_many((key,), Call(timeout=10.0)) for key in keys)
                return await asyncio.gather(*calls, return_exceptions=True)

            warm = await ask(1, 2)  # both connections know the statement then
            assert not any(isinstance(found, Exception) for found in warm)
            proxy.swap()
            return await ask(1, 99)

    with fault_proxy(postgres_server.host, postgres_server.port) as proxy:
        answers = asyncio.run(run(proxy))
    expected = "The reply from the table public.t belongs to another call; the connection was closed."
    assert [(TransientError, expected)] * 2 == [(type(answer), str(answer)) for answer in answers]


def test_the_numbers_of_two_calls_never_overlap(sql, database):
    sql("CREATE TABLE pairs (a int, b int, v text)")

    async def run() -> list[set[int]]:
        async with opened(database, table="pairs", key=("a", "b")) as connector:
            return [set(connector._statement.request([(n, n) for n in range(count)]).key_of) for count in (4, 2, 1, 3)]

    numbers = asyncio.run(run())
    assert [4, 2, 1, 3] == [len(some) for some in numbers]
    assert 10 == len(set().union(*numbers))


# Types ------------------------------------------------------------------------------------------------------------

COLUMNS = [  # declaration, literal, Spark type, Python value
    ("bool", "true", "boolean", True),
    ("int2", "-32768", "smallint", -32768),
    ("int4", "2147483647", "int", 2147483647),
    ("int8", "9223372036854775807", "bigint", 9223372036854775807),
    ("oid", "4294967295", "bigint", 4294967295),
    ("float4", "1.5", "float", 1.5),
    ("float8", "'-inf'", "double", float("-inf")),
    ("numeric", "1.50", "decimal(38,18)", Decimal("1.50")),
    ("numeric(10,2)", "12345678.90", "decimal(10,2)", Decimal("12345678.90")),
    ("numeric(5,-2)", "1234500", "decimal(7,0)", Decimal("1234500")),
    ("numeric(2,5)", "0.00012", "decimal(5,5)", Decimal("0.00012")),
    ("numeric(50,10)", "1", "decimal(38,10)", Decimal("1.0000000000")),
    ("text", "'Zoë ''\"'", "string", "Zoë '\""),
    ("varchar(9)", "''", "string", ""),
    ("char(4)", "'ab'", "string", "ab  "),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "string", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("bytea", "'\\x00ff'", "binary", b"\x00\xff"),
    ("date", "'9999-12-31'", "date", dt.date(9999, 12, 31)),
    ("timestamp", "'2020-02-29 12:00:00.000001'", "timestamp_ntz", dt.datetime(2020, 2, 29, 12, 0, 0, 1)),
    ("timestamptz", "'2020-02-29 12:00+02'", "timestamp_ltz", dt.datetime(2020, 2, 29, 10, tzinfo=UTC)),
    ("json", """'{"a":  1}'""", "string", '{"a":  1}'),
    ("jsonb", """'{"a":  1}'""", "string", '{"a": 1}'),
    ("int4[]", "'{1,NULL,3}'", "array<int>", [1, None, 3]),
    ("numeric(6,1)[]", "'{1.5}'", "array<decimal(6,1)>", [Decimal("1.5")]),
    ("uuid[]", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'", "array<string>", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    ("date[]", "'{2020-01-01,NULL}'", "array<date>", [dt.date(2020, 1, 1), None]),
    ("text[]", "'{}'", "array<string>", []),
    ("time", "'24:00'", "string", "24:00:00"),
    ("interval", "'1 month 2 days 3:00'", "string", "P1M2DT3H"),
    ("inet", "'10.0.0.0/8'", "string", "10.0.0.0/8"),
    ("int4range", "'[1,4)'", "string", "[1,4)"),
    ("point", "'(1,2)'", "string", "(1,2)"),
    ("bit(3)", "B'101'", "string", "101"),
    ("mood", "'happy'", "string", "happy"),
    ("mood[]", "'{sad}'", "array<string>", ["sad"]),
    ("price", "1.25", "decimal(8,2)", Decimal("1.25")),
    ("posint", "5", "int", 5),
    ("posint[]", "'{5,NULL}'", "array<int>", [5, None]),
    ("price[]", "'{1.25}'", "array<decimal(8,2)>", [Decimal("1.25")]),
    ("posints", "'{5}'", "array<int>", [5]),
    ("day[]", "'{2020-01-01}'", "array<date>", [dt.date(2020, 1, 1)]),
    ("mood_of_day[]", "'{sad}'", "array<string>", ["sad"]),
    ("citext", "'Bob'", "string", "Bob"),
    ("city", "ROW('Rome', 3)", "string", "(Rome,3)"),
]


@pytest.fixture
def zoo(sql, dsn):
    """The DSN of a database with a table `zoo` of one column per type; row 1 holds values, row 2 nulls."""
    sql("CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('happy', 'sad'); CREATE TYPE city AS (name text, size int)")
    sql("CREATE DOMAIN cheap AS numeric(8,2); CREATE DOMAIN price AS cheap CHECK (VALUE > 0)")
    sql("CREATE DOMAIN posint AS int CHECK (VALUE > 0); CREATE DOMAIN posints AS posint[]")
    sql("CREATE DOMAIN day AS date; CREATE DOMAIN mood_of_day AS mood")
    sql(f"CREATE TABLE zoo (id int, {', '.join(f'c{i} {column[0]}' for i, column in enumerate(COLUMNS))})")
    sql(f"INSERT INTO zoo VALUES (1, {', '.join(column[1] for column in COLUMNS)})")
    sql("INSERT INTO zoo (id) VALUES (2)")
    return dsn


def test_every_type_is_described_and_read(zoo):
    expected_ddl = ", ".join(f"c{i} {column[2]}" for i, column in enumerate(COLUMNS))
    assert expected_ddl == describe(zoo, table="zoo")
    answers = lookup(zoo, [1, 2], table="zoo")
    for i, (declaration, _, _, expected) in enumerate(COLUMNS):
        actual = answers[1][f"c{i}"]
        assert (declaration, expected, type(expected)) == (declaration, actual, type(actual))
    assert answers[1]["c19"].tzinfo is not None
    assert dict.fromkeys(answers[1]) == answers[2]


def test_a_number_with_more_digits_than_a_decimal_has_is_read_as_the_page_says(sql, dsn):
    tail, large = "0.1234567890123456789", "1234567890123456789012345"
    sql(f"CREATE TABLE n (id int, v numeric); INSERT INTO n VALUES (1, {tail}), (2, {large}), (3, 1.5)")
    cast = "SELECT id, round(v, 18) AS cut, v::float8 AS double, v::text AS digits FROM n WHERE id = ANY($1)"
    assert describe(dsn, query=cast) == "cut decimal(38,18), double double, digits string"
    found = lookup(dsn, [1, 2, 3], query=cast)
    assert found[1] == {"cut": Decimal("0.123456789012345679"), "double": float(tail), "digits": tail}
    assert (found[2]["double"], found[2]["digits"]) == (float(large), large)
    assert found[3] == {"cut": Decimal("1.5"), "double": 1.5, "digits": "1.5"}


def test_a_query_reads_every_type_as_its_table_does(zoo):
    query = "SELECT * FROM zoo WHERE id = ANY($1)"
    assert lookup(zoo, [1, 2], table="zoo") == lookup(zoo, [1, 2], query=query)


@pytest.mark.parametrize(
    ("declaration", "literal"),
    [
        ("numeric", "'NaN'"),
        ("numeric", "'Infinity'"),
        ("numeric", "1e40"),
        ("numeric[]", "'{1,NULL,NaN}'"),
        ("date", "'infinity'"),
        ("date", "'-infinity'"),
        ("date", "'10000-01-01'"),
        ("date", "'0044-03-15 BC'"),
        ("date[]", "'{{2020-01-01},{infinity}}'"),
        ("timestamp", "'infinity'"),
        ("timestamp", "'10000-01-01'"),
        ("timestamptz", "'-infinity'"),
        ("timestamptz[]", "'{infinity}'"),
    ],
)
def test_a_value_that_spark_cannot_hold_fails_its_own_key_only(sql, dsn, declaration, literal):
    sql(
        f"CREATE TABLE t (id int, name text, odd {declaration}); INSERT INTO t VALUES (1, 'a', {literal}), (2, 'b', "
        "NULL)"
    )
    answers = lookup(dsn, [1, 2], table="t")
    assert error_of(answers[1]) == (
        "PermanentError: The column 'odd' of the table public.t holds infinity, NaN, or a value out of the range of "
        "its Spark "
        "type (years 1 to 9999, numbers of 38 digits). Leave the column out, or convert it in PostgresConfig.query."
    )
    assert answers[2] == {"name": "b", "odd": None}
    assert lookup(dsn, [1], table="t", columns=("name",)) == {1: "a"}
    assert isinstance(lookup(dsn, [1, 2], many=True, table="t")[1], Failure)


def test_a_column_name_that_is_no_identifier_is_quoted_in_the_ddl_and_kept_in_the_value(sql, dsn):
    sql("""CREATE TABLE t (id int, "a`b" int, "say ""hi"" \\ {0}" int, "Größe" int, "user" int)""")
    sql("INSERT INTO t VALUES (1, 1, 2, 3, 4)")
    assert describe(dsn, table="t") == '`a``b` int, `say "hi" \\ {0}` int, `Größe` int, `user` int'
    assert lookup(dsn, [1], table="t") == {1: {"a`b": 1, 'say "hi" \\ {0}': 2, "Größe": 3, "user": 4}}


# Keys -------------------------------------------------------------------------------------------------------------

HOSTILE = [
    "' OR 1=1--",
    "1); DELETE FROM t;--",
    "$1",
    "",
    " ",
    "a\\",
    "{a,b}",
    'a"b',
    "NULL",
    "\u202e",
    "Zoë",
    "😀",
    "x" * 10_000,
]


def test_a_hostile_text_key_is_data(sql, dsn):
    sql("CREATE TABLE t (id text, v text); INSERT INTO t VALUES ('innocent', 'v')")

    async def store() -> None:
        connection = await asyncpg.connect(dsn)
        await connection.executemany("INSERT INTO t VALUES ($1, $2)", [(key, f"v{key}") for key in HOSTILE[::2]])
        await connection.close()

    asyncio.run(store())
    answers = lookup(dsn, [*HOSTILE, "a\0b", "\ud800", "\udfffa", 5, True, b"x"], table="t")
    for key in HOSTILE[::2]:
        assert answers.pop(key) == f"v{key}"
    assert all(answer.rejected for answer in answers.values())
    assert list(answers) == ["a\0b", "\ud800", "\udfffa", 5, True, b"x"]
    assert error_of(answers["a\0b"]) == (
        "PermanentError, rejected: The key was not sent: the key column 'id' of the table public.t is text and was "
        "given a value of the type str, which it cannot hold; it takes str without NUL and without half a surrogate "
        "pair. Cast or filter the key in Spark."
    )
    assert sql("SELECT count(*) FROM t") == "8"


KEYS = [  # type of the key column, key that is there, other keys that are not, keys that are rejected
    ("int2", 7, [8], [2**15, -(2**15) - 1, "7", 8.0, Decimal(9)]),
    ("int4", 7, [8, -(2**31)], [2**31, 2**40, "12", dt.date(2020, 1, 1)]),
    ("int8", 2**62, [0, -(2**63)], [2**63, -(2**63) - 1, 1.0]),
    ("oid", 7, [2**32 - 1], [-1, 2**32]),
    ("bool", True, [False], ["true", 2]),
    ("float4", 0.5, [0.25], [0.1, 1e300, 1, float("nan")]),
    ("float8", 0.1, [float("inf"), -0.5], [1, "0.1", float("nan")]),
    ("numeric", Decimal("1.50"), [Decimal("1.51"), 7], [Decimal("NaN"), Decimal("Infinity"), True, 2.5, "1.5"]),
    ("numeric(10,2)", 3, [4, Decimal("3.001")], ["3"]),
    ("text", "a", ["A", "a "], ["a\0", 5]),
    ("varchar(3)", "abc", ["abcd"], [b"abc"]),
    ("name", "abc", ["abd"], ["x" * 64, "\u00e9" * 32]),
    ("char(3)", "ab", ["abc", " ab"], [5]),
    (
        "uuid",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        ["a" * 32],
        ["zz", "", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", "\u0661" * 32],
    ),
    ("bytea", b"\x00\xff", [b"", b"\x00"], ["a", bytearray(b"a").hex()]),
    ("date", dt.date(9999, 12, 31), [dt.date(1, 1, 1)], [dt.datetime(2020, 1, 1), "2020-01-01"]),
    ("timestamp", dt.datetime.max, [dt.datetime.min], [dt.datetime(2020, 1, 1, tzinfo=UTC), dt.date(2020, 1, 1)]),
    (
        "timestamptz",
        dt.datetime(2020, 1, 1, tzinfo=UTC),
        [dt.datetime.max.replace(tzinfo=UTC)],
        [dt.datetime(2020, 1, 1)],
    ),
    ("mood", "happy", ["sad"], [1]),
    ("posint", 5, [6, -1], ["5"]),
    ("citext", "Bob", ["Bo"], [1]),
]


@pytest.mark.parametrize(("declaration", "there", "absent", "refused"), KEYS, ids=[row[0] for row in KEYS])
def test_a_key_column_of_each_type_finds_its_key_and_refuses_what_it_cannot_hold(
    sql, dsn, declaration, there, absent, refused
):
    sql("CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('happy', 'sad'); CREATE DOMAIN posint AS int")
    sql(f"CREATE TABLE t (id {declaration}, v text)")
    if isinstance(there, dt.date):
        sql("INSERT INTO t VALUES ('infinity', 'infinity'), ('-infinity', 'infinity')")  # what the driver would ask for
    literal = f"'\\x{there.hex()}'" if isinstance(there, bytes) else f"'{there}'"
    sql(f"INSERT INTO t VALUES ({literal}, 'right'), (NULL, 'of nobody')")
    answers = lookup(dsn, [there, *absent], table="t")
    assert {there: "right"} == answers
    assert type(there) is type(next(iter(answers)))
    for key in refused:
        answers = lookup(dsn, [there, key], table="t")
        assert answers.pop(there) == "right"
        assert error_of(answers[key]).startswith(
            "PermanentError, rejected: The key was not sent: the key column 'id' of the table"
        )
    # The same through a query, whose parameter the driver encodes itself.
    if there not in (dt.date.max, dt.datetime.max):
        assert {there: "right"} == lookup(dsn, [there], query="SELECT id, v FROM t WHERE id = ANY($1)")


def test_keys_that_the_column_finds_equal_each_get_the_answer(sql, dsn):
    sql("CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext")
    sql("CREATE TABLE a (id ext.citext PRIMARY KEY, v int); INSERT INTO a VALUES ('Bob', 1)")
    sql("CREATE TABLE b (id char(5) PRIMARY KEY, v int); INSERT INTO b VALUES ('ab', 2)")
    sql("CREATE TABLE c (id uuid PRIMARY KEY, v int); INSERT INTO c VALUES ('a0eebc999c0b4ef8bb6d6bb9bd380a11', 3)")
    assert lookup(dsn, ["bob", "BOB", "Bob", "bo"], table="a") == {"bob": 1, "BOB": 1, "Bob": 1}
    expected = {"ab": 2, "ab  ": 2}
    assert expected == lookup(dsn, ["ab", "ab  ", " ab"], table="b")
    assert expected == lookup(dsn, ["ab", "ab  ", " ab"], query="SELECT id, v FROM b WHERE id = ANY($1)")
    spellings = [
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
        "a0eebc999c0b4ef8bb6d6bb9bd380a11",
    ]
    assert dict.fromkeys(spellings, 3) == lookup(dsn, spellings, table="c")
    assert dict.fromkeys(spellings, 3) == lookup(dsn, spellings, query="SELECT id, v FROM c WHERE id = ANY($1)")


def test_a_time_of_the_hour_that_clocks_repeat_is_found(sql, dsn):
    sql("CREATE TABLE t (id timestamptz, v text); INSERT INTO t VALUES ('2020-10-25 01:30+00', 'second')")
    key = dt.datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    answers = lookup(dsn, [key], table="t")
    assert [(key, "second")] == list(answers.items())


@pytest.mark.parametrize("index", ["", "; CREATE INDEX ON t (id)"])
def test_unknown_labels_of_an_enum_are_missing_and_the_others_of_the_call_are_found(sql, dsn, index):
    sql(f"CREATE TYPE \"Mood of\" AS ENUM ('happy', 'it''s'); CREATE TABLE t (id \"Mood of\", v text){index}")
    sql("INSERT INTO t VALUES ('happy', 'v'), ('it''s', 'w')")
    unknown = [f"S3cretKey {n}" for n in range(10)]
    assert lookup(dsn, [*unknown[:5], "happy", *unknown[5:], "it's", ""], table="t") == {"happy": "v", "it's": "w"}
    assert lookup(dsn, unknown, table="t") == {}


def test_unknown_labels_beside_another_key_column_are_missing(sql, dsn):
    sql("CREATE TYPE mood AS ENUM ('happy', 'sad'); CREATE TABLE t (id int, m mood, v text)")
    sql("INSERT INTO t VALUES (1, 'happy', 'a'), (2, 'sad', 'b'), (2, 'happy', 'c')")
    keys = [(1, "glad"), (1, "happy"), (2, "mad"), (2, "happy"), (2, "sad"), (3, "happy")]
    found = lookup(dsn, keys, table="t", key=("id", "m"))
    assert found == {(1, "happy"): "a", (2, "happy"): "c", (2, "sad"): "b"}


def test_a_key_column_that_cannot_be_looked_up_fails_at_open(sql, dsn):
    sql("CREATE TABLE t (id json, v text)")
    with pytest.raises(FatalError) as caught:
        lookup(dsn, ["1"], table="t")
    assert str(caught.value) == (
        "The key column 'id' of the table public.t has the type json, which cannot be looked up; a key can be one of: "
        "booleans, numbers, strings, uuid, bytea, dates, timestamps and enums. Name another column in "
        "PostgresConfig.key."
    )


# Keys in columns --------------------------------------------------------------------------------------------------


def in_columns(*columns: Any) -> Keys:
    """Return the keys of *columns* as the engine has them."""
    return encode([column if isinstance(column, pa.Array) else pa.array(column) for column in columns])[0]


def raw(*texts: bytes) -> pa.Array[Any]:
    """A column of texts that need not be UTF-8, as Spark's need not."""
    return pa.array(texts, pa.binary()).view(pa.string())


def told(answers: Any) -> dict[Any, Any]:
    return {key: error_of(answer) if isinstance(answer, Failure) else answer for key, answer in answers.items()}


@pytest.fixture(scope="module")
def tables(postgres_server):
    """The DSN of a database with a table for each type of key column that is asked for in columns."""
    dsn = postgres_server.create_database()
    postgres_server.execute(
        """
        CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('happy', 'sad');
        CREATE TABLE ints (id int PRIMARY KEY, v text);
        INSERT INTO ints SELECT i, 'v' || i FROM generate_series(-5, 9) i;
        CREATE TABLE wide (id int PRIMARY KEY, a text, b int);
        INSERT INTO wide SELECT i, 'a' || i, i FROM ints AS t (i);
        CREATE TABLE bigs (id int8, v text);
        INSERT INTO bigs VALUES (9223372036854775807, 'most'), (300, 'x'), (1, 'y');
        CREATE TABLE smalls (id int2, v text); INSERT INTO smalls VALUES (1, 'y'), (-32768, 'least');
        CREATE TABLE oids (id oid, v text); INSERT INTO oids VALUES (4294967295, 'most'), (1, 'y');
        CREATE TABLE texts (id text PRIMARY KEY, v text);
        INSERT INTO texts VALUES ('a', '1'), ('Zoë', NULL), ('', 'empty'), (' OR 1=1--', 'x'), ('😀', 'smile');
        CREATE TABLE uuids (id uuid, v int); INSERT INTO uuids VALUES ('a0eebc999c0b4ef8bb6d6bb9bd380a11', 3);
        CREATE TABLE cis (id citext, v int); INSERT INTO cis VALUES ('Bob', 1), ('Eve', 2);
        CREATE TABLE chars (id char(5), v int); INSERT INTO chars VALUES ('ab', 2), ('abc', 3);
        CREATE TABLE numerics (id numeric, v text);
        INSERT INTO numerics VALUES (3.00, 'three'), (1.5, 'half'), (1e30, 'x');
        CREATE TABLE floats (id float8, v text); INSERT INTO floats VALUES (0.1, 'tenth'), ('inf', 'inf');
        CREATE TABLE bools (id bool, v text); INSERT INTO bools VALUES (true, 'yes');
        CREATE TABLE dates (id date, v text); INSERT INTO dates VALUES ('2024-02-29', 'leap');
        CREATE TABLE instants (id timestamptz, v text); INSERT INTO instants VALUES ('2024-02-29 12:00+00', 'noon');
        CREATE TABLE bytes (id bytea, v text); INSERT INTO bytes VALUES ('\\x00ff', 'b');
        CREATE TABLE moods (id mood, v text); INSERT INTO moods VALUES ('happy', 'h');
        CREATE TABLE stays (tenant text, number int, v text);
        INSERT INTO stays VALUES ('a', 1, 'Rome'), ('a', 2, NULL), ('b', 1, 'Oslo'), ('a:1', 1, 'Bern');
        CREATE TABLE visits (id text, v text);
        INSERT INTO visits VALUES ('a', 'x'), ('b', 'y'), ('b', 'z'), ('b', NULL), ('c', 'x');
        CREATE TABLE odd (id int, v date); INSERT INTO odd VALUES (1, 'infinity'), (2, '2024-02-29'), (3, NULL);
        CREATE TABLE lists (id int, v int[]); INSERT INTO lists VALUES (1, '{1,2}'), (2, '{}'), (3, NULL);
        """,
        dsn.rpartition("/")[2],
    )
    yield dsn
    postgres_server.drop_database(dsn)


NOON = dt.datetime(2024, 2, 29, 12, tzinfo=UTC)
UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
QUERIES = {  # of those tables whose own `=` would not give back the key that was asked for
    "cis": "SELECT k AS id, v FROM unnest($1::text[]) AS k JOIN cis ON id = k::citext",
    "stays": "SELECT k.*, v FROM unnest($1::text[], $2::int[]) AS k (tenant, number) JOIN stays USING (tenant, number)",
}


@pytest.mark.parametrize(
    ("table", "columns", "values", "failures"),
    [
        ("ints", [[*range(-5, 10)]], 15, 0),
        ("ints", [[9, 1, -5, 4]], 4, 0),
        ("ints", [[1, 100, 2, -100, 3]], 3, 0),
        ("ints", [[100, 200]], 0, 0),
        ("ints", [pa.array([1, 2, 100], pa.int8())], 2, 0),
        ("ints", [pa.array([1, -5, 100], pa.int16())], 2, 0),
        ("ints", [[1, 2**31, 2, -(2**31) - 1, 2**63 - 1]], 2, 3),
        ("ints", [[2**31, 2**40]], 0, 2),
        ("ints", [["1", "2"]], 0, 2),
        ("ints", [[1.0, 2.5]], 0, 2),
        ("ints", [[True, False]], 0, 2),
        ("wide", [[3, 1, 100]], 2, 0),
        ("bigs", [[2**63 - 1, 1, -(2**63)]], 2, 0),
        ("bigs", [pa.array([1, 44], pa.int8())], 1, 0),
        ("smalls", [[-(2**15), 1, 2**15]], 2, 1),
        ("oids", [[2**32 - 1, -1, 1, 2**32]], 2, 2),
        ("texts", [["😀", "a", "Zoë", "", " OR 1=1--"]], 5, 0),
        ("texts", [["A", "a", "b", "Zoë"]], 2, 0),
        ("texts", [["a", "a\0b", "Zoë"]], 2, 1),
        ("texts", [raw(b"a", b"\xff", "Zoë".encode(), b"\xed\xa0\x80")], 2, 2),
        ("texts", [raw(b"\xff")], 0, 1),
        ("texts", [pa.array(["a", "b", ""], pa.large_string())], 2, 0),
        ("texts", [[1, 2]], 0, 2),
        ("texts", [[b"a", b"b"]], 0, 2),
        ("uuids", [[UUID, UUID.upper(), UUID.replace("-", ""), "b" * 32, "zz"]], 3, 1),
        ("cis", [["bob", "EVE", "Bob", "bo"]], 3, 0),
        ("chars", [["ab", "ab  ", "abc", " ab"]], 3, 0),
        ("numerics", [[Decimal("3.0"), Decimal("1.5"), Decimal("7.0")]], 2, 0),
        ("numerics", [[3, 4, 5]], 1, 0),
        ("numerics", [pa.array([3], pa.int8())], 1, 0),
        ("numerics", [["3"]], 0, 1),
        ("floats", [[0.1, float("inf"), 0.2]], 2, 0),
        ("bools", [[True, False]], 1, 0),
        ("dates", [[dt.date(2024, 2, 29), dt.date(2024, 3, 1)]], 1, 0),
        ("instants", [[NOON, NOON.replace(hour=13)]], 1, 0),
        ("bytes", [[b"\x00\xff", b""]], 1, 0),
        ("moods", [["happy", "sad"]], 1, 0),
        ("stays", [["b", "a", "a", "b", "a:1"], [1, 2, 1, 2, 1]], 4, 0),
        ("stays", [["a", "b", "a\0", "a"], [2**31, 1, 1, 1]], 2, 2),
        ("stays", [["a", "b"], ["1", "2"]], 0, 2),
        ("visits", [["c", "a", "gone"]], 2, 0),
        ("visits", [["a", "b", "gone", "c"]], 2, 1),
        ("odd", [[1, 2, 3, 4]], 2, 1),
        ("lists", [[3, 2, 1, 4]], 3, 0),
    ],
)
@pytest.mark.parametrize("through", ["table", "query"])
def test_keys_in_columns_get_the_answers_of_a_tuple_of_them(
    tables: str, table: str, columns: list[Any], values: int, failures: int, through: str
) -> None:
    config: dict[str, Any] = {"table": table}
    if through == "query":
        config = {"query": QUERIES.get(table, f"SELECT * FROM {table} WHERE id = ANY($1)")}
    config["key"] = ("tenant", "number") if table == "stays" else "id"
    keys = in_columns(*columns)

    async def run() -> None:
        async with opened(tables, **config) as connector:
            found = await connector.fetch_many(keys, Call(timeout=10.0))
            failed = sum(isinstance(answer, Failure) for answer in found.values())
            assert (values, failures) == (len(found) - failed, failed)
            for call in (Call(timeout=10.0), Call(timeout=10.0, many=True)):
                for part in (keys, keys[1:], keys[:1]):
                    listed = tuple(part)
                    found = await connector.fetch_many(part, call)
                    assert told(await connector.fetch_many(listed, call)) == told(found)
                    asked = {key: type(key) for key in listed}
                    assert {key: type(key) for key in found}.items() <= asked.items()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("table", "column"),
    [("ints", pa.array([3, 1, 2])), ("ints", pa.array([3, 1], pa.int8())), ("texts", pa.array(["😀", "a"]))],
)
def test_answers_to_keys_in_a_column_come_with_a_column_of_keys(tables: str, table: str, column: Any) -> None:
    async def run(keys: Keys) -> Any:
        async with opened(tables, table=table) as connector:
            return await connector.fetch_many(keys, Call(timeout=10.0))

    for keys in (in_columns(column), in_columns(column)[1:]):
        answers = asyncio.run(run(keys))
        assert isinstance(answers, Answers)
        assert isinstance(answers.found, Keys)
        assert answers.found.columns[0].type == column.type
        assert sorted(answers.found.columns[0].to_pylist()) == sorted(keys)
        assert list(answers.found) == answers.found.columns[0].to_pylist()


def test_keys_in_other_columns_than_the_config_names_fail_the_task(tables):
    for keys, config in (
        (in_columns([1], [2]), {"table": "ints"}),
        (in_columns(["a"]), {"table": "stays", "key": ("tenant", "number")}),
        (in_columns(["a"], [1], [2]), {"table": "stays", "key": ("tenant", "number")}),
    ):
        said = []
        for asked in (keys, list(keys)):
            with pytest.raises(FatalError) as caught:
                lookup(tables, asked, **config)
            said.append(str(caught.value))
        assert said[0] == said[1]


# Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["users; DROP TABLE users--", 'users" WHERE true--', 'we"ird', "a\\b", "Ünï", "select", "x" * 63]
)
def test_a_strange_name_is_a_name(sql, users, name):
    quoted = '"' + name.replace('"', '""') + '"'
    sql(
        f"CREATE TABLE {quoted} ({quoted} text, v text, {quoted[:-1][:60]}2\" int); INSERT INTO {quoted} VALUES ('k', "
        "'right', 5)"
    )
    assert lookup(users, ["k", "K"], table=name, key=name, columns=("v",)) == {"k": "right"}
    assert lookup(users, ["right"], table=("public", name), key="v", columns=(name,)) == {"right": "k"}
    assert sql("SELECT count(*) FROM users") == "1000"


@pytest.mark.parametrize(
    "name",
    [
        "users; DROP TABLE users--",
        'users" WHERE true--',
        "public.users, pg_sleep(10)",
        "USERS",
        "(SELECT 1)",
        "pg_authid",
    ],
)
def test_a_name_that_the_catalog_does_not_have_is_refused_at_open(sql, users, name):
    table, key, column = (
        str(failure(users, **config))
        for config in ({"table": name}, {"table": "users", "key": name}, {"table": "users", "columns": (name,)})
    )
    assert table.startswith("PostgresConfig.table names ")
    assert table.endswith("Its tables and views: 'users'.")
    assert key.startswith(f"PostgresConfig.key names the column {name!r}, which the table public.users does not have.")
    assert column.startswith(f"PostgresConfig.columns names the column {name!r}, which the table public.users does not")
    assert sql("SELECT count(*) FROM users") == "1000"


def test_unknown_tables_and_columns_come_with_a_hint(sql, users):
    def message(**config: Any) -> str:
        with pytest.raises(FatalError) as caught:
            lookup(users, [1], **config)
        return str(caught.value)

    assert message(table="Users") == (
        "PostgresConfig.table names 'Users', which the schema 'public' does not have. Did you mean 'users'? Its "
        "tables and views: 'users'."
    )
    assert message(table="users", columns=("name", "tear")) == (
        "PostgresConfig.columns names the column 'tear', which the table public.users does not have. Did you mean "
        "'tier'? Its columns: 'id', 'name', 'tier'."
    )
    assert message(table="users", key="uid") == (
        "PostgresConfig.key names the column 'uid', which the table public.users does not have. Did you mean 'id'? "
        "Its columns: 'id', 'name', 'tier'."
    )
    assert message(table="users", returns="struct<Name:string,tier:int>") == (
        "PostgresConfig.returns names the column 'Name', which the table public.users does not have. Did you mean "
        "'name'? Its columns: 'name', 'tier'."
    )
    assert message(query="SELECT id, name AS a, tier AS b FROM users WHERE id = ANY($1)", returns="struct<c:int>") == (
        "PostgresConfig.returns names the column 'c', which the query does not have. Its columns: 'a', 'b'."
    )
    sql("CREATE SCHEMA app; CREATE TABLE app.orders (id int)")
    assert message(table="orders") == (
        "PostgresConfig.table names 'orders', which the schema 'public' does not have. The schema 'app' has one: "
        "write table='app.orders'. Its tables and views: 'users'."
    )
    assert message(table="nowhere.users") == (
        "PostgresConfig.table names 'users', which the schema 'nowhere' does not have. The schema 'public' has one: "
        "write table='public.users'. It has no table that this user can see."
    )
    assert message(table="app.orders") == (
        "PostgresConfig.columns is empty and the table app.orders has no column besides its key ('id',). Name a "
        "column in it."
    )


def test_the_search_path_of_a_role_does_not_change_what_a_name_means(sql, users):
    sql("CREATE SCHEMA evil; CREATE TABLE evil.users (id int, name text); INSERT INTO evil.users VALUES (1, 'evil')")
    name = users.rpartition("/")[2]
    sql(f"ALTER DATABASE {name} SET search_path = evil, public")
    assert sql("SELECT name FROM users WHERE id = 1") == "evil"
    assert lookup(users, [1], table="users", columns=("name",)) == {1: "name1"}
    assert lookup(users, [1], query="SELECT id, name FROM users WHERE id = ANY($1)") == {1: "name1"}
    sql(f"ALTER DATABASE {name} RESET search_path")


# Settings ---------------------------------------------------------------------------------------------------------

POLICY = """
    CREATE TABLE guarded (id int PRIMARY KEY, tenant text, name text);
    INSERT INTO guarded SELECT n, 't' || n % 2, 'n' || n FROM generate_series(1, 20) n;
    ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
    CREATE POLICY own ON guarded USING (tenant = current_setting('app.tenant'));
    GRANT SELECT ON guarded TO tenants;
    CREATE SCHEMA own; CREATE TABLE own.words (id int, word text); INSERT INTO own.words VALUES (1, 'one');
    CREATE FUNCTION word_of(number int) RETURNS text LANGUAGE plpgsql AS
        'BEGIN RETURN (SELECT word FROM words WHERE id = number); END';
    CREATE VIEW spoken AS SELECT n AS id, word_of(n) AS word FROM generate_series(1, 3) n;
"""


@pytest.fixture
def policy(sql, dsn):
    """The DSN of a role that sees the rows of a tenant only, and that of the superuser."""
    sql("DROP ROLE IF EXISTS tenants; CREATE ROLE tenants LOGIN")
    sql(POLICY)
    yield dsn.replace("postgres@", "tenants@"), dsn
    sql("DROP OWNED BY tenants; DROP ROLE tenants")


@pytest.mark.parametrize("pgbouncer", [False, True])
@pytest.mark.parametrize("value", ["t1", Secret.env("ENRICHKIT_TEST_TENANT")])
def test_a_setting_chooses_the_rows_of_a_policy(policy, monkeypatch, pgbouncer, value):
    monkeypatch.setenv("ENRICHKIT_TEST_TENANT", "t1")
    found = lookup(policy[0], [1, 2, 3], table="guarded", settings={"app.tenant": value}, pgbouncer=pgbouncer)
    assert found == {n: {"tenant": "t1", "name": f"n{n}"} for n in (1, 3)}


@pytest.mark.parametrize("pgbouncer", [False, True])
def test_a_setting_is_text_whatever_it_holds(policy, pgbouncer):
    odd = "o'clock \\ \"; DROP TABLE guarded --"
    settings = {"app.odd": odd, "Search_Path": "own, public"}
    query = (
        "SELECT id, current_setting('app.odd') AS odd, current_setting('search_path') AS path FROM words "
        "WHERE id = ANY($1)"
    )
    found = lookup(policy[1], [1], query=query, settings=settings, pgbouncer=pgbouncer)
    assert found == {1: {"odd": odd, "path": "own, public, pg_temp"}}


def test_a_role_and_a_search_path_may_be_settings(policy):
    query = "SELECT id, word || ' ' || current_user FROM words WHERE id = ANY($1)"
    settings = {"search_path": "own", "role": "postgres"}
    assert lookup(policy[1], [1], query=query, settings=settings) == {1: "one postgres"}
    assert lookup(policy[1], [1], table="spoken", settings={"search_path": "own"}) == {1: "one"}


def test_what_was_not_found_is_named_with_the_search_path(policy):
    with pytest.raises(FatalError) as caught:
        lookup(policy[1], [1], table="spoken")
    assert str(caught.value).partition("says: ")[2] == (
        'relation "words" does not exist, UndefinedTableError, SQLSTATE 42P01. The search_path of enrichkit\'s '
        "sessions is 'public, pg_temp', whatever that of the role is: write the schema in query, view or function, or "
        "name another in PostgresConfig.settings, as in settings={'search_path': 'app'}."
    )
    with pytest.raises(FatalError, match=r'unrecognized configuration parameter "app\.tenant".* is named in'):
        lookup(policy[0], [1], table="guarded")


# Queries ----------------------------------------------------------------------------------------------------------


def test_a_query_joins_what_it_wants(sql, users):
    sql("CREATE TABLE orders (user_id int, item text); INSERT INTO orders VALUES (1, 'pen'), (1, 'cup'), (2, 'pen')")
    query = """
        SELECT k AS id, u.name, count(o.item) AS orders
        FROM unnest($1::int[]) AS k JOIN users u ON u.id = k LEFT JOIN orders o ON o.user_id = k
        GROUP BY k, u.name;
    """
    expected = {1: {"name": "name1", "orders": 2}, 3: {"name": "name3", "orders": 0}}
    assert expected == lookup(users, [1, 3, 9999], query=query)
    assert describe(users, query=query) == "name string, orders bigint"
    many = "SELECT user_id AS id, item FROM orders WHERE user_id = ANY($1) ORDER BY item -- sorted"
    assert lookup(users, [1, 2, 3], many=True, query=many) == {1: ["cup", "pen"], 2: ["pen"]}
    two = "SELECT u.id, u.tier, u.name FROM users u JOIN unnest($1::int[], $2::int[]) AS k (id, tier) USING (id, tier)"
    assert lookup(users, [(7, 2), (7, 3)], query=two, key=("id", "tier")) == {(7, 2): "name7"}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("DELETE FROM users WHERE id = ANY($1) RETURNING id, name", 'syntax error at or near "FROM"'),
        ("SELECT id, name FROM users WHERE id = ANY($1); SELECT 2", 'syntax error at or near ";"'),
        ("SET ROLE postgres -- $1", 'syntax error at or near "postgres"'),
    ],
)
def test_a_query_is_one_select_and_nothing_else(sql, users, query, message):
    with pytest.raises(FatalError) as caught:
        lookup(users, [1], query=query)
    assert str(caught.value).endswith(
        f"says: {message}, PostgresSyntaxError, SQLSTATE 42601. PostgresConfig.query must be one SELECT statement, "
        "without a semicolon inside."
    )
    assert sql("SELECT count(*) FROM users") == "1000"


def test_a_lock_that_a_query_takes_ends_with_its_statement(sql, users):
    """One that lasted would make the next call wait, on another connection, until the server stopped it."""
    query = "SELECT id, pg_advisory_xact_lock(id)::text AS took FROM users WHERE id = ANY($1)"

    async def run() -> None:
        async with opened(users, query=query) as connector:
            for _ in range(3):
                calls = (connector.fetch_many([1, 2], Call(timeout=10)) for _ in range(4))
                assert await asyncio.gather(*calls) == [{1: "", 2: ""}] * 4
            assert sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == "0"

    asyncio.run(run())


def test_a_query_that_writes_through_a_function_is_stopped_by_the_read_only_session(sql, users):
    sql("CREATE FUNCTION drop_user(int) RETURNS int LANGUAGE sql AS 'DELETE FROM users WHERE id = $1 RETURNING id'")
    with pytest.raises(FatalError) as caught:
        lookup(users, [1], query="SELECT k AS id, drop_user(k) FROM unnest($1::int[]) AS k")
    assert str(caught.value).endswith(
        "ReadOnlySQLTransactionError, SQLSTATE 25006. The session is read-only; the query must be a SELECT that "
        "writes nothing."
    )
    assert sql("SELECT count(*) FROM users") == "1000"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "SELECT name, id FROM users WHERE id = ANY($1)",
            (
                "PostgresConfig.query returns the columns 'name', 'id'; they must be the key columns 'id', then one or "
                "more value columns, "
                "all with different names. Rename them with AS, or name the key in PostgresConfig.key."
            ),
        ),
        (
            "SELECT id FROM users WHERE id = ANY($1)",
            (
                "PostgresConfig.query returns the columns 'id'; they must be the key columns 'id', then one or more "
                "value columns, all with different names. Rename them with AS, or name the key in PostgresConfig.key."
            ),
        ),
        (
            "SELECT id, name FROM users WHERE id = $1",
            (
                "PostgresConfig.query takes $1 as another type than an array of its key column 'id', which is int4. "
                "Write $1::int4[] in the query."
            ),
        ),
        (
            "SELECT id, name FROM users WHERE id::text = ANY($1)",
            (
                "PostgresConfig.query takes $1 as another type than an array of its key column 'id', which is int4. "
                "Write $1::int4[] in the query."
            ),
        ),
        (
            "SELECT id, name FROM users WHERE id = ANY($1) AND tier = $2",
            "PostgresConfig.query has 2 parameters; it must have 1, one array of keys for each key column.",
        ),
    ],
)
def test_a_query_of_another_shape_is_refused_at_open(users, query, message):
    with pytest.raises(FatalError) as caught:
        lookup(users, [1], query=query)
    assert message == str(caught.value)


@pytest.mark.parametrize("key", ["id + 1", "nullif(id, 2)", "nullif(id, id)"])
def test_a_query_that_returns_other_keys_is_refused(users, key):
    with pytest.raises(FatalError) as caught:
        lookup(users, [1, 2], query=f"SELECT {key} AS id, name FROM users WHERE id = ANY($1)")
    assert str(caught.value) == (
        "PostgresConfig.query returned a key in 'id' that it was not asked for. It must return the keys as they were "
        "given, for example by joining the table to unnest($1)."
    )


def test_a_query_refuses_the_dates_that_the_driver_takes_for_infinity(sql, dsn):
    sql("CREATE TABLE t (id date, v text); INSERT INTO t VALUES ('infinity', 'wrong')")
    query = "SELECT id, v FROM t WHERE id = ANY($1)"
    assert error_of(lookup(dsn, [dt.date.max], query=query)[dt.date.max]) == (
        "PermanentError, rejected: The key was not sent: the key column 'id' of the query is date and was given a "
        "value of the type date, which it cannot hold; it takes date, neither the first nor the last that Python "
        "knows, which the driver takes for infinity. Cast or filter the key in Spark."
    )


# Errors -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def role(sql, users, postgres_server):
    """A role that needs the password `S3cr et:@/%#` and may read nothing."""
    name = f"app_{users.rpartition('_')[2]}"
    postgres_server.execute(
        "DO $$ BEGIN CREATE ROLE with_password; EXCEPTION WHEN duplicate_object THEN NULL; END $$; "
        f"CREATE ROLE {name} LOGIN PASSWORD 'S3cr et:@/%#' IN ROLE with_password"
    )
    yield name
    sql(f"DROP OWNED BY {name}")
    postgres_server.execute(f"DROP ROLE {name}")


def test_a_wrong_password_fails_the_task_and_is_not_repeated(users, role, postgres_server):
    dsn = users.replace("postgres@", f"{role}@")
    error = failure(dsn, table="users", password="S3cretWrong")
    assert isinstance(error, FatalError)
    assert str(error) == (
        f'PostgreSQL at 127.0.0.1:{postgres_server.port} says: password authentication failed for user "{role}", '
        "InvalidPasswordError, SQLSTATE 28P01. Check the user of PostgresConfig.dsn and set the password, for "
        "example password=Secret.env('PGPASSWORD')."
    )


def test_missing_privileges_show_at_open(sql, users, role):
    dsn = users.replace("postgres@", f"{role}@")
    config = {"table": "users", "columns": ("name",), "password": "S3cr et:@/%#"}
    error = failure(dsn, **config)
    assert isinstance(error, FatalError)
    assert str(error).endswith(
        "says: permission denied for table users, InsufficientPrivilegeError, SQLSTATE 42501. Grant SELECT on it to "
        "this user, and INSERT and UPDATE if PostgresConfig.writable is True."
    )
    sql(f"GRANT SELECT ON users TO {role}")
    assert lookup(dsn, [1], **config) == {1: "name1"}


def test_a_secret_is_resolved_on_every_connect(sql, users, role, tmp_path, monkeypatch):
    sql(f"GRANT SELECT ON users TO {role}")
    dsn = users.replace("postgres@", f"{role}@")
    config = {"table": "users", "columns": ("name",)}
    monkeypatch.setenv("ENRICHKIT_TEST_PASSWORD", "S3cr et:@/%#")
    assert lookup(dsn, [1], password=Secret.env("ENRICHKIT_TEST_PASSWORD"), **config) == {1: "name1"}
    monkeypatch.delenv("ENRICHKIT_TEST_PASSWORD")
    error = failure(dsn, password=Secret.env("ENRICHKIT_TEST_PASSWORD"), **config)
    machine = platform.node()
    expected = (
        f"The environment variable ENRICHKIT_TEST_PASSWORD is not set on this machine ({machine}); a Secret names it."
    )
    assert expected == str(error)
    assert isinstance(error, FatalError)
    in_dsn = users.replace("postgres@", f"{role}:S3cr%20et%3A%40%2F%25%23@")
    assert lookup(in_dsn, [1], **config) == {1: "name1"}

    async def run() -> dict[int, str]:
        (tmp_path / "password").write_text("S3cr et:@/%#\n")
        async with opened(dsn, capacity=2, password=Secret.file(str(tmp_path / "password")), **config) as connector:
            sql(f"ALTER ROLE {role} PASSWORD 'rotated'")
            (tmp_path / "password").write_text("rotated")
            slow = [connector.fetch_many([i], Call(timeout=10)) for i in range(2)]
            return {key: value for answer in await asyncio.gather(*slow) for key, value in answer.items()}

    assert asyncio.run(run()) == {0: "name0", 1: "name1"}


def test_a_refused_login_is_that_of_all_calls_until_the_password_changes(sql, users, role, postgres_server, tmp_path):
    """The password is rotated while connections are open, and then these end: more attempts could lock the account."""
    sql(f"GRANT SELECT ON users TO {role}")
    secret = tmp_path / "password"
    secret.write_text("S3cr et:@/%#")
    config = {"table": "users", "columns": ("name",), "password": Secret.file(str(secret))}

    async def run(proxy: FaultProxy) -> None:
        dsn = proxy.url(users).replace("postgres@", f"{role}@")
        async with opened(dsn, capacity=16, **config) as connector:

            async def ask() -> list[Any]:
                calls = (connector.fetch_many([i], Call(timeout=10)) for i in range(16))
                return await asyncio.gather(*calls, return_exceptions=True)

            assert await ask() == [{i: f"name{i}"} for i in range(16)]
            idle = list(connector._pool._idle)
            sql(f"ALTER ROLE {role} PASSWORD 'rotated'")
            sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'")
            while not all(session.closed for session in idle):
                await asyncio.sleep(0)
            before = proxy.opened
            for _ in range(3):
                for error in await ask():
                    assert isinstance(error, UnavailableError)
                    assert f'password authentication failed for user "{role}"' in str(error)
                assert proxy.opened - before == 1
            secret.write_text("rotated")
            assert await ask() == [{i: f"name{i}"} for i in range(16)]

    with fault_proxy(postgres_server.host, postgres_server.port) as proxy:
        asyncio.run(run(proxy))


def test_an_unknown_database_fails_the_task(users, postgres_server):
    error = failure(users.rpartition("/")[0] + "/nowhere", table="users")
    assert isinstance(error, FatalError)
    assert str(error) == (
        f'PostgreSQL at 127.0.0.1:{postgres_server.port} says: database "nowhere" does not exist, '
        "InvalidCatalogNameError, SQLSTATE 3D000. Name an existing database at the end of PostgresConfig.dsn."
    )


def test_a_refused_port_is_a_server_that_is_unavailable():
    port = local.process.free_port()
    error = failure(f"postgresql://u:S3cret@127.0.0.1:{port}/d", table="users")
    assert type(error) is UnavailableError
    assert str(error) == f"PostgreSQL at 127.0.0.1:{port} cannot be reached: Connect call failed ('127.0.0.1', {port})."
    assert (error.sent, error.retry_after) == (False, None)


def test_a_failed_connect_is_that_of_all_calls_that_wait_and_the_next_call_dials(users):
    async def run() -> tuple[list[Any], list[int], int]:
        dials = 0
        counts = []
        async with opened(users, capacity=8, table="users", columns=("name",)) as connector:

            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                nonlocal dials
                dials += 1
                writer.transport.abort()

            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            pool = connector._pool
            pool._idle.pop().connection.terminate()
            pool.address = PostgresConfig(dsn=f"postgresql://u@127.0.0.1:{port}/d", table="t").address
            results = await asyncio.gather(
                *(connector.fetch_many([i], Call(timeout=5)) for i in range(8)), return_exceptions=True
            )
            counts.append(dials)
            results += await asyncio.gather(connector.fetch_many([8], Call(timeout=5)), return_exceptions=True)
            counts.append(dials)
            server.close()
            return results, counts, port

    results, counts, port = asyncio.run(run())
    assert counts == [2, 3]  # of a capacity of eight, two connect at a time
    for error in results:
        assert type(error) is UnavailableError
        assert (error.sent, error.retry_after) == (False, None)
    waited = f"PostgreSQL at 127.0.0.1:{port} could not be reached a moment ago."
    assert [str(error) for error in results[2:8]] == [waited] * 6
    dialled = (
        f"PostgreSQL at 127.0.0.1:{port} says: connection was closed in the middle of operation, "
        "ConnectionDoesNotExistError, SQLSTATE 08003."
    )
    assert [str(error) for error in (*results[:2], results[8])] == [dialled] * 3


def test_bytes_that_nobody_asked_for_end_the_connection_with_one_line_in_the_log(users, postgres_server, caplog):
    replies: list[bytes] = []

    def note(chunk: Chunk) -> float:
        replies.append(chunk.data)
        return 0.0

    async def run(proxy: FaultProxy) -> None:
        proxy.delay(note)
        async with opened(proxy.url(users), table="users", columns=("name",)) as connector:
            assert await connector.fetch_many([1], Call(timeout=10)) == {1: "name1"}
            [idle] = connector._pool._idle
            while not await asyncio.to_thread(proxy.inject, replies[-1]):  # as a network does that repeats a packet
                await asyncio.sleep(0.01)
            while not idle.closed:
                await asyncio.sleep(0.01)
            assert await connector.fetch_many([2], Call(timeout=10)) == {2: "name2"}

    with fault_proxy(postgres_server.host, postgres_server.port) as proxy, caplog.at_level("WARNING"):
        asyncio.run(run(proxy))
    [line] = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(r"A database sent what its driver cannot read \(\w+\); the connection ends\.", line)


def test_a_reply_over_the_limit_is_refused_and_the_next_is_read(sql, users, postgres_server):
    """Nor does it fill the memory: the connection ends as soon as the limit is exceeded."""
    sql("INSERT INTO users VALUES (-1, repeat('x', 30000000), 0), (-2, repeat('y', 60000), 0)")

    async def run() -> str:
        async with opened(users, capacity=1, table="users", columns=("name",), max_bytes=2**16) as connector:
            tracemalloc.start()
            try:
                with pytest.raises(PermanentError) as caught:
                    await connector.fetch_many([1, -1, 2], Call(timeout=10))
                assert tracemalloc.get_traced_memory()[1] < 5_000_000
            finally:
                tracemalloc.stop()
            # Each call has the whole limit, and so does each connection.
            for _ in range(3):
                assert await connector.fetch_many([1, -2], Call(timeout=10)) == {1: "name1", -2: "y" * 60000}
            return str(caught.value)

    assert asyncio.run(run()) == (
        f"PostgreSQL at 127.0.0.1:{postgres_server.port} sent a reply of more than PostgresConfig.max_bytes, 65536 "
        "bytes. Lower batch_size, or raise max_bytes."
    )
    assert lookup(users, [-1], table="users", columns=("name",)) == {-1: "x" * 30_000_000}


def test_texts_that_may_hold_a_key_are_not_passed_on(sql, users):
    division = failure(users, [5], query="SELECT id, 1 / (id - 5) AS x FROM users WHERE id = ANY($1)")
    assert isinstance(division, PermanentError)
    assert str(division).endswith(" says: DivisionByZeroError, SQLSTATE 22012.")
    sql(
        "CREATE FUNCTION tell(text) RETURNS text STABLE LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'no %', $1 USING ERRCODE = '57P01'; END $$"
    )
    told = failure(users, ["alice@example.test"], query="SELECT k AS id, tell(k) FROM unnest($1::text[]) AS k")
    assert type(told) is UnavailableError
    assert told.sent
    assert str(told).endswith(" says: AdminShutdownError, SQLSTATE 57P01.")


def test_a_server_without_tls_gets_no_byte_but_the_question():
    heard = bytearray()

    def serve(listener: Any) -> None:
        connection, _ = listener.accept()
        with connection:
            heard.extend(connection.recv(100))
            connection.sendall(b"N")
            while chunk := connection.recv(100):
                heard.extend(chunk)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        port = listener.getsockname()[1]
        error = failure(f"postgresql://u:S3cret@127.0.0.1:{port}/d?sslmode=verify-full", table="users")
        thread.join()
    assert isinstance(error, FatalError)
    assert str(error) == (
        f"PostgreSQL at 127.0.0.1:{port} does not offer TLS, which PostgresConfig asks for. Turn ssl on in the "
        "server, or accept an unencrypted connection with insecure=True."
    )
    assert bytes(heard) == b"\x00\x00\x00\x08\x04\xd2\x16\x2f"  # SSLRequest


def test_an_unreadable_certificate_is_named(users, tmp_path):
    error = failure(users, table="users", tls_ca=str(tmp_path / "nowhere.pem"))
    assert isinstance(error, FatalError)
    assert str(error) == (
        "A certificate of PostgresConfig cannot be used on this worker: No such file or directory. tls_ca, "
        "tls_cert and tls_key must be paths of PEM files there."
    )


# Faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attributes", ["", "?target_session_attrs=read-write", "?target_session_attrs=prefer-standby"])
def test_a_host_that_says_nothing_leaves_time_for_the_next_one(users, monkeypatch, attributes):
    monkeypatch.setattr("enrichkit_postgres.pool.CONNECT_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # whose kernel takes connections
        two = users.replace("@127.0.0.1", f"@127.0.0.1:{silent.getsockname()[1]},127.0.0.1")
        assert two != users
        assert lookup(two + attributes, [1], table="users", columns=("name",)) == {1: "name1"}


def refusal(state: str) -> bytes:
    """What a server sends that refuses a connection with an SQLSTATE."""
    fields = b"SFATAL\0C" + state.encode() + b"\0Mrefused\0\0"
    return b"E" + (len(fields) + 4).to_bytes(4, "big") + fields


@pytest.mark.parametrize("greeting", [b"", refusal("53300"), refusal("57P01"), refusal("57P03")])
def test_a_host_that_takes_connections_and_ends_them_leaves_the_next_one_to_be_asked(users, greeting):
    """As a load balancer without a server does, and a server that shuts down or is full."""

    def end_each(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = listener.accept()
                with client:
                    if greeting:
                        client.recv(10_000)
                    client.sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as ending:
        thread = threading.Thread(target=end_each, args=(ending,))
        thread.start()
        two = users.replace("@127.0.0.1", f"@127.0.0.1:{ending.getsockname()[1]},127.0.0.1")
        assert lookup(two, [1], table="users", columns=("name",)) == {1: "name1"}
        ending.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("attributes", ["standby", "read-only"])
def test_when_no_server_is_as_wanted_the_message_says_so(users, attributes):
    error = failure(f"{users}?target_session_attrs={attributes}", table="users")
    where = users.rpartition("@")[2].partition("/")[0]
    assert type(error) is UnavailableError
    assert (error.sent, error.retry_after) == (False, None)
    assert str(error) == (
        f"No server at {where} is what target_session_attrs in PostgresConfig.dsn asks for; one may be on its way to "
        "it. Look at the servers, or name another kind."
    )


@pytest.fixture
def patient(monkeypatch):
    """Every other limit of time is a minute, so that half a minute tells whether the right one held."""
    monkeypatch.setattr("enrichkit_postgres.pool.CONNECT_TIMEOUT", 60.0)
    monkeypatch.setattr("enrichkit_postgres.pool.COMMAND_TIMEOUT", 60.0)


def test_the_server_stops_a_slow_statement_and_the_connection_survives(users, patient):
    query = "SELECT id, CASE WHEN id = 1 THEN pg_sleep(60)::text ELSE name END AS name FROM users WHERE id = ANY($1)"

    async def run() -> tuple[str, float, set[int], dict[int, str]]:
        async with opened(users, query=query) as connector:
            began = time.monotonic()
            with pytest.raises(TransientError) as caught:
                await connector.fetch_many([1], Call(timeout=at_pace(2.0)))  # the server's limit is a tenth less
            elapsed = time.monotonic() - began
            pids = {s.connection.get_server_pid() for s in connector._pool._idle}
            answers = await connector.fetch_many([2], Call(timeout=60))
            pids |= {s.connection.get_server_pid() for s in connector._pool._idle}
            return str(caught.value), elapsed, pids, dict(answers)

    message, elapsed, pids, answers = asyncio.run(run())
    assert message.endswith(
        "says: canceling statement due to statement timeout, QueryCanceledError, SQLSTATE 57014. The statement ran "
        "longer than the lookup may take: give the key an index, or raise the option timeout."
    )
    assert elapsed < 30
    assert len(pids) == 1
    assert answers == {2: "name2"}


def test_the_statement_timeout_is_set_again_only_when_the_timeout_changes(users):
    async def run() -> list[float]:
        limits = []
        async with opened(users, table="users", columns=("name",)) as connector:
            for timeout in (20.0, 20.1, 19.9, 18.1, 1.0, 1.1, 86_400.0):
                await connector.fetch_many([1], Call(timeout=timeout))
                session = connector._pool._idle[0]
                text = await session.connection.fetchval(
                    "SELECT setting FROM pg_settings WHERE name = 'statement_timeout'"
                )
                assert round(session.limit * 1000) - int(text) in (0, 1)
                limits.append(round(session.limit, 3))
        return limits

    limits = asyncio.run(run())
    assert len({*limits[:4]}) == 1
    assert [round(limits[i], -1 if i == 6 else 1) for i in (0, 4, 6)] == [18.0, 0.9, 77760.0]
    assert limits[4] == limits[5]


@pytest.mark.parametrize("first", ["setting", "lookup"])
def test_a_frozen_backend_is_left_within_the_bound_and_replaced(users, patient, first):
    async def run() -> tuple[str, float, dict[int, str]]:
        async with opened(users, capacity=1, table="users", columns=("name",)) as connector:
            session = connector._pool._idle[0]
            if first == "lookup":
                session.limit = 0.25  # as if the timeout were that of the call before
            pid = session.connection.get_server_pid()
            os.kill(pid, signal.SIGSTOP)
            try:
                began = time.monotonic()
                with pytest.raises(TransientError) as caught:
                    await connector.fetch_many([1], Call(timeout=0.3))
                elapsed = time.monotonic() - began
                assert type(caught.value) is TransientError  # the key may be the reason
                return str(caught.value), elapsed, dict(await connector.fetch_many([2], Call(timeout=60)))
            finally:
                os.kill(pid, signal.SIGCONT)

    message, elapsed, answers = asyncio.run(run())
    assert message.endswith(" did not answer in time. Raise the option timeout, or look at the server.")
    assert elapsed < 30
    assert answers == {2: "name2"}


def test_a_server_that_accepts_and_never_answers_costs_the_timeout_and_no_more(users, patient):
    async def run() -> float:
        async with opened(users, table="users") as connector:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                pool = connector._pool
                pool._idle.pop().connection.terminate()
                dsn = f"postgresql://u@127.0.0.1:{listener.getsockname()[1]}/d"
                pool.address = PostgresConfig(dsn=dsn, table="t").address
                began = time.monotonic()
                with pytest.raises(UnavailableError) as caught:
                    await connector.fetch_many([1], Call(timeout=0.3))
                assert str(caught.value) == (
                    f"PostgreSQL at {pool.address} did not answer in time. Raise the option timeout, or look at the "
                    "server."
                )
                assert (caught.value.sent, caught.value.retry_after) == (False, None)
                return time.monotonic() - began

    assert asyncio.run(run()) < 30


def test_close_does_not_wait_for_a_frozen_backend(users, patient, monkeypatch):
    monkeypatch.setattr("enrichkit_postgres.pool.DISPOSE", 60.0)

    async def run() -> float:
        connector = PostgresConnector(PostgresConfig(dsn=users, table="users"))
        await connector.open()
        pid = connector._pool._idle[0].connection.get_server_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            call = asyncio.create_task(connector.fetch_many([1], Call(timeout=60)))
            while not connector._pool._busy:
                await asyncio.sleep(0)
            began = time.monotonic()
            await connector.close()
            await connector.close()
            elapsed = time.monotonic() - began
            with pytest.raises(UnavailableError) as caught:
                await call
            assert caught.value.sent
        finally:
            os.kill(pid, signal.SIGCONT)
        return elapsed

    assert asyncio.run(run()) < 30


def test_a_connection_that_is_made_while_the_connector_closes_is_not_left_open(users, sql):
    target = PostgresConfig(dsn=users, table="users").address

    async def run() -> str:
        dialled, go = asyncio.Event(), asyncio.Event()

        async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while chunk := await reader.read(65536):
                writer.write(chunk)
            writer.close()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            dialled.set()
            await go.wait()
            there = await asyncio.open_connection(target.hosts[0], target.ports[0])
            await asyncio.gather(copy(reader, there[1]), copy(there[0], writer), return_exceptions=True)
            ended.set()

        ended = asyncio.Event()
        async with (
            await asyncio.start_server(relay, "127.0.0.1", 0) as server,
            opened(users, table="users") as connector,
        ):
            pool = connector._pool
            pool._idle.pop().connection.terminate()
            dsn = f"{users.rpartition('@')[0]}@127.0.0.1:{server.sockets[0].getsockname()[1]}/{target.database}"
            pool.address = PostgresConfig(dsn=dsn, table="t").address
            call = asyncio.create_task(connector.fetch_many([1], Call(timeout=5)))
            await dialled.wait()
            await connector.close()
            go.set()
            with pytest.raises(TransientError) as caught:
                await call
            await ended.wait()
            return str(caught.value).replace(str(pool.address), "there")

    assert asyncio.run(run()) == "The connections to PostgreSQL at there were closed."


def test_a_crash_and_restart_of_the_server_is_survived():
    with local.postgres() as server:
        server.execute(
            "CREATE TABLE users (id int PRIMARY KEY, name text); INSERT INTO users VALUES (1, 'name1'); CHECKPOINT"
        )

        async def run() -> list[str]:
            errors: list[str] = []
            async with opened(server.dsn, table="users") as connector:
                # The postmaster ends all its processes and recovers when one of them is killed.
                os.kill(connector._pool._idle[0].connection.get_server_pid(), signal.SIGKILL)
                while True:
                    try:
                        assert await connector.fetch_many([1], Call(timeout=5)) == {1: "name1"}
                        return errors
                    except UnavailableError as error:
                        errors.append(str(error))
                        await asyncio.sleep(0.2)

        assert 0 < len(asyncio.run(run())) < 50


def test_backends_that_an_administrator_ends_are_replaced(users, sql):
    async def run() -> dict[int, str]:
        async with opened(users, table="users", columns=("name",)) as connector:
            await asyncio.gather(*(connector.fetch_many([i], Call(timeout=5)) for i in range(4)))
            assert len(connector._pool._idle) == 4
            call = asyncio.create_task(connector.fetch_many([1], Call(timeout=5)))
            await asyncio.to_thread(
                sql, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'enrichkit'"
            )
            await asyncio.gather(call, return_exceptions=True)
            for attempt in range(5):  # at most one error for each dead connection
                try:
                    return dict(await connector.fetch_many([attempt, 7], Call(timeout=5)))
                except UnavailableError:
                    pass
        return {}

    assert asyncio.run(run())[7] == "name7"


def test_random_cancels_leave_no_wrong_answer(users):
    """Where a reply of a cancelled call could reach the next one, this finds it."""
    dice = random.Random(7)

    async def run() -> tuple[int, int]:
        right = cancelled = 0
        async with opened(users, table="users", columns=("name",)) as connector:

            async def worker() -> None:
                nonlocal right, cancelled
                for _ in range(60):
                    keys = dice.sample(range(1000), 20)
                    task = asyncio.create_task(connector.fetch_many(keys, Call(timeout=5)))
                    if dice.random() < 0.4:
                        # From 10 us to 10 ms: some of it falls into the call on a machine of any speed.
                        asyncio.get_running_loop().call_later(10 ** dice.uniform(-5, -2), task.cancel)
                    try:
                        assert {key: f"name{key}" for key in keys} == await task
                        right += 1
                    except asyncio.CancelledError:
                        cancelled += 1

            await asyncio.gather(*(worker() for _ in range(4)))
            assert await connector.fetch_many([5], Call(timeout=5)) == {5: "name5"}
            while connector._pool._disposals:
                await asyncio.gather(*connector._pool._disposals)
            assert connector._pool._permits._value == 4
        return right, cancelled

    right, cancelled = asyncio.run(run())
    assert right + cancelled == 240
    assert min(right, cancelled) > 10


def test_a_cancelled_statement_does_not_run_on_at_the_server(users, sql):
    async def run() -> str:
        query = "SELECT id, pg_sleep(60)::text AS name FROM users WHERE id = ANY($1)"
        async with opened(users, query=query) as connector:
            call = asyncio.create_task(connector.fetch_many([1], Call(timeout=60)))
            running = "state = 'active' AND query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()"
            count = f"SELECT count(*) FROM pg_stat_activity WHERE {running}"
            while await asyncio.to_thread(sql, count) != "1":
                pass
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await asyncio.gather(*connector._pool._disposals)
            return await asyncio.to_thread(sql, count)

    assert asyncio.run(run()) == "0"


def test_the_server_never_has_more_connections_than_capacity(users, postgres_server):
    async def run() -> int:
        most = 0
        watcher = await asyncpg.connect(postgres_server.dsn, server_settings={"application_name": "watcher"})
        async with opened(users, capacity=3, table="users", columns=("name",)) as connector:
            calls = [asyncio.create_task(connector.fetch_many([i], Call(timeout=20))) for i in range(200)]
            for number, call in enumerate(calls):
                if number % 20 == 0:
                    call.cancel()
            while not all(call.done() for call in calls):
                count = await watcher.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'enrichkit' AND datname = $1",
                    users.rpartition("/")[2],  # workers of Spark tests may still be connected to other databases
                )
                most = max(most, count)
            assert {i: f"name{i}" for i in range(200) if i % 20} == {
                key: value for call in calls if not call.cancelled() for key, value in call.result().items()
            }
        await watcher.close()
        return most

    assert 1 <= asyncio.run(run()) <= 3


def test_a_connector_can_be_opened_again_on_another_loop(users):
    connector = PostgresConnector(PostgresConfig(dsn=users, table="users", columns=("name",)))

    async def run() -> dict[int, str]:
        await connector.open()
        answers = await connector.fetch_many([1], Call(timeout=5))
        await connector.close()
        return dict(answers)

    assert asyncio.run(run()) == {1: "name1"}
    assert asyncio.run(run()) == {1: "name1"}
    with pytest.raises(FatalError) as caught:
        asyncio.run(connector.fetch_many([1], Call(timeout=5)))
    assert str(caught.value) == "The connector 'postgres' is not open; call open() before it is asked."


def test_keepalive_is_set_on_the_socket(users):
    async def run() -> list[int]:
        async with opened(users, table="users") as connector:
            sock = connector._pool._idle[0].connection._transport.get_extra_info("socket")
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            return [sock.getsockopt(socket.IPPROTO_TCP, option) for option in options]

    assert asyncio.run(run()) == [30, 5, 3, 30_000]


# The outside ------------------------------------------------------------------------------------------------------


def test_the_plugin_offers_its_connector_and_the_config_finds_it():
    assert enrichkit_connector() is PostgresConnector
    assert connector_of(PostgresConfig(table="users")) is PostgresConnector


def test_the_connector_shows_counts_and_no_secret(users):
    dsn = users.replace("postgres@", "postgres:S3cret@")

    async def run() -> str:
        async with opened(dsn, table="users") as connector:
            return repr(connector)

    port = users.rpartition(":")[2].partition("/")[0]
    assert f"<PostgresConnector users: <Pool 127.0.0.1:{port}: 0 busy, 1 idle, 4 at most>>" == asyncio.run(run())
    assert (
        repr(PostgresConnector(pickle.loads(pickle.dumps(PostgresConfig(query="SELECT $1")))))
        == "<PostgresConnector query: closed>"
    )
