"""
Spark as the consumer of this worker's rows: the socket that carries them to the JVM.

PySpark writes rows into a buffer of 64 KB, and sends the buffer only when it is full or the input has ended. A job that
wants five rows would therefore wait until thousands of keys have been looked up. The JVM closes the socket when the job
has its rows or was cancelled, but PySpark notices this only when it sends the next full buffer.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import select
import struct
import sys
import termios
import time
from typing import Any

__all__ = ["SparkSocket", "spark_socket"]

# POLLRDHUP, which only Linux has, reports a peer that has closed its side. On other systems, POLLHUP and POLLERR, which
# are always reported, come when the peer has closed the whole socket.
CLOSED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


GRACE = 0.2
"""Seconds within which the JVM closes the socket of a task if it wants only the first rows of the task."""
GRACE_4_0, GRACE_MAX = 1.0, 10.0
"""
The seconds that PySpark 4.0 needs in place of `GRACE`. `GRACE_4_0` is counted from the time when the first rows were
sent, and anew whenever further input has come; `GRACE_MAX` is the longest time in all since the first rows were sent.

In 4.0, one thread of the JVM writes the input and reads the rows. This thread reads no row before it has filled the
socket with input, and it measures the size of a batch after each row, so that a batch takes 0.1 to 0.6 s, depending on
the machine. Newer versions do not measure the size, and older versions read the rows on a separate thread.
"""

_took_all: set[str] = set()
"""
The enrichments for which a task in this process delivered all rows. None is ever removed: if Spark ends a task early,
this process ends, too.
"""


class SparkSocket:
    """
    The socket of one task, an `engine.consumer.Consumer`.

    Attributes:
        steady: Whether an earlier task of this enrichment in this process has delivered all its rows.

    Args:
        stream: The buffered writer into which PySpark writes the rows.
        enrichment: Fingerprint of the enrichment.
    """

    def __init__(self, stream: io.BufferedWriter, enrichment: str) -> None:
        import pyspark  # imported here, because `enrichkit pack` tests its archive without PySpark

        self._writes_first = pyspark.__version__.startswith("4.0.")
        self._unread = 0
        self._input_came = 0.0
        self.steady = enrichment in _took_all
        self._enrichment = enrichment
        self._stream = stream
        self._poll = select.poll()
        self._poll.register(stream.fileno(), CLOSED)

    def flush(self) -> None:
        """
        Send the rows that PySpark has written. This is called on Spark's thread only.

        Raises:
            OSError: The JVM has closed the socket.
        """
        self._stream.flush()

    def gone(self) -> bool:
        """Return whether the JVM has closed the socket. Any thread may call this; it does not wait."""
        return bool(self._poll.poll(0))

    def took_all(self) -> None:
        """Remember that the JVM has taken all rows."""
        _took_all.add(self._enrichment)

    def goes_by(self, first_left: float) -> float:
        """
        Return the `time.monotonic()` by which a JVM that wants only the first rows has closed the socket.

        The first rows were sent at *first_left*.
        """
        if not self._writes_first:
            return first_left + GRACE
        [unread] = struct.unpack("i", fcntl.ioctl(self._stream.fileno(), termios.FIONREAD, bytes(4)))
        if unread > self._unread:
            self._input_came = time.monotonic()
        self._unread = unread
        return min(max(first_left, self._input_came) + GRACE_4_0, first_left + GRACE_MAX)


def spark_socket(enrichment: str) -> SparkSocket | None:
    """
    Return the socket of the task that runs on this thread; None outside of a Spark worker.

    PySpark has no public name for the file by which a worker writes to its socket. The file is the variable `outfile`
    of the function of `pyspark.worker` that runs the task: `main` up to PySpark 4.2, `invoke_udf` in newer versions.
    """
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") in ("pyspark.worker", "__main__"):
            stream = frame.f_locals.get("outfile")
            if isinstance(stream, io.BufferedWriter):
                with contextlib.suppress(OSError, ValueError):  # raised if the writer has no file descriptor
                    return SparkSocket(stream, enrichment)
        frame = frame.f_back
    return None
