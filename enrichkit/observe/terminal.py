"""A live table of a monitor's figures in a terminal, drawn with the package rich."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from .spending import words

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, RenderableType

    from .view import TimeName, View

__all__ = ["Terminal", "table_of"]

REFRESH = 0.5
_STYLES: dict[TimeName, str] = {
    "source": "blue",
    "limit": "red",
    "input": "yellow",
    "output": "magenta",
    "cpu": "green",
}
BAR = 40


class Terminal:
    """
    A table in a terminal. It shows the current view from `start` to `stop`; the last view then stays on the screen.

    Args:
        view: Function that returns the current view; the table calls it every `REFRESH` seconds.
        url: Address of the monitor's page, which is shown below the table.
        console: Console of rich on which the table is shown; None: a new console on stderr.
    """

    def __init__(self, view: Callable[[], View], url: str, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._view = view
        self._url = url
        self._stopped = threading.Event()
        self._live = Live(console=console or Console(stderr=True), auto_refresh=False, transient=False)
        self._thread = threading.Thread(target=self._work, name="enrichkit-terminal", daemon=True)

    def start(self) -> None:
        """Show the table from now on."""
        self._live.start()
        self._thread.start()

    def stop(self) -> None:
        """Show the last view, and leave it on the screen."""
        self._stopped.set()
        self._thread.join(2 * REFRESH)
        self._live.update(table_of(self._view(), self._url), refresh=True)
        self._live.stop()

    def _work(self) -> None:
        while not self._stopped.wait(REFRESH):
            self._live.update(table_of(self._view(), self._url), refresh=True)


def table_of(view: View, url: str) -> RenderableType:
    """
    Return *view* as an object that rich can show: what limits the job, where the time went, the progress, and a line
    for each source.
    """
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    parts: list[Any] = [Text(view["sentence"], style="bold"), _bar(view)]
    progress = view["progress"]
    if progress["share"] is not None and progress["total"] is not None:
        eta = "" if not progress["eta"] else f", {progress['eta']:,.0f} s to go"
        parts.append(Text(f"{progress['rows']:,} of {progress['total']:,} rows ({progress['share']:.0%}){eta}"))
        parts.append(ProgressBar(total=1.0, completed=progress["share"], width=BAR))
    table = Table(box=None, pad_edge=False)
    table.add_column("source")
    for name in ("rows", "calls", "in flight", "median", "99 %", "errors", "retries", "cached"):
        table.add_column(name, justify="right")
    for source in view["sources"]:
        totals = source["totals"]
        table.add_row(
            Text(source["name"]),
            f"{totals['rows']:,}",
            f"{totals['calls']:,}",
            f"{source['in_flight']:,}",
            _took(source["p50"]),
            _took(source["p99"]),
            f"{totals.get('without_answer', totals['errors']):,}",
            f"{totals['retries']:,}",
            f"{totals['cached']:,}",
        )
    # The view of an older monitor, which `enrichkit top` may show, lacks `spending` here and `without_answer` above.
    paid = [(source["name"], words(spent)) for source in view["sources"] if (spent := source.get("spending"))]
    parts += [
        table,
        *(Text(f"{name}: {spent}") for name, spent in paid),
        Text(f"{view['rows_per_second']:,.0f} rows/s, {view['calls_per_second']:,.0f} calls/s   {url}", style="dim"),
    ]
    return Group(*parts)


def _bar(view: View) -> Any:
    """Return a bar of colored parts that shows where the time of the tasks went, followed by its legend."""
    from rich.text import Text

    bar, legend = Text(), Text()
    for part in view["time"]:
        style = _STYLES.get(part["name"], "white")
        bar.append("█" * round(part["share"] * BAR), style=style)
        if part["share"] >= 0.005:  # a smaller share would be shown as 0 %
            legend.append(f"  {part['label']} {part['share']:.0%}", style=style)
    return bar + legend


def _took(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.3g} ms"
