"""The config of a MariaDB source."""

from __future__ import annotations

from dataclasses import dataclass, field

from enrichkit.errors import ConfigError
from enrichkit.plugin import Secret  # noqa: TC001 - `enrichkit lint` resolves these type hints
from enrichkit.sql import SqlServerConfig

from .address import Address, parse_url

__all__ = ["MariadbConfig"]

# https://mariadb.com/docs/server/reference/sql-structure/sql-language-structure/identifier-names
MAX_LENGTH = 64

_SYSTEM = ("information_schema", "mysql", "performance_schema", "sys")


@dataclass(frozen=True, kw_only=True)
class MariadbConfig(SqlServerConfig):
    """
    The server, and the table or view with the values.

    With one value column, the value of a key is the value of that column; with several, it is a struct. Names are
    spelled as on the server, in the same upper and lower case.

    Attributes:
        url: `mariadb://user@host:port/database`. Hidden from repr, because it may hold a password.
        table: `"table"` (of the database in *url*), `"database.table"`, or `(database, table)` when a name holds a
            dot. The table may be a view: to look up keys in the result of a query, make a view of the query.
        key: Name of the key column, or a tuple of names in the order of the key columns in Spark. An index must begin
            with these columns.
        columns: Names of the value columns; empty: all columns of the table but the key columns and *expires*.
        as_bytes: Names of text columns whose stored bytes are read as `binary`; a key column among them is looked up by
            `binary` keys. This also works for bytes that the character set of the column does not map to Unicode.
        max_bytes: Most bytes that the server may send for one call, with the values of all its keys; 64 KiB to 1 GiB.
        expires: Name of the `timestamp` or `datetime` column that holds the time, in UTC, until which a row is valid; a
            row with NULL in this column is always valid. A row that is no longer valid is treated as absent. None: all
            rows are always valid.
        writable: True allows `tiers(write_back=True)` to insert and update rows, in sessions that are not used for
            lookups. The table needs a unique index over exactly the key columns.
        password: A literal or, better, a `Secret`. None: the password in *url*, or no password.
        tls: True for a connection with TLS, False for one without TLS. None: with TLS, unless the server is on this
            machine and the config names no certificate.
        tls_ca: Path, on the worker, of the certificates to trust; None: those of the system.
        tls_cert: Path, on the worker, of a client certificate.
        tls_key: Path, on the worker, of the private key of the client; None: the key is in *tls_cert*.
        insecure: True allows a connection to a server that is not verified: TLS without a check of the certificate,
            and ``tls=False`` for a server on another machine.
        returns: DDL of one value; needed only if the value is to have another type than the server describes.

    Raises:
        ConfigError: On the driver, when a field is wrong.

    >>> MariadbConfig(url="mariadb://app:S3cret@localhost/shop", table="users", columns=("name", "tier"))
    MariadbConfig(returns=None, table='users', key='id', columns=('name', 'tier'), max_bytes=67108864, \
expires=None, writable=False, as_bytes=(), tls=None, tls_ca=None, tls_cert=None, tls_key=None, insecure=False)
    """

    url: str = field(default="mariadb://localhost:3306", repr=False)
    table: str | tuple[str, str]
    as_bytes: tuple[str, ...] = ()
    password: str | Secret | None = field(default=None, repr=False)
    tls: bool | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_names("as_bytes")
        if not any(self.tls is value for value in (True, False, None)):
            raise ConfigError(f"MariadbConfig.tls is {self.tls!r}; it must be True, False or None.")
        self.database_and_table()
        self.check_server("url")
        self._check_tls()

    def check_name(self, field: str, name: object, what: str) -> str:
        """
        Return *name* if MariaDB accepts it as the name of a *what*, for example of a column; otherwise raise a
        `ConfigError` that mentions *field*.
        """
        name = super().check_name(field, name, what)
        if len(name) > MAX_LENGTH:
            raise ConfigError(
                f"MariadbConfig.{field} holds {name[:20] + '...'!r}, {len(name)} characters long; it must be the name "
                f"of a {what}, 1 to {MAX_LENGTH} characters long. Write the name as the server has it."
            )
        # https://mariadb.com/docs/server/reference/sql-structure/sql-language-structure/identifier-names#further-rules
        if max(name) > "\uffff" or name[-1] == " ":
            raise ConfigError(
                f"MariadbConfig.{field} holds {name!a}; the name of a {what} cannot hold a character above U+FFFF, nor "
                "end with a space. Remove that character."
            )
        return name

    def database_and_table(self) -> tuple[str, str]:
        """
        Return the names of the database and of the table; raises `ConfigError` for a wrong name or a system database.

        >>> MariadbConfig(table="shop.users; DROP TABLE users--").database_and_table()
        ('shop', 'users; DROP TABLE users--')
        """
        default = self.address.database
        parts = self.table.split(".") if isinstance(self.table, str) else self.table
        if default is None and isinstance(parts, list | tuple) and len(parts) == 1:
            raise ConfigError(
                f"MariadbConfig.table is {self.table!r} and the url names no database; one of them must name it. Write "
                "table='database.table', or end the url with the database."
            )
        database, table = self.split_table("database", default or "")
        if database.lower() in _SYSTEM:
            raise ConfigError(
                f"MariadbConfig.table is in the system database {database!r}; it must be a table of your own. To "
                "read a system table, make a view of that table in a database of your own."
            )
        return database, table

    @property
    def address(self) -> Address:
        """The parts of the URL."""
        return parse_url(self.url)

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return (not self.address.local or self.names_certificates) if self.tls is None else self.tls

    def _check_tls(self) -> None:
        if not (self.encrypted or self.insecure or self.address.local):
            raise ConfigError(
                "MariadbConfig.tls is False, so that anybody on the network path can read the traffic and answer in "
                "place of the server; for a server on another machine tls must be True. Leave tls out and name the "
                "certificates to trust with tls_ca=..., or accept the risk with insecure=True."
            )
        if self.names_certificates and not self.encrypted:
            raise ConfigError(
                "MariadbConfig names certificates, but tls is False; remove tls=False, or remove tls_ca, tls_cert and "
                "tls_key."
            )
        if self.tls_ca is not None and self.insecure:
            raise ConfigError(
                "MariadbConfig.tls_ca names certificates to trust, which insecure=True ignores; remove tls_ca or "
                "insecure=True."
            )
