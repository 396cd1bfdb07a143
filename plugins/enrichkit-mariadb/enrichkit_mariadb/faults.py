"""
The driver's exceptions become ours: try again, this key is bad, or nothing will work.

What the server writes may quote a key (`Incorrect datetime value: '...'`) or our statement with all keys in it (`syntax
to use near '...'`), so its text is passed on only for numbers whose texts speak of the server, its names and its state.
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError
from enrichkit.secrets import redact

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["STOPPED", "translate"]

STOPPED = 1969
"""The server stopped a statement at its time limit."""

# https://mariadb.com/docs/server/reference/error-codes/mariadb-error-code-reference
_TRANSIENT = frozenset(
    {
        *(1020, 1021, 1037, 1038, 1040, 1041, 1053),  # changed meanwhile, disk, memory, connections, shutdown
        *(1047, 1129, 1152, 1158, 1159, 1160, 1161, 1184),  # Galera not ready, host blocked, network
        *(1203, 1205, 1206, 1213, 1226, 1317, 1412, 1615, 1836, 1927, STOPPED, 4166),  # limits, locks, killed, changed
        *range(2000, 2100),  # of the client: lost, gone, refused
    }
)
_FATAL = frozenset(
    {
        *(1043, 1044, 1045, 1049, 1130, 1251, 1396, 1524, 1698, 1820, 1862, 2054, 2059, 4151),  # login
        *(1054, 1064, 1109, 1142, 1143, 1146, 1227, 1305, 1345, 1356, 1370, 1449, 1792),  # tables, columns, rights
        *(1115, 1193, 1253, 1267, 1273),  # a character set, a collation or a setting that this server does not know
    }
)
_SILENT = {1064}  # quotes the statement

_ADVICE = {
    1040: "Lower capacity, which counts per worker process, or raise max_connections of the server.",
    1044: "Grant SELECT on the table to this user.",
    1045: "Check the user of MariadbConfig.url and set the password, for example password=Secret.env('SHOP_PASSWORD').",
    1064: "MariaDB 10.6 or newer is needed.",
    1142: "Grant SELECT on it to this user.",
    1143: "Grant SELECT on it to this user.",
    1203: "Lower capacity, which counts per worker process, or raise max_user_connections of the server.",
    1226: "Lower capacity, which counts per worker process, or raise this limit of the user.",
    1698: "Check the user of MariadbConfig.url and set the password, for example password=Secret.env('SHOP_PASSWORD').",
    1792: "The session is read-only; a view must not call a function that writes.",
    STOPPED: "The statement ran longer than the lookup may take: give the key an index, or raise the option timeout.",
}


def translate(error: Exception, driver: ModuleType, where: str, *secrets: str | None) -> ConnectorError:
    """
    Return the `ConnectorError` for an exception of the driver, its text without keys and without *secrets*.

    Args:
        error: What was caught; a `ConnectorError` is returned as it is.
        driver: The module asyncmy.errors.
        where: The server, for the text.
        secrets: What must not be in the text.
    """
    if isinstance(error, ConnectorError):
        return error
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error  # the driver wraps what the socket says
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        reason = getattr(cause, "verify_message", None) or str(cause.reason) or type(cause).__name__
        return FatalError(
            f"The TLS connection to MariaDB at {where} was refused by us: {reason.rstrip('.')}. It must show a valid "
            "certificate for this host name. Name the certificates to trust with MariadbConfig.tls_ca; a server "
            "without TLS needs tls=False."
        )
    if isinstance(cause, TimeoutError):  # an OSError too
        return TransientError(
            f"MariaDB at {where} did not answer in time. Raise the option timeout, or look at the server."
        )
    if isinstance(cause, OSError):
        # asyncio puts the address into strerror; the numbers of name resolution are negative
        why = os.strerror(cause.errno) if cause.errno is not None and cause.errno > 0 else cause.strerror or cause
        return TransientError(redact(f"MariaDB at {where} cannot be reached: {why}.", *secrets))
    if isinstance(error, driver.MySQLError):
        number, text = (*error.args, None, None)[:2]
        if type(number) is not int or number < 1000:  # out of step, or used after its end
            return TransientError(f"The connection to MariaDB at {where} broke: {type(error).__name__}.")
        kind = _class_of(number)
        shown = kind is not PermanentError and number not in _SILENT and text
        said = f"{redact(str(text), *secrets).rstrip('.')}, " if shown else ""
        return kind(f"MariaDB at {where} says: {said}error {number}. {_ADVICE.get(number, '')}".rstrip())
    # Decoding, most likely: the text may quote the value.
    return PermanentError(f"A value from MariaDB at {where} cannot be read: {type(error).__name__}.")


def _class_of(number: int) -> type[FatalError | PermanentError | TransientError]:
    if number in _FATAL:
        return FatalError
    return TransientError if number in _TRANSIENT else PermanentError
