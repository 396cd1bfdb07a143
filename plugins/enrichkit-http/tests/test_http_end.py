"""The end of a program that has asked a service."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from enrichkit import local


PROGRAM = """
import asyncio, sys
from enrichkit_http import HttpConfig, HttpConnector
from enrichkit.plugin import Call

async def main():
    connector = HttpConnector(HttpConfig(url=sys.argv[1] + "/{}", returns="string"))
    await connector.open()
    assert await connector.fetch_many(("a",), Call(timeout=5))
    await connector.close()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.service
def test_a_program_that_has_looked_up_a_key_ends_as_it_should(http_service: local.HttpService) -> None:
    """The client's thread frees objects after a request; while Python ends, that has aborted one program in six."""
    ends = [
        subprocess.run([sys.executable, "-c", PROGRAM, http_service.url], capture_output=True, check=False)
        for _ in range(20)
    ]
    assert [end.returncode for end in ends] == [0] * 20, next(end.stderr for end in ends if end.returncode)
