"""
Sources that are loaded as a whole: what the source was asked for, what each row got, and when.

The cases are those of Flink's full cache, see docs/flink-parity.md.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit import Cache, Journal
from enrichkit.engine.cache import ABSENT, MISS
from enrichkit.engine.engine import Engine
from enrichkit.engine.loop import IDLE_AFTER, LoopThread
from enrichkit.engine.preload import Table
from enrichkit.errors import ConfigError, FatalError, PermanentError, TaskFailedError, TransientError, UnavailableError
from enrichkit.interface import Call, Connector, ConnectorConfig, Failure
from enrichkit.options import Options, Preload
from enrichkit.testing.scripted import ScriptedConnector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from .bench import Lab, Task

ORDERED = pytest.mark.parametrize("ordered", [True, False])


class Store:
    """
    A source that can be listed, and what it saw.

    Attributes:
        rows: Its values by key; an exception is raised by the call of its key.
        whole: Whether a key that is not listed is a miss.
        pages: How many pages a scan has at least.
        took: Seconds that each step takes.
        broken: What the next steps raise, one after another.
        listed: Scans that were begun.
        asked: The keys of each call.
        open: Connectors that are open now.
    """

    def __init__(self, rows: Mapping[Any, Any], *, whole: bool = True, pages: int = 1, took: float = 0.0) -> None:
        self.rows = dict(rows)
        self.whole, self.pages, self.took = whole, pages, took
        self.broken: list[BaseException | None] = []
        self.listed = 0
        self.asked: list[tuple[Any, ...]] = []
        self.open = self.most_open = 0

    def connector(self) -> Listed:
        return Listed(self)

    async def step(self) -> None:
        await asyncio.sleep(self.took)
        if self.broken and (error := self.broken.pop(0)) is not None:
            raise error


class Listed(Connector[Any]):
    name = "listed"
    max_batch_size = 100

    def __init__(self, store: Store) -> None:
        super().__init__(ConnectorConfig())
        self.store = store
        self.is_open = False

    async def open(self) -> None:
        self.is_open = True
        self.store.open += 1
        self.store.most_open = max(self.store.most_open, self.store.open)

    async def close(self) -> None:
        self.store.open -= self.is_open
        self.is_open = False

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        self.store.asked.append(tuple(keys))
        await self.store.step()
        for key in keys:
            if isinstance(self.store.rows.get(key), PermanentError):
                raise self.store.rows[key]
        return {key: self.store.rows[key] for key in keys if key in self.store.rows}

    async def scan(self, kinds: Sequence[type], size: int) -> AsyncIterator[Sequence[Any]]:
        self.store.listed += 1
        keys = list(self.store.rows)
        for number in range(self.store.pages):
            await self.store.step()
            yield keys[number :: self.store.pages]

    def lists_all(self, kinds: Sequence[type]) -> bool:
        return self.store.whole


def table_of(store: Store, preload: Preload | None = None, **settings: Any) -> Table:
    plain: Callable[[Sequence[Any]], Any] = lambda raws: (list(raws), {})  # noqa: E731  # an argument
    given = {"patience": 60.0, "limit": 20.0, "decode": plain, "kinds": (str,)} | settings
    return Table("listed", store.connector, given.pop("kinds"), 10, given.pop("decode"), preload or Preload(), **given)


def start(lab: Lab, store: Store, table: Table, **options: Any) -> Task:
    return lab.task(lab.engine(store.connector(), batch_size=10), preload=table, **options)


async def looked_up(lab: Lab, store: Store, table: Table, *keys: str) -> dict[str, Any]:
    """Return the values of *keys* in a task of their own."""
    task = start(lab, store, table)
    task.admit(*keys)
    await task.end()
    return dict(zip(task.keys, task.values, strict=True))


# C16, C20, C21: the first load


@ORDERED
async def test_c16_the_load_has_ended_before_the_first_lookup(lab: Lab, ordered: bool) -> None:
    store = Store({"a": 1, "b": None, "c": 3}, pages=3, took=1.0)
    task = start(lab, store, table_of(store), ordered=ordered, details=True)
    task.admit("a", "x")
    task.admit("b", "c", nulls=1)
    await lab.at(5.9)
    assert task.left == [], "the sixth step of the load has not ended"
    await task.end()
    assert {row.key: (row.value, row.status, row.origin, row.at) for row in task.left if row.key} == {
        "a": (1, "ok", "preload", 6.0),
        "x": (None, "missing", "preload", 6.0),
        "b": (None, "ok", "preload", 6.0),
        "c": (3, "ok", "preload", 6.0),
    }
    assert sorted(store.asked) == [("a",), ("b",), ("c",)], "nothing but the load"
    assert task.run.stats.calls == 0


async def test_a_barrier_waits_for_the_load_too(lab: Lab) -> None:
    store = Store({"a": 1, "b": 2}, took=1.0)
    task = start(lab, store, table_of(store), ordered=False)
    task.admit("a")
    task.barrier("|")
    task.admit("b")
    await task.end()
    assert task.keys == ["a", "|", "b"]


async def test_c20_a_miss_counts_as_answered_by_the_table(lab: Lab) -> None:
    store = Store({"a": 1})
    task = start(lab, store, table_of(store))
    task.admit("a", "x", "y")
    await task.end()
    stats = task.run.stats
    assert (stats.preloaded, stats.ok, stats.missing, stats.calls) == (3, 1, 2, 0)


async def test_c21_tasks_that_begin_together_share_one_load(lab: Lab) -> None:
    store = Store({str(n): n for n in range(40)}, pages=4, took=0.5)
    table = table_of(store)
    tasks = [start(lab, store, table) for _ in range(4)]
    for number, task in enumerate(tasks):
        task.admit(*(str(n) for n in range(number, 40, 4)))
    for number, task in enumerate(tasks):
        await task.end()
        assert task.values == list(range(number, 40, 4))
    assert (store.listed, store.most_open) == (1, 1)
    assert sum(map(len, store.asked)) == 40


async def test_a_task_that_comes_after_the_load_waits_for_nothing(lab: Lab) -> None:
    store = Store({"a": 1}, took=1.0)
    table = table_of(store)
    await looked_up(lab, store, table, "a")
    now = lab.now
    assert await looked_up(lab, store, table, "a", "b") == {"a": 1, "b": None}
    assert lab.now == now
    assert store.open == 0, "the connection of the load is closed"


# Which keys the source is asked for


async def test_where_other_keys_may_find_a_row_unknown_ones_are_asked_for(lab: Lab) -> None:
    store = Store({"a": 1, "b": 2}, whole=False)
    task = start(lab, store, table_of(store), details=True)
    store_later = {"late": 9}
    task.admit("a")
    await task.until(lambda: bool(task.left))
    store.rows |= store_later
    task.admit("b", "late", "x")
    await task.end()
    assert {row.key: (row.value, row.origin) for row in task.left} == {
        "a": (1, "preload"),
        "b": (2, "preload"),
        "late": (9, "call"),
        "x": (None, "call"),
    }
    assert store.asked[1:] == [("late", "x")]


async def test_a_key_that_fails_is_asked_for_and_says_why(lab: Lab) -> None:
    bad = Failure(PermanentError("twins"))
    store = Store({"a": 1, "twins": bad, "poison": PermanentError("no"), "b": 2, "odd": 3})
    decode = lambda raws: ([*raws], {n: PermanentError("odd") for n, raw in enumerate(raws) if raw == 3})  # noqa: E731  # an argument
    table = table_of(store, decode=decode)
    task = lab.task(
        lab.engine(store.connector()), preload=table, decode=decode, on_error="null", max_fallback_ratio=1.0
    )
    task.admit("a", "twins", "poison", "b", "odd")
    await task.end()
    assert {row.key: (row.value, row.status) for row in task.left} == {
        "a": (1, "ok"),
        "twins": (None, "error"),
        "poison": (None, "error"),
        "b": (2, "ok"),
        "odd": (None, "error"),
    }
    assert store.asked[-3:] == [("twins",), ("poison",), ("odd",)]


async def test_keys_of_another_type_are_not_those_of_the_rows(lab: Lab) -> None:
    """To Python 1 equals True and 1.0; to the source they may be different keys."""
    store = Store({1: "int", "a": "text"}, whole=False)
    table = table_of(store, kinds=(bool,))
    task = start(lab, store, table)
    task.admit(True)
    await task.end()
    assert store.asked == [(True,)]
    assert table.answers == {}


async def test_matches_are_lists(lab: Lab) -> None:
    store = Store({"a": [1, 2], "none": []})
    table = table_of(store, many=True)
    task = lab.task(lab.engine(store.connector()), preload=table, many=True)
    task.admit("a", "none", "x")
    await task.end()
    assert [(row.value, row.status) for row in task.left] == [([1, 2], "ok"), (None, "missing"), (None, "missing")]


# C17, C18, C22, C24, C25: refreshes


async def test_c17_a_refresh_adds_changes_and_removes_keys(lab: Lab) -> None:
    store = Store({"stays": 1, "changes": 2, "goes": 3})
    table = table_of(store, Preload(refresh=10.0))
    keys = ("stays", "changes", "goes", "comes")
    assert await looked_up(lab, store, table, *keys) == {"stays": 1, "changes": 2, "goes": 3, "comes": None}
    store.rows = {"stays": 1, "changes": 20, "comes": 4}
    assert await looked_up(lab, store, table, *keys) == {"stays": 1, "changes": 2, "goes": 3, "comes": None}
    await lab.at(10.1)
    assert await looked_up(lab, store, table, *keys) == {"stays": 1, "changes": 20, "goes": None, "comes": 4}
    assert (table.loads, store.listed) == (2, 2)
    table.end()


async def test_c18_a_refresh_that_fails_keeps_the_old_answers_and_is_told_once(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store({"a": 1})
    table = table_of(store, Preload(refresh=10.0), patience=2.0)
    task = start(lab, store, table)
    task.admit("a")
    await task.until(lambda: bool(task.left))
    store.rows = {"a": 2}
    store.broken = [FatalError("no such table")] * 3
    with caplog.at_level(logging.WARNING, "enrichkit"):
        await lab.at(35.0)
        task.admit("a")
        await task.until(lambda: len(task.left) == 2)
        assert caplog.messages == ["listed: the old answers serve, because no new ones could be loaded: no such table"]
        assert (table.loads, table.failures) == (1, 3)
        await lab.at(45.0)
        task.admit("a")
        await task.end()
    assert task.values == [1, 1, 2]
    assert (table.loads, table.failures, len(caplog.messages)) == (2, 3, 1)
    table.end()


async def test_c18_a_refresh_that_fails_fails_the_tasks_if_the_user_says_so(lab: Lab) -> None:
    store = Store({"a": 1})
    table = table_of(store, Preload(refresh=10.0, on_refresh_error="fail"))
    task = start(lab, store, table)
    task.admit("a")
    await task.until(lambda: bool(task.left))
    store.broken = [FatalError("no such table")]
    await lab.at(10.1)
    assert isinstance(task.error, TaskFailedError)
    assert str(task.error) == "listed: it could not be loaded: no such table"
    assert table.ended
    await lab.at(100.0)
    assert store.listed == 2, "further triggers do nothing"


async def test_c19_a_table_takes_no_entries(lab: Lab) -> None:
    store = Store({"a": 1}, whole=False)
    table = table_of(store)
    await looked_up(lab, store, table, "a", "x")
    answers = table.answers
    table.put_many(["a", "x"], [5, MISS], 0.0)
    table.watch(["a"])
    table.flush()
    table.close()
    assert table.answers is answers
    assert table.get_many(["a", "x"], 0.0) == [1, ABSENT]


async def test_c22_each_load_makes_a_new_table_from_as_many_pages_as_there_are(lab: Lab) -> None:
    store = Store({str(n): n for n in range(30)})
    table = table_of(store, Preload(refresh=1.0))
    seen = []
    for pages in (1, 2, 3):
        store.pages = pages
        store.rows = {key: value + pages for key, value in store.rows.items()}
        await lab.at(lab.now + 1.1)
        seen.append(table.answers)
        assert table.answers == store.rows
    assert len(set(map(id, seen))) == 3
    table.end()
    assert (table.answers, table.bytes) == ({}, 0)


@pytest.mark.parametrize("pages", [1, 2])
async def test_c23_a_load_is_interrupted_without_an_error(lab: Lab, pages: int) -> None:
    store = Store({"a": 1, "b": 2}, pages=pages, took=1.0)
    table = table_of(store)
    await lab.at(pages - 0.5)
    assert store.open == 1
    table.end()
    await lab.settle()
    assert (table.loads, table.failures, store.open) == (0, 0, 0)
    assert table._task.cancelled()


async def test_c24_a_first_load_that_fails_fails_the_task_and_the_next_task_tries_again(lab: Lab) -> None:
    store = Store({"a": 1})
    store.broken = [None, FatalError("permission denied")]
    thread = LoopThread.__new__(LoopThread)  # its thread is not needed: tables are found on the loop
    thread.tables = {}
    first = thread.table("key", lambda: table_of(store))
    tasks = [start(lab, store, first) for _ in range(2)]
    for task in tasks:
        task.admit("a")
        with pytest.raises(TaskFailedError, match=r"^listed: it could not be loaded: permission denied$"):
            await task.end()
    assert (first.loads, first.failures) == (0, 1)
    second = thread.table("key", lambda: table_of(store))
    assert second is not first
    assert await looked_up(lab, store, second, "a") == {"a": 1}
    assert thread.table("key", lambda: table_of(store)) is second


async def test_c25_the_wait_begins_at_the_end_of_a_load(lab: Lab) -> None:
    store = Store({"a": 1}, took=2.0)
    table = table_of(store, Preload(refresh=10.0))
    begun = []
    for moment in range(60):
        await lab.at(moment + 0.5)
        begun += [moment] * (store.listed - len(begun))
    assert begun == [0, 14, 28, 42, 56], "a load takes 4 s, and the wait 10"
    table.end()
    await lab.at(100.0)
    assert store.listed == 5


# C26, C27, C28: what users may say


@pytest.mark.parametrize("refresh", [0, -1, float("nan"), True, 604_801, [3]])
def test_c26_an_interval_is_a_positive_number_of_seconds(refresh: Any) -> None:
    with pytest.raises(ConfigError, match=r"^Preload\.refresh is .*; it must be "):
        Preload(refresh)


@pytest.mark.parametrize("name", ["cache", "journal"])
def test_c26_other_memories_are_refused(name: str) -> None:
    other: dict[str, Any] = {"cache": Cache(ttl=60)} if name == "cache" else {"journal": Journal("/data", run_id="1")}
    with pytest.raises(ConfigError) as caught:
        Options(preload=True, **other)
    assert str(caught.value) == (
        f"preload comes with {name}; a source that is loaded before the first lookup needs no {name}, which would keep "
        f"the same answers once more. Leave {name} or preload out."
    )


def test_c26_what_is_neither_a_flag_nor_a_preload_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Options(preload=600)  # type: ignore[arg-type]  # it is tested
    assert str(caught.value) == (
        "preload is 600; it must be True, False or a Preload, for example Preload(refresh=600)."
    )
    assert Options(preload=True).loads == Preload()
    assert Options().loads is None


@pytest.mark.parametrize(
    ("said", "now", "seconds"),
    [
        ("10:15", "10:14:59.998", 0.002),
        ("10:15", "10:15:00.002", 86_400 - 0.002),
        ("10:15", "10:15:00", 86_400),
        ("10:15Z", "09:15:00", 3_600),
        ("10:15+07:00", "03:14:00", 60),
        ("10:15+07:00", "03:16:00", 86_400 - 60),
        ("00:30-05:00", "05:00:00", 1_800),
    ],
)
def test_c27_the_next_load_at_a_time_of_day(said: str, now: str, seconds: float) -> None:
    moment = dt.datetime.fromisoformat(f"2026-07-30T{now}+00:00")
    assert Preload(said).wait(moment) == pytest.approx(seconds)
    assert Preload(said).wait(moment.astimezone(dt.timezone(dt.timedelta(hours=-8)))) == pytest.approx(seconds)


async def test_c27_the_first_load_is_at_once_and_the_next_ones_at_the_time_of_day(lab: Lab) -> None:
    store = Store({"a": 1})
    begin = dt.datetime(2026, 7, 30, 10, 14, 0, tzinfo=dt.UTC)
    table = table_of(
        store, Preload("10:15"), today=lambda: begin + dt.timedelta(seconds=asyncio.get_running_loop().time())
    )
    await lab.settle()
    assert table.loads == 1
    await lab.at(59.9)
    assert table.loads == 1
    await lab.at(60.1)
    assert table.loads == 2
    table.end()


@pytest.mark.parametrize("said", ["10", "24:00", "10:60", "10:15 ", "10:15+7", "10:15:00", "", "10:15+24:00"])
def test_c28_what_is_no_time_of_day_is_refused(said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Preload(said)
    assert str(caught.value) == (
        f"Preload.refresh is {said!r}; a time of day has hours from 00 to 23 and minutes, and may have an offset from "
        "UTC. Write '03:15', '03:15Z' or '03:15+07:00'."
    )


# Trouble


async def test_an_outage_during_the_first_load_costs_time_and_no_row(lab: Lab) -> None:
    store = Store({"a": 1, "b": 2}, pages=2)
    store.broken = [None, None, UnavailableError("refused"), UnavailableError("refused"), None, TransientError("reset")]
    assert await looked_up(lab, store, table_of(store), "a", "b") == {"a": 1, "b": 2}
    assert lab.now == pytest.approx(0.05 + 0.1 + 0.2)
    assert store.open == 0


async def test_an_outage_during_the_first_load_lasts_at_most_the_stall_timeout(lab: Lab) -> None:
    store = Store({"a": 1})
    store.broken = [UnavailableError("connection refused")] * 1000
    task = start(lab, store, table_of(store, patience=5.0))
    task.admit("a")
    with pytest.raises(TaskFailedError) as caught:
        await task.end()
    assert 4.0 <= lab.now <= 5.0
    assert str(caught.value) == (
        f"listed: it could not be loaded: it was away for {lab.now:.1f} s, and stall_timeout is 5 s. The last attempt "
        "got: connection refused"
    )


@pytest.mark.parametrize(
    ("asked", "waits"), [(7.0, 7.0), (3_600.0, 60.0), (float("inf"), 60.0), (float("nan"), 0.05), (-1.0, 0.05)]
)
async def test_a_pause_that_the_source_asks_for_is_at_most_a_minute(lab: Lab, asked: float, waits: float) -> None:
    store = Store({"a": 1})
    store.broken = [TransientError("busy", retry_after=asked)]
    assert await looked_up(lab, store, table_of(store, patience=90.0), "a") == {"a": 1}
    assert lab.now == pytest.approx(waits)


async def test_a_pause_that_ends_after_the_stall_timeout_is_not_waited_for(lab: Lab) -> None:
    store = Store({"a": 1})
    store.broken = [TransientError("busy", retry_after=30.0)]
    task = start(lab, store, table_of(store, patience=5.0))
    task.admit("a")
    with pytest.raises(TaskFailedError, match="The last attempt got: busy"):
        await task.end()
    assert lab.now == 0.0


async def test_a_source_that_breaks_each_load_in_the_middle_ends_it_too(lab: Lab) -> None:
    store = Store({"a": 1, "b": 2}, pages=2, took=0.1)
    store.broken = [None, None, None, TransientError("reset")] * 1000
    task = start(lab, store, table_of(store, patience=5.0))
    task.admit("a")
    with pytest.raises(TaskFailedError, match="The last attempt got: reset"):
        await task.end()
    assert lab.now <= 6.0


async def test_a_source_that_hangs_is_left_and_asked_again(lab: Lab) -> None:
    store = Store({"a": 1}, took=1e6)
    table = table_of(store, limit=3.0)
    task = start(lab, store, table)
    task.admit("a")
    await lab.at(2.0)
    store.took = 0.0
    await task.end()
    assert (task.values, lab.now) == ([1], pytest.approx(3.05))


async def test_a_source_that_is_too_large_is_refused(lab: Lab) -> None:
    store = Store({str(n): "x" * 1000 for n in range(100)}, pages=10)
    task = start(lab, store, table_of(store, Preload(max_bytes=50_000)))
    task.admit("a")
    with pytest.raises(TaskFailedError) as caught:
        await task.end()
    assert str(caught.value).startswith("listed: it could not be loaded: its first 50 keys and their values take 5")
    assert str(caught.value).endswith(
        " bytes, and Preload.max_bytes is 50,000. Raise max_bytes if each worker process has the memory, name fewer "
        "columns in the config, or leave preload out and look keys up as they come."
    )
    assert sum(map(len, store.asked)) == 50, "the rest was not loaded"


async def test_an_exception_of_the_connector_is_shown_without_its_text(lab: Lab) -> None:
    store = Store({"a": 1})
    store.broken = [RuntimeError("password=hunter2")]
    task = start(lab, store, table_of(store))
    task.admit("a")
    with pytest.raises(TaskFailedError, match=r"^listed: it could not be loaded: its connector raised RuntimeError"):
        await task.end()
    assert "hunter2" not in str(task.error)


async def test_a_connector_that_answers_what_it_was_not_asked_is_refused(lab: Lab) -> None:
    class Liar(Listed):
        async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
            return {"other": 1}

    store = Store({"a": 1})
    store.connector = lambda: Liar(store)  # type: ignore[method-assign]  # for this test
    task = start(lab, store, table_of(store))
    task.admit("a")
    with pytest.raises(TaskFailedError, match="that it was not asked for"):
        await task.end()


async def test_a_task_that_ends_while_it_waits_leaves_the_load_to_the_others(lab: Lab) -> None:
    store = Store({"a": 1}, took=1.0)
    table = table_of(store)
    gone, stays = start(lab, store, table), start(lab, store, table)
    gone.admit("a")
    stays.admit("a")
    gone.close()
    await stays.end()
    assert (gone.values, stays.values) == ([], [1])
    assert table.idle_since == lab.now


def test_idle_engines_make_room_for_a_load_that_gets_no_connection(thread: LoopThread) -> None:
    store = Store({"a": 1})
    store.broken = [UnavailableError("it has no free connection", sent=False, busy=True)]
    idle, other = Listed(store), ScriptedConnector()
    closed: queue.Queue[list[Connector[Any]]] = queue.Queue()

    async def main() -> None:
        for name, connector in (("idle", idle), ("other", other)):
            thread.engine(name, lambda connector=connector: Engine(connector, 1))  # type: ignore[misc]
        table = thread.table("loaded", lambda: table_of(store))
        while not table.loads:  # a test may look from time to time
            await asyncio.sleep(0.01)
        closed.put([engine.connector for engine in thread.engines.values()])

    tasks: list[asyncio.Task[None]] = []
    thread.post(lambda: tasks.append(asyncio.get_running_loop().create_task(main())))
    assert closed.get(timeout=60.0) == [other]


def test_a_table_that_nobody_uses_is_dropped(thread: LoopThread) -> None:
    store, done, found = Store({"a": 1}), threading.Event(), []

    def make() -> None:
        table = thread.table("key", lambda: table_of(store, Preload(refresh=0.01)))
        found.append(table)
        assert table.idle_since is not None
        table.idle_since -= IDLE_AFTER + 1
        asyncio.get_running_loop().call_later(0.6, done.set)

    thread.post(make)
    assert done.wait(5.0)
    assert thread.tables == {}
    assert found[0].ended
    assert found[0].answers == {}
