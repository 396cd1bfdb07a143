"""OAuth client credentials: their check on the driver, the request for a token, and the reading of the answer."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote_plus, urlencode

import msgspec

from enrichkit.errors import ConfigError, FatalError
from enrichkit.plugin import Secret

from .checks import is_local, split_url

if TYPE_CHECKING:
    from pyreqwest.client import Client
    from pyreqwest.request import StreamRequest

    from .config import HttpConfig

__all__ = ["OAuth", "check_oauth", "oauth_of", "refusal", "token_in", "token_request"]

LONGEST_LIFE = 86_400.0
LIFE = 300.0  # seconds; used if the answer does not say how long the token is valid

# The error codes of RFC 6749, sections 4.1.2.1 and 5.2. Error messages show no other text of a token endpoint, because
# other texts could repeat the secret.
_ERRORS = (
    "invalid_request",
    "invalid_client",
    "invalid_grant",
    "unauthorized_client",
    "unsupported_grant_type",
    "invalid_scope",
    "access_denied",
)
# RFC 6749, appendix A.12: visible ASCII. A blank would end the credential in the header.
_TOKEN = re.compile(r"[!-~]{1,16384}").fullmatch


@dataclass(frozen=True, kw_only=True)
class OAuth:
    """
    The client credentials with which workers fetch tokens (RFC 6749, section 4.4).

    Attributes:
        token_url: Address of the token endpoint, which starts with `https://`. `http://` is allowed only to this
            machine, or if `insecure` of the `HttpConfig` is True.
        client_id: Name of the client, as text.
        client_secret: `Secret` of the client; a worker reads it again for each token.
        scope: Scopes of the token, separated by blanks. None: the scopes that the endpoint grants by default.
        in_body: True to send name and secret as fields of the form; False to send them, as the standard prefers, in the
            header `Authorization: Basic`.

    Raises:
        ConfigError: A field is wrong. Raised on the driver.

    >>> from enrichkit import Secret
    >>> OAuth(token_url="https://login.example/token", client_id="jobs", client_secret=Secret.env("CLIENT_SECRET"))
    OAuth(token_url='https://login.example/token', client_id='jobs', client_secret=Secret.env('CLIENT_SECRET'), \
scope=None, in_body=False)
    """

    token_url: str
    client_id: str
    client_secret: Secret
    scope: str | None = None
    in_body: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.token_url, str) and ("{" in self.token_url or "?" in self.token_url):
            raise ConfigError(
                "OAuth.token_url holds a brace or a query; a token is for all keys, and its endpoint is asked by a "
                "form. Write 'https://login.example/token'."
            )
        try:
            split_url(self.token_url)
        except ConfigError as error:
            raise ConfigError(str(error).replace("HttpConfig.url", "OAuth.token_url")) from None
        for name in ("client_id", "scope"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value.isprintable() and value) and (name, value) != ("scope", None):
                raise ConfigError(
                    f"OAuth.{name} is {value!r}; it must be text that is not empty, without control characters. Write "
                    "it as the service has given it to you."
                )
        if not isinstance(self.client_secret, Secret):
            raise ConfigError(
                f"OAuth.client_secret is a {type(self.client_secret).__name__}; it must be a Secret, which only "
                "workers resolve. Write Secret.env('CLIENT_SECRET')."
            )
        if type(self.in_body) is not bool:
            raise ConfigError(f"OAuth.in_body is {self.in_body!r}; it must be True or False.")


def oauth_of(value: Any) -> OAuth | None:
    """
    Return an `OAuth` made from *value*, a mapping of its fields, such as a table of a TOML file. Return *value* itself
    if it is an `OAuth` or None.
    """
    known = [field.name for field in fields(OAuth)]
    if isinstance(value, Mapping) and set(known[:3]) <= set(value) <= set(known):
        return OAuth(**value)
    if value is None or isinstance(value, OAuth):
        return value
    raise ConfigError(
        f"HttpConfig.oauth is a {type(value).__name__} that is no OAuth; it takes {', '.join(known)}, the first three "
        "of which are required. Write OAuth(token_url='https://login.example/token', client_id='jobs', "
        "client_secret=Secret.env('CLIENT_SECRET'))."
    )


def check_oauth(config: HttpConfig, oauth: OAuth) -> None:
    """Raise `ConfigError` if the secret would cross a network unencrypted, or if other fields contradict *oauth*."""
    address = split_url(oauth.token_url)
    local = is_local(address.hostname or "") and (not config.proxy or is_local(split_url(config.proxy).hostname or ""))
    if address.scheme == "http" and not config.insecure and not local:
        raise ConfigError(
            "OAuth.token_url starts with 'http://', so everybody on the way could read the secret of the client. Write "
            "'https://', or insecure=True if you know that the network is safe."
        )
    if any(name.lower() == "authorization" for name, _ in config.pairs):
        raise ConfigError(
            "HttpConfig.headers sets 'Authorization', and so does oauth; a request has one. Leave one of them out."
        )
    if 401 in (config.missing or ()):
        raise ConfigError(
            "HttpConfig.missing holds 401, which with oauth says that a token has ended. Leave it out there."
        )


def token_request(client: Client, oauth: OAuth, timeout: float) -> StreamRequest:
    """
    Return the request for a token.

    Only the frame of this function holds the secret as a variable, and no traceback of a failed request shows this
    frame, because the function returns before the request is sent.

    Raises:
        FatalError: The secret is absent on this worker.
    """
    form = {"grant_type": "client_credentials"}
    if oauth.scope is not None:
        form["scope"] = oauth.scope
    builder = client.post(oauth.token_url).header("content-type", "application/x-www-form-urlencoded")
    try:
        secret = oauth.client_secret.resolve()
    except ConfigError as error:
        raise FatalError(str(error)) from None
    if oauth.in_body:
        form |= {"client_id": oauth.client_id, "client_secret": secret}
    else:
        # RFC 6749, section 2.3.1: name and secret are encoded as in a form, so that a colon in the name is not taken
        # for the separator of the two.
        pair = f"{quote_plus(oauth.client_id)}:{quote_plus(secret)}"
        credential = base64.b64encode(pair.encode()).decode()
        builder = builder.header("authorization", f"Basic {credential}", is_sensitive=True)
    return builder.body_bytes(urlencode(form).encode()).timeout(timedelta(seconds=timeout)).build_streamed()


def token_in(body: bytes) -> tuple[str, float] | None:
    """Return the token in *body* and its lifetime in seconds, or None if *body* holds no token."""
    answer = _object(body)
    token, kind = answer.get("access_token"), answer.get("token_type", "bearer")
    if not isinstance(token, str) or not _TOKEN(token) or not isinstance(kind, str) or kind.lower() != "bearer":
        return None
    try:
        life = float(answer.get("expires_in", LIFE))
    except (TypeError, ValueError):
        life = LIFE
    return token, min(max(life, 0.0), LONGEST_LIFE) if life == life else LIFE


def refusal(status: int, body: bytes) -> FatalError:
    """Return the error for a *status* other than 200. It quotes nothing of *body* but a standard error code."""
    code = _object(body).get("error")
    said = f" with the error {code!r}" if code in _ERRORS else ""
    return FatalError(
        f"The token endpoint answered {status}{said}: it gives no token, so no key can be looked up. Check token_url, "
        "client_id, client_secret and scope of HttpConfig.oauth."
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}
    return cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
