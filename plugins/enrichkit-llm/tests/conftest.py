"""Fixtures: a scripted service of the OpenAI API, and one lookup in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit import local
from enrichkit.errors import ConnectorError
from enrichkit.plugin import Call
from enrichkit.testing import open_connector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from enrichkit.plugin import ConnectorConfig


@pytest.fixture(scope="session")
def running() -> Iterator[local.LlmService]:
    with local.llm_service() as service:
        yield service


@pytest.fixture
def service(running: local.LlmService) -> local.LlmService:
    """The service without faults and limits, with counters at zero and a log of its requests."""
    running.script(log=True)
    running.reset_stats()
    return running


class Reports:
    """What a call has reported to the engine."""

    def __init__(self) -> None:
        self.units: dict[str, float] = {}
        self.allowed: list[tuple[float, float]] = []

    def spent(self, units: Any) -> None:
        self.units.update(units)

    def allows(self, remaining: float, seconds: float, limit: float | None, unit: str) -> None:
        self.allowed.append((remaining, seconds))


@pytest.fixture
def asked() -> Callable[..., tuple[Any, Reports]]:
    """`asked(config, *keys)`: the answers to one call, or its error, and what the call has reported."""

    def run(config: ConnectorConfig, *keys: Any) -> tuple[Any, Reports]:
        reports = Reports()

        async def once() -> Any:
            async with open_connector(config, capacity=4) as connector:
                try:
                    return dict(await connector.fetch_many(keys, Call(timeout=5.0, meter=reports)))
                except ConnectorError as error:
                    return error

        return asyncio.run(once()), reports

    return run
