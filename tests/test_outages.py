"""
What goes wrong with a whole source, with each policy: every row says what happened, and all is well when it is mended.

Real connectors and servers, and the worker's whole path without Spark; the fault proxy is the network.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import redis
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig

from enrichkit import Retry, local
from enrichkit.errors import FatalError
from enrichkit.testing.proxy import FaultProxy, fault_proxy

from .faults import (
    GOOD,
    INT,
    PATIENT,
    POLICIES,
    PROFILE,
    TIMEOUT,
    TWICE,
    all_three,
    assert_fails,
    assert_good,
    assert_row,
    policy_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .sparkless import Row, Worker

pytestmark = pytest.mark.service

NUMBERS = [1, 2, 13, 3, 4]


# --- the network, or the server: every key of the source


@dataclass(frozen=True)
class NetworkFault:
    """What happens to all connections; without *warm* it begins before the first one is open."""

    name: str
    begin: Callable[[FaultProxy], Any]
    status: str
    error: str
    warm: bool = True


def refuse(proxy: FaultProxy) -> None:
    proxy.refuse()
    proxy.cut()


NOT_IN_TIME = rf"TimeoutError: no answer within {TIMEOUT} s(; last: .+)?"
NOT_DONE = r"TransientError: .+"
NETWORK_FAULTS = (
    NetworkFault("frozen", lambda proxy: proxy.freeze(), "timeout", NOT_IN_TIME),
    NetworkFault("swallowed", lambda proxy: proxy.blackhole(), "timeout", NOT_IN_TIME),
    NetworkFault("late", lambda proxy: proxy.delay(60.0), "timeout", NOT_IN_TIME),
    NetworkFault("frozen-from-the-start", lambda proxy: proxy.freeze(), "timeout", NOT_IN_TIME, warm=False),
    NetworkFault("reset-inside-a-reply", lambda proxy: proxy.reset_after(3), "error", NOT_DONE),
    NetworkFault("closed-inside-a-reply", lambda proxy: proxy.close_after(3), "error", NOT_DONE),
    NetworkFault("refused", refuse, "error", NOT_DONE),
    NetworkFault("refused-from-the-start", refuse, "error", NOT_DONE, warm=False),
)


@pytest.fixture
def proxied(request: pytest.FixtureRequest) -> Iterator[tuple[Any, FaultProxy]]:
    """A source that answers each of 1 to 20 with itself, behind a proxy."""
    if request.param == "redis":
        server, url = request.getfixturevalue("redis_server"), request.getfixturevalue("redis_url")
        with redis.Redis.from_url(url) as client:
            client.mset({f"k{n}": n for n in range(1, 21)})
        with fault_proxy(server.host, server.port) as proxy:
            yield RedisConfig(url=proxy.url(url), key="k{}"), proxy
    else:
        server, dsn = request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_dsn")
        server.execute(
            "CREATE TABLE t AS SELECT n AS id, n AS score FROM generate_series(1, 20) n", dsn.rpartition("/")[2]
        )
        with fault_proxy(server.host, server.port) as proxy:
            yield PostgresConfig(dsn=proxy.url(dsn), table="t"), proxy


def assert_each_policy(worker: Worker, config: Any, status: str, error: str, **options: Any) -> None:
    """Run a task with each policy, and one without, all at the same time; each key ends with *status* in each task."""

    def task(policy: str) -> None:
        def look_up() -> list[Row]:
            return worker.outcomes(config, INT, NUMBERS, retry=TWICE, **all_three(policy_of(policy, -1)), **options)

        if policy == "fail":
            assert_fails(look_up, config.__class__.__name__.removesuffix("Config").lower(), status, error)
            return
        for row in look_up():
            assert_row(row, status, error, policy, -1)

    with ThreadPoolExecutor(len(POLICIES) + 1) as threads:
        list(threads.map(task, [*POLICIES, "fail"]))


@pytest.mark.parametrize("fault", NETWORK_FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("proxied", ["redis", "postgres"], indirect=True)
def test_a_fault_of_the_network_is_that_of_every_key_and_is_over_when_it_is_mended(
    fault: NetworkFault, proxied: tuple[Any, FaultProxy], worker: Worker
) -> None:
    config, proxy = proxied
    options = {"capacity": 8, "stall_timeout": PATIENT}  # a slot for each task
    if fault.warm:
        assert_good(worker.outcomes(config, INT, [1, 2], timeout=PATIENT, **options), [1, 2])
    fault.begin(proxy)
    timeout = TIMEOUT if fault.status == "timeout" else PATIENT  # a connection that is refused is not tried at once
    assert_each_policy(worker, config, fault.status, fault.error, timeout=timeout, **options)
    proxy.heal()
    retry = Retry(attempts=20, wait=0.1)  # connections that were lost in between are found out one by one
    assert_good(worker.outcomes(config, INT, [3, 4], timeout=PATIENT, retry=retry, **options), [3, 4])


def test_a_redis_server_that_is_killed_is_an_error_of_every_key(worker: Worker) -> None:
    with local.redis() as server:
        with redis.Redis.from_url(server.url) as client:
            client.mset({f"k{n}": n for n in range(1, 21)})
        config = RedisConfig(url=server.url, key="k{}")
        assert_good(worker.outcomes(config, INT, [1, 2], timeout=PATIENT), [1, 2])
        os.kill(server.pid, signal.SIGKILL)
    assert_each_policy(worker, config, "error", NOT_DONE, timeout=PATIENT)


def test_connections_that_postgres_ends_cost_no_row(
    postgres_server: local.PostgresServer, postgres_dsn: str, worker: Worker
) -> None:
    database = postgres_dsn.rpartition("/")[2]
    postgres_server.execute("CREATE TABLE t AS SELECT n AS id, n AS score FROM generate_series(1, 20) n", database)
    config = PostgresConfig(dsn=postgres_dsn, table="t")
    assert_good(worker.outcomes(config, INT, [1, 2], timeout=PATIENT, **all_three("null")), [1, 2])
    postgres_server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")
    assert_good(worker.outcomes(config, INT, [3, 4], timeout=PATIENT, **all_three("null")), [3, 4])


# --- what no policy makes a null: nothing will work until somebody mends it


@pytest.mark.parametrize("policy", [*POLICIES, "fail"])
@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_fail_the_task_whatever_the_policy(
    status: int, policy: str, worker: Worker, http_service: local.HttpService
) -> None:
    http_service.script(local.Fault(match="u2", status=status))
    config = HttpConfig(url=f"{http_service.url}/{uuid.uuid4()}/{{}}")
    options = all_three(policy_of(policy, {"name": "spare", "score": -1}))
    with pytest.raises(FatalError) as caught:
        worker.outcomes(config, PROFILE, GOOD, **options)
    assert (
        f"The service answered {status}: it refuses the credentials, or misses some, so no key can be looked up. "
        "Correct HttpConfig.headers, for example {'Authorization': Secret.env('NAME')}." == str(caught.value)
    )


@pytest.mark.parametrize("policy", [*POLICIES, "fail"])
def test_a_table_that_may_not_be_read_fails_the_task_whatever_the_policy(
    policy: str, worker: Worker, postgres_server: local.PostgresServer, postgres_dsn: str
) -> None:
    """In the first call, or in one after the connector was opened: here the right is taken away in between."""
    role = f"reader_{uuid.uuid4().hex[:8]}"
    database = postgres_dsn.rpartition("/")[2]
    postgres_server.execute(
        "CREATE TABLE t AS SELECT n AS id, n AS score FROM generate_series(1, 20) n;"
        f"CREATE ROLE {role} LOGIN; GRANT SELECT ON t TO {role}",
        database,
    )
    config = PostgresConfig(dsn=postgres_dsn.replace("postgres@", f"{role}@"), table="t")
    options = all_three(policy_of(policy, -1))
    assert_good(worker.outcomes(config, INT, [1, 2], **options), [1, 2])
    postgres_server.execute(f"REVOKE SELECT ON t FROM {role}", database)
    with pytest.raises(FatalError, match=r"permission denied for table t, .* SQLSTATE 42501\. Grant SELECT on it to "):
        worker.outcomes(config, INT, NUMBERS, **options)
