"""`monitor()`: a web page, served by the driver program, that shows what the program's enrichments do."""

from __future__ import annotations

import atexit
import html
import json
import logging
import secrets
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .sender import Address
from .state import State

if TYPE_CHECKING:
    from types import TracebackType

    from .otel import Export
    from .server import MonitorServer
    from .stats import Stats
    from .terminal import Terminal
    from .view import View

__all__ = ["Monitor", "active", "monitor"]

_log = logging.getLogger("enrichkit")

TICK = 1.0
LAST_REPORTS = 1.0
"""`Monitor.close` waits this many seconds at most for running tasks to end, and as many for the export of spans."""
FRESH = 0.5

_active: Monitor | None = None
_lock = threading.Lock()


def active() -> Monitor | None:
    """Return the monitor that new enrichments of this program report to; None if there is no monitor."""
    return _active


def monitor(
    *, host: str | None = None, port: int = 0, rows: int | None = None, terminal: bool | None = None
) -> Monitor:
    """
    Return a monitor for a `with` statement: enrichments that are made inside the statement report to the monitor.

    Args:
        host: Name or address under which the workers reach this machine; the URL of the page has the same host. None:
            127.0.0.1 for a local master and on Spark Connect, otherwise Spark's setting `spark.driver.host`. If a Spark
            Connect server runs on another machine, give a name of this machine that the server's workers can reach.
        port: Port of the web server; 0: any free port.
        rows: Number of rows of the job; None: not known. If it is given, the page shows which share of the rows is
            done, and how long the rest will take.
        terminal: Whether to show a table in the terminal. None: show the table if stderr is a terminal.

    Returns:
        The monitor. Without a `with` statement, `monitor().start()` starts it, and it runs until `close()` or the end
        of the program.

    Raises:
        ConfigError: On the driver: an argument is wrong, there is a monitor already, the port is taken, or the extra
            `enrichkit[monitor]` is not installed.

    A worker pushes statistics once a second, and at the end of each task. A worker that does not reach the monitor goes
    on with its work, and logs once that the monitor cannot be reached.

    >>> from enrichkit import enrich, monitor
    >>> with monitor() as watched:
    ...     df.withColumn("profile", enrich("redis", "user_id")).write.parquet(f"{folder}/profiles")
    ...     report = watched.report(f"{folder}/run.html")
    >>> report["totals"]["rows"]
    100
    """
    if type(port) is not int or not 0 <= port < 2**16:
        raise ConfigError(f"port is {port!r}; it must be a whole number from 0 to 65535. 0 takes any free port.")
    if rows is not None and (type(rows) is not int or rows < 1):
        raise ConfigError(
            f"rows is {rows!r}; it must be a whole number from 1 on, or None. For example rows=1_000_000."
        )
    return Monitor(host=host, port=port, rows=rows, terminal=terminal)


class Monitor:
    """
    A monitor. The function `monitor()` makes one, and the docstring of that function describes the arguments.

    Attributes:
        url: Address of the page; whoever knows the address can see the page. An empty string before the start.
        address: The address to which workers push their statistics; None before the start.
    """

    def __init__(
        self, *, host: str | None = None, port: int = 0, rows: int | None = None, terminal: bool | None = None
    ) -> None:
        self._host = host
        self._port = port
        self._rows = rows
        self._terminal: Terminal | None = None
        self._wants_terminal = sys.stderr.isatty() if terminal is None else terminal
        self._state = State(time.time())
        self._server: MonitorServer | None = None
        self._closed = threading.Event()
        self._export: Export | None = None
        self._ended_at: float | None = None
        self._shown: tuple[float, View] | None = None
        self._slots: int | None = None
        self.url = ""
        self.address: Address | None = None

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        # A traceback or a log may show this text, so it does not contain the token, which gives access to the page.
        where = "not started" if self._server is None else self._server.address
        return f"<Monitor {where}: {self.view()['sentence']}>"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: what limits the job, where the time went, totals, and a link to the page."""
        view = self.view()
        parts = ", ".join(f"{part['label']} {part['share']:.0%}" for part in view["time"] if part["share"] >= 0.005)
        totals = view["totals"]
        figures = f"{totals['rows']:,} rows, {totals['calls']:,} calls, {totals['without_answer']:,} errors"
        link = (
            f'<a href="{html.escape(self.url)}" target="_blank">Open the monitor</a>'
            if not self._closed.is_set()
            else ""
        )
        lines = (html.escape(view["sentence"]), html.escape(parts), html.escape(figures), link)
        return "<div>" + "<br>".join(line for line in lines if line) + "</div>"

    def start(self) -> Monitor:
        """Start the server, and let enrichments that are made from now on report to this monitor."""
        _activate(self)
        try:
            self._serve()
        except BaseException:
            self.close()
            _deactivate(self)
            raise
        return self

    def _serve(self) -> None:
        from .otel import export
        from .server import MonitorServer

        host, listen, self._slots = _hosts_and_slots(self._host)
        token = secrets.token_urlsafe(24)
        server = MonitorServer(
            host,
            self._port,
            view_token=secrets.token_urlsafe(24),
            push_token=token,
            listen=listen,
            view=self._view_of_late,
            push=lambda body: self._state.push(body, time.time()),
            metrics=self.metrics,
            report=self.html,
        )
        server.start()
        self._server, self.url = server, server.url
        self._export = export(self._state)
        self._state.ended = None if self._export is None else self._export.ended
        self.address = Address(host, server.port, token)
        atexit.register(self.close)
        threading.Thread(target=self._tick, name="enrichkit-monitor", daemon=True).start()
        if self._wants_terminal:
            from .terminal import Terminal

            self._terminal = Terminal(self._view_of_late, self.url)
            self._terminal.start()
        else:
            sys.stderr.write(f"enrichkit monitor: {self.url}\n")

    def close(self) -> None:
        """
        Stop the server and the table in the terminal; afterwards, `view` and `report` still return the last figures.

        `close` waits up to a second for tasks that still run, because the last push of a task comes a moment after its
        last row.
        """
        if self._server is None or self._closed.is_set():
            return
        until = time.monotonic() + LAST_REPORTS
        while time.monotonic() < until and any(task.state == "running" for task in self._state.of()):
            time.sleep(0.02)
        self._ended_at = time.time()
        self._state.tick(self._ended_at)
        self._closed.set()
        _deactivate(self)
        if self._terminal is not None:
            self._terminal.stop()
        self._server.stop()
        if self._export is not None:
            self._export.flush(LAST_REPORTS)
        atexit.unregister(self.close)

    def view(self) -> View:
        """Return everything that the page shows, as values that JSON can express."""
        from .present import view_of

        now = time.time() if self._ended_at is None else self._ended_at
        return view_of(self._state, now, rows=self._rows, slots=self._slots, closed=self._closed.is_set())

    def _view_of_late(self) -> View:
        """
        Return a view that is at most half a second old.

        All open pages and the terminal share this view, so together they cost no more than one page.
        """
        now = time.monotonic()
        if self._shown is None or now - self._shown[0] > FRESH or self._closed.is_set():
            self._shown = now, self.view()
        return self._shown[1]

    def stats(self, source: str | None = None) -> Stats:
        """Return the statistics so far of all tasks, or only of the tasks of *source*."""
        return self._state.total(source)

    def metrics(self) -> str:
        """Return the statistics in Prometheus' text format."""
        from .prometheus import text

        return text(self._state)

    def html(self) -> str:
        """Return the report as one HTML document, which needs no server."""
        from .report import html_of

        return html_of(self.view())

    def report(self, path: str | Path) -> View:
        """
        Write the report to *path*, and return its figures.

        This also works if the monitor has ended or the job has failed.

        Args:
            path: Path of the file. If it ends in `.json`, the file gets the figures only; otherwise it gets HTML that
                needs no server.
        """
        view = self.view()
        from .report import html_of

        text = json.dumps(view, indent=1) if str(path).endswith(".json") else html_of(view)
        Path(path).write_text(text, encoding="utf-8")
        return view

    def _tick(self) -> None:
        while not self._closed.wait(TICK):
            try:
                self._state.tick(time.time())
            except Exception:  # noqa: BLE001  # one failed tick must not end the thread
                _log.exception("The monitor could not add a second to its history.")


def _activate(monitor: Monitor) -> None:
    """
    Let new enrichments report to *monitor*.

    Raises:
        ConfigError: New enrichments already report to a monitor.
    """
    global _active
    with _lock:
        if _active is not None:
            where = "which is starting" if _active._server is None else f"at {_active._server.address}"
            raise ConfigError(f"There is a monitor already, {where}. Close it first, or use it.")
        _active = monitor


def _deactivate(monitor: Monitor) -> None:
    """If new enrichments report to *monitor*, let them report to no monitor from now on."""
    global _active
    with _lock:
        if _active is monitor:
            _active = None


def _hosts_and_slots(host: str | None) -> tuple[str, str | None, int | None]:
    """
    Return the host under which workers reach this machine, the address to listen on, and the number of task slots.

    The address to listen on is Spark's setting `spark.driver.bindAddress`. It differs from the address of the host if,
    for example, the workers reach the driver through a Kubernetes service. If the address to listen on is None, the
    server listens on the host. The number of task slots is None if there is no Spark session, or only one of Spark
    Connect.
    """
    from pyspark.sql import SparkSession

    session: Any = SparkSession.getActiveSession()
    context = getattr(session, "sparkContext", None) if session is not None else None
    if context is None:
        return host or "127.0.0.1", None, None
    slots = int(context.defaultParallelism)
    if host is not None or str(context.master).startswith("local"):
        return host or "127.0.0.1", None, slots
    settings = context.getConf()
    return str(settings.get("spark.driver.host", "127.0.0.1")), settings.get("spark.driver.bindAddress"), slots
