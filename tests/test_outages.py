"""
What goes wrong with a whole source, with each policy: every row says what happened, and all is well when it is mended.

Real connectors and servers, and the worker's whole path without Spark; the fault proxy is the network.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import redis
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig

from enrichkit import local
from enrichkit.errors import FatalError, SourceStalledError
from enrichkit.testing.bench import wait_until
from enrichkit.testing.proxy import FaultProxy, fault_proxy

from .faults import (
    GOOD,
    INT,
    PATIENT,
    POLICIES,
    PROFILE,
    TIMEOUT,
    TWICE,
    all_three,
    assert_fails,
    assert_good,
    assert_row,
    policy_of,
)
from .pace import at_pace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enrichkit import ConnectorConfig

    from .sparkless import Row, Worker

pytestmark = [pytest.mark.service, pytest.mark.waits]

NUMBERS = [1, 2, 13, 3, 4]


# --- the network, or the server: every key of the source


@dataclass(frozen=True)
class NetworkFault:
    """
    What happens to all connections; without *warm* it begins before the first one is open.

    While the source is *away*, and says so, a task without a fallback waits for `stall_timeout`.
    """

    name: str
    begin: Callable[[FaultProxy], Any]
    status: str
    error: str
    warm: bool = True
    away: bool = False


def refuse(proxy: FaultProxy) -> None:
    proxy.refuse()
    proxy.cut()


NOT_IN_TIME = rf"TimeoutError: no answer within {TIMEOUT:g} s(; last: .+)?"
AWAY = rf"TimeoutError: no answer within {TIMEOUT:g} s; last: UnavailableError: .+"
NETWORK_FAULTS = (
    NetworkFault("frozen", lambda proxy: proxy.freeze(), "timeout", NOT_IN_TIME),
    NetworkFault("swallowed", lambda proxy: proxy.blackhole(), "timeout", NOT_IN_TIME),
    NetworkFault("late", lambda proxy: proxy.delay(60.0), "timeout", NOT_IN_TIME),
    NetworkFault("frozen-from-the-start", lambda proxy: proxy.freeze(), "timeout", NOT_IN_TIME, warm=False),
    NetworkFault("reset-inside-a-reply", lambda proxy: proxy.reset_after(3), "timeout", AWAY, away=True),
    NetworkFault("closed-inside-a-reply", lambda proxy: proxy.close_after(3), "timeout", AWAY, away=True),
    NetworkFault("refused", refuse, "timeout", AWAY, away=True),
    NetworkFault("refused-from-the-start", refuse, "timeout", AWAY, warm=False, away=True),
)


@pytest.fixture
def proxied(request: pytest.FixtureRequest) -> Iterator[tuple[Any, FaultProxy]]:
    """A source that answers each of 1 to 20 with itself, behind a proxy."""
    if request.param == "http":
        service = request.getfixturevalue("http_service")
        service.seed({str(n): n for n in range(1, 21)})
        with fault_proxy("127.0.0.1", service.port) as proxy:
            yield HttpConfig(url=f"{proxy.url(service.url)}/{{}}"), proxy
    elif request.param == "redis":
        server, url = request.getfixturevalue("redis_server"), request.getfixturevalue("redis_url")
        with redis.Redis.from_url(url) as client:
            client.mset({f"k{n}": n for n in range(1, 21)})
        with fault_proxy(server.host, server.port) as proxy:
            yield RedisConfig(url=proxy.url(url), key="k{}"), proxy
    else:
        server, dsn = request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_dsn")
        server.execute(
            "CREATE TABLE t AS SELECT n AS id, n AS score FROM generate_series(1, 20) n", dsn.rpartition("/")[2]
        )
        with fault_proxy(server.host, server.port) as proxy:
            yield PostgresConfig(dsn=proxy.url(dsn), table="t"), proxy


STALL = 1.0


def assert_stalls(look_up: Callable[[], Any], source: str) -> None:
    """The task fails with a message that says for how long the source was away, and what the last call got."""
    with pytest.raises(SourceStalledError) as caught:
        look_up()
    assert re.fullmatch(
        rf"{source}: the source has been away for [1-9]\d* s, since .+ UTC\. The last of \d+ calls that asked whether "
        rf"it is back got: .+\. \d rows wait\. Mend the source, or raise stall_timeout \(1 s\)\.",
        str(caught.value),
    ), str(caught.value)


def assert_each_policy(
    worker: Worker, config: Any, status: str, error: str, *, away: bool = False, **options: Any
) -> None:
    """Run a task with each policy, and one without, all at the same time; each key ends with *status* in each task."""

    def task(policy: str) -> None:
        own = {"stall_timeout": STALL} if away and policy == "fail" else {}

        def look_up() -> list[Row]:
            policies = all_three(policy_of(policy, -1))
            return worker.outcomes(config, INT, NUMBERS, retry=TWICE, **policies, **options | own)

        if away and policy == "fail":
            assert_stalls(look_up, config.__class__.__name__.removesuffix("Config").lower())
            return
        if policy == "fail":
            assert_fails(look_up, config.__class__.__name__.removesuffix("Config").lower(), status, error)
            return
        for row in look_up():
            assert_row(row, status, error, policy, -1)

    with ThreadPoolExecutor(len(POLICIES) + 1) as threads:
        list(threads.map(task, [*POLICIES, "fail"]))


@pytest.mark.parametrize("fault", NETWORK_FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("proxied", ["http", "redis", "postgres"], indirect=True)
def test_a_fault_of_the_network_is_that_of_every_key_and_is_over_when_it_is_mended(
    fault: NetworkFault, proxied: tuple[Any, FaultProxy], worker: Worker
) -> None:
    config, proxy = proxied
    options = {"capacity": 8, "stall_timeout": PATIENT}  # a slot for each task
    if fault.warm:
        assert_good(worker.outcomes(config, INT, [1, 2], timeout=PATIENT, **options), [1, 2])
    fault.begin(proxy)
    assert_each_policy(worker, config, fault.status, fault.error, timeout=TIMEOUT, away=fault.away, **options)
    proxy.heal()
    assert_good(worker.outcomes(config, INT, [3, 4], timeout=PATIENT, **options), [3, 4])


def test_a_redis_server_that_is_killed_is_away_for_every_key(worker: Worker) -> None:
    with local.redis() as server:
        with redis.Redis.from_url(server.url) as client:
            client.mset({f"k{n}": n for n in range(1, 21)})
        config = RedisConfig(url=server.url, key="k{}")
        assert_good(worker.outcomes(config, INT, [1, 2], timeout=PATIENT), [1, 2])
        os.kill(server.pid, signal.SIGKILL)
    assert_each_policy(worker, config, "timeout", AWAY, timeout=TIMEOUT, away=True)


def test_connections_that_postgres_ends_cost_no_row(
    postgres_server: local.PostgresServer, postgres_dsn: str, worker: Worker
) -> None:
    database = postgres_dsn.rpartition("/")[2]
    postgres_server.execute("CREATE TABLE t AS SELECT n AS id, n AS score FROM generate_series(1, 20) n", database)
    config = PostgresConfig(dsn=postgres_dsn, table="t")
    assert_good(worker.outcomes(config, INT, [1, 2], timeout=PATIENT, **all_three("null")), [1, 2])
    postgres_server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")
    assert_good(worker.outcomes(config, INT, [3, 4], timeout=PATIENT, **all_three("null")), [3, 4])


# --- a bad day with default options: thousands of keys, two tasks at a time, and what the server saw


@dataclass(frozen=True)
class Scene:
    """A source that holds *keys* keys behind a proxy, and how many keys it was asked for."""

    config: Any
    proxy: FaultProxy
    keys: int
    in_flight: int
    options: dict[str, Any]
    asked: Callable[[], int] | None = None


AMONG = 20_000
"""Bytes of answers, of a tenth to a fifth of the keys, after which a job is under way."""
SCENES = [("http", ()), ("redis", ()), ("postgres", ()), ("mariadb", pytest.mark.apt)]
"""The sources, each with the marks of its tests. No test is both `slow` and `apt`: each mark alone selects tests."""


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    if request.param == "http":
        service = request.getfixturevalue("http_service")
        service.script(latency=0.1)
        with fault_proxy("127.0.0.1", service.port) as proxy:
            config = HttpConfig(url=f"{proxy.url(service.url)}/{{}}", value="score")
            yield Scene(config, proxy, 4000, 100, {}, lambda: service.stats().calls)
    elif request.param == "redis":
        server, url = request.getfixturevalue("redis_server"), request.getfixturevalue("redis_url")
        with redis.Redis.from_url(url) as client:
            client.mset({f"k{n}": n for n in range(8000)})
        with fault_proxy(server.host, server.port) as proxy:
            proxy.delay(0.02)
            yield Scene(RedisConfig(url=proxy.url(url), key="k{}"), proxy, 8000, 4, {"batch_size": 10})
    elif request.param == "mariadb":
        from enrichkit_mariadb import MariadbConfig

        with local.mariadb() as server:
            url = server.create_database()
            table = "CREATE TABLE t (PRIMARY KEY (id)) AS SELECT seq AS id, seq AS score FROM seq_0_to_7999"
            server.execute(table, url.rpartition("/")[2])
            with fault_proxy(server.host, server.port) as proxy:
                proxy.delay(0.02)
                yield Scene(MariadbConfig(url=proxy.url(url), table="t"), proxy, 8000, 4, {"batch_size": 10})
    else:
        server, dsn = request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_dsn")
        server.execute(
            "CREATE TABLE t AS SELECT n AS id, n AS score FROM generate_series(0, 7999) n;"
            "ALTER TABLE t ADD PRIMARY KEY (id)",
            dsn.rpartition("/")[2],
        )
        with fault_proxy(server.host, server.port) as proxy:
            proxy.delay(0.02)
            yield Scene(PostgresConfig(dsn=proxy.url(dsn), table="t"), proxy, 8000, 4, {"batch_size": 10})


def two_tasks(worker: Worker, scene: Scene) -> tuple[list[Row], Counter[str]]:
    """Look all keys up in two tasks at a time; see `Worker.outcomes_of_two`."""
    keys = list(range(scene.keys))
    return worker.outcomes_of_two(scene.config, INT, keys, **scene.options, max_fallback_ratio=0.0)


def assert_all_right(scene: Scene, rows: list[Row]) -> None:
    wrong = [row for row in rows if row["status"] != "ok"]
    assert wrong == []
    if not isinstance(scene.config, HttpConfig):
        assert list(range(scene.keys)) == [row["value"] for row in rows]
    else:
        assert [local.value_of(str(n))["score"] for n in range(scene.keys)] == [row["value"] for row in rows]


def probes(worker: Worker) -> int:
    """Return how many calls have asked in this outage whether the source is back."""
    return max((engine.gate.outage.probes for engine in [*worker.thread.engines.values()]), default=0)


@pytest.mark.parametrize(
    ("scene", "probed"),
    [
        pytest.param(name, probed, marks=pytest.mark.more if probed == 40 else marks)
        for name, marks in SCENES
        for probed in (2, 8, 40)  # after less than a second, about 3 s, and half a minute
    ],
    indirect=["scene"],
)
def test_a_server_that_restarts_costs_no_row(scene: Scene, probed: int, worker: Worker) -> None:
    """It is back after so many probes. Calls that are repeated: those in flight as it left, and the probes."""

    def restart() -> None:
        refuse(scene.proxy)
        assert wait_until(lambda: probes(worker) >= probed)
        scene.proxy.heal()

    with once_under_way(scene, restart):
        rows, counters = two_tasks(worker, scene)
    assert_all_right(scene, rows)
    needed = scene.keys // scene.options.get("batch_size", 1)
    assert counters["outages"] >= 1
    assert counters["calls"] <= needed + scene.in_flight + probed + 5
    assert scene.asked is None or scene.asked() <= needed + scene.in_flight + probed + 5


@pytest.mark.parametrize(
    ("scene", "times"),
    [
        pytest.param(name, times, marks=pytest.mark.more if times == 8 else marks)
        for name, marks in SCENES
        for times in (1, 3, 8)
    ],
    indirect=["scene"],
)
def test_closed_connections_cost_no_row(scene: Scene, times: int, worker: Worker) -> None:
    def close() -> None:
        for _ in range(times):
            scene.proxy.cut()
            before = scene.proxy.bytes_to_client
            assert wait_until(lambda: scene.proxy.bytes_to_client > before + AMONG // 2)  # noqa: B023  # at once

    with once_under_way(scene, close):
        rows, counters = two_tasks(worker, scene)
    assert_all_right(scene, rows)
    needed = scene.keys // scene.options.get("batch_size", 1)
    # The http connector itself repeats a request whose connection has ended before the response.
    assert needed <= counters["calls"] <= needed + times * (scene.in_flight + 2)
    assert scene.asked is None or scene.asked() <= needed + times * (scene.in_flight + 2)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("headers", [{}, {"Retry-After": "1"}], ids=["", "retry-after"])
@pytest.mark.parametrize("scene", ["http"], indirect=True)
def test_a_service_that_refuses_all_for_a_while_costs_no_row(
    scene: Scene, status: int, headers: dict[str, str], worker: Worker, http_service: local.HttpService
) -> None:
    def refuse_all() -> None:
        http_service.script(local.Fault(status=status, headers=headers), latency=0.1)
        assert wait_until(lambda: http_service.stats().faults_used > 0)
        assert wait_until(lambda: http_service.stats().in_flight == 0)  # all that were under way are refused
        refused = http_service.stats().faults_used
        assert wait_until(lambda: http_service.stats().faults_used >= refused + 2)
        http_service.script(latency=0.1)

    with once_under_way(scene, refuse_all):
        rows, _ = two_tasks(worker, scene)
    assert_all_right(scene, rows)
    assert scene.asked is not None
    assert scene.asked() <= scene.keys + scene.in_flight + 10


@pytest.mark.parametrize("fault", [{"status": 502}, {"status": 429}, {"reset": True}], ids=["502", "429", "reset"])
@pytest.mark.parametrize(("one_of", "times"), [(5, 300), (3, 100)])
def test_a_service_that_refuses_some_calls_while_it_answers_others_costs_no_row(
    fault: dict[str, Any], one_of: int, times: int, worker: Worker, http_service: local.HttpService
) -> None:
    """One of five calls: with three attempts for each key, one of 125 would fail. No attempt is counted."""
    keys = [f"u{n}" for n in range(2000)]
    refused = [local.Fault(times=1, skip=(one_of - 1) * n, **fault) for n in range(times)]
    http_service.script(*refused, latency=0.05)
    config = HttpConfig(url=f"{http_service.url}/{{}}", value="score")
    rows, _ = worker.outcomes_of_two(config, INT, keys, max_fallback_ratio=0.0)
    assert_good(rows, [local.value_of(key)["score"] for key in keys])
    assert {row["attempts"] for row in rows} == {1}
    assert http_service.stats().calls == 2000 + len(refused)


@pytest.mark.parametrize("source", ["postgres", pytest.param("mariadb", marks=pytest.mark.apt)])
def test_a_key_of_each_task_that_a_database_never_answers_costs_no_other_key_its_value(
    source: str, request: pytest.FixtureRequest, worker: Worker
) -> None:
    """Five times two tasks, so that statements which sleep hold connections of later tasks: there are four."""
    with sleepy(source, request) as config:
        for start in range(0, 1010, 202):
            keys = list(range(start, start + 202))
            options = {"batch_size": 1, "timeout": at_pace(1.0), "on_timeout": "null"}
            rows, _ = worker.outcomes_of_two(config, INT, keys, **options)
            for task in (0, 101):
                first, *others = rows[task : task + 101]
                assert (first["value"], first["status"]) == (None, "timeout")
                assert_good(others, keys[task + 1 : task + 101])


@contextmanager
def sleepy(source: str, request: pytest.FixtureRequest) -> Iterator[ConnectorConfig]:
    """A view of numbers, each under itself, that sleeps for five minutes over each multiple of 101."""
    view = "CREATE VIEW sleepy AS SELECT id, CAST(CASE WHEN id % 101 = 0 THEN {} ELSE id END AS {}) AS score FROM {}"
    if source == "postgres":
        server, dsn = request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_dsn")
        numbers = "generate_series(0, 1009) AS id"
        server.execute(view.format("length(pg_sleep(300)::text)", "int", numbers), dsn.rpartition("/")[2])
        yield PostgresConfig(dsn=dsn, table="sleepy", key="id", insecure=True)
    else:
        from enrichkit_mariadb import MariadbConfig

        with local.mariadb() as server:
            url = server.create_database()
            numbers = "(SELECT seq AS id FROM seq_0_to_1009) AS numbers"
            server.execute(view.format("SLEEP(300)", "SIGNED", numbers), url.rpartition("/")[2])
            yield MariadbConfig(url=url, table="sleepy", key="id")


def test_a_service_that_ends_all_connections_gets_few(worker: Worker, http_service: local.HttpService) -> None:
    """One for each call in flight as it began, and for each probe: fewer than three of these a second."""
    http_service.script(latency=0.05)
    keys = [f"u{n}" for n in range(2000)]
    with fault_proxy("127.0.0.1", http_service.port) as proxy:
        good, bad = (
            HttpConfig(url=f"{proxy.url(http_service.url)}/{uuid.uuid4().int}/{{}}", value="score") for _ in range(2)
        )
        rows = worker.outcomes(good, INT, keys)
        assert_good(rows, [local.value_of(key)["score"] for key in keys])
        proxy.reset_after(0, direction="to server")
        before = proxy.opened
        # A config of its own has an engine without open connections, so that each call counts.
        with pytest.raises(SourceStalledError, match=r"^http: the source has been away for \d s, "):
            worker.outcomes(bad, INT, keys, stall_timeout=STALL)
        assert 1 <= proxy.opened - before <= 100 + 5 + 2 * STALL
        proxy.heal()
        assert_good(worker.outcomes(bad, INT, GOOD), [local.value_of(key)["score"] for key in GOOD])


@pytest.mark.parametrize("scene", [pytest.param(name, marks=marks) for name, marks in SCENES], indirect=True)
def test_a_process_that_stands_still_for_longer_than_the_timeout_costs_no_row(scene: Scene) -> None:
    """Its answers lie in its sockets when it goes on, and no key is asked for twice."""
    timeout = at_pace(2.0)
    before = scene.proxy.bytes_to_client
    command = [sys.executable, "-m", "tests.two_tasks"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            options = {**scene.options, "timeout": timeout, "max_fallback_ratio": 0.0}
            pickle.dump((scene.config, list(range(scene.keys)), options), process.stdin)
            process.stdin.close()
            assert wait_until(lambda: scene.proxy.bytes_to_client > before + 5000)
            process.send_signal(signal.SIGSTOP)
            time.sleep(1.5 * timeout)
            process.send_signal(signal.SIGCONT)
            assert process.stdout is not None
            rows = json.load(process.stdout)
        finally:
            process.kill()
    assert_all_right(scene, rows)
    assert {row["attempts"] for row in rows} == {1}
    assert scene.asked is None or scene.asked() == scene.keys


@contextmanager
def once_under_way(scene: Scene, act: Callable[[], None]) -> Iterator[None]:
    """Run *act* in a thread when the source has answered a part of the body; a failure of *act* comes up at the end."""
    before = scene.proxy.bytes_to_client

    def later() -> None:
        assert wait_until(lambda: scene.proxy.bytes_to_client > before + AMONG)
        act()

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(later)
        yield
        done.result()


# --- what no policy makes a null: nothing will work until somebody mends it


@pytest.mark.parametrize("policy", [*POLICIES, "fail"])
@pytest.mark.parametrize(("status", "match"), [(401, "u2"), (403, "u")])
def test_refused_credentials_fail_the_task_whatever_the_policy(
    status: int, match: str, policy: str, worker: Worker, http_service: local.HttpService
) -> None:
    """A 403 of one key among others that are answered is that key's."""
    http_service.script(local.Fault(match=match, status=status))
    config = HttpConfig(url=f"{http_service.url}/{uuid.uuid4()}/{{}}")
    options = all_three(policy_of(policy, {"name": "spare", "score": -1}))
    with pytest.raises(FatalError) as caught:
        worker.outcomes(config, PROFILE, GOOD, **options)
    assert (
        f"The service answered {status}: it refuses the credentials, or misses some, so no key can be looked up. "
        "Correct HttpConfig.headers, for example {'Authorization': Secret.env('NAME')}." == str(caught.value)
    )


@pytest.mark.parametrize("policy", [*POLICIES, "fail"])
def test_a_table_that_may_not_be_read_fails_the_task_whatever_the_policy(
    policy: str, worker: Worker, postgres_server: local.PostgresServer, postgres_dsn: str
) -> None:
    """In the first call, or in one after the connector was opened: here the right is taken away in between."""
    role = f"reader_{uuid.uuid4().hex[:8]}"
    database = postgres_dsn.rpartition("/")[2]
    postgres_server.execute(
        "CREATE TABLE t AS SELECT n AS id, n AS score FROM generate_series(1, 20) n;"
        f"CREATE ROLE {role} LOGIN; GRANT SELECT ON t TO {role}",
        database,
    )
    config = PostgresConfig(dsn=postgres_dsn.replace("postgres@", f"{role}@"), table="t")
    options = all_three(policy_of(policy, -1))
    assert_good(worker.outcomes(config, INT, [1, 2], **options), [1, 2])
    postgres_server.execute(f"REVOKE SELECT ON t FROM {role}", database)
    with pytest.raises(FatalError, match=r"permission denied for table t, .* SQLSTATE 42501\. Grant SELECT on it to "):
        worker.outcomes(config, INT, NUMBERS, **options)


@pytest.mark.parametrize("policy", [*POLICIES, "fail"])
def test_a_password_that_was_rotated_fails_the_task_after_two_logins_at_most(
    policy: str, worker: Worker, postgres_server: local.PostgresServer, postgres_dsn: str
) -> None:
    """The connections are open when the password changes; more logins could lock the account."""
    role, database = f"rotating_{uuid.uuid4().hex[:8]}", postgres_dsn.rpartition("/")[2]
    postgres_server.execute(
        "CREATE TABLE t AS SELECT n AS id, n AS score FROM generate_series(0, 99) n;"
        "DO $$ BEGIN CREATE ROLE with_password; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
        f"CREATE ROLE {role} LOGIN PASSWORD 'S3cret' IN ROLE with_password; GRANT SELECT ON t TO {role}",
        database,
    )
    keys = list(range(100))
    with fault_proxy(postgres_server.host, postgres_server.port) as proxy:
        dsn = proxy.url(postgres_dsn).replace("postgres@", f"{role}@")
        config = PostgresConfig(dsn=dsn, table="t", password="S3cret")
        options = {"capacity": 8, "batch_size": 1, **all_three(policy_of(policy, -1))}
        assert_good(worker.outcomes(config, INT, keys, **options), keys)
        postgres_server.execute(
            f"ALTER ROLE {role} PASSWORD 'rotated';"
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"
        )
        assert wait_until(lambda: not proxy.open)
        before = proxy.opened
        for _ in range(2):  # as Spark repeats a failed task
            with pytest.raises(FatalError, match=f'password authentication failed for user "{role}"'):
                worker.outcomes(config, INT, keys, **options)
        assert 1 <= proxy.opened - before <= 2


@pytest.mark.parametrize("policy", [*POLICIES, "fail"])
def test_a_password_of_redis_that_was_rotated_fails_the_task_after_two_logins_at_most(
    policy: str, worker: Worker, redis_url: str
) -> None:
    """Redis counts the logins that it has refused."""
    keys = list(range(100))
    user = f"rotating_{uuid.uuid4().hex[:8]}"
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        client.mset({f"k{n}": n for n in keys})
        client.execute_command("ACL", "SETUSER", user, "on", ">S3cret", "~*", "+@all")
        config = RedisConfig(url=redis_url, key="k{}", username=user, password="S3cret")
        options = {"capacity": 8, "batch_size": 1, **all_three(policy_of(policy, -1))}
        assert_good(worker.outcomes(config, INT, keys, **options), keys)
        client.execute_command("ACL", "SETUSER", user, "resetpass", ">rotated")
        client.acl_log_reset()
        client.execute_command("CLIENT", "KILL", "USER", user)
        for _ in range(2):  # as Spark repeats a failed task
            with pytest.raises(FatalError, match="WRONGPASS"):
                worker.outcomes(config, INT, keys, **options)
        refused = client.acl_log()
        client.execute_command("ACL", "DELUSER", user)
    assert [entry["reason"] for entry in refused] == ["auth"] * len(refused)
    assert 1 <= sum(entry["count"] for entry in refused) <= 2
