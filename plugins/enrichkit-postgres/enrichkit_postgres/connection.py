"""
asyncpg's connection with three changes: it makes fewer round trips before its first answer, it leaves no socket open
when the server's greeting is broken, and it can close abruptly.

The changes override methods that asyncpg does not document, because asyncpg has no public interface for these changes.
The tests of round trips, of random faults and of PgBouncer fail when a new version of asyncpg no longer calls these
methods.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable
    from types import ModuleType

__all__ = ["connection_class"]

FIRST_GENBKI_OID = 10_000
"""
A type whose OID is below this number, such as an array of a built-in type, has the same OID in every PostgreSQL server
and version.

Source: "OID Assignment" in PostgreSQL's documentation, 71.2.2 of version 15.
"""


def connection_class(driver: ModuleType, *, pgbouncer: bool) -> type[Any]:
    """
    Return the class of the connections of one pool.

    Args:
        driver: The module asyncpg, which is imported only when it is needed.
        pgbouncer: Whether the server is PgBouncer. If True, a connection closes abruptly where asyncpg would ask the
            server to cancel the statement. The reason: PgBouncer exits (`bad client state`, seen with 1.18 to 1.24) if
            a client asks for a cancel and then closes its connection before PgBouncer has handled the cancel;
            `PostgresPool` might close the connection so early. After an abrupt close during a statement, PgBouncer
            drops its connection to the server, too, and `statement_timeout` ends the statement on the server.
    """
    described: dict[frozenset[int], Any] = {}  # the server's descriptions of types, cached for the whole pool

    class Connection(driver.Connection):  # type: ignore[name-defined,misc]
        _server_caps: Any

        def __init__(self, protocol: Any, transport: Any, *others: Any, **settings: Any) -> None:
            try:
                super().__init__(protocol, transport, *others, **settings)
            except BaseException:  # the server's greeting is broken; asyncpg itself would leave the socket open
                self._aborted = True
                transport.abort()
                raise
            # Tell asyncpg that the server has no jit. Otherwise asyncpg would first read the setting jit and turn it
            # off, although `SETTINGS` has turned it off already.
            self._server_caps = self._server_caps._replace(jit=False)

        async def _introspect_types(self, typeoids: Iterable[int], timeout: float) -> tuple[list[Any], Any]:
            asked = frozenset(typeoids)
            if asked in described:
                # The second result stands in for the statement with which asyncpg would have read the types. Its name
                # tells asyncpg that no unnamed statement has replaced the statement that asyncpg is preparing;
                # otherwise asyncpg would prepare that statement again.
                return described[asked], SimpleNamespace(name="remembered")
            types, statement = await super()._introspect_types(asked, timeout)
            if all(row["oid"] < FIRST_GENBKI_OID for row in types):
                described[asked] = types
            return types, statement

    class Abrupt(Connection):
        def _cancel_current_command(self, waiter: asyncio.Future[None], *others: Any) -> None:
            if not waiter.done():
                waiter.set_result(None)
            self._loop.call_soon(self.terminate)

    return Abrupt if pgbouncer else Connection
