"""The contract kit on every PostgreSQL at hand, on text, whole and several key columns, and behind PgBouncer."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_postgres import PostgresConfig, PostgresConnector

from enrichkit import local
from enrichkit.testing import ConnectorContract

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.service

NAMES = {"plain": "one", "o'clock": "two", 'a"b': "", "\N{SNOWMAN} man": "drei", "back\\slash": "%s", " ": "x"}

# The gate tells the same on each machine, so a server that happens to be on its PATH is looked at on demand.
SERVERS = [pytest.param(kind, marks=pytest.mark.more if kind == "path" else ()) for kind in local.postgres_servers()]


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[local.PostgresServer]:
    """Every PostgreSQL at hand, with tables that no connector can change."""
    with local.postgres(request.param) as server:
        server.execute(
            "CREATE TABLE names (id text PRIMARY KEY, name text); CREATE TABLE users (id int PRIMARY KEY, name text, "
            "tier int); CREATE TABLE stays (tenant text, id bigint, name text, PRIMARY KEY (tenant, id));"
            "INSERT INTO users SELECT i, 'name' || i, i FROM generate_series(1, 5) AS i;"
            "CREATE TABLE days (id int PRIMARY KEY, day date, tier int);"
            "INSERT INTO days VALUES (1, '2020-02-29', 1), (2, '9999-12-31', 2), (3, NULL, 3), (4, 'infinity', 4), "
            "(5, '-infinity', 5), (6, '10000-01-01', 6);"
            "CREATE VIEW inverse AS SELECT id, day, 60 / (id % 7) AS part FROM days;"
            "INSERT INTO days VALUES (7, '2020-01-01', 0), (14, '2020-01-01', 0), (70, '2020-01-01', 0)"
        )
        for n, (key, name) in enumerate(NAMES.items()):
            server.execute(f"INSERT INTO names VALUES ($q${key}$q$, $q${name}$q$)")
            server.execute(f"INSERT INTO stays VALUES ($q${key}$q$, {2**40 + n}, $q${name}$q$)")
        yield server


class OneTable(ConnectorContract):
    @pytest.fixture
    def address(self, server: local.PostgresServer) -> tuple[str, int]:
        return server.host, server.port


class TestTextKeys(OneTable):
    @pytest.fixture
    def connector(self, server: local.PostgresServer) -> PostgresConnector:
        return PostgresConnector(PostgresConfig(dsn=server.dsn, table="names"))

    @pytest.fixture
    def known(self) -> dict[Any, Any]:
        return NAMES

    @pytest.fixture
    def missing_key(self) -> Any:
        return "nobody"


@pytest.mark.slow
class TestSeveralColumnsByQuery(OneTable):
    @pytest.fixture
    def connector(self, server: local.PostgresServer) -> PostgresConnector:
        query = "SELECT id, tier, name FROM users WHERE id = ANY($1)"
        return PostgresConnector(PostgresConfig(dsn=server.dsn, query=query))

    @pytest.fixture
    def known(self) -> dict[Any, Any]:
        return {n: {"tier": n, "name": f"name{n}"} for n in range(1, 6)}

    @pytest.fixture
    def missing_key(self) -> Any:
        return -1


@pytest.mark.slow
class TestBadRows(OneTable):
    """A view that divides by zero in some rows, and has dates in others that Spark does not hold."""

    @pytest.fixture
    def connector(self, server: local.PostgresServer) -> PostgresConnector:
        return PostgresConnector(PostgresConfig(dsn=server.dsn, table="inverse"))

    @pytest.fixture
    def known(self) -> dict[Any, Any]:
        days = {1: date(2020, 2, 29), 2: date(9999, 12, 31), 3: None}
        return {n: {"day": day, "part": 60 // n} for n, day in days.items()}

    @pytest.fixture
    def unreadable(self) -> Sequence[Any]:
        return [4, 5, 6, 7, 14, 70]

    @pytest.fixture
    def missing_key(self) -> Any:
        return -1


@pytest.mark.slow
class TestSeveralKeyColumns(OneTable):
    @pytest.fixture
    def connector(self, server: local.PostgresServer) -> PostgresConnector:
        return PostgresConnector(PostgresConfig(dsn=server.dsn, table="stays", key=("tenant", "id")))

    @pytest.fixture
    def known(self) -> dict[Any, Any]:
        return {(key, 2**40 + n): name for n, (key, name) in enumerate(NAMES.items())}

    @pytest.fixture
    def missing_key(self) -> Any:
        return "plain", 2**40 + 1


class TestWritable(OneTable):
    """A table of its own for each check, as it changes."""

    @pytest.fixture
    def connector(self, server: local.PostgresServer) -> PostgresConnector:
        config = PostgresConfig(dsn=server.dsn, table="kept", key=("tenant", "id"), expires="until", writable=True)
        return PostgresConnector(config)

    @pytest.fixture
    def known(self, server: local.PostgresServer) -> dict[Any, Any]:
        server.execute(
            "DROP TABLE IF EXISTS kept; CREATE TABLE kept (tenant text, id uuid, name text, tier int, "
            "until timestamptz, PRIMARY KEY (id, tenant))"
        )
        known = {}
        for n, (key, name) in enumerate(NAMES.items()):
            uuid = f"00000000-0000-0000-0000-00000000000{n}"
            server.execute(f"INSERT INTO kept VALUES ($q${key}$q$, '{uuid}', $q${name}$q$, {n})")
            known[key, uuid] = {"name": name, "tier": n}
        return known

    @pytest.fixture
    def missing_key(self) -> Any:
        return "nobody", "00000000-0000-0000-0000-000000000000"


@pytest.mark.apt
class TestWritableBehindPgbouncer(TestWritable):
    @pytest.fixture
    def connector(self, pooler: int) -> PostgresConnector:
        dsn = f"postgresql://postgres@127.0.0.1:{pooler}/postgres"
        config = PostgresConfig(
            dsn=dsn, table="kept", key=("tenant", "id"), expires="until", writable=True, pgbouncer=True
        )
        return PostgresConnector(config)

    @pytest.fixture
    def address(self, pooler: int) -> tuple[str, int]:
        return "127.0.0.1", pooler


@pytest.mark.apt
class TestBehindPgbouncer(TestTextKeys):
    @pytest.fixture
    def connector(self, pooler: int) -> PostgresConnector:
        dsn = f"postgresql://postgres@127.0.0.1:{pooler}/postgres"
        return PostgresConnector(PostgresConfig(dsn=dsn, table="names", pgbouncer=True))

    @pytest.fixture
    def address(self, pooler: int) -> tuple[str, int]:
        return "127.0.0.1", pooler


@pytest.fixture(scope="module")
def pooler(server: local.PostgresServer) -> Iterator[int]:
    with local.pgbouncer(server) as port:
        yield port
