"""
The layout of all output, made with rich. On a terminal, output has colors and the terminal's width; elsewhere, it is
plain and 80 columns wide.

Keys, values and messages are data that other people wrote. They are never interpreted as markup. Control characters,
and characters that the encoding of the output lacks, are escaped as in Python's `repr`. A text that is too wide is
wrapped, never cut.
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
from ..reports.text import WIDTH

__all__ = ["Part", "colour", "columns", "heading", "indented", "show", "show_error", "text"]

Part = str | tuple[str, str]
"""A text, or a pair of a text and its style, such as `bold`."""


def text(*parts: Part) -> Text:
    """Return *parts* as one text in which line breaks stay, and all other control characters are escaped."""
    whole = Text(overflow="fold")
    for part in parts:
        content, style = (part, "") if isinstance(part, str) else part
        whole.append(_visible(content), style)
    return whole


def heading(content: str) -> Text:
    """Return *content* as a heading."""
    return text((content, "bold"))


def colour(*statuses: str) -> str:
    """Return the style for keys with *statuses*: red if a key failed, no style if a key is missing, otherwise green."""
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
        rows: The cells of each row. All rows have the same number of cells.
        heads: The titles of the columns; when empty, no line of titles is printed.
        numbers: The *heads* whose columns are aligned to the right.
    """
    # No border: not every encoding has the characters for one, and users who copy a value do not want them.
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(heads), header_style="bold")
    for head in heads:
        table.add_column(text(head), justify="right" if head in numbers else "left", vertical="top", overflow="fold")
    for row in rows:
        table.add_row(*(text(cell) for cell in row))
    return Padding(table, (0, 0, 0, 2))


def show(*parts: RenderableType, err: bool = False) -> None:
    """Print *parts* below each other, to stderr if *err* is true, otherwise to stdout."""
    console = Console(
        stderr=err,
        # None also turns bold text off, which rich would leave on when NO_COLOR is set.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        markup=False,
        emoji=False,
        highlight=False,
    )
    if not console.file.isatty():
        # Without this line, rich uses the width of a terminal that stdin or stderr is connected to (rich#2154).
        console.width = WIDTH
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    # rich pads cells with spaces, which are removed here. click does the printing, because click ends the process
    # quietly when the reader of a pipe is gone. color=True keeps click from removing the colors that rich has set.
    lines = (line.rstrip(" ") for line in captured.get().splitlines())
    click.echo("\n".join(lines), err=err, color=True)


def show_error(error: click.ClickException) -> None:
    """Print *error* to stderr; if the command line is wrong, print the usage line before it."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        show(text(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n"), err=True)
    show(text(("Error: ", "bold red"), error.format_message()), err=True)


def _visible(content: str) -> str:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    printable = "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in content)
    return printable.encode(encoding, "backslashreplace").decode(encoding)
