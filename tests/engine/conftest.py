"""
Fixtures of the engine's tests.

A test here may be a coroutine, which takes `lab`. It runs under virtual time; one that also takes `clock` runs a second
time in real time on uvloop.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from enrichkit.engine.engine import Engine
from enrichkit.engine.limits import Breaker
from enrichkit.engine.loop import LoopThread
from enrichkit.engine.run import Run
from enrichkit.options import Options
from enrichkit.testing import clock as virtual

from .bench import Lab, SparkThread, ThreadTask, end_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from enrichkit.engine.consumer import Consumer
    from enrichkit.engine.sizes import BytesEach
    from enrichkit.testing.scripted import ScriptedConnector


@pytest.fixture
def lab() -> Lab:
    """The test bench; made before the loop, so nothing in it touches one yet."""
    return Lab()


@pytest.fixture(params=["virtual", "uvloop"])
def clock(request: pytest.FixtureRequest) -> str:
    """Runs the test under virtual time, and again in real time on uvloop."""
    return str(request.param)


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """A loop thread of its own, which ends with the test, dead or alive."""
    made = LoopThread()
    yield made
    end_thread(made)


@pytest.fixture
def spark_thread(thread: LoopThread) -> Iterator[SparkThread]:
    """A maker of tasks on `thread`, or on another loop thread, which then ends with the test too."""
    others: set[LoopThread] = set()

    def make(
        server: ScriptedConnector,
        *,
        loop: LoopThread | None = None,
        capacity: int = 4,
        batch_size: int = 1,
        window: int = 1000,
        start: int | None = None,
        ordered: bool = True,
        consumer: Consumer | None = None,
        row_bytes: BytesEach | None = None,
        **options: Any,
    ) -> ThreadTask:
        if loop is not None:
            others.add(loop)

        settings = Options(**options)

        def run(engine: Engine, emit: Callable[[Any], None]) -> Run:
            return Run(
                engine,
                "scripted",
                settings,
                lambda raws: (list(raws), {}),
                emit,
                batch_size=batch_size,
                ordered=ordered,
                seed=1,
            )

        return ThreadTask(
            loop or thread,
            f"engine {id(server)}",
            lambda: Engine(server, capacity, seed=1),
            run,
            settings,
            window=window,
            start=window if start is None else start,
            consumer=consumer,
            row_bytes=row_bytes,
        )

    yield make
    for other in others:
        end_thread(other)


@pytest.fixture
def no_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of retries: a source that fails all the time is asked as often as if it did not."""
    monkeypatch.setattr(Breaker, "FLOOR", 10**9)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, and close its lab on the same loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    scene = _scene(pyfuncitem.obj(**arguments), arguments.get("lab"))
    if arguments.get("clock") == "uvloop":
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(scene)
    else:
        virtual.run(scene)
    return True


async def _scene(test: Awaitable[None], lab: Lab | None) -> None:
    try:
        await test
    finally:
        # A slot that is inside a call takes a foreign cancellation for its connector's, so slots must be ended so.
        if lab is not None:
            await lab.close()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, "tasks of the engine outlive it"
