"""The contract kit over HTTP/1.1 and HTTP/2, with one request for each key and with one request for many keys."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig, HttpConnector

from enrichkit.local.process import start, start_on_free_port, stop
from enrichkit.testing import ConnectorContract

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.service

TEXTS = ("plain", "o'clock", 'a"b', "\N{SNOWMAN} man", "a/b?c", "100%", "a b")
HELD = {key: {"name": f"name of {key}", "tier": n} for n, key in enumerate(TEXTS)}
BAD = {"bad": "refused", "half": "cut", "worse": "refused", "no text": "bytes"}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of Hypercorn, which speaks both versions on one port and shares no code with the client."""
    log = tmp_path_factory.mktemp("hypercorn") / "log"
    application = Path(__file__).with_name("values_app.py")

    def launch(port: int) -> subprocess.Popen[bytes]:
        command: list[str | Path] = [sys.executable, "-m", "hypercorn", "--bind", f"127.0.0.1:{port}"]
        environment = {**os.environ, "HELD": json.dumps(HELD | BAD)}
        return start([*command, "--workers", "0", f"{application}:app"], log=log, env=environment)

    def ready(process: subprocess.Popen[bytes], port: int) -> bool:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return process.poll() is None

    process, port, _ = start_on_free_port("Hypercorn", launch, ready, log)
    yield port
    stop(process, signal.SIGKILL)


@pytest.fixture(params=[False, True], ids=["HTTP/1.1", "HTTP/2"])
def http2(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class Held(ConnectorContract):
    @pytest.fixture
    def known(self) -> dict[Any, Any]:
        return HELD

    @pytest.fixture
    def unreadable(self) -> Sequence[Any]:
        return list(BAD)

    @pytest.fixture
    def missing_key(self) -> Any:
        return "nobody"

    @pytest.fixture
    def address(self, port: int) -> tuple[str, int]:
        return "127.0.0.1", port


class TestOneRequestForEachKey(Held):
    @pytest.fixture
    def connector(self, port: int, http2: bool) -> HttpConnector:
        url = f"http://127.0.0.1:{port}/users/{{}}"
        return HttpConnector(HttpConfig(url=url, http2=http2, returns="name string, tier int"))


class TestOneRequestForManyKeys(Held):
    @pytest.fixture
    def connector(self, port: int, http2: bool) -> HttpConnector:
        url = f"http://127.0.0.1:{port}/users"
        return HttpConnector(HttpConfig(url=url, bulk=True, http2=http2, returns="name string, tier int"))
