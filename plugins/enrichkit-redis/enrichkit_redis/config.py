"""Where the values are: the config, and the URL in it taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from enrichkit.connector import ConnectorConfig
from enrichkit.errors import ConfigError
from enrichkit.secrets import Secret

from .template import KeyTemplate

__all__ = ["Address", "Endpoint", "RedisConfig", "parse_url"]

Address: TypeAlias = tuple[str, int] | str
"""Host and port of a server, or the path of its Unix socket."""

KINDS = ("string", "hash", "json")
SCHEMES = ("redis", "rediss", "unix")
EXAMPLE = "for example 'redis://localhost:6379/0'"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """
    A URL taken apart.

    Attributes:
        address: Where to connect.
        tls: Whether to speak TLS.
        db: Number of the database.
        username: The user in the URL, decoded, or None.
        password: The password in the URL, decoded, or None.
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
    Where the values are and what they look like.

    Attributes:
        url: `redis://[user[:password]@]host[:port][/database]`, `rediss://` for TLS, or `unix:///path.sock[?db=0]`.
            Hidden from repr: it may hold a password.
        key: How the key columns become a Redis key, for example `user:{}`. `{}` takes the next column, `{0}` and
            `{1}` take them by number, names in the order in which they first appear; `{{` and `}}` are braces. A
            single part enters the key as it is. In a key of several parts each `%`, `{`, `}` and each character of
            the separators is percent-encoded inside the parts, so that two different keys never share a name.
        kind: `"string"` (`MGET`), `"hash"` (`HMGET` or `HGETALL`), or `"json"` (a string that holds one JSON document).
        fields: Fields of a hash to read; all when empty. Only for hashes.
        username: ACL user; the default user when absent.
        password: A `Secret`, or the password itself, which is then part of what Spark ships to the workers.
        cluster: True when `url` names one node of a cluster; keys then go to the node that holds their slot.
        tls_ca: File of the certificate authorities to trust; those of the system when absent.
        tls_cert: File of the client certificate, if the server wants one. May hold the key as well.
        tls_key: File of the client certificate's key.
        insecure: True switches off all checks of the server's certificate.
        max_bytes: Most bytes of one reply, which holds the values of all keys of a call; 1 KiB to 1 GiB.

    >>> RedisConfig(key="user:{}", kind="hash", fields=("name", "tier")).fields
    ('name', 'tier')
    """

    url: str = field(default="redis://localhost:6379/0", repr=False)
    key: str = "{}"
    kind: str = "string"
    fields: tuple[str, ...] = ()
    username: str | None = None
    password: str | Secret | None = field(default=None, repr=False)
    cluster: bool = False
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
        if isinstance(self.fields, list):  # TOML has no tuples, and a config must be hashable
            object.__setattr__(self, "fields", tuple(self.fields))
        self._check_fields()
        self._check_login(endpoint)
        self._check_tls(endpoint)
        if self.cluster and (endpoint.db or isinstance(endpoint.address, str)):
            what = f"the database {endpoint.db}" if endpoint.db else "a Unix socket"
            raise ConfigError(
                f"RedisConfig.cluster is True, but url names {what}; a cluster has only database 0 and is reached by "
                "TCP. Use a URL such as 'redis://localhost:6379'."
            )
        if type(self.max_bytes) is not int or not 1024 <= self.max_bytes <= 1024**3:
            raise ConfigError(
                f"RedisConfig.max_bytes is {self.max_bytes!r}; it must be a whole number of bytes from 1024 to "
                "1073741824, for example 67108864."
            )

    def _check_types(self) -> None:
        for name in ("username", "tls_ca", "tls_cert", "tls_key"):
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
        if not isinstance(self.password, str | Secret | None):
            raise ConfigError(
                f"RedisConfig.password is a {type(self.password).__name__}; it must be a Secret or text, "
                "for example Secret.env('REDIS_PASSWORD')."
            )

    @property
    def key_parts(self) -> int:
        """How many key columns the source needs."""
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
        for name, mine, in_url in (
            ("username", self.username, endpoint.username),
            ("password", self.password, endpoint.password),
        ):
            if mine is not None and in_url is not None:
                raise ConfigError(
                    f"RedisConfig.{name} is given, but url holds a {name} too; there must be one. "
                    f"Remove it from the url."
                )
        if (self.username or endpoint.username) and self.password is None and endpoint.password is None:
            raise ConfigError(
                "RedisConfig has a username but no password; a user needs one. "
                "Give it by reference: password=Secret.env('REDIS_PASSWORD')."
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
    """Take *url* apart; raises `ConfigError` with a text that holds no part of a password."""
    scheme, separator, rest = url.partition("://") if isinstance(url, str) else ("", "", "")
    if not separator or scheme not in SCHEMES:
        # Whatever stands before '://' is shown only if it can be a scheme: an odd URL may begin with a password.
        shown = repr(scheme) if separator and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,15}", scheme) else "no scheme"
        raise ConfigError(
            f"RedisConfig.url starts with {shown}; it must start with 'redis://' or 'rediss://', {EXAMPLE}."
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", parts.port or 6379
    except ValueError:
        raise _unreadable() from None
    # A password with an unescaped / ? or # leaves its rest, and the @ behind it, in the path, query or fragment.
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
    wanted = options.pop("ssl_cert_reqs", "required")
    if options:
        raise ConfigError(
            f"RedisConfig.url has the option {next(iter(options))!r}; it may have 'db' and 'ssl_cert_reqs'. "
            "Give the rest as fields of RedisConfig."
        )
    if wanted not in ("required", "optional", "none"):
        raise ConfigError(
            f"RedisConfig.url has ssl_cert_reqs={wanted!r}; it must be 'required', 'optional' or 'none'. Leave it out."
        )
    return parts.scheme == "rediss" and wanted != "required"
