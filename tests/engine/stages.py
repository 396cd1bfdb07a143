"""Stages in memory, with a book of what they were asked and told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enrichkit.engine.cache import ABSENT, MISS, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["MemoryStage"]


class MemoryStage(Stage):
    """
    Answers, of which those that were put are durable after the next flush.

    Like a journal, it finds what was durable when it was made, and not what it was told since: an index of files knows
    only what it has read.

    Args:
        origin: The origin of what it finds.
        durable: All answers to a key, the first one first; several stages may share it.
        active: Whether it is asked.

    Attributes:
        book: What was asked and told, as tuples: the method, and its keys.
        waiting: What waits for the next flush.
        late: Keys that came as late answers.
        before_flush: Called when there is something to flush; may raise.
    """

    def __init__(self, origin: str = "journal", durable: dict[Any, list[Any]] | None = None, *, active: bool = True):
        self.origin = origin
        self.active = active
        self.durable = {} if durable is None else durable
        self.found = {key: answers[0] for key, answers in self.durable.items()}
        self.waiting: list[tuple[Any, Any]] = []
        self.book: list[tuple[str, tuple[Any, ...]]] = []
        self.late: list[Any] = []
        self.before_flush: Callable[[], None] = lambda: None

    def get_many(self, keys: Sequence[Any], now: float) -> list[Any]:
        self.book.append(("get", tuple(keys)))
        return [self.found.get(key, ABSENT) for key in keys]

    def put_many(self, keys: Iterable[Any], values: Iterable[Any], now: float, *, late: bool = False) -> None:
        assert self.active, "a stage is told of answers that it does not want"
        given = list(zip(keys, values, strict=True))
        assert ABSENT not in [value for _, value in given]
        self.book.append(("put", tuple(key for key, _ in given)))
        self.waiting += given
        self.late += [key for key, _ in given] * late

    def watch(self, keys: Sequence[Any]) -> None:
        self.book.append(("watch", tuple(keys)))

    def flush(self) -> None:
        if self.waiting:
            self.before_flush()
            self.book.append(("flush", tuple(key for key, _ in self.waiting)))
        for key, value in self.waiting:
            self.durable.setdefault(key, []).append(value)
        self.waiting = []

    def close(self) -> None:
        self.book.append(("close", ()))
        self.flush()
        self.active = False

    def did(self, *methods: str) -> list[tuple[str, tuple[Any, ...]]]:
        """Return what the book has of *methods*, and empty it."""
        found = [entry for entry in self.book if entry[0] in methods]
        self.book.clear()
        return found

    def holds(self, key: Any, value: Any) -> bool:
        """Whether *value* is a durable answer to *key*; *value* is None for a miss, too."""
        return any(answer == value or (answer is MISS and value is None) for answer in self.durable.get(key, ()))
