"""What a service says that it still allows, in headers of several forms, and that calls slow down to it."""

# ruff: noqa: E501  # tables of messages and of headers are easier to read with one line each

from __future__ import annotations

import asyncio
import pickle
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from enrichkit_http import HttpConfig
from enrichkit_http.rate_headers import Allowed, allowed

from enrichkit.driver.planner import make_plan
from enrichkit.errors import ConfigError, FatalError, UnavailableError
from enrichkit.local import Fault
from enrichkit.plugin import Call
from enrichkit.testing import open_connector
from enrichkit.worker.entry import arrow_batches

if TYPE_CHECKING:
    from collections.abc import Callable

    from enrichkit import local

DATE = "Wed, 21 Oct 2026 07:28:00 GMT"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"ratelimit": '"default";r=50;t=30', "ratelimit-policy": '"default";q=100;w=60'}, (50, 30, 100)),
        ({"ratelimit": '"default";r=50', "ratelimit-policy": '"default";q=100;w=60'}, (50, 60, 100)),
        ({"ratelimit": '"s";r=9;t=1, "d";r=10;t=9000', "ratelimit-policy": '"s";q=10;w=1,"d";q=99;w=86400'}, (10, 9000, 99)),
        ({"ratelimit": '"b";r=500;t=30', "ratelimit-policy": '"b";q=1000;w=60;qu="content-bytes"'}, None),
        ({"ratelimit": "limit=100, remaining=50, reset=5"}, (50, 5, 100)),
        ({"ratelimit-limit": "100, 100;w=60", "ratelimit-remaining": "7", "ratelimit-reset": "30"}, (7, 30, 100)),
        ({"x-ratelimit-limit": "5000", "x-ratelimit-remaining": "4999", "x-ratelimit-reset": "1792567710", "date": DATE}, (4999, 30, 5000)),
        ({"x-ratelimit-remaining": "3", "x-ratelimit-reset": "1792567710000", "date": DATE}, (3, 30, None)),
        ({"x-rate-limit-limit": "15", "x-rate-limit-remaining": "1", "x-rate-limit-reset": "12"}, (1, 12, 15)),
        ({"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "59", "x-ratelimit-reset-requests": "1m0s"}, (59, 60, 60)),
        ({"x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "1s", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, (5, 1, None)),
        ({"x-ratelimit-remaining-tokens": "149984", "x-ratelimit-reset-tokens": "6ms"}, None),
        ({"x-ratelimit-remaining": "1", "x-ratelimit-reset": "1e9"}, None),
        ({"x-ratelimit-remaining": "-1", "x-ratelimit-reset": "1"}, None),
        ({"x-ratelimit-remaining": "9" * 40, "x-ratelimit-reset": "1"}, None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1.2.3s"}, None),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "5", "x-ratelimit-limit": "many"}, (0, 5, None)),
        ({"x-ratelimit-remaining": "2", "x-ratelimit-reset": "100", "date": "yesterday"}, (2, 100, None)),
        ({"x-ratelimit-remaining": "2"}, None),
        ({"ratelimit": "\x00;;;=,,,", "ratelimit-policy": '";q=' + "x" * 10_000}, None),
    ],
)  # fmt: skip
def test_headers_say_what_remains(headers: dict[str, str], expected: tuple[float, ...] | None) -> None:
    assert allowed(headers.get) == (None if expected is None else Allowed(*expected))


def test_tokens_are_a_limit_of_their_own() -> None:
    headers = {"x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "1s"}
    headers |= {"x-ratelimit-remaining-tokens": "900", "x-ratelimit-reset-tokens": "6m0s"}
    headers |= {"x-ratelimit-limit-tokens": "40000"}
    assert allowed(headers.get, "tokens") == Allowed(900, 360, 40_000, "tokens")
    assert allowed(headers.get) == Allowed(5, 1, None)


@pytest.mark.service
@pytest.mark.parametrize(
    ("lines", "wait"),
    [
        (["x-ratelimit-remaining: 0"], None),
        (["ratelimit-remaining: 0"], None),
        (["x-ratelimit-remaining: 0", "x-ratelimit-reset: soon"], None),
        (["x-ratelimit-remaining-requests: 0"], None),
        (["RateLimit: limit=100, remaining=0"], None),
        (['RateLimit: "a";r=0'], None),
        (['RateLimit: "a";r=0;t=7'], 7.0),
        (['RateLimit: "s";r=0;t=1, "d";r=0;t=9'], 9.0),
        (["x-ratelimit-remaining: 0", "ratelimit-remaining: 0", "ratelimit-reset: 5"], 5.0),
        (["x-ratelimit-remaining: 0", "Retry-After: 3"], 3.0),
    ],
)
def test_a_403_with_nothing_left_is_a_rate_limit(
    answered: Callable[..., Any], http: Callable[..., bytes], lines: list[str], wait: float | None
) -> None:
    with pytest.raises(UnavailableError) as caught:
        answered(http(b"", *lines, status="403 Forbidden"))
    assert caught.value.retry_after == wait
    assert caught.value.busy


@pytest.mark.service
@pytest.mark.parametrize(
    "line", ["x-ratelimit-remaining: 1", "x-ratelimit-remaining: none", "x-ratelimit-remaining-tokens: 0", "X-A: 0"]
)
def test_any_other_403_is_none(answered: Callable[..., Any], http: Callable[..., bytes], line: str) -> None:
    with pytest.raises(FatalError, match="refuses the credentials"):
        answered(http(b"", line, status="403 Forbidden"))


def test_the_flag_is_a_flag() -> None:
    with pytest.raises(ConfigError) as caught:
        HttpConfig(url="https://api.example/{}", follow_rate_headers="yes")  # type: ignore[arg-type]
    assert str(caught.value) == "HttpConfig.follow_rate_headers is 'yes'; it must be True or False."


class Heard:
    """A meter that keeps what it hears."""

    def __init__(self) -> None:
        self.allowed: list[tuple[float, float, float | None]] = []

    def spent(self, units: object) -> None: ...

    def allows(self, remaining: float, seconds: float, limit: float | None, unit: str) -> None:
        self.allowed.append((remaining, seconds, limit))


@pytest.mark.service
@pytest.mark.parametrize("follows", [False, True])
def test_the_engine_hears_of_them_only_when_asked(http_service: local.HttpService, follows: bool) -> None:
    http_service.script(Fault(headers={"RateLimit": '"a";r=3;t=9', "RateLimit-Policy": '"a";q=10;w=60'}))
    config = HttpConfig(url=f"{http_service.url}/{{}}", follow_rate_headers=follows)
    heard = Heard()

    async def scenario() -> None:
        async with open_connector(config) as connector:
            assert connector.reports is follows
            await connector.fetch_many(("u1",), Call(timeout=5.0, meter=heard))

    asyncio.run(scenario())
    assert heard.allowed == ([(3.0, 9.0, 10.0)] if follows else [])


@pytest.mark.service
def test_calls_slow_down_to_what_the_service_allows(http_service: local.HttpService) -> None:
    """A service that allows 3 more requests in the next 0.6 s, again and again, gets one each 0.2 s."""
    http_service.script(
        Fault(headers={"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "3", "X-RateLimit-Reset": "0.6s"}), log=True
    )
    config = HttpConfig(url=f"{http_service.url}/{{}}", value="score", follow_rate_headers=True)
    plan, _ = make_plan(config, 1, pa.int32(), {"capacity": 5})
    list(arrow_batches(pickle.dumps(plan), iter([pa.array([f"u{n}" for n in range(9)])])))
    times = [entry["at"] for entry in http_service.log()]
    after = times[5:]  # the first five left before the first answer came
    assert all(second - first > 0.15 for first, second in pairwise(after))


@pytest.mark.service
def test_without_a_request_left_the_engine_waits_for_the_reset(http_service: local.HttpService) -> None:
    http_service.script(Fault(times=1, headers={"RateLimit-Remaining": "0", "RateLimit-Reset": "1"}), log=True)
    config = HttpConfig(url=f"{http_service.url}/{{}}", value="score", follow_rate_headers=True)
    plan, _ = make_plan(config, 1, pa.int32(), {"capacity": 1})
    list(arrow_batches(pickle.dumps(plan), iter([pa.array(["u1", "u2"])])))
    first, second = (entry["at"] for entry in http_service.log())
    assert second - first > 0.9
