"""Settings of a session are a part of a source's identity: two tenants share no engine, cache or journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from enrichkit_postgres import PostgresConfig
from enrichkit_postgres.connector import PostgresConnector

from enrichkit import Cache
from enrichkit.driver.content import content_of
from enrichkit.driver.planner import make_plan
from enrichkit.secrets import Secret

from .faults import INT

if TYPE_CHECKING:
    from enrichkit import local
    from enrichkit.plan import Plan

    from .sparkless import Worker

DSN = "postgresql://postgres@127.0.0.1:1/shop"
QUERY = "SELECT id, current_setting('app.tenant')::int AS tenant FROM t WHERE id = ANY($1)"
FIRST, SECOND = Secret.env("ENRICHKIT_TEST_FIRST"), Secret.env("ENRICHKIT_TEST_SECOND")


def config_of(tenant: str | Secret, dsn: str = DSN) -> PostgresConfig:
    return PostgresConfig(dsn=dsn, query=QUERY, settings={"app.tenant": tenant})


def plan_of(tenant: str | Secret) -> Plan:
    return make_plan(config_of(tenant), 1, INT, {"cache": Cache(ttl=60.0)})[0]


def content(tenant: str | Secret) -> str:
    return content_of(PostgresConnector, config_of(tenant), pa.int32())


@pytest.mark.parametrize(("one", "other"), [("1", "2"), (FIRST, SECOND), ("1", FIRST)])
def test_sources_with_other_settings_are_other_sources(one: str | Secret, other: str | Secret) -> None:
    for identity in (lambda tenant: plan_of(tenant).engine_key, lambda tenant: plan_of(tenant).cache_key, content):
        assert identity(one) == identity(one)
        assert identity(one) != identity(other)


@pytest.mark.service
@pytest.mark.parametrize("tenants", [("1", "2"), (FIRST, SECOND)])
def test_tenants_in_one_worker_get_their_own_rows_from_a_cache(
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    postgres_server: local.PostgresServer,
    postgres_dsn: str,
    tenants: tuple[Any, Any],
) -> None:
    monkeypatch.setenv("ENRICHKIT_TEST_FIRST", "1")
    monkeypatch.setenv("ENRICHKIT_TEST_SECOND", "2")
    postgres_server.execute(
        "CREATE TABLE t AS SELECT n AS id FROM generate_series(1, 3) n", postgres_dsn.rpartition("/")[2]
    )
    found = [
        [
            row["value"]
            for row in worker.outcomes(config_of(tenant, postgres_dsn), INT, [1, 2, 3], cache=Cache(ttl=60.0))
        ]
        for tenant in (*tenants, *tenants)
    ]
    assert [[1, 1, 1], [2, 2, 2]] * 2 == found


@pytest.mark.service
def test_a_secret_with_another_content_gets_rows_of_its_own(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, postgres_server: local.PostgresServer, postgres_dsn: str
) -> None:
    """The reference is the same, as where each job sets its own variable in a worker that is used again."""
    postgres_server.execute(
        "CREATE TABLE t AS SELECT n AS id FROM generate_series(1, 3) n", postgres_dsn.rpartition("/")[2]
    )
    found = []
    for tenant in ("1", "2", "1"):
        monkeypatch.setenv("ENRICHKIT_TEST_FIRST", tenant)
        rows = worker.outcomes(config_of(FIRST, postgres_dsn), INT, [1, 2, 3], cache=Cache(ttl=60.0))
        found.append([row["value"] for row in rows])
    assert [[1, 1, 1], [2, 2, 2], [1, 1, 1]] == found
