"""Columns that come as bytes and as one text, against a real server: what plain SELECT gives, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any

import asyncpg
import pyarrow as pa
import pytest
from enrichkit_postgres import PostgresConfig, PostgresConnector
from enrichkit_postgres.aggregates import _read_integers, _read_texts
from enrichkit_postgres.pgtypes import _joined
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.engine.loop import LoopThread
from enrichkit.errors import FatalError, PermanentError, TransientError
from enrichkit.plugin import Answers, Call, Failure, Keys
from enrichkit.testing import open_connector
from enrichkit.testing.bench import Bench
from enrichkit.worker import entry, task
from enrichkit.worker.keys import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = [pytest.mark.service, pytest.mark.slow]

SLOW = settings(derandomize=True, deadline=None, max_examples=40)


def opened(dsn: str, *, capacity: int = 1, **config: Any) -> contextlib.AbstractAsyncContextManager[PostgresConnector]:
    return open_connector(PostgresConfig(dsn=dsn, **config), capacity=capacity)


def lookup(dsn: str, keys: Sequence[Any], *, many: bool = False, **config: Any) -> dict[Any, Any]:
    async def run() -> dict[Any, Any]:
        async with opened(dsn, **config) as connector:
            return dict(await connector.fetch_many(keys, Call(timeout=10.0, many=many)))

    return asyncio.run(run())


def in_columns(*columns: Any) -> Keys:
    """The keys of *columns* as the engine has them."""
    return encode([column if isinstance(column, pa.Array) else pa.array(column) for column in columns])[0]


def all_ways(dsn: str, keys: Sequence[Any], **config: Any) -> dict[Any, Any]:
    """Ask for *keys* as a list and in columns, for one row and for all; all of it must say the same."""
    columns = list(zip(*keys, strict=True)) if isinstance(keys[0], tuple) else [keys]
    found = lookup(dsn, keys, **config)
    assert found == lookup(dsn, in_columns(*columns), **config)
    for asked in (keys, in_columns(*columns)):
        assert {key: [value] for key, value in found.items()} == lookup(dsn, asked, many=True, **config)
    return found


@pytest.fixture(scope="module")
def database(postgres_server: Any) -> Iterator[str]:
    dsn = postgres_server.create_database()
    yield dsn
    postgres_server.drop_database(dsn)


@pytest.fixture
def sql(postgres_server: Any, database: str) -> Callable[[str], str]:
    """Runs statements in the database of the tests, of which each makes its own tables anew."""
    name = database.rpartition("/")[2]
    postgres_server.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public", name)
    return lambda text: str(postgres_server.execute(text, name))


# Any rows ---------------------------------------------------------------------------------------------------------

WIDTHS = {"int2": 16, "int4": 32, "int8": 64}
TEXTS = st.one_of(
    st.none(),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6),
    st.sampled_from(["", " ", "'", '"', "\\", ",", "{a,b}", "NULL", "é", "😀\u202e", "x" * 70_000, "\ufeff", "\n"]),
)


def integers(pg: str) -> st.SearchStrategy[int]:
    most = 2 ** (WIDTHS[pg] - 1)
    return st.integers(-5, 5) | st.sampled_from([-most, most - 1]) | st.integers(-most, most - 1)


KINDS: dict[str, tuple[str, tuple[str, ...], st.SearchStrategy[Any]]] = {
    **{pg: (f"id {pg}", ("id",), integers(pg)) for pg in WIDTHS},
    "text": ("id text", ("id",), TEXTS.filter(lambda text: text is not None)),
    "varchar": ("id varchar", ("id",), TEXTS.filter(lambda text: text is not None)),
    "pair": ("a int8, b int2", ("a", "b"), st.tuples(integers("int8"), integers("int2"))),
    "mixed": ("a text, b int4", ("a", "b"), st.tuples(TEXTS.filter(lambda text: text is not None), integers("int4"))),
}


@pytest.fixture(scope="module")
def kinds(postgres_server: Any) -> Iterator[dict[str, tuple[Bench, Bench]]]:
    """By the name of a table, its lookups: of one value column, and of all."""
    dsn = postgres_server.create_database()
    postgres_server.execute(
        "; ".join(f"CREATE TABLE {name} ({columns}, v text, w varchar, n int)" for name, (columns, *_) in KINDS.items())
        # The keys come back in any order then, not in that of the table.
        + "; CREATE INDEX ON int4 (id); CREATE INDEX ON text (id); CREATE INDEX ON pair (a, b)",
        dsn.rpartition("/")[2],
    )
    with contextlib.ExitStack() as stack:
        made = {}
        for name, (_, key, _) in KINDS.items():
            configs = (PostgresConfig(dsn=dsn, table=name, key=key, columns=columns) for columns in (("v",), ()))
            one, every = (stack.enter_context(Bench(PostgresConnector(config), capacity=1)) for config in configs)
            one.open()
            every.open()
            made[name] = (one, every)
        yield made
    postgres_server.drop_database(dsn)


@pytest.mark.parametrize("name", KINDS)
@SLOW
@given(data=st.data())
def test_any_rows_are_what_plain_select_gives(kinds: Any, name: str, data: st.DataObject) -> None:
    columns, key, drawn = KINDS[name]
    one, every = kinds[name]
    rows = data.draw(st.lists(st.tuples(drawn, TEXTS, TEXTS, st.none() | integers("int4")), max_size=8))
    others = data.draw(st.lists(drawn, max_size=4))
    if data.draw(st.booleans()):
        rows = [(key, None, None, None) for key, *_ in rows]
    flat = [((*row[0], *row[1:]) if len(key) > 1 else row) for row in rows]
    asked = list(dict.fromkeys([*(row[0] for row in rows), *others]))
    selected = asyncio.run(rewritten(one.connector.config.dsn, name, flat))
    width = len(key)
    matches: dict[Any, list[Any]] = {}
    for row in selected:
        matches.setdefault(tuple(row[:width]) if width > 1 else row[0], []).append(tuple(row[width:]))
    if not asked:
        return
    types = [pa.type_for_alias(f"int{WIDTHS[part]}") if part in WIDTHS else pa.string() for part in types_of(columns)]
    parts = list(zip(*asked, strict=True)) if width > 1 else [asked]
    wider = [pa.int64() if pa.types.is_integer(type_) else type_ for type_ in types]
    forms: list[Any] = [asked]
    for chosen in (types, wider):
        forms.append(in_columns(*(pa.array(part, type_) for part, type_ in zip(parts, chosen, strict=True))))
    for keys in forms:
        for of_one in (True, False):
            connector = one if of_one else every
            expected = {
                k: [row[0] if of_one else dict(zip("vwn", row, strict=True)) for row in matches[k]] for k in matches
            }
            found = connector.fetch(keys, many=True)
            assert {k: Counter(map(repr, v)) for k, v in expected.items()} == {
                k: Counter(map(repr, v)) for k, v in found.items()
            }
            single = dict(connector.fetch(keys))
            assert expected.keys() == single.keys()
            for k, values in expected.items():
                assert isinstance(single[k], Failure) if len(values) > 1 else single[k] == values[0]


def types_of(columns: str) -> list[str]:
    return [column.split()[1] for column in columns.split(", ")]


async def rewritten(dsn: str, table: str, rows: list[Any]) -> list[Any]:
    """Write *rows* in place of those of *table*, and return what the driver reads then."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"DELETE FROM {table}")
        if rows:
            marks = ", ".join(f"${n}" for n in range(1, len(rows[0]) + 1))
            await connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        return list(await connection.fetch(f"SELECT * FROM {table}"))
    finally:
        await connection.close()


def test_one_value_column_of_texts_comes_without_objects(sql, database):
    sql("CREATE TABLE t (id int, v text); INSERT INTO t VALUES (1, 'é'), (2, NULL), (3, '')")

    async def run(keys: Any) -> Any:
        async with opened(database, table="t") as connector:
            return await connector.fetch_many(keys, Call(timeout=10.0))

    answers = asyncio.run(run(in_columns([3, 1, 2, 7])))
    assert isinstance(answers, Answers)
    answers.columns.validate(full=True)
    assert answers.columns.type == pa.string()
    assert {1: "é", 2: None, 3: ""} == dict(answers)
    assert [] == [*asyncio.run(run(in_columns([8])))]


@SLOW
@given(st.lists(integers("int8"), min_size=1, max_size=8, unique=True), st.integers(0, 8), st.data())
def test_joined_keys_are_joined_in_their_order(keys: list[int], start: int, data: st.DataObject) -> None:
    whole = in_columns(pa.array(keys, pa.int64()))
    part = whole[start : data.draw(st.integers(start, 9))]
    assert ",".join(map(str, part)) == _joined(part) == _joined(list(part))
    assert str(2**64 - 1) == _joined(in_columns(pa.array([2**64 - 1], pa.uint64())))


# Bytes that are not right -----------------------------------------------------------------------------------------

OTHERS = "PostgreSQL sent texts of other lengths than it said; the connection was closed."
NOT_WHOLE = "bytes length not a multiple of item size"
NO_LENGTH = "'<' not supported between instances of 'NoneType' and 'int'"  # a statement without rows is not read


def lengths(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}i", *numbers)


WRONG: dict[str, tuple[bytes, bytes | None, type[Exception], str]] = {
    "too few": (lengths(1, 1), b"abc", TransientError, OTHERS),
    "too many": (lengths(1, 5), b"abc", TransientError, OTHERS),
    "too long": (lengths(4), b"abc", TransientError, OTHERS),
    "no texts": (lengths(1), None, TransientError, OTHERS),
    "null and empty": (lengths(-1, 0), b"a", TransientError, OTHERS),
    "null": (lengths(-1), b"a", TransientError, OTHERS),
    "characters": (lengths(1), "é".encode(), TransientError, OTHERS),
    "the longest": (lengths(2**31 - 1), b"abc", TransientError, OTHERS),
    "3 when it wraps around": (lengths(2**31 - 1, 2**31 - 1, 5), b"abc", pa.ArrowInvalid, "overflow"),
    "part of a length": (lengths(3) + b"\0", b"abc", ValueError, NOT_WHOLE),
    "no length": (b"", b"abc", TypeError, NO_LENGTH),
    "nothing": (b"", b"", TypeError, NO_LENGTH),
}


@pytest.mark.parametrize("name", WRONG)
def test_lengths_that_do_not_add_up_are_an_exception(name: str) -> None:
    sizes, texts, kind, message = WRONG[name]
    with pytest.raises(kind) as caught:
        _read_texts(sizes, texts)
    assert (kind, message) == (type(caught.value), str(caught.value))


def sent(values: list[str | None]) -> tuple[list[int], bytes | None]:
    """What the server sends for *values*: the length of each, and the bytes of all, NULL if there is no text."""
    texts = [None if value is None else value.encode() for value in values]
    present = [text for text in texts if text is not None]
    return [-1 if text is None else len(text) for text in texts], b"".join(present) if present else None


@SLOW
@given(st.lists(TEXTS, min_size=1, max_size=8))
def test_any_texts_come_out_as_they_were_sent(values: list[str | None]) -> None:
    sizes, texts = sent(values)
    array = _read_texts(lengths(*sizes), texts)
    array.validate(full=True)
    assert array.type == pa.string()
    assert values == array.to_pylist()


@SLOW
@given(st.lists(TEXTS, min_size=1, max_size=8), st.data())
def test_any_length_that_is_wrong_is_an_exception(values: list[str | None], data: st.DataObject) -> None:
    sizes, texts = sent(values)
    wrong = data.draw(st.integers(0, len(sizes) - 1))
    # No text and an empty one have as many bytes.
    others = st.integers(-3, 9) | st.integers(-(2**31), 2**31 - 1 - len(texts or b""))
    sizes[wrong] = data.draw(others.filter(lambda size: max(size, 0) != max(sizes[wrong], 0)))
    with pytest.raises(TransientError) as caught:
        _read_texts(lengths(*sizes), texts)
    assert OTHERS == str(caught.value)


@pytest.mark.parametrize(("code", "data"), [("h", b"123"), ("i", b"12345"), ("q", b"1234"), ("q", b"1")])
def test_bytes_that_are_no_whole_number_of_integers_are_an_exception(code: str, data: bytes) -> None:
    with pytest.raises(ValueError) as caught:
        _read_integers(code, data)
    assert NOT_WHOLE == str(caught.value)
    assert 0 == len(_read_integers(code, b""))


# Encodings --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
def elsewhere(postgres_server: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of a database of another encoding than UTF-8."""
    name = f"in_{request.param.lower()}"
    postgres_server.execute(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{request.param}' LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    yield postgres_server.dsn_of(name)
    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_texts_of_another_encoding_are_right(elsewhere):
    rows = [(1, "Zoë", "é"), (2, "aé", None), (3, "b", ""), (4, "éé", "naïve, 'x'")]

    async def write() -> None:
        connection = await asyncpg.connect(elsewhere)
        await connection.execute("CREATE TABLE t (id int, name text, v varchar)")
        await connection.executemany("INSERT INTO t VALUES ($1, $2, $3)", rows)
        await connection.close()

    asyncio.run(write())
    assert {row[0]: row[2] for row in rows} == all_ways(elsewhere, [1, 2, 3, 4], table="t", columns=("v",))
    assert {row[1]: row[2] for row in rows} == all_ways(
        elsewhere, [row[1] for row in rows], table="t", key="name", columns=("v",)
    )
    pairs = all_ways(elsewhere, [row[:2] for row in rows], table="t", key=("id", "name"))
    assert {row[:2]: row[2] for row in rows} == pairs
    query = "SELECT name, v, id FROM t WHERE name = ANY($1)"
    assert {row[1]: {"v": row[2], "id": row[0]} for row in rows} == all_ways(
        elsewhere, [row[1] for row in rows], query=query, key="name"
    )


# Number of bytes that the encoding stores, and of those that have no Unicode character.
@pytest.mark.parametrize(
    ("encoding", "stored", "refused"),
    [("WIN1251", 255, 1), ("WIN1253", 255, 17), ("LATIN1", 255, 0), ("EUC_KR", 8963, 609), ("SQL_ASCII", 255, 128)],
)
def test_no_byte_becomes_another_text(postgres_server, encoding, stored, refused):
    name = f"bytes_in_{encoding.lower()}"
    sql = postgres_server.execute
    sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'")
    dsn = postgres_server.dsn_of(name)
    codes = [f"{b:02x}" for b in range(1, 256)]
    if encoding == "EUC_KR":
        codes = [*codes[:127], *(f"{a:02x}{b:02x}" for a in range(0xA1, 0xFF) for b in range(0xA1, 0xFF))]

    async def write() -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text);"
            "CREATE VIEW bytes AS SELECT id, convert_to(v, getdatabaseencoding()) AS v FROM t"
        )
        # A text of SQL_ASCII holds any bytes; as a literal, a byte above 127 would have to be UTF-8.
        await connection.execute("SET client_encoding = SQL_ASCII" if encoding == "SQL_ASCII" else "SELECT 1")
        for i, code in enumerate(codes, 1):
            literal = f"convert_from('\\x{code}', getdatabaseencoding())"
            await connection.execute(f"INSERT INTO t VALUES ({i}, {literal})")
        await connection.close()

    async def ask() -> tuple[dict[int, Any], list[str]]:
        found: dict[int, Any] = {}
        errors = []
        async with opened(dsn, table="t") as connector:
            for i in range(1, len(codes) + 1):
                try:
                    found |= await connector.fetch_many([i], Call(timeout=10.0))
                except PermanentError as error:
                    errors.append(str(error))
        return found, errors

    try:
        asyncio.run(write())
        found, errors = asyncio.run(ask())
        assert (stored, refused) == (len(codes), len(errors))
        assert all("Select convert_to(column, getdatabaseencoding()) in a view" in error for error in errors)
        python = {"WIN1251": "cp1251", "WIN1253": "cp1253", "EUC_KR": "euc_kr"}.get(encoding, "latin-1")
        for i, text in found.items():
            with contextlib.suppress(UnicodeDecodeError):  # Python's EUC-KR lacks the sign of the euro
                assert text == bytes.fromhex(codes[i - 1]).decode(python), codes[i - 1]
        assert "?" not in (text for i, text in found.items() if codes[i - 1] != "3f")
        assert lookup(dsn, range(1, 256), table="bytes") == {
            i: bytes.fromhex(code) for i, code in enumerate(codes[:255], 1)
        }
    finally:
        sql(f"DROP DATABASE {name} WITH (FORCE)")


# Tables and queries -----------------------------------------------------------------------------------------------

SHAPES = """
    CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('happy', 'sad');
    CREATE DOMAIN number AS int; CREATE DOMAIN further AS number; CREATE DOMAIN word AS text; CREATE DOMAIN short AS
    varchar(9);
    CREATE TABLE plain (id int PRIMARY KEY, v text); INSERT INTO plain VALUES (1, 'é'), (2, NULL), (3, '');
    CREATE TABLE named (id text PRIMARY KEY, v varchar(9)); INSERT INTO named VALUES ('', 'empty'), ('Zoë', NULL);
    CREATE TABLE padded (id int, v char(4)); INSERT INTO padded VALUES (1, 'é'), (2, NULL);
    CREATE TABLE domains (id further, word word, short short, v number);
    INSERT INTO domains VALUES (1, 'é', 's', 5), (2, NULL, NULL, NULL);
    CREATE TABLE cis (id citext, v citext); INSERT INTO cis VALUES ('Bob', 'Ann'), ('eve', NULL);
    CREATE TABLE collated (id text COLLATE "C", v text COLLATE "POSIX", w varchar COLLATE "C");
    INSERT INTO collated VALUES ('Bob', 'Ä', 'ß'), ('eve', NULL, NULL);
    CREATE TABLE parts (id int8, v text) PARTITION BY RANGE (id);
    CREATE TABLE low PARTITION OF parts FOR VALUES FROM (MINVALUE) TO (0);
    CREATE TABLE high (v text, id int8); ALTER TABLE parts ATTACH PARTITION high FOR VALUES FROM (0) TO (MAXVALUE);
    INSERT INTO parts VALUES (-9223372036854775808, 'least'), (-1, NULL), (0, 'zero'), (9223372036854775807, 'most');
    CREATE VIEW seen AS SELECT id::int2 AS id, v || 'y' AS v, v || 'x' AS w FROM plain;
    CREATE TABLE smalls (id int2 REFERENCES plain (id), v text); INSERT INTO smalls VALUES (1, 'x'), (3, NULL);
    CREATE TABLE made (id int GENERATED ALWAYS AS IDENTITY, v text, w text GENERATED ALWAYS AS (v || '!') STORED);
    INSERT INTO made (v) VALUES ('a'), (NULL);
    CREATE TABLE mixture (id int, a json, b text, c jsonb, d uuid, e mood, f name, g numeric, h text);
    INSERT INTO mixture VALUES (1, '{"a":  1}', 'é', '[1]', 'a0eebc999c0b4ef8bb6d6bb9bd380a11', 'sad', 'n', 1.5, ''),
    (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL), (3, '1', 'b', '2', NULL, 'happy', 'm', 'NaN', 'x');
    CREATE TABLE moods (id mood, v mood); INSERT INTO moods VALUES ('happy', 'sad'), ('sad', NULL);
"""
NONE: dict[str, Any] = dict.fromkeys("abcdefgh")
FIRST = {"a": '{"a":  1}', "b": "é", "c": "[1]", "d": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "e": "sad", "f": "n"}


@pytest.fixture(scope="module")
def shapes(postgres_server: Any) -> Iterator[str]:
    """The DSN of a database with tables of many shapes."""
    dsn = postgres_server.create_database()
    postgres_server.execute(SHAPES, dsn.rpartition("/")[2])
    yield dsn
    postgres_server.drop_database(dsn)


PLAIN = {1: "é", 2: None, 3: ""}
PARTS = {-(2**63): "least", -1: None, 0: "zero", 2**63 - 1: "most"}


@pytest.mark.parametrize(
    ("config", "keys", "expected"),
    [
        ({"query": "SELECT id, v FROM plain WHERE id = ANY($1::int[])"}, [1, 2, 3, 4], PLAIN),
        ({"query": "SELECT id, v FROM plain WHERE id = ANY($1)"}, [7, 8], {}),
        (
            {"query": "SELECT k AS id, v FROM unnest($1::int8[]) AS k LEFT JOIN plain ON id = k"},
            [1, 2, 3, 4],
            PLAIN | {4: None},
        ),
        ({"query": "SELECT id, v FROM named WHERE id = ANY($1::text[])"}, ["", "Zoë", "x"], {"": "empty", "Zoë": None}),
        ({"table": "named"}, ["", "Zoë", "x"], {"": "empty", "Zoë": None}),
        ({"table": "named", "columns": ("id",)}, ["", "Zoë", "x"], {"": "", "Zoë": "Zoë"}),
        ({"table": "plain", "columns": ("id",)}, [1, 9], {1: 1}),
        ({"table": "padded"}, [1, 2, 3], {1: "é   ", 2: None}),
        ({"query": "SELECT id, v FROM padded WHERE id = ANY($1)"}, [1, 2, 3], {1: "é   ", 2: None}),
        (
            {"table": "domains"},
            [1, 2, 3],
            {1: {"word": "é", "short": "s", "v": 5}, 2: {"word": None, "short": None, "v": None}},
        ),
        ({"table": "domains", "key": "word", "columns": ("short",)}, ["é", "e"], {"é": "s"}),
        ({"table": "domains", "key": "short", "columns": ("word",)}, ["s", "e"], {"s": "é"}),
        ({"table": "domains", "key": ("id", "word"), "columns": ("short",)}, [(1, "é"), (2, "é")], {(1, "é"): "s"}),
        ({"query": "SELECT id, word FROM domains WHERE id = ANY($1::int[])"}, [1, 2, 3], {1: "é", 2: None}),
        ({"query": "SELECT short AS id, word FROM domains WHERE short = ANY($1::text[])"}, ["s", "é"], {"s": "é"}),
        ({"table": "cis"}, ["BOB", "bob", "EVE", "x"], {"BOB": "Ann", "bob": "Ann", "EVE": None}),
        (
            {"table": "collated"},
            ["Bob", "bob", "eve", "x"],
            {"Bob": {"v": "Ä", "w": "ß"}, "eve": {"v": None, "w": None}},
        ),
        ({"query": 'SELECT id, v || w AS v FROM collated WHERE id = ANY($1)'}, ["Bob"], {"Bob": "Äß"}),
        ({"table": "parts"}, [*PARTS, 5], PARTS),
        ({"query": "SELECT * FROM parts WHERE id = ANY($1)"}, [*PARTS, 5], PARTS),
        ({"table": "high"}, [0, -1], {0: "zero"}),
        ({"table": "seen"}, [1, 2, 4], {1: {"v": "éy", "w": "éx"}, 2: {"v": None, "w": None}}),
        ({"table": "smalls"}, [1, 2, 3], {1: "x", 3: None}),
        ({"query": "SELECT id, p.v FROM smalls JOIN plain p USING (id) WHERE id = ANY($1::int2[])"}, [1, 2], {1: "é"}),
        ({"table": "made"}, [1, 2, 3], {1: {"v": "a", "w": "a!"}, 2: {"v": None, "w": None}}),
        ({"table": "mixture", "columns": ("a", "b", "c", "d", "e", "f")}, [1], {1: FIRST}),
        ({"table": "mixture"}, [1, 2], {1: FIRST | {"g": 1.5, "h": ""}, 2: NONE}),
        ({"table": "moods"}, ["happy", "sad"], {"happy": "sad", "sad": None}),
    ],
)  # fmt: skip
def test_a_table_or_query_of_any_shape_gives_its_rows(
    shapes: str, config: dict[str, Any], keys: list[Any], expected: dict[Any, Any]
) -> None:
    assert expected == all_ways(shapes, keys, **config)


def test_a_refused_value_beside_texts_fails_its_own_key_only(shapes):
    for keys in ([3, 2, 1], in_columns([3, 2, 1])):
        found = lookup(shapes, keys, table="mixture")
        assert isinstance(found.pop(3), Failure)
        assert {1: FIRST | {"g": 1.5, "h": ""}, 2: NONE} == found


def test_whole_numbers_of_smaller_and_wider_columns_find_their_rows(shapes):
    for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()):
        for table, expected in (("smalls", {1: "x", 3: None}), ("plain", PLAIN), ("parts", {0: "zero"})):
            assert expected == lookup(shapes, in_columns(pa.array([0, 1, 2, 3], type_)), table=table)


@pytest.mark.parametrize("missing", [[4, 5], [1, 4], [4, 1, 2]])
@pytest.mark.parametrize("many", [False, True])
def test_a_query_that_returns_null_for_a_key_is_refused(shapes, missing, many):
    query = "SELECT id, v FROM unnest($1::int[]) AS k LEFT JOIN plain ON id = k"
    for keys in (missing, in_columns(missing)):
        with pytest.raises(FatalError, match="returned a key in 'id' that it was not asked for"):
            lookup(shapes, keys, many=many, query=query)
    texts = "SELECT id, v FROM unnest($1::text[]) AS k LEFT JOIN named ON id = k"
    with pytest.raises(FatalError, match="returned a key in 'id' that it was not asked for"):
        lookup(shapes, ["", "x"], many=many, query=texts)


def test_a_query_that_returns_null_for_a_part_of_a_key_is_refused(shapes):
    query = (
        "SELECT p.id, s.id AS b, p.v FROM unnest($1::int[], $2::int2[]) AS k (x, y) LEFT JOIN plain p ON p.id = x "
        "LEFT JOIN smalls s ON s.id = y"
    )
    for keys in ([(1, 1), (5, 3)], [(2, 1), (5, 5)], [(2, 5), (5, 1)], [(5, 5)]):
        with pytest.raises(FatalError, match="returned a key in 'id', 'b' that it was not asked for"):
            lookup(shapes, keys, query=query, key=("id", "b"))


def test_a_thousand_columns_of_texts_are_read(sql, database):
    columns = [f"c{n}" for n in range(1000)]
    sql(f"CREATE TABLE t (id int, {' text, '.join(columns)} text); INSERT INTO t (id, c999) VALUES (1, 'last')")
    found = lookup(database, [1], table="t")
    assert dict.fromkeys(columns) | {"c999": "last"} == found[1]


def test_a_statement_for_many_columns_is_prepared_once(sql, database):
    columns = [f"c{n}" for n in range(200)]
    sql(f"CREATE TABLE t (id int, {' text, '.join(columns)} text); INSERT INTO t (id, c0) VALUES (1, 'first')")
    prepared = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE $1"

    async def run() -> list[int]:
        async with opened(database, table="t") as connector:
            found = []
            for _ in range(3):
                await connector.fetch_many([1], Call(timeout=10.0))
                [session] = connector._pool._idle
                found.append(await session.connection.fetchval(prepared, '%"c199"%'))
            return found

    assert [1, 1, 1] == asyncio.run(run())


@pytest.mark.parametrize(
    ("column", "type_"),
    [("id", "int8"), ("small", "int4"), ("small", "int8"), ("big", "int4"), ("v", "varchar(9)"), ("v", "char(5)")],
)
def test_a_column_whose_type_changes_while_it_is_asked_gives_its_values(sql, database, column, type_):
    sql("CREATE TABLE t (id int4, small int2, big int8, v text); INSERT INTO t VALUES (1, 1, 1, 'a'), (2, 2, 2, NULL)")

    async def run() -> None:
        async with opened(database, table="t", key=column if column != "v" else "id", columns=("v",)) as connector:
            assert {1: "a", 2: None} == await connector.fetch_many([1, 2], Call(timeout=10.0))
            await asyncio.to_thread(sql, f"ALTER TABLE t ALTER {column} TYPE {type_}")
            found = dict(await connector.fetch_many([1, 2], Call(timeout=10.0)))
            assert {1: "a", 2: None} == {key: value and value.rstrip() for key, value in found.items()}

    asyncio.run(run())


# Through the engine -----------------------------------------------------------------------------------------------


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopThread]:
    """The loop thread of this test, which ends with it."""
    made = LoopThread()
    monkeypatch.setattr(task, "loop_thread", lambda: made)
    yield made
    loop = made._loop
    loop.call_soon_threadsafe(loop.stop)
    made._thread.join(5.0)
    for engine in made.engines.values():
        loop.run_until_complete(engine.close())
    loop.close()


@pytest.mark.parametrize(
    ("column", "returns", "statuses"),
    [
        ("v", spark.StringType(), {"ok": 3, "missing": 2}),
        ("v", spark.BinaryType(), {"error": 2, "ok": 1, "missing": 2}),
        ("v", spark.IntegerType(), {"error": 2, "ok": 1, "missing": 2}),
        ("n", spark.StringType(), {"error": 2, "ok": 1, "missing": 2}),
        ("n", spark.LongType(), {"ok": 3, "missing": 2}),
        ("d", spark.DateType(), {"error": 3, "missing": 2}),
        ("v", spark.ArrayType(spark.StringType()), {"error": 2, "ok": 1, "missing": 2}),
        (None, spark.StructType().add("v", "string").add("n", spark.IntegerType()), {"ok": 3, "missing": 2}),
        (None, spark.StructType().add("n", "string").add("v", "string"), {"error": 2, "ok": 1, "missing": 2}),
        (None, spark.StructType().add("v", "binary").add("d", "string"), {"error": 2, "ok": 1, "missing": 2}),
        (None, spark.StructType().add("v", "string").add("d", "string"), {"ok": 3, "missing": 2}),
    ],
    ids=str,
)
@pytest.mark.parametrize("keys", [pa.array([4, 1, 9, 2, 3, None, 1]), pa.array([3, 2, 1])], ids=["some", "all"])
def test_what_is_declared_is_what_the_way_key_by_key_gives(
    sql, database, thread, monkeypatch, column, returns, statuses, keys
):
    sql("CREATE TABLE t (id int PRIMARY KEY, v text, n int, d varchar)")
    sql("INSERT INTO t VALUES (1, 'é', 1, 'x'), (2, '', 2, 'y'), (3, NULL, NULL, 'z')")
    said = []
    for by_key in (False, True):
        if by_key:
            monkeypatch.setattr(task, "column_reader", lambda *_: lambda *_: 1 / 0)
        config = PostgresConfig(dsn=database, table="t", columns=(column,) if column else ())
        plan, _ = make_plan(config, 1, returns, {"details": True})
        rows = [row for part in entry.arrow_batches(pack(plan), [(keys,)]) for row in part.to_pylist()]
        said.append([{**row, "latency_ms": None, "latency": None} for row in rows])
    assert said[0] == said[1]
    asked = {key: row["status"] for key, row in zip(keys.to_pylist(), said[0], strict=True) if key is not None}
    if None in keys.to_pylist():
        assert statuses == Counter(asked.values())


# Work of the server -----------------------------------------------------------------------------------------------


def test_a_computed_value_is_computed_once(sql, database):
    sql(
        "CREATE FUNCTION told(int) RETURNS text STABLE LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE NOTICE 'computed'; RETURN 'v' || $1; END $$"
    )
    sql("CREATE TABLE t (id int); INSERT INTO t VALUES (1), (2), (3); CREATE VIEW told AS SELECT id, told(id) FROM t")
    notices: list[Any] = []

    async def run(**config: Any) -> None:
        async with opened(database, **config) as connector:
            connection = connector._pool._idle[0].connection
            connection.add_log_listener(lambda _, message: notices.append(message))
            assert {1: "v1", 3: "v3"} == await connector.fetch_many([1, 3], Call(timeout=10.0))

    asyncio.run(run(query="SELECT id, told(id) AS v FROM t WHERE id = ANY($1)"))
    assert 2 == len(notices)
    notices.clear()
    asyncio.run(run(table="told"))
    assert 2 == len(notices)


@pytest.mark.parametrize("key", ["int", "int PRIMARY KEY", "smallint", "bigint UNIQUE", "text", "text PRIMARY KEY"])
@pytest.mark.parametrize("plan", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("rows", [0, 50, 20_000])
def test_no_plan_takes_the_keys_apart_for_each_row(sql, database, key, plan, rows):
    sql(f"CREATE TABLE t (id {key}, v text)")
    sql(f"INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, {rows}) i; ANALYZE t")

    async def explained() -> list[str]:
        async with opened(database, table="t") as connector:
            request = connector._statement.request(["1", "2"] if key.startswith("text") else [1, 2])
            (keys,) = request.arguments
            given = keys if isinstance(keys, str) else f"{{{','.join(map(str, keys))}}}"
            connection = await asyncpg.connect(database)
            try:
                await connection.execute(f"SET plan_cache_mode = {plan}; PREPARE asked AS {connector._statement.sql}")
                return [line.strip() for (line,) in await connection.fetch(f"EXPLAIN EXECUTE asked ('{given}', 1)")]
            finally:
                await connection.close()

    conditions = [
        line for line in asyncio.run(explained()) if line.startswith(("Filter:", "Index Cond:", "Recheck Cond:"))
    ]
    assert conditions
    assert not any("string_to_array" in condition for condition in conditions)
    if plan == "force_custom_plan" and not key.endswith(("KEY", "UNIQUE")):
        assert all("'{1,2}'" in condition for condition in conditions)  # so that the server hashes them


def test_rows_of_several_processes_stay_together(sql, database):
    name = database.rpartition("/")[2]
    for setting in ("min_parallel_table_scan_size", "parallel_setup_cost", "parallel_tuple_cost"):
        sql(f"ALTER DATABASE {name} SET {setting} = 0")
    sql("CREATE TABLE t (id int, v text, w text, n int); ALTER TABLE t SET (parallel_workers = 2)")
    sql(
        "INSERT INTO t SELECT i, 'v' || i, CASE WHEN i % 3 > 0 THEN repeat('é', i % 7) END, i "
        "FROM generate_series(1, 20000) i"
    )
    sql("ANALYZE t")
    try:
        found = lookup(database, in_columns(pa.array(range(1, 4001))), table="t")
    finally:
        sql(f"ALTER DATABASE {name} RESET ALL")
    expected = {n: {"v": f"v{n}", "w": "é" * (n % 7) if n % 3 else None, "n": n} for n in range(1, 4001)}
    assert expected == found
