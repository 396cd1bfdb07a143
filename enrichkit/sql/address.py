"""Checks that the plugins share for the address of a database server."""

from __future__ import annotations

import ipaddress
import re

from ..errors import ConfigError

__all__ = ["is_host", "is_local", "unreadable_url"]

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?")


def is_host(text: str) -> bool:
    """
    Return whether *text* is a host name or an IP address.

    >>> is_host("db.example"), is_host("::1"), is_host("db example")
    (True, True, False)
    """
    return _HOST_NAME.fullmatch(text) is not None or _ip_address(text) is not None


def is_local(host: str) -> bool:
    """
    Return whether *host* is on this machine: `localhost`, a loopback address, or the path of a Unix socket.

    >>> is_local("localhost"), is_local("127.0.0.1"), is_local("/run/postgresql"), is_local("db.example")
    (True, True, True, False)
    """
    address = _ip_address(host)
    return host.startswith("/") or host.lower() == "localhost" or (address is not None and address.is_loopback)


def unreadable_url(field: str) -> ConfigError:
    """
    Return the error for a URL that cannot be parsed. The message never quotes the URL, which may hold a password.

    Args:
        field: Name of the config field that holds the URL, for example `PostgresConfig.dsn`.
    """
    return ConfigError(
        f"{field} cannot be read as a URL; user, password and database must be percent-encoded "
        "('@' is %40, '/' is %2F, ':' is %3A, '#' is %23, '%' is %25). "
        "Or leave the password out and give password=Secret.env('NAME')."
    )


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
