"""The fields that `SqliteConfig` takes and refuses, with whole messages."""

from __future__ import annotations

from typing import Any

import pytest
from enrichkit_sqlite import SqliteConfig

from enrichkit import ConfigError
from enrichkit.sources.config import find_source


def refusal(**fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        SqliteConfig(**{"path": "/data/shop.db", "table": "users", **fields})
    return str(caught.value)


@pytest.mark.parametrize(
    "path", ["shop.db", "./shop.db", "~/shop.db", ":memory:", "", "file:/data/shop.db", "/a\0b", 7]
)
def test_the_path_is_absolute(path: Any) -> None:
    assert refusal(path=path) == (
        f"SqliteConfig.path is {path!r}; it must be the absolute path of a file, because each worker has a current "
        "folder of its own. For example path='/data/shop.db'."
    )


EXAMPLES = (
    "SqliteConfig(path='/data/shop.db', table='users', key='id') or SqliteConfig(path='/data/shop.db', query='SELECT "
    "name FROM users WHERE id = ?1', returns='string')"
)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [({"query": "SELECT 1"}, "both a table and a query"), ({"table": None}, "neither a table nor a query")],
)
def test_there_is_a_table_or_a_query(fields: dict[str, Any], fault: str) -> None:
    assert f"SqliteConfig has {fault}; it must have one of them. Write {EXAMPLES}." == refusal(**fields)


@pytest.mark.parametrize("field", ["key", "columns", "table"])
def test_a_name_is_a_text(field: str) -> None:
    noun = "table" if field == "table" else "column"
    value = "" if field == "table" else ("",)
    expected = f"SqliteConfig.{field} holds an empty name; it must be the name of a {noun}. "
    assert f"{expected}Write the name as the database has it." == refusal(**{field: value})


def test_a_query_takes_the_key_and_has_a_declared_type() -> None:
    query: dict[str, Any] = {"table": None, "query": "SELECT name FROM users WHERE id = ?1", "returns": "string"}
    assert SqliteConfig(path="/data/shop.db", **query).key_parts == 1
    assert refusal(**query, columns=("name",)) == (
        "SqliteConfig.columns is ('name',) beside a query; it must be empty then. Select these columns in the query."
    )
    assert refusal(**query, key=("tenant", "id")) == (
        "SqliteConfig.query does not mention ?2; it takes one value for each of the 2 key columns, for example WHERE "
        "id = ?2."
    )
    assert refusal(**{**query, "returns": None}) == (
        "SqliteConfig.query comes without returns, and SQLite does not know the types of a query; it must be the type "
        "of one value. For example returns='name string, tier int'."
    )
    assert refusal(**{**query, "query": "SELECT '\0' WHERE ?1"}) == (
        r"SqliteConfig.query is "
        rf""""SELECT '\x00' WHERE ?1"; it must be one SELECT statement, a str without NUL. Write {EXAMPLES}."""
    )


def test_the_environment_configures_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENRICHKIT_SQLITE_PATH", "/data/shop.db")
    monkeypatch.setenv("ENRICHKIT_SQLITE_TABLE", "users")
    monkeypatch.setenv("ENRICHKIT_SQLITE_KEY", "tenant, id")
    assert SqliteConfig(path="/data/shop.db", table="users", key=("tenant", "id")) == find_source("sqlite")[2]
