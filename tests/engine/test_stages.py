"""What is asked before the source: reuse, journal and cache, in this order, and what each of them is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine.cache import MISS
from enrichkit.errors import PermanentError, TaskFailedError, TransientError
from enrichkit.options import Retry, default
from enrichkit.testing.scripted import Step

from .stages import MemoryStage

if TYPE_CHECKING:
    from .bench import Lab, Task

ORDERED = pytest.mark.parametrize("ordered", [True, False])
BATCH = pytest.mark.parametrize("batch_size", [1, 3])


def three(**durable: dict[str, Any]) -> dict[str, MemoryStage]:
    """Return the three stages, each with what it knows."""
    known = {name: {key: [value] for key, value in durable.get(name, {}).items()} for name in ORIGINS}
    return {name: MemoryStage(name, known[name]) for name in ORIGINS}


ORIGINS = ("reuse", "journal", "cache")


def rows_of(task: Task) -> dict[Any, tuple[Any, str, str | None, int | None]]:
    return {row.key: (row.value, row.status, row.origin, row.attempts) for row in task.left}


@ORDERED
@BATCH
async def test_each_stage_is_asked_for_what_those_before_it_do_not_know(
    lab: Lab, ordered: bool, batch_size: int
) -> None:
    stages = three(reuse={"r": 1, "x": 1}, journal={"j": 2, "r": 0, "n": MISS}, cache={"c": 3, "j": 0, "m": MISS})
    server, task = lab.start(**stages, ordered=ordered, batch_size=batch_size, details=True)
    task.admit("r", "j", "n", "c", "m", "s")
    await task.end()
    assert [stages[name].did("get") for name in ORIGINS] == [
        [("get", ("r", "j", "n", "c", "m", "s"))],
        [("get", ("j", "n", "c", "m", "s"))],
        [("get", ("c", "m", "s"))],
    ]
    assert dict(server.asked) == {"s": 1}
    assert rows_of(task) == {
        "r": (1, "ok", "reuse", 0),
        "j": (2, "ok", "journal", 0),
        "n": (None, "missing", "journal", 0),
        "c": (3, "ok", "cache", 0),
        "m": (None, "missing", "cache", 0),
        "s": ("vs", "ok", "call", 1),
    }
    stats = task.run.stats
    assert (stats.reused, stats.journaled, stats.cached) == (1, 2, 2)
    assert (stats.ok, stats.missing, stats.keys) == (4, 2, 6)


async def test_what_a_stage_finds_is_told_to_those_before_it_alone(lab: Lab) -> None:
    stages = three(journal={"j": 2, "n": MISS}, cache={"c": 3, "m": MISS})
    _, task = lab.start(**stages)
    task.admit("j", "n", "c", "m")
    await task.end()
    told = {name: dict(stage.durable) for name, stage in stages.items()}
    assert told["reuse"] == {"j": [2], "n": [MISS], "c": [3], "m": [MISS]}
    assert told["journal"] == {"j": [2], "n": [MISS], "c": [3], "m": [MISS]}
    assert told["cache"] == {"c": [3], "m": [MISS]}


@ORDERED
@BATCH
async def test_answers_and_misses_are_told_to_all_stages(lab: Lab, ordered: bool, batch_size: int) -> None:
    stages = three()
    script = {"none": Step(missing=True), "null": Step(value=None)}
    _, task = lab.start(script, **stages, ordered=ordered, batch_size=batch_size)
    task.admit("one", "none", "null", "two")
    await task.end()
    for stage in stages.values():
        assert stage.durable == {"one": ["vone"], "none": [MISS], "null": [None], "two": ["vtwo"]}


@BATCH
async def test_neither_failures_nor_what_rows_get_instead_are_told(lab: Lab, batch_size: int) -> None:
    stages = three()
    script = {
        "refused": Step(error=PermanentError("no")),
        "busy": Step(error=TransientError("busy")),
        "slow": Step(after=1.5),
        "none": Step(missing=True),
    }
    instead = dict.fromkeys(("on_timeout", "on_error", "on_missing"), default("instead"))
    _, task = lab.start(
        script, **stages, batch_size=batch_size, retry=None, timeout=1.0, max_fallback_ratio=1.0, **instead
    )
    task.admit(*script)
    await task.until(lambda: len(task.left) == 4)
    assert task.values == ["instead"] * 4
    assert {"none"} == {*stages["journal"].durable, *(key for key, _ in stages["journal"].waiting)} - {"slow"}


async def test_a_fallback_that_is_asked_is_told_nothing_by_the_stages_of_the_first_source(lab: Lab) -> None:
    backup = lab.fallback(lab.server(), "on_missing")
    stages = three(journal={"known": MISS})
    _, task = lab.start({"none": Step(missing=True)}, **stages, fallbacks=[backup], details=True)
    task.admit("none", "known")
    await task.end()
    assert {key: row[::2] for key, row in rows_of(task).items()} == {
        "none": ("vnone", "fallback"),
        "known": ("vknown", "fallback"),
    }
    assert stages["journal"].durable == {"known": [MISS], "none": [MISS]}, "and what the fallback gave is not kept"


@ORDERED
@BATCH
async def test_no_row_leaves_before_its_answer_is_durable(lab: Lab, ordered: bool, batch_size: int) -> None:
    journal = MemoryStage()
    script = {n: Step(after=0.1 * (n % 7), missing=n % 5 == 0) for n in range(40)}
    _, task = lab.start(
        script, journal=journal, cache=MemoryStage("cache", {99: ["c"]}), ordered=ordered, batch_size=batch_size
    )
    take = task._take

    def looked_at(part: Any) -> None:
        before = len(task.left)
        take(part)
        for row in task.left[before:]:
            assert journal.holds(row.key, row.value), f"{row} leaves first"

    task._take = looked_at  # type: ignore[method-assign]  # the test looks at each part when it leaves
    for start in range(0, 40, 8):
        task.admit(*range(start, start + 8), 99)
    await task.end()
    assert len(task.left) == 45


async def test_the_answers_of_a_turn_of_the_loop_are_flushed_together(lab: Lab) -> None:
    """A block of a journal costs as much as the answers of many calls."""
    journal = MemoryStage()
    _, task = lab.start({"slow": Step(after=9.0)}, journal=journal, capacity=20)
    task.admit("slow", *range(15))
    await lab.at(5.0)
    flushed = journal.did("flush")
    assert not task.left
    assert [(name, {*keys}) for name, keys in flushed] == [("flush", {*range(15)})]
    await task.end()


async def test_a_late_answer_is_told_and_made_durable_although_no_row_leaves_with_it(lab: Lab) -> None:
    stages = three()
    _, task = lab.start({"a": Step(after=1.5)}, **stages, timeout=1.0, on_timeout="null", max_fallback_ratio=1.0)
    task.admit("a", "b")
    await lab.at(1.2)
    assert task.statuses == ["timeout", "ok"]
    assert stages["journal"].durable == {"b": ["vb"]}
    await lab.at(2.0)
    for stage in stages.values():
        assert stage.late == ["a"]
    assert stages["journal"].durable == {"b": ["vb"], "a": ["va"]}
    await task.end()


async def test_a_miss_that_is_asked_for_again_is_told_when_it_is_final(lab: Lab) -> None:
    journal = MemoryStage()
    script = {"a": [Step(missing=True), Step(value="there")], "b": Step(missing=True)}
    _, task = lab.start(script, journal=journal, retry=Retry(attempts=2, wait=0.1, on_missing=True))
    task.admit("a", "b")
    await task.end()
    assert journal.durable == {"a": ["there"], "b": [MISS]}


@pytest.mark.parametrize("fails", [False, True])
async def test_all_stages_are_closed_once_at_the_end(lab: Lab, fails: bool) -> None:
    stages = three()
    _, task = lab.start({"a": Step(error=PermanentError("no"))}, **stages)
    task.admit("a" if fails else "b", "c")
    if fails:
        with pytest.raises(Exception, match="no"):
            await task.end()
    else:
        await task.end()
    task.close()
    for stage in stages.values():
        assert stage.did("close") == [("close", ())]


async def test_what_a_call_answers_after_the_end_is_told_to_no_stage_that_is_closed(lab: Lab) -> None:
    stages = three()
    _, task = lab.start({"a": Step(after=1.0, stubborn=True)}, **stages)
    task.admit("a")
    await lab.at(0.5)
    task.close()
    await lab.at(5.0)
    assert [stage.did("put", "flush") for stage in stages.values()] == [[], [], []]


async def test_a_stage_that_is_not_active_only_watches(lab: Lab) -> None:
    stages = three(journal={"a": "old"})
    stages["reuse"].active = stages["journal"].active = False
    _, task = lab.start(**stages)
    task.admit("a", "b")
    await task.end()
    assert stages["reuse"].did("get", "put", "watch") == [("watch", ("a", "b"))]
    assert stages["journal"].did("get", "put", "watch") == [("watch", ("a", "b"))]
    assert stages["cache"].durable == {"a": ["va"], "b": ["vb"]}


async def test_where_all_is_known_no_later_stage_is_asked_or_watches(lab: Lab) -> None:
    stages = three(reuse={"a": 1})
    stages["cache"].active = False
    _, task = lab.start(**stages)
    task.admit("a")
    await task.end()
    assert stages["journal"].did("get", "watch") == []
    assert stages["cache"].did("get", "watch") == []


@ORDERED
async def test_no_row_leaves_when_its_answer_cannot_be_made_durable(lab: Lab, ordered: bool) -> None:
    journal = MemoryStage()
    _, task = lab.start(journal=journal, ordered=ordered)
    journal.before_flush = lambda: task.run.fail(TaskFailedError("the disk is full"))
    task.admit("a")
    with pytest.raises(TaskFailedError, match="the disk is full"):
        await task.end()
    assert task.left == []


async def test_no_call_is_made_when_a_stage_cannot_be_asked(lab: Lab) -> None:
    class Broken(MemoryStage):
        def get_many(self, keys: Any, now: float) -> list[Any]:
            task.run.fail(TaskFailedError("the disk has gone"))
            return super().get_many(keys, now)

    server = lab.server()
    task = lab.task(lab.engine(server), journal=Broken())
    task.admit("a")
    with pytest.raises(TaskFailedError, match="the disk has gone"):
        await task.end()
    await lab.at(1.0)
    assert not server.asked
    assert not task.run.table
