"""Limits of a job in PostgreSQL: the rules, many workers at once, and hostile servers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_postgres import PostgresConfig, PostgresConnector, leases
from enrichkit_postgres.leases import PostgresLeases

from enrichkit.errors import ConnectorError, FatalError, UnavailableError
from enrichkit.plugin import Ask, Draw, Grant
from enrichkit.testing.leases import check_budgets, check_leases
from enrichkit.testing.proxy import fault_proxy

if TYPE_CHECKING:
    from enrichkit import local

pytestmark = pytest.mark.service
ASK = Ask(limit="api", worker="a", total=1.0, wanted=1.0, cost={"requests": 0.01})


async def asked(dsn: str, *asks: Ask, **fields: Any) -> list[Grant]:
    store = PostgresConnector.lease_store(PostgresConfig(dsn=dsn, table="none", **fields))
    try:
        return [await store.lease(ask) for ask in asks]
    finally:
        await store.close()


def error(dsn: str, **fields: Any) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        asyncio.run(asked(dsn, ASK, **fields))
    return caught.value


def as_user(server: local.PostgresServer, dsn: str, user: str) -> str:
    return dsn.replace("postgres@", f"{user}@")


@pytest.mark.parametrize("seed", range(3))
def test_the_statement_answers_by_the_rules(postgres_dsn: str, seed: int) -> None:
    async def scenario() -> None:
        store = PostgresLeases(PostgresConfig(dsn=postgres_dsn, table="none"))
        await check_leases(store, questions=200, seed=seed)
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_the_account_of_a_budget_is_kept_by_the_rules(postgres_dsn: str, seed: int) -> None:
    async def scenario() -> None:
        store = PostgresLeases(PostgresConfig(dsn=postgres_dsn, table="none"))
        await check_budgets(store, questions=100, seed=seed)
        await store.close()

    asyncio.run(scenario())


def test_many_workers_at_once_spend_no_more_than_there_is(postgres_dsn: str) -> None:
    async def worker(number: int) -> int:
        store = PostgresConnector.lease_store(PostgresConfig(dsn=postgres_dsn, table="none"))
        held, total = 0.0, {"tokens": 500.0}
        for _ in range(10):
            ask = Draw(
                budget="many",
                worker=str(number),
                total=total,
                spent={},
                held={"tokens": held},
                calls=[{"tokens": 7.0}] * 5,
            )
            held += 7.0 * (await store.draw(ask)).calls
        await store.close()
        return int(held)

    async def scenario() -> list[int]:
        return await asyncio.gather(*(worker(number) for number in range(20)))

    assert 500 - 7 < sum(asyncio.run(scenario())) <= 500


@pytest.mark.slow
def test_many_workers_at_once_get_no_more_than_there_is(postgres_dsn: str) -> None:
    """They meet at the same row, and some of them at the making of the table."""

    async def scenario(limit: str) -> list[list[Grant]]:
        # No lease runs out, however slow the machine is.
        ask = Ask(limit=limit, worker="", total=1.0, wanted=1.0, cost={"requests": 0.01}, lease=600.0)
        asks = [replace(ask, worker=str(n)) for n in range(20)]
        return await asyncio.gather(*(asked(postgres_dsn, *[ask] * 5) for ask in asks))

    for number in range(10):
        grants = asyncio.run(scenario(f"many {number}"))
        assert 0.0 < sum(each[-1].share for each in grants) <= 1.0 + 1e-9
        assert sum(each.calls for five in grants for each in five) <= 100 * (0.3 + 0.25 + 10.0)


def test_the_user_may_not_make_the_table(postgres_server: local.PostgresServer, postgres_dsn: str) -> None:
    database = postgres_dsn.rpartition("/")[2]
    postgres_server.execute("DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN", database)
    found = error(as_user(postgres_server, postgres_dsn, "reader"))
    assert isinstance(found, FatalError)
    assert str(found).endswith(
        "SQLSTATE 42501. Have the owner of the database run: CREATE TABLE IF NOT EXISTS public.enrichkit_limits (name "
        "text PRIMARY KEY, state jsonb NOT NULL); GRANT SELECT, INSERT, UPDATE ON public.enrichkit_limits TO this user."
    )
    postgres_server.execute(f"{leases.CREATE}; GRANT SELECT, INSERT, UPDATE ON {leases.TABLE} TO reader", database)
    [grant] = asyncio.run(asked(as_user(postgres_server, postgres_dsn, "reader"), ASK))
    assert grant.calls == 25.0


def test_the_server_is_read_only(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(asked(postgres_dsn, ASK))
    monkeypatch.setattr(leases, "WRITES", "SET default_transaction_read_only = on")  # as a standby is
    found = error(postgres_dsn)
    assert isinstance(found, FatalError)
    assert str(found).endswith("SQLSTATE 25006. A store of limits is written to: name the primary server.")


def test_the_password_is_wrong(postgres_server: local.PostgresServer, postgres_dsn: str) -> None:
    postgres_server.execute(
        "DROP ROLE IF EXISTS limited; DROP ROLE IF EXISTS with_password; CREATE ROLE with_password; "
        "CREATE ROLE limited LOGIN PASSWORD 'right' IN ROLE with_password"
    )
    found = error(as_user(postgres_server, postgres_dsn, "limited"), password="wr0ng")
    assert isinstance(found, FatalError)
    assert "InvalidPasswordError" in str(found)
    assert "wr0ng" not in str(found)


def test_a_row_that_somebody_has_broken_is_an_error(postgres_server: local.PostgresServer, postgres_dsn: str) -> None:
    asyncio.run(asked(postgres_dsn, ASK))
    database = postgres_dsn.rpartition("/")[2]
    postgres_server.execute(f"UPDATE {leases.TABLE} SET state = '{{\"workers\": 7}}'", database)
    assert isinstance(error(postgres_dsn), ConnectorError)


def test_the_server_is_away_and_comes_back(postgres_server: local.PostgresServer, postgres_dsn: str) -> None:
    async def scenario(dsn: str, proxy: Any) -> None:
        store = PostgresLeases(PostgresConfig(dsn=dsn, table="none"))
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

    with fault_proxy(postgres_server.host, postgres_server.port) as proxy:
        asyncio.run(scenario(proxy.url(postgres_dsn), proxy))
