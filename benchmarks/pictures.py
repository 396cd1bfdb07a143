"""
The pictures of the README, drawn from the JSON files of the results; `python -m benchmarks.pictures` draws them again.

The same numbers give the same bytes. The pictures have no background and only colours of medium brightness, so that
they can be read on light and on dark pages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.harness import median
from benchmarks.report import RESULTS

OURS, THEIRS, INK = "#2f81f7", "#9a8266", "#768390"
SETTINGS = {"svg.hashsalt": "enrichkit", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
SETTINGS |= dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)


def approaches(figure: Any, numbers: dict[str, Any]) -> None:
    """Draw the rows per second of each approach, with a panel for each table."""
    tables = [
        (title.removeprefix("approaches, "), {name: median(points[0][1]) for name, points in lines.items()})
        for title, lines in numbers.items()
    ]
    panels = figure.subplots(len(tables), height_ratios=[len(speeds) for _, speeds in tables])
    for panel, (title, speeds) in zip(panels, tables, strict=True):
        names = list(reversed(speeds))
        bars = panel.barh(names, [speeds[name] for name in names], color=[_colour(name) for name in names])
        panel.bar_label(bars, [f"{speeds[name]:,.0f}" for name in names], padding=3, color=INK)
        panel.set_title(f"{title}: rows per second", loc="left", color=INK, fontsize=10)
        panel.set_xticks([])
        panel.margins(x=0.15)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
    figure.set_size_inches(7.2, 1.2 + 0.3 * sum(len(speeds) for _, speeds in tables))


def http_tail(figure: Any, numbers: dict[str, Any]) -> None:
    """Draw the time per row by the size of an Arrow batch, when one call in a hundred is slow."""
    panel = figure.subplots()
    for name, points in numbers["N2"].items():
        sizes = [size for size, _ in points]
        times = [median(found) / 1000 for _, found in points]
        panel.plot(sizes, times, marker="o", color=_colour(name))
        panel.annotate(name, (sizes[0], times[0]), (10, 5), textcoords="offset points", color=_colour(name))
    panel.set_xscale("log")
    panel.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
    panel.minorticks_off()
    panel.set_ylim(bottom=0)
    panel.margins(y=0.15)
    panel.set_xlabel("rows in an Arrow batch")
    panel.set_title("ms per row; one call in a hundred is 25 times as slow", loc="left", color=INK, fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
    figure.set_size_inches(7.2, 2.6)


DRAWN = {"approaches": approaches, "http_tail": http_tail}


def draw(name: str, folder: Path = RESULTS) -> list[str]:
    """Draw the picture of the benchmark *name*, if it has one, into *folder*; return the names of the written files."""
    source = RESULTS / f"{name}.json"
    if name not in DRAWN or not source.exists():
        return []
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(SETTINGS):
        figure = Figure(layout="constrained")
        DRAWN[name](figure, json.loads(source.read_text(encoding="utf-8")))
        path = folder / f"{name}.svg"
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return [path.name]


def _colour(name: str) -> str:
    return OURS if name == "enrichkit" else THEIRS


if __name__ == "__main__":
    for drawn in DRAWN:
        print(*draw(drawn))
