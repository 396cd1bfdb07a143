"""The proxy of a source: the check of its settings on the driver, and their translation for the HTTP client."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from enrichkit.errors import ConfigError, FatalError
from enrichkit.plugin import Secret

from .checks import split_url

if TYPE_CHECKING:
    from pyreqwest.client import ClientBuilder

__all__ = ["check_proxy", "with_proxy"]


def check_proxy(proxy: Any, auth: Any) -> None:
    """
    Raise `ConfigError` if *proxy* is not just a scheme, host and port, or if *auth* is no `Secret`, or is given without
    *proxy*.
    """
    if proxy is None and auth is None:
        return
    if proxy is None:
        raise ConfigError(
            "HttpConfig.proxy_auth is given without proxy, so nobody would get the credentials. Write "
            "proxy='http://proxy.example:3128'."
        )
    try:
        parts = split_url(proxy)
        right = parts.port is not None and parts.path in ("", "/") and "?" not in proxy
    except ConfigError:  # this error is about URL templates, so the error below replaces it
        right = False
    if not right:
        raise ConfigError(
            "HttpConfig.proxy is no address of a proxy; it must be 'http://' or 'https://', a host and a port, without "
            "a user name, path or query. Write 'http://proxy.example:3128', and credentials as proxy_auth."
        )
    if not isinstance(auth, Secret | None):
        raise ConfigError(
            f"HttpConfig.proxy_auth is a {type(auth).__name__}; it must be a Secret that holds 'user:password'. Write "
            "Secret.env('PROXY_AUTH')."
        )


def with_proxy(builder: ClientBuilder, proxy: str, auth: Secret | None) -> ClientBuilder:
    """
    Return *builder* with *proxy* as its only proxy. Environment variables that name a proxy are ignored.

    Raises:
        FatalError: The secret *auth* is absent on this worker, or holds no colon.
    """
    from pyreqwest.proxy import ProxyBuilder

    settings = ProxyBuilder.all(proxy)
    if auth is None:
        return builder.proxy(settings)
    try:
        pair = auth.resolve()
    except ConfigError as error:
        raise FatalError(str(error)) from None
    if ":" not in pair:
        del pair  # so that no traceback of the error below shows this secret
        raise FatalError("HttpConfig.proxy_auth holds no colon; it must be 'user:password'. Correct the secret.")
    credential = base64.b64encode(pair.encode()).decode()
    return builder.proxy(settings.custom_http_auth(f"Basic {credential}"))
