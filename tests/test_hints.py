"""Messages lead to what the user meant."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from enrichkit_mariadb import MariadbConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_sqlite import SqliteConfig

from enrichkit import (
    ConfigError,
    ConnectorConfig,
    UnknownConnectorError,
    enrich_frame,
    explain,
    register,
)
from enrichkit.driver.planner import make_plan
from enrichkit.errors import UnknownOptionError
from enrichkit.options import Options
from enrichkit.sources import config as sources
from enrichkit.sources.registry import FIRST_PARTY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def refusal(make: Callable[[], object], error: type[ConfigError] = ConfigError) -> str:
    with pytest.raises(error) as raised:
        make()
    return str(raised.value)


def test_a_misspelt_field_of_a_config_an_absent_one_and_one_without_its_name_are_named() -> None:
    @dataclass(frozen=True, kw_only=True)
    class ShelfConfig(ConnectorConfig):
        path: str
        depth: int = 1

    assert refusal(lambda: ShelfConfig(pth="/a")) == (  # type: ignore[call-arg]
        "ShelfConfig has no field 'pth'. Did you mean 'path'? Its fields: path, depth, returns."
    )
    names = [each.name for each in fields(HttpConfig) if each.name != "returns"]
    assert refusal(lambda: HttpConfig(urll="http://127.0.0.1/{}")) == (  # type: ignore[call-arg]
        f"HttpConfig has no field 'urll'. Did you mean 'url'? Its fields: {', '.join(names)}, returns."
    )
    assert refusal(lambda: ShelfConfig("/a")) == (  # type: ignore[call-arg, misc]
        "ShelfConfig takes each field by its name, as in ShelfConfig(path=...). Its fields: path, depth, returns."
    )
    assert refusal(lambda: ShelfConfig(depth=2)) == (  # type: ignore[call-arg]
        "ShelfConfig needs 'path'. Its fields: path, depth, returns."
    )


def test_explain_knows_its_own_arguments() -> None:
    own = ("keys", "rows", "task_slots", "expressions", "latency", "returns")
    of_enrich = [each.name for each in fields(Options) if each.name != "ordered"]
    assert refusal(lambda: explain(HttpConfig(url="http://127.0.0.1/{}"), key=10)) == (  # type: ignore[call-arg]
        f"explain() has no option 'key'. Did you mean 'keys'? Options: {', '.join([*own, *of_enrich])}. What concerns "
        "the source belongs to its config."
    )


@pytest.mark.parametrize("source", ["http", "users", HttpConfig(url="http://127.0.0.1/{}")])
def test_a_field_of_the_config_among_the_options_leads_to_the_config(fresh_registry: None, source: Any) -> None:
    register("users", HttpConfig(url="http://127.0.0.1/{}"))
    wrong: Any = {"timeout": 1, "headers": {}}
    frame: Any = None
    for function, call in {
        "enrich()": lambda: make_plan(source, 1, None, wrong),
        "enrich_frame()": lambda: enrich_frame(frame, source, on="user", **wrong),
        "explain()": lambda: explain(source, **wrong),
    }.items():
        assert refusal(call, UnknownOptionError) == (
            f"{function} has no option 'headers'; it is a field of the source's config. Set it there, as in "
            f"HttpConfig(headers=...), and give that config to {function}."
        )


def test_a_field_of_a_source_of_the_file_leads_to_its_config(
    fresh_registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "enrichkit.toml").write_text("[sources.people]\ntype = 'http'\n[sources.odd]\ntype = 7\n")
    monkeypatch.chdir(tmp_path)
    assert refusal(lambda: make_plan("people", 1, None, {"headers": {}}), UnknownOptionError) == (
        "enrich() has no option 'headers'; it is a field of the source's config. Set it there, as in "
        "HttpConfig(headers=...), and give that config to enrich()."
    )
    refused = refusal(lambda: make_plan("odd", 1, None, {"headers": {}}), UnknownOptionError)
    assert refused.startswith("enrich() has no option 'headers'. Options: ")


def test_an_option_is_suggested_for_one_that_looks_like_it_and_for_no_other() -> None:
    assert refusal(lambda: Options.of({"url": "http://127.0.0.1/{}"})).startswith("enrich() has no option 'url'. Opt")
    assert refusal(lambda: Options.of({"timeuot": 1})).startswith("enrich() has no option 'timeuot'. Did you mean 'ti")


@pytest.mark.parametrize("source", ["http", "htp", 7])
def test_another_unknown_option_does_not(source: Any) -> None:
    refused = refusal(lambda: make_plan(source, 1, None, {"timeuot": 1}), UnknownOptionError)
    assert refused.startswith("enrich() has no option 'timeuot'. Did you mean 'timeout'? Options: ")


def test_more_keys_per_request_lead_to_bulk() -> None:
    assert refusal(lambda: explain(HttpConfig(url="http://127.0.0.1/{}"), batch_size=10)) == (
        "batch_size is 10; the connector 'http' takes at most 1 keys per call. Set batch_size=1. If the service takes "
        "many keys in one POST, say so with HttpConfig(bulk=True)."
    )


def test_a_registered_source_is_suggested_for_a_misspelt_one(fresh_registry: None) -> None:
    register("users", HttpConfig(url="http://127.0.0.1/{}"))
    text = refusal(lambda: explain("usres"), UnknownConnectorError)
    known = ", ".join(map(repr, sorted([*FIRST_PARTY, "users"])))
    assert text == (
        f"No connector is named 'usres'. Did you mean 'users'? Installed or registered: {known}. Install a plugin, or "
        "call enrichkit.register('usres', config)."
    )


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("SqliteConfig", lambda **fields: SqliteConfig(path="/a.db", table="users", **fields)),
        ("PostgresConfig", lambda **fields: PostgresConfig(dsn="postgresql://a@b/c", table="users", **fields)),
        ("MariadbConfig", lambda **fields: MariadbConfig(url="mysql://a@b/c", table="users", **fields)),
    ],
)
def test_the_value_of_one_column_is_no_struct(name: str, make: Callable[..., object]) -> None:
    returns = "struct<name:string>"  # as enrich() gives it to a config, whatever the user has written
    assert refusal(lambda: make(columns=("name",), returns=returns)) == (
        f"{name}.columns names one column, 'name', so a value is that of the column and no struct; returns is "
        f"{returns!r}, a struct. Say returns='string', or name more columns."
    )
    for returns in ("string", "struct<city:string,zip:string>"):  # a column may hold a document
        make(columns=("name",), returns=returns)
    make(columns=("name", "tier"), returns="struct<name:string>")


def test_the_default_address_is_told_once(
    fresh_registry: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sources, "_told", set())
    monkeypatch.delenv("ENRICHKIT_REDIS_URL", raising=False)
    with caplog.at_level(logging.WARNING, "enrichkit"):
        for _ in range(2):
            sources.find_source("redis")
    text = (
        "redis: nothing says where the source is, so it is asked at redis://localhost:6379/0. Another address is set "
        "by enrichkit.register('redis', ...) or the environment variable ENRICHKIT_REDIS_URL."
    )
    assert [record.getMessage() for record in caplog.records] == [text]
    caplog.clear()
    monkeypatch.setattr(sources, "_told", set())
    monkeypatch.setenv("ENRICHKIT_REDIS_URL", "redis://cache.example:6379/0")
    sources.find_source("redis")
    assert not caplog.records
