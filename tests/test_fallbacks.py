"""Fallbacks that have to be asked, as they are worked out and checked on the driver."""

from __future__ import annotations

import functools
import importlib
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType

from enrichkit import (
    Call,
    ConfigError,
    Connector,
    ConnectorConfig,
    Options,
    Retry,
    UnknownConnectorError,
    default,
    register,
    tiers,
)
from enrichkit.driver.fallbacks import plan_fallbacks
from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.errors import MissingDriverError
from enrichkit.sources.function_fallback import KeyFunction, KeyFunctionConfig

from .installed import listed

if TYPE_CHECKING:
    from pathlib import Path

    from enrichkit.plan import FallbackPlan

pytestmark = pytest.mark.usefixtures("fresh_registry")

STRING = StringType()


BESIDE_A_SCRIPT = """
from dataclasses import dataclass

from enrichkit_redis import RedisConfig


@dataclass
class User:
    name: str


class Ours(RedisConfig):
    pass


def nobody(key):
    return {"name": key}
"""

ALSO_BESIDE_IT = """
from enrichkit_redis import RedisConfig


class Near(RedisConfig):
    pass
"""

AS_ON_A_WORKER = """
import pickle, sys

plan = pickle.load(sys.stdin.buffer)
sides = [type(side.config).__name__ for side in (*plan.fallbacks, *plan.tiers)]
print(plan.default_values, sides, plan.fallbacks[-1].config)
"""


@dataclass(frozen=True, kw_only=True)
class BackupConfig(ConnectorConfig):
    """A source that takes two key columns."""

    password: str = ""

    @property
    def key_parts(self) -> int | None:
        return 2


class BackupConnector(Connector[BackupConfig]):
    name = "backup"
    config_class = BackupConfig
    capacity = 3
    batch_size = 50
    max_batch_size = 20
    repeatable = False

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        return {}


class DriverlessConfig(ConnectorConfig):
    """The source needs a package that is not installed."""


class DriverlessConnector(Connector[DriverlessConfig]):
    name = "driverless"
    config_class = DriverlessConfig
    requires = ("no_such_driver",)


def stages(keys: int | None = None, of: Any = STRING, **options: Any) -> tuple[FallbackPlan, ...]:
    return plan_fallbacks(Options(**options), keys, of)


def refusal(kind: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def test_what_needs_not_be_asked_is_no_stage() -> None:
    assert () == stages(on_timeout="fail", on_error="null")


def test_a_stage_has_the_limits_of_its_own_source_and_a_clock_of_its_own() -> None:
    [stage] = stages(
        on_error=BackupConfig(),
        capacity=77,
        batch_size=1,
        rate=5.0,
        timeout=None,
        attempt_timeout=4.0,
        details=True,
        retry=Retry(attempts=7, on_missing=True),
    )
    assert ("backup", ("on_error",), 3, 20) == (stage.source, stage.when, stage.capacity, stage.batch_size)
    # Its calls must not be made twice: the time of an attempt becomes that of the lookup, and a miss is one.
    assert (4.0, None, Retry(attempts=7), None) == (
        stage.options.timeout,
        stage.options.attempt_timeout,
        stage.options.retry,
        stage.options.rate,
    )
    assert ["null"] * 3 == [stage.options.policy(name) for name in ("on_timeout", "on_error", "on_missing")]
    again = Retry(on_missing=True)
    [timed] = stages(on_error=RedisConfig(), timeout=8.0, attempt_timeout=4.0, retry=again)
    assert (8.0, 4.0, again) == (timed.options.timeout, timed.options.attempt_timeout, timed.options.retry)


def test_options_that_name_the_same_fallback_share_a_stage() -> None:
    def last(key: Any) -> None: ...

    register("second", RedisConfig())
    found = stages(on_timeout="second", on_error=last, on_missing=RedisConfig())
    assert [("second", ("on_timeout", "on_missing")), ("the function last", ("on_error",))] == [
        (stage.source, stage.when) for stage in found
    ]
    [both] = stages(on_timeout=last, on_error=last, timeout=2.0)
    assert (KeyFunction, KeyFunctionConfig(function=last), ("on_timeout", "on_error"), 1) == (
        both.connector,
        both.config,
        both.when,
        both.batch_size,
    )
    assert (None, 2.0) == (both.options.retry, both.options.timeout)


def test_a_retry_that_a_function_would_have_no_time_for_is_no_mistake() -> None:
    """A function is called once; waits that suit a lookup without a timeout are the source's alone."""
    patient = Retry(wait=60.0, wait_max=60.0, jitter="none")
    [stage] = stages(on_error=functools.partial(print, "hunter2"), timeout=None, attempt_timeout=30.0, retry=patient)
    assert (None, 30.0) == (stage.options.retry, stage.options.timeout)
    assert "the function print" == stage.source


def test_an_async_function_may_run_many_times_at_once_and_a_plain_one_has_a_thread_each() -> None:
    class Called:
        async def __call__(self, key: Any) -> None: ...

    async def asynchronous(key: Any, more: Any = None) -> None: ...

    def plain(key: Any) -> None: ...

    some = (asynchronous, functools.partial(asynchronous, more=1), Called(), plain, str.upper)
    assert [100, 100, 100, 8, 8] == [stages(on_error=function)[0].capacity for function in some]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nul", " Did you mean 'null'?"),
        ("fial", " Did you mean 'fail'?"),
        ("default", " Did you mean 'default'?"),
        ("secnod", " Did you mean 'second'?"),
        ("zzz", ""),
    ],
)
def test_a_name_that_is_no_source_is_refused_with_a_hint(name: str, hint: str) -> None:
    register("second", RedisConfig())
    assert refusal(ConfigError, lambda: stages(on_timeout=name)) == (
        f"on_timeout is {name!r}; it must be 'fail', 'null', default(value), a function of the key, or a source: its "
        f"config or its name.{hint} Installed or registered: {listed('second')}. For example on_timeout='null'."
    )


def test_a_source_of_the_toml_file_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "enrichkit.toml"
    file.write_text('[sources.archive]\ntype = "redis"\nkey = "archive:{}"\n[sources.odd]\ntype = "no-such"\n')
    monkeypatch.setenv("ENRICHKIT_CONFIG", str(file))
    [stage] = stages(on_missing="archive")
    assert ("archive", "archive:{}") == (stage.source, stage.config.key)  # type: ignore[attr-defined]
    assert refusal(UnknownConnectorError, lambda: stages(on_missing="odd")).startswith(
        f"on_missing: [sources.odd] in {file}: No connector is named 'no-such'."
    )


def test_what_is_wrong_with_the_source_is_said_with_the_option() -> None:
    assert refusal(ConfigError, lambda: stages(on_error="postgres")).startswith(
        "on_error: PostgresConfig has neither a table nor a query; "
    )
    assert refusal(MissingDriverError, lambda: stages(on_error=DriverlessConfig())) == (
        "on_error: The connector 'driverless' needs the package no_such_driver, which is not installed. Run: pip "
        "install no_such_driver"
    )


def test_a_fallback_takes_the_same_keys() -> None:
    assert refusal(ConfigError, lambda: stages(keys=1, on_error=BackupConfig())) == (
        "on_error is the source 'backup', which gets 1 key column; its BackupConfig needs 2. A fallback gets the same "
        "key columns as the first source: name a source that takes them."
    )
    assert 1 == len(stages(keys=None, on_error=BackupConfig()))


def test_a_fallback_whose_type_is_not_declared_is_asked_for_that_of_the_column() -> None:
    struct = StructType().add("name", STRING).add("tier", LongType())
    [stage] = stages(of=struct, on_error=RedisConfig(kind="hash"))
    assert "struct<name:string,tier:bigint>" == stage.config.returns


def test_a_function_that_cannot_travel_is_refused_here() -> None:
    lock = threading.Lock()

    def locked(key: Any) -> None:
        with lock:
            pass

    assert refusal(ConfigError, lambda: stages(on_missing=locked)) == (
        "on_missing: The function locked cannot travel to the workers: TypeError: cannot pickle "
        "'_thread.lock' object. Create the objects that it needs inside the function, instead of using objects of the "
        "driver."
    )


def test_functions_and_fallbacks_of_modules_that_workers_do_not_have_travel_by_value() -> None:
    plan, _ = make_plan(
        PostgresConfig(dsn="postgresql://db/app", table="users", key=("a", "b"), columns=("name",)),
        2,
        STRING,
        {"on_timeout": shout, "on_error": BackupConfig()},
    )
    packed = pack(plan)
    assert b"enrichkit_postgres" in packed
    assert packed.count(b"shouted: ") == 1
    again = pickle.loads(packed)
    assert "shouted: x" == again.fallbacks[0].config.function("x")
    assert ["the function shout", "backup"] == [stage.source for stage in again.fallbacks]


def shout(key: str) -> str:
    return "shouted: " + key


def test_the_fingerprint_of_a_source_does_not_depend_on_its_fallbacks() -> None:
    config = RedisConfig()
    some: list[dict[str, Any]] = [{}, {"on_timeout": "null"}, {"on_error": shout}, {"on_missing": lambda key: key}]
    plans = [make_plan(config, 1, STRING, options)[0] for options in some]
    assert 1 == len({plan.engine_key for plan in plans})
    functions = [make_plan(config, 1, STRING, {"on_error": shout})[0] for _ in range(2)]
    assert functions[0].fallbacks[0].engine_key == functions[1].fallbacks[0].engine_key


def test_what_the_sides_of_a_source_are_made_of_need_not_be_on_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sides are tiers and fallbacks."""
    (tmp_path / "beside_a_script.py").write_text(BESIDE_A_SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "also_beside_it.py").write_text(ALSO_BESIDE_IT)
    beside, near = importlib.import_module("beside_a_script"), importlib.import_module("also_beside_it")
    plan, _ = make_plan(
        tiers(near.Near(kind="json"), RedisConfig(kind="json")),
        1,
        beside.User,
        {
            "on_timeout": default(beside.User("nobody")),
            "on_error": beside.Ours(kind="json", returns=beside.User),
            "on_missing": beside.nobody,
        },
    )
    # Isolated, or Python would look for modules in the current folder, too.
    worker = subprocess.run([sys.executable, "-I", "-c", AS_ON_A_WORKER], input=pack(plan), capture_output=True)
    assert worker.returncode == 0, worker.stderr.decode()
    sides = ["Ours", "KeyFunctionConfig", "Near"]
    assert worker.stdout.decode().startswith(f"{{'on_timeout': {{'name': 'nobody'}}}} {sides} ")
    assert plan.options.policy("on_timeout") == default(None)
    assert [plan.options.policy(name) for name in ("on_error", "on_missing")] == ["null", "null"]


@pytest.mark.parametrize(
    ("returns", "value", "field", "declared"),
    [
        (ArrayType(StructType().add("item", STRING)), [{"item": "a"}, {"itme": "b"}], "itme", "item"),
        (StructType().add("user", StructType().add("name", STRING)), {"user": {"nmae": "a"}}, "nmae", "name"),
        (MapType(STRING, StructType().add("n", LongType())), {"a": {"n": 1}, "b": {"nn": 1}}, "nn", "n"),
    ],
    ids=["list", "struct", "map"],
)
def test_a_default_has_no_field_that_is_not_declared_at_any_depth(
    returns: Any, value: Any, field: str, declared: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(RedisConfig(kind="json"), 1, returns, {"on_missing": default(value)})
    assert str(caught.value) == (
        f"on_missing is default({value!r}), whose field {field!r} is not declared. Did you mean {declared!r}? Declared "
        f"are: {declared}. Rename it, or declare it with returns=."
    )


def test_a_comment_does_not_make_another_type() -> None:
    commented = StructType().add("name", STRING, metadata={"comment": "as in the passport"})
    backup = RedisConfig(kind="json", url="redis://backup", returns=StructType().add("name", STRING))
    plan, _ = make_plan(RedisConfig(kind="json"), 1, commented, {"on_error": backup})
    assert len(plan.fallbacks) == 1
