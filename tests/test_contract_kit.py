"""The contract kit: right connectors pass it, however unusual, and each planted bug fails the check meant for it."""

from __future__ import annotations

import inspect
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

from enrichkit import Answers, Call, ConfigError, Connector, ConnectorConfig, Keys
from enrichkit.testing import ConnectorContract
from enrichkit.testing.bench import decoded

from .contract.bugs import BUGS
from .contract.sample import SampleConfig, SampleConnector, SampleContract, server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .contract.sample import SampleServer

__all__ = ["server"]  # the fixture

ROOT = Path(__file__).parent.parent
PROCESSES = 3


class TestTheSample(SampleContract):
    """The connector in which the bugs are planted has none."""


@dataclass(frozen=True, kw_only=True)
class SingleConfig(SampleConfig):
    """Of a connector that takes one key at a time."""


class SingleConnector(SampleConnector):
    config_class = SingleConfig
    batch_size = max_batch_size = 1


class TestNoBatching(SampleContract):
    kind = SingleConnector


@dataclass(frozen=True, kw_only=True)
class PairConfig(SampleConfig):
    """Of a connector whose keys have two parts."""

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
    """Of a connector whose keys are bytes."""


class BytesConnector(SampleConnector):
    config_class = BytesConfig

    async def scan(self) -> Any:
        async for key, value in super().scan():
            yield bytes.fromhex(key["hex"]), value


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
    """Of a connector whose values are no texts."""


class TypedConnector(SampleConnector):
    config_class = TypedConfig
    encoding = "json"
    store_many = Connector.store_many
    scan = Connector.scan

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        found = await super().fetch_many(keys, call)
        return {
            key: value.encode() if isinstance(value, str) else [part.encode() for part in value] if call.many else value
            for key, value in found.items()
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
def test_an_answer_is_compared_as_what_is_known(answer: Any, like: Any, encoding: str, value: Any) -> None:
    found = decoded(answer, like, encoding)
    assert (type(found), found) == (type(value), value)


@dataclass(frozen=True, kw_only=True)
class ColumnsConfig(SampleConfig):
    """Of a connector that takes keys in columns."""


class ColumnsConnector(SampleConnector):
    """Gives the keys back in columns, too."""

    config_class = ColumnsConfig
    key_columns = True

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        found = await super().fetch_many(keys, call)
        if not isinstance(keys, Keys):
            return found
        there = [n for n, key in enumerate(keys) if key in found]
        columns = [column.take(pa.array(there, pa.int64())) for column in keys.columns]
        return Answers(Keys(columns, [keys[n] for n in there]), [found[keys[n]] for n in there])


class TestKeysInColumns(SampleContract):
    kind = ColumnsConnector


@dataclass(frozen=True, kw_only=True)
class PairsInColumnsConfig(PairConfig):
    """Of a connector that takes keys of two parts in columns."""


class PairsInColumnsConnector(ColumnsConnector):
    config_class = PairsInColumnsConfig


class TestKeysOfTwoPartsInColumns(TestKeysOfTwoPartsOnly):
    kind = PairsInColumnsConnector


@dataclass(frozen=True, kw_only=True)
class MemoryConfig(ConnectorConfig):
    """Of a source in memory, which says nothing of itself and cannot be written to."""

    held: tuple[tuple[int, str], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.held, tuple):
            raise ConfigError(
                f"MemoryConfig.held is {self.held!r}; it must be a tuple of pairs, such as ((1, 'one'),)."
            )


class MemoryConnector(Connector[MemoryConfig]):
    name = "memory"
    config_class = MemoryConfig
    batch_size = max_batch_size = 10

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        held = {key: [value] if call.many else value for key, value in self.config.held}
        return {key: held[key] for key in keys if type(key) is int and key in held}


class TestNoServer(ConnectorContract):
    """No connection, hence no address; nothing to open, to store, to list or to describe."""

    @pytest.fixture
    def connector(self) -> MemoryConnector:
        return MemoryConnector(MemoryConfig(held=((1, "one"), (2, "two"), (3, "three")), returns="string"))

    @pytest.fixture
    def known(self) -> dict[Any, Any]:
        return {1: "one", 2: "two", 3: "three"}

    @pytest.fixture
    def missing_key(self) -> Any:
        return 4


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """
    What each check said of each bug, by class and name of the test.

    In processes of their own, since bugs leave behind what they do not close; in a few, because they mostly wait. The
    checks through Spark are left out.
    """
    folder = tmp_path_factory.mktemp("bugs")
    file = Path(__file__).parent / "contract" / "bugs.py"
    # Tracebacks of one line: for longer ones pytest parses code, and where a finalizer of what a bug has left runs in
    # the middle of that, Python 3.11 fails with "AST constructor recursion depth mismatch".
    options = ["-q", "-m", "not spark", "-W", "default", "-p", "no:cacheprovider", "--tb=line"]

    def run(part: int) -> Iterator[tuple[str, str, str]]:
        bugs = [f"{file}::{bug}" for bug in [*BUGS, "TestSaysWhy", "TestNamesNoAddress"][part::PROCESSES]]
        command = [sys.executable, "-m", "pytest", *bugs, *options, f"--junit-xml={folder / str(part)}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, text=True)
        assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-5000:]
        for case in ET.parse(folder / str(part)).getroot().iter("testcase"):
            outcome = [part.tag for part in case if part.tag in ("failure", "error", "skipped")]
            yield case.attrib["classname"].rpartition(".")[2], case.attrib["name"], " ".join(outcome) or "passed"

    found: dict[str, dict[str, str]] = defaultdict(dict)
    with ThreadPoolExecutor() as threads:
        for results in threads.map(lambda part: list(run(part)), range(PROCESSES)):
            for bug, check, said in results:
                found[bug][check] = said
    return found


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_fails_the_check_that_is_meant_for_it_and_no_other(
    bug: str, verdicts: dict[str, dict[str, str]]
) -> None:
    checks = {name for name in dir(TestTheSample) if name.startswith("test_")}
    through_spark = {name for name in checks if getattr(getattr(TestTheSample, name), "pytestmark", None)}
    assert verdicts[bug].keys() == checks - through_spark
    assert {name: said for name, said in verdicts[bug].items() if said != "passed"} == {BUGS[bug]: "failure"}


def test_a_check_may_be_left_out_with_a_reason(verdicts: dict[str, dict[str, str]]) -> None:
    # "skipped" is how the report has a test that was expected to fail, and did.
    odd = {name: said for name, said in verdicts["TestSaysWhy"].items() if said != "passed"}
    assert odd == {"test_a_missing_key_is_absent": "skipped"}


def test_who_connects_has_to_name_the_address(verdicts: dict[str, dict[str, str]]) -> None:
    found = verdicts["TestNamesNoAddress"]
    odd = {name for name, said in found.items() if said != "passed"}
    of_a_network = {name for name in found if "network" in inspect.signature(getattr(TestTheSample, name)).parameters}
    assert odd == of_a_network
    assert {found[name] for name in odd} == {"error"}
    assert len(odd) > 15


def test_there_are_more_than_forty_checks_and_a_bug_for_most_of_them() -> None:
    checks = {name for name in dir(TestTheSample) if name.startswith("test_")}
    assert len(checks) >= 40
    assert set(BUGS.values()) <= checks
    assert len(BUGS) == len(set(BUGS.values())) >= 25
