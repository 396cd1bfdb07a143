"""
A rate of the whole job: real worker processes, a real store, and a service that notes when each request arrives.

Processes join and are killed, and the store is away for a while. Each process runs a task with a worker's own functions.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import time
import uuid
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from benchmarks.harness import COLUMN, Table
from enrichkit import Limit, Rate, local
from enrichkit.driver.planner import make_plan
from enrichkit.testing.proxy import FaultProxy, fault_proxy
from enrichkit.worker.entry import arrow_batches

WORKERS = 4
RATE = 100
AWAY = 5.0
WARM = 2.0
LATENCY = 0.02
IN_FLIGHT = 20
SOURCES = (
    *COLUMN,
    "enrichkit/leases.py",
    "plugins/enrichkit-redis/enrichkit_redis/leases.py",
    "plugins/enrichkit-postgres/enrichkit_postgres/leases.py",
    "benchmarks/job_rate.py",
)


def task(payload: bytes, ready: Any) -> None:
    """Run a task of which only a kill is the end, as a worker of Spark would."""
    ready.set()

    def batches() -> Iterator[pa.Array[Any]]:
        number = 0
        while True:
            yield pa.array([f"{os.getpid()}-{n}" for n in range(number, number + 100)], pa.string())
            number += 100

    for _ in arrow_batches(payload, batches()):
        pass


class Workers:
    """The processes of a job."""

    def __init__(self, payload: bytes) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._payload = payload
        self.running: list[Any] = []

    def join(self, count: int = 1) -> None:
        """Start *count* more, and wait until they begin their tasks."""
        events = [self._context.Event() for _ in range(count)]
        for ready in events:
            process = self._context.Process(target=task, args=(self._payload, ready), daemon=True)
            process.start()
            self.running.append(process)
        for ready in events:
            ready.wait(60)

    def kill(self) -> None:
        """Kill the oldest one, as the end of an executor would."""
        process = self.running.pop(0)
        process.kill()
        process.join()

    def end(self) -> None:
        """Kill them all."""
        while self.running:
            self.kill()


@dataclass
class Place:
    """The servers."""

    service: local.HttpService
    proxies: dict[str, FaultProxy]
    configs: dict[str, Any]

    def payload(self, store: str, **options: Any) -> bytes:
        """Return the plan of a job whose limits are held by *store*."""
        from enrichkit_http import HttpConfig

        config = HttpConfig(url=f"{self.service.url}/{uuid.uuid4().hex}/{{}}", value="score")
        plan, _ = make_plan(config, 1, pa.int32(), {"timeout": 60.0, "capacity": 20, **options})
        return pickle.dumps(plan)

    def arrivals(self) -> list[float]:
        """Return when the requests have arrived."""
        return sorted(entry["at"] for entry in self.service.log())


def most(times: Sequence[float], seconds: float = 1.0) -> int:
    """Return the most of *times* in any span of *seconds*, wherever it begins."""
    return max((bisect_left(times, begin + seconds) - place for place, begin in enumerate(times)), default=0)


def steady(place: Place, workers: Workers, seconds: float) -> tuple[float, float]:
    """Let the workers run; return the begin and the end of what is counted."""
    began = time.monotonic()
    time.sleep(seconds)
    return began, began + seconds


def changing(place: Place, workers: Workers, seconds: float) -> tuple[float, float]:
    """Kill a worker and let another join, again and again."""
    began = time.monotonic()
    end = began + seconds
    step = 0
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(4.0, left))
        if time.monotonic() < end:
            workers.join() if step % 2 else workers.kill()
            step += 1
    return began, time.monotonic()


def run(place: Place, store: str, happens: Any, seconds: float) -> list[float]:
    """Return the arrivals in the span that *happens* returns, after the workers have warmed up."""
    workers = Workers(place.payload(store, rate=Rate(RATE, per="job", store=place.configs[store])))
    place.service.reset()
    place.service.script(latency=LATENCY, log=True)
    try:
        workers.join(WORKERS)
        time.sleep(WARM)
        began, ended = happens(place, workers, seconds)
    finally:
        workers.end()
    times = place.arrivals()
    return [at for at in times if began <= at < ended]


def away(store: str) -> Any:
    """Return what lets *store* be away for `AWAY` seconds in the middle."""

    def happens(place: Place, workers: Workers, seconds: float) -> tuple[float, float]:
        proxy = place.proxies[store]
        began = time.monotonic()
        time.sleep((seconds - AWAY) / 2)
        proxy.refuse()
        proxy.cut()
        gone = time.monotonic()
        time.sleep(AWAY)
        proxy.heal()
        happens.gone = gone  # type: ignore[attr-defined]  # for the caller
        time.sleep((seconds - AWAY) / 2)
        return began, began + seconds

    return happens


def in_flight(place: Place, store: str, seconds: float) -> int:
    """Return the most requests in flight at the service with a limit of the job, while workers are killed and join."""
    limit = Limit(IN_FLIGHT, per="job", store=place.configs[store])
    workers = Workers(place.payload(store, limit=limit))
    place.service.reset()
    place.service.script(latency=0.2)
    try:
        workers.join(WORKERS)
        changing(place, workers, seconds)
        return place.service.stats().peak
    finally:
        workers.end()


def keep_clock(pid: int) -> None:
    """
    Let the process *pid*, the service, run at once whenever a request arrives.

    It notes when it reads a request. On a busy machine it stood still for 0.2 s, and then read the requests of 0.2 s
    together. It needs little time, and a right that only root has.
    """
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))
        return
    print("    the service has no priority: on a busy machine it notes requests too late, and many together")


def main(quick: bool) -> list[Table]:
    """Return the table of all situations."""
    from enrichkit_postgres import PostgresConfig
    from enrichkit_redis import RedisConfig

    seconds = 10.0 if quick else 60.0
    table = Table(
        "job_rate",
        f"{RATE} calls/s for {WORKERS} worker processes together, {seconds:g} s each",
        ("store", "what happens", "calls/s", "most in any second", "while away, calls/s"),
    )
    with ExitStack() as stack:
        service = stack.enter_context(local.http())
        servers = {"redis": stack.enter_context(local.redis()), "postgres": stack.enter_context(local.postgres())}
        proxies = {name: stack.enter_context(fault_proxy(server.host, server.port)) for name, server in servers.items()}
        configs = {
            "redis": RedisConfig(url=proxies["redis"].url(servers["redis"].url)),
            "postgres": PostgresConfig(dsn=proxies["postgres"].url(servers["postgres"].url), table="none"),
        }
        keep_clock(service.pid)
        place = Place(service, proxies, configs)
        for store in ("redis", "postgres"):
            for name, happens in (
                ("nothing", steady),
                ("workers are killed and join", changing),
                (f"away {AWAY:g} s", away(store)),
            ):
                times = run(place, store, happens, seconds)
                rate, peak = len(times) / seconds, most(times)
                gone = getattr(happens, "gone", None)
                meanwhile = None if gone is None else sum(gone <= at < gone + AWAY for at in times) / AWAY
                table.rows.append(
                    (store, name, f"{rate:.1f}", f"{peak}", "-" if meanwhile is None else f"{meanwhile:.1f}")
                )
                worst = max(times, key=lambda at: bisect_left(times, at + 1.0) - bisect_left(times, at))
                where = f"the fullest second begins {worst - (gone or times[0]):.2f} s after {'the end of the store' if gone else 'the first'}"
                print("   ", *table.rows[-1], where, sep=" | ", flush=True)
                low = 0.95 if meanwhile is None else 0.9
                table.goals.append(
                    (f"{store}, {name}: {low * RATE:g} to {RATE} calls/s: {rate:.1f}", low * RATE <= rate <= RATE)
                )
                table.goals.append((f"{store}, {name}: no second above 105: {peak}", peak <= 1.05 * RATE))
                if meanwhile is not None:
                    table.goals.append(
                        (f"{store}, away: at least 60 % of the rate: {meanwhile:.1f}", meanwhile >= 0.6 * RATE)
                    )
            peak = in_flight(place, store, 6.0 if quick else 20.0)
            table.goals.append(
                (
                    f"{store}: at most {IN_FLIGHT} calls in flight of the job while workers join: {peak}",
                    peak <= IN_FLIGHT,
                )
            )
    return [table]
