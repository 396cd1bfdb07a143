"""What can happen to a key on its way to its source and back, and what its row must then say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types as t

from enrichkit import Call, Connector, ConnectorConfig, Retry, default
from enrichkit.errors import LookupFailedError
from enrichkit.local import Fault, value_of

from .pace import at_pace

if TYPE_CHECKING:
    from enrichkit.local import HttpService

    from .sparkless import Row

PROFILE = t.StructType([t.StructField("name", t.StringType()), t.StructField("score", t.IntegerType())])
INT = t.IntegerType()
STRING = t.StringType()
GOOD = ["u1", "u2", "u3", "u4"]
TWICE = Retry(attempts=2, wait=0.001)
TIMEOUT = min(1.5, at_pace(0.5))  # where a fault is waited for; less than the 2 s that a connect may take
FOR_A_WAIT = at_pace(2.0)  # where the service wants its keys to wait for longer
PATIENT = 30.0  # where it is not

POLICIES = ["null", "default", "function", "source"]


@dataclass(frozen=True, kw_only=True)
class SpareConfig(ConnectorConfig):
    """A source that holds the same JSON document under every key."""

    document: str


class SpareConnector(Connector[SpareConfig]):
    name = "spare"
    config_class = SpareConfig
    max_batch_size = batch_size = 100
    encoding = "json"

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> dict[Any, bytes]:
        return dict.fromkeys(keys, self.config.document.encode())


def policy_of(name: str, spare: Any) -> Any:
    """The policy *name*, which gives each row *spare* unless it gives null or fails."""
    if name == "function":
        return lambda key: spare
    if name == "source":
        return SpareConfig(document=json.dumps(spare))
    return default(spare) if name == "default" else name


def all_three(policy: Any) -> dict[str, Any]:
    return {"on_timeout": policy, "on_error": policy, "on_missing": policy}


def assert_row(row: Row, status: str, error: str, policy: str, spare: Any, value: Any = None) -> None:
    """*row* ended with *status* and an error like *error*, and has *spare*, null or, if it is ok, *value*."""
    assert status == row["status"], row
    assert re.fullmatch(error, row["error"] or ""), row
    kept = status == "ok" or policy == "null"
    assert (value if status == "ok" else None if policy == "null" else spare) == row["value"], row
    assert ("call" if kept else "fallback") == row["origin"], row


def assert_good(rows: list[Row], values: list[Any]) -> None:
    assert [("ok", None)] * len(values) == [(row["status"], row["error"]) for row in rows], rows
    assert values == [row["value"] for row in rows]


def assert_fails(look_up: Callable[[], Any], source: str, status: str, error: str) -> None:
    """The task fails with a message that says what happened to which key, and which option decided it."""
    option = {"missing": "on_missing", "timeout": "on_timeout"}.get(status, "on_error")
    what = {"missing": "found nothing", "rejected": "was refused"}.get(status, "failed")
    cause = error.removesuffix(r"\.") or "the source does not hold the key"
    slow = r" Where the source answers other keys, a lower capacity or a longer timeout may keep the answer\."
    with pytest.raises(LookupFailedError) as caught:
        look_up()
    pattern = (
        rf"{source}: the lookup of key #[0-9a-f]{{10}} {what} after \d (?:of \d )?attempts? and [\d.e-]+ s: {cause}\. "
        rf"The task fails because {option} is 'fail'; {option}='null' or .*{option}=default\(value\) .*keeps? the row\."
        rf"{slow if status == 'timeout' else ''} Set show_keys=True to see the key\."
    )
    assert re.fullmatch(pattern, str(caught.value)), str(caught.value)


# --- faults of an HTTP service

MAX_BYTES = 4096


@dataclass(frozen=True)
class HttpFault:
    """
    One way to fail, which is the fault of the key that has its name.

    Attributes:
        name: The key; none is part of another.
        fault: What the service does; None: the key alone decides.
        status: Of the outcome.
        error: Pattern of its error, the class of the exception first; empty when it has none.
        attempts: Calls made for the key.
        wait: Whether the service wants all other keys to wait too.
        away: Whether it may be taken for a part of an outage: fewer attempts may be counted, and the key may have its
            timeout.
    """

    name: str
    fault: Fault | None
    status: str
    error: str = ""
    attempts: int = 1
    wait: bool = False
    away: bool = False


LATE = r"TimeoutError: no answer within [\d.]+ s"
BROKE = r"UnavailableError: The connection to \S+ broke before the answer was complete\."
NO_HTTP = r"PermanentError: The answer from \S+ is not valid HTTP: .+\."
HALF = r"PermanentError: The compressed answer is cut off, or something follows it; it was not used\."
NO_JSON = r"PermanentError: The answer of \d+ bytes is no JSON document: .+\."
NO_FIT = r"PermanentError: The (part 'score' of the )?value does not fit the declared type .+\."
NO_UTF_8 = (
    r"PermanentError: The part 'name' of the value does not fit the declared type string: it is not UTF-8; it must be "
    r"a string\. Change the source, or declare another type with returns=\."
)
TOO_LARGE = r"PermanentError: The answer is too large: it has more than 4,096 bytes\. .+\."
NEVER_SENT = r"PermanentError: The key makes a path segment .+; such a key is never sent\. .+\."


def says(status: str) -> str:
    error = "TransientError" if status == "500" else "UnavailableError"
    return rf"{error}: The service answered {status}\."


# Asked with two attempts, a struct<name:string,score:int> and MAX_BYTES.
HTTP_FAULTS = (
    # no answer, or not in time
    HttpFault("never-answered", Fault(hang=True), "timeout", LATE),
    HttpFault("answered-late", Fault(delay=60.0), "timeout", LATE),
    HttpFault("dripping", Fault(drip=0.5), "timeout", LATE),
    # half an answer
    HttpFault("reset", Fault(reset=True), "error", BROKE, 2, away=True),
    HttpFault("cut-in-the-head", Fault(close_after=20), "error", BROKE, 2, away=True),
    HttpFault("cut-in-the-body", Fault(close_after=90), "error", BROKE, 2, away=True),
    HttpFault("closed-without-a-byte", Fault(close_after=0), "error", BROKE, 2, away=True),
    HttpFault("half-a-gzip", Fault(truncated_gzip=True), "error", HALF),
    HttpFault("two-lengths", Fault(headers={"Content-Length": "5"}), "error", NO_HTTP),
    # a status that is none of a value
    HttpFault("error-500", Fault(status=500), "error", says("500"), 2, away=True),
    HttpFault("busy-503", Fault(status=503), "error", says("503"), 2, away=True),
    HttpFault("throttled-429", Fault(status=429, headers={"Retry-After": "0"}), "error", says("429"), 2, away=True),
    HttpFault(
        "throttled-for-long",
        # After all other keys are answered, or the source is away and the clock of the only key left stands still.
        Fault(status=429, headers={"Retry-After": "60"}, delay=at_pace(1.0)),
        "error",
        r"UnavailableError: The service answered 429 "
        rf"\(not asked again: the source asks for 60 s, which ends after the timeout of {FOR_A_WAIT:g} s\)",
        wait=True,
        away=True,
    ),
    HttpFault("refused-400", Fault(status=400), "error", r"PermanentError: The service answered 400; .+\."),
    HttpFault(
        "elsewhere-302", Fault(status=302, headers={"Location": "/u1"}), "error", r"PermanentError: .+ 302, .+\."
    ),
    HttpFault("absent-404", Fault(status=404), "missing"),
    HttpFault("no-missing-key", None, "missing"),
    # an answer that is no value
    HttpFault("malformed-json", Fault(body=b'{"name": "x", "score": '), "error", NO_JSON),
    HttpFault("html", Fault(body=b"<html>Sign in</html>", content_type="text/html"), "error", NO_JSON),
    HttpFault("empty-body", Fault(body=b" "), "error", r"PermanentError: The answer is empty, and no JSON .+\."),
    HttpFault("text-for-a-number", Fault(body=b'{"name": "x", "score": "1"}'), "error", NO_FIT),
    HttpFault("number-too-large", Fault(body=b'{"name": "x", "score": 2147483648}'), "error", NO_FIT),
    HttpFault("no-utf-8", Fault(body=b'{"name": "\xff\xfe", "score": 1}'), "error", NO_UTF_8),
    HttpFault("too-large", Fault(oversize=2 * MAX_BYTES), "error", TOO_LARGE),
    # a key that is never sent
    HttpFault("..", None, "rejected", NEVER_SENT),
    # what looks like a fault and is none
    HttpFault("stray-answer", Fault(stray=True), "ok"),
    HttpFault("busy-once", Fault(status=503, times=1), "ok", attempts=2, away=True),
    HttpFault("stored-null", Fault(body=b"null"), "ok"),
)


def misbehave(service: HttpService, faults: tuple[HttpFault, ...] = HTTP_FAULTS) -> None:
    """Let *service* do to each key what its fault says."""
    service.script(*(replace(fault.fault, match=f"/{fault.name}") for fault in faults if fault.fault), log=True)


def value_at(key: str) -> dict[str, object] | None:
    """What the service holds under *key*, as the declared type has it."""
    if key == "stored-null":
        return None
    value = value_of(key)
    return {"name": value["name"], "score": value["score"]}
