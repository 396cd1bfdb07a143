"""The contract kit on a table with each kind of key, on a view with several value columns, and on a query."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_sqlite import SqliteConfig, SqliteConnector

from enrichkit.testing import ConnectorContract

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TEXTS = {"plain": "1", "o'clock": "two", "\N{SNOWMAN} man": "drei", "": "", '"q"': "five"}


class OneFile(ConnectorContract):
    """A file of its own for each check."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> str:
        return str(tmp_path / "with a ? and 100%.db")

    @pytest.fixture
    def missing_key(self) -> Any:
        return "nobody"


def fill(path: str, schema: str, insert: str, rows: list[tuple[Any, ...]]) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(schema)
        db.executemany(insert, rows)


class TestATextForAText(OneFile):
    @pytest.fixture
    def connector(self, path: str) -> SqliteConnector:
        return SqliteConnector(SqliteConfig(path=path, table="users"))

    @pytest.fixture
    def known(self, path: str) -> dict[Any, Any]:
        fill(
            path,
            "CREATE TABLE users (id TEXT PRIMARY KEY, name TEXT)",
            "INSERT INTO users VALUES (?, ?)",
            list(TEXTS.items()),
        )
        return TEXTS

    @pytest.fixture
    def unreadable(self, path: str, known: dict[Any, Any]) -> Sequence[Any]:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("INSERT INTO users VALUES ('no text', CAST(x'ff' AS TEXT)), ('a blob', x'00'), ('half', x'c3')")
        return ["no text", "a blob", "half"]


class TestAStructForTwoColumns(OneFile):
    """A view whose names must be quoted."""

    @pytest.fixture
    def connector(self, path: str) -> SqliteConnector:
        config = SqliteConfig(path=path, table='the "users"', key=("tenant", "user id"), columns=("full name", "tier"))
        return SqliteConnector(config)

    @pytest.fixture
    def known(self, path: str) -> dict[Any, Any]:
        fill(
            path,
            """
            CREATE TABLE raw (tenant TEXT, "user id" INTEGER, "full name" VARCHAR(20), tier REAL, more BLOB,
                PRIMARY KEY (tenant, "user id"));
            CREATE VIEW 'the "users"' AS SELECT * FROM raw;
            """,
            "INSERT INTO raw VALUES (?, ?, ?, ?, x'00')",
            [(key, n, value, n / 2) for n, (key, value) in enumerate(TEXTS.items())],
        )
        return {(key, n): {"full name": value, "tier": n / 2} for n, (key, value) in enumerate(TEXTS.items())}

    @pytest.fixture
    def missing_key(self) -> Any:
        return "nobody", 5


class TestBytesForAnInteger(OneFile):
    """A query of a strict table."""

    @pytest.fixture
    def connector(self, path: str) -> SqliteConnector:
        query = "SELECT value FROM blobs WHERE id = ?1 -- to the end"
        return SqliteConnector(SqliteConfig(path=path, query=query, returns="binary"))

    @pytest.fixture
    def known(self, path: str) -> dict[Any, Any]:
        values = {1: b"\x00\xff", 2**63 - 2: b"", -7: b"v"}
        fill(
            path,
            "CREATE TABLE blobs (id INTEGER PRIMARY KEY, value BLOB) STRICT",
            "INSERT INTO blobs VALUES (?, ?)",
            list(values.items()),
        )
        return values

    @pytest.fixture
    def missing_key(self) -> Any:
        return 400


class TestWritable(OneFile):
    @pytest.fixture
    def connector(self, path: str) -> SqliteConnector:
        config = SqliteConfig(path=path, table="kept", key=("tenant", "id"), expires="until", writable=True)
        return SqliteConnector(config)

    @pytest.fixture
    def known(self, path: str) -> dict[Any, Any]:
        fill(
            path,
            "CREATE TABLE kept (tenant TEXT, id INTEGER, name TEXT, tier INTEGER, size REAL, until REAL, "
            "PRIMARY KEY (id, tenant))",
            "INSERT INTO kept (tenant, id, name, tier, size) VALUES (?, ?, ?, ?, ?)",
            [(key, n, value, n, n / 4) for n, (key, value) in enumerate(TEXTS.items())],
        )
        return {(key, n): {"name": value, "tier": n, "size": n / 4} for n, (key, value) in enumerate(TEXTS.items())}

    @pytest.fixture
    def missing_key(self) -> Any:
        return "nobody", 5


class TestWritableText(TestATextForAText):
    @pytest.fixture
    def connector(self, path: str) -> SqliteConnector:
        return SqliteConnector(SqliteConfig(path=path, table="users", writable=True))
