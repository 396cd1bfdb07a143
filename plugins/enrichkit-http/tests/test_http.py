"""The connector against the HTTP service of `enrichkit.local`: values, misses, statuses, bulk, limits, connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import socket
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import client
from enrichkit_http import sender as sender_module

from enrichkit.errors import (
    ConnectorError,
    ContractError,
    FatalError,
    PermanentError,
    TransientError,
    UnavailableError,
)
from enrichkit.local import Fault, HttpService, value_of
from enrichkit.plugin import Absent, Call, Failure, Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Lookup = "Callable[..., dict[Any, Any]]"


def failure(call: Callable[[], Any]) -> ConnectorError:
    """Return the error that *call* raises."""
    with pytest.raises(ConnectorError) as caught:
        call()
    return caught.value


def told(outcome: Any) -> tuple[type, str, bool]:
    """Return the class and the text of the error of a `Failure`, and whether the key was rejected."""
    assert isinstance(outcome, Failure)
    return type(outcome.error), str(outcome.error), outcome.rejected


async def arrived(service: HttpService, *keys: str) -> None:
    """Wait until the service has seen requests for *keys*."""
    while not {key for request in service.log() for key in request["keys"]} >= set(keys):
        await asyncio.sleep(0.005)


# --- values and misses


def test_a_value_is_the_json_of_the_answer(http_service: HttpService, lookup: Lookup) -> None:
    found = lookup(http_service.url + "/users/{0}", "u'1 \u00e9", returns="name string")
    assert found.keys() == {"u'1 \u00e9"}
    assert json.loads(found["u'1 \u00e9"]) == value_of("u'1 \u00e9")


def test_a_plain_string_is_the_unchanged_answer(http_service: HttpService, lookup: Lookup) -> None:
    found = lookup(http_service.url + "/users/{0}", "u1")
    assert found == {"u1": json.dumps(value_of("u1"))}


def test_an_ipv4_address_inside_an_ipv6_address_leads_to_the_ipv4_address(
    http_service: HttpService, lookup: Lookup
) -> None:
    url = http_service.url.replace("127.0.0.1", "[::ffff:127.0.0.1]")
    assert lookup(url + "/{}", "k", value="key") == {"k": "k"}


def test_a_404_is_a_miss(http_service: HttpService, lookup: Lookup) -> None:
    assert lookup(http_service.url + "/users/{0}", "missing-1") == {}


def test_other_statuses_are_misses_when_the_config_says_so(http_service: HttpService, lookup: Lookup) -> None:
    http_service.script(Fault(status=410))
    assert lookup(http_service.url + "/{0}", "a", missing=(410,)) == {}
    assert (
        str(failure(lambda: lookup(http_service.url + "/{0}", "a")))
        == "The service answered 410; a value comes with 200, 201 or 203. If 410 says that the service does not hold "
        "the key, add it to HttpConfig.missing."
    )


@pytest.mark.parametrize("stored", [None, "null", "", 0, False, [], {}])
def test_a_stored_null_is_a_value_and_not_a_miss(http_service: HttpService, lookup: Lookup, stored: Any) -> None:
    http_service.seed({"k": stored, "deep": {"data": {"value": stored}}})
    expected = None if stored is None else json.dumps(stored).encode()
    assert lookup(http_service.url + "/{}", "k", returns="name string") == {"k": expected}
    assert lookup(http_service.url + "/{}", "deep", returns="name string", value="data.value") == {"deep": expected}


def test_a_field_that_is_absent_or_inside_a_null_is_a_miss(http_service: HttpService, lookup: Lookup) -> None:
    http_service.seed({"absent": {"data": {}}, "null": {"data": None}, "empty": {}})
    for key, names in {"absent": [], "null": None, "empty": []}.items():
        answer = lookup(http_service.url + "/{}", key, value="data.value", returns="int")[key]
        assert (type(answer), answer.path, answer.names()) == (Absent, "data.value", names)


def test_a_string_inside_an_answer_gives_its_text_and_other_values_their_json(
    http_service: HttpService, lookup: Lookup
) -> None:
    values = {"text": '"quoted" \u00e9', "number": 1.50, "object": {"a": [1, None]}, "null": None}
    http_service.seed({key: {"v": value} for key, value in values.items()})
    found = {key: lookup(http_service.url + "/{}", key, value="v")[key] for key in values}
    assert found == {"text": '"quoted" \u00e9', "number": "1.5", "object": '{"a": [1, null]}', "null": None}


def test_a_path_through_a_value_that_is_no_object_fails_the_key(http_service: HttpService, lookup: Lookup) -> None:
    http_service.seed({"k": {"data": [1]}})
    error = failure(lambda: lookup(http_service.url + "/{}", "k", value="data.value"))
    assert (PermanentError, "The answer has no object on the way to 'data.value', but something else.") == (
        type(error),
        str(error),
    )


def test_several_matches_are_a_list(http_service: HttpService, lookup: Lookup) -> None:
    http_service.seed(
        {"two": {"rows": [{"a": 1}, None]}, "none": {"rows": []}, "null": {"rows": None}, "one": {"rows": 1}}
    )
    url = http_service.url + "/{}"
    assert lookup(url, "two", value="rows", returns="a int", many=True) == {"two": [b'{"a": 1}', None]}
    assert lookup(url, "none", value="rows", many=True) == {}
    assert lookup(url, "null", value="rows", many=True) == {}
    assert (
        str(failure(lambda: lookup(url, "one", value="rows", many=True)))
        == "The value is not a list; with many=True it must be one, with an element for each match."
    )


def test_the_only_placeholder_in_the_address_may_be_for_any_key_column(
    http_service: HttpService, lookup: Lookup
) -> None:
    url, post = http_service.url + "/{1}/find", {"method": "POST", "body": {"id": "{0}"}}
    http_service.script(Fault(body=b'"x"'))
    assert lookup(url, ("..", "b"), **post) == {("..", "b"): '"x"'}
    [request] = http_service.log()
    assert (request["path"], json.loads(request["body"])) == ("/b/find", {"id": ".."})
    assert lookup(url, ("a", ".."), **post)["a", ".."].rejected


def test_two_key_columns_fill_two_placeholders(http_service: HttpService, lookup: Lookup) -> None:
    found = lookup(http_service.url + "/{1}?of={0}/{0}", ("a&b", "c/d"), value="key")
    assert found == {("a&b", "c/d"): "c/d"}
    assert http_service.log()[0]["path"] == "/c%2Fd?of=a%26b/a%26b"


def test_a_key_with_the_wrong_number_of_parts_fails_the_task(http_service: HttpService, lookup: Lookup) -> None:
    error = failure(lambda: lookup(http_service.url + "/{0}/{1}", "only one"))
    assert isinstance(error, FatalError)
    assert (
        str(error) == "The key has 1 part(s), and the templates of HttpConfig use 2; there must be one key column for "
        "each placeholder number. Name as many columns in enrich() as the templates use."
    )
    assert http_service.stats().calls == 0


def test_integers_are_keys(http_service: HttpService, lookup: Lookup) -> None:
    assert lookup(http_service.url + "/{}", 42, value="name") == {42: "name of 42"}


@pytest.mark.parametrize("key", ["", ".", "..", "\ud800", "k" * 4097, True, 1.5])
def test_a_key_that_cannot_be_sent_is_rejected_without_a_request(
    http_service: HttpService, lookup: Lookup, key: Any
) -> None:
    found = lookup(http_service.url + "/u/{}", key)
    kind, text, rejected = told(found[key])
    assert (PermanentError, True) == (kind, rejected)
    assert text.startswith("The key ")
    assert http_service.stats().calls == 0


@pytest.mark.parametrize(
    "key",
    [
        "../admin",
        "%2e%2e/admin",
        "a?x=1",
        "a#f",
        "a&b=c",
        "//evil.test/x",
        "@evil.test",
        "\\evil",
        "\r\nX-Evil: 1",
        "a%00b",
    ],
)
def test_a_hostile_key_arrives_as_data(http_service: HttpService, lookup: Lookup, key: str) -> None:
    assert lookup(http_service.url + "/u/{}", key, value="key") == {key: key}
    (request,) = http_service.log()
    assert request["keys"] == [key]
    assert request["path"].startswith("/u/")
    assert request["path"].count("/") == 2
    assert "x-evil" not in request["headers"]


# --- requests


def test_only_the_headers_of_the_config_are_sent(
    http_service: HttpService, lookup: Lookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "S3cret")
    lookup(http_service.url + "/{}", "k", headers={"X-Api-Key": Secret.env("API_KEY"), "Accept": "text/x"})
    (request,) = http_service.log()
    sent = {name: value for name, value in request["headers"].items() if value}
    assert sent == {
        "x-api-key": "S3cret",
        "accept": "text/x",
        "user-agent": "enrichkit/0.1.0",
        "host": http_service.url.removeprefix("http://"),
    }


def test_a_secret_that_is_absent_or_no_header_fails_the_task_without_showing_it(
    http_service: HttpService, lookup: Lookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("API_KEY", raising=False)
    ask: Any = lambda: lookup(http_service.url + "/{}", "k", headers={"X-Api-Key": Secret.env("API_KEY")})  # noqa: E731  # short
    error = failure(ask)
    assert isinstance(error, FatalError)
    assert (
        str(error)
        == f"The environment variable API_KEY is not set on this machine ({platform.node()}); a Secret names it."
    )
    monkeypatch.setenv("API_KEY", "S3cret\r\nX-Admin: 1")
    error = failure(ask)
    assert isinstance(error, FatalError)
    assert (
        str(error)
        == "HttpConfig.headers gives 'X-Api-Key' a value with a line break, a control or non-ASCII character, or a "
        "blank at an end; a value is visible ASCII, blanks inside. Take the character out; the value is not shown, it "
        "may be a secret."
    )


def test_a_post_carries_the_key_as_json(http_service: HttpService, lookup: Lookup) -> None:
    key = '"},"admin":true,{"'
    found = lookup(http_service.url + "/", key, method="POST", body={"id": "{0}", "v": 2}, value="key")
    assert found == {key: key}
    (request,) = http_service.log()
    assert (request["method"], request["headers"]["content-type"]) == ("POST", "application/json")
    assert json.loads(request["body"]) == {"id": key, "v": 2}


def test_an_integer_stays_an_integer_in_a_body(http_service: HttpService, lookup: Lookup) -> None:
    lookup(http_service.url + "/", 7, method="POST", body='{"id": "{}"}')
    assert http_service.log()[0]["body"] == '{"id":7}'


def test_a_proxy_of_the_environment_is_not_used(
    http_service: HttpService, lookup: Lookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert lookup(http_service.url + "/{}", "k", value="key") == {"k": "k"}


@pytest.mark.parametrize("location", ["/elsewhere/k", "//evil.test/x", "{url}/k", "http://127.0.0.1:{closed}/k"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(http_service: HttpService, lookup: Lookup, status: int, location: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        target = location.format(url=http_service.url, closed=closed.getsockname()[1])
        http_service.script(Fault(status=status, headers={"Location": target}))
        error = failure(lambda: lookup(http_service.url + "/{}", "k", headers={"X-Api-Key": "S3cret"}))
    assert type(error) is PermanentError
    assert (
        str(error) == f"The service answered {status}, a redirect, which is not followed: it could lead keys and "
        "credentials elsewhere. Write the final address into HttpConfig.url."
    )
    assert http_service.stats().calls == 1


@pytest.mark.parametrize("status", [307, 308])
def test_a_request_with_a_body_is_not_sent_on_either(http_service: HttpService, lookup: Lookup, status: int) -> None:
    http_service.script(Fault(status=status, headers={"Location": http_service.url + "/elsewhere"}))
    with pytest.raises(PermanentError, match=f"The service answered {status}, a redirect, which is not followed"):
        lookup(http_service.url + "/bulk", "k", bulk=True)
    assert http_service.stats().calls == 1


def test_a_cookie_is_not_sent_back(http_service: HttpService, connected: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with connected(http_service.url + "/{}") as connector:
            for key in ("a", "b"):
                await connector.fetch_many([key], Call(timeout=5.0))

    http_service.script(Fault(headers={"Set-Cookie": "session=S3cret; Path=/"}))
    asyncio.run(scenario())
    assert ["cookie" in request["headers"] for request in http_service.log()] == [False, False]


# --- statuses


@pytest.mark.parametrize("status", [408, 500, 506, 520, 599])
def test_a_busy_or_broken_service_is_asked_again(http_service: HttpService, lookup: Lookup, status: int) -> None:
    http_service.script(Fault(status=status))
    error = failure(lambda: lookup(http_service.url + "/{}", "k"))
    assert type(error) is TransientError
    assert (f"The service answered {status}.", None) == (str(error), error.retry_after)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("fields", [{}, {"bulk": True}], ids=["one", "bulk"])
def test_a_service_that_takes_no_requests_is_unavailable(
    http_service: HttpService, lookup: Lookup, status: int, fields: dict[str, bool]
) -> None:
    http_service.script(Fault(status=status))
    error = failure(lambda: lookup(http_service.url + ("/" if fields else "/{}"), "k", **fields))
    assert type(error) is UnavailableError
    assert (f"The service answered {status}.", None) == (str(error), error.retry_after)
    assert (error.sent, error.node, error.busy) == (True, None, status in (429, 503))


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_fail_the_task(http_service: HttpService, lookup: Lookup, status: int) -> None:
    http_service.script(Fault(status=status))
    error = failure(lambda: lookup(http_service.url + "/{}", "k"))
    assert type(error) is FatalError
    assert (
        str(error)
        == f"The service answered {status}: it refuses the credentials, or misses some, so no key can be looked up. "
        "Correct HttpConfig.headers, for example {'Authorization': Secret.env('NAME')}."
    )


@pytest.mark.parametrize("status", [202, 204, 206, 400, 405, 409, 422, 451, 501, 505, 600, 999])
def test_any_other_status_fails_the_key(http_service: HttpService, lookup: Lookup, status: int) -> None:
    http_service.script(Fault(status=status, body=b""))
    error = failure(lambda: lookup(http_service.url + "/{}", "k"))
    assert type(error) is PermanentError
    also = ", or set HttpConfig.missing_when='empty'" if status == 204 else ""
    assert (
        str(error) == f"The service answered {status}; a value comes with 200, 201 or 203. If {status} says that the "
        f"service does not hold the key, add it to HttpConfig.missing{also}."
    )


@pytest.mark.parametrize("status", [200, 201, 203])
def test_a_success_is_a_value(http_service: HttpService, lookup: Lookup, status: int) -> None:
    http_service.script(Fault(status=status, body=b"v"))
    assert lookup(http_service.url + "/{}", "k") == {"k": "v"}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "3"}, 3.0),
        ({"Retry-After": " 5 "}, 5.0),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": "99999999999"}, 86_400.0),
        ({"Retry-After": "9" * 5000}, 86_400.0),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "1e9"}, None),
        ({"Retry-After": "1.5"}, None),
        ({"Retry-After": "\u0663"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, 86_400.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "rubbish"}, ...),
        ({"Retry-After": "Wed, 99 Oct 2026 07:28:30 GMT"}, None),
        ({"Retry-After": "1", "retry-after": "7"}, 7.0),
        ({"Retry-After": "soon", "retry-after": "7"}, 7.0),
    ],
)
def test_retry_after_is_read_strictly(
    answered: Callable[..., Any], http: Callable[..., bytes], headers: dict[str, str], seconds: Any
) -> None:
    lines = [f"{name}: {value}" for name, value in headers.items()]
    for status, kind in (("503 Busy", UnavailableError), ("500 Broken", TransientError)):
        error = failure(lambda status=status: answered(http(b"", *lines, status=status)))  # type: ignore[misc]
        assert type(error) is kind
        assert error.retry_after == seconds or (seconds is ... and error.retry_after is not None)


def test_a_failed_post_is_not_repeated_unless_it_is_idempotent(http_service: HttpService, lookup: Lookup) -> None:
    post = {"method": "POST", "body": {"id": "{0}"}}
    http_service.script(
        Fault(status=503, match="busy"),
        Fault(status=500, match="broken"),
        Fault(status=429, match="throttled"),
        Fault(reset=True),
    )
    error = failure(lambda: lookup(http_service.url + "/", "busy", **post))
    assert type(error) is PermanentError
    assert (
        str(error) == "The service answered 503. The POST may have been carried out, so it is not repeated. Say "
        "idempotent=True if it only reads."
    )
    assert type(failure(lambda: lookup(http_service.url + "/", "broken", **post))) is PermanentError
    assert type(failure(lambda: lookup(http_service.url + "/", "k", **post))) is PermanentError
    assert type(failure(lambda: lookup(http_service.url + "/", "busy", idempotent=True, **post))) is UnavailableError
    assert type(failure(lambda: lookup(http_service.url + "/", "broken", idempotent=True, **post))) is TransientError
    assert type(failure(lambda: lookup(http_service.url + "/", "k", idempotent=True, **post))) is UnavailableError
    # The service refused the request before it did anything.
    assert type(failure(lambda: lookup(http_service.url + "/", "throttled", **post))) is UnavailableError


def test_a_post_that_was_never_sent_may_be_repeated(lookup: Lookup) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{closed.getsockname()[1]}"
        error = failure(lambda: lookup(origin + "/", "k", method="POST", body=["{}"]))
    assert type(error) is UnavailableError
    assert (str(error), error.sent, error.node) == (f"No connection to {origin}: refused.", False, None)


# --- bulk


def test_a_bulk_answer_is_a_list_in_order(http_service: HttpService, lookup: Lookup) -> None:
    keys = ["b", "missing-1", "a", '\u00e9"', "missing-2"]
    found = lookup(http_service.url + "/many", *keys, bulk=True, returns="name string")
    assert {key: json.loads(value) for key, value in found.items()} == {
        key: value_of(key) for key in ("b", "a", '\u00e9"')
    }
    (request,) = http_service.log()
    assert (request["method"], json.loads(request["body"])) == ("POST", keys)


def test_a_bulk_answer_is_an_object_by_key(http_service: HttpService, lookup: Lookup) -> None:
    http_service.seed({"nothing": None})
    found = lookup(http_service.url + "/many?shape=object", "a", "missing-1", 7, "nothing", bulk=True, value="name")
    assert found == {"a": "name of a", 7: "name of 7"}
    found = lookup(http_service.url + "/many?shape=object", "a", "nothing", bulk=True)
    assert found == {"a": json.dumps(value_of("a")), "nothing": None}


def test_a_bulk_answer_is_matched_by_the_key_that_it_repeats(http_service: HttpService, lookup: Lookup) -> None:
    rows = [{"id": {"v": "b"}, "n": 2}, {"id": {"v": 7}, "n": None}]
    http_service.script(Fault(body=json.dumps({"found": {"rows": rows}}).encode()))
    found = lookup(
        http_service.url + "/", "a", "b", 7, bulk=True, value="found.rows[].n", key_field="id.v", returns="int"
    )
    assert found == {"b": b"2", 7: None}


def test_null_among_elements_that_repeat_their_keys_is_a_miss(http_service: HttpService, lookup: Lookup) -> None:
    http_service.script(Fault(body=b'[{"k": "a", "v": 1}, null, {"k": "c", "v": 3}]'))
    found = lookup(http_service.url + "/", "a", "b", "c", bulk=True, key_field="k", value="v", returns="int")
    assert found == {"a": b"1", "c": b"3"}


def test_a_match_that_cannot_be_read_is_an_error_of_its_key(http_service: HttpService, lookup: Lookup) -> None:
    http_service.script(Fault(body=b'[{"k": "a", "v": {"n": 1}}, {"k": "b", "v": {"n": 1}}, {"k": "b", "v": 2}]'))
    found = lookup(http_service.url + "/", "a", "b", bulk=True, key_field="k", value="v.n", returns="int", many=True)
    assert found["a"] == [b"1"]
    text = "The answer has no object on the way to 'v.n', but something else."
    assert told(found["b"]) == (PermanentError, text, False)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC), "2024-02-29T01:02:03+00:00"),
        (datetime(2024, 2, 29, 1, 2, 3, 4), "2024-02-29T01:02:03.000004"),
        (date(2024, 2, 29), "2024-02-29"),
        (Decimal("0E-18"), "0.000000000000000000"),
        (Decimal("1.50"), "1.50"),
    ],
    ids=str,
)
def test_a_key_has_the_same_text_in_address_body_and_answer(
    http_service: HttpService, lookup: Lookup, key: Any, text: str
) -> None:
    answer = json.dumps([{"k": text, "v": "found"}]).encode()
    http_service.script(Fault(body=answer))
    assert lookup(http_service.url + "/", key, bulk=True, key_field="k", value="v") == {key: "found"}
    http_service.script(Fault(body=b'{"k": "%s", "v": "found"}' % text.encode()))
    post = {"method": "POST", "body": {"id": "{0}"}, "key_field": "k", "value": "v"}
    assert lookup(http_service.url + "/", key, **post) == {key: "found"}
    assert [json.loads(request["body"]) for request in http_service.log()] == [[text], {"id": text}]


def test_a_bulk_body_may_wrap_the_keys(http_service: HttpService, lookup: Lookup) -> None:
    http_service.script(Fault(body=b'{"items": ["x", null]}'))
    found = lookup(http_service.url + "/", "a", "b", bulk=True, body={"ids": "{0}", "v": 1}, value="items[]")
    assert found == {"a": "x"}
    assert json.loads(http_service.log()[0]["body"]) == {"ids": ["a", "b"], "v": 1}


def test_several_matches_in_bulk(http_service: HttpService, lookup: Lookup) -> None:
    url = http_service.url + "/"
    http_service.script(Fault(body=b"[[1, 2], null, []]"))
    assert lookup(url, "a", "b", "c", bulk=True, returns="int", many=True) == {"a": [b"1", b"2"]}
    http_service.script(Fault(body=b'{"a": [1], "b": null}'))
    assert lookup(url, "a", "b", "c", bulk=True, returns="int", many=True) == {"a": [b"1"]}
    http_service.script(Fault(body=b'[{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "a", "v": null}]'))
    found = lookup(url, "a", "b", "c", bulk=True, key_field="k", value="v", returns="int", many=True)
    assert found == {"a": [b"1", None], "b": [b"2"]}


def test_one_bad_element_fails_its_key_only(http_service: HttpService, lookup: Lookup) -> None:
    http_service.script(Fault(body=b'[{"v": "x"}, 7, {"v": null}, "half"]'))
    found = lookup(http_service.url + "/", "a", "b", "c", "d", bulk=True, value="v")
    text = "The answer has no object on the way to 'v', but something else."
    assert {key: value for key, value in found.items() if not isinstance(value, Failure)} == {"a": "x", "c": None}
    assert {key: told(found[key]) for key in ("b", "d")} == dict.fromkeys("bd", (PermanentError, text, False))


def test_a_key_twice_in_a_bulk_answer_fails_that_key(http_service: HttpService, lookup: Lookup) -> None:
    http_service.script(Fault(body=b'[{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "a", "v": 3}]'))
    found = lookup(http_service.url + "/", "a", "b", bulk=True, key_field="k", value="v", returns="int")
    assert found["b"] == b"2"
    text = "The bulk answer holds this key more than once; many=True takes all its matches."
    assert told(found["a"]) == (PermanentError, text, False)


def test_keys_that_cannot_be_sent_do_not_fail_the_others(http_service: HttpService, lookup: Lookup) -> None:
    found = lookup(http_service.url + "/", "a", "\ud800", 1.5, "", bulk=True, value="key")
    assert (found["a"], found[""]) == ("a", "")
    assert [told(found[key])[2] for key in ("\ud800", 1.5)] == [True, True]
    assert http_service.log()[0]["keys"] == ["a", ""]
    assert list(lookup(http_service.url + "/", "\ud800", bulk=True)) == ["\ud800"]
    assert http_service.stats().calls == 1


@pytest.mark.parametrize(
    ("body", "fields", "message"),
    [
        *(
            (
                body,
                {},
                (
                    f"The bulk answer is a list of {n} for 3 keys; it must have one element for each key, in their "
                    "order, null for a key that the service does not hold. If it leaves keys out, set "
                    "HttpConfig.key_field."
                ),
            )
            for body, n in ((b"[1,2]", 2), (b"[1,2,3,4]", 4), (b"[]", 0))
        ),
        *(
            (
                body,
                fields,
                (
                    "The bulk answer holds 1 key(s) that were not asked for, so none of it can be trusted. Check "
                    "HttpConfig.key_field, and in which form the service repeats a key."
                ),
            )
            for body, fields in (
                (b'{"a": 1, "x": 2}', {}),
                (b'[{"k": "a"}, {"k": "x"}]', {"key_field": "k"}),
            )
        ),
        *(
            (
                body,
                fields,
                (
                    "The bulk answer is neither a list nor an object, so its values belong to no key. Let the service "
                    "answer with a list in the order of the keys or an object by key, or say in HttpConfig.value where "
                    "in the answer that is, as in 'results[]'."
                ),
            )
            for body, fields in (
                (b'"abc"', {}),
                (b"null", {}),
                (b'{"rows": null}', {"value": "rows[]"}),
                (b'{"other": []}', {"value": "rows[].x"}),
            )
        ),
    ],
)
def test_a_bulk_answer_that_does_not_fit_its_keys_fails_the_task(
    http_service: HttpService, lookup: Lookup, body: bytes, fields: dict[str, Any], message: str
) -> None:
    http_service.script(Fault(body=body))
    error = failure(lambda: lookup(http_service.url + "/", "a", "b", "c", bulk=True, **fields))
    assert (ContractError, message) == (type(error), str(error))


def test_a_status_of_a_bulk_call_is_not_a_miss_by_default(http_service: HttpService, lookup: Lookup) -> None:
    http_service.script(Fault(status=404))
    error = failure(lambda: lookup(http_service.url + "/", "a", "b", bulk=True))
    assert type(error) is PermanentError
    assert lookup(http_service.url + "/", "a", "b", bulk=True, missing=(404,)) == {}


def test_a_failed_bulk_call_may_be_repeated(http_service: HttpService, lookup: Lookup) -> None:
    http_service.script(Fault(status=500))
    assert type(failure(lambda: lookup(http_service.url + "/", "a", "b", bulk=True))) is TransientError


def test_one_request_holds_one_key(http_service: HttpService, lookup: Lookup) -> None:
    error = failure(lambda: lookup(http_service.url + "/{}", "a", "b"))
    assert type(error) is ContractError
    assert (
        str(error)
        == "The http connector was given 2 keys for one request; without bulk it takes 1, as its max_batch_size "
        "says. Call it once for each key."
    )


def test_a_bulk_source_refuses_keys_of_several_columns(http_service: HttpService, lookup: Lookup) -> None:
    error = failure(lambda: lookup(http_service.url + "/", ("a", "b"), bulk=True))
    assert type(error) is FatalError


# --- the key that an answer repeats


def test_an_answer_to_another_key_is_dropped_with_its_connections(
    http_service: HttpService, connected: Callable[..., Any]
) -> None:
    async def scenario() -> tuple[Any, Any, Any]:
        async with connected(http_service.url + "/{}", key_field="key", value="name") as connector:
            first = await connector.fetch_many(["a"], Call(timeout=5.0))
            with pytest.raises(TransientError) as caught:
                await connector.fetch_many(["b"], Call(timeout=5.0))
            assert type(caught.value) is TransientError
            return first, caught.value, await connector.fetch_many(["c"], Call(timeout=5.0))

    http_service.script(Fault(match="/b", body=json.dumps(value_of("a")).encode()))
    first, error, last = asyncio.run(scenario())
    assert (first, last) == ({"a": "name of a"}, {"c": "name of c"})
    assert (
        str(error)
        == "The answer repeats another key at 'key' than the one that was asked; its connections were dropped."
    )
    assert http_service.stats().connections == 2


def test_an_answer_that_repeats_no_key_fails_it(http_service: HttpService, lookup: Lookup) -> None:
    error = failure(lambda: lookup(http_service.url + "/{}", "k", key_field="id"))
    assert type(error) is PermanentError
    assert (
        str(error) == "The answer does not repeat the key at 'id', so it is not known whose it is. Correct "
        "HttpConfig.key_field, or leave it out."
    )


def test_a_repeated_number_is_compared_as_text(http_service: HttpService, lookup: Lookup) -> None:
    http_service.seed({"7": {"id": 7}, "x": {"id": "x"}})
    assert lookup(http_service.url + "/{}", 7, key_field="id") == {7: '{"id": 7}'}
    assert lookup(http_service.url + "/{}", "7", key_field="id") == {"7": '{"id": 7}'}
    assert lookup(http_service.url + "/{}", "x", key_field="id") == {"x": '{"id": "x"}'}


def test_a_post_with_the_answer_to_another_key_is_not_repeated_unless_it_is_idempotent(
    http_service: HttpService, lookup: Lookup
) -> None:
    http_service.script(Fault(body=b'{"id": "other"}'))
    post = {"method": "POST", "body": {"id": "{0}"}, "key_field": "id"}
    assert type(failure(lambda: lookup(http_service.url + "/", "k", **post))) is PermanentError
    assert type(failure(lambda: lookup(http_service.url + "/", "k", idempotent=True, **post))) is TransientError


# --- time and connections


def test_a_service_that_hangs_or_drips_is_abandoned_at_the_timeout_of_the_call(
    http_service: HttpService, lookup: Lookup
) -> None:
    http_service.script(Fault(match="hang", hang=True), Fault(match="drip", drip=0.02))
    for key in ("hang", "drip"):
        error = failure(lambda key=key: lookup(http_service.url + "/{}", key, timeout=0.3))  # type: ignore[misc]
        assert (TransientError, f"No complete answer from {http_service.url} within 0.3 s.") == (
            type(error),
            str(error),
        )


def test_a_service_whose_name_has_no_address_may_be_tried_again(lookup: Lookup) -> None:
    url = f"http://{'a' * 64}.invalid"  # longer than a label may be, so that the resolver asks no name server
    error = failure(lambda: lookup(url + "/{}", "k"))
    assert (TransientError, f"No connection to {url}: its name has no address.") == (type(error), str(error))


def test_connections_are_reused_and_no_more_than_the_capacity(
    http_service: HttpService, connected: Callable[..., Any]
) -> None:
    async def scenario() -> None:
        async with connected(http_service.url + "/{}", capacity=4, value="key") as connector:
            keys = iter(range(200))

            async def slot() -> None:
                for key in keys:
                    assert await connector.fetch_many([f"k{key}"], Call(timeout=5.0)) == {f"k{key}": f"k{key}"}

            await asyncio.gather(*[slot() for _ in range(4)])

    http_service.script(latency=0.002)
    asyncio.run(scenario())
    stats = http_service.stats()
    assert stats.calls == 200
    assert stats.peak == 4
    # The client may open one more connection while a free one is on its way back to the pool.
    assert stats.connections <= 2 * 4


HANG = ("hang-0", "hang-1")


@pytest.mark.slow
def test_requests_of_cancelled_calls_hold_up_others_only_when_there_are_more_than_capacity(
    http_service: HttpService, connected: Callable[..., Any]
) -> None:
    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        async with connected(http_service.url + "/{}", capacity=2) as connector:

            async def abandon(*keys: str) -> None:
                calls = [asyncio.create_task(connector.fetch_many([key], Call(timeout=5.0))) for key in keys]
                await arrived(http_service, *keys)
                for call in calls:
                    call.cancel()
                ends = await asyncio.gather(*calls, return_exceptions=True)
                assert [isinstance(end, asyncio.CancelledError) for end in ends] == [True] * len(keys)

            began = loop.time()
            await abandon("hang-0", "hang-1")
            await connector.fetch_many(["k"], Call(timeout=10.0))
            await abandon("hang-2", "hang-3")
            assert loop.time() - began < 5.0
            # Cancelled requests hold all four permits, so this call waits; nobody cancels it, and it gets its answer.
            await connector.fetch_many(["l"], Call(timeout=10.0))
            return loop.time() - began

    http_service.script(Fault(match="hang", hang=True))
    assert asyncio.run(scenario()) >= 5.0
    assert [sorted(request["keys"][0] for request in http_service.log()[part]) for part in (slice(2), slice(2, 6))] == [
        ["hang-0", "hang-1"],
        ["hang-2", "hang-3", "k", "l"],
    ]
    assert http_service.log()[-1]["keys"] == ["l"]
    while http_service.stats().in_flight:  # until the test's own time limit
        time.sleep(0.005)


@pytest.mark.slow
def test_a_call_that_is_cancelled_while_it_waits_sends_no_request(
    http_service: HttpService, connected: Callable[..., Any]
) -> None:
    async def scenario() -> None:
        async with connected(http_service.url + "/{}", capacity=1) as connector:
            abandoned = []
            for key in HANG:
                abandoned.append(asyncio.create_task(connector.fetch_many([key], Call(timeout=5.0))))
                await arrived(http_service, key)
                abandoned[-1].cancel()
                await asyncio.wait(abandoned)
            waiting = [asyncio.create_task(connector.fetch_many([f"w{n}"], Call(timeout=10.0))) for n in range(3)]
            await asyncio.sleep(0)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*abandoned, *waiting, return_exceptions=True)
            assert await connector.fetch_many(["last"], Call(timeout=10.0))

    http_service.script(Fault(match="hang", hang=True))
    asyncio.run(scenario())
    assert sorted(request["keys"] for request in http_service.log()) == [["hang-0"], ["hang-1"], ["last"]]


def test_a_call_that_waits_too_long_for_a_permit_times_out(
    serving: Callable[..., Any], connected: Callable[..., Any]
) -> None:
    async def scenario() -> tuple[ConnectorError, list[bytes]]:
        async with serving((b"", "keep")) as server, connected(server.url + "/{}", capacity=1) as connector:
            for number, key in enumerate(HANG, start=1):
                abandoned = asyncio.create_task(connector.fetch_many([key], Call(timeout=5.0)))
                while len(server.heads) < number:
                    await asyncio.sleep(0.005)
                abandoned.cancel()
                await asyncio.wait([abandoned])
            with pytest.raises(TransientError) as caught:
                await connector.fetch_many(["late"], Call(timeout=0.05))
            assert type(caught.value) is TransientError
            return caught.value, server.heads

    error, heads = asyncio.run(scenario())
    assert str(error) == (
        "No request was free within 0.05 s: 2 belong to calls that were cancelled, and have not ended yet."
    )
    assert heads == [b"GET /hang-0 HTTP/1.1", b"GET /hang-1 HTTP/1.1"]


def test_a_closed_connector_closes_its_connections_and_can_be_opened_again(
    serving: Callable[..., Any], http: Callable[..., bytes], connected: Callable[..., Any]
) -> None:
    async def scenario() -> None:
        async with serving(http(b"v")) as server:
            async with connected(server.url + "/{}") as connector:
                assert await connector.fetch_many(["a"], Call(timeout=5.0)) == {"a": "v"}
                assert len(server.transports) == 1
                await connector.close()
                await asyncio.wait_for(server.all_closed(), 5)
                await connector.close()
                with pytest.raises(ContractError) as caught:
                    await connector.fetch_many(["a"], Call(timeout=5.0))
                await connector.open()
                assert await connector.fetch_many(["b"], Call(timeout=5.0)) == {"b": "v"}
            await asyncio.wait_for(server.all_closed(), 5)
            assert server.connections == 2
            assert (
                str(caught.value)
                == "The http connector is not open; it must be opened before a lookup. Await open() first."
            )

    asyncio.run(scenario())


def test_closing_ends_the_calls_that_still_wait(http_service: HttpService, connected: Callable[..., Any]) -> None:
    """Such a call does not say that the service is unavailable: the connector itself gave up the connection."""

    async def scenario() -> BaseException | Any:
        async with connected(http_service.url + "/{}") as connector:
            call = asyncio.create_task(connector.fetch_many(["hang"], Call(timeout=1.0)))
            await arrived(http_service, "hang")
            await connector.close()
            return (await asyncio.gather(call, return_exceptions=True))[0]

    http_service.script(Fault(hang=True))
    error = asyncio.run(scenario())
    assert type(error) is TransientError
    assert str(error) == f"The connection to {http_service.url} broke before the answer was complete."


def test_a_service_that_is_restarted_is_found_again(http_service: HttpService, connected: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with connected(http_service.url + "/{}", value="key") as connector:
            assert await connector.fetch_many(["a"], Call(timeout=5.0)) == {"a": "a"}
            with pytest.raises(UnavailableError) as caught:
                await connector.fetch_many(["reset"], Call(timeout=5.0))
            assert str(caught.value) == f"The connection to {http_service.url} broke before the answer was complete."
            assert caught.value.sent
            assert await connector.fetch_many(["b"], Call(timeout=5.0)) == {"b": "b"}

    http_service.script(Fault(match="reset", reset=True))
    asyncio.run(scenario())


def sockets_to(port: int) -> Iterator[socket.socket]:
    """The sockets of this process that are connected to *port* of this machine, whoever made them."""
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(descriptor))) as sock:
                    if sock.getpeername() == ("127.0.0.1", port):
                        yield sock


def test_keepalive_is_set_on_the_socket(http_service: HttpService, connected: Callable[..., Any]) -> None:
    """The kernel notices within 45 s that the other end is gone."""

    async def scenario() -> list[tuple[int, ...]]:
        async with connected(http_service.url + "/{}") as connector:
            await connector.fetch_many(["a"], Call(timeout=5.0))
            return [
                (
                    sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                    sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                    sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
                    sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
                    sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
                )
                for sock in sockets_to(http_service.port)
            ]

    assert set(asyncio.run(scenario())) == {(1, 30, 5, 3, 30_000)}  # also those that other tests have left


def test_an_old_connection_is_replaced_and_ends_with_its_last_request(
    serving: Callable[..., Any],
    http: Callable[..., bytes],
    connected: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that is used all the time would never follow a host name that moved to another server."""
    now = 1000.0
    monkeypatch.setattr(sender_module, "monotonic", lambda: now)

    async def scenario() -> None:
        nonlocal now
        async with serving(http(b"v")) as server, connected(server.url + "/{}") as connector:
            for seconds, connections in ((0, 1), (239, 1), (361, 2), (361 + 239, 2), (2 * 361 + 1, 3)):
                now = 1000.0 + seconds
                assert await connector.fetch_many(["k"], Call(timeout=5.0)) == {"k": "v"}
                assert server.connections == connections
            while len(server.transports) > 1:  # the old ones are closed
                server.closed.clear()
                await server.closed.wait()

    asyncio.run(scenario())


def test_a_request_that_is_under_way_when_its_client_is_replaced_is_answered(
    http_service: HttpService, connected: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "LIFETIME", 0.0)
    keys = [f"u{number}" for number in range(20)]

    async def scenario() -> list[Any]:
        async with connected(http_service.url + "/{}", value="key", capacity=20) as connector:
            return await asyncio.gather(*(connector.fetch_many([key], Call(timeout=5.0)) for key in keys))

    http_service.script(latency=0.2)
    assert asyncio.run(scenario()) == [{key: key} for key in keys]
    assert http_service.stats().connections == 20


def test_a_secret_that_is_absent_while_it_is_rotated_ends_no_client_that_works(
    http_service: HttpService, connected: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sender_module, "LIFETIME", 0.0)
    token = tmp_path / "token"
    token.write_text("first")
    sent = []

    async def scenario() -> None:
        headers = {"X-Api-Key": Secret.file(str(token))}
        async with connected(http_service.url + "/{}", value="key", headers=headers) as connector:
            token.unlink()
            for key in ("a", "b"):
                assert await connector.fetch_many([key], Call(timeout=5.0)) == {key: key}
            token.write_text("second")
            connector._sender._expires = 0.0
            assert await connector.fetch_many(["c"], Call(timeout=5.0)) == {"c": "c"}
        sent.extend(dict(request["headers"])["x-api-key"] for request in http_service.log())

    http_service.script(log=True)
    asyncio.run(scenario())
    assert sent == ["first", "first", "second"]


def test_no_error_holds_the_key_or_the_query(http_service: HttpService, lookup: Lookup) -> None:
    """The texts of the client's errors hold the whole address."""
    faults = [
        Fault(match="reset", reset=True),
        Fault(match="hang", hang=True),
        Fault(match="cut", close_after=60),
        Fault(match="empty", close_after=0),
        Fault(match="s400", status=400),
        Fault(match="s401", status=401),
        Fault(match="s302", status=302, headers={"Location": "/x"}),
        Fault(match="s500", status=500),
        Fault(match="big", oversize=2**20 + 1),
        Fault(match="gzip", truncated_gzip=True),
        Fault(match="html", body=b"<html>"),
    ]
    http_service.script(*faults)
    for fault in faults:
        key = f"alice@example.test {fault.match}"
        error = failure(
            lambda key=key: lookup(http_service.url + "/{}?token=S3cret", key, timeout=0.3, returns="int")  # type: ignore[misc]
        )
        chain = f"{error!r} {error} {error.__cause__!r} {error.__context__ if not error.__suppress_context__ else ''}"
        for secret in ("alice", "S3cret", fault.match):
            assert secret not in chain.replace("gzip", "").replace("empty", ""), chain


def test_after_a_fork_a_client_that_was_used_before_is_refused(
    http_service: HttpService, lookup: Lookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contract test forks a process; this test reads the message."""
    monkeypatch.setattr(client, "_process_id", -1)
    error = failure(lambda: lookup(http_service.url + "/{}", "a"))
    assert type(error) is FatalError
    assert str(error) == (
        "This process was forked from one that had opened the http connector, and the thread of its client does not "
        "live on in the fork, where a request would never end. Fork before the first use, or spawn the process."
    )


# --- what the service says of an error


def test_an_error_has_the_beginning_of_the_response(http_service: HttpService, lookup: Lookup) -> None:
    body = b'{"error":\n"no such\x07tenant\xff"}' + b"x" * 1000
    http_service.script(
        Fault(match="bad", status=400, body=body),
        Fault(match="empty", status=410, body=b""),
        Fault(match="wide", status=400, body="x\u20ac".encode() * 1000),
    )
    said = failure(lambda: lookup(http_service.url + "/{}", "bad")).said
    assert said == '{"error": "no such tenant\ufffd"}' + "x" * (300 - 30)
    assert failure(lambda: lookup(http_service.url + "/{}", "wide")).said == "x\u20ac" * 75
    assert str(failure(lambda: lookup(http_service.url + "/{}", "bad"))) == (
        "The service answered 400; a value comes with 200, 201 or 203. If 400 says that the service does not hold the "
        "key, add it to HttpConfig.missing."
    )
    assert failure(lambda: lookup(http_service.url + "/{}", "empty")).said == ""


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
def test_what_the_service_says_holds_no_secret(
    http_service: HttpService, lookup: Lookup, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("API_TOKEN", "Bearer s3cret-token")
    monkeypatch.setenv("API_KEY", "k3y-of-the-query")
    told = b"denied: Bearer s3cret-token, s3cret-token, k3y-of-the-query, password=hunter2, plain-credential"
    http_service.script(Fault(status=status, body=told))
    error = failure(
        lambda: lookup(
            http_service.url + "/{}",
            "u1",
            headers={"Authorization": Secret.env("API_TOKEN"), "X-Api-Key": "plain-credential"},
            params={"key": Secret.env("API_KEY")},
            insecure=True,
        )
    )
    assert error.said == "denied: ***, ***, ***, password=***, ***"
    assert "denied" not in str(error)


# --- failures inside a 200


DENIED = '{"message": "no permission for u1", "path": ["user"]}'
ADA = '{"name": "Ada"}'


@pytest.mark.parametrize(
    ("document", "config", "expected"),
    [
        (f'{{"data": {{"user": {ADA}}}}}', {"errors": "errors"}, ADA),
        (f'{{"data": {{"user": {ADA}}}, "errors": null}}', {"errors": "errors"}, ADA),
        (f'{{"data": {{"user": {ADA}}}, "errors": []}}', {"errors": "errors"}, ADA),
        (f'{{"data": {{"user": {ADA}}}, "errors": [ ]}}', {"errors": "errors"}, ADA),
        ('{"data": {}}', {"errors": "errors"}, "missing"),
        (f'{{"data": {{"user": null}}, "errors": [{DENIED}]}}', {"errors": "errors"}, "something at 'errors'"),
        (f'{{"data": {{"user": {ADA}}}, "errors": [{DENIED}]}}', {"errors": "errors"}, "something at 'errors'"),
        (f'{{"errors": {DENIED}}}', {"errors": "errors.message"}, "something at 'errors.message'"),
        (f'{{"ok": true, "data": {{"user": {ADA}}}}}', {"success": "ok"}, ADA),
        (f'{{"ok": false, "data": {{"user": {ADA}}}}}', {"success": "ok"}, "no true at 'ok'"),
        (f'{{"ok": "yes", "data": {{"user": {ADA}}}}}', {"success": "ok"}, "no true at 'ok'"),
        (f'{{"data": {{"user": {ADA}}}}}', {"success": "ok"}, "no true at 'ok'"),
        ("[]", {"success": "ok"}, "no true at 'ok'"),
    ],
)
def test_a_failure_inside_a_200_is_an_error_of_its_key(
    http_service: HttpService, lookup: Lookup, document: str, config: dict[str, Any], expected: str
) -> None:
    http_service.script(Fault(body=document.encode()))

    def asked() -> Any:
        return lookup(http_service.url + "/{}", "u1", value="data.user", returns="name string", **config)

    if expected == "missing":
        assert isinstance(asked()["u1"], Absent)
    elif expected == ADA:
        assert asked() == {"u1": ADA.encode()}
    else:
        error = failure(asked)
        assert (type(error), str(error)) == (
            PermanentError,
            f"The answer says that it is an error: it has {expected}.",
        )
        if "errors" in config:
            assert "no permission for u1" in error.said


def test_a_text_is_no_value_where_the_document_says_that_it_failed(http_service: HttpService, lookup: Lookup) -> None:
    http_service.script(Fault(body=b'{"error": "no such channel"}'))
    assert lookup(http_service.url + "/{}", "u1") == {"u1": '{"error": "no such channel"}'}
    assert failure(lambda: lookup(http_service.url + "/{}", "u1", errors="error")).said == '"no such channel"'


def test_a_failed_element_of_a_bulk_response_fails_its_key_only(http_service: HttpService, lookup: Lookup) -> None:
    http_service.script(Fault(body=b'{"u1": {"v": 1}, "u2": {"v": 2, "error": "broken"}, "u3": {"error": ""}}'))
    found = lookup(http_service.url, "u1", "u2", "u3", bulk=True, value="v", errors="error", returns="int")
    assert found["u1"] == b"1"
    assert told(found["u2"]) == (
        PermanentError,
        "The answer says that it is an error: it has something at 'error'.",
        False,
    )
    assert not isinstance(found.get("u3"), Failure)


def test_a_bulk_response_that_failed_as_a_whole_is_no_value_of_any_key(
    http_service: HttpService, lookup: Lookup
) -> None:
    http_service.script(Fault(body=b'{"results": [{"v": 1}, null], "errors": [{"message": "half of it"}]}'))
    error = failure(lambda: lookup(http_service.url, "u1", "u2", bulk=True, value="results[].v", errors="errors"))
    assert str(error) == "The answer says that it is an error: it has something at 'errors'."
    assert error.said == '[{"message": "half of it"}]'
