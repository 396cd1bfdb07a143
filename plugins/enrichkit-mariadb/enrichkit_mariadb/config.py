"""What a user says about a MariaDB source."""

from __future__ import annotations

from dataclasses import dataclass, field

from enrichkit.connector import ConnectorConfig
from enrichkit.errors import ConfigError
from enrichkit.secrets import Secret

from .address import Address, parse_url
from .names import check_name, split_table

__all__ = ["MariadbConfig"]


@dataclass(frozen=True, kw_only=True)
class MariadbConfig(ConnectorConfig):
    """
    Where the values are: rows of a table or view, found by their key.

    One value column gives its value, several give a struct. A name is taken as the server spells it: case counts.

    Attributes:
        url: `mariadb://user@host:port/database`. Hidden from repr: it may hold a password.
        table: `"table"` (of the database in *url*), `"database.table"`, or `(database, table)` when a name holds a
            dot. A view is a table: that is how to look up in what a query of yours returns.
        key: The key column, or a tuple of them in the order of the key columns in Spark. An index must lead with them.
        columns: The value columns; empty: all columns of the table but the key's.
        password: A literal or, better, a `Secret`. None: the one in *url*.
        tls: True for TLS, False for none. None: TLS, unless the server is on this machine and no certificate is named.
        tls_ca: Path, on the worker, of the certificates to trust; None: those of the system.
        tls_cert: Path, on the worker, of a client certificate.
        tls_key: Path, on the worker, of its private key; None: it is in *tls_cert*.
        insecure: True allows a server that is not verified: TLS without a look at the certificate, and ``tls=False``
            for a server on another machine.
        returns: DDL of one value, when it shall be another type than the server describes.

    Raises:
        ConfigError: On the driver, when a field is wrong.

    >>> MariadbConfig(url="mariadb://app:S3cret@localhost/shop", table="users", columns=("name", "tier"))
    MariadbConfig(returns=None, table='users', key='id', columns=('name', 'tier'), tls=None, tls_ca=None, \
tls_cert=None, tls_key=None, insecure=False)
    """

    url: str = field(default="mariadb://localhost:3306", repr=False)
    table: str | tuple[str, str]
    key: str | tuple[str, ...] = "id"
    columns: tuple[str, ...] = ()
    password: str | Secret | None = field(default=None, repr=False)
    tls: bool | None = None
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
        self._check_types()
        split_table(self.table, self.address.database)
        self._check_columns()
        if self.password is not None and self.address.password is not None:
            raise ConfigError("MariadbConfig has a password and another one in its url; remove the one in the url.")
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
        """What the URL says."""
        return parse_url(self.url)

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return (not self.address.local or self._names_certificates) if self.tls is None else self.tls

    @property
    def _names_certificates(self) -> bool:
        return any((self.tls_ca, self.tls_cert, self.tls_key))

    def _check_types(self) -> None:
        for name, allowed in (("tls", (True, False, None)), ("insecure", (True, False))):
            if not any(getattr(self, name) is value for value in allowed):
                said = "True, False or None" if None in allowed else "True or False"
                raise ConfigError(f"MariadbConfig.{name} is {getattr(self, name)!r}; it must be {said}.")
        for name in ("tls_ca", "tls_cert", "tls_key"):
            if not (getattr(self, name) is None or (isinstance(getattr(self, name), str) and getattr(self, name))):
                raise ConfigError(
                    f"MariadbConfig.{name} is {getattr(self, name)!r}; it must be the path of a file, or None."
                )
        if not (self.password is None or isinstance(self.password, str | Secret)):
            raise ConfigError(
                f"MariadbConfig.password has the type {type(self.password).__name__}; it must be a str or a Secret, "
                "for example Secret.env('SHOP_PASSWORD')."
            )

    def _check_columns(self) -> None:
        for names, of in ((self.key_columns, "key"), (self.columns, "columns")):
            if not isinstance(names, tuple):
                raise ConfigError(
                    f"MariadbConfig.{of} is {names!r}; it must be a tuple of names, for example ('name', 'tier')."
                )
            for column in names:
                check_name(of, column, "column")
            if len(set(names)) < len(names):
                raise ConfigError(f"MariadbConfig.{of} is {names!r}; it must hold each name once. Remove the second.")
        if not self.key_columns:
            raise ConfigError(
                "MariadbConfig.key is (); it must be the name of a column, for example 'id', or a tuple of them."
            )

    def _check_tls(self) -> None:
        if not (self.encrypted or self.insecure or self.address.local):
            raise ConfigError(
                "MariadbConfig.tls is False, which lets everybody on the way read and answer; off the local host it "
                "must be True. Leave tls out and name the certificates to trust with tls_ca=..., or accept the risk "
                "with insecure=True."
            )
        if self._names_certificates and not self.encrypted:
            raise ConfigError(
                "MariadbConfig names certificates, but tls is False; remove it, or tls_ca, tls_cert and tls_key."
            )
        if self.tls_ca is not None and self.insecure:
            raise ConfigError(
                "MariadbConfig names certificates to trust in tls_ca, which insecure=True ignores; remove one of them."
            )
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigError(
                "MariadbConfig.tls_key is given without tls_cert; name the certificate that it belongs to."
            )
