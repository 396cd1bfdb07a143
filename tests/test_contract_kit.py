"""The contract kit: correct but unusual connectors pass all checks, and a planted bug fails the check meant for it."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

from enrichkit import Answers, Call, ConfigError, Connector, ConnectorConfig, Failure, Keys, PermanentError
from enrichkit.testing import ConnectorContract
from enrichkit.testing.bench import Bench, decoded, wait_until
from enrichkit.testing.contract.lifecycle import failure_in_a_fork
from enrichkit.testing.contract.source import Source

from .contract.bugs import BUGS
from .contract.sample import SampleConfig, SampleConnector, SampleContract, server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .contract.sample import SampleServer

__all__ = ["server"]  # a fixture; the tests below use it by its name

ROOT = Path(__file__).parent.parent
PROCESSES = 3


class TestTheSample(SampleContract):
    """The connector in which the bugs are planted has no bug itself."""


@dataclass(frozen=True, kw_only=True)
class SingleConfig(SampleConfig):
    """The config of a connector that takes one key per call."""


class SingleConnector(SampleConnector):
    config_class = SingleConfig
    batch_size = max_batch_size = 1


class TestNoBatching(SampleContract):
    kind = SingleConnector


@dataclass(frozen=True, kw_only=True)
class PairConfig(SampleConfig):
    """The config of a connector whose keys have two parts."""

    @property
    def key_parts(self) -> int:
        return 2


class PairConnector(SampleConnector):
    config_class = PairConfig


class TestKeysOfTwoPartsOnly(SampleContract):
    kind = PairConnector

    @pytest.fixture
    def known(self, server: SampleServer) -> dict[Any, Any]:
        known = {("a'b", 1): "one", ("a'b", 2): "two", ("\N{SNOWMAN}", 1): "three"}
        server.fill(known)
        return known

    @pytest.fixture
    def missing_key(self) -> Any:
        return "a'b", 3


@dataclass(frozen=True, kw_only=True)
class BytesConfig(SampleConfig):
    """The config of a connector whose keys are bytes."""


class BytesConnector(SampleConnector):
    config_class = BytesConfig

    async def scan(self, kinds: Sequence[type], size: int) -> Any:
        async for page in super().scan(kinds, size):
            yield [bytes.fromhex(key["hex"]) for key in page]


class TestKeysOfBytesOnly(SampleContract):
    kind = BytesConnector

    @pytest.fixture
    def known(self, server: SampleServer) -> dict[Any, Any]:
        known = {b"\x00": "one", b"\xff\xfe": "two", b"plain": "three"}
        server.fill(known)
        return known

    @pytest.fixture
    def missing_key(self) -> Any:
        return b"nobody"


@dataclass(frozen=True, kw_only=True)
class TypedConfig(SampleConfig):
    """The config of a connector whose values are not text."""


class TypedConnector(SampleConnector):
    config_class = TypedConfig
    encoding = "json"
    store_many = Connector.store_many
    scan = Connector.scan

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        answers = await super().fetch_many(keys, call)
        return {
            key: value.encode() if isinstance(value, str) else [part.encode() for part in value] if call.many else value
            for key, value in answers.items()
        }

    async def describe(self) -> str | None:
        return self.config.returns or "at timestamp, day date, price decimal(10,2), ok boolean, days array<date>"


class TestValuesOfManyTypes(SampleContract):
    kind = TypedConnector

    @pytest.fixture
    def known(self, server: SampleServer) -> dict[Any, Any]:
        server.fill(
            {
                key: f'{{"at": "2024-02-29T0{n}:00:00Z", "day": "2024-02-29", "price": "{n}.50", "ok": true, '
                f'"days": ["2024-03-0{n + 1}"]}}'
                for n, key in enumerate(("a'b", "\N{SNOWMAN}", "c"))
            }
        )
        return {
            key: {
                "at": datetime(2024, 2, 29, n, tzinfo=UTC),
                "day": date(2024, 2, 29),
                "price": Decimal(f"{n}.50"),
                "ok": True,
                "days": [date(2024, 3, n + 1)],
            }
            for n, key in enumerate(("a'b", "\N{SNOWMAN}", "c"))
        }

    @pytest.fixture
    def unreadable(self, server: SampleServer, known: dict[Any, Any]) -> Sequence[Any]:
        keys = ["cut", "two at once"]
        server.values |= {json.dumps(key): ('{"at": ' if key == "cut" else "{}{}", float("inf")) for key in keys}
        return keys


@pytest.mark.parametrize(
    ("answer", "like", "encoding", "value"),
    [
        (b"1", True, "text", True),
        ("false", True, "text", False),
        (b"12", True, "text", "12"),
        (b"7", 1, "text", 7),
        ("1.50", Decimal(0), "text", Decimal("1.50")),
        ("2024-02-29", date.min, "text", date(2024, 2, 29)),
        ("no date", date.min, "text", "no date"),
        ({"n": b"7", "s": "7"}, {"n": 1, "s": "x"}, "text", {"n": 7, "s": "7"}),
        (b'["2024-02-29", null, "x"]', [date.min], "json", [date(2024, 2, 29), None, "x"]),
        (b"[]", [1], "json", []),
        (b"7", "7", "json", "7"),
        (b"\xff", b"", "text", b"\xff"),
        (None, 7, "text", None),
    ],
)
def test_an_answer_is_converted_to_the_type_of_the_known_value(
    answer: Any, like: Any, encoding: str, value: Any
) -> None:
    result = decoded(answer, like, encoding)
    assert (type(result), result) == (type(value), value)


@dataclass(frozen=True, kw_only=True)
class ColumnsConfig(SampleConfig):
    """The config of a connector that takes keys in columns."""


class ColumnsConnector(SampleConnector):
    """A connector that takes keys in columns and also returns them in columns."""

    config_class = ColumnsConfig
    key_columns = True

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        answers = await super().fetch_many(keys, call)
        if not isinstance(keys, Keys):
            return answers
        indices = [n for n, key in enumerate(keys) if key in answers]
        columns = [column.take(pa.array(indices, pa.int64())) for column in keys.columns]
        return Answers(Keys(columns, [keys[n] for n in indices]), [answers[keys[n]] for n in indices])


class TestKeysInColumns(SampleContract):
    kind = ColumnsConnector


@dataclass(frozen=True, kw_only=True)
class PairsInColumnsConfig(PairConfig):
    """The config of a connector that takes keys of two parts in columns."""


class PairsInColumnsConnector(ColumnsConnector):
    config_class = PairsInColumnsConfig


class TestKeysOfTwoPartsInColumns(TestKeysOfTwoPartsOnly):
    kind = PairsInColumnsConnector


@dataclass(frozen=True, kw_only=True)
class MemoryConfig(ConnectorConfig):
    """The config of a source in memory, which cannot tell its type and cannot be written to."""

    pairs: tuple[tuple[int, str], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.pairs, tuple):
            raise ConfigError(
                f"MemoryConfig.pairs is {self.pairs!r}; it must be a tuple of pairs, such as ((1, 'one'),)."
            )


class MemoryConnector(Connector[MemoryConfig]):
    name = "memory"
    config_class = MemoryConfig
    batch_size = max_batch_size = 10

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        values = {key: [value] if call.many else value for key, value in self.config.pairs}
        return {key: values[key] for key in keys if type(key) is int and key in values}


class TestNoServer(ConnectorContract):
    """A connector without connections, and therefore without an address, and without the optional methods."""

    @pytest.fixture
    def connector(self) -> MemoryConnector:
        return MemoryConnector(MemoryConfig(pairs=((1, "one"), (2, "two"), (3, "three")), returns="string"))

    @pytest.fixture
    def known(self) -> dict[Any, Any]:
        return {1: "one", 2: "two", 3: "three"}

    @pytest.fixture
    def missing_key(self) -> Any:
        return 4


Outcomes = dict[str, dict[str, tuple[str, str]]]
"""The outcome of each check for each bug, and the message of a check that failed, by class and name of the test."""


def outcomes_of(checks: Sequence[str], folder: Path) -> Outcomes:
    """
    Run *checks* of `contract/bugs.py` in separate processes, because bugs leave connections and threads open.

    They run in a few processes at the same time, because the checks mostly wait. The checks that need Spark are left
    out.
    """
    file = Path(__file__).parent / "contract" / "bugs.py"
    # Tracebacks have one line. For longer ones pytest parses code; if the finalizer of an object that a bug has left
    # open runs during that, Python 3.11 fails with "AST constructor recursion depth mismatch".
    options = ["-q", "-m", "not spark", "-W", "default", "-p", "no:cacheprovider", "--tb=line"]

    def run(part: int) -> Iterator[tuple[str, str, tuple[str, str]]]:
        chosen = [f"{file}::{check}" for check in checks[part::PROCESSES]]
        command = [sys.executable, "-m", "pytest", *chosen, *options, f"--junit-xml={folder / str(part)}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, text=True)
        assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-5000:]
        for case in ET.parse(folder / str(part)).getroot().iter("testcase"):
            ends = [part for part in case if part.tag in ("failure", "error", "skipped")]
            outcome = " ".join(part.tag for part in ends) or "passed"
            message = " ".join(part.attrib["message"].partition("\nassert ")[0] for part in ends)
            yield case.attrib["classname"].rpartition(".")[2], case.attrib["name"], (outcome, message)

    found: Outcomes = defaultdict(dict)
    with ThreadPoolExecutor() as threads:
        for results in threads.map(lambda part: list(run(part)), range(PROCESSES)):
            for bug, check, report in results:
                found[bug][check] = report
    return found


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """The outcome of the check that is meant for each bug, and of all checks for the classes without a bug."""
    meant = [f"{bug}::{check}" for bug, check in BUGS.items()]
    return outcomes_of([*meant, "TestSaysWhy", "TestNamesNoAddress"], tmp_path_factory.mktemp("bugs"))


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The outcome of each check for each bug."""
    found = outcomes_of([*BUGS], tmp_path_factory.mktemp("all"))
    return {bug: {check: outcome for check, (outcome, _) in checks.items()} for bug, checks in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_fails_the_check_that_is_meant_for_it(bug: str, reports: Outcomes) -> None:
    assert {BUGS[bug]: "failure"} == {name: outcome for name, (outcome, _) in reports[bug].items()}


@pytest.mark.more  # 72 runs of the kit; that the check that is meant fails, and what it says, are tests of their own
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_fails_the_check_that_is_meant_for_it_and_no_other(
    bug: str, verdicts: dict[str, dict[str, str]]
) -> None:
    checks = {name for name in dir(TestTheSample) if name.startswith("test_")}
    with_spark = {name for name in checks if getattr(getattr(TestTheSample, name), "pytestmark", None)}
    assert verdicts[bug].keys() == checks - with_spark
    assert {name: outcome for name, outcome in verdicts[bug].items() if outcome != "passed"} == {BUGS[bug]: "failure"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "message"),
    [
        (
            "TestListIn",
            (
                "A config must have a hash; that of ListInConfig fails with unhashable type: 'list'. Use tuples "
                "instead of lists, and tuples of pairs instead of dicts."
            ),
        ),
        (
            "TestLockIn",
            (
                "A config must survive pickling; that of LockInConfig failed with TypeError: cannot pickle "
                "'_thread.lock' object. Keep locks, clients and open files out of its fields: make them in `open` of "
                "the connector."
            ),
        ),
        (
            "TestQuotedToken",
            (
                "The message of a ConfigError must not quote a secret; those of the fields ['token'] do. Say in "
                "`__post_init__` of QuotedTokenConfig what is wrong without the value."
            ),
        ),
        (
            "TestTersePort",
            (
                "The message of a ConfigError must name the config's class, TersePortConfig, and the field; these do "
                "not: ['port: The configuration is invalid.']. Begin them with TersePortConfig and the field, as in "
                "`AcmeConfig.port is 'x'`."
            ),
        ),
        (
            "TestMoreThanMost",
            (
                "`batch_size` must not be above `max_batch_size`; they are 200 and 100. Reduce `batch_size`, the usual "
                "number of keys of a call, or raise `max_batch_size`, the most."
            ),
        ),
        (
            "TestNullForAMiss",
            (
                "`fetch_many` of the missing key 'nobody' must return an empty mapping; it returned {'nobody': None}. "
                "Leave the key out: None would be a null that the source holds."
            ),
        ),
        (
            "TestCutsOff",
            (
                "`fetch_many` of 101 keys must answer all known keys of the group, or raise a ConnectorError; it "
                "returned nothing for the key '100%', whose value is 'what is held for 100%'. A known key without an "
                "answer looks like a missing key: send all keys, or raise a PermanentError for a group that is too "
                "large, empty, or has a key twice."
            ),
        ),
        (
            "TestKnowsPatterns",
            (
                "A hostile key must have no value of another key; `fetch_many` returned 'what is held for plain' for "
                "the key '%', which must have no answer. Pass keys as parameters of a statement, or encode them: as "
                "text they can be patterns, paths or code."
            ),
        ),
        (
            "TestStumblesOverNul",
            (
                "One of the keys ['plain', \"o'clock\", '\N{SNOWMAN} man', 'a/b', '100%', 'nul\\x00nul'] made the call "
                "fail with a FatalError. It must not: a FatalError fails the task, and the engine repeats the call "
                "after a TransientError. Return a Failure for this key: The statement cannot be sent."
            ),
        ),
        (
            "TestSwallowsCancels",
            (
                "A cancelled call of `fetch_many` must let the CancelledError through; it returned {}. End "
                "`except CancelledError` and `except BaseException` with `raise`: otherwise the call keeps its slot."
            ),
        ),
        (
            "TestLetsTimeoutsThrough",
            (
                "A call whose server does not answer within its time limit of 0.3 s must raise a TransientError, or "
                "return a Failure with one for each key; it raised TimeoutError. Translate the exception with which "
                "the client package, or `asyncio.timeout`, ends such a call into a TransientError."
            ),
        ),
        (
            "TestDeadInAFork",
            (
                "In a forked process, a new connector must return the values of all known keys, or raise a FatalError; "
                "the process raised AssertionError: The connector did not finish within 3 s. Its event loop is at: "
                ".... Look for connections, threads and caches of the module, which a fork does not bring along, or "
                "shares with its parent."
            ),
        ),
        (
            "TestLinePerCall",
            (
                "Ten lookups, one after the other, must reuse connections: at most 4 may be opened, the `capacity`; "
                "the connector opened 10. Keep connections in a pool: opening one costs more than a lookup."
            ),
        ),
        (
            "TestReadsHalves",
            (
                "The connection ended after 33 bytes of the answer. `fetch_many` must raise a TransientError or answer "
                "rightly; it returned 'what is held for' for the key 'plain', whose value is 'what is held for plain'. "
                "Do not use what was read from such a connection: the end of the connection is not the end of the "
                "answer."
            ),
        ),
        (
            "TestKnowsBetter",
            (
                "`describe` must return `config.returns` if the config has one; it returned 'string', and `returns` is "
                "'bigint'. Begin it with `if self.config.returns: return self.config.returns`."
            ),
        ),
        (
            "TestKeepsTheOld",
            (
                "After `store_many` of a key with the `ttl` 60.0, `fetch_many` must return the stored value; it "
                "returned 'what is held for plain' for the key 'nobody', whose value is \"what is held for o'clock\". "
                "Write to the place where `fetch_many` reads, and replace a value that is there."
            ),
        ),
        (
            "TestLeavesOut",
            (
                "A test class must give a reason for each check that it overrides; TestLeavesOut gives none for "
                "test_a_known_key_has_its_value. Mark the override with @pytest.mark.xfail(reason=...), or remove it."
            ),
        ),
    ],
)
def test_a_check_that_fails_says_what_must_be_what_was_and_what_to_do(
    bug: str, message: str, reports: Outcomes
) -> None:
    assert f"AssertionError: {message}" == reports[bug][BUGS[bug]][1]


@pytest.fixture
def memory() -> Iterator[Source]:
    connector = MemoryConnector(MemoryConfig(pairs=((1, "one"), (2, "two"), (3, "three")), returns="string"))
    with Source(connector, dict(connector.config.pairs), 4) as source:
        source.open()
        yield source


def test_a_scan_that_the_class_does_not_have_is_not_implemented(memory: Source) -> None:
    memory.connector.scan = lambda kinds, size: [1]  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(AssertionError) as failure:
        TestNoServer().test_everything_is_listed(memory)
    assert str(failure.value) == (
        "A connector whose class has no `scan` must raise a NotImplementedError when it is called; it returned "
        "[1]. Define `scan` as a method of the class, not on the instance, or leave it out."
    )


def test_a_store_that_the_class_does_not_have_is_not_implemented(memory: Source) -> None:
    async def store_many(values: Mapping[Any, Any], ttl: float | None) -> None:
        raise PermissionError("The source is read-only.")

    memory.connector.store_many = store_many  # type: ignore[method-assign]
    with pytest.raises(AssertionError) as failure:
        TestNoServer().test_storing_nothing_is_nothing(memory)
    assert str(failure.value) == (
        "A connector whose class has no `store_many` must raise a NotImplementedError when it is called; it raised "
        "PermissionError: The source is read-only. Define `store_many` as a method of the class, not on the instance, "
        "or leave it out."
    )


@pytest.mark.parametrize(
    ("answers", "did"),
    [
        (
            {1: "one"},
            (
                "it returned 1 answers and no Failure. Do not return what has come until then: a key without an answer "
                "would look like a missing key."
            ),
        ),
        (
            {1: Failure(PermanentError("Too slow."))},
            (
                "it returned a Failure with PermanentError: Too slow. Give these keys a TransientError: the engine "
                "then asks for them again."
            ),
        ),
        (
            asyncio.CancelledError(),
            (
                "it raised CancelledError. Translate the exception with which the client package, or "
                "`asyncio.timeout`, ends such a call into a TransientError."
            ),
        ),
    ],
)
def test_a_call_out_of_time_that_is_not_transient_is_told(answers: Any, did: str) -> None:
    async def end() -> Any:
        if isinstance(answers, BaseException):
            raise answers
        return answers

    async def ended() -> None:
        task = asyncio.ensure_future(end())
        await asyncio.wait({task})
        TestNoServer()._assert_transient(task)

    with pytest.raises(AssertionError) as failure:
        asyncio.run(ended())
    assert str(failure.value).partition("\nassert ")[0] == (
        "A call whose server does not answer within its time limit of 0.3 s must raise a TransientError, or return a "
        f"Failure with one for each key; {did}"
    )


@pytest.mark.parametrize(
    ("child", "failure"),
    [
        (lambda: "", None),
        (lambda: "returned nothing", "returned nothing"),
        (lambda: os._exit(3), "ended with the exit code 3"),
        (lambda: [][0], "raised IndexError: list index out of range"),
        (lambda: os.kill(os.getpid(), signal.SIGSTOP) or "", "did not end within 0.3 s"),
    ],
)
def test_how_a_forked_process_ended_is_told(child: Any, failure: str | None) -> None:
    assert failure == failure_in_a_fork(child, 30.0 if failure is None or "within" not in failure else 0.3)


def test_a_check_may_be_left_out_with_a_reason(reports: Outcomes) -> None:
    # The report calls a test "skipped" that was expected to fail and failed.
    not_passed = {name: outcome for name, (outcome, _) in reports["TestSaysWhy"].items() if outcome != "passed"}
    assert not_passed == {"test_a_missing_key_is_absent": "skipped"}


def test_a_connector_that_connects_needs_the_fixture_address(reports: Outcomes) -> None:
    outcomes = {name: outcome for name, (outcome, _) in reports["TestNamesNoAddress"].items()}
    not_passed = {name for name, outcome in outcomes.items() if outcome != "passed"}
    with_network = {
        name for name in outcomes if "network" in inspect.signature(getattr(TestTheSample, name)).parameters
    }
    assert not_passed == with_network
    assert {outcomes[name] for name in not_passed} == {"error"}
    assert len(not_passed) > 15


def test_there_are_more_than_forty_checks_and_a_bug_for_most_of_them() -> None:
    checks = {name for name in dir(TestTheSample) if name.startswith("test_")}
    assert len(checks) >= 40
    assert set(BUGS.values()) <= checks
    assert len(BUGS) >= len(set(BUGS.values())) >= 25, "some checks have several bugs"


class Stuck(Connector[ConnectorConfig]):
    """Never answers, and goes on when its call is cancelled, until `over` is set."""

    def __init__(self, config: ConnectorConfig) -> None:
        super().__init__(config)
        self.over = asyncio.Event()

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> dict[Any, Any]:
        while not self.over.is_set():
            try:
                await self.over.wait()
            except asyncio.CancelledError:
                continue
        return {}


def test_a_call_that_goes_on_has_not_ended_and_cannot_be_cancelled() -> None:
    """So the check that waits for the call fails with its own message, which says where to look."""
    connector = Stuck(ConnectorConfig())
    with Bench(connector, patience=0.2) as bench:
        task = bench.start(["a"])
        assert not bench.ended(task)
        assert not bench.ended(task, 0.05)
        with pytest.raises(AssertionError) as caught:
            bench.cancel(task)
        assert str(caught.value) == "A cancelled call of `fetch_many` must end; it still runs after 0.2 s."
        bench.loop.call_soon_threadsafe(connector.over.set)
        assert bench.ended(task, 60.0)


def test_what_was_true_for_a_moment_has_been_waited_for() -> None:
    answers = iter([False, True, False])
    assert wait_until(lambda: next(answers), 60.0)
    assert not wait_until(lambda: False, 0.0)
