"""A proxy that the config names: what it is sent, and what its failures mean."""

from __future__ import annotations

import asyncio
import base64
import pickle
import platform
import socket
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig

from enrichkit.errors import FatalError, UnavailableError
from enrichkit.plugin import Call, Secret
from enrichkit.testing import open_connector

if TYPE_CHECKING:
    from collections.abc import Callable

    from enrichkit.local import HttpService

# Nobody asks a name server for it: the proxy is asked for the whole address.
URL = "http://service.invalid:8080/{0}"


@pytest.fixture
def through(serving: Callable[..., Any]) -> Callable[..., Any]:
    """`through(handler, url, **fields)`: a lookup of `k` through a proxy; returns the outcome and the bytes it got."""

    def run(handler: Callable[[Any], bytes], url: str = URL, **fields: Any) -> tuple[Any, list[bytes]]:
        async def once() -> tuple[Any, list[bytes]]:
            async with serving(handler=handler) as proxy:
                config = HttpConfig(url=url, proxy=proxy.url, **fields)
                async with open_connector(config, capacity=2) as connector:
                    try:
                        found: Any = dict(await connector.fetch_many(("k",), Call(timeout=5.0)))
                    except Exception as error:
                        found = error
                return found, proxy.requests

        return asyncio.run(once())

    return run


def test_a_request_goes_through_the_proxy(through: Callable[..., Any], http: Callable[..., bytes]) -> None:
    found, [request] = through(lambda _: http(b"v"))
    assert found == {"k": "v"}
    assert request.startswith(b"GET http://service.invalid:8080/k HTTP/1.1\r\n")
    assert b"proxy-authorization" not in request.lower()


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_no_variable_keeps_a_request_from_the_proxy(
    through: Callable[..., Any], http: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "*")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for other in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(other, f"http://127.0.0.1:{closed.getsockname()[1]}")
        found, [request] = through(lambda _: http(b"v"), "http://127.0.0.1:1/{0}")
    assert found == {"k": "v"}
    assert request.startswith(b"GET http://127.0.0.1:1/k HTTP/1.1\r\n")


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_without_a_proxy_no_variable_makes_one(
    http_service: HttpService, lookup: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed.getsockname()[1]}")
        assert lookup(http_service.url + "/{}", "k", value="key") == {"k": "k"}


def test_the_proxy_gets_its_credentials_and_they_are_shown_nowhere(
    through: Callable[..., Any],
    http: Callable[..., bytes],
    in_frames: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PROXY_AUTH", "ann:S3cret")
    auth = Secret.env("PROXY_AUTH")
    encoded = base64.b64encode(b"ann:S3cret")
    error, [request] = through(lambda _: http(b"", status="400 Bad"), proxy_auth=auth)
    assert b"proxy-authorization: basic " + encoded.lower() in request.lower()
    assert encoded in request
    assert "S3cret" not in in_frames(error)
    assert encoded.decode() not in in_frames(error)
    config = HttpConfig(url=URL, proxy="http://proxy.example:3128", proxy_auth=auth)
    assert b"S3cret" not in pickle.dumps(config)
    assert repr(config) == (
        f"HttpConfig(url={URL!r}, proxy='http://proxy.example:3128', proxy_auth=Secret.env('PROXY_AUTH'))"
    )


@pytest.mark.parametrize(
    ("url", "to"),
    [(URL, "the service"), ("https://service.invalid/{0}", "https://service.invalid")],
    ids=["http", "https"],
)
def test_a_proxy_that_refuses_the_credentials_fails_the_task(
    through: Callable[..., Any], http: Callable[..., bytes], url: str, to: str
) -> None:
    error, [request] = through(lambda _: http(b"", status="407 Proxy Authentication Required"), url)
    assert type(error) is FatalError
    assert str(error) == (
        f"A proxy on the way to {to} answered 407: it refuses the credentials, or misses some, so no key can be looked "
        "up. Set HttpConfig.proxy_auth to a Secret that holds 'user:password'."
    )
    assert request.startswith(b"CONNECT service.invalid:443 " if url.startswith("https") else b"GET http://")


def test_https_is_tunnelled(
    through: Callable[..., Any], http: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "S3cret")
    headers = {"X-Api-Key": Secret.env("API_KEY")}
    error, [request] = through(lambda _: http(b"", status="502 Bad"), "https://service.invalid/{0}", headers=headers)
    assert type(error) is UnavailableError
    assert not error.sent
    assert request.startswith(b"CONNECT service.invalid:443 HTTP/1.1\r\n")
    assert b"S3cret" not in request


def test_a_proxy_that_is_down_makes_the_source_unavailable(lookup: Callable[..., Any]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(UnavailableError) as caught:
            lookup(URL, "k", proxy=f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert not caught.value.sent


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            None,
            f"The environment variable PROXY_AUTH is not set on this machine ({platform.node()}); a Secret names it.",
        ),
        ("S3cret", "HttpConfig.proxy_auth holds no colon; it must be 'user:password'. Correct the secret."),
    ],
)
def test_credentials_of_a_proxy_that_cannot_be_used_fail_the_task(
    lookup: Callable[..., Any],
    in_frames: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    value: str | None,
    message: str,
) -> None:
    monkeypatch.delenv("PROXY_AUTH", raising=False)
    if value is not None:
        monkeypatch.setenv("PROXY_AUTH", value)
    with pytest.raises(FatalError) as caught:
        lookup(URL, "k", proxy="http://127.0.0.1:1", proxy_auth=Secret.env("PROXY_AUTH"))
    assert str(caught.value) == message
    assert "S3cret" not in in_frames(caught.value)
