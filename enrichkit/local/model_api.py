"""A throw-away, scripted service of the OpenAI API in a process of its own, and the handle that configures it."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .http import command
from .process import announce, start, stop, temp_dir, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, kw_only=True)
class LlmFault:
    """
    A misbehavior of the service toward some requests.

    Attributes:
        match: Requests whose text contains *match* are affected; all requests when *match* is empty.
        times: The number of matching requests that are affected; all when None.
        status: Status of the answer, for example 500. With 200, the model answers with the text *body*.
        body: Body of the answer; with the status 200, the text that the model writes.
        headers: Headers of the answer.
        finish: The reason that a chat model gives for the end of its answer: `"stop"`, `"length"` or
            `"content_filter"`.
    """

    match: str = ""
    times: int | None = None
    status: int = 200
    body: str = "{}"
    headers: Mapping[str, str] = field(default_factory=dict)
    finish: str = "stop"


@dataclass(frozen=True, kw_only=True)
class LlmBatches:
    """
    How the service handles new batches.

    The *faults* and *shares* of `LlmService.script` apply to the requests of batches, too.

    Attributes:
        seconds: Seconds from the creation of a batch to its end.
        ends: How a batch ends: `"completed"`, `"expired"`, `"cancelled"`, or `"failed"`, in which case no request of
            the batch is answered.
        share: Share of the requests that are answered before a batch expires or is cancelled.
        silent: `"files"` or `"batches"`: a POST to this endpoint creates the file or the batch, but is never answered.
            Empty: every POST is answered.
    """

    seconds: float = 0.0
    ends: str = "completed"
    share: float = 0.5
    silent: str = ""


@dataclass(frozen=True, kw_only=True)
class LlmStats:
    """
    The counters of the service since its start or the last reset.

    Attributes:
        calls: Number of requests that arrived.
        answered: Number of requests that a model answered; only these cost tokens.
        limited: Number of requests that a limit refused with 429.
        faults_used: Number of requests that a fault applied to.
        cancelled: Number of requests whose connection ended before their answer.
        connections: Number of connections that clients opened.
        inputs: Number of texts in the requests that were answered; a request for embeddings may have many.
        input_tokens: Number of tokens in the texts of answered requests.
        output_tokens: Number of tokens in the answers.
        peak: The largest number of requests in flight at the same time.
        in_flight: Number of requests that wait for their answer now.
        cost: Price of all tokens at the prices that `LlmService.script` sets; tokens of a batch cost half.
        files: Number of files that the service holds, including files of answers.
        batches: Number of batches that the service holds.
        batched: Number of requests of batches that a model answered. They are counted in *answered*, and their tokens
            in *input_tokens* and *output_tokens*, too.
        per_text: Number of answered requests by text; empty unless `LlmService.script` has turned the log on.
    """

    calls: int
    answered: int
    limited: int
    faults_used: int
    cancelled: int
    connections: int
    inputs: int
    input_tokens: int
    output_tokens: int
    peak: int
    in_flight: int
    cost: float
    files: int
    batches: int
    batched: int
    per_text: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class LlmService:
    """
    The handle of a running service.

    The service answers requests to `/v1/chat/completions`, `/v1/embeddings` and `/v1/responses`. It also has
    `/v1/files` and `/v1/batches`, for batches of such requests. An answer is a pure function of the request: see
    `reply_of` and `vector_of` in `model_api_service.py`.

    Attributes:
        url: `http://127.0.0.1:<port>/v1`.
        control_port: The port to which the handle sends its commands.
        pid: Process id of the service.
    """

    url: str
    control_port: int
    pid: int

    def script(
        self,
        *faults: LlmFault,
        requests: float | None = None,
        tokens: float | None = None,
        minute: float = 60.0,
        burst: float = 1.0,
        silent: bool = False,
        latency: float = 0.0,
        slowest: float = 0.0,
        shares: Mapping[str, float] | None = None,
        prices: tuple[float, float] = (0.0, 0.0),
        api_key: str | None = None,
        log: bool = False,
        batches: LlmBatches | None = None,
    ) -> None:
        """
        Set the behavior of the service from now on. The call replaces all earlier settings.

        Args:
            faults: The faults, in the order in which the service tries them. The first fault that matches a request,
                and has not yet applied to `times` requests, applies to the request.
            requests: The most requests in a *minute*; a further request is answered with 429 and costs nothing. None:
                no limit.
            tokens: The most tokens in a *minute*; a request above the limit is answered with 429, too. None: no limit.
            minute: Seconds that count as one minute for the limits; with 0.6, a test of the limits takes a hundredth of
                the time.
            burst: Share of the limit for one minute that may be used at once, i.e. the size of the token buckets.
            silent: Whether answers lack the headers that say how much the limits still allow.
            latency: Seconds between a request and its answer.
            slowest: Seconds that the slowest answer takes; must exceed *latency*. A hash of the body chooses a duration
                between *latency* and *slowest*, evenly on a logarithmic scale. 0: all answers take *latency*.
            shares: Share of the requests that get an error, for each status, such as `{"500": 0.1}`. A hash of the
                text of a request, and of the number of requests with this text so far, decides whether the request gets
                an error. The key `"text"` stands for answers with the status 200 that are no JSON.
            prices: Two prices: of a million tokens in requests, and of a million tokens in answers.
            api_key: The key that each request must have as its Bearer token; any other key is answered with 401. None:
                every request is accepted.
            log: Whether the service keeps each request for `log()`, and counts each text.
            batches: How the service handles new batches; None: the service completes a batch at once.
        """
        settings: dict[str, Any] = {
            "requests": requests,
            "tokens": tokens,
            "minute": minute,
            "burst": burst,
            "silent": silent,
        }
        settings |= {"latency": latency, "slowest": slowest, "shares": dict(shares or {}), "prices": list(prices)}
        settings |= {"api_key": api_key, "log": log, "faults": [asdict(fault) for fault in faults]}
        settings["batches"] = asdict(batches or LlmBatches())
        self._command("/__script", settings)

    def seed(self, answers: Mapping[str, Any]) -> None:
        """
        Add *answers*, a mapping from prompts to the answers that the models give from now on.

        The service sends a text as it is, None as an answer without text, and any other value as JSON.
        """
        self._command("/__seed", dict(answers))

    def stats(self) -> LlmStats:
        """Return the counters."""
        return LlmStats(**self._command("/__stats"))

    def log(self) -> list[dict[str, Any]]:
        """
        Return the logged requests in order, each with `path`, `headers`, `body`, the `status` of its answer, and `at`,
        the `time.monotonic()` at which the request arrived.

        Each entry also has `tokens`, a list of the numbers of tokens that the model has read and written for the
        request, and `lost`, which is True when the connection ended before the answer was sent.
        """
        entries: list[dict[str, Any]] = self._command("/__log")
        return entries

    def reset_stats(self) -> None:
        """Set the counters to zero and empty the log. The settings of `script` and the values of `seed` stay."""
        self._command("/__reset_stats")

    def forget_batches(self) -> None:
        """Forget all files and batches."""
        self._command("/__forget_batches")

    def _command(self, path: str, body: Any = None) -> Any:
        return command(self.control_port, path, body)


@contextlib.contextmanager
def llm_service() -> Iterator[LlmService]:
    """
    Run the service. Until `script` is called, the service answers without delays, faults or limits, and keeps no log.

    >>> with llm_service() as service:
    ...     service.stats().calls
    0
    """
    began = time.monotonic()
    with temp_dir("llm") as folder:
        log, hello = folder / "log", folder / "hello"
        with hello.open("wb") as sink:
            program = [sys.executable, "-P", "-m", "enrichkit.local.model_api_service"]
            process = start(program, log=log, stdout=sink.fileno())

        def ready() -> dict[str, Any] | None:
            text = hello.read_text()
            return json.loads(text) if text.endswith("\n") else None

        try:
            ports = wait_until_ready("The service of models", process, ready, log)
            announce(f"Scripted OpenAI API on port {ports['port']}, ready in {time.monotonic() - began:.2f} s")
            url = f"http://127.0.0.1:{ports['port']}/v1"
            yield LlmService(url=url, control_port=ports["control"], pid=process.pid)
        finally:
            stop(process, signal.SIGKILL)
