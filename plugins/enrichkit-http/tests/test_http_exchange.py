"""The door of other plugins: a request with the protections of this package."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import Exchange, HttpConfig, LimitedError

from enrichkit import Secret
from enrichkit.errors import ConnectorError
from enrichkit.plugin import Call

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def posted(serving: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`posted(answer)`: what an exchange with a bearer secret returns or raises, and the request."""
    monkeypatch.setenv("EXCHANGE_KEY", "5ecret-token")

    def run(answer: bytes, body: bytes | None = b"[1]", **fields: Any) -> tuple[Any, str]:
        async def once() -> tuple[Any, str]:
            async with serving(answer) as server:
                bearer = Secret.env("EXCHANGE_KEY")
                config = HttpConfig(
                    url=server.url, method="POST", body='"{0}"', idempotent=True, bearer=bearer, **fields
                )
                exchange = Exchange(config)
                await exchange.open(2)
                try:
                    outcome: Any = await exchange.body(f"{server.url}/v1/chat", body, Call(timeout=5.0))
                except ConnectorError as error:
                    outcome = error
                finally:
                    await exchange.close()
                return outcome, server.requests[0].decode()

        return asyncio.run(once())

    return run


def test_a_body_is_sent_with_the_bearer_secret_and_its_response_returned(posted: Any, http: Any) -> None:
    outcome, request = posted(http(b'{"a": 1}'))
    assert b'{"a": 1}' == outcome
    assert request.startswith("POST /v1/chat HTTP/1.1")
    assert "\r\nAuthorization: Bearer 5ecret-token\r\n" in request
    assert request.endswith("\r\n\r\n[1]")


def test_a_request_without_a_body_is_a_get_and_signed_as_one(
    posted: Any, http: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def sign(request): return {'x-signed': f'{request.method} {request.url}'}"
    (tmp_path / "signs_a_get.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    outcome, request = posted(http(b"{}"), body=None, sign="signs_a_get:sign")
    assert b"{}" == outcome
    signed = re.search(r"^GET (/v1/chat) HTTP/1\.1\r\n.*\r\nx-signed: GET http://[\d.:]+\1\r\n", request, re.S | re.I)
    assert signed, request


def test_a_429_is_a_limited_error_that_waits_as_long_as_the_service_says_in_milliseconds(
    posted: Any, http: Any
) -> None:
    error, _ = posted(http(b"{}", "retry-after: 1", "retry-after-ms: 20", status="429 Too Many Requests"))
    assert (LimitedError, 0.02) == (type(error), error.retry_after)


def test_an_error_that_repeats_the_bearer_secret_does_not_show_it(posted: Any, http: Any) -> None:
    error, _ = posted(http(b"the key 5ecret-token is bad", status="400 Bad Request"))
    assert ("the key *** is bad", False) == (error.said, "5ecret" in str(error))


def test_a_response_over_the_limit_of_size_is_refused(posted: Any, http: Any) -> None:
    error, _ = posted(http(b"x" * 100), max_bytes=50)
    assert "50" in str(error)
