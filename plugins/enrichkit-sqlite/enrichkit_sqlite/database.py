"""
The connections to one file. Each serves one call at a time, in a thread, because calls of the library SQLite block.

A cancelled call is stopped by the connection's progress handler, a function that SQLite calls after every `STEPS`
instructions. `Connection.interrupt` is not used, because it would have to be called at the right moment: before the
statement has begun, it does nothing, and after the end of the statement, it may interrupt the next one
(https://www.sqlite.org/c3ref/interrupt.html).
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

BUSY_TIMEOUT = 0.25  # seconds that a lookup waits in SQLite for a lock; after that the engine retries the call
# Seconds that a write waits for the writes of other processes. This is longer than `BUSY_TIMEOUT`, because the engine
# does not retry a write.
WRITE_BUSY_TIMEOUT = 2.0
STEPS = 10_000  # instructions of SQLite's virtual machine between two calls of the progress handler; about 1 ms

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
    sqlite3.SQLITE_CONSTRAINT: " A constraint of the table refuses a row: look for columns that may not be NULL, and "
    "for checks.",
    sqlite3.SQLITE_READONLY: " The user of the Spark worker must be able to write to it, and to its folder.",
    sqlite3.SQLITE_BUSY: " Another process writes to it; in WAL mode readers would not have to wait.",
    sqlite3.SQLITE_CANTOPEN: " The user of the Spark worker must be able to read it, and its folder if it is in WAL "
    "mode.",
    sqlite3.SQLITE_CORRUPT: " Put a copy without damage in its place; PRAGMA integrity_check says what is damaged.",
    sqlite3.SQLITE_NOTADB: " SqliteConfig.path must name a SQLite database.",
}


class Session:
    """
    One connection, opened at its first use.

    Args:
        path: Path of the file.
        max_bytes: Most bytes of one row.
        writes: Whether transactions of the connection write.

    Attributes:
        abandoned: True as soon as nobody waits for the result of the session's call any more; then the running
            statement stops, and the session is not used again.
    """

    def __init__(self, path: str, max_bytes: int, *, writes: bool) -> None:
        self.abandoned = False
        self._writes = writes
        self._path = path
        self._max_bytes = max_bytes
        self._connection: sqlite3.Connection | None = None

    def run(self, use: Callable[[sqlite3.Connection], T]) -> T:
        """
        Call *use* in a transaction that sees one state of the file, and return the result of *use*. A thread of the
        `Database` calls this method.
        """
        if self.abandoned:  # the session was abandoned while its call waited for a thread
            raise TransientError(f"The connections to {self._path} were closed.")
        if self._connection is None:
            self._connection = _connect(self._path, self._max_bytes, writes=self._writes)
            self._connection.set_progress_handler(lambda: self.abandoned, STEPS)
        # BEGIN IMMEDIATE waits until no other transaction writes. After a plain BEGIN, a transaction that reads before
        # it writes would fail at once if another transaction writes.
        self._connection.execute("BEGIN IMMEDIATE" if self._writes else "BEGIN")
        result = use(self._connection)
        if self._writes and self.abandoned:
            raise TransientError(f"The write to {self._path} was cancelled.")
        self._connection.execute("COMMIT")
        return result

    def close(self) -> None:
        """Close the connection, which no call uses any more."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Database:
    """
    The connections to one file.

    Args:
        path: Path of the file.
        threads: Most calls at a time.
        max_bytes: Most bytes of one row.
        writes: True for connections that may write, False for read-only connections.
    """

    def __init__(self, path: str, threads: int, max_bytes: int, *, writes: bool = False) -> None:
        self._path = path
        self._writes = writes
        self._max_bytes = max_bytes
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="enrichkit-sqlite")
        self._idle: list[Session] = []
        self._busy: dict[Session, Future[Any]] = {}

    def __repr__(self) -> str:
        return f"<Database {self._path}: {len(self._busy)} busy, {len(self._idle)} idle>"

    async def run(self, use: Callable[[sqlite3.Connection], T]) -> T:
        """
        Call *use* with a connection that no other call uses, and return the result of *use*.

        Raises:
            ConnectorError: SQLite failed; `translate` chooses the subclass.
        """
        session = self._idle.pop() if self._idle else Session(self._path, self._max_bytes, writes=self._writes)
        future = self._threads.submit(session.run, use)
        self._busy[session] = future
        try:
            result = await asyncio.wrap_future(future)
        except BaseException as error:
            self._abandon(session)
            if isinstance(error, sqlite3.Error):
                raise translate(error, self._path, "write" if self._writes else "read") from None
            raise
        if self._busy.pop(session, None) is not None:  # None: `close` abandoned the session meanwhile
            self._idle.append(session)
        return result

    def close(self) -> None:
        """Close all connections without waiting for a call; a call in flight fails."""
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
            # The session is closed at once if its call has ended, and otherwise when the call ends.
            future.add_done_callback(lambda _: session.close())


def translate(error: sqlite3.Error, path: str, what: str = "read") -> ConnectorError:
    """Return the `ConnectorError` for an error that concerns the whole file; its text never holds a key."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    primary = code & 0xFF
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    # The text of a permanent error is left out of the message, because it is about a value and may quote the value.
    reason = "" if primary in _PERMANENT else f": {error}"
    text = f"SQLite cannot {what} {path} ({name}){reason}.{_ADVICE.get(primary, '')}"
    if primary in _TRANSIENT:
        return TransientError(text)
    return PermanentError(text) if primary in _PERMANENT else FatalError(text)


def _connect(path: str, max_bytes: int, *, writes: bool) -> sqlite3.Connection:
    # The file is looked for first, because SQLite's message "unable to open database file" has a dozen causes.
    if not os.path.isfile(path):
        raise FatalError(
            f"SqliteConfig.path is {path!r}, and there is no such file on this machine. It must be there on each "
            "worker, and on the driver unless returns= is given. Copy it there, or put it into a shared folder."
        )
    # mode=ro: SQLite neither writes nor creates the file; with mode=rw it does not create the file either. The path is
    # quoted, because ?, # and % have a meaning in a URI. The URI begins with file:// because SQLite would otherwise
    # take the beginning of a path such as //data/shop.db for a host.
    connection = sqlite3.connect(
        f"file://{quote(path)}?mode={'rw' if writes else 'ro'}",
        uri=True,
        timeout=WRITE_BUSY_TIMEOUT if writes else BUSY_TIMEOUT,
        isolation_level=None,  # `Session.run` begins and commits transactions
        check_same_thread=False,  # threads use a connection one after another, never two at a time
    )
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max_bytes)
    return connection
