"""A connector that ends its process fails the checks that make it do so; the others run, and no process is left."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from enrichkit.testing.contract.fork_server import ForkServer
from enrichkit.testing.contract.source import Network
from enrichkit.testing.proxy import fault_proxy

from .contract.sample import KNOWN, SampleConfig, SampleConnector, SampleContract, SampleServer, server

if TYPE_CHECKING:
    from enrichkit.testing.contract.check_process import RemoteProxy

__all__ = ["server"]  # a fixture; a test below uses it by its name

ROOT = Path(__file__).parent.parent
CHECKS = {
    name
    for name in dir(SampleContract)
    if name.startswith("test_") and not getattr(getattr(SampleContract, name), "pytestmark", None)
}
HINT = (
    "The connector and its client package must leave the process alive, whatever the network does: on a Spark worker "
    "all tasks of the process would fail. Look for an exit, or for native code that crashes, in what runs when a call "
    "is cancelled or loses its connection; with a client in pure Python, try it without uvloop"
)


def processes_with(mark: str) -> list[int]:
    """Return the processes that have *mark* in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # it has ended, or it belongs to somebody else
            continue
        if mark.encode() in environment:
            found.append(int(folder.name))
    return found


@pytest.mark.slow
def test_the_end_of_a_process_fails_its_check_and_no_other(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    file = Path(__file__).parent / "contract" / "crashes.py"
    options = ["-q", "-m", "not spark", "-p", "no:cacheprovider", f"--junit-xml={tmp_path / 'xml'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", file, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        text=True,
        env={**os.environ, "ENRICHKIT_TEST_MARK": mark},
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-5000:]
    assert [] == processes_with(mark)

    messages: dict[str, dict[str, str]] = {"TestSegfault": {}, "TestExit": {}}
    stacks = []
    seen: dict[str, set[str]] = {"TestSegfault": set(), "TestExit": set()}
    for case in ET.parse(tmp_path / "xml").getroot().iter("testcase"):
        name, check = case.attrib["classname"].rpartition(".")[2], case.attrib["name"]
        assert case.find("error") is None
        seen[name].add(check)
        if (failure := case.find("failure")) is not None:
            messages[name][check] = failure.attrib["message"].partition("; the process was here:\n")[0]
            stacks += [text for text in [failure.text or ""] if "the process was here" in text]
    assert {"TestSegfault": CHECKS, "TestExit": CHECKS} == seen
    assert messages["TestSegfault"].keys() == messages["TestExit"].keys()
    assert {"test_a_server_that_is_away_is_transient", "test_half_an_answer_is_no_answer"} < messages["TestExit"].keys()
    for check, message in messages["TestExit"].items():
        assert message == (f"AssertionError: The process of this check, {check}, ended with the exit code 3. {HINT}.")
    for check, message in messages["TestSegfault"].items():
        assert message == f"AssertionError: The process of this check, {check}, ended with SIGSEGV. {HINT}"
    assert len(stacks) == len(messages["TestSegfault"])
    for stack in stacks:
        assert re.search(r'  File ".*crashes\.py", line \d+ in exchange\n', stack)
        assert "_pytest" not in stack


class Switched(SampleContract):
    """The contract tests of an author who looks into them with a debugger."""

    own_process = False


class Handle:
    """A key of which no other process can have a copy."""

    def __reduce__(self) -> str:
        raise TypeError("a handle is of one process")


@pytest.mark.parametrize(
    ("tests", "known", "reason", "advice"),
    [
        pytest.param(
            Switched,
            KNOWN,
            "Switched says own_process = False",
            "Remove that line when the debugger has done its work.",
            id="switched off",
        ),
        pytest.param(
            SampleContract,
            {**KNOWN, Handle(): "nothing"},
            "what it needs cannot be pickled (TypeError: a handle is of one process)",
            "Define the test class and the classes of connector, config and values at the top of a module.",
            id="cannot be pickled",
        ),
    ],
)
def test_a_check_that_runs_in_the_process_of_pytest_warns_of_what_a_crash_costs(
    tests: type[SampleContract], known: dict[Any, Any], reason: str, advice: str, server: SampleServer
) -> None:
    server.fill(KNOWN)
    with fault_proxy("127.0.0.1", server.port) as proxy:
        connector = SampleConnector(SampleConfig(port=proxy.port))
        with (
            Network(connector, proxy, known, "nobody", patience=5.0) as network,
            pytest.warns(UserWarning, match="own") as caught,
        ):
            tests().test_a_server_that_is_away_is_transient(network)  # the check has run here, and passes
    (warning,) = caught
    assert str(warning.message) == (
        "test_a_server_that_is_away_is_transient runs in the process of pytest and not in one of its own, because "
        f"{reason}. If the connector or its client package ends the process here, the whole run ends: no check fails "
        f"by its name, and the tests after it do not run. {advice}"
    )


@pytest.fixture
def forks() -> ForkServer:
    return ForkServer.start()


def hang(proxy: RemoteProxy) -> None:
    proxy.began()
    signal.pause()


class Impatient:
    """A proxy in whose method the time of the test is over."""

    def began(self) -> None:
        raise TimeoutError


def test_a_process_whose_time_is_over_ends_and_says_where_it_was(
    forks: ForkServer, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TimeoutError):
        forks.run("test_of_nothing", pickle.dumps(hang), Impatient())
    assert "Fatal Python error: Aborted" in capfd.readouterr().err
