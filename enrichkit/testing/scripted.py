"""
A source that records its calls, and whose answers a test prescribes or releases by hand.

Tests make assertions about the recorded calls (`ScriptedConnector.calls`), not about the engine's own statistics.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..interface import Call, Connector, ConnectorConfig, Failure, Key, Value
from .clock import VirtualTimeLoop

if TYPE_CHECKING:
    from ..errors import ConnectorError

__all__ = ["Script", "ScriptedConfig", "ScriptedConnector", "SeenCall", "Step"]

_OWN: Final = object()
"""The default of `Step.value` (the value is then `v<key>`) and of `Step.returns` (the call then returns a mapping)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """
    The reaction of the source to a lookup of one key. A call of several keys combines the steps of all its keys.

    Attributes:
        after: Seconds until the answer; a call takes as long as its slowest key. With 0 the call answers without
            suspending.
        value: The answer for the key; `v<key>` by default.
        missing: Whether the source lacks the key.
        failure: Error with which this key alone fails.
        rejected: Whether the `failure` says that the key was never sent to the source, see `Failure.rejected`.
        error: Exception that the whole call raises.
        returns: Object that the call returns instead of a mapping, to play a connector that breaks its contract.
        held: Whether the call waits until the test calls `release`.
        never: Whether the call ends only when it is cancelled.
        stubborn: Number of cancellations that the call ignores.
        block: How long the call blocks the event loop: a number of seconds, or an event. If it is an event, the call
            blocks the loop until the event is set, for 10 s at most.
    """

    after: float = 0.0
    value: Value = _OWN
    missing: bool = False
    failure: ConnectorError | None = None
    rejected: bool = False
    error: BaseException | None = None
    returns: Any = _OWN
    held: bool = False
    never: bool = False
    stubborn: int = 0
    block: float | threading.Event = 0.0


Script: TypeAlias = Mapping[Key, Step | Sequence[Step]] | Callable[[Key, int], Step]
"""
A mapping from keys to their steps, or a function that takes a key and the number of its lookups, including the present
one, and returns a step.

In a mapping, a key has one step for all its lookups, or a sequence of steps, one for each of its lookups. The last step
of a sequence repeats.
"""


@dataclass(slots=True, eq=False)
class SeenCall:
    """
    The record of one call.

    Attributes:
        keys: The keys of the call, in order.
        call: The `Call` that the engine passed.
        started: Loop time at which the call started.
        ended: Loop time at which the call ended; None while it runs.
        cancelled: Number of cancellations that reached the call.
        gate: The event for which a held call waits; `release` sets it.
    """

    keys: tuple[Key, ...]
    call: Call
    started: float
    gate: asyncio.Event
    ended: float | None = None
    cancelled: int = 0


@dataclass(frozen=True, kw_only=True)
class ScriptedConfig(ConnectorConfig):
    """The config of a `ScriptedConnector`, which has no settings of its own."""


class ScriptedConnector(Connector[ScriptedConfig]):
    """
    A source in memory that follows a script.

    Args:
        script: The steps of the keys.
        otherwise: The step for keys that *script* does not name.
        opening: The steps of `open`, one for each call of it; the last step repeats.

    Attributes:
        calls: The records of all calls, in order.
        asked: Number of lookups of each key.
        in_flight: Number of calls that have not ended.
        peak: The largest value that `in_flight` ever had.
        opened: Number of times that `open` was called.
        closed: Number of times that `close` was called.

    >>> server = ScriptedConnector({"slow": Step(after=2.0), "none": Step(missing=True)})
    """

    name = "scripted"
    config_class = ScriptedConfig
    max_batch_size = 1_000_000

    def __init__(
        self, script: Script | None = None, *, otherwise: Step | None = None, opening: Sequence[Step] = ()
    ) -> None:
        super().__init__(ScriptedConfig())
        self.script: Script = script if script is not None else {}
        self.otherwise = otherwise if otherwise is not None else Step()
        self.opening = opening
        self.calls: list[SeenCall] = []
        self.asked: Counter[Key] = Counter()
        self.in_flight = 0
        self.peak = 0
        self.opened = 0
        self.closed = 0

    @property
    def keys(self) -> list[tuple[Key, ...]]:
        """The keys of each call, in the order of the calls."""
        return [seen.keys for seen in self.calls]

    def release(self, *keys: Key) -> None:
        """Release the held calls that have at least one of *keys*; without *keys* release all held calls."""
        for seen in self.calls:
            if seen.ended is None and (not keys or set(keys) & set(seen.keys)):
                seen.gate.set()

    async def open(self) -> None:
        """Follow the next step of *opening*; only its `after`, `error`, `held`, `never` and `stubborn` are used."""
        step = self.opening[min(self.opened, len(self.opening) - 1)] if self.opening else Step()
        self.opened += 1
        await _wait(SeenCall((), Call(timeout=0.0), asyncio.get_running_loop().time(), asyncio.Event()), [step])
        if step.error is not None:
            raise step.error

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Value | Failure]:
        """Record the call, and answer as the steps of *keys* prescribe."""
        loop = asyncio.get_running_loop()
        seen = SeenCall(tuple(keys), call, loop.time(), asyncio.Event())
        self.calls.append(seen)
        self.asked.update(keys)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        steps = {key: self._step(key) for key in keys}
        try:
            for step in steps.values():
                _block(step, loop)
            await _wait(seen, list(steps.values()))
        finally:
            self.in_flight -= 1
            seen.ended = loop.time()
        for step in steps.values():
            if step.error is not None:
                raise step.error
            if step.returns is not _OWN:
                result: Mapping[Key, Value | Failure] = step.returns
                return result
        return {key: _answer(key, step) for key, step in steps.items() if not step.missing}

    async def close(self) -> None:
        """Count this call in `closed`."""
        self.closed += 1

    def _step(self, key: Key) -> Step:
        times = self.asked[key]
        if callable(self.script):
            return self.script(key, times)
        steps = self.script.get(key, self.otherwise)
        return steps if isinstance(steps, Step) else steps[min(times, len(steps)) - 1]


def _answer(key: Key, step: Step) -> Value | Failure:
    if step.failure is not None:
        return Failure(step.failure, rejected=step.rejected)
    return f"v{key}" if step.value is _OWN else step.value


def _block(step: Step, loop: asyncio.AbstractEventLoop) -> None:
    if isinstance(step.block, threading.Event):
        step.block.wait(timeout=10.0)
    elif step.block and isinstance(loop, VirtualTimeLoop):
        loop.advance(step.block)
    elif step.block:
        time.sleep(step.block)


async def _wait(seen: SeenCall, steps: Sequence[Step]) -> None:
    """Wait as *steps* require, and ignore as many cancellations as the largest `stubborn` of *steps*."""
    loop = asyncio.get_running_loop()
    until = seen.started + max(step.after for step in steps)
    while True:
        try:
            if any(step.held for step in steps):
                await seen.gate.wait()
            if any(step.never for step in steps):
                await loop.create_future()
            if loop.time() < until:
                await asyncio.sleep(until - loop.time())
            return
        except asyncio.CancelledError:
            seen.cancelled += 1
            if seen.cancelled > max(step.stubborn for step in steps):
                raise
