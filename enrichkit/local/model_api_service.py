"""
The program that `local.llm_service()` starts: a scripted service of the OpenAI API, with no model behind it.

An answer is a pure function of the request (`reply_of`, `vector_of`), so a test can compute the right answer. A token
is four bytes of text; an incomplete last token counts as a whole one. A request that a rate limit refuses costs no
tokens, as with real vendors. `LlmService` in `model_api.py` documents the settings. The parser of HTTP and the port for
commands come from `http_service.py`.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import json
import math
import sys
import time
from functools import partial
from typing import Any
from zlib import crc32

from enrichkit.local.http_service import ControlProtocol, HttpProtocol, headers_of
from enrichkit.local.model_api_batches import Batches

REASONS = {200: b"OK", 400: b"Bad Request", 401: b"Unauthorized", 404: b"Not Found", 429: b"Too Many Requests"}


def tokens_of(text: str) -> int:
    """
    Return the number of tokens that the service counts for *text*.

    >>> tokens_of("12345")
    2
    """
    return -(-len(text.encode()) // 4)


def reply_of(prompt: str, schema: dict[str, Any] | None = None) -> str:
    """
    Return the answer to *prompt*: a text if *schema* is None, else a JSON document that fits *schema*.

    >>> reply_of("a")
    'reply 3904355907'
    >>> reply_of("a", {"type": "object", "properties": {"ok": {"type": "boolean"}}})
    '{"ok": true}'
    """
    if schema is None:
        return f"reply {crc32(prompt.encode())}"
    return json.dumps(_fitting(prompt, schema))


def _fitting(seed: str, schema: dict[str, Any]) -> Any:
    digest = crc32(seed.encode())
    if "enum" in schema:
        choices = [choice for choice in schema["enum"] if choice is not None]
        return choices[digest % len(choices)]
    kind = schema.get("type")
    kind = next(each for each in kind if each != "null") if isinstance(kind, list) else kind
    match kind:
        case "object":
            return {name: _fitting(f"{seed}/{name}", part) for name, part in schema.get("properties", {}).items()}
        case "array":
            return [_fitting(f"{seed}[{place}]", schema["items"]) for place in range(digest % 3)]
        case "number":
            return digest % 1000 / 1000
        case "integer":
            return digest % 100
        case "boolean":
            return digest % 2 == 1
    return f"text {digest}"


def vector_of(text: str, dimensions: int) -> list[float]:
    """
    Return the embedding of *text*: *dimensions* numbers, each of which a 32-bit float represents exactly.

    >>> vector_of("a", 2)
    [-0.1982421875, -0.748046875]
    """
    return [(crc32(f"{place}:{text}".encode()) % 2048 - 1024) / 1024 for place in range(dimensions)]


class Bucket:
    """A token bucket that gets *limit* units in *minute* seconds. It starts full, with *limit* x *burst* units."""

    def __init__(self, limit: float, minute: float, burst: float) -> None:
        self.limit, self.minute = limit, minute
        self.size = limit * burst
        self.level, self.at = self.size, time.monotonic()

    def wait(self, amount: float) -> float:
        """
        Return the seconds until the bucket holds *amount* units; 0 if it holds them now.

        If *amount* is more than a full bucket holds, return the seconds until the bucket is full.
        """
        now = time.monotonic()
        self.level = min(self.size, self.level + (now - self.at) * self.limit / self.minute)
        self.at = now
        return max(0.0, (min(amount, self.size) - self.level) * self.minute / self.limit)


class Service:
    """The configured behavior and the counters of the service."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.seeded: dict[str, Any] = {}
        self.batches = Batches(self.batched_answer)
        self.script({})
        self.reset_stats()

    def script(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        minute, burst = settings.get("minute", 60.0), settings.get("burst", 1.0)
        self.buckets = {
            unit: Bucket(settings[unit], minute, burst) for unit in ("requests", "tokens") if settings.get(unit)
        }
        self.faults: list[dict[str, Any]] = settings.get("faults", [])
        self.batches.script(settings.get("batches") or {})
        self.shares: dict[str, float] = settings.get("shares", {})
        self.seen: collections.Counter[str] = collections.Counter()

    def reset_stats(self) -> None:
        self.calls = self.answered = self.limited = self.faults_used = self.cancelled = self.connections = 0
        self.inputs = self.input_tokens = self.output_tokens = 0
        self.batched = self.batched_input_tokens = self.batched_output_tokens = 0
        self.peak = self.in_flight
        self.per_text: collections.Counter[str] = collections.Counter()
        self.entries: list[dict[str, Any]] = []

    def stats(self) -> dict[str, Any]:
        names = ["calls", "answered", "limited", "faults_used", "cancelled", "connections", "inputs"]
        names += ["input_tokens", "output_tokens", "peak", "in_flight", "batched"]
        made = {"files": len(self.batches.files), "batches": len(self.batches.batches)}
        prices = self.settings.get("prices", [0.0, 0.0])
        # A token of a batch costs half the price.
        read = self.input_tokens - self.batched_input_tokens / 2
        written = self.output_tokens - self.batched_output_tokens / 2
        cost = (read * prices[0] + written * prices[1]) / 1e6
        return {**{name: getattr(self, name) for name in names}, **made, "cost": cost, "per_text": dict(self.per_text)}

    def control(self, target: str, body: bytes) -> Any:
        match target:
            case "/__stats":
                return self.stats()
            case "/__log":
                return self.entries
            case "/__script":
                self.script(json.loads(body))
            case "/__seed":
                self.seeded.update(json.loads(body))
            case "/__reset_stats":
                self.reset_stats()
            case "/__forget_batches":
                self.batches.forget()
            case _:
                return {"error": f"no command {target}"}
        return {}

    def admitted(self, tokens: int) -> float:
        """If the limits allow a request of *tokens*, count it and return 0; otherwise return the seconds to wait."""
        amounts = {"requests": 1, "tokens": tokens}
        wait = max((bucket.wait(amounts[unit]) for unit, bucket in self.buckets.items()), default=0.0)
        if wait == 0.0:
            for unit, bucket in self.buckets.items():
                bucket.level -= amounts[unit]
        return wait

    def batched_answer(self, kind: str, document: dict[str, Any]) -> tuple[int, Any]:
        """Answer one request of a batch, to which the limits per minute do not apply."""
        try:
            texts = texts_of(document)
            answer, used = service_answer(self, kind, document, texts)
        except (ValueError, KeyError, TypeError) as error:
            return 400, json.loads(_error(f"The request cannot be read: {error!r}."))
        fault = self.fault_for(texts[0])
        if fault is not None and fault.get("status", 200) != 200:
            return fault["status"], {"error": {"message": fault.get("body", "")}}
        self.batched += 1
        self.batched_input_tokens += used[0]
        self.batched_output_tokens += used[1]
        return 200, self.counted(answer, texts, used, fault)

    def counted(self, answer: Any, texts: list[str], used: tuple[int, int], fault: dict[str, Any] | None) -> Any:
        """Count a request that is answered, and return its answer, which a *fault* may change."""
        self.answered += 1
        self.inputs += len(texts)
        self.input_tokens += used[0]
        self.output_tokens += used[1]
        if self.settings.get("log"):
            self.per_text.update(texts)
        return answer if fault is None else _with_content(answer, fault["body"], fault.get("finish", "stop"))

    def delay_of(self, body: bytes) -> float:
        """Return the seconds until the request with this *body* is answered."""
        least: float = self.settings.get("latency", 0.0)
        most: float = self.settings.get("slowest", 0.0)
        return least * float((most / least) ** (crc32(body) % 1000 / 1000)) if least and most else least

    def limit_headers(self) -> dict[str, str]:
        if self.settings.get("silent"):
            return {}
        headers = {}
        for unit, bucket in self.buckets.items():
            bucket.wait(0)
            headers[f"x-ratelimit-limit-{unit}"] = f"{bucket.limit:.0f}"
            headers[f"x-ratelimit-remaining-{unit}"] = f"{max(0.0, math.floor(bucket.level)):.0f}"
            missing = (bucket.size - bucket.level) * bucket.minute / bucket.limit
            headers[f"x-ratelimit-reset-{unit}"] = f"{missing * 1000:.0f}ms"
        return headers

    def fault_for(self, text: str) -> dict[str, Any] | None:
        """
        Return the fault that applies to a request with this *text*, or None.

        The first matching fault of the script applies. If none matches, a hash of *text*, and of the number of requests
        with this text so far, decides whether one of the `shares` applies.
        """
        for fault in self.faults:
            if fault.get("match", "") in text and fault.get("times") != 0:
                if fault.get("times") is not None:
                    fault["times"] -= 1
                self.faults_used += 1
                return fault
        if self.shares:
            self.seen[text] += 1
            drawn = crc32(f"{self.seen[text]} {text}".encode()) % 100_000 / 100_000
            for kind, share in self.shares.items():
                if drawn < share:
                    self.faults_used += 1
                    return {"body": "Sorry, no JSON."} if kind == "text" else {"status": int(kind)}
                drawn -= share
        return None


def texts_of(document: dict[str, Any]) -> list[str]:
    """Return the texts of a request: its inputs, or one text that joins all its messages."""
    given = document.get("input")
    if isinstance(given, list) and (not given or isinstance(given[0], str)):
        return list(given)
    if isinstance(given, str):
        return [given]
    parts = []
    for message in [*(document.get("messages") or ()), *(given or ())]:
        content = message["content"]
        pieces = content if isinstance(content, list) else [{"text": content}]
        parts.append("\n".join(json.dumps(p["image_url"]) if "image_url" in p else p["text"] for p in pieces))
    return ["\n".join(parts)]


class ApiProtocol(HttpProtocol):
    """A connection to the port that answers requests of the API; another port takes commands."""

    service: Any
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.entry: dict[str, Any] = {}
        self.service.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.busy:
            self.busy = False
            self.entry["lost"] = True
            self.service.in_flight -= 1
            self.service.cancelled += 1
            if self.timer is not None:
                self.timer.cancel()

    def request(self, method: bytes, target: str, headers: bytes, body: bytes) -> None:
        service = self.service
        service.calls += 1
        service.in_flight += 1
        service.peak = max(service.peak, service.in_flight)
        sent = headers_of(headers)
        before = (service.input_tokens, service.output_tokens)
        status, answer, more = self.answer_to(method.decode(), target, sent, body)
        if service.settings.get("log"):
            used = [service.input_tokens - before[0], service.output_tokens - before[1]]
            entry = {"path": target, "headers": sent, "body": body.decode(errors="replace"), "at": time.monotonic()}
            self.entry = {**entry, "status": status, "tokens": used, "lost": False}
            service.entries.append(self.entry)
        if method == b"POST" and service.batches.silent and target.endswith(f"/{service.batches.silent}"):
            return  # no answer is sent: the request stays in flight until the client disconnects
        delay = service.delay_of(body) if status == 200 else 0.0
        self.timer = asyncio.get_running_loop().call_later(delay, self.send, status, answer, more)

    def answer_to(
        self, method: str, target: str, sent: dict[str, str], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        service = self.service
        key = service.settings.get("api_key")
        if key is not None and sent.get("authorization") != f"Bearer {key}":
            return 401, _error("Incorrect API key provided."), {}
        kind = target.rpartition("/v1/")[2]
        if kind.startswith(("files", "batches")):
            status, answer = service.batches.request(method, kind, sent.get("content-type", ""), body)
            return status, answer if isinstance(answer, bytes) else json.dumps(answer).encode(), {}
        if kind not in ("chat/completions", "embeddings", "responses"):
            return 404, _error(f"There is no {target}."), {}
        try:
            document = json.loads(body)
            texts = texts_of(document)
            answer, used = service_answer(service, kind, document, texts)
        except (ValueError, KeyError, TypeError) as error:
            return 400, _error(f"The request cannot be read: {error!r}."), {}
        wait = service.admitted(used[0] + used[1])
        if wait > 0.0:
            service.limited += 1
            more = {"retry-after": f"{math.ceil(wait)}", "retry-after-ms": f"{wait * 1000:.0f}"}
            return 429, _error("Rate limit reached."), {**service.limit_headers(), **more}
        fault = service.fault_for("\n".join(texts))
        if fault is not None and fault.get("status", 200) != 200:
            return fault["status"], fault.get("body", '{"error": {}}').encode(), dict(fault.get("headers", {}))
        answer = service.counted(answer, texts, used, fault)
        return 200, json.dumps(answer).encode(), service.limit_headers()

    def send(self, status: int, body: bytes, more: dict[str, str]) -> None:
        headers = "".join(f"{name}: {value}\r\n" for name, value in more.items()).encode()
        first = b"%d %b" % (status, REASONS.get(status, b"Error"))
        self.reply(first, body, b"Content-Type: application/json\r\n" + headers)
        self.busy = False
        self.service.in_flight -= 1
        self.timer = None
        self.parse()


def service_answer(
    service: Service, kind: str, document: dict[str, Any], texts: list[str]
) -> tuple[dict[str, Any], tuple[int, int]]:
    """Return the answer to a request of *kind*, e.g. `embeddings`, and how many tokens were read and written."""
    read = sum(map(tokens_of, texts))
    if kind == "embeddings":
        dimensions = document.get("dimensions") or 8
        data = [
            {"object": "embedding", "index": place, "embedding": _encoded(vector_of(text, dimensions), document)}
            for place, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": read, "total_tokens": read}
        return {"object": "list", "data": data, "model": document["model"], "usage": usage}, (read, 0)
    if kind == "chat/completions":
        form = document.get("response_format") or {}
        schema = form["json_schema"]["schema"] if form.get("type") == "json_schema" else None
        prompt = texts[0]
        content = _content(service, prompt, schema)
        written = tokens_of(content or "")
        usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
        message: dict[str, Any] = {"role": "assistant", "content": content}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return {"object": "chat.completion", "choices": choices, "usage": usage}, (read, written)
    form = document.get("text", {}).get("format") or {}
    read += tokens_of(document.get("instructions") or "")
    content = _content(service, texts[0], form.get("schema"))
    written = tokens_of(content or "")
    usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
    parts = [] if content is None else [{"type": "output_text", "text": content}]
    output = [{"type": "reasoning", "summary": []}, {"type": "message", "role": "assistant", "content": parts}]
    return {"object": "response", "status": "completed", "output": output, "usage": usage}, (read, written)


def _content(service: Service, prompt: str, schema: dict[str, Any] | None) -> str | None:
    if prompt not in service.seeded:
        return reply_of(prompt, schema)
    seeded = service.seeded[prompt]
    return seeded if seeded is None or isinstance(seeded, str) else json.dumps(seeded)


def _with_content(answer: dict[str, Any], content: str, finish: str) -> dict[str, Any]:
    if "choices" in answer:
        answer["choices"][0]["finish_reason"] = finish
        answer["choices"][0]["message"]["content"] = content
    elif "output" in answer:
        answer["output"][1]["content"][0]["text"] = content
    return answer


def _encoded(vector: list[float], document: dict[str, Any]) -> list[float] | str:
    if document.get("encoding_format") != "base64":
        return vector
    import struct

    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message}}).encode()


async def serve() -> None:
    loop = asyncio.get_running_loop()
    service: Any = Service()
    protocols = (partial(ApiProtocol, service), partial(ControlProtocol, service))
    servers = [await loop.create_server(protocol, "127.0.0.1", 0, backlog=4096) for protocol in protocols]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    print(json.dumps({"port": ports[0], "control": ports[1]}), flush=True)
    await loop.create_future()


if __name__ == "__main__":
    asyncio.run(serve())
    sys.exit(1)
