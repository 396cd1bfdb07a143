"""A worker process that may open no more files: the message of each connector names the limit, not the server."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from enrichkit import local

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.service, pytest.mark.slow]

EXHAUSTED = "the worker process may open no more files (ulimit -n is 64). Raise that limit, or lower capacity."

PROGRAM = """
    import asyncio, os, resource, time
    from enrichkit.errors import ConnectorError
    from enrichkit.plugin import Call
    from enrichkit.testing import open_connector
    {imports}

    held = []

    def exhaust():
        # Half a second, because a thread of the first lookup's client may close its sockets meanwhile.
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                time.sleep(0.01)

    async def ask():
        async with open_connector({config}) as connector:  # what is imported at the first lookup is imported now
            await connector.fetch_many([1], Call(timeout=10.0))
        {before}
        async with open_connector({config}) as connector:
            exhaust()
            await connector.fetch_many([1], Call(timeout=10.0))

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        asyncio.run(ask())
    except ConnectorError as error:
        for each in held:
            os.close(each)
        print(type(error).__name__, error, sep="\\n")
"""


def told(imports: str, config: str, before: str = "") -> list[str]:
    """
    Return the lines that a process prints: the class and the message of the error of its lookup.

    Args:
        imports: The import of the config.
        config: The expression that makes it.
        before: What runs between the first lookup, which works, and the next `open`: `exhaust()` for a connector that
            connects in `open`.
    """
    program = textwrap.dedent(PROGRAM).format(imports=imports, config=config, before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def mariadb_server() -> Iterator[local.MariadbServer]:
    with local.mariadb() as server:
        yield server


def test_redis_says_which_limit_allows_no_connection(redis_url: str) -> None:
    where = redis_url.removeprefix("redis://").partition("/")[0]
    name, message = told("from enrichkit_redis import RedisConfig", f"RedisConfig(url={redis_url!r})")
    assert ("UnavailableError", f"Redis at {where} cannot be reached: {EXHAUSTED}") == (name, message)


def test_postgres_says_which_limit_allows_no_connection(
    postgres_server: local.PostgresServer, postgres_dsn: str
) -> None:
    postgres_server.execute("CREATE TABLE t AS SELECT 1 AS id, 2 AS score", postgres_dsn.rpartition("/")[2])
    where = f"{postgres_server.host}:{postgres_server.port}"
    config = f"PostgresConfig(dsn={postgres_dsn!r}, table='t')"
    name, message = told("from enrichkit_postgres import PostgresConfig", config, "exhaust()")
    assert ("UnavailableError", f"PostgreSQL at {where} cannot be reached: {EXHAUSTED}") == (name, message)


@pytest.mark.apt
def test_mariadb_says_which_limit_allows_no_connection(mariadb_server: local.MariadbServer) -> None:
    mariadb_server.execute("CREATE DATABASE shop; CREATE TABLE shop.t AS SELECT 1 AS id, 2 AS score")
    where = f"{mariadb_server.host}:{mariadb_server.port}"
    name, message = told(
        "from enrichkit_mariadb import MariadbConfig",
        f"MariadbConfig(url='{mariadb_server.url}/shop', table='t', tls=False)",
        "exhaust()",
    )
    assert ("UnavailableError", f"MariaDB at {where} cannot be reached: {EXHAUSTED}") == (name, message)


def test_http_says_which_limit_allows_no_connection(http_service: local.HttpService) -> None:
    config = f"HttpConfig(url='{http_service.url}/{{}}', returns='score int')"
    name, message = told("from enrichkit_http import HttpConfig", config)
    assert ("UnavailableError", f"No connection to {http_service.url}: {EXHAUSTED}") == (name, message)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_client_of_http_says_that_it_cannot_be_made(http_service: local.HttpService, scheme: str) -> None:
    """It reads the certificates of the system, whatever the scheme."""
    used = f"HttpConfig(url='{http_service.url}/{{}}', returns='score int')"
    refused = f"HttpConfig(url='{scheme}://127.0.0.1:1/{{}}', returns='score int')"
    before = f"exhaust(); await open_connector({refused}).__aenter__()"
    name, message = told("from enrichkit_http import HttpConfig", used, before)
    assert ("UnavailableError", f"The HTTP client cannot be made: {EXHAUSTED}") == (name, message)
