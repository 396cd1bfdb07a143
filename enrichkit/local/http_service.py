"""
The program that `local.http()` starts: an HTTP/1.1 service that can be told to misbehave.

This file implements HTTP itself, because the service runs on the same machine as the code whose speed is measured, and
aiohttp.web needs several times the CPU per request. One port answers lookups. A second port takes commands, so that
reading the counters does not change them. `Fault` in `http.py` documents the faults. The file is long because it is a
script that imports nothing of enrichkit, so the parser, the answers and the faults are all here.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import gc
import gzip
import json
import socket
import struct
import sys
import time
from functools import partial
from json.encoder import encode_basestring_ascii as quoted
from typing import Any
from urllib.parse import unquote
from zlib import crc32

TAIL_STEPS = 1_000_000
TICK = 0.001  # the resolution, in seconds, of the timers of libuv, the event loop inside uvloop


def value_of(key: str) -> dict[str, Any]:
    """
    Return the value of *key* in the service, a pure function of the key; `HttpService.seed` can replace the value.

    >>> value_of("u1")
    {'key': 'u1', 'name': 'name of u1', 'score': 422}
    """
    return {"key": key, "name": f"name of {key}", "score": crc32(key.encode()) % 1000}


def in_tail(key: str, fraction: float) -> bool:
    """
    Return whether *key* is one of the slow keys, whose share of all keys is *fraction*.

    The hash of the key decides, so the same keys are slow in every run.
    """
    return crc32(b"tail of " + key.encode()) % TAIL_STEPS < fraction * TAIL_STEPS


def encoded_value(key: str) -> bytes:
    # The result equals json.dumps(value_of(key)).encode(), but takes a tenth of the time.
    text = quoted(key)
    return b'{"key": %b, "name": "name of %b, "score": %d}' % (
        text.encode(),
        text[1:].encode(),
        crc32(key.encode()) % 1000,
    )


class Service:
    """The values, the configured behavior and the counters of the service."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.free_at = 0.0
        self.reset()

    def reset(self) -> None:
        self.seeded: dict[str, bytes] = {}
        self.logging = False
        self.script({})
        self.reset_stats()

    def reset_stats(self) -> None:
        self.calls = self.keys = self.connections = self.faults_used = self.refused = 0
        self.peak = self.in_flight
        self.served = 0.0
        self.cpu = time.process_time()
        self.per_key: collections.Counter[str] = collections.Counter()
        self.entries: list[dict[str, Any]] = []

    def script(self, settings: dict[str, Any]) -> None:
        self.latency: float = settings.get("latency", 0.0)
        self.tail: float = settings.get("tail", 0.0)
        self.tail_latency: float = settings.get("tail_latency", 0.0)
        self.tail_of: str = settings.get("tail_of", "keys")
        self.ceiling: float = settings.get("ceiling", 0.0)
        self.room: int = settings.get("room", 0)
        self.at_once: int = settings.get("at_once", 0)
        self.refusal: int = settings.get("refusal", 503)
        if settings.get("log") is not None:
            self.logging = settings["log"]
        self.faults: list[dict[str, Any]] = settings.get("faults", [])
        self.delay_queues: dict[float, DelayQueue] = {}

    def stats(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "keys": self.keys,
            "per_key": dict(self.per_key),
            "peak": self.peak,
            "in_flight": self.in_flight,
            "connections": self.connections,
            "faults_used": self.faults_used,
            "refused": self.refused,
            "served": self.served,
            "cpu": time.process_time() - self.cpu,
        }

    def control(self, target: str, body: bytes) -> Any:
        match target:
            case "/__stats":
                return self.stats()
            case "/__log":
                return self.entries
            case "/__script":
                self.script(json.loads(body))
            case "/__seed":
                for key, value in json.loads(body).items():
                    self.seeded[key] = json.dumps(value).encode()
            case "/__reset":
                self.reset()
            case "/__reset_stats":
                self.reset_stats()
            case _:
                return {"error": f"no command {target}"}
        return {}

    def answer_for(self, key: str) -> bytes | None:
        """Return the JSON text of the value of *key*, None when the service does not hold the key."""
        if self.seeded and key in self.seeded:
            return self.seeded[key]
        return None if "missing" in key else encoded_value(key)

    def fault_for(self, target: str, body: bytes) -> dict[str, Any] | None:
        text = f"{target} {unquote(target)} {body.decode(errors='replace')}"
        for fault in self.faults:
            if fault["match"] in text and fault.get("times") != 0:
                if fault.get("skip"):
                    fault["skip"] -= 1
                    continue
                if fault.get("times") is not None:
                    fault["times"] -= 1
                self.faults_used += 1
                return fault
        return None

    def full(self) -> bool:
        """Return whether more than `at_once` requests are in flight; if so, count the latest request as refused."""
        full = 0 < self.at_once < self.in_flight
        self.refused += full
        return full

    def queued(self, now: float) -> float | None:
        """Return the seconds that a request waits because of the rate limit `ceiling`; None when the queue is full."""
        begin = max(now, self.free_at)
        if (begin - now) * self.ceiling >= self.room:
            self.refused += 1
            return None
        self.free_at = begin + 1.0 / self.ceiling
        return self.free_at - now

    def delay_of(self, keys: list[str]) -> float:
        if self.tail_of == "requests":
            slow = in_tail(f"request {self.calls}", self.tail)
        else:
            slow = bool(self.tail) and any(in_tail(key, self.tail) for key in keys)
        return self.tail_latency if slow else self.latency


class DelayQueue:
    """
    A FIFO queue of answers with the same delay, which share one timer.

    A timer for each request would take 9 of the 25 microseconds of CPU time that a request may take, mostly because
    each timer wakes the event loop separately.
    """

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.waiting: collections.deque[tuple[float, LookupProtocol]] = collections.deque()
        self.loop = asyncio.get_running_loop()

    def add(self, protocol: LookupProtocol) -> None:
        self.waiting.append((self.loop.time() + self.delay, protocol))
        if len(self.waiting) == 1:
            self.loop.call_later(self.delay, self.fire)

    def fire(self) -> None:
        waiting, now = self.waiting, self.loop.time()
        try:
            while waiting and waiting[0][0] <= now:  # an answer is at most a millisecond late, and never early
                due, protocol = waiting.popleft()
                protocol.service.served += now - due + self.delay
                protocol.answer_late()
        finally:  # if one answer raises an exception, which the event loop logs, the other answers are still sent
            if waiting:
                self.loop.call_later(max(TICK, waiting[0][0] - now), self.fire)


class HttpProtocol(asyncio.Protocol):
    """
    A connection that parses requests and handles one of them at a time.

    HTTP/1.1 requires the answers in the order of the requests.
    """

    transport: asyncio.Transport

    def __init__(self, service: Service) -> None:
        self.service = service
        self.buffer = b""
        self.busy = False
        self.open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # asyncio gives a TCP server a Transport
        # The limit is 64 MiB, so that a whole answer of the fault `oversize` usually fits in the write buffer.
        self.transport.set_write_buffer_limits(high=1 << 26)

    def data_received(self, data: bytes) -> None:
        if self.busy or self.buffer:
            self.buffer += data
            if not self.busy:
                self.parse()
        elif data.startswith(b"GET ") and data.find(b"\r\n\r\n") == len(data) - 4:
            # This is a fast path for one complete request without a body, because nearly all requests arrive in this
            # form. It takes half the CPU time of `parse`.
            self.busy = True
            self.request(b"GET", data[4 : data.index(b" ", 4)].decode("latin-1"), data, b"")
        else:
            self.buffer = data
            self.parse()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False

    def parse(self) -> None:
        """Handle the complete requests in the buffer, in order; stop after a request whose answer is delayed."""
        while self.buffer and not self.busy and not self.transport.is_closing():
            head, separator, rest = self.buffer.partition(b"\r\n\r\n")
            if not separator:
                return
            body = b""
            first, _, headers = head.partition(b"\r\n")
            method, _, target = first.rpartition(b" ")[0].partition(b" ")
            if method != b"GET":
                parts = split_body(headers, rest)
                if parts is None:
                    return
                body, rest = parts
            self.buffer = rest
            self.busy = True
            self.request(method, target.decode("latin-1"), headers, body)

    def request(self, method: bytes, target: str, headers: bytes, body: bytes) -> None:
        raise NotImplementedError

    def reply(self, status: bytes, body: bytes, headers: bytes = b"Content-Type: application/json\r\n") -> None:
        self.transport.write(b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(body), body))


class ControlProtocol(HttpProtocol):
    """A connection to the port that takes commands; another port answers lookups."""

    def request(self, method: bytes, target: str, headers: bytes, body: bytes) -> None:
        self.reply(b"200 OK", json.dumps(self.service.control(target, body)).encode())
        self.busy = False


class LookupProtocol(HttpProtocol):
    """A connection to the port that answers lookups; another port takes commands."""

    timer: asyncio.TimerHandle | None = None
    # Attributes of the request that is being handled:
    keys: list[str]
    bulk: bool
    as_object: bool
    graphql: bool
    closing: bool
    fault: dict[str, Any] | None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.loop = asyncio.get_running_loop()
        self.service.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.busy:
            self.finish()
            if self.timer is not None:
                self.timer.cancel()

    def request(self, method: bytes, target: str, headers: bytes, body: bytes) -> None:
        service = self.service
        plain = not body and "%" not in target and "?" not in target
        keys = [target[target.rfind("/") + 1 :]] if plain else keys_of(target, body)
        service.calls += 1
        service.keys += len(keys)
        service.in_flight += 1
        if service.in_flight > service.peak:
            service.peak = service.in_flight
        self.closing = b"lose" in headers and b"connection: close" in headers.lower()
        self.keys = keys
        self.as_object = "shape=object" in target
        self.bulk = body[:1] == b"["
        self.graphql = target.endswith("/graphql")
        self.fault = service.fault_for(target, body) if service.faults else None
        if service.logging:
            service.per_key.update(keys)
            service.entries.append(
                {
                    "method": method.decode(),
                    "path": target,
                    "keys": keys,
                    "headers": headers_of(headers),
                    "body": body.decode(errors="replace"),
                    "at": time.monotonic(),
                }
            )
        if service.full():
            self.fault = {"status": service.refusal}
            self.answer()
            return
        delay = service.delay_of(keys) if service.latency or service.tail else 0.0
        if self.fault is not None:
            if self.fault.get("hang"):
                return  # no answer is sent: the request stays in flight until the client disconnects
            delay += self.fault.get("delay", 0.0)
        if service.ceiling:
            queued = service.queued(self.loop.time())
            if queued is None:
                self.fault = {"status": 503}
                self.answer()
            else:
                self.timer = self.loop.call_later(delay + queued, self.answer_late)
        elif delay:
            queue = service.delay_queues.get(delay)
            if queue is None:
                queue = service.delay_queues[delay] = DelayQueue(delay)
            queue.add(self)
        else:
            self.answer()

    def answer_late(self) -> None:
        # The client may just have disconnected, and in uvloop a write to a transport that is closing raises an error.
        if self.open and not self.transport.is_closing():
            self.answer()
            if self.buffer:
                self.parse()

    def answer(self) -> None:
        service = self.service
        payload = bulk_payload(service, self.keys, self.as_object) if self.bulk else service.answer_for(self.keys[0])
        if self.graphql:
            payload = b'{"data": {"user": %b}}' % (payload or b"null")
        if self.fault is None:
            if payload is None:
                self.reply(b"404 Not Found", b'{"error": "no such key"}')
            else:
                self.transport.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                    % (len(payload), payload)
                )
            self.busy = False
            service.in_flight -= 1
            if self.closing:
                self.transport.close()
        else:
            self.misbehave(self.fault, payload)

    def finish(self) -> None:
        self.busy = False
        self.service.in_flight -= 1

    def misbehave(self, fault: dict[str, Any], payload: bytes | None) -> None:
        if fault.get("reset"):
            raw: socket.socket = self.transport.get_extra_info("socket")
            # With a linger time of zero the kernel sends RST instead of FIN.
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
            return
        status = fault.get("status") or (404 if payload is None else 200)
        payload = payload or b'{"error": "no such key"}'
        if fault.get("body") is not None:
            payload = base64.b64decode(fault["body"])
        if fault.get("oversize"):
            payload = b'{"padding": "%b"}' % (b"x" * max(0, fault["oversize"] - 15))
        headers = {"Content-Type": fault.get("content_type") or "application/json", **fault.get("headers", {})}
        if fault.get("truncated_gzip"):
            headers["Content-Encoding"] = "gzip"
            payload = gzip.compress(payload)
            payload = payload[: len(payload) // 2]
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        answer = f"HTTP/1.1 {status} Scripted\r\n{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload
        if fault.get("stray"):
            extra = encoded_value("stray")
            answer += b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
                len(extra),
                extra,
            )
        if fault.get("close_after") is not None:
            self.transport.write(answer[: fault["close_after"]])
            self.transport.close()
        elif fault.get("drip"):
            self.drip(answer, fault["drip"])
            return  # the request stays in flight until the last byte of its answer is sent
        else:
            self.transport.write(answer)
        self.finish()

    def drip(self, rest: bytes, interval: float) -> None:
        self.transport.write(rest[:1])
        if rest[1:]:
            self.timer = self.loop.call_later(interval, self.drip, rest[1:], interval)
        else:
            self.timer = None
            self.finish()
            self.parse()


def split_body(headers: bytes, rest: bytes) -> tuple[bytes, bytes] | None:
    """Split *rest*, the bytes after the head, into the body and later requests; None if the body is incomplete."""
    fields = headers_of(headers)
    if fields.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while True:
            size, separator, rest = rest.partition(b"\r\n")
            if not separator:
                return None
            length = int(size.split(b";")[0], 16)
            if len(rest) < length + 2:
                return None
            body, rest = body + rest[:length], rest[length + 2 :]
            if length == 0:
                return body, rest
    length = int(fields.get("content-length", "0"))
    return None if len(rest) < length else (rest[:length], rest[length:])


def headers_of(headers: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in headers.decode("latin-1").split("\r\n"))
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def keys_of(target: str, body: bytes) -> list[str]:
    """
    Return the keys of a request.

    If the body is a JSON list, its items are the keys. If the body is a JSON object, its field `key` or `id` is the
    key. In an object with the field `variables`, as GraphQL sends it, `key` or `id` is searched in `variables` instead.
    If the body gives no key, the last segment of the path is the key.
    """
    if body[:1] in (b"[", b"{"):
        document = json.loads(body)
        if isinstance(document, list):
            return [item if isinstance(item, str) else json.dumps(item) for item in document]
        if isinstance(document, dict):
            document = document.get("variables") or document
            for field in ("key", "id"):
                if field in document:
                    return [str(document[field])]
    segment = target.partition("?")[0].rpartition("/")[2]
    return [unquote(segment) if "%" in segment else segment]


def bulk_payload(service: Service, keys: list[str], as_object: bool) -> bytes:
    values = [service.answer_for(key) for key in keys]
    if as_object:
        members = (
            quoted(key).encode() + b": " + value for key, value in zip(keys, values, strict=True) if value is not None
        )
        return b"{" + b", ".join(members) + b"}"
    return b"[" + b", ".join(b"null" if value is None else value for value in values) + b"]"


async def serve() -> None:
    loop = asyncio.get_running_loop()
    service = Service()
    protocols = (partial(LookupProtocol, service), partial(ControlProtocol, service))
    servers = [await loop.create_server(protocol, "127.0.0.1", 0, backlog=4096) for protocol in protocols]
    gc.collect()
    # After freeze(), the garbage collector ignores all objects that exist now. Scans of these objects would only add
    # noise to the latencies.
    gc.freeze()
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    print(json.dumps({"port": ports[0], "control": ports[1], "loop": type(loop).__module__}), flush=True)
    await loop.create_future()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:  # uvloop comes with enrichkit[local]; without uvloop the service is slower, but complete
        asyncio.run(serve())
    else:
        uvloop.run(serve())
    sys.exit(1)
