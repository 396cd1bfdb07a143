"""Batches of a model: what the service gets, what becomes of its files, and a driver that is killed at each step."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from enrichkit_llm import ChatConfig, EmbeddingConfig, ResponsesConfig

from enrichkit import Journal
from enrichkit.batches.work import Work
from enrichkit.driver.planner import make_plan
from enrichkit.errors import ConfigError, JournalError, PermanentError
from enrichkit.journal.opening import index_of
from enrichkit.journal.table import Table
from enrichkit.local import LlmBatches, LlmFault, LlmService
from enrichkit.local.model_api_service import reply_of, vector_of
from enrichkit.worker.keys import encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from enrichkit.batches.report import Batches
    from enrichkit.plugin import ConnectorConfig

pytestmark = pytest.mark.service

TEXTS = [f"text {number}" for number in range(50)]
CHOICE = pa.struct([("sentiment", pa.string())])


@pytest.fixture(autouse=True)
def forgotten(service: LlmService) -> None:
    service.forget_batches()


class Job:
    """The calls of a driver, and what `enrich` would find in the journal after them."""

    def __init__(self, config: ConnectorConfig, folder: Path, returns: Any = None) -> None:
        self.config, self.returns = config, returns
        self.journal = Journal(str(folder), run_id="tuesday")
        self.plan, _ = make_plan(config, 1, returns or pa.string(), {"journal": self.journal})

    def work(self) -> Work:
        return Work(self.plan, self.journal, [pa.string()])

    def submit(self, texts: Sequence[Any] = TEXTS, most: int | None = None) -> Batches:
        keys, _ = encode([pa.array(texts, pa.string())])
        return asyncio.run(self.work().submit([keys], most))

    def collect(self) -> Batches:
        return asyncio.run(self.work().collect())

    def answers(self, texts: Sequence[str] = TEXTS) -> dict[str, Any]:
        table = Table("llm", self.plan.content_key, (pa.string(),), self.plan.value_type)
        hits = index_of(self.journal, table, self.journal.scope()).lookup(texts)
        values = zip(hits.places.to_pylist(), hits.values.to_pylist(), hits.found.to_pylist(), strict=True)
        return {texts[place]: value if found else "(missing)" for place, value, found in values}


def chat(service: LlmService, **fields: Any) -> ChatConfig:
    return ChatConfig(base_url=service.url, model="m", **fields)


def test_keys_are_submitted_once_and_their_answers_are_in_the_journal(service: LlmService, tmp_path: Path) -> None:
    job = Job(chat(service), tmp_path)
    assert (50, 3) == (job.submit(most=20).submitted, len(job.submit(most=20).batches))
    assert (0, 50) == ((again := job.submit()).submitted, again.waiting)
    collected = job.collect()
    assert (True, 50) == (collected.done, sum(batch.answered for batch in collected.batches))
    assert {text: reply_of(text) for text in TEXTS} == job.answers()
    stats = service.stats()
    assert (dict.fromkeys(TEXTS, 1), 50, 3) == (stats.per_text, stats.batched, stats.batches)
    read, written = stats.input_tokens, stats.output_tokens
    spent = {"requests": 50, "tokens": read + written, "tokens_in": read, "tokens_out": written}
    assert spent == collected.spent
    later = job.submit([*TEXTS, "one more", None])
    assert (1, 50, 4) == (later.submitted, later.known, len(later.batches))


def test_a_request_of_a_batch_is_that_of_a_call(service: LlmService, tmp_path: Path, asked: Any) -> None:
    config = chat(service, prompt="Say {0}", system="Be brief.", max_tokens=9, extra={"seed": 7})
    asked(config, "hi")
    job = Job(config, tmp_path)
    job.submit(["hi"])
    called, uploaded, made, *_ = service.log()
    line = json.loads(uploaded["body"].split("\r\n\r\n")[2].splitlines()[0])
    assert json.loads(called["body"]) == line["body"]
    assert ("POST", "/v1/chat/completions", 32) == (line["method"], line["url"], len(line["custom_id"]))
    batch = json.loads(made["body"])
    assert ("24h", "/v1/chat/completions") == (batch["completion_window"], batch["endpoint"])


def test_a_file_keeps_to_the_bytes_that_the_service_takes(service: LlmService, tmp_path: Path) -> None:
    job = Job(chat(service), tmp_path)
    work = job.work()
    work.form.max_bytes = 1_000
    keys, _ = encode([pa.array(TEXTS)])
    report = asyncio.run(work.submit([keys], None))
    sizes = [len(entry["body"]) for entry in service.log() if entry["path"] == "/v1/files"]
    assert (50, True) == (report.submitted, max(sizes) < 1_400 and len(sizes) > 5)


@pytest.mark.parametrize(("ends", "status"), [("expired", "expired, collected"), ("cancelled", "cancelled, collected")])
def test_what_a_batch_has_answered_counts_and_the_rest_is_submitted_again(
    service: LlmService, tmp_path: Path, ends: str, status: str
) -> None:
    service.script(batches=LlmBatches(ends=ends), log=True)
    job = Job(chat(service), tmp_path)
    job.submit()
    assert str(job.collect()) == (
        f"llm: 1 batch\n  batch_1  {status}  25 of 50 requests answered; 25 failed: The\n"
        f"{' ' * (13 + len(status))}service did not: batch_{ends}."
    )
    assert 25 == len(job.answers())
    service.script(log=True)
    assert (25, 25) == ((again := job.submit()).submitted, again.known)
    assert (True, 50) == (job.collect().done, len(job.answers()))
    assert dict.fromkeys(TEXTS, 1) == service.stats().per_text


def test_a_batch_that_the_service_refuses_says_why_and_is_submitted_again(service: LlmService, tmp_path: Path) -> None:
    service.script(batches=LlmBatches(ends="failed"), log=True)
    job = Job(chat(service), tmp_path)
    job.submit(["a"])
    assert str(job.collect()) == (
        "llm: 1 batch\n  batch_1  failed, collected  0 of 1 request answered; 1 failed: The batch ended\n"
        "                              as 'failed' (token_limit_exceeded) without an\n"
        "                              answer."
    )
    service.script(log=True)
    assert 1 == job.submit(["a"]).submitted
    assert (True, {"a": reply_of("a")}) == (job.collect().done, job.answers(["a"]))


def test_answers_that_fail_or_do_not_fit_are_none_and_a_miss_is_one(service: LlmService, tmp_path: Path) -> None:
    service.seed({"none": None})
    service.script(
        LlmFault(match="bad request", status=400),
        LlmFault(match="prose", body="Sorry, canary."),
        LlmFault(match="cut", body='{"sentiment": ', finish="length"),
        log=True,
    )
    job = Job(chat(service, choices={"sentiment": ("good", "bad")}), tmp_path, CHOICE)
    report = job.submit(["fine", "none", "bad request", "prose", "cut"])
    assert 5 == report.submitted
    batch = job.collect().batches[0]
    assert (2, 1) == (batch.answered, batch.missing)
    assert {
        "The service answered 400.": 1,
        "The model's answer does not fit the declared type: It is no JSON document.": 1,
        "The answer was cut off: it has as many tokens as are allowed. Raise max_tokens.": 1,
    } == batch.failed
    answers = job.answers(["fine", "none", "bad request", "prose", "cut"])
    assert ({"fine", "none"}, "(missing)") == ({*answers}, answers["none"])
    assert answers["fine"]["sentiment"] in ("good", "bad")


def test_another_prompt_folder_or_type_finds_nothing_of_it(service: LlmService, tmp_path: Path) -> None:
    Job(chat(service), tmp_path / "a").submit(["a"])
    for other in (
        Job(chat(service, prompt="New: {0}"), tmp_path / "a"),
        Job(chat(service), tmp_path / "b"),
        Job(chat(service), tmp_path / "a", CHOICE),
    ):
        assert () == other.collect().batches
        assert 1 == other.submit(["a"]).submitted


@pytest.mark.parametrize("kind", [ResponsesConfig, EmbeddingConfig])
def test_the_other_kinds_of_models_have_batches_too(
    service: LlmService, tmp_path: Path, kind: type[ConnectorConfig]
) -> None:
    returns = pa.list_(pa.float32()) if kind is EmbeddingConfig else None
    job = Job(kind(base_url=service.url, model="m"), tmp_path, returns)  # type: ignore[call-arg]  # of any kind
    assert (2, 1) == ((report := job.submit(["a", "b", " "] if returns else ["a", "b"])).submitted, len(report.batches))
    assert (1 if returns else 0) == report.refused
    job.collect()
    assert {text: vector_of(text, 8) if returns else reply_of(text) for text in "ab"} == job.answers(["a", "b"])


def test_a_service_without_batches_says_so(service: LlmService, tmp_path: Path) -> None:
    job = Job(ChatConfig(base_url=service.url.replace("/v1", "/v2"), model="m"), tmp_path)
    with pytest.raises(PermanentError) as caught:
        job.submit(["a"])
    assert str(caught.value) == "The service answered 404. Its own words are shown with show_keys=True."


def test_a_source_without_the_batch_form_is_refused(tmp_path: Path) -> None:
    from enrichkit_redis import RedisConfig

    with pytest.raises(ConfigError) as caught:
        Job(RedisConfig(url="redis://localhost:6379/0"), tmp_path).work()
    assert str(caught.value) == (
        "The connector 'redis' has no batch form: its service answers no files of requests, or nobody has written "
        "that part. Use enrich() for this source."
    )


def test_two_processes_do_not_submit_at_a_time(service: LlmService, tmp_path: Path) -> None:
    job = Job(chat(service), tmp_path)
    job.submit(["a"])
    with job.work()._states.locked(), pytest.raises(JournalError) as caught:
        job.submit(["b"])
    assert str(caught.value) == (
        f"Another process submits or collects these batches in the journal at '{tmp_path}' now; two at a time could "
        "submit a key twice. Wait until it has ended."
    )


DRIVER = """
import asyncio, os, signal, sys
import pyarrow as pa
import pandas, pyreqwest.client, pyreqwest.exceptions  # each of them takes a second
from enrichkit import Journal
from enrichkit.batches.work import Work
from enrichkit.driver.planner import make_plan
from enrichkit.worker.keys import encode
from enrichkit_llm import ChatConfig

def work(url, folder):
    journal = Journal(folder, run_id="tuesday")
    plan, _ = make_plan(ChatConfig(base_url=url, model="m"), 1, pa.string(), {"journal": journal})
    return Work(plan, journal, [pa.string()])

def drive(url, folder, last):
    steps = 0

    def hook(event, arguments):  # each step is a file that gets its name
        nonlocal steps
        if event == "os.rename":
            steps += 1
            if steps == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    keys, _ = encode([pa.array([f"text {number}" for number in range(50)])])
    asyncio.run(work(url, folder).submit([keys], 30))
    asyncio.run(work(url, folder).collect())

work("http://localhost/v1", "/nowhere")  # reads what is installed, which takes seconds
for line in sys.stdin:  # a driver is a fork of this process, which has all modules
    url, folder, last = line.split()
    child = os.fork()
    if not child:
        drive(url, folder, int(last))
        os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Drivers:
    """Starts drivers, and tells their process id and how they ended."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        assert program.stdin is not None
        assert program.stdout is not None
        self._in, self._out = program.stdin, program.stdout

    def start(self, service: LlmService, folder: Path, last: int = 0) -> int:
        """Start a driver that dies before its step *last*; return its process id."""
        self._in.write(f"{service.url} {folder} {last}\n")
        self._in.flush()
        return int(self._out.readline())

    def status(self) -> int:
        """Return how the last one has ended; 0: well."""
        return int(self._out.readline())


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    command = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        yield Drivers(program)
        program.kill()


@pytest.mark.parametrize("last", [3, 4, 5])
def test_a_driver_that_is_killed_at_each_step_submits_each_key_once(
    service: LlmService, drivers: Drivers, tmp_path: Path, last: int
) -> None:
    """Two batches have six steps when they are submitted, and one more each when they are collected."""
    killed = 0
    while drivers.start(service, tmp_path, last) and drivers.status():
        killed += 1
        assert killed < 9
    stats = service.stats()
    assert (dict.fromkeys(TEXTS, 1), 2) == (stats.per_text, stats.batches)
    assert {text: reply_of(text) for text in TEXTS} == Job(chat(service), tmp_path).answers()
    assert killed >= 1


@pytest.mark.parametrize("what", ["files", "batches"])
def test_a_driver_that_is_killed_before_it_hears_of_its_request_submits_it_once(
    service: LlmService, drivers: Drivers, tmp_path: Path, what: str
) -> None:
    """The service has made the file, or the batch, and the driver dies before the answer comes."""
    Job(chat(service, prompt="Another: {0}"), tmp_path).submit(TEXTS[:25], 1)  # more than a page of a list has
    before = service.stats()
    service.script(batches=LlmBatches(silent=what), log=True)
    driver = drivers.start(service, tmp_path)
    try:
        while getattr(before, what) == getattr(service.stats(), what):
            time.sleep(0.01)
    finally:
        os.kill(driver, signal.SIGKILL)
        assert drivers.status()
    service.script(log=True)
    Job(chat(service, prompt="Another: {0}"), tmp_path).submit([f"more {number}" for number in range(25)], 1)
    drivers.start(service, tmp_path)
    assert 0 == drivers.status()
    stats = service.stats()
    assert dict.fromkeys(TEXTS, 1) == {text: stats.per_text[text] for text in TEXTS}
    assert 25 + 25 + 2 == stats.batches
    assert {text: reply_of(text) for text in TEXTS} == Job(chat(service), tmp_path).answers()
