"""What an estimate asks a source, what is told of calls that fail, and what it says of the time and cost of a job."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest

from enrichkit import Connector, ConnectorConfig, Failure, Limit, PermanentError, Rate, TransientError, estimate
from enrichkit.driver.planner import make_plan
from enrichkit.errors import ConfigError
from enrichkit.reports.cost import CostEstimate, _time
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


# --- the time and the text


@pytest.mark.parametrize(
    ("options", "slots", "seconds", "bound"),
    [
        ({"capacity": 10}, 1, 10 * 0.5, "the latency of a call"),
        ({"capacity": 10}, 4, 3 * 0.5, "the latency of a call"),
        ({"capacity": 10, "limit": Limit(20, store="redis")}, 4, 5 * 0.5, "the latency of a call"),
        ({"capacity": 10, "rate": Rate(requests=5)}, 1, 20.0, "the rate of requests"),
        ({"capacity": 10, "rate": Rate(requests=5)}, 2, 10.0, "the rate of requests"),
        ({"capacity": 10, "rate": Rate(requests=5, per="job", store="redis")}, 2, 20.0, "the rate of requests"),
        ({"capacity": 10, "rate": Rate(tokens=600, unit="minute")}, 1, 300.0, "the rate of tokens"),
        ({"capacity": 10, "rate": Rate(requests=1000)}, 1, 5.0, "the latency of a call"),
    ],
)
def test_the_time_is_that_of_the_limit_that_takes_longest(
    options: dict[str, Any], slots: int, seconds: float, bound: str
) -> None:
    """A hundred calls, with 3,000 tokens, of half a second each."""
    found = _time(plan(**options), 100, {"tokens": 3000.0}, [0.4, 0.6], slots)
    assert (pytest.approx(seconds), bound) == found


def test_without_a_rate_or_an_answer_no_time_is_known() -> None:
    assert (None, "") == _time(plan(), 100, {}, [], 1)


def estimated(**changed: Any) -> CostEstimate:
    given: dict[str, Any] = {
        "source": "paid", "rows": 12_345, "distinct": 1_000, "asked": 1_500, "calls": 750, "batch_size": 2,
        "spent": {"requests": 750.0, "tokens": 1234567.8, "cost": 1.23456}, "seconds": 90.0,
        "bound": "the rate of tokens", "sampled": 50, "tried": 20, "failed": 0,
        "paid": {"tokens": 3210.9, "cost": 0.0123},
    }  # fmt: skip
    return CostEstimate(**given | changed)


def test_the_text_of_an_estimate_says_what_was_paid_for_it() -> None:
    told = estimated()
    assert (1234567.8, 1.23456) == (told.tokens, told.cost)
    assert repr(told) == str(told)
    assert str(told).splitlines() == [
        "What enrich('paid', ...) will cost, an estimate",
        "  rows           12,345",
        "  distinct keys  1,000, and 1,500 asked for as the rows are partitioned",
        "  calls          750, each with 2 keys, without retries",
        "  requests       750",
        "  tokens         1,234,568",
        "  cost           1.235",
        "  time           at least 90 s, because of the rate of tokens",
        "  Seen: 50 keys of the DataFrame, and 20 calls of the source, which have cost",
        "  3,211 tokens, 0.0123 cost. What a cache or a journal holds from before is not",
        "  asked for again, and costs nothing.",
    ]


def test_the_text_of_an_estimate_without_an_answer_says_that_it_guesses() -> None:
    told = estimated(spent={}, seconds=None, bound="", tried=0, paid={}, failed=1)
    assert (None, None) == (told.tokens, told.cost)
    assert " ".join(str(told).split()).endswith(
        "without retries Seen: 50 keys of the DataFrame. 1 call more failed. The source was not asked, so the lengths "
        "of its answers are a guess of the connector. What a cache or a journal holds from before is not asked for "
        "again, and costs nothing."
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sample": 0}, "sample is 0; it must be a share above 0, up to 1. For example sample=0.01."),
        ({"sample": True}, "sample is True; it must be a share above 0, up to 1. For example sample=0.01."),
        ({"calls": 1001}, "calls is 1001; it must be a whole number from 0 to 1,000. For example calls=20."),
        ({"calls": 2.0}, "calls is 2.0; it must be a whole number from 0 to 1,000. For example calls=20."),
        ({"task_slots": 0}, "task_slots is 0; it must be a whole number from 1 on. For example task_slots=8."),
        ({}, "estimate() was given no key; it needs one or more key columns, as in estimate(df, 'llm', 'text')."),
    ],
)
def test_wrong_arguments_are_refused_before_spark_counts(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        estimate(None, PaidConfig(), **arguments)  # type: ignore[arg-type]  # no DataFrame is needed to refuse them
    assert said == str(raised.value)
