"""What limits the tasks of a source, and what would make them faster; `benchmarks/advice.py` follows the advice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from enrichkit.observe.advice import Situation, advice, arithmetic, sentence
from enrichkit.observe.stats import Distribution, Stats

WAITS = Stats(
    tasks=2,
    seconds=100.0,
    rows=10_000,
    keys=10_000,
    calls=10_000,
    sent=10_000,
    ok=10_000,
    source_seconds=90.0,
    cpu_seconds=10.0,
    slot_seconds=1_000.0,
    calls_took=Distribution({140: 10_000}, 950.0),
    fill=Distribution({8: 10_000}, 10_000.0, 1.0),
)
NOW = Situation(
    source="users", stats=WAITS, capacity=10, batch_size=1, batch_size_max=1, running=2, slots=2, in_flight=10
)


def other(source: float = 0.0, **figures: Any) -> Stats:
    return replace(WAITS, source_seconds=source, **figures)


CASES: dict[str, tuple[Situation, str, list[tuple[str, str, float | None]]]] = {
    "nothing": (replace(NOW, stats=Stats()), "No task has run yet.", []),
    "fallback": (
        replace(NOW, stats=Stats(calls=20, sent=20)),
        "Asked as a fallback: 20 calls.",
        [],
    ),
    "capacity": (
        NOW,
        "Waiting for the source: 10 of 10 calls in flight, median 102 ms; capacity=40 would be 3.1 x as fast.",
        [("capacity", "40", 3.08)],
    ),
    "a capacity that is found": (
        replace(NOW, capacity_max=100),
        "Waiting for the source: 10 of 10 calls in flight, median 102 ms.",
        [],
    ),
    "a capacity that is found, at its maximum": (
        replace(NOW, capacity_max=10),
        "Waiting for the source: 10 of 10 calls in flight, median 102 ms; max_capacity=40 would be 3.1 x as fast.",
        [("max_capacity", "40", 3.08)],
    ),
    "batches": (
        replace(NOW, batch_size_max=10_000),
        ("Waiting for the source: 10 of 10 calls in flight, median 102 ms; batch_size=100 would be 9.2 x as fast."),
        [("batch_size", "100", 9.17)],
    ),
    "the same keys in all tasks": (
        replace(NOW, stats=replace(WAITS, tasks=4, rows=1_000_000, keys=40_000, sent=40_000)),
        "Waiting for the source: 10 of 10 calls in flight, median 102 ms; capacity=40 would be 3.1 x as fast.",
        [("capacity", "40", 3.08), ("shuffle", "True", None)],
    ),
    "slots of Spark": (
        replace(NOW, slots=8),
        (
            "Waiting for the source: 10 of 10 calls in flight, median 102 ms; "
            "8 tasks at the same time would be 4 x as fast."
        ),
        [("repartition", "8", 4.0), ("capacity", "40", 3.08)],
    ),
    "few keys": (
        replace(NOW, stats=replace(WAITS, slot_seconds=10_000.0), in_flight=None),
        "Waiting for the source with few keys at a time: 10% of the slots in use, median 102 ms.",
        [],
    ),
    "away": (replace(NOW, away=12.0), "Source away for 12 s; its rows wait.", []),
    "outage": (
        replace(NOW, stats=other(40.0, limit_seconds=50.0, limits={"outage": 50.0})),
        "Source was away for 50 s of 100 s.",
        [],
    ),
    "rate": (
        replace(NOW, rate=50.0, stats=other(20.0, limit_seconds=70.0, limits={"rate": 70.0})),
        "Rate limit of 50/s reached; rate=100 would be 1.5 x as fast.",
        [("rate", "100", 1.54)],
    ),
    "refused": (
        replace(NOW, stats=replace(WAITS, retries={"TransientError": 900, "missing": 5000}, failures={"Gone": 100})),
        "The source refuses 9% of the keys, mostly with TransientError.",
        [("rate", "100", None)],
    ),
    "breaker": (
        replace(NOW, stats=other(40.0, limit_seconds=50.0, limits={"breaker": 30.0, "pause": 20.0})),
        "Calls were held back 30% of the time, because most of them failed.",
        [("rate", "100", None)],
    ),
    "input": (
        replace(NOW, stats=other(10.0, input_seconds=80.0)),
        "Waiting for Spark's input: the source could answer more.",
        [],
    ),
    "output": (
        replace(NOW, stats=other(10.0, output_seconds=80.0)),
        "Waiting for Spark to take rows: it is slower than the source.",
        [],
    ),
    "wide": (
        replace(NOW, stats=replace(WAITS, bytes=2_000_000_000, bytes_seconds=60.0)),
        "Values of 195 KiB fill window_bytes before Spark takes them.",
        [("window_bytes", "2**28", None)],
    ),
    "cpu": (
        replace(NOW, stats=other(10.0, cpu_seconds=90.0)),
        "The workers compute: 90% of their time.",
        [],
    ),
    "hot": (
        replace(NOW, stats=replace(WAITS, hot={"#aa": 3_800, "#bb": 100})),
        (
            "Waiting for the source: 10 of 10 calls in flight, median 102 ms; "
            "capacity=40 would be 3.1 x as fast. One key takes 38% of the rows (#aa)."
        ),
        [("capacity", "40", 3.08)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_names_the_cause_and_the_advice_its_gain(case: str) -> None:
    situation, text, advised = CASES[case]
    assert sentence(situation) == text
    found = [(each["option"], each["value"], each["gain"]) for each in advice(situation)]
    assert [(option, value) for option, value, _ in found] == [(option, value) for option, value, _ in advised]
    for (_, _, gain), (_, _, wanted) in zip(found, advised, strict=True):
        assert gain == (wanted if wanted is None else pytest.approx(wanted, rel=0.01))


def test_little_is_said_after_a_few_calls() -> None:
    few = replace(WAITS, calls=10, calls_took=Distribution({140: 10}, 950.0))
    assert list(advice(replace(NOW, stats=few))) == []


@pytest.mark.parametrize("latency", [0.005, 0.1, 1.0])
@pytest.mark.parametrize(("capacity", "tasks"), [(1, 1), (10, 2), (100, 8)])
def test_the_model_is_that_of_explain(latency: float, capacity: int, tasks: int) -> None:
    from enrichkit import Options
    from enrichkit.reports.estimate import estimate

    job = estimate(50_000, 50_000, tasks, Options(), capacity, 20)
    assert job.floor(latency) == pytest.approx(-(-2_500 // (capacity * tasks)) * latency)
    assert job.model.keys_per_second == float("inf")
    measured = replace(job.model, latency=latency)
    assert 50_000 / measured.keys_per_second == pytest.approx(job.floor(latency), rel=0.3)


def test_the_arithmetic_compares_the_time_with_the_least_that_the_calls_need() -> None:
    assert arithmetic(NOW) == (
        "2 tasks took 100 s in all; 5,000 calls each, of 95 ms, 10 at a time, need at least 95 s: 95% of it."
    )
    slow = replace(NOW, rate=100.0)
    assert "10 at a time at 100 calls per second, need at least 100 s: 100% of it." in arithmetic(slow)
    assert arithmetic(replace(NOW, stats=Stats())) == ""


def test_a_shuffle_is_advised_with_what_it_saves() -> None:
    """Each of four tasks has sent 8,000 keys of 20,000 rows: by chance, of about 9,000 keys."""
    stats = replace(WAITS, tasks=4, rows=80_000, keys=32_000, sent=32_000)
    [_, advised] = advice(replace(NOW, stats=stats))
    assert advised["text"] == (
        "4 tasks have sent 32,000 keys. If they have the same keys, enrich_frame(..., shuffle=True) sends about 9,000."
    )
    distinct = replace(stats, rows=32_000)
    assert [each["option"] for each in advice(replace(NOW, stats=distinct))] == ["capacity"], "no key has come twice"
