"""Limits of a job in Redis and Valkey: the rules, hostile servers, and a cluster."""

from __future__ import annotations

import asyncio
import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_redis import RedisConfig, RedisConnector, budgets, leases
from enrichkit_redis.leases import PREFIX, RedisLeases

from enrichkit import leases as rules
from enrichkit.errors import ConnectorError, FatalError, TransientError, UnavailableError
from enrichkit.plugin import Ask, Grant, grant
from enrichkit.testing.leases import check_budgets, check_leases
from enrichkit.testing.proxy import fault_proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from enrichkit import local

pytestmark = pytest.mark.service
ASK = Ask(limit="api", worker="a", total=1.0, wanted=1.0, cost={"requests": 0.01})


async def asked(url: str, *asks: Ask, **fields: Any) -> list[Grant]:
    store = RedisConnector.lease_store(RedisConfig(url=url, **fields))
    try:
        return [await store.lease(ask) for ask in asks]
    finally:
        await store.close()


def error(run: Callable[..., Any], url: str, **fields: Any) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        run(asked(url, ASK, **fields))
    return caught.value


@pytest.mark.parametrize("seed", range(3))
def test_the_script_answers_by_the_rules(run: Callable[..., Any], server: local.RedisServer, seed: int) -> None:
    async def scenario() -> None:
        store = RedisLeases(RedisConfig(url=server.url))
        await check_leases(store, questions=200, seed=seed)
        await store.close()

    run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_the_script_of_a_budget_answers_by_the_rules(
    run: Callable[..., Any], server: local.RedisServer, client: Any, seed: int
) -> None:
    async def scenario() -> None:
        store = RedisLeases(RedisConfig(url=server.url))
        await check_budgets(store, questions=200, seed=seed)
        await store.close()

    run(scenario())
    [name] = client.keys(f"{budgets.PREFIX}*")
    assert 29 * 86_400 < client.ttl(name) <= 30 * 86_400


def test_the_script_answers_by_the_rules_among_many_workers(
    run: Callable[..., Any], server: local.RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fair part that is computed holds to the end of the test, so that no answer depends on the moment."""
    monkeypatch.setattr(rules, "LEVEL_HOLDS", 600.0)
    monkeypatch.setattr(leases, "_MANY", (str(rules.MANY), "600.0"))
    rng = random.Random(1)
    state: dict[str, Any] = {}

    name = f"crowd {time.time()}"
    kept = Ask(limit=name, worker="", total=1.0, wanted=1.0, cost={"requests": 0.01}, ahead=1e6, lease=600.0)

    async def answers() -> list[tuple[Grant, Grant]]:
        store, found = RedisLeases(RedisConfig(url=server.url)), []
        for number in range(600):
            wanted = 0.0 if number > 450 else rng.choice((0.0, 0.001, 1.0, rng.random() / 50))
            ask = replace(kept, worker=f"w{rng.randrange(120)}", wanted=wanted, recovery=-1.0)
            found.append((grant(state, ask, time.time()), await store.lease(ask)))
            seen.add(state["many"] is not None)
        await store.close()
        return found

    seen: set[bool] = set()
    for number, (expected, answer) in enumerate(run(answers())):
        assert answer.share == pytest.approx(expected.share, abs=1e-9), number
        assert answer.calls == pytest.approx(expected.calls, abs=1e-6), number
    assert seen == {False, True}
    assert len(state["workers"]) <= rules.MANY, "they have become few again"


def test_a_question_among_thousands_costs_as_much_as_among_few(
    run: Callable[..., Any], server: local.RedisServer
) -> None:
    """4,000 workers that ask four times a second need half of the time of a server's one processor."""

    def used() -> float:
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def scenario(workers: int, questions: int) -> float:
        store = RedisLeases(RedisConfig(url=server.url))
        ask = Ask(limit=f"of {workers}", worker="", total=1.0, wanted=1.0, cost={"requests": 1e-4}, lease=600.0)
        for number in range(workers):
            await store.lease(replace(ask, worker=f"w{number:08d}"))
        before = used()
        for number in range(questions):
            await store.lease(replace(ask, worker=f"w{number % workers:08d}"))
        await store.close()
        return (used() - before) / questions

    few, thousands = run(scenario(4, 2000)), run(scenario(4000, 2000))
    assert thousands < 5 * few + 100e-6, "it was 4.7 ms, a hundred times as much"


def test_many_workers_at_once_get_no_more_than_there_is(run: Callable[..., Any], server: local.RedisServer) -> None:
    async def scenario() -> list[list[Grant]]:
        asks = [Ask(limit="many", worker=str(n), total=1.0, wanted=1.0, cost={"requests": 0.01}) for n in range(50)]
        return await asyncio.gather(*(asked(server.url, ask, ask) for ask in asks))

    grants = run(scenario())
    assert sum(last.share for _, last in grants) <= 1.0 + 1e-9
    assert sum(each.calls for pair in grants for each in pair) <= 100 * (0.3 + 0.25 + 5.0)


def test_a_limit_is_one_hash_that_ends_by_itself(
    run: Callable[..., Any], server: local.RedisServer, client: Any
) -> None:
    run(asked(server.url, ASK, Ask(limit="}{ü \n*", worker="b", total=5.0, wanted=2.0)))
    assert {f"{PREFIX}api".encode(), f"{PREFIX}}}{{ü \n*".encode()} == set(client.keys("*"))
    assert all(0 < client.pttl(name) <= 70_000 for name in client.keys("*"))


def test_a_process_has_one_connection(run: Callable[..., Any], server: local.RedisServer, client: Any) -> None:
    async def scenario() -> int:
        store = RedisLeases(RedisConfig(url=server.url))
        await asyncio.gather(*(store.lease(ASK) for _ in range(20)))
        count = sum(entry["name"] == "enrichkit" for entry in client.client_list())
        await store.close()
        return count

    assert run(scenario()) == 1


def test_the_server_has_no_room(run: Callable[..., Any], server: local.RedisServer, client: Any) -> None:
    before = client.config_get("maxmemory")["maxmemory"]
    client.config_set("maxmemory", 1)
    try:
        found = error(run, server.url)
    finally:
        client.config_set("maxmemory", before)
    assert (type(found), str(found)) == (TransientError, "Redis is out of memory (OOM).")


def test_the_user_may_run_no_scripts(run: Callable[..., Any], server: local.RedisServer, client: Any) -> None:
    client.acl_setuser("noscript", enabled=True, passwords=["+pw"], keys=["*"], categories=["+@all", "-@scripting"])
    found = error(run, server.url, username="noscript", password="pw")
    assert (type(found), str(found)) == (
        FatalError,
        (
            "Redis does not offer a command that the connector needs, or does not permit it to this user (NOPERM). The "
            "README of enrichkit-redis lists them."
        ),
    )


def test_the_password_is_wrong(run: Callable[..., Any], server: local.RedisServer, client: Any) -> None:
    client.acl_setuser("limited", enabled=True, passwords=["+right"], keys=["*"], categories=["+@all"])
    found = error(run, server.url, username="limited", password="wrong")
    assert isinstance(found, FatalError)
    assert "refused the username or the password" in str(found)
    assert "wrong" not in str(found)


def test_another_program_has_the_name(run: Callable[..., Any], server: local.RedisServer, client: Any) -> None:
    client.set(f"{PREFIX}api", "text")
    found = error(run, server.url)
    assert (type(found), str(found)) == (
        FatalError,
        (
            "The key 'enrichkit:limit:api' in Redis holds something else than a limit (WRONGTYPE). Delete it, or give "
            "the limit another name."
        ),
    )


def test_the_server_is_away_and_comes_back(run: Callable[..., Any], server: local.RedisServer, client: Any) -> None:
    async def scenario(url: str, proxy: Any) -> None:
        store = RedisLeases(RedisConfig(url=url))
        try:
            await store.lease(ASK)
            proxy.refuse()
            proxy.cut()
            for _ in range(2):
                with pytest.raises(UnavailableError):
                    await store.lease(ASK)
            proxy.heal()
            assert (await store.lease(ASK)).calls > 0
        finally:
            await store.close()

    with fault_proxy(server.host, server.port) as proxy:
        run(scenario(proxy.url(server.url), proxy))


def test_a_cluster_keeps_limits_too(cluster: Any) -> None:
    asks = [Ask(limit=f"limit {n}", worker="a", total=1.0, wanted=1.0, cost={"requests": 0.01}) for n in range(10)]
    assert [25.0] * 10 == pytest.approx([each.calls for each in asyncio.run(asked(cluster.url, *asks, cluster=True))])
