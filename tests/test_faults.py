"""
What goes wrong with one key of a source, with each policy: no row is lost, no null is silent, no value is wrong.

The connectors, the servers and the worker's whole path are real; only Spark is not there. The same faults of the HTTP
service go through Spark in `tests/spark/test_faults.py`, and what goes wrong with a whole source is in
`tests/test_outages.py`.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import redis
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from enrichkit_sqlite import SqliteConfig

from enrichkit.errors import LookupFailedError, SourceStalledError

from .faults import (
    FOR_A_WAIT,
    GOOD,
    HTTP_FAULTS,
    INT,
    MAX_BYTES,
    PATIENT,
    POLICIES,
    PROFILE,
    STRING,
    TIMEOUT,
    TWICE,
    HttpFault,
    all_three,
    assert_fails,
    assert_good,
    assert_row,
    misbehave,
    policy_of,
    value_at,
)

if TYPE_CHECKING:
    from pathlib import Path

    from enrichkit import local

    from .sparkless import Row, Worker

pytestmark = [pytest.mark.service, pytest.mark.waits]


# --- HTTP: the service does to one key what its fault says


@pytest.fixture
def http_source(http_service: local.HttpService) -> HttpConfig:
    return HttpConfig(url=f"{http_service.url}/{uuid.uuid4().int}/{{}}", max_bytes=MAX_BYTES)


def patience(fault: HttpFault) -> float:
    if fault.wait:
        return FOR_A_WAIT
    return TIMEOUT if fault.status == "timeout" or (fault.away and fault.status != "ok") else PATIENT


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fault", HTTP_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_an_http_service_is_that_of_its_key(
    fault: HttpFault, policy: str, worker: Worker, http_service: local.HttpService, http_source: HttpConfig
) -> None:
    misbehave(http_service, (fault,))
    spare = {"name": f"spare for {fault.name}", "score": -1}
    keys = [*GOOD[:2], fault.name, None, *GOOD[2:], fault.name]
    options = all_three(policy_of(policy, spare))
    rows = worker.outcomes(http_source, PROFILE, keys, timeout=patience(fault), retry=TWICE, **options)
    assert_good([rows[0], rows[1], rows[4], rows[5]], [value_at(key) for key in GOOD])
    assert ("null_key", None, None) == (rows[3]["status"], rows[3]["value"], rows[3]["origin"])
    assert_row(rows[2], fault.status, fault.error, policy, spare, value_at(fault.name))
    assert rows[2] == rows[6], "two rows with one key"
    assert rows[2]["attempts"] in (range(1, fault.attempts + 1) if fault.away else [fault.attempts])


@pytest.mark.parametrize(
    "fault", [fault for fault in HTTP_FAULTS if fault.status != "ok"], ids=lambda fault: fault.name
)
def test_a_fault_of_an_http_service_fails_the_task_when_that_is_asked_for(
    fault: HttpFault, worker: Worker, http_service: local.HttpService, http_source: HttpConfig
) -> None:
    misbehave(http_service, (fault,))
    options = {**all_three("fail"), "retry": TWICE, "timeout": patience(fault)}

    def look_up() -> list[Row]:
        return worker.outcomes(http_source, PROFILE, [*GOOD, fault.name], **options)

    if fault.wait:
        # A pause beyond stall_timeout is not waited for. If all others are answered before its call leaves, the key is
        # the only one that says what the source does.
        options["stall_timeout"] = 5.0
        with pytest.raises((LookupFailedError, SourceStalledError), match="The service answered 429"):
            look_up()
    else:
        assert_fails(look_up, "http", fault.status, fault.error)


# --- Redis and PostgreSQL: a key whose value is not what it should be


@dataclass(frozen=True)
class DataFault:
    """What the source holds, or does, under the key 13."""

    name: str
    prepare: str
    status: str
    error: str


NO_INT = r"PermanentError: The value does not fit the declared type int: .+\."
NUMBERS = [1, 2, 13, 3, 4]
REDIS_FAULTS = (
    DataFault("another-type", "RPUSH k13 1", "error", r"PermanentError: The key holds another type .+ \(WRONGTYPE\)\."),
    DataFault("text-for-a-number", "SET k13 many", "error", NO_INT),
    DataFault("number-too-large", "SET k13 4294967296", "error", NO_INT),
    DataFault("no-whole-number", "SET k13 1.5", "error", NO_INT),
    DataFault("no-value", "DEL k13", "missing", ""),
    DataFault("expired", "SET k13 13 PXAT 1", "missing", ""),
)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fault", REDIS_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_a_value_in_redis_is_that_of_its_key(
    fault: DataFault, policy: str, worker: Worker, redis_url: str
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.mset({f"k{n}": n for n in (1, 2, 3, 4)})
        client.execute_command(*fault.prepare.split())
    options = all_three(policy_of(policy, -13))
    config = RedisConfig(url=redis_url, key="k{}")
    rows = worker.outcomes(config, INT, NUMBERS, timeout=PATIENT, retry=TWICE, **options)
    assert_good([*rows[:2], *rows[3:]], [1, 2, 3, 4])
    assert_row(rows[2], fault.status, fault.error, policy, -13)


POSTGRES_FAULTS = (
    DataFault(
        "raises", "RAISE 'no score for %', k", "error", r"PermanentError: PostgreSQL at \S+ says: RaiseError, .+\."
    ),
    DataFault(
        "division", "RETURN 1 / (k - 13)", "error", r"PermanentError: PostgreSQL at \S+ says: DivisionByZero.+\."
    ),
    DataFault("number-too-large", "RETURN 4294967296", "error", NO_INT),
    DataFault("slow", "PERFORM pg_sleep(60)", "timeout", rf"TimeoutError: no answer within {TIMEOUT:g} s"),
    DataFault("no-row", "RETURN NULL", "missing", ""),
)


@pytest.fixture
def scores(postgres_server: local.PostgresServer, postgres_dsn: str) -> Callable[[str], PostgresConfig]:
    """A function that makes a source of scores 1 to 20, where the score of 13 is computed by the given statement."""

    def make(statement: str) -> PostgresConfig:
        postgres_server.execute(
            "CREATE TABLE scores AS SELECT n AS id FROM generate_series(1, 20) n;"
            "CREATE FUNCTION score(k int) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN "
            f"IF k = 13 THEN {statement}; END IF; RETURN k; END $$",
            postgres_dsn.rpartition("/")[2],
        )
        query = "SELECT id, score FROM (SELECT id, score(id) FROM scores WHERE id = ANY($1)) s WHERE score IS NOT NULL"
        return PostgresConfig(dsn=postgres_dsn, query=query, key="id")

    return make


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("fault", POSTGRES_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_a_row_in_postgres_is_that_of_its_key(
    fault: DataFault, policy: str, worker: Worker, scores: Callable[[str], PostgresConfig]
) -> None:
    options = all_three(policy_of(policy, -13))
    if fault.status == "timeout":
        options.update(timeout=TIMEOUT, batch_size=1)  # the keys of one call are late together
    else:
        options.update(timeout=PATIENT)
    rows = worker.outcomes(scores(fault.prepare), INT, NUMBERS, retry=TWICE, **options)
    assert_good([*rows[:2], *rows[3:]], [1, 2, 3, 4])
    assert_row(rows[2], fault.status, fault.error, policy, -13)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("source", ["postgres", "sqlite"])
def test_a_value_over_the_limit_is_an_error_of_its_key(
    source: str, policy: str, worker: Worker, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The limit of PostgreSQL is for a call, whose keys then go out in smaller calls; that of SQLite is for a row."""
    values = {n: str(n) * (200_000 if n == 13 else 1) for n in (1, 2, 3, 4, 13)}
    statements = ["CREATE TABLE t (id int PRIMARY KEY, v text)"]
    statements += [f"INSERT INTO t VALUES ({n}, '{value}')" for n, value in values.items()]
    config: PostgresConfig | SqliteConfig
    if source == "postgres":
        dsn = request.getfixturevalue("postgres_dsn")
        request.getfixturevalue("postgres_server").execute(";".join(statements), dsn.rpartition("/")[2])
        config, said = PostgresConfig(dsn=dsn, table="t", max_bytes=2**16), r"PostgreSQL at \S+ sent a reply of"
    else:
        path = str(tmp_path / "t.db")
        with closing(sqlite3.connect(path)) as db:
            db.executescript(";".join(statements))
        config, said = SqliteConfig(path=path, table="t", max_bytes=2**16), "A row of the table 't', or the key, has"
    options = all_three(policy_of(policy, "spare"))
    rows = worker.outcomes(config, STRING, NUMBERS, timeout=PATIENT, retry=TWICE, **options)
    assert_good([*rows[:2], *rows[3:]], ["1", "2", "3", "4"])
    error = rf"PermanentError: {said} more than \w+\.max_bytes, 65536 bytes\. .*aise max_bytes.*\."
    assert_row(rows[2], "error", error, policy, "spare")
