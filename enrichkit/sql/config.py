"""The configs of SQL sources: table, key and columns, and the login and TLS files of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import ConfigError
from ..interface import ConnectorConfig
from ..secrets import Secret
from ..values.ddl import fields_of
from .texts import are_utf8

__all__ = ["SqlConfig", "SqlServerConfig"]


@dataclass(frozen=True, kw_only=True)
class SqlConfig(ConnectorConfig):
    """
    Base of the config of a SQL source.

    Attributes:
        table: Name of a table, or a pair of names; None if the source is a query. A subclass narrows the type, and may
            give the field a default.
        key: Name of the key column, or a tuple of names in the order of the key columns in Spark.
        columns: Names of the value columns; empty: all columns of the table except the key columns and *expires*.
        max_bytes: Most bytes that the database may return at once, 64 KiB to 1 GiB; a subclass says whether this limits
            a whole reply or one row.
        expires: Name of the column that holds the time until which a row is valid; a row with NULL in this column is
            always valid. A key whose row is no longer valid is a missing key. None: all rows are always valid.
        writable: Whether `tiers(write_back=True)` may write to the table. False: all sessions are read-only.

    Raises:
        ConfigError: On the driver, when *key*, *columns*, *max_bytes*, *expires* or *writable* is wrong.
    """

    table: str | tuple[str, str] | None
    key: str | tuple[str, ...] = "id"
    columns: tuple[str, ...] = ()
    max_bytes: int = 64 * 1024 * 1024
    expires: str | None = None
    writable: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.table, list):  # TOML and JSON have only lists, which have no hash
            object.__setattr__(self, "table", tuple(self.table))
        if isinstance(self.key, tuple | list):
            self.check_names("key")
        else:
            self.check_name("key", self.key, "column")
        if not self.key:
            raise ConfigError(
                f"{type(self).__name__}.key is (); it must be the name of a column, for example 'id', or a tuple of "
                "them."
            )
        self.check_names("columns")
        self._check_single()
        if type(self.max_bytes) is not int or not 2**16 <= self.max_bytes <= 2**30:
            raise ConfigError(
                f"{type(self).__name__}.max_bytes is {self.max_bytes!r}; it must be a whole number of bytes from 65536 "
                "to 1073741824, for example 67108864."
            )
        self._check_tier()

    def _check_tier(self) -> None:
        """
        Raise a `ConfigError` if *writable* is no bool, or if *expires* cannot be used.

        *expires* must name a column that is neither a key column nor a value column, and it needs a table, not a query.
        """
        if not isinstance(self.writable, bool):
            raise ConfigError(f"{type(self).__name__}.writable is {self.writable!r}; it must be True or False.")
        if self.expires is None:
            return
        self.check_name("expires", self.expires, "column")
        for field, names in (("key", self.key_columns), ("columns", self.columns)):
            if self.expires in names:
                raise ConfigError(
                    f"{type(self).__name__}.expires names the column {self.expires!r}, which is in {field}, too; it "
                    f"must be a column of its own. Leave it out of {field}."
                )
        if self.table is None:
            raise ConfigError(
                f"{type(self).__name__}.expires is {self.expires!r} beside a query; it must be None then. Leave rows "
                "out whose time is over by a condition in the query."
            )

    def _check_single(self) -> None:
        """
        Raise a `ConfigError` if *columns* names a single column and `returns` is a struct with this column as its only
        field.

        With a single value column, the answer is the plain value of this column, without a struct around it.
        """
        if len(self.columns) != 1 or not isinstance(self.returns, str):
            return
        [column] = self.columns
        declared = fields_of(self.returns)  # enrich() has converted the user's type to DDL
        if list(declared) == [column]:
            raise ConfigError(
                f"{type(self).__name__}.columns names one column, {column!r}, so a value is that of the column and no "
                f"struct; returns is {self.returns!r}, a struct. Say returns={declared[column]!r}, or name more "
                "columns."
            )

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Names of the key columns, one or more."""
        return self.key if isinstance(self.key, tuple) else (self.key,)

    @property
    def key_parts(self) -> int:
        """Number of key columns that the source needs."""
        return len(self.key_columns)

    def check_names(self, field: str) -> None:
        """Convert the column names in *field* to a tuple, and check them; raises `ConfigError`."""
        names = getattr(self, field)
        if isinstance(names, str):  # columns=("name") is a str and no tuple, but means ('name',)
            names = (names,)
        names = tuple(names) if isinstance(names, list) else names  # TOML and JSON have only lists
        at = f"{type(self).__name__}.{field}"
        if not isinstance(names, tuple):
            raise ConfigError(f"{at} is {names!r}; it must be a tuple of names, for example ('name', 'tier').")
        for name in names:
            self.check_name(field, name, "column")
        if len(set(names)) < len(names):
            raise ConfigError(f"{at} is {names!r}; it must hold each name once. Remove the second.")
        object.__setattr__(self, field, names)

    def check_name(self, field: str, name: object, what: str) -> str:
        """
        Return *name* if it can be the name of a *what*, for example of a column.

        A subclass adds the rules of its own database to this check.

        Raises:
            ConfigError: No database can have a *what* of that name; the message names *field*.
        """
        at = f"{type(self).__name__}.{field}"
        if not isinstance(name, str):
            raise ConfigError(f"{at} holds {name!r}; it must be the name of a {what}, a str.")
        if not name:
            raise ConfigError(
                f"{at} holds an empty name; it must be the name of a {what}. Write the name as the database has it."
            )
        if "\0" in name or not are_utf8([name]):
            raise ConfigError(
                f"{at} holds {name!a}; the name of a {what} cannot hold a NUL or half a surrogate pair. "
                "Remove that character."
            )
        if name == "*":
            hint = "Leave columns empty for all columns but the key." if field == "columns" else "Write its name."
            raise ConfigError(f"{at} holds '*'; it must be the name of a {what}. {hint}")
        return name

    def split_table(self, what: str, default: str) -> tuple[str, str]:
        """
        Return the names of the *what* (for example the schema) and of the table; raises `ConfigError`.

        The field `table` is `"table"`, `"schema.table"` or a tuple of the two names. A name is all of the text before
        or after the dot, spelled exactly as in the database; upper and lower case differ. A quote character is part of
        the name.

        Args:
            what: Noun for the first name, for example `schema`.
            default: The first name when *table* is a single name.
        """
        parts: Any = tuple(self.table.split(".")) if isinstance(self.table, str) else self.table
        if isinstance(parts, tuple) and len(parts) == 1:
            parts = (default, *parts)
        if not isinstance(parts, tuple) or len(parts) != 2:
            raise ConfigError(
                f"{type(self).__name__}.table is {self.table!r}; it must be 'table', '{what}.table', or a tuple "
                f"({what}, table) when a name itself holds a dot."
            )
        return self.check_name("table", parts[0], what), self.check_name("table", parts[1], "table")

    def check_query(self, query: object, *, mark: str, takes: str, condition: str, examples: str) -> None:
        """
        Check that there is either a table or a *query*, and that the query takes the key; raises `ConfigError`.

        Args:
            query: One SELECT, or None.
            mark: First character of a parameter, in front of its number, for example `$`.
            takes: Words for a message: what the query takes for each key column, for example `"one value"`.
            condition: Template of a condition for a message, for example `{} = {}`, to be filled with the name of a key
                column and its parameter.
            examples: Two configs for the message, one with a table and one with a query.
        """
        cls = type(self).__name__
        if (self.table is None) == (query is None):
            fault = "both a table and a query" if query is not None else "neither a table nor a query"
            raise ConfigError(f"{cls} has {fault}; it must have one of them. Write {examples}.")
        if query is None:
            return
        if self.columns:
            raise ConfigError(
                f"{cls}.columns is {self.columns!r} beside a query; it must be empty then. Select these columns in the "
                "query."
            )
        if not isinstance(query, str) or "\0" in query:
            raise ConfigError(
                f"{cls}.query is {query!r}; it must be one SELECT statement, a str without NUL. Write {examples}."
            )
        for number, name in enumerate(self.key_columns, 1):
            if f"{mark}{number}" not in query:
                raise ConfigError(
                    f"{cls}.query does not mention {mark}{number}; it takes {takes} for each of the "
                    f"{len(self.key_columns)} key columns, for example WHERE "
                    f"{condition.format(name, f'{mark}{number}')}."
                )


class Address(Protocol):
    """Address of a server. Its `str` is for messages, and shows no password."""

    @property
    def password(self) -> str | None:
        """Password in the URL, or None."""


class SqlServerConfig(SqlConfig):
    """
    Base of the config of a SQL source that is a server.

    A subclass declares the attributes below as fields, in its own order and each with a default. It declares `password`
    and its URL with `field(repr=False)`, and its property `address` returns the parsed URL.

    Attributes:
        password: A literal or, better, a `Secret`. None: the password in the URL is used.
        tls_ca: Path, on the worker, of the certificates to trust; None: the certificates of the system.
        tls_cert: Path, on the worker, of a client certificate.
        tls_key: Path, on the worker, of the private key of the client; None: the key is in *tls_cert*.
        insecure: True allows a connection to a server that is not verified.
    """

    password: str | Secret | None
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    insecure: bool

    @property
    def address(self) -> Address:
        """Address of the server, from the URL. Its `str` is for messages; its `password` is the password in the URL."""
        raise NotImplementedError

    @property
    def names_certificates(self) -> bool:
        """Whether the config names a certificate or key file; only TLS uses such files."""
        return any((self.tls_ca, self.tls_cert, self.tls_key))

    def check_server(self, url: str) -> None:
        """
        Check `password`, the certificate files and `insecure`; raises `ConfigError`.

        Args:
            url: Name of the config field that holds the URL; the URL may hold a password, too.
        """
        cls = type(self).__name__
        if not isinstance(self.insecure, bool):
            raise ConfigError(f"{cls}.insecure is {self.insecure!r}; it must be True or False.")
        for name in ("tls_ca", "tls_cert", "tls_key"):
            path = getattr(self, name)
            if path is not None and not (isinstance(path, str) and path):
                raise ConfigError(f"{cls}.{name} is {path!r}; it must be the path of a file, or None.")
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigError(f"{cls}.tls_key is given without tls_cert; name the certificate that it belongs to.")
        if not (self.password is None or isinstance(self.password, str | Secret)):
            raise ConfigError(
                f"{cls}.password has the type {type(self.password).__name__}; it must be a str or a Secret, for "
                "example Secret.env('SHOP_PASSWORD')."
            )
        if self.password is not None and self.address.password is not None:
            raise ConfigError(f"{cls} has a password and another one in its {url}; remove the one in the {url}.")
