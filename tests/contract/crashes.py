"""Connectors that end their process when a connection is lost; `test_contract_crashes.py` runs their contract tests."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.local.process import start, stop

from .sample import Line, SampleConfig, SampleConnector, SampleContract, server

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["server"]


@pytest.fixture(scope="module", autouse=True)
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A server process, which must not outlive the tests."""
    running = start(["sleep", "600"], log=tmp_path_factory.mktemp("sleep") / "log")
    yield
    assert running.poll() is None, "the processes of the checks must leave the server alone"
    stop(running)


@dataclass(frozen=True, kw_only=True)
class SegfaultConfig(SampleConfig):
    """The config of a connector with a client package that crashes."""


class SegfaultConnector(SampleConnector):
    config_class = SegfaultConfig

    async def exchange(self, line: Line, request: dict[str, Any]) -> Any:
        try:
            return await super().exchange(line, request)
        except OSError:
            os.kill(os.getpid(), signal.SIGSEGV)
            signal.pause()  # another thread handles the signal


@dataclass(frozen=True, kw_only=True)
class ExitConfig(SampleConfig):
    """The config of a connector that gives up for its whole process."""


class ExitConnector(SampleConnector):
    config_class = ExitConfig

    async def exchange(self, line: Line, request: dict[str, Any]) -> Any:
        try:
            return await super().exchange(line, request)
        except OSError:
            os._exit(3)


class TestSegfault(SampleContract):
    kind = SegfaultConnector


class TestExit(SampleContract):
    kind = ExitConnector
