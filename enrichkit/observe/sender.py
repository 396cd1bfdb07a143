"""
The way from a worker to the monitor: a thread that pushes what the tasks of this process did, once a second.

The thread uses blocking sockets, so that the event loop with the calls never waits for the monitor. A monitor that
cannot be reached costs the tasks nothing but one line in the log.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Address", "Sender", "sender"]

_log = logging.getLogger("enrichkit")

TIMEOUT = 2.0
AGAIN = 10.0
"""Seconds after which a monitor that could not be reached is tried again."""
WAITING_MAX = 2_000
"""Most reports that wait for a monitor."""


@dataclass(frozen=True, slots=True)
class Address:
    """
    Where workers push to; it travels in the expression.

    Attributes:
        host: Name or address of the driver's machine, as the workers see it.
        port: Port of the monitor.
        token: What a worker proves with that it belongs to the job.
    """

    host: str
    port: int
    token: str = field(repr=False)


class Sender:
    """
    Pushes reports of tasks to one monitor.

    Args:
        address: The monitor.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reports: dict[str, dict[str, Any]] = {}
        self._sent = threading.Condition()
        self._number = 0  # of the reports that were put
        self._done = 0  # up to which reports were sent, or given up
        self._again = 0.0
        self._told = False
        self._connection: Any = None
        threading.Thread(target=self._work, name="enrichkit-sender", daemon=True).start()

    def put(self, reports: Iterable[dict[str, Any]]) -> int:
        """Have *reports* sent instead of earlier ones of their tasks; return a number. It never waits."""
        with self._sent:
            for report in reports:
                if report["id"] in self._reports or len(self._reports) < WAITING_MAX:
                    self._reports[report["id"]] = report
            self._number += 1
            self._sent.notify_all()
            return self._number

    def put_last(self, reports: Iterable[dict[str, Any]], seconds: float) -> None:
        """Have *reports* sent, and wait for it, *seconds* at most: Spark may end this process after its task."""
        number = self.put(reports)
        with self._sent:
            self._sent.wait_for(lambda: self._done >= number, timeout=seconds)

    def _work(self) -> None:
        while True:
            with self._sent:
                self._sent.wait_for(lambda: self._reports)
                number, reports = self._number, list(self._reports.values())
                self._reports.clear()
            if time.monotonic() >= self._again:
                try:
                    self._post(json.dumps({"version": 1, "tasks": reports}).encode())
                except Exception as error:  # noqa: BLE001  # whatever it is, the job goes on without a monitor
                    self._failed(error)
            with self._sent:
                self._done = number
                self._sent.notify_all()

    def _post(self, body: bytes) -> None:
        from http.client import HTTPConnection

        headers = {"Authorization": f"Bearer {self._address.token}", "Content-Type": "application/json"}
        fresh = self._connection is None
        if fresh:
            self._connection = HTTPConnection(self._address.host, self._address.port, timeout=TIMEOUT)
        try:
            self._connection.request("POST", "/push", body, headers)
            response = self._connection.getresponse()
            response.read()
        except OSError:
            self._disconnect()
            if fresh:
                raise
            self._post(body)  # the monitor may have closed a connection that was idle
            return
        if response.status >= 400:
            raise OSError(f"it answered {response.status}")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _failed(self, error: Exception) -> None:
        self._again = time.monotonic() + AGAIN
        self._disconnect()
        if not self._told:
            self._told = True
            _log.warning(
                "The monitor at %s:%d cannot be reached from this worker (%s); the job goes on, and its page shows "
                "nothing of this worker. Look at the address that monitor(host=...) names.",
                self._address.host,
                self._address.port,
                error,
            )


_senders: dict[tuple[int, Address], Sender] = {}
_lock = threading.Lock()


def sender(address: Address) -> Sender:
    """Return the sender of this process to *address*."""
    with _lock:
        key = (os.getpid(), address)
        if key not in _senders:
            _senders.clear()  # of another monitor, or of the process that this one was forked from
            _senders[key] = Sender(address)
        return _senders[key]
