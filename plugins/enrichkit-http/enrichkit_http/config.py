"""Where the values are: `HttpConfig`, checked on the driver before any row moves."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

from enrichkit.connector import ConnectorConfig
from enrichkit.errors import ConfigError

from .checks import (
    Header,
    body_text,
    check_path,
    credential_in,
    header_pairs,
    holds_credential,
    is_local,
    masked,
    split_url,
    statuses,
)
from .template import Body, Url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from enrichkit.secrets import Secret

__all__ = ["HttpConfig"]


@dataclass(frozen=True, kw_only=True, repr=False)
class HttpConfig(ConnectorConfig):
    """
    Where the values are.

    Attributes:
        url: Template of the address. `{0}`, `{1}` (or `{}`) stand for the key columns, in path segments and in values
            of the query only; they are percent-encoded.
        method: `"GET"` or `"POST"`; always POST with `bulk`.
        headers: A mapping, or pairs, of names to a text or a `Secret`. Credentials belong here.
        body: JSON template of a POST, as data or as JSON text: strings that are exactly `"{0}"` are replaced by that
            part of the key, encoded as JSON. With `bulk`, `"{0}"` is the list of keys, and the default body.
        idempotent: A POST may be repeated after a failure. A GET and a bulk POST always may.
        bulk: POST many keys of one column at once. The answer is a list in the order of the keys, an object by key,
            or with `key_field` a list in any order. Null in a list without `key_field`, and a key that is absent
            elsewhere, is a miss; null under a key is a stored null.
        key_field: Path to the field of an answer (of an element, with `bulk`) that repeats the key. An answer to one
            key that repeats another one is dropped, its connections too, and the key is asked again.
        value: Path to the value inside an answer, for example `data.profile`. Absent there is a miss, null is a null.
            With `bulk` the path is inside each element; `results[].profile` first goes to the list or object `results`.
        missing: Statuses that mean that the service does not hold the key; 400 to 499, or 204. None: 404, and none
            with `bulk`, where a status speaks for all keys at once.
        max_bytes: Most bytes of one answer, as sent and when decompressed; 1 to 1 GiB. None: 1 MiB, and 8 MiB with
            `bulk`, where an answer holds the values of all keys of a call.
        http2: Speak HTTP/2: by ALPN over https, at once over http.
        tls_ca: PEM file, on the workers, of authorities to trust beside the system's.
        tls_cert: PEM file, on the workers, with the client's certificate; with the key too, or beside `tls_key`.
        tls_key: PEM file, on the workers, with the client's private key.
        insecure: Give up what the address promises: with https any certificate will do, with http credentials may
            leave the machine unencrypted.
        returns: Type of one value. `"string"` takes an answer as it is (charset applied); with `value` or `bulk` a
            JSON string gives its text and anything else its JSON. Every other type is decoded from JSON.

    Raises:
        ConfigError: A field is wrong. Raised on the driver.

    >>> from enrichkit import Secret
    >>> HttpConfig(url="https://api.example/{0}/users/{1}?v=2", headers={"X-Api-Key": Secret.env("API_KEY")})
    HttpConfig(url='https://api.example/{0}/users/{1}?v=***', headers=('X-Api-Key',))
    """

    url: str
    method: str = "GET"
    headers: Mapping[str, str | Secret] | Iterable[Header] = ()
    body: Any = None
    idempotent: bool = False
    bulk: bool = False
    key_field: str | None = None
    value: str | None = None
    missing: tuple[int, ...] | None = None
    max_bytes: int | None = None
    http2: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False
    returns: Any = "string"

    def __post_init__(self) -> None:
        for name in ("idempotent", "bulk", "http2", "insecure"):
            if type(getattr(self, name)) is not bool:
                raise ConfigError(f"HttpConfig.{name} is {getattr(self, name)!r}; it must be True or False.")
        for name in ("tls_ca", "tls_cert", "tls_key"):
            if not isinstance(getattr(self, name), str | None) or getattr(self, name) == "":
                raise ConfigError(
                    f"HttpConfig.{name} is {getattr(self, name)!r}; it must be the path of a PEM file, or None."
                )
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigError(
                "HttpConfig.tls_key is given without tls_cert; a private key needs its certificate. Set tls_cert."
            )
        self._set("headers", header_pairs(self.headers))
        parts = split_url(self.url)
        self._check_method()
        if self.body is not None:
            self._set("body", body_text(self.body))
        self._check_placeholders()
        self._check_answer()
        if parts.scheme == "http":
            self._check_plain_http(parts.hostname or "", parts.query)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen, and this is its constructor

    def _check_method(self) -> None:
        if self.method not in ("GET", "POST"):
            raise ConfigError(f"HttpConfig.method is {self.method!r}; it must be 'GET' or 'POST', in capitals.")
        if self.bulk:
            self._set("method", "POST")
            self._set("body", '"{}"' if self.body is None else self.body)
        elif self.body is not None and self.method == "GET":
            raise ConfigError("HttpConfig.body is given with method 'GET'; only a POST has a body. Say method='POST'.")

    def _check_placeholders(self) -> None:
        in_url = Url(self.url).numbers
        in_body = Body(self.body).numbers if self.body is not None else set()
        numbers = in_url | in_body
        if self.bulk and (in_url or in_body != {0}):
            raise ConfigError(
                "HttpConfig.bulk sends many keys of one column at once, so url holds no placeholder, and its body only "
                '{0}, which stands for their list. Say body={"ids": "{0}"}, or bulk=False.'
            )
        if not numbers:
            raise ConfigError(
                "HttpConfig.url holds no placeholder and neither does body, so every key would ask the same; one of "
                "them must say where the key goes. Write '{0}', as in 'https://api.example/users/{0}'."
            )
        if numbers != set(range(len(numbers))):
            raise ConfigError(
                f"HttpConfig.url and body use the key parts {sorted(numbers)}; each part from 0 on must be used, or "
                f"keys that differ would ask the same. Use {{0}} to {{{len(numbers) - 1}}}."
            )
        if self.key_field is not None and len(numbers) > 1:
            raise ConfigError(
                f"HttpConfig.key_field is given, and the key has {len(numbers)} parts; only a key of one part can be "
                "compared with what an answer repeats. Leave key_field out."
            )

    def _check_answer(self) -> None:
        check_path("key_field", self.key_field, brackets=False)
        check_path("value", self.value, brackets=self.bulk)
        for name, usual in self._usual().items():
            if getattr(self, name) is None:
                self._set(name, usual)
        self._set("missing", statuses(self.missing))
        if type(self.max_bytes) is not int or not 1 <= self.max_bytes <= 2**30:
            raise ConfigError(
                f"HttpConfig.max_bytes is {self.max_bytes!r}; it must be a whole number from 1 to 2**30 (1 GiB)."
            )
        if self.returns is None or (isinstance(self.returns, str) and not self.returns.strip()):
            raise ConfigError(
                f"HttpConfig.returns is {self.returns!r}; it must be the DDL of one value, as in 'name string, tier "
                "int'."
            )

    def _usual(self) -> dict[str, Any]:
        """What None stands for: an answer to many keys is larger, and its status speaks for none of them."""
        return {"missing": (), "max_bytes": 2**23} if self.bulk else {"missing": (404,), "max_bytes": 2**20}

    def _check_plain_http(self, host: str, query: str) -> None:
        if self.tls_ca or self.tls_cert:
            raise ConfigError(
                "HttpConfig.url starts with 'http://', and TLS files are given, which plain HTTP ignores. Write "
                "'https://'."
            )
        secret = [f"the header {header[0]!r}" for header in self.pairs if holds_credential(header)]
        if parameter := credential_in(query):
            secret.append(f"its parameter {parameter!r}")
        if secret and not self.insecure and not is_local(host):
            raise ConfigError(
                f"HttpConfig.url starts with 'http://', and {secret[0]} holds a credential, which "
                "everybody on the way could read. Write 'https://', or insecure=True if you know that the network is "
                "safe."
            )

    @property
    def pairs(self) -> tuple[Header, ...]:
        """The headers as they are stored, whatever they were given as."""
        return cast("tuple[Header, ...]", self.headers)

    @property
    def key_parts(self) -> int:
        """How many key columns the source needs."""
        in_body = Body(self.body).numbers if self.body is not None else set()
        return len(Url(self.url).numbers | in_body)

    def __repr__(self) -> str:
        usual = {each.name: each.default for each in fields(self)} | self._usual()
        shown = {name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]}
        # Header values and bodies may be secrets, and so may the fixed part of a query.
        shown["url"] = masked(self.url)
        if "headers" in shown:
            shown["headers"] = tuple(name for name, _ in self.pairs)
        if "body" in shown:
            shown["body"] = "***"
        return f"HttpConfig({', '.join(f'{name}={value!r}' for name, value in shown.items())})"
