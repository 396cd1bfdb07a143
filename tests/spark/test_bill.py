"""The bill of a model reconciles: rows, statistics and lost answers are together what its service has counted."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit import local

from ..test_local import alive, descendants, wait_until
from .test_chaos import Driver, started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enrichkit.local import LlmService

# Not `spark`: the test has a Spark of its own.
pytestmark = [pytest.mark.slow, pytest.mark.service, pytest.mark.timeout(420)]

ROWS, DISTINCT, CAPACITY = 2_000, 800, 16
LATENCY, LONG = 0.05, 8.0
PRICES = (0.15, 0.60)
FAULTS = {"429": 0.05, "500": 0.05, "text": 0.05}


@pytest.fixture
def llm_service() -> Iterator[LlmService]:
    with local.llm_service() as service:
        yield service


@pytest.fixture
def job(llm_service: LlmService) -> Iterator[Driver]:
    llm_service.script(latency=LATENCY, shares=FAULTS, prices=PRICES, log=True)
    llm_service.reset_stats()
    asked = {"url": llm_service.url, "rows": ROWS, "distinct": DISTINCT, "capacity": CAPACITY, "prices": PRICES}
    with started("bill_driver.py", asked, llm_service) as running:
        yield running
        wait_until(lambda: not any(map(alive, running.seen)))


def kill_a_worker(job: Driver, service: LlmService) -> float:
    """Kill a worker whose calls in flight take long, so that all that have ended are pushed; return when it was."""
    wait_until(lambda: service.stats().calls >= DISTINCT // 3)
    job.seen.update(descendants(job.process.pid))
    service.script(latency=LONG, shares=FAULTS, prices=PRICES, log=True)
    time.sleep(LONG / 2)
    killed = time.monotonic()  # all slots are busy: the worker sends nothing more
    os.kill(job.worker(), signal.SIGKILL)
    wait_until(lambda: service.stats().cancelled > 0)
    service.script(latency=LATENCY, shares=FAULTS, prices=PRICES, log=True)
    return killed


def messages_of(entry: dict[str, Any]) -> list[str]:
    """The row's text, and in a repeat the answer that did not fit, and what is wrong with it."""
    return [message["content"] for message in json.loads(entry["body"])["messages"]]


def text_of(entry: dict[str, Any]) -> str:
    return messages_of(entry)[0]


def requests_of_lost_calls(log: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the requests whose answers were lost, and those before them in the same calls."""
    for place, entry in enumerate(log):
        if entry["lost"]:
            yield entry
            if len(messages_of(entry)) > 1:
                yield next(other for other in reversed(log[:place]) if messages_of(other) == [text_of(entry)])


def test_rows_statistics_and_lost_answers_are_what_the_service_has_counted(
    job: Driver, llm_service: LlmService
) -> None:
    """429, 500, answers that are no JSON and are asked for again, and a worker that is killed with calls in flight."""
    killed = kill_a_worker(job, llm_service)
    [result] = job.results()
    rows, stats, log, counted = result["rows"], result["stats"], llm_service.log(), llm_service.stats()
    assert (ROWS, DISTINCT, 1) == (len(rows), len({row["text"] for row in rows}), result["failed_tasks"])
    lost = [entry for entry in log if entry["lost"]]
    lost_with_them = list(requests_of_lost_calls(log))
    assert 0 < len(lost) <= CAPACITY

    # The statistics, and of which calls they do not know the cost: those whose answers were lost, and no other.
    assert len(lost) == stats["calls"] - stats["metered"] == result["spending"]["unknown"]
    assert counted.calls == stats["spent"]["requests"] + len(lost_with_them)
    for place, unit, all_tokens in ((0, "tokens_in", counted.input_tokens), (1, "tokens_out", counted.output_tokens)):
        assert all_tokens == stats["spent"][unit] + sum(entry["tokens"][place] for entry in lost_with_them)
    of_lost = sum(entry["tokens"][place] * PRICES[place] / 1e6 for entry in lost_with_them for place in (0, 1))
    assert counted.cost == pytest.approx(stats["spent"]["cost"] + of_lost)

    # The rows, text by text: all requests, but for a text of the killed task only those of its second attempt.
    partitions = {row["text"]: row["partition"] for row in rows}
    [dead] = {partitions[text_of(entry)] for entry in lost}
    billed: Counter[str] = Counter()
    for entry in log:
        if partitions[text_of(entry)] != dead or entry["at"] > killed:
            billed[text_of(entry)] += sum(entry["tokens"])
    paid = {row["text"]: row["answer"]["spent"] for row in rows if row["answer"]["spent"] is not None}
    assert sum(row["answer"]["spent"] is not None for row in rows) == len(paid) == DISTINCT
    # Without a number: none of its requests was answered by the model.
    assert dict(billed) == {text: spent["tokens"] or 0 for text, spent in paid.items()}
    assert counted.faults_used > DISTINCT // 10
