"""
A source whose every answer is scripted, or released by hand, and which remembers what it saw.

Tests assert on what the source saw (`ScriptedConnector.calls`), not on what the engine says of itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..connector import Call, Connector, ConnectorConfig, Failure, Key, Value
from .clock import VirtualTimeLoop

if TYPE_CHECKING:
    from ..errors import ConnectorError

__all__ = ["Script", "ScriptedConfig", "ScriptedConnector", "SeenCall", "Step"]

_OWN: Final = object()
"""Stands for the key's own value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """
    What the source does when it is asked for a key. A call of several keys does what any of them asks for.

    Attributes:
        after: Seconds until the answer; a call takes as long as its slowest key. 0: at once, without suspending.
        value: The answer; `v<key>` when not given.
        missing: The source does not hold the key.
        failure: This key alone fails.
        rejected: With `failure`: the key was never sent.
        error: The whole call raises this.
        returns: The call returns this, whatever it is: for a connector that breaks its contract.
        held: The call waits for `release`.
        never: The call does not end unless it is cancelled.
        stubborn: How many cancellations the call swallows.
        block: Seconds for which the call blocks the loop, or an event that it waits for in vain on the loop's thread.
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
"""A step for each key, or one for each time that the key is asked, the last of which repeats; or a function of both."""


@dataclass(slots=True, eq=False)
class SeenCall:
    """
    One call as the source saw it.

    Attributes:
        keys: The keys that it asked for, in order.
        call: What the engine said of it.
        started: Loop time at which it came; `ended`: at which it was over, None before.
        cancelled: How many cancellations reached it.
        gate: What a held call waits for.
    """

    keys: tuple[Key, ...]
    call: Call
    started: float
    gate: asyncio.Event
    ended: float | None = None
    cancelled: int = 0


@dataclass(frozen=True, kw_only=True)
class ScriptedConfig(ConnectorConfig):
    """Config of a `ScriptedConnector`, which needs none."""


class ScriptedConnector(Connector[ScriptedConfig]):
    """
    A source in memory that does what its script says.

    Args:
        script: What to do for which key.
        otherwise: What to do for a key that the script does not name.
        opening: What `open` does, one step for each time, the last of which repeats.

    Attributes:
        calls: Every call that came, in order.
        asked: How often each key was asked.
        in_flight: Calls that have not ended; `peak`: the most there ever were at a time.
        opened: How often `open` was called; likewise `closed`.

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
        """The keys of each call, in the order in which the calls came."""
        return [seen.keys for seen in self.calls]

    def release(self, *keys: Key) -> None:
        """Let the calls go on that are held and ask for one of *keys*; without *keys* all that are held."""
        for seen in self.calls:
            if seen.ended is None and (not keys or set(keys) & set(seen.keys)):
                seen.gate.set()

    async def open(self) -> None:
        """Do the next step of *opening*: its `after`, `error`, `held` and `never`."""
        step = self.opening[min(self.opened, len(self.opening) - 1)] if self.opening else Step()
        self.opened += 1
        await _wait(SeenCall((), Call(timeout=0.0), asyncio.get_running_loop().time(), asyncio.Event()), [step])
        if step.error is not None:
            raise step.error

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Value | Failure]:
        """Do what the script says for *keys*."""
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
                whatever: Mapping[Key, Value | Failure] = step.returns
                return whatever
        return {key: _answer(key, step) for key, step in steps.items() if not step.missing}

    async def close(self) -> None:
        """Count the close."""
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
    """Wait as *steps* say, and swallow as many cancellations as the most stubborn of them."""
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
