"""
The questions (requests) of a worker process to the stores, such as Redis, that hold the limits of its job.

A process has one connection to a store, however many engines and limits ask the store. While the store is away, the
process goes on making calls within its last share of the limit, and asks the store again a few times a second.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from ..errors import ConnectorError, FatalError, TransientError
from ..functions import raised
from ..leases import Draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..interface import Connector, ConnectorConfig
    from ..leases import Ask, Drawn, Grant, LeaseStore

__all__ = ["AGAIN", "HOLD", "IDLE", "PERIOD", "Lessee", "Share", "StoreConnection"]

_log = logging.getLogger("enrichkit")

PERIOD = 0.25
"""Seconds for which the calls of one lease should last."""
FIRST_TIMEOUT = 2.5
"""Seconds that the first question may take, the connection to the store included."""
TIMEOUT = 0.5
"""Seconds that a further question may take; while it is under way, calls are made within the last lease."""
AGAIN = 0.2
"""Fewest seconds between two questions."""
HOLD = 0.05
"""Seconds after which a slot that waits for the store checks again whether it may make a call."""
IDLE = 2 * PERIOD
"""A share is given back when no call has needed it for this many seconds."""
AT_CLOSE = 0.2
"""Most seconds that a closing engine waits for the store to take back the engine's share."""

_connections: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, StoreConnection]] = WeakKeyDictionary()


class StoreConnection:
    """The one connection of this process to a store; all limits in the store share this connection."""

    def __init__(self, key: Any, store: LeaseStore) -> None:
        self._key = key
        self._users = 0
        self.store = store

    @classmethod
    def of(cls, connector: type[Connector[Any]], config: ConnectorConfig) -> StoreConnection:
        """
        Return the connection to the store of *config*, and count one user more; the first question opens the
        connection.
        """
        connections = _connections.setdefault(asyncio.get_running_loop(), {})
        key = (connector, config)
        if key not in connections:
            store = connector.lease_store(config)
            assert store is not None, "the driver has looked whether it can hold limits"
            connections[key] = cls(key, store)
        connections[key]._users += 1
        return connections[key]

    async def release(self) -> None:
        """Count one user less, and close the connection if nobody else uses it."""
        self._users -= 1
        if self._users == 0:
            _connections[asyncio.get_running_loop()].pop(self._key, None)
            await self.store.close()


class Share(Protocol):
    """
    This process's share of a limit of the job: of a rate, of a number of calls in flight, or of a budget.

    Attributes:
        away: Whether the store is away.
        held: The size of the share with which calls go on while the store is away; 0: there is none.
    """

    away: bool
    held: float

    def idle(self, now: float) -> bool:
        """Whether no call has needed the share for a while."""

    def ask(self, now: float, name: str, worker: str, *, away: bool = False, last: bool = False) -> Any:
        """
        Return the question that the lessee sends to the store.

        With *away*, the question says that the last question got no answer. With *last*, the question gives the share
        back.
        """

    def unanswered(self, ask: Any) -> None:
        """Report the numbers in *ask* once more with the next question, because the store has not answered *ask*."""

    def granted(self, grant: Any, asked: float, now: float, *, back: bool) -> None:
        """Take over *grant*, the answer to a question sent at *asked*; *back*: whether the store was away until now."""

    def next_ask(self, now: float) -> float:
        """Return the loop time at which the lessee asks the store again for this share."""

    def told(self) -> str:
        """Return the share as users read it, for example `25 calls/s`."""


class Lessee:
    """
    The client that asks a store for this process's share of one limit, as long as calls need the share.

    Args:
        source: Name of the source in messages.
        store: Name of the store in messages.
        name: Name of the limit in the store.
        connect: Function that returns the connection to the store.
        notify: Function that is called when a share has changed.

    Attributes:
        store: Name of the store in messages.
        fatal: Why the store can never answer; None: no such reason is known.
        waiting_since: Loop time since which this process has had neither a share nor an answer of the store; None: the
            process has a share or an answer.
        problem: Why the last question has got no answer; empty if the store has answered it.
    """

    def __init__(
        self,
        source: str,
        store: str,
        name: str,
        connect: Callable[[], StoreConnection],
        notify: Callable[[], None],
    ) -> None:
        self._source = source
        self.store = store
        self._name = name
        self._connect = connect
        self._notify = notify
        self._worker = uuid.uuid4().hex[:16]
        self._connection: StoreConnection | None = None
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._answered = False
        self._away_since = 0.0
        self.fatal: FatalError | None = None
        self.waiting_since: float | None = None
        self.problem = ""

    def wake(self, share: Share) -> None:
        """Start to ask for *share* regularly, until no call needs the share any more."""
        # A task may have ended just now, before `_ended` was called; it asks no more, so a new task has to be started.
        if (self._task is None or self._task.done()) and not self._closing:
            self.fatal = None
            self._task = self._loop.create_task(self._ask(share), name=f"enrichkit-lease-{self._source}")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            _log.error("%s: the limit of the job is not kept up: %s", self._source, error)

    async def close(self, share: Share) -> None:
        """Give *share* back, and release the connection."""
        self._closing = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait((task,), timeout=AT_CLOSE)
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            if self._answered and not share.away:
                async with asyncio.timeout(AT_CLOSE):
                    await _put(connection.store, share.ask(self._loop.time(), self._name, self._worker, last=True))
        except (ConnectorError, TimeoutError):
            pass  # the lease ends by itself, as it is not renewed
        finally:
            await connection.release()

    async def _ask(self, share: Share) -> None:
        """
        Ask the store for *share* again and again.

        End when no call needs the share any more, or when the store fails in a way that no repetition will change.
        """
        while True:
            asked = self._loop.time()
            if self.waiting_since is None and not self._answered:
                self.waiting_since = asked
            ask = share.ask(asked, self._name, self._worker, away=bool(self.problem))
            error = await self._asked_once(share, ask, asked)
            now = self._loop.time()
            if isinstance(error, FatalError) and share.held == 0:
                self.fatal = error
                self._notify()
                return
            if ask.wanted <= 0 and error is None and share.idle(now):
                self._answered = False
                return
            wait = PERIOD if error is not None else share.next_ask(now) - now
            await asyncio.sleep(max(AGAIN - (now - asked), wait, 0.01))

    async def _asked_once(self, share: Share, ask: Ask, asked: float) -> ConnectorError | None:
        """Ask the store once, and hand the answer to *share*; return the error if there is no answer, else None."""
        error: ConnectorError
        try:
            async with asyncio.timeout(TIMEOUT if self._answered else FIRST_TIMEOUT):
                if self._connection is None:
                    self._connection = self._connect()
                granted: Any = await _put(self._connection.store, ask)
        except TimeoutError:
            error = TransientError("It has not answered in time.")
        except ConnectorError as failed:
            error = failed
        except Exception as unexpected:  # noqa: BLE001  # a plugin may raise anything
            error = FatalError(f"Its plugin raised {raised(unexpected)}.")
        else:
            share.granted(granted, asked, self._loop.time(), back=self._back(share, asked))
            self._notify()
            return None
        share.unanswered(ask)
        self.problem = str(error)
        if share.held == 0 and self.waiting_since is None:
            self.waiting_since = asked
        if not share.away and share.held > 0:
            share.away, self._away_since = True, asked
            _log.warning(
                "%s: the store %s of its limit is away. It got: %s Calls go on with the last share of this process, "
                "%s, and not above it.",
                self._source,
                self.store,
                error,
                share.told(),
            )
            self._notify()
        return error

    def _back(self, share: Share, now: float) -> bool:
        """Record that the store has answered; return whether it was away."""
        self._answered, self.waiting_since, self.problem = True, None, ""
        was_away, share.away = share.away, False
        if was_away:
            _log.warning("%s: the store %s of its limit is back after %.1f s.", self._source, self.store,
                         now - self._away_since)  # fmt: skip
        return was_away


async def _put(store: LeaseStore, ask: Ask | Draw) -> Grant | Drawn:
    """Put a question to *store*."""
    return await (store.draw(ask) if isinstance(ask, Draw) else store.lease(ask))
