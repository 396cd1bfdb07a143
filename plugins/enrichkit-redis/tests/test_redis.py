"""The reads and writes of the connector on each kind of server: values, misses, hostile keys, kinds, refusals."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import platform
import subprocess
import sys
import threading
import traceback
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis
from enrichkit_redis import RedisConfig, RedisConnector
from enrichkit_redis.replies import translate

from enrichkit.errors import FatalError, PermanentError, TransientError, UnavailableError
from enrichkit.plugin import Answers, Call, Failure, Keys, Secret
from enrichkit.testing.bench import wait_until
from enrichkit.worker.keys import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from enrichkit.local import RedisServer

CALL = Call(timeout=5)
WRONG_TYPE = "The key holds another type of value in Redis than RedisConfig.kind says (WRONGTYPE)."


def wrong_type() -> Failure:
    return Failure(PermanentError(WRONG_TYPE))


def told(answers: dict[Any, Any]) -> dict[Any, Any]:
    """Return *answers* with the class and text of each error, because errors compare by identity."""
    return {
        key: (type(value.error), str(value.error), value.rejected) if isinstance(value, Failure) else value
        for key, value in answers.items()
    }


# Values


def test_values_come_back_under_their_keys_and_an_absent_key_is_absent(server, client, lookup):
    client.mset({"a": "1", "b": "", "user:ü'": "x"})

    assert lookup(server.url, ["b", "gone", "user:ü'", "a", "also gone"]) == {"a": b"1", "b": b"", "user:ü'": b"x"}
    assert lookup(server.url, ["gone"]) == {}


def test_a_value_is_the_unchanged_bytes(server, client, lookup):
    values = {
        "all": bytes(range(256)),
        "pickle": pickle.dumps(print),
        "not utf-8": b"\xff\xfe",
        "crlf": b"$3\r\nabc\r\n-ERR\r\n",
        "long": b"x" * 3_000_000,
    }
    client.mset(values)

    assert values == lookup(server.url, list(values))


@pytest.mark.parametrize("size", [1, 2, 500, 5000])
def test_a_group_of_any_size_is_answered_key_by_key(server, client, lookup, size):
    client.mset({f"u:{n}": f"v{n}" for n in range(size)})

    assert {n: b"v%d" % n for n in range(size)} == lookup(server.url, list(range(size + 3)), key="u:{}")


def test_numbers_dates_and_bytes_are_keys(server, client, lookup):
    client.mset({"k1": "int", "k1.0": "float", "k2.50": "decimal", "k2024-02-29": "date", b"k\xff\xfe": "bytes"})

    assert lookup(server.url, [1, "1"], key="k{}") == {1: b"int", "1": b"int"}
    keys = [Decimal("2.50"), date(2024, 2, 29), b"\xff\xfe"]
    assert dict(zip(keys, [b"decimal", b"date", b"bytes"], strict=True)) == lookup(server.url, keys, key="k{}")
    assert lookup(server.url, [1.0], key="k{}") == {1.0: b"float"}


def test_with_many_a_value_is_a_list_of_one(server, client, lookup):
    client.set("a", "1")
    client.rpush("list", "x")

    found = lookup(server.url, ["a", "gone", "list"], many=True)

    assert {"a": [b"1"], "list": (PermanentError, WRONG_TYPE, False)} == told(found)


def test_a_database_other_than_0_is_selected(server, client, lookup):
    with redis.Redis(port=server.port, db=3, protocol=2) as third:
        third.set("a", "third")
    client.set("a", "zeroth")

    assert lookup(f"redis://127.0.0.1:{server.port}/3", ["a"]) == {"a": b"third"}
    assert lookup(server.url, ["a"]) == {"a": b"zeroth"}


def test_a_unix_socket_is_reached(server, client, proxy, connected, tmp_path: Path):
    client.set("a", "1")

    async def main() -> dict[Any, Any]:
        async with proxy(server.port, path=str(tmp_path / "s")), connected(f"unix://{tmp_path}/s?db=0") as connector:
            return await connector.fetch_many(["a"], CALL)

    assert asyncio.run(main()) == {"a": b"1"}


# Hostile keys


@pytest.mark.parametrize(
    "key",
    [
        "a\r\n*1\r\n$8\r\nFLUSHALL\r\n",
        "\x00",
        b"\xff\xfe",
        "",
        " ",
        "*",
        "?",
        "[a-z]",
        "{x}",
        "k" * 65536,
        "' OR 1=1--",
        "\r\n",
        "%s{}%(a)s",
    ],
)
def test_a_hostile_key_is_data(server, client, lookup, key):
    client.set("untouched", "1")

    assert lookup(server.url, [key]) == {}

    client.set(key, "mine")
    assert {key: b"mine", "untouched": b"1"} == lookup(server.url, ["untouched", key])
    assert client.dbsize() == 2


@pytest.mark.parametrize("key", ["\ud800", True, float("nan"), "k" * 2**20])
def test_a_key_that_redis_cannot_hold_is_rejected_and_the_others_are_answered(server, client, lookup, key):
    client.mset({"a": "1", "True": "wrong", "nan": "wrong"})

    found = lookup(server.url, ["a", key, "b"])

    assert {"a", key} == set(found)
    assert found["a"] == b"1"
    assert found[key].rejected


def test_a_call_of_rejected_keys_only_sends_nothing(lookup):
    found = lookup("redis://127.0.0.1:1", [True])  # no server listens on port 1

    assert found[True].rejected


def test_a_part_of_a_key_cannot_reach_into_another_part(server, client, lookup):
    client.mset({"t:a%3Ab:c": "first", "t:a:b%3Ac": "second", "t:a:b:c": "nobody's"})

    found = lookup(server.url, [("a:b", "c"), ("a", "b:c")], key="t:{}:{}")

    assert found == {("a:b", "c"): b"first", ("a", "b:c"): b"second"}


# Keys of another type: never a silent null


@pytest.mark.parametrize("kind", ["string", "json"])
def test_a_key_of_another_type_fails_alone(server, client, lookup, kind):
    client.set("a", "1")
    client.hset("hash", "f", "1")
    client.rpush("list", "1")
    client.sadd("set", "1")

    found = lookup(server.url, ["hash", "a", "gone", "list", "set"], kind=kind)

    failure = (PermanentError, WRONG_TYPE, False)
    assert {"a": b"1", "hash": failure, "list": failure, "set": failure} == told(found)


@pytest.mark.parametrize("fields", [(), ("f",)])
def test_a_hash_of_another_type_fails_alone(server, client, lookup, fields):
    client.hset("a", "f", "1")
    client.set("string", "1")

    found = lookup(server.url, ["string", "gone", "a"], kind="hash", fields=fields)

    assert {"a": {"f": b"1"}, "string": (PermanentError, WRONG_TYPE, False)} == told(found)


def between(proxy: Any, command: bytes, act: Callable[[], object]) -> None:
    """Run *act* when the connector sends *command* for the first time, before the server receives it."""
    pending = [act]

    def on_request(data: bytes) -> None:
        if command in data and pending:
            pending.pop()()

    proxy.on_request = on_request


@pytest.mark.parametrize(
    ("before", "then", "expected"),
    [
        (None, lambda c: c.set("k", "new"), {"k": b"new"}),
        (None, lambda c: c.hset("k", "f", "1"), {"k": (PermanentError, WRONG_TYPE, False)}),
        (lambda c: c.hset("k", "f", "1"), lambda c: c.delete("k"), {}),
        (lambda c: c.hset("k", "f", "1"), lambda c: c.set("k", "new"), {"k": b"new"}),
    ],
    ids=["set", "hset", "deleted", "replaced"],
)
def test_a_write_between_the_two_commands_gives_one_state_or_the_other(
    server, client, proxy, connected, before, then, expected
):
    if before is not None:
        before(client)

    async def main() -> dict[Any, Any]:
        async with proxy(server.port) as p, connected(f"redis://127.0.0.1:{p.port}") as connector:
            between(p, b"EXISTS", lambda: then(client))
            return await connector.fetch_many(["k"], CALL)

    assert expected == told(asyncio.run(main()))


@pytest.mark.parametrize(
    ("then", "expected"),
    [
        (lambda c: c.hset("k", "f", "1"), {"k": {"f": b"1", "g": None}}),
        (lambda c: c.hset("k", "other", "1"), {"k": {"f": None, "g": None}}),
        (lambda c: c.set("k", "1"), {"k": (PermanentError, WRONG_TYPE, False)}),
    ],
    ids=["field", "other field", "string"],
)
def test_a_hash_written_between_the_two_commands_is_read_whole(server, client, proxy, connected, then, expected):
    async def main() -> dict[Any, Any]:
        async with (
            proxy(server.port) as p,
            connected(f"redis://127.0.0.1:{p.port}", kind="hash", fields=("f", "g")) as connector,
        ):
            between(p, b"MULTI", lambda: then(client))
            return await connector.fetch_many(["k"], CALL)

    assert expected == told(asyncio.run(main()))


# Invalid replies


def instead(proxy: Any, *replies: bytes) -> None:
    """Replace the replies of the first exchanges by these, between the right echoes; later replies are the server's."""
    left = list(replies)

    def on_reply(reply: bytes) -> bytes:
        echo = b"$24\r\n"
        return reply[:31] + left.pop(0) + reply[-31:] if left and reply.startswith(echo) else reply

    proxy.on_reply = on_reply


QUEUED = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n"


@pytest.mark.parametrize(
    ("fields", "replies", "command"),
    [
        ({}, [b":1\r\n"], "MGET"),
        ({}, [b"*1\r\n$1\r\nx\r\n"], "MGET"),
        ({}, [b"*2\r\n$1\r\nx\r\n:1\r\n"], "MGET"),
        ({}, [b"*2\r\n$-1\r\n$-1\r\n", b":2\r\n", b"$1\r\nx\r\n:1\r\n"], "GET"),
        ({"kind": "hash"}, [b"*0\r\n:1\r\n"], "HGETALL"),
        ({"kind": "hash"}, [b"*0\r\n*1\r\n$1\r\nf\r\n"], "HGETALL"),
        ({"kind": "hash"}, [b"*0\r\n*2\r\n:1\r\n$1\r\nx\r\n"], "HGETALL"),
        ({"kind": "hash", "fields": ("f",)}, [b"*1\r\n$1\r\nx\r\n:1\r\n"], "HMGET"),
        ({"kind": "hash", "fields": ("f",)}, [b"*1\r\n$1\r\nx\r\n*2\r\n$1\r\nx\r\n$1\r\ny\r\n"], "HMGET"),
        ({"kind": "hash", "fields": ("f",)}, [b"*1\r\n$-1\r\n" * 2, 2 * (QUEUED + b"*1\r\n:1\r\n")], "EXEC"),
        ({"kind": "hash", "fields": ("f",)}, [b"*1\r\n$-1\r\n" * 2, 2 * (QUEUED + b"*2\r\n:1\r\n:1\r\n")], "HMGET"),
        (
            {"kind": "hash", "fields": ("f",)},
            [b"*1\r\n$-1\r\n" * 2, 2 * (QUEUED + b"*2\r\n*1\r\n$-1\r\n+1\r\n")],
            "EXISTS",
        ),
    ],
)
def test_an_answer_of_another_form_is_not_used(server, client, proxy, connected, fields, replies, command):
    async def main() -> None:
        async with proxy(server.port) as p, connected(f"redis://127.0.0.1:{p.port}", **fields) as connector:
            instead(p, *replies)
            with pytest.raises(TransientError) as caught:
                await connector.fetch_many(["a", "b"], CALL)
            assert str(caught.value) == f"Redis answered {command} in an unknown form; the answer was not used."
            assert await connector.fetch_many(["a", "b"], CALL) == {}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("refused", "error", "text"),
    [
        (b"ERR backend is down", PermanentError, "Redis answered with an error (ERR)."),
        (b"LOADING Redis is loading", UnavailableError, "Redis loads its data (LOADING)."),
        (b"WRONGTYPE Operation against a key", PermanentError, WRONG_TYPE),
    ],
    ids=["error", "loading", "wrong type"],
)
def test_an_error_for_one_key_in_a_list_of_values_is_that_keys_error(
    server, client, proxy, connected, refused, error, text
):
    """A proxy in front of several servers may send such a reply."""

    async def main() -> dict[Any, Any]:
        async with proxy(server.port) as p, connected(f"redis://127.0.0.1:{p.port}") as connector:
            instead(p, b"*3\r\n$2\r\nv1\r\n-%b\r\n$-1\r\n" % refused)
            return await connector.fetch_many(["a", "b", "gone"], CALL)

    assert {"a": b"v1", "b": (error, text, False)} == told(asyncio.run(main()))


def test_an_error_in_a_list_of_values_that_concerns_all_keys_fails_the_task(server, client, proxy, connected):
    async def main() -> None:
        async with proxy(server.port) as p, connected(f"redis://127.0.0.1:{p.port}") as connector:
            instead(p, b"*2\r\n$2\r\nv1\r\n-NOAUTH Authentication required.\r\n")
            await connector.fetch_many(["a", "b"], CALL)

    with pytest.raises(FatalError) as caught:
        asyncio.run(main())

    assert str(caught.value) == (
        "Redis wants a password and got none. Check RedisConfig.username and RedisConfig.password. (NOAUTH)."
    )


# Hashes and JSON


def test_a_hash_is_read_whole_or_by_field(server, client, lookup):
    client.hset("a", mapping={"name": "Ann", "tier": "3", "blob": b"\xff"})
    client.hset("b", mapping={"name": "Bob"})
    client.hset("c", mapping={"other": "x"})

    assert lookup(server.url, ["a", "b", "c", "gone"], kind="hash") == {
        "a": {"name": b"Ann", "tier": b"3", "blob": b"\xff"},
        "b": {"name": b"Bob"},
        "c": {"other": b"x"},
    }
    assert lookup(server.url, ["a", "b", "c", "gone"], kind="hash", fields=("tier", "name")) == {
        "a": {"tier": b"3", "name": b"Ann"},
        "b": {"tier": None, "name": b"Bob"},
        "c": {"tier": None, "name": None},
    }


def test_a_field_name_that_is_not_text_fails_its_key_alone(server, client, lookup):
    client.hset("a", mapping={b"\xff": "1", "n": "1"})
    client.hset("b", mapping={"n": "1"})

    text = (
        "The hash has a field whose name is not UTF-8; names become text. "
        "Name the fields to read in RedisConfig.fields."
    )
    assert {"a": (PermanentError, text, False), "b": {"n": b"1"}} == told(lookup(server.url, ["a", "b"], kind="hash"))
    assert lookup(server.url, ["a"], kind="hash", fields=("n",)) == {"a": {"n": b"1"}}


def test_the_type_and_the_encoding_of_a_value_follow_the_kind():
    def of(**fields: Any) -> tuple[str, str]:
        connector = RedisConnector(RedisConfig(**fields))
        return asyncio.run(connector.describe()), connector.encoding

    assert of() == ("string", "text")
    assert of(kind="json") == ("string", "json")
    assert of(kind="json", returns="name string") == ("name string", "json")
    assert of(kind="hash") == ("map<string,string>", "text")
    assert of(kind="hash", fields=("name", "a`b")) == ("struct<`name`:string,`a``b`:string>", "text")


# Keys in columns


def in_columns(*columns: Any) -> Keys:
    """Return keys in *columns* as the engine passes them; texts that are given as bytes need not be UTF-8."""
    return encode([column if isinstance(column, pa.Array) else pa.array(column) for column in columns])[0]


def raw(*texts: bytes) -> pa.Array[Any]:
    return pa.array(texts, pa.binary()).view(pa.string())


@pytest.fixture
def stored(client):
    """The client of a server that holds strings, hashes, documents, a list, and values under hostile keys."""
    client.mset({"a": "1", "b": "", "user:ü'": "x", "json": '{"n": 1}', "7": "seven", "-3": "three", "1.0": "float"})
    client.mset({"u:1": "v1", "u:2": "v2", "u:-5": "v-5", "2024-02-29": "date", "2.50": "decimal", b"\xff": "bytes"})
    client.mset({"t:a%3Ab:1": "first", "t:a:2": "second", "%2D1-a": "minus", "2-a": "plus"})
    client.mset({"a\r\n*1\r\n$8\r\nFLUSHALL\r\n": "crlf", "\0": "nul", "": "empty", "{x}": "tag", "k" * 9000: "long"})
    client.hset("h1", mapping={"name": "Ann", "tier": "3"})
    client.hset("h2", mapping={"name": "Bob"})
    client.hset("h3", mapping={"other": "x"})
    client.rpush("list", "1")
    return client


HOSTILE = ["a\r\n*1\r\n$8\r\nFLUSHALL\r\n", "", "\0", "{x}", "k" * 9000, "*", "%s{}%(a)s", "\r\n"]


@pytest.mark.parametrize(
    ("columns", "fields", "values", "failures"),
    [
        ([["user:ü'", "b", "a"]], {}, 3, 0),
        ([["b", "gone", "a", "also gone"]], {}, 2, 0),
        ([["gone", "also gone"]], {}, 0, 0),
        ([["h1", "a", "gone", "list"]], {}, 1, 2),
        ([["a", "gone", "list"]], {"many": True}, 1, 1),
        ([HOSTILE], {}, 5, 0),
        ([raw(b"a", b"\xff", b"gone", b"\xed\xa0\x80", b"b")], {}, 2, 2),
        ([["a", "k" * 2**17, "b"]], {}, 2, 1),
        ([pa.array(["a", "gone", "b"], pa.large_string())], {}, 2, 0),
        ([pa.array([7, 8, -3])], {}, 2, 0),
        ([pa.array([7, 8, -3], pa.int8())], {"many": True}, 2, 0),
        ([pa.array([1, 2, 3, -5], pa.int32())], {"key": "u:{}"}, 3, 0),
        ([[1.0, 2.5]], {}, 1, 0),
        ([[Decimal("2.50"), Decimal("2.51")]], {}, 1, 0),
        ([[date(2024, 2, 29)]], {}, 1, 0),
        ([[b"\xff", b"a", b"\xfe"]], {}, 2, 0),
        ([[True, False]], {}, 0, 2),
        ([["a:b", "a", "a"], [1, 2, 3]], {"key": "t:{}:{}"}, 2, 0),
        ([["a", "a"], [-1, 2]], {"key": "{1}-{0}"}, 2, 0),
        ([raw(b"a:b", b"\xff", b"a"), [1, 2, 2]], {"key": "t:{}:{}"}, 2, 1),
        ([["h1", "h2", "h3"]], {"kind": "hash"}, 3, 0),
        ([["h1", "gone", "a", "h2", "list"]], {"kind": "hash"}, 2, 2),
        ([["h2", "h1"]], {"kind": "hash", "fields": ("name",)}, 2, 0),
        ([["h2", "h1"]], {"kind": "hash", "fields": ("tier", "name")}, 2, 0),
        ([["h1", "gone", "a", "h2", "h3"]], {"kind": "hash", "fields": ("tier", "name")}, 3, 1),
        ([["json", "gone", "h1"]], {"kind": "json"}, 1, 1),
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_keys_in_columns_get_the_same_answers_as_a_list_of_them(
    server, stored, lookup, columns, fields, values, failures, first
):
    keys = in_columns(*columns)[first:]
    if not keys:
        keys = in_columns(*columns)

    found = lookup(server.url, keys, **fields)

    assert told(lookup(server.url, list(keys), **fields)) == told(found)
    assert [*map(type, found)] == [type(key) for key in found]
    if first == 0:
        failed = sum(isinstance(value, Failure) for value in found.values())
        assert (values, failures) == (len(found) - failed, failed)


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        ([["user:ü'", "b", "a"]], {}),
        ([pa.array([7, -3])], {}),
        ([["a:b", "a"], [1, 2]], {"key": "t:{}:{}"}),
        ([["h2", "h1"]], {"kind": "hash", "fields": ("name",)}),
    ],
)
def test_keys_that_all_have_a_value_get_it_without_an_object_for_each(server, stored, connected, columns, fields):
    def objects() -> list[Any]:
        raise AssertionError

    keys = Keys(in_columns(*columns).columns, objects)

    async def main() -> Any:
        async with connected(server.url, **fields) as connector:
            return await connector.fetch_many(keys, CALL)

    answers = asyncio.run(main())
    assert isinstance(answers, Answers)
    assert answers.found is keys


def test_keys_with_another_number_of_columns_than_the_template_fail_the_task(server, client, lookup):
    said = []
    for keys in (in_columns(["a"], ["b"]), [("a", "b")]):
        with pytest.raises(FatalError) as caught:
            lookup(server.url, keys, key="user:{}")
        said.append(str(caught.value))
    assert said[0] == said[1]


# Writing


@pytest.mark.parametrize("kind", ["string", "json"])
def test_a_stored_value_is_found_until_it_expires(server, client, connected, kind):
    async def main() -> tuple[Any, ...]:
        async with connected(server.url, key="c:{}", kind=kind) as connector:
            await connector.store_many({"a": b"1", "b": "\u00fc", "none": None}, 60.0)
            await connector.store_many({1: b"2"}, None)
            await connector.store_many({}, None)
            return await connector.fetch_many(["a", "b", 1, "none"], CALL)

    assert {"a": b"1", "b": "ü".encode(), 1: b"2"} == asyncio.run(main())
    assert 59_000 < client.pttl("c:a") <= 60_000
    assert client.pttl("c:1") == -1
    assert client.dbsize() == 3


@pytest.mark.parametrize(
    ("kind", "values", "error", "text"),
    [
        (
            "hash",
            {"a": {"f": b"1"}},
            FatalError,
            "RedisConfig.kind is 'hash'; only 'string' and 'json' can be written. Use one of them to store values.",
        ),
        (
            "string",
            {"a": 1},
            PermanentError,
            "A value to store is a int; it must be str or bytes. Encode it first.",
        ),
        (
            "string",
            {"\ud800": b"1"},
            PermanentError,
            (
                "The key holds a lone surrogate; a Redis key is bytes, so its text must be valid Unicode. "
                "Clean the column."
            ),
        ),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused(server, client, connected, kind, values, error, text):
    async def main() -> None:
        async with connected(server.url, kind=kind) as connector:
            await connector.store_many(values, None)

    with pytest.raises(error) as caught:
        asyncio.run(main())

    assert text == str(caught.value)
    assert client.dbsize() == 0


def test_writing_to_a_replica_and_to_a_full_server_may_be_tried_again(server, client, connected):
    async def store() -> None:
        async with connected(server.url) as connector:
            await connector.store_many({"a": b"1"}, None)

    client.replicaof("127.0.0.1", 1)
    try:
        with pytest.raises(UnavailableError) as caught:
            asyncio.run(store())
        assert str(caught.value) == "Redis is a read-only replica (READONLY)."
    finally:
        client.replicaof("NO", "ONE")
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(TransientError) as full:
            asyncio.run(store())
        assert (type(full.value), str(full.value)) == (TransientError, "Redis is out of memory (OOM).")
    finally:
        client.config_set("maxmemory", 0)


# Login and permissions


@pytest.fixture
def password(client: redis.Redis) -> Iterator[str]:
    """The password that the server requires during the test."""
    word = "S3cret@:/%#"
    client.config_set("requirepass", word)
    yield word
    client.config_set("requirepass", "")


def refusal(lookup: Callable[..., Any], url: str, **fields: Any) -> str:
    with pytest.raises(FatalError) as caught:
        lookup(url, ["alice@example.test"], **fields)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


def test_a_password_comes_from_the_url_the_config_a_variable_or_a_file(
    server, client, lookup, password, monkeypatch, tmp_path
):
    client.set("a", "1")
    monkeypatch.setenv("MY_REDIS_PASSWORD", password)
    (tmp_path / "secret").write_text(password + "\n")

    assert lookup(f"redis://:S3cret%40%3A%2F%25%23@127.0.0.1:{server.port}", ["a"]) == {"a": b"1"}
    assert lookup(server.url, ["a"], password=password) == {"a": b"1"}
    assert lookup(server.url, ["a"], password=password, username="default") == {"a": b"1"}
    assert lookup(server.url, ["a"], password=Secret.env("MY_REDIS_PASSWORD")) == {"a": b"1"}
    assert lookup(server.url, ["a"], password=Secret.file(str(tmp_path / "secret"))) == {"a": b"1"}


def test_a_refused_login_fails_the_task_without_showing_a_secret(server, lookup, password):
    where = f"Redis at 127.0.0.1:{server.port}"
    check = "Check RedisConfig.username and RedisConfig.password."

    assert f"{where} wants a password and got none. {check} (NOAUTH)." == refusal(lookup, server.url)
    assert f"{where} refused the username or the password. {check} (WRONGPASS)." == refusal(
        lookup, server.url, password="Wr0ng"
    )
    assert f"{where} refused the username or the password. {check} (WRONGPASS)." == refusal(
        lookup, server.url, username="ann", password=password
    )


def test_a_password_for_a_server_without_one_is_reported(server, client, lookup):
    text = refusal(lookup, server.url, password="Wr0ng")

    assert text == (
        f"Redis at 127.0.0.1:{server.port} wants no password, but got one. "
        "Check RedisConfig.username and RedisConfig.password. (ERR)."
    )


def test_a_missing_secret_is_named(server, lookup, monkeypatch):
    monkeypatch.delenv("NO_SUCH_PASSWORD", raising=False)

    text = refusal(lookup, server.url, password=Secret.env("NO_SUCH_PASSWORD"))

    machine = platform.node()
    assert (
        text == f"The environment variable NO_SUCH_PASSWORD is not set on this machine ({machine}); a Secret names it."
    )


def test_the_frames_of_an_error_hold_no_password(server, client, lookup, password, monkeypatch):
    monkeypatch.setenv("MY_REDIS_PASSWORD", "Wr0ng" + "-1")

    with pytest.raises(FatalError) as caught:
        lookup(server.url, ["a"], password=Secret.env("MY_REDIS_PASSWORD"))

    told = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert "WRONGPASS" in "".join(told.format())
    assert "Wr0ng-1" not in "".join(told.format())


def test_a_wrong_login_is_tried_at_most_twice_until_it_changes(server, client, connected, password, tmp_path):
    client.set("a", "1")
    client.config_resetstat()
    secret = tmp_path / "secret"
    secret.write_text("Wr0ng")

    async def main() -> dict[Any, Any]:
        async with connected(server.url, password=Secret.file(str(secret))) as connector:
            calls = (connector.fetch_many(["a"], CALL) for _ in range(8))
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert [FatalError] * 8 == list(map(type, errors))
            with pytest.raises(FatalError):
                await connector.fetch_many(["a"], CALL)
            secret.write_text(password)
            return await connector.fetch_many(["a"], CALL)

    assert asyncio.run(main()) == {"a": b"1"}
    assert client.info("commandstats")["cmdstat_auth"]["calls"] <= 3


@pytest.fixture
def ann(client: redis.Redis) -> Iterator[Callable[..., dict[str, str]]]:
    """`ann(*rules)`: make a user with these ACL rules, and return the login."""

    def make(*rules: str) -> dict[str, str]:
        client.execute_command("ACL", "SETUSER", "ann", "reset", "on", ">S3cret", *rules)
        return {"username": "ann", "password": "S3cret"}

    yield make
    client.execute_command("ACL", "DELUSER", "ann")


def test_a_user_needs_only_the_commands_of_the_readme(server, client, lookup, ann):
    client.set("user:a", "1")
    client.hset("user:h", "f", "1")
    keys = ["user:a", "user:gone", "user:h"]

    login = ann("~user:*", "+echo", "+mget", "+get", "+exists")
    assert {"user:a": b"1", "user:h": (PermanentError, WRONG_TYPE, False)} == told(lookup(server.url, keys, **login))
    login = ann("~user:*", "+echo", "+hgetall")
    assert lookup(server.url, keys[1:], kind="hash", **login) == {"user:h": {"f": b"1"}}
    login = ann("~user:*", "+echo", "+hmget", "+exists", "+multi", "+exec")
    assert lookup(server.url, keys[1:], kind="hash", fields=("f",), **login) == {"user:h": {"f": b"1"}}


def test_a_command_that_is_not_permitted_fails_the_task(server, client, lookup, ann):
    text = refusal(lookup, server.url, **ann("~*", "+echo"))

    assert text == (
        "Redis does not offer a command that the connector needs, or does not permit it to this user (NOPERM). "
        "The README of enrichkit-redis lists them."
    )


def test_a_key_that_is_not_permitted_fails_alone(server, client, lookup, ann):
    login = ann("~user:*", "+@all")

    with pytest.raises(PermanentError) as caught:
        lookup(server.url, ["user:a", "alice@example.test"], **login)

    assert str(caught.value) == "Redis does not permit this user to read the key; see its ACL (NOPERM)."
    assert lookup(server.url, ["user:a"], **login) == {}


def test_a_database_that_does_not_exist_fails_the_task(server, lookup):
    assert refusal(lookup, f"redis://127.0.0.1:{server.port}/99") == (
        f"Redis at 127.0.0.1:{server.port} has no database of that number; check the end of RedisConfig.url (ERR)."
    )


def test_too_many_clients_may_be_tried_again(server, client, lookup):
    client.ping()
    client.config_set("maxclients", 1)
    try:
        with pytest.raises(UnavailableError) as caught:
            lookup(server.url, ["a"])
    finally:
        client.config_set("maxclients", 10000)

    assert f"Redis at 127.0.0.1:{server.port} has its maximum number of clients (ERR)." == str(caught.value)
    assert (caught.value.node, caught.value.sent, caught.value.retry_after) == (None, False, None)
    assert caught.value.busy


def test_a_running_script_makes_calls_wait_and_may_be_tried_again(server, client, lookup):
    client.config_set("lua-time-limit", 1)

    def run_until_killed() -> None:
        with contextlib.suppress(redis.RedisError):
            client.eval("while true do end", 0)

    script = threading.Thread(target=run_until_killed)
    script.start()
    try:
        with redis.Redis(port=server.port, protocol=2) as other:
            while True:  # until the server replies BUSY, a lookup waits
                try:
                    other.ping()
                except redis.exceptions.ResponseError:
                    break
            with pytest.raises(UnavailableError) as caught:
                lookup(server.url, ["a"])
            other.script_kill()
    finally:
        script.join()

    text = f"Redis at 127.0.0.1:{server.port} runs a script (BUSY)."
    assert (text, True) == (str(caught.value), caught.value.busy)


@pytest.mark.parametrize(
    ("reply", "error", "text"),
    [
        ("LOADING Redis is loading the dataset in memory", UnavailableError, "R loads its data (LOADING)."),
        ("TRYAGAIN Multiple keys request during rehashing", TransientError, "R moves the keys' slot (TRYAGAIN)."),
        ("ASK 1 h:1", TransientError, "R moves the key's slot to another node (ASK)."),
        (
            "MOVED 1 h:1",
            TransientError,
            ("R does not hold the key's slot; if it is one node of a cluster, say RedisConfig(cluster=True) (MOVED)."),
        ),
        ("CLUSTERDOWN Hash slot not served", UnavailableError, "R belongs to a cluster that is down (CLUSTERDOWN)."),
        ("MASTERDOWN Link with MASTER is down", UnavailableError, "R lost its master (MASTERDOWN)."),
        ("READONLY You can't write", UnavailableError, "R is a read-only replica (READONLY)."),
        ("MISCONF Redis is configured to save", TransientError, "R cannot save its data (MISCONF)."),
        ("NOREPLICAS Not enough good replicas", TransientError, "R has too few replicas to write (NOREPLICAS)."),
        ("EXECABORT Transaction discarded", TransientError, "R aborted a transaction (EXECABORT)."),
        ("UNBLOCKED force unblock from blocking operation", TransientError, "R changed its role (UNBLOCKED)."),
        (
            "ERR max number of clients + cluster connections reached",
            UnavailableError,
            "R has its maximum number of clients (ERR).",
        ),
        ("ERR max + cluster connections reached", UnavailableError, "R has its maximum number of clients (ERR)."),
        ("BUSY Redis is busy running a script", UnavailableError, "R runs a script (BUSY)."),
        ("OOM command not allowed", TransientError, "R is out of memory (OOM)."),
        ("LIMIT max clients", UnavailableError, "R has reached its limit of clients or requests (LIMIT)."),
        (
            "ERR max requests limit exceeded. Limit: 500000, Usage: 500000",
            UnavailableError,
            "R has reached its limit of clients or requests (ERR).",
        ),
        (
            "ERR max daily request limit exceeded",
            UnavailableError,
            "R has reached its limit of clients or requests (ERR).",
        ),
        ("ERR odd key 'ERR max requests limit'", PermanentError, "R answered with an error (ERR)."),
        (
            "ERR invalid password",
            FatalError,
            ("R refused the username or the password. Check RedisConfig.username and RedisConfig.password. (ERR)."),
        ),
        (
            "ERR Client sent AUTH, but no password is set",
            FatalError,
            "R wants no password, but got one. Check RedisConfig.username and RedisConfig.password. (ERR).",
        ),
        (
            "ERR invalid DB index",
            FatalError,
            "R has no database of that number; check the end of RedisConfig.url (ERR).",
        ),
        (
            "ERR unknown subcommand 'SLOTS'. Try CLUSTER HELP.",
            FatalError,
            (
                "R does not offer a command that the connector needs, or does not permit it to this user (ERR). "
                "The README of enrichkit-redis lists them."
            ),
        ),
        (
            "CROSSSLOT Keys in request don't hash to the same slot",
            FatalError,
            "R is a node of a cluster; say RedisConfig(cluster=True) (CROSSSLOT).",
        ),
        (
            "DENIED Redis is running in protected mode",
            FatalError,
            (
                "R is in protected mode and refuses clients of other hosts; give it a password, "
                "or bind it to an address (DENIED)."
            ),
        ),
        (
            "ERR unknown command 'MGET', with args beginning with: 'alice@example.test' ",
            FatalError,
            (
                "R does not offer a command that the connector needs, or does not permit it to this user (ERR). "
                "The README of enrichkit-redis lists them."
            ),
        ),
        ("ERR 'alice@example.test' is odd", PermanentError, "R answered with an error (ERR)."),
        ("alice@example.test", PermanentError, "R answered with an error (no code)."),
    ],
)
def test_an_error_of_the_server_becomes_a_message_without_its_text(reply, error, text):
    found = translate(RuntimeError(reply), "R")

    assert (error, text) == (type(found), str(found))


@pytest.mark.parametrize(
    ("reply", "busy"),
    [
        ("ERR max number of clients reached", True),
        ("ERR max number of clients + cluster connections reached", True),
        ("LIMIT max clients", True),
        ("ERR max requests limit exceeded", True),
        ("BUSY Redis is busy running a script", True),
        ("LOADING Redis is loading the dataset in memory", False),
        ("MASTERDOWN Link with MASTER is down", False),
        ("READONLY You can't write", False),
        ("CLUSTERDOWN Hash slot not served", False),
    ],
)
def test_a_reply_about_the_load_of_the_server_says_so(reply, busy):
    found = translate(RuntimeError(reply), "R")

    assert isinstance(found, UnavailableError)
    assert found.busy is busy


# Connections


def clients_of(client: redis.Redis) -> int:
    return sum(entry["name"] == "enrichkit" for entry in client.client_list())


def test_there_are_never_more_connections_than_capacity(server: RedisServer, client, connected):
    client.mset({str(n): f"v{n}" for n in range(100)})

    async def main() -> int:
        async with connected(server.url, capacity=3) as connector:
            answers = await asyncio.gather(*(connector.fetch_many([n], CALL) for n in range(100)))
            assert [{n: b"v%d" % n} for n in range(100)] == answers
            return clients_of(client)

    assert 1 <= asyncio.run(main()) <= 3
    assert wait_until(lambda: clients_of(client) == 0), "the server notices a closed connection a moment later"


def test_the_driver_is_loaded_by_open_and_not_before():
    program = (
        "import sys, enrichkit_redis as r; r.RedisConnector(r.RedisConfig()); print('hiredis' in sys.modules, end='')"
    )

    assert subprocess.check_output([sys.executable, "-c", program]) == b"False"


def test_no_connection_is_made_before_the_first_lookup():
    async def main() -> None:
        connector = RedisConnector(RedisConfig(url="redis://127.0.0.1:1", password=Secret.env("NO_SUCH_PASSWORD")))
        await connector.open()
        assert await connector.describe() == "string"
        await connector.close()
        await connector.close()

    asyncio.run(main())


def test_a_connector_that_is_not_open_says_so():
    with pytest.raises(FatalError) as caught:
        asyncio.run(RedisConnector(RedisConfig()).fetch_many(["a"], CALL))

    assert str(caught.value) == "The redis connector is not open; open() must come before the first lookup."


def test_a_connector_opens_again_on_another_loop(server, client):
    client.set("a", "1")
    connector = RedisConnector(RedisConfig(url=server.url))

    async def once() -> dict[Any, Any]:
        await connector.open()
        try:
            return dict(await connector.fetch_many(["a"], CALL))
        finally:
            await connector.close()
            await asyncio.sleep(0)

    assert [asyncio.run(once()), asyncio.run(once())] == [{"a": b"1"}] * 2
