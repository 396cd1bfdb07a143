"""
The translation of asyncpg's exceptions into unavailable, transient, permanent and fatal errors.

The text of a server error may quote a key (`invalid input syntax for type uuid: "..."`). So a `ConnectorError` repeats
the text only for SQLSTATE classes whose texts are about the server, its objects and its state. If a database function
raised the error, the text is repeated only for the states in `_NAMES`.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError, UnavailableError
from enrichkit.plugin import files_exhausted, redact
from enrichkit.sql import tls_fault

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

__all__ = ["translate"]

# https://www.postgresql.org/docs/current/errcodes-appendix.html
# These SQLSTATE prefixes are transient: connection, rollback (serialization, deadlock, standby conflict), resources,
# object in use, operator (shutdown, statement timeout, starting up), system. No prefix is needed for a cached plan that
# has become invalid: asyncpg itself repeats such a statement, except in a transaction.
_TRANSIENT = ("08", "25P03", "25P04", "40", "53", "55", "57", "58", "72")
# The transient states in which the server can answer no key at all: the connection broke, there are too many
# connections, or the server shuts down, starts up or recovers.
_UNAVAILABLE = ("08", "53300", "57P01", "57P02", "57P03", "57P05")
# These SQLSTATE prefixes are fatal: authentication, catalog and schema names, syntax, access, read-only, unsupported,
# statement name, role.
_FATAL = ("08P01", "0A", "0L", "0P", "25", "26", "28", "3D", "3F", "42", "57P04")

POOLER = "08P01"
"""SQLSTATE of all errors of PgBouncer, even of transient ones, for example if it has no server or too many clients."""
_OF_SETTINGS = ("unsupported startup parameter", "no such ", "password authentication failed", "SSL required")

_UNQUALIFIED = (
    "The search_path of enrichkit's sessions is 'public, pg_temp', whatever that of the role is: write the schema in "
    "query, view or function, or name another in PostgresConfig.settings, as in settings={'search_path': 'app'}."
)
_NAMES = ("42P01", "42883", "42704", "3F000")
"""SQLSTATEs of errors whose texts name a missing object and never quote a key, even if a function raised the error."""

_UNFILLED = "has not been populated"
"""
Part of the text of an error with SQLSTATE 55000. The error means that a materialized view was created WITH NO DATA, and
waiting does not fill the view.

Other errors with this SQLSTATE are transient.
"""

_ADVICE = {
    "28": "Check the user of PostgresConfig.dsn and set the password, for example password=Secret.env('PGPASSWORD').",
    "28000": "Check the user of PostgresConfig.dsn, and what pg_hba.conf of the server asks of it: a password, TLS, or "
    "a certificate, which PostgresConfig.tls_cert and tls_key name.",
    "3D": "Name an existing database at the end of PostgresConfig.dsn.",
    _UNFILLED: "Fill it first: REFRESH MATERIALIZED VIEW, with the name of the view.",
    "42601": "PostgresConfig.query must be one SELECT statement, without a semicolon inside.",
    "42501": "Grant SELECT on it to this user, and INSERT and UPDATE if PostgresConfig.writable is True.",
    # The server raises these two errors if it cannot convert a character of a key or a value between the encoding of
    # the database and UTF-8, the encoding of the client. https://www.postgresql.org/docs/current/multibyte.html
    "22P05": "The encoding of the database lacks a character of a key, or a stored byte has no Unicode character. "
    "Select convert_to(column, getdatabaseencoding()) in a view, to read or to look up the bytes.",
    "22021": "A stored text is not valid in UTF-8. Select convert_to(column, getdatabaseencoding()) in a view, to read "
    "or to look up the bytes.",
    "42P01": _UNQUALIFIED,
    "42883": _UNQUALIFIED,
    "3F": _UNQUALIFIED,
    "42704": "A setting that the database reads is named in PostgresConfig.settings, as in "
    "settings={'app.tenant': 'acme'}; for a type or another object: " + _UNQUALIFIED,
    "25006": "The session is read-only; the query must be a SELECT that writes nothing.",
    "53300": "Lower capacity, which counts per worker process, or raise max_connections of the server.",
    "57014": "The statement ran longer than the lookup may take: give the key an index, or raise the option timeout.",
    "08P01": "Behind PgBouncer, set PostgresConfig.pgbouncer=True.",
    "26": "Behind PgBouncer, set PostgresConfig.pgbouncer=True.",
    "42P05": "Behind PgBouncer, set PostgresConfig.pgbouncer=True.",
}


def translate(error: Exception, driver: ModuleType, where: str, *secrets: str | None) -> ConnectorError:
    """
    Return the `ConnectorError` for an exception of asyncpg; its message has neither keys nor *secrets*.

    Args:
        error: The exception; a `ConnectorError` is returned as it is.
        driver: The module asyncpg.
        where: Address of the server, for the message.
        secrets: Secrets that the message must not show.
    """
    if isinstance(error, ConnectorError):
        return error
    state = getattr(error, "sqlstate", None)
    if isinstance(error, driver.PostgresError) and isinstance(state, str):
        return _server_error(error, state, where, secrets)
    if (refusal := tls_fault(error)) is not None:
        return _tls_error(refusal, where)
    if isinstance(error, OSError):
        return _network_error(error, where, secrets)
    return _driver_error(error, driver, where, secrets)


def _server_error(error: Any, state: str, where: str, secrets: Sequence[str | None]) -> ConnectorError:
    """Return the `ConnectorError` for an error that the server reported with the SQLSTATE *state*."""
    said = str(error.args[0]) if error.args else ""
    kind = _class_of(state, said)
    shown = kind is not PermanentError and (error.context is None or state in _NAMES)
    text = f"{redact(said, *secrets).rstrip('.')}, " if shown and error.args else ""
    advice = "" if state == POOLER and issubclass(kind, TransientError) else _advice(state, said)
    message = f"PostgreSQL at {where} says: {text}{type(error).__name__}, SQLSTATE {state}. {advice}"
    if kind is UnavailableError:
        return UnavailableError(message.rstrip(), busy=state == "53300" or "no more connections" in text)
    return kind(message.rstrip())


def _tls_error(refusal: str, where: str) -> FatalError:
    if "_ALERT_" in refusal:  # the server sent a TLS alert, so the server refused the connection
        return FatalError(
            f"PostgreSQL at {where} refused the TLS connection: {refusal}. If it asks for a certificate of the "
            "client, name one that it trusts with PostgresConfig.tls_cert and tls_key."
        )
    return FatalError(
        f"The TLS connection to PostgreSQL at {where} was refused by us: {refusal.rstrip('.')}. It must show a "
        "valid certificate for this host name. Name the certificates to trust with PostgresConfig.tls_ca."
    )


def _network_error(error: OSError, where: str, secrets: Sequence[str | None]) -> ConnectorError:
    if isinstance(error, ConnectionError) and "rejected SSL upgrade" in str(error):
        return FatalError(
            f"PostgreSQL at {where} does not offer TLS, which PostgresConfig asks for. Turn ssl on in the server, or "
            "accept an unencrypted connection with insecure=True."
        )
    # The host name may be misspelled. Then it would not help to wait for the server, as after an `UnavailableError`.
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME:
        return TransientError(redact(f"PostgreSQL at {where} cannot be reached: {error.strerror}.", *secrets))
    if isinstance(error, TimeoutError):
        return TransientError(
            f"PostgreSQL at {where} did not answer in time. Raise the option timeout, or look at the server."
        )
    reason = files_exhausted(error) or str(error.strerror or error) or type(error).__name__
    return UnavailableError(redact(f"PostgreSQL at {where} cannot be reached: {reason}.", *secrets))


def _driver_error(error: Exception, driver: ModuleType, where: str, secrets: Sequence[str | None]) -> ConnectorError:
    """Return the `ConnectorError` for an exception that asyncpg itself raised."""
    if isinstance(error, driver.ClientConfigurationError | driver.UnsupportedServerFeatureError):
        return FatalError(redact(f"asyncpg cannot connect to PostgreSQL at {where}: {error}", *secrets))
    if isinstance(error, driver.TargetServerAttributeNotMatched):
        return UnavailableError(
            f"No server at {where} is what target_session_attrs in PostgresConfig.dsn asks for; one may be on its way "
            "to it. Look at the servers, or name another kind."
        )
    # The message leaves out the text of *error*, because this text quotes the key.
    if isinstance(error, driver.InterfaceError) and isinstance(error, ValueError):
        return PermanentError(f"A key does not fit its column of PostgreSQL at {where}: {type(error).__name__}.")
    if isinstance(error, driver.InterfaceError | driver.InternalClientError):
        return UnavailableError(f"The connection to PostgreSQL at {where} broke: {type(error).__name__}.")
    # *error* is most likely a decoding error. The message leaves out the text of *error*, which may quote the value.
    return PermanentError(f"A value from PostgreSQL at {where} cannot be read: {type(error).__name__}.")


def _class_of(state: str, text: str) -> type[FatalError | PermanentError | TransientError]:
    """
    Return the error class for the SQLSTATE *state*. The longest matching prefix decides: 25P03 is transient, although
    25 is fatal.
    """
    if state == POOLER and not text.startswith(_OF_SETTINGS):
        return UnavailableError
    if _is_unfilled(state, text):
        return FatalError
    transient = max((len(prefix) for prefix in _TRANSIENT if state.startswith(prefix)), default=0)
    fatal = max((len(prefix) for prefix in _FATAL if state.startswith(prefix)), default=0)
    if fatal > transient:
        return FatalError
    if transient:
        return UnavailableError if state.startswith(_UNAVAILABLE) else TransientError
    return PermanentError


def _is_unfilled(state: str, text: str) -> bool:
    return state == "55000" and _UNFILLED in text


def _advice(state: str, text: str) -> str:
    if _is_unfilled(state, text):
        return _ADVICE[_UNFILLED]
    return _ADVICE.get(state) or _ADVICE.get(state[:2], "")
