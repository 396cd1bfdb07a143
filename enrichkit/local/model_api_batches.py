"""
The part of `local.llm_service()` that answers `/v1/files` and `/v1/batches`, as the API of OpenAI does.

A batch has the states `validating`, `in_progress` and `finalizing` one after the other, within the `seconds` that
`LlmBatches` sets, and ends as `completed`, `expired` or `cancelled`. If the service refuses the file of a batch, the
batch ends as `failed`. Answers with the status 200 go into an output file, and the entries of all other requests go
into an error file. Neither file has its entries in the order of the requests. `LlmBatches` in `model_api.py` documents
the settings.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

MOST_REQUESTS, MOST_BYTES, PAGE = 50_000, 200_000_000, 20
Answer = tuple[int, Any]
"""Status code of an answer, and its body: a JSON document or the bytes of a file."""


def error(message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": code}}


class Batches:
    """
    The files and batches of a service.

    Args:
        answer: Function that answers one request of a batch: it takes the path after `/v1` and the body, and returns a
            status and a document.
    """

    def __init__(self, answer: Callable[[str, dict[str, Any]], Answer]) -> None:
        self._answer = answer
        self.script({})
        self.forget()

    def script(self, settings: dict[str, Any]) -> None:
        self.seconds: float = settings.get("seconds", 0.0)
        self.ends: str = settings.get("ends", "completed")
        self.share: float = settings.get("share", 0.5)
        self.silent: str = settings.get("silent", "")

    def forget(self) -> None:
        """Forget all files and batches."""
        self.files: dict[str, dict[str, Any]] = {}
        self.contents: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}

    def request(self, method: str, target: str, content_type: str, body: bytes) -> Answer:
        """Answer a request for *target*, the part of the URL after `/v1`: a path and perhaps a query."""
        address = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        match method, *address.path.strip("/").split("/"):
            case "POST", "files":
                return self.upload(content_type, body)
            case "GET", "files":
                return page(list(self.files.values()), query)
            case "GET", "files", name, "content" if name in self.files:
                return 200, self.contents[name]
            case "POST", "batches":
                return self.create(json.loads(body))
            case "GET", "batches":
                return page([self.now(each) for each in self.batches.values()], query)
            case "GET", "batches", name if name in self.batches:
                return 200, self.now(self.batches[name])
            case "POST", "batches", name, "cancel" if name in self.batches:
                return self.cancel(self.batches[name])
        return 404, error(f"There is no {target}.")

    def upload(self, content_type: str, body: bytes) -> Answer:
        boundary = content_type.partition("boundary=")[2].strip('"').encode()
        parts: dict[str, tuple[str, bytes]] = {}
        for part in body.split(b"--" + boundary)[1:-1] if boundary else []:
            head, _, content = part.partition(b"\r\n\r\n")
            fields = dict(each.split("=", 1) for each in head.decode().replace("\r\n", "; ").split("; ") if "=" in each)
            parts[fields["name"].strip('"')] = fields.get("filename", "").strip('"'), content.removesuffix(b"\r\n")
        if "file" not in parts or parts.get("purpose", ("", b""))[1] != b"batch":
            return 400, error("A form with the fields purpose and file is due.")
        if len(parts["file"][1]) > MOST_BYTES:
            return 413, error("The file is too large.", "file_too_large")
        return 200, self.keep(*parts["file"], "batch")

    def keep(self, filename: str, content: bytes, purpose: str) -> dict[str, Any]:
        name = f"file-{len(self.files) + 1}"
        made = {"id": name, "object": "file", "bytes": len(content), "created_at": int(time.time())}
        self.files[name] = made | {"filename": filename, "purpose": purpose, "status": "processed"}
        self.contents[name] = content
        return self.files[name]

    def create(self, document: dict[str, Any]) -> Answer:
        file, endpoint = document.get("input_file_id"), document.get("endpoint")
        if file not in self.files or self.files[file]["purpose"] != "batch":
            return 400, error("input_file_id names no file of the purpose batch.")
        if endpoint not in ("/v1/chat/completions", "/v1/embeddings", "/v1/responses"):
            return 400, error("The endpoint has no batches.")
        if document.get("completion_window") != "24h":
            return 400, error("completion_window must be 24h.")
        name = f"batch_{len(self.batches) + 1}"
        batch = {"id": name, "object": "batch", "endpoint": endpoint, "input_file_id": file, "status": "validating"}
        batch |= {"output_file_id": None, "error_file_id": None, "errors": None, "created_at": int(time.time())}
        batch |= {"request_counts": {"total": 0, "completed": 0, "failed": 0}, "metadata": document.get("metadata")}
        self.batches[name] = batch | {"_began": time.monotonic(), "_ends": self.ends, "_seconds": self.seconds}
        return 200, self.now(self.batches[name])

    def now(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Update the state of *batch*, which depends on the time, and return the fields that the API shows."""
        if batch["status"] in ("validating", "in_progress", "finalizing", "cancelling"):
            passed = time.monotonic() - batch["_began"]
            part = passed / batch["_seconds"] if batch["_seconds"] else 1.0
            lines, wrong = self.checked(batch)
            batch["request_counts"]["total"] = len(lines)
            if part >= 0.1 and (wrong is not None or batch["_ends"] == "failed"):
                wrong = wrong or {
                    "code": "token_limit_exceeded",
                    "message": "Enqueued token limit reached.",
                    "line": None,
                }
                batch |= {"status": "failed", "errors": {"object": "list", "data": [wrong]}}
            elif part >= 1.0:
                self.end(batch, lines, "cancelled" if batch["status"] == "cancelling" else batch["_ends"])
            elif batch["status"] != "cancelling":
                batch["status"] = "validating" if part < 0.1 else "in_progress" if part < 0.9 else "finalizing"
                batch["request_counts"]["completed"] = int(len(lines) * max(0.0, min(1.0, (part - 0.1) / 0.8)))
        return {name: value for name, value in batch.items() if not name.startswith("_")}

    def checked(self, batch: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """
        Return `(requests, None)`, or `(requests, error)` if the file of *batch* has an error.

        If there is an error, *requests* may lack the requests that follow the error in the file.
        """
        lines: list[dict[str, Any]] = []
        seen: set[str] = set()
        for number, text in enumerate(self.contents[batch["input_file_id"]].splitlines(), 1):
            try:
                line = json.loads(text)
                is_right = line["method"] == "POST" and isinstance(line["body"], dict)
            except (ValueError, KeyError, TypeError):
                return lines, {"code": "invalid_json_line", "message": "The line is no request.", "line": number}
            if not is_right or line["url"] != batch["endpoint"]:
                return lines, {"code": "mismatched_url", "message": "The URL is not the endpoint.", "line": number}
            if line["custom_id"] in seen:
                return lines, {"code": "duplicate_custom_id", "message": "The custom_id comes twice.", "line": number}
            seen.add(line["custom_id"])
            lines.append(line)
        if not 0 < len(lines) <= MOST_REQUESTS:
            return lines, {"code": "invalid_request_count", "message": "There are too few or many.", "line": None}
        return lines, None

    def end(self, batch: dict[str, Any], lines: list[dict[str, Any]], how: str) -> None:
        answered = lines if how == "completed" else lines[: round(len(lines) * self.share)]
        outputs: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        for line in answered:
            status, document = self._answer(line["url"].removeprefix("/v1/"), line["body"])
            response = {"status_code": status, "request_id": f"req_{len(outputs)}", "body": document}
            found = {
                "id": f"batch_req_{len(outputs)}",
                "custom_id": line["custom_id"],
                "response": response,
                "error": None,
            }
            (outputs if status == 200 else errors).append(found)
        code = {"code": f"batch_{how}", "message": "This request was not executed."}
        for line in lines[len(answered) :]:
            errors.append({"id": "", "custom_id": line["custom_id"], "response": None, "error": code})
        for field, entries in (("output_file_id", outputs), ("error_file_id", errors)):
            if entries:
                content = "".join(f"{json.dumps(each)}\n" for each in reversed(entries)).encode()
                batch[field] = self.keep(f"{batch['id']}_{field}.jsonl", content, "batch_output")["id"]
        counts = {"total": len(lines), "completed": len(outputs), "failed": len(answered) - len(outputs)}
        batch |= {"status": how, "request_counts": counts}

    def cancel(self, batch: dict[str, Any]) -> Answer:
        self.now(batch)
        if batch["status"] in ("validating", "in_progress"):
            batch["status"] = "cancelling"
        return 200, self.now(batch)


def page(entries: list[dict[str, Any]], query: dict[str, str]) -> Answer:
    """
    Return a page of *entries*, newest first.

    If *query* has the parameter `after`, the page begins after the entry with this id.
    """
    names = [each["id"] for each in reversed(entries)]
    by_purpose = [each for each in reversed(entries) if query.get("purpose") in (None, each.get("purpose"))]
    after = query.get("after")
    if after is not None and after not in names:
        return 404, error(f"There is no {after}.")
    start = 0 if after is None else next((n + 1 for n, each in enumerate(by_purpose) if each["id"] == after), 0)
    size = min(int(query.get("limit", PAGE)), PAGE)
    data = by_purpose[start : start + size]
    return 200, {"object": "list", "data": data, "has_more": start + size < len(by_purpose)}
