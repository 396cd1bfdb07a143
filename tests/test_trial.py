"""The calls that an estimate makes: what they ask for, how many at a time, and what is told of those that fail."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest

from enrichkit import Connector, ConnectorConfig, Failure, PermanentError, TransientError
from enrichkit.driver.planner import make_plan
from enrichkit.reports.trial import TOGETHER, Point, point_of, spread, try_calls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from enrichkit import Call
    from enrichkit.plan import Plan
    from enrichkit.reports.trial import Tried


@dataclass(frozen=True, kw_only=True)
class PaidConfig(ConnectorConfig):
    """A source that takes a token for each letter of a key."""


class Paid(Connector[PaidConfig]):
    """Does what the key says, and notes what it was asked."""

    name = "paid"
    config_class = PaidConfig
    batch_size = 2

    asked: ClassVar[list[tuple[tuple[Any, ...], float]]] = []
    peak = in_flight = closed = 0

    async def open(self) -> None:
        if "no way" in SAID:
            raise TransientError("No way to the source.")

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        kind = type(self)
        kind.asked.append((tuple(keys), call.timeout))
        kind.in_flight += 1
        kind.peak = max(kind.peak, kind.in_flight)
        call.spent(tokens=sum(map(len, keys)))
        await asyncio.sleep(0.01)  # the others begin meanwhile
        kind.in_flight -= 1
        if "never" in keys:
            await asyncio.sleep(3600.0)
        if "bug" in keys:
            raise ZeroDivisionError("division by zero")
        return {key: ANSWERS.get(key, f"value of {key}") for key in keys}

    async def close(self) -> None:
        type(self).closed += 1


SAID: set[str] = set()
ANSWERS = {
    "bad": Failure(PermanentError("The key is bad."), rejected=True),
    "busy": Failure(TransientError("The source is busy.")),
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    SAID.clear()
    for name, value in {"asked": [], "peak": 0, "in_flight": 0, "closed": 0}.items():
        monkeypatch.setattr(Paid, name, value)


def plan(**options: Any) -> Plan:
    return make_plan(PaidConfig(), 1, pa.string(), options)[0]


def tried(*groups: tuple[str, ...], **options: Any) -> Tried:
    return try_calls(plan(**options), [[(float(len(key)), key) for key in group] for group in groups])


@pytest.mark.parametrize(
    ("found", "size", "calls", "places"),
    [
        (100, 2, 3, [[8, 25], [41, 58], [75, 91]]),
        (3, 2, 10, [[0, 1], [2]]),  # no more keys than there are
        (4, 10, 1, [[0, 1, 2, 3]]),
        (0, 2, 3, []),
        (100, 2, 0, []),
    ],
)
def test_keys_of_all_sizes_are_chosen(found: int, size: int, calls: int, places: list[list[int]]) -> None:
    groups = spread([(float(place), f"k{place}") for place in range(found)], size, calls)
    assert places == [[int(bytes_) for bytes_, _ in group] for group in groups]


def test_each_group_is_one_call_and_few_are_made_at_a_time() -> None:
    groups = [(f"{'x' * number}{number}", "y") for number in range(3 * TOGETHER)]
    found = tried(*groups, timeout=7.0)
    assert sorted(groups) == sorted(keys for keys, _ in Paid.asked)
    assert {7.0} == {timeout for _, timeout in Paid.asked}
    assert (TOGETHER, 0, 1) == (Paid.peak, Paid.in_flight, Paid.closed)
    assert sorted(found.points) == sorted(
        point_of([(float(len(key)), key) for key in group], {"tokens": sum(map(len, group))}) for group in groups
    )
    assert (len(groups), sum(len(key) for group in groups for key in group)) == (len(found.took), found.paid["tokens"])


def test_a_point_is_the_mean_of_its_keys() -> None:
    assert Point(bytes=3.0, units={"tokens": 5.0}) == point_of([(2.0, "ab"), (4.0, "abcd")], {"tokens": 10.0})


def test_without_groups_nothing_is_asked() -> None:
    found = tried()
    assert ([], {}, 0) == (found.points, found.paid, Paid.closed)


def test_a_key_that_is_refused_is_an_answer() -> None:
    found = tried(("bad", "good"))
    assert [point_of([(3.0, "bad"), (4.0, "good")], {"tokens": 7})] == found.points


def test_a_call_that_fails_is_paid_and_is_no_point() -> None:
    found = tried(("busy", "k"), ("good",))
    assert [Point(4.0, {"tokens": 4.0})] == found.points
    assert ("The source is busy.", 9.0, 1) == (found.problem, found.paid["tokens"], Paid.closed)


def test_a_call_that_is_not_answered_in_time_is_paid_and_is_no_point() -> None:
    found = tried(("never",), timeout=0.1)
    assert ("No answer came within 0.1 s.", [], 5.0) == (found.problem, found.points, found.paid["tokens"])
    assert 1 == Paid.closed


def test_an_error_that_is_no_connectors_ends_the_calls_with_its_name() -> None:
    found = tried(("bug",))
    assert ("ZeroDivisionError: division by zero.", [], 1) == (found.problem, found.points, Paid.closed)


def test_a_source_that_cannot_be_opened_is_told() -> None:
    SAID.add("no way")
    found = tried(("k",))
    assert ("No way to the source.", [], [], 1) == (found.problem, found.points, Paid.asked, Paid.closed)
