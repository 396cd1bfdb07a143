"""For keys with any content an answer equals the value that redis-py reads, on one server and in a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enrichkit.errors import PermanentError
from enrichkit.plugin import Failure
from enrichkit.worker.keys import encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from enrichkit.local import RedisServer
    from enrichkit.local.redis_cluster import RedisCluster

TAGGED = ["{tag}1", "{tag}2", "{tag}3", "{tag}4"]  # share a slot in a cluster
NAMES = ["a", "b:ü", "", "{other}1", *TAGGED]
FIELDS = ("f", "g")
READ: list[dict[str, Any]] = [{}, {"kind": "hash"}, {"kind": "hash", "fields": FIELDS}]

strings = st.binary(max_size=3)
hashes = st.dictionaries(st.sampled_from([b"f", b"g", b"other"]), st.binary(max_size=2), min_size=1)
odd = st.sampled_from([{b"\xff": b"1"}, {b"f": b"1", b"\xff": b""}, ["in a list"], {"in a set"}])


@st.composite
def contents_and_names(draw: st.DrawFn) -> tuple[dict[str, Any], list[str]]:
    """The content of a server, and keys to ask for: often all keys that it holds, often all of one type."""
    names = st.sampled_from(draw(st.sampled_from([NAMES, TAGGED])))
    contents = draw(
        st.dictionaries(names, strings, min_size=1)
        | st.dictionaries(names, hashes, min_size=1)
        | st.dictionaries(names, strings | hashes | odd, min_size=1)
    )
    some = st.lists(names, min_size=1, unique=True)
    return contents, draw(st.permutations(sorted(contents)) | some)


def fill(client: Any, contents: dict[str, Any]) -> None:
    for name, content in contents.items():
        match content:
            case bytes():
                client.set(name, content)
            case dict():
                client.hset(name, mapping=content)
            case list():
                client.rpush(name, *content)
            case _:
                client.sadd(name, *content)


def read(client: Any, name: str, fields: tuple[str, ...] = (), kind: str = "string") -> Any:
    """Return the expected answer to the key *name*; None for a miss."""
    try:
        if kind == "string":
            return client.get(name)
        found = client.hgetall(name)
    except redis.ResponseError:
        text = "The key holds another type of value in Redis than RedisConfig.kind says (WRONGTYPE)."
        return PermanentError, text, False
    if not found:
        return None
    if fields:
        return {field: found.get(field.encode()) for field in fields}
    if any(field == b"\xff" for field in found):
        text = (
            "The hash has a field whose name is not UTF-8; names become text. "
            "Name the fields to read in RedisConfig.fields."
        )
        return PermanentError, text, False
    return {field.decode(): value for field, value in found.items()}


def told(answers: dict[Any, Any]) -> dict[Any, Any]:
    """Return *answers* with the class and text of each error, because errors compare by identity."""
    return {
        key: (type(value.error), str(value.error), value.rejected) if isinstance(value, Failure) else value
        for key, value in answers.items()
    }


def check(client: Any, lookup: Callable[..., Any], url: str, asked: list[str], **fields: Any) -> None:
    in_columns, _ = encode([pa.array(asked)])
    for config in READ:
        found = {name: read(client, name, **config) for name in asked}
        expected = {name: value for name, value in found.items() if value is not None}
        assert expected == told(lookup(url, asked, **config, **fields))
        assert expected == told(lookup(url, in_columns, **config, **fields))


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents_and_names())
def test_an_answer_is_the_value_of_its_key(
    server: RedisServer, lookup: Callable[..., Any], case: tuple[dict[str, Any], list[str]]
) -> None:
    contents, asked = case
    server.flush()
    with redis.Redis(port=server.port, protocol=2) as client:
        fill(client, contents)
        check(client, lookup, server.url, asked)


@pytest.mark.slow
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents_and_names())
def test_an_answer_of_a_cluster_is_the_value_of_its_key(
    cluster: RedisCluster, lookup: Callable[..., Any], case: tuple[dict[str, Any], list[str]]
) -> None:
    contents, asked = case
    cluster.flush()
    client = redis.RedisCluster(host="127.0.0.1", port=cluster.ports[0], protocol=2)
    try:
        fill(client, contents)
        check(client, lookup, cluster.url, asked, cluster=True)
    finally:
        client.close()
