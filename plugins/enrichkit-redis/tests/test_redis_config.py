"""The configs that the driver refuses, with whole messages, and the names of key columns. No server."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal

import pytest
from enrichkit_redis import RedisConfig, RedisConnector, enrichkit_connector
from enrichkit_redis.config import parse_url
from enrichkit_redis.template import KeyTemplate
from hypothesis import given
from hypothesis import strategies as st

from enrichkit.errors import ConfigError, FatalError, PermanentError
from enrichkit.interface import connector_of
from enrichkit.plugin import Secret, hookimpl

UNREADABLE = (
    "RedisConfig.url cannot be read; it must look like 'redis://user:password@host:port/database'. Percent-encode the "
    "characters @ : / ? # % of the password, or give it apart: password=Secret.env('REDIS_PASSWORD')."
)

ALLOWED = "it must be a str, bytes, int, finite Decimal, date, or float other than NaN. Cast the column to string."
SURROGATE = "The key holds a lone surrogate; a Redis key is bytes, so its text must be valid Unicode. Clean the column."


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"url": "http://localhost"},
            (
                "RedisConfig.url starts with 'http'; it must start with 'redis://' or 'rediss://', "
                "for example 'redis://localhost:6379/0'."
            ),
        ),
        (
            {"url": "S3cret@localhost"},
            (
                "RedisConfig.url starts with no scheme; it must start with 'redis://' or 'rediss://', "
                "for example 'redis://localhost:6379/0'."
            ),
        ),
        ({"url": "redis://:S3cret/x@localhost"}, UNREADABLE),
        ({"url": "redis://:S3cret#x@localhost"}, UNREADABLE),
        ({"url": "redis://:S3?cret@localhost"}, UNREADABLE),
        ({"url": "redis://localhost:70000"}, UNREADABLE),
        (
            {"url": "redis://localhost/users"},
            (
                "RedisConfig.url names the database 'users'; it must be a number from 0, "
                "for example 'redis://localhost:6379/0'."
            ),
        ),
        (
            {"url": "redis://localhost?socket_timeout=5"},
            (
                "RedisConfig.url has the option 'socket_timeout'; it may have 'db' and 'ssl_cert_reqs'. "
                "Give the rest as fields of RedisConfig."
            ),
        ),
        (
            {"url": "rediss://localhost?ssl_cert_reqs=none"},
            (
                "RedisConfig.url asks for ssl_cert_reqs=none or optional; the server's certificate must be checked. "
                "Remove it and name your authority's file in tls_ca, or say insecure=True."
            ),
        ),
        (
            {"url": "rediss://localhost?ssl_cert_reqs=no"},
            "RedisConfig.url has ssl_cert_reqs='no'; it must be 'required', 'optional' or 'none'. Leave it out.",
        ),
        (
            {"url": "unix://host:1/x.sock"},
            (
                "RedisConfig.url names a Unix socket with a host; it must be an absolute path, "
                "for example 'unix:///run/redis.sock'."
            ),
        ),
        (
            {"kind": "list"},
            "RedisConfig.kind is 'list'; it must be 'string', 'hash' or 'json', for example kind='hash'.",
        ),
        (
            {"kind": "hash", "fields": "name"},
            "RedisConfig.fields is 'name'; it must be a tuple of field names, for example fields=('name', 'tier').",
        ),
        (
            {"kind": "hash", "fields": ("a", "b", "a")},
            "RedisConfig.fields names 'a' twice; each name may appear once. Remove one of them.",
        ),
        (
            {"fields": ("a",)},
            (
                "RedisConfig.fields is ('a',), but kind is 'string'; only a hash has fields. "
                "Say kind='hash', or leave fields out."
            ),
        ),
        (
            {"url": "redis://:S3cret@localhost", "password": "S3cret"},
            "RedisConfig.password is given, but url holds a password too; there must be one. Remove it from the url.",
        ),
        (
            {"url": "redis://ann:S3cret@localhost", "username": "ann"},
            "RedisConfig.username is given, but url holds a username too; there must be one. Remove it from the url.",
        ),
        (
            {"username": "ann"},
            (
                "RedisConfig has a username but no password; a user needs one. "
                "Give it by reference: password=Secret.env('REDIS_PASSWORD')."
            ),
        ),
        (
            {"tls_ca": "ca.pem"},
            (
                "RedisConfig.tls_ca is 'ca.pem', but url does not use TLS; it must start with 'rediss://'. "
                "Change the url, or leave the file out."
            ),
        ),
        (
            {"url": "rediss://localhost", "tls_key": "key.pem"},
            (
                "RedisConfig.tls_key is 'key.pem', but there is no tls_cert; a key belongs to a certificate. "
                "Give both, or neither."
            ),
        ),
        (
            {"url": "redis://localhost/3", "cluster": True},
            (
                "RedisConfig.cluster is True, but url names the database 3; a cluster has only database 0 and "
                "is reached "
                "by TCP. Use a URL such as 'redis://localhost:6379'."
            ),
        ),
        (
            {"url": "unix:///run/redis.sock", "cluster": True},
            (
                "RedisConfig.cluster is True, but url names a Unix socket; a cluster has only database 0 and is "
                "reached "
                "by TCP. Use a URL such as 'redis://localhost:6379'."
            ),
        ),
        ({"username": ""}, "RedisConfig.username is ''; it must be text, or None. Leave it out to have none."),
        ({"tls_ca": 1}, "RedisConfig.tls_ca is 1; it must be text, or None. Leave it out to have none."),
        ({"cluster": "yes"}, "RedisConfig.cluster is 'yes'; it must be True or False. Say cluster=True."),
        (
            {"password": b"S3cret"},
            ("RedisConfig.password is a bytes; it must be a Secret or text, for example Secret.env('REDIS_PASSWORD')."),
        ),
        (
            {"max_bytes": 10},
            (
                "RedisConfig.max_bytes is 10; it must be a whole number of bytes from 1024 to 1073741824, "
                "for example 67108864."
            ),
        ),
        (
            {"key": "users"},
            (
                "RedisConfig.key is 'users', which has no field; it may hold plain fields only: '{}', '{0}' or a name, "
                "for example 'user:{}'."
            ),
        ),
        (
            {"key": "user:{"},
            (
                "RedisConfig.key is 'user:{', which has an unmatched brace; it may hold plain fields only: "
                "'{}', '{0}' or "
                "a name, for example 'user:{}'."
            ),
        ),
        (
            {"key": "{}:{0}"},
            (
                "RedisConfig.key is '{}:{0}', which mixes '{}', numbers and names; it may hold plain fields "
                "only: '{}', "
                "'{0}' or a name, for example 'user:{}'."
            ),
        ),
        (
            {"key": "user:\ud800{}"},
            (
                "RedisConfig.key is 'user:\\ud800{}', which holds half of a surrogate pair; it may hold plain fields "
                "only: '{}', '{0}' or a name, for example 'user:{}'."
            ),
        ),
        (
            {"key": "{0}:{2}"},
            (
                "RedisConfig.key is '{0}:{2}', without a field for key column 1; it must use each one, or two "
                "keys would "
                "share a name. Number the fields from 0, for example '{0}:{1}'."
            ),
        ),
        (
            {"key": "{}{}"},
            (
                "RedisConfig.key is '{}{}', which has '' between two fields; there must be one or more printable ASCII "
                "characters other than '%' and blank, or two keys could share a name. "
                "Separate the fields, for example '{0}:{1}'."
            ),
        ),
    ],
)
def test_a_wrong_config_is_refused_with_its_reason(fields: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisConfig(**fields)  # type: ignore[arg-type]

    assert text == str(caught.value)
    assert "S3cret" not in str(caught.value)


@pytest.mark.parametrize("field", ["{k.__class__}", "{k[0]}", "{k!r}", "{k:>9}", "{0.x}", "{-1}", "{a b}"])
def test_a_field_that_is_not_plain_is_refused(field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisConfig(key="user:" + field)

    assert str(caught.value) == (
        f"RedisConfig.key is 'user:{field}', whose field {field} is not plain; it may hold plain fields only: '{{}}', "
        "'{0}' or a name, for example 'user:{}'."
    )


def test_the_parts_of_a_url() -> None:
    found = parse_url("redis://ann:p%40ss%2F@db.example.test:6380/3")

    assert found.address == ("db.example.test", 6380)
    assert (found.tls, found.db, found.username, found.password) == (False, 3, "ann", "p@ss/")
    assert parse_url("rediss://").address == ("localhost", 6379)
    assert parse_url("rediss://x").tls
    assert parse_url("redis://[::1]").address == ("::1", 6379)
    assert (
        parse_url("unix:///run/re%20dis.sock?db=2").address,
        parse_url("unix:///r?db=2").db,
    ) == ("/run/re dis.sock", 2)
    # The last @ ends the password, so a password with an @ that is not encoded is understood.
    assert parse_url("redis://:p@ss@localhost").password == "p@ss"


def test_a_literal_password_is_not_in_the_repr_and_a_reference_survives_pickle() -> None:
    literal = RedisConfig(url="redis://ann:S3cret@localhost")
    reference = RedisConfig(username="ann", password=Secret.env("REDIS_PASSWORD"))

    assert "S3cret" not in repr(literal)
    assert "S3cret" not in repr(parse_url(literal.url))
    assert "S3cret" not in repr(replace(reference, password="S3cret"))
    assert reference == pickle.loads(pickle.dumps(reference))
    assert hash(reference) == hash(pickle.loads(pickle.dumps(reference)))


def test_a_list_of_fields_becomes_a_tuple() -> None:
    config = RedisConfig(kind="hash", fields=["name", "tier"])  # type: ignore[arg-type]  # as from TOML

    assert config.fields == ("name", "tier")
    assert hash(config) == hash(replace(config))


def test_the_plugin_offers_the_connector_of_its_config() -> None:
    assert RedisConnector is enrichkit_connector()
    assert RedisConnector is connector_of(RedisConfig())
    assert hasattr(enrichkit_connector, f"{hookimpl.project_name}_impl")


@pytest.mark.parametrize(
    ("template", "keys", "names"),
    [
        ("{}", ["a:b", "", " "], ["a:b", "", " "]),
        ("user:{}", [1, -2, 2**70], ["user:1", "user:-2", f"user:{2**70}"]),
        ("{{users}}:{id}:x", ["a{b}", "%"], ["{users}:a{b}:x", "{users}:%:x"]),
        ("{0}/{0}", ["a"], ["a/a"]),
        ("{1}-{0}", [("a", -1), ("b", 2)], ["%2D1-a", "2-b"]),
        ("{tenant}:{user}:{tenant}", [("t", "u")], ["t:u:t"]),
        ("{}:{}", [("a:b", "c"), ("a", "b:c"), ("{x}", "%3A")], ["a%3Ab:c", "a:b%3Ac", "%7Bx%7D:%253A"]),
        ("{}:{}", [(b"a:\xff", "c")], [b"a%3A\xff:c"]),
        ("é{}", [b"\xff"], ["é".encode() + b"\xff"]),
        ("{}", [1.0, -0.0, 1e300, math.inf], [b"1.0", b"0.0", b"1e+300", b"inf"]),
        ("{}", [Decimal("1E+2"), Decimal("1.50"), date(2024, 2, 29)], [b"100", b"1.50", b"2024-02-29"]),
    ],
)
def test_keys_become_names(template: str, keys: list[object], names: list[object]) -> None:
    assert (names, {}) == KeyTemplate(template).names(keys)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (True, "A part of the key is a bool; " + ALLOWED),
        (math.nan, "A part of the key is NaN; " + ALLOWED),
        (datetime(2024, 1, 1), "A part of the key is a datetime; " + ALLOWED),
        ("\ud800", SURROGATE),
        ("k" * 2**20, "The key has 1048576 bytes; at most 65536 are allowed. Shorten it, for example by a hash."),
    ],
)  # fmt: skip
def test_an_impossible_key_is_rejected_and_the_others_are_not(key: object, text: str) -> None:
    names, refused = KeyTemplate("{}").names(["a", key, "b"])

    assert names == [b"a", b"b"]
    assert [key] == list(refused)
    assert refused[key].rejected
    assert isinstance(refused[key].error, PermanentError)
    assert text == str(refused[key].error)


def test_the_longest_key_allowed_has_64_kib() -> None:
    names, refused = KeyTemplate("x{}").names(["é" * 32767, "é" * 32768])

    assert [("x" + "é" * 32767).encode()] == names
    assert list(refused) == ["é" * 32768]


@pytest.mark.parametrize(
    ("template", "key", "text"),
    [
        (
            "user:{}",
            ("a", "b"),
            (
                "RedisConfig.key is 'user:{}', which takes 1 key column, but the lookup has 2 key columns; "
                "it must have one field for each, for example '{0}:{1}' for two."
            ),
        ),
        (
            "{}:{}",
            "ab",
            (
                "RedisConfig.key is '{}:{}', which takes 2 key columns, but the lookup has 1 key column; "
                "it must have one field for each, for example '{0}:{1}' for two."
            ),
        ),
        (
            "{}:{}",
            ("a", "b", "c"),
            (
                "RedisConfig.key is '{}:{}', which takes 2 key columns, but the lookup has 3 key columns; "
                "it must have one field for each, for example '{0}:{1}' for two."
            ),
        ),
    ],
)
def test_a_template_for_another_number_of_columns_fails_the_task(template: str, key: object, text: str) -> None:
    with pytest.raises(FatalError) as caught:
        KeyTemplate(template).names([key])

    assert text == str(caught.value)


PARTS = st.one_of(
    st.text(st.characters(codec="utf-8")), st.text(":%{}-3A ", max_size=6), st.integers(), st.binary(max_size=4)
)


@given(
    st.sampled_from(["{}:{}", "a{1}--{0}z", "{}3A{}", "{{{}}}:{}", "{}:{}{{"]),
    st.tuples(PARTS, PARTS),
    st.tuples(PARTS, PARTS),
)
def test_two_keys_never_share_a_name(template: str, one: tuple[object, ...], other: tuple[object, ...]) -> None:
    def text_of(key: tuple[object, ...]) -> list[bytes]:
        return [part if isinstance(part, bytes) else str(part).encode() for part in key]

    found = KeyTemplate(template)

    def name_of(key: tuple[object, ...]) -> bytes:
        (name,), _ = found.names([key])
        return name if isinstance(name, bytes) else name.encode()

    assert (text_of(one) == text_of(other)) == (name_of(one) == name_of(other))


@given(st.lists(st.tuples(PARTS, PARTS), min_size=1, unique=True))
def test_the_fast_path_and_the_slow_path_give_the_same_names(keys: list[tuple[object, ...]]) -> None:
    template = KeyTemplate("x:{}:{}")

    def as_bytes(name: str | bytes) -> bytes:
        return name if isinstance(name, bytes) else name.encode()

    assert [as_bytes(template._name(key)) for key in keys] == [as_bytes(name) for name in template.names(keys)[0]]
