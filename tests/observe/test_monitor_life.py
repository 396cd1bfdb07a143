"""How a monitor begins and ends, without Spark; tests/spark/test_monitor.py has the jobs."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import pytest

from enrichkit import ConfigError, Monitor, monitor
from enrichkit.observe import active as active_module
from enrichkit.observe.monitor import _hosts_and_slots, active

from .test_state import report

MODULE = sys.modules[Monitor.__module__]


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    yield
    if (left := active()) is not None:
        left.close()


def push(watched: Monitor, *reports: dict[str, Any], host: str | None = None) -> None:
    address = watched.address
    assert address is not None
    body = json.dumps({"version": 1, "tasks": reports}).encode()
    headers = {"Authorization": f"Bearer {address.token}"}
    with urlopen(Request(f"http://{host or address.host}:{address.port}/push", body, headers)) as answer:
        assert answer.status == 204


def test_the_end_waits_for_what_a_task_says_after_its_last_row() -> None:
    with monitor(terminal=False) as watched:
        push(watched, report(calls=10))
        last = threading.Timer(0.2, push, [watched, report(state="stopped", calls=35)])
        last.start()
    last.join()
    [task] = watched.view()["tasks"]
    assert (task["state"], task["calls"]) == ("stopped", 35)


def test_what_ran_at_the_end_of_the_monitor_stands_still_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "LAST_REPORTS", 0.0)
    with monitor(terminal=False, rows=400) as watched:
        push(watched, report())
    first = watched.view()
    monkeypatch.setattr(time, "time", lambda: first["at"] + 3_600)
    later = watched.view()
    assert (first["state"], later) == ("closed", first)


@pytest.mark.parametrize("broken", ["terminal", "server"])
def test_a_monitor_that_cannot_start_leaves_none_behind(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    if broken == "terminal":
        monkeypatch.setitem(sys.modules, "enrichkit.observe.terminal", None)
    else:
        monkeypatch.setattr(MODULE, "_hosts_and_slots", lambda _: ("127.0.0.1", "192.0.2.1", None))
    with pytest.raises((ImportError, ConfigError)):
        monitor(terminal=True).start()
    assert active() is None
    monkeypatch.undo()
    with monitor(terminal=False) as watched:
        assert active() is watched


def test_messages_and_logs_show_no_token_of_the_page() -> None:
    with monitor(terminal=False) as watched:
        token = watched.url.rstrip("/").rsplit("/", 1)[1]
        with pytest.raises(ConfigError) as caught:
            monitor(terminal=False).start()
        assert watched.address is not None
        where = f"http://127.0.0.1:{watched.address.port}"
        assert str(caught.value) == f"There is a monitor already, at {where}. Close it first, or use it."
        assert repr(watched) == f"<Monitor {where}: Waiting for the first task.>"
        assert token not in repr(watched) + str(caught.value)


def test_a_setting_that_asks_for_a_monitor_never_ends_the_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver's name is that of a Kubernetes service: no address of this machine."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setenv("ENRICHKIT_MONITOR", "1")
    monkeypatch.setattr(active_module, "_failed", False)
    monkeypatch.setattr(MODULE, "_hosts_and_slots", lambda _: ("192.0.2.1", None, None))
    assert [active_module.address() for _ in range(3)] == [None] * 3
    [text] = caplog.messages
    assert text == (
        "No monitor shows this program, although ENRICHKIT_MONITOR or spark.enrichkit.monitor asks for it: The monitor "
        "cannot listen on '192.0.2.1', port 0: [Errno 99] Cannot assign requested address. Choose another port, or 0 "
        "for any that is free, and an address of this machine."
    )


def test_workers_reach_the_driver_by_its_name_and_the_monitor_listens_where_spark_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"spark.driver.host": "driver.example", "spark.driver.bindAddress": "127.0.0.1"}
    context = SimpleNamespace(defaultParallelism=4, master="k8s://example", getConf=lambda: settings)
    session = SimpleNamespace(getActiveSession=lambda: SimpleNamespace(sparkContext=context))
    monkeypatch.setattr("pyspark.sql.SparkSession", session)
    assert _hosts_and_slots(None) == ("driver.example", "127.0.0.1", 4)
    assert _hosts_and_slots("other.example") == ("other.example", None, 4)
    with monitor(terminal=False) as watched:
        assert watched.address is not None
        assert watched.address.host == "driver.example"
        assert watched.url.startswith(f"http://driver.example:{watched.address.port}/")
        push(watched, report(state="ok"), host="127.0.0.1")
        assert watched.stats().calls == 10


def test_several_pages_cost_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[float] = []
    with monitor(terminal=False) as watched:
        view = watched.view
        monkeypatch.setattr(watched, "view", lambda: made.append(time.monotonic()) or view())
        for _ in range(100):
            watched._view_of_late()
        assert len(made) < 100
        push(watched, report(state="ok"))
        assert view()["totals"]["calls"] == 10, "what the program asks for is of now"
