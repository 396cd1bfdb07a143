"""The consumer of the rows of a task, and the limit on admitted rows until the consumer is known to want many rows."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Consumer", "FirstRows"]

LOOK = 0.01
"""Seconds between two checks whether the consumer is gone."""
BEAT = 0.2
"""Seconds without rows after which the consumer gets an empty batch; Spark checks for a cancellation at each batch."""


class Consumer(Protocol):
    """
    The receiver of the rows of a task, see `worker/spark_socket.py`.

    Attributes:
        steady: Whether the consumer of an earlier task of this enrichment took all rows.
        flush: Method that sends the rows that were yielded. It is called on the thread that yields rows, and raises
            `OSError` when the consumer is gone.
        gone: Method that returns whether the consumer takes no more rows. It may be called from any thread.
        took_all: Method that remembers that the consumer took all rows.
        goes_by: Method that returns the `time.monotonic()` by which a consumer that wants only a few rows is gone; the
            first rows were sent at *first_left*. The result may rise while the consumer does not read rows.
    """

    steady: bool

    def flush(self) -> None: ...
    def gone(self) -> bool: ...
    def took_all(self) -> None: ...
    def goes_by(self, first_left: float) -> float: ...


class FirstRows:
    """
    The limit on admitted rows until a consumer that wants only a few rows has had time to go away.

    A job such as `show(5)` closes the socket a few milliseconds after it got its rows, or after a tenth of a second if
    Spark compiles the plan of the job for the first time. Without the limit, a fast source would be asked for thousands
    of keys in that time.

    Args:
        rows: Rows that may be admitted before the limit ends.
        consumer: The consumer.
    """

    def __init__(self, rows: int, consumer: Consumer) -> None:
        self._rows = rows
        self._consumer = consumer
        self._first_left: float | None = None

    def enter(self, rows: int) -> None:
        """Count *rows* as admitted."""
        self._rows -= rows

    def leave(self) -> None:
        """Record that rows were returned to Spark."""
        if self._first_left is None:
            self._first_left = time.monotonic()

    def admits(self, rows: int) -> bool:
        """Return whether *rows* further rows may be admitted now."""
        until = self.until()
        return rows <= self._rows or (until is not None and time.monotonic() >= until)

    def until(self) -> float | None:
        """Return the `time.monotonic()` at which the limit ends; None before the first rows were returned to Spark."""
        return None if self._first_left is None else self._consumer.goes_by(self._first_left)
