"""
Pytest fixtures for throw-away real servers, for the tests of enrichkit and of plugins.

A plugin loads these fixtures with `addopts = "-p enrichkit.testing.fixtures"` in its `pyproject.toml`. If a server
cannot start, the test ends with an error. The test is never skipped, because a test that did not run must not look like
a test that passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from enrichkit import local

from . import ConnectorContract
from .contract.fork_server import ForkServer

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pyspark.sql import SparkSession


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--connect", action="store_true", help="run tests that need Spark on Spark Connect instead of classic Spark"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "spark: needs a Spark session")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Before the first test of the run, start the fork server of `ConnectorContract`, if any test needs it."""
    if item is item.session.items[0] and any(issubclass(cls, ConnectorContract) for cls in _classes(item.session)):
        ForkServer.start()
    return (yield)


def pytest_sessionfinish() -> None:
    ForkServer.stop()


def _classes(session: pytest.Session) -> set[type]:
    return {item.cls for item in session.items if isinstance(item, pytest.Function) and item.cls is not None}


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The only Spark session of this process: classic, or Spark Connect with the option `--connect`."""
    with local.spark(connect=request.config.getoption("--connect")) as session:
        yield session


@pytest.fixture(scope="session")
def redis_server() -> Iterator[local.RedisServer]:
    """A Redis server (Valkey where Redis is not installed) that tests share; `redis_url` empties it for each test."""
    with local.redis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: local.RedisServer) -> str:
    """The URL of an empty Redis server."""
    redis_server.flush()
    return redis_server.url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[local.PostgresServer]:
    """A PostgreSQL server that all tests share; `postgres_dsn` gives each test a database of its own."""
    with local.postgres() as server:
        yield server


@pytest.fixture
def postgres_dsn(postgres_server: local.PostgresServer) -> Iterator[str]:
    """The DSN of an empty database that only this test uses."""
    dsn = postgres_server.create_database()
    yield dsn
    postgres_server.drop_database(dsn)


@pytest.fixture(scope="session")
def http_server() -> Iterator[local.HttpService]:
    """An HTTP service that all tests share; `http_service` resets it for each test."""
    with local.http() as service:
        yield service


@pytest.fixture
def http_service(http_server: local.HttpService) -> local.HttpService:
    """The shared HTTP service, without seeded values or scripted faults, with the log on and all counters at zero."""
    http_server.reset()
    http_server.script(log=True)
    return http_server
