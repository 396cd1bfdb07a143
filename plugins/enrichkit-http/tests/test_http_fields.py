"""Parts of a key in headers and in parameters of the query, and secrets in the query."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import pytest
from enrichkit_http import HttpConfig
from enrichkit_http.fields import with_params
from enrichkit_http.headers import HeaderTemplates
from enrichkit_http.template import RejectedKeyError, Url, text_of
from hypothesis import given
from hypothesis import strategies as st

from enrichkit.errors import PermanentError
from enrichkit.plugin import Failure, Secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from enrichkit.local import HttpService

    Lookup = Callable[..., dict[Any, Any]]


def test_parts_of_a_key_go_into_headers_and_parameters(http_service: HttpService, lookup: Lookup) -> None:
    url = http_service.url + "/users/{0}?v=2"
    headers, params = {"X-Tenant": "shop-{1}", "X-Plain": "p"}, {"of": "t:{1}", "a b": "x&y", "e": ""}
    found = lookup(url, ("u1", "7/8 9"), headers=headers, params=params, value="key")
    assert found == {("u1", "7/8 9"): "u1"}
    [request] = http_service.log()
    assert request["path"] == "/users/u1?v=2&of=t%3A7%2F8%209&a%20b=x%26y&e="
    assert (request["headers"]["x-tenant"], request["headers"]["x-plain"]) == ("shop-7/8 9", "p")


def test_a_placeholder_without_a_number_is_the_first_part_in_each_field(
    http_service: HttpService, lookup: Lookup
) -> None:
    assert lookup(http_service.url + "/{}", 7, headers={"X-A": "{}"}, params={"b": "{}"}, value="key") == {7: "7"}
    [request] = http_service.log()
    assert (request["path"], request["headers"]["x-a"]) == ("/7?b=7", "7")


def test_a_key_in_a_header_alone_is_enough(http_service: HttpService, lookup: Lookup) -> None:
    assert lookup(http_service.url + "/k", "a", headers={"X-Id": "{0}"}, value="key") == {"a": "k"}
    assert http_service.log()[0]["headers"]["x-id"] == "a"


def test_a_header_of_a_key_replaces_the_one_that_the_connector_sets(http_service: HttpService, lookup: Lookup) -> None:
    lookup(http_service.url + "/k", "a", headers={"User-Agent": "x/{0}", "accept": "{0}/b"}, returns="int")
    sent = http_service.log()[0]["headers"]
    assert (sent["user-agent"], sent["accept"]) == ("x/a", "a/b")


def test_a_credential_of_the_key_stands_alone(http_service: HttpService, lookup: Lookup) -> None:
    lookup(http_service.url + "/{0}", ("k", "Bearer t"), headers={"Authorization": "{1}"})
    assert http_service.log()[0]["headers"]["authorization"] == "Bearer t"


@pytest.mark.parametrize("key", ["a\r\nX-Evil: 1", "a\n", "\0", "\u00e9", "\u0142", " a", "a ", "\x7f", "\t"])
def test_a_key_that_no_header_can_carry_is_rejected_without_a_request(
    http_service: HttpService, lookup: Lookup, key: str
) -> None:
    failure = lookup(http_service.url + "/k", key, headers={"X-Id": "{0}"})[key]
    assert isinstance(failure, Failure)
    assert (PermanentError, True) == (type(failure.error), failure.rejected)
    assert str(failure.error) == (
        "The key gives the header 'x-id' a line break, a control or non-ASCII character, or a blank at an end, which "
        "would not arrive unchanged; such a key is never sent. Put the key into HttpConfig.params instead, where it is "
        "percent-encoded."
    )
    assert http_service.stats().calls == 0


def test_a_secret_parameter_is_sent_and_shown_nowhere(
    asked: Callable[..., Any],
    http: Callable[..., bytes],
    in_frames: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_KEY", "S3cret &=")
    params = {"key": Secret.env("API_KEY"), "id": "{0}"}

    def answer(request: Any) -> bytes:
        return http(b"", status="400 Bad") if "id=bad" in request.target else http(b"v")

    (found, error), requests = asked(answer, "k", "bad", path="/?v=1", params=params)
    assert found == "v"
    query = parse_qsl(requests[0].target.removeprefix("/?"))
    assert query == [("v", "1"), ("id", "k"), ("key", "S3cret &=")]
    assert type(error) is PermanentError
    assert "S3cret" not in in_frames(error)
    config = HttpConfig(url="https://api.example", params=params)
    assert repr(config) == "HttpConfig(url='https://api.example', params=('key', 'id'))"
    assert b"S3cret" not in pickle.dumps(config)


def test_parameters_of_a_bulk_request_are_constants_and_secrets(
    http_service: HttpService, lookup: Lookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "s")
    params = {"shape": "object", "key": Secret.env("API_KEY")}
    assert lookup(http_service.url + "/", "a", bulk=True, params=params, value="key") == {"a": "a"}
    assert http_service.log()[0]["path"] == "/?shape=object&key=s"


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), min_size=2, max_size=2, unique=True))
def test_keys_that_differ_ask_for_something_else(keys: list[tuple[str, str]]) -> None:
    url = Url(with_params("https://api.example/x", [("a", "u{0}v"), ("b", "{1}")]))
    headers = HeaderTemplates([("X-A", "u{0}v"), ("X-B", "{1}")])
    for fill in (url.fill, headers.fill):
        try:
            first, second = (fill([text_of(part) for part in key]) for key in keys)
        except RejectedKeyError:
            continue
        assert first != second
