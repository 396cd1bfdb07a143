"""Pages: the lists of all pages are one list, and what cannot be the whole list is an error."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.errors import PermanentError, TransientError, UnavailableError
from enrichkit.plugin import Call, Secret

if TYPE_CHECKING:
    from collections.abc import Callable

PAGED = {"next_page": "links.next", "value": "data.items"}
ELSEWHERE = "it leads to another origin (scheme, host or port), which could learn keys and credentials"
NO_ADDRESS = "it is no address: 1 to 8,192 visible ASCII characters without a backslash are allowed"
NO_TOKEN = "it is no token: a whole number, or text of at most 4,096 characters, is allowed"


def page(items: Any, following: Any = None) -> bytes:
    body = json.dumps({"data": {"items": items}, "links": {"next": following}}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def by_target(**pages: bytes) -> Callable[[Any], bytes]:
    """A service that has *pages* by the paths `/<name>`."""
    return lambda request: pages[request.target.removeprefix("/").partition("?")[0]]


def test_the_lists_of_all_pages_are_one_list(asked: Callable[..., Any]) -> None:
    service = by_target(
        a=page([{"n": 1}, {"n": 2.50}], "/b?x=1"),
        b=page([], "c"),
        c=page([None, 12345678901234567890], "?last"),
    )

    def answer(request: Any) -> bytes:
        return page(["end"]) if request.target == "/c?last" else service(request)

    [found], requests = asked(answer, "a", headers={"X-Id": "{0}"}, returns="array<string>", **PAGED)
    assert found == b'[{"n": 1},{"n": 2.5},null,12345678901234567890,"end"]'
    assert [(r.method, r.target, r.headers["x-id"]) for r in requests] == [
        ("GET", target, "a") for target in ("/a", "/b?x=1", "/c", "/c?last")
    ]


@pytest.mark.parametrize("last", [None, "", False])
def test_one_page_is_its_list(asked: Callable[..., Any], last: Any) -> None:
    [found], _ = asked(lambda _: page([1], last), "k", **PAGED)
    assert found == "[1]"


def test_an_answer_that_has_no_field_for_the_next_page_is_one_page(
    asked: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    [found], _ = asked(lambda _: http(b'{"data": {"items": []}}'), "k", **PAGED)
    assert found == "[]"


def test_a_page_that_says_that_it_failed_is_an_error_of_the_key(
    asked: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    pages = by_target(a=page([1], "/b"), b=http(b'{"data": {"items": [2]}, "errors": ["half of it"]}'))
    [found], _ = asked(pages, "a", errors="errors", **PAGED)
    assert isinstance(found, PermanentError)
    assert str(found) == "The answer says that it is an error: it has something at 'errors'."
    [found], _ = asked(by_target(a=page([1], "/b"), b=page([2])), "a", errors="errors", **PAGED)
    assert found == "[1,2]"


def test_each_element_is_a_match(asked: Callable[..., Any]) -> None:
    [found], _ = asked(by_target(a=page([1, 2], "/b"), b=page([3])), "a", many=True, returns="int", **PAGED)
    assert found == [b"1", b"2", b"3"]


def test_a_token_becomes_a_parameter(asked: Callable[..., Any]) -> None:
    def answer(request: Any) -> bytes:
        after = request.target.partition("cursor=")[2]
        return page([after], {"": "a&b=\u00e9", "a%26b%3D%C3%A9": 7, "7": None}[after])

    [found], requests = asked(answer, "k", path="/{}?v=2", page_param="cursor", **PAGED)
    assert json.loads(found) == ["", "a%26b%3D%C3%A9", "7"]
    assert [request.target for request in requests] == [
        "/k?v=2",
        "/k?v=2&cursor=a%26b%3D%C3%A9",
        "/k?v=2&cursor=7",
    ]


def test_a_key_that_is_missing_or_has_no_list_is_a_miss_and_a_null_is_a_null(
    asked: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    answers = by_target(a=http(b"", status="404 None"), b=http(b'{"data": {}}'), c=page(None))
    found, _ = asked(answers, "a", "b", "c", **PAGED)
    assert found == ["missing", "missing", None]


@pytest.mark.parametrize("second", [b'{"data": {}}', b'{"data": {"items": null}}', b'{"data": {"items": {}}}'])
def test_a_later_page_without_a_list_is_an_error(
    asked: Callable[..., Any], http: Callable[..., bytes], second: bytes
) -> None:
    [error], _ = asked(by_target(a=page([1], "/b"), b=http(second)), "a", **PAGED)
    assert type(error) is PermanentError
    assert str(error) == (
        "Page 2 of the answer has no list at 'data.items'; each page must have one. Correct HttpConfig.value."
    )


def test_a_later_page_that_is_missing_is_an_error(asked: Callable[..., Any], http: Callable[..., bytes]) -> None:
    [error], _ = asked(by_target(a=page([1], "/b"), b=http(b"", status="404 None")), "a", **PAGED)
    assert type(error) is PermanentError
    assert str(error) == (
        "The service does not hold page 2 of the answer, which the page before names; the other pages alone are not "
        "the answer. Ask its owner."
    )


def test_a_later_page_that_fails_fails_the_lookup(asked: Callable[..., Any], http: Callable[..., bytes]) -> None:
    busy, broken = http(b"", status="503 Busy"), http(b"", status="500 Broken")
    (first, second), _ = asked(by_target(a=page([1], "/b"), b=busy, c=page([1], "/d"), d=broken), "a", "c", **PAGED)
    assert (type(first), type(second)) == (UnavailableError, TransientError)


def test_a_page_that_is_no_json_is_an_error(asked: Callable[..., Any], http: Callable[..., bytes]) -> None:
    [error], _ = asked(by_target(a=page([1], "/b"), b=http(b"<html>")), "a", **PAGED)
    assert type(error) is PermanentError
    assert str(error).startswith("The answer of 6 bytes is no JSON document")


def test_more_pages_than_allowed_are_an_error_and_not_a_part(asked: Callable[..., Any]) -> None:
    def answer(request: Any) -> bytes:
        number = int(request.target[1:])
        return page([number], f"/{number + 1}" if number < 3 else None)

    (found, error), requests = asked(answer, "1", "0", max_pages=3, **PAGED)
    assert found == "[1,2,3]"
    assert type(error) is PermanentError
    assert str(error) == (
        "The answer has more than 3 pages, as many as HttpConfig.max_pages allows; a part of it is no answer. Raise "
        "max_pages, or ask for larger pages."
    )
    assert [request.target for request in requests] == ["/1", "/2", "/3", "/0", "/1", "/2"]


def test_pages_in_a_circle_are_an_error(asked: Callable[..., Any]) -> None:
    (first, second), requests = asked(
        by_target(a=page([1], "/b"), b=page([2], "/a#x"), c=page([], "/c")), "a", "c", **PAGED
    )
    for error in (first, second):
        assert type(error) is PermanentError
        assert str(error) == (
            "The answer names a next page that this lookup has asked for already, so it would never end. Correct "
            "HttpConfig.next_page."
        )
    assert [request.target for request in requests] == ["/a", "/b", "/c"]


@pytest.mark.parametrize(
    ("following", "fields", "reason"),
    [
        ("//evil.test/b", {}, ELSEWHERE),
        ("http://127.0.0.1:1/b", {}, ELSEWHERE),
        ("https://{host}/b", {}, ELSEWHERE),
        ("http://u:S3cret@{host}/b", {}, "it holds a user name or password"),
        ("/a b", {}, NO_ADDRESS),
        ("\\\\evil.test", {}, NO_ADDRESS),
        (7, {}, NO_ADDRESS),
        (True, {}, NO_ADDRESS),
        ({"href": "/b"}, {}, NO_ADDRESS),
        (True, {"page_param": "c"}, NO_TOKEN),
        (1.5, {"page_param": "c"}, NO_TOKEN),
        ("a\n", {"page_param": "c"}, NO_TOKEN),
        ("a" * 4097, {"page_param": "c"}, NO_TOKEN),
    ],
)
def test_a_next_page_elsewhere_is_an_error(
    asked: Callable[..., Any], following: Any, fields: dict[str, str], reason: str
) -> None:
    def answer(request: Any) -> bytes:
        return page([1], following.format(host=request.headers["host"]) if isinstance(following, str) else following)

    [error], requests = asked(answer, "k", **PAGED, **fields)
    assert type(error) is PermanentError
    assert str(error) == (
        f"The next page that the answer names at 'links.next' is not asked for: {reason}. Correct "
        "HttpConfig.next_page, and set page_param if the service sends a token and no address."
    )
    assert len(requests) == 1


def test_the_limit_of_bytes_holds_for_all_pages_together(asked: Callable[..., Any]) -> None:
    pages = {"a": page(["x" * 100], "/b"), "b": page(["y" * 100])}
    size = sum(len(data.partition(b"\r\n\r\n")[2]) for data in pages.values())
    [found], _ = asked(by_target(**pages), "a", max_bytes=size, **PAGED)
    assert json.loads(found) == ["x" * 100, "y" * 100]
    [error], _ = asked(by_target(**pages), "a", max_bytes=size - 1, **PAGED)
    assert isinstance(error, PermanentError)
    assert str(error) == (
        f"The answer is too large: its pages have together more than {size - 1:,} bytes. Raise HttpConfig.max_bytes if "
        "it may."
    )


def test_all_pages_share_the_time_of_the_call(serving: Callable[..., Any], connected: Callable[..., Any]) -> None:
    async def scenario() -> float:
        async with (
            serving((page([1], "/b"), "keep"), (b"", "keep")) as server,
            connected(server.url + "/{}", **PAGED) as connector,
        ):
            began = time.monotonic()
            with pytest.raises(TransientError, match="No complete answer from"):
                await connector.fetch_many(["k"], Call(timeout=0.3))
            return time.monotonic() - began

    assert asyncio.run(scenario()) < 2.0


def test_a_secret_parameter_goes_with_each_page_once_and_is_in_no_frame(
    asked: Callable[..., Any],
    http: Callable[..., bytes],
    in_frames: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_KEY", "S3cret")
    answers = by_target(a=page([1], "/b?key=S3cret&v=1"), b=page([1], "/c"), c=http(b"", status="400 Bad"))
    [error], requests = asked(answers, "a", params={"key": Secret.env("API_KEY")}, **PAGED)
    assert [r.target for r in requests] == ["/a?key=S3cret", "/b?v=1&key=S3cret", "/c?key=S3cret"]
    assert "S3cret" not in in_frames(error)
