"""Headers by a function of the request: AWS SigV4 on each attempt, redirect and page, and functions that go wrong."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import hmac
import inspect
import json
import sys
import textwrap
import traceback
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from enrichkit_http import HttpConfig, UnsignedRequest

from enrichkit.errors import ConfigError, ConnectorError, FatalError, PermanentError, TransientError
from enrichkit.plugin import Call, Secret

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY_ID, KEY = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


def sigv4(method: str, host: str, target: str, body: bytes, date: str) -> str:
    """
    Return the header Authorization of AWS Signature Version 4, over `host` and `x-amz-date`.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
    """
    path, _, query = target.partition("?")
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in parse_qsl(query, True))
    canonical = "\n".join(
        (
            method,
            quote(path, safe="/-_.~"),
            "&".join(f"{name}={value}" for name, value in pairs),
            f"host:{host}\nx-amz-date:{date}\n",
            "host;x-amz-date",
            hashlib.sha256(body).hexdigest(),
        )
    )
    scope = f"{date[:8]}/us-east-1/service/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{KEY}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return f"AWS4-HMAC-SHA256 Credential={KEY_ID}/{scope}, SignedHeaders=host;x-amz-date, Signature={signature}"


def signed(request: UnsignedRequest) -> dict[str, str]:
    """Sign *request* as of now."""
    parts = urlsplit(request.url)
    date = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    return {
        "X-Amz-Date": date,
        "Authorization": sigv4(request.method, parts.netloc, target, request.body, date),
    }


class Aws:
    """A service that computes the signature of each request anew, from the bytes that arrived, and compares it."""

    def __init__(self, answer: Callable[[Any], bytes], refuse: bytes) -> None:
        self.answer = answer
        self.refuse = refuse
        self.targets: list[str] = []
        self.signatures: list[str] = []

    def __call__(self, request: Any) -> bytes:
        self.targets.append(request.target)
        self.signatures.append(request.headers["authorization"])
        headers = request.headers
        expected = sigv4(
            request.method, headers["host"], request.target, request.body.encode("latin-1"), headers["x-amz-date"]
        )
        return self.answer(request) if headers["authorization"] == expected else self.refuse


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`functions(code)`: the module `shop_signing` of the user."""

    def write(code: str) -> None:
        (tmp_path / "shop_signing.py").write_text(textwrap.dedent(code))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "shop_signing", raising=False)

    return write


@pytest.fixture
def aws(functions: Callable[[str], None]) -> str:
    """The name of `signed` in the module of the user."""
    head = "import datetime as dt, hashlib, hmac\nfrom urllib.parse import parse_qsl, quote, urlsplit\n"
    code = "\n".join(map(inspect.getsource, (sigv4, signed)))
    functions(f"from __future__ import annotations\n{head}KEY_ID, KEY = {KEY_ID!r}, {KEY!r}\n{code}")
    return "shop_signing:signed"


@pytest.fixture
def ask(serving: Callable[..., Any], connected: Callable[..., Any]) -> Callable[..., Any]:
    """`ask(handler, *keys, path="/{0}", **fields)`: one lookup after the other."""

    def run(handler: Callable[[Any], bytes], *keys: Any, path: str = "/{0}", **fields: Any) -> list[Any]:
        async def play() -> list[Any]:
            async with serving(handler=handler) as server, connected(server.url + path, **fields) as connector:
                return [dict(await connector.fetch_many((key,), Call(timeout=5.0))).get(key) for key in keys]

        return asyncio.run(play())

    return run


def test_the_signature_is_that_of_the_documented_example() -> None:
    """`get-vanilla` of AWS's test suite for Signature Version 4."""
    assert sigv4("GET", "example.amazonaws.com", "/", b"", "20150830T123600Z") == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        "SignedHeaders=host;x-amz-date, "
        "Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
    )


@pytest.mark.parametrize(
    ("path", "fields", "key"),
    [
        ("/{0}", {}, "a b/ü'~"),
        ("/x?b=2&a={0}", {"params": {"zeta": "{1}"}}, ("ü &=+", "/*")),
        ("/x", {"method": "POST", "body": {"id": "{0}"}, "idempotent": True}, 'é"'),
        ("/x", {"method": "POST", "form": {"id": "{0}"}, "idempotent": True}, "a b&"),
    ],
    ids=["path", "query", "body", "form"],
)
def test_a_service_takes_the_signature(
    path: str, fields: dict[str, Any], key: Any, aws: str, ask: Callable[..., Any], http: Callable[..., bytes]
) -> None:
    service = Aws(lambda request: http(b"v"), http(b"", status="403 Forbidden"))
    assert ask(service, key, path=path, sign=aws, **fields) == ["v"]
    assert len(service.targets) == 1


def test_each_redirect_and_page_is_signed_anew(aws: str, ask: Callable[..., Any], http: Callable[..., bytes]) -> None:
    def answer(request: Any) -> bytes:
        if request.target == "/k":
            return http(b"", "Location: /moved?page=1", status="302 Found")
        more = b', "next": "/moved?page=2"' if request.target.endswith("1") else b""
        return http(b'{"items": [1]' + more + b"}")

    service = Aws(answer, http(b"", status="403 Forbidden"))
    found = ask(service, "k", sign=aws, redirects=2, value="items", next_page="next", returns="array<int>")
    assert json.loads(bytes(found[0])) == [1, 1]
    assert service.targets == ["/k", "/moved?page=1", "/moved?page=2"]
    assert len(set(service.signatures)) == 3


def test_each_attempt_is_signed_anew(functions: Any, ask: Callable[..., Any], http: Callable[..., bytes]) -> None:
    functions(
        """
        count = 0
        async def sign(request):
            global count
            count += 1
            return {"x-signature": str(count)}
        """
    )
    seen: list[str] = []

    def handler(request: Any) -> bytes:
        seen.append(request.headers["x-signature"])
        return http(b"v")

    assert ask(handler, "a", "b", "a", sign="shop_signing:sign") == ["v"] * 3
    assert seen == ["1", "2", "3"]


def test_the_function_sees_no_secret(
    functions: Any, ask: Callable[..., Any], http: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    functions(
        """
        seen = []
        def sign(request):
            seen.append(request)
            return {"X-Signature": "s"}
        """
    )
    monkeypatch.setenv("TOKEN", "hidden-1")
    sent: list[Any] = []

    def handler(request: Any) -> bytes:
        sent.append(request.headers)
        return http(b'{"a": 1}')

    headers = {"X-Mine": Secret.env("TOKEN"), "X-Api-Key": "hidden-2", "X-Plain": "shown", "X-Part": "p-{1}"}
    ask(handler, ("k", "7"), sign="shop_signing:sign", headers=headers, returns="a int")
    [request] = sys.modules["shop_signing"].seen
    assert request.headers == {
        "user-agent": sent[0]["user-agent"],
        "accept": "application/json",
        "x-plain": "shown",
        "x-part": "p-7",
    }
    assert "hidden" not in repr(request)
    assert (sent[0]["x-mine"], sent[0]["x-api-key"], sent[0]["x-signature"]) == ("hidden-1", "hidden-2", "s")
    with pytest.raises(AttributeError):
        request.url = "other"


NO_TEXT = "its text is not shown, it may hold a secret."


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("def sign(request): raise KeyError('S3cret')", PermanentError, f"raised KeyError; {NO_TEXT}"),
        (
            (
                "from enrichkit.errors import TransientError\nasync def sign(request):\n"
                "    hidden = 'S3cret'\n    raise TransientError(hidden, retry_after=3.0)"
            ),
            TransientError,
            f"raised TransientError; {NO_TEXT}",
        ),
        (
            "from enrichkit.errors import FatalError\ndef sign(request): raise FatalError('S3cret')",
            FatalError,
            f"raised FatalError; {NO_TEXT}",
        ),
        (
            "def sign(request): return 'S3cret'",
            PermanentError,
            (
                "returned a str; it must return a mapping of names to values, each of visible ASCII. The value is not "
                "shown, it may be a secret."
            ),
        ),
        (
            "def sign(request): return {'x-signature': 'S3cret\\r\\nx: y'}",
            PermanentError,
            (
                "returned a header that cannot be sent; it must return a mapping of names to values, each of visible "
                "ASCII. The value is not shown, it may be a secret."
            ),
        ),
        (
            "def sign(request): return {'Host': 'S3cret'}",
            PermanentError,
            (
                "returned the header 'host', which the request has from elsewhere; each header is given once. Leave it "
                "out in one place."
            ),
        ),
        (
            "def sign(request): return {'X-Mine': 'S3cret'}",
            PermanentError,
            (
                "returned the header 'x-mine', which the request has from elsewhere; each header is given once. "
                "Leave it out in one place."
            ),
        ),
    ],
)
def test_a_function_goes_wrong(
    code: str, kind: type[ConnectorError], text: str, functions: Any, ask: Any, http: Callable[..., bytes]
) -> None:
    functions(code)
    seen: list[Any] = []
    with pytest.raises(ConnectorError) as caught:
        ask(lambda request: seen.append(request) or http(b"v"), "k", sign="shop_signing:sign", headers={"x-mine": "m"})
    assert (kind, f"HttpConfig.sign 'shop_signing:sign' {text}") == (type(caught.value), str(caught.value))
    if kind is TransientError:
        assert caught.value.retry_after == 3.0  # type: ignore[attr-defined]
    whole = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    assert "S3cret" not in whole.replace(repr(code), "")
    assert seen == [], "nothing is sent unsigned"


def test_a_function_that_takes_too_long_ends_with_the_call(
    functions: Any, serving: Any, connected: Any, http: Any
) -> None:
    functions("import asyncio\nasync def sign(request):\n    await asyncio.sleep(60)\n")

    async def play() -> str:
        async with (
            serving(handler=lambda request: http(b"v")) as server,
            connected(server.url + "/{0}", sign="shop_signing:sign", capacity=1) as connector,
        ):
            for _ in range(3):  # it keeps no permit
                with pytest.raises(TransientError) as caught:
                    await connector.fetch_many(("k",), Call(timeout=0.05))
            return str(caught.value)

    assert asyncio.run(play()) == "HttpConfig.sign 'shop_signing:sign' gave no headers within 0.05 s."


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module_x:sign", "ModuleNotFoundError"),
        ("shop_signing:absent", "AttributeError"),
        ("shop_signing:n", "a int"),
    ],
)
def test_a_function_that_is_not_there_fails_at_once(
    name: str, reason: str, functions: Any, ask: Any, http: Any
) -> None:
    functions("n = 1")
    with pytest.raises(FatalError) as caught:
        ask(lambda request: http(b"v"), "k", sign=name)
    assert str(caught.value) == (
        f"HttpConfig.sign {name!r} cannot be used on this worker ({reason}); it must be a function of a module there. "
        "Ship the package with the job."
    )


@pytest.mark.parametrize("sign", ["", "sign", "a:b:c", "a b:c", ":f", "m:", 5, len])
def test_a_name_that_is_refused(sign: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        HttpConfig(url="https://api.example/{0}", sign=sign)
    assert str(caught.value) == (
        f"HttpConfig.sign is {sign!r}; it must name a module and a function of it, which the workers import. Write "
        "'shop.signing:sign', for example."
    )


@pytest.mark.parametrize("field", ["params", "form"])
def test_a_signature_leaves_nothing_out(field: str) -> None:
    fields: dict[str, Any] = {field: {"token": Secret.env("TOKEN")}, "method": "POST"}
    with pytest.raises(ConfigError) as caught:
        HttpConfig(url="https://api.example/{0}", sign="m:f", **fields)
    assert str(caught.value) == (
        f"HttpConfig.{field} gives 'token' a Secret, and sign is given; a function that signs sees no secret, so its "
        "signature would leave that out. Send the secret in a header."
    )
