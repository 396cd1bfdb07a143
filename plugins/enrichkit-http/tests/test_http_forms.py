"""PUT, and forms: what the service sees, which keys differ, and what is sent a second time."""

from __future__ import annotations

import asyncio
import pickle
import platform
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import pytest
from enrichkit_http import HttpConfig, HttpConnector
from enrichkit_http.fields import Form
from hypothesis import given
from hypothesis import strategies as st

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError, UnavailableError
from enrichkit.local import Fault, HttpService
from enrichkit.plugin import Secret

if TYPE_CHECKING:
    from collections.abc import Callable

    Lookup = Callable[..., dict[Any, Any]]

FORM = "application/x-www-form-urlencoded"


def test_a_put_carries_the_key_as_json(http_service: HttpService, lookup: Lookup) -> None:
    found = lookup(http_service.url + "/{0}", "k", method="PUT", body={"id": "{0}", "v": 2}, value="key")
    assert found == {"k": "k"}
    [request] = http_service.log()
    assert (request["method"], request["path"], request["body"]) == ("PUT", "/k", '{"id":"k","v":2}')
    assert request["headers"]["content-type"] == "application/json"


def test_a_put_needs_no_body(http_service: HttpService, lookup: Lookup) -> None:
    http_service.script(Fault(body=b"v"))
    assert lookup(http_service.url + "/{0}", "k", method="PUT") == {"k": "v"}
    [request] = http_service.log()
    assert (request["method"], request["path"], request["body"]) == ("PUT", "/k", "")
    assert "content-type" not in request["headers"]


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        (Fault(status=500), TransientError, "The service answered 500."),
        (Fault(status=503), UnavailableError, "The service answered 503."),
        (Fault(reset=True), UnavailableError, "The connection to {url} broke before the answer was complete."),
    ],
    ids=["500", "503", "reset"],
)
def test_a_put_that_may_have_been_carried_out_is_not_repeated_unless_it_is_idempotent(
    http_service: HttpService, lookup: Lookup, fault: Fault, kind: type[ConnectorError], text: str
) -> None:
    put = {"method": "PUT", "body": {"id": "{0}"}}
    http_service.script(fault)
    text = text.format(url=http_service.url)
    with pytest.raises(ConnectorError) as caught:
        lookup(http_service.url + "/", "k", **put)
    assert type(caught.value) is PermanentError
    assert str(caught.value) == (
        f"{text} The PUT may have been carried out, so it is not repeated. Say idempotent=True if it may be carried "
        "out twice."
    )
    with pytest.raises(ConnectorError) as caught:
        lookup(http_service.url + "/", "k", idempotent=True, **put)
    assert (kind, text) == (type(caught.value), str(caught.value))


def test_a_put_that_was_refused_before_anything_was_done_may_be_repeated(
    http_service: HttpService, lookup: Lookup
) -> None:
    http_service.script(Fault(status=429))
    with pytest.raises(UnavailableError, match=r"^The service answered 429\.$"):
        lookup(http_service.url + "/{}", "k", method="PUT")


def test_only_a_put_that_may_be_repeated_is_repeatable() -> None:
    url = "https://api.example/{0}"
    assert not HttpConnector(HttpConfig(url=url, method="PUT")).repeatable
    assert HttpConnector(HttpConfig(url=url, method="PUT", idempotent=True)).repeatable


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_form_arrives_as_its_fields(asked: Callable[..., Any], http: Callable[..., bytes], method: str) -> None:
    key = "a b&c=d+e%2B\u00e9\r\n"
    form = {"id": "user:{0}", "n\u00e4me": "x y&z", "empty": ""}
    found, [request] = asked(lambda _: http(b"v"), key, path="/", method=method, form=form)
    assert found == ["v"]
    assert (request.method, request.headers["content-type"]) == (method, FORM)
    sent = parse_qsl(request.body, keep_blank_values=True, strict_parsing=True)
    assert sent == [("id", f"user:{key}"), ("n\u00e4me", "x y&z"), ("empty", "")]


def test_the_parts_of_a_key_go_into_fields_and_into_the_address(
    asked: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    form = {"second": "{1}", "again": "{1}!"}
    found, [request] = asked(lambda _: http(b"v"), (7, "b"), path="/{0}", method="POST", form=form)
    assert (found, request.target, request.body) == (["v"], "/7", "second=b&again=b%21")


def test_a_secret_of_a_form_is_sent_and_shown_nowhere(
    asked: Callable[..., Any],
    http: Callable[..., bytes],
    in_frames: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PIN", "S3cret &=")
    post = {"method": "POST", "form": {"id": "{0}", "pin": Secret.env("PIN")}}

    def answer(request: Any) -> bytes:
        return http(b"", status="400 Bad") if "id=bad" in request.body else http(b"v")

    (found, error), requests = asked(answer, "k", "bad", path="/", **post)
    assert found == "v"
    assert [request.body for request in requests] == ["id=k&pin=S3cret+%26%3D", "id=bad&pin=S3cret+%26%3D"]
    assert type(error) is PermanentError
    assert "S3cret" not in in_frames(error)
    config = HttpConfig(url="https://api.example", **post)
    assert repr(config) == "HttpConfig(url='https://api.example', method='POST', form=('id', 'pin'))"
    assert b"S3cret" not in pickle.dumps(config)


def test_a_form_of_a_secret_alone_is_that_secret(
    asked: Callable[..., Any], http: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIN", "1")
    _, [request] = asked(lambda _: http(b"v"), "k", path="/{0}", method="POST", form={"pin": Secret.env("PIN")})
    assert request.body == "pin=1"


def test_a_secret_of_a_form_that_is_absent_fails_the_task(
    connected: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIN", raising=False)

    async def scenario() -> None:
        async with connected("http://127.0.0.1/{0}", method="POST", form={"pin": Secret.env("PIN")}):
            pass

    with pytest.raises(FatalError) as caught:
        asyncio.run(scenario())
    assert (
        str(caught.value)
        == f"The environment variable PIN is not set on this machine ({platform.node()}); a Secret names it."
    )


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), min_size=2, max_size=2, unique=True))
def test_keys_that_differ_send_other_forms(keys: list[tuple[str, str]]) -> None:
    form = Form([("a", "x{0}y"), ("b", "{1}"), ("c", "{0}")])
    try:
        first, second = (form.fill(key) for key in keys)
    except ValueError:  # half of a surrogate pair
        return
    assert first != second
    assert parse_qsl(first.decode(), keep_blank_values=True) == [
        ("a", f"x{keys[0][0]}y"),
        ("b", keys[0][1]),
        ("c", keys[0][0]),
    ]
