"""
The config of an HTTP source. Its fields are checked on the driver, when the config is created.

The file is long because the docstring of `HttpConfig` says what each of its fields means.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from enrichkit.errors import ConfigError
from enrichkit.plugin import ConnectorConfig

from .checks import (
    body_text,
    check_path,
    credential_in,
    credential_named,
    is_local,
    masked,
    names_in,
    split_url,
    statuses,
)
from .fields import Form, Named, named_values, with_params
from .headers import HeaderTemplates, check_bearer, header_pairs, holds_credential
from .oauth import OAuth, check_oauth, oauth_of
from .paging import check_paging
from .proxy import check_proxy
from .raw import RAW_RETURNS, check_raw_returns
from .redirects import check_redirects
from .signing import check_sign
from .template import Body, Url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from enrichkit.plugin import Secret

__all__ = ["HttpConfig"]


@dataclass(frozen=True, kw_only=True, repr=False)
class HttpConfig(ConnectorConfig):
    """
    The settings of an HTTP source: how to request the value of a key, and where in the response the value is.

    Attributes:
        url: Template of the address. `{0}`, `{1}` (or `{}`) stand for the key columns, whose values are
            percent-encoded. These placeholders may stand only in path segments and in values of the query.
        method: `"GET"`, `"POST"` or `"PUT"`; with `bulk` it is always `"POST"`.
        params: Parameters of the query besides those of `url`, as a mapping of each name to a text or a `Secret`, or as
            pairs of name and value. `{0}`, `{1}` in a text stand for the key columns; no text may use more than one
            column. Names and values are percent-encoded.
        headers: A mapping of each header name to a text or a `Secret`, or pairs of name and value. Credentials belong
            here. `{0}`, `{1}` in a text stand for the key columns; no text may use more than one column. A key is
            rejected if the header's value would hold a line break, a control or non-ASCII character, or begin or end
            with a blank. In a header whose name looks like that of a credential, a placeholder must be the whole
            value.
        bearer: `Secret` that holds the token of the header `Authorization: Bearer`, without the word Bearer. Not
            allowed with `oauth`.
        sign: `"package.module:function"`, a function that the workers import. They call it with an `UnsignedRequest`
            for each single request, i.e. again for each attempt, redirect and page. The function returns a mapping of
            the headers to add, such as a signature, and may be asynchronous. A synchronous function must not block,
            because it would delay all requests of the process. If the function raises a `TransientError`, the request
            is tried again. Not allowed with a `Secret` in `params` or `form`, because the function would not see the
            secret.
        oauth: Credentials with which the workers fetch the tokens for the header `Authorization: Bearer`: an `OAuth`,
            or a mapping of its fields. All calls of a worker process share one token. A new token is fetched before the
            old one expires, and once after a response with the status 401. Then the request is repeated with the new
            token. Even a POST is repeated, because a service that answers 401 has not carried out the request.
        body: Template of the JSON body of a POST or PUT, as data or as JSON text. Each string that is exactly a
            placeholder, such as `"{0}"`, is replaced by that part of the key, encoded as JSON. With `bulk`, `"{0}"`
            stands for the list of keys; the default body is this list alone.
        form: Fields of a POST or PUT that is sent as `application/x-www-form-urlencoded`, as a mapping of each name to
            a text or a `Secret`, or as pairs of name and value. `{0}`, `{1}` in a text stand for the key columns; no
            text may use more than one column. Not allowed with `body` or `bulk`.
        idempotent: True when a POST or PUT may be repeated after a failure. A GET and a bulk POST may always be
            repeated. A PUT needs this setting, too, although HTTP defines PUT as idempotent: a repeated PUT can
            overwrite what somebody else has written since the first one, and some services do not make PUT idempotent.
        idempotency_key: True to send the header `Idempotency-Key` with each POST or PUT, so that the service can
            recognize a repeated request, for example one of a task that runs again; see `Call.idempotency_key`. With
            this setting, requests are repeated after a failure, as with `idempotent`. Not allowed with `bulk`, because
            a repeated bulk request may hold other keys.
        bulk: True to POST many keys of one column at once. The response is a list in the order of the keys, an object
            whose field names are the keys, or with `key_field` a list in any order. In a list without `key_field`, a
            null is a miss. In an object, or in a list with `key_field`, a key that is absent is a miss, and a key whose
            value is null gets the value null.
        key_field: Path to the field in which a response (with `bulk`: each element of it) repeats the key. If a
            response repeats another key, responses were mixed up: the connector drops the response and all its
            connections, and asks for the key again.
        value: Path to the value inside a response, for example `data.profile`. If the field is absent, the key is a
            miss. A field that is null gives a null value. The task fails if none of its first 20 responses has the
            path, see the option `absent_fields`. With `bulk` the path starts inside each element; `results[].profile`
            is the field `profile` in each element of the list or object `results`.
        errors: Path to the field by which a response with a success status reports an error, for example `errors` of
            GraphQL. The key gets an error when the field holds anything but null, false, 0, or an empty text, list or
            object, even if the response also holds a value. With `bulk` the path of `errors` starts inside each
            element. But if `value` has a path before `[]`, as in `results[]`, the path of `errors` starts at the top of
            the response.
        success: Path to the field, for example `ok`, that is `true` in each response that holds a value. The key gets
            an error when the field holds something else or is absent. With `bulk` the path of `success` starts where
            that of `errors` starts: inside each element, or at the top of the response if `value` has a path before
            `[]`.
        missing: Statuses by which the service says that it does not hold the key; 400 to 499, or 204. None stands for
            404; with `raw` or `bulk` it means that no status is a miss. With `bulk`, a status that is listed here makes
            all keys of the request misses.
        missing_when: `"empty"` if a successful response with an empty body, or a 204, says that the service does not
            hold the key. None: an empty body is an error, or with ``returns="string"`` the empty text as a value. Not
            allowed with `bulk`, `raw` or `next_page`.
        raw: True to take each response as data: the value is a struct of the status and the body as text. Only a
            response with the status 429, 502, 503 or 504 is no value: such a status means that the service is
            unavailable, and the request is tried again. With `oauth`, a 401 is no value either. Not allowed with
            `bulk`, `value`, `key_field`, `errors`, `success` or `missing`.
        redirects: The most redirects that are followed for one GET, 0 to 10. Only redirects to the same scheme, host
            and port are followed; any other redirect is an error of the key. With `raw`, a redirect response is a value
            only if this number is 0.
        next_page: Path inside a response to the address of the next page, for example `links.next`. On the last page
            this field is absent, null, false or empty. The address may be relative and must have the same scheme, host
            and port. The lists that all pages have at the path `value` are joined into one list, which is the value of
            the key. Only allowed with the method GET.
        page_param: Parameter of the query in which the token of the next page is sent. Set it if `next_page` is the
            path to such a token (text or a whole number) and not to an address.
        max_pages: Most pages of one key, 1 to 10,000; a key with more pages gets an error. `max_bytes` and the timeout
            apply to all pages of a key together.
        max_bytes: The most bytes that a response may have, both as it is sent and decompressed; 1 to 1 GiB. None: 1
            MiB, or 8 MiB with `bulk`, where a response holds the values of all keys of a call.
        follow_rate_headers: True to send no more requests than the service still allows, according to the headers of
            its responses: `RateLimit` and `RateLimit-Remaining` of the IETF draft, and `X-RateLimit-Remaining`, each
            with its reset time. The requests of a worker process are spread evenly when less than a fifth of the limit
            remains.
        http2: True to speak HTTP/2. Over https, client and service negotiate HTTP/2 by ALPN. Over http, the client
            speaks HTTP/2 from the first byte, without a negotiation.
        proxy: Proxy for all requests, as `http://host:port` or `https://host:port`. None: no proxy, even if a variable
            such as HTTPS_PROXY names one. Requests over https are tunnelled through the proxy, which then sees only the
            host and port.
        proxy_auth: `Secret` that holds `user:password` for the proxy. The secret is sent unencrypted to an `http://`
            proxy.
        tls_ca: Path on the workers of a PEM file with certificate authorities to trust in addition to those of the
            system.
        tls_cert: Path on the workers of a PEM file with the client's certificate. The file also holds the private key,
            unless `tls_key` names another file.
        tls_key: Path on the workers of a PEM file with the client's private key.
        insecure: True to accept any certificate over https, and to allow sending credentials unencrypted over http to
            other machines.
        returns: Type of one value. With `"string"`, the value is the whole response, decoded by its charset. With
            `"string"` and `value` or `bulk`, the value is a part of the JSON response: a JSON string without its
            quotes, or anything else as JSON text. A value of a type other than string is decoded from JSON. With `raw`,
            the default is `"status int, body string"`, and the only other type allowed has a third field at the end: `,
            headers map<string,string>`.

    Raises:
        ConfigError: A field is wrong. Raised on the driver.

    >>> from enrichkit import Secret
    >>> HttpConfig(url="https://api.example/{0}/users/{1}?v=2", headers={"X-Api-Key": Secret.env("API_KEY")})
    HttpConfig(url='https://api.example/{0}/users/{1}?v=***', headers=('X-Api-Key',))
    """

    url: str
    method: str = "GET"
    params: Mapping[str, str | Secret] | Iterable[Named] = ()
    headers: Mapping[str, str | Secret] | Iterable[Named] = ()
    bearer: Secret | None = None
    sign: str | None = None
    oauth: OAuth | Mapping[str, Any] | None = None
    body: Any = None
    form: Mapping[str, str | Secret] | Iterable[Named] = ()
    idempotent: bool = False
    idempotency_key: bool = False
    bulk: bool = False
    key_field: str | None = None
    value: str | None = None
    errors: str | None = None
    success: str | None = None
    missing: tuple[int, ...] | None = None
    missing_when: str | None = None
    raw: bool = False
    redirects: int = 0
    next_page: str | None = None
    page_param: str | None = None
    max_pages: int = 100
    max_bytes: int | None = None
    follow_rate_headers: bool = False
    http2: bool = False
    proxy: str | None = None
    proxy_auth: Secret | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure: bool = False
    returns: Any = "string"

    def __post_init__(self) -> None:
        for name in ("idempotent", "idempotency_key", "bulk", "raw", "follow_rate_headers", "http2", "insecure"):
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
        self._set("form", named_values("form", self.form))
        self._set("params", named_values("params", self.params))
        parts = split_url(self.url)
        self._check_params(parts.query)
        self._check_method()
        if self.body is not None:
            self._set("body", body_text(self.body))
        check_proxy(self.proxy, self.proxy_auth)
        self._set("oauth", oauth_of(self.oauth))
        check_bearer(self)
        if isinstance(self.oauth, OAuth):
            check_oauth(self, self.oauth)
        check_sign(self)
        check_redirects(self.redirects, self.method)
        check_paging(self, parts.query)
        self._check_placeholders()
        self._check_answer()
        if parts.scheme == "http":
            self._check_plain_http(parts.hostname or "", parts.query)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen: an assignment would raise an error

    def _check_method(self) -> None:
        if self.method not in ("GET", "POST", "PUT"):
            raise ConfigError(f"HttpConfig.method is {self.method!r}; it must be 'GET', 'POST' or 'PUT', in capitals.")
        if self.form and (self.bulk or self.body is not None):
            raise ConfigError(
                f"HttpConfig.form is given with {'bulk' if self.bulk else 'body'}; a request has one body, and that of "
                "bulk is JSON. Leave one of them out."
            )
        if self.bulk and self.method == "PUT":
            raise ConfigError(
                "HttpConfig.method is 'PUT' with bulk; many keys are asked for by POST. Leave method out, or say "
                "bulk=False."
            )
        if self.idempotency_key and (self.bulk or self.method == "GET"):
            what, remedy = ("bulk", "bulk=False") if self.bulk else ("method 'GET'", "method='POST'")
            raise ConfigError(
                f"HttpConfig.idempotency_key is True with {what}; it is for a request of one key that may change "
                f"something. Say {remedy}, or leave it out."
            )
        if self.idempotency_key and any(name.lower() == "idempotency-key" for name, _ in self.pairs):
            raise ConfigError(
                "HttpConfig.headers names 'Idempotency-Key', and idempotency_key is True; only one of them can give "
                "the key. Leave one of them out."
            )
        if self.bulk:
            self._set("method", "POST")
            self._set("body", '"{}"' if self.body is None else self.body)
        elif self.method == "GET" and (self.body is not None or self.form):
            raise ConfigError(
                f"HttpConfig.{'form' if self.form else 'body'} is given with method 'GET'; only a POST or PUT has a "
                "body. Say method='POST'."
            )

    def _check_params(self, query: str) -> None:
        twice = [name for name, _ in self.param_pairs if name in names_in(query)]
        if twice:
            raise ConfigError(
                f"HttpConfig.params names {twice[0]!r}, which the query of url has too; a parameter is given once. "
                "Leave one of them out."
            )

    def _check_placeholders(self) -> None:
        elsewhere = Url(self._address).numbers | HeaderTemplates(self.pairs).numbers
        in_body = Body(self.body).numbers if self.body is not None else set()
        numbers = self._numbers()
        if self.bulk and (elsewhere or in_body != {0}):
            raise ConfigError(
                "HttpConfig.bulk sends many keys of one column at once, so url, params and headers hold no "
                'placeholder, and body only {0}, which stands for their list. Say body={"ids": "{0}"}, or bulk=False.'
            )
        if not numbers:
            raise ConfigError(
                "HttpConfig holds no placeholder in url, params, headers, body or form, so every key would ask the "
                "same; one of them must say where the key goes. Write '{0}', as in 'https://api.example/users/{0}'."
            )
        if numbers != set(range(len(numbers))):
            raise ConfigError(
                f"HttpConfig uses the key parts {sorted(numbers)}; each part from 0 on must be used, or keys that "
                f"differ would ask the same. Use {{0}} to {{{len(numbers) - 1}}}."
            )
        if self.key_field is not None and len(numbers) > 1:
            raise ConfigError(
                f"HttpConfig.key_field is given, and the key has {len(numbers)} parts; only a key of one part can be "
                "compared with what an answer repeats. Leave key_field out."
            )

    def _check_raw(self) -> None:
        names = ("bulk", "value", "key_field", "errors", "success", "missing")
        given = [name for name in names if getattr(self, name) not in (None, False)]
        if given and (given != ["missing"] or self.missing != ()):
            raise ConfigError(
                f"HttpConfig.{given[0]} is given with raw, which takes the whole of each response as the value. Leave "
                "one of them out."
            )
        if self.returns == "string":
            self._set("returns", RAW_RETURNS)
        check_raw_returns(self.returns)

    def _check_answer(self) -> None:
        if self.raw:
            self._check_raw()
        check_path("key_field", self.key_field, brackets=False)
        check_path("value", self.value, brackets=self.bulk)
        check_path("errors", self.errors, brackets=False)
        check_path("success", self.success, brackets=False)
        for name, default in self._defaults().items():
            if getattr(self, name) is None:
                self._set(name, default)
        self._set("missing", statuses(self.missing))
        self._check_missing_when()
        if type(self.max_bytes) is not int or not 1 <= self.max_bytes <= 2**30:
            raise ConfigError(
                f"HttpConfig.max_bytes is {self.max_bytes!r}; it must be a whole number from 1 to 2**30 (1 GiB)."
            )
        if self.returns is None or (isinstance(self.returns, str) and not self.returns.strip()):
            raise ConfigError(
                f"HttpConfig.returns is {self.returns!r}; it must be the DDL of one value, as in 'name string, tier "
                "int'."
            )

    def _check_missing_when(self) -> None:
        if self.missing_when is None:
            return
        if self.missing_when != "empty":
            raise ConfigError(f"HttpConfig.missing_when is {self.missing_when!r}; it must be 'empty' or None.")
        for name in ("bulk", "raw", "next_page"):
            if getattr(self, name):
                raise ConfigError(
                    f"HttpConfig.missing_when is given with {name}, where an empty response says nothing of one key. "
                    "Leave one of them out."
                )

    def _defaults(self) -> dict[str, Any]:
        """
        Return the values that replace a None in `missing` and `max_bytes`. With `bulk` they differ, because a response
        is larger and its status concerns all keys. With `raw` no status means a miss, because each status is a part of
        a value.
        """
        return {"missing": () if self.bulk or self.raw else (404,), "max_bytes": 2**23 if self.bulk else 2**20}

    def _check_plain_http(self, host: str, query: str) -> None:
        if self.tls_ca or self.tls_cert:
            raise ConfigError(
                "HttpConfig.url starts with 'http://', and TLS files are given, which plain HTTP ignores. Write "
                "'https://'."
            )
        secret = [f"the header {header[0]!r}" for header in self.pairs if holds_credential(header)]
        if self.bearer is not None:
            secret.append("the token of bearer in the header 'Authorization'")
        if self.oauth is not None:
            secret.append("the token of oauth in the header 'Authorization'")
        if parameter := credential_in(query) or credential_named(self.param_pairs):
            secret.append(f"its parameter {parameter!r}")
        if field := credential_named(self.form_pairs):
            secret.append(f"its field {field!r} of form")
        # Even a request to this machine crosses a network if the proxy is on another machine, so both hosts are
        # checked.
        way = [host, urlsplit(self.proxy).hostname or ""] if self.proxy else [host]
        if secret and not self.insecure and not all(map(is_local, way)):
            raise ConfigError(
                f"HttpConfig.url starts with 'http://', and {secret[0]} holds a credential, which "
                "everybody on the way could read. Write 'https://', or insecure=True if you know that the network is "
                "safe."
            )

    @property
    def pairs(self) -> tuple[Named, ...]:
        """The headers as pairs, even if the user wrote a mapping."""
        return cast("tuple[Named, ...]", self.headers)

    @property
    def param_pairs(self) -> tuple[Named, ...]:
        """The parameters of `params` as pairs, even if the user wrote a mapping."""
        return cast("tuple[Named, ...]", self.params)

    @property
    def secret_params(self) -> tuple[str, ...]:
        """The names of the parameters in `params` whose values are secrets."""
        return tuple(name for name, value in self.param_pairs if not isinstance(value, str))

    @property
    def _address(self) -> str:
        return with_params(self.url, self.param_pairs)

    @property
    def form_pairs(self) -> tuple[Named, ...]:
        """The fields of the form as pairs, even if the user wrote a mapping."""
        return cast("tuple[Named, ...]", self.form)

    @property
    def key_parts(self) -> int:
        """Number of key columns that the source needs."""
        return len(self._numbers())

    def _numbers(self) -> set[int]:
        """Return the numbers of the key parts that the templates use."""
        in_body = Body(self.body).numbers if self.body is not None else set()
        in_headers, in_form = HeaderTemplates(self.pairs).numbers, Form(self.form_pairs).numbers
        return Url(self._address).numbers | in_headers | in_body | in_form

    def __repr__(self) -> str:
        defaults = {each.name: each.default for each in fields(self)} | self._defaults()
        shown = {name: getattr(self, name) for name in defaults if getattr(self, name) != defaults[name]}
        if self.raw and self.returns == RAW_RETURNS:
            shown.pop("returns", None)
        # Header values, bodies and the fixed values in a query may be secrets, so the repr shows only names, or `***`.
        shown["url"] = masked(self.url)
        for name in ("params", "headers", "form"):
            if name in shown:
                shown[name] = tuple(each for each, _ in getattr(self, name))
        if "body" in shown:
            shown["body"] = "***"
        return f"HttpConfig({', '.join(f'{name}={value!r}' for name, value in shown.items())})"
