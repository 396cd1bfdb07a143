"""Statistics are merged in any order, and read across versions."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enrichkit.engine.stats import Histogram
from enrichkit.observe.stats import LARGEST, Distribution, Stats

NAMES = st.sampled_from(["TransientError", "missing", "TimeoutError", "rate"])
COUNTS = st.integers(0, 10**12)
SECONDS = st.integers(0, 2**20).map(lambda n: n / 1024)  # sums of these are exact


def distributions(unit: float) -> st.SearchStrategy[Distribution]:
    return st.builds(
        Distribution, st.dictionaries(st.integers(0, 200), st.integers(1, 10**9), max_size=5), SECONDS, st.just(unit)
    )


def values_of(name: str, empty: Any) -> st.SearchStrategy[Any]:
    if isinstance(empty, Distribution):
        return distributions(empty.unit)
    if name == "slow":
        return st.lists(st.tuples(SECONDS, st.text(max_size=3)), max_size=3).map(tuple)
    if isinstance(empty, dict):
        return st.dictionaries(NAMES, SECONDS if name == "limits" else COUNTS, max_size=3)
    return SECONDS if isinstance(empty, float) else COUNTS if name != "version" else st.just(1)


STATS = st.builds(Stats, **{f.name: values_of(f.name, getattr(Stats(), f.name)) for f in fields(Stats)})


def in_order(stats: Stats) -> Stats:
    """The slowest keys of equal statistics may come in another order, as they are at most `LARGEST`."""
    return replace(stats, slow=tuple(sorted(stats.slow, reverse=True)[:LARGEST]))


@given(STATS, STATS, STATS)
def test_the_order_of_additions_does_not_matter(one: Stats, two: Stats, three: Stats) -> None:
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)
    assert in_order(replace(one, slow=tuple(set(one.slow)))) == one + Stats()


@given(STATS)
def test_json_keeps_all_that_statistics_hold(stats: Stats) -> None:
    assert stats == Stats.read(json.loads(json.dumps(stats.as_dict())))


@given(STATS, st.sets(st.sampled_from([f.name for f in fields(Stats)])))
def test_statistics_of_another_version_are_read(stats: Stats, absent: set[str]) -> None:
    """An older worker sends fewer fields, a newer one sends fields that nobody knows."""
    sent = {name: value for name, value in stats.as_dict().items() if name not in absent} | {"brand_new": {"a": [1]}}
    got = Stats.read(sent)
    for f in fields(Stats):
        assert getattr(got, f.name) == getattr(Stats() if f.name in absent else stats, f.name)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("rows", -1, "These are no statistics of enrichkit: -1 is no number from 0 on."),
        ("rows", "7", "These are no statistics of enrichkit: '7' is no number from 0 on."),
        ("seconds", float("nan"), "These are no statistics of enrichkit: nan is no number from 0 on."),
        ("retries", 3, "These are no statistics of enrichkit: 'int' object has no attribute 'items'."),
        ("fill", {"sum": 1}, "These are no statistics of enrichkit: 'counts'."),
    ],
)
def test_what_is_no_statistics_is_refused(field: str, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"^These are no statistics") as caught:
        Stats.read({field: value})
    assert str(caught.value) == text


@given(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=50))
def test_a_quantile_is_in_the_bucket_of_the_value(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    found = histogram.distribution()
    assert found.total == len(values)
    assert found.sum == pytest.approx(sum(values))
    for share in (0.5, 0.99, 1.0):
        exact = sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]
        quantile = found.quantile(share)
        assert quantile is not None
        assert exact <= quantile * 1.126 + 1e-6
        assert quantile <= exact * 1.126 + 1e-6
    assert all(low < high for low, high, _ in found.bars())


def test_numbers_of_keys_are_exact_where_they_are_small() -> None:
    histogram = Histogram(1.0)
    for keys in (1, 2, 3, 4, 5, 6, 7, 8):
        histogram.add(keys)
    assert [low for low, _, _ in histogram.distribution().bars()] == [1, 2, 3, 4, 5, 6, 7, 8]
