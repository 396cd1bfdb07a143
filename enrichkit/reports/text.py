"""Plain text in 80 columns, for the results of `describe`, `explain` and similar functions."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

__all__ = ["WIDTH", "Report", "count", "paragraph", "plural", "seconds", "table"]

WIDTH = 80
GAP = 2
LAST_MIN = 20


class Report:
    """A result whose `repr` is its text, so that the prompt and a notebook show the text."""

    def __repr__(self) -> str:
        return str(self)


def table(rows: Sequence[Sequence[str]], indent: int = GAP) -> list[str]:
    """
    Return *rows* as lines with aligned cells. The last cell of a row is wrapped inside its column.

    When the other cells, for example long names of fields, leave fewer than 20 columns, the last cell begins on a line
    of its own.
    """
    wide = [indent + sum(len(cell) + GAP for cell in row[:-1]) > WIDTH - LAST_MIN for row in rows]
    aligned = [row[:-1] for row, is_wide in zip(rows, wide, strict=True) if not is_wide]
    widths = [max(map(len, cells)) for cells in zip(*aligned, strict=True)]
    left = indent + (sum(widths) + GAP * len(widths) if aligned else GAP)
    lines = []
    for row, is_wide in zip(rows, wide, strict=True):
        # Each column is as wide as its widest cell, and these cells may be in different rows. Together they may fill
        # the page. The last cell therefore gets at least LAST_MIN columns, even if its line exceeds the page.
        first, *more = textwrap.wrap(row[-1], max(WIDTH - left, LAST_MIN), break_on_hyphens=False) or [""]
        if is_wide:
            lines += [" " * indent + (" " * GAP).join(row[:-1]), (" " * left + first).rstrip()]
        else:
            start = "".join(cell.ljust(width + GAP) for cell, width in zip(row, widths, strict=False))
            lines.append((" " * indent + start + first).rstrip())
        lines += [" " * left + line for line in more]
    return lines


def paragraph(text: str, indent: int = GAP) -> list[str]:
    """Wrap *text*, and return the lines."""
    space = " " * indent
    return textwrap.wrap(
        text, WIDTH, initial_indent=space, subsequent_indent=space, break_long_words=False, break_on_hyphens=False
    )


def seconds(value: float) -> str:
    """
    Return a duration as text: to three significant digits below 1,000 seconds, else to whole seconds.

    >>> seconds(0.05), seconds(12.3456), seconds(1234.5), seconds(86400.0)
    ('0.05 s', '12.3 s', '1,234 s (21 min)', '86,400 s (24.0 h)')
    """
    if value < 1000:
        return f"{value:.3g} s"
    return f"{value:,.0f} s ({f'{value / 60:.0f} min' if value < 3600 else f'{value / 3600:.1f} h'})"


def count(value: float) -> str:
    """
    Return a number as text, with commas between the thousands.

    >>> count(1_000_000), count(0.5)
    ('1,000,000', '0.5')
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def plural(number: int, noun: str) -> str:
    """
    Return *number* with *noun*, which gets an `s` unless *number* is 1.

    >>> plural(1, "call"), plural(1500, "call")
    ('1 call', '1,500 calls')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"
