"""
The store of job-wide limits in PostgreSQL: a row for each limit, and a statement that answers the `Ask` of a worker.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError
from enrichkit.plugin import Ask, Draw, Drawn, Grant, draw

from .pool import PostgresPool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .config import PostgresConfig
    from .pool import PostgresSession

__all__ = ["CREATE", "PostgresLeases"]

T = TypeVar("T")

TIMEOUT = 2.0
NO_TABLE = "SQLSTATE 42P01"
WRITES = "SET default_transaction_read_only = off"
# With synchronous_commit off, a crash of the server may lose the leases (shares with a time limit) of the last half
# second. This is harmless, because these leases expire before the server is back.
FAST = "SET {}synchronous_commit = off"
TABLE = "public.enrichkit_limits"
CREATE = f"CREATE TABLE IF NOT EXISTS {TABLE} (name text PRIMARY KEY, state jsonb NOT NULL)"
ADD = f"INSERT INTO {TABLE} VALUES ($1, '{{}}') ON CONFLICT DO NOTHING"  # noqa: S608  # a constant
# The subquery `locked` waits until no other worker has a lock on the row, and then returns the newest version of the
# row. The clock is read after this wait. The WITH queries must not read `l.state` instead. If another worker changed
# the row during the wait, PostgreSQL would compute the new state again for the changed row, but the WITH queries would
# keep the results that they had computed from the old row.
ANSWER = f"""
UPDATE {TABLE} AS l SET state = (
    WITH given AS MATERIALIZED (
        SELECT extract(epoch FROM clock_timestamp())::float8 AS now, locked.state AS old, $2::jsonb AS a
    ), ask AS MATERIALIZED (
        SELECT *, a->>'worker' AS worker, (a->>'total')::float8 AS total, (a->>'held')::float8 AS held,
            a->'cost' <> '{{}}'::jsonb AS of_rate, coalesce((old->>'recovery')::float8, 0) AS recovered
        FROM given
    ), alive AS MATERIALIZED (
        SELECT w.key AS worker, (w.value->>0)::float8 AS want, (w.value->>1)::float8 AS share, w.value AS entry
        FROM ask, jsonb_each(coalesce(ask.old->'workers', '{{}}')) AS w WHERE (w.value->>2)::float8 > ask.now
    ), outage AS MATERIALIZED (
        SELECT CASE WHEN now >= recovered AND ((a->>'away')::bool
                OR (held > 0 AND NOT EXISTS (SELECT FROM alive WHERE alive.worker = ask.worker))
                OR (coalesce(old->'workers', '{{}}') <> '{{}}' AND NOT EXISTS (SELECT FROM alive)))
            THEN now + (a->>'recovery')::float8 ELSE recovered END AS recovery
        FROM ask
    ), wanted AS MATERIALIZED (
        SELECT now < recovery AS recovering, CASE WHEN now < recovery THEN least((a->>'wanted')::float8, held)
            ELSE (a->>'wanted')::float8 END AS want
        FROM ask, outage
    ), wants AS (
        SELECT want FROM wanted UNION ALL SELECT alive.want FROM alive, ask WHERE alive.worker <> ask.worker
    ), placed AS (
        SELECT want, sum(want) OVER up - want AS before, row_number() OVER up AS place, count(*) OVER () AS workers
        FROM wants WINDOW up AS (ORDER BY want ROWS UNBOUNDED PRECEDING)
    ), fair AS MATERIALIZED (
        SELECT greatest(0, max((total - before) / (workers - place + 1))) AS level FROM placed, ask
    ), shared AS MATERIALIZED (
        SELECT greatest(0, least(want, CASE WHEN of_rate THEN level ELSE ceil(level) END, total - (
            SELECT coalesce(sum(alive.share), 0) FROM alive WHERE alive.worker <> ask.worker))) AS share
        FROM wanted, fair, ask
    ), answer AS MATERIALIZED (
        SELECT CASE WHEN of_rate THEN share ELSE floor(share) END AS share, (a->>'least')::float8 AS least
        FROM shared, ask
    ), units AS MATERIALIZED (
        SELECT c.key AS unit, c.value::text::float8 AS cost, greatest(coalesce((old->'until'->>c.key)::float8, 0)
            + coalesce((a->'settle'->>c.key)::float8, 0), now) AS until
        FROM ask, jsonb_each(a->'cost') AS c
    ), line AS MATERIALIZED (
        SELECT coalesce(max(until) - min(now), 0) AS start, max(cost) AS most FROM units, ask
    ), granted AS MATERIALIZED (
        SELECT start, CASE WHEN most IS NULL OR start > (a->>'ahead')::float8 THEN 0
            WHEN share * (a->>'period')::float8 / most < 1 AND want > 0 AND NOT recovering THEN 1
            ELSE share * (a->>'period')::float8 / most END AS calls
        FROM line, answer, wanted, ask
    )
    SELECT jsonb_build_object(
        'recovery', recovery,
        'until', coalesce(old->'until', '{{}}') || coalesce(
            (SELECT jsonb_object_agg(unit, until + calls * cost) FROM units), '{{}}'),
        'workers', coalesce((SELECT jsonb_object_agg(alive.worker, entry) FROM alive
            WHERE alive.worker <> ask.worker), '{{}}') || CASE WHEN greatest(want, share, least) > 0
            THEN jsonb_build_object(ask.worker, jsonb_build_array(want, greatest(share, least),
                now + (a->>'lease')::float8))
            ELSE '{{}}' END,
        'answer', jsonb_build_array(share, calls, start, CASE WHEN of_rate
            THEN greatest(0, start - (a->>'ahead')::float8) ELSE 0 END))
    FROM ask, outage, wanted, answer, granted
) FROM (SELECT name, state FROM {TABLE} WHERE name = $1 FOR UPDATE) AS locked
WHERE l.name = locked.name RETURNING l.state->'answer'
"""  # noqa: S608  # a constant
"""
An SQL statement that does the same as `enrichkit.plugin.grant`, but takes the time from the server's clock; a test
compares the two.
"""

READ = f"SELECT state::text, extract(epoch FROM clock_timestamp())::float8 AS now FROM {TABLE} WHERE name = $1"  # noqa: S608
# A crash must not lose the account of a budget, i.e. the amounts that are spent and reserved. So the commit of this
# statement waits until the account is on disk, although synchronous_commit is off in the session.
WRITE = f"""
UPDATE {TABLE} SET state = $2::jsonb WHERE name = $1 AND state = $3::jsonb
RETURNING set_config('synchronous_commit', 'on', true)
"""  # noqa: S608  # a constant
TRIES = 100


class PostgresLeases:
    """
    A store of limits and budgets in PostgreSQL that uses a single connection.

    The table `public.enrichkit_limits` has one row for each limit and one for each budget. Each row holds as JSON the
    state that `enrichkit.plugin.grant` (for a limit) or `enrichkit.plugin.draw` (for a budget) reads and changes.
    """

    def __init__(self, config: PostgresConfig) -> None:
        self._config = config
        self._pool: _WritingPool | None = None

    async def lease(self, ask: Ask) -> Grant:
        """Answer *ask*; see `enrichkit.plugin.LeaseStore`."""
        question = {name: getattr(ask, name) for name in ask.__slots__}
        question |= {"cost": dict(ask.cost), "settle": dict(ask.settle)}
        text = json.dumps(question)

        async def answer(connection: Any, timeout: float) -> Any:
            found = await connection.fetchval(ANSWER, ask.limit, text, timeout=timeout)
            if found is None:
                await connection.execute(ADD, ask.limit, timeout=timeout)
                found = await connection.fetchval(ANSWER, ask.limit, text, timeout=timeout)
            return found

        found = await self._asked(answer)
        if found is None:
            raise TransientError("PostgreSQL has lost the row of the limit a moment after it was added.")
        share, calls, start, wait = json.loads(found)
        return Grant(share=share, calls=calls, start=start, wait=wait)

    async def draw(self, ask: Draw) -> Drawn:
        """Answer *ask*; see `enrichkit.plugin.LeaseStore`."""
        name = f"budget:{ask.budget}"

        async def answer(connection: Any, timeout: float) -> Drawn | None:
            for _ in range(TRIES):
                found = await connection.fetchrow(READ, name, timeout=timeout)
                if found is None:
                    await connection.execute(ADD, name, timeout=timeout)
                    continue
                state = json.loads(found["state"])
                drawn = draw(state, ask, found["now"])
                if await connection.fetchval(WRITE, name, json.dumps(state), found["state"], timeout=timeout):
                    return drawn
            return None

        found = await self._asked(answer)
        if found is None:
            raise TransientError("Other workers have changed the account of the budget at each of many tries.")
        return found

    async def _asked(self, answer: Callable[[Any, float], Awaitable[T]]) -> T:
        """
        Call *answer* with a connection, and return its result. If the table is missing, create it and call *answer*
        again.
        """
        if self._pool is None:
            import asyncpg  # imported here, so that a driver program without asyncpg can plan a job

            self._pool = _WritingPool(self._config, 1, asyncpg)
        try:
            return await self._pool.run(answer, TIMEOUT)
        except (FatalError, PermanentError) as error:
            if NO_TABLE not in str(error):
                raise _explained(error) from None
            return await self._create_and_ask(self._pool, answer)

    async def _create_and_ask(self, pool: PostgresPool, answer: Callable[[Any, float], Awaitable[T]]) -> T:
        """Create the table, then call *answer* with a connection and return its result."""

        async def create(connection: Any, timeout: float) -> None:
            await connection.execute(CREATE, timeout=timeout)

        refused: ConnectorError | None = None
        try:
            await pool.run(create, TIMEOUT)
        except (FatalError, PermanentError) as error:
            # If another worker creates the table at the same time, CREATE TABLE can fail even with IF NOT EXISTS. Such
            # an error is harmless, because the table then exists.
            refused = error
        try:
            return await pool.run(answer, TIMEOUT)
        except (FatalError, PermanentError) as error:
            raise _explained(refused or error) from None

    async def close(self) -> None:
        """Close the connection."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


def _explained(error: ConnectorError) -> FatalError:
    """Return *error* as a `FatalError`, with advice if a privilege is missing or the server is read-only."""
    text = str(error)
    if "SQLSTATE 25006" in text:
        text = text.partition(", SQLSTATE 25006")[0]
        return FatalError(f"{text}, SQLSTATE 25006. A store of limits is written to: name the primary server.")
    if "SQLSTATE 42501" in text:
        text = text.partition(", SQLSTATE 42501")[0]
        return FatalError(
            f"{text}, SQLSTATE 42501. Have the owner of the database run: {CREATE}; GRANT SELECT, INSERT, UPDATE ON "
            f"{TABLE} TO this user."
        )
    return FatalError(text)


class _WritingPool(PostgresPool):
    """A pool whose sessions may write."""

    async def connect(self, timeout: float) -> PostgresSession:
        session = await super().connect(timeout)
        if not self.config.pgbouncer:
            await session.connection.execute(f"{WRITES}; {FAST.format('')}", timeout=timeout)
        return session

    async def lend(self, session: PostgresSession, use: Callable[[Any, float], Awaitable[T]], ends: float) -> T:
        if not self.config.pgbouncer:
            return await super().lend(session, use, ends)
        begin = f"BEGIN READ WRITE; {FAST.format('LOCAL ')}; SET LOCAL statement_timeout = {TIMEOUT * 1000:.0f}"
        await session.connection.execute(begin, timeout=self.left(ends))
        result = await use(session.connection, self.left(ends))
        await session.connection.execute("COMMIT", timeout=self.left(ends))
        return result
