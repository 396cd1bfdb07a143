"""The behaviour that only SQLite has: storage classes, collations, locks, and queries of cancelled calls."""

from __future__ import annotations

import asyncio
import datetime as dt
import sqlite3
import threading
import tracemalloc
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_sqlite import SqliteConfig, SqliteConnector, database

from enrichkit import Call, Failure, FatalError, PermanentError, TransientError, enrich
from enrichkit.errors import ConnectorError
from enrichkit.testing import open_connector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Path of an empty file."""
    file = tmp_path / "shop.db"
    file.touch()
    return str(file)


def execute(path: str, script: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(script)


def ask(config: SqliteConfig, *keys: Any, many: bool = False) -> Mapping[Any, Any]:
    async def scene() -> Mapping[Any, Any]:
        async with open_connector(config) as connector:
            found: Mapping[Any, Any] = await connector.fetch_many(keys, Call(timeout=10.0, many=many))
            return found

    return asyncio.run(scene())


def described(config: SqliteConfig) -> str | None:
    async def scene() -> str | None:
        async with open_connector(config) as connector:
            ddl: str | None = await connector.describe()
            return ddl

    return asyncio.run(scene())


def fault(config: SqliteConfig, kind: type[Exception] = FatalError, *keys: Any) -> str:
    """Open and describe the source and ask for *keys*; return the message of the error, which is exactly a *kind*."""

    async def scene() -> None:
        async with open_connector(config) as connector:
            await connector.describe()
            await connector.fetch_many(keys, Call(timeout=10.0))

    with pytest.raises(kind) as caught:
        asyncio.run(scene())
    assert type(caught.value) is kind
    return str(caught.value)


# --- types


DECLARED = {
    "INTEGER": "bigint",
    "UNSIGNED BIG INT": "bigint",
    "tinyint": "bigint",
    "VARCHAR(255)": "string",
    "clob": "string",
    "TEXT": "string",
    "BLOB": "binary",
    "REAL": "double",
    "DOUBLE PRECISION": "double",
    "FLOAT": "double",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "datetime": "timestamp_ntz",
    "TIMESTAMP": "timestamp_ntz",
}


def test_the_table_says_what_its_values_are(path: str) -> None:
    columns = ", ".join(f'"c {n}" {declared}' for n, declared in enumerate(DECLARED))
    execute(path, f"CREATE TABLE t (id INTEGER PRIMARY KEY, {columns})")
    fields = ",".join(f"`c {n}`:{ddl}" for n, ddl in enumerate(DECLARED.values()))
    assert f"struct<{fields}>" == described(SqliteConfig(path=path, table="t"))
    assert "date" == described(SqliteConfig(path=path, table="t", columns=("c 11",)))
    assert "string" == described(SqliteConfig(path=path, table="t", columns=("c 11",), returns="string"))


@pytest.mark.parametrize("declared", ["DECIMAL(10,2)", "", "STRING", "JSON", "ANY"])
def test_a_column_whose_declared_type_decides_nothing_needs_returns(path: str, declared: str) -> None:
    execute(path, f"CREATE TABLE t (id INTEGER, value {declared}); INSERT INTO t VALUES (1, 'x')")
    config = SqliteConfig(path=path, table="t")
    assert fault(config) == (
        f"The column 'value' of the table 't' is declared as {declared!r}, which does not say what its values are."
    )
    assert {1: "x"} == ask(SqliteConfig(path=path, table="t", returns="string"), 1)


STORED = {"12": "INTEGER", "1.5": "REAL", "'12'": "TEXT", "x'3132'": "BLOB", "9007199254740993": "INTEGER"}
EXACT = {
    "bigint": {"12": "12", "9007199254740993": "9007199254740993"},
    "smallint": {"12": "12", "9007199254740993": "9007199254740993"},  # the engine refuses the larger as out of range
    "double": {"12": "12", "1.5": "1.5"},
    "float": {"12": "12", "1.5": "1.5"},
    "string": {"'12'": "12"},
    "binary": {"x'3132'": b"12"},
    "boolean": {},
    "date": {"'12'": "12"},
    "timestamp": {"'12'": "12"},
    "decimal(38,0)": {"12": "12", "'12'": "12", "9007199254740993": "9007199254740993"},
    "array<int>": {"'12'": "12"},
    "struct<a:int>": {"'12'": "12"},
}


@pytest.mark.parametrize("wanted", EXACT)
def test_a_value_is_stored_as_its_type_or_an_error_of_its_key(path: str, wanted: str) -> None:
    """The column has no declared type here, so that SQLite stores each value without a conversion."""
    rows = "; ".join(f"INSERT INTO t VALUES ({n}, {stored}, 'fine')" for n, stored in enumerate(STORED))
    execute(path, f"CREATE TABLE t (id INTEGER, value, other TEXT); {rows}; INSERT INTO t VALUES (99, NULL, 'fine')")
    config = SqliteConfig(path=path, table="t", returns=f"struct<value:{wanted},other:string>")
    alone = SqliteConfig(path=path, table="t", columns=("value",), returns=wanted)
    found, single = (ask(each, *range(len(STORED)), 99) for each in (config, alone))
    for n, (stored, storage) in enumerate(STORED.items()):
        if stored in EXACT[wanted]:
            assert ({"value": EXACT[wanted][stored], "other": "fine"}, EXACT[wanted][stored]) == (found[n], single[n])
        else:
            assert (
                str(found[n].error)
                == str(single[n].error)
                == (
                    f"The column 'value' of the table 't' holds a value of the storage class {storage}, which is not "
                    f"exactly a {wanted}. Correct the row, or declare another type with returns=."
                )
            )
    assert ({"value": None, "other": "fine"}, None) == (found[99], single[99])


def test_a_boolean_is_0_or_1(path: str) -> None:
    execute(path, "CREATE TABLE t (id, value BOOLEAN); INSERT INTO t VALUES (0, 0), (1, 1), (2, 2), (3, 'true')")
    found = ask(SqliteConfig(path=path, table="t"), 0, 1, 2, 3)
    assert ("0", "1", Failure, Failure) == (found[0], found[1], type(found[2]), type(found[3]))


def test_a_text_that_is_not_utf8_is_an_error_of_its_key(path: str) -> None:
    execute(path, "CREATE TABLE t (id, value TEXT); INSERT INTO t VALUES (1, CAST(x'ff41' AS TEXT)), (2, 'fine')")
    found = ask(SqliteConfig(path=path, table="t"), 1, 2)
    assert "fine" == found[2]
    assert str(found[1].error) == "A value of the table 't' is not UTF-8. Correct the row, or leave it out."


def test_a_generated_column_is_a_column(path: str) -> None:
    execute(path, "CREATE TABLE t (id INTEGER, n INTEGER, twice INTEGER AS (2 * n)); INSERT INTO t VALUES (1, 4)")
    assert {1: {"n": "4", "twice": "8"}} == ask(SqliteConfig(path=path, table="t"), 1)


def test_a_declared_field_is_a_column(path: str) -> None:
    """A field without a column would be null in every row, without an error."""
    execute(path, "CREATE TABLE t (id INTEGER, name TEXT, tier INTEGER); INSERT INTO t VALUES (1, 'Ann', 2)")
    assert fault(SqliteConfig(path=path, table="t", returns="struct<Name:string,tier:int>")) == (
        "SqliteConfig.returns names the column 'Name', which the table 't' does not have. Did you mean 'name'? Its "
        "columns: 'name', 'tier'."
    )
    query = "SELECT name, tier AS level FROM t WHERE id = ?1"
    assert fault(of_query(path, query, "struct<name:string,tier:int>")) == (
        "SqliteConfig.returns names the column 'tier', which the query does not have. Its columns: 'name', 'level'."
    )
    assert {1: {"name": "Ann", "tier": "2"}} == ask(
        SqliteConfig(path=path, table="t", returns="struct<name:string>"), 1
    )


@pytest.mark.spark
def test_spark_gets_dates_and_booleans_as_the_table_declares_them(path: str, spark: SparkSession) -> None:
    execute(
        path,
        """
        CREATE TABLE t (id INTEGER PRIMARY KEY, born DATE, seen DATETIME, active BOOLEAN, score REAL);
        INSERT INTO t VALUES (1, '2020-02-29', '2020-02-29 10:00:00.5', 1, 0.1), (2, '29.2.2020', NULL, 0, 7);
        """,
    )
    found = spark.range(1, 3, 1, 1).select(enrich(SqliteConfig(path=path, table="t"), "id", details=True).alias("t"))
    first, second = (row.t for row in found.collect())
    expected = ("ok", dt.date(2020, 2, 29), dt.datetime(2020, 2, 29, 10, 0, 0, 500_000), True, 0.1)
    assert expected == (first.status, *first.value)
    assert ("error", None) == (second.status, second.value)
    assert "'born' of the value does not fit the declared type date" in second.error


@pytest.mark.spark
def test_spark_gets_documents_and_decimals_as_the_user_declares_them(path: str, spark: SparkSession) -> None:
    """A DECIMAL column stores the price as REAL, and the query makes it a text again."""
    execute(
        path,
        """
        CREATE TABLE t (id TEXT PRIMARY KEY, doc JSON, price DECIMAL(5,2));
        INSERT INTO t VALUES ('a', '{"n": [1, 2]}', '12.50'), ('b', '[]', '3'), ('c', '{"n": null}', 0.1);
        """,
    )
    query = "SELECT doc, printf('%.2f', price) AS price FROM t WHERE id = ?1"
    config = of_query(path, query, "doc struct<n: array<int>>, price decimal(5,2)")
    keys = spark.createDataFrame([("a",), ("b",), ("c",)], "id string").coalesce(1)
    rows = [row.t for row in keys.select(enrich(config, "id", details=True).alias("t")).collect()]
    assert [("ok", (([1, 2],), Decimal("12.50"))), ("error", None), ("ok", ((None,), Decimal("0.10")))] == [
        (row.status, row.value) for row in rows
    ]


# --- keys


@pytest.mark.parametrize(
    ("declared", "takes", "others"),
    [
        ("INTEGER", {12: "int"}, [12.0, "12", b"12", True, 2**63, -(2**63) - 1]),
        ("TEXT", {"12": "str"}, [12, 12.0, b"12", "half \ud800"]),
        ("REAL", {12.0: "float"}, ["12", b"12", False]),
        ("BLOB", {b"12": "bytes"}, ["12", 12, 12.0]),
        ("NUMERIC", {12: "int"}, [b"12", True]),
        ("", {12: "int"}, [True]),
    ],
)
def test_a_key_of_another_type_is_rejected(path: str, declared: str, takes: Any, others: Sequence[Any]) -> None:
    execute(path, f"CREATE TABLE t (id {declared}, value TEXT)")
    for key in takes:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("INSERT INTO t VALUES (?, 'found')", (key,))
    found = ask(SqliteConfig(path=path, table="t"), *takes, *others[:1])
    assert {**dict.fromkeys(takes, "found")}.items() <= found.items()
    for other in others:
        failure = ask(SqliteConfig(path=path, table="t"), other)[other]
        assert (PermanentError, True) == (type(failure.error), failure.rejected), other
        assert f" and was given a value of the type {type(other).__name__}" in str(failure.error)


def test_the_message_of_a_rejected_key_names_the_types_that_the_column_takes(path: str) -> None:
    execute(path, "CREATE TABLE t (id REAL, value TEXT)")
    assert str(ask(SqliteConfig(path=path, table="t"), "secret")["secret"].error) == (
        "The key was not sent: the key column 'id' of the table 't' is REAL and was given a value of the type str; it "
        "takes float or int. Cast or filter the key in Spark."
    )


@pytest.mark.parametrize("declared", ["DECIMAL(10,2)", "ANY"])
def test_a_text_does_not_find_a_number(path: str, declared: str) -> None:
    """SQLite's `=` finds it in a column of the affinity NUMERIC: DECIMAL, DATE, and all types unknown to SQLite."""
    execute(
        path, f"CREATE TABLE t (id {declared}, value TEXT); INSERT INTO t VALUES (12, 'number'), ('2020-01-01', 'd')"
    )
    config = SqliteConfig(path=path, table="t")
    assert {} == ask(config, "12")
    assert {12: "number", "2020-01-01": "d"} == ask(config, 12, "2020-01-01")
    assert {12.0: "number"} == ask(config, 12.0)


@pytest.mark.parametrize("index", ["", "PRIMARY KEY"])
def test_an_int_that_is_no_double_does_not_find_the_nearest_double(path: str, index: str) -> None:
    execute(path, f"CREATE TABLE t (id REAL {index}, value TEXT); INSERT INTO t VALUES (9007199254740992, 'other')")
    found = ask(SqliteConfig(path=path, table="t"), 2**53, 2**53 + 1)
    assert found[2**53] == "other"
    assert found[2**53 + 1].rejected
    assert " and was given a value " in str(found[2**53 + 1].error)


def test_a_collation_of_the_column_decides_what_is_equal(path: str) -> None:
    """Each key gets its own answer, although both find the same row."""
    execute(path, "CREATE TABLE t (id TEXT COLLATE NOCASE, value TEXT); INSERT INTO t VALUES ('Ann', 'found')")
    assert {"ANN": "found", "ann": "found"} == ask(SqliteConfig(path=path, table="t"), "ANN", "ann", "bob")


def test_several_rows_of_a_key_are_refused_or_a_list(path: str) -> None:
    execute(path, "CREATE TABLE t (a TEXT, b INTEGER, v TEXT); INSERT INTO t VALUES ('x', 1, 'v1'), ('x', 1, 'v2')")
    config = SqliteConfig(path=path, table="t", key=("a", "b"))
    failure = ask(config, ("x", 1))["x", 1]
    assert str(failure.error) == (
        "Several rows of the table 't' have the same key, and only one row is allowed: 'a' and 'b' is not unique. Use "
        "enrich_frame(..., many=True) to get them all, or a key that is unique."
    )
    assert {("x", 1): ["v1", "v2"], ("y", 1): []} == ask(config, ("x", 1), ("y", 1), many=True)


def test_a_key_of_another_width_is_fatal(path: str) -> None:
    execute(path, "CREATE TABLE t (a TEXT, b INTEGER, v TEXT)")
    assert fault(SqliteConfig(path=path, table="t", key=("a", "b")), FatalError, "x") == (
        "The number of parts of a key is not the number of columns in SqliteConfig.key: 'a', 'b'. Name as many key "
        "columns in enrich(...) as in SqliteConfig.key."
    )


# --- missing files, tables and columns


def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    path = str(tmp_path / "absent.db")
    assert fault(SqliteConfig(path=path, table="users")) == (
        f"SqliteConfig.path is {path!r}, and there is no such file on this machine. It must be there on each worker, "
        "and on the driver unless returns= is given. Copy it there, or put it into a shared folder."
    )
    assert [] == list(tmp_path.iterdir())


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert fault(SqliteConfig(path=str(tmp_path), table="users")).startswith(
        f"SqliteConfig.path is {str(tmp_path)!r}, and there is no such file on this machine."
    )


def test_a_file_that_cannot_be_opened_or_is_no_database_is_refused(tmp_path: Path) -> None:
    """The user root may open any file, so the test makes the first error without the connector."""
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(f"file:{tmp_path}/absent.db?mode=ro", uri=True)
    error = database.translate(caught.value, "/data/shop.db")
    assert (FatalError, str(error)) == (
        type(error),
        (
            "SQLite cannot read /data/shop.db (SQLITE_CANTOPEN): unable to open database file. The user of the Spark "
            "worker must be able to read it, and its folder if it is in WAL mode."
        ),
    )
    file = tmp_path / "notes.txt"
    file.write_text("This is a text, and longer than the header of a database would be. " * 10)
    assert fault(SqliteConfig(path=str(file), table="users")) == (
        f"SQLite cannot read {file} (SQLITE_NOTADB): file is not a database. SqliteConfig.path must name a SQLite "
        "database."
    )


def test_a_damaged_page_fails_the_task_and_gives_no_wrong_answer(path: str) -> None:
    """Each page in turn, or the end of the file; none of these makes a row missing."""
    size, keys = 4096, range(0, 2000, 5)
    execute(path, f"PRAGMA page_size = {size}; CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
    rows = ", ".join(f"({key}, '{key * 10**49}')" for key in range(2000))
    execute(path, f"INSERT INTO t VALUES {rows}")
    config = SqliteConfig(path=path, table="t")
    assert {key: str(key * 10**49) for key in keys} == ask(config, *keys)
    whole = Path(path).read_bytes()
    pages = len(whole) // size
    assert pages > 20
    damaged = [
        whole[: page * size] + fill * size + whole[(page + 1) * size :]
        for page in range(1, pages)
        for fill in (b"\0", b"\xff")
    ]
    for content in (*damaged, whole[: len(whole) // 2]):
        Path(path).write_bytes(content)
        assert fault(config, FatalError, *keys) == (
            f"SQLite cannot read {path} (SQLITE_CORRUPT): database disk image is malformed. Put a copy without damage "
            "in its place; PRAGMA integrity_check says what is damaged."
        )


def test_the_error_for_a_missing_name_lists_the_existing_names(path: str) -> None:
    execute(path, "CREATE TABLE users (id INTEGER, name TEXT, tier INTEGER); CREATE VIEW everybody AS SELECT 1")
    assert fault(SqliteConfig(path=path, table="Users")) == (
        "SqliteConfig.table names 'Users', which the file does not have. Did you mean 'users'? Its tables and views: "
        "'users', 'everybody'."
    )
    assert fault(SqliteConfig(path=path, table="users", key="user_id")) == (
        "SqliteConfig.key names the column 'user_id', which the table 'users' does not have. Its columns: 'id', "
        "'name', 'tier'."
    )
    assert fault(SqliteConfig(path=path, table="users", columns=("naem",))) == (
        "SqliteConfig.columns names the column 'naem', which the table 'users' does not have. Did you mean 'name'? "
        "Its columns: 'id', 'name', 'tier'."
    )


def test_a_table_of_keys_alone_has_no_values(path: str) -> None:
    execute(path, "CREATE TABLE t (id INTEGER)")
    assert fault(SqliteConfig(path=path, table="t")) == (
        "SqliteConfig.columns is empty and the table 't' has no column besides its key ('id',). Name a column in it."
    )


def test_a_path_may_begin_with_two_slashes(path: str) -> None:
    execute(path, "CREATE TABLE t (id INTEGER, value TEXT); INSERT INTO t VALUES (1, 'x')")
    assert {1: "x"} == ask(SqliteConfig(path=f"/{path}", table="t"), 1)


# --- queries


def of_query(path: str, query: str, returns: str = "string", **fields: Any) -> SqliteConfig:
    return SqliteConfig(path=path, query=query, returns=returns, **fields)


def test_a_query_may_be_anything_that_is_one_select(path: str) -> None:
    execute(path, "CREATE TABLE t (a TEXT, n INTEGER); INSERT INTO t VALUES ('x', 1), ('x', 2), ('y', 5)")
    query = "WITH mine AS (SELECT * FROM t WHERE a = ?1 AND n > ?2) SELECT sum(n) AS total, 'x' || a AS name FROM mine;"
    config = of_query(path, query, "struct<total:bigint,name:string>", key=("a", "n"))
    assert {("x", 0): {"total": "3", "name": "xx"}, ("y", 9): {"total": None, "name": None}} == ask(
        config, ("x", 0), ("y", 9)
    )


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM t WHERE a = ?1 RETURNING a",
        "SELECT a FROM t WHERE a = ?1; DROP TABLE t",
        "SELECT 1) AS x; ATTACH 'new.db' AS y; SELECT (?1",
        "PRAGMA user_version = 5 -- ?1",
        "VACUUM INTO ?1",
    ],
)
def test_a_query_that_is_no_select_is_refused_and_does_nothing(
    path: str, query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    execute(path, "CREATE TABLE t (a TEXT); INSERT INTO t VALUES ('x')")
    said = fault(of_query(path, query), FatalError, "x")
    assert said.startswith(
        (f"SQLite cannot read {path} (SQLITE_ERROR): near ", "SqliteConfig.query must be one SELECT")
    )
    assert {"x": "x"} == ask(of_query(path, "SELECT a FROM t WHERE a = ?1"), "x")
    assert [path] == [str(file) for file in tmp_path.iterdir()]


def test_a_query_of_all_columns_keeps_their_names_when_the_table_changes(path: str) -> None:
    execute(path, "CREATE TABLE t (id INT PRIMARY KEY, name TEXT, city TEXT); INSERT INTO t VALUES (1, 'A', 'Rome')")
    config = of_query(path, "SELECT * FROM t WHERE id = ?1", "struct<id:bigint,name:string,city:string>")

    async def before_and_after() -> list[Mapping[Any, Any]]:
        async with open_connector(config) as connector:
            before = await connector.fetch_many([1], Call(timeout=10.0))
            execute(path, "ALTER TABLE t DROP name; ALTER TABLE t ADD name TEXT; UPDATE t SET name = 'A'")
            return [before, await connector.fetch_many([1], Call(timeout=10.0))]

    row = {1: {"id": "1", "name": "A", "city": "Rome"}}
    assert [row, row] == asyncio.run(before_and_after())


def test_a_query_may_name_its_columns_as_it_likes(path: str) -> None:
    execute(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER); INSERT INTO t VALUES (1, 5)")
    query = """SELECT a AS "we ""ird", count(*), a + 1 FROM t WHERE id = ?1 GROUP BY id"""
    found = ask(of_query(path, query, 'struct<`we "ird`:bigint,`count(*)`:bigint,`a + 1`:bigint>'), 1)
    assert {1: {'we "ird': "5", "count(*)": "1", "a + 1": "6"}} == found


def test_a_query_with_other_parameters_is_refused(path: str) -> None:
    assert fault(of_query(path, "SELECT ?1 + ?2")).startswith(
        "SqliteConfig.query must be one SELECT with as many parameters as SqliteConfig.key has columns, 1: ?1 for the "
        "first, ?2 for the second. Python says: Incorrect number of bindings supplied."
    )


def test_an_expression_that_fails_is_an_error_of_its_key(path: str) -> None:
    found = ask(of_query(path, "SELECT json_extract(?1, '$.a') AS a"), '{"a": "b"}', "secret")
    assert "b" == found['{"a": "b"}']
    assert str(found["secret"].error) == (
        "A value of the query made an expression fail. Correct the row, or leave it out."
    )


def test_a_row_over_the_limit_is_an_error_of_its_key_and_is_not_read(path: str) -> None:
    execute(
        path,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, v BLOB);"
        "INSERT INTO t VALUES (1, x'01'), (2, zeroblob(30000000)), (3, zeroblob(65000)), (4, x'04')",
    )
    config = SqliteConfig(path=path, table="t", max_bytes=2**16)
    tracemalloc.start()
    try:
        found = dict(ask(config, 1, 2, 3, 4))
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    failure = found.pop(2)
    assert (PermanentError, False) == (type(failure.error), failure.rejected)
    assert str(failure.error) == (
        "A row of the table 't', or the key, has more than SqliteConfig.max_bytes, 65536 bytes. Raise max_bytes if it "
        "may."
    )
    assert {1: b"\x01", 3: bytes(65000), 4: b"\x04"} == found
    assert bytes(30_000_000) == ask(SqliteConfig(path=path, table="t"), 2)[2]


def test_a_key_over_the_limit_is_an_error_of_that_key(path: str) -> None:
    execute(path, "CREATE TABLE t (id TEXT, v TEXT); INSERT INTO t VALUES ('a', 'x')")
    found = ask(SqliteConfig(path=path, table="t", max_bytes=2**16), "a", "b" * 2**17)
    assert "x" == found["a"]
    assert "or the key, has more than SqliteConfig.max_bytes" in str(found["b" * 2**17].error)


def test_the_keys_of_a_call_see_one_state_of_the_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test writes between two keys, which WAL allows."""
    execute(
        path, "PRAGMA journal_mode = WAL; CREATE TABLE t (id INTEGER, v TEXT); INSERT INTO t VALUES (1, 'a'), (2, 'a')"
    )

    async def scene() -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
        async with open_connector(SqliteConfig(path=path, table="t")) as connector:
            value_of = connector._statement._value_of

            def writing(row: Any) -> Any:
                monkeypatch.undo()
                execute(path, "UPDATE t SET v = 'b'")
                return value_of(row)

            monkeypatch.setattr(connector._statement, "_value_of", writing)
            call = Call(timeout=10.0)
            return await connector.fetch_many((1, 2), call), await connector.fetch_many((1, 2), call)

    assert ({1: "a", 2: "a"}, {1: "b", 2: "b"}) == asyncio.run(scene())


@pytest.mark.parametrize("column", ["id", "v", "w"])
@pytest.mark.parametrize("change", ["ALTER TABLE t RENAME COLUMN {} TO other", "ALTER TABLE t DROP COLUMN {}"])
def test_a_column_that_is_gone_is_no_text(path: str, column: str, change: str) -> None:
    """SQLite takes a name in double quotes for a text when no column has that name."""
    execute(path, "CREATE TABLE t (id TEXT, v TEXT, w TEXT); INSERT INTO t VALUES ('id', 'a', 'b')")

    async def scene() -> str:
        async with open_connector(SqliteConfig(path=path, table="t", key="id")) as connector:
            call = Call(timeout=10.0)
            assert {"id": {"v": "a", "w": "b"}} == await connector.fetch_many(("id",), call)
            execute(path, change.format(column))
            with pytest.raises(ConnectorError) as caught:
                await connector.fetch_many(("id",), call)
            return str(caught.value)

    assert f"no such column: t.{column}" in asyncio.run(scene())


# --- locks and cancellation


def test_a_locked_file_is_asked_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT", 0.0)
    execute(path, "CREATE TABLE t (id INTEGER, v TEXT); INSERT INTO t VALUES (1, 'a')")

    async def scene() -> None:
        async with open_connector(SqliteConfig(path=path, table="t")) as connector:
            with closing(sqlite3.connect(path, isolation_level=None)) as writer:
                writer.execute("BEGIN EXCLUSIVE")
                for _ in range(3):
                    with pytest.raises(TransientError) as caught:
                        await connector.fetch_many((1,), Call(timeout=10.0))
                assert str(caught.value) == (
                    f"SQLite cannot read {path} (SQLITE_BUSY): database is locked. Another process writes to it; in "
                    "WAL mode readers would not have to wait."
                )
                writer.execute("COMMIT")
            assert {1: "a"} == await connector.fetch_many((1,), Call(timeout=10.0))

    asyncio.run(scene())


ENDLESS = (
    "WITH RECURSIVE n (n) AS (SELECT ?1 UNION ALL SELECT n + 0 FROM n) SELECT count(*) AS c FROM n WHERE ?1 IS NOT NULL"
)


async def threads_end() -> None:
    """Wait for the end of the threads, without a time limit: the test has a limit."""
    while any(thread.name.startswith("enrichkit-sqlite") for thread in threading.enumerate()):
        await asyncio.sleep(0.002)


def test_a_cancelled_call_stops_its_query_and_no_other(path: str) -> None:
    """Of two endless queries one is cancelled and one goes on. Without the handler a thread would run for ever."""

    async def scene() -> None:
        query = f"SELECT CASE WHEN ?1 < 0 THEN 'quick' ELSE ({ENDLESS.replace('?1 UNION', '1 UNION')}) END AS c"
        async with open_connector(of_query(path, query), capacity=2) as connector:
            held = asyncio.create_task(connector.fetch_many((1,), Call(timeout=10.0)))
            doomed = asyncio.create_task(connector.fetch_many((2,), Call(timeout=10.0)))
            while len(connector._pool._busy) < 2:
                await asyncio.sleep(0)
            doomed.cancel()
            await asyncio.wait({doomed})
            assert doomed.cancelled()
            assert {-1: "quick"} == await connector.fetch_many((-1,), Call(timeout=10.0)), "on the freed thread"
            assert not held.done()
        with pytest.raises(TransientError, match="SQLITE_INTERRUPT"):
            await held
        await threads_end()

    asyncio.run(scene())


def test_a_call_that_waits_for_a_thread_fails_when_the_connector_closes(path: str) -> None:
    async def scene() -> None:
        connector: Any = SqliteConnector(of_query(path, ENDLESS))
        connector.capacity = 1
        await connector.open()
        calls = [asyncio.create_task(connector.fetch_many((n,), Call(timeout=10.0))) for n in range(3)]
        while len(connector._pool._busy) < 3:
            await asyncio.sleep(0)
        assert f"<SqliteConnector query: <Database {path}: 3 busy, 0 idle>>" == repr(connector)
        await connector.close()
        assert "<SqliteConnector query: closed>" == repr(connector)
        await asyncio.wait(calls)
        assert {TransientError} == {type(call.exception()) for call in calls}
        await threads_end()

    asyncio.run(scene())


def test_a_closed_connector_says_so(path: str) -> None:
    with pytest.raises(FatalError) as caught:
        asyncio.run(SqliteConnector(of_query(path, "SELECT ?1")).fetch_many(["a"], Call(timeout=1.0)))
    assert "The connector 'sqlite' is not open; call open() before it is asked." == str(caught.value)
