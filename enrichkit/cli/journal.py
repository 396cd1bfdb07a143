"""`journal list`, `journal show` and `journal expire`: what a journal holds, without asking a source."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..journal.admin import Entry, Part, expire_files, find_entries, list_parts
from ..journal.stores import open_store
from ..reports.text import plural
from .arguments import ArgumentError
from .output import columns, heading, indented

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..journal.stores import Store

__all__ = ["Expired", "Found", "KeyAnswers", "Listing", "duration_of", "expire", "list_answers", "show_answers"]

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhd]?)", re.ASCII)
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True)
class Listing:
    """
    The result of `journal list`.

    Attributes:
        path: Path of the journal.
        parts: The answers by source and scope.
        refused: By path, the reason why a file was not read: it does not belong to a journal, or cannot be read.
    """

    path: str
    parts: tuple[Part, ...]
    refused: dict[str, str]

    def __rich_console__(self, *_: Any) -> Iterator[RenderableType]:
        if not self.parts:
            yield indented("No answers.")
        else:
            heads = ("source and types", "scope", "answers", "files", "bytes", "last write (UTC)")
            yield columns([_row(part) for part in self.parts], heads, numbers=heads[2:5])
        notes = [
            (f"{part.source}, {part.scope}", note)
            for part in self.parts
            for note in (
                part.damaged and f"damaged in {plural(part.damaged, 'place')}; jobs ask for these keys again",
                part.torn and f"{plural(part.torn, 'byte')} of a write that was cut off, or goes on",
            )
            if note
        ]
        for title, rows in (("Damage", notes), ("Not read", list(self.refused.items()))):
            if rows:
                yield ""
                yield heading(title)
                yield columns(rows)


@dataclass(frozen=True)
class KeyAnswers:
    """
    The answers that a journal holds for one key.

    Attributes:
        key: The key as it was typed.
        entries: The answers, the oldest first.
    """

    key: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Found:
    """
    The result of `journal show`.

    Attributes:
        path: Path of the journal.
        keys: The answers that the journal holds for each key.
    """

    path: str
    keys: tuple[KeyAnswers, ...]

    def __rich_console__(self, *_: Any) -> Iterator[RenderableType]:
        heads = ("key", "source", "scope", "written (UTC)", "answer")
        rows = []
        for answers in self.keys:
            if not answers.entries:
                rows.append((repr(answers.key), "", "", "", "not in the journal"))
            for entry in answers.entries:
                value = entry.value if isinstance(entry.value, str) else repr(entry.value)
                answer = value if entry.found else "the source does not hold the key"
                rows.append((repr(answers.key), entry.source, entry.scope, _time(entry.written_at), answer))
        yield columns(rows, heads)


@dataclass(frozen=True)
class Expired:
    """
    The result of `journal expire`.

    Attributes:
        files: Number of files that were deleted.
        bytes: Size of the deleted files, in bytes.
    """

    files: int
    bytes: int

    def __str__(self) -> str:
        return f"Deleted {plural(self.files, 'file')} with {plural(self.bytes, 'byte')}."


def list_answers(path: str) -> Listing:
    """
    Return what the journal at *path* holds, by source and scope.

    Raises:
        ConfigError: There is no folder *path*.
        JournalError: The storage cannot be read.
    """
    parts, refused = list_parts(_store(path))
    return Listing(path, tuple(parts), refused)


def show_answers(path: str, keys: Sequence[str]) -> Found:
    """
    Return all answers to *keys*. If a key has several columns, commas separate its parts, as in a line of a CSV file.

    Raises:
        ConfigError: There is no folder *path*.
        JournalError: The storage cannot be read.
    """
    store = _store(path)
    return Found(path, tuple(KeyAnswers(key, tuple(_entries(store, key))) for key in keys))


def _entries(store: Store, key: str) -> list[Entry]:
    found = find_entries(store, key)
    try:
        parts = next(csv.reader([key]), [])
    except csv.Error:  # the text is no line of CSV, so it can only be a key of one column
        return found
    return sorted(found + find_entries(store, *parts), key=lambda each: each.written_at) if len(parts) > 1 else found


def expire(path: str, older_than: float, scope: str | None = None) -> Expired:
    """
    Delete the files of the journal at *path* into which nothing was written for *older_than* seconds.

    Args:
        path: Path of the journal.
        older_than: Least number of seconds since the last write into a file that is deleted.
        scope: Name of the scope (for example of a run) whose files are deleted; None: the files of all scopes.

    Raises:
        ConfigError: There is no folder *path*.
        JournalError: The storage refuses to delete a file.
    """
    return Expired(*expire_files(_store(path), older_than, scope=scope))


def duration_of(text: str) -> float:
    """
    Return a duration in seconds. *text* is a number and a unit (s, m, h or d); without a unit, the number is in
    seconds.

    Raises:
        ArgumentError: *text* is no duration.

    >>> duration_of("90"), duration_of("1.5h"), duration_of("30d")
    (90.0, 5400.0, 2592000.0)
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if not found:
        raise ArgumentError(
            f"The duration is {text!r}; it must be a number with the unit s, m, h or d, for example 90m, 12h or 30d."
        )
    return float(found[1]) * _UNITS[found[2]]


def _store(path: str) -> Store:
    if "://" not in path and not os.path.isdir(path):
        raise ConfigError(f"There is no folder {path!r}. Name the path of a Journal, for example /data/answers.")
    return open_store(path)


def _row(part: Part) -> tuple[str, ...]:
    types = f"{', '.join(part.key_types)} -> {part.value_type}"
    scope = f"{part.scope}\nshared" if part.shared else part.scope
    last = "" if part.newest is None else _time(part.newest)
    return f"{part.source}\n{types}", scope, f"{part.entries:,}", f"{part.files:,}", f"{part.bytes:,}", last


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
