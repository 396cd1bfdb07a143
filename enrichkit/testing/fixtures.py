"""
Pytest fixtures on throw-away real servers, for enrichkit's tests and for those of a plugin.

A plugin's `conftest.py` says `pytest_plugins = ["enrichkit.testing.fixtures"]`. A server that cannot start is an error,
never a skip: a test that did not run must not look like one that passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from enrichkit import local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--connect", action="store_true", help="run tests that need Spark on Spark Connect instead of classic Spark"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "spark: needs a Spark session")


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The one Spark session of this process: classic, or Spark Connect with `--connect`."""
    with local.spark(connect=request.config.getoption("--connect")) as session:
        yield session


@pytest.fixture(scope="session")
def redis_server() -> Iterator[local.RedisServer]:
    """A Redis server, or Valkey where there is no Redis; shared by all tests, see `redis_url`."""
    with local.redis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: local.RedisServer) -> str:
    """The URL of a server that holds nothing."""
    redis_server.flush()
    return redis_server.url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[local.PostgresServer]:
    """A PostgreSQL server, shared by all tests, see `postgres_dsn`."""
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
    """The process of the HTTP service, shared by all tests, see `http_service`."""
    with local.http() as service:
        yield service


@pytest.fixture
def http_service(http_server: local.HttpService) -> local.HttpService:
    """The HTTP service as after its start, with the log on."""
    http_server.reset()
    http_server.script(log=True)
    return http_server
