"""A real small model behind llama.cpp's server: typed answers, its vectors, and what it does after a deadline."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_llm import ChatConfig, EmbeddingConfig
from pyspark.sql import functions as F

from enrichkit import Journal, enrich, local
from enrichkit.errors import TransientError
from enrichkit.plugin import Call
from enrichkit.testing import open_connector
from tests.test_local import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# Not `spark`: that would repeat them on Spark Connect, and the model is slow.
pytestmark = [pytest.mark.service, pytest.mark.more, pytest.mark.timeout(900)]

REVIEWS, CAPACITY = 200, 2
ESTABLISHED = "01"


@pytest.fixture(scope="module")
def chat_server() -> Iterator[local.LlmServer]:
    with local.llm(slots=CAPACITY) as server:
        yield server


def connections(server: local.LlmServer) -> int:
    """Return how many connections the server has, as the system counts them."""
    port = f":{int(server.url.rpartition(':')[2].partition('/')[0]):04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(line[1].endswith(port) and line[3] == ESTABLISHED for line in lines)


def test_each_of_200_answers_is_one_of_the_declared_values_and_a_second_run_asks_for_none(
    spark: SparkSession, chat_server: local.LlmServer, tmp_path: Path
) -> None:
    config = ChatConfig(
        base_url=chat_server.url,
        model="smollm2",
        prompt="Is this review good or bad? {0}",
        max_tokens=24,
        choices={"sentiment": ("good", "bad")},
        returns="struct<sentiment:string>",
    )
    what = F.element_at(F.array(*map(F.lit, ("The lamp is great", "Tea broke"))), (F.col("id") % 2 + 1).cast("int"))
    df = spark.range(REVIEWS).select(F.concat(what, F.lit(". Number "), F.col("id").cast("string")).alias("text"))
    journal = Journal(str(tmp_path), run_id="reviews")
    answer = enrich(config, "text", capacity=CAPACITY, journal=journal, timeout=300.0, details=True)
    peak, excess, done = 0, 0.0, threading.Event()

    def watch() -> None:
        """Note the longest time above `CAPACITY`: the client may open a connection while another becomes free."""
        nonlocal peak, excess
        since = time.monotonic()
        while not done.wait(0.02):
            found = connections(chat_server)
            peak = max(peak, found)
            since = time.monotonic() if found <= CAPACITY else since
            excess = max(excess, time.monotonic() - since)

    watcher = threading.Thread(target=watch)
    watcher.start()
    rows = df.coalesce(1).withColumn("answer", answer).collect()
    done.set()
    watcher.join()
    assert ([("ok", "call")] * REVIEWS) == [(row.answer.status, row.answer.origin) for row in rows]
    assert {"good", "bad"} >= {row.answer.value.sentiment for row in rows}
    assert 1 <= peak
    assert excess <= 0.5, f"{peak} connections at a time"
    again = df.coalesce(1).withColumn("answer", answer).collect()
    assert {"journal"} == {row.answer.origin for row in again}
    assert {row.text: row.answer.value for row in rows} == {row.text: row.answer.value for row in again}


def test_the_server_stops_generating_when_the_deadline_ends_a_call(chat_server: local.LlmServer) -> None:
    """900 tokens take longer than the call may, and the server sees that nobody waits for them."""
    config = ChatConfig(
        base_url=chat_server.url, model="smollm2", prompt="Write about {0}", max_tokens=900, extra={"ignore_eos": True}
    )

    async def ask() -> None:
        async with open_connector(config, capacity=1) as connector:
            await connector.fetch_many(("lamps",), Call(timeout=2.0))

    with pytest.raises(TransientError):
        asyncio.run(ask())
    decoded = [0]

    def is_idle() -> bool:
        with urllib.request.urlopen(chat_server.url.removesuffix("/v1") + "/slots") as response:
            slots = json.load(response)
        decoded.extend(each["n_decoded"] for slot in slots for each in slot.get("next_token", ()))
        return not any(slot["is_processing"] for slot in slots)

    wait_until(is_idle)
    assert max(decoded) < 800


def test_the_vectors_of_a_real_model_are_those_of_a_direct_request_bit_by_bit() -> None:
    texts = [f"{what} {how}." for what in ("The lamp", "Tea") for how in ("is great", "broke")]

    async def vector_of(config: EmbeddingConfig, text: str) -> Any:
        async with open_connector(config, capacity=1) as connector:
            return (await connector.fetch_many((text,), Call(timeout=120.0)))[text]

    with local.llm(embeddings=True) as server:
        config = EmbeddingConfig(base_url=server.url, model="smollm2")
        # One at a time: the server computes texts that come together together, and rounds their sums otherwise.
        vectors = [asyncio.run(vector_of(config, text)) for text in texts]
        for text, vector in zip(texts, vectors, strict=True):
            body = json.dumps({"model": "smollm2", "input": [text], "encoding_format": "base64"}).encode()
            request = urllib.request.Request(f"{server.url}/embeddings", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request) as response:
                direct = base64.b64decode(json.load(response)["data"][0]["embedding"])
            assert direct == struct.pack(f"<{len(vector)}f", *vector)
