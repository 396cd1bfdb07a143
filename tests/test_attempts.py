"""
Two attempts of one task at the same time, as speculation makes them: both get all rows, and the source sees each once.

Spark itself starts such a copy only on another host, which a test on one machine does not have. So two threads run the
task that Spark would send to both.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig

from enrichkit.local import Fault

from .faults import GOOD, PROFILE, TWICE, all_three, assert_good, value_at

if TYPE_CHECKING:
    from enrichkit import local

    from .sparkless import Row, Worker

pytestmark = pytest.mark.service

KEYS = [f"u{n}" for n in range(500)]


def two_attempts(worker: Worker, config: HttpConfig, keys: list[str], **options: Any) -> list[list[Row]]:
    """Run a task twice at the same time, and return the rows of each run."""
    both = threading.Barrier(2)

    def attempt(_: int) -> list[Row]:
        both.wait()
        return worker.outcomes(config, PROFILE, keys, **options)

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(attempt, range(2)))


def source(service: local.HttpService, **how: Any) -> HttpConfig:
    return HttpConfig(url=f"{service.url}/{uuid.uuid4().int}/{{0}}", **how)


@pytest.mark.parametrize("how", [{}, {"method": "POST", "body": {"id": "{0}"}}], ids=["GET", "POST"])
def test_two_attempts_get_the_same_rows_and_each_asks_for_each_key_once(
    how: dict[str, Any], worker: Worker, http_service: local.HttpService
) -> None:
    """Nothing marks the requests of both as the same, so a POST that does more than read is carried out twice."""
    http_service.script(latency=0.02, log=True)
    for rows in two_attempts(worker, source(http_service, **how), KEYS):
        assert_good(rows, [value_at(key) for key in KEYS])
    assert http_service.stats().per_key == dict.fromkeys(KEYS, 2)
    assert {request["method"] for request in http_service.log()} == {how.get("method", "GET")}


def test_a_post_that_fails_is_made_once_by_each_attempt(worker: Worker, http_service: local.HttpService) -> None:
    """enrichkit itself never repeats it; a second one comes from a second attempt of the task."""
    http_service.script(Fault(match="/u2", status=500), log=True)
    config = source(http_service, method="POST", body={"id": "{0}"})
    for rows in two_attempts(worker, config, GOOD, retry=TWICE, **all_three("null")):
        assert_good([rows[0], *rows[2:]], [value_at(key) for key in GOOD if key != "u2"])
        assert (rows[1]["status"], rows[1]["attempts"]) == ("error", 1)
    assert http_service.stats().per_key == dict.fromkeys(GOOD, 2)
