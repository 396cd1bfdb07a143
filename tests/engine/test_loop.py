"""The loop thread of a worker process: mails, idle engines, forks, and connectors that block or kill it."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import re
import select
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine import admission, bridge, loop
from enrichkit.engine.cache import AnswerCache
from enrichkit.engine.engine import Engine
from enrichkit.engine.loop import LoopThread, loop_thread
from enrichkit.engine.run import Run
from enrichkit.engine.tiers import Tier, TierRun
from enrichkit.errors import ConnectorBlockedError, TaskFailedError, UnavailableError
from enrichkit.options import Options
from enrichkit.outcome import Outcomes
from enrichkit.testing.bench import wait_until
from enrichkit.testing.scripted import Script, ScriptedConnector, Step

from ..pace import at_pace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from enrichkit.interface import Call

    from .bench import SparkThread


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog looks every 20 ms, warns after 50 ms, and gives up after 300 ms."""
    for name, seconds in {"STEP": 0.02, "LAG_WARN": 0.05, "LAG_FAIL": 0.3, "LAG_FAIL_TIMEOUTS": 0.0}.items():
        monkeypatch.setattr(bridge, name, seconds)
    monkeypatch.setattr(loop, "BEAT", 0.01)


def one(*keys: Any) -> list[Outcomes]:
    return [Outcomes([key], 1, counts=[1]) for key in keys]


def test_mails_of_a_thread_are_read_in_order(thread: LoopThread) -> None:
    read: list[tuple[int, int]] = []
    done = threading.Event()

    def post(number: int) -> None:
        for mail in range(200):
            thread.post(read.append, (number, mail))

    posting = [threading.Thread(target=post, args=(number,)) for number in range(4)]
    for one_of_them in posting:
        one_of_them.start()
    for one_of_them in posting:
        one_of_them.join()
    thread.post(done.set)
    assert done.wait(5.0)
    assert len(read) == 800
    for number in range(4):
        assert [mail for sender, mail in read if sender == number] == list(range(200))


def test_a_burst_of_mails_wakes_the_loop_once(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    drained: list[int] = []
    drain = thread._drain
    monkeypatch.setattr(thread, "_drain", lambda: (drained.append(1), drain()))
    busy, go_on, done = threading.Event(), threading.Event(), threading.Event()
    thread.post(lambda: (busy.set(), go_on.wait(5.0)))
    assert busy.wait(5.0)
    for _ in range(100):
        thread.post(lambda: None)
    thread.post(done.set)
    go_on.set()
    assert done.wait(5.0)
    assert len(drained) == 2


def test_a_step_that_raises_fails_its_own_task_and_no_other(spark_thread: SparkThread) -> None:
    """Keys that cannot be hashed never get so far; whatever does must not leave a task waiting."""
    held = ScriptedConnector(otherwise=Step(after=0.05))
    other = spark_thread(held).process(iter(one("a", "b")))
    assert next(other).outcomes.values == ["va"]
    said = r"^scripted: a step of the engine raised TypeError \(.*\)\. This is a defect; please report it\.$"
    with pytest.raises(TaskFailedError, match=said):
        list(spark_thread(held).process(iter(one(["unhashable"]))))
    assert [part.outcomes.values for part in other] == [["vb"]]


def test_a_mail_of_nobody_that_raises_is_told_in_the_log_and_the_next_one_is_read(
    thread: LoopThread, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()
    thread.post(lambda: 1 // 0)
    thread.post(done.set)
    assert done.wait(5.0)
    [record] = caplog.records
    assert (record.name, record.levelname) == ("enrichkit", "ERROR")
    assert record.getMessage() == "a mail to the loop of enrichkit failed"
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_the_thread_has_a_name(thread: LoopThread) -> None:
    assert "enrichkit-loop" in {running.name for running in threading.enumerate()}
    assert thread.alive()


def test_a_cache_is_made_once(thread: LoopThread) -> None:
    first = thread.cache("a", lambda: AnswerCache(1.0, 1024, None))
    assert thread.cache("a", lambda: AnswerCache(1.0, 1024, None)) is first
    assert thread.cache("b", lambda: AnswerCache(1.0, 1024, None)) is not first


def test_a_cache_forgets_what_is_too_old_and_goes_when_no_task_asks_for_it_any_more(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is made for each secret that a source has had, and a rotated one never comes back."""
    monkeypatch.setattr(loop, "IDLE_AFTER", 0.2)
    monkeypatch.setattr(loop, "BEAT", 0.005)
    old, full = AnswerCache(0.02, 1024, None), AnswerCache(60.0, 1024, None)
    for name, cache in {"old": old, "full": full}.items():
        thread.cache(name, lambda cache=cache: cache)
        thread.post(lambda cache=cache: cache.put_many([1], ["one"], thread._loop.time()))
    asked = time.monotonic()
    assert wait_until(lambda: not old)
    assert thread.cache("old", lambda: full) is old, "it may be asked for at once"
    assert wait_until(lambda: "old" not in thread.caches)
    assert time.monotonic() - asked > 0.2
    assert thread.cache("full", lambda: old) is full
    assert len(full) == 1


def test_a_process_has_one_loop_thread() -> None:
    assert loop_thread() is loop_thread()


class Watched(ScriptedConnector):
    """Lets a test wait for its close."""

    def __init__(self, script: Script | None = None) -> None:
        super().__init__(script)
        self.has_closed = threading.Event()

    async def close(self) -> None:
        await super().close()
        self.has_closed.set()


def test_an_idle_engine_closes_its_connector_and_the_next_task_opens_another(
    spark_thread: SparkThread, thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "IDLE_AFTER", 0.02)
    monkeypatch.setattr(loop, "BEAT", 0.005)
    first, second = Watched(), Watched()
    task = spark_thread(first)
    assert len(list(task.process(iter(one("a"))))) == 1
    assert first.has_closed.wait(5.0)
    assert thread.engines == {}
    left = list(spark_thread(second).process(iter(one("b")), key=task.key))
    assert [part.outcomes.values for part in left] == [["vb"]]
    assert (first.opened, first.closed, second.opened) == (1, 1, 1)


def test_an_engine_with_a_task_is_not_idle(
    spark_thread: SparkThread, thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "IDLE_AFTER", 0.0)
    monkeypatch.setattr(loop, "BEAT", 0.002)
    server = Watched()
    task = spark_thread(server)
    parts = task.process(iter(one("a", "b")))
    next(parts)
    task.loop_turn(after=0.02)
    assert server.closed == 0
    parts.close()
    assert server.has_closed.wait(5.0)


class OfAnotherKind(Watched):
    """A connector of another class."""


FULL = Step(error=UnavailableError("it has no free connection", sent=False, busy=True))


def test_idle_engines_make_room_when_a_server_has_no_free_connection(
    spark_thread: SparkThread, thread: LoopThread
) -> None:
    """The next task has another `capacity`, so it has an engine of its own."""
    idle, of_another_kind = [Watched(), Watched()], OfAnotherKind()
    for server in (*idle, of_another_kind):
        assert len(list(spark_thread(server).process(iter(one("a"))))) == 1
    refused = Watched({"b": [FULL, FULL, Step()]})
    left = list(spark_thread(refused, capacity=2).process(iter(one("b"))))
    assert [part.outcomes.values for part in left] == [["vb"]]
    assert [server.has_closed.wait(60.0) for server in idle] == [True, True]
    assert [engine.connector for engine in thread.engines.values()] == [of_another_kind, refused]
    assert [server.closed for server in (*idle, of_another_kind, refused)] == [1, 1, 0, 0]


def test_an_engine_with_a_task_makes_no_room_for_another(spark_thread: SparkThread, thread: LoopThread) -> None:
    server, refused = Watched(), Watched({"c": [FULL, Step()]})
    parts = spark_thread(server).process(iter(one("a", "b")))
    next(parts)
    assert len(list(spark_thread(refused).process(iter(one("c"))))) == 1
    assert [engine.connector for engine in thread.engines.values()] == [server, refused]
    assert [part.outcomes.values for part in parts] == [["vb"]]
    assert (server.opened, server.closed) == (1, 0)


def test_an_engine_that_waits_for_a_call_of_nobody_makes_no_room(spark_thread: SparkThread, thread: LoopThread) -> None:
    """Its connection is in use until the call has ended, which ignores that it was cancelled."""
    server, refused = Watched({"b": Step(held=True, stubborn=9)}), Watched({"c": [FULL, Step()]})
    parts = spark_thread(server).process(iter(one("a", "b")))
    next(parts)
    parts.close()
    assert len(list(spark_thread(refused).process(iter(one("c"))))) == 1
    assert [engine.connector for engine in thread.engines.values()] == [server, refused]
    assert server.closed == 0
    thread.post(server.release, "b")


def test_a_tier_that_is_asked_late_still_has_its_engine(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache may answer all keys of a task for longer than an idle engine stays open."""
    monkeypatch.setattr(loop, "IDLE_AFTER", 0.0)
    monkeypatch.setattr(loop, "BEAT", 0.002)
    near, source = Watched(), Watched()
    emitted: queue.Queue[Any] = queue.Queue()

    def decode(raws: list[Any]) -> tuple[list[Any], dict[int, Any]]:
        return raws, {}

    def begin() -> None:
        nearby = thread.engine("near", lambda: Engine(near, 2))
        options = Options(timeout=60.0, on_timeout="null", on_error="null")
        tier = Tier("near", nearby, lambda emit: TierRun(nearby, "near", options, decode, emit, ordered=False))
        engine = thread.engine("source", lambda: Engine(source, 2))
        emitted.put(Run(engine, "source", options, decode, emitted.put, tiers=[tier]))

    thread.post(begin)
    run = emitted.get(timeout=60.0)
    for _ in range(3):  # looks at what is idle
        beat = thread._beat
        assert wait_until(lambda beat=beat: thread._beat > beat)
    asked = Outcomes(["a"], 1)
    thread.post(admission.admit, run, asked)
    [part] = emitted.get(timeout=60.0)
    assert (part.outcomes.values, near.asked, source.asked) == (["va"], {"a": 1}, {})
    thread.post(run.close)
    assert near.has_closed.wait(60.0)
    assert wait_until(lambda: not thread.engines)


def test_a_child_process_has_a_loop_thread_of_its_own(spark_thread: SparkThread) -> None:
    """Spark forks its workers; neither the thread nor a connection of the parent may be used in the child."""
    parent = loop_thread()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: this is what Spark's daemon does
        child = os.fork()
    if child == 0:
        try:
            mine = loop_thread()
            left = list(spark_thread(ScriptedConnector(), loop=mine).process(iter(one("a", "b"))))
            answer = f"{mine is parent} {mine.pid == os.getpid()} {[part.outcomes.values for part in left]}"
        except BaseException as error:
            answer = repr(error)
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    assert select.select([reader], [], [], 10.0)[0], "the child does not answer"
    assert os.read(reader, 1000).decode() == "False True [['va'], ['vb']]"
    os.waitpid(child, 0)
    os.close(reader)
    assert loop_thread() is parent


def test_a_process_ends_quietly_however_long_it_goes_on_without_its_interpreter() -> None:
    """For four beats, with a call in flight: a loop that rings then crashes the process."""
    program = """
        import asyncio
        import ctypes
        import sys
        import threading

        from enrichkit.engine.loop import loop_thread

        libc = ctypes.CDLL(None)
        libc.on_exit(ctypes.cast(libc.sleep, ctypes.c_void_p), None)  # for as many seconds as the exit code says
        calls, asked = [], threading.Event()
        loop_thread().post(lambda: calls.append(asyncio.get_running_loop().create_task(asyncio.sleep(60.0))))
        loop_thread().post(asked.set)
        asked.wait()
        sys.exit(1)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=15)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@pytest.mark.usefixtures("impatient")
def test_a_connector_that_blocks_the_loop_is_named_with_its_line(
    spark_thread: SparkThread, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F30: the warning ends the block, so this test would hang without it."""
    monkeypatch.setattr(bridge, "LAG_FAIL", 30.0)  # however late a busy machine lets the watchdog look
    block = threading.Event()

    class Release(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            block.set()

    release = Release()
    logging.getLogger("enrichkit").addHandler(release)
    try:
        left = list(spark_thread(ScriptedConnector({"a": Step(block=block)})).process(iter(one("a", "b"))))
    finally:
        logging.getLogger("enrichkit").removeHandler(release)
    assert [part.outcomes.values for part in left] == [["va"], ["vb"]]
    [text] = [record.getMessage() for record in caplog.records]
    said = r"scripted: a connector blocks the event loop since \d+\.\d s; lookups wait\. It is here:\n"
    assert re.match(said, text)
    assert "step.block.wait(" in text


@pytest.mark.usefixtures("impatient")
def test_a_connector_that_blocks_the_loop_for_too_long_fails_the_task(spark_thread: SparkThread) -> None:
    """F30."""
    block = threading.Event()
    parts = spark_thread(ScriptedConnector({"a": Step(block=block)})).process(iter(one("a")))
    started = time.monotonic()
    text = (
        r"^scripted: a connector has blocked the event loop for \d+ s; at most 0 s are allowed\. Await instead of "
        r"blocking, or use asyncio\.to_thread\. It is here:\n(.*\n)*.*step\.block\.wait\("
    )
    with pytest.raises(ConnectorBlockedError, match=text):
        list(parts)
    assert time.monotonic() - started < at_pace(5.0)
    block.set()


@pytest.mark.usefixtures("impatient")
def test_a_process_that_stood_still_does_not_blame_the_connector(
    spark_thread: SparkThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after `docker pause`: the wait of a moment took long, so the loop may have stood still as well."""
    monkeypatch.setattr(bridge, "FROZEN", 0.2)
    block = threading.Event()
    task = spark_thread(ScriptedConnector({"a": Step(block=block)}))
    ready, waits = task.bridge._ready, []

    class Stopped:
        """A queue whose first wait ends late; behind it the loop goes on."""

        def get(self, timeout: float) -> Any:
            waits.append(timeout)
            if len(waits) == 1:
                time.sleep(1.0)
                threading.Timer(0.05, block.set).start()
                raise queue.Empty
            return ready.get(timeout=5.0)

        def empty(self) -> bool:
            return ready.empty()

    monkeypatch.setattr(task.bridge, "_ready", Stopped())
    assert [part.outcomes.values for part in task.process(iter(one("a")))] == [["va"]]
    assert len(waits) == 2
    assert not caplog.records


class Deadly(ScriptedConnector):
    """Starts a task of its own that ends the loop, which no engine can catch."""

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        async def die() -> None:
            raise SystemExit(1)

        self.task = asyncio.create_task(die())
        return await super().fetch_many(keys, call)


@pytest.mark.usefixtures("impatient")
def test_the_death_of_the_loop_fails_the_task_and_the_next_one_has_a_new_loop(
    spark_thread: SparkThread,
    thread: LoopThread,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F36."""
    monkeypatch.setattr(loop, "_current", thread)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # Python's own ignores SystemExit; pytest's does not
    deadly = Deadly(otherwise=Step(never=True))
    text = (
        r"^scripted: the event loop of this worker has ended, so no answer can come\. A connector raised SystemExit or "
        r"KeyboardInterrupt in a task of its own; see the worker's log\.$"
    )
    started = time.monotonic()
    with pytest.raises(ConnectorBlockedError, match=text):
        list(spark_thread(deadly).process(iter(one("a"))))
    assert time.monotonic() - started < at_pace(5.0)
    assert not thread.alive()
    assert "the event loop of enrichkit has ended" in caplog.messages
    fresh = loop_thread()
    assert fresh is not thread
    left = list(spark_thread(ScriptedConnector(), loop=fresh).process(iter(one("b"))))
    assert [part.outcomes.values for part in left] == [["vb"]]
    with pytest.raises(SystemExit):
        deadly.task.result()
