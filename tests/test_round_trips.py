"""The round trips of a new connection before its first answer: what being back costs after a break."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest
from enrichkit_postgres import PostgresConfig

from benchmarks.random_faults import SOURCES
from enrichkit.plugin import Call
from enrichkit.testing import open_connector
from enrichkit.testing.proxy import fault_proxy

if TYPE_CHECKING:
    from enrichkit import ConnectorConfig, local
    from enrichkit.testing.proxy import Chunk, FaultProxy

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
    with SOURCES[name]() as source:
        requests = requests_of_second_connection(source.config, source.proxy, "1" if name in ("http", "redis") else 1)
    assert len(requests) == trips, requests


@pytest.mark.parametrize("table", ["plain", "with_enum"])
def test_a_login_with_a_password_takes_postgres_two_round_trips_more(
    postgres_server: local.PostgresServer, postgres_dsn: str, table: str
) -> None:
    """SCRAM has two questions of its own. The labels of an enum are read by the first connection only."""
    role = f"app_{uuid.uuid4().hex[:8]}"
    postgres_server.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TABLE plain AS SELECT 1 AS id, 2 AS score;"
        "CREATE TABLE with_enum AS SELECT 1 AS id, 'sad'::mood AS mood;"
        "DO $$ BEGIN CREATE ROLE with_password; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
        f"CREATE ROLE {role} LOGIN PASSWORD 'S3cret' IN ROLE with_password; GRANT SELECT ON plain, with_enum TO {role}",
        postgres_dsn.rpartition("/")[2],
    )
    with fault_proxy(postgres_server.host, postgres_server.port) as proxy:
        dsn = proxy.url(postgres_dsn).replace("postgres@", f"{role}@")
        requests = requests_of_second_connection(PostgresConfig(dsn=dsn, table=table, password="S3cret"), proxy, 1)
    assert len(requests) == 5, requests


def requests_of_second_connection(config: ConnectorConfig, proxy: FaultProxy, key: int | str) -> list[bytes]:
    """Return what a client sends on its second connection, up to its first answer, in one piece for each time."""
    sent: list[Chunk] = []

    def note(chunk: Chunk) -> float:
        sent.append(chunk)
        return 0.0

    async def look_up() -> list[bytes]:
        async with open_connector(config, capacity=1) as connector:
            assert await connector.fetch_many((key,), Call(timeout=10.0)) != {}
            proxy.cut()
            await asyncio.sleep(0.05)
            new = proxy.opened
            assert await connector.fetch_many((key,), Call(timeout=10.0)) != {}
            assert proxy.opened == new + 1
            return [chunk.data for chunk in sent if chunk.connection == new]

    proxy.delay(note, direction="to server")
    return asyncio.run(look_up())
