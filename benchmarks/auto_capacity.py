"""
`capacity="auto"` at a service whose ceiling nobody knows and which moves; the service counts what it served.

A fixed capacity stands beside it, to show what the option is for.
"""

from __future__ import annotations

import multiprocessing
import pickle
import time
from typing import Any

import pyarrow as pa

from benchmarks.harness import COLUMN, Table
from benchmarks.job_rate import task
from enrichkit import local
from enrichkit.driver.planner import make_plan

CEILINGS = (200, 50, 200)
GRACE, SECONDS = 10.0, 20.0
ROOM = 60
LATENCIES = (0.02, 0.1)
MOST = 100
SOURCES = (
    *COLUMN,
    "enrichkit/engine/tuning.py",
    "plugins/enrichkit-http/enrichkit_http",
    "enrichkit/local/http_service.py",
    "benchmarks/auto_capacity.py",
)


def run(service: local.HttpService, latency: float, seconds: float, options: dict[str, Any]) -> list[tuple[float, ...]]:
    """Return for each ceiling the calls per second after the grace, and the share of refused calls in all the time."""
    from enrichkit_http import HttpConfig

    service.reset()
    config = HttpConfig(url=service.url + "/{}", value="score")
    plan, _ = make_plan(config, 1, pa.int32(), {"timeout": 60.0, "on_error": "null", **options})
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    worker = context.Process(target=task, args=(pickle.dumps(plan), ready), daemon=True)
    service.script(latency=latency, ceiling=CEILINGS[0], room=ROOM)
    worker.start()
    found = []
    try:
        ready.wait(60)
        for ceiling in CEILINGS:
            service.script(latency=latency, ceiling=ceiling, room=ROOM)
            start = service.stats()
            time.sleep(seconds / 2)
            began, before = time.monotonic(), service.stats()
            time.sleep(seconds / 2)
            after, took = service.stats(), time.monotonic() - began
            answered = (
                after.calls - after.refused - after.in_flight - (before.calls - before.refused - before.in_flight)
            )
            refused = (after.refused - start.refused) / max(1, after.calls - start.calls)
            found.append((answered / took, refused, float(after.peak)))
    finally:
        worker.kill()
        worker.join()
    return found


def main(quick: bool) -> list[Table]:
    """Measure auto_capacity."""
    seconds = SECONDS / 5 if quick else SECONDS
    table = Table(
        "auto_capacity",
        f"a ceiling that moves every {seconds:g} s; a queue of {ROOM} calls before it, then 503; at most {MOST} calls "
        "in flight",
        ("latency", "capacity", "ceiling, calls/s", "answered, calls/s", "share of the ceiling", "refused"),
    )
    with local.http() as service:
        for latency in LATENCIES:
            for name, options in (
                ("auto", {"capacity": "auto", "max_capacity": MOST}),
                (f"{MOST}", {"capacity": MOST}),
            ):
                found = run(service, latency, seconds, options)
                for ceiling, (rate, refused, _) in zip(CEILINGS, found, strict=True):
                    row = (f"{latency * 1000:g} ms", name, f"{ceiling}", f"{rate:.1f}", f"{rate / ceiling:.1%}")
                    table.rows.append((*row, f"{refused:.2%}"))
                if name != "auto":
                    continue
                least = min(rate / ceiling for ceiling, (rate, _, _) in zip(CEILINGS, found, strict=True))
                most = max(refused for _, refused, _ in found)
                peak = max(at for _, _, at in found)
                at = f"latency {latency * 1000:g} ms"
                table.goals.append(
                    (f"{at}: at least 85 % of each ceiling, after {GRACE:g} s: {least:.1%}", least >= 0.85)
                )
                table.goals.append((f"{at}: less than 2 % refused at each ceiling: {most:.2%}", most < 0.02))
                table.goals.append((f"{at}: at most {MOST} calls in flight: {peak:g}", peak <= MOST))
    table.notes.append("the service counted the calls that arrived, that it refused, and that were in flight")
    return [table]
