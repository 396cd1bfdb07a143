"""
What the commands print, laid out by rich: in colour and as wide as the terminal; elsewhere plain, in 80 columns.

Keys, values and messages are data of others. None is read as markup, and a character that a terminal would obey, or
that the encoding of the output lacks, is shown as Python's `repr` shows it. What is too wide is folded, never cut.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..outcome import STATUSES
from ..report import WIDTH

__all__ = ["Part", "colour", "columns", "heading", "indented", "show", "show_error", "text"]

Part = str | tuple[str, str]
"""A text, or a text and its style."""


def text(*parts: Part) -> Text:
    """Return *parts* as one text that is safe to print; its lines stay lines."""
    whole = Text(overflow="fold")
    for part in parts:
        said, style = (part, "") if isinstance(part, str) else part
        whole.append(_visible(said), style)
    return whole


def heading(said: str) -> Text:
    """Return *said* as a heading."""
    return text((said, "bold"))


def colour(*statuses: str) -> str:
    """Return the style of what became of keys: green if all have a value, red if one failed; a miss is neither."""
    if failed := {*statuses} - {"ok", "missing"}:
        assert failed <= {*STATUSES}
        return "red"
    return "" if "missing" in statuses else "green"


def indented(*parts: Part) -> Padding:
    """Return *parts* as a paragraph below a heading."""
    return Padding(text(*parts), (0, 0, 0, 2))


def columns(rows: Sequence[Sequence[Part]], heads: Sequence[str] = (), *, numbers: Sequence[str] = ()) -> Padding:
    """
    Return *rows* in aligned columns, indented.

    Args:
        rows: Their cells, as many in each.
        heads: What stands above the columns; without them there is no such line.
        numbers: Those of the heads whose columns are aligned to the right.
    """
    # No lines around the cells: not every encoding has them, and who copies a value does not want them.
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(heads), header_style="bold")
    for head in heads:
        table.add_column(text(head), justify="right" if head in numbers else "left", vertical="top", overflow="fold")
    for row in rows:
        table.add_row(*(text(cell) for cell in row))
    return Padding(table, (0, 0, 0, 2))


def show(*parts: RenderableType, err: bool = False) -> None:
    """Print *parts* below each other, to stderr if *err*."""
    console = Console(
        stderr=err,
        # rich takes out only the colours for NO_COLOR, and leaves bold there.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        markup=False,
        emoji=False,
        highlight=False,
    )
    if not console.file.isatty():  # else rich takes the width of whatever terminal stdin or stderr is (rich#2154)
        console.width = WIDTH
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    # rich fills cells up with spaces. click ends well when who reads has gone; it must not take the colours out again.
    lines = (line.rstrip(" ") for line in captured.get().splitlines())
    click.echo("\n".join(lines), err=err, color=True)


def show_error(error: click.ClickException) -> None:
    """Print *error* to stderr, behind the usage if the command line is wrong."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        show(text(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n"), err=True)
    show(text(("Error: ", "bold red"), error.format_message()), err=True)


def _visible(said: str) -> str:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    shown = "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in said)
    return shown.encode(encoding, "backslashreplace").decode(encoding)
