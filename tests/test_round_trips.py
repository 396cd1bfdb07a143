"""The round trips of a new connection before its first answer: what being back costs after a break."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from benchmarks.random_faults import SOURCES, Source
from enrichkit.plugin import Call
from enrichkit.testing import open_connector

if TYPE_CHECKING:
    from enrichkit.testing.proxy import Chunk

pytestmark = pytest.mark.service


@pytest.mark.parametrize(
    ("name", "trips"),
    [
        ("http", 1),  # the request
        ("redis", 2),  # login, name of the client and echo together; the keys
        ("postgres", 3),  # start with all settings, without a password; the statement; the keys
        pytest.param("mariadb", 3, marks=pytest.mark.apt),  # after the server's greeting: login; settings; the keys
    ],
)
def test_a_new_connection_needs_few_round_trips(name: str, trips: int) -> None:
    """After the first connection of a source, which also reads what a table has; TCP and TLS need theirs besides."""
    key = "1" if name in ("http", "redis") else 1
    sent: list[Chunk] = []

    def note(chunk: Chunk) -> float:
        sent.append(chunk)
        return 0.0

    async def look_up(source: Source) -> list[bytes]:
        proxy = source.proxy
        async with open_connector(source.config, capacity=1) as connector:
            assert await connector.fetch_many((key,), Call(timeout=10.0)) != {}
            proxy.cut()
            await asyncio.sleep(0.05)
            new = proxy.opened
            assert await connector.fetch_many((key,), Call(timeout=10.0)) != {}
            assert proxy.opened == new + 1
            return [chunk.data for chunk in sent if chunk.connection == new]

    with SOURCES[name]() as source:
        source.proxy.delay(note, direction="to server")
        requests = asyncio.run(look_up(source))
    assert len(requests) == trips, requests
