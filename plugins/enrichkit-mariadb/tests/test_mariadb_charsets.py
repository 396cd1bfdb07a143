"""Texts in each character set of MariaDB: no `?` that the table does not hold, and the bytes for who wants them."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_mariadb import MariadbConfig

from enrichkit.errors import ConfigError, FatalError
from enrichkit.plugin import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    Sql = Callable[[str], str]
    Ask = Any

# Number of bytes, or of pairs of bytes, that the set holds and does not map to Unicode. 0: it maps all.
REPLACED = {
    "armscii8": 0,
    "ascii": 128,
    "big5": 263,
    "cp1250": 5,
    "cp1251": 1,
    "cp1256": 8,
    "cp1257": 12,
    "cp850": 0,
    "cp852": 0,
    "cp866": 0,
    "cp932": 1676,
    "dec8": 14,
    "eucjpms": 934,
    "euckr": 5380,
    "gb2312": 733,
    "gbk": 2149,
    "geostd8": 41,
    "greek": 6,
    "hebrew": 36,
    "hp8": 1,
    "keybcs2": 0,
    "koi8r": 0,
    "koi8u": 0,
    "latin1": 0,
    "latin2": 0,
    "latin5": 0,
    "latin7": 0,
    "macce": 0,
    "macroman": 0,
    "sjis": 4401,
    "swe7": 129,
    "tis620": 9,
    "ucs2": 0,
    "ujis": 1017,
    "utf16": 0,
    "utf16le": 0,
    "utf32": 0,
    "utf8mb3": 0,
}
PAIRS = ("big5", "cp932", "eucjpms", "euckr", "gb2312", "gbk", "sjis", "ujis")


@pytest.mark.parametrize("charset", REPLACED)
def test_no_byte_becomes_a_question_mark(sql: Sql, url: str, ask: Ask, charset: str) -> None:
    sql(
        f"SET sql_mode = ''; CREATE TABLE t (id int PRIMARY KEY, v varchar(8) CHARACTER SET {charset}); "
        f"INSERT IGNORE INTO t SELECT seq, CONVERT(UNHEX(HEX(CHAR(seq))) USING {charset}) FROM seq_0_to_255"
    )
    if charset in PAIRS:
        sql(
            f"INSERT IGNORE INTO t SELECT seq, CONVERT(UNHEX(LPAD(HEX(seq), 4, '0')) USING {charset}) "
            "FROM seq_32768_to_65535"
        )
    lines = [line.split("\t") for line in sql("SELECT id, HEX(v), HEX(CONVERT(v USING utf8mb4)) FROM t").splitlines()]
    stored = {int(key): (bytes.fromhex(raw), bytes.fromhex(sent)) for key, raw, sent in lines if raw != "NULL"}
    answers: dict[int, Any] = {}
    for start in range(0, 65_536, 8192):
        keys = [key for key in stored if start <= key < start + 8192]
        if keys:
            answers |= ask.lookup(url, keys, table="t")
    refused = {key for key, answer in answers.items() if isinstance(answer, Failure)}
    for key, (raw, sent) in stored.items():
        questions = raw.count(b"\0?" if charset in ("ucs2", "utf16", "utf32") else b"?")
        replaced = sent.count(b"?") > questions or b"\xef\xbf\xbd" in sent
        assert (key in refused) is replaced, (charset, raw, sent)
        if not replaced:
            assert answers[key] == sent.decode(), (charset, raw)
    assert len(refused) == REPLACED[charset]


REFUSED = (
    "PermanentError: The column 'v' of the table {database}.t holds bytes that its character set {charset} does not "
    "map to Unicode, and MariaDB would send '?' in their place. Name the column in MariadbConfig.as_bytes, to read its "
    "bytes as they are stored."
)
UNMAPPED = (
    "PermanentError: The key has a character that the character set {charset} of the key column 'k' of the table "
    "{database}.t does not map, and MariaDB would look for '?' in its place. Name the column in "
    "MariadbConfig.as_bytes, to look rows up by the bytes that they hold."
)


def said(answer: Failure) -> str:
    return f"{type(answer.error).__name__}: {answer.error}"


# The collation latin2_czech_cs has a map of its own. A ucs2 or utf32 column may hold half a surrogate pair.
@pytest.mark.parametrize(
    ("column", "raw"),
    [
        ("varchar(9) CHARACTER SET cp1251", "61983f62"),
        ("text CHARACTER SET ascii", "61e9"),
        ("varchar(9) CHARACTER SET sjis", "8540"),
        ("varchar(9) CHARACTER SET tis620", "fe"),
        ("varchar(9) CHARACTER SET latin2 COLLATE latin2_czech_cs", "7f"),
        ("varchar(9) CHARACTER SET ucs2", "0041d800"),
        ("varchar(9) CHARACTER SET utf32", "000000410000dc00"),
    ],
)
def test_bytes_without_a_character_are_an_error_of_their_row_or_binary(
    sql: Sql, url: str, ask: Ask, column: str, raw: str
) -> None:
    charset = column.partition("CHARACTER SET ")[2].split()[0]
    sql(f"CREATE TABLE t (id int PRIMARY KEY, v {column}); INSERT INTO t VALUES (2, '?'), (3, NULL)")
    sql(f"INSERT INTO t VALUES (1, _{charset} X'{raw}')")
    answers = ask.lookup(url, [1, 2, 3, 4], table="t")
    assert said(answers.pop(1)) == REFUSED.format(database=url.rpartition("/")[2], charset=charset)
    assert answers == {2: "?", 3: None}
    question = "?".encode({"ucs2": "utf-16-be", "utf32": "utf-32-be"}.get(charset, "ascii"))
    stored = ask.lookup(url, [1, 2, 3, 4], table="t", as_bytes=("v",))
    assert stored == {1: bytes.fromhex(raw), 2: question, 3: None}
    assert ask.describe(url, table="t", as_bytes=("v",)) == "binary"


def test_a_key_that_the_column_cannot_hold_is_an_error_of_its_row(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE t (k varchar(9) CHARACTER SET cp1251 PRIMARY KEY, v int)")
    sql("INSERT INTO t VALUES ('a?b', 1), (_cp1251 X'619862', 2), ('\u0444', 3)")
    answers = ask.lookup(url, ["a?b", "a\x98b", "\u0444", "\u00e9?", "none"], table="t", key="k")
    expected = UNMAPPED.format(database=url.rpartition("/")[2], charset="cp1251")
    assert said(answers.pop("a\x98b")) == said(answers.pop("\u00e9?")) == expected
    assert answers == {"a?b": 1, "\u0444": 3}
    by_bytes = ask.lookup(url, [b"a?b", b"a\x98b", b"\xf4", b"\x98"], table="t", key="k", as_bytes="k")
    assert by_bytes == {b"a?b": 1, b"a\x98b": 2, b"\xf4": 3}


def test_a_key_of_several_parts_is_checked_part_by_part(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE t (i int, k varchar(9) CHARACTER SET cp1251, v int, PRIMARY KEY (i, k))")
    sql("INSERT INTO t VALUES (1, '?', 1), (1, _cp1251 X'98', 2), (2, 'a', 3)")
    answers = ask.lookup(url, [(1, "?"), (1, "\x98"), (9, "\x98"), (2, "a")], table="t", key=("i", "k"), columns="v")
    assert {key: isinstance(answer, Failure) for key, answer in answers.items()} == {
        (1, "?"): False,
        (1, "\x98"): True,
        (9, "\x98"): True,
        (2, "a"): False,
    }
    assert (answers[1, "?"], answers[2, "a"]) == (1, 3)


def test_a_set_that_maps_all_bytes_finds_no_row_for_a_key_beyond_it(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE t (k varchar(9) CHARACTER SET latin1 PRIMARY KEY, v int); INSERT INTO t VALUES ('?', 1)")
    assert ask.lookup(url, ["?", "\u0444"], table="t", key="k") == {"?": 1}


def test_the_bytes_of_a_key_use_its_index(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE t (k varchar(20) CHARACTER SET cp1251 PRIMARY KEY, v int)")
    sql("INSERT INTO t SELECT seq, seq FROM seq_1_to_20000; FLUSH STATUS")
    before = int(sql("SHOW GLOBAL STATUS LIKE 'Handler_read_rnd_next'").split()[1])
    keys = [str(i).encode() for i in range(1, 101)]
    assert len(ask.lookup(url, keys, table="t", key="k", as_bytes="k")) == 100
    assert int(sql("SHOW GLOBAL STATUS LIKE 'Handler_read_rnd_next'").split()[1]) - before < 10_000


def test_a_column_that_has_no_texts_has_no_bytes_to_read(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE t (id int PRIMARY KEY, v int)")
    name = url.rpartition("/")[2]
    assert str(ask.failure(url, table="t", as_bytes=("v",))) == (
        f"MariadbConfig.as_bytes names the column 'v' of the table {name}.t, which has the type int(11); it must be a "
        "column of texts. Leave it out of as_bytes."
    )
    assert str(ask.failure(url, table="t", as_bytes=("w",))) == (
        f"MariadbConfig.as_bytes names the column 'w', which the table {name}.t does not have. Its columns: 'id', 'v'."
    )
    with pytest.raises(ConfigError, match=r"^MariadbConfig\.as_bytes is 5; it must be a tuple of names"):
        MariadbConfig(url=url, table="t", as_bytes=5)  # type: ignore[arg-type]


def test_a_decimal_is_a_key_of_an_unsigned_bigint(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE t (id bigint unsigned PRIMARY KEY, v int)")
    sql(f"INSERT INTO t VALUES ({2**64 - 1}, 1), ({2**63}, 2), (0, 3)")
    keys = [Decimal(2**64 - 1), Decimal(2**63), Decimal(0), Decimal(7)]
    assert ask.lookup(url, keys, table="t") == {keys[0]: 1, keys[1]: 2, keys[2]: 3}
    for wrong in (Decimal("0.5"), Decimal(2**64), Decimal(-1), Decimal("NaN"), Decimal("Infinity")):
        answers = ask.lookup(url, [wrong, Decimal(0)], table="t")
        assert isinstance(answers[wrong], Failure), wrong
        assert answers[Decimal(0)] == 3


def test_keys_of_a_set_that_does_not_map_all_bytes_are_not_listed(sql: Sql, url: str, ask: Ask) -> None:
    sql("CREATE TABLE t (k varchar(9) CHARACTER SET cp1251 PRIMARY KEY, v int); INSERT INTO t VALUES ('a', 1)")
    sql("INSERT INTO t VALUES (_cp1251 X'98', 2)")

    async def listed(kind: type, **config: Any) -> list[Any]:
        async with ask.opened(url, table="t", key="k", **config) as connector:
            return [key async for page in connector.scan((kind,), 10) for key in page]

    with pytest.raises(FatalError) as caught:
        asyncio.run(listed(str))
    assert str(caught.value) == (
        f"The key column 'k' of the table {url.rpartition('/')[2]}.t has the character set cp1251, which does not map "
        "all bytes to Unicode, so its keys cannot be listed. Leave preload out, or name the column in "
        "MariadbConfig.as_bytes, if its keys are binary in Spark, too."
    )
    assert sorted(asyncio.run(listed(bytes, as_bytes="k"))) == [b"a", b"\x98"]
