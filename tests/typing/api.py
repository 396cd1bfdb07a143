"""
Each public name as users write it, for type checkers; never run.

A line that must be refused says so to mypy and to pyright, which both complain of a comment that they do not need.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any, TypedDict, assert_type

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

import enrichkit
from enrichkit import (
    Answers,
    Cache,
    Call,
    ConfigError,
    Connector,
    ConnectorConfig,
    EnrichkitError,
    Failure,
    FatalError,
    Keys,
    LookupFailedError,
    Options,
    PermanentError,
    Retry,
    Secret,
    TransientError,
    UnknownConnectorError,
    connectors,
    default,
    describe,
    enrich,
    enrich_frame,
    enriched,
    errors,
    explain,
    hookimpl,
    register,
    register_function,
)
from enrichkit.sql import Pool, Session, Source, SqlConfig, SqlConnector, SqlServerConfig, no_table, quote, tls_context
from enrichkit.testing import ConnectorContract, FaultProxy, fault_proxy, open_connector


class User(TypedDict):
    name: str


@dataclass
class Place:
    city: str


def columns(df: DataFrame) -> None:
    assert_type(enrich("users", "user_id"), Column)
    assert_type(enrich(ConnectorConfig(), F.col("tenant"), "user_id"), Column)
    enrich("users", "user_id", returns="name string")
    enrich("users", "user_id", returns=StringType())
    enrich("users", "user_id", returns=pa.schema([("name", pa.string())]))
    enrich("users", "user_id", returns=User)
    enrich("users", "user_id", returns=Place)
    enrich("users", "user_id", returns=list[str])
    enrich("users", "user_id", capacity=8, timeout=0.5, retry=None, cache=Cache(ttl=60), on_timeout="null")
    enrich("users", "user_id", on_error=lambda key: None, on_missing=default({"name": "nobody"}), details=True)
    enrich("users", "user_id", timeuot=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    enrich("users", "user_id", capacity="8")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    enrich("users", "user_id", cache=60)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    enrich("users", 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    enrich(5, "user_id")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    enrich("users", "user_id", ordered=False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def frames(df: DataFrame) -> None:
    assert_type(enrich_frame(df, "users", on="user_id"), DataFrame)
    assert_type(enriched("users", on=["tenant", F.col("id")], how="inner"), Callable[[DataFrame], DataFrame])
    assert_type(df.transform(enriched("users", on="user_id", many="array", rate=10.0)), DataFrame)
    enrich_frame(df, "users", on="user_id", many=True, ordered=False, barrier="minute", columns=["name"], into="user")
    enrich_frame(df, "users")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    enrich_frame(df, "users", on="id", how="outer")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    enrich_frame(df, "users", on="id", many="list")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    enriched("users", how="inner")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def sql(spark: SparkSession) -> None:
    assert_type(register_function(spark, "user_of", "users", timeout=0.5, deterministic=True), None)
    register_function(spark, "user_of", "users", timeuot=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def sources() -> None:
    assert_type(register("users", ConnectorConfig(returns="string")), None)
    assert_type(connectors()["redis"].version, str)
    assert_type(explain("users", keys=1000, latency=0.02, timeout=0.5).capacity, int)
    assert_type(describe("users").key_columns, int | None)
    assert_type(Secret.env("PASSWORD"), Secret)
    assert_type(Secret.file("/run/secrets/password"), Secret)
    register("users", "redis")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    explain("users", key=1000)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def options() -> None:
    assert_type(Options().timeout, float | None)
    assert_type(Options(retry=Retry(attempts=5, wait=0.1)).retry, Retry | None)
    assert_type(Cache(ttl=60, missing_ttl=None).max_bytes, int)
    Cache()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Retry(attempts=2).attempts = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    Options(5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@enrichkit.connector("geo", returns="city string", batch_size=100, capacity=4)
async def geo(keys: list[str]) -> dict[str, str]:
    return dict.fromkeys(keys, "Oslo")


@enrichkit.connector("clients", returns=Place)
class Clients:
    async def open(self) -> None: ...
    async def fetch(self, key: str) -> Place | None:
        return None


async def a_decorated_function_stays_what_it_was() -> None:
    assert_type(await geo(["here"]), dict[str, str])
    assert_type(await Clients().fetch("here"), Place | None)
    await geo("here")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, kw_only=True)
class AcmeConfig(ConnectorConfig):
    host: str
    token: str | Secret | None = None


class AcmeConnector(Connector[AcmeConfig]):
    name = "acme"
    config_class = AcmeConfig
    max_batch_size = 100

    async def fetch_many(self, keys: Sequence[str], call: Call) -> Mapping[str, str | Failure | None]:
        assert_type(self.config, AcmeConfig)
        assert_type(self.config.host, str)
        assert_type(call.timeout, float)
        assert_type(call.task.batch_id, int | None)
        if call.attempt > 2:
            raise TransientError("busy", retry_after=1.0)
        del self.config.port  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        if call.attempt == 1:
            return Answers(keys, {"name": keys})
        if isinstance(keys, Keys):
            assert_type(keys[1:], Keys)
            return Answers(keys, keys.columns[0].to_pylist())
        return {key: Failure(PermanentError("no"), rejected=True) for key in keys}

    async def scan(self) -> AsyncIterator[tuple[str, Any]]:
        yield "key", "value"


@hookimpl
def enrichkit_connector() -> type[AcmeConnector]:
    return AcmeConnector


def connectors_of_ones_own() -> None:
    AcmeConnector(AcmeConfig(host="here"))
    AcmeConnector(ConnectorConfig())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Failure("no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Answers("ab", 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, kw_only=True)
class LiteConfig(SqlConfig):
    table: str | None = None
    query: str | None = None


class LitePool(Pool[Session]):
    product = "Lite"


class LiteConnector(SqlConnector[LiteConfig, LitePool, str]):
    async def fetch_many(self, keys: Sequence[str], call: Call) -> Mapping[str, str]:
        pool, lookup = self.opened()
        assert_type(pool, LitePool)
        return dict.fromkeys(keys, lookup)


def a_connector_of_a_sql_database(config: SqlServerConfig) -> None:
    lite = LiteConfig(table="users", key=("tenant", "id"), columns=("name",))
    assert_type(lite.key_columns, tuple[str, ...])
    assert_type(lite.split_table("schema", "main"), tuple[str, str])
    assert_type(Source(lite, "the table users").choose({"id": 1}), tuple[list[int], list[int]])
    assert_type(no_table(lite, "users", "the file", ["user"]), FatalError)
    assert_type(quote("users"), str)
    assert_type(tls_context(config, "S3cret"), SSLContext)
    LiteConfig(key=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    LitePool(lite, 4)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Source(ConnectorConfig(), "it")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class TestAcmeContract(ConnectorContract):
    @pytest.fixture
    def connector(self) -> AcmeConnector:
        return AcmeConnector(AcmeConfig(host="here"))

    @pytest.fixture
    def known(self) -> dict[str, str]:
        return {"a": "1"}

    @pytest.fixture
    def missing_key(self) -> str:
        return "nobody"


async def tools() -> None:
    with fault_proxy("127.0.0.1", 6379) as proxy:
        assert_type(proxy, FaultProxy)
    async with open_connector(AcmeConfig(host="here"), capacity=2) as acme:
        assert_type(acme, Any)


def what_is_raised() -> None:
    parents: list[type[EnrichkitError]] = [
        ConfigError,
        FatalError,
        LookupFailedError,
        UnknownConnectorError,
        errors.ConnectorBlockedError,
        errors.ConnectorError,
        errors.ContractError,
        errors.DuplicateConnectorError,
        errors.MissingDriverError,
        errors.PluginError,
        errors.SourceStalledError,
        errors.TaskFailedError,
        errors.TooManyFallbacksError,
        errors.UnknownOptionError,
    ]
    values: list[type[ValueError]] = [ConfigError, errors.UnknownOptionError]
    wrong: list[type[ValueError]] = [FatalError]  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]
    del parents, values, wrong
    assert_type(TransientError("busy").retry_after, float | None)
