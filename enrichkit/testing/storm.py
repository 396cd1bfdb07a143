"""
A network whose faults are random: a thread that plays one fault after another on a `FaultProxy`.

A connector passes when no lookup during a storm gets a wrong value; lookups that end with an error are allowed:

>>> from enrichkit import local
>>> from enrichkit.testing import fault_proxy
>>> from enrichkit.testing.storm import storm
>>> with local.redis() as server, fault_proxy(server.host, server.port) as proxy, storm(proxy, seed=7) as played:
...     pass  # look keys up through proxy.url(server.url), and compare each value with the one that its key has
>>> set(played) <= set(FAULTS)
True

The seed decides the order of the faults, their sizes and durations. It does not decide which bytes are on their way
when a fault begins, so two runs with the same seed are similar but not identical.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from typing import TYPE_CHECKING

from ..errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .proxy import Chunk, Direction, FaultProxy

__all__ = ["FAULTS", "storm"]

FAULTS = ("late", "cut", "ended", "frozen", "gone", "lost", "sliced", "stray", "swapped")
"""
The faults, in this order: replies are late; all connections are reset; connections end in the middle of a reply or a
request; no bytes pass for a while; connections are reset and new ones refused; bytes are lost for ever; replies or
requests come in small pieces; a client gets a reply that it did not ask for; two connections get each other's replies.
"""


@contextlib.contextmanager
def storm(
    proxy: FaultProxy, *, seed: int, faults: Sequence[str] = FAULTS, calm: float = 0.15, longest: float = 0.5
) -> Iterator[Counter[str]]:
    """
    Play random *faults* on *proxy* until the block ends, then heal the proxy.

    Args:
        proxy: The network between the connector and its server.
        seed: Seed of the order, the sizes and the durations of the faults.
        faults: Names of the faults that are played, out of `FAULTS`.
        calm: Mean seconds between the end of a fault and the next one.
        longest: The most seconds that one fault lasts.

    Yields:
        A counter of how often each fault was played so far; it changes while the storm lasts.

    Raises:
        ValueError: A name in *faults* is not in `FAULTS`.
    """
    for fault in faults:
        if fault not in FAULTS:
            meant = did_you_mean(fault, FAULTS)
            raise ValueError(
                f"storm() was given the fault {fault!r}, which does not exist.{meant} Faults: {', '.join(FAULTS)}."
            )
    weather = _Weather(proxy, random.Random(seed), faults, calm, longest)  # noqa: S311  # a storm needs no cryptography
    thread = threading.Thread(target=weather.play, name="enrichkit-storm", daemon=True)
    thread.start()
    try:
        yield weather.played
    finally:
        weather.over.set()
        thread.join()
        proxy.heal()
    if weather.error is not None:  # raised, so that the test notices that the faults ended too early
        raise weather.error


class _Weather:
    def __init__(
        self, proxy: FaultProxy, dice: random.Random, faults: Sequence[str], calm: float, longest: float
    ) -> None:
        self.over = threading.Event()
        self.played: Counter[str] = Counter()
        self.error: Exception | None = None
        self._proxy = proxy
        self._dice = dice
        self._faults = tuple(faults)
        self._calm = calm
        self._longest = longest
        self._reply = b"\r\n"  # the last chunk from the server, which `_stray` may send again

    def play(self) -> None:
        """Play one fault after another until the storm is over, or until playing a fault raises an exception."""
        try:
            self._play()
        except Exception as error:  # noqa: BLE001  # `storm` raises it in the thread of the test
            self.error = error

    def _play(self) -> None:
        while not self.over.wait(self._dice.uniform(0.0, 2 * self._calm)):
            self._proxy.delay(self._remember)
            fault = self._dice.choice(self._faults)
            getattr(self, f"_{fault}")()
            self.played[fault] += 1
            self._proxy.heal()

    def _remember(self, chunk: Chunk) -> float:
        self._reply = chunk.data
        return 0.0

    def _last(self) -> None:
        """Let the present fault last for a random time of at most `longest` seconds, or until the storm is over."""
        self.over.wait(self._dice.uniform(0.02, self._longest))

    def _direction(self) -> Direction:
        return self._dice.choice(("to client", "to server"))

    def _late(self) -> None:
        delays = [self._dice.choice((0.0, 0.0, 0.02, 0.3)) for _ in range(50)]
        self._proxy.delay(lambda chunk: delays[chunk.number % len(delays)])
        self._last()

    def _cut(self) -> None:
        self._proxy.cut()

    def _ended(self) -> None:
        end = self._dice.choice((self._proxy.reset_after, self._proxy.close_after))
        end(int(self._dice.expovariate(1 / 500)), direction=self._direction(), times=self._dice.randint(1, 5))
        self._last()

    def _frozen(self) -> None:
        self._proxy.freeze()
        self._last()

    def _gone(self) -> None:
        self._proxy.refuse()
        self._proxy.cut()
        self._last()

    def _lost(self) -> None:
        self._proxy.blackhole()
        self._last()
        if self._dice.random() < 0.5:  # otherwise the connections that have lost bytes stay open
            self._proxy.cut()

    def _sliced(self) -> None:
        self._proxy.slice(self._dice.randint(1, 64), pause=0.0005, direction=self._direction())
        self._last()

    def _stray(self) -> None:
        for _ in range(self._dice.randint(1, 5)):
            stray = self._dice.choice((self._reply, self._dice.randbytes(20)))
            self._proxy.inject(stray, quiet=0.005)
            self.over.wait(0.02)

    def _swapped(self) -> None:
        self._proxy.swap(self._dice.randint(1, 10))
        self._last()
