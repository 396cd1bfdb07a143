"""Services as they are on an ordinary bad day, with default options: each row has its value, after one attempt."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from enrichkit_http import HttpConfig
from pyspark.sql import types as spark

from enrichkit import local
from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.errors import FatalError
from enrichkit.local import Fault
from enrichkit.worker.entry import arrow_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator


pytestmark = pytest.mark.service


class Service:
    """
    A server of HTTP/1.1 with keep-alive; the answer to `/k` is `"vk"`.

    Args:
        status: Takes a key and the number of requests before, and returns the status and further lines of the head.
        closes: Takes the number of answers on a connection, and returns the seconds after which the server closes it
            without a word; None: it does not.
        keep_alive: Seconds after which the server closes an idle connection; None: it keeps it.
    """

    def __init__(
        self,
        status: Callable[[str, int], str] = lambda key, before: "200 OK",
        closes: Callable[[int], float | None] = lambda answers: None,
        keep_alive: float | None = None,
    ) -> None:
        self.status, self.closes, self.keep_alive = status, closes, keep_alive
        self.asked: list[str] = []
        self.times: list[float] = []
        self.connections = self.closed = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Service:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=500))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *error: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the transports close in the next iteration

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        answers = 0
        try:
            while True:
                async with asyncio.timeout(self.keep_alive):
                    head = await reader.readuntil(b"\r\n\r\n")
                key = head.split(b" ")[1].decode().rpartition("/")[2]
                status = self.status(key, len(self.asked))
                self.asked.append(key)
                self.times.append(monotonic())
                await asyncio.sleep(0.01)
                body = f'"v{key}"'.encode()
                lines = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(lines.encode() + body)
                await writer.drain()
                answers += 1
                pause = self.closes(answers)
                if pause is not None:
                    await asyncio.sleep(pause)
                    return
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            return
        finally:
            writer.close()
            self.closed += 1

    def look_up(self, keys: Iterable[str], *more: Iterable[str], **options: Any) -> list[dict[str, Any]]:
        """Look up *keys*, and then each of *more*, in one task; an iterator is read when Spark would send its rows."""
        config = HttpConfig(url=f"http://127.0.0.1:{self.port}/{{}}", **options.pop("config", {}))
        plan, _ = make_plan(config, 1, spark.StringType(), {"details": True, **options})
        arrays = (pa.array(list(batch)) for batch in (keys, *more))
        return [row for array in arrow_batches(pack(plan), arrays) for row in array.to_pylist()]

    def look_up_in_two(self, keys: list[str]) -> list[dict[str, Any]]:
        """Look up *keys* in two tasks at a time, each with a half of them."""
        middle = len(keys) // 2
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(self.look_up, (keys[:middle], keys[middle:]))
        return first + second


def right(keys: list[str], rows: list[dict[str, Any]]) -> bool:
    """Whether each row has its value after one attempt."""
    return [(row["value"], row["status"], row["attempts"]) for row in rows] == [(f'"v{key}"', "ok", 1) for key in keys]


KEYS = [str(number) for number in range(1500)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "closes",
    [
        lambda answers: 0.0,
        lambda answers: 0.002,
        lambda answers: 0.005,
        lambda answers: 0.002 if answers == 5 else None,
    ],
    ids=["at once", "after 2 ms", "after 5 ms", "every fifth"],
)
def test_a_server_that_hangs_up_without_a_word_costs_no_attempt(closes: Callable[[int], float | None]) -> None:
    with Service(closes=closes) as service:
        assert right(KEYS, service.look_up_in_two(KEYS))
        assert len(service.asked) <= 2 * len(KEYS)


@pytest.mark.parametrize("config", [{}, {"method": "POST", "body": {"id": "{}"}}], ids=["GET", "POST"])
def test_connections_that_the_server_closes_while_they_are_idle_cost_no_attempt(config: dict[str, Any]) -> None:
    """Rows that come after the end of the keep-alive find the connections closed; a POST could not be repeated."""
    before: list[int] = []
    idle = threading.Barrier(2)

    def later(keys: list[str]) -> Iterator[str]:
        while len(service.asked) < 200 or service.closed < service.connections:
            sleep(0.01)
        sleep(0.2)  # the client sees that they are closed
        before.append(service.connections)
        idle.wait()
        yield from keys

    def task(keys: list[str]) -> bool:
        return right(keys, service.look_up(keys[:100], later(keys[100:]), config=config))

    with Service(keep_alive=1.0) as service, ThreadPoolExecutor(2) as threads:
        assert list(threads.map(task, (KEYS[:200], KEYS[200:400]))) == [True, True]
        assert set(service.asked[200:]) == {*KEYS[100:200], *KEYS[300:400]}
        assert service.times[200] - service.times[199] > 1.0
        assert len(service.asked) == 400
        assert service.connections > before[0] == before[1]


def test_a_request_that_must_not_be_repeated_is_not() -> None:
    """A POST may have been carried out."""
    with Service(closes=lambda answers: 0.002) as service:
        rows = service.look_up(KEYS[:300], on_error="null", config={"method": "POST", "body": {"id": "{}"}})
        assert len(service.asked) == len(set(service.asked))
        assert all(row["status"] == "ok" or "may have been carried out" in row["error"] for row in rows)


LIMITED = [
    ("Retry-After: 0", 0.0),
    ("Retry-After: 1", 1.0),
    ("x-ratelimit-remaining: 0\r\nx-ratelimit-reset: 0", 0.0),
    ('RateLimit: "a";r=0;t=1', 1.0),
    ("x-ratelimit-remaining: 0", 0.0),
    ("ratelimit-remaining: 0", 0.0),
]


@pytest.mark.parametrize(("marks", "wait"), LIMITED)
@pytest.mark.parametrize("first", [0, 100])
def test_a_403_with_the_marks_of_a_rate_limit_is_a_pause(marks: str, wait: float, first: int) -> None:
    def status(key: str, before: int) -> str:
        return f"403 Forbidden\r\n{marks}" if first <= before < first + 30 else "200 OK"

    with Service(status) as service:
        assert right(KEYS[:400], service.look_up_in_two(KEYS[:400]))
        assert len(service.asked) == 430
        requests: dict[str, list[float]] = {}
        for key, time in zip(service.asked, service.times, strict=True):
            requests.setdefault(key, []).append(time)
        pauses = [later - sooner for times in requests.values() for sooner, later in pairwise(times)]
        assert min(pauses) > 0.95 * wait


@pytest.mark.parametrize("forbidden", [["7"], ["0", "7", "399"], KEYS[100:110]], ids=["one", "three", "ten in a row"])
def test_a_403_of_some_records_is_their_error(forbidden: list[str]) -> None:
    with Service(lambda key, before: "403 Forbidden" if key in forbidden else "200 OK") as service:
        rows = service.look_up(KEYS[:400], on_error="null")
    for key, row in zip(KEYS, rows, strict=False):
        if key in forbidden:
            assert row["status"] == "error"
            assert row["error"] == (
                "PermanentError: The service answered 403, and other keys with a value: it refuses this one. If 403 "
                "says that the service does not hold the key, add it to HttpConfig.missing."
            )
        else:
            assert (row["value"], row["status"]) == (f'"v{key}"', "ok")


def test_a_403_of_all_keys_fails_the_task_whatever_the_policy() -> None:
    with Service(lambda key, before: "403 Forbidden") as service, pytest.raises(FatalError, match="refuses the cred"):
        service.look_up(KEYS[:400], on_error="null")


def test_credentials_that_expire_fail_the_task() -> None:
    def status(key: str, before: int) -> str:
        return "200 OK" if before < 100 else "403 Forbidden"

    with Service(status) as service:
        with pytest.raises(FatalError, match="refuses the credentials"):
            service.look_up(KEYS, on_error="null", max_fallback_ratio=1.0)
        assert len(service.asked) < 300


@pytest.mark.slow
def test_a_key_of_each_task_that_is_never_answered_costs_no_other_key_its_value() -> None:
    """Five times two tasks in one process, and so on one engine. The service is its own: its calls go on."""
    with local.http() as service:
        service.script(Fault(match="hangs", hang=True), log=True)
        config = HttpConfig(url=service.url + "/{}", value="key")
        plan, _ = make_plan(config, 1, spark.StringType(), {"details": True, "timeout": 4.0, "on_timeout": "null"})
        packed = pack(plan)

        def task(number: int) -> None:
            keys = [f"hangs{number}", *(f"{number}-{n}" for n in range(100))]
            first, *others = (row for array in arrow_batches(packed, [pa.array(keys)]) for row in array.to_pylist())
            assert (first["value"], first["status"]) == (None, "timeout")
            assert [(row["value"], row["status"], row["attempts"]) for row in others] == [
                (k, "ok", 1) for k in keys[1:]
            ]

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(task, range(10))) == [None] * 10
        assert len(service.log()) == 10 * 101
