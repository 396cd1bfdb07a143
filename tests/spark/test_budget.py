"""The budget of a job on a cluster: never exceeded, used up, and the bill of the service is that of the rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from enrichkit import local

# Not `spark`: the test has a Spark of its own.
pytestmark = [pytest.mark.more, pytest.mark.service, pytest.mark.timeout(600)]

ROWS = 8_000
PRICES = (0.15, 0.60)
BUDGET = {"tokens": 300_000, "cost": 10.0}
FAULTS = {"429": 0.02, "500": 0.01, "text": 0.01}


def run(service: local.LlmService, redis: local.RedisServer, master: str, rows: int) -> list[dict[str, Any]]:
    asked = {"url": service.url, "rows": rows, "prices": PRICES, "store": redis.url, "budget": BUDGET, "master": master}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("budget_driver.py"), json.dumps(asked)],
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == len({row["text"] for row in found}) == rows
    return found


def test_four_executors_use_a_budget_up_and_never_exceed_it_and_another_run_is_not_given_more() -> None:
    with local.llm_service() as service, local.redis() as redis:
        service.script(latency=0.5, shares=FAULTS, prices=PRICES)
        rows = run(service, redis, "local-cluster[4,1,1024]", ROWS)
        counted = service.stats()
        used = counted.input_tokens + counted.output_tokens
        assert 0.98 * 300_000 <= used <= 300_000
        assert counted.peak > 64, "they worked at the same time"

        answers = [row["answer"] for row in rows]
        statuses = Counter(answer["status"] for answer in answers)
        assert statuses.keys() - {"error"} == {"ok", "over_budget"}
        wrong = [answer["error"] for answer in answers if answer["status"] == "error"]
        assert len(wrong) <= ROWS // 500, "no JSON twice"
        assert all("The model's answer does not fit the declared type" in text for text in wrong)
        assert statuses["over_budget"] > ROWS // 8
        paid = [answer["spent"] for answer in answers if answer["spent"] is not None]
        assert used == sum(spent["tokens"] or 0 for spent in paid)
        assert counted.cost == pytest.approx(sum(spent["cost"] or 0.0 for spent in paid))
        errors = {answer["error"] for answer in answers if answer["status"] == "over_budget"}
        assert all(
            text.startswith("OverBudgetError: the budget of the job is spent, ")
            and text.endswith("of 10 cost; no call was made for the key")
            for text in errors
        )
        assert {None} == {answer["value"] for answer in answers if answer["status"] != "ok"}

        again = Counter(row["answer"]["status"] for row in run(service, redis, "local[2]", 100))
        assert again["over_budget"] >= 98, "the account has a name; a short text may fit into the rest of it"
        counted = service.stats()
        assert counted.input_tokens + counted.output_tokens <= 300_000
