"""The config of a Redis source, and the parser of its URL."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from enrichkit.errors import ConfigError
from enrichkit.plugin import ConnectorConfig, Secret

from .template import KeyTemplate

__all__ = ["Address", "Endpoint", "RedisConfig", "parse_url", "sentinel_address"]

Address: TypeAlias = tuple[str, int] | str
"""Host and port of a server, or the path of its Unix socket."""

KINDS = ("string", "hash", "json")
SCHEMES = ("redis", "rediss", "unix")
DEFAULT_URL = "redis://localhost:6379/0"
SENTINEL_PORT = 26379
EXAMPLE = "for example 'redis://localhost:6379/0'"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """
    The parts of a URL.

    Attributes:
        address: Address of the server.
        tls: Whether the connection uses TLS.
        db: Number of the database.
        username: User in the URL, decoded, or None.
        password: Password in the URL, decoded, or None.
        unverified: Whether the URL asks for TLS without a check of the server's certificate.
    """

    address: Address
    tls: bool
    db: int
    username: str | None
    password: str | None = field(repr=False)
    unverified: bool


@dataclass(frozen=True, kw_only=True)
class RedisConfig(ConnectorConfig):
    """
    The server, the template for the names of the Redis keys, and the kind of the values.

    Attributes:
        url: `redis://[user[:password]@]host[:port][/database]`, `rediss://` for TLS, or `unix:///path.sock[?db=0]`.
            Hidden from repr, because the URL may hold a password.
        key: Template of the Redis key, for example `user:{}`. `{}` takes the next key column; `{0}` and `{1}` take the
            columns by number, counted from 0; names such as `{id}` take the columns in the order in which the names
            first appear. `{{` and `}}` stand for literal braces. The value of a single key column enters the name
            unchanged. With several key columns, `%`, `{`, `}` and all characters of the separators (the text between
            two fields) are percent-encoded inside the values, so that two different keys never have the same name.
        kind: `"string"` (`MGET`), `"hash"` (`HMGET` or `HGETALL`), or `"json"` (a string that holds one JSON document).
        fields: Fields of a hash to read; empty: all fields. Allowed only if *kind* is `"hash"`.
        username: ACL user; None: the user in *url*, or the default user if *url* names none.
        password: A `Secret`, or the password itself, which Spark then ships to the workers as part of the config. None:
            the password in *url*, or no password.
        cluster: True when `url` names one node of a cluster; a key then goes to the node that holds its slot.
        sentinel: Sentinels, each as `host` or `host:port` (default port 26379); they tell which server is the master.
            `url` then has no host, only the rest: `redis:///0`, or `rediss:///0` for TLS with the sentinels and the
            master.
        master: Name under which the sentinels know the master; required with `sentinel`, and allowed only with it.
        sentinel_username: ACL user at the sentinels; None: their default user.
        sentinel_password: Password for the sentinels, a `Secret` or text, like `password`; None: no password.
        tls_ca: File of the certificate authorities to trust; None: those of the system.
        tls_cert: File of the client certificate, if the server requires one. The file may hold the private key as well.
        tls_key: File of the private key of the client certificate; None: the key is in *tls_cert*.
        insecure: True switches off all checks of the server's certificate.
        max_bytes: Most bytes that a server may send for one call, with the values of all its keys; 1 KiB to 1 GiB.

    >>> RedisConfig(key="user:{}", kind="hash", fields=("name", "tier")).fields
    ('name', 'tier')
    """

    url: str = field(default=DEFAULT_URL, repr=False)
    key: str = "{}"
    kind: str = "string"
    fields: tuple[str, ...] = ()
    username: str | None = None
    password: str | Secret | None = field(default=None, repr=False)
    cluster: bool = False
    sentinel: tuple[str, ...] = ()
    master: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | Secret | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False
    max_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        endpoint = parse_url(self.url)
        KeyTemplate(self.key)
        self._check_types()
        if self.kind not in KINDS:
            raise ConfigError(
                f"RedisConfig.kind is {self.kind!r}; it must be 'string', 'hash' or 'json', for example kind='hash'."
            )
        for name in ("fields", "sentinel"):  # TOML has lists and no tuples, but a config must be hashable
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        self._check_fields()
        self._check_login(endpoint)
        self._check_tls(endpoint)
        if self.cluster and (endpoint.db or isinstance(endpoint.address, str)):
            part = f"the database {endpoint.db}" if endpoint.db else "a Unix socket"
            raise ConfigError(
                f"RedisConfig.cluster is True, but url names {part}; a cluster has only database 0 and is reached by "
                "TCP. Use a URL such as 'redis://localhost:6379'."
            )
        self._check_sentinel()
        if type(self.max_bytes) is not int or not 1024 <= self.max_bytes <= 1024**3:
            raise ConfigError(
                f"RedisConfig.max_bytes is {self.max_bytes!r}; it must be a whole number of bytes from 1024 to "
                "1073741824, for example 67108864."
            )

    def _check_types(self) -> None:
        for name in ("username", "master", "sentinel_username", "tls_ca", "tls_cert", "tls_key"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise ConfigError(
                    f"RedisConfig.{name} is {value!r}; it must be text, or None. Leave it out to have none."
                )
        for name in ("cluster", "insecure"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(
                    f"RedisConfig.{name} is {getattr(self, name)!r}; it must be True or False. Say {name}=True."
                )
        for name in ("password", "sentinel_password"):
            if not isinstance(getattr(self, name), str | Secret | None):
                raise ConfigError(
                    f"RedisConfig.{name} is a {type(getattr(self, name)).__name__}; it must be a Secret or text, "
                    "for example Secret.env('REDIS_PASSWORD')."
                )

    @property
    def key_parts(self) -> int:
        """Number of key columns that the source needs."""
        return KeyTemplate(self.key).columns

    def _check_fields(self) -> None:
        if not (isinstance(self.fields, tuple) and all(isinstance(name, str) and name for name in self.fields)):
            raise ConfigError(
                f"RedisConfig.fields is {self.fields!r}; it must be a tuple of field names, for example "
                "fields=('name', 'tier')."
            )
        if len(set(self.fields)) < len(self.fields):
            twice = next(name for name in self.fields if self.fields.count(name) > 1)
            raise ConfigError(
                f"RedisConfig.fields names {twice!r} twice; each name may appear once. Remove one of them."
            )
        if self.fields and self.kind != "hash":
            raise ConfigError(
                f"RedisConfig.fields is {self.fields!r}, but kind is {self.kind!r}; only a hash has fields. "
                "Say kind='hash', or leave fields out."
            )

    def _check_login(self, endpoint: Endpoint) -> None:
        for name, in_field, in_url in (
            ("username", self.username, endpoint.username),
            ("password", self.password, endpoint.password),
        ):
            if in_field is not None and in_url is not None:
                raise ConfigError(
                    f"RedisConfig.{name} is given, but url holds a {name} too; there must be one. "
                    f"Remove it from the url."
                )
        if (self.username or endpoint.username) and self.password is None and endpoint.password is None:
            raise ConfigError(
                "RedisConfig has a username but no password; a user needs one. "
                "Give it by reference: password=Secret.env('REDIS_PASSWORD')."
            )

    def _check_sentinel(self) -> None:
        if not self.sentinel:
            for name in ("master", "sentinel_username", "sentinel_password"):
                if getattr(self, name) is not None:
                    raise ConfigError(
                        f"RedisConfig.{name} is given, but there is no sentinel; it belongs to the sentinels. "
                        f"Name them, for example sentinel=('sentinel-1.example:26379',), or leave {name} out."
                    )
            return
        if not isinstance(self.sentinel, tuple) or not all(map(sentinel_address, self.sentinel)):
            raise ConfigError(
                f"RedisConfig.sentinel is {self.sentinel!r}; it must be a tuple of hosts with or without a port, for "
                "example sentinel=('sentinel-1.example:26379', 'sentinel-2.example:26379')."
            )
        if self.master is None:
            raise ConfigError(
                "RedisConfig.sentinel is given, but master is not; the sentinels know the master by a name. "
                "Say master='mymaster', or the name in your sentinels' configuration."
            )
        if self.cluster:
            raise ConfigError(
                "RedisConfig.cluster is True, but sentinel is given; a cluster has no sentinels. Leave one of them out."
            )
        if self.url.startswith("unix:") or (self.url != DEFAULT_URL and urlsplit(self.url).hostname):
            raise ConfigError(
                "RedisConfig.url names a server, but sentinel is given; the sentinels tell which server is the "
                "master. Leave the host out of url, for example 'redis:///0' or 'rediss:///0'."
            )
        if self.sentinel_username is not None and self.sentinel_password is None:
            raise ConfigError(
                "RedisConfig has a sentinel_username but no sentinel_password; a user needs one. "
                "Give it by reference: sentinel_password=Secret.env('SENTINEL_PASSWORD')."
            )

    def _check_tls(self, endpoint: Endpoint) -> None:
        for name in ("tls_ca", "tls_cert", "tls_key"):
            if getattr(self, name) is not None and not endpoint.tls:
                raise ConfigError(
                    f"RedisConfig.{name} is {getattr(self, name)!r}, but url does not use TLS; "
                    "it must start with 'rediss://'. Change the url, or leave the file out."
                )
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigError(
                f"RedisConfig.tls_key is {self.tls_key!r}, but there is no tls_cert; a key belongs to a certificate. "
                "Give both, or neither."
            )
        if endpoint.unverified and not self.insecure:
            raise ConfigError(
                "RedisConfig.url asks for ssl_cert_reqs=none or optional; the server's certificate must be checked. "
                "Remove it and name your authority's file in tls_ca, or say insecure=True."
            )


def parse_url(url: str) -> Endpoint:
    """Return the parts of *url*; raises `ConfigError`, with a message that holds no part of a password."""
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not separator or scheme not in SCHEMES:
        # The message shows the text before '://' only if this text can be a scheme, because a wrong URL may begin with
        # a password.
        shown = repr(scheme) if separator and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,15}", scheme) else "no scheme"
        raise ConfigError(
            f"RedisConfig.url starts with {shown}; it must start with 'redis://' or 'rediss://', {EXAMPLE}."
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", parts.port or 6379
    except ValueError:
        raise _unreadable() from None
    # If a password holds an unescaped / ? or #, urlsplit() takes the rest of the password and the @ that follows it for
    # path, query or fragment. Such a URL is refused.
    if "@" in parts.path + parts.query or parts.fragment or rest != rest.strip() or any(c < " " for c in rest):
        raise _unreadable()
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    address: Address = (host, port)
    database = options.pop("db", None)
    if scheme == "unix":
        if parts.hostname or parts.port or not parts.path:
            raise ConfigError(
                "RedisConfig.url names a Unix socket with a host; it must be an absolute path, "
                "for example 'unix:///run/redis.sock'."
            )
        address = unquote(parts.path)
    elif parts.path.strip("/"):
        database = parts.path.strip("/")
    return Endpoint(
        address=address,
        tls=scheme == "rediss",
        db=_database(database),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        unverified=_unverified(parts, options),
    )


def sentinel_address(text: str) -> tuple[str, int] | None:
    """
    Return the host and port in *text*, which must be `host`, `host:port` or `[IPv6]:port`; None for any other text.

    >>> sentinel_address("sentinel-1.example"), sentinel_address("[::1]:5000"), sentinel_address("user@host")
    (('sentinel-1.example', 26379), ('::1', 5000), None)
    """
    if not isinstance(text, str) or not re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\s\[\]@/?#:\\]+)(:[0-9]{1,5})?", text):
        return None
    try:
        parts = urlsplit(f"//{text}")
        return (parts.hostname, parts.port or SENTINEL_PORT) if parts.hostname else None
    except ValueError:  # the port is above 65535, or the brackets hold no IP address
        return None


def _unreadable() -> ConfigError:
    return ConfigError(
        "RedisConfig.url cannot be read; it must look like 'redis://user:password@host:port/database'. Percent-encode "
        "the characters @ : / ? # % of the password, or give it apart: password=Secret.env('REDIS_PASSWORD')."
    )


def _database(text: str | None) -> int:
    if text is None:
        return 0
    if not re.fullmatch(r"[0-9]{1,5}", text):
        raise ConfigError(f"RedisConfig.url names the database {text!r}; it must be a number from 0, {EXAMPLE}.")
    return int(text)


def _unverified(parts: SplitResult, options: dict[str, str]) -> bool:
    requirement = options.pop("ssl_cert_reqs", "required")
    if options:
        raise ConfigError(
            f"RedisConfig.url has the option {next(iter(options))!r}; it may have 'db' and 'ssl_cert_reqs'. "
            "Give the rest as fields of RedisConfig."
        )
    if requirement not in ("required", "optional", "none"):
        raise ConfigError(
            f"RedisConfig.url has ssl_cert_reqs={requirement!r}; it must be 'required', 'optional' or 'none'. Leave "
            "it out."
        )
    return parts.scheme == "rediss" and requirement != "required"
