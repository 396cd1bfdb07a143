"""What a task tells of itself to monitor, observers and log; each figure is compared with the service."""

from __future__ import annotations

import json
import logging
import pickle
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from enrichkit_http import HttpConfig

from enrichkit import LookupFailedError, Retry
from enrichkit.driver.planner import make_plan
from enrichkit.interface import TaskInfo
from enrichkit.local import Fault
from enrichkit.observe import hooks
from enrichkit.observe.sender import REFUSED_MAX, WAITING_MAX, Address, sender
from enrichkit.observe.state import State
from enrichkit.observe.stats import Stats
from enrichkit.observe.task import ObservedTask
from enrichkit.plan import Plan
from enrichkit.worker.entry import arrow_batches

from ..pace import at_pace
from ..test_local import wait_until
from .test_state import report as report_of

if TYPE_CHECKING:
    from pathlib import Path

    from enrichkit.local import HttpService

pytestmark = pytest.mark.service

REPORT = report_of()
BAR = ("source", "limit", "input", "output", "cpu")


class Receiver:
    """A server that takes pushes into the state of a monitor."""

    def __init__(self, *, status: int = 200, too_much: bytes | None = None) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.state = State(time.time())
        self.bodies: list[bytes] = []
        self.tokens: set[str | None] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.answers.wait()
                receiver.bodies.append(body)
                receiver.tokens.add(self.headers["Authorization"])
                taken = too_much is None or too_much not in body
                if taken:
                    receiver.state.push(body, time.time())
                self.send_response(status if taken else 413)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = Address("127.0.0.1", self.server.server_port, "t0ken")
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def stats(self) -> Stats:
        return self.state.total()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def plan_of(service: HttpService, monitor: Address | None, **options: Any) -> Plan:
    config = HttpConfig(url=f"{service.url}/{uuid.uuid4().int}/{{}}", value="score", missing=(404,))
    plan, _ = make_plan(config, 1, pa.int32(), options)
    return Plan(**{**vars(plan), "monitor": monitor})


def assert_seen(stats: Stats, service: HttpService) -> None:
    """The service has seen all calls, except perhaps those that were abandoned."""
    assert stats.calls - stats.abandoned <= service.stats().calls <= stats.calls
    assert stats.abandoned <= 100


def run(plan: Plan, *batches: list[str | None], after: Any = None) -> int:
    """Run a task; return how many rows came out."""

    def given() -> Iterator[pa.Array[Any]]:
        for keys in batches:
            yield pa.array(keys, pa.string())
            if after is not None:
                after()

    return sum(len(part) for part in arrow_batches(pickle.dumps(plan), given()))


def test_the_totals_are_those_that_the_service_counted(http_service: HttpService, receiver: Receiver) -> None:
    http_service.script(Fault(match="u7", status=503, times=2), latency=0.02)
    keys = [None if n % 50 == 0 else f"missing-{n}" if n % 10 == 3 else f"u{n % 700}" for n in range(2_000)]
    plan = plan_of(http_service, receiver.address, retry=Retry(wait=0.01))
    assert run(plan, keys[:1500], keys[1500:]) == 2_000
    stats, seen = receiver.stats, http_service.stats()
    assert (stats.tasks, stats.rows, stats.null_keys) == (1, 2_000, 40)
    assert (stats.calls, stats.sent) == (seen.calls, seen.keys)
    assert stats.keys - stats.shared == stats.ok + stats.missing
    assert (sum(stats.retries.values()), stats.errors, stats.timeouts, stats.failures) == (2, 0, 0, {})
    assert set(stats.retries) <= {"TransientError", "UnavailableError"}
    assert stats.calls_took.total == stats.fill.total == stats.calls
    assert stats.calls_took.quantile(0.5) >= 0.018, "a bucket is up to 12 % wide"
    assert stats.in_flight_max <= 100
    assert stats.slot_seconds == pytest.approx(100 * stats.seconds)
    assert sum(getattr(stats, f"{part}_seconds") for part in BAR) == pytest.approx(stats.seconds)
    assert {"Bearer t0ken"} == receiver.tokens


@pytest.mark.slow
def test_the_longest_part_of_the_time_is_what_the_task_waits_for(http_service: HttpService) -> None:
    keys = [f"u{n}" for n in range(300)]
    for part, options, after in (
        ("source", {"capacity": 10}, None),
        ("limit", {"rate": 200}, None),
        ("input", {}, lambda: time.sleep(1.0)),
    ):
        receiver = Receiver()
        http_service.script(latency=0.05 if part == "source" else 0.0)
        run(plan_of(http_service, receiver.address, **options), keys[:150], keys[150:], after=after)
        shares = {name: getattr(receiver.stats, f"{name}_seconds") / receiver.stats.seconds for name in BAR}
        assert max(shares, key=lambda name: shares[name]) == part, shares
        receiver.close()


@pytest.mark.slow
def test_spark_that_takes_rows_slowly_is_seen(http_service: HttpService, receiver: Receiver) -> None:
    plan = plan_of(http_service, receiver.address)
    batch = pa.array([f"u{n}" for n in range(3_000)], pa.string())
    for part in arrow_batches(pickle.dumps(plan), iter([batch])):
        time.sleep(0.3 if len(part) else 0.0)
    stats = receiver.stats
    assert stats.output_seconds > 0.5 * stats.seconds


def test_the_key_with_the_most_rows_and_the_slowest_one_are_hashed(
    http_service: HttpService, receiver: Receiver
) -> None:
    http_service.script(Fault(match="u77", delay=0.4))
    keys = [f"u{n}" if n % 3 else "favourite" for n in range(600)]
    run(plan_of(http_service, receiver.address), keys)
    [(hottest, rows), *_] = sorted(receiver.stats.hot.items(), key=lambda each: -each[1])
    seconds, slowest = receiver.stats.slow[0]
    assert (rows, hottest[0], len(hottest)) == (200, "#", 11)
    assert seconds >= 0.4
    assert slowest != hottest
    assert b"favourite" not in b"".join(receiver.bodies)


def test_a_fallback_is_a_source_of_its_own(http_service: HttpService, receiver: Receiver) -> None:
    http_service.script(Fault(match="/main/", status=400))
    main, spare = (HttpConfig(url=f"{http_service.url}/{name}/{{}}", value="score") for name in ("main", "spare"))
    plan, _ = make_plan(main, 1, pa.int32(), {"on_error": spare, "max_fallback_ratio": 1.0})
    plan = Plan(**{**vars(plan), "monitor": receiver.address})
    run(plan, [f"u{n}" for n in range(50)])
    calls = [task.stats.calls for task in receiver.state.of()]
    assert (calls, http_service.stats().calls) == ([50, 50], 100)
    assert receiver.stats.rows == 50


def test_a_task_that_fails_says_why_and_counts_its_calls(http_service: HttpService, receiver: Receiver) -> None:
    http_service.script(Fault(match="u5", status=400))
    with pytest.raises(LookupFailedError):
        run(plan_of(http_service, receiver.address), [f"u{n}" for n in range(20)])
    [task] = receiver.state.of()
    assert task.state == "failed"
    assert_seen(task.stats, http_service)
    assert task.facts["error"].startswith("LookupFailedError: http: the lookup of key #")
    assert receiver.state.total(failed=True) == task.stats


def test_a_task_whose_rows_nobody_takes_is_stopped(http_service: HttpService, receiver: Receiver) -> None:
    plan = plan_of(http_service, receiver.address)
    parts = arrow_batches(pickle.dumps(plan), iter([pa.array([f"u{n}" for n in range(5_000)], pa.string())]))
    next(parts)
    parts.close()  # type: ignore[attr-defined]  # a generator
    [task] = receiver.state.of()
    assert task.state == "stopped"
    assert_seen(task.stats, http_service)


@pytest.mark.slow
def test_a_task_that_runs_pushes_once_a_second(http_service: HttpService, receiver: Receiver) -> None:
    http_service.script(latency=0.1)
    began = time.monotonic()
    run(plan_of(http_service, receiver.address, capacity=2), [f"u{n}" for n in range(60)])
    seconds = time.monotonic() - began
    states = [json.loads(body)["tasks"][0]["state"] for body in receiver.bodies]
    assert states[-1] == "ok"
    assert 3 <= states.count("running") <= seconds + 2, "at its begin, and once a second for three seconds or more"
    flights = [json.loads(body)["tasks"][0]["in_flight"] for body in receiver.bodies]
    assert (max(flights), flights[-1]) == (2, 0)


@contextmanager
def deaf(kind: str) -> Iterator[Address]:
    """A monitor that nobody hears of: nobody listens, it refuses, or it takes connections and never answers."""
    import socket

    if kind == "refuses":
        receiver = Receiver(status=401)
        yield receiver.address
        receiver.close()
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if kind == "nobody":
            listener.close()
        yield Address("127.0.0.1", port, uuid.uuid4().hex)


@pytest.mark.parametrize("kind", ["nobody", "refuses", "silent"])
def test_a_monitor_that_is_not_reached_costs_a_line_in_the_log(
    http_service: HttpService, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    with deaf(kind) as address:
        plan = plan_of(http_service, address)
        began = time.monotonic()
        for _ in range(5):
            assert run(plan, [f"u{n}" for n in range(10)]) == 10
        assert time.monotonic() - began < at_pace(5.0), "each task waits half a second at most"
        waited = time.monotonic()
        while not told_of(address, caplog) and time.monotonic() < waited + 60:
            time.sleep(0.05)
    [text] = told_of(address, caplog)
    reason = {"nobody": r"[Errno 111] Connection refused", "refuses": "it answered 401", "silent": "timed out"}[kind]
    assert text == (
        f"The monitor at 127.0.0.1:{address.port} cannot be reached from this worker ({reason}); until it is, its page "
        "shows nothing of it. The job goes on. Look at the address that monitor(host=...) names."
    )


def test_reports_of_tasks_that_a_monitor_does_not_take_are_not_kept_for_ever() -> None:
    with deaf("silent") as address:
        process = sender(address)
        process.put([{"id": "first"}])
        for number in range(10_000):
            process.put([{"id": f"{number}"}])
        assert len(process._reports) <= 2_000  # the only way to see how much memory it takes


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that gives a monitor up, and tries it again, after a tenth of a second."""
    module = sys.modules[sender.__module__]
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    monkeypatch.setattr(module, "AGAIN", 0.1)


def told_of(address: Address, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log tells of the monitor at *address*: the threads of other tests may still tell of theirs."""
    return [text for text in caplog.messages if text.startswith(f"The monitor at 127.0.0.1:{address.port} ")]


@pytest.mark.usefixtures("impatient")
def test_a_monitor_that_stands_still_for_a_while_misses_nothing(
    http_service: HttpService, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answers.clear()
    plan = plan_of(http_service, receiver.address)
    for _ in range(3):
        assert run(plan, [f"u{n}" for n in range(30)]) == 30
    wait_until(lambda: told_of(receiver.address, caplog))
    receiver.answers.set()
    wait_until(lambda: [task.state for task in receiver.state.of()] == ["ok"] * 3)
    assert (receiver.stats.calls, http_service.stats().calls) == (90, 90)
    assert len(told_of(receiver.address, caplog)) == 1


def test_a_report_that_the_monitor_does_not_take_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver(too_much=b"much-too-large")
    own = {**REPORT, "state": "ok"}
    process = sender(receiver.address)
    process.put([{**own, "id": f"{n}", "error": "much-too-large" if n == 2 else None} for n in range(5)])
    wait_until(lambda: len(receiver.state.of()) == 4)
    process.put_last([{**own, "id": "later"}], 60)
    assert [task.facts["id"] for task in receiver.state.of()] == ["0", "1", "3", "4", "later"]
    [text] = told_of(receiver.address, caplog)
    assert text == (
        f"The monitor at 127.0.0.1:{receiver.address.port} does not take what a task reports (it answered 413); its "
        "page shows nothing of this task. The job goes on. Look at the address that monitor(host=...) names."
    )
    receiver.close()


def test_many_reports_go_in_several_pushes(receiver: Receiver) -> None:
    own = {**REPORT, "state": "ok", "error": "x" * 100_000}
    sender(receiver.address).put_last([{**own, "id": f"{n}"} for n in range(30)], 60)
    assert len(receiver.state.of()) == 30
    assert 5 <= len(receiver.bodies)
    assert max(map(len, receiver.bodies)) < 1 << 20, "a monitor takes no more"


@pytest.mark.usefixtures("impatient")
def test_nobody_waits_for_a_monitor_that_is_not_reached() -> None:
    with deaf("silent") as address:
        process = sender(address)
        process.put_last([{"id": "first"}], 60)
        assert process._failures, "it ended because the first push failed"
        process.put_last([{"id": "second"}], 3_600)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["nobody", "refuses"])
def test_a_monitor_that_has_ended_gets_no_more_pushes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server may have its port soon."""
    monkeypatch.setattr(sys.modules[sender.__module__], "AGAIN_MAX", 0.1)
    with deaf(kind) as address:
        process = sender(address)
        process.put([REPORT | {"id": "first"}])
        wait_until(lambda: not process._thread.is_alive())
        process.put([REPORT | {"id": "second"}])
        process.put_last([REPORT | {"id": "third"}], 3_600)
        assert not process._reports


@pytest.mark.usefixtures("impatient")
def test_refusals_with_answers_between_them_do_not_add_up(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    process = sender(receiver.address)
    post, refusals = process._post, iter([True, False] * 2 * REFUSED_MAX)

    def refused_in_turn(body: bytes) -> int:
        return 401 if next(refusals) else post(body)

    monkeypatch.setattr(process, "_post", refused_in_turn)
    for number in range(1, 2 * REFUSED_MAX + 1):
        process.put([REPORT | {"id": f"{number}"}])
        wait_until(lambda number=number: len(receiver.bodies) == number)  # type: ignore[misc]
    assert process._thread.is_alive()


@pytest.mark.usefixtures("impatient")
def test_a_monitor_that_stands_still_is_not_taken_for_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[sender.__module__], "AGAIN_MAX", 0.01)
    with deaf("silent") as address:
        process = sender(address)
        process.put([{"id": "first"}])
        wait_until(lambda: process._failures > 2 * REFUSED_MAX)
        assert process._thread.is_alive()
        assert process._waiting() == {"first"}


def test_what_has_ended_takes_the_place_of_what_runs() -> None:
    with deaf("nobody") as address:
        process = sender(address)
        process.put([{"id": f"{n}", "state": "running"} for n in range(3_000)])
        process.put([{"id": f"last-{n}", "state": "ok"} for n in range(1_500)])

        def ended() -> int:
            with process._sent:  # its thread takes reports and puts them back
                return sum(report["state"] == "ok" for report in process._reports.values())

        wait_until(lambda: ended() == 1_500)
        with process._sent:
            assert len(process._reports) <= WAITING_MAX


@pytest.mark.usefixtures("impatient")
def test_reports_that_could_not_be_sent_take_no_more_room_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    pushing, go_on = threading.Event(), threading.Semaphore(0)

    def refused(*_: Any) -> None:
        pushing.set()
        assert go_on.acquire(timeout=60.0)
        raise OSError("refused")

    with deaf("nobody") as address:
        process = sender(address)
        monkeypatch.setattr(process, "_push", refused)
        process.put([{"id": f"{n}", "state": "running"} for n in range(WAITING_MAX)])
        assert pushing.wait(60.0)
        process.put([{"id": f"last-{n}", "state": "ok"} for n in range(WAITING_MAX - 500)])
        pushing.clear()
        go_on.release()
        assert pushing.wait(60.0), "it is tried again"
        waiting = process._reports.keys() | process._under_way
        go_on.release(1000)
        assert len(waiting) == WAITING_MAX
        assert sum(each.startswith("last-") for each in waiting) == WAITING_MAX - 500


def test_an_error_of_a_page_is_cut(http_service: HttpService) -> None:
    task = ObservedTask(plan_of(http_service, None), TaskInfo())
    assert len(task.report("failed", ValueError("long " * 10_000))["error"]) == 2_000


@pytest.mark.parametrize("order", ["sorted", "in turns"])
def test_keys_that_are_sorted_or_come_in_turns_are_no_hot_ones(
    http_service: HttpService, receiver: Receiver, order: str
) -> None:
    keys: list[str | None] = [f"u{n % 8}" for n in range(16_000)]
    run(plan_of(http_service, receiver.address), sorted(keys) if order == "sorted" else keys)
    assert len(receiver.stats.hot) == 8
    assert max(receiver.stats.hot.values()) < 0.2 * 16_000, "each has an eighth of the rows"


def test_an_error_of_the_statistics_changes_no_task(
    http_service: HttpService, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(ObservedTask, "stats", broken)
    http_service.script(latency=0.02)
    assert run(plan_of(http_service, receiver.address), [f"u{n}" for n in range(300)]) == 300
    text = "The statistics of a task are incomplete; the task does not change by that."
    assert [each for each in caplog.messages if not each.startswith("The monitor at")] == [text]


OBSERVER = """
    from enrichkit import hookimpl

    seen = []

    @hookimpl
    def enrichkit_task_finished(stats, source):
        seen.append((source, stats.rows, stats.calls))
        if source == "http" and stats.rows == 3:
            raise OSError("the observer is broken")
"""


def test_observers_hear_of_each_task_and_change_none(
    http_service: HttpService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import textwrap

    (tmp_path / "acme_observer.py").write_text(textwrap.dedent(OBSERVER))
    info = tmp_path / "acme_observer-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-observer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[enrichkit.observers]\nacme = acme_observer\nbroken = acme_observer:absent\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    hooks.observers.cache_clear()
    hooks._manager.cache_clear()
    plan = plan_of(http_service, None)
    assert plan.observers == ("acme", "broken")
    run(plan, ["u1", "u2"])
    run(plan, ["u1", "u2", "u2"])
    assert sys.modules["acme_observer"].seen == [("http", 2, 2), ("http", 3, 2)]
    # The thread that pushes may still tell of the monitor of the test before.
    assert [text for text in caplog.messages if not text.startswith("The monitor at")] == [
        "The observer 'broken' cannot be loaded; the job goes on without it.",
        "An observer raised in enrichkit_task_finished; the task does not change by that.",
    ]
    hooks.observers.cache_clear()
    hooks._manager.cache_clear()


def test_the_log_has_one_line_for_each_task(
    http_service: HttpService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "enrichkit.tasks")
    plan = plan_of(http_service, None)
    run(plan, ["u1", "u2", "missing-1", None])
    monkeypatch.setenv("ENRICHKIT_LOG", "json")
    run(plan, ["u1", "u2", "missing-1", None])
    text, document = caplog.messages
    assert text.startswith("http: task 0.0 of stage 0 ended in ")
    assert ": 4 rows, 3 calls with 3 keys, median " in text
    assert "; 2 ok, 1 missing, 0 without an answer, 0 retries; waited " in text
    assert Stats.read(json.loads(document)["stats"]).calls == 3
