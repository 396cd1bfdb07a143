"""Redirects, followed on demand: where they may lead, how many, and what is sent along."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http.addresses import AddressError, named_address

from enrichkit.errors import PermanentError, TransientError
from enrichkit.plugin import Call, Secret

if TYPE_CHECKING:
    from collections.abc import Callable

ELSEWHERE = "it leads to another origin (scheme, host or port), which could learn keys and credentials"
NO_ADDRESS = "it is no address: 1 to 8,192 visible ASCII characters without a backslash are allowed"


def to(location: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 4\r\n\r\ngone".encode("latin-1")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/b?x=1#top", "/b?x=1"),
        ("b", "/a/b"),
        ("../c/d", "/c/d"),
        ("?page=2", "/a/k?page=2"),
        ("//{host}/b", "/b"),
        ("http://{host}/%2e%2e/b", "/b"),
    ],
)
def test_a_redirect_inside_the_origin_is_followed(
    asked: Callable[..., Any], http: Callable[..., bytes], status: int, location: str, target: str
) -> None:
    def answer(request: Any) -> bytes:
        return to(location.format(host=request.headers["host"]), status) if request.target == "/a/k" else http(b"v")

    [found], requests = asked(answer, "k", path="/a/{}", redirects=1, headers={"X-Api-Key": "s", "X-Id": "{0}"})
    assert found == "v"
    assert [(r.method, r.target, r.headers["x-api-key"], r.headers["x-id"]) for r in requests] == [
        ("GET", "/a/k", "s", "k"),
        ("GET", target, "s", "k"),
    ]


def test_a_redirect_of_a_redirect_is_followed_as_often_as_allowed(
    asked: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    def answer(request: Any) -> bytes:
        number = int(request.target[1:])
        return http(b"v") if number == 3 else to(f"/{number + 1}")

    (found, error), requests = asked(answer, "0", "-1", redirects=3)
    assert found == "v"
    assert type(error) is PermanentError
    assert str(error) == (
        "The service answered with more than 3 redirects, as many as HttpConfig.redirects allows. Write the final "
        "address into HttpConfig.url, or raise redirects, at most to 10."
    )
    assert [request.target for request in requests] == ["/0", "/1", "/2", "/3", "/-1", "/0", "/1", "/2"]


def test_a_loop_of_redirects_ends(asked: Callable[..., Any]) -> None:
    (own, two), requests = asked(
        lambda request: to("/self" if request.target == "/self" else "/k" if request.target == "/l" else "/l"),
        "self",
        "k",
        redirects=10,
    )
    for error in (own, two):
        assert type(error) is PermanentError
        assert str(error) == (
            "The service answered with a redirect to an address that this lookup has asked already, so it would never "
            "end. Write the final address into HttpConfig.url."
        )
    assert [request.target for request in requests] == ["/self", "/k", "/l"]


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("http://127.0.0.1:{closed}/k", ELSEWHERE),
        ("//evil.test/k", ELSEWHERE),
        ("https://{host}/k", ELSEWHERE),
        ("http://localhost:{port}/k", ELSEWHERE),
        ("ftp://{host}/k", ELSEWHERE),
        ("javascript:alert(1)", ELSEWHERE),
        ("http://user:S3cret@{host}/k", "it holds a user name or password"),
        ("http://user@{host}/k", "it holds a user name or password"),
        ("/\\evil.test/k", NO_ADDRESS),
        ("/a b", NO_ADDRESS),
        ("/\xe9", NO_ADDRESS),
        ("", NO_ADDRESS),
        ("/" + "a" * 8192, NO_ADDRESS),
        ("http://[::1/k", "it is no address that can be read"),
    ],
)
def test_a_redirect_to_elsewhere_is_an_error_of_the_key(asked: Callable[..., Any], location: str, reason: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))

        def answer(request: Any) -> bytes:
            host = request.headers["host"]
            return to(location.format(host=host, port=host.partition(":")[2], closed=closed.getsockname()[1]))

        [error], requests = asked(answer, "k", redirects=5, headers={"X-Api-Key": "S3cret"})
    assert type(error) is PermanentError
    assert str(error) == (
        f"The service answered 302, a redirect, which is not followed: {reason}. Write the final address into "
        "HttpConfig.url."
    )
    assert len(requests) == 1


def test_a_redirect_without_an_address_is_an_error(asked: Callable[..., Any], http: Callable[..., bytes]) -> None:
    [error], _ = asked(lambda _: http(b"", status="302 Moved"), "k", redirects=1)
    assert str(error) == (
        f"The service answered 302, a redirect, which is not followed: {NO_ADDRESS}. Write the final address into "
        "HttpConfig.url."
    )


def test_other_statuses_of_3xx_are_not_followed(asked: Callable[..., Any]) -> None:
    (first, second), requests = asked(
        lambda request: to("/b", 300 if "a" in request.target else 304), "a", "k", redirects=1
    )
    assert (type(first), type(second)) == (PermanentError, PermanentError)
    assert len(requests) == 2


def test_a_secret_parameter_that_the_redirect_repeats_is_sent_once_and_in_no_frame(
    asked: Callable[..., Any],
    http: Callable[..., bytes],
    in_frames: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_KEY", "S3cret")

    def answer(request: Any) -> bytes:
        return http(b"", status="400 Bad") if "/b" in request.target else to("/b?key=S3cret&v=1")

    [error], requests = asked(answer, "k", params={"key": Secret.env("API_KEY")}, redirects=1)
    assert [request.target for request in requests] == ["/k?key=S3cret", "/b?v=1&key=S3cret"]
    assert "S3cret" not in in_frames(error)


def test_with_raw_the_answer_at_the_end_is_the_value(asked: Callable[..., Any], http: Callable[..., bytes]) -> None:
    def answer(request: Any) -> bytes:
        return http(b"v", status="404 None") if request.target == "/b" else to("/b")

    [found], _ = asked(answer, "k", redirects=1, raw=True)
    assert json.loads(found) == {"status": 404, "body": "v"}


def test_all_redirects_share_the_time_of_the_call(serving: Callable[..., Any], connected: Callable[..., Any]) -> None:
    async def scenario() -> float:
        async with (
            serving((to("/b"), "keep"), (b"", "keep")) as server,
            connected(server.url + "/{}", redirects=3) as connector,
        ):
            began = time.monotonic()
            with pytest.raises(TransientError, match="No complete answer from"):
                await connector.fetch_many(["k"], Call(timeout=0.3))
            assert server.heads == [b"GET /k HTTP/1.1", b"GET /b HTTP/1.1"]
            return time.monotonic() - began

    assert asyncio.run(scenario()) < 2.0


def test_connections_are_used_again_after_a_redirect(
    serving: Callable[..., Any], http: Callable[..., bytes], connected: Callable[..., Any]
) -> None:
    async def scenario() -> None:
        handler = lambda request: http(b"v") if request.target == "/b" else to("/b")  # noqa: E731  # short
        async with serving(handler=handler) as server, connected(server.url + "/{}", redirects=1) as connector:
            for key in ("a", "c", "d"):
                assert await connector.fetch_many([key], Call(timeout=5.0)) == {key: "v"}
            assert server.connections <= 4

    asyncio.run(scenario())


def test_the_secret_parameters_of_an_address_are_left_out() -> None:
    base = "http://api.example/a"
    assert named_address(base, "/b?key=1&v=2&k%65y=3", ["key"]) == "http://api.example/b?v=2"
    assert named_address(base, "/b?key=1", ["key"]) == "http://api.example/b"
    assert isinstance(named_address(base, None), AddressError)
