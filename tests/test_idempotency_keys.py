"""The idempotency key of a call: what it depends on, and what the http connector makes of it."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections import defaultdict
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING

import pytest
from enrichkit_http import HttpConfig, HttpConnector
from pyspark.sql.types import StringType

from enrichkit import Cache, Journal
from enrichkit.errors import ConfigError, ContractError
from enrichkit.local import Fault
from enrichkit.plugin import Call

if TYPE_CHECKING:
    from pathlib import Path

    from enrichkit.local import HttpService

    from .sparkless import Worker

KEYS = [
    *(1, "1", 1.0, True, Decimal(1), Decimal("1.00"), b"1", (1,), ("1",), (1, "a"), (1, "a,int:1"), ("1,int:1", "a")),
    *(dt.date(2026, 1, 1), dt.datetime(2026, 1, 1), "\ud800", ""),
]


def test_it_differs_for_keys_that_differ_in_value_or_type() -> None:
    call = Call(timeout=1.0, run="source run=a")
    found = [call.idempotency_key(key) for key in KEYS]
    assert len(set(found)) == len(KEYS)
    assert all(len(each) == 32 and set(each) <= set("0123456789abcdef") for each in found)


def test_it_depends_on_the_run_and_not_on_the_attempt() -> None:
    def key(run: str, attempt: int) -> str:
        return Call(timeout=float(attempt), attempt=attempt, run=run).idempotency_key("k")

    found = {(run, attempt): key(run, attempt) for run, attempt in product(("a", "b"), (1, 2))}
    assert found["a", 1] == found["a", 2] != found["b", 1] == found["b", 2]
    assert found["a", 1] == "6875652fdfaaf19f56b78b14b176e9c0", "no release may change it: services remember it"


def test_a_connector_has_to_say_that_it_wants_one() -> None:
    with pytest.raises(ContractError) as caught:
        Call(timeout=1.0).idempotency_key("k")
    assert str(caught.value) == (
        "idempotency_key was called by a connector whose idempotency_keys is False, so there is no fingerprint of the "
        "run. Set idempotency_keys = True in its class."
    )


def test_a_request_with_a_key_may_be_repeated() -> None:
    post = {"url": "http://localhost/v", "method": "POST", "body": '"{0}"'}
    assert not HttpConnector(HttpConfig(**post)).repeatable
    connector = HttpConnector(HttpConfig(**post, idempotency_key=True))
    assert connector.repeatable
    assert connector.idempotency_keys


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"url": "http://localhost/{}"},
            (
                "HttpConfig.idempotency_key is True with method 'GET'; it is for a request of one key that may change "
                "something. Say method='POST', or leave it out."
            ),
        ),
        (
            {"url": "http://localhost/v", "bulk": True},
            (
                "HttpConfig.idempotency_key is True with bulk; it is for a request of one key that may change "
                "something. Say bulk=False, or leave it out."
            ),
        ),
        (
            {"url": "http://localhost/{}", "method": "PUT", "headers": {"idempotency-Key": "x"}},
            (
                "HttpConfig.headers names 'Idempotency-Key', and idempotency_key is True; only one of them can give "
                "the key. Leave one of them out."
            ),
        ),
    ],
)
def test_where_it_makes_no_sense_it_is_refused(fields: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HttpConfig(**fields, idempotency_key=True)  # type: ignore[arg-type]
    assert str(caught.value) == text


@pytest.mark.slow
@pytest.mark.service
def test_a_key_that_is_asked_for_in_the_background_has_that_of_the_run(
    worker: Worker, http_service: HttpService, tmp_path: Path
) -> None:
    """The last start gives stale values while the service is away, and asks for their keys while `slow` waits."""
    source = HttpConfig(url=f"{http_service.url}/stale/item", method="POST", body={"id": "{0}"}, idempotency_key=True)
    keys = [f"user-{number}" for number in range(8)]
    cache = Cache(ttl=0.2, jitter=0.0, stale_if_error=600.0)

    def start(folder: str, *keys: str) -> list[tuple[str, str]]:
        journal = Journal(str(tmp_path / folder), run_id="monday")  # one each, or the second one would ask for nothing
        rows = worker.outcomes(source, StringType(), keys, cache=cache, journal=journal, capacity=64)
        return [(row["status"], row["origin"]) for row in rows]

    assert start("a", *keys) == [("ok", "call")] * 8
    time.sleep(0.3)
    http_service.script(Fault(times=8, status=503), Fault(match="slow", delay=1.0), log=True)
    assert start("b", keys[0]) == [("ok", "stale")]  # from now on the service is known to be away
    assert start("c", *keys, "slow") == [("ok", "stale")] * 8 + [("ok", "call")]
    sent: dict[str, list[str]] = defaultdict(list)
    for request in http_service.log():
        sent[json.loads(request["body"])["id"]].append(request["headers"]["idempotency-key"])
    again = [key for key in keys[1:] if len(sent[key]) > 1]
    assert again, "only the background asks for these while the service is away"
    assert all(len(set(sent[key])) == 1 for key in keys), "the starts are one run"
    assert len({sent[key][0] for key in keys}) == 8
