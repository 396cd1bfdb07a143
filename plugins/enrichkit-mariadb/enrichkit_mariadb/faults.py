"""
The translation of asyncmy's exceptions into unavailable, transient, permanent and fatal errors.

The server's text of an error may quote a key (`Incorrect datetime value: '...'`), or the statement with all its keys
(`syntax to use near '...'`). So the message repeats the text only for error numbers whose texts concern the server, its
names and its state.
"""

from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError, UnavailableError
from enrichkit.plugin import files_exhausted, redact

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["STOPPED", "translate"]

STOPPED = 1969
"""Number of the error with which the server stops a statement at its time limit."""

# https://mariadb.com/docs/server/reference/error-codes/mariadb-error-code-reference
_TRANSIENT = frozenset(
    {
        # Row changed meanwhile, full disk, no memory, too many connections, shutdown.
        *(1020, 1021, 1037, 1038, 1040, 1041, 1053),
        *(1047, 1129, 1152, 1158, 1159, 1160, 1161, 1184),  # Galera not ready, host blocked, network
        # Limits, locks, killed statements or connections, changed tables.
        *(1203, 1205, 1206, 1213, 1226, 1317, 1412, 1615, 1836, 1927, STOPPED, 4166),
        *range(2000, 2100),  # errors of the client: connection lost, gone, refused
    }
)
# The transient errors that any key would get: too many connections, shutdown, Galera not ready, network.
_UNAVAILABLE = frozenset({1040, 1047, 1053, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1927, *range(2000, 2100)})
# The numbers in `_UNAVAILABLE` by which a server says that it has as many connections as it accepts.
_BUSY = frozenset({1040, 1203, 1226})
_FATAL = frozenset(
    {
        *(1043, 1044, 1045, 1049, 1130, 1251, 1396, 1524, 1698, 1820, 1862, 2054, 2059, 4151),  # the login is refused
        *(
            1054,
            1064,
            1109,
            1142,
            1143,
            1146,
            1227,
            1290,
            1305,
            1345,
            1356,
            1370,
            1449,
            1792,
        ),  # a table, a column or a right is missing, or the server refuses the statement
        *(1115, 1193, 1253, 1267, 1273),  # a character set, a collation or a setting that this server does not know
    }
)
_QUOTES_STATEMENT = {1064}

_ADVICE = {
    1040: "Lower capacity, which counts per worker process, or raise max_connections of the server.",
    1044: "Grant SELECT on the table to this user.",
    1045: "Check the user of MariadbConfig.url and set the password, for example password=Secret.env('SHOP_PASSWORD').",
    1064: "MariaDB 10.6 or newer is needed.",
    1142: "Grant SELECT on the table to this user, and INSERT and UPDATE if MariadbConfig.writable is True.",
    1143: "Grant SELECT on the column to this user.",
    1290: "Name a server that takes writes, or leave MariadbConfig.writable out.",
    1364: "A column that is neither in MariadbConfig.key nor in columns needs a default value.",
    1203: "Lower capacity, which counts per worker process, or raise max_user_connections of the server.",
    1226: "Lower capacity, which counts per worker process, or raise this limit of the user.",
    1698: "Check the user of MariadbConfig.url and set the password, for example password=Secret.env('SHOP_PASSWORD').",
    1792: "The session is read-only; a view must not call a function that writes.",
    STOPPED: "The statement ran longer than the lookup may take: give the key an index, or raise the option timeout.",
}


def translate(error: Exception, client_errors: ModuleType, where: str, *secrets: str | None) -> ConnectorError:
    """
    Return the `ConnectorError` for an exception of asyncmy; its message has neither keys nor *secrets*.

    Args:
        error: The exception; a `ConnectorError` is returned as it is.
        client_errors: The module asyncmy.errors.
        where: Address of the server, for the message.
        secrets: Secrets that the message must not show.
    """
    if isinstance(error, ConnectorError):
        return error
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error  # asyncmy wraps errors of the socket
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        reason = getattr(cause, "verify_message", None) or str(cause.reason) or type(cause).__name__
        return FatalError(
            f"The connector refused the TLS connection to MariaDB at {where}: {reason.rstrip('.')}. The server must "
            "show a valid certificate for this host name. Name the certificates to trust with MariadbConfig.tls_ca; a "
            "server without TLS needs tls=False."
        )
    # A `TimeoutError` of the operating system has an errno; one without an errno comes from a timer of this process.
    if isinstance(cause, TimeoutError) and cause.errno is None:
        return TransientError(
            f"MariaDB at {where} did not answer in time. Raise the option timeout, or look at the server."
        )
    if isinstance(cause, OSError):
        # The message takes its text from the error number and not from `strerror`, because asyncio puts the address
        # into `strerror`. Errors of name resolution have negative numbers, for which `os.strerror` has no text.
        known = os.strerror(cause.errno) if cause.errno is not None and cause.errno > 0 else cause.strerror or cause
        reason = files_exhausted(cause) or known
        # A host name that is not found may be misspelled, and then waiting for the server does not help.
        misspelt = isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME
        kind: type[ConnectorError] = TransientError if misspelt else UnavailableError
        return kind(redact(f"MariaDB at {where} cannot be reached: {reason}.", *secrets))
    if isinstance(error, client_errors.MySQLError):
        number, text = (*error.args, None, None)[:2]
        # An error of asyncmy itself: packets are out of order, or the connection is closed.
        if type(number) is not int or number < 1000:
            return UnavailableError(f"The connection to MariaDB at {where} broke: {type(error).__name__}.")
        kind = _class_of(number)
        shown = kind is not PermanentError and number not in _QUOTES_STATEMENT and text
        quoted = f"{redact(str(text), *secrets).rstrip('.')}, " if shown else ""
        message = f"MariaDB at {where} says: {quoted}error {number}. {_ADVICE.get(number, '')}".rstrip()
        return UnavailableError(message, busy=number in _BUSY) if kind is UnavailableError else kind(message)
    # An error of any other class most likely arose when a value was decoded. The message leaves out the error's text,
    # which may quote the value.
    return PermanentError(f"A value from MariaDB at {where} cannot be read: {type(error).__name__}.")


def _class_of(number: int) -> type[FatalError | PermanentError | TransientError]:
    """Return the error class for *number*, an error number of the server."""
    if number in _FATAL:
        return FatalError
    if number in _UNAVAILABLE:
        return UnavailableError
    return TransientError if number in _TRANSIENT else PermanentError
