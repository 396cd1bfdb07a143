"""A job at the limits of a service that fails now and then: what its rows get, and what the service has seen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from enrichkit_llm import ChatConfig, ChatConnector
from enrichkit_redis import RedisConfig
from pyspark.sql import functions as F

from enrichkit import Rate, Retry, enrich, local
from enrichkit.local.model_api_service import reply_of, tokens_of
from tests.spark.test_chaos import Driver
from tests.test_local import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from pyspark.sql import SparkSession

    from enrichkit.local import LlmService

# Not `spark`: limits and payments are what workers do, which get the same rows from Spark Connect.
pytestmark = [pytest.mark.service, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS, DISTINCT = 20_000, 6_000
MINUTE = 3.0
"""Seconds of a minute of the service's limits: the job takes a twentieth of the time. A busy machine keeps up."""
SHORT_MINUTE = 1.2
REQUESTS, TOKENS = 500, 100_000
SCHEMA = {
    "type": "object",
    "properties": {"sentiment": {"type": "string", "enum": ["good", "bad"]}, "score": {"type": "number"}},
}


def test_a_job_at_the_limits_gets_each_row_right_and_pays_for_no_text_twice(
    spark: SparkSession, service: LlmService
) -> None:
    """2 % 429, 1 % 500 and 1 % answers that are no JSON, limits of the job in requests and tokens."""
    with local.redis() as store:
        service.script(
            requests=REQUESTS,
            tokens=TOKENS,
            minute=MINUTE,
            burst=0.25,
            shares={"429": 0.02, "500": 0.01, "text": 0.01},
            latency=0.05,
            log=True,
        )
        config = ChatConfig(
            base_url=service.url,
            model="m",
            returns="sentiment string, score double",
            choices={"sentiment": ("good", "bad")},
        )
        rate = Rate(requests=REQUESTS / MINUTE, tokens=TOKENS / MINUTE, per="job", store=RedisConfig(url=store.url))
        number = (F.col("id") % DISTINCT).cast("int")
        text = F.concat(F.lit("review "), number.cast("string"), F.repeat(F.lit(" word"), number % 100))
        df = spark.range(ROWS).select(text.alias("text")).repartition(2, "text")
        answer = enrich(config, "text", rate=rate, timeout=60.0, retry=Retry(attempts=6), details=True, batch_size=1)
        rows = df.withColumn("answer", answer).collect()
        stats, log = service.stats(), service.log()
    assert (ROWS, DISTINCT) == (len(rows), len({row.text for row in rows}))
    again = "Your answer does not fit the schema: It is no JSON document. Answer again, with the JSON document and "
    again += "nothing else."
    assert sum(row.answer.status != "ok" for row in rows) <= 20
    for row in rows:
        # The answer to the text, or to the repeat that says what was wrong with the first.
        right = [reply_of(each, SCHEMA) for each in (row.text, f"{row.text}\nSorry, no JSON.\n{again}")]
        if row.answer.status == "ok":
            assert row.answer.value.asDict() in [json.loads(each) for each in right], row
        else:
            assert "error" == row.answer.status
            assert "does not fit the declared type: It is no JSON document." in row.answer.error
    assert stats.calls <= DISTINCT + stats.faults_used + stats.limited
    assert stats.limited <= 0.005 * stats.calls
    assert max(used(log, TOKENS)) <= 1.01


def test_prompts_of_ten_times_different_lengths_keep_to_the_quota(spark: SparkSession, service: LlmService) -> None:
    """
    A service that enforces requests and tokens, of which the job uses up both about as fast.

    That it does use them up is a test in virtual time, in `tests/engine/test_job_limits.py`: here it depends on what
    else the machine does.
    """
    minute = 6.0  # slow enough for a busy machine
    mean = (tokens_of("review 1234") + tokens_of("review 1234" + " word" * 24)) / 2 + tokens_of(reply_of("a"))
    most = REQUESTS * mean * 0.95
    with local.redis() as store:
        service.script(requests=REQUESTS, tokens=most, minute=minute, burst=0.25, latency=0.05, log=True)
        rate = Rate(requests=REQUESTS / minute, tokens=most / minute, per="job", store=RedisConfig(url=store.url))
        number = F.col("id").cast("int")
        text = F.concat(F.lit("review "), number.cast("string"), F.repeat(F.lit(" word"), number % 2 * 24))
        config = ChatConfig(base_url=service.url, model="m")
        df = spark.range(1000, 2500).select(text.alias("text")).repartition(2, "text")
        rows = df.withColumn("answer", enrich(config, "text", rate=rate, timeout=60.0)).collect()
        stats, log = service.stats(), service.log()
    assert {row.text: reply_of(row.text) for row in rows} == {row.text: row.answer for row in rows}
    assert stats.limited <= 0.005 * stats.calls
    assert 1500 <= stats.calls <= 1500 + stats.limited
    assert max(used(log, most, minute)) <= 1.01


def used(log: Sequence[Mapping[str, Any]], most: float, minute: float = MINUTE) -> tuple[float, float]:
    """
    Return the shares of the limits, of requests and of *most* tokens, that requests have used while there was work.

    Without the first and the last twentieth of them, in which workers start and last keys are repeated.
    """
    entries = sorted(log, key=lambda entry: entry["at"])[len(log) // 20 : len(log) - len(log) // 20]
    minutes = (entries[-1]["at"] - entries[0]["at"]) / minute
    contents = [json.loads(entry["body"])["messages"][0]["content"] for entry in entries]
    tokens = sum(tokens_of(text) + tokens_of(reply_of(text)) for text in contents)
    return len(entries) / minutes / REQUESTS, tokens / minutes / most


DRIVER = """
import json, sys
from enrichkit_llm import ChatConfig
from enrichkit_redis import RedisConfig
from pyspark.sql import functions as F
from enrichkit import Journal, Rate, enrich, local

asked = json.loads(sys.argv[1])
with local.spark(master="local[2,4]", spark__python__daemon__module="tests.daemon") as spark:
    rate = Rate(requests=asked["requests"], tokens=asked["tokens"], per="job", store=RedisConfig(url=asked["store"]))
    journal = Journal(asked["journal"], run_id="tuesday")
    config = ChatConfig(base_url=asked["url"], model="m")
    text = F.concat(F.lit("review "), (F.col("id") % asked["distinct"]).cast("string"))
    df = spark.range(asked["rows"]).select(text.alias("text")).repartition(2, "text")
    answers = df.withColumn("answer", enrich(config, "text", rate=rate, journal=journal, timeout=60.0, batch_size=1))
    print(json.dumps([list(row) for row in answers.collect()]))
"""


@pytest.mark.more  # a killed worker, a journal and a cluster are also in the tests of chaos and of the journal
@pytest.mark.usefixtures("spark")  # not that it needs it: it takes minutes, as those beside which it runs
def test_a_killed_worker_pays_again_for_what_was_in_flight_and_a_second_run_for_nothing(
    service: LlmService, tmp_path: Path
) -> None:
    service.script(requests=REQUESTS, tokens=TOKENS, minute=SHORT_MINUTE, burst=0.25, latency=0.05, log=True)
    asked = {"url": service.url, "journal": str(tmp_path), "rows": ROWS, "distinct": DISTINCT}
    with local.redis() as store:
        asked |= {"store": store.url, "requests": REQUESTS / SHORT_MINUTE, "tokens": TOKENS / SHORT_MINUTE}
        command = [sys.executable, "-c", DRIVER, json.dumps(asked)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            wait_until(lambda: service.stats().answered >= DISTINCT // 2)
            job = Driver(process, service, None)  # type: ignore[arg-type]  # of it only the processes count
            os.kill(job.worker(), signal.SIGKILL)
            rows = json.loads(process.communicate(timeout=200)[0].splitlines()[-1])
        stats = service.stats()
        assert (ROWS, DISTINCT) == (len(rows), len(stats.per_text))
        assert all(answer == reply_of(text) for text, answer in rows)
        assert stats.answered - DISTINCT <= 2 * ChatConnector.capacity
        service.reset_stats()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=200)
    assert 0 == service.stats().calls
