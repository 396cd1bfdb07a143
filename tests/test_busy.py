"""A source that has as many calls or connections as it takes, and refuses the others: they wait, and no row is lost."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import redis
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig

from enrichkit import local
from enrichkit.engine import loop
from enrichkit.testing.bench import wait_until

from .faults import INT, assert_good

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .sparkless import Row, Worker

pytestmark = pytest.mark.service

KEYS = list(range(4000))
ROOM = 3
"""Connections that the server still takes; a default job wants four."""
EACH = pytest.mark.parametrize(
    "crowded", ["redis", "postgres", pytest.param("mariadb", marks=pytest.mark.apt)], indirect=True
)


class Crowded(NamedTuple):
    """
    A source on a server with little room.

    Attributes:
        config: Config of the source.
        connections: Ask the server for the ids of the connections of the config.
        let_in: Set how many connections of the config the server takes.
    """

    config: Any
    connections: Callable[[], set[Any]]
    let_in: Callable[[int], object]


@pytest.fixture
def crowded(request: pytest.FixtureRequest) -> Iterator[Crowded]:
    """A source that holds each of `KEYS` with itself, on a server with little room."""
    user = f"reader_{uuid.uuid4().hex[:8]}"
    if request.param == "redis":
        with redis.Redis.from_url(request.getfixturevalue("redis_url")) as client:
            client.mset({f"k{n}": n for n in KEYS})
            others = {each["id"] for each in client.client_list()}
            crowded = Crowded(
                RedisConfig(url=request.getfixturevalue("redis_url"), key="k{}"),
                lambda: {each["id"] for each in client.client_list()} - others,
                lambda room: client.config_set("maxclients", len(others) + room),
            )
            crowded.let_in(ROOM)
            try:
                yield crowded
            finally:
                client.config_set("maxclients", 10_000)
    elif request.param == "postgres":
        server, dsn = request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_dsn")
        server.execute(
            "CREATE TABLE t AS SELECT n AS id, n AS score FROM generate_series(0, 3999) n;"
            f"CREATE ROLE {user} LOGIN CONNECTION LIMIT {ROOM}; GRANT SELECT ON t TO {user}",
            dsn.rpartition("/")[2],
        )
        yield Crowded(
            PostgresConfig(dsn=dsn.replace("postgres@", f"{user}@"), table="t"),
            lambda: {*server.execute(f"SELECT pid FROM pg_stat_activity WHERE usename = '{user}'").split()},
            lambda room: server.execute(f"ALTER ROLE {user} CONNECTION LIMIT {room}"),
        )
    else:
        from enrichkit_mariadb import MariadbConfig

        with local.mariadb() as server:
            url = server.create_database()
            name = url.rpartition("/")[2]
            server.execute(
                "CREATE TABLE t (PRIMARY KEY (id)) AS SELECT seq AS id, seq AS score FROM seq_0_to_3999", name
            )
            server.execute(f"CREATE USER {user}@'%' WITH MAX_USER_CONNECTIONS {ROOM}", name)
            server.execute(f"GRANT SELECT ON {name}.t TO {user}@'%'", name)
            yield Crowded(
                MariadbConfig(url=f"mariadb://{user}@{server.host}:{server.port}/{name}", table="t", tls=False),
                lambda: {
                    *server.execute(f"SELECT id FROM information_schema.processlist WHERE user = '{user}'").split()
                },
                lambda room: server.execute(f"ALTER USER {user}@'%' WITH MAX_USER_CONNECTIONS {room}"),
            )


@EACH
def test_a_server_with_room_for_three_of_four_connections_costs_no_row(crowded: Crowded, worker: Worker) -> None:
    rows, counters = worker.outcomes_of_two(crowded.config, INT, KEYS, batch_size=10, max_fallback_ratio=0.0)
    assert_good(rows, KEYS)
    assert {row["attempts"] for row in rows} == {1}
    assert counters["outages"] == 0


@EACH
def test_a_job_with_another_batch_size_uses_the_connections_of_an_earlier_one(crowded: Crowded, worker: Worker) -> None:
    used = []
    for batch_size in (10, 20):
        rows, _ = worker.outcomes_of_two(crowded.config, INT, KEYS, batch_size=batch_size, capacity=ROOM)
        assert_good(rows, KEYS)
        used.append(crowded.connections())
    assert used[0] == used[1]
    assert len(used[0]) == ROOM


@EACH
def test_connections_that_an_earlier_job_has_left_idle_make_room_for_the_next_one(
    crowded: Crowded, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with another `capacity` has connections of its own; idle ones close only after an hour here."""
    config, connections, _ = crowded
    monkeypatch.setattr(loop, "IDLE_AFTER", 3600.0)
    rows, _ = worker.outcomes_of_two(config, INT, KEYS, batch_size=10, capacity=ROOM)
    assert_good(rows, KEYS)
    idle, [first] = connections(), worker.thread.engines.values()
    assert len(idle) == ROOM
    assert wait_until(lambda: first.idle_since is not None)
    rows, _ = worker.outcomes_of_two(config, INT, KEYS, batch_size=10, capacity=ROOM - 1, max_fallback_ratio=0.0)
    assert_good(rows, KEYS)
    assert {row["attempts"] for row in rows} == {1}
    [second] = worker.thread.engines.values()
    assert second is not first
    assert wait_until(lambda: connections().isdisjoint(idle))
    assert 0 < len(connections()) < ROOM


@EACH
def test_two_jobs_with_connections_of_their_own_share_the_room(crowded: Crowded, worker: Worker) -> None:
    """They run at the same time, and another `capacity` has another pool."""

    def job(capacity: int) -> list[Row]:
        return worker.outcomes(crowded.config, INT, KEYS, batch_size=10, capacity=capacity, max_fallback_ratio=0.0)

    with ThreadPoolExecutor(2) as threads:
        for rows in threads.map(job, (ROOM, ROOM + 1)):
            assert_good(rows, KEYS)
            assert {row["attempts"] for row in rows} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("crowded", ["redis", "postgres"], indirect=True)
def test_a_server_without_any_room_for_a_while_costs_no_row(crowded: Crowded, worker: Worker) -> None:
    """Until it has been asked five times whether there is room. (For MariaDB a limit of 0 is none.)"""
    crowded.let_in(0)

    def asked() -> int:
        return max((engine.gate.outage.probes for engine in [*worker.thread.engines.values()]), default=0)

    def make_room() -> None:
        assert wait_until(lambda: asked() >= 5)
        crowded.let_in(ROOM)

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(make_room)
        rows, _ = worker.outcomes_of_two(crowded.config, INT, KEYS, batch_size=10, max_fallback_ratio=0.0)
        done.result()
    assert_good(rows, KEYS)
    assert {row["attempts"] for row in rows} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 503])
def test_a_service_that_takes_thirty_calls_at_once_costs_no_row(
    worker: Worker, http_service: local.HttpService, status: int
) -> None:
    http_service.script(latency=0.02, at_once=30, refusal=status)
    config = HttpConfig(url=f"{http_service.url}/{{}}", value="score")
    keys = [f"u{n}" for n in range(3000)]
    rows, counters = worker.outcomes_of_two(config, INT, keys, max_fallback_ratio=0.0)
    assert_good(rows, [local.value_of(key)["score"] for key in keys])
    assert {row["attempts"] for row in rows} == {1}
    # How often it refuses depends on the machine's pace. In virtual time it is at most a fifth of the calls:
    # test_outages.py::test_a_source_that_takes_so_many_calls_is_used_to_four_fifths.
    assert http_service.stats().refused > 0
    assert counters["outages"] == 0


@pytest.mark.slow
def test_a_service_that_refuses_what_is_beyond_its_rate_costs_no_row(
    worker: Worker, http_service: local.HttpService
) -> None:
    """300 requests a second, of which 20 may wait; a hundred calls would be in flight."""
    http_service.script(latency=0.01, ceiling=300.0, room=20)
    config = HttpConfig(url=f"{http_service.url}/{{}}", value="score")
    keys = [f"u{n}" for n in range(3000)]
    rows, counters = worker.outcomes_of_two(config, INT, keys, max_fallback_ratio=0.0)
    assert_good(rows, [local.value_of(key)["score"] for key in keys])
    assert {row["attempts"] for row in rows} == {1}
    assert http_service.stats().refused > 0  # how often: see above
    assert counters["outages"] == 0
