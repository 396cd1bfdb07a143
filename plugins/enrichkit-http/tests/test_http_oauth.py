"""Tokens: how they are asked for, when again, what their failures mean, and that nothing shows them."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import platform
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import pytest
from enrichkit_http import HttpConfig, OAuth, tokens

from enrichkit.errors import ConfigError, ConnectorError, FatalError, TransientError, UnavailableError
from enrichkit.plugin import Call, Secret
from enrichkit.testing import open_connector

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "S3cret:&="


class Service:
    """A service with a token endpoint at /token, whose tokens are T1, T2, ...; `good` holds those that it takes."""

    def __init__(self, http: Callable[..., bytes], **answer: Any) -> None:
        self.http = http
        self.answer = answer
        self.granted = 0
        self.good: set[str] = set()
        self.posted: list[Any] = []
        self.asked: list[tuple[str, str]] = []

    def __call__(self, request: Any) -> bytes:
        if request.target == "/token":
            self.posted.append(request)
            self.granted += 1
            token = f"T{self.granted}"
            self.good.add(token)
            return self.http(json.dumps({"access_token": token, "token_type": "Bearer"} | self.answer).encode())
        token = request.headers["authorization"].removeprefix("Bearer ")
        self.asked.append((request.target, token))
        return self.http(b"v") if token in self.good else self.http(b"", status="401 Expired")


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET", SECRET)


@pytest.fixture
def playing(serving: Callable[..., Any]) -> Callable[..., Any]:
    """`playing(handler, scenario, **fields)`: runs `await scenario(ask)`, where `await ask(key)` is a lookup."""

    def run(handler: Callable[[Any], bytes], scenario: Callable[..., Any], oauth: Any = None, **fields: Any) -> Any:
        async def play() -> Any:
            async with serving(handler=handler) as server:
                client = {
                    "token_url": server.url + "/token",
                    "client_id": "jo:bs",
                    "client_secret": Secret.env("CLIENT_SECRET"),
                }
                config = HttpConfig(url=server.url + "/{0}", oauth=OAuth(**client | (oauth or {})), **fields)
                async with open_connector(config, capacity=50) as connector:

                    async def ask(key: str, timeout: float = 5.0) -> Any:
                        return dict(await connector.fetch_many((key,), Call(timeout=timeout))).get(key, "missing")

                    return await scenario(ask)

        return asyncio.run(play())

    return run


async def once(ask: Callable[..., Any]) -> Any:
    return await ask("k")


def test_one_token_is_fetched_for_all_calls(playing: Callable[..., Any], http: Callable[..., bytes]) -> None:
    service = Service(http, expires_in=3600)

    async def scenario(ask: Callable[..., Any]) -> list[Any]:
        return [*await asyncio.gather(*(ask(f"k{n}") for n in range(40))), await ask("last")]

    found = playing(service, scenario, headers={"X-Api-Key": "other"}, oauth={"scope": "read write"})
    assert found == ["v"] * 41
    assert {token for _, token in service.asked} == {"T1"}
    [post] = service.posted
    assert (post.method, post.headers["content-type"]) == ("POST", "application/x-www-form-urlencoded")
    assert parse_qsl(post.body) == [("grant_type", "client_credentials"), ("scope", "read write")]
    assert base64.b64decode(post.headers["authorization"].removeprefix("Basic ")) == b"jo%3Abs:S3cret%3A%26%3D"
    assert "x-api-key" not in post.headers


def test_the_credentials_may_go_into_the_form(playing: Callable[..., Any], http: Callable[..., bytes]) -> None:
    service = Service(http)
    assert playing(service, once, oauth={"in_body": True}) == "v"
    [post] = service.posted
    assert "authorization" not in post.headers
    assert parse_qsl(post.body) == [
        ("grant_type", "client_credentials"),
        ("client_id", "jo:bs"),
        ("client_secret", SECRET),
    ]


def test_a_token_is_renewed_before_it_ends(
    playing: Callable[..., Any], http: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(tokens, "monotonic", lambda: now)
    service = Service(http, expires_in="100")

    async def scenario(ask: Callable[..., Any]) -> None:
        nonlocal now
        for moment in (1000.0, 1079.0, 1081.0):
            now = moment
            assert await ask("k") == "v"
        while service.granted < 2 or len(asyncio.all_tasks()) > 1:  # the fetch goes on beside the call
            await asyncio.sleep(0.005)
        assert await ask("k") == "v"
        now = 2000.0  # the second has ended long ago
        assert await ask("k") == "v"

    playing(service, scenario)
    assert [token for _, token in service.asked] == ["T1", "T1", "T1", "T2", "T3"]


def test_a_401_fetches_one_token_for_all_calls_and_repeats_each_call_once(
    playing: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    service = Service(http, expires_in=3600)

    async def scenario(ask: Callable[..., Any]) -> list[Any]:
        assert await ask("first") == "v"
        service.good.clear()
        return list(await asyncio.gather(*(ask(f"k{n}") for n in range(20))))

    assert playing(service, scenario, method="POST", body={"id": "{0}"}) == ["v"] * 20
    assert service.granted == 2
    assert len([token for _, token in service.asked if token == "T2"]) == 20


@pytest.mark.parametrize("fields", [{}, {"raw": True}], ids=["values", "raw"])
def test_a_401_to_a_new_token_fails_the_task(
    playing: Callable[..., Any], http: Callable[..., bytes], fields: dict[str, bool]
) -> None:
    service = Service(http)

    def refusing(request: Any) -> bytes:
        answer = service(request)
        service.good.clear()
        return answer

    with pytest.raises(FatalError) as caught:
        playing(refusing, once, **fields)
    assert str(caught.value) == (
        "The service answered 401 to a token that is new, so no key can be looked up. Check OAuth.scope, and whether "
        "OAuth.token_url is that of the service."
    )
    assert [token for _, token in service.asked] == ["T1", "T2"]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        ("400 Bad", b'{"error": "invalid_scope", "error_description": "S3cret"}', "400 with the error 'invalid_scope'"),
        ("401 No", b'{"error": "invalid_client"}', "401 with the error 'invalid_client'"),
        ("401 No", b'{"error": "s3cret"}', "401"),
        ("403 No", b"S3cret", "403"),
        ("404 None", b"[]", "404"),
        ("302 Moved", b"", "302"),
        ("204 None", b"", "204"),
    ],
)
def test_an_endpoint_that_refuses_fails_the_task(
    playing: Callable[..., Any], http: Callable[..., bytes], status: str, body: bytes, said: str
) -> None:
    with pytest.raises(FatalError) as caught:
        playing(lambda _: http(body, status=status), once)
    assert str(caught.value) == (
        f"The token endpoint answered {said}: it gives no token, so no key can be looked up. Check token_url, "
        "client_id, client_secret and scope of HttpConfig.oauth."
    )


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"\xff",
        b'{"access_token": 7}',
        b'{"access_token": ""}',
        b'{"access_token": "a b"}',
        b'{"access_token": "a\\r\\nX: 1"}',
        b'{"access_token": "\xc3\xa9"}',
        b'{"access_token": "t", "token_type": "mac"}',
        b'{"access_token": "t", "token_type": 7}',
        b'{"access_token": "t", "expires_in": 1e999',
        b'{"token": "t"}',
    ],
)
def test_an_answer_without_a_token_fails_the_task(
    playing: Callable[..., Any], http: Callable[..., bytes], answer: bytes
) -> None:
    with pytest.raises(FatalError) as caught:
        playing(lambda _: http(answer), once)
    origin = str(caught.value).split()[3]
    assert str(caught.value) == (
        f"The token endpoint {origin} answered 200 without a bearer token that can be sent; its answer must be JSON "
        "with access_token. Check OAuth.token_url."
    )


def test_an_endless_answer_of_the_endpoint_is_refused(playing: Callable[..., Any], http: Callable[..., bytes]) -> None:
    with pytest.raises(FatalError) as caught:
        playing(lambda _: http(b" " * 2**16 + b"{}"), once)
    assert str(caught.value).startswith("The token endpoint gave no token: The answer is too large")


@pytest.mark.parametrize("life", [0, -1, "soon", None, True, "nan", "inf", [], 10**30])
def test_a_strange_life_of_a_token_is_no_error(
    playing: Callable[..., Any], http: Callable[..., bytes], life: Any
) -> None:
    service = Service(http, expires_in=life)
    assert playing(service, once) == "v"


@pytest.mark.parametrize(
    ("status", "kind", "wait"), [(503, UnavailableError, 7.0), (429, UnavailableError, 7.0), (500, TransientError, 7.0)]
)
def test_an_endpoint_that_is_busy_is_asked_again(
    playing: Callable[..., Any], http: Callable[..., bytes], status: int, kind: type[TransientError], wait: float
) -> None:
    with pytest.raises(ConnectorError) as caught:
        playing(lambda _: http(b"", "Retry-After: 7", status=f"{status} Busy"), once)
    assert type(caught.value) is kind
    assert str(caught.value) == f"The token endpoint gave no token: The service answered {status}."
    assert caught.value.retry_after == wait


def test_an_endpoint_that_is_down_is_unavailable_and_a_good_token_goes_on(
    playing: Callable[..., Any], http: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(tokens, "monotonic", lambda: now)
    service = Service(http, expires_in=100)
    down = False

    def handler(request: Any) -> bytes:
        return http(b"", status="503 Busy") if down and request.target == "/token" else service(request)

    async def scenario(ask: Callable[..., Any]) -> None:
        nonlocal now, down
        assert await ask("k") == "v"
        down = True
        for moment in (1085.0, 1086.0, 1099.0):
            now = moment
            assert await ask("k") == "v"
        now = 1101.0
        with pytest.raises(UnavailableError) as caught:
            await ask("k")
        assert not caught.value.sent
        down = False
        assert await ask("k") == "v"

    playing(handler, scenario)
    assert [token for _, token in service.asked] == ["T1", "T1", "T1", "T1", "T2"]


def test_an_endpoint_that_cannot_be_reached_is_unavailable(
    playing: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(UnavailableError) as caught:
            playing(Service(http), once, oauth={"token_url": origin + "/token"})
    assert str(caught.value) == f"The token endpoint gave no token: No connection to {origin}: refused."
    assert not caught.value.sent


def test_a_call_that_is_cancelled_leaves_the_fetch_to_the_others(
    serving: Callable[..., Any], playing: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    service = Service(http)

    async def scenario(ask: Callable[..., Any]) -> Any:
        first = asyncio.create_task(ask("a"))
        second = asyncio.create_task(ask("b"))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == "v"
        return (await asyncio.gather(first, return_exceptions=True))[0]

    assert isinstance(playing(service, scenario), asyncio.CancelledError)
    assert (service.granted, [target for target, _ in service.asked]) == (1, ["/b"])


def test_a_call_waits_for_a_token_no_longer_than_its_time(serving: Callable[..., Any]) -> None:
    async def scenario() -> ConnectorError:
        async with serving((b"", "keep")) as server:
            client = OAuth(token_url=server.url, client_id="a", client_secret=Secret.env("CLIENT_SECRET"))
            async with open_connector(HttpConfig(url=server.url + "/{0}", oauth=client), capacity=2) as connector:
                with pytest.raises(TransientError) as caught:
                    await connector.fetch_many(("k",), Call(timeout=0.1))
                return caught.value

    error = asyncio.run(scenario())
    assert str(error).startswith("No token from http://127.0.0.1:")
    assert str(error).endswith(" within 0.1 s.")


def test_an_absent_secret_fails_the_task(
    playing: Callable[..., Any], http: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLIENT_SECRET")
    with pytest.raises(FatalError) as caught:
        playing(Service(http), once)
    assert str(caught.value) == (
        "The token endpoint gave no token: The environment variable CLIENT_SECRET is not set on this machine "
        f"({platform.node()}); a Secret names it."
    )


def test_no_error_shows_the_secret_or_a_token(
    playing: Callable[..., Any], http: Callable[..., bytes], in_frames: Callable[..., str]
) -> None:
    def refused(request: Any) -> bytes:
        if request.target == "/token":
            return http(b'{"access_token": "T0ken", "scope": "S3cret"}')
        return http(b"T0ken", status="400 Bad")

    for handler in (refused, lambda _: http(b'{"error": "invalid_client"}', status="401 No")):
        with pytest.raises(ConnectorError) as caught:
            playing(handler, once)
        shown = in_frames(caught.value)
        assert ("S3cret" in shown, "T0ken" in shown) == (False, False)
    config = HttpConfig(
        url="https://api.example/{0}",
        oauth={"token_url": "https://login.example", "client_id": "a", "client_secret": Secret.env("CLIENT_SECRET")},
    )
    assert b"S3cret" not in pickle.dumps(config)
    assert "Secret.env('CLIENT_SECRET')" in repr(config)
    assert {config: 1} == {pickle.loads(pickle.dumps(config)): 1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"token_url": "https://login.example/token?a=1"},
            (
                "OAuth.token_url holds a brace or a query; a token is for all keys, and its endpoint is asked by a "
                "form. Write 'https://login.example/token'."
            ),
        ),
        (
            {"token_url": "https://u:S3cret@login.example"},
            (
                "OAuth.token_url holds a user name or password before the host, which ends up in plans and logs. Write "
                "headers={'Authorization': Secret.env('NAME')}, with 'Basic ' and the base64 of 'user:password' in "
                "NAME."
            ),
        ),
        *(
            (
                {name: value},
                (
                    f"OAuth.{name} is {value!r}; it must be text that is not empty, without control characters. Write "
                    "it as the service has given it to you."
                ),
            )
            for name, value in (
                ("client_id", ""),
                ("client_id", None),
                ("client_id", "a\n"),
                ("scope", ""),
                ("scope", 7),
            )
        ),
        (
            {"client_secret": "S3cret"},
            (
                "OAuth.client_secret is a str; it must be a Secret, which only workers resolve. Write "
                "Secret.env('CLIENT_SECRET')."
            ),
        ),
        ({"in_body": 1}, "OAuth.in_body is 1; it must be True or False."),
    ],
)
def test_a_wrong_field_is_refused_with_a_remedy(fields: dict[str, Any], message: str) -> None:
    right = {"token_url": "https://login.example", "client_id": "a", "client_secret": Secret.env("CLIENT_SECRET")}
    with pytest.raises(ConfigError) as caught:
        OAuth(**right | fields)
    assert message == str(caught.value)
