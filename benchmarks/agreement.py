"""
The comparison of two whole runs of the benchmarks, with the same sources on the same machine.

Two figures agree when their medians are at most 10 % apart, or one median is between the quartiles of the other.
Ratios and figures in seconds are counted separately, because figures in seconds follow the speed of the machine, which
other work shares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import Table

NAME = "agreement"
APART = 0.1
_HEAD = re.compile(r"^- (date|pace at the end|sources): (.+)$", re.MULTILINE)
_SPREAD = re.compile(r"([\d,.]+) \(([\d,.]+) \.\. ([\d,.]+)\)")
_RATIO = re.compile(r"\bx\b|is faster by|share of the floor|enrichkit / ")

Figure = tuple[float, float, float]
"""Median, lower quartile, upper quartile."""


def compare(first: Path, second: Path, names: Sequence[str]) -> Table:
    """
    Return a table of how many figures agree between the results *names* in the folders *first* and *second*.

    Raises:
        FileNotFoundError: One of the folders lacks a result.
        ValueError: Two results measured different sources.
    """
    table = Table(
        NAME,
        f"two runs; medians at most {APART:.0%} apart, or one inside the other's quartiles",
        ("benchmark", "the one ended", "the other", "pace", "pace", "ratios", "agree", "in seconds", "agree"),
    )
    counts = {(name, is_ratio): [0, 0] for name in names for is_ratio in (True, False)}
    for name in names:
        pages = [(folder / f"{name}.md").read_text(encoding="utf-8") for folder in (first, second)]
        heads = [dict(_HEAD.findall(page)) for page in pages]
        if heads[0]["sources"] != heads[1]["sources"]:
            raise ValueError(f"The two results of {name} are of different sources. Run ./run bench {name} for both.")
        for (label, one), (_, other) in zip(figures(pages[0]), figures(pages[1]), strict=True):
            count = counts[name, _RATIO.search(label) is not None]
            count[0] += 1
            if agree(one, other):
                count[1] += 1
            else:
                table.notes.append(f"{name}, {label}: {_text(one)} and {_text(other)}")
        dates, paces = (
            [head.get(what, "").partition(" for ")[0] for head in heads] for what in ("date", "pace at the end")
        )
        table.rows.append((name, *dates, *paces, *map(str, counts[name, True] + counts[name, False])))
    for is_ratio, what in ((True, "ratio"), (False, "figure in seconds")):
        of, agreed = map(sum, zip(*(counts[name, is_ratio] for name in names), strict=True))
        table.goals.append((f"every {what} agrees: {agreed} of {of}", agreed == of))
    return table


def figures(page: str) -> Iterator[tuple[str, Figure]]:
    """Yield the label and the figure of everything that *page*, the text of a result, gives with quartiles."""
    headings: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        found = [(n, _SPREAD.fullmatch(cell)) for n, cell in enumerate(cells)]
        measured = [(n, spread) for n, spread in found if spread]
        for n, spread in measured:
            yield ", ".join((*cells[: measured[0][0]], headings[n])), _figure(spread)
        if cells and not measured and not line.startswith("|-"):
            headings = cells
        if line.startswith("- ") and (spread := _SPREAD.search(line)):
            label = line.removeprefix("- ").removeprefix("reached: ").removeprefix("MISSED: ")
            yield label.replace(spread[0], "").strip(" :"), _figure(spread)


def agree(one: Figure, other: Figure) -> bool:
    """Return whether *one* and *other* differ by no more than noise."""
    (a, a_low, a_high), (b, b_low, b_high) = one, other
    return abs(a - b) <= APART * min(a, b) or a_low <= b <= a_high or b_low <= a <= b_high


def _figure(spread: re.Match[str]) -> Figure:
    median, low, high = (float(number.replace(",", "")) for number in spread.groups())
    return median, low, high


def _text(figure: Figure) -> str:
    return "{:,.9g} ({:,.9g} .. {:,.9g})".format(*figure)
