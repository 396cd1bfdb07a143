"""The monitor in a terminal, in a notebook, from another terminal, and its reports as text."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from enrichkit import ConfigError, Monitor, monitor
from enrichkit.cli.commands import enrichkit as commands
from enrichkit.cli.watch import fetch, top
from enrichkit.observe.report import html_of, read, text_of
from enrichkit.observe.server import MonitorServer
from enrichkit.observe.spending import spending_of, words
from enrichkit.observe.stats import Stats
from enrichkit.observe.terminal import Terminal, table_of

from ..pace import at_pace
from .fake_view import fake_view, hostile

URL = "http://127.0.0.1:4040/t0ken/"


def shown(renderable: Any, *, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO


def server(view: Any) -> MonitorServer:
    started = MonitorServer(
        view_token="t0ken",
        push_token="x",
        view=view,
        push=lambda body: None,
        metrics=lambda: "",
        report=lambda: "",
    )
    started.start()
    return started


def test_a_terminal_shows_sentence_bar_progress_and_sources() -> None:
    view = fake_view(420)
    text = shown(table_of(view, URL))
    assert text.startswith(view["sentence"])
    assert "█" * 23 in text
    assert "  Waiting for the source 58%  Rate limit or outage 13%" in text
    assert "5,113,806 of 7,500,000 rows (68%), 198 s to go" in text
    for source in view["sources"]:
        assert source["name"] in text
        assert f"{source['totals']['calls']:,}" in text
    assert URL in text


def test_costs_are_shown_with_what_was_saved() -> None:
    spent = {"requests": 1010.0, "tokens": 500_000.0, "cost": 0.2}
    keys = {"rows": 2000, "keys": 1500, "journaled": 400, "shared": 100}
    stats = Stats(**keys, calls=1010, sent=1010, metered=1000, spent=spent)
    spending = spending_of(stats, 60.0)
    assert spending is not None
    # 1,000 keys have cost 500,000 tokens; 1,000 rows were answered without a call.
    told = "500,000 tokens (8,333 per second), cost 0.2, of 10 calls not known; saved about 0.2 (reuse: 600 rows, "
    told += "journal: 400 rows)"
    assert told == words(spending)
    view = fake_view(420)
    assert "tokens" not in shown(table_of(view, URL))
    view["sources"][0]["spending"] = spending
    assert f"users: {told}" in " ".join(shown(table_of(view, URL), width=400).split())
    assert f"  {told}" in text_of(view).splitlines()
    assert spending_of(Stats(rows=10, calls=3), 60.0) is None


def test_hostile_names_are_no_markup_of_the_terminal() -> None:
    view = fake_view(10)
    view["sources"][0]["name"] = "[bold red]users[/]"
    assert "[bold red]users[/]" in shown(table_of(view, URL))
    shown(table_of(hostile(), URL), width=40)


def test_the_last_view_stays_on_the_screen() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    views = [fake_view(10), fake_view(420)]
    terminal = Terminal(lambda: views[-1], URL, console)
    terminal.start()
    terminal.stop()
    text = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert "5,113,806 of 7,500,000 rows" in text.splitlines()[-7] or "5,113,806" in text


def test_top_shows_a_monitor_until_it_ends() -> None:
    views = iter([fake_view(10), fake_view(420), {**fake_view(599), "state": "closed"}])
    last = []

    def view() -> Any:
        last.append(next(views, None) or last[-1])
        return last[-1]

    started = server(view)
    console = Console(file=io.StringIO(), width=140, color_system=None)
    try:
        top(started.url, console, sleep=lambda seconds: None)
    finally:
        started.stop()
    text = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert text.rstrip().endswith("The monitor has ended.")
    assert last[-1]["state"] == "closed"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("4040", "'4040' is no address of a monitor; it must be like http://127.0.0.1:4040/<token>/."),
        (
            "http://127.0.0.1:1/x/",
            "No monitor answers at http://127.0.0.1:1/x/: [Errno 111] Connection refused. It ends with its program.",
        ),
    ],
)
def test_an_address_that_is_none_of_a_monitor(url: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fetch(url)
    assert str(caught.value) == text
    result = CliRunner().invoke(commands, ["top", url])
    assert result.exit_code == 1
    assert " ".join(text.split()) in " ".join(result.stderr.split())


def test_a_wrong_token_is_told() -> None:
    started = server(lambda: fake_view(10))
    url = started.url.replace("t0ken", "wr0ng")
    try:
        with pytest.raises(ConfigError) as caught:
            fetch(url)
    finally:
        started.stop()
    assert str(caught.value) == (
        f"The monitor at {url} answered 404. Copy the whole address that monitor() printed, with its token."
    )


@pytest.mark.parametrize("name", ["run.html", "run.json"])
def test_a_report_is_read_as_text_and_json(tmp_path: Path, name: str) -> None:
    view = fake_view(420)
    (tmp_path / name).write_text(html_of(view) if name.endswith("html") else json.dumps(view), encoding="utf-8")
    assert read(tmp_path / name) == view
    told = CliRunner().invoke(commands, ["report", str(tmp_path / name)])
    assert (told.exit_code, told.stdout) == (0, text_of(view) + "\n")
    assert "orders (http): Source was away for 50 s of 400 s." in told.stdout
    assert "  588 x UnavailableError: 503 Service Unavailable" in told.stdout
    document = CliRunner().invoke(commands, ["report", str(tmp_path / name), "--json"])
    assert json.loads(document.stdout)["totals"] == view["totals"]


def test_what_is_no_report_is_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for path, text in (
        (
            tmp_path / "notes.txt",
            f"{tmp_path / 'notes.txt'} is no report of enrichkit. Monitor.report(path) writes one, as HTML or as JSON.",
        ),
        (tmp_path / "absent", f"The report {tmp_path / 'absent'} cannot be read: No such file or directory."),
    ):
        with pytest.raises(ConfigError) as caught:
            read(path)
        assert str(caught.value) == text


def test_a_notebook_shows_the_sentence_and_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Monitor, "view", lambda self: {**fake_view(420), "sentence": "<script>alert(1)</script>"})
    watched = Monitor()
    watched.url = URL
    html = watched._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert f'<a href="{URL}" target="_blank">Open the monitor</a>' in html
    assert "Waiting for the source 58%" in html


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"port": "80"}, "port is '80'; it must be a whole number from 0 to 65535. 0 takes any free port."),
        ({"rows": 0}, "rows is 0; it must be a whole number from 1 on, or None. For example rows=1_000_000."),
    ],
)
def test_arguments_that_are_wrong(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        monitor(**arguments)
    assert str(caught.value) == text


def test_a_monitor_without_spark_shows_that_it_waits(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with monitor(terminal=False) as watched:
        assert fetch(watched.url)["sentence"] == "Waiting for the first task."
        assert capsys.readouterr().err == f"enrichkit monitor: {watched.url}\n"
    assert time.monotonic() - began < at_pace(5.0)
    assert watched.view()["state"] == "closed"
