"""The page of a monitor in Chromium: what it shows, how it loses and finds its server, and whom it shuts out."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from enrichkit.observe import server as monitor_server
from enrichkit.observe.page import self_contained

from ..observe.fake_view import START, WAITING, fake_view, hostile, waiting
from .chromium import found_by_axe, make_server, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import APIResponse, Browser, Page, Route

    from enrichkit.observe.view import View

pytestmark = [
    pytest.mark.browser,
]

expect.set_options(timeout=30_000)  # how long to wait at most, on a machine that does much else

LIMITED = f"users: {WAITING}"
ENDED = "The job's program has ended; this is the last state."


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has time at its end to tell each page of it, however busy the machine is."""
    monkeypatch.setattr(monitor_server, "STOP_TIMEOUT", 30.0)


class Job:
    """What the server shows: a job that goes on, one second of it in a tenth of a second, or that stands still."""

    def __init__(self, second: int = 420) -> None:
        self.second = second
        self.view: View | None = None
        self.moves = False

    def __call__(self) -> View:
        if self.moves:
            self.second += 1
        return self.view or fake_view(self.second)


@pytest.fixture
def job() -> Job:
    return Job()


class Watch:
    """What a page did that it must not do."""

    def __init__(self, page: Page, allowed: tuple[str, ...] = ()) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self._said(message.type, message.text, allowed))
        page.on("dialog", lambda dialog: self.problems.append(dialog.message))

    def _said(self, kind: str, text: str, allowed: tuple[str, ...]) -> None:
        if kind in ("error", "warning") and not any(each in text for each in allowed):
            self.problems.append(text)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with opened(browser) as page:
        yield page


@contextmanager
def opened(browser: Browser, **options: Any) -> Iterator[Page]:
    page = browser.new_page(timezone_id="UTC", **{"viewport": {"width": 1280, "height": 900}, **options})
    page.set_default_timeout(30_000)
    try:
        yield page
    finally:
        page.close()


def connection(page: Page) -> Any:
    return page.locator("#connection")


def open_stream(page: Page, url: str) -> None:
    """Open the page at *url*, and wait until the server streams to it: it shows a view before, and hears no end."""
    with page.expect_response(lambda response: response.url.endswith("/events")):
        page.goto(url)


# What it shows


def test_it_is_of_use_within_a_second_and_asks_only_its_server(page: Page, job: Job) -> None:
    watch = Watch(page)
    with serving(job) as server:
        page.goto(server.url)
        page.get_by_role("heading", name=LIMITED).wait_for()
        painted = page.evaluate("performance.now()")
        expect(connection(page)).to_have_text("live")
        page.wait_for_timeout(1500)
    assert painted < 1000 * 3  # a second, on a machine that does little else
    assert [] == watch.problems
    names = ["", "page.css", "page.js", "view", "events"]
    assert {f"{server.url}{name}" for name in names} == {url for url in watch.requests if not url.startswith("data:")}


def test_it_shows_each_part_of_the_view(page: Page, job: Job) -> None:
    with serving(job) as server:
        page.goto(server.url)
        expect(page).to_have_title("68 % running · enrichkit")
        expect(page.locator("#since")).to_have_text("since 09:00:00 · 7 min")
        shares = page.locator("#time [role=img]").get_attribute("aria-label")
        assert shares is not None
        assert shares.startswith("58 % Waiting for the source, 13 % Rate limit or outage, 11 % Waiting")
        expect(page.locator("#progress")).to_have_text(
            re.compile("of about 7,500,000 rows · 68 % · about 3 min 18 s left")
        )
        expect(page.locator(".tile-latency dd")).to_have_text("23 ms p5048 ms p90109 ms p99")
        expect(page.locator("#advice li")).to_have_count(1)
        expect(page.locator("#advice li").first).to_contain_text("1.6 \u00d7 as fast")
        expect(page.locator("#charts figure")).to_have_count(5)
        expect(page.locator("#charts .outage")).to_have_count(5)
        expect(page.locator("#outages")).to_have_text("Hatched: a source was away (orders 09:05:30 to 09:06:20).")
        expect(page.locator("details.source")).to_have_count(3)
        expect(page.get_by_role("table", name="Errors by reason").nth(1)).to_contain_text("503 Service Unavailable")
        expect(page.get_by_role("slider", name="Keys in a call")).to_have_count(2)  # orders takes one at a time
        expect(page.locator("#workers tbody tr")).to_have_count(2)
        expect(page.locator("#tasks tbody tr:not(.under)")).to_have_count(30)


def test_before_the_first_task_it_says_that_it_waits(page: Page, job: Job) -> None:
    watch = Watch(page)
    job.view = waiting()
    with serving(job) as server:
        page.goto(server.url)
        page.get_by_role("heading", name="Waiting for the first task.").wait_for()
        expect(page.locator("#state")).to_have_text("Waiting")
        expect(page.locator("#overview")).to_be_hidden()
        job.view = None
        page.get_by_role("heading", name=LIMITED).wait_for()
        expect(page.locator("#overview")).to_be_visible()
    assert [] == watch.problems


def test_failed_tasks_come_first_and_a_header_sorts(page: Page, job: Job) -> None:
    def rows(column: int) -> list[str]:
        return page.locator(f"#tasks tbody tr:not(.under) > :nth-child({column})").all_text_contents()

    with serving(job) as server:
        page.goto(server.url)
        page.locator("#tasks tbody tr").first.wait_for()
        assert ["failed", "failed", "lost", "running"] == rows(1)[:4]
        assert "LookupFailedError: orders failed" in page.locator("#tasks tbody tr").nth(1).inner_text()
        page.get_by_role("button", name="Rows").click()
        numbers = [int(text.replace(",", "")) for text in rows(6)]
        assert sorted(numbers, reverse=True) == numbers
        expect(page.get_by_role("columnheader", name="Rows", exact=True).last).to_have_attribute(
            "aria-sort", "descending"
        )
        page.get_by_role("button", name="Rows").click()
        assert sorted(numbers) == [int(text.replace(",", "")) for text in rows(6)]


def test_many_tasks_are_shown_when_asked_for(page: Page, job: Job) -> None:
    view = fake_view(10)
    job.view = {
        **view,
        "tasks": [{**view["tasks"][0], "id": str(number)} for number in range(250)],
        "more_tasks": 1,
    }
    with serving(job) as server:
        page.goto(server.url)
        expect(page.locator("#tasks tbody tr")).to_have_count(100)
        expect(page.locator("#more-tasks")).to_have_text("1 task that has ended long ago is not shown.")
        page.get_by_role("button", name="Show all 250").click()
        expect(page.locator("#tasks tbody tr")).to_have_count(250)


def test_all_charts_read_out_the_second_under_the_pointer(page: Page, job: Job) -> None:
    with serving(job) as server:
        page.goto(server.url)
        chart = page.get_by_role("slider", name="Throughput")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 52 + (box["width"] - 62) * 300 / 420, box["y"] + 50)
        assert ["09:05:00"] * 5 == page.locator("#charts .at").all_text_contents()
        page.mouse.move(0, 0)
        assert ["latest"] * 5 == page.locator("#charts .at").all_text_contents()


def test_the_arrow_keys_read_out_a_chart_and_a_histogram(page: Page, job: Job) -> None:
    with serving(job) as server:
        page.goto(server.url)
        chart = page.get_by_role("slider", name="Calls in flight")
        chart.focus()
        for key in ("ArrowLeft", "ArrowLeft", "PageDown", "ArrowRight"):
            page.keyboard.press(key)
        told = chart.get_attribute("aria-valuetext")
        assert told is not None
        assert re.fullmatch(r"09:06:49: \d+ in flight, 256 capacity", told)
        page.keyboard.press("Escape")
        assert ["latest"] * 5 == page.locator("#charts .at").all_text_contents()
        histogram = page.get_by_role("slider", name="Latency of calls").nth(1)
        histogram.focus()
        page.keyboard.press("Home")
        told = histogram.get_attribute("aria-valuetext")
        assert told is not None
        assert re.fullmatch(r"[\d.]+ ms to [\d.]+ ms, <1 %", told)


# How it stays up to date


def test_it_goes_on_live_and_keeps_what_the_reader_has_chosen(page: Page, job: Job) -> None:
    watch = Watch(page)
    with serving(job) as server:
        page.goto(server.url)
        source = page.locator("details.source").nth(1)
        source.locator("summary").click()
        assert source.get_attribute("open") is None
        page.get_by_role("button", name="Retries").focus()
        points = "document.querySelector('#charts figure:nth-child(2) [role=slider]').focus() || 0"
        rows = page.locator(".tile-rows b").inner_text()
        job.moves = True
        expect(page.locator("#since")).to_have_text("since 09:00:00 · 7 min 3 s")
        assert rows != page.locator(".tile-rows b").inner_text()
        assert source.get_attribute("open") is None
        assert "Retries" in page.evaluate("document.activeElement.textContent")
        page.evaluate(points)
        page.keyboard.press("Home")
        assert "09:00:00" == page.locator("#charts .at").first.inner_text()  # the history is whole
    assert [] == watch.problems


def test_a_quiet_job_needs_no_polling(page: Page, job: Job) -> None:
    watch = Watch(page)
    with serving(job) as server:
        page.goto(server.url)
        page.wait_for_timeout(7000)
        expect(connection(page)).to_have_text("live")
    assert 1 == len([url for url in watch.requests if url.endswith("/view")])
    assert 1 == len([url for url in watch.requests if url.endswith("/events")])


def test_it_shows_the_end_and_comes_back_with_the_server(page: Page, job: Job) -> None:
    watch = Watch(page, allowed=("ERR_CONNECTION_REFUSED",))
    with serving(job) as server:
        open_stream(page, server.url)
        expect(connection(page)).to_have_text("live")
        job.view = {**fake_view(421), "sentence": "That was the last word."}
    expect(page.get_by_text(ENDED)).to_be_visible()
    expect(connection(page)).to_have_text("ended")
    page.get_by_role("heading", name="That was the last word.").wait_for()
    page.wait_for_timeout(1500)
    expect(page.get_by_text(ENDED)).to_be_visible()
    job.view = {**fake_view(2), "started": START + 1000, "sentence": "A new job."}  # its time is earlier
    with serving(job, server.port):
        page.get_by_role("heading", name="A new job.").wait_for()
        expect(connection(page)).to_have_text("live")
        expect(page.get_by_text(ENDED)).to_be_hidden()
    assert [] == watch.problems


def test_an_answer_that_comes_after_the_end_does_not_undo_it(page: Page, job: Job) -> None:
    """The page polls once when it opens, and a busy machine may show that answer after the last word of the stream."""
    held: list[tuple[Route, APIResponse]] = []
    page.route("**/view", lambda route: held.append((route, route.fetch())), times=1)
    with serving(job) as server:
        open_stream(page, server.url)
        expect(connection(page)).to_have_text("live")
    expect(page.get_by_text(ENDED)).to_be_visible()
    [(route, answer)] = held
    route.fulfill(response=answer)
    page.wait_for_timeout(1500)
    expect(page.get_by_text(ENDED)).to_be_visible()


def test_another_program_on_the_port_is_the_end(page: Page, job: Job) -> None:
    with serving(job) as server:
        page.goto(server.url)
        expect(connection(page)).to_have_text("live")
    other = make_server(job, server.port)
    other._functions["view_token"] = "another"
    other.start()
    try:
        page.wait_for_timeout(3000)
        expect(page.get_by_text(ENDED)).to_be_visible()
    finally:
        other.stop()


def test_a_lost_network_is_said_and_found_again(page: Page, job: Job) -> None:
    with serving(job) as server:
        page.goto(server.url)
        expect(connection(page)).to_have_text("live")
        page.context.set_offline(True)
        expect(connection(page)).to_have_text("reconnecting")
        page.context.set_offline(False)
        expect(connection(page)).to_have_text("live", timeout=3000)


# Proxies


class Proxy:
    """A proxy of a notebook: it puts a prefix before the path, and may hold back answers until they are complete."""

    PREFIX = "/user/ann/proxy/4040"

    def __init__(self, port: int, *, buffers: bool) -> None:
        self.port = 0
        self.held = 0
        self._target = port
        self._buffers = buffers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._ready = threading.Event()
        self._served: set[asyncio.Task[Any]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(5)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._ended.wait()
        server.close()
        while self._served:  # a browser opens connections ahead, too, over which it never asks for anything
            for each in self._open:
                each.transport.abort()
            await asyncio.wait(self._served, timeout=0.1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._served.add(task)
        task.add_done_callback(self._served.discard)
        mine = {writer}
        self._open |= mine
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, *_ = head.split(b" ")
            inner, sender = await asyncio.open_connection("127.0.0.1", self._target)
            mine.add(sender)
            self._open.add(sender)
            await self._answer(method, path, inner, sender, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the browser has gone, or the proxy ends
        finally:
            for each in mine:
                each.close()
            self._open -= mine

    async def _answer(
        self,
        method: bytes,
        path: bytes,
        inner: asyncio.StreamReader,
        sender: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
    ) -> None:
        if not path.startswith(self.PREFIX.encode()):
            writer.write(b"HTTP/1.0 502 Outside\r\nContent-Length: 0\r\n\r\n")
        else:
            sender.write(b"%s %s HTTP/1.0\r\n\r\n" % (method, path.removeprefix(self.PREFIX.encode())))
            if self._buffers and path.endswith(b"/events"):
                self.held += 1
                await inner.read(-1)  # until it ends, which it does not
            while data := await inner.read(65536):
                writer.write(data)
                await writer.drain()


def test_it_works_behind_the_prefix_of_a_proxy(page: Page, job: Job) -> None:
    watch = Watch(page)
    with serving(job) as server, Proxy(server.port, buffers=False) as proxy:
        token = server.url.rstrip("/").rpartition("/")[2]
        page.goto(f"http://127.0.0.1:{proxy.port}{Proxy.PREFIX}/{token}")  # without the slash, too
        page.get_by_role("heading", name=LIMITED).wait_for()
        job.moves = True
        expect(page.locator("#since")).to_have_text("since 09:00:00 · 7 min 3 s")
        expect(connection(page)).to_have_text("live")
        with page.expect_download() as download:
            page.get_by_role("link", name="Save report").click()
        assert "report.html" in download.value.suggested_filename
        assert 1 == len([url for url in watch.requests if url.endswith("/view")])
    assert [] == watch.problems


def test_it_polls_when_a_proxy_holds_the_stream_back(page: Page, job: Job) -> None:
    watch = Watch(page)
    with serving(job) as server, Proxy(server.port, buffers=True) as proxy:
        token = server.url.rstrip("/").rpartition("/")[2]
        page.goto(f"http://127.0.0.1:{proxy.port}{Proxy.PREFIX}/{token}/")
        page.get_by_role("heading", name=LIMITED).wait_for()
        job.moves = True
        page.wait_for_timeout(4500)
        began = job.second
        page.wait_for_timeout(5000)
        expect(connection(page)).to_have_text("live")
        polls = [url for url in watch.requests if url.endswith("/view")]
        assert 1 == proxy.held
        assert 4 <= len(polls) <= 9
        assert job.second - began >= 4
        expect(page.locator("#since")).to_have_text(re.compile(r"7 min (8|9|1\d|2\d) s"))
    assert [] == watch.problems


# Hostile texts, and the report


def test_hostile_texts_are_inert(page: Page, job: Job, tmp_path: Path) -> None:
    watch = Watch(page)
    job.view = hostile()
    report = tmp_path / "report.html"
    report.write_text(self_contained(hostile(), "A report"))
    with serving(job) as server:
        for url in (server.url, report.as_uri()):
            page.goto(url)
            expect(page.locator("h1")).to_contain_text("<img src=x onerror=")
            page.wait_for_timeout(300)
            assert "owned" != page.title()
            assert 0 == page.locator("img, script:not([src]):not([type])").count()
            assert "<script>" in page.locator("#tasks").inner_text()
    assert [] == watch.problems


def test_costs_are_shown_of_the_source_that_reports_them(page: Page, tmp_path: Path) -> None:
    view = fake_view()
    view["sources"][0]["spending"] = {
        "spent": {"tokens": 500_000.0, "cost": 0.25},
        "per_second": {"tokens": 8_333.3},
        "unknown": 3,
        "saved": [{"by": "journal", "rows": 400, "spent": {"tokens": 200_000.0, "cost": 0.1}}],
    }
    report = tmp_path / "report.html"
    report.write_text(self_contained(view, "Nightly run"))
    page.goto(report.as_uri())
    costs = page.get_by_role("table", name="Costs")
    expect(costs).to_have_count(1)
    for text in ("500,000", "0.25", "8,333", "calls of unknown cost", "saved by journal, estimated", "0.1 (400 rows)"):
        expect(costs).to_contain_text(text)


def test_the_report_shows_the_same_without_any_request(page: Page, tmp_path: Path) -> None:
    watch = Watch(page)
    report = tmp_path / "report.html"
    report.write_text(self_contained(fake_view(), "Nightly run"))
    page.goto(report.as_uri())
    page.get_by_role("heading", name=LIMITED).wait_for()
    expect(page).to_have_title("Nightly run")
    expect(connection(page)).to_have_text("report")
    expect(page.locator("#charts path.line")).not_to_have_count(0)
    expect(page.get_by_role("link", name="Save report")).to_have_count(0)
    page.wait_for_timeout(1500)
    assert [report.as_uri()] == [url for url in watch.requests if not url.startswith("data:")]
    assert [] == watch.problems


# Everybody's page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("shown", ["page", "report", "ended", "phone"])
def test_axe_finds_nothing_that_hinders_people(
    browser: Browser, job: Job, tmp_path: Path, scheme: str, shown: str
) -> None:
    size = {"width": 390, "height": 844} if shown == "phone" else {"width": 1280, "height": 900}
    report = tmp_path / "report.html"
    report.write_text(self_contained(fake_view(), "Nightly run"))
    options = {"color_scheme": scheme, "viewport": size, "bypass_csp": True}  # because axe is put into the page
    with serving(job) as server, opened(browser, **options) as page:
        if shown == "report":
            page.goto(report.as_uri())
        else:
            open_stream(page, server.url)
        page.get_by_role("heading", name=LIMITED).wait_for()
        if shown == "ended":
            server.stop()
            expect(page.get_by_text(ENDED)).to_be_visible()
        page.wait_for_timeout(300)
        assert [] == found_by_axe(page)


@pytest.mark.parametrize("view", [None, hostile(), waiting()], ids=["running", "hostile", "waiting"])
def test_the_page_does_not_scroll_sideways(page: Page, job: Job, view: View | None) -> None:
    job.view = view
    with serving(job) as server:
        for width in (320, 390, 768, 1100, 1280, 1920):
            page.set_viewport_size({"width": width, "height": 800})
            if width in (320, 1280):  # on a phone and on a screen it is opened, and between these its window changes
                page.goto(server.url)
                expect(connection(page)).to_have_text("live")
            page.wait_for_timeout(200)
            sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert page.evaluate(sideways) <= 0, f"{width} px wide"


def test_the_tab_key_visits_everything_in_the_order_of_the_page(page: Page, job: Job) -> None:
    order = """
        () => {
            const node = document.activeElement;
            const outline = getComputedStyle(node);
            return [
                node.getAttribute("aria-label") ?? node.textContent.trim().split("\\n")[0].slice(0, 24),
                outline.outlineStyle !== "none" || node.matches("summary, [role=region]"),
            ];
        }
    """
    with serving(job) as server:
        page.goto(server.url)
        page.get_by_role("heading", name=LIMITED).wait_for()
        visited = []
        for _ in range(11):
            page.keyboard.press("Tab")
            visited.append(page.evaluate(order))
    names = ["Skip to the figures", "Save report", "Where the time went", "Throughput", "Calls in flight"]
    names += ["Latency of calls", "Errors and retries"]
    assert names == [name for name, _ in visited[:7]]
    assert visited[7][0].startswith("users")
    assert ["Latency of calls", "Wait before the call", "Keys in a call"] == [name for name, _ in visited[8:11]]
    assert all(seen for _, seen in visited)


def test_a_screen_reader_hears_of_another_sentence_but_not_of_each_figure(page: Page, job: Job) -> None:
    with serving(job) as server:
        page.goto(server.url)
        expect(page.locator("#spoken")).to_have_text(LIMITED)
        job.view = {**fake_view(421), "sentence": LIMITED.replace("128 of", "127 of")}
        page.get_by_role("heading", name="127 of 128 calls").wait_for()
        expect(page.locator("#spoken")).to_have_text(LIMITED)
        job.view = {**fake_view(422), "sentence": "orders is away."}
        expect(page.locator("#spoken")).to_have_text("orders is away.")
