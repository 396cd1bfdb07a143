"""
What users of other projects ran into must not happen here; `docs/peers.md` lists it, with the test of each symptom.

The connectors, the servers and the worker's whole path are real; only Spark is not there.
"""

from __future__ import annotations

import ast
import re
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig
from pyspark.sql import types as t

from enrichkit import Retry, local
from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.errors import SourceStalledError
from enrichkit.local import Fault
from enrichkit.worker.entry import arrow_batches

from .faults import GOOD, INT, PATIENT, PROFILE, TIMEOUT, all_three, assert_good, value_at
from .pace import at_pace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import DataType

    from enrichkit.local import HttpService, PostgresServer

    from .sparkless import Worker

pytestmark = pytest.mark.service

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "peers.md").read_text()
ROWS = re.findall(r"^\| (.+) \| (.+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)[2:]


def source(service: HttpService, **settings: Any) -> HttpConfig:
    """A new source each time, so that nothing is shared with another test."""
    where = "bulk" if settings.get("bulk") else f"{uuid.uuid4()}/{{}}"
    return HttpConfig(url=f"{service.url}/{where}", **settings)


# --- the page


@cache
def file_tests(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_symptom_has_its_tests_or_says_why_it_cannot_occur() -> None:
    assert len(ROWS) >= 25
    for symptom, _, here, cell in ROWS:
        assert re.fullmatch(r"`[^`]+::test_\w+`(<br>`[^`]+::test_\w+`)*", cell) or cell == "cannot occur", symptom
        assert here.strip(), symptom


def test_every_test_of_a_symptom_exists() -> None:
    for symptom, _, _, cell in ROWS:
        for path, name in re.findall(r"`([^`]+)::(\w+)`", cell):
            assert name in file_tests(path), f"{symptom}: {path} has no {name}"


def test_every_test_here_is_that_of_a_symptom() -> None:
    for path in ("tests/test_peers.py", "tests/spark/test_peers.py"):
        for name in file_tests(path):
            of_the_page = "symptom" in name
            assert of_the_page or not name.startswith("test_") or f"`{path}::{name}`" in PAGE, name


# --- rows and values


def test_rows_with_equal_keys_in_one_batch_all_get_their_value(worker: Worker, http_service: HttpService) -> None:
    keys = ["u1", "u2", "u1", "u1", "u2", "u3"]
    rows = worker.outcomes(source(http_service, bulk=True), PROFILE, keys, timeout=PATIENT)
    assert_good(rows, [value_at(key) for key in keys])
    assert {"u1": 1, "u2": 1, "u3": 1} == http_service.stats().per_key


@pytest.fixture
def grid(postgres_server: PostgresServer, postgres_dsn: str) -> PostgresConfig:
    """A table of two key columns that holds (1, 'a') and (2, 'b'), but neither (1, 'b') nor (2, 'a')."""
    postgres_server.execute(
        "CREATE TABLE grid (n int, side text, score int, PRIMARY KEY (n, side));"
        "INSERT INTO grid VALUES (1, 'a', 11), (2, 'b', 22), (3, 'a'' OR ''1''=''1', 33)",
        postgres_dsn.rpartition("/")[2],
    )
    return PostgresConfig(dsn=postgres_dsn, table="grid", key=("n", "side"))


def test_keys_of_two_columns_neither_double_rows_nor_meet_the_values_of_others(
    worker: Worker, grid: PostgresConfig
) -> None:
    numbers, sides = [1, 1, 2, 2, 1], ["a", "b", "a", "b", "a"]
    rows = worker.outcomes(grid, INT, numbers, sides, timeout=PATIENT)
    assert [11, None, None, 22, 11] == [row["value"] for row in rows]
    assert ["ok", "missing", "missing", "ok", "ok"] == [row["status"] for row in rows]


def test_rows_without_a_match_come_out_too(worker: Worker, grid: PostgresConfig) -> None:
    rows = worker.outcomes(grid, INT, [8, 9, None], ["a", "b", "c"], timeout=PATIENT)
    assert [("missing", None), ("missing", None), ("null_key", None)] == [(row["status"], row["value"]) for row in rows]


def test_a_key_is_never_a_part_of_the_statement(worker: Worker, grid: PostgresConfig) -> None:
    sides = ["a' OR '1'='1", "'; DROP TABLE grid; --", "{side}", "%s", "$1"]
    rows = worker.outcomes(grid, INT, [3, 1, 1, 1, 1], sides, timeout=PATIENT)
    assert [33, None, None, None, None] == [row["value"] for row in rows]
    assert ["ok", *["missing"] * 4] == [row["status"] for row in rows]
    assert_good(worker.outcomes(grid, INT, [1], ["a"], timeout=PATIENT), [11])


@pytest.mark.parametrize(
    ("document", "returns", "value"),
    [
        ("0", t.IntegerType(), 0),
        ("0.0", t.DoubleType(), 0.0),
        ("false", t.BooleanType(), False),
        ('""', t.StringType(), ""),
        ("[]", t.ArrayType(t.IntegerType()), []),
        ("{}", PROFILE, {"name": None, "score": None}),
    ],
)
def test_an_answer_that_python_finds_false_is_a_value(
    worker: Worker, http_service: HttpService, document: str, returns: DataType, value: Any
) -> None:
    http_service.script(Fault(body=f'{{"value": {document}}}'.encode()))
    asked = source(http_service, value="value")
    (row,) = worker.outcomes(asked, returns, ["u1"], timeout=PATIENT, absent_fields="null")
    assert ("ok", value, None) == (row["status"], row["value"], row["error"])


# --- errors


@pytest.mark.slow
def test_a_dead_host_is_never_a_null_without_an_error(worker: Worker) -> None:
    with socket.socket() as held:  # bound, and nobody listens: the port is refused, and nobody else gets it
        held.bind(("127.0.0.1", 0))
        config = HttpConfig(url=f"http://127.0.0.1:{held.getsockname()[1]}/{{}}")
        retry = Retry(attempts=2, wait=0.001)
        for row in worker.outcomes(config, PROFILE, GOOD, retry=retry, timeout=TIMEOUT, **all_three("null")):
            assert ("timeout", None) == (row["status"], row["value"])
            refused = r"UnavailableError: No connection to http://127\.0\.0\.1:\d+: refused\."
            assert re.fullmatch(rf"TimeoutError: no answer within {TIMEOUT:g} s; last: {refused}", row["error"])
        with pytest.raises(
            SourceStalledError, match=r"away for \d+ s, .* No connection to \S+: refused\. 4 rows wait\. "
        ):
            worker.outcomes(config, PROFILE, GOOD, retry=retry, details=False, timeout=PATIENT, stall_timeout=1.0)


@pytest.mark.parametrize(("status", "outcome"), [(200, "ok"), (201, "ok"), (202, "error"), (206, "error")])
def test_a_status_is_a_success_from_end_to_end_or_an_error_from_end_to_end(
    worker: Worker, http_service: HttpService, status: int, outcome: str
) -> None:
    """A 202 says that the work is not done yet, so what it carries is not the value; nor is a part of it, with 206."""
    http_service.script(Fault(status=status), log=True)
    (row,) = worker.outcomes(source(http_service), PROFILE, ["u1"], timeout=PATIENT)
    assert outcome == row["status"]
    assert (value_at("u1") if outcome == "ok" else None) == row["value"]
    assert (outcome == "error") == (row["error"] is not None and f"The service answered {status}" in row["error"])
    assert http_service.stats().calls == 1


@pytest.mark.slow
def test_a_429_that_never_ends_is_an_error_after_the_timeout(worker: Worker, http_service: HttpService) -> None:
    http_service.script(Fault(status=429, headers={"Retry-After": "0"}), log=True)
    (row,) = worker.outcomes(source(http_service), PROFILE, ["u1"], timeout=2.0)
    assert ("error", "UnavailableError: The service answered 429.", 1) == (row["status"], row["error"], row["attempts"])
    assert 4 <= http_service.stats().calls <= 10  # with waits of 50 ms at first, and then twice as long each time


def test_a_timeout_bounds_the_time_of_the_task_and_not_only_the_error(
    worker: Worker, http_service: HttpService
) -> None:
    """A call that never ends is neither waited for nor does it hold back the rows behind it."""
    http_service.script(Fault(hang=True))
    began = time.monotonic()
    rows = worker.outcomes(source(http_service), PROFILE, [f"u{n}" for n in range(8)], timeout=0.2, capacity=2)
    assert ["timeout"] * 8 == [row["status"] for row in rows]
    assert time.monotonic() - began <= at_pace(10.0)  # 8 / 2 x 0.2 s; waiting for each call would take over 20


# --- calls, connections, memory


def test_two_tasks_of_a_worker_share_its_capacity(worker: Worker) -> None:
    with local.http() as service:  # of its own: a request that another test left hanging would count
        service.script(latency=0.02)
        config = source(service)

        def task(name: str) -> None:
            keys = [f"{name}{n}" for n in range(30)]
            rows = worker.outcomes(config, PROFILE, keys, capacity=3, timeout=PATIENT)
            assert_good(rows, [value_at(key) for key in keys])

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(task, ["a", "b"]))
        assert (60, 3) == (service.stats().calls, service.stats().peak)


def test_tasks_that_follow_each_other_share_the_connections(worker: Worker, http_service: HttpService) -> None:
    config = source(http_service)
    for _ in range(5):
        rows = worker.outcomes(config, PROFILE, GOOD, capacity=1, timeout=PATIENT)
        assert_good(rows, [value_at(key) for key in GOOD])
    assert (http_service.stats().calls, http_service.stats().connections) == (20, 1)


def test_the_first_rows_leave_although_the_input_never_ends(worker: Worker, http_service: HttpService) -> None:
    plan, _ = make_plan(source(http_service), 1, PROFILE, {"timeout": PATIENT, "capacity": 4})
    pulled = 0

    def endless() -> Iterator[Any]:
        nonlocal pulled
        for number in count():
            pulled += 1
            yield pa.array([f"u{number}"])

    output = arrow_batches(pack(plan), endless())
    for number in range(3):
        assert [value_at(f"u{number}")] == next(output).to_pylist()
    output.close()  # type: ignore[attr-defined]  # it is a generator
    assert pulled < 100, "it read far ahead"
