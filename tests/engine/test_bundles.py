"""Keys that travel together at the price of one: what comes of them is what comes of each looked up for itself."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from enrichkit.engine import admission, results
from enrichkit.engine import engine as engine_module
from enrichkit.engine.cache import AnswerCache
from enrichkit.engine.records import Bundle, InFlight
from enrichkit.errors import ContractError, PermanentError, TransientError
from enrichkit.interface import Answers, Keys
from enrichkit.options import Retry, default
from enrichkit.outcome import Outcomes
from enrichkit.testing import clock as virtual
from enrichkit.testing.scripted import ScriptedConnector, Step
from enrichkit.values.decode_columns import column_reader

from .bench import Lab
from .columns import Columnar, TakesColumns, column_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from enrichkit.engine.records import Lookup
    from enrichkit.interface import Call

Slice = tuple[float, list[int], int]
"""When it comes, its keys, and how many rows have none."""

STEPS = [
    Step(after=0.3),
    Step(after=0.3, value=None),
    Step(after=0.2, missing=True),
    Step(after=1.5),
    Step(after=0.1, failure=TransientError("shaky")),
    Step(after=0.1, failure=PermanentError("no"), rejected=True),
    Step(after=0.4, error=TransientError("busy")),
    Step(after=0.4, error=PermanentError("poison")),
]
WEIGHTS = [60, 5, 15, 3, 2, 2, 1, 1]


def history(
    seed: int,
    slices: list[Slice],
    limits: dict[str, int],
    options: dict[str, Any],
    source: type[ScriptedConnector] = ScriptedConnector,
    *,
    apart: bool = False,
) -> dict[str, Any]:
    """Return all that a task shows of itself and that its source sees; *apart*: it is told of some slices that are."""
    rng, told = random.Random(seed), random.Random(f"told {seed}")
    script = {key: rng.choices(STEPS, WEIGHTS, k=3) for key in range(60)}

    async def play() -> dict[str, Any]:
        lab = Lab()
        try:
            cache = AnswerCache(2.0, 2**20, None) if options["cached"] else None
            settings = {name: value for name, value in options.items() if name != "cached"}
            settings |= {"cache": cache, "timeout": 1.0, "max_fallback_ratio": 1.0}
            server = source(script)
            columns = column_of if isinstance(server, Columnar) else None
            task = lab.task(lab.engine(server, **limits), columns=columns, **settings)
            for moment, keys, nulls in slices:
                await lab.at(lab.now + moment)
                tell = apart and options["ordered"] and told.random() < 0.8 and task.is_apart(keys)
                task.admit(*keys, counts=[1 + key % 3 for key in keys], nulls=nulls, apart=tell)
            await task.end()
            stats = task.run.stats
            asked = [(seen.keys, seen.call, seen.started, seen.ended) for seen in server.calls]
            rows = task.left if options["ordered"] else sorted(task.left, key=lambda row: (row.at, repr(row)))
            return {"rows": rows, "asked": asked, "stats": stats.as_dict(), "table": dict(task.run.table)}
        finally:
            await lab.close()

    return virtual.run(play())


KEYS = st.lists(st.integers(0, 59), unique=True, max_size=30)
OPTIONS = st.fixed_dictionaries(
    {
        "ordered": st.booleans(),
        "details": st.booleans(),
        "cached": st.booleans(),
        "on_error": st.sampled_from(["null", default("instead")]),
        "on_timeout": st.sampled_from(["null", default("late")]),
        "on_missing": st.sampled_from(["null", default("nobody")]),
        "retry": st.sampled_from([None, Retry(wait=0.1), Retry(attempts=2, wait=0.05, on_missing=True)]),
        "attempt_timeout": st.sampled_from([None, None, 0.35]),
    }
)


@settings(max_examples=120, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    slices=st.lists(st.tuples(st.sampled_from([0.0, 0.0, 0.15, 1.2]), KEYS, st.integers(0, 2)), min_size=1, max_size=8),
    limits=st.fixed_dictionaries({"capacity": st.integers(1, 4), "batch_size": st.just(1) | st.integers(2, 12)}),
    options=OPTIONS,
)
def test_bundles_give_what_single_lookups_give(
    seed: int, slices: list[Slice], limits: dict[str, int], options: dict[str, Any]
) -> None:
    together = history(seed, slices, limits, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "answered_together", lambda run, call, answers: False)  # so each call is taken apart
        patch.setattr(engine_module, "answered_one", lambda run, call, answers: False)  # also those of one key
        one_by_one = history(seed, slices, limits, options)
    note(str(together))
    assert one_by_one == together
    assert history(seed, slices, limits, options, Columnar) == together
    assert history(seed, slices, limits, options, apart=True) == together
    assert history(seed, slices, limits, options, TakesColumns, apart=True) == together


async def test_a_call_without_trouble_makes_no_lookup_for_each_of_its_keys(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for misses, repeated keys and keys that are cached, either; or bulk would cost four times as much."""

    def separate(_: InFlight) -> None:
        raise AssertionError("a call was taken apart")

    monkeypatch.setattr(InFlight, "separate", separate)
    cache = AnswerCache(60.0, 2**20, None)
    script = {key: Step(missing=True) for key in range(0, 100, 7)}
    server, task = lab.start(script, otherwise=Step(after=0.1), batch_size=10, details=True, cache=cache)
    for start in (0, 50, 60, 100):
        task.admit(*range(start, start + 50))
    await lab.at(5.0)
    task.admit(*range(140, 180))
    await task.end()
    assert len(task.left) == 240
    assert all(row.value == (None if row.key in script else f"v{row.key}") for row in task.left)
    assert dict(server.asked) == dict.fromkeys(range(180), 1)


async def test_columns_travel_to_the_end_as_they_are(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a look at any of their keys, in several slices at a time and with misses among them."""

    def looked(*_: object) -> None:
        raise AssertionError("a key of a call in columns was looked at")

    monkeypatch.setattr(results, "answered_together", looked)
    monkeypatch.setattr(InFlight, "separate", looked)
    engine = lab.engine(Columnar({7: Step(missing=True)}, otherwise=Step(after=0.1)), batch_size=10)
    task = lab.task(engine, columns=column_of, details=True)
    slices = [task.admit(*range(start, start + 25)) for start in (0, 25, 50)]
    await task.end()
    assert task.values == [None if key == 7 else f"v{key}" for key in range(75)]
    assert [row.key for row in task.left if row.status == "missing"] == [7]
    assert {(row.attempts, row.origin, round(row.latency or 0.0, 3)) for row in task.left} == {(1, "call", 0.1)}
    assert [value for outcomes in slices for value in outcomes.values] == [None] * 75


@pytest.mark.parametrize(
    "instead",
    [
        pytest.param({"on_missing": default("nobody")}, id="a miss has a value"),
        pytest.param({"ordered": False}, id="rows leave one by one"),
        pytest.param({"cache": AnswerCache(60.0, 2**20, None)}, id="the cache keeps values"),
        pytest.param({"many": True}, id="an answer is a list"),
        pytest.param({"columns": None}, id="whoever takes them wants values"),
    ],
)
async def test_columns_are_taken_apart_where_one_key_needs_more(lab: Lab, instead: dict[str, Any]) -> None:
    script = {key: Step(value=[f"v{key}"]) for key in range(20)} if "many" in instead else {}
    engine = lab.engine(Columnar({**script, 7: Step(missing=True), 17: Step(missing=True)}), batch_size=10)
    task = lab.task(engine, **{"columns": column_of, **instead})
    outcomes = task.admit(*range(20))
    await task.end()
    missed = "nobody" if "on_missing" in instead else None
    found = [f"v{key}" for key in range(20)]
    expected: list[Any] = [[value] for value in found] if "many" in instead else [*found]
    expected[7] = expected[17] = missed
    assert expected == outcomes.values
    assert not outcomes.value_columns


async def test_rows_of_another_slice_that_wait_for_a_key_in_a_column_get_its_value(lab: Lab) -> None:
    engine = lab.engine(Columnar(otherwise=Step(after=0.1)), batch_size=4)
    task = lab.task(engine, columns=column_of)
    task.admit("a", "b", "c")
    task.admit("c", "d")
    await task.end()
    assert task.values == ["va", "vb", "vc", "vc", "vd"]


@pytest.mark.parametrize("read", [column_of, column_reader(pa.string(), "python")])
async def test_a_column_is_no_matter_of_the_rows_that_wait_for_what_was_cut_from_its_bundle(
    lab: Lab, read: Any
) -> None:
    engine = lab.engine(Columnar(otherwise=Step(after=0.1)), capacity=1, batch_size=4)
    task = lab.task(engine, columns=read)
    first, second, third = task.admit(1, 2, 3), task.admit(4, 5, 6), task.admit(6, 7)
    await task.end()
    assert [row.key for row in task.left] == [1, 2, 3, 4, 5, 6, 6, 7]
    assert task.statuses == ["ok"] * 8
    assert [len(outcomes.value_columns) for outcomes in (first, second, third)] == [1, 1, 0], (
        "the 6 that two want is a value"
    )


class Mixed(ScriptedConnector):
    """A scripted source whose texts come as an Arrow array; that of 5 is no UTF-8."""

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Any:
        await super().fetch_many(keys, call)
        return Answers(keys, pa.array([b"\xff" if key == 5 else b"v%d" % key for key in keys]).view(pa.string()))


@pytest.mark.parametrize("batch_size", [8, 1])
@pytest.mark.parametrize("instead", ["ordered", "unordered", "cached"])
async def test_a_value_of_a_column_that_python_does_not_have_is_an_error_of_its_key(
    lab: Lab, instead: str, batch_size: int
) -> None:
    options: dict[str, Any] = {"ordered": instead != "unordered"}
    options["cache"] = AnswerCache(60.0, 2**20, None) if instead == "cached" else None
    engine = lab.engine(Mixed(), batch_size=batch_size)
    task = lab.task(engine, **{"columns": column_reader(pa.string(), "python"), "on_error": "null", **options})
    task.admit(*range(8))
    await task.end()
    assert {row.key: row.value for row in task.left} == {n: None if n == 5 else f"v{n}" for n in range(8)}
    assert [row.error for row in task.left if row.status == "error"] == [
        "PermanentError: the connector returned a column with a value that is none: UnicodeDecodeError"
    ]


@pytest.mark.parametrize("bulk", [True, False])
@pytest.mark.parametrize(
    ("found", "message"),
    [
        pytest.param(
            ("a", "a"),
            "scripted: fetch_many returned 1 key(s) twice; each key has one answer. Return a list of its values where "
            "call.many is set, and a Failure for the key else.",
            id="twice",
        ),
        pytest.param(
            ("a", "x"),
            "scripted: fetch_many returned 1 key(s) that it was not asked for; it must answer under the very keys it "
            "was given ({keys} in this call). Map the source's answers back to those keys.",
            id="not asked for",
        ),
        pytest.param(
            ("a", ["a"]),
            "scripted: fetch_many returned Answers whose keys cannot be hashed; it must answer under the very keys it "
            "was given. Map the source's answers back to those keys.",
            id="no key",
        ),
    ],
)
async def test_a_guess_at_what_columns_mean_would_be_a_wrong_value(
    lab: Lab, found: tuple[Any, ...], message: str, *, bulk: bool
) -> None:
    engine = lab.engine(
        ScriptedConnector(otherwise=Step(returns=Answers(found, ["1", "2"]))), batch_size=3 if bulk else 1
    )
    task = lab.task(engine, columns=column_of)
    task.admit(*("abc" if bulk else "a"))
    with pytest.raises(ContractError) as caught:
        await task.end()
    assert str(caught.value) == message.format(keys=3 if bulk else 1)


def bundle(keys: str) -> tuple[dict[Any, Any], Bundle]:
    table: dict[Any, Any] = {}
    outcomes = Outcomes(list(keys), len(keys))
    made = Bundle(table, outcomes, outcomes.keys, range(len(keys)))
    assert made.enter() == 0
    return table, made


def test_a_bundle_leaves_the_keys_to_their_holder_that_somebody_asks_for_already() -> None:
    table, first = bundle("bd")
    later = Outcomes(list("abcde"), 5)
    second = Bundle(table, later, later.keys[1:], range(1, 5))
    assert second.enter() == 2
    assert (list(second.keys), list(second.indices), second.more) == (["c", "e"], [2, 4], {})
    assert first.more == {"b": [(later, 1)], "d": [(later, 3)]}
    assert table == {"b": first, "d": first, "c": second, "e": second}


def test_the_cut_of_a_bundle_shares_with_it_the_rows_that_wait_for_their_keys() -> None:
    """Also those that come later, for which the table knows only what it was cut from."""
    table, rest = bundle("abcde")
    later = Outcomes(["d", "a", "e", "b"], 4)
    rest.wait("d", later, 0)
    rest.wait("a", later, 1)
    first = rest.cut(2)
    assert (list(first.keys), list(first.indices)) == (["a", "b"], [0, 1])
    assert (list(rest.keys), list(rest.indices)) == (["c", "d", "e"], [2, 3, 4])
    assert first.entered
    assert table == dict.fromkeys("abcde", rest)
    for index in (2, 3):
        table[later.keys[index]].wait(later.keys[index], later, index)
    assert first.more is rest.more
    taken = first.singly()
    assert [lookup.more for lookup in taken] == [[(later, 1)], [(later, 3)]]
    assert rest.more == {"d": [(later, 0)], "e": [(later, 2)]}
    left = rest.singly()
    assert [lookup.more for lookup in left] == [None, [(later, 0)], [(later, 2)]]
    assert not rest.more
    assert table == dict(zip("abcde", taken + left, strict=True))


def test_a_bundle_that_the_table_does_not_know_is_found_with_all_that_was_cut_from_it_once_they_are_entered() -> None:
    table: dict[Any, Any] = {}
    outcomes = Outcomes(list("abcde"), 5)
    rest = Bundle(table, outcomes, outcomes.keys, range(5))
    parts = [rest.cut(2), rest.cut(1), rest]
    assert not table
    assert [part.enter() for part in parts] == [0, 0, 0]
    assert table == dict(zip("abcde", [parts[0], parts[0], parts[1], rest, rest], strict=True))


def test_lookups_of_a_bundle_that_the_table_does_not_know_are_found() -> None:
    table: dict[Any, Any] = {}
    outcomes = Outcomes(list("abc"), 3)
    lookups = Bundle(table, outcomes, outcomes.keys, range(3)).singly()
    assert table == dict(zip("abc", lookups, strict=True))


def test_bundles_of_keys_in_columns_are_bundles_of_their_objects() -> None:
    column = pa.array([10, 20, 30, 40])
    outcomes = Outcomes(Keys([column], column.to_pylist), 4)
    table: dict[Any, Any] = {}
    rest = Bundle(table, outcomes, outcomes.keys, range(4))
    first = rest.cut(1)
    assert isinstance(first.keys, Keys)
    assert isinstance(rest.keys, Keys)
    assert (first.keys, rest.keys) == ([10], [20, 30, 40])
    holder = Bundle(table, Outcomes([30], 1), [30], range(1))
    assert holder.enter() == 0
    assert [first.enter(), rest.enter()] == [0, 1]
    assert (list(rest.keys), list(rest.indices)) == ([20, 40], [1, 3])
    assert holder.more == {30: [(outcomes, 2)]}
    assert [lookup.key for lookup in (*first.singly(), *rest.singly())] == [10, 20, 40]


async def test_a_source_that_takes_columns_gets_those_of_all_slices_of_a_call(lab: Lab) -> None:
    server = TakesColumns(otherwise=Step(after=0.1))
    task = lab.task(lab.engine(server, capacity=1, batch_size=4))
    for keys in ((1, 2, 3), (4, 5), (5, 6, 7)):
        task.admit(*keys)
    await task.end()
    assert task.values == [f"v{key}" for key in (1, 2, 3, 4, 5, 5, 6, 7)]
    # The keys of the third slice lost their column when one of them had to be left to the second.
    assert server.given == [[1, 2, 3, 4], (5, 6, 7)]
    assert [type(keys) for keys in server.given] == [Keys, tuple]
    assert isinstance(server.given[0], Keys)
    assert [column.to_pylist() for column in server.given[0].columns] == [[1, 2, 3, 4]]


async def test_a_source_that_takes_no_columns_gets_none(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TakesColumns, "key_columns", False)
    server = TakesColumns()
    task = lab.task(lab.engine(server, batch_size=4))
    column = pa.array([1, 2, 3])
    admission.admit(task.run, Outcomes(Keys([column], column.to_pylist), 3, counts=[1, 1, 1]))
    task.admitted += 3
    await task.end()
    assert task.values == ["v1", "v2", "v3"]
    assert [(type(keys), *keys) for keys in server.given] == [(tuple, 1, 2, 3)]


async def test_a_source_that_takes_columns_gets_keys_that_are_asked_again_one_by_one(lab: Lab) -> None:
    server = TakesColumns({2: [Step(failure=TransientError("shaky")), Step()]})
    task = lab.task(lab.engine(server, batch_size=4), retry=Retry(wait=0.1))
    task.admit(1, 2, 3)
    await task.end()
    assert task.values == ["v1", "v2", "v3"]
    assert server.given == [[1, 2, 3], (2,)]
    assert [type(keys) for keys in server.given] == [Keys, tuple]


async def test_slices_whose_keys_have_columns_of_two_types_share_calls_all_the_same(lab: Lab) -> None:
    """As those of pandas may have: it takes the type of whole numbers, or of text, from what each batch holds."""
    server = TakesColumns(otherwise=Step(after=0.1))
    task = lab.task(lab.engine(server, capacity=1, batch_size=4))
    task.admit(1, 2)
    task.admit("a", "b")
    await task.end()
    assert task.values == ["v1", "v2", "va", "vb"]
    assert server.keys == [(1, 2, "a", "b")]


def test_lookups_take_the_place_of_their_bundle_and_stay_the_same() -> None:
    table, whole = bundle("abc")
    later = Outcomes(["b"], 1)
    whole.wait("b", later, 0)
    lookups: list[Lookup] = whole.singly()
    assert lookups is whole.singly()
    assert table == dict(zip("abc", lookups, strict=True))
    assert [lookup.index for lookup in lookups] == [0, 1, 2]
    assert [lookup.more for lookup in lookups] == [None, [(later, 0)], None]


async def test_a_deadline_takes_all_bundles_of_its_call_apart(lab: Lab) -> None:
    """Also when keys of several slices travel in it, some of which wait for more rows."""
    server, task = lab.start({"c": Step(after=2.0)}, capacity=1, batch_size=6, timeout=1.0, on_timeout="null")
    for keys in ("ab", "cd", "bc"):
        task.admit(*keys)
    await task.end()
    assert server.keys == [("a", "b", "c", "d")]
    assert task.keys == ["a", "b", "c", "d", "b", "c"]
    assert set(task.statuses) == {"timeout"}
    assert lab.now == pytest.approx(1.0, abs=0.06)


async def test_a_call_in_time_is_not_late_because_another_one_is(lab: Lab) -> None:
    server, task = lab.start(
        {0: Step(never=True), 1: Step(never=True)},
        otherwise=Step(after=0.9),
        capacity=2,
        batch_size=2,
        timeout=1.0,
        on_timeout="null",
        max_fallback_ratio=1.0,
    )
    task.admit(0, 1)
    await lab.at(0.5)
    task.admit(2, 3)
    await lab.at(1.2)
    assert [(0, 1), (2, 3)] == server.keys
    assert [True, False] == [call.late for call in lab.engines[0].calls]
    await task.end()
    assert ["timeout", "timeout", "ok", "ok"] == task.statuses
