"""
Deadlines with real drivers: a late call goes on, so a slow answer fails only its own rows, and no connection is lost.

The engine, the connectors and the servers are real; a fault proxy between connector and server is the network.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg  # noqa: F401  # on the loop of a busy machine its first import would take as long as a connect may
import pytest
import redis
from enrichkit_http import HttpConfig, HttpConnector
from enrichkit_postgres import PostgresConfig, PostgresConnector
from enrichkit_redis import RedisConfig, RedisConnector

from enrichkit.engine.bridge import Bridge
from enrichkit.engine.engine import Engine
from enrichkit.engine.loop import LoopThread
from enrichkit.engine.run import Run
from enrichkit.interface import Connector
from enrichkit.options import Options, Retry
from enrichkit.outcome import STATUSES, Outcomes
from enrichkit.testing.proxy import Chunk, FaultProxy, fault_proxy

from .engine.bench import end_thread
from .pace import at_pace

if TYPE_CHECKING:
    from enrichkit import local

pytestmark = [pytest.mark.service, pytest.mark.waits]

CAPACITY = 20
KEYS = 2_000  # each source holds the keys 0 to 1,999


@dataclass
class Worker:
    """A loop thread with the engine of one source, as in a worker process."""

    thread: LoopThread
    connector: Connector[Any]
    proxy: FaultProxy

    def statuses(self, keys: range, **options: Any) -> list[str]:
        """Run one task that looks up *keys*, one per call; return the status of each row."""
        plain: dict[str, Any] = {"on_timeout": "null", "on_error": "null", "max_fallback_ratio": 1.0, "retry": None}
        settings = Options(**plain | options)

        def run(emit: Callable[[Any], None]) -> Run:
            engine = self.thread.engine("engine", lambda: Engine(self.connector, CAPACITY))
            return Run(engine, "source", settings, lambda raws: (list(raws), {}), emit)

        bridge = Bridge(self.thread, 10_000, 10_000, "source", settings, run)
        slices = [Outcomes([*keys][start : start + 100], 100) for start in range(0, len(keys), 100)]
        statuses: list[str] = []
        for part in bridge.process(slices):
            statuses += [STATUSES[status] for status in part.outcomes.statuses]
        return statuses


MakeWorker: TypeAlias = Callable[[Connector[Any], FaultProxy], Worker]


@pytest.fixture
def worker() -> Iterator[MakeWorker]:
    thread = LoopThread()

    def make(connector: Connector[Any], proxy: FaultProxy) -> Worker:
        connector.capacity = CAPACITY  # type: ignore[misc]  # the size of this instance's pool; the class stays as it is
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
    """If each call were cancelled at its deadline, new connections would make all rows late: 0 of 800 rows were ok."""
    proxy = redis_worker.proxy

    def late(chunk: Chunk) -> float:
        """Delay values alone beyond the deadline: the time limit of a login is the same on each machine."""
        return at_pace(1.0) if chunk.number % 10 == 9 and b"value" in chunk.data else 0.2

    proxy.delay(late)
    statuses = Counter(redis_worker.statuses(range(400), timeout=at_pace(0.5)))
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
        worker.proxy.delay(0.05)  # so that no connection serves two calls, and the pool opens all its connections
        assert worker.statuses(range(100), timeout=10.0, retry=Retry(attempts=9)) == ["ok"] * 100  # a login may be late
        worker.proxy.delay(0.0)
        assert worker.proxy.open == CAPACITY
        worker.proxy.freeze()
        began = time.monotonic()
        statuses = worker.statuses(range(160), timeout=0.5)  # eight times as many keys as calls in flight
        assert time.monotonic() - began <= at_pace(6.0)
        assert Counter(statuses) == {"timeout": 160}
    thawed = time.monotonic()
    while time.monotonic() - thawed < 1.0:  # tasks go on while the server catches up
        worker.statuses(range(100), timeout=0.5)
    statuses = worker.statuses(range(1000, 1200), timeout=at_pace(1.5))
    assert Counter(statuses)["ok"] >= 190, Counter(statuses)


@pytest.mark.parametrize("source", ["redis", "postgres"])
def test_rows_of_a_server_that_hangs_at_the_login_time_out(source: str, request: pytest.FixtureRequest) -> None:
    """Each attempt to connect ends in an error, so the source is away, and one call at a time asks for it."""
    worker: Worker = request.getfixturevalue(f"{source}_worker")
    worker.proxy.freeze()
    began = time.monotonic()
    assert worker.statuses(range(2 * CAPACITY), timeout=0.5, stall_timeout=1.0) == ["timeout"] * 2 * CAPACITY
    assert time.monotonic() - began <= at_pace(10.0)
    assert worker.proxy.opened <= 2 * CAPACITY
    worker.proxy.thaw()
    assert worker.statuses(range(CAPACITY), timeout=10.0, stall_timeout=10.0) == ["ok"] * CAPACITY
