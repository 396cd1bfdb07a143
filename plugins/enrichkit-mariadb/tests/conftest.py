"""Fixtures: a MariaDB server for all tests of this folder, and an empty database for each test."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_mariadb import MariadbConfig, MariadbConnector

from enrichkit import local
from enrichkit.errors import ConnectorError
from enrichkit.plugin import Call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[local.MariadbServer]:
    with local.mariadb() as server:
        yield server


@pytest.fixture
def url(mariadb_server: local.MariadbServer) -> Iterator[str]:
    """The URL of an empty database that only this test uses."""
    url = mariadb_server.create_database()
    yield url
    mariadb_server.drop_database(url)


@pytest.fixture
def sql(mariadb_server: local.MariadbServer, url: str) -> Callable[[str], str]:
    """The function that runs statements in the database of this test."""
    return lambda text: mariadb_server.execute(text, database=url.rpartition("/")[2])


@pytest.fixture
def users(sql: Callable[[str], str], url: str) -> str:
    """The URL of a database with 1,000 users; user i has the name `name<i>` and the tier i % 5."""
    sql("CREATE TABLE users (id int PRIMARY KEY, name varchar(50), tier int)")
    sql("INSERT INTO users SELECT seq, concat('name', seq), seq % 5 FROM seq_0_to_999")
    return url


class Ask:
    """Functions that open a connector and use it, each call on a new event loop."""

    @contextlib.asynccontextmanager
    async def opened(self, url: str, *, capacity: int = 4, **config: Any) -> AsyncIterator[MariadbConnector]:
        connector = MariadbConnector(MariadbConfig(url=url, **config))
        connector.capacity = capacity  # as the engine sets it before `open`
        try:
            await connector.open()
            yield connector
        finally:
            await connector.close()

    def lookup(self, url: str, keys: Sequence[Any], *, many: bool = False, **config: Any) -> dict[Any, Any]:
        async def run() -> dict[Any, Any]:
            async with self.opened(url, **config) as connector:
                return dict(await connector.fetch_many(keys, Call(timeout=20, many=many)))

        return asyncio.run(run())

    def describe(self, url: str, **config: Any) -> str | None:
        async def run() -> str | None:
            async with self.opened(url, **config) as connector:
                return await connector.describe()

        return asyncio.run(run())

    def failure(self, url: str, keys: Sequence[Any] = (1,), **config: Any) -> ConnectorError:
        with pytest.raises(ConnectorError) as caught:
            self.lookup(url, keys, **config)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__ or caught.value.__context__ is None
        return caught.value


@pytest.fixture(scope="session")
def ask() -> Ask:
    return Ask()
