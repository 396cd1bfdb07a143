"""What `HttpConfig` accepts, what it says to the rest, and what it keeps to itself."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from enrichkit_http import HttpConfig, HttpConnector, enrichkit_connector
from enrichkit_http.template import Body, RejectedKeyError, Url, text_of
from hypothesis import given
from hypothesis import strategies as st
from pyreqwest.http import Url as ClientUrl

from enrichkit.connector import connector_of
from enrichkit.errors import ConfigError
from enrichkit.secrets import Secret

URL = "https://api.example/users/{0}"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"url": 7},
            "HttpConfig.url is a int; it must be text, as in 'https://api.example/users/{0}'.",
        ),
        (
            {"url": "file:///x/{0}"},
            (
                "HttpConfig.url starts with 'file:'; it must start with 'https://' or 'http://', "
                "for example 'https://api.example/users/{0}'."
            ),
        ),
        (
            {"url": "api.example/{0}"},
            (
                "HttpConfig.url starts with 'api.e'; it must start with 'https://' or 'http://', "
                "for example 'https://api.example/users/{0}'."
            ),
        ),
        (
            {"url": "https://api.example/a b/{0}"},
            (
                "HttpConfig.url holds ' ' at position 21; an address holds letters, digits and -._~:/?[]@!$&'()*+,;= "
                "and %XX. Percent-encode it, '%20' for a space; leave out a fragment ('#...')."
            ),
        ),
        (
            {"url": "https://api.example/\\evil/{0}"},
            (
                "HttpConfig.url holds '\\\\' at position 20; an address holds letters, digits and "
                "-._~:/?[]@!$&'()*+,;= and %XX. Percent-encode it, '%20' for a space; leave out a fragment ('#...')."
            ),
        ),
        (
            {"url": "https://api.example/{0}#top"},
            (
                "HttpConfig.url holds '#' at position 23; an address holds letters, digits and -._~:/?[]@!$&'()*+,;= "
                "and %XX. Percent-encode it, '%20' for a space; leave out a fragment ('#...')."
            ),
        ),
        (
            {"url": "https://api.example/100%/{0}"},
            (
                "HttpConfig.url holds '%' at position 23; an address holds letters, digits and -._~:/?[]@!$&'()*+,;= "
                "and %XX. Percent-encode it, '%20' for a space; leave out a fragment ('#...')."
            ),
        ),
        (
            {"url": "https://ann:S3cret@api.example/{0}"},
            (
                "HttpConfig.url holds a user name or password before the host, which ends up in plans and logs. Write "
                "headers={'Authorization': Secret.env('NAME')}, with 'Basic ' and the base64 of 'user:password' in "
                "NAME."
            ),
        ),
        *(
            (
                {"url": url},
                (
                    "HttpConfig.url holds a placeholder in its host or port; a key may choose a path segment or the "
                    "value of a query parameter, never where the request goes. Register one source for each host."
                ),
            )
            for url in ("https://{0}/x", "https://api.example:{0}/x", "https://{0}.example/x", "https://a{}?x=1")
        ),
        *(
            (
                {"url": f"https://{host}/{{0}}"},
                (
                    f"HttpConfig.url names the host {host!r}; it must be a name, an IPv4 address of four decimal "
                    "numbers or an IPv6 address in brackets, and a port up to 65535 after a colon. Write "
                    "'api.example:8443'."
                ),
            )
            for host in (
                "",
                ":80",
                "127.1",
                "0x7f000001",
                "2130706433",
                "a..b",
                "-a",
                "api.example:99999",
                "[::1",
                "a:b",
                "[x]",
            )
        ),
        (
            {"url": "https://api.example/../{0}"},
            (
                "HttpConfig.url has a path segment '.' or '..', which clients resolve differently. Write the path it "
                "leads to."
            ),
        ),
        (
            {"url": "https://api.example/%2E./{0}"},
            (
                "HttpConfig.url has a path segment '.' or '..', which clients resolve differently. Write the path it "
                "leads to."
            ),
        ),
        (
            {"url": "https://api.example/?{0}=1"},
            (
                "HttpConfig.url holds a placeholder in the name of a query parameter; a key may be its value. Write "
                "'?id={0}'."
            ),
        ),
        *(
            (
                {"url": f"https://api.example/{braces}"},
                (
                    f"HttpConfig.url holds {found!r}; only {{}} and the numbers {{0}}, {{1}}, ... of the key columns "
                    "may stand in braces. Write {0} for the first key column."
                ),
            )
            for braces, found in (
                ("{k.__class__.__init__}", "{k.__class__.__init__}"),
                ("{0[x]}", "{0[x]}"),
                ("{0!r}", "{0!r}"),
                ("{user}", "{user}"),
                ("{{0}}", "{"),
                ("{0", "{"),
            )
        ),
        (
            {"url": "https://api.example/{}/{1}"},
            "HttpConfig.url mixes {} with numbers in braces; use one kind. Write {0}, {1}, ... throughout.",
        ),
        (
            {"url": "https://api.example/users"},
            (
                "HttpConfig.url holds no placeholder and neither does body, so every key would ask the same; one of "
                "them must say where the key goes. Write '{0}', as in 'https://api.example/users/{0}'."
            ),
        ),
        (
            {"url": "https://api.example/{1}/{3}"},
            (
                "HttpConfig.url and body use the key parts [1, 3]; each part from 0 on must be used, or keys that "
                "differ would ask the same. Use {0} to {1}."
            ),
        ),
        (
            {"url": URL, "method": "GET\r\nX: 1"},
            "HttpConfig.method is 'GET\\r\\nX: 1'; it must be 'GET' or 'POST', in capitals.",
        ),
        ({"url": URL, "method": "get"}, "HttpConfig.method is 'get'; it must be 'GET' or 'POST', in capitals."),
        (
            {"url": URL, "body": {"id": "{0}"}},
            "HttpConfig.body is given with method 'GET'; only a POST has a body. Say method='POST'.",
        ),
        (
            {"url": URL, "method": "POST", "body": "{0}"},
            (
                "HttpConfig.body is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 "
                "(char 1)); it "
                'must be data made of dict, list, str, int, float, bool and None, or JSON text. Write {"id": "{0}"}.'
            ),
        ),
        (
            {"url": URL, "method": "POST", "body": '{"a": NaN}'},
            (
                "HttpConfig.body is not JSON (NaN is no JSON value); it must be data made of dict, list, str, int, "
                "float, bool "
                'and None, or JSON text. Write {"id": "{0}"}.'
            ),
        ),
        (
            {"url": URL, "method": "POST", "body": {"token": Secret.env("TOKEN")}},
            (
                "HttpConfig.body is not JSON (Object of type Secret is not JSON serializable); it must be data made of "
                'dict, list, str, int, float, bool and None, or JSON text. Write {"id": "{0}"}.'
            ),
        ),
        (
            {"url": URL, "method": "POST", "body": {"id": "user:{0}"}},
            (
                "HttpConfig.body holds {0} inside a longer string; a placeholder must be a whole JSON string, so that "
                "the key "
                'is encoded and not pasted. Write {"id": "{0}"} and build longer texts in the key.'
            ),
        ),
        (
            {"url": URL, "method": "POST", "body": {"{0}": 1}},
            (
                'HttpConfig.body has a field named \'{0}\'; a key may be a value, not a name. Write {"id": "{0}"}, '
                "with the placeholder after the colon."
            ),
        ),
        *(
            (
                {"url": url, "bulk": True, "body": body},
                (
                    "HttpConfig.bulk sends many keys of one column at once, so url holds no placeholder, and its "
                    "body only "
                    '{0}, which stands for their list. Say body={"ids": "{0}"}, or bulk=False.'
                ),
            )
            for url, body in (
                (URL, None),
                ("https://api.example/", {"ids": []}),
                ("https://api.example/", ["{0}", "{1}"]),
            )
        ),
        *(
            (
                {"url": URL, "headers": {name: "x"}},
                (
                    f"HttpConfig.headers has the name {name!r}; a name consists of letters, digits and "
                    "!#$%&'*+-.^_`|~, without blanks or a colon. Write 'X-Api-Key'."
                ),
            )
            for name in ("X K", "X:", "", "X\r\nY", "X\0", "\xe4", 7)
        ),
        *(
            (
                {"url": URL, "headers": {"X-A": value}},
                (
                    "HttpConfig.headers gives 'X-A' a value with a line break, a control or non-ASCII character, or a "
                    "blank at an end; a value is visible ASCII, blanks inside. Take the character out; the value is "
                    "not shown, it may be a secret."
                ),
            )
            for value in ("a\r\nB: c", "a\n", "\x00", "\xe4", " a", "a\x7f")
        ),
        (
            {"url": URL, "headers": {"X-A": 7}},
            "HttpConfig.headers gives 'X-A' a int; a value is text or a Secret. Write Secret.env('NAME').",
        ),
        (
            {"url": URL, "headers": (("X-A", "1"), ("x-a", "2"))},
            "HttpConfig.headers names 'x-a' twice; each header may be given once. Join the values by commas.",
        ),
        (
            {"url": URL, "headers": {"Content-Length": "3"}},
            "HttpConfig.headers sets 'Content-Length', which belongs to the HTTP client. Leave it out.",
        ),
        (
            {"url": URL, "headers": ["abc"]},
            (
                "HttpConfig.headers is a list that holds no pairs; it must be a mapping of names to texts or secrets. "
                "Write {'X-Api-Key': Secret.env('API_KEY')}."
            ),
        ),
        (
            {"url": "http://api.example/{0}", "headers": {"Authorization": "Bearer S3cret"}},
            (
                "HttpConfig.url starts with 'http://', and the header 'Authorization' holds a credential, which "
                "everybody on the way could read. Write 'https://', or insecure=True if you know that the network is "
                "safe."
            ),
        ),
        (
            {"url": "http://10.0.0.7/{0}", "headers": {"X-Tag": Secret.env("TAG")}},
            (
                "HttpConfig.url starts with 'http://', and the header 'X-Tag' holds a credential, which everybody on "
                "the way could read. Write 'https://', or insecure=True if you know that the network is safe."
            ),
        ),
        (
            {"url": "http://api.example/{0}?v=2&apiKey=S3cret"},
            (
                "HttpConfig.url starts with 'http://', and its parameter 'apiKey' holds a credential, which everybody "
                "on the way could read. Write 'https://', or insecure=True if you know that the network is safe."
            ),
        ),
        (
            {"url": "http://api.example/{0}", "tls_ca": "ca.pem"},
            (
                "HttpConfig.url starts with 'http://', and TLS files are given, which plain HTTP ignores. Write "
                "'https://'."
            ),
        ),
        (
            {"url": URL, "tls_key": "key.pem"},
            "HttpConfig.tls_key is given without tls_cert; a private key needs its certificate. Set tls_cert.",
        ),
        ({"url": URL, "tls_ca": ""}, "HttpConfig.tls_ca is ''; it must be the path of a PEM file, or None."),
        ({"url": URL, "insecure": 1}, "HttpConfig.insecure is 1; it must be True or False."),
        (
            {"url": "https://api.example/{0}/{1}", "key_field": "id"},
            (
                "HttpConfig.key_field is given, and the key has 2 parts; only a key of one part can be compared with "
                "what an answer repeats. Leave key_field out."
            ),
        ),
        (
            {"url": URL, "key_field": "a..b"},
            "HttpConfig.key_field is 'a..b'; it must be names of fields joined by dots, as in 'data.profile'.",
        ),
        (
            {"url": URL, "value": "results[].x"},
            (
                "HttpConfig.value is 'results[].x'; it must be names of fields joined by dots, as in 'data.profile' "
                "(with bulk also 'results[].profile')."
            ),
        ),
        *(
            (
                {"url": URL, "missing": missing},
                f"HttpConfig.missing is {missing!r}; it must hold statuses from 400 to 499, or 204. Write (404, 410).",
            )
            for missing in ((200,), (500,), (404.0,), (True,), 404, ("404",))
        ),
        *(
            (
                {"url": URL, "max_bytes": size},
                f"HttpConfig.max_bytes is {size!r}; it must be a whole number from 1 to 2**30 (1 GiB).",
            )
            for size in (0, -1, True, 1.5, "10", 2**30 + 1)
        ),
        (
            {"url": URL, "returns": " "},
            "HttpConfig.returns is ' '; it must be the DDL of one value, as in 'name string, tier int'.",
        ),
    ],
)
def test_a_wrong_field_is_refused_with_a_way_out(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HttpConfig(**fields)
    assert message == str(caught.value)


def test_no_secret_is_in_repr_or_error() -> None:
    config = HttpConfig(
        url="https://api.example/{0}?in={1}&token=S3cret",
        method="POST",
        headers={"Authorization": "Bearer S3cret", "X-Api-Key": Secret.env("API_KEY")},
        body={"password": "S3cret"},
        missing=(404, 410),
        returns="name string",
    )
    assert repr(config) == (
        "HttpConfig(returns='name string', url='https://api.example/{0}?in={1}&token=***', method='POST', "
        "headers=('Authorization', 'X-Api-Key'), body='***', missing=(404, 410))"
    )


def test_a_config_survives_pickle_and_is_a_key_of_a_dict() -> None:
    config = HttpConfig(
        url=URL, method="POST", headers={"A": "1"}, body={"a": ["{0}", {"b": None}]}, missing=[404, 410]
    )
    again = pickle.loads(pickle.dumps(config))
    assert {config: 1} == {again: 1}
    assert hash(config) == hash(again)
    assert config.headers == (("A", "1"),)
    assert config.body == '{"a":["{0}",{"b":null}]}'
    assert config.missing == (404, 410)


def test_configs_that_say_the_same_are_equal() -> None:
    assert HttpConfig(url=URL, headers={"A": "1"}) == HttpConfig(url=URL, headers=[("A", "1")], missing=(404,))
    assert HttpConfig(url=URL, method="POST", body='{"a" : 1}') == HttpConfig(url=URL, method="POST", body={"a": 1})
    assert HttpConfig(url=URL) != HttpConfig(url=URL, http2=True)


def test_a_pickled_secret_reference_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "S3cret")
    assert b"S3cret" not in pickle.dumps(HttpConfig(url=URL, headers={"X-Api-Key": Secret.env("API_KEY")}))


def test_an_answer_to_many_keys_may_be_larger() -> None:
    single, bulk = HttpConfig(url=URL), HttpConfig(url="https://api.example/", bulk=True)
    assert (single.max_bytes, bulk.max_bytes) == (2**20, 2**23)
    assert repr(bulk) == "HttpConfig(url='https://api.example/', method='POST', body='***', bulk=True)"


def test_replace_keeps_what_was_normalised() -> None:
    config = HttpConfig(url="https://api.example/", bulk=True, headers={"A": "1"})
    changed = dataclasses.replace(config, returns="name string")
    assert (changed.method, changed.body, changed.missing, changed.headers) == ("POST", '"{}"', (), (("A", "1"),))


def test_credentials_may_go_unencrypted_to_this_machine_or_when_told() -> None:
    headers = {"Authorization": "Bearer x"}
    for host in ("localhost:8080", "127.0.0.1", "127.9.9.9:1", "[::1]:8080"):
        HttpConfig(url=f"http://{host}/{{0}}", headers=headers)
    HttpConfig(url="http://api.example/{0}", headers=headers, insecure=True)


def test_the_connector_of_an_http_config_is_the_http_connector() -> None:
    assert HttpConnector is connector_of(HttpConfig(url=URL))


def test_the_plugin_offers_the_connector_and_loads_its_driver_only_when_it_is_opened() -> None:
    assert enrichkit_connector() is HttpConnector
    program = "import sys, enrichkit_http; print([name for name in sys.modules if name.startswith('pyreqwest')])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_a_bulk_source_takes_many_keys_per_call_and_the_other_one() -> None:
    single, bulk = HttpConnector(HttpConfig(url=URL)), HttpConnector(HttpConfig(url="https://api.example/", bulk=True))
    assert (single.capacity, single.batch_size, single.max_batch_size) == (100, 1, 1)
    assert (bulk.capacity, bulk.batch_size, bulk.max_batch_size) == (8, 500, 5000)


def test_only_a_plain_string_is_taken_as_text() -> None:
    of = {
        returns: HttpConnector(HttpConfig(url=URL, returns=returns)).encoding
        for returns in ("string", " STRING ", "int", "a string")
    }
    assert of == {"string": "text", " STRING ": "text", "int": "json", "a string": "json"}


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("../admin", "..%2Fadmin"),
        ("%2e%2e/admin", "%252e%252e%2Fadmin"),
        ("%2e%2e", "%252e%252e"),
        ("a?x=1", "a%3Fx%3D1"),
        ("a#f", "a%23f"),
        ("a&b=c", "a%26b%3Dc"),
        ("//evil.test/x", "%2F%2Fevil.test%2Fx"),
        ("@evil.test", "%40evil.test"),
        ("\\evil", "%5Cevil"),
        ("\r\nX-Evil: 1", "%0D%0AX-Evil%3A%201"),
        ("a%00b", "a%2500b"),
        ("a\0b", "a%00b"),
        ("{0}", "%7B0%7D"),
        ("...", "..."),
        ("\u00e9", "%C3%A9"),
        ("k" * 4096, "k" * 4096),
        (-7, "-7"),
        (10**30, str(10**30)),
        (Decimal("1E+3"), "1000"),
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 2, 29, 1, 2, 3), "2024-02-29T01%3A02%3A03"),
    ],
)
def test_a_key_is_one_path_segment(key: Any, path: str) -> None:
    filled = Url("https://api.example/u/{0}").fill([text_of(key)])
    assert f"https://api.example/u/{path}" == filled
    assert filled == str(ClientUrl(filled)), "the client's parser does not rewrite it"


@pytest.mark.parametrize(
    ("template", "texts"),
    [
        ("/u/{0}", ("..",)),
        ("/u/{0}", (".",)),
        ("/u/{0}", ("",)),
        ("/u/{0}/x", ("..",)),
        ("/u/.{0}", (".",)),
        ("/u/{0}.", (".",)),
        ("/u/{0}{1}", (".", ".")),
        ("/u/{0}{1}", ("", "")),
        ("/u/%2e{0}", (".",)),
        ("/u/{0}%2E", (".",)),
        ("/{0}/{1}", ("a", "..")),
        ("/{0}/{1}?q={0}", ("..", "a")),
    ],
)
def test_a_key_that_would_be_a_dot_segment_is_rejected(template: str, texts: tuple[str, ...]) -> None:
    with pytest.raises(RejectedKeyError) as caught:
        Url(f"https://api.example{template}").fill(texts)
    assert str(caught.value) == (
        "The key makes a path segment of the address empty, '.' or '..', which names another resource; such a key is "
        "never sent. Put the key into the query instead, as in '?id={0}'."
    )


def test_dots_and_nothing_are_fine_in_a_query_and_beside_other_text() -> None:
    assert Url("https://a.example/?q={0}").fill([""]) == "https://a.example/?q="
    assert Url("https://a.example/?q={0}&r={1}").fill(["..", "."]) == "https://a.example/?q=..&r=."
    assert Url("https://a.example/v{0}/x").fill([".."]) == "https://a.example/v../x"


def test_placeholders_are_numbered_as_in_format() -> None:
    assert Url("https://a.example/{}/{}").fill(["x", "y"]) == "https://a.example/x/y"
    assert Url("https://a.example/{1}/{0}/{1}").fill(["x", "y"]) == "https://a.example/y/x/y"
    assert Body('["{}", "{}"]').fill(["x", "y"]) == b'["x","y"]'
    assert Body('{"b": ["{1}", "{0}"], "a": {}}').fill(["x", "y"]) == b'{"b":["y","x"],"a":{}}'


@given(st.lists(st.text(), min_size=2, max_size=2))
def test_no_key_changes_the_way_to_the_resource(key: list[str]) -> None:
    try:
        texts = [text_of(part) for part in key]
        filled = Url("https://api.example:8443/a/{0}/b?q={1}&r=1").fill(texts)
    except RejectedKeyError:
        return
    parsed = ClientUrl(filled)
    assert filled == str(parsed)
    assert (parsed.scheme, parsed.host_str, parsed.port) == ("https", "api.example", 8443)
    assert ["a", parsed.path_segments[1], "b"] == parsed.path_segments
    assert [("q", key[1]), ("r", "1")] == parsed.query_pairs


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "k" * 4097,
            "The key has 4,097 bytes; an HTTP source takes at most 4,096. Shorten the key column.",
        ),
        (
            "\u00e9" * 2049,
            "The key has 4,098 bytes; an HTTP source takes at most 4,096. Shorten the key column.",
        ),
        (
            "\ud800",
            "The key holds half of a surrogate pair, which has no UTF-8 form. Repair the key column.",
        ),
        *(
            (
                key,
                (
                    f"The key holds a {type(key).__name__}, which has more than one text; a key of an HTTP source must "
                    "be a string, integer, decimal, date or timestamp. Cast the column to string."
                ),
            )
            for key in (True, 1.0, b"x", None, [1])
        ),
    ],
)
def test_a_key_without_one_short_text_is_rejected(key: Any, message: str) -> None:
    with pytest.raises(RejectedKeyError) as caught:
        text_of(key)
    assert message == str(caught.value)
