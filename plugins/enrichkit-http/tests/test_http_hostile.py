"""Answers with wrong bytes: cut off, compressed, doubled, malformed, too large. No such answer becomes a value."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import gzip
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from enrichkit_http.faults import client_error

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError, UnavailableError
from enrichkit.local import Fault, HttpService
from enrichkit.plugin import Call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

OK = b"HTTP/1.1 200 OK\r\n"
BROKE = "broke before the answer was complete."
NOT_HTTP = "is not valid HTTP: its head, length or chunks are malformed or too long."
TANGLED = (
    "The answer has more than one length, or a Transfer-Encoding other than 'chunked', so where it ends depends on who "
    "reads it; it was not used. Look at the proxies in front of the service."
)
UNFRAMED = (
    "The answer has neither a Content-Length nor chunks, and is no JSON object, list or string, so a whole one looks "
    "like one that was cut off. Let the service send a Content-Length."
)


def error_of(call: Callable[[], Any]) -> tuple[type, str]:
    """Return the class and the text, without the address, of the error that *call* raises."""
    with pytest.raises(ConnectorError) as caught:
        call()
    text = str(caught.value)
    return type(caught.value), text.partition(" http://127.0.0.1:")[2].partition(" ")[2] or text


# --- cut off


@pytest.mark.parametrize(
    ("data", "then"),
    [
        (b"", "close"),
        (b"", "reset"),
        (b"HTTP/1.1 200 OK\r\nConte", "close"),
        (OK + b"Content-Length: 10\r\n\r\n{}", "close"),
        (OK + b"Content-Length: 10\r\n\r\n{}", "reset"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", "close"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", "reset"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\n{}", "close"),
    ],
)
@pytest.mark.parametrize("returns", ["string", "name string"])
def test_an_answer_that_is_cut_off_is_none_and_says_that_the_service_is_unavailable(
    answered: Callable[..., Any], data: bytes, then: str, returns: str
) -> None:
    assert error_of(lambda: answered(data, then=then, returns=returns)) == (UnavailableError, BROKE)


@pytest.mark.parametrize("body", [b'{"a": 1}', b"[1]", b'"text"', b' \n{"a": 1} '])
@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
def test_an_answer_that_ends_with_its_connection_must_be_visibly_whole(
    answered: Callable[..., Any], version: bytes, body: bytes
) -> None:
    data = version + b" 200 OK\r\n\r\n" + body
    assert answered(data, then="close", returns="a int") == {"k": body.strip()}
    assert answered(data, then="close") == {"k": body.decode()}


@pytest.mark.parametrize("body", [b"12", b"true", b"null", b"-0.5"])
def test_a_number_needs_an_announced_length_because_half_a_number_is_a_number(
    answered: Callable[..., Any], body: bytes
) -> None:
    for returns in ("string", "int"):
        call = lambda returns=returns: answered(OK + b"\r\n" + body, then="close", returns=returns)  # noqa: E731  # short
        assert error_of(call) == (PermanentError, UNFRAMED)
    assert error_of(lambda: answered(OK + b"\r\n" + body, then="close", path="/", bulk=True)) == (
        PermanentError,
        UNFRAMED,
    )


def test_half_a_document_that_ends_with_its_connection_is_no_value(answered: Callable[..., Any]) -> None:
    kind, text = error_of(lambda: answered(OK + b'\r\n{"a": [1, 2', then="close", returns="a int"))
    assert kind is PermanentError
    assert text == (
        "The answer of 11 bytes is no JSON document: malformed, cut off, not UTF-8, or nested too deep. Only "
        "returns='string' takes other text."
    )


def test_text_that_ends_with_its_connection_is_no_value(answered: Callable[..., Any]) -> None:
    assert error_of(lambda: answered(OK + b"\r\nhello", then="close")) == (PermanentError, UNFRAMED)


# --- more than one meaning


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"Transfer-Encoding: gzip\r\n\r\n{}",
        b"Transfer-Encoding: chunked, identity\r\n\r\n{}",
        b"Transfer-Encoding: \xe4\r\n\r\n{}",
    ],
)
def test_an_answer_of_two_lengths_is_not_used_and_neither_is_its_connection(
    serving: Callable[..., Any], connected: Callable[..., Any], http: Callable[..., bytes], head: bytes
) -> None:
    async def scenario() -> None:
        first = (OK + head, "keep" if head.endswith(b"0\r\n\r\n") else "close")
        async with serving(first, http(b"v")) as server, connected(server.url + "/{}") as connector:
            with pytest.raises(PermanentError) as caught:
                await connector.fetch_many(["a"], Call(timeout=5.0))
            assert str(caught.value) == TANGLED
            assert await connector.fetch_many(["b"], Call(timeout=5.0)) == {"b": "v"}
            assert server.connections == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "data",
    [
        OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        OK + b"Content-Length: -1\r\n\r\n{}",
        OK + b"Content-Length: +2\r\n\r\n{}",
        OK + b"Content-Length : 2\r\n\r\n{}",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"a" * 20_000 + b"\r\n{}\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"X: a\r\n" * 2000 + b"\r\n",
        b"HTTP/1.1 200 O\x00K\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 20 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/3.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"{}",
        OK + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
        OK + b"".join(b"X-%d: a\r\n" % n for n in range(500)) + b"Content-Length: 2\r\n\r\n{}",
        OK + b"X: " + b"a" * 1_000_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
def test_an_answer_that_is_not_http_fails_the_key(answered: Callable[..., Any], data: bytes) -> None:
    assert error_of(lambda: answered(data)) == (PermanentError, NOT_HTTP)


@pytest.mark.parametrize(
    "data",
    [
        OK + b"X: " + b"a" * 10_240 + b"\r\nContent-Length: 2\r\n\r\n{}",
        OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        OK + b"Transfer-Encoding: Chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\n{}",
        OK + b"Content-Type: \xe4\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
def test_an_unusual_but_unambiguous_answer_is_a_value(answered: Callable[..., Any], data: bytes) -> None:
    assert answered(data) == {"k": "{}"}


def test_an_answer_without_a_request_reaches_no_key(http_service: HttpService, connected: Callable[..., Any]) -> None:
    async def scenario() -> list[Any]:
        async with connected(http_service.url + "/{}", capacity=1, value="key") as connector:
            return [await connector.fetch_many([key], Call(timeout=5.0)) for key in ("a", "b", "c", "d", "e")]

    http_service.script(Fault(match="/a", stray=True), Fault(match="/c", stray=True))
    assert asyncio.run(scenario()) == [{key: key} for key in "abcde"]


def test_a_late_extra_answer_on_an_idle_connection_reaches_no_key(
    serving: Callable[..., Any], connected: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    async def scenario() -> None:
        async with serving(http(b"first"), http(b"second")) as server, connected(server.url + "/{}") as connector:
            assert await connector.fetch_many(["a"], Call(timeout=5.0)) == {"a": "first"}
            (transport,) = server.transports
            transport.write(http(b"stray"))
            await server.all_closed()
            assert await connector.fetch_many(["b"], Call(timeout=5.0)) == {"b": "second"}

    asyncio.run(scenario())


# --- size and compression


@pytest.mark.parametrize("framing", ["length", "chunks", "close"])
def test_an_answer_that_is_too_large_is_refused_and_does_not_leak_into_the_next(
    serving: Callable[..., Any], connected: Callable[..., Any], http: Callable[..., bytes], framing: str
) -> None:
    big = b"x" * 1_000_000
    first = {
        "length": (http(big), "keep"),
        "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(big), big), "keep"),
        "close": (OK + b"\r\n" + big, "close"),
    }[framing]

    async def scenario() -> None:
        async with serving(first, http(b"v")) as server, connected(server.url + "/{}", max_bytes=1000) as connector:
            with pytest.raises(PermanentError) as caught:
                await connector.fetch_many(["a"], Call(timeout=5.0))
            assert str(caught.value) == (
                "The answer is too large: it has more than 1,000 bytes. Raise HttpConfig.max_bytes if it may."
            )
            assert await connector.fetch_many(["b"], Call(timeout=5.0)) == {"b": "v"}

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 1_000_000])
def test_the_limit_is_exact(answered: Callable[..., Any], http: Callable[..., bytes], size: int) -> None:
    body = b"x" * size
    chunked = OK + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (size, body)
    for data in (http(body), chunked, http(gzip.compress(body), "Content-Encoding: gzip")):
        assert answered(data, max_bytes=max(size, 50)) == {"k": body.decode()}
        if size > 50:
            assert error_of(lambda data=data: answered(data, max_bytes=size - 1))[1].startswith(
                "The answer is too large"
            )  # type: ignore[misc]


def peak() -> int:
    """Return the peak memory of this process since `forget_peak`, in KiB; ru_maxrss cannot be reset."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def forget_peak() -> int:
    """Reset the peak memory of this process; see https://man7.org/linux/man-pages/man5/proc_pid_clear_refs.5.html."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


POURED = 64 * 2**20


@contextlib.asynccontextmanager
async def pouring(*, chunked: bool) -> AsyncIterator[str]:
    """The URL of a service whose answers have POURED bytes; the service holds a few of the bytes at a time."""
    head = b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Content-Length: %d\r\n\r\n" % POURED
    piece, end = b"x" * 2**16, b""
    pieces = POURED // len(piece)
    if chunked:
        piece, end = b"%x\r\n%b\r\n" % (len(piece), piece), b"0\r\n\r\n"
    tasks: list[Any] = []

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK + head)
            for _ in range(pieces):
                writer.write(piece)
                await writer.drain()
            writer.write(end)
        writer.close()

    async with await asyncio.start_server(pour, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*tasks)


def test_an_endless_answer_takes_no_more_memory_than_the_limit(connected: Callable[..., Any]) -> None:
    async def scenario() -> None:
        for chunked in (False, True):
            async with pouring(chunked=chunked) as url, connected(url + "/{}") as connector:
                before = forget_peak()
                with pytest.raises(PermanentError) as caught:
                    await connector.fetch_many(["k"], Call(timeout=5.0))
                assert str(caught.value) == LARGE
                assert peak() - before < POURED // 2048
        # Last, because memory that an earlier answer freed would be used again, and would not raise the peak.
        async with pouring(chunked=True) as url, connected(url + "/{}", max_bytes=2 * POURED) as connector:
            before = forget_peak()
            await connector.fetch_many(["k"], Call(timeout=10.0))
            assert peak() - before > POURED // 1024

    asyncio.run(scenario())


@pytest.mark.parametrize("returns", ["string", "key string"])
def test_a_compressed_answer_is_decompressed(
    answered: Callable[..., Any], http: Callable[..., bytes], returns: str
) -> None:
    plain = json.dumps({"key": "k" * 1000})
    expected = plain if returns == "string" else plain.encode()
    for coding, body in (
        ("gzip", gzip.compress(plain.encode())),
        ("X-GZIP", gzip.compress(plain.encode())),
        ("deflate", zlib.compress(plain.encode())),
        ("identity", plain.encode()),
        ("", plain.encode()),
    ):
        assert answered(http(body, f"Content-Encoding: {coding}"), returns=returns) == {"k": expected}


def test_half_a_gzip_stream_is_no_value(http_service: HttpService, lookup: Callable[..., Any]) -> None:
    http_service.script(Fault(truncated_gzip=True))
    assert error_of(lambda: lookup(http_service.url + "/{}", "k")) == (
        PermanentError,
        "The compressed answer is cut off, or something follows it; it was not used.",
    )


CUT_OFF = "The compressed answer is cut off, or something follows it; it was not used."
DAMAGED = "The answer is not the compressed stream that its Content-Encoding names; it was not used."
LARGE = "The answer is too large: it has more than 1,048,576 bytes. Raise HttpConfig.max_bytes if it may."
UNKNOWN = (
    "The answer has another Content-Encoding than gzip, deflate and identity, which are those that can be undone. "
    "Leave Accept-Encoding out of HttpConfig.headers, or make it 'gzip'."
)
EMPTY = (
    "The answer is empty, and no JSON document. If that says that the service does not hold the key, set "
    "HttpConfig.missing_when='empty'."
)
GZIP = gzip.compress(b'{"a": 1}', mtime=0)  # the ids of the tests contain it


@pytest.mark.parametrize(
    ("coding", "body", "message"),
    [
        ("gzip", GZIP[:10], CUT_OFF),
        ("gzip", GZIP[:-1], CUT_OFF),
        ("gzip", GZIP + b"x", CUT_OFF),
        ("gzip", GZIP + GZIP[:-1], CUT_OFF),
        ("gzip", GZIP + b"\0" * 8, CUT_OFF),
        ("gzip", b"".join([gzip.compress(b"0" * 2**19, mtime=0)] * 3), LARGE),
        ("gzip", GZIP[:-8] + b"\0" * 8, DAMAGED),
        ("gzip", b"<html>", DAMAGED),
        ("deflate", zlib.compress(b"{}")[:-1], CUT_OFF),
        ("deflate", zlib.compress(b"{}", wbits=-15)[:-1], CUT_OFF),
        ("gzip", gzip.compress(b"0" * (2**20 + 1), mtime=0), LARGE),
        ("gzip", gzip.compress(b"\0" * 100_000_000, mtime=0), LARGE),
        ("br", b"{}", UNKNOWN),
        ("zstd", b"{}", UNKNOWN),
        ("gzip, gzip", gzip.compress(GZIP, mtime=0), UNKNOWN),
        ("\u00e4", b"{}", UNKNOWN),
    ],
)
def test_an_answer_that_cannot_be_decompressed_is_no_value(
    answered: Callable[..., Any], http: Callable[..., bytes], coding: str, body: bytes, message: str
) -> None:
    kind, text = error_of(lambda: answered(http(body, f"Content-Encoding: {coding}")))
    assert issubclass(kind, PermanentError)
    assert message == text


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(b'{"a": ', mtime=0) + gzip.compress(b"1}", mtime=0)),
        ("gzip", gzip.compress(b"", mtime=0) + GZIP),
        ("deflate", zlib.compress(b'{"a": 1}')),
        ("deflate", zlib.compress(b'{"a": 1}', wbits=-15)),
    ],
    ids=["members", "an empty member", "zlib", "raw"],
)
def test_a_compressed_answer_is_read_as_browsers_read_it(
    answered: Callable[..., Any], http: Callable[..., bytes], coding: str, body: bytes
) -> None:
    assert answered(http(body, f"Content-Encoding: {coding}"), returns="a int") == {"k": b'{"a": 1}'}


@pytest.mark.parametrize("returns", ["a int", "string"])
@pytest.mark.parametrize(
    ("body", "head"),
    [
        (b"", ""),
        (b" \r\n", ""),
        (b"", "Content-Encoding: gzip"),
        (gzip.compress(b"", mtime=0), "Content-Encoding: gzip"),
    ],
    ids=["nothing", "blanks", "nothing, compressed", "a compressed nothing"],
)
def test_an_empty_answer_is_a_miss_where_the_config_says_so(
    answered: Callable[..., Any], http: Callable[..., bytes], body: bytes, head: str, returns: str
) -> None:
    heads = [head] if head else []
    assert answered(http(body, *heads), returns=returns, missing_when="empty") == {}
    if returns == "string":
        assert answered(http(body, *heads), returns=returns) == {"k": body.decode() if body.isspace() else ""}
    else:
        assert error_of(lambda: answered(http(body, *heads), returns=returns)) == (PermanentError, EMPTY)


@pytest.mark.parametrize("returns", ["a int", "string"])
@pytest.mark.parametrize("missing", [None, (404,), ()], ids=["default", "404", "none"])
def test_a_204_is_a_miss_where_an_empty_answer_is(
    answered: Callable[..., Any], returns: str, missing: tuple[int, ...] | None
) -> None:
    answer = b"HTTP/1.1 204 No Content\r\n\r\n"
    assert answered(answer, returns=returns, missing=missing, missing_when="empty") == {}
    kind, text = error_of(lambda: answered(answer, returns=returns, missing=missing))
    assert kind is PermanentError
    assert text == (
        "The service answered 204; a value comes with 200, 201 or 203. If 204 says that the service does not hold the "
        "key, add it to HttpConfig.missing, or set HttpConfig.missing_when='empty'."
    )


def test_a_gzip_stream_inside_a_gzip_stream_is_not_json(
    answered: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    kind, text = error_of(lambda: answered(http(gzip.compress(GZIP), "Content-Encoding: gzip"), returns="a int"))
    assert (kind, text.partition(":")[0]) == (PermanentError, f"The answer of {len(GZIP)} bytes is no JSON document")


# --- text and JSON


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("text/plain; charset=iso-8859-1", b"\xe4", "\u00e4"),
        ('text/plain; charset="UTF-16LE"', "\u00e4".encode("utf-16-le"), "\u00e4"),
        ("text/plain", "\u00e4".encode(), "\u00e4"),
        ("text/plain", b"", ""),
    ],
)
def test_text_is_decoded_with_the_charset_that_it_names(
    answered: Callable[..., Any], http: Callable[..., bytes], kind: str, body: bytes, text: str
) -> None:
    assert answered(http(body, f"Content-Type: {kind}")) == {"k": text}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/plain", b"\xff"),
        ("text/plain; charset=rot13", b"a"),
        ("text/plain; charset=no-such", b"a"),
        ("a/b; charset=hex", b"61"),
        ("text/plain; charset=undefined", b"a"),
        ("text/plain; charset=idna", b"xn--\xff"),
    ],
)
def test_text_that_is_not_in_its_charset_is_no_value(
    answered: Callable[..., Any], http: Callable[..., bytes], kind: str, body: bytes
) -> None:
    named = kind.partition("charset=")[2]
    assert error_of(lambda: answered(http(body, f"Content-Type: {kind}"))) == (
        PermanentError,
        f"The answer is not text in the charset {named!r} that it names."
        if named
        else "The answer is not text in UTF-8, the charset of an answer that names none.",
    )


JSON = '{"a": "Zo\u00eb", "b": [1]}'
ASCII = '{"a": "Zoe"}'


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("application/json", JSON.encode(), JSON),
        ("application/json", JSON.encode("utf-8-sig"), JSON),
        ("application/json", ASCII.encode("utf-8-sig"), ASCII),
        ("application/json; charset=UTF-8", JSON.encode("utf-8-sig"), JSON),
        ("application/json", JSON.encode("utf-16"), JSON),
        ("application/json", codecs.BOM_UTF16_BE + ASCII.encode("utf-16-be"), ASCII),
        ("application/json", ASCII.encode("utf-32"), ASCII),
        ("application/json; charset=utf-16", JSON.encode("utf-16"), JSON),
        ("application/json; charset=utf-16le", ASCII.encode("utf-16-le"), ASCII),
        ("application/json; charset=utf-16le", codecs.BOM_UTF16_LE + ASCII.encode("utf-16-le"), ASCII),
        ("application/json; charset=iso-8859-1", JSON.encode("latin-1"), JSON),
        # Bytes that are UTF-8 by accident: the charset that is declared is believed.
        ("application/json; charset=iso-8859-1", b'{"a": "\xc3\xab"}', '{"a": "\u00c3\u00ab"}'),
        ('application/json; charset="windows-1252"', b'{"a": "\x80"}', '{"a": "\u20ac"}'),
    ],
)
def test_json_in_another_encoding_is_read_by_what_is_declared_or_marked(
    answered: Callable[..., Any], http: Callable[..., bytes], kind: str, body: bytes, text: str
) -> None:
    reply = http(body, f"Content-Type: {kind}")
    assert answered(reply, returns="a string") == {"k": text.encode()}
    assert answered(reply) == {"k": text}
    packed = http(gzip.compress(body), f"Content-Type: {kind}", "Content-Encoding: gzip")
    assert answered(packed, returns="string", value="a") == {"k": json.loads(text)["a"]}


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("application/json; charset=utf-16", b'{"a": "\xe9\xe9"}', "'utf-16' that its Content-Type names"),
        ("application/json; charset=ascii", b'{"a": "\xc3\xab"}', "'ascii' that its Content-Type names"),
        ("application/json; charset=no-such", b'{"a": "\xc3\xab"}', "'no-such' that its Content-Type names"),
        ("application/json", codecs.BOM_UTF16_LE + b"{", "'utf-16' of its byte order mark"),
    ],
)
def test_json_that_is_not_in_its_encoding_is_no_value(
    answered: Callable[..., Any], http: Callable[..., bytes], kind: str, body: bytes, said: str
) -> None:
    assert error_of(lambda: answered(http(body, f"Content-Type: {kind}"), returns="a string")) == (
        PermanentError,
        f"The answer of {len(body)} bytes is not text in the charset {said}.",
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>error</html>",
        b'{"a": NaN}',
        b"{} {}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'"\\ud800"',
        b"nul",
    ],
)
@pytest.mark.parametrize("fields", [{}, {"value": "a"}, {"key_field": "a"}, {"bulk": True}])
def test_an_answer_that_is_not_json_fails_the_key(
    answered: Callable[..., Any], http: Callable[..., bytes], body: bytes, fields: dict[str, Any]
) -> None:
    path = "/" if "bulk" in fields else "/{}"
    assert error_of(lambda: answered(http(body), path=path, returns="a int", **fields)) == (
        PermanentError,
        EMPTY
        if not body and "bulk" not in fields
        else (
            f"The answer of {len(body):,} bytes is no JSON document: malformed, cut off, not UTF-8, or nested too "
            "deep. Only returns='string' takes other text."
        ),
    )


@pytest.mark.parametrize("body", [b'{"a": "\xff"}', b'{"a": {"b": "\xff"}}'])
def test_an_invalid_string_inside_json_fails_the_key(
    answered: Callable[..., Any], http: Callable[..., bytes], body: bytes
) -> None:
    kind, _ = error_of(lambda: answered(http(body), value="a"))
    assert kind is PermanentError
    found = answered(http(b"[" + body + b', {"a": "fine"}]'), "k", "l", path="/", bulk=True, value="a")
    assert found["l"] == "fine"
    assert type(found["k"].error) is PermanentError


def test_doubled_names_and_long_numbers_are_left_to_the_declared_type(
    answered: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    for body in (b'{"a":1,"a":2}', b"1" * 5000):
        assert answered(http(body), returns="bigint") == {"k": body}


# --- alerts of TLS


@pytest.mark.parametrize(
    ("alert", "kind"),
    [
        ("UnknownCA", FatalError),
        ("BadCertificate", FatalError),
        ("CertificateRequired", FatalError),
        ("CertificateUnknown", FatalError),
        ("AccessDenied", FatalError),
        ("InternalError", UnavailableError),
        ("HandshakeFailure", UnavailableError),
        ("UserCanceled", UnavailableError),
    ],
)
def test_only_an_alert_about_certificates_is_reported_as_one(alert: str, kind: type[Exception]) -> None:
    class Broken(Exception):
        details: ClassVar = {
            "causes": [{"message": "client error (Connect)"}, {"message": f"received fatal alert: {alert}"}]
        }

    error, unsent = client_error(Broken(), "https://api.example", 1.0)
    assert (type(error), unsent) == (kind, True)
    assert ("tls_ca" in str(error)) == (kind is FatalError)
    assert not getattr(error, "sent", False)


# --- names


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("Name or service not known", TransientError),  # glibc
        ("nodename nor servname provided, or not known", TransientError),  # macOS
        ("No address associated with hostname", TransientError),
        ("Temporary failure in name resolution", UnavailableError),
    ],
)
def test_only_a_name_server_that_is_away_makes_a_name_unavailable(cause: str, kind: type[Exception]) -> None:
    class Broken(Exception):
        details: ClassVar = {
            "causes": [
                {"message": "client error (Connect)"},
                {"message": "dns error"},
                {"message": f"failed to lookup address information: {cause}"},
            ]
        }

    error, unsent = client_error(Broken(), "https://api.example", 1.0)
    assert (type(error), unsent) == (kind, True)
    assert str(error) == "No connection to https://api.example: its name has no address."
    assert not getattr(error, "sent", False)
