"""The config of a PostgreSQL source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from enrichkit.errors import ConfigError
from enrichkit.plugin import Secret  # noqa: TC001 - `enrichkit lint` resolves these type hints
from enrichkit.sql import SqlServerConfig

from .address import Address, parse_dsn
from .settings import Settings, setting_pairs

__all__ = ["PostgresConfig"]

# The length of the longest name in bytes (NAMEDATALEN - 1). The server silently cuts a longer name, and the cut name
# could be that of another table: https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-IDENTIFIERS
MAX_BYTES = 63

_SYSTEM_SCHEMAS = ("pg_catalog", "information_schema", "pg_toast")
_VERIFIED = "verify-full"
# Functions that a read-only session allows although their effect outlives the statement; a query must not call them.
_LASTING = re.compile(r'\b(set_config|pg_(?:try_)?advisory_lock(?:_shared)?)"?\s*\(', re.IGNORECASE).search
_EXAMPLES = (
    "PostgresConfig(table='users', key='id') or "
    "PostgresConfig(query='SELECT id, name FROM users WHERE id = ANY($1)', key='id')"
)


@dataclass(frozen=True, kw_only=True)
class PostgresConfig(SqlServerConfig):
    """
    The server, and the table or query with the values.

    With one value column, the value of a key is the value of that column; with several, it is a struct. Names are
    spelled as in the catalog, in the same upper and lower case.

    Attributes:
        dsn: `postgresql://user@host:port/database`, with several hosts separated by commas. The settings `sslmode`,
            `target_session_attrs` and `application_name` may follow as `?name=value`. Hidden from repr, because the DSN
            may hold a password.
        table: `"table"` (of the schema `public`), `"schema.table"`, or `(schema, table)` when a name holds a dot.
        key: Name of the key column, or a tuple of names in the order of the key columns in Spark. An index must begin
            with these columns.
        columns: Names of the value columns; empty: all columns of the table but the key columns and *expires*.
        max_bytes: Most bytes that the server may send for one call, with the values of all its keys; 64 KiB to 1 GiB.
        expires: Name of the `timestamptz` column that holds the time until which a row is valid; a row with NULL in
            this column is always valid. A row that is no longer valid is treated as absent. None: all rows are always
            valid.
        writable: True allows `tiers(write_back=True)` to insert and update rows, in sessions that are not used for
            lookups. The table needs a unique index over exactly the key columns.
        query: Instead of *table*, one SELECT. Its parameter `$1` is an array of keys; with several key columns, `$2`,
            ... are the arrays for the further columns. It must return the key columns first, named as in *key*, then
            the value columns.
        password: A literal or, better, a `Secret`. None: the password comes from the DSN, or from `PGPASSWORD` or
            `~/.pgpass` on the worker.
        pgbouncer: True behind PgBouncer in transaction mode. The connector then uses no prepared statements, and
            applies its settings in each transaction, which costs three more round trips per call.
        settings: Settings of PostgreSQL for each session, as a mapping from a name to a text or a `Secret`. Examples
            are a `role`, a setting that row security policies or functions of the database read
            (`{"app.tenant": "acme"}`), and a `search_path` for views and queries that write table names without a
            schema. Without a `search_path`, only `public` is searched. Settings that change what is read, such as
            `DateStyle`, are refused.
        tls_ca: Path, on the worker, of the certificates to trust; None: those of the system.
        tls_cert: Path, on the worker, of a client certificate.
        tls_key: Path, on the worker, of the private key of the client; None: the key is in *tls_cert*.
        insecure: True allows a connection to a server that is not verified: the `sslmode` of the DSN applies, or
            `prefer` if the DSN has none. False requires `verify-full`, except for a server on this machine.
        returns: DDL of one value; needed only if the value is to have another type than the server describes.

    Raises:
        ConfigError: On the driver, when a field is wrong.

    >>> PostgresConfig(dsn="postgresql://app:S3cret@localhost/shop", table="users", columns=("name", "tier"))
    PostgresConfig(returns=None, table='users', key='id', columns=('name', 'tier'), max_bytes=67108864, expires=None, \
writable=False, query=None, pgbouncer=False, settings=(), tls_ca=None, tls_cert=None, tls_key=None, insecure=False)
    """

    dsn: str = field(default="postgresql://localhost:5432/postgres", repr=False)
    table: str | tuple[str, str] | None = None
    query: str | None = None
    password: str | Secret | None = field(default=None, repr=False)
    pgbouncer: bool = False
    settings: Mapping[str, str | Secret] | Iterable[tuple[str, str | Secret]] = ()
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.pgbouncer, bool):
            raise ConfigError(f"PostgresConfig.pgbouncer is {self.pgbouncer!r}; it must be True or False.")
        # A plain assignment raises, because the config is frozen.
        object.__setattr__(self, "settings", setting_pairs(self.settings))
        self.check_query(self.query, mark="$", takes="one array of keys", condition="{} = ANY({})", examples=_EXAMPLES)
        if (lasting := _LASTING(self.query or "")) is not None:
            raise ConfigError(
                f"PostgresConfig.query calls {lasting[1]}(), whose effect would stay in the connection, for later "
                "calls too. Leave it out: name a setting in PostgresConfig.settings, and take a lock with "
                "pg_advisory_xact_lock()."
            )
        if self.table is not None:
            self.schema_and_table()
        self.check_server("dsn")
        self._check_tls()

    def check_name(self, field: str, name: object, what: str) -> str:
        """
        Return *name* if it can be the name of a *what* (for example a table) in PostgreSQL; otherwise raise a
        `ConfigError` that mentions *field*.
        """
        name = super().check_name(field, name, what)
        size = len(name.encode())
        if size > MAX_BYTES:
            raise ConfigError(
                f"PostgresConfig.{field} holds {name[:20] + '...'!r}, {size} bytes long; PostgreSQL cuts names after "
                f"{MAX_BYTES} bytes, so it could mean another {what}. Write the name as the catalog has it."
            )
        return name

    def schema_and_table(self) -> tuple[str, str]:
        """
        Return the name of the schema and the name of the table; raises `ConfigError` for a wrong name or a system
        schema.

        >>> PostgresConfig(table="app.users").schema_and_table()
        ('app', 'users')
        >>> PostgresConfig(table="users; DROP TABLE users--").schema_and_table()
        ('public', 'users; DROP TABLE users--')
        """
        schema, table = self.split_table("schema", "public")
        if schema in _SYSTEM_SCHEMAS:
            raise ConfigError(
                f"PostgresConfig.table is in the system schema {schema!r}; it must be a table of your own. "
                "To read the catalog, say so in query=."
            )
        return schema, table

    @property
    def setting_pairs(self) -> Settings:
        """The settings as pairs of name and value, even if the user wrote a mapping."""
        return cast("Settings", self.settings)

    @property
    def address(self) -> Address:
        """The parts of the DSN."""
        return parse_dsn(self.dsn)

    @property
    def sslmode(self) -> str:
        """The `sslmode` in effect: `disable`, `allow`, `prefer`, `require`, `verify-ca` or `verify-full`."""
        address = self.address
        if address.sslmode is not None:
            return address.sslmode
        if self.insecure:
            return "prefer"
        return _VERIFIED if not address.local or self.names_certificates else "disable"

    def _check_tls(self) -> None:
        mode = self.sslmode
        if mode != _VERIFIED and not self.insecure and not self.address.local:
            raise ConfigError(
                f"PostgresConfig.dsn says sslmode={mode}, which does not check who answers; off the local host it "
                f"must be {_VERIFIED}. Leave sslmode out ({_VERIFIED} is the default) and name the certificates to "
                "trust with tls_ca=..., or accept the risk with insecure=True."
            )
        if self.names_certificates and mode in ("disable", "allow", "prefer"):
            raise ConfigError(
                "PostgresConfig names certificates, but the connection may be made without them: its sslmode is "
                f"{mode}. Say sslmode=verify-full in the dsn, or remove tls_ca, tls_cert and tls_key."
            )
        if self.tls_ca is not None and mode == "require":
            raise ConfigError(
                "PostgresConfig.tls_ca names the certificates to trust, but sslmode=require in the dsn does not look "
                "at the server's. Say sslmode=verify-full, or verify-ca, which leaves out the host name; or remove "
                "tls_ca."
            )
