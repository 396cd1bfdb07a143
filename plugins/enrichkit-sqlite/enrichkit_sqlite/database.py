"""
The connections to one file, each used by one call at a time, in threads: SQLite is a library, and its calls block.

A call that nobody waits for any more is stopped by a progress handler of its own connection. `Connection.interrupt`
would have to be called at the right moment: before the statement has begun it does nothing, and after its end it may
hit the next one (https://www.sqlite.org/c3ref/interrupt.html).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError

__all__ = ["Database", "translate"]

T = TypeVar("T")

BUSY_TIMEOUT = 0.25  # seconds that SQLite itself waits for a lock; after that the engine tries again
STEPS = 10_000  # of SQLite's machine between two looks at whether somebody still waits; about a millisecond

# https://www.sqlite.org/rescode.html
_TRANSIENT = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_SCHEMA,
}
_PERMANENT = {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG}
_ADVICE = {
    sqlite3.SQLITE_BUSY: " Another process writes to it; in WAL mode readers would not have to wait.",
    sqlite3.SQLITE_CANTOPEN: " The user of the Spark worker must be able to read it, and its folder if it is in WAL "
    "mode.",
    sqlite3.SQLITE_NOTADB: " SqliteConfig.path must name a SQLite database.",
}


class Session:
    """
    One connection, opened with its first use.

    Attributes:
        abandoned: Nobody waits for what it does; it stops, and is not used again.
    """

    def __init__(self, path: str) -> None:
        self.abandoned = False
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def run(self, use: Callable[[sqlite3.Connection], T]) -> T:
        """Return what *use* returns, in one transaction: it sees one state of the file. Called in a thread."""
        if self.abandoned:  # while it waited for a thread
            raise TransientError(f"The connections to {self._path} were closed.")
        if self._connection is None:
            self._connection = _connect(self._path)
            self._connection.set_progress_handler(lambda: self.abandoned, STEPS)
        self._connection.execute("BEGIN")
        result = use(self._connection)
        self._connection.execute("COMMIT")
        return result

    def close(self) -> None:
        """Close the connection, which nobody uses."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Database:
    """
    The connections to one file.

    Args:
        path: Of the file.
        threads: Most calls at a time.
    """

    def __init__(self, path: str, threads: int) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="enrichkit-sqlite")
        self._idle: list[Session] = []
        self._busy: dict[Session, Future[Any]] = {}

    def __repr__(self) -> str:
        return f"<Database {self._path}: {len(self._busy)} busy, {len(self._idle)} idle>"

    async def run(self, use: Callable[[sqlite3.Connection], T]) -> T:
        """
        Return what *use* returns, given a connection that nobody else has.

        Raises:
            ConnectorError: Any failure of SQLite, in our words.
        """
        session = self._idle.pop() if self._idle else Session(self._path)
        future = self._threads.submit(session.run, use)
        self._busy[session] = future
        try:
            result = await asyncio.wrap_future(future)
        except BaseException as error:
            self._abandon(session)
            if isinstance(error, sqlite3.Error):
                raise translate(error, self._path) from None
            raise
        if self._busy.pop(session, None) is not None:  # else it was closed meanwhile
            self._idle.append(session)
        return result

    def close(self) -> None:
        """Close all connections; a call in flight fails. Waits for nothing."""
        for session in list(self._busy):
            self._abandon(session)
        for session in self._idle:
            session.close()
        self._idle.clear()
        self._threads.shutdown(wait=False)

    def _abandon(self, session: Session) -> None:
        session.abandoned = True
        future = self._busy.pop(session, None)
        if future is not None:
            future.add_done_callback(lambda _: session.close())  # by its thread, or at once if that is through


def translate(error: sqlite3.Error, path: str) -> ConnectorError:
    """Return the `ConnectorError` for what went wrong with the file as a whole; its text never holds a key."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    primary = code & 0xFF
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    # What SQLite says about a value, in an error of no other code, may quote it.
    said = "" if primary in _PERMANENT else f": {error}"
    text = f"SQLite cannot read {path} ({name}){said}.{_ADVICE.get(primary, '')}"
    if primary in _TRANSIENT:
        return TransientError(text)
    return PermanentError(text) if primary in _PERMANENT else FatalError(text)


def _connect(path: str) -> sqlite3.Connection:
    # Asked first: SQLite's "unable to open database file" has a dozen causes.
    if not os.path.isfile(path):
        raise FatalError(
            f"SqliteConfig.path is {path!r}, and there is no such file on this machine. It must be there on each "
            "worker, and on the driver unless returns= is given. Copy it there, or put it into a shared folder."
        )
    # mode=ro: neither written nor created. The path is quoted, because a URI has ? and # and %, and stands behind an
    # empty authority, because it may begin with //.
    return sqlite3.connect(
        f"file://{quote(path)}?mode=ro",
        uri=True,
        timeout=BUSY_TIMEOUT,
        isolation_level=None,  # transactions are ours
        check_same_thread=False,  # one thread after another, never two at a time
    )
