"""
Whatever a Redis server replies, a lookup ends in time, with what the server said of each key or with an error.

A real server holds the values, a relay in front of it replaces the replies of one exchange, and redis-py says what is
right.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis
from enrichkit_redis import RedisConfig
from hypothesis import strategies as st

from enrichkit.errors import ConnectorError, FatalError, PermanentError, UnavailableError
from enrichkit.plugin import Call, Failure
from enrichkit.testing import open_connector
from enrichkit.values.decode import decoder

from .fuzzing import effort, explore, kept, mutants
from .relay import ECHO, Case, Exchange, Relay
from .resp import Other, Replies, bulk

if TYPE_CHECKING:
    from enrichkit.local import RedisServer

STRINGS = {"a": b"v1", "b": b"", "c": b"\r\n$-1\r\n*1\r\n", "d": b"\xff" * 70}
HASHES = {"h": {"f": b"v1", "g": b"w1"}, "i": {"f": b""}, "j": {"other": b"-ERR x\r\n"}}
KINDS: dict[str, dict[str, Any]] = {
    "string": {},
    "hash": {"kind": "hash"},
    "fields": {"kind": "hash", "fields": ("f", "g")},
}
DECLARED = {
    "string": pa.binary(),
    "hash": pa.map_(pa.string(), pa.binary()),
    "fields": pa.struct([("f", pa.binary()), ("g", pa.binary())]),
}
# The lookups whose replies are changed: all bytes, a miss, a key of another type, and hashes with and without fields.
LOOKUPS = [
    ("string", "abcd"),
    ("string", "axhb"),
    ("hash", "hijx"),
    ("hash", "ha"),
    ("fields", "hi"),
    ("fields", "jxha"),
]
PATIENCE = 0.05  # seconds that a lookup may take if the server leaves the connection open


@pytest.fixture(scope="module")
def port(redis_server: RedisServer) -> int:
    """The port of a server with the values."""
    redis_server.flush()
    with redis.Redis(port=redis_server.port, protocol=2) as client:
        client.mset(STRINGS)
        for name, fields in HASHES.items():
            client.hset(name, mapping=fields)
    return redis_server.port


def right(case: Case, port: int) -> dict[str, Any]:
    """Return the right answers, as redis-py reads them; a miss is absent, and "another type" is an error."""
    answers: dict[str, Any] = {}
    with redis.Redis(port=port, protocol=2) as client:
        for key in case.keys:
            try:
                found = client.get(key) if case.kind == "string" else client.hgetall(key)
            except redis.ResponseError:
                answers[key] = "error"
                continue
            if isinstance(found, dict):
                by_name = {name.decode(): value for name, value in found.items()}
                found = {name: by_name.get(name) for name in "fg"} if case.kind == "fields" and found else by_name
            if found is not None and found != {}:
                answers[key] = found
    return answers


async def look_up(connector: Any, case: Case, timeout: float) -> dict[str, Any]:
    """Return the answers in the words of `right`, decoded; raises `ConnectorError` and nothing else."""
    async with asyncio.timeout(10):
        answers = dict(await connector.fetch_many(case.keys, Call(timeout=timeout)))
    assert answers.keys() <= set(case.keys)
    told: dict[str, Any] = {}
    for key, value in answers.items():
        if isinstance(value, Failure):
            assert isinstance(value.error, ConnectorError)
            assert not isinstance(value.error, FatalError)
            told[key] = "error"
            continue
        values, errors = decoder(DECLARED[case.kind], "text")([value])
        assert set(map(type, errors.values())) <= {PermanentError}
        told[key] = "error" if errors else values[0]
    return told


async def look_up_again(connector: Any, case: Case) -> dict[str, Any]:
    """Return the answers of a server that behaves; the first try may meet the end of a connection that it closed."""
    try:
        return await look_up(connector, case, 5.0)
    except UnavailableError:
        assert case.then == "close"
        return await look_up(connector, case, 5.0)


def said(exchanges: list[Exchange]) -> dict[str, Any]:
    """Return the last thing that the server said of each key: a value, None if it has none, else an `Other`."""
    last: dict[str, Any] = {}
    in_transaction = b""
    for exchange in exchanges:
        for command, reply in zip(exchange.commands, exchange.replies or (), strict=False):
            name = command[1] if len(command) > 1 else b""
            match command[0]:
                case b"MGET":
                    values = reply if isinstance(reply, list) and len(reply) == len(command) - 1 else []
                    last |= {each.decode(): value for each, value in zip(command[1:], values, strict=False)}
                case b"GET":
                    last[name.decode()] = reply
                case b"HGETALL":
                    last[name.decode()] = _hash(reply)
                case b"HMGET":
                    in_transaction = name
                    last[name.decode()] = _fields(reply)
                case b"EXEC":
                    last[in_transaction.decode()] = _existing(reply)
    return {key: value if _is_value(value) else "error" for key, value in last.items()}


def _is_value(said: Any) -> bool:
    return said is None or isinstance(said, bytes) or (isinstance(said, dict) and all(map(_is_value, said.values())))


def _hash(reply: Any) -> Any:
    if not isinstance(reply, list) or len(reply) % 2 or not all(isinstance(name, bytes) for name in reply[::2]):
        return Other(b"", reply)
    try:
        return {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)} or None
    except UnicodeDecodeError:
        return Other(b"", reply)


def _fields(reply: Any) -> Any:
    return dict(zip("fg", reply, strict=True)) if isinstance(reply, list) and len(reply) == 2 else Other(b"", reply)


def _existing(reply: Any) -> Any:
    """Return what `EXEC` replied of the fields and the existence of a hash."""
    if not isinstance(reply, list) or len(reply) != 2 or not isinstance(reply[1], int):
        return Other(b"", reply)
    return _fields(reply[0]) if reply[1] else None


async def play(case: Case, port: int) -> None:
    async with Relay(port, case) as relay, open_connector(config(case, relay.port), capacity=1) as connector:
        began, error, answers = time.monotonic(), None, {}
        try:
            answers = await look_up(connector, case, PATIENCE if case.then == "stay" else 5.0)
        except ConnectorError as caught:
            error = caught
        assert time.monotonic() - began < 5, "the lookup ended before its time limit"
        first = list(relay.exchanges)
        broken = [exchange for exchange in first if exchange.replies is None]
        if broken:
            assert error is not None, "no answer is made of a reply that is not whole"
        if error is None:
            told = said(first)
            for key in case.keys:
                # An error is never wrong; a value or a miss is what the server said.
                assert answers.get(key) in (told[key], "error"), (key, told)
        relay.behave()
        if case.step == 0 and isinstance(error, FatalError):
            return  # a login that was refused is not tried again for some seconds
        assert right(case, port) == await look_up_again(connector, case)
        for exchange in broken:
            later = relay.exchanges[relay.exchanges.index(exchange) + 1 :]
            assert exchange.connection not in {each.connection for each in later}, "the connection is not used again"


def config(case: Case, port: int) -> RedisConfig:
    return RedisConfig(url=f"redis://127.0.0.1:{port}", **KINDS[case.kind])


# What a server may say instead of a part of its reply: each kind of reply of RESP2 and RESP3.
LEAVES = [b"$2\r\nv1\r\n", b"$0\r\n\r\n", b"$-1\r\n", b"+OK\r\n", b"+QUEUED\r\n", b"-ERR x\r\n", b"-WRONGTYPE x\r\n"]
LEAVES += [
    b"-NOAUTH x\r\n",
    b"-LOADING x\r\n",
    b"-MOVED 1 127.0.0.1:1\r\n",
    b"-\xff\r\n",
    b":0\r\n",
    b":1\r\n",
    b":-7\r\n",
]
LEAVES += [b"_\r\n", b"#t\r\n", b"#f\r\n", b",1.5\r\n", b",nan\r\n", b"(123456789012345678901234567890\r\n"]
LEAVES += [b"=6\r\ntxt:v1\r\n", b"!5\r\nERR x\r\n", b"*-1\r\n", b"*0\r\n", b"%0\r\n", b"~0\r\n", b">0\r\n"]
TOKENS = [
    *LEAVES,
    ECHO,
    b"\r\n",
    b"$",
    b"*1\r\n",
    b"*2\r\n",
    b"*4\r\n",
    b"%1\r\n",
    b"~2\r\n",
    b">2\r\n",
    b"|1\r\n",
    b"-1",
]
TOKENS += [b"$9\r\n", b"$99999999\r\n", b"*4096\r\n", b"\0", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x16\x03\x01"]


def nested(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    def joined(kind: bytes, width: int) -> st.SearchStrategy[bytes]:
        parts = st.lists(inner, max_size=3 * width).map(lambda parts: parts[: len(parts) // width * width])
        return parts.map(lambda parts: b"%b%d\r\n%b" % (kind, len(parts) // width, b"".join(parts)))

    return joined(b"*", 1) | joined(b"~", 1) | joined(b">", 1) | joined(b"%", 2) | joined(b"|", 2)


replies = st.recursive(st.sampled_from(LEAVES) | st.binary(max_size=8).map(bulk), nested, max_leaves=6)


def recorded(port: int) -> list[Case]:
    """Return a case for each exchange of each of the lookups, with the reply of the real server."""

    async def exchanges(case: Case) -> list[Exchange]:
        async with Relay(port) as relay, open_connector(config(case, relay.port), capacity=1) as connector:
            assert right(case, port) == await look_up(connector, case, 5.0)
            return relay.exchanges

    cases = []
    for kind, keys in LOOKUPS:
        case = Case(kind, keys, 0, b"")
        for step, exchange in enumerate(asyncio.run(exchanges(case))):
            reply = exchange.sent.replace(bulk(exchange.commands[-1][1]), ECHO)
            cases.append(replace(case, step=step, reply=reply))
    return cases


@st.composite
def cases(draw: st.DrawFn, honest: list[Case]) -> Case:
    """One of the *honest* cases with bytes that were changed anywhere, or with another reply inside the reply."""
    case = draw(st.sampled_from(honest))
    then = draw(st.sampled_from(["close", "close", "close", "stay"]))
    if draw(st.booleans()):
        return replace(case, reply=draw(mutants(st.just(case.reply), TOKENS)), then=then)
    nonce = bulk(b"n" * 24)
    data = case.reply.replace(ECHO, nonce)
    for _ in range(draw(st.integers(1, 2))):
        start, end = draw(st.sampled_from(Replies(data).spans or [(0, len(data))]))
        data = data[:start] + draw(replies) + data[end:]
    return replace(case, reply=data.replace(nonce, ECHO), then=then)


@pytest.mark.parametrize("case", kept("resp", Case=Case))
def test_a_kept_reply_is_no_wrong_value(port: int, case: Case) -> None:
    asyncio.run(play(case, port))


@pytest.mark.slow
@effort
def test_no_reply_is_a_wrong_value_a_hang_or_another_exception(port: int, effort: int) -> None:
    explore(lambda case: asyncio.run(play(case, port)), cases(recorded(port)), 80 * effort)


def test_the_changed_replies_reach_every_exchange_of_a_lookup(port: int) -> None:
    """The login, the values, and the second question about keys without a value."""
    steps = {(case.kind, case.keys, case.step) for case in recorded(port)}
    assert {("string", "axhb", step) for step in range(4)} <= steps
    assert {("fields", "jxha", step) for step in range(3)} <= steps
