"""A context manager that copies a growing file to the standard error stream."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["copied_to_stderr"]

PERIOD = 0.2  # seconds between two reads of the file


@contextlib.contextmanager
def copied_to_stderr(file: Path) -> Iterator[None]:
    """Until the `with` block ends, copy to stderr what other processes append to *file*, which may not exist yet."""
    ended = threading.Event()

    def copy() -> None:
        copied, last = 0, False
        while not last:
            last = ended.wait(PERIOD)
            if file.exists():
                with file.open("rb") as log:
                    log.seek(copied)
                    text = log.read()
                copied += len(text)
                sys.stderr.write(text.decode(errors="replace"))
                sys.stderr.flush()

    thread = threading.Thread(target=copy, name="enrichkit-worker-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
