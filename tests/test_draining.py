"""
Deadlines on real drivers: a late call goes on, so slow answers cost their rows and not the connections of all others.

The engine, the connectors and the servers are real; the fault proxy between them is the network.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import redis
from enrichkit_http import HttpConfig, HttpConnector
from enrichkit_postgres import PostgresConfig, PostgresConnector
from enrichkit_redis import RedisConfig, RedisConnector

from enrichkit.connector import Connector
from enrichkit.engine.dispatch import Engine
from enrichkit.engine.handover import Handover
from enrichkit.engine.loop import LoopThread
from enrichkit.engine.run import Run
from enrichkit.errors import SourceStalledError
from enrichkit.options import Options
from enrichkit.outcome import STATUSES, Outcomes
from enrichkit.testing.proxy import FaultProxy, fault_proxy

from .engine.bench import end_thread

if TYPE_CHECKING:
    from enrichkit import local

pytestmark = pytest.mark.service

CAPACITY = 20
KEYS = 2_000  # that each source holds: 0 to 1,999


@dataclass
class Worker:
    """A worker process with one source, as far as the engine sees it."""

    thread: LoopThread
    connector: Connector[Any]
    proxy: FaultProxy

    def statuses(self, keys: range, **options: Any) -> list[str]:
        """Run one task that looks *keys* up, one per call; return the status of each row."""
        settings = Options(on_timeout="null", on_error="null", max_fallback_ratio=1.0, retry=None, **options)
        handover = Handover(
            self.thread, 10_000, 10_000, lambda emit: Run("source", settings, lambda raws: (list(raws), {}), emit)
        )
        slices = [Outcomes([*keys][start : start + 100], 100) for start in range(0, len(keys), 100)]
        statuses: list[str] = []
        for part in handover.process(slices, "engine", lambda: Engine(self.connector, CAPACITY, 1)):
            statuses += [STATUSES[status] for status in part.outcomes.statuses]
        return statuses


MakeWorker: TypeAlias = Callable[[Connector[Any], FaultProxy], Worker]


@pytest.fixture
def worker() -> Iterator[MakeWorker]:
    thread = LoopThread()

    def make(connector: Connector[Any], proxy: FaultProxy) -> Worker:
        connector.capacity = CAPACITY  # type: ignore[misc]  # the pool's size: an instance's own, not the class's
        return Worker(thread, connector, proxy)

    yield make
    end_thread(thread)


@pytest.fixture
def redis_worker(redis_server: local.RedisServer, redis_url: str, worker: MakeWorker) -> Iterator[Worker]:
    with redis.Redis(port=redis_server.port) as client:
        client.mset({f"k{key}": f"value {key}" for key in range(KEYS)})
    with fault_proxy(redis_server.host, redis_server.port) as proxy:
        yield worker(RedisConnector(RedisConfig(url=proxy.url(redis_url), key="k{}")), proxy)


@pytest.fixture
def postgres_worker(postgres_server: local.PostgresServer, postgres_dsn: str, worker: MakeWorker) -> Iterator[Worker]:
    postgres_server.execute(
        f"CREATE TABLE items AS SELECT id, 'value ' || id AS name FROM generate_series(0, {KEYS - 1}) id; "
        "ALTER TABLE items ADD PRIMARY KEY (id)",
        postgres_dsn.rpartition("/")[2],
    )
    with fault_proxy(postgres_server.host, postgres_server.port) as proxy:
        yield worker(PostgresConnector(PostgresConfig(dsn=proxy.url(postgres_dsn), table="items")), proxy)


@pytest.fixture
def http_worker(http_service: local.HttpService, worker: MakeWorker) -> Iterator[Worker]:
    with fault_proxy("127.0.0.1", http_service.port) as proxy:
        yield worker(HttpConnector(HttpConfig(url=proxy.url(http_service.url) + "/items/{}")), proxy)


def test_slow_replies_cost_their_rows_and_few_connections(redis_worker: Worker) -> None:
    """With every call cancelled at its deadline, a storm of new connections makes all rows late: 0 of 800 were ok."""
    proxy = redis_worker.proxy
    proxy.delay(lambda chunk: 1.0 if chunk.number % 10 == 9 else 0.2)  # long beside what a busy machine adds
    statuses = Counter(redis_worker.statuses(range(400), timeout=0.5))
    assert statuses["ok"] + statuses["timeout"] == 400
    assert statuses["ok"] >= 320, statuses
    assert statuses["timeout"] >= 20, statuses  # the proxy did delay replies
    assert proxy.opened <= 60


@pytest.mark.parametrize("source", ["redis", "postgres", "http"])
def test_a_frozen_server_delays_a_task_by_its_deadlines_and_is_used_again_when_it_thaws(
    source: str, request: pytest.FixtureRequest
) -> None:
    worker: Worker = request.getfixturevalue(f"{source}_worker")
    with ExitStack() as stack:
        stack.callback(worker.proxy.thaw)
        worker.proxy.delay(0.05)  # so that no connection is used twice, and all are open
        assert worker.statuses(range(100), timeout=10.0) == ["ok"] * 100
        worker.proxy.delay(0.0)
        assert worker.proxy.open == CAPACITY
        worker.proxy.freeze()
        began = time.monotonic()
        statuses = worker.statuses(range(160), timeout=0.5)  # eight times as many as there are calls at a time
        assert time.monotonic() - began <= 6.0
        assert Counter(statuses) == {"timeout": 160}
    thawed = time.monotonic()
    while time.monotonic() - thawed < 1.0:  # work goes on meanwhile
        worker.statuses(range(100), timeout=0.5)
    statuses = worker.statuses(range(1000, 1200), timeout=1.5)
    assert Counter(statuses)["ok"] >= 190, Counter(statuses)


@pytest.mark.parametrize("source", ["redis", "postgres"])
def test_a_server_that_hangs_at_the_login_fails_the_task_after_the_stall_timeout(
    source: str, request: pytest.FixtureRequest
) -> None:
    """Each attempt to connect ends in an error, so calls are held back, and there are no answers to wait for."""
    worker: Worker = request.getfixturevalue(f"{source}_worker")
    worker.proxy.freeze()
    began = time.monotonic()
    with pytest.raises(SourceStalledError, match=rf"^{source}: the source has failed for [1-9] s and calls were held "):
        worker.statuses(range(200), timeout=0.5, stall_timeout=1.0)
    assert time.monotonic() - began <= 10.0
    assert worker.proxy.opened <= 2 * CAPACITY
    worker.proxy.thaw()
    assert worker.statuses(range(CAPACITY), timeout=10.0, stall_timeout=10.0) == ["ok"] * CAPACITY
