"""
The parser of a DSN; asyncpg gets host, port and user from this parser, and never sees the DSN.

So one and the same parser decides whether the server is local and which server asyncpg connects to. If asyncpg parsed
the DSN itself, it could find another host in it: enrichkit would take the server for local and allow a connection
without TLS, while asyncpg connects to another machine. Messages never quote the DSN, because any part of it that looks
wrong may be half of a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from enrichkit.errors import ConfigError
from enrichkit.plugin import did_you_mean
from enrichkit.sql import is_host, is_local, unreadable_url

__all__ = ["SSL_MODES", "Address", "parse_dsn"]

SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
SESSION_ATTRS = ("any", "primary", "standby", "prefer-standby", "read-write", "read-only")

# The groups are the userinfo with the hosts, the path, and the query. urlsplit cannot be used: since the security
# patches of 2023 it refuses a list of hosts in which an IPv6 address is not the first.
_PARTS = re.compile(r"postgres(?:ql)?://(?P<netloc>[^/?]*)(?P<path>[^?]*)\??(?P<query>.*)", re.DOTALL)
_SETTINGS = (
    "host",
    "port",
    "user",
    "password",
    "dbname",
    "database",
    "sslmode",
    "target_session_attrs",
    "application_name",
)
_FIELDS = {"sslrootcert": "tls_ca", "sslcert": "tls_cert", "sslkey": "tls_key"}
_EXAMPLE = "for example 'postgresql://app@localhost:5432/shop'"


@dataclass(frozen=True, slots=True)
class Address:
    """
    The parts of a DSN.

    Attributes:
        hosts: Host names, IP addresses, or absolute paths of the folder of a Unix socket; tried in this order.
        ports: One port per host.
        user: User; None: `PGUSER` or the user of the worker process.
        password: Password; None: `PostgresConfig.password`, `PGPASSWORD` or `~/.pgpass` on the worker.
        database: Database; None: `PGDATABASE` or the name of the user.
        sslmode: One of `SSL_MODES`; None: the DSN names none.
        target_session_attrs: Kind of server to choose among several hosts, for example `prefer-standby`; None: any
            server. Because all sessions are read-only by default, `read-write` chooses a primary, and `read-only` a
            standby.
        application_name: Name of the client in `pg_stat_activity`.
    """

    hosts: tuple[str, ...]
    ports: tuple[int, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    database: str | None = None
    sslmode: str | None = None
    target_session_attrs: str | None = None
    application_name: str = "enrichkit"

    @property
    def local(self) -> bool:
        """Whether each host is a Unix socket or on the loopback interface, so that no byte leaves this machine."""
        return all(map(is_local, self.hosts))

    def __str__(self) -> str:
        return ", ".join(f"{host}:{port}" for host, port in zip(self.hosts, self.ports, strict=True))


def parse_dsn(dsn: str) -> Address:
    """
    Return the parts of *dsn*; raises `ConfigError` for a DSN that is wrong, or that another parser could read
    differently.
    """
    netloc, path, settings = _split(dsn)
    userinfo, _, hostlist = netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    hosts = hostlist or settings.get("host", "")
    if not hosts:
        raise ConfigError(
            "PostgresConfig.dsn names no host; it must name one, so that it means the same server on every worker. "
            "Write 'postgresql://localhost:5432/shop', or 'postgresql:///shop?host=/var/run/postgresql' for a Unix "
            "socket."
        )
    pairs = [_host_and_port(item, settings.get("port", "5432")) for item in hosts.split(",")]
    return Address(
        hosts=tuple(host for host, _ in pairs),
        ports=tuple(port for _, port in pairs),
        user=unquote(user) or settings.get("user"),
        password=unquote(password) or settings.get("password"),
        database=unquote(path[1:]) or settings.get("dbname") or settings.get("database"),
        sslmode=_one_of("sslmode", settings.get("sslmode"), SSL_MODES),
        target_session_attrs=_one_of("target_session_attrs", settings.get("target_session_attrs"), SESSION_ATTRS),
        application_name=settings.get("application_name", "enrichkit"),
    )


def _split(dsn: str) -> tuple[str, str, dict[str, str]]:
    """
    Return three parts of *dsn*: the userinfo with the hosts, the path with its slash, and the settings after the `?`.
    """
    if not isinstance(dsn, str):
        raise ConfigError(f"PostgresConfig.dsn has the type {type(dsn).__name__}; it must be a str, {_EXAMPLE}.")
    parts = _PARTS.match(dsn)
    if parts is None:
        raise ConfigError(f"PostgresConfig.dsn must start with 'postgresql://' or 'postgres://', {_EXAMPLE}.")
    netloc, path, query = parts.groups()
    # A '/', '?', '#' or '@' that is not encoded in the password makes the host end too early or begin too late, so such
    # a DSN is refused.
    if "@" in path + query or netloc.count("@") > 1 or re.search(r"[\x00-\x20\x7f\\#]|[][].*@", dsn):
        raise _unreadable()
    try:
        settings = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise _unreadable() from None
    for name in settings:
        if name not in _SETTINGS:
            raise _unknown_setting(name)
    return netloc, path, settings


def _unreadable() -> ConfigError:
    return unreadable_url("PostgresConfig.dsn")


def _unknown_setting(name: str) -> ConfigError:
    if name in _FIELDS:
        return ConfigError(
            f"PostgresConfig.dsn holds {name!r}; give it as PostgresConfig({_FIELDS[name]}=...) instead."
        )
    hint = did_you_mean(name, _SETTINGS)
    allowed = ", ".join(map(repr, _SETTINGS))
    return ConfigError(f"PostgresConfig.dsn holds the unknown setting {name!r}.{hint} Allowed: {allowed}.")


def _one_of(name: str, value: str | None, allowed: tuple[str, ...]) -> str | None:
    if value is not None and value not in allowed:
        names = ", ".join(map(repr, allowed))
        raise ConfigError(
            f"PostgresConfig.dsn says {name}={value}; it must be one of {names}. Correct it or leave it out."
        )
    return value


def _host_and_port(item: str, default_port: str) -> tuple[str, int]:
    item = unquote(item)
    if item.startswith("/"):
        host, port = item, default_port
    elif item.startswith("["):
        host, end, rest = item[1:].partition("]")
        port = rest.removeprefix(":") or default_port
        if not end or ":" not in host or rest[:1] not in ("", ":"):
            raise _unreadable()
    else:
        host, _, port = item.partition(":")
        port = port or default_port
    if not (item.startswith("/") or is_host(host)):
        raise _unreadable()
    if not (re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise _unreadable()
    return host, int(port)
