"""
The sender of a worker process: a thread that pushes the statistics of the process's tasks to the monitor once a second.

The thread has blocking sockets of its own, so that the event loop, which makes the calls, never waits for the monitor.
A monitor that cannot be reached does not slow the tasks down. One warning is logged, and the statistics are kept and
sent when the monitor can be reached. A monitor that has ended gets no more pushes, because its port may soon belong to
another server, which must not get the token of the job.
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
AGAIN, AGAIN_MAX = 1.0, 30.0
"""Shortest and longest wait, in seconds, after a failed push; the wait doubles with each failure in a row."""
REFUSED_MAX = 8
"""
After this number of refused pushes in a row, which take a minute and a half, the monitor is taken for ended: nothing
listens at its port, or another server does. No later monitor has the same token.
"""
WAITING_MAX = 2_000
"""
Most reports that wait to be sent. Beyond that, the report of an ended task replaces the report of a running task, and a
new report of a running task is dropped.
"""
BODY_MAX = 1 << 19
"""Once a push has this many bytes, further reports wait for the next push; the monitor accepts twice as many bytes."""
NOT_OURS = (401, 404, 405)
"""HTTP statuses of a server that is not the monitor of this job."""
NOT_TAKEN = (400, 413, 422)
"""HTTP statuses by which a monitor refuses reports as wrong; after any other error the reports are sent again."""


@dataclass(frozen=True, slots=True)
class Address:
    """
    The address to which workers push. Plans carry it, pickled, inside the Spark expression.

    Attributes:
        host: Name or address of the driver's machine, as the workers see it.
        port: Port of the monitor.
        token: The secret by which a worker proves that it belongs to the job.
    """

    host: str
    port: int
    token: str = field(repr=False)


class Sender:
    """
    A thread that pushes reports of tasks to one monitor.

    Args:
        address: Address of the monitor.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reports: dict[str, dict[str, Any]] = {}  # the reports that wait to be sent, by their `id`
        self._sent = threading.Condition()
        self._under_way: set[str] = set()
        self._failures = 0  # number of failed pushes in a row
        self._refused = 0  # number of refused pushes in a row
        self._told = False
        self._connection: Any = None
        self._thread = threading.Thread(target=self._work, name="enrichkit-sender", daemon=True)
        self._thread.start()

    def put(self, reports: Iterable[dict[str, Any]]) -> None:
        """Queue *reports*, and return at once; a report replaces a report of the same task that still waits."""
        with self._sent:
            self._add(reports)
            self._sent.notify_all()

    def put_last(self, reports: Iterable[dict[str, Any]], seconds: float) -> None:
        """
        Queue *reports*, and wait at most *seconds* until they are sent, because Spark may end this process after this
        call.

        If the previous push failed, return at once, because the monitor can probably not be reached.
        """
        last = {report["id"]: report for report in reports}
        self.put(last.values())
        with self._sent:
            self._sent.wait_for(lambda: self._failures or not (last.keys() & self._waiting()), timeout=seconds)

    def _waiting(self) -> set[str]:
        return self._under_way | self._reports.keys()

    def _add(self, reports: Iterable[dict[str, Any]]) -> None:
        for report in reports:
            if self._refused < REFUSED_MAX and (report["id"] in self._reports or self._has_room(report)):
                self._reports[report["id"]] = report

    def _has_room(self, report: dict[str, Any]) -> bool:
        if len(self._reports) < WAITING_MAX:
            return True
        running = (key for key, other in self._reports.items() if other.get("state") == "running")
        less = None if report.get("state") == "running" else next(running, None)
        return less is not None and self._reports.pop(less) is not None

    def _work(self) -> None:
        while self._refused < REFUSED_MAX:
            with self._sent:
                self._sent.wait_for(lambda: self._reports)
                reports = self._take()
            failed = refused = False
            try:
                self._push(reports)
            except Exception as error:  # noqa: BLE001  # whatever the error is, the job goes on
                failed, refused = True, isinstance(error, ConnectionRefusedError)
                self._disconnect()
                self._tell(f"cannot be reached from this worker ({error}); until it is, its page shows nothing of it")
            with self._sent:
                self._under_way.clear()
                self._failures = self._failures + 1 if failed else 0
                self._refused = self._refused + 1 if refused else 0
                if failed:  # keep the reports for the next push, unless there is a newer report of the task
                    waiting = {report["id"]: report for report, _ in reports} | self._reports
                    self._reports = {}
                    self._add(waiting.values())
                self._sent.notify_all()
            if failed:
                time.sleep(min(AGAIN_MAX, AGAIN * 2 ** min(self._failures - 1, 10)))

    def _take(self) -> list[tuple[dict[str, Any], bytes]]:
        """Remove as many waiting reports as one push holds, and return each report with its JSON text as bytes."""
        taken, size = [], 0
        while self._reports and size < BODY_MAX:
            key = next(iter(self._reports))
            report = self._reports.pop(key)
            self._under_way.add(key)
            encoded = json.dumps(report).encode()
            taken.append((report, encoded))
            size += len(encoded)
        return taken

    def _push(self, reports: list[tuple[dict[str, Any], bytes]]) -> None:
        """Push *reports*. If the monitor refuses them, push each one alone, and drop each that is refused again."""
        body = b'{"version": 1, "tasks": [%s]}' % b", ".join(encoded for _, encoded in reports)
        status = self._post(body)
        if status in NOT_TAKEN and len(reports) > 1:
            for report in reports:
                self._push([report])
        elif status in NOT_TAKEN:
            self._tell(f"does not take what a task reports (it answered {status}); its page shows nothing of this task")
        elif status >= 400:
            raise (ConnectionRefusedError if status in NOT_OURS else OSError)(f"it answered {status}")

    def _post(self, body: bytes) -> int:
        """Post *body*; return the status of the answer."""
        from http.client import HTTPConnection, HTTPException

        headers = {"Authorization": f"Bearer {self._address.token}", "Content-Type": "application/json"}
        fresh = self._connection is None
        if fresh:
            self._connection = HTTPConnection(self._address.host, self._address.port, timeout=TIMEOUT)
        try:
            self._connection.request("POST", "/push", body, headers)
            response = self._connection.getresponse()
            response.read()
        except (OSError, HTTPException):
            self._disconnect()
            if fresh:
                raise
            return self._post(body)  # once more, because the monitor may have closed the idle connection
        if response.will_close:
            self._disconnect()
        return int(response.status)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _tell(self, what: str) -> None:
        """Log once that the monitor does not get all reports of this worker."""
        if not self._told:
            self._told = True
            _log.warning(
                "The monitor at %s:%d %s. The job goes on. Look at the address that monitor(host=...) names.",
                self._address.host,
                self._address.port,
                what,
            )


_senders: dict[tuple[int, Address], Sender] = {}
_lock = threading.Lock()


def sender(address: Address) -> Sender:
    """Return the sender with which this process pushes to *address*; the first call makes and starts it."""
    with _lock:
        key = (os.getpid(), address)
        if key not in _senders:
            # All older senders are useless here: each pushes to an earlier monitor, or its thread runs in the process
            # from which this one was forked.
            _senders.clear()
            _senders[key] = Sender(address)
        return _senders[key]
