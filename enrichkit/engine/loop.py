"""
The loop thread of a worker process, with the role that the mailbox thread has in Flink.

One daemon thread runs one event loop, and only that thread touches the state of engines and runs. Other threads post
mails, i.e. function calls for the loop thread; the loop runs all waiting mails together, so that a burst of mails wakes
the loop once. The thread and its engines outlive Spark's tasks. An idle engine closes its connector before Spark ends
the idle worker, because no exit hook runs when Spark ends a worker. An idle engine closes its connector even earlier if
another engine or the load of a table gets no connection from the server.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from .names import new_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..interface import Connector
    from .cache import AnswerCache
    from .engine import Engine
    from .preload import Table

__all__ = ["IDLE_AFTER", "LoopThread", "loop_thread"]

_log = logging.getLogger("enrichkit")

IDLE_AFTER = 45.0
"""Seconds without a run after which an engine closes; Spark ends idle workers after 60 s."""
BEAT = 0.25
LAST_STEP = 1.0
"""Most seconds that an ending process waits until the current step of the event loop is over."""


class LoopThread:
    """
    The event loop of this process, its thread, its engines, its caches and its loaded tables.

    Attributes:
        engines: The engines, by fingerprint of the source and digest of its secrets. Loop thread only.
        caches: The caches, by fingerprint of the source and of the cached values; each with the time at which a task
            last asked for it. An empty cache is dropped `IDLE_AFTER` seconds after that time.
        tables: The loaded tables, by fingerprint of the source. Loop thread only.
    """

    def __init__(self) -> None:
        self.engines: dict[str, Engine] = {}
        self.caches: dict[str, tuple[AnswerCache, float]] = {}
        self.tables: dict[str, Table] = {}
        self.pid = os.getpid()
        self._mails: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._lock = threading.Lock()
        self._draining = False
        self._loop = new_loop()
        self._beat = time.monotonic()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False
        self._thread = threading.Thread(target=self._main, name="enrichkit-loop", daemon=True)
        self._thread.start()

    def post(self, mail: Callable[..., Any], *args: Any) -> None:
        """Have *mail* called on the loop thread, after all mails posted before. May be called from any thread."""
        with self._lock:
            self._mails.append((mail, args))
            if self._draining:
                return
            self._draining = True
        self._loop.call_soon_threadsafe(self._drain)

    def engine(self, key: str, build: Callable[[], Engine]) -> Engine:
        """Return the engine of *key*, made by *build* when there is none. Loop thread only."""
        engine = self.engines.get(key)
        if engine is None:
            self.engines[key] = engine = build()
            engine.gate.make_room = partial(self._make_room, type(engine.connector), engine)
        return engine

    def cache(self, key: str, build: Callable[[], AnswerCache]) -> AnswerCache:
        """Return the cache of *key*, made by *build* when there is none. May be called from any thread."""
        with self._lock:
            cache = self.caches[key][0] if key in self.caches else build()
            self.caches[key] = cache, time.monotonic()
            return cache

    def table(self, key: str, build: Callable[[], Table]) -> Table:
        """Return the loaded table of *key*, made by *build* when there is none that can be used. Loop thread only."""
        table = self.tables.get(key)
        if table is None or table.ended:
            self.tables[key] = table = build()
            table.make_room = self._make_room
        return table

    def alive(self) -> bool:
        """Whether the loop thread still runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the loop and its thread, without closing connections or settling lookups. Called from another thread."""
        if self.alive():
            self._stopped = True
            self._loop.call_soon_threadsafe(self._halt)
            self._thread.join(LAST_STEP)

    def _halt(self) -> None:
        for table in self.tables.values():
            table.end()
        self._loop.call_soon(self._loop.stop)  # stop only after the steps in which the cancelled loads of tables end

    def lag(self) -> float:
        """Return for how many seconds the event loop has been blocked."""
        return max(0.0, time.monotonic() - self._beat - BEAT)

    def stack(self) -> str:
        """Return the stack of the loop thread."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)[-6:]) if frame is not None else "(the thread has ended)"

    def _drain(self) -> None:
        with self._lock:
            mails, self._mails = self._mails, deque()
            self._draining = False
        for mail, args in mails:
            try:
                mail(*args)
            except Exception as error:  # noqa: BLE001  # any error of a mail must reach the Spark task that waits
                broken = getattr(getattr(mail, "__self__", None), "broken", None)
                if broken is not None:
                    broken(error)
                else:
                    _log.exception("a mail to the loop of enrichkit failed")

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._tick)
        try:
            self._loop.run_forever()
        finally:
            # Unless `stop` was called, an exception has ended the loop, such as a SystemExit in a plugin's own task.
            # Spark tasks that wait see that the thread is dead. No connection is closed, because that needs a running
            # loop.
            if not self._stopped:
                _log.error("the event loop of enrichkit has ended")

    def _tick(self) -> None:
        self._beat = time.monotonic()
        now = self._loop.time()
        for key, engine in list(self.engines.items()):
            if engine.idle_since is not None and now - engine.idle_since > IDLE_AFTER and not engine.calls:
                self._close(key)
        for key, table in list(self.tables.items()):
            if table.ended or (table.idle_since is not None and now - table.idle_since > IDLE_AFTER):
                self.tables.pop(key).end()
        with self._lock:
            caches = list(self.caches.items())
        for key, (cache, _) in caches:
            cache.expire(now)
            with self._lock:
                if not cache and self._beat - self.caches[key][1] > IDLE_AFTER:
                    del self.caches[key]
        self._loop.call_later(BEAT, self._tick)

    def _close(self, key: str) -> None:
        engine = self.engines.pop(key)
        task = asyncio.get_running_loop().create_task(engine.close(), name=f"enrichkit-close-{engine.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _make_room(self, kind: type[Connector[Any]], asks: Engine | None = None) -> None:
        """
        Close the idle engines whose connectors are of the class *kind*, because a connector of this class got no
        connection. This connector belongs to the engine *asks*, or to the load of a table if *asks* is None.

        Tasks with another `capacity`, type of values or table have an engine of their own, and its idle connections may
        have used up the connections of the server.
        """
        for key, engine in list(self.engines.items()):
            idle = engine.idle_since is not None and not engine.calls and engine is not asks
            if idle and type(engine.connector) is kind:
                self._close(key)


_current: LoopThread | None = None
_current_lock = threading.Lock()


def loop_thread() -> LoopThread:
    """Return the loop thread of this process; start a new thread after a fork, or if the old thread has died."""
    global _current
    with _current_lock:
        if _current is None or _current.pid != os.getpid() or not _current.alive():
            _current = LoopThread()
        return _current


def _forget_after_fork() -> None:
    # The child process has neither the thread nor a usable lock: another thread may have held the lock at the fork.
    global _current, _current_lock
    _current = None
    _current_lock = threading.Lock()


def _stop_at_exit() -> None:
    # Stop the loop, because a timer of uvloop that fires after the interpreter has ended asks for the GIL, and the
    # process crashes.
    if _current is not None:
        _current.stop()


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_stop_at_exit)
