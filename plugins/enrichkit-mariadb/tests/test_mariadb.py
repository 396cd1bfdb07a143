"""Tests on a real server: right answers, keys that MariaDB finds equal and Spark does not, types, hostile names."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import zoneinfo
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import asyncmy
import pytest
from enrichkit_mariadb import MariadbConfig, MariadbConnector, enrichkit_connector

from enrichkit.errors import FatalError
from enrichkit.interface import connector_of
from enrichkit.plugin import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Ask

    Sql = Callable[[str], str]

# The first test starts the server, which takes long on a busy machine.
pytestmark = [pytest.mark.service, pytest.mark.apt]

UTC = dt.UTC


def error_of(answer: Any) -> str:
    assert isinstance(answer, Failure), answer
    return f"{type(answer.error).__name__}{', rejected' if answer.rejected else ''}: {answer.error}"


# Answers ----------------------------------------------------------------------------------------------------------


def test_one_value_column_gives_its_value_and_several_give_a_mapping(users: str, ask: Ask) -> None:
    assert ask.lookup(users, [1, 7, 5000], table="users", columns=("name",)) == {1: "name1", 7: "name7"}
    expected = {1: {"tier": 1, "name": "name1"}}
    assert expected == ask.lookup(users, [1, -1], table="users", columns=("tier", "name"))
    database = users.rpartition("/")[2]
    assert expected == ask.lookup(users.rpartition("/")[0], [1], table=f"{database}.users")
    assert ask.describe(users, table="users") == "`name` string, `tier` int"
    assert ask.describe(users, table="users", columns=("tier",)) == "int"
    assert ask.describe(users, table="users", returns="name string") == "name string"


def test_the_key_may_be_a_value_column_too(users: str, ask: Ask) -> None:
    assert ask.lookup(users, [3], table="users", columns=("id", "tier")) == {3: {"id": 3, "tier": 3}}


def test_a_stored_null_is_none_and_a_missing_key_is_absent(sql: Sql, users: str, ask: Ask) -> None:
    sql("UPDATE users SET name = NULL, tier = NULL WHERE id = 2")
    assert ask.lookup(users, [1, 2, 1001], table="users", columns=("name",)) == {1: "name1", 2: None}
    assert ask.lookup(users, [2, 1001], table="users") == {2: {"name": None, "tier": None}}


def test_a_view_is_a_table(sql: Sql, users: str, ask: Ask) -> None:
    sql("CREATE VIEW shouting AS SELECT id, upper(name) AS name FROM users WHERE tier = 1")
    assert ask.lookup(users, [1, 2], table="shouting") == {1: "NAME1"}


def test_an_invisible_column_is_read_only_where_it_is_named(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE t (id int INVISIBLE DEFAULT 0 PRIMARY KEY, v int, w int, hidden int INVISIBLE DEFAULT 9)")
    sql("INSERT INTO t (id, v, w) VALUES (1, 2, 3)")
    assert ask.lookup(url, [1], table="t") == {1: {"v": 2, "w": 3}}
    assert ask.lookup(url, [1], table="t", columns=("hidden", "v")) == {1: {"hidden": 9, "v": 2}}


def test_several_key_columns_form_one_key(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE stays (tenant varchar(20), number int, city text, PRIMARY KEY (tenant, number))")
    sql("INSERT INTO stays VALUES ('a', 1, 'Rome'), ('a', 2, NULL), ('b', 1, 'Oslo'), ('a:1', 1, 'Bern')")
    config: dict[str, Any] = {"table": "stays", "key": ("tenant", "number")}
    expected = {("a", 1): "Rome", ("a", 2): None, ("b", 1): "Oslo"}
    assert expected == ask.lookup(url, [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("A", 1), ("1", 1)], **config)
    answers = ask.lookup(url, [("b", 1), ("b", "1"), (1, 1)], **config)
    assert answers.pop(("b", 1)) == "Oslo"
    source = f"the table {url.rpartition('/')[2]}.stays"
    assert [error_of(answer) for answer in answers.values()] == [
        f"PermanentError, rejected: The key was not sent: the key column {column} and was given a value of the type "
        f"{given}; it takes {takes}. Cast or filter the key in Spark."
        for column, given, takes in (
            (f"'number' of {source} is int(11)", "str", "int from -2147483648 to 2147483647"),
            (f"'tenant' of {source} is varchar(20)", "int", "str without half a surrogate pair"),
        )
    ]


def test_a_key_of_another_shape_than_the_config_fails_the_task(users: str, ask: Ask) -> None:
    expected = (
        "The number of parts of a key is not the number of columns in MariadbConfig.key: 'id'. "
        "Name as many key columns in enrich(...) as in MariadbConfig.key."
    )
    with pytest.raises(FatalError) as caught:
        ask.lookup(users, [(1, 2)], table="users")
    assert expected == str(caught.value)
    with pytest.raises(FatalError) as caught:
        ask.lookup(users, [1], table="users", key=("id", "tier"))
    assert expected.replace("'id'", "'id', 'tier'") == str(caught.value)


def test_two_rows_for_one_key_are_an_error_of_that_key_or_a_list(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE visits (who varchar(9), page text, KEY (who))")
    sql("INSERT INTO visits VALUES ('a', 'x'), ('b', 'y'), ('b', 'z'), ('b', NULL), ('B', 'w')")
    config: dict[str, Any] = {"table": "visits", "key": "who"}
    answers = ask.lookup(url, ["a", "b", "B", "c"], **config)
    source = f"the table {url.rpartition('/')[2]}.visits"
    assert error_of(answers.pop("b")) == (
        f"PermanentError: 3 rows of {source} have the same key, and only one row is allowed: 'who' is not unique. "
        "Use enrich_frame(..., many=True) to get them all, or a key that is unique."
    )
    assert answers == {"a": "x", "B": "w"}
    found = ask.lookup(url, ["a", "b", "c"], many=True, **config)
    assert {key: sorted(value, key=str) for key, value in found.items()} == {"a": ["x"], "b": [None, "y", "z"]}


def test_ten_thousand_keys_in_one_call(sql: Sql, users: str, ask: Ask) -> None:
    sql("INSERT INTO users SELECT seq, concat('name', seq), 0 FROM seq_1000_to_4999")
    keys = random.Random(1).sample(range(20_000), 10_000)
    expected = {key: f"name{key}" for key in keys if key < 5_000}
    assert expected == ask.lookup(users, keys, table="users", columns=("name",))


def test_the_index_of_the_key_is_used(sql: Sql, users: str, ask: Ask) -> None:
    """A scan of the whole table for each call would give the right answers, but far too slowly."""
    sql("CREATE TABLE others (name varchar(50) CHARACTER SET latin1 PRIMARY KEY, u uuid UNIQUE, b varbinary(9) UNIQUE)")
    sql("INSERT INTO others SELECT name, uuid(), id FROM users")
    sql("INSERT INTO others SELECT concat('x', name), uuid(), id + 1000 FROM users")

    async def plan(column: str, table: str, key: Any) -> str:
        async with ask.opened(users, table=table, key=column) as connector:
            assert connector._statement is not None
            request = connector._statement.request([key])
            select = connector._statement.sql.partition(" FOR ")[2]
            row = (await connector._pool._idle[0].fetch(f"EXPLAIN {select}", request.offset, request.document))[1]
            return f"{row[2]} {row[3]} {row[5]}"

    assert asyncio.run(plan("id", "users", 1)) == "t eq_ref PRIMARY"
    assert asyncio.run(plan("name", "others", "name1")) == "t eq_ref PRIMARY"
    assert asyncio.run(plan("u", "others", "6ccd780c-baba-1026-9564-5b8c656024db")) == "t eq_ref u"
    assert asyncio.run(plan("b", "others", b"1")) == "t eq_ref b"


# Keys that MariaDB finds equal and Spark does not -----------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    [
        "varchar(20)",
        "varchar(20) CHARACTER SET latin1",
        "varchar(20) COLLATE utf8mb4_bin",
        "varchar(20) COLLATE utf8mb4_unicode_ci",
        "varchar(20) COLLATE utf8mb4_nopad_bin",
        "varchar(20) COLLATE uca1400_ai_ci",
        "varchar(20) CHARACTER SET utf8mb3",
        "varchar(20) CHARACTER SET ascii",
        "text",
    ],
)
def test_a_text_finds_the_row_that_holds_exactly_this_text(sql: Sql, url: str, ask: Ask, column: str) -> None:
    sql(f"CREATE TABLE t (k {column}, v int, KEY (k(20)))")
    sql("INSERT INTO t VALUES ('a', 1), ('B ', 2), ('e', 3), ('?', 4), ('', 5), ('1', 6), ('0', 7)")
    near = ["A", "a ", "B", "b ", "b", "é", "\N{GRINNING FACE}", "\ufffd", " ", "01", "1e0", "a\0", "a" * 21, "\u0131"]
    if "ascii" in column:  # whose bytes above 127 may stand for such a key: it is an error, see test_mariadb_charsets
        near = [key for key in near if key.isascii()]
    expected = {"a": 1, "B ": 2, "e": 3, "?": 4, "": 5, "1": 6, "0": 7}
    assert expected == ask.lookup(url, [*expected, *near], table="t", key="k")


def test_texts_that_a_collation_finds_equal_each_get_their_own_value(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE t (k varchar(20) COLLATE utf8mb4_unicode_ci, v int, KEY (k))")
    sql("INSERT INTO t VALUES ('straße', 1), ('strasse', 2), ('STRASSE', 3), ('cafe\u0301', 4), ('café', 5)")
    expected = {"straße": 1, "strasse": 2, "STRASSE": 3, "cafe\u0301": 4, "café": 5}
    assert expected == ask.lookup(url, [*expected, "Strasse", "cafe"], table="t", key="k")


def test_a_char_column_drops_trailing_spaces(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE t (k char(5), v int)")
    sql("INSERT INTO t VALUES ('a ', 1), ('b', 2)")
    assert ask.lookup(url, ["a", "a ", "a    ", "b"], table="t", key="k") == {"a": 1, "b": 2}


@pytest.mark.parametrize("key", ["abc", "", "1", "1 ", "0x1", "1e0", b"1", True, 1.0, Decimal(1)])
def test_a_key_that_is_no_integer_never_finds_a_row_of_an_integer_column(users: str, ask: Ask, key: Any) -> None:
    """MariaDB's own `=` finds 'abc' equal to 0 and '1 x' equal to 1."""
    (answer,) = ask.lookup(users, [key], table="users").values()
    assert error_of(answer) == (
        f"PermanentError, rejected: The key was not sent: the key column 'id' of the table "
        f"{users.rpartition('/')[2]}.users is int(11) and was given a value of the type {type(key).__name__}; it takes "
        "int from -2147483648 to 2147483647. Cast or filter the key in Spark."
    )


def test_hostile_keys_are_data(sql: Sql, url: str, ask: Ask) -> None:
    keys = [
        "' OR 1=1--", "1); DELETE FROM t;--", '"', "\\", "\\'", "%s", "%(x)s", "%%", "?", "$1", "`", "\0", "\n", "\x1a",
        "null", "true", "[]", '{"a": 1}', "\u2028", "O'Brien", "日本", "\N{GRINNING FACE}", "/*!50000 x*/", "\x7f",
    ]  # fmt: skip
    sql("CREATE TABLE t (k varchar(50) COLLATE utf8mb4_bin PRIMARY KEY, v int)")

    async def run() -> None:
        host, port = url.rpartition("/")[0].rpartition("@")[2].split(":")
        connection = await asyncmy.connect(
            host=host, port=int(port), user="root", database=url.rpartition("/")[2], autocommit=True
        )
        async with connection.cursor() as cursor:
            await cursor.executemany("INSERT INTO t VALUES (%s, %s)", [(key, i) for i, key in enumerate(keys)])
        await connection.ensure_closed()

    asyncio.run(run())
    assert {key: i for i, key in enumerate(keys)} == ask.lookup(url, [*keys, "x", "' OR '1'='1"], table="t", key="k")
    answer = ask.lookup(url, ["\ud800", "%s"], table="t", key="k")
    assert answer.pop("%s") == 5
    assert error_of(answer.pop("\ud800")).startswith("PermanentError, rejected: The key was not sent: ")


# Types ------------------------------------------------------------------------------------------------------------

VALUES: list[tuple[str, str, str, Any]] = [
    ("tinyint", "-128", "tinyint", -128),
    ("tinyint unsigned", "255", "smallint", 255),
    ("boolean", "2", "tinyint", 2),
    ("smallint", "-32768", "smallint", -32768),
    ("smallint unsigned", "65535", "int", 65535),
    ("mediumint", "-8388608", "int", -8388608),
    ("mediumint unsigned", "16777215", "int", 16777215),
    ("int", "-2147483648", "int", -(2**31)),
    ("int unsigned zerofill", "4294967295", "bigint", 2**32 - 1),
    ("bigint", "-9223372036854775808", "bigint", -(2**63)),
    ("bigint unsigned", "18446744073709551615", "decimal(20,0)", 2**64 - 1),
    ("decimal(10,2)", "-12345678.90", "decimal(10,2)", Decimal("-12345678.90")),
    ("decimal(65,30)", "0.5", "decimal(38,30)", Decimal("0.5")),
    ("float", "16777216", "float", 16777216.0),
    ("float", "0.1", "float", 0.10000000149011612),
    ("double", "0.1", "double", 0.1),
    ("double", "1.7976931348623157e308", "double", 1.7976931348623157e308),
    ("bit(1)", "b'1'", "boolean", True),
    ("bit(1)", "b'0'", "boolean", False),
    ("bit(12)", "b'100000000001'", "bigint", 2049),
    ("bit(64)", f"b'{'1' * 64}'", "decimal(20,0)", 2**64 - 1),
    ("year", "1999", "smallint", 1999),
    ("year", "0", "smallint", 0),
    ("char(5)", "'ab'", "string", "ab"),
    ("varchar(9) CHARACTER SET latin1", "'é'", "string", "é"),
    ("varchar(9) CHARACTER SET utf8mb4", "'\N{GRINNING FACE}'", "string", "\N{GRINNING FACE}"),
    ("varchar(9) CHARACTER SET utf16", "'日本'", "string", "日本"),
    ("longtext", "repeat('ab', 10000000)", "string", "ab" * 10_000_000),  # more than the 16 MiB of one packet
    ("enum('x','y z')", "'y z'", "string", "y z"),
    ("set('x','y')", "'x,y'", "string", "x,y"),
    ("json", """'{"a": [1, "é"]}'""", "string", '{"a": [1, "é"]}'),
    ("varbinary(5)", "x'00ff'", "binary", b"\x00\xff"),
    ("binary(3)", "x'61'", "binary", b"a\0\0"),
    ("blob", "''", "binary", b""),
    ("date", "'1000-01-01'", "date", dt.date(1000, 1, 1)),
    ("date", "'9999-12-31'", "date", dt.date(9999, 12, 31)),
    ("datetime(6)", "'2024-02-29 23:59:59.999999'", "timestamp_ntz", dt.datetime(2024, 2, 29, 23, 59, 59, 999999)),
    ("datetime", "'0001-01-01 00:00:00'", "timestamp_ntz", dt.datetime(1, 1, 1)),
    ("timestamp(3) NULL", "'2024-07-01 12:00:00.5'", "timestamp_ltz", dt.datetime(2024, 7, 1, 12, 0, 0, 500000, UTC)),
    ("time(2)", "'-838:59:59'", "string", "-838:59:59.00"),
    ("uuid", "'6CCD780C-BABA-1026-9564-5B8C656024DB'", "string", "6ccd780c-baba-1026-9564-5b8c656024db"),
    ("inet6", "'::1'", "string", "::1"),
]


@pytest.mark.parametrize(("column", "literal", "ddl", "expected"), VALUES, ids=[f"{v[0]}: {v[1]}"[:40] for v in VALUES])
def test_a_value_arrives_as_it_is_stored(
    sql: Sql, url: str, ask: Ask, column: str, literal: str, ddl: str, expected: Any
) -> None:
    sql(f"CREATE TABLE t (id int PRIMARY KEY, v {column})")
    sql(f"SET time_zone = '+00:00'; INSERT INTO t VALUES (1, {literal})")
    found = ask.lookup(url, [1], table="t")[1]
    assert (type(expected), expected) == (type(found), found)
    assert ask.describe(url, table="t") == ddl


@pytest.mark.parametrize(
    ("column", "literal"),
    [
        ("date", "0000-00-00"),
        ("date", "2024-02-00"),
        ("datetime", "0000-00-00 00:00:00"),
        ("timestamp", "0000-00-00 00:00:00"),
        ("datetime(6)", "2023-02-31 00:00:00"),
    ],
)
def test_a_date_that_no_calendar_has_is_an_error_of_its_key(
    sql: Sql, url: str, ask: Ask, column: str, literal: str
) -> None:
    sql(
        f"SET sql_mode = 'ALLOW_INVALID_DATES'; CREATE TABLE t (id int, v {column}, w int);"
        f"INSERT INTO t VALUES (1, '{literal}', 1), (2, '2024-02-29', 2)"
    )
    answers = ask.lookup(url, [1, 2], table="t", columns=("v",))
    assert error_of(answers[1]) == (
        f"PermanentError: The column 'v' of the table {url.rpartition('/')[2]}.t holds a date that no calendar has, "
        "such as 0000-00-00. Leave the column out, or make a view that turns such dates into NULL."
    )
    assert (answers[2].year, answers[2].month, answers[2].day) == (2024, 2, 29)
    assert ask.lookup(url, [1], table="t", columns=("w",)) == {1: 1}


def test_a_million_random_digits_of_doubles_survive(sql: Sql, url: str, ask: Ask) -> None:
    dice = random.Random(5)
    numbers = [dice.uniform(-1, 1) * 10.0 ** dice.randint(-300, 300) for _ in range(2000)]
    sql("CREATE TABLE t (k double PRIMARY KEY, v double)")
    for start in range(0, len(numbers), 500):
        sql("INSERT INTO t VALUES " + ", ".join(f"({n!r}, {n!r})" for n in numbers[start : start + 500]))
    assert {n: n for n in numbers} == ask.lookup(url, [*numbers, 0.5], table="t", key="k", columns=("v",))


KEYS: list[tuple[str, list[Any], list[Any]]] = [
    ("tinyint", [-128, 0, 127], [1]),
    ("int unsigned", [0, 2**32 - 1], [7]),
    ("bigint", [-(2**63), 2**63 - 1, 2**53 + 1], [2**53, 2**53 + 2]),
    ("bigint unsigned", [2**64 - 1, 2**63, 0], [2**64 - 2]),
    ("decimal(10,2)", [Decimal("1.10"), Decimal("-0.01"), 7], [Decimal("1.104"), Decimal("1e30"), 8]),
    ("double", [0.1, -1e300, 5.0], [0.2, 0.1 + 1e-16 * 2]),
    ("varbinary(9)", [b"a", b"a ", b"\x00\xff", b""], [b"A", b"a\0", b"b"]),
    ("binary(2)", [b"a\0", b"bc"], [b"a", b"bc\0"]),
    ("enum('x','y')", ["x", "y"], ["X", "1", "z", ""]),
    ("date", [dt.date(2024, 2, 29), dt.date(1000, 1, 1)], [dt.date(2024, 3, 1), dt.date.max]),
    ("datetime(6)", [dt.datetime(2024, 1, 1, 0, 0, 0, 1)], [dt.datetime(2024, 1, 1), dt.datetime.max]),
    ("datetime", [dt.datetime(2024, 1, 1)], [dt.datetime(2024, 1, 1, 0, 0, 0, 1)]),
]


@pytest.mark.parametrize(("column", "held", "others"), KEYS, ids=[case[0] for case in KEYS])
def test_a_key_of_each_type_is_found(
    sql: Sql, url: str, ask: Ask, column: str, held: list[Any], others: list[Any]
) -> None:
    def literal(key: Any) -> str:
        return f"x'{key.hex()}'" if isinstance(key, bytes) else repr(key) if isinstance(key, float) else f"'{key}'"

    sql(f"CREATE TABLE t (k {column} PRIMARY KEY, v int)")
    sql("INSERT INTO t VALUES " + ", ".join(f"({literal(key)}, {i})" for i, key in enumerate(held)))
    assert {key: i for i, key in enumerate(held)} == ask.lookup(url, [*held, *others], table="t", key="k")


def test_an_instant_is_looked_up_whatever_its_time_zone(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE t (k timestamp(6) PRIMARY KEY, v int); SET time_zone = '+00:00'")
    sql("SET time_zone = '+00:00'; INSERT INTO t VALUES ('2024-10-27 00:30:00', 1), ('2024-10-27 01:30:00', 2)")
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    first, second = (dt.datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=berlin) for fold in (0, 1))
    utc = dt.datetime(2024, 10, 27, 0, 30, tzinfo=UTC)
    answers = ask.lookup(url, [second, utc, utc + dt.timedelta(hours=5)], table="t", key="k")
    assert [(2, second), (1, utc)] == [(value, key) for key, value in answers.items()]
    assert ask.lookup(url, [first], table="t", key="k") == {first: 1}


def test_a_uuid_is_found_in_each_of_its_spellings(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE t (k uuid PRIMARY KEY, v int); INSERT INTO t VALUES ('6ccd780c-baba-1026-9564-5b8c656024db', 1)")
    spellings = ["6ccd780c-baba-1026-9564-5b8c656024db", "6CCD780CBABA102695645B8C656024DB"]
    answers = ask.lookup(url, [*spellings, "6ccd780c-baba-1026-9564-5b8c656024dc", "no uuid"], table="t", key="k")
    assert error_of(answers.pop("no uuid")).startswith("PermanentError, rejected: ")
    assert answers == dict.fromkeys(spellings, 1)


@pytest.mark.parametrize(
    ("column", "key"),
    [
        ("tinyint", 128),
        ("int unsigned", -1),
        ("bigint unsigned", 2**64),
        ("decimal(5,2)", Decimal("NaN")),
        ("decimal(5,2)", 1.5),
        ("double", float("nan")),
        ("double", float("inf")),
        ("double", 1),
        ("varchar(5)", 5),
        ("varchar(5)", b"a"),
        ("varbinary(5)", "a"),
        ("date", dt.datetime(2024, 1, 1)),
        ("date", "2024-01-01"),
        ("datetime", dt.datetime(2024, 1, 1, tzinfo=UTC)),
        ("timestamp", dt.datetime(2024, 1, 1)),
        ("uuid", "{6ccd780c-baba-1026-9564-5b8c656024db}"),
    ],
)
def test_a_key_that_the_column_cannot_hold_is_rejected(sql: Sql, url: str, ask: Ask, column: str, key: Any) -> None:
    sql(f"CREATE TABLE t (k {column}, v int)")
    (answer,) = ask.lookup(url, [key], table="t", key="k").values()
    assert error_of(answer).startswith(
        "PermanentError, rejected: The key was not sent: the key column 'k' of the table"
    )


@pytest.mark.parametrize("column", ["time", "year", "bit(3)", "set('a')", "float", "inet6", "point"])
def test_a_column_that_cannot_be_a_key_is_named(sql: Sql, url: str, ask: Ask, column: str) -> None:
    sql(f"CREATE TABLE t (k {column}, v int)")
    full = {"year": "year(4)"}.get(column, column)
    error = ask.failure(url, table="t", key="k")
    assert isinstance(error, FatalError)
    assert str(error) == (
        f"The key column 'k' of the table {url.rpartition('/')[2]}.t has the type {full}, which cannot be looked up; a "
        "key can be one of: integers, decimal, double, texts, enums, binaries, date, datetime, timestamp and uuid. "
        "Name another column in MariadbConfig.key."
    )


def test_a_column_that_cannot_be_a_value_is_named(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE t (id int, p point, v int); INSERT INTO t VALUES (1, point(1, 2), 3)")
    error = ask.failure(url, table="t")
    assert isinstance(error, FatalError)
    assert str(error) == (
        f"The column 'p' of the table {url.rpartition('/')[2]}.t has the type point, which Spark does not have. Name "
        "the columns to read in MariadbConfig.columns, or make a view that converts this column, for example with "
        "ST_AsText."
    )
    assert ask.lookup(url, [1], table="t", columns=("v",)) == {1: 3}


# Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["we`ird", "100%", "%s", "a'b", 'a"b', "select", "日本", "; DROP TABLE t; --", "x?", "{}"]
)
def test_a_name_may_hold_any_characters(sql: Sql, url: str, ask: Ask, name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    sql(f"CREATE TABLE {quoted} ({quoted} int PRIMARY KEY, v int, w int)")
    sql(f"INSERT INTO {quoted} VALUES (1, 2, 3)")
    table = (url.rpartition("/")[2], name)
    assert ask.lookup(url, [1, 4], table=table, key=name, columns=(name, "v")) == {1: {name: 1, "v": 2}}
    assert ask.describe(url, table=table, key=name, columns=(name, "v")) == f"{quoted} int, `v` int"


def test_a_table_or_column_that_does_not_exist_gets_a_hint(users: str, ask: Ask) -> None:
    database = users.rpartition("/")[2]
    columns = "Its columns: 'id', 'name', 'tier'."
    there = f"which the table {database}.users does not have"
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"table": "Users"},
            (
                f"table names 'Users', which the database '{database}' does not have. Did you mean 'users'? "
                "Its tables and views: 'users'."
            ),
        ),
        (
            {"table": "nobody.users"},
            "table names 'users', which the database 'nobody' does not have. It has no table that this user can see.",
        ),
        ({"table": "users", "key": "Id"}, f"key names the column 'Id', {there}. Did you mean 'id'? {columns}"),
        (
            {"table": "users", "columns": ("nam", "tier")},
            f"columns names the column 'nam', {there}. Did you mean 'name'? {columns}",
        ),
        (
            {"table": "users", "returns": "struct<name:string,Tier:int>"},
            f"returns names the column 'Tier', {there}. Did you mean 'tier'? Its columns: 'name', 'tier'.",
        ),
        (
            {"table": "users", "key": ("id", "name", "tier")},
            (
                f"columns is empty and the table {database}.users has no column besides its key "
                "('id', 'name', 'tier'). Name a column in it."
            ),
        ),
    ]
    for config, expected in cases:
        error = ask.failure(users, **config)
        assert isinstance(error, FatalError)
        assert f"MariadbConfig.{expected}" == str(error)


# The plugin -------------------------------------------------------------------------------------------------------


def test_the_plugin_offers_its_connector_and_the_config_finds_it() -> None:
    assert enrichkit_connector() is MariadbConnector
    assert connector_of(MariadbConfig(table="shop.users")) is MariadbConnector
