"""
The comparison of two checkouts of enrichkit on one machine: the goals of each benchmark, before and now.

`./run bench --against FOLDER` measures this checkout and the one in FOLDER, which has been set up (`./run setup`). The
two checkouts take turns, run by run (`turns.py`), so that both meet the machine in the same phases.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Table

NAME = "against"
WORSE = 0.03
_GOAL = re.compile(r"^- (?:reached|MISSED): (.+): (?:at most )?\+?([\d,.]+)%?(?: \(([\d,.]+) \.\. ([\d,.]+)\))?$", re.M)
_PACE = re.compile(r"^- pace at the end: (\S+)", re.M)


@dataclass(frozen=True)
class Goal:
    """
    One goal of a result.

    Attributes:
        text: Text of the goal, without the figure.
        value: The measured figure.
        shown: The figure as text, with its quartiles if it has some.
    """

    text: str
    value: float
    shown: str

    @property
    def more_is_better(self) -> bool:
        return "at least" in self.text


def goals(page: str) -> list[Goal]:
    """Return the goals with a figure in *page*, the text of a result, in order."""
    return [
        Goal(text, float(value.replace(",", "")), f"{value} ({low} .. {high})" if low else value)
        for text, value, low, high in _GOAL.findall(page)
    ]


def compare(now: Path, before: Path, names: Sequence[str]) -> Table:
    """
    Return a table of the goals of the results *names* in the folders *before* and *now*.

    Raises:
        FileNotFoundError: One of the folders lacks a result.
        ValueError: The two results of a benchmark have different goals.
    """
    table = Table(
        NAME, "this checkout and another one, in turns", ("benchmark", "goal", "before", "now", "better by", "pace")
    )
    for name in names:
        pages = [(folder / f"{name}.md").read_text(encoding="utf-8") for folder in (before, now)]
        found = [goals(page) for page in pages]
        if [goal.text for goal in found[0]] != [goal.text for goal in found[1]]:
            raise ValueError(
                f"The two results of {name} have different goals. Run the same benchmark in both checkouts."
            )
        paces = " / ".join(_PACE.findall("\n".join(pages)))
        for old, new in zip(*found, strict=True):
            if not (old.value and new.value):
                continue  # a difference of nothing is no measure of another one
            better = new.value / old.value if new.more_is_better else old.value / new.value
            table.rows.append((name, new.text, old.shown, new.shown, f"{better:.3f}", paces))
            table.goals.append((f"{name}, {new.text}: at most {WORSE:.0%} worse ({better:.3f})", better >= 1 - WORSE))
    return table
