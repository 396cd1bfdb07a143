"""What a user says about a PostgreSQL source."""

from __future__ import annotations

from dataclasses import dataclass, field

from enrichkit.connector import ConnectorConfig
from enrichkit.errors import ConfigError
from enrichkit.secrets import Secret

from .address import Address, parse_dsn
from .names import check_name, split_table

__all__ = ["PostgresConfig"]

_VERIFIED = "verify-full"
_EXAMPLES = (
    "PostgresConfig(table='users', key='id') or "
    "PostgresConfig(query='SELECT id, name FROM users WHERE id = ANY($1)', key='id')"
)


@dataclass(frozen=True, kw_only=True)
class PostgresConfig(ConnectorConfig):
    """
    Where the values are: rows of a table, or of a query, found by their key.

    One value column gives its value, several give a struct. A name is taken as the catalog spells it: case counts.

    Attributes:
        dsn: `postgresql://user@host:port/database`, with several hosts separated by commas. The settings `sslmode`,
            `target_session_attrs` and `application_name` may follow as `?name=value`. Hidden from repr: it may hold a
            password.
        table: `"table"` (of the schema `public`), `"schema.table"`, or `(schema, table)` when a name holds a dot.
        key: The key column, or a tuple of them in the order of the key columns in Spark. An index must lead with them.
        columns: The value columns; empty: all columns of the table but the key's.
        query: Instead of *table*, one SELECT that takes an array of keys as `$1` (and one per further key column as
            `$2`, ...) and returns the key columns first, named as in *key*, then the value columns.
        password: A literal or, better, a `Secret`. None: from the DSN, `PGPASSWORD` or `~/.pgpass` on the worker.
        pgbouncer: True behind PgBouncer in transaction mode: no prepared statements, and settings per transaction.
            Costs three more round trips per call.
        tls_ca: Path, on the worker, of the certificates to trust; None: those of the system.
        tls_cert: Path, on the worker, of a client certificate.
        tls_key: Path, on the worker, of its private key; None: it is in *tls_cert*.
        insecure: True allows a connection whose other end is not verified: the `sslmode` of the DSN holds, `prefer`
            when it says none. False: `verify-full`, and nothing less unless the server is on this machine.
        returns: DDL of one value, when it shall be another type than the server describes.

    Raises:
        ConfigError: On the driver, when a field is wrong.

    >>> PostgresConfig(dsn="postgresql://app:S3cret@localhost/shop", table="users", columns=("name", "tier"))
    PostgresConfig(returns=None, table='users', key='id', columns=('name', 'tier'), query=None, pgbouncer=False, \
tls_ca=None, tls_cert=None, tls_key=None, insecure=False)
    """

    dsn: str = field(default="postgresql://localhost:5432/postgres", repr=False)
    table: str | tuple[str, str] | None = None
    key: str | tuple[str, ...] = "id"
    columns: tuple[str, ...] = ()
    query: str | None = None
    password: str | Secret | None = field(default=None, repr=False)
    pgbouncer: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        for name in ("table", "key", "columns"):
            if isinstance(getattr(self, name), list):  # from TOML or JSON; a list has no hash
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.columns, str):  # columns=("name") is no tuple, and nobody means its letters
            object.__setattr__(self, "columns", (self.columns,))
        for name in ("pgbouncer", "insecure"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"PostgresConfig.{name} is {getattr(self, name)!r}; it must be True or False.")
        for name in ("tls_ca", "tls_cert", "tls_key"):
            if not (getattr(self, name) is None or (isinstance(getattr(self, name), str) and getattr(self, name))):
                raise ConfigError(
                    f"PostgresConfig.{name} is {getattr(self, name)!r}; it must be the path of a file, or None."
                )
        self._check_source()
        self._check_password()
        self._check_tls()

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The names of the key columns, one or more."""
        return self.key if isinstance(self.key, tuple) else (self.key,)

    @property
    def key_parts(self) -> int:
        """How many key columns the source needs."""
        return len(self.key_columns)

    @property
    def address(self) -> Address:
        """What the DSN says."""
        return parse_dsn(self.dsn)

    @property
    def sslmode(self) -> str:
        """The mode that holds: `disable`, `allow`, `prefer`, `require`, `verify-ca` or `verify-full`."""
        address = self.address
        if address.sslmode is not None:
            return address.sslmode
        if self.insecure:
            return "prefer"
        return _VERIFIED if not address.local or self._names_certificates else "disable"

    @property
    def _names_certificates(self) -> bool:
        return any((self.tls_ca, self.tls_cert, self.tls_key))

    def _check_source(self) -> None:
        if (self.table is None) == (self.query is None):
            fault = "both a table and a query" if self.table is not None else "neither a table nor a query"
            raise ConfigError(f"PostgresConfig has {fault}; it must have one of them. Write {_EXAMPLES}.")
        for names, of in ((self.key_columns, "key"), (self.columns, "columns")):
            if not isinstance(names, tuple):
                raise ConfigError(
                    f"PostgresConfig.{of} is {names!r}; it must be a tuple of names, for example ('name', 'tier')."
                )
            for column in names:
                check_name(of, column, "column")
            if len(set(names)) < len(names):
                raise ConfigError(f"PostgresConfig.{of} is {names!r}; it must hold each name once. Remove the second.")
        if not self.key_columns:
            raise ConfigError(
                "PostgresConfig.key is (); it must be the name of a column, for example 'id', or a tuple of them."
            )
        if self.table is not None:
            split_table(self.table)
        else:
            self._check_query()

    def _check_query(self) -> None:
        if self.columns:
            raise ConfigError(
                f"PostgresConfig.columns is {self.columns!r} beside a query; it must be empty then. "
                "Select these columns in the query, after the key columns."
            )
        if not isinstance(self.query, str) or "\0" in self.query:
            raise ConfigError(
                f"PostgresConfig.query must be one SELECT statement, a str without NUL. Write {_EXAMPLES}."
            )
        for number in range(1, len(self.key_columns) + 1):
            if f"${number}" not in self.query:
                raise ConfigError(
                    f"PostgresConfig.query does not mention ${number}; it takes one array of keys for each of the "
                    f"{len(self.key_columns)} key columns, for example WHERE {self.key_columns[number - 1]} = "
                    f"ANY(${number})."
                )

    def _check_password(self) -> None:
        if not (self.password is None or isinstance(self.password, str | Secret)):
            raise ConfigError(
                f"PostgresConfig.password has the type {type(self.password).__name__}; it must be a str or a Secret, "
                "for example Secret.env('PGPASSWORD')."
            )
        if self.password is not None and self.address.password is not None:
            raise ConfigError("PostgresConfig has a password and another one in its dsn; remove the one in the dsn.")

    def _check_tls(self) -> None:
        mode = self.sslmode
        if mode != _VERIFIED and not self.insecure and not self.address.local:
            raise ConfigError(
                f"PostgresConfig.dsn says sslmode={mode}, which does not check who answers; off the local host it "
                f"must be {_VERIFIED}. Leave sslmode out ({_VERIFIED} is the default) and name the certificates to "
                "trust with tls_ca=..., or accept the risk with insecure=True."
            )
        if self._names_certificates and mode in ("disable", "allow", "prefer"):
            raise ConfigError(
                "PostgresConfig names certificates, but the connection may be made without them: its sslmode is "
                f"{mode}. Say sslmode=verify-full in the dsn, or remove tls_ca, tls_cert and tls_key."
            )
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigError(
                "PostgresConfig.tls_key is given without tls_cert; name the certificate that it belongs to."
            )
