"""
A retry that is due at the deadline (Flink's FLINK-40456), in every order of what may happen around that instant.

Nine events race: the answers of two attempts, the end of the back-off, two sweeps, the clock that passes
`attempt_timeout` and the deadline, another row with the same key, and one more or the close of the task. Each order is
played by hand on the real engine. Whatever the order, each row has exactly one outcome or its task was closed, and none
hangs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine import admission
from enrichkit.engine.engine import Engine
from enrichkit.engine.run import Run
from enrichkit.errors import PermanentError, TransientError
from enrichkit.interface import Failure
from enrichkit.options import Options, Retry
from enrichkit.outcome import PENDING, STATUSES, Outcomes

from .by_hand import HandLoop, HandSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT = 1.0
EVENTS = ("answer 1", "answer 2", "retry due", "sweep", "sweep", "attempt timeout", "deadline", "row")
ANSWERS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "ok": lambda keys: {key: f"v{key}" for key in keys},
    "transient": lambda keys: TransientError("busy"),
    "retry after": lambda keys: TransientError("busy", retry_after=0.01),
    "missing": lambda keys: {},
    "permanent": lambda keys: PermanentError("poison"),
    "failure": lambda keys: {key: Failure(TransientError("shaky")) for key in keys},
    "half": lambda keys: {key: f"v{key}" for key in keys[1:]},
}


@dataclass(frozen=True)
class Scene:
    """What the events do: the answers of both attempts, and the options."""

    first: str
    second: str
    attempt_timeout: float | None
    on_missing: bool
    keys: int  # in the group
    apart: bool  # whether the loop goes round after each event, or after every second one
    last: str  # the ninth event


SCENES = [
    Scene(*parts)
    for parts in product(
        ANSWERS,
        ("ok", "transient", "missing", "permanent"),
        (None, 0.6),
        (False, True),
        (1, 2),
        (True, False),
        ("row", "close"),
    )
]


def orders(events: tuple[str, ...], index: int, step: int) -> Iterator[tuple[str, ...]]:
    """Yield every *step*-th permutation of *events*, beginning with the *index*-th."""
    for number in range(index, math.factorial(len(events)), step):
        left, order = list(events), []
        for size in range(len(events), 0, -1):
            place, number = divmod(number, math.factorial(size - 1))
            order.append(left.pop(place))
        yield tuple(order)


class Race:
    """One engine, one task, and the events as far as they can happen."""

    def __init__(self, scene: Scene, loop: HandLoop) -> None:
        self.scene = scene
        self.loop = loop
        self.source = HandSource()
        self.left: list[tuple[Outcomes, Any]] = []
        self.slices: list[Outcomes] = []
        self.trace: list[str] = []
        retry = Retry(attempts=3, wait=0.05, jitter="none", on_missing=scene.on_missing)
        options = Options(
            timeout=TIMEOUT,
            attempt_timeout=scene.attempt_timeout,
            on_timeout="null",
            on_error="null",
            max_fallback_ratio=1.0,
            retry=retry,
        )
        self.engine = Engine(self.source, 3, seed=1)
        self.run = Run(self.engine, "race", options, lambda raws: (list(raws), {}), self._emit, batch_size=2, seed=1)
        self._admit(*range(scene.keys))
        loop.run()
        loop.now = 0.5  # the first attempt is under way since then

    def _emit(self, parts: Any) -> None:
        assert not isinstance(parts, BaseException), parts
        assert not self.run.closed, "a row left after the close"
        self.left += [(part.outcomes, [*part.outcomes.statuses]) for part in parts]

    def _admit(self, *keys: Any) -> None:
        outcomes = Outcomes(list(keys), len(keys))
        outcomes.statuses = _Once(len(keys))
        self.slices.append(outcomes)
        admission.admit(self.run, outcomes)

    def play(self, order: tuple[str, ...]) -> tuple[str, ...]:
        """Let the events happen in *order*, those that cannot happen yet as soon as they can; return what happened."""
        waiting = list(order)
        while event := next((event for event in waiting if self._happens(event)), None):
            waiting.remove(event)
            self.trace.append(event)
            if self.scene.apart or len(self.trace) % 2 == 0:
                self.loop.run()
        self.loop.run()
        return tuple(self.trace)

    def _happens(self, event: str) -> bool:
        """Let *event* happen if it can."""
        loop, calls = self.loop, self.source.calls
        if event.startswith("answer"):
            number = int(event[-1]) - 1
            if len(calls) <= number or calls[number].ended or self.run.closed:
                return False
            kind = self.scene.second if number else self.scene.first
            calls[number].answer(ANSWERS[kind](calls[number].keys))
        elif event in ("sweep", "retry due"):
            sweep = self.engine._sweeper._timer
            timers = [sweep] if event == "sweep" else self.run.timers
            due = next((timer for timer in timers if timer in loop.timers), None)
            if due is None:
                return False
            loop.fire(due)
        elif event == "row":
            loop.call_soon(self._admit, 0)
        elif event == "close":
            loop.call_soon(self.run.close)
        else:
            at = TIMEOUT if event == "deadline" else self.scene.attempt_timeout or 0.0
            loop.now = max(loop.now, at + 0.001)
        return True

    def end(self) -> None:
        """No answer comes any more: the deadlines alone must give every row its outcome."""
        made = len(self.source.calls)
        if not self.run.closed:
            self.loop.advance(2 * TIMEOUT)
        else:
            self.loop.advance(0.0)
            assert made == len(self.source.calls), "a call was made after the close"
            assert not self.run.timers
        for outcomes in self.slices:
            if not self.run.closed:
                assert PENDING not in outcomes.statuses, f"a row hangs: {self.trace}"
                assert self.left.count((outcomes, [*outcomes.statuses])) == 1
            for key, status, value in zip(outcomes.keys, outcomes.statuses, outcomes.values, strict=True):
                assert value == (f"v{key}" if STATUSES[status] == "ok" else None)
        for call in self.source.calls:
            assert call.call.attempt <= 3 + self.scene.keys - 1
        assert len([call for call in self.source.calls if not call.ended]) <= 3
        self.run.close()
        self.loop.finish(self.engine.close())
        assert not self.loop.timers
        assert not self.loop.ready
        assert all(call.ended for call in self.source.calls)


class _Once(bytearray):
    """Codes that may be written once."""

    def __setitem__(self, index: Any, status: Any) -> None:
        before = self[index] if isinstance(index, slice) else [self[index]]
        assert set(before) == {PENDING}, "a key was settled twice"
        super().__setitem__(index, status)


def race(wanted: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Play *wanted* distinct orders, as many of each scene."""
    seen: set[tuple[Scene, tuple[str, ...]]] = set()
    share = math.ceil(wanted / len(SCENES))
    step = math.factorial(len(EVENTS) + 1) // (4 * share)  # some permutations come to the same order of what happened
    for number, scene in enumerate(SCENES):
        found = 0
        for order in orders((*EVENTS, scene.last), number, step):
            with HandLoop() as loop:
                one = Race(scene, loop)
                trace = one.play(order)
                one.end()
            found += (scene, trace) not in seen
            seen.add((scene, trace))
            if found == share:
                break
    with capsys.disabled():
        print(f"\n{len(seen):,} distinct orders around the deadline, {len(SCENES)} scenes")  # noqa: T201
    assert len(seen) >= wanted


def test_a_retry_that_is_due_at_the_deadline_is_one_outcome_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    race(2_000, capsys)


@pytest.mark.slow
def test_a_retry_that_is_due_at_the_deadline_is_one_outcome_in_a_tenth_of_the_orders(
    capsys: pytest.CaptureFixture[str],
) -> None:
    race(10_000, capsys)


@pytest.mark.more
@pytest.mark.timeout(3600)
def test_a_retry_that_is_due_at_the_deadline_is_one_outcome_in_100_000_orders(
    capsys: pytest.CaptureFixture[str],
) -> None:
    race(100_000, capsys)
