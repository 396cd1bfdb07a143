"""Functions and plain classes as connectors: how they are decorated, called, and told apart."""

from __future__ import annotations

import asyncio
import functools
import pickle
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StringType, StructType

import enrichkit
from enrichkit import (
    Call,
    ConfigError,
    Connector,
    ConnectorConfig,
    Failure,
    FatalError,
    PermanentError,
    TransientError,
    connector,
)
from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.sources.function_connector import FunctionConnector
from enrichkit.sources.registry import registered

from .pace import at_pace

if TYPE_CHECKING:
    from .sparkless import Row, Worker

pytestmark = pytest.mark.usefixtures("fresh_registry")

STRING = StringType()


def source(name: str = "geo") -> FunctionConnector:
    """The connector of what was decorated, as a worker makes it."""
    config: Any = registered()[name]
    return FunctionConnector(config)


def outcomes(worker: Worker, *keys: Sequence[Any], returns: Any = STRING, **options: Any) -> list[Row]:
    """What the rows get, a task and a batch of them, from the function that was decorated as `geo`."""
    return worker.outcomes(registered()["geo"], returns, *keys, **options)


def values(rows: Sequence[Row]) -> list[tuple[Any, str]]:
    return [(row["value"], row["status"]) for row in rows]


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    assert {} == registered()
    return str(caught.value)


# --- what is called, and with what


def test_a_function_of_a_key_answers_with_its_value_and_with_none_for_a_miss(worker: Worker) -> None:
    @connector("geo", returns=STRING)
    async def geo(key: str) -> str | None:
        await asyncio.sleep(0)
        return None if key == "nowhere" else f"in {key}"

    rows = outcomes(worker, ["a", "nowhere", None, "b", "a"])
    assert [("in a", "ok"), (None, "missing"), (None, "null_key"), ("in b", "ok"), ("in a", "ok")] == values(rows)
    assert 3 == worker.run.stats.keys - worker.run.stats.shared


def test_what_is_decorated_stays_what_it_is() -> None:
    async def geo(key: str) -> str:
        return key.upper()

    class Lookup:
        async def fetch(self, key: str) -> str:
            return key

    assert geo is connector("geo", returns=STRING)(geo)
    assert Lookup is connector("classes", returns=STRING)(Lookup)
    assert "A" == asyncio.run(geo("a"))
    assert ["geo", "classes"] == list(registered())


def test_with_a_batch_size_it_is_called_with_lists_of_at_most_so_many_keys(worker: Worker) -> None:
    @connector("geo", batch_size=4, returns=STRING)
    async def geo(keys: list[int]) -> Mapping[int, str | None]:
        assert type(keys) is list
        return {key: None if key == 1 else str(len(keys)) for key in keys if key != 2}

    rows = outcomes(worker, list(range(10)), capacity=1)
    assert [(None, "ok"), (None, "missing")] == values(rows)[1:3]
    sizes = {int(row["value"]) for row in rows if row["value"]}
    assert 4 == max(sizes)
    assert (4, 4, 8) == (source().batch_size, source().max_batch_size, source().capacity)


def test_several_key_columns_are_a_tuple(worker: Worker) -> None:
    @connector("geo", returns=STRING)
    async def one(key: tuple[str, int]) -> str:
        tenant, user = key
        return f"{tenant}/{user}"

    assert [("a/1", "ok"), (None, "null_key")] == values(outcomes(worker, ["a", "b"], [1, None]))

    @connector("geo", returns=STRING, batch_size=10)
    async def many(keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], str]:
        return {(tenant, user): f"{user}/{tenant}" for tenant, user in keys}

    assert [("1/a", "ok"), ("2/a", "ok")] == values(outcomes(worker, ["a", "a"], [1, 2]))


def test_what_it_raises_means_what_it_means_for_a_connector(worker: Worker) -> None:
    @connector("geo", returns=STRING)
    async def geo(key: str) -> Any:
        match key:
            case "busy":
                raise TransientError("try again")
            case "bad":
                raise PermanentError("no such thing")
            case "secret":
                raise KeyError(f"{key}: hunter{len(key) - 4}")
            case "failed":
                return Failure(PermanentError("never sent"), rejected=True)
        return key

    rows = outcomes(worker, ["busy", "bad", "secret", "failed", "fine"], retry=enrichkit.Retry(attempts=2, wait=0.001))
    assert ["error", "error", "error", "rejected", "ok"] == [row["status"] for row in rows]
    assert [2, 1, 1, 1, 1] == [row["attempts"] for row in rows]
    assert "TransientError: try again" in rows[0]["error"]
    assert "PermanentError: no such thing" in rows[1]["error"]
    assert "KeyError" in rows[2]["error"]
    assert "hunter2" not in rows[2]["error"]

    @connector("geo", returns=STRING)
    async def unknown(key: str) -> str:
        raise FatalError("no such table")

    with pytest.raises(FatalError, match="no such table"):
        outcomes(worker, ["a"], on_error="null")


NAMES = {"u1": "Ann"}


async def asynchronous(key: str) -> str:
    return NAMES[key]


def blocking(key: str) -> str:
    return NAMES[key]


async def of_many(keys: Sequence[str]) -> dict[str, str]:
    return {key: NAMES[key] for key in keys}


@pytest.mark.filterwarnings("ignore:@connector.*no async function")
@pytest.mark.parametrize("show_keys", [False, True])
@pytest.mark.parametrize(
    ("function", "options"),
    [(asynchronous, {}), (blocking, {}), (of_many, {"batch_size": 10})],
    ids=["asynchronous", "blocking", "of_many"],
)
def test_a_bug_of_the_function_is_shown_with_its_line(
    worker: Worker, function: Any, options: dict[str, int], show_keys: bool
) -> None:
    connector("geo", returns=STRING, **options)(function)
    good, bad = outcomes(worker, ["u1", "u2"], retry=None, show_keys=show_keys)
    assert (good["value"], good["status"], bad["status"]) == ("Ann", "ok", "error")
    line = function.__code__.co_firstlineno + 1
    source = "return {key: NAMES[key] for key in keys}" if function is of_many else "return NAMES[key]"
    place = f"test_function_connector.py, line {line}, in {function.__name__}: {source}"
    if function is of_many and sys.version_info < (3, 12):  # from then on a comprehension is no frame of its own
        place += f"; test_function_connector.py, line {line}, in <dictcomp>: {source}"
    text = "KeyError: 'u2'" if show_keys else "KeyError"
    assert bad["error"] == f"PermanentError: the connector raised {text} at {place}"


def test_a_group_of_keys_is_halved_until_the_poisoned_one_is_found(worker: Worker) -> None:
    @connector("geo", returns=STRING, batch_size=16)
    async def geo(keys: list[int]) -> dict[int, str]:
        if 5 in keys:
            raise ValueError
        return dict.fromkeys(keys, "v")

    rows = outcomes(worker, list(range(16)))
    assert [5] == [key for key, row in enumerate(rows) if row["status"] == "error"]
    assert 15 == sum(row["value"] == "v" for row in rows)


@pytest.mark.parametrize(
    ("answer", "what"),
    [(["v"], "a list"), (None, "a NoneType"), ({"other": "v"}, r"1 key\(s\) that it was not asked for")],
    ids=["list", "none", "other-key"],
)
def test_anything_but_a_mapping_of_its_keys_is_a_breach_of_contract(worker: Worker, answer: Any, what: str) -> None:
    @connector("geo", returns=STRING, batch_size=16)
    async def geo(keys: list[str]) -> Any:
        return answer

    with pytest.raises(enrichkit.errors.ContractError, match=f"fetch_many returned {what}"):
        outcomes(worker, ["a", "b"])


def test_a_struct_may_be_declared_in_any_way_and_again_at_the_call(worker: Worker) -> None:
    struct = StructType().add("city", STRING).add("size", LongType())

    @connector("geo", returns=StructType().add("city", STRING))
    async def geo(key: str) -> dict[str, Any]:
        return {"city": key, "size": 1, "more": None}

    assert make_plan("geo", 1, None, {})[1] == StructType().add("city", STRING)
    assert [{"city": "a", "size": 1}] == [row["value"] for row in outcomes(worker, ["a"], returns=struct)]

    @connector("geo")
    async def undeclared(key: str) -> str:
        return key

    with pytest.raises(ConfigError, match=r"The type of the values of 'geo' is not known.*returns='string'"):
        make_plan("geo", 1, None, {})


def test_with_many_each_answer_is_the_list_of_its_matches() -> None:
    @connector("geo", returns=STRING, batch_size=2)
    async def geo(keys: list[str]) -> dict[str, list[str]]:
        return {key: [key, key] for key in keys}

    assert {"a": ["a", "a"]} == asyncio.run(_asked(source(), ["a"], many=True))


async def _asked(opened: FunctionConnector, keys: Sequence[Any], *, many: bool = False) -> Mapping[Any, Any]:
    await opened.open()
    try:
        return await opened.fetch_many(keys, Call(timeout=10.0, many=many))
    finally:
        await opened.close()


# --- functions that block


def plainly(name: str = "geo", **settings: Any) -> Callable[[Any], Any]:
    """`connector`, without the warning."""

    def decorate(function: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return connector(name, returns=STRING, **settings)(function)

    return decorate


def test_a_function_that_is_not_async_is_accepted_with_a_warning() -> None:
    """L8, otherwise than Flink, which refuses it."""

    def geo(key: str) -> str:
        return key

    expected = (
        "@connector('geo') was given geo, which is no async function. It runs in a pool of 3 threads per worker "
        "process (capacity), and no deadline can stop a thread: a call that hangs keeps its thread. Write async "
        "def, or set timeouts in the function."
    )
    with pytest.warns(UserWarning, match="no async function") as caught:
        connector("geo", capacity=3)(geo)
    assert [(expected, __file__)] == [(str(warning.message), warning.filename) for warning in caught]


def test_async_functions_in_whatever_form_are_known_as_such() -> None:
    """U17: test_chaining_async_scalar_functions. A warning would fail this test."""

    async def geo(key: str, more: str = "") -> str:
        return key + more

    class Called:
        async def __call__(self, key: str) -> str:
            return key

    class Fetching:
        async def fetch(self, key: str) -> str:
            return key

    for function in (geo, functools.partial(geo, more="!"), Called(), Fetching):
        connector("geo")(function)
        assert 100 == source().capacity


def test_a_function_that_blocks_runs_in_a_thread_and_the_loop_goes_on(worker: Worker) -> None:
    @plainly()
    def geo(key: str) -> str:
        import threading as here

        return here.current_thread().name

    assert {"enrichkit-function"} == {row["value"][:18] for row in outcomes(worker, ["a", "b", "c"])}
    assert 8 == source().capacity


class Barrier:
    """Answers when four calls wait at the same time, and counts how many there were."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(4)
        self.lock = threading.Lock()
        self.inside = 0

    def fetch(self, key: int) -> str:
        with self.lock:
            self.inside += 1
            most = self.inside
        self.barrier.wait(20.0)
        with self.lock:
            self.inside -= 1
        return str(most <= 4)


def test_as_many_threads_as_the_capacity_run_at_once_and_no_more(worker: Worker) -> None:
    plainly(capacity=4)(Barrier)
    assert [("True", "ok")] * 40 == values(outcomes(worker, list(range(40))))
    plainly(capacity=7)(Barrier)
    assert [("True", "ok")] * 40 == values(outcomes(worker, list(range(40)), capacity=4))


def test_a_thread_that_never_ends_costs_its_own_keys_their_time(worker: Worker) -> None:
    """What it costs the others is a place among the threads."""
    released.clear()

    @plainly(capacity=2)
    def geo(key: int) -> str:
        from tests import test_function_connector as here  # the module, not a copy of its variables

        if key == 0:
            here.released.wait(20.0)
        return str(key)

    try:
        rows = outcomes(worker, list(range(20)), timeout=at_pace(0.3))
    finally:
        released.set()
    assert [(None, "timeout"), *((str(key), "ok") for key in range(1, 20))] == values(rows)


released = threading.Event()


def test_a_thread_may_raise_what_no_future_takes(worker: Worker) -> None:
    @plainly()
    def geo(key: int) -> str:
        raise StopIteration

    [row] = outcomes(worker, [1])
    line = geo.__code__.co_firstlineno + 2
    told = f"StopIteration at test_function_connector.py, line {line}, in geo: raise StopIteration"
    assert ("error", f"PermanentError: the function raised {told}") == (row["status"], row["error"])


# --- classes


class Recorded:
    """Says what was called, in which order and in what kind of thread; the base of the classes below."""

    log: list[str]

    def __init__(self) -> None:
        self.log = []
        Recorded.log = self.log  # of the last one that was made
        self.note("made")

    def note(self, what: str) -> None:
        self.log.append(f"{what} in {'a thread' if threading.current_thread().name[:9] == 'enrichkit' else 'the loop'}")


class Asynchronous(Recorded):
    async def open(self) -> None:
        self.note("open")

    async def fetch(self, key: str) -> str:
        self.note(key)
        return key

    async def close(self) -> None:
        self.note("close")


class Mixed(Recorded):
    """Its plain `open` makes what belongs to the loop."""

    def open(self) -> None:
        asyncio.get_running_loop()
        self.note("open")

    async def fetch(self, key: str) -> str:
        return key

    def close(self) -> None:
        asyncio.get_running_loop()
        self.note("close")


class Blocking(Recorded):
    def open(self) -> None:
        self.note("open")

    def fetch(self, key: str) -> str:
        self.note(key)
        return key

    def close(self) -> None:
        self.note("close")


class Bare(Recorded):
    async def fetch(self, key: str) -> str:
        return key


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (Asynchronous, ["made in the loop", "open in the loop", "a in the loop", "close in the loop"]),
        (Mixed, ["made in the loop", "open in the loop", "close in the loop"]),
        (Blocking, ["made in a thread", "open in a thread", "a in a thread", "close in a thread"]),
        (Bare, ["made in the loop"]),
    ],
)
def test_an_object_is_made_opened_and_closed_where_it_fetches(cls: type[Any], expected: list[str]) -> None:
    plainly()(cls)
    opened = source()
    assert {"a": "a"} == asyncio.run(_asked(opened, ["a"]))
    assert expected == Recorded.log
    asyncio.run(opened.close())  # again
    assert expected == Recorded.log
    assert {"b": "b"} == asyncio.run(_asked(opened, ["b"])), "on another loop"


def test_a_method_may_need_no_object_and_a_class_may_inherit_from_one_in_c() -> None:
    @connector("static", returns=STRING)
    class Static(dict[str, str]):
        @staticmethod
        async def fetch(key: str) -> str:
            return f"static {key}"

    @connector("of-the-class", returns=STRING, batch_size=2)
    class OfTheClass:
        @classmethod
        async def fetch(cls, keys: list[str]) -> dict[str, str]:
            return dict.fromkeys(keys, cls.__name__)

    assert {"a": "static a"} == asyncio.run(_asked(source("static"), ["a"]))
    assert {"a": "OfTheClass"} == asyncio.run(_asked(source("of-the-class"), ["a"]))


def test_all_calls_share_one_object(worker: Worker) -> None:
    @connector("geo")
    class Counting:
        def __init__(self) -> None:
            self.calls = 0

        async def fetch(self, key: int) -> str:
            self.calls += 1
            return str(self.calls)

    assert {str(n) for n in range(1, 51)} == {row["value"] for row in outcomes(worker, list(range(50)))}


def test_an_object_that_could_not_be_opened_is_not_closed(worker: Worker) -> None:
    @connector("geo")
    class Closed:
        async def open(self) -> None:
            raise ConnectionRefusedError

        async def fetch(self, key: str) -> None: ...

        async def close(self) -> None:
            raise AssertionError("close() without open()")

    expected = "could not be opened: it raised ConnectionRefusedError"
    with pytest.raises(FatalError, match=expected):
        outcomes(worker, ["a"])
    asyncio.run(source().close())


# --- names, travel, fingerprints


def test_the_decorator_and_the_module_of_the_same_name_are_both_there() -> None:
    assert connector is enrichkit.connector
    assert Connector.__module__ == "enrichkit.interface.connector"
    assert Connector is pickle.loads(pickle.dumps(Connector))


def define(answer: str) -> None:
    """What a cell of a notebook does when it is run."""

    @connector("geo", returns=STRING)
    async def geo(key: str) -> str:
        return answer


def test_a_function_that_is_defined_anew_replaces_the_first(worker: Worker) -> None:
    for answer in ("first", "second", "first"):
        define(answer)
        assert [(answer, "ok")] == values(outcomes(worker, ["a"]))


def test_the_fingerprint_is_that_of_the_code() -> None:
    def keys() -> tuple[str, str]:
        plan, _ = make_plan("geo", 1, None, {})
        return plan.engine_key, plan.cache_key

    define("first")
    assert keys() == keys()
    first = keys()
    define("second")
    second = keys()
    define("first")
    assert (first, set()) == (keys(), set(first) & set(second))
    connector("geo", returns=STRING, batch_size=5)(many)
    assert keys() == keys()


async def many(keys: list[str]) -> dict[str, str]:
    return dict.fromkeys(keys, WORD)


WORD = "travelled"


def test_what_it_uses_of_a_module_that_workers_do_not_have_travels_with_it() -> None:
    connector("geo", returns=STRING, batch_size=5)(many)
    plan, _ = make_plan("geo", 1, None, {})
    packed = pack(plan)
    assert 1 == packed.count(b"travelled")
    again = pickle.loads(packed)
    assert many is not again.config.function
    assert {"a": "travelled"} == asyncio.run(again.config.function(["a"]))


def test_an_installed_function_travels_by_name() -> None:
    connector("geo", returns=STRING)(asyncio.sleep)
    plan, _ = make_plan("geo", 1, None, {})
    assert asyncio.sleep is pickle.loads(pack(plan)).config.function


def test_one_that_cannot_travel_is_refused_when_it_is_used() -> None:
    lock = threading.Lock()

    @connector("geo", returns=STRING)
    async def geo(key: str) -> str:
        with lock:
            return key

    with pytest.raises(ConfigError) as caught:
        make_plan("geo", 1, None, {})
    assert str(caught.value) == (
        "The function geo cannot travel to the workers: TypeError: cannot pickle '_thread.lock' object. Create the "
        "objects that it needs inside the function, instead of using objects of the driver."
    )


def test_it_may_stand_in_for_another_source(worker: Worker) -> None:
    connector("spare", returns=STRING, batch_size=5)(many)

    @connector("geo", returns=STRING)
    async def geo(key: str) -> str | None:
        return None

    [row] = outcomes(worker, ["a"], on_missing="spare")
    assert ("travelled", "missing", "fallback") == (row["value"], row["status"], row["origin"])


def test_it_is_described_and_explained_without_its_code() -> None:
    connector("geo", returns=STRING, batch_size=5)(many)
    text = str(enrichkit.describe("geo"))
    assert "batch_size=5" in text
    assert " at 0x" not in text
    assert "'geo'" in str(enrichkit.explain("geo"))


# --- what is refused


async def two(tenant: str, user: str) -> None: ...
async def none() -> None: ...
async def one(key: str) -> None: ...
async def text(user_id: str) -> None: ...
async def several(user_ids: list[str]) -> None: ...
async def plural(keys: Any) -> None: ...
async def streaming(key: str) -> AsyncIterator[str]:
    yield key


def yielding(key: str) -> Iterator[str]:
    yield key


class Sourceless:
    async def lookup(self, key: str) -> None: ...


class Needy:
    def __init__(self, url: str) -> None: ...

    async def fetch(self, key: str) -> None: ...


class Wide:
    async def fetch(self, tenant: str, user: str) -> None: ...


class Odd(Connector[Any]): ...


ALONE = "It gets one argument; a key of several columns is a tuple. For example async def geo(key): tenant, user = key."


@pytest.mark.parametrize(
    ("given", "settings", "said"),
    [
        (
            two,
            {},
            (
                "the function two(tenant: 'str', user: 'str') -> 'None', which cannot be called with a key alone: "
                f"missing a required argument: 'user'. {ALONE}"
            ),
        ),
        (
            none,
            {"batch_size": 3},
            (
                "the function none() -> 'None', which cannot be called with a list of keys alone: too many positional "
                f"arguments. {ALONE}"
            ),
        ),
        (
            Wide,
            {},
            (
                "the method fetch(tenant: 'str', user: 'str') -> 'None', which cannot be called with a key alone: "
                f"missing a required argument: 'user'. {ALONE}"
            ),
        ),
        (
            several,
            {},
            (
                "the function several(user_ids: 'list[str]'), which seems to take several keys; without batch_size it "
                "is called with one. Set batch_size=100 for lists of up to 100 keys, or rename the parameter to key."
            ),
        ),
        (
            plural,
            {},
            (
                "the function plural(keys: 'Any'), which seems to take several keys; without batch_size it is called "
                "with one. Set batch_size=100 for lists of up to 100 keys, or rename the parameter to key."
            ),
        ),
        (
            text,
            {"batch_size": 7},
            (
                "the function text(user_id: 'str'), which seems to take one key; with batch_size=7 it is called with a "
                "list of keys. Leave batch_size out, or take keys: list and return a mapping of them."
            ),
        ),
        (
            streaming,
            {},
            "the function streaming, a generator; it must return its answer. Write return instead of yield.",
        ),
        (
            yielding,
            {},
            "the function yielding, a generator; it must return its answer. Write return instead of yield.",
        ),
        (
            Sourceless,
            {},
            (
                "the class Sourceless without a method fetch; it needs one, which is called with a key, or with a list "
                "of keys if batch_size is set. Add async def fetch(self, key)."
            ),
        ),
        (
            Needy,
            {},
            (
                "the class Needy, which cannot be made without arguments: missing a required argument: 'url'. A worker "
                "makes it. Give its parameters defaults."
            ),
        ),
        (
            Odd,
            {},
            (
                "the class Odd, which is a connector or a config already; it decorates functions and plain classes. "
                "Register a config instead, with enrichkit.register(name, config)."
            ),
        ),
        (
            ConnectorConfig,
            {},
            (
                "the class ConnectorConfig, which is a connector or a config already; it decorates functions and plain "
                "classes. Register a config instead, with enrichkit.register(name, config)."
            ),
        ),
        (
            7,
            {},
            "7; it decorates an async function of a key, or a class with a method fetch. Put it above one.",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_called_that_way_is_refused_where_it_is_decorated(
    given: Any, settings: dict[str, Any], said: str
) -> None:
    assert f"@connector('geo') was given {said}" == refusal(lambda: connector("geo", **settings)(given))


@pytest.mark.parametrize("option", ["batch_size", "capacity"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "10", 10**9])
def test_a_number_is_a_whole_one_in_its_range(option: str, value: Any) -> None:
    most = {"batch_size": "1,000,000", "capacity": "10,000"}[option]
    assert refusal(lambda: connector("geo", **{option: value})) == (
        f"@connector('geo') was given {option}={value!r}; it must be a whole number from 1 to {most}. Leave it out for "
        "the default."
    )


def test_a_forgotten_name_is_noticed() -> None:
    assert refusal(lambda: connector(one)) == (  # type: ignore[arg-type]  # that is the mistake
        f"@connector was given {one!r}; its first argument is the name of the source, a str, as in "
        "@enrichkit.connector('geo', returns='string'). Add the name."
    )
    assert refusal(lambda: connector("a b")(one)).startswith("The source name is 'a b'; it must consist of letters")


def test_no_more_keys_per_call_than_the_function_was_made_for() -> None:
    connector("geo", returns=STRING, batch_size=5)(many)
    with pytest.raises(ConfigError, match=r"takes at most 5 keys per call\. Set batch_size=5"):
        make_plan("geo", 1, None, {"batch_size": 6})
    connector("geo", returns=STRING)(one)
    with pytest.raises(ConfigError, match=r"takes at most 1 keys per call\. Set batch_size=1"):
        make_plan("geo", 1, None, {"batch_size": 6})
