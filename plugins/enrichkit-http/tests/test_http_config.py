"""The fields that `HttpConfig` accepts, the messages for wrong fields, and the secrets that it does not show."""

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

from enrichkit.errors import ConfigError
from enrichkit.interface import connector_of
from enrichkit.plugin import Secret

URL = "https://api.example/users/{0}"
CLIENT = {"token_url": "https://login.example/token", "client_id": "jobs", "client_secret": Secret.env("CLIENT_SECRET")}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"url": 7},
            "HttpConfig.url is a int; it must be text, as in 'https://api.example/users/{0}'.",
        ),
        *(
            (
                {"url": f"{scheme}:///x/{{0}}"},
                (
                    f"HttpConfig.url starts with {f'{scheme}:'[:5]!r}; it must start with 'https://' or 'http://', "
                    "for example 'https://api.example/users/{0}'."
                ),
            )
            for scheme in ("file", "gopher", "unix")
        ),
        (
            {"url": "https://\u2460\u2461\u2466.0.0.1/{0}"},  # digits in circles, which some resolvers take for digits
            (
                "HttpConfig.url holds '\u2460' at position 8; an address holds letters, digits and "
                "-._~:/?[]@!$&'()*+,;= and %XX. Percent-encode it, '%20' for a space; leave out a fragment ('#...')."
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
                "0x7f.1",
                "0177.0.0.1",
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
        *(
            (
                {"url": f"https://api.example/{template}"},
                (
                    f"HttpConfig.url has {between} between {{{first}}} and {{{second}}}, which a key may hold too, so "
                    "that two keys could ask the same; there must be one of :/?[]@!$&()*+,;= there. Write "
                    f"'{{{first}}}/{{{second}}}', or join the columns to one."
                ),
            )
            for template, between, first, second in (
                ("{}{}", "nothing", 0, 1),
                ("{1}{0}", "nothing", 1, 0),
                ("a/{0}/{0}-{1}", "'-'", 0, 1),
                ("?q={0}%2F.~_x{1}", "'%2F.~_x'", 0, 1),
                ("?q={0}'{1}", '"\'"', 0, 1),
            )
        ),
        (
            {"url": "https://api.example/users"},
            (
                "HttpConfig holds no placeholder in url, params, headers, body or form, so every key would ask the "
                "same; one of them must say where the key goes. Write '{0}', as in 'https://api.example/users/{0}'."
            ),
        ),
        (
            {"url": "https://api.example/{1}/{3}"},
            (
                "HttpConfig uses the key parts [1, 3]; each part from 0 on must be used, or keys that "
                "differ would ask the same. Use {0} to {1}."
            ),
        ),
        (
            {"url": URL, "method": "GET\r\nX: 1"},
            "HttpConfig.method is 'GET\\r\\nX: 1'; it must be 'GET', 'POST' or 'PUT', in capitals.",
        ),
        ({"url": URL, "method": "get"}, "HttpConfig.method is 'get'; it must be 'GET', 'POST' or 'PUT', in capitals."),
        (
            {"url": URL, "body": {"id": "{0}"}},
            "HttpConfig.body is given with method 'GET'; only a POST or PUT has a body. Say method='POST'.",
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
        *(
            (
                {"url": URL, "method": "POST", "body": body},
                (
                    f"HttpConfig.body is not JSON ({reason}); it must be data made of dict, list, str, int, float, "
                    'bool and None, or JSON text. Write {"id": "{0}"}.'
                ),
            )
            for body, reason in (
                ('["{0}", -1e400]', "a number is out of the range of a double"),
                (
                    '["{0}", "\\ud800"]',
                    "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed",
                ),
            )
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
                    "HttpConfig.bulk sends many keys of one column at once, so url, params and headers hold no "
                    'placeholder, and body only {0}, which stands for their list. Say body={"ids": "{0}"}, or '
                    "bulk=False."
                ),
            )
            for url, body in (
                (URL, None),
                ("https://api.example/", {"ids": []}),
                ("https://api.example/", ["{0}", "{1}"]),
                ("https://api.example/?a={0}", ["{0}"]),
            )
        ),
        (
            {"url": URL + "?na%20me=1", "params": {"x": "{0}", "na me": "2"}},
            (
                "HttpConfig.params names 'na me', which the query of url has too; a parameter is given once. Leave one "
                "of them out."
            ),
        ),
        (
            {"url": URL, "params": {"{0}": "x"}},
            (
                "HttpConfig.params has the name '{0}'; a name is text that is not empty and holds no '{': a key may be "
                "a value, not a name. Write {'id': '{0}'}."
            ),
        ),
        (
            {"url": URL, "params": {"a": "{0}-{1}"}},
            (
                "HttpConfig.params gives 'a' a value with 2 parts of the key; one value holds at most one, or two keys "
                "could ask the same. Give each part a name of its own."
            ),
        ),
        *(
            (
                {"url": "http://api.example/{0}", "params": {name: value}},
                (
                    f"HttpConfig.url starts with 'http://', and its parameter {name!r} holds a credential, which "
                    "everybody on the way could read. Write 'https://', or insecure=True if you know that the network "
                    "is safe."
                ),
            )
            for name, value in (("v", Secret.env("TAG")), ("api_key", "S3cret"))
        ),
        (
            {"url": URL, "headers": {"X-A": "{0}{1}"}},
            (
                "HttpConfig.headers gives 'X-A' a value with 2 parts of the key; one value holds at most one, or two "
                "keys could ask the same. Give each part a name of its own."
            ),
        ),
        *(
            (
                {"url": URL, "headers": {"X-A": value}},
                (
                    "HttpConfig.headers gives 'X-A' a value with braces in which no number stands; only {} and the "
                    "numbers {0}, {1}, ... of the key columns may. Write {0} for the first key column, or refer to a "
                    "value that has braces of its own by a Secret."
                ),
            )
            for value in ("{S3cret}", "0}", '{"a": 1}')
        ),
        *(
            (
                {"url": URL, "headers": {name: value}},
                (
                    f"HttpConfig.headers joins a part of the key to other text in {name!r}, which looks like a "
                    "credential; a key and a credential are never joined. Write '{0}' alone, or a Secret alone."
                ),
            )
            for name, value in (("Authorization", "Bearer S3cret{0}"), ("Cookie", "session={0}"))
        ),
        (
            {"url": URL, "headers": {"HOST": "{0}"}},
            (
                "HttpConfig.headers puts a part of the key into 'HOST'; a key never chooses where the request goes. "
                "Register one source for each host."
            ),
        ),
        (
            {"url": URL, "headers": {"X-A": " {0}"}},
            (
                "HttpConfig.headers gives 'X-A' a value with a line break, a control or non-ASCII character, or a "
                "blank at an end; a value is visible ASCII, blanks inside. Take the character out; the value is not "
                "shown, it may be a secret."
            ),
        ),
        (
            {"url": URL, "form": {"id": "{0}"}},
            "HttpConfig.form is given with method 'GET'; only a POST or PUT has a body. Say method='POST'.",
        ),
        *(
            (
                {"url": "https://api.example/", "method": "POST", "form": {"id": "{0}"}, **fields},
                (
                    f"HttpConfig.form is given with {given}; a request has one body, and that of bulk is JSON. Leave "
                    "one of them out."
                ),
            )
            for fields, given in (({"body": ["{0}"]}, "body"), ({"bulk": True}, "bulk"))
        ),
        (
            {"url": "https://api.example/", "method": "PUT", "bulk": True},
            (
                "HttpConfig.method is 'PUT' with bulk; many keys are asked for by POST. Leave method out, or say "
                "bulk=False."
            ),
        ),
        (
            {"url": URL, "method": "POST", "form": "id"},
            (
                "HttpConfig.form is a str that holds no pairs; it must be a mapping of names to texts or secrets. "
                "Write {'id': '{0}'}."
            ),
        ),
        *(
            (
                {"url": URL, "method": "POST", "form": {name: "x"}},
                (
                    f"HttpConfig.form has the name {name!r}; a name is text that is not empty and holds no '{{': a key "
                    "may be a value, not a name. Write {'id': '{0}'}."
                ),
            )
            for name in ("", "{0}", 7, "\ud800")
        ),
        (
            {"url": URL, "method": "POST", "form": [("a", "1"), ("a", "2")]},
            "HttpConfig.form names 'a' twice; each name may be given once. Leave one out.",
        ),
        *(
            (
                {"url": URL, "method": "POST", "form": {"a": value}},
                (
                    f"HttpConfig.form gives 'a' a {type(value).__name__} that is no text; a value is text, in which "
                    "{0} stands for the first key column, or a Secret. Write '{0}', or Secret.env('NAME')."
                ),
            )
            for value in (7, None, ["x"], "\ud800")
        ),
        *(
            (
                {"url": URL, "method": "POST", "form": {"a": value}},
                (
                    "HttpConfig.form gives 'a' a value with braces in which no number stands; only {} and the numbers "
                    "{0}, {1}, ... of the key columns may. Write {0} for the first key column, or refer to a value "
                    "that has braces of its own by a Secret."
                ),
            )
            for value in ("{S3cret}", "{0", "{0!r}", '{"a": 1}')
        ),
        *(
            (
                {"url": URL, "method": "POST", "form": {"a": value}},
                (
                    "HttpConfig.form gives 'a' a value with 2 parts of the key; one value holds at most one, or two "
                    "keys could ask the same. Give each part a name of its own."
                ),
            )
            for value in ("{0}:{1}", "{}{}")
        ),
        (
            {"url": "http://api.example/{0}", "method": "POST", "form": {"pin": Secret.env("PIN")}},
            (
                "HttpConfig.url starts with 'http://', and its field 'pin' of form holds a credential, which everybody "
                "on the way could read. Write 'https://', or insecure=True if you know that the network is safe."
            ),
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
        *(
            (
                {"url": URL, "raw": True, **fields},
                (
                    f"HttpConfig.{next(iter(fields))} is given with raw, which takes the whole of each response as the "
                    "value. Leave one of them out."
                ),
            )
            for fields in ({"value": "a"}, {"key_field": "a"}, {"missing": (404,)})
        ),
        *(
            (
                {"url": URL, "raw": True, "returns": returns},
                (
                    f"HttpConfig.returns is {returns!r} with raw; it must be 'status int, body string' or 'status int, "
                    "body string, headers map<string,string>'. Write one of them, or leave returns out."
                ),
            )
            for returns in ("status int", "body string, status int", "struct<status:int,body:string", "int")
        ),
        *(
            (
                {"url": URL, "redirects": redirects},
                (
                    f"HttpConfig.redirects is {redirects!r}; it must be a whole number from 0 to 10. Write 3, or leave "
                    "it out."
                ),
            )
            for redirects in (-1, 11, True, 1.0, "3")
        ),
        *(
            (
                {"url": "https://api.example/", "body": ["{0}"], "redirects": 1, **fields},
                (
                    f"HttpConfig.redirects is 1 with method {method!r}; only a GET is sent on to another address. "
                    "Leave redirects out, and write the final address into url."
                ),
            )
            for fields, method in (({"method": "POST"}, "POST"), ({"method": "PUT"}, "PUT"), ({"bulk": True}, "POST"))
        ),
        *(
            (
                {"url": URL, "max_pages": pages},
                (
                    f"HttpConfig.max_pages is {pages!r}; it must be a whole number from 1 to 10,000. Write 100, or "
                    "leave it out."
                ),
            )
            for pages in (0, 10_001, True, 1.0, None)
        ),
        (
            {"url": URL, "value": "items", "next_page": "links[]"},
            "HttpConfig.next_page is 'links[]'; it must be names of fields joined by dots, as in 'data.profile'.",
        ),
        *(
            (
                {"url": "https://api.example/{0}", "next_page": "next", **fields},
                (
                    f"HttpConfig.next_page is given with {other}; only the pages of a GET are joined, and a page "
                    "repeats no key. Leave one of them out."
                ),
            )
            for fields, other in (
                ({"raw": True}, "raw"),
                ({"value": "items", "key_field": "id"}, "key_field"),
                ({"value": "items", "method": "POST"}, "method 'POST'"),
            )
        ),
        (
            {"url": URL, "next_page": "next"},
            (
                "HttpConfig.next_page is given without value; value must be the path to the list that each page holds "
                "a part of. Write value='items'."
            ),
        ),
        *(
            (
                {"url": URL, "value": "items", "next_page": "next", "page_param": name},
                (
                    f"HttpConfig.page_param is {name!r}; it must be the name of a parameter of the query, in ASCII. "
                    "Write 'cursor'."
                ),
            )
            for name in ("", 7, "\xe9", "a\n")
        ),
        (
            {"url": URL, "page_param": "cursor"},
            (
                "HttpConfig.page_param is given without next_page; next_page says where in a response the token of the "
                "next page is. Write next_page='next_cursor'."
            ),
        ),
        *(
            (
                {"value": "items", "next_page": "next", "page_param": "c", **fields},
                (
                    "HttpConfig.page_param is 'c', a parameter that url or params has too; the token of a page would "
                    "be its second value. Leave it out there."
                ),
            )
            for fields in ({"url": URL + "?c=1"}, {"url": URL, "params": {"c": "1"}})
        ),
        *(
            (
                {"url": URL, "oauth": oauth},
                (
                    f"HttpConfig.oauth is a {type(oauth).__name__} that is no OAuth; it takes token_url, client_id, "
                    "client_secret, scope, in_body, the first three of which are required. Write "
                    "OAuth(token_url='https://login.example/token', client_id='jobs', "
                    "client_secret=Secret.env('CLIENT_SECRET'))."
                ),
            )
            for oauth in ("x", {}, {**CLIENT, "other": 1}, Secret.env("X"))
        ),
        (
            {"url": URL, "oauth": CLIENT, "headers": {"authorization": "{0}"}},
            "HttpConfig.headers sets 'Authorization', and so does oauth; a request has one. Leave one of them out.",
        ),
        (
            {"url": URL, "oauth": CLIENT, "missing": (404, 401)},
            "HttpConfig.missing holds 401, which with oauth says that a token has ended. Leave it out there.",
        ),
        (
            {"url": URL, "oauth": {**CLIENT, "token_url": "http://login.example/token"}},
            (
                "OAuth.token_url starts with 'http://', so everybody on the way could read the secret of the client. "
                "Write 'https://', or insecure=True if you know that the network is safe."
            ),
        ),
        (
            {"url": "http://api.example/{0}", "oauth": CLIENT},
            (
                "HttpConfig.url starts with 'http://', and the token of oauth in the header 'Authorization' holds a "
                "credential, which everybody on the way could read. Write 'https://', or insecure=True if you know "
                "that the network is safe."
            ),
        ),
        *(
            (
                {"url": URL, "proxy": proxy},
                (
                    "HttpConfig.proxy is no address of a proxy; it must be 'http://' or 'https://', a host and a port, "
                    "without a user name, path or query. Write 'http://proxy.example:3128', and credentials as "
                    "proxy_auth."
                ),
            )
            for proxy in ("proxy:3128", "http://proxy", "socks5://h:1", "http://u:S3cret@h:1", "http://h:1/x", "", 7)
        ),
        (
            {"url": URL, "bearer": "S3cret"},
            "HttpConfig.bearer is a str; it must be a Secret, which no plan shows. Write Secret.env('API_KEY').",
        ),
        (
            {"url": URL, "bearer": Secret.env("API_KEY"), "headers": {"authorization": "Basic x"}},
            (
                "HttpConfig.bearer is given with headers['authorization']; a request has one header Authorization. "
                "Leave one of them out."
            ),
        ),
        (
            {"url": "http://api.example/{0}", "bearer": Secret.env("API_KEY")},
            (
                "HttpConfig.url starts with 'http://', and the token of bearer in the header 'Authorization' holds a "
                "credential, which everybody on the way could read. Write 'https://', or insecure=True if you know "
                "that the network is safe."
            ),
        ),
        (
            {"url": URL, "proxy_auth": Secret.env("PROXY_AUTH")},
            (
                "HttpConfig.proxy_auth is given without proxy, so nobody would get the credentials. Write "
                "proxy='http://proxy.example:3128'."
            ),
        ),
        (
            {"url": URL, "proxy": "http://proxy.example:3128", "proxy_auth": "u:S3cret"},
            (
                "HttpConfig.proxy_auth is a str; it must be a Secret that holds 'user:password'. Write "
                "Secret.env('PROXY_AUTH')."
            ),
        ),
        (
            {"url": "http://localhost/{0}", "proxy": "http://10.0.0.7:3128", "headers": {"X-Api-Key": "S3cret"}},
            (
                "HttpConfig.url starts with 'http://', and the header 'X-Api-Key' holds a credential, which everybody "
                "on the way could read. Write 'https://', or insecure=True if you know that the network is safe."
            ),
        ),
        (
            {"url": URL, "missing_when": "null"},
            "HttpConfig.missing_when is 'null'; it must be 'empty' or None.",
        ),
        (
            {"url": URL, "missing_when": True},
            "HttpConfig.missing_when is True; it must be 'empty' or None.",
        ),
        *(
            (
                {"url": URL, "missing_when": "empty", **others},
                (
                    f"HttpConfig.missing_when is given with {name}, where an empty response says nothing of one key. "
                    "Leave one of them out."
                ),
            )
            for name, others in {
                "bulk": {"url": "https://api.example/", "bulk": True, "method": "POST", "body": {"ids": "{}"}},
                "raw": {"raw": True},
                "next_page": {"next_page": "next", "value": "items"},
            }.items()
        ),
        (
            {"url": URL, "returns": " "},
            "HttpConfig.returns is ' '; it must be the DDL of one value, as in 'name string, tier int'.",
        ),
    ],
)
def test_a_wrong_field_is_refused_with_a_remedy(fields: dict[str, Any], message: str) -> None:
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


def test_configs_with_the_same_meaning_are_equal() -> None:
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


def test_credentials_may_go_unencrypted_to_this_machine_or_with_insecure() -> None:
    headers = {"Authorization": "Bearer x"}
    for host in ("localhost:8080", "127.0.0.1", "127.9.9.9:1", "[::1]:8080"):
        HttpConfig(url=f"http://{host}/{{0}}", headers=headers)
    HttpConfig(url="http://api.example/{0}", headers=headers, insecure=True)


def test_an_ipv4_address_inside_an_ipv6_address_is_the_ipv4_address() -> None:
    """Its author may write it so; no key can. Whether it is this machine decides whether it may get credentials."""
    headers = {"Authorization": "Bearer x"}
    HttpConfig(url="http://[::ffff:127.0.0.1]:8080/{0}", headers=headers)
    for host in ("[::ffff:10.0.0.1]", "[::ffff:169.254.169.254]:80", "[::127.0.0.1]"):
        HttpConfig(url=f"http://{host}/{{0}}")
        with pytest.raises(ConfigError, match="insecure=True"):
            HttpConfig(url=f"http://{host}/{{0}}", headers=headers)
    for host in ("[::ffff:127.1]", "[::ffff:0x7f.0.0.1]", "::ffff:127.0.0.1"):
        with pytest.raises(ConfigError, match=r"^HttpConfig\.url names the host "):
            HttpConfig(url=f"http://{host}/{{0}}")


def test_the_connector_of_an_http_config_is_the_http_connector() -> None:
    assert HttpConnector is connector_of(HttpConfig(url=URL))


def test_the_plugin_offers_the_connector_and_loads_its_driver_only_when_it_is_opened() -> None:
    assert enrichkit_connector() is HttpConnector
    program = "import sys, enrichkit_http; print([name for name in sys.modules if name.startswith('pyreqwest')])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


def test_a_bulk_source_takes_many_keys_per_call_and_another_source_one_key() -> None:
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


def test_dots_and_empty_texts_are_allowed_in_a_query_and_beside_other_text() -> None:
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
