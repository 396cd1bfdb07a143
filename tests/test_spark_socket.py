"""The socket to the JVM, seen from a worker: a pair of sockets stands for it, and a function for PySpark's."""

from __future__ import annotations

import contextlib
import socket
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyspark
import pytest

from enrichkit.testing import bench
from enrichkit.worker import spark_socket as spark_socket_module
from enrichkit.worker.spark_socket import SparkSocket, spark_socket


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Any]]:
    """The JVM's socket, and the writer that PySpark makes of the worker's."""
    listener = socket.create_server(("127.0.0.1", 0))
    jvm = socket.create_connection(listener.getsockname())
    worker, _ = listener.accept()
    listener.close()
    writer = worker.makefile("wb")
    with jvm, worker:
        yield jvm, writer
        with contextlib.suppress(OSError):  # the test has closed the JVM's socket
            writer.close()


def in_pyspark(writer: Any, variable: str, module: str = "pyspark.worker") -> SparkSocket | None:
    """Return what `spark_socket` finds when a function of *module* with *writer* in its *variable* runs the task."""
    code = f"def task({variable}, inner):\n    return list(inner())\n"
    worker = types.ModuleType(module)
    exec(code, vars(worker))  # our own text, which becomes a function of that module

    def inner() -> Iterator[SparkSocket | None]:
        yield spark_socket("enrichment")

    run: Callable[..., list[SparkSocket | None]] = worker.task
    return run(writer, inner)[0]


def test_the_writer_is_found_in_the_function_that_runs_the_task(pair: tuple[socket.socket, Any]) -> None:
    assert isinstance(in_pyspark(pair[1], "outfile"), SparkSocket)


def test_no_other_variable_and_no_other_module_is_taken_for_it(pair: tuple[socket.socket, Any]) -> None:
    assert in_pyspark(pair[1], "stream") is None
    assert in_pyspark(pair[1], "outfile", "somebody.else") is None
    assert in_pyspark(object(), "outfile") is None
    assert spark_socket("enrichment") is None


def test_what_was_written_arrives_with_a_flush(pair: tuple[socket.socket, Any]) -> None:
    jvm, writer = pair
    worker = SparkSocket(writer, "enrichment")
    writer.write(b"rows")
    jvm.setblocking(False)
    with pytest.raises(BlockingIOError):
        jvm.recv(10)
    worker.flush()
    jvm.setblocking(True)
    assert jvm.recv(10) == b"rows"


@pytest.mark.parametrize("unread", [b"", b"rows that the JVM has not read"])
def test_a_closed_socket_is_noticed_and_an_open_one_with_input_is_not(
    pair: tuple[socket.socket, Any], unread: bytes
) -> None:
    jvm, writer = pair
    worker = SparkSocket(writer, "enrichment")
    jvm.sendall(b"a batch of keys that the worker has not read")
    writer.write(unread)
    worker.flush()
    assert not worker.gone()
    jvm.close()
    assert worker.gone()


@pytest.mark.parametrize("version", ["3.5.9", "4.1.0", "4.3.0"])
def test_a_jvm_that_wants_a_few_rows_has_time_to_close_the_socket(
    pair: tuple[socket.socket, Any], monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    worker = SparkSocket(pair[1], "enrichment")
    assert worker.goes_by(100.0) == 100.2
    pair[0].sendall(b"a batch")
    assert worker.goes_by(100.0) == 100.2


def test_a_jvm_of_4_0_has_more_time_after_each_input(
    pair: tuple[socket.socket, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fills the socket with input before it reads a row."""
    clock = {"now": 100.0}
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    monkeypatch.setattr(spark_socket_module, "time", types.SimpleNamespace(monotonic=lambda: clock["now"]))
    worker = SparkSocket(pair[1], "enrichment")
    assert worker.goes_by(100.0) == 101.0
    for now, expected in ((103.0, 104.0), (109.5, 110.0)):  # 10 s are the most
        clock["now"] = now
        pair[0].sendall(b"a batch")
        assert bench.wait_until(lambda: worker.goes_by(100.0) == expected)  # noqa: B023  # at once
    clock["now"] = 109.9
    assert worker.goes_by(100.0) == 110.0


def test_an_enrichment_whose_rows_were_all_taken_is_steady_in_the_next_task(pair: tuple[socket.socket, Any]) -> None:
    name = str(uuid.uuid4())
    first = SparkSocket(pair[1], name)
    assert not first.steady
    first.took_all()
    assert SparkSocket(pair[1], name).steady
    assert not SparkSocket(pair[1], f"not {name}").steady
