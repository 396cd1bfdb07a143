"""Lookups through a network with random faults, and what each row may then say: for the soak, and for a test."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import redis
from pyspark.sql.types import StringType

from enrichkit import local
from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.options import Cache, Retry
from enrichkit.plan import FrameTask
from enrichkit.testing.proxy import FaultProxy, fault_proxy
from enrichkit.worker.entry import arrow_batches, frame_batches

if TYPE_CHECKING:
    from enrichkit.interface import ConnectorConfig

DISTINCT = 20_000
TASK_ROWS = 5_000
STATUSES = ("ok", "missing", "timeout", "error", "null_key")


def value_of(key: int | None) -> str | None:
    """Return the value of *key* in every source: one key in ten has none, and one in a hundred has 20 KB."""
    if key is None or key % 10 == 9:
        return None
    return f"{key}:".ljust(20_000 if key % 100 == 50 else 20 + key * 7919 % 200, "x")


@dataclass(frozen=True)
class Source:
    """
    A real server behind a proxy.

    Attributes:
        name: Name of the connector.
        config: Config of the source, with the address of the proxy.
        proxy: The network.
    """

    name: str
    config: ConnectorConfig
    proxy: FaultProxy


@dataclass
class Tally:
    """
    What the rows of some tasks said.

    Attributes:
        rows: Number of rows.
        statuses: Number of rows by status, for the tasks that ask for details.
        wrong: The rows whose value is not their key's, or that say something else that is not so; at most a hundred.
    """

    rows: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add what *other* has counted."""
        self.rows += other.rows
        self.statuses += other.statuses
        self.wrong += other.wrong

    def check(self, key: int | None, value: str | None, row: Mapping[str, Any] | None, task: str) -> None:
        """Count the row of *key*, which has *value*, and the details *row* if *task* asks for them."""
        self.rows += 1
        right = value in (None, value_of(key))
        if row is not None:
            status = row["status"]
            self.statuses[status] += 1
            right = right and status in STATUSES and (status == "null_key") == (key is None)
            right = right and (status == "ok") == (value is not None)
            right = right and (status != "missing" or value_of(key) is None)
        if not right and len(self.wrong) < 100:
            said = row if row is not None else {"value": value}
            self.wrong.append(f"{task}, key {key}: { ({**said, 'value': (value or '')[:40]}) }")


def look_up(source: Source, seed: int, rows: int = TASK_ROWS) -> Tally:
    """
    Run a task with random keys and options on a worker's engine, and return what its rows said.

    Args:
        source: The source.
        seed: Of the keys, of the sizes of the batches, and of the options.
        rows: Number of rows of the task.
    """
    dice, tally = random.Random(seed), Tally()
    keys = [dice.randrange(DISTINCT) if dice.random() < 0.99 else None for _ in range(rows)]
    form, options = dice.choice(("column", "frame", "unordered frame")), options_of(dice, bulk=source.name != "http")
    task = f"{source.name}, seed {seed}, {form}, {options}"
    options["details"] = form == "column"
    plan, _ = make_plan(source.config, 1, StringType(), options)
    arrays, start = [], 0
    while start < rows:
        size = dice.choice((1, 100, 1_000, 2_000))
        arrays.append(pa.array(keys[start : start + size], pa.int64()))
        start += size
    if form == "column":
        details = [row for column in arrow_batches(pack(plan), arrays) for row in column.to_pylist()]
        for key, row in zip(keys, details, strict=True):
            tally.check(key, row["value"], row, task)
        return tally
    work = pickle.dumps(FrameTask(plan=pack(plan), width=1, keys=(0,), names=("value",), ordered=form == "frame"))
    batches = [pa.record_batch([array], ["key"]) for array in arrays]
    pairs = [row for batch in frame_batches(work, batches) for row in zip(*batch.to_pydict().values(), strict=True)]
    left = [key for key, _ in pairs]
    if left != keys and (form == "frame" or Counter(left) != Counter(keys)):
        tally.wrong.append(f"{task}: the rows that left are not those that came")
    for key, value in pairs:
        tally.check(key, value, None, task)
    return tally


def options_of(dice: random.Random, *, bulk: bool) -> dict[str, Any]:
    """Return random options under which a task never fails for what the network does."""
    return {
        "batch_size": dice.choice((1, 10, 100)) if bulk else 1,
        "capacity": dice.choice((2, 8, 32)),
        "timeout": dice.choice((1.0, 3.0, 10.0)),
        "attempt_timeout": dice.choice((0.3, 0.8)),
        "retry": dice.choice((None, Retry(), Retry(attempts=6, wait=0.01))),
        "cache": dice.choice((None, None, Cache(ttl=1.0))),
        "on_timeout": "null",
        "on_error": "null",
        "max_fallback_ratio": 1.0,
    }


@contextmanager
def http() -> Iterator[Source]:
    """Run an HTTP service; its answers repeat their key, by which the connector notices those of other requests."""
    from enrichkit_http import HttpConfig

    with local.http() as service, fault_proxy("127.0.0.1", service.port) as proxy:
        held = {str(key): {"id": key, "value": value_of(key)} for key in range(DISTINCT) if value_of(key)}
        service.seed({**held, **{str(key): {"id": key} for key in range(DISTINCT) if not value_of(key)}})
        config = HttpConfig(url=f"{proxy.url(service.url)}/{{}}", value="value", key_field="id")
        yield Source("http", config, proxy)


@contextmanager
def redis_source() -> Iterator[Source]:
    """Run a Redis server."""
    from enrichkit_redis import RedisConfig

    with local.redis() as server, fault_proxy(server.host, server.port) as proxy:
        with redis.Redis.from_url(server.url) as client:
            client.mset({str(key): value for key in range(DISTINCT) if (value := value_of(key)) is not None})
        yield Source("redis", RedisConfig(url=proxy.url(server.url), key="{}"), proxy)


@contextmanager
def postgres() -> Iterator[Source]:
    """Run a PostgreSQL server."""
    from enrichkit_postgres import PostgresConfig

    with local.postgres() as server, fault_proxy(server.host, server.port) as proxy:
        server.execute("CREATE TABLE t (id bigint PRIMARY KEY, value text NOT NULL)")
        for statement in inserts():
            server.execute(statement)
        yield Source("postgres", PostgresConfig(dsn=proxy.url(server.dsn), table="t"), proxy)


@contextmanager
def mariadb() -> Iterator[Source]:
    """Run a MariaDB server."""
    from enrichkit_mariadb import MariadbConfig

    with local.mariadb() as server, fault_proxy(server.host, server.port) as proxy:
        url = server.create_database()
        database = url.rpartition("/")[2]
        server.execute("CREATE TABLE t (id bigint PRIMARY KEY, value text NOT NULL)", database)
        for statement in inserts():
            server.execute(statement, database)
        yield Source("mariadb", MariadbConfig(url=proxy.url(url), table="t"), proxy)


SOURCES: Mapping[str, Callable[[], AbstractContextManager[Source]]] = {
    "http": http,
    "redis": redis_source,
    "postgres": postgres,
    "mariadb": mariadb,
}


def inserts(rows: int = 1_000) -> Iterator[str]:
    """Yield the statements that fill a table with the values of all keys, *rows* at once."""
    held: Sequence[str] = [f"({key}, '{value}')" for key in range(DISTINCT) if (value := value_of(key)) is not None]
    for start in range(0, len(held), rows):
        yield f"INSERT INTO t VALUES {', '.join(held[start : start + rows])}"
