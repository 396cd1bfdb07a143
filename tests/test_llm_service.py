"""The scripted service of the OpenAI API counts, limits and misbehaves as it is told."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from enrichkit import local
from enrichkit.local.model_api_service import reply_of, vector_of

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def service() -> Iterator[local.LlmService]:
    with local.llm_service() as running:
        yield running


def post(service: local.LlmService, path: str, **fields: Any) -> tuple[int, Any, Any]:
    request = urllib.request.Request(service.url + path, json.dumps({"model": "m", **fields}).encode())
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response), response.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), error.headers


def chat(service: local.LlmService, text: str) -> tuple[int, Any, Any]:
    return post(service, "/chat/completions", messages=[{"role": "user", "content": text}])


def test_an_answer_is_a_function_of_the_prompt_and_its_tokens_are_counted(service: local.LlmService) -> None:
    service.script(prices=(1.0, 10.0), log=True)
    service.reset_stats()
    status, answer, _ = chat(service, "12345")
    written = reply_of("12345")
    assert (200, written) == (status, answer["choices"][0]["message"]["content"])
    assert {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6} == answer["usage"]
    stats = service.stats()
    assert (1, 2, 4, 42e-6, {"12345": 1}) == (
        stats.answered, stats.input_tokens, stats.output_tokens, stats.cost, stats.per_text,
    )  # fmt: skip


def test_embeddings_come_in_the_order_of_the_texts(service: local.LlmService) -> None:
    service.script()
    _, answer, _ = post(service, "/embeddings", input=["a", "b"], dimensions=3)
    assert [vector_of("a", 3), vector_of("b", 3)] == [each["embedding"] for each in answer["data"]]


def test_a_limit_of_tokens_refuses_and_says_when_to_come_back(service: local.LlmService) -> None:
    service.script(requests=10, tokens=8, minute=60.0)
    service.reset_stats()
    assert 200 == chat(service, "1234")[0]  # five tokens
    status, _, headers = chat(service, "1234")
    assert (429, "8", "9") == (status, headers["x-ratelimit-limit-tokens"], headers["x-ratelimit-remaining-requests"])
    assert 10 <= int(headers["retry-after"]) <= 15
    assert (1, 1, 1) == (service.stats().limited, service.stats().answered, service.stats().input_tokens)


def test_faults_and_shares_of_them_apply(service: local.LlmService) -> None:
    service.script(local.LlmFault(match="bad", times=1, status=500), local.LlmFault(match="odd", body="no JSON"))
    assert [500, 200] == [chat(service, "bad")[0], chat(service, "bad")[0]]
    assert "no JSON" == chat(service, "odd")[1]["choices"][0]["message"]["content"]
    service.script(shares={"500": 0.2})
    failed = sum(chat(service, f"text {number}")[0] == 500 for number in range(200))
    assert 20 < failed < 60


def test_another_key_than_the_scripted_one_is_refused(service: local.LlmService) -> None:
    service.script(api_key="right")
    assert 401 == chat(service, "a")[0]


def call(service: local.LlmService, method: str, path: str, body: bytes | None = None, kind: str = "") -> Any:
    request = urllib.request.Request(service.url + path, body, {"content-type": kind}, method=method)
    with urllib.request.urlopen(request) as response:
        return response.read()


def batch_of(service: local.LlmService, *lines: dict[str, Any]) -> str:
    """Upload a file with *lines*, make a batch of it, and return its id."""
    text = "\n".join(map(json.dumps, lines))
    form = '--X\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--X\r\n'
    form += f'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{text}\r\n--X--\r\n'
    file = json.loads(call(service, "POST", "/files", form.encode(), "multipart/form-data; boundary=X"))
    assert ("a.jsonl", "batch", len(text)) == (file["filename"], file["purpose"], file["bytes"])
    made = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = json.loads(call(service, "POST", "/batches", json.dumps(made).encode()))
    return str(batch["id"])


def line(name: str, text: str, url: str = "/v1/chat/completions") -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def test_a_batch_passes_its_states_and_has_files_of_answers_and_errors(service: local.LlmService) -> None:
    service.script(local.LlmFault(match="bad", status=400), batches=local.LlmBatches(seconds=0.3), prices=(1e6, 0.0))
    service.reset_stats()
    name = batch_of(service, line("1", "good"), line("2", "bad"), line("3", "fine"))
    seen: dict[str, Any] = {}
    while "completed" not in seen:
        batch = json.loads(call(service, "GET", f"/batches/{name}"))
        seen[batch["status"]] = batch
    assert ["validating", "in_progress", "finalizing", "completed"] == list(seen)
    assert {"total": 3, "completed": 2, "failed": 1} == batch["request_counts"]
    answers, errors = (
        [json.loads(each) for each in call(service, "GET", f"/files/{batch[field]}/content").splitlines()]
        for field in ("output_file_id", "error_file_id")
    )
    contents = [each["response"]["body"]["choices"][0]["message"]["content"] for each in answers]
    assert (["3", "1"], [reply_of("fine"), reply_of("good")]) == ([each["custom_id"] for each in answers], contents)
    assert [("2", 400)] == [(each["custom_id"], each["response"]["status_code"]) for each in errors]
    assert (2, 1.0) == ((stats := service.stats()).batched, stats.cost)  # two tokens, each for half its price


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([line("1", "a"), line("1", "b")], "duplicate_custom_id"),
        ([line("1", "a", "/v1/embeddings")], "mismatched_url"),
        ([{"custom_id": "1"}], "invalid_json_line"),
        ([], "invalid_json_line"),
    ],
)
def test_a_file_that_is_wrong_fails_as_a_whole(service: local.LlmService, lines: list[Any], code: str) -> None:
    service.script()
    batch = json.loads(call(service, "GET", f"/batches/{batch_of(service, *lines)}"))
    expected = "invalid_request_count" if not lines else code
    assert ("failed", expected) == (batch["status"], batch["errors"]["data"][0]["code"])


def test_a_batch_that_is_cancelled_keeps_what_it_has_and_lists_come_in_pages(service: local.LlmService) -> None:
    service.script(batches=local.LlmBatches(seconds=0.2))
    name = batch_of(service, *(line(str(number), "a") for number in range(4)))
    assert "cancelling" == json.loads(call(service, "POST", f"/batches/{name}/cancel", b"{}"))["status"]
    while (batch := json.loads(call(service, "GET", f"/batches/{name}")))["status"] == "cancelling":
        pass
    assert ("cancelled", 2) == (batch["status"], batch["request_counts"]["completed"])
    more = [batch_of(service, line("1", "a")) for _ in range(3)]
    first = json.loads(call(service, "GET", "/batches?limit=2"))
    second = json.loads(call(service, "GET", f"/batches?limit=2&after={first['data'][-1]['id']}"))
    assert [*reversed(more), name] == [each["id"] for page in (first, second) for each in page["data"]]
    assert first["has_more"]
