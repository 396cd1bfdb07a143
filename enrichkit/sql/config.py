"""What a user says about a SQL source: its table, key and columns, and who may ask its server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..connector import ConnectorConfig
from ..errors import ConfigError
from ..secrets import Secret

__all__ = ["SqlConfig", "SqlServerConfig"]


@dataclass(frozen=True, kw_only=True)
class SqlConfig(ConnectorConfig):
    """
    Base of the config of a SQL source.

    Attributes:
        table: Name of a table, or a pair of names; None beside a query. A subclass says which, and its default.
        key: The key column, or a tuple of them in the order of the key columns in Spark.
        columns: The value columns; empty: all columns of the table but the key's.

    Raises:
        ConfigError: On the driver, when *key* or *columns* is wrong.
    """

    table: str | tuple[str, str] | None
    key: str | tuple[str, ...] = "id"
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("table", "key", "columns"):
            if isinstance(getattr(self, name), list):  # from TOML or JSON; a list has no hash
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.columns, str):  # columns=("name") is no tuple, and nobody means its letters
            object.__setattr__(self, "columns", (self.columns,))
        for field, names in (("key", self.key_columns), ("columns", self.columns)):
            at = f"{type(self).__name__}.{field}"
            if not isinstance(names, tuple):
                raise ConfigError(f"{at} is {names!r}; it must be a tuple of names, for example ('name', 'tier').")
            for name in names:
                self.check_name(field, name, "column")
            if len(set(names)) < len(names):
                raise ConfigError(f"{at} is {names!r}; it must hold each name once. Remove the second.")
            if field == "key" and not names:
                raise ConfigError(f"{at} is (); it must be the name of a column, for example 'id', or a tuple of them.")

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The names of the key columns, one or more."""
        return self.key if isinstance(self.key, tuple) else (self.key,)

    @property
    def key_parts(self) -> int:
        """How many key columns the source needs."""
        return len(self.key_columns)

    def check_name(self, field: str, name: object, what: str) -> str:
        """
        Return *name* if any database can have a *what* of that name; a subclass refuses what its own cannot have.

        Raises:
            ConfigError: It cannot; the text speaks of *field*.
        """
        at = f"{type(self).__name__}.{field}"
        if not isinstance(name, str):
            raise ConfigError(f"{at} holds {name!r}; it must be the name of a {what}, a str.")
        if not name:
            raise ConfigError(
                f"{at} holds an empty name; it must be the name of a {what}. Write the name as the database has it."
            )
        if "\0" in name or not _is_utf8(name):
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
        Return the two names of *table*, which may be `"table"`, `"what.table"` or a tuple; raises `ConfigError`.

        A name is everything before or after the dot, as the database spells it: case counts, quotes are part of it.

        Args:
            what: What the first name is, for example `schema`.
            default: The first name of a table without one.
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
            mark: What a parameter begins with: its number follows.
            takes: What the query takes for each key column, for example `"one value"`.
            condition: How it uses that: a template over the name of a key column and its parameter.
            examples: A config with a table and one with a query.
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
    """Where a server is; its text is for messages, and shows no password."""

    @property
    def password(self) -> str | None:
        """What the URL holds."""


class SqlServerConfig(SqlConfig):
    """
    Base of the config of a SQL source that is a server.

    A subclass has these as fields, in its own order, each with a default, `password` and its URL as
    `field(repr=False)`; `address` is made of that URL.

    Attributes:
        password: A literal or, better, a `Secret`. None: the one in the URL.
        tls_ca: Path, on the worker, of the certificates to trust; None: those of the system.
        tls_cert: Path, on the worker, of a client certificate.
        tls_key: Path, on the worker, of its private key; None: it is in *tls_cert*.
        insecure: True allows a connection whose other end is not verified.
    """

    password: str | Secret | None
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    insecure: bool

    @property
    def address(self) -> Address:
        """Where the server is: its text, for messages, shows no password, and its `password` is that of the URL."""
        raise NotImplementedError

    @property
    def names_certificates(self) -> bool:
        """Whether it names files, which only TLS uses."""
        return any((self.tls_ca, self.tls_cert, self.tls_key))

    def check_server(self, url: str) -> None:
        """Check password, which may be in the field *url* as well, files and *insecure*; raises `ConfigError`."""
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


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
