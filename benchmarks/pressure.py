"""
N12: Spark slower than the source, and values of 200 KB, with default options.

Each source is looked up in a process of its own, as in a worker without Spark, whose peak of memory the kernel tells.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.harness import ROOT, Table
from benchmarks.peak import peak_growth
from enrichkit import ConnectorConfig, local

ROWS = 2_000
BYTES = 200_000
SECONDS_EACH = 0.002
"""Seconds that the consumer takes for a row: 100 MB a second, which is less than each of the sources gives."""
GROWTH_MAX = 192


def child(name: str, url: str, rows: int) -> None:
    """Look up *rows* wide values of a source, take them slowly, and print by how many MiB the memory has grown."""
    from enrichkit.engine.loop import loop_thread

    loop_thread()  # starts it
    narrow = list(_values(_config(name, url, "narrow"), rows))  # what the first job imports and opens is not the values
    assert narrow == [_value_of(key, 0) for key in range(rows)]
    del narrow

    def consume() -> None:
        for key, value in enumerate(_values(_config(name, url, "wide"), rows)):
            assert value == _value_of(key, BYTES), f"row {key} has another value"
            time.sleep(SECONDS_EACH)

    print(peak_growth(consume) / 2**20)


def _values(config: ConnectorConfig, rows: int) -> Iterator[str]:
    """Yield the value of each row, as the worker gives them to Spark."""
    import pyarrow as pa
    from pyspark.sql.types import StringType

    from enrichkit.driver.pickling import pack
    from enrichkit.driver.planner import make_plan
    from enrichkit.worker.entry import arrow_batches

    plan, _ = make_plan(config, 1, StringType(), {})
    for column in arrow_batches(pack(plan), [pa.array(range(rows), pa.int64())]):
        for value in column:  # one by one: a list of them all would count, too
            yield value.as_py()


def _config(name: str, url: str, width: str) -> ConnectorConfig:
    """Return the config of the *narrow* or *wide* values of a source."""
    from enrichkit_http import HttpConfig
    from enrichkit_postgres import PostgresConfig
    from enrichkit_redis import RedisConfig

    match name:
        case "http":
            return HttpConfig(url=f"{url}/{width}-{{}}", value="value")
        case "redis":
            return RedisConfig(url=url, key=f"{width}-{{}}")
        case _:
            return PostgresConfig(dsn=url, table=width, columns=("value",))


def _value_of(key: int, size: int) -> str:
    return f"{key}:".ljust(size, "x")


def measure(quick: bool) -> Table:
    """Measure N12."""
    rows = ROWS // 10 if quick else ROWS
    table = Table("N12", f"{rows:,} values of 200 KB, a slow consumer, default options", ("source", "MiB", "seconds"))
    for name, start in {"http": _http, "redis": _redis, "postgres": _postgres}.items():
        with ExitStack() as stack:
            code = f"from benchmarks.pressure import child; child({name!r}, {start(stack, rows)!r}, {rows})"
            began = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
            seconds, growth = time.perf_counter() - began, float(done.stdout)
        table.rows.append((name, f"{growth:.0f}", f"{seconds:.1f}"))
        table.goals.append((f"{name}: the memory grows by at most {GROWTH_MAX} MiB", growth <= GROWTH_MAX))
    table.notes += [
        f"{rows * BYTES / 2**20:,.0f} MiB of values pass, each compared with its key; the consumer takes 500 a second",
        "the memory of the process beyond that after as many short values of the same source",
    ]
    return table


def _http(stack: ExitStack, rows: int) -> str:
    service = stack.enter_context(local.http())
    for start in range(0, rows, 100):
        keys = range(start, min(start + 100, rows))
        service.seed({f"wide-{key}": {"value": _value_of(key, BYTES)} for key in keys})
        service.seed({f"narrow-{key}": {"value": _value_of(key, 0)} for key in keys})
    return service.url


def _redis(stack: ExitStack, rows: int) -> str:
    import redis

    server = stack.enter_context(local.redis())
    with redis.Redis.from_url(server.url) as client:
        for key in range(rows):
            client.mset({f"wide-{key}": _value_of(key, BYTES), f"narrow-{key}": _value_of(key, 0)})
    return server.url


def _postgres(stack: ExitStack, rows: int) -> str:
    database = stack.enter_context(local.postgres())
    for name, value in {"wide": f"rpad(n || ':', {BYTES}, 'x')", "narrow": "n || ':'"}.items():
        database.execute(
            f"CREATE TABLE {name} AS SELECT n::bigint AS id, {value} AS value FROM generate_series(0, {rows - 1}) n;"
            f"ALTER TABLE {name} ADD PRIMARY KEY (id); ANALYZE {name}"
        )
    return database.dsn
