"""Spark slower than the source: `window_bytes` bounds the memory of a worker process, and every row has its value."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
import redis
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from pyspark.sql.types import ArrayType, StringType

from benchmarks.peak import peak_growth
from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.engine.loop import loop_thread
from enrichkit.interface import Call, Connector, ConnectorConfig
from enrichkit.plan import FrameTask
from enrichkit.worker.entry import arrow_batches, frame_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).parent.parent
ROWS = 8_000
VALUE_BYTES = 200_000
GROWTH_MAX = 192 * 2**20
MILLION = 1_000_000
MILLION_GROWTH_MAX = 96 * 2**20


@dataclass(frozen=True, kw_only=True)
class WideConfig(ConnectorConfig):
    """A source that answers at once, with values of 200 KB; or with none."""

    empty: bool = False


class Wide(Connector[WideConfig]):
    name = "wide"
    config_class = WideConfig
    capacity = 16
    batch_size = 1
    max_batch_size = 1000

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        if self.config.empty:
            return {}
        return {key: [value_of(key)] if call.many else value_of(key) for key in keys}


def in_a_process(call: str) -> list[int]:
    """Make *call* of a function of this module in a process of its own; return the numbers that it prints."""
    code = f"from tests import test_pressure; test_pressure.{call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return list(map(int, done.stdout.split()))


def value_of(key: int) -> str:
    return f"{key}:".ljust(VALUE_BYTES, "x")


OPTIONS: dict[str, dict[str, Any]] = {
    "calls of ten keys": {"batch_size": 10, "capacity": 2},
    "calls of a thousand keys": {"batch_size": 1000, "capacity": 4},
    "details": {"details": True},
    "fallback": {"on_missing": WideConfig()},
}
FRAMES: dict[str, dict[str, Any]] = {
    "frame": {},
    "unordered frame": {"ordered": False},
    "frame of lists": {},
    "frame of matches": {"explode": True},
}
QUICK = ("unordered frame", "calls of a thousand keys")
SLOW = tuple(case for case in (*OPTIONS, *FRAMES) if case not in QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)])
def test_a_slow_consumer_of_wide_values_does_not_fill_the_memory(case: str) -> None:
    """1.6 GB of values pass through a window of 64 MiB in a process of its own, whose peak the kernel tells."""
    [growth] = in_a_process(f"child({case!r})")
    assert growth <= GROWTH_MAX, f"the resident memory has grown by {growth / 2**20:.0f} MiB"


@pytest.mark.slow
def test_two_tasks_at_once_keep_to_their_bounds() -> None:
    """As Spark runs them: each in a process of its own, both at the same time."""
    with ThreadPoolExecutor(2) as threads:
        grown = [growth for [growth] in threads.map(in_a_process, ["child('column')"] * 2)]
    assert max(grown) <= GROWTH_MAX, f"the resident memory has grown by {[each >> 20 for each in grown]} MiB"


def child(case: str) -> None:
    """Look `ROWS` keys up, consume the values slowly, and print by how much the resident memory has grown."""
    loop_thread()  # starts it

    def consume() -> None:
        expected = 0
        for values in _columns(case):
            for value in values:  # one by one: a list of them all would count, too
                assert value.as_py() == value_of(expected), f"row {expected} has another value"
                expected += 1
            time.sleep(0.0005 * len(values))
        assert expected == ROWS

    sys.stdout.write(str(peak_growth(consume)))


def _columns(case: str) -> Iterator[pa.Array[Any]]:
    """Yield the values of all rows, without what a case wraps around them."""
    options = OPTIONS.get(case, {})
    many = case in ("frame of lists", "frame of matches")
    plan, _ = make_plan(
        WideConfig(empty=case == "fallback"), 1, StringType(), options,
        many=many, shape=(lambda _, value: ArrayType(value)) if many else None,
    )  # fmt: skip
    keys = [pa.array(range(start, start + 1000), pa.int64()) for start in range(0, ROWS, 1000)]
    if case not in FRAMES:
        for column in arrow_batches(pack(plan), keys):
            yield column.field("value") if case == "details" else column
        return
    task = FrameTask(plan=pack(plan), width=1, keys=(0,), names=("value",), **FRAMES[case])
    for batch in frame_batches(pickle.dumps(task), [pa.record_batch([column], ["key"]) for column in keys]):
        column = batch.column("value")
        yield column.flatten() if case == "frame of lists" else column


@dataclass(frozen=True, kw_only=True)
class NarrowConfig(ConnectorConfig):
    """A source that answers at once."""


class Narrow(Connector[NarrowConfig]):
    """Values of 100 bytes, and what it was asked for."""

    name = "narrow"
    config_class = NarrowConfig
    capacity = 4
    batch_size = max_batch_size = 1000
    calls: ClassVar[list[int]] = []

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        self.calls.append(len(keys))
        return {key: narrow_value_of(key) for key in keys}


def narrow_value_of(key: int) -> str:
    return f"{key}:".ljust(100, "x")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["column", "frame"])
def test_a_million_rows_in_one_batch_pass_through_the_window(form: str) -> None:
    """Spark makes such a batch when maxRecordsPerBatch is 0; only the keys are in memory at once, and few values."""
    [growth] = in_a_process(f"million({form!r})")
    assert growth <= MILLION_GROWTH_MAX, f"the resident memory has grown by {growth / 2**20:.0f} MiB"


def million(form: str) -> None:
    """Look up a million keys of one batch, and print by how much the resident memory has grown."""
    loop_thread()
    keys = pa.array(range(MILLION), pa.int64())
    plan, _ = make_plan(NarrowConfig(), 1, StringType(), {})
    payload = pack(plan)

    def consume() -> None:
        expected = 0
        for values in _values_of(form, payload, keys):
            for value in values:
                assert value.as_py() == narrow_value_of(expected), f"row {expected} has another value"
                expected += 1
        assert expected == MILLION
        assert sum(Narrow.calls) == MILLION

    sys.stdout.write(str(peak_growth(consume)))


def _values_of(form: str, payload: bytes, keys: pa.Array[Any]) -> Iterator[pa.Array[Any]]:
    if form == "column":
        yield from arrow_batches(payload, [keys])
        return
    task = FrameTask(plan=payload, width=1, keys=(0,), names=("value",))
    for batch in frame_batches(pickle.dumps(task), [pa.record_batch([keys], ["key"])]):
        yield batch.column("value")


HUGE_ROWS = 400
HUGE_BYTES = 4 * 2**20
HUGE_KEYS = 10  # most keys of a call while the size of an answer is not known


def huge_value_of(key: int) -> str:
    return f"{key}:".ljust(HUGE_BYTES, "x")


@pytest.mark.more
@pytest.mark.service
@pytest.mark.parametrize("source", ["redis", "postgres"])
def test_values_of_4_mebibytes_cost_no_row_and_twice_the_memory_of_the_first_calls(
    request: pytest.FixtureRequest, source: str
) -> None:
    """With default options, from a real server, for a Spark that is slower than the server."""
    url = request.getfixturevalue("redis_url" if source == "redis" else "postgres_dsn")
    if source == "redis":
        with redis.Redis.from_url(url) as client:
            for key in range(HUGE_ROWS):
                client.set(f"huge{key}", huge_value_of(key))
    else:
        request.getfixturevalue("postgres_server").execute(
            f"CREATE VIEW huge AS SELECT id, rpad(id || ':', {HUGE_BYTES}, 'x') AS name "
            f"FROM generate_series(0, {HUGE_ROWS - 1}) AS id",
            url.rpartition("/")[2],
        )
    capacity, growth = in_a_process(f"huge({source!r}, {url!r})")
    first_calls = capacity * HUGE_KEYS * HUGE_BYTES
    most = GROWTH_MAX + 2 * first_calls  # the bytes as they come, and the values that are made of them
    assert growth <= most, f"the resident memory has grown by {growth / 2**20:.0f} MiB"


def huge(source: str, url: str) -> None:
    """Look `HUGE_ROWS` keys up, and print the capacity and by how much the resident memory has grown."""
    loop_thread()
    config: ConnectorConfig
    if source == "redis":
        config = RedisConfig(url=url, key="huge{}")
    else:
        config = PostgresConfig(dsn=url, table="huge", key="id", insecure=True)
    plan, _ = make_plan(config, 1, StringType(), {})
    keys = pa.array(range(HUGE_ROWS), pa.int32())

    def consume() -> None:
        expected = 0
        for values in arrow_batches(pack(plan), [keys]):
            for value in values:
                assert value.as_py() == huge_value_of(expected), f"row {expected} has another value"
                expected += 1
                time.sleep(0.005)
        assert expected == HUGE_ROWS

    growth = peak_growth(consume)
    sys.stdout.write(f"{plan.capacity} {growth}")
