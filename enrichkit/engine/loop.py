"""
The loop thread of a worker process: Flink's mailbox.

One daemon thread runs one event loop; all engine state is touched there only. Other threads post mails, which are
drained together, so that a burst of mails wakes the loop once. The thread and its engines outlive Spark's tasks;
an idle engine closes its connector before Spark ends an idle worker, because no exit hook runs there.
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
from typing import TYPE_CHECKING, Any

from .run import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from .cache import AnswerCache
    from .dispatch import Engine

__all__ = ["IDLE_AFTER", "LoopThread", "loop_thread"]

_log = logging.getLogger("enrichkit")

IDLE_AFTER = 45.0
"""Seconds without a run after which an engine closes; Spark ends idle workers after 60."""
BEAT = 0.25
LAST_STEP = 1.0
"""Seconds that the end of the process waits for what the loop is doing."""


class LoopThread:
    """
    The event loop of this process, its thread, its engines and its caches.

    Attributes:
        engines: By fingerprint of the source and digest of its secrets. Loop thread only.
        caches: Likewise, by fingerprint of the source and of what is remembered; with when a task asked for each last,
            because one that is empty goes a while after that.
    """

    def __init__(self) -> None:
        self.engines: dict[str, Engine] = {}
        self.caches: dict[str, tuple[AnswerCache, float]] = {}
        self.pid = os.getpid()
        self._mails: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._lock = threading.Lock()
        self._draining = False
        self._loop = _new_loop()
        self._beat = time.monotonic()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False
        self._thread = threading.Thread(target=self._main, name="enrichkit-loop", daemon=True)
        self._thread.start()

    def post(self, mail: Callable[..., Any], *args: Any) -> None:
        """Have *mail* called on the loop thread, after all mails posted before. From any thread."""
        with self._lock:
            self._mails.append((mail, args))
            if self._draining:
                return
            self._draining = True
        self._loop.call_soon_threadsafe(self._drain)

    def start(self, run: Run, key: str, build: Callable[[], Engine]) -> None:
        """
        Attach *run* to the engine of *key*, which *build* makes when there is none, and its fallbacks to theirs.

        A mail: loop thread only.
        """
        if run.closed:
            return  # the engine of its run, or that of another fallback, could not be made
        try:
            engine = self.engines.get(key)
            if engine is None:
                self.engines[key] = engine = build()
            engine.attach(run)
            for stage in run.stages:
                self.start(stage.run, stage.key, stage.engine)
        except Exception as error:  # noqa: BLE001  # whatever a connector's constructor raises is the task's error
            run.fail(error)

    def cache(self, key: str, build: Callable[[], AnswerCache]) -> AnswerCache:
        """Return the cache of *key*, made by *build* when there is none. From any thread."""
        with self._lock:
            cache = self.caches[key][0] if key in self.caches else build()
            self.caches[key] = cache, time.monotonic()
            return cache

    def alive(self) -> bool:
        """Whether the loop thread still runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the thread where it is: nothing is closed or answered any more. From any other thread."""
        if self.alive():
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(LAST_STEP)

    def lag(self) -> float:
        """Return for how many seconds the loop has not gone round."""
        return max(0.0, time.monotonic() - self._beat - BEAT)

    def stack(self) -> str:
        """Return what the loop thread is doing now."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)[-6:]) if frame is not None else "(the thread has ended)"

    def _drain(self) -> None:
        with self._lock:
            mails, self._mails = self._mails, deque()
            self._draining = False
        for mail, args in mails:
            try:
                mail(*args)
            except Exception as error:  # noqa: BLE001  # whatever a step raises, its task must hear of it
                run = getattr(mail, "__self__", None)
                if isinstance(run, Run):
                    run.broken(error)  # the task that waits for it must hear of it
                else:
                    _log.exception("a mail to the loop of enrichkit failed")

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._tick)
        try:
            self._loop.run_forever()
        finally:
            # Something raised through the loop (a plugin's own task and its SystemExit, say): the tasks that wait see
            # that the thread is dead. Nothing is closed, since no loop is left to do it.
            if not self._stopped:
                _log.error("the event loop of enrichkit has ended")

    def _tick(self) -> None:
        self._beat = time.monotonic()
        now = self._loop.time()
        for key, engine in list(self.engines.items()):
            if engine.idle_since is not None and now - engine.idle_since > IDLE_AFTER and not engine.calls:
                del self.engines[key]
                task = self._loop.create_task(engine.close(), name=f"enrichkit-close-{engine.name}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        with self._lock:
            caches = list(self.caches.items())
        for key, (cache, _) in caches:
            cache.expire(now)
            with self._lock:
                if not cache and self._beat - self.caches[key][1] > IDLE_AFTER:
                    del self.caches[key]
        self._loop.call_later(BEAT, self._tick)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_current: LoopThread | None = None
_current_lock = threading.Lock()


def loop_thread() -> LoopThread:
    """Return the loop thread of this process; a new one after a fork, or when the old one has died."""
    global _current
    with _current_lock:
        if _current is None or _current.pid != os.getpid() or not _current.alive():
            _current = LoopThread()
        return _current


def _forget_after_fork() -> None:
    # The child has neither the thread nor a usable lock: another thread may have held it.
    global _current, _current_lock
    _current = None
    _current_lock = threading.Lock()


def _stop_at_exit() -> None:
    # A timer of uvloop that rings after the interpreter has ended asks it for the GIL, and the process crashes.
    if _current is not None:
        _current.stop()


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_stop_at_exit)
