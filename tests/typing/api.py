"""
Each public name as users write it, for type checkers; never run.

A line that must be refused says so to mypy and to pyright, which both complain of a comment that they do not need.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any, TypedDict, TypeVar, assert_type

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

import enrichkit
from enrichkit import (
    Answers,
    Budget,
    Cache,
    Call,
    ConfigError,
    Connector,
    ConnectorConfig,
    EnrichkitError,
    Failure,
    FatalError,
    Journal,
    JournalError,
    Keys,
    Limit,
    LookupFailedError,
    Monitor,
    Options,
    PermanentError,
    Preload,
    Rate,
    Retry,
    Secret,
    Stats,
    Tiers,
    TransientError,
    UnavailableError,
    UnknownConnectorError,
    collect_batches,
    connectors,
    default,
    describe,
    doctor,
    enrich,
    enrich_frame,
    enriched,
    errors,
    estimate,
    explain,
    hookimpl,
    monitor,
    observe,
    register,
    register_function,
    submit_batches,
    tiers,
)
from enrichkit.plugin import (
    ALIVE,
    Absent,
    Ask,
    BatchForm,
    BatchStatus,
    Draw,
    Drawn,
    Grant,
    Key,
    LeaseStore,
    RefusedLogin,
    RenewedContext,
    TaskInfo,
    Value,
    did_you_mean,
    draw,
    fields_of,
    file_stamp,
    files_exhausted,
    fresh,
    grant,
    objects_of,
    redact,
    refuse,
    reveal,
    revealed,
    secrets_of,
    time_limit,
    tls_context,
)
from enrichkit.shipping import Manifest, Target, check_archive, pack, ship
from enrichkit.sql import (
    Pool,
    Session,
    Source,
    SqlConfig,
    SqlConnector,
    SqlServerConfig,
    are_utf8,
    are_uuids,
    check_stored,
    is_host,
    is_local,
    no_table,
    quote,
    rows_of,
    same_value,
    subquery,
    tls_fault,
    unreadable_url,
    uuid_text,
)
from enrichkit.testing import ConnectorContract, FaultProxy, fault_proxy, open_connector

T = TypeVar("T")


def entered(manager: AbstractAsyncContextManager[T]) -> T:
    """Return what *manager* gives at its entry, for the checkers alone."""
    raise NotImplementedError


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
    enrich("users", "user_id", capacity="auto", max_capacity=50)
    enrich("users", "user_id", on_error=lambda key: None, on_missing=default({"name": "nobody"}), details=True)
    assert_type(tiers("redis", ConnectorConfig(), write_back=True, ttl=60.0, timeout=0.5), Tiers)
    enrich(tiers("redis", "users"), "user_id", timeout=2.0)
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
    enrich_frame(df, "users", on="user_id", shuffle=200)
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
    assert_type(describe("users").connections, int | None)
    assert_type(Secret.env("PASSWORD"), Secret)
    assert_type(Secret.file("/run/secrets/password"), Secret)
    register("users", "redis")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    explain("users", key=1000)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def looks_at_executors(spark: SparkSession) -> None:
    found = doctor(spark, "users", tasks=4, timeout=2.0, cache=Cache(ttl=60))
    assert_type((found.reached, found.expected, found.sources), tuple[int, int | None, tuple[str, ...]])
    assert_type(found.findings[0].remedy, str)
    doctor(spark, timeuot=2.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def monitors(df: DataFrame) -> None:
    with monitor(host="driver.example", port=4040, rows=1_000_000, terminal=False) as watched:
        assert_type(watched, Monitor)
        assert_type(watched.url, str)
    assert_type(monitor().start(), Monitor)
    assert_type(watched.stats("users"), Stats)
    assert_type(watched.view()["sentence"], str)
    assert_type(watched.report("run.html")["totals"]["calls"], int)
    assert_type(watched.metrics(), str)
    assert_type(watched.close(), None)
    monitor(prot=4040)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    monitor(rows="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def statistics(df: DataFrame, stats: Stats) -> None:
    assert_type(stats + Stats(rows=5), Stats)
    assert_type(Stats.read(stats.as_dict()).calls, int)
    assert_type(stats.calls_took.quantile(0.99), float | None)
    assert_type(stats.retries, Mapping[str, int])
    stats.rows = 5  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    told = estimate(df, "users", "user_id", sample=0.05, calls=0, approximate=True, shuffle=True, rate=10.0)
    assert_type(told.cost, float | None)
    assert_type((told.rows, told.seconds), tuple[int, float | None])
    observed = observe(df, "user", name="lookups")
    assert_type(observed.frame, DataFrame)
    assert_type(observed.totals(), dict[str, dict[str, int]])
    observe(df.withColumn("user", enrich("users", "user_id", details=True))).totals({"observedMetrics": {}})
    observe("users")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@hookimpl
def enrichkit_task_finished(stats: Stats, source: str, task: TaskInfo) -> None:
    assert_type(stats.done + task.attempt, int)


def options() -> None:
    assert_type(Options().timeout, float | None)
    assert_type(Options(preload=Preload(refresh="03:15Z", max_bytes=2**20)).preload, bool | Preload)
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


def batches(df: DataFrame, connector: Connector[Any]) -> None:
    journal = Journal("/data/answers", run_id="tuesday")
    sent = submit_batches(df, "llm", "text", F.col("day"), journal=journal, returns="string", batch_requests=100)
    found = collect_batches(df, ConnectorConfig(), "text", journal=journal, wait=60.0, every=5.0)
    assert_type((sent.submitted, sent.known, sent.waiting, sent.refused), tuple[int, int, int, int])
    assert_type((found.done, found.spent), tuple[bool, Mapping[str, float]])
    assert_type([batch.failed for batch in found.batches], list[Mapping[str, int]])
    assert_type(connector.batches(), BatchForm | None)
    assert_type(BatchStatus("completed", done=True, answered=5).reason, str)


def limits_of_a_job(df: DataFrame, call: Call, connector: Connector[Any]) -> None:
    rate = Rate(500, tokens=200_000, unit="minute", per="job", store="redis", name="api")
    limit = Limit(50, per="job", store=ConnectorConfig())
    budget = Budget(tokens=2_000_000, cost=5.0, store="redis", name="reviews")
    assert_type(enrich("llm", "review", budget=budget), Column)
    assert_type(budget.units, dict[str, float])
    assert_type(connector.most(["a"]), Mapping[str, float] | None)
    journal = Journal("/data/answers", run_id="tuesday", shared=True, max_age=60.0, on_error="fail", sync=True)
    assert_type(enrich("users", "user_id", rate=rate, limit=limit, journal=journal), Column)
    assert_type(JournalError("full"), JournalError)
    assert_type(rate.per_second, dict[str, float])
    assert_type(connector.cost(["a"]), Mapping[str, float])
    call.spent(tokens=5)
    call.allows(3, 0.5, limit=10)


class MyLeases:
    def __init__(self) -> None:
        self.states: dict[str, dict[str, Any]] = {}

    async def lease(self, ask: Ask) -> Grant:
        return grant(self.states.setdefault(ask.limit, {}), ask, 0.0)

    async def draw(self, ask: Draw) -> Drawn:
        found = draw(self.states.setdefault(ask.budget, {}), ask, ALIVE)
        assert_type(found.left, Mapping[str, float])
        return found

    async def close(self) -> None: ...


def a_store_of_limits() -> LeaseStore:
    return MyLeases()


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

    async def fetch_many(self, keys: Sequence[str], call: Call) -> Mapping[str, str | Failure | Absent | None]:
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
        if call.attempt == 2:
            return dict.fromkeys(keys, Absent("data.name", lambda: ["id"]))
        return {key: Failure(PermanentError("no"), rejected=True) for key in keys}

    async def scan(self, kinds: Sequence[type], size: int) -> AsyncIterator[Sequence[str]]:
        yield ["key"]


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
    assert_type(rows_of({1: "a"}, ["name"], Source(lite, "it")), dict[Key, Mapping[str, Any]])
    check_stored(Source(lite, "it"), {1: {"name": "a"}}, {1: "a"}, {"name": "text"})
    assert_type(same_value(1, 1.0), bool)
    assert_type(tls_context(config, "S3cret"), SSLContext)
    assert_type(RenewedContext(lambda: tls_context(config), config)(), SSLContext)
    assert_type(file_stamp("/ca.pem", None), tuple[object, ...])
    assert_type(RefusedLogin().wait(("app", "S3cret"), (), 1.0), float)
    assert_type(entered(time_limit(2.0)), None)
    LiteConfig(key=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    LitePool(lite, 4)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Source(ConnectorConfig(), "it")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def helpers_of_a_plugin(key: Key, value: Value, task: TaskInfo) -> None:
    assert_type(did_you_mean("nmae", ["name"]), str)
    assert_type(files_exhausted(OSError()), str | None)
    assert_type(fields_of("id int, name string"), dict[str, str])
    assert_type(redact("redis://:S3cret@host", "S3cret"), str)
    assert_type(reveal(Secret.env("S3CRET")), str | None)
    assert_type(await revealed(Secret.env("S3CRET")), str | None)
    assert_type(secrets_of({"password": Secret.env("S3CRET")}), list[Secret])
    assert_type(fresh(Secret.call("shop.tokens:database", ttl=900)), bool)
    assert_type(refuse(Secret.command(("vault", "read"), ttl=900), "S3CRET"), bool)
    assert_type(task.partition, int)
    del key, value
    objects_of([5])
    redact(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def helpers_of_a_sql_connector(error: Exception) -> None:
    assert_type(are_utf8(["a"]), bool)
    assert_type(are_uuids(["a"]), bool)
    assert_type(is_host("db"), bool)
    assert_type(is_local("db"), bool)
    assert_type(subquery("SELECT 1;"), str)
    assert_type(tls_fault(error), str | None)
    assert_type(unreadable_url("AcmeConfig.url"), ConfigError)
    assert_type(uuid_text("a"), str)


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
        errors.OverBudgetError,
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
    assert_type(UnavailableError("away", node="db2").node, str | None)
    assert_type(UnavailableError("away", retry_after=1.0, sent=False).sent, bool)


def shipping(spark: SparkSession) -> None:
    made = pack(["redis"], output="env.tar.gz", extra=["boto3"], target=Target("3.12", "linux-aarch64"), bare=True)
    assert_type(made, Manifest)
    assert_type(check_archive("env.tar.gz", plugins=["redis"], start=False).plugins, tuple[str, ...])
    assert_type(ship(spark, "env.tar.gz"), Manifest)
