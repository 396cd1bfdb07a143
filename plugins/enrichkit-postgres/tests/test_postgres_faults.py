"""What an error of the server or of the driver becomes: its class, its whole text, and what must not be in that."""

from __future__ import annotations

import socket
from typing import Any

import asyncpg
import pytest
from enrichkit_postgres.faults import translate

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError, UnavailableError

PGBOUNCER = "Behind PgBouncer, set PostgresConfig.pgbouncer=True."
LOGIN = "Check the user of PostgresConfig.dsn and set the password, for example password=Secret.env('PGPASSWORD')."
NOT_LET_IN = (
    "Check the user of PostgresConfig.dsn, and what pg_hba.conf of the server asks of it: a password, TLS, or a "
    "certificate, which PostgresConfig.tls_cert and tls_key name."
)
READ_ONLY = "The session is read-only; the query must be a SELECT that writes nothing."
ONE_SELECT = "PostgresConfig.query must be one SELECT statement, without a semicolon inside."
FEWER = "Lower capacity, which counts per worker process, or raise max_connections of the server."
UNQUALIFIED = (
    "The search_path of enrichkit's sessions is 'public, pg_temp', whatever that of the role is: write the schema in "
    "query, view or function, or name another in PostgresConfig.settings, as in settings={'search_path': 'app'}."
)
UNDEFINED = (
    "A setting that the database reads is named in PostgresConfig.settings, as in settings={'app.tenant': 'acme'}; for "
    f"a type or another object: {UNQUALIFIED}"
)
SLOW = "The statement ran longer than the lookup may take: give the key an index, or raise the option timeout."


def told(error: Exception, *secrets: str | None) -> tuple[type[ConnectorError], str]:
    ours = translate(error, asyncpg, "db:5432", *secrets)
    return type(ours), str(ours)


def of_server(state: str, text: str = "words of the server", **fields: Any) -> asyncpg.PostgresError:
    """The exception that the driver makes of what the server sends; *fields* by their letters in the protocol."""
    return asyncpg.PostgresError.new({"C": state, "M": text, **fields})


OF_ITSELF = {
    "08006": ("ConnectionFailureError", UnavailableError, ""),
    "08P01": ("ProtocolViolationError", UnavailableError, ""),
    "0A000": ("FeatureNotSupportedError", FatalError, ""),
    "25006": ("ReadOnlySQLTransactionError", FatalError, READ_ONLY),
    "25P02": ("InFailedSQLTransactionError", FatalError, ""),
    "25P03": ("IdleInTransactionSessionTimeoutError", TransientError, ""),
    "25P04": ("TransactionTimeoutError", TransientError, ""),
    "26000": ("InvalidSQLStatementNameError", FatalError, PGBOUNCER),
    "28000": ("InvalidAuthorizationSpecificationError", FatalError, NOT_LET_IN),
    "28P01": ("InvalidPasswordError", FatalError, LOGIN),
    "3D000": ("InvalidCatalogNameError", FatalError, "Name an existing database at the end of PostgresConfig.dsn."),
    "40001": ("SerializationError", TransientError, ""),
    "42501": (
        "InsufficientPrivilegeError",
        FatalError,
        "Grant SELECT on it to this user, and INSERT and UPDATE if PostgresConfig.writable is True.",
    ),
    "42601": ("PostgresSyntaxError", FatalError, ONE_SELECT),
    "42704": ("UndefinedObjectError", FatalError, UNDEFINED),
    "42P01": ("UndefinedTableError", FatalError, UNQUALIFIED),
    "42883": ("UndefinedFunctionError", FatalError, UNQUALIFIED),
    "3F000": ("InvalidSchemaNameError", FatalError, UNQUALIFIED),
    "42P05": ("DuplicatePreparedStatementError", FatalError, PGBOUNCER),
    "53200": ("OutOfMemoryError", TransientError, ""),
    "53300": ("TooManyConnectionsError", UnavailableError, FEWER),
    "53400": ("ConfigurationLimitExceededError", TransientError, ""),
    "57000": ("OperatorInterventionError", TransientError, ""),
    "57014": ("QueryCanceledError", TransientError, SLOW),
    "57P01": ("AdminShutdownError", UnavailableError, ""),
    "57P02": ("CrashShutdownError", UnavailableError, ""),
    "57P03": ("CannotConnectNowError", UnavailableError, ""),
    "57P04": ("DatabaseDroppedError", FatalError, ""),
    "57P05": ("IdleSessionTimeoutError", UnavailableError, ""),
}


@pytest.mark.parametrize("state", OF_ITSELF)
def test_what_the_server_says_of_itself_is_told_with_advice(state: str) -> None:
    name, kind, advice = OF_ITSELF[state]
    expected = f"PostgreSQL at db:5432 says: words of the server, {name}, SQLSTATE {state}. {advice}".rstrip()
    assert (kind, expected) == told(of_server(state))
    assert getattr(translate(of_server(state), asyncpg, "db:5432"), "busy", False) is (state == "53300")


@pytest.mark.parametrize(
    ("text", "kind", "advice"),
    [
        (
            'materialized view "totals" has not been populated',
            FatalError,
            "Fill it first: REFRESH MATERIALIZED VIEW, with the name of the view.",
        ),
        ("currval of sequence is not yet defined in this session", TransientError, ""),
    ],
)
def test_a_materialised_view_without_data_is_told_from_what_passes(
    text: str, kind: type[ConnectorError], advice: str
) -> None:
    name = "ObjectNotInPrerequisiteStateError"
    expected = f"PostgreSQL at db:5432 says: {text}, {name}, SQLSTATE 55000. {advice}".rstrip()
    assert (kind, expected) == told(of_server("55000", text))


@pytest.mark.parametrize(
    ("text", "kind", "advice"),
    [
        ("unsupported startup parameter: search_path", FatalError, PGBOUNCER),
        ("no such database: shop", FatalError, PGBOUNCER),
        ("server login has been failing, try again later (server_login_retry)", UnavailableError, ""),
        ("no more connections allowed (max_client_conn)", UnavailableError, ""),
        ("query_wait_timeout", UnavailableError, ""),
    ],
)
def test_pgbouncer_says_one_thing_of_what_lasts_and_of_what_passes(
    text: str, kind: type[ConnectorError], advice: str
) -> None:
    expected = f"PostgreSQL at db:5432 says: {text}, ProtocolViolationError, SQLSTATE 08P01. {advice}".rstrip()
    assert (kind, expected) == told(of_server("08P01", text))


def test_an_argument_that_the_driver_cannot_encode_is_the_fault_of_its_key() -> None:
    expected = "A key does not fit its column of PostgreSQL at db:5432: DataError."
    of_driver = asyncpg.exceptions._base.DataError  # the public name is that of the server's error
    assert (PermanentError, expected) == told(of_driver("invalid input for query argument $1: 'S3cret'"))


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ("22P02", "InvalidTextRepresentationError"),
        ("P0001", "RaiseError"),
        ("XX000", "InternalServerError"),
        ("ZZ999", "UnknownPostgresError"),
    ],
)
def test_what_the_server_may_say_of_a_key_is_not_passed_on(state: str, name: str) -> None:
    expected = f"PostgreSQL at db:5432 says: {name}, SQLSTATE {state}."
    assert (PermanentError, expected) == told(of_server(state, "S3cret"))


def test_the_words_of_the_server_end_once_and_hold_no_secret() -> None:
    text = "ended S3cret by password=other, for good."
    expected = "PostgreSQL at db:5432 says: ended *** by password=***, for good, AdminShutdownError, SQLSTATE 57P01."
    assert (UnavailableError, expected) == told(of_server("57P01", text), None, "S3cret")


def test_the_words_of_a_function_are_not_passed_on() -> None:
    expected = "PostgreSQL at db:5432 says: AdminShutdownError, SQLSTATE 57P01."
    assert (UnavailableError, expected) == told(of_server("57P01", "S3cret", W="PL/pgSQL function tell(text)"))


OF_THE_DRIVER = [
    (
        asyncpg.ClientConfigurationError("no file of S3cret"),
        FatalError,
        "asyncpg cannot connect to PostgreSQL at db:5432: no file of ***",
    ),
    (
        asyncpg.UnsupportedServerFeatureError("no such feature"),
        FatalError,
        "asyncpg cannot connect to PostgreSQL at db:5432: no such feature",
    ),
    (
        asyncpg.InterfaceError("S3cret"),
        UnavailableError,
        "The connection to PostgreSQL at db:5432 broke: InterfaceError.",
    ),
    (
        asyncpg.InternalClientError("S3cret"),
        UnavailableError,
        "The connection to PostgreSQL at db:5432 broke: InternalClientError.",
    ),
    (
        asyncpg.ProtocolError("S3cret"),
        UnavailableError,
        "The connection to PostgreSQL at db:5432 broke: ProtocolError.",
    ),
    (
        UnicodeDecodeError("utf-8", b"S3cret", 0, 1, "S3cret"),
        PermanentError,
        "A value from PostgreSQL at db:5432 cannot be read: UnicodeDecodeError.",
    ),
    (
        OverflowError("S3cret"),
        PermanentError,
        "A value from PostgreSQL at db:5432 cannot be read: OverflowError.",
    ),
    (
        TimeoutError(),
        TransientError,
        "PostgreSQL at db:5432 did not answer in time. Raise the option timeout, or look at the server.",
    ),
    (
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        TransientError,
        "PostgreSQL at db:5432 cannot be reached: Name or service not known.",
    ),
    (
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        UnavailableError,
        "PostgreSQL at db:5432 cannot be reached: Temporary failure in name resolution.",
    ),
    (
        asyncpg.TargetServerAttributeNotMatched("S3cret"),
        UnavailableError,
        (
            "No server at db:5432 is what target_session_attrs in PostgresConfig.dsn asks for; one may be on its way "
            "to it. Look at the servers, or name another kind."
        ),
    ),
    (
        ConnectionError("unexpected connection_lost() call to S3cret"),
        UnavailableError,
        "PostgreSQL at db:5432 cannot be reached: unexpected connection_lost() call to ***.",
    ),
]


@pytest.mark.parametrize(
    ("error", "kind", "text"), OF_THE_DRIVER, ids=[type(case[0]).__name__ for case in OF_THE_DRIVER]
)
def test_what_the_driver_says_is_told_without_a_value(error: Exception, kind: type[ConnectorError], text: str) -> None:
    assert (kind, text) == told(error, "S3cret")


def test_an_error_of_ours_stays_as_it_is() -> None:
    ours = TransientError("ours", retry_after=1.0)
    assert translate(ours, asyncpg, "db:5432") is ours
