"""Responses as data, with `raw=True`: every answer of a service that is there is a value."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig, HttpConnector

from enrichkit.errors import PermanentError, UnavailableError
from enrichkit.local import Fault, HttpService

if TYPE_CHECKING:
    from collections.abc import Callable

    Lookup = Callable[..., dict[Any, Any]]

WITH_HEADERS = "status int, body string, headers map<string,string>"


@pytest.mark.parametrize("status", [200, 201, 202, 206, 302, 400, 401, 403, 404, 408, 410, 418, 500, 501, 599, 999])
def test_a_status_is_a_value(http_service: HttpService, lookup: Lookup, status: int) -> None:
    http_service.script(Fault(status=status, body='{"a": "\u00e9"}'.encode()))
    found = lookup(http_service.url + "/{0}", "k", raw=True)
    assert json.loads(found["k"]) == {"status": status, "body": '{"a": "\u00e9"}'}
    assert "accept" not in http_service.log()[0]["headers"] or http_service.log()[0]["headers"]["accept"] == "*/*"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_service_that_is_away_is_no_value(http_service: HttpService, lookup: Lookup, status: int) -> None:
    http_service.script(Fault(status=status))
    with pytest.raises(UnavailableError, match=rf"^The service answered {status}\.$"):
        lookup(http_service.url + "/{0}", "k", raw=True)


def test_a_broken_connection_is_no_value(http_service: HttpService, lookup: Lookup) -> None:
    http_service.script(Fault(reset=True))
    with pytest.raises(UnavailableError):
        lookup(http_service.url + "/{0}", "k", raw=True)


def test_the_status_of_a_post_is_a_value_too(http_service: HttpService, lookup: Lookup) -> None:
    http_service.script(Fault(status=500, body=b"no"))
    found = lookup(http_service.url + "/", "k", raw=True, method="POST", body=["{0}"])
    assert json.loads(found["k"]) == {"status": 500, "body": "no"}


def test_headers_are_by_name_in_lower_case_and_cookies_are_left_out(
    asked: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    data = http(b"v", "X-A: 1", "x-a: 2", "Set-Cookie: s=S3cret", 'ETag: "7"', status="404 None")
    [found], _ = asked(lambda _: data, "k", raw=True, returns=WITH_HEADERS)
    assert json.loads(found) == {
        "status": 404,
        "body": "v",
        "headers": {"x-a": "1, 2", "etag": '"7"', "content-length": "1"},
    }


def test_a_header_that_is_not_ascii_is_an_error_where_headers_are_wanted(
    asked: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    data = http(b"v", "X-A: 1").replace(b"X-A: 1", b"X-A: \xe9")
    [error], _ = asked(lambda _: data, "k", raw=True, returns=WITH_HEADERS)
    assert type(error) is PermanentError
    assert str(error) == (
        "The answer has a header that is not ASCII, so its value depends on who reads it. Leave headers out of "
        "HttpConfig.returns."
    )
    [found], _ = asked(lambda _: data, "k", raw=True)
    assert json.loads(found) == {"status": 200, "body": "v"}


@pytest.mark.parametrize("status", [204, 304])
def test_a_response_that_never_has_a_body_has_an_empty_one(asked: Callable[..., Any], status: int) -> None:
    [found], _ = asked(lambda _: b"HTTP/1.1 %d No\r\n\r\n" % status, "k", raw=True)
    assert json.loads(found) == {"status": status, "body": ""}


def test_a_body_of_no_announced_length_may_be_cut_off_and_is_an_error(answered: Callable[..., Any]) -> None:
    with pytest.raises(PermanentError, match=r"^The answer has neither a Content-Length nor chunks"):
        answered(b"HTTP/1.1 200 OK\r\n\r\n{}", then="close", raw=True)


def test_a_body_is_decompressed_and_decoded_by_its_charset(
    asked: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    packed = http(
        gzip.compress("\u0142".encode("iso8859-2")),
        "Content-Encoding: gzip",
        "Content-Type: text/plain; charset=iso-8859-2",
    )
    wrong = http(b"\xff", status="400 Bad")
    (found, error), _ = asked(lambda request: wrong if "b" in request.target else packed, "a", "b", raw=True)
    assert json.loads(found) == {"status": 200, "body": "\u0142"}
    assert type(error) is PermanentError
    assert str(error) == "The answer is not text in UTF-8, the charset of an answer that names none."


def test_the_limit_of_bytes_holds_for_every_status(http_service: HttpService, lookup: Lookup) -> None:
    http_service.script(Fault(status=404, body=b"12345"))
    with pytest.raises(PermanentError, match=r"^The answer is too large: it has more than 4 bytes\."):
        lookup(http_service.url + "/{0}", "k", raw=True, max_bytes=4)


@pytest.mark.parametrize(
    "returns",
    [
        "status INT, body STRING",
        "struct<status:int,body:string>",
        "`status` int ,\n body string",
        "status: int, body: string",
        WITH_HEADERS,
        "struct<status:int,body:string,headers:map<string,string>>",
    ],
)
def test_the_type_of_a_response_may_be_written_in_several_ways(returns: str) -> None:
    assert HttpConnector(HttpConfig(url="https://api.example/{0}", raw=True, returns=returns)).encoding == "json"


def test_the_type_of_a_response_need_not_be_written() -> None:
    config = HttpConfig(url="https://api.example/{0}", raw=True)
    assert (config.returns, config.missing) == ("status int, body string", ())
    assert repr(config) == "HttpConfig(url='https://api.example/{0}', raw=True)"
