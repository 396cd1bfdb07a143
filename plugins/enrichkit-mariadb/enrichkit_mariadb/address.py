"""
The parser of the URL of a source; asyncmy gets host, port and user from this parser, and never the URL itself.

So enrichkit, which checks whether the host is this machine, and asyncmy, which connects to the host, use the same host;
two parsers might find different hosts in one URL. Messages never quote the URL, because any part of it that looks wrong
may be half of a password.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from enrichkit.errors import ConfigError

__all__ = ["Address", "parse_url"]

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?")
_EXAMPLE = "for example 'mariadb://app@localhost:3306/shop'"


@dataclass(frozen=True, slots=True)
class Address:
    """
    The parts of a URL.

    Attributes:
        host: Host name or IP address.
        port: Port.
        user: User; None: the user of the worker process.
        password: Password in the URL; None: `MariadbConfig.password` applies, or no password if that is None, too.
        database: Database; None: `MariadbConfig.table` names the database.
    """

    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    database: str | None = None

    @property
    def local(self) -> bool:
        """Whether the host is on the loopback interface, so that no byte leaves this machine."""
        address = _ip(self.host)
        return self.host.lower() == "localhost" or (address is not None and address.is_loopback)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: object) -> Address:
    """
    Return the parts of *url*; raises `ConfigError` for a URL that is wrong, or that two parsers could read differently.
    """
    if not isinstance(url, str):
        raise ConfigError(f"MariadbConfig.url has the type {type(url).__name__}; it must be a str, {_EXAMPLE}.")
    if not url.startswith(("mariadb://", "mysql://")):
        raise ConfigError(f"MariadbConfig.url must start with 'mariadb://' or 'mysql://', {_EXAMPLE}.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _unreadable() from None
    # If the password has a '/', '?', '#' or '@' that is not percent-encoded, urlsplit finds a wrong host, so such a URL
    # is refused. The regular expression searches *url* and not *parts*, because urlsplit drops tabs and newlines.
    if "#" in url or "@" in parts.path or parts.netloc.count("@") > 1 or re.search(r"[\x00-\x20\x7f\\]", url):
        raise _unreadable()
    if "?" in url:
        raise ConfigError(
            "MariadbConfig.url holds settings after a '?'; the URL must end with the database. Give the settings as "
            "fields of MariadbConfig, for example tls_ca='/etc/ssl/ca.pem'; write a '?' of the password as %3F."
        )
    if not parts.hostname:
        raise ConfigError(
            "MariadbConfig.url names no host; it must name one, so that it means the same server on every worker, "
            f"{_EXAMPLE}."
        )
    if not (_HOST.fullmatch(parts.hostname) or _ip(parts.hostname)) or port == 0:
        raise _unreadable()
    userinfo, _, _ = parts.netloc.rpartition("@")
    user, _, password = userinfo.partition(":")
    return Address(
        host=parts.hostname,
        port=port or 3306,
        user=unquote(user) or None,
        password=unquote(password) or None,
        database=unquote(parts.path[1:]) or None,
    )


def _unreadable() -> ConfigError:
    return ConfigError(
        "MariadbConfig.url cannot be read as a URL; user, password and database must be percent-encoded "
        "('@' is %40, '/' is %2F, ':' is %3A, '#' is %23, '%' is %25). "
        "Or leave the password out and give password=Secret.env('NAME')."
    )


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
