"""
Queue, dispatch, deadlines and retries as a state machine: Hypothesis looks for a sequence of steps that breaks a rule.

The steps are those that the outside world can make: a slice or a barrier comes, a call ends somehow, time passes, Spark
takes rows or does not, the input ends, the task is closed. After each of them the books of the simulation are checked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from enrichkit.engine import admission
from enrichkit.engine.cache import AnswerCache
from enrichkit.engine.engine import Engine
from enrichkit.engine.queues import Window
from enrichkit.engine.run import Run
from enrichkit.errors import PermanentError, TransientError
from enrichkit.interface import Failure, Keys, TaskInfo
from enrichkit.options import Options, Retry, default
from enrichkit.outcome import Outcomes

from .by_hand import HandLoop, HandSource
from .columns import column_of, in_columns
from .invariants import RunWatch
from .story import Kind, Plan, RunPlan, Weather, value_of
from .watch import Watch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from enrichkit.engine.records import Part
    from enrichkit.interface import Call

KINDS = {
    "a": Kind.APPEARING,
    "b": Kind.APPEARING,
    "c": Kind.PLAIN,
    "d": Kind.NULL,
    "e": Kind.REFUSED,
    "f": Kind.MISSING,
}
"""Keys that may be found or not, that are found, one with a null, one that is refused, one that is missing."""
CALM = Weather(
    unit=1.0,
    latency=0.0,
    instant=0.0,
    near=0.0,
    late=0.0,
    never=0.0,
    transient=0.0,
    failing=0.0,
    odd=0.0,
    stubborn=0.0,
    outage=(0.0, 0.0),
    absent=False,
    full=None,
    asks_to_wait=None,
    slow_open=0.0,
    shaky_open=False,
)
FALLBACKS = {"on_timeout": "decoded for timeout", "on_error": "decoded for error", "on_missing": "decoded for missing"}
WINDOW = 25


class WatchedSource(HandSource):
    """A source whose calls are in the books."""

    watch: Watch

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Any:
        try:
            flight = self.watch.called(keys, call)
        except AssertionError as broken:
            self.watch.broken.append(broken)  # the engine takes what a connector raises for a failed lookup
            raise
        try:
            flight.answers = await super().fetch_many(keys, call)
        except BaseException as error:
            flight.error = error
            raise
        finally:
            self.watch.ended(flight)
        return in_columns(flight.answers) if self.watch.plan.in_columns else flight.answers


class WatchedSourceOfColumns(WatchedSource):
    """Takes keys in columns, too."""

    key_columns = True


class EngineMachine(RuleBasedStateMachine):
    """
    One engine, one task, and what may happen to them.

    Attributes:
        flags: What has happened to any of them.
    """

    flags: ClassVar[set[str]] = set()

    @initialize(
        capacity=st.integers(1, 3),
        batch_size=st.integers(1, 4),
        ordered=st.booleans(),
        details=st.booleans(),
        cached=st.booleans(),
        times=st.sampled_from([(1.0, None), (1.0, 0.4), (None, 0.4), (0.05, None)]),
        retry=st.sampled_from(
            [None, Retry(), Retry(2, 0.0), Retry(4, 0.3, jitter="none"), Retry(3, 0.01, on_missing=True)]
        ),
        policies=st.tuples(*[st.sampled_from(["null", default("raw")])] * 3),
        window_bytes=st.sampled_from([64 * 2**20, 1024]),
        neighbours=st.booleans(),
        columns=st.booleans(),
        keys_in_columns=st.booleans(),
        told=st.booleans(),
    )
    def begin(
        self,
        capacity: int,
        batch_size: int,
        ordered: bool,
        details: bool,
        cached: bool,
        times: tuple[float | None, float | None],
        retry: Retry | None,
        policies: Sequence[Any],
        window_bytes: int,
        neighbours: bool,
        columns: bool,
        keys_in_columns: bool,
        told: bool,
    ) -> None:
        if retry and retry.jitter == "none" and retry.wait >= (times[0] or 1.0):
            retry = None  # refused, as no second attempt would ever happen
        options = Options(
            timeout=times[0],
            attempt_timeout=times[1],
            retry=retry,
            details=details,
            window_bytes=window_bytes,
            max_fallback_ratio=1.0,
            stall_timeout=86_400.0,
            **dict(zip(FALLBACKS, policies, strict=True)),
        )
        plan = RunPlan(options, FALLBACKS, ordered, (), WINDOW, WINDOW, None, None)
        self.loop = HandLoop()
        self.loop.__enter__()
        story = Plan(0, capacity, batch_size, None, KINDS, CALM, (plan,), in_columns=columns)
        self.watch = Watch(story, self.loop.time)
        self.source = WatchedSourceOfColumns() if keys_in_columns else WatchedSource()
        self.told = told and ordered
        self.source.watch = self.watch
        self.watch.engine = self.engine = Engine(self.source, capacity, seed=0)
        self.run = Run(
            self.engine,
            "machine",
            options,
            lambda raws: (list(raws), {}),
            self._emit,
            batch_size=batch_size,
            ordered=ordered,
            default_values=FALLBACKS,
            cache=AnswerCache(1.0, 2**20, None) if cached else None,
            task=TaskInfo(partition=0),
            seed=0,
            neighbours=neighbours,
            columns=column_of,
        )
        close = self.run.close
        self.run.close = lambda: (close(), self.watch.closes(0))[0]  # type: ignore[func-returns-value, method-assign]
        self.watched = RunWatch(self.watch, plan, 0, self.run)
        self.watch.runs.append(self.watched)
        self.window = Window(WINDOW)
        self.ready: list[Part] = []  # has left the run, and Spark has not taken it
        self.rows = self.segment = 0
        self.ended = False  # no slice comes any more

    def _emit(self, parts: Any) -> None:
        assert not isinstance(parts, BaseException), parts
        self.watched.emitted(parts)
        self.ready += parts

    def _step(self) -> None:
        self.loop.run()
        for broken in self.watch.broken:
            raise broken
        self.watch.quiet(self.loop.now)

    def _held(self) -> list[Any]:
        return [call for call in self.source.calls if not call.ended]

    # what may happen

    @rule(
        keys=st.lists(st.sampled_from(list(KINDS)), unique=True, max_size=6),
        rows=st.integers(1, 2),
        nulls=st.sampled_from([0, 0, 2]),
        told=st.sampled_from([True, True, False]),
    )
    def admit(self, keys: list[Any], rows: int, nulls: int, told: bool) -> None:
        size = len(keys) * rows + nulls
        if self.ended or not self.window.admits(size):
            return
        self.window.enter(size)
        self.rows += size
        counts, given = [rows] * len(keys), keys
        if self.source.key_columns:
            given = Keys([pa.array(keys, pa.string())], keys)
        outcomes = Outcomes(given, size, self.segment, details=self.run.options.details, counts=counts)
        outcomes.apart = self.told and told and self.watched.is_apart(outcomes)
        admission.admit(self.run, outcomes)
        self._step()

    @rule()
    def barrier(self) -> None:
        if not self.ended:
            self.run.admit_barrier(self.segment)
            self.segment += 1
            self._step()

    @precondition(lambda self: self._held())
    @rule(which=st.integers(0, 2), how=st.data())
    def answer(self, which: int, how: st.DataObject) -> None:
        held = self._held()
        call = held[which % len(held)]
        answer = how.draw(
            st.one_of(
                st.fixed_dictionaries({key: answers_of(key) for key in call.keys}).map(without_misses),
                st.sampled_from(
                    [
                        TransientError("busy"),
                        TransientError("busy", retry_after=0.2),
                        PermanentError("poison"),
                        ValueError("odd"),
                        asyncio.CancelledError(),
                        GeneratorExit(),
                    ]
                ),
            )
        )
        note(f"{call.keys} -> {answer!r}")
        call.answer(answer)
        self._step()

    @rule(seconds=st.sampled_from([0.01, 0.06, 0.3, 1.1, 7.0]))
    def advance(self, seconds: float) -> None:
        self.loop.advance(seconds)
        self._step()

    @rule()
    def take_everything(self) -> None:
        taken, self.ready = self.ready, []
        for part in taken:
            self.window.leave(part.rows)
            self.watched.taken_rows += part.rows
            self.run.taken_bytes += part.bytes
            self.watched.done_with(part)
        if self.run.held_back:
            self.run.resume()
        self._step()

    @rule(really=st.integers(0, 5))
    def end_input(self, really: int) -> None:
        if really == 0:
            self.ended = True
            self._step()

    @rule(really=st.integers(0, 5))
    def close(self, really: int) -> None:
        if really == 0:
            self.run.close()
            self._step()
            assert not self._held(), "a call goes on although its run was closed"

    def teardown(self) -> None:
        try:
            if hasattr(self, "window"):
                self._end()
                self.flags.update(self.watch.flags)
        finally:
            asyncio._set_running_loop(None)

    def _end(self) -> None:
        """Let everything be answered, and look whether all is well in the end."""
        for _ in range(1000):
            self.take_everything()
            if not self.window.held or self.run.closed:
                break
            for call in self._held():
                call.answer(without_misses({key: KNOWN[key] for key in call.keys}))
            self.advance(0.05)
        if not self.run.closed:
            self.watched.complete(self.rows)
            self.run.close()
        self.advance(1.0)
        self.watched.over()
        self.loop.finish(self.engine.close())
        assert not self.loop.timers


ABSENT: Any = object()
KNOWN: dict[Any, Any] = {
    key: Failure(PermanentError("no"), rejected=True)
    if kind == Kind.REFUSED
    else ABSENT
    if kind == Kind.MISSING
    else value_of(key, kind)
    for key, kind in KINDS.items()
}


def answers_of(key: Any) -> st.SearchStrategy[Any]:
    """What the source may say of *key*: the truth, or that it could not tell."""
    choices = [KNOWN[key], KNOWN[key], Failure(TransientError("shaky")), Failure(TransientError("", retry_after=0.1))]
    if KINDS[key] == Kind.APPEARING:
        choices.append(ABSENT)
    return st.sampled_from(choices)


def without_misses(answers: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: answer for key, answer in answers.items() if answer is not ABSENT}


@pytest.mark.slow
def test_no_sequence_of_steps_breaks_a_rule() -> None:
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=300,
            stateful_step_count=40,
            derandomize=True,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert EngineMachine.flags >= {"apart", "entered later", "keys in columns"}
