"""A headless Chromium, which apt installs, and a monitor's server with fake views for it."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from axe_playwright_python.sync_playwright import Axe

from enrichkit.observe.page import self_contained
from enrichkit.observe.server import MonitorServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page, Playwright

    from enrichkit.observe.view import View

VIEW_TOKEN = "v1ew"
PUSH_TOKEN = "pu5h"


def launch(playwright: Playwright) -> Browser:
    """Start Chromium; it needs no sandbox for pages of our own, and as root it would not start with one."""
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    assert path, "There is no Chromium on the PATH. Run: apt install chromium-headless-shell"
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])


def found_by_axe(page: Page) -> list[tuple[str, str, list[str]]]:
    """What hinders people on *page*: for each rule its name, its impact, and the first three elements that break it."""
    # Axe also lists all elements that keep its rules, unless it is told not to, which saves a quarter of its time.
    violations: list[Any] = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [(each["id"], each["impact"], [node["html"] for node in each["nodes"]][:3]) for each in violations]


def make_server(view: Callable[[], View], port: int = 0) -> MonitorServer:
    return MonitorServer(
        port=port,
        view_token=VIEW_TOKEN,
        push_token=PUSH_TOKEN,
        view=view,
        push=lambda body: None,
        metrics=lambda: "",
        report=lambda: self_contained(view(), "A report"),
    )


@contextmanager
def serving(view: Callable[[], View], port: int = 0) -> Iterator[MonitorServer]:
    """A server that shows *view*, until the end of the block."""
    server = make_server(view, port)
    server.start()
    try:
        yield server
    finally:
        server.stop()
