"""
A language model asked for each row by other means, each as its documentation recommends, and by enrichkit.

`python -m benchmarks.llm_jobs NAME URL IN_FLIGHT JOURNAL` prints a line when it is ready. For each number that it reads
on standard input it does the job once: so many rows, each with a text of its own. Only the function of enrichkit
imports enrichkit, because other engines have environments of their own.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from zlib import crc32

MARK = "llm: "
TASKS = 2
TIMEOUT = 60.0

Job: TypeAlias = Callable[[int, str], list[tuple[str, str]]]
"""A function of the number of rows and the name of the run, which returns texts with their answers."""


def text_of(number: int) -> str:
    """Return the text of a row."""
    return f"review {number}: it works."


def right(text: str) -> str:
    """Return what the scripted service answers; see `reply_of` in `enrichkit.local.model_api_service`."""
    return f"reply {crc32(text.encode())}"


def texts_of(spark: Any, rows: int) -> Any:
    """Return a frame with the texts of *rows* rows."""
    from pyspark.sql import functions as F

    text = F.concat(F.lit("review "), F.col("id").cast("string"), F.lit(": it works."))
    return spark.range(0, rows, 1, TASKS).select(text.alias("text"))


def enrichkit(url: str, in_flight: int, journal: str) -> Iterator[Job]:
    from enrichkit_llm import ChatConfig

    from enrichkit import Journal, enrich, local

    config = ChatConfig(base_url=url, model="m")
    with local.spark(master=f"local[{TASKS},4]") as spark:

        def run(rows: int, name: str) -> list[tuple[str, str]]:
            kept = Journal(journal, run_id=name)
            answer = enrich(config, "text", capacity=in_flight // TASKS, timeout=TIMEOUT, journal=kept)
            return [tuple(row) for row in texts_of(spark, rows).withColumn("answer", answer).collect()]

        yield run


def pandas_udf(url: str, in_flight: int, journal: str) -> Iterator[Job]:
    """A UDF around the vendor's async client, as its cookbook and most answers on the web have it."""
    import pandas as pd
    from pyspark.sql import functions as F

    from enrichkit import local

    async def ask_all(texts: list[str]) -> list[str]:
        from openai import AsyncOpenAI

        limit = asyncio.Semaphore(in_flight // TASKS)
        async with AsyncOpenAI(base_url=url, api_key="none", timeout=TIMEOUT) as client:

            async def ask(text: str) -> str:
                async with limit:
                    found = await client.chat.completions.create(
                        model="m", messages=[{"role": "user", "content": text}], temperature=0.0
                    )
                    return str(found.choices[0].message.content)

            return await asyncio.gather(*map(ask, texts))

    def answers(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield pd.Series(asyncio.run(ask_all(list(batch))))

    series: Any = pd.Series
    answers.__annotations__ = {"batches": Iterator[series], "return": Iterator[series]}
    with local.spark(master=f"local[{TASKS},4]") as spark:
        column = F.pandas_udf(answers, "string").asNondeterministic()("text")  # type: ignore[attr-defined]
        yield lambda rows, _: [tuple(row) for row in texts_of(spark, rows).withColumn("answer", column).collect()]


def daft(url: str, in_flight: int, journal: str) -> Iterator[Job]:
    """Its function `prompt`, which uses the client of OpenAI; it has no option for the calls in flight."""
    import daft as engine
    from daft.functions import prompt

    engine.set_provider("openai", base_url=url, api_key="none")

    def run(rows: int, _: str) -> list[tuple[str, str]]:
        frame = engine.from_pydict({"text": [text_of(number) for number in range(rows)]})
        asked = prompt(engine.col("text"), provider="openai", model="m", use_chat_completions=True)
        found = frame.with_column("answer", asked).to_pydict()
        return list(zip(found["text"], found["answer"], strict=True))

    yield run


def ray(url: str, in_flight: int, journal: str) -> Iterator[Job]:
    """A pool of actors with the client of OpenAI; `ray.data.llm` needs vLLM, of several gigabytes, to be imported."""
    import os

    os.environ["RAY_DATA_DEFAULT_ASYNC_ROW_UDF_MAX_CONCURRENCY"] = str(in_flight // TASKS)
    import ray as engine

    engine.init(num_cpus=4, include_dashboard=False, object_store_memory=2**28)

    class Ask:
        @functools.cached_property
        def client(self) -> Any:
            from openai import AsyncOpenAI

            return AsyncOpenAI(base_url=url, api_key="none", timeout=TIMEOUT)

        async def __call__(self, row: dict[str, str]) -> dict[str, str]:
            found = await self.client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": row["text"]}], temperature=0.0
            )
            return {**row, "answer": str(found.choices[0].message.content)}

    def run(rows: int, _: str) -> list[tuple[str, str]]:
        texts = [{"text": text_of(number)} for number in range(rows)]
        found = engine.data.from_items(texts, override_num_blocks=min(rows, 8))
        answered = found.map(Ask, compute=engine.data.ActorPoolStrategy(size=TASKS), max_restarts=-1)
        return [(row["text"], row["answer"]) for row in answered.take_all()]

    yield run


JOBS = {"enrichkit": enrichkit, "pandas UDF, AsyncOpenAI": pandas_udf, "Daft prompt": daft, "Ray Data actors": ray}


def main(name: str, url: str, in_flight: str, journal: str) -> None:
    """Do a job for each line of standard input: a number of rows and the name of a run; until standard input ends."""
    for run in JOBS[name](url, int(in_flight), journal):
        print(f"{MARK}ready", flush=True)
        for line in sys.stdin:
            rows, called = line.split()
            began = time.perf_counter()
            found = run(int(rows), called)
            seconds = time.perf_counter() - began
            is_right = dict(found) == {text: right(text) for text in map(text_of, range(int(rows)))}
            print(f"{MARK}{json.dumps({'seconds': seconds, 'right': is_right})}", flush=True)


if __name__ == "__main__":
    from benchmarks import llm_jobs  # the workers of these engines import the module by this name, not as __main__

    llm_jobs.main(*sys.argv[1:])
