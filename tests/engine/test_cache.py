"""What is remembered across runs: Flink's tests of its lookup cache, as far as they concern the engine."""

from __future__ import annotations

import pickle
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enrichkit.engine.cache import ABSENT, MISS, AnswerCache
from enrichkit.engine.sizes import size_of
from enrichkit.errors import ConfigError, PermanentError, TransientError
from enrichkit.options import Cache, Retry
from enrichkit.testing.scripted import Step

if TYPE_CHECKING:
    from .bench import Lab

ROOM = 2**20


def filled(ttl: float = 60.0, *, room: int = ROOM, missing_ttl: float | None = None, **answers: Any) -> AnswerCache:
    """A cache that remembers *answers* since time 0."""
    cache = AnswerCache(ttl, room, missing_ttl)
    cache.put_many(answers.keys(), answers.values(), 0.0)
    return cache


def test_what_was_stored_is_read_and_an_unknown_key_is_absent() -> None:
    """C1: testBasicReadWriteInCache."""
    rows = [1, 2, 3, 4]
    assert filled(a=rows).get_many(["a", "b"], 1.0) == [rows, ABSENT]


def test_reading_does_not_keep_an_answer_alive() -> None:
    """C3: testExpireAfterWrite. Expiry after the last access is not offered: a value may be used for its ttl."""
    cache = filled(ttl=10.0, a=1)
    assert cache.get_many(["a"], 5.0) == [1]
    assert cache.get_many(["a"], 9.999) == [1]
    assert cache.get_many(["a"], 10.0) == [ABSENT]


def test_when_there_is_no_room_an_answer_leaves_that_nobody_asks_for() -> None:
    """C4: testSizeBasedEviction. The bound is of bytes, not of entries."""
    cache = AnswerCache(60.0, 16_000, None)
    hot, value = list(range(10)), "v" * 500
    cache.put_many(hot, [value] * 10, 0.0)
    for key in range(10, 110):
        assert cache.get_many(hot, 1.0) == [value] * 10
        cache.put_many([key], [f"{key}".ljust(500)], 1.0)
        assert cache.bytes <= 16_000
    assert 10 < len(cache) < 30


def test_a_null_and_a_miss_are_told_from_an_unknown_key() -> None:
    """C5: testCacheMissingKey."""
    cache = filled(null=None, empty=[], none=MISS)
    assert cache.get_many(["null", "empty", "none", "unknown"], 1.0) == [None, [], MISS, ABSENT]


def test_misses_may_be_left_out() -> None:
    """C6: testCacheMissingKey."""
    assert filled(missing_ttl=0.0, none=MISS, a=1).get_many(["none", "a"], 1.0) == [ABSENT, 1]


def test_misses_may_be_remembered_for_a_shorter_time() -> None:
    cache = filled(ttl=10.0, missing_ttl=2.0, none=MISS, a=1)
    assert cache.get_many(["none", "a"], 1.9) == [MISS, 1]
    assert cache.get_many(["none", "a"], 2.0) == [ABSENT, 1]


def test_a_new_cache_is_empty_and_knows_its_size() -> None:
    """C7: testCacheMetrics."""
    cache = AnswerCache(60.0, ROOM, None)
    assert (len(cache), cache.bytes) == (0, 0)
    cache.put_many(["a", "b"], [1, MISS], 0.0)
    assert len(cache) == 2
    assert cache.bytes > 0
    cache.clear()
    assert (len(cache), cache.bytes) == (0, 0)


async def test_rows_from_the_cache_are_counted_as_such(lab: Lab) -> None:
    """C7: testCacheMetrics."""
    _, task = lab.start(cache=filled(a="cached", none=MISS), details=True)
    task.admit("a", "b", "none")
    await task.end()
    assert [(row.value, row.status, row.origin, row.attempts) for row in task.left] == [
        ("cached", "ok", "cache", 0),
        ("vb", "ok", "call", 1),
        (None, "missing", "cache", 0),
    ]
    assert (task.run.stats.cached, task.run.stats.calls) == (2, 1)


def test_the_options_of_a_cache_travel() -> None:
    """C8: testCacheSerialization."""
    options = Cache(ttl=60.0, max_bytes=4096, missing_ttl=5.0)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize("ttl", [0, -1.0, float("inf")])
def test_a_cache_without_a_bound_in_time_is_refused(ttl: float) -> None:
    """C10: testBuildFromConfig; C11: testBuilder. There is always a bound in bytes as well."""
    text = f"Cache.ttl is {ttl}; it must be a number of seconds from 0.001 to 604,800, for example ttl=1.0."
    with pytest.raises(ConfigError, match=f"^{re.escape(text)}$"):
        Cache(ttl=ttl)


async def test_each_key_is_asked_once_and_misses_are_remembered(lab: Lab, clock: str) -> None:
    """C12: testCaching."""
    server = lab.server({"none": Step(missing=True), "two": Step(value=["x", "y"])})
    engine, cache = lab.engine(server), AnswerCache(60.0, ROOM, None)
    for _ in range(2):
        task = lab.task(engine, cache=cache)
        task.admit_each("one", "two", "none")
        await task.end()
        assert task.values == ["vone", ["x", "y"], None]
        assert task.statuses == ["ok", "ok", "missing"]
    assert dict(server.asked) == {"one": 1, "two": 1, "none": 1}


async def test_tasks_of_one_worker_share_a_cache(lab: Lab) -> None:
    """C13: testLookupCacheSharingAcrossSubtasks."""
    server = lab.server()
    engine, cache = lab.engine(server), AnswerCache(60.0, ROOM, None)
    for keys in ("ab", "bc"):
        task = lab.task(engine, cache=cache)
        task.admit(*keys)
        await task.end()
    assert len(cache) == 3
    assert dict(server.asked) == {"a": 1, "b": 1, "c": 1}


async def test_a_hundred_rows_that_miss_the_cache_at_once_are_one_call(lab: Lab) -> None:
    """C14, for which Flink makes up to 100 calls."""
    server, task = lab.start(otherwise=Step(after=1.0), capacity=50, cache=AnswerCache(60.0, ROOM, None))
    task.admit_each(*["a"] * 100)
    await task.end()
    assert task.values == ["va"] * 100
    assert server.asked["a"] == 1


@pytest.mark.parametrize(
    "step",
    [
        Step(error=PermanentError("poison")),
        Step(failure=PermanentError("poison")),
        Step(failure=PermanentError("poison"), rejected=True),
        Step(error=TransientError("busy")),
        Step(failure=TransientError("busy")),
        Step(never=True),
    ],
)
@pytest.mark.parametrize("on_missing", [True, False])
async def test_what_failed_is_not_remembered(lab: Lab, step: Step, on_missing: bool) -> None:
    """C15: with retries on misses Flink remembers an error as a miss."""
    server = lab.server({"a": step})
    engine, cache = lab.engine(server), AnswerCache(60.0, ROOM, None)
    options = {"on_error": "null", "on_timeout": "null", "retry": Retry(attempts=1, on_missing=on_missing)}
    first = lab.task(engine, cache=cache, timeout=1.0, **options)
    first.admit("a")
    await first.end()
    assert len(cache) == 0
    server.script = {}
    second = lab.task(engine, cache=cache, **options)
    second.admit("a")
    await second.end()
    assert second.values == ["va"]


async def test_a_fallback_is_not_remembered(lab: Lab) -> None:
    from enrichkit.options import default

    cache = AnswerCache(60.0, ROOM, None)
    _, task = lab.start(otherwise=Step(error=PermanentError("x")), cache=cache, on_error=default("fallback"))
    task.admit("a")
    await task.end()
    assert len(cache) == 0


async def test_an_answer_that_expires_is_asked_anew(lab: Lab) -> None:
    server, task = lab.start({"a": [Step(value="old"), Step(value="new")]}, cache=AnswerCache(10.0, ROOM, None))
    for moment in (0.0, 9.0, 11.0):
        await lab.at(moment)
        task.admit("a")
    await task.end()
    assert task.values == ["old", "old", "new"]
    assert [seen.started for seen in server.calls] == pytest.approx([0.0, 11.0], abs=1e-6)


async def test_a_late_answer_goes_to_the_cache_but_not_to_the_row(lab: Lab) -> None:
    cache = AnswerCache(60.0, ROOM, None)
    server, task = lab.start({"a": Step(after=1.5)}, cache=cache, timeout=1.0, on_timeout="null")
    task.admit("a")
    await lab.at(2.0)
    task.admit("a")
    await task.end()
    assert task.values == [None, "va"]
    assert server.asked["a"] == 1


async def test_a_late_older_answer_replaces_no_newer_one(lab: Lab) -> None:
    script = {"a": [Step(after=2.0, value="old"), Step(value="new")], "slow": Step(after=3.0)}
    cache = AnswerCache(60.0, ROOM, None)
    engine = lab.engine(lab.server(script))
    task = lab.task(engine, cache=cache, timeout=10.0, attempt_timeout=0.5, retry=Retry(attempts=2, wait=0.0))
    task.admit("a", "slow")
    await task.end()
    assert task.values == ["new", "vslow"]
    assert cache.get_many(["a"], 0.0) == ["new"]


async def test_what_the_cache_remembers_is_decoded(lab: Lab) -> None:
    decoded = []

    def decode(raws: Any) -> Any:
        decoded.extend(raws)
        return [raw.upper() for raw in raws], {}

    _, task = lab.start(cache=AnswerCache(60.0, ROOM, None), decode=decode)
    task.admit("a")
    await lab.settle()
    task.admit("a")
    await task.end()
    assert task.values == ["VA", "VA"]
    assert decoded == ["va"]


async def test_a_value_that_cannot_be_decoded_is_not_remembered(lab: Lab) -> None:
    cache = AnswerCache(60.0, ROOM, None)

    def decode(raws: Any) -> Any:
        return [None] * len(raws), {i: PermanentError("no") for i, raw in enumerate(raws) if raw == "vb"}

    _, task = lab.start(cache=cache, decode=decode, batch_size=3, on_error="null")
    task.admit("a", "b", "c")
    await task.end()
    assert task.statuses == ["ok", "error", "ok"]
    assert cache.get_many(["a", "b", "c"], lab.now) == [None, ABSENT, None]


def test_a_new_answer_takes_the_place_of_a_miss_and_a_miss_that_of_an_answer() -> None:
    cache = filled(a=MISS, b=1)
    cache.put_many(["a", "b"], [2, MISS], 1.0)
    assert cache.get_many(["a", "b"], 2.0) == [2, MISS]
    assert len(cache) == 2


def test_one_answer_larger_than_the_whole_cache_is_let_go() -> None:
    cache = AnswerCache(60.0, 1024, None)
    cache.put_many(["a"], ["x" * 5000], 0.0)
    assert (len(cache), cache.bytes) == (0, 0)


def test_the_size_of_a_container_is_that_of_its_parts_too() -> None:
    assert size_of({"name": ["x" * 1000] * 3}) > 3000


puts = st.lists(
    st.tuples(
        st.floats(0.0, 5.0),  # seconds since the last one
        st.dictionaries(st.integers(0, 12), st.one_of(st.just(MISS), st.text(max_size=300)), max_size=6),
    ),
    max_size=30,
)


@given(puts, st.sampled_from([1024, 3000, ROOM]), st.sampled_from([None, 0.0, 1.0, 20.0]))
def test_a_cache_never_gives_a_wrong_or_an_old_answer_and_keeps_to_its_bounds(
    puts: list[tuple[float, dict[int, Any]]], room: int, missing_ttl: float | None
) -> None:
    ttls = {True: 8.0 if missing_ttl is None else missing_ttl, False: 8.0}
    cache = AnswerCache(8.0, room, missing_ttl)
    stored: dict[int, tuple[Any, float]] = {}
    now = 100.0
    for pause, answers in puts:
        now += pause
        for key, value in zip(range(13), cache.get_many(range(13), now), strict=True):
            if value is not ABSENT:
                last, since = stored[key]
                assert value is last
                assert now - since < ttls[last is MISS]
            elif room == ROOM and key in stored:
                # Nothing leaves early for want of room; an answer given anew may leave when its first one would have.
                last, since = stored[key]
                assert last is MISS or missing_ttl is not None or now - since > 0.0
        cache.put_many(answers.keys(), answers.values(), now)
        for key, value in answers.items():
            if value is not MISS or ttls[True] > 0:
                stored[key] = (value, now)
        assert 0 <= cache.bytes <= room
    held = [key for key, value in zip(range(13), cache.get_many(range(13), now), strict=True) if value is not ABSENT]
    assert len(cache) == len(held)
    assert (cache.bytes == 0) == (not held)
    cache.get_many([], now + 1000.0)
    assert (len(cache), cache.bytes) == (0, 0)
