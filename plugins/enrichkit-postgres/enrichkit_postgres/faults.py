"""
The driver's exceptions become ours: try again, this key is bad, or nothing will work.

What the server writes may quote a key (`invalid input syntax for type uuid: "..."`), so its text is passed on only for
those SQLSTATE classes whose texts speak of the server, its names and its state, and only when no function raised it.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError
from enrichkit.secrets import redact

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["translate"]

# https://www.postgresql.org/docs/current/errcodes-appendix.html
# Connection, rollback (serialization, deadlock, standby conflict), resources, in use, operator (shutdown, statement
# timeout, starting up), system; asyncpg repeats by itself when a plan is outdated, unless it is in a transaction.
_TRANSIENT = ("08", "25P03", "25P04", "40", "53", "55", "57", "58", "72")
# Authentication, catalog and schema names, syntax, access, read-only, unsupported, statement name, role.
_FATAL = ("08P01", "0A", "0L", "0P", "25", "26", "28", "3D", "3F", "42", "57P04")

POOLER = "08P01"
"""PgBouncer says so of all that it refuses: no server to be had, or too many clients, for a moment, too."""
_OF_SETTINGS = ("unsupported startup parameter", "no such ", "password authentication failed", "SSL required")

_ADVICE = {
    "28": "Check the user of PostgresConfig.dsn and set the password, for example password=Secret.env('PGPASSWORD').",
    "28000": "Check the user of PostgresConfig.dsn, and what pg_hba.conf of the server asks of it: a password, TLS, or "
    "a certificate, which PostgresConfig.tls_cert and tls_key name.",
    "3D": "Name an existing database at the end of PostgresConfig.dsn.",
    "42601": "PostgresConfig.query must be one SELECT statement, without a semicolon inside.",
    "42501": "Grant SELECT on it to this user.",
    "25006": "The session is read-only; the query must be a SELECT that writes nothing.",
    "53300": "Lower capacity, which counts per worker process, or raise max_connections of the server.",
    "57014": "The statement ran longer than the lookup may take: give the key an index, or raise the option timeout.",
    "08P01": "Behind PgBouncer, set PostgresConfig.pgbouncer=True.",
    "26": "Behind PgBouncer, set PostgresConfig.pgbouncer=True.",
    "42P05": "Behind PgBouncer, set PostgresConfig.pgbouncer=True.",
}


def translate(error: Exception, driver: ModuleType, where: str, *secrets: str | None) -> ConnectorError:
    """
    Return the `ConnectorError` for an exception of the driver, its text without keys and without *secrets*.

    Args:
        error: What was caught; a `ConnectorError` is returned as it is.
        driver: The module asyncpg.
        where: The server, for the text.
        secrets: What must not be in the text.
    """
    if isinstance(error, ConnectorError):
        return error
    state = getattr(error, "sqlstate", None)
    if isinstance(error, driver.PostgresError) and isinstance(state, str):
        kind = _class_of(state, str(error.args[0]) if error.args else "")
        shown = kind is not PermanentError and error.context is None
        text = f"{redact(str(error.args[0]), *secrets).rstrip('.')}, " if shown and error.args else ""
        advice = "" if state == POOLER and kind is TransientError else _advice(state)
        said = f"PostgreSQL at {where} says: {text}{type(error).__name__}, SQLSTATE {state}. {advice}"
        return kind(said.rstrip())
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        reason = getattr(error, "verify_message", None) or str(error.reason) or type(error).__name__
        if "_ALERT_" in reason:  # of the other end
            return FatalError(
                f"PostgreSQL at {where} refused the TLS connection: {reason}. If it asks for a certificate of the "
                "client, name one that it trusts with PostgresConfig.tls_cert and tls_key."
            )
        return FatalError(
            f"The TLS connection to PostgreSQL at {where} was refused by us: {reason.rstrip('.')}. It must show a "
            "valid certificate for this host name. Name the certificates to trust with PostgresConfig.tls_ca."
        )
    if isinstance(error, ConnectionError) and "rejected SSL upgrade" in str(error):
        return FatalError(
            f"PostgreSQL at {where} does not offer TLS, which PostgresConfig asks for. Turn ssl on in the server, or "
            "accept an unencrypted connection with insecure=True."
        )
    if isinstance(error, TimeoutError):  # an OSError too
        return TransientError(
            f"PostgreSQL at {where} did not answer in time. Raise the option timeout, or look at the server."
        )
    if isinstance(error, OSError):
        reason = str(error.strerror or error) or type(error).__name__
        return TransientError(redact(f"PostgreSQL at {where} cannot be reached: {reason}.", *secrets))
    if isinstance(error, driver.ClientConfigurationError | driver.UnsupportedServerFeatureError):
        return FatalError(redact(f"asyncpg cannot connect to PostgreSQL at {where}: {error}", *secrets))
    if isinstance(error, driver.TargetServerAttributeNotMatched):
        return TransientError(
            f"No server at {where} is what target_session_attrs in PostgresConfig.dsn asks for; one may be on its way "
            "to it. Look at the servers, or name another kind."
        )
    if isinstance(error, driver.InterfaceError) and isinstance(error, ValueError):  # its text quotes the value
        return PermanentError(f"A key does not fit its column of PostgreSQL at {where}: {type(error).__name__}.")
    if isinstance(error, driver.InterfaceError | driver.InternalClientError):
        return TransientError(f"The connection to PostgreSQL at {where} broke: {type(error).__name__}.")
    # Decoding, most likely: the text may quote the value.
    return PermanentError(f"A value from PostgreSQL at {where} cannot be read: {type(error).__name__}.")


def _class_of(state: str, text: str) -> type[FatalError | PermanentError | TransientError]:
    """The longest prefix wins: 25P03 is transient, the rest of 25 is fatal."""
    if state == POOLER and not text.startswith(_OF_SETTINGS):
        return TransientError
    transient = max((len(prefix) for prefix in _TRANSIENT if state.startswith(prefix)), default=0)
    fatal = max((len(prefix) for prefix in _FATAL if state.startswith(prefix)), default=0)
    if fatal > transient:
        return FatalError
    return TransientError if transient else PermanentError


def _advice(state: str) -> str:
    return _ADVICE.get(state) or _ADVICE.get(state[:2], "")
