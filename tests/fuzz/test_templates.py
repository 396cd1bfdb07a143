"""
Whatever a template and the keys hold, a key is data in its own place, and two keys never become one request.

A template may be refused by the config, and a key may be rejected; nothing else may go wrong.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest
from enrichkit_http import HttpConfig, HttpConnector
from enrichkit_http.template import Body, RejectedKeyError, Url, text_of
from enrichkit_redis.template import KeyTemplate
from hypothesis import strategies as st
from pyreqwest.http import Url as ClientUrl

from enrichkit.errors import ConfigError, PermanentError
from enrichkit.plugin import Call, Failure

from .fuzzing import effort, explore, kept
from .raw_http import RawService

if TYPE_CHECKING:
    from collections.abc import Iterator

# Characters that mean something in an address, in JSON, in the protocol of Redis or to a parser; then any character.
letters = st.sampled_from("ab/\\.%25eEfF?#&=@:;+,-_~!$'()*[]{}|^`<>\" \0\r\n\té名🙂\ud800\udfff") | st.characters()
parts = st.text(letters, max_size=5)


@st.composite
def keys(draw: st.DrawFn, width: int) -> list[tuple[str, ...]]:
    """Two to four keys of *width* parts; often the same text, split at other places."""
    if width > 1 and draw(st.booleans()):
        text = draw(st.text(letters, min_size=1, max_size=6))
        cuts = st.lists(st.integers(0, len(text)), min_size=width - 1, max_size=width - 1).map(sorted)
        splits = draw(st.lists(cuts, min_size=2, max_size=4))
        return [tuple(text[a:b] for a, b in zip([0, *cut], [*cut, len(text)], strict=True)) for cut in splits]
    return draw(st.lists(st.tuples(*[parts] * width), min_size=2, max_size=4))


@dataclass(frozen=True)
class Case:
    """
    A template and some keys for it.

    Attributes:
        template: Text of the template.
        keys: Keys, each a tuple of its parts.
    """

    template: str
    keys: list[tuple[Any, ...]]


def filled_url(url: Url, key: tuple[Any, ...]) -> str | None:
    try:
        return url.fill([text_of(part) for part in key])
    except RejectedKeyError:
        return None


# --- addresses

segments = st.lists(
    st.sampled_from(
        ["{0}", "{1}", "{0}", "a", "v1", ".", "-", "_", "~", "%20", "%2F", "%2e", ":", ",", ";", "=", "@", "+"]
    ),
    max_size=3,
).map("".join)
hosts = st.sampled_from(["h.example", "h.example:8443", "H.Example:80", "127.0.0.1", "[::1]:81", "a_b"])


@st.composite
def url_cases(draw: st.DrawFn) -> Case:
    path = "".join(f"/{segment}" for segment in draw(st.lists(segments, max_size=3)))
    query = "&".join(f"{name}={draw(segments)}" for name in draw(st.lists(st.sampled_from("pqr?"), max_size=2)))
    template = (
        draw(st.sampled_from(["https://", "http://", "HTTP://"])) + draw(hosts) + path + f"?{query}" * bool(query)
    )
    if draw(st.integers(0, 4)) == 0:  # anything at all in the middle of it
        at = draw(st.integers(0, len(template)))
        template = template[:at] + draw(st.text(letters, max_size=3)) + template[at:]
    return Case(template, draw(keys(2)))


def check_url(case: Case) -> None:
    try:
        width = HttpConfig(url=case.template).key_parts
    except ConfigError:
        return
    url, found = Url(case.template), {}
    plain = ClientUrl(url.fill(["k"] * width))
    for key in dict.fromkeys(key[:width] for key in case.keys):
        filled = filled_url(url, key)
        if filled is None:
            continue
        asked = ClientUrl(filled)
        assert (plain.scheme, plain.host_str, plain.port) == (asked.scheme, asked.host_str, asked.port)
        assert len(plain.path_segments or ()) == len(asked.path_segments or ()), "a key is inside one segment"
        assert [name for name, _ in plain.query_pairs] == [name for name, _ in asked.query_pairs]
        assert "#" not in filled
        assert str(asked) not in found, (key, found[str(asked)])
        found[str(asked)] = key


@pytest.mark.parametrize("case", kept("urls", Case=Case))
def test_a_kept_key_stays_in_its_place_in_the_address(case: Case) -> None:
    check_url(case)


@effort
def test_no_key_leaves_its_place_in_an_address_or_asks_for_another_key(effort: int) -> None:
    explore(check_url, url_cases(), 120 * effort)


# --- JSON bodies

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | parts
nodes = st.recursive(
    st.sampled_from(["{0}", "{1}", "{}", "x{0}", "{2}", "{\u0660}"]) | scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(parts | st.just("{0}"), inner, max_size=3),
    max_leaves=6,
)
strange = st.sampled_from(["1e400", "-1E999", "1" * 30, "-0.0", '{"a": 1, "a": "{0}"}', '["{0}", 1e309]', '"\\ud800"'])
decimals = st.decimals().filter(lambda number: not number.is_snan())  # it has no hash, so that it is no key
body_parts = parts | st.integers() | decimals | st.dates() | st.datetimes()


@st.composite
def body_cases(draw: st.DrawFn) -> Case:
    tree = draw(nodes)
    template = draw(st.just(json.dumps(tree)) | st.just(json.dumps(["{0}", "{1}", tree])) | strange)
    return Case(template, draw(st.lists(st.tuples(body_parts, body_parts), min_size=2, max_size=3)))


def with_key(node: Any, key: tuple[Any, ...]) -> Any:
    """Return *node* with the parts of *key* in the places of the placeholders `{0}` and `{1}`."""
    if isinstance(node, dict):
        return {name: with_key(value, key) for name, value in node.items()}
    if isinstance(node, list):
        return [with_key(value, key) for value in node]
    if node in ("{0}", "{1}"):
        part = key[int(node[1])]
        return part if type(part) in (str, int) else text_of(part)
    return node


def check_body(case: Case) -> None:
    try:
        config = HttpConfig(url="http://127.0.0.1/", method="POST", body=case.template)
    except ConfigError:
        return
    if config.key_parts > 2:
        return
    body, found = Body(config.body), {}
    for key in case.keys:
        key = key[: config.key_parts]
        try:
            texts = [text_of(part) for part in key]
        except RejectedKeyError:
            continue
        sent = body.fill(key)
        if '"{}"' not in case.template:  # these are numbered from 0
            assert with_key(json.loads(case.template), key) == json.loads(sent)
        kinds = tuple(map(type, key))  # a column has one type: the text "1" and the number 1 do not meet
        assert found.setdefault((kinds, sent), texts) == texts


@pytest.mark.parametrize("case", kept("bodies", Case=Case, D=decimal.Decimal, date=dt.date))
def test_a_kept_key_is_one_value_in_the_body(case: Case) -> None:
    check_body(case)


@effort
def test_a_body_is_json_that_holds_the_key_in_its_place(effort: int) -> None:
    explore(check_body, body_cases(), 80 * effort)


# --- names of Redis keys

literals = st.text(st.sampled_from("ab:/-%25{}|. \0é名\ud800"), max_size=3)
fields = st.sampled_from(["{}", "{0}", "{1}", "{a}", "{b}", "{é}", "{{", "}}", "{0!r}", "{0:>9}", "{a.b}", "{", "}"])


@st.composite
def name_cases(draw: st.DrawFn) -> Case:
    usual = st.sampled_from(["{}:{}", "{1}-{0}", "{}", "u:{0}", "{0}25{1}", "{a}}}{{{b}", "{}{}", "{0}:{1}:{0}"])
    template = draw(usual | st.lists(fields | literals, max_size=5).map("".join))
    kinds: list[st.SearchStrategy[Any]] = [
        parts,
        st.binary(max_size=4),
        st.integers(),
        st.floats(),
        decimals,
        st.dates(),
    ]
    columns = [draw(st.sampled_from(kinds)) for _ in range(2)]
    return Case(template, draw(keys(2) | st.lists(st.tuples(*columns), min_size=2, max_size=4)))


def check_names(case: Case) -> None:
    try:
        template = KeyTemplate(case.template)
    except ConfigError:
        return
    if template.columns > 2:
        return
    asked = list(dict.fromkeys(key if template.columns == 2 else key[0] for key in case.keys))
    names, refused = template.names(asked)
    assert all(type(each.error) is PermanentError and each.rejected for each in refused.values())
    raw = [name if isinstance(name, bytes) else name.encode() for name in names]
    assert len(asked) == len(raw) + len(refused)
    assert len(set(raw)) == len(raw), "two keys never have one name"


@pytest.mark.parametrize("case", kept("names", Case=Case, D=decimal.Decimal))
def test_a_kept_key_has_a_name_of_its_own(case: Case) -> None:
    check_names(case)


@effort
def test_no_two_keys_share_a_name(effort: int) -> None:
    explore(check_names, name_cases(), 120 * effort)


# --- what a service sees


@pytest.fixture(scope="module")
def service() -> Iterator[RawService]:
    with RawService() as running:
        running.body = b'"v"'
        yield running


def check_request(service: RawService, key: tuple[str, ...]) -> None:
    async def look_up(**fields: Any) -> dict[Any, Any]:
        connector = HttpConnector(HttpConfig(**fields))
        await connector.open()
        try:
            return dict(await connector.fetch_many([key], Call(timeout=5.0)))
        finally:
            await connector.close()

    service.requests.clear()
    by_get = service.run(look_up(url=service.url + "/a/{0}/b?q={1}&r=1"))
    by_post = service.run(look_up(url=service.url + "/a?q=1", method="POST", body={"k": ["{1}", {"{": "{0}"}]}))
    requests = list(service.requests)
    if isinstance(by_get[key], Failure):
        assert by_get[key].rejected
    else:
        first, head, body = requests.pop(0)
        method, target, version = first.split(" ")
        address = urlsplit(target)
        assert ("GET", "HTTP/1.1", b"") == (method, version, body)
        assert ["", "a", key[0], "b"] == [unquote(segment, errors="strict") for segment in address.path.split("/")]
        assert f"q={address.query[2:].partition('&')[0]}&r=1" == address.query
        assert key[1] == unquote(address.query[2:].partition("&")[0], errors="strict")
        assert sorted(line.partition(":")[0].lower() for line in head) == ["accept", "host", "user-agent"]
    if isinstance(by_post[key], Failure):
        assert by_post[key].rejected
    else:
        first, _, body = requests.pop(0)
        assert first == "POST /a?q=1 HTTP/1.1"
        assert json.loads(body) == {"k": [key[1], {"{": key[0]}]}
    assert [] == requests


@pytest.mark.parametrize("key", kept("keys"))
def test_a_service_sees_a_kept_key_as_data(service: RawService, key: tuple[str, ...]) -> None:
    check_request(service, key)


@effort
def test_a_service_sees_any_key_as_data(service: RawService, effort: int) -> None:
    explore(lambda key: check_request(service, key), st.tuples(parts, parts), 30 * effort)
