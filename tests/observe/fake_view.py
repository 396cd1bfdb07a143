"""
Views of a job that has never run: ten minutes, three sources, two workers, forty tasks.

`users` is slow and dips, `orders` is away for 50 seconds, `geo` is quick and fails for some keys. The same second gives
the same view each time, so that pictures change only when the page does.
"""

from __future__ import annotations

import copy
import math
import random
from typing import TYPE_CHECKING, Any

from enrichkit.observe.view import VERSION

if TYPE_CHECKING:
    from enrichkit.observe.view import Bar, Point, SourceView, TaskView, TimeShare, Totals, View, WorkerView

__all__ = ["START", "fake_view", "hostile", "waiting"]

START = 1_765_357_200.0  # 10 December 2025, 09:00 UTC
ROWS = 7_500_000
LABELS = {
    "source": "Waiting for the source",
    "limit": "Rate limit or outage",
    "input": "Waiting for Spark's input",
    "output": "Waiting for Spark to take rows",
    "cpu": "Computing",
}
ERRORS = {"users": 12, "orders": 640, "geo": 73}
SECRET = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script><!--"

ARITHMETIC = "13 tasks took 1040 s in all; 6,345 calls each, of 33 ms, 128 at a time, need at least 604 s: 58% of it."
WAITING = "Waiting for the source: 128 of 128 calls in flight, median 33 ms; capacity=256 would be 1.6 x as fast."


def times(*shares: float, seconds: float = 1.0) -> list[TimeShare]:
    total = sum(shares)
    return [
        {"name": name, "label": label, "seconds": seconds * share / total, "share": share / total}  # type: ignore[typeddict-item]
        for (name, label), share in zip(LABELS.items(), shares, strict=True)
    ]


def bars(unit: float, middle: float, width: float, calls: int, most: float = math.inf) -> list[Bar]:
    """Return a histogram as `stats.Distribution` has them: eight bars for a doubling, those without values left out."""
    bounds = [float((index % 8 + 8) / 16 * 2.0 ** (index // 8) * unit) for index in range(8, 170)]
    weights = [math.exp(-((math.log2(low / middle) / width) ** 2)) for low in bounds]
    found: list[Bar] = [
        {"low": low, "high": high, "count": round(calls * weight / sum(weights))}
        for low, high, weight in zip(bounds, bounds[1:], weights, strict=False)
        if low <= most
    ]
    return [bar for bar in found if bar["count"]]


def point(second: int) -> Point:
    noise = random.Random(second)
    dip = 1 - 0.55 * math.exp(-(((second - 190) / 28) ** 2))  # users is slow for a minute
    away = 330 <= second < 380
    warm = min(1.0, second / 12)
    rows = 14_500 * warm * dip * (0.32 if away else 1.0) * noise.uniform(0.94, 1.06)
    p50 = 0.021 / dip * noise.uniform(0.93, 1.07)
    source = 0.66 / dip**0.4
    limit = 0.42 if away else 0.05
    spark = [0.1, 0.05, 0.14]
    total = source * (0.5 if away else 1) + limit + sum(spark)
    return {
        "at": START + second,
        "rows": rows,
        "calls": rows / 31,
        "in_flight": 0 if second < 2 else min(256.0, 256 * warm * (0.4 if away else noise.uniform(0.9, 1.0))),
        "capacity": 128 if second < 4 else 256,
        "p50": None if second < 3 else p50,
        "p99": None if second < 3 else p50 * (3.1 + noise.random() + (2.5 if away else 0)),
        "errors": noise.choice([0, 0, 0, 1, 3]) + (46 * noise.random() if away else 0),
        "retries": noise.choice([0, 0, 2, 5]) + (38 * noise.random() if away else 0),
        "source": source * (0.5 if away else 1) / total,
        "limit": limit / total,
        "input": spark[0] / total,
        "output": spark[1] / total,
        "cpu": spark[2] / total,
    }


def totals(rows: int, *, errors: int = 0, tasks: int = 0, failed: int = 0) -> Totals:
    keys = int(rows * 0.82)
    return {
        "rows": rows,
        "keys": keys,
        "distinct": int(keys * 0.9),
        "calls": rows // 31,
        "sent": int(keys * 0.61),
        "ok": int(keys * 0.97),
        "missing": int(keys * 0.029),
        "errors": errors,
        "timeouts": errors // 7,
        "rejected": 0,
        "over_budget": 0,
        "without_answer": errors + errors // 7,
        "preloaded": 0,
        "reused": 0,
        "journaled": 0,
        "stale": errors // 5,
        "tiered": 0,
        "skipped": 0,
        "retries": errors * 2,
        "returned": errors // 3,
        "cached": int(keys * 0.27),
        "shared": int(keys * 0.12),
        "late": errors // 11,
        "zombies": 0,
        "abandoned": 0,
        "bytes": rows * 143,
        "tasks": tasks,
        "failed_tasks": failed,
        "failed_calls": errors * 3,
    }


def source(name: str, second: int, rows: int, expected: int) -> SourceView:
    middle = {"users": 0.033, "orders": 0.017, "geo": 0.004}[name]
    size = {"users": 500, "orders": 1, "geo": 200}[name]
    away = name == "orders" and 330 <= second < 380
    shares = {"users": (71, 4, 8, 5, 12), "orders": (48, 26, 10, 4, 12), "geo": (14, 2, 38, 9, 37)}[name]
    sentences = {
        "users": WAITING,
        "orders": "Source was away for 50 s of 400 s.",
        "geo": "Waiting for Spark's input: the source could answer more.",
    }
    done = second >= 600
    return {
        "name": name,
        "connector": {"users": "postgres", "orders": "http", "geo": "redis"}[name],
        "sentence": "Source away for 42 s; its rows wait." if away else sentences[name],
        "arithmetic": ARITHMETIC,
        "advice": [],
        "progress": {"rows": rows, "total": expected, "share": rows / expected, "eta": max(0.0, 600 - second)},
        "time": times(*shares, seconds=second * 2.6),
        "totals": totals(
            rows, errors={"users": 12, "orders": 640, "geo": 73}[name], tasks=13, failed=2 * (name == "orders")
        ),
        "spending": None,
        "running": 0 if done else 3,
        "in_flight": 0 if done else {"users": 126, "orders": 70, "geo": 11}[name],
        "capacity": {"users": 128, "orders": 96, "geo": 32}[name],
        "batch_size": size,
        "rate": 900.0 if name == "orders" else None,
        "away_since": START + 330 if away else None,
        "p50": middle,
        "p90": middle * 2.8,
        "p99": middle * 6.1,
        "latency": bars(1e-6, middle, 1.2, rows // 31),
        "queue_wait": bars(1e-6, middle / 3, 1.8, rows // 31),
        "batch_fill": bars(1.0, size * 0.7, 1.5, rows // 31, most=size),
        "errors": {
            "users": [{"reason": "TimeoutError", "count": 12}],
            "orders": [
                {"reason": "UnavailableError: 503 Service Unavailable", "count": 588},
                {"reason": "TransientError: connection reset by peer", "count": 52},
            ],
            "geo": [{"reason": "PermanentError: WRONGTYPE Operation against a key of the wrong kind", "count": 73}],
        }[name],  # type: ignore[typeddict-item]
        "retries": [{"reason": "503 Service Unavailable", "count": 1176}] if name == "orders" else [],
        "held_back": [{"reason": "outage", "seconds": 50.0}, {"reason": "rate", "seconds": 12.5}]
        if name == "orders"
        else [],
        "slow": [
            {"key": f"{random.Random(name + str(rank)).getrandbits(48):012x}", "seconds": 2.4 / rank, "source": name}
            for rank in range(1, 6)
        ],
        "hot": [{"key": "9f31c2a077e4", "share": 0.184, "source": name}] if name == "users" else [],
    }


def task(number: int, second: int) -> TaskView:
    noise = random.Random(number)
    name = ("users", "orders", "geo")[number % 3]
    began = number // 6 * 90
    ran = max(3.0, min(second - began, noise.uniform(70, 95)))
    failed = number in (7, 22)
    state = "failed" if failed else "lost" if number == 16 else "running" if second - began < 95 else "ok"
    rows = int(ran * 2_700 * (0.4 if failed else 1))
    return {
        "id": f"{number + 40}.{int(failed)}",
        "source": name,
        "stage": 3 + number // 30,
        "partition": number,
        "attempt": 1 if number in (8, 23) else 0,
        "batch": None,
        "worker": f"10.0.4.{17 + number % 2}:{4211 + 77 * (number % 2)}",
        "state": state,
        "seconds": ran,
        "rows": rows,
        "calls": rows // 31,
        "in_flight": noise.randint(20, 32) if state == "running" else 0,
        "capacity": 32,
        "p50": noise.uniform(0.012, 0.03),
        "p99": noise.uniform(0.06, 0.2),
        "errors": 64 if failed else noise.choice([0, 0, 0, 2]),
        "retries": noise.choice([0, 0, 4, 9]),
        "time": times(*(noise.uniform(1, 2) + extra for extra in (8, 0.2, 1, 0.5, 2)), seconds=ran),
        "error": (
            "LookupFailedError: orders failed for key #9f31c2 after 3 attempts in 10.2 s: 503 Service Unavailable"
            if failed
            else None
        ),
    }


def workers(second: int) -> list[WorkerView]:
    return [
        {
            "id": f"10.0.4.{17 + number}:{4211 + 77 * number}",
            "host": f"10.0.4.{17 + number}",
            "pid": 4211 + 77 * number,
            "seen": START + second - 0.4 - number * 0.5,
            "running": 0 if second >= 600 else 3,
            "rows": second * 6_400 + number * 900,
            "calls": second * 206 + number * 40,
            "in_flight": 0 if second >= 600 else 118 + number * 7,
            "cpu": 0.41 + 0.11 * number,
            "lag": 0.0012 + 0.0031 * number,
        }
        for number in range(2)
    ]


def fake_view(second: int = 420) -> View:
    """Return the view after *second* seconds, of the 600 of the job."""
    history = [point(each) for each in range(second + 1)]
    rows = min(ROWS, int(sum(each["rows"] for each in history)))
    last = history[-1]
    done = second >= 600
    away = 330 <= second < 380
    sources = [
        source(name, second, int(rows * share), int(ROWS * share))
        for name, share in (("users", 0.5), ("orders", 0.3), ("geo", 0.2))
    ]
    return {
        "version": VERSION,
        "at": START + second,
        "started": START,
        "state": "idle" if done else "running",
        "sentence": (
            "All tasks so far have ended."
            if done
            else "orders: Source away for 42 s; its rows wait."
            if away
            else f"users: {WAITING}"
        ),
        "advice": [
            {
                "text": "More calls in flight, if the source can serve them as quickly.",
                "option": "capacity",
                "value": "256",
                "gain": 1.6,
            },
        ],
        "progress": {"rows": rows, "total": ROWS, "share": rows / ROWS, "eta": None if done else (600 - second) * 1.1},
        "time": times(58, 13, 11, 5, 13, seconds=second * 8.0),
        "totals": totals(rows, errors=725, tasks=40, failed=2),
        "in_flight": 0 if done else round(last["in_flight"]),
        "capacity": 256,
        "rows_per_second": 0.0 if done else last["rows"],
        "calls_per_second": 0.0 if done else last["calls"],
        "p50": 0.0226,
        "p90": 0.0481,
        "p99": 0.1093,
        "history": history,
        "outages": [
            {"source": "orders", "since": START + 330, "until": None if away else START + 380},
        ]
        if second >= 330
        else [],
        "sources": sources,
        "workers": workers(second),
        "tasks": [task(number, second) for number in range(40) if number // 6 * 90 <= second],
        "more_tasks": 0,
    }


def waiting() -> View:
    """Return the view before the first task: nothing is known."""
    view = copy.deepcopy(fake_view(0))
    nothing: dict[str, Any] = {
        "state": "waiting",
        "sentence": "Waiting for the first task.",
        "advice": [],
        "progress": {"rows": 0, "total": None, "share": None, "eta": None},
        "time": [],
        "totals": dict.fromkeys(view["totals"], 0),
        "history": [],
        "p50": None,
        "p90": None,
        "p99": None,
        "sources": [],
        "workers": [],
        "tasks": [],
    }
    view.update(nothing)  # type: ignore[typeddict-item]
    return view


def hostile() -> View:
    """Return a view in which each text is an attack."""

    def attack(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: attack(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [attack(inner) for inner in value]
        return f"{value}{SECRET}" if isinstance(value, str) else value

    view: View = attack(fake_view())
    return view
