"""A monitor as a user starts it, in Chromium: from a worker's first push, over an attempt that is lost, to the end."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from playwright.sync_api import expect
from pyspark.sql import types as t

import enrichkit
from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.observe.state import LOST_AFTER

from ..pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from enrichkit.local import HttpService

pytestmark = [
    pytest.mark.browser,
    pytest.mark.service,
]

KEYS = [f"u{number}" for number in range(40)]
CALLS = 8
"""Calls in flight of the attempt that is killed, none of which is answered."""
PATIENCE = (LOST_AFTER + 20) * 1000
"""Milliseconds until the page must show something, on a machine that does much else."""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    yield page
    page.close()


def start(payload: bytes, attempt: int) -> subprocess.Popen[bytes]:
    """Start a worker process with one attempt of the task."""
    command = [sys.executable, "-m", "tests.browser.attempt"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(pickle.dumps((payload, KEYS, attempt)))
    process.stdin.close()
    process.stdin = None  # or `communicate` would write to it
    return process


def figures(page: Page, tile: str) -> Any:
    return page.locator(f".tile-{tile} dd")


def test_the_page_follows_a_job_whose_first_attempt_is_killed(
    page: Page, http_service: HttpService, tmp_path: Path
) -> None:
    expect.set_options(timeout=PATIENCE)
    http_service.script(latency=600.0)
    with enrichkit.monitor(rows=len(KEYS), terminal=False) as monitor:
        page.goto(monitor.url)
        expect(page.get_by_role("heading", name="Waiting for the first task.")).to_be_visible()
        config = HttpConfig(url=http_service.url + "/users/{}")
        plan, _ = make_plan(config, 1, t.StringType(), {"capacity": CALLS, "timeout": 600.0, "stall_timeout": 600.0})
        payload = pack(plan)

        killed = start(payload, 0)
        try:
            states = page.locator("#tasks tbody tr:not(.under) > :first-child")
            expect(states).to_have_text(["running"])
            expect(figures(page, "flight")).to_have_text(f"{CALLS} of {CALLS}")
        finally:
            killed.kill()
            killed.communicate()
        expect(states).to_have_text(["lost"])
        expect(figures(page, "trouble")).to_have_text("0 errors0 retries1 failed task")
        expect(figures(page, "flight")).to_have_text("0 of 0")

        http_service.script()
        second = start(payload, 1)
        printed, _ = second.communicate()
        assert 0 == second.returncode
        assert len(KEYS) == len(json.loads(printed))
        expect(states).to_have_text(["lost", "ok"])
        expect(page.locator("#progress")).to_contain_text("40 of about 40 rows")
        report = monitor.report(tmp_path / "run.html")
    expect(page.locator("#connection")).to_have_text("ended")
    expect(states).to_have_text(["lost", "ok"])
    totals = report["totals"]
    names = ("ok", "without_answer", "calls", "failed_calls", "tasks", "failed_tasks")
    assert {
        "ok": 40, "without_answer": 0, "calls": CALLS + 40, "failed_calls": CALLS, "tasks": 2,
        "failed_tasks": 1,
    } == {name: totals[name] for name in names}  # fmt: skip

    page.goto((tmp_path / "run.html").as_uri())
    expect(states).to_have_text(["lost", "ok"])
    expect(figures(page, "trouble")).to_have_text("0 errors0 retries1 failed task")
