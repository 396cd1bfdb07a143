"""What `explain` says about options, read whole, and that its arithmetic is the engine's."""

from __future__ import annotations

import re
import textwrap
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from enrichkit_redis import RedisConfig

from enrichkit import (
    Cache,
    ConfigError,
    Connector,
    ConnectorConfig,
    Options,
    Retry,
    Secret,
    UnknownConnectorError,
    default,
    describe,
    explain,
    register,
    tiers,
)
from enrichkit.engine.engine import Engine
from enrichkit.engine.run import Run
from enrichkit.errors import UnknownOptionError


@dataclass(frozen=True, kw_only=True)
class StockConfig(ConnectorConfig):
    """Of a source that is never opened."""

    url: str = "stock://localhost"
    password: str | Secret | None = field(default=None)

    @property
    def key_parts(self) -> int:
        return 2


class StockConnector(Connector[StockConfig]):
    name = "stock"
    config_class = StockConfig
    capacity = 4
    batch_size = 100
    max_batch_size = 1000
    key_types = (str, int)

    async def open(self) -> None:
        raise AssertionError


class OneShotConfig(ConnectorConfig):
    """Of a source that must not be asked twice."""


class OneShotConnector(Connector[OneShotConfig]):
    name = "one-shot"
    config_class = OneShotConfig
    repeatable = False


def text(block: str) -> str:
    return textwrap.dedent(block).strip("\n")


def options_of(explanation: Any) -> dict[str, tuple[Any, str]]:
    return {setting.name: (setting.value, setting.origin) for setting in explanation.settings}


# --- explain: the text


def test_without_numbers_it_says_what_the_options_are() -> None:
    assert str(explain(StockConfig())) == text("""
        enrich('stock', ...), connector 'stock'

        Options and where they come from; durations in seconds
          capacity            connector  4
          max_capacity        default    None
          batch_size          connector  100
          window              default    20,000
          window_bytes        default    67,108,864
          timeout             default    10
          attempt_timeout     default    None
          on_timeout          default    'fail'
          on_error            default    'fail'
          on_missing          default    'null'
          max_fallback_ratio  default    0.5
          retry               default    attempts 3, wait 0.05, factor 2, wait_max 5,
                                         jitter 'full', on_missing False
          stall_timeout       default    60
          reuse               default    True
          reuse_bytes         default    67,108,864
          preload             default    False
          journal             default    None
          cache               default    None
          rate                default    None
          limit               default    None
          budget              default    None
          details             default    False
          absent_fields       default    'fail'
          show_keys           default    False
          deterministic       default    False
          carrier             default    'auto'

        In flight, on the whole cluster
          calls  4 = capacity 4 x 1 task slot x 1 expression of the stage, and up to as
                 many connections
          keys   400 = 4 calls x batch_size 100
          task_slots= is not given, so these are the numbers of one task at a time.

        Time of one lookup
          A lookup has 10 s from its first call on, retries and waits included.
          While calls fail at once, attempts start (sooner, as jitter draws):
            attempt 1  at 0 s
            attempt 2  by 0.05 s
            attempt 3  by 0.15 s
          All 3 attempts fit when no call takes longer than 3.28 s.
          A call that does not answer takes all of the time: attempt_timeout is None.
          A call that still runs 20 s after its start is cancelled.

        Calls
          Give keys= (distinct keys) or rows= for an estimate.
    """)


def test_with_numbers_it_says_what_the_job_comes_to(fresh_registry: None) -> None:
    register("prices", StockConfig())
    explanation = explain(
        "prices",
        keys=100_000,
        rows=2_000_000,
        task_slots=16,
        expressions=2,
        latency=0.02,
        timeout=0.5,
        attempt_timeout=0.1,
        batch_size=500,
        rate=10,
        retry=Retry(attempts=10, wait=0.1),
        cache=Cache(ttl=60),
        details=True,
        on_missing=default("unknown"),
    )
    assert str(explanation) == text("""
        enrich('prices', ...), connector 'stock'

        Options and where they come from; durations in seconds
          capacity            connector  4
          max_capacity        default    None
          batch_size          given      500
          window              default    20,000
          window_bytes        default    67,108,864
          timeout             given      0.5
          attempt_timeout     given      0.1
          on_timeout          details    'null'
          on_error            details    'null'
          on_missing          given      default('unknown')
          max_fallback_ratio  default    0.5
          retry               given      attempts 10, wait 0.1, factor 2, wait_max 5,
                                         jitter 'full', on_missing False
          stall_timeout       default    60
          reuse               default    True
          reuse_bytes         default    67,108,864
          preload             default    False
          journal             default    None
          cache               given      ttl 60, max_bytes 134,217,728, missing_ttl
                                         None, jitter 0.1, stale_if_error 0,
                                         refresh_ahead 0
          rate                given      10
          limit               default    None
          budget              default    None
          details             given      True
          absent_fields       default    'fail'
          show_keys           default    False
          deterministic       default    False
          carrier             default    'auto'

        In flight, on the whole cluster
          calls  128 = capacity 4 x 16 task slots x 2 expressions of the stage, and up
                 to as many connections
          keys   64,000 = 128 calls x batch_size 500
          rate   320 calls per second = 10 x 16 task slots x 2 expressions of the stage

        Time of one lookup
          A lookup has 0.5 s from its first call on, retries and waits included.
          While calls fail at once, attempts start (sooner, as jitter draws):
            attempt 1   at 0 s
            attempt 2   by 0.1 s
            attempt 3   by 0.3 s
            attempt 4   by 0.7 s, unless timeout comes first
            attempt 5   by 1.5 s, unless timeout comes first
            attempt 6   by 3.1 s, unless timeout comes first
            ...
            attempt 10  by 21.3 s, unless timeout comes first
          While calls do not answer, keys are asked for again after attempt_timeout, 0.1
          s, and the wait: 2 of 10 attempts start in time.
          A call that still runs 5.5 s after its start is cancelled.

        Calls
          distinct keys  100,000 on 2,000,000 rows
          asked for      100,000 to 1,600,000
          calls          200 to 3,200, if each has 500 keys
          time           at least 1.25 s with calls of 0.02 s, because of rate
          The least is when no key is on rows of several tasks; the most is when every
          worker process asks for every key, once as long as its cache keeps it.
          What a worker's cache holds from before is not asked for again.
          Retries come on top: in the long run at most one for five calls.
    """)


def test_the_text_is_what_it_shows_at_the_prompt_and_never_wider_than_80_columns() -> None:
    explanation = explain(
        StockConfig(),
        keys=10**9,
        rows=10**12,
        task_slots=10_000,
        expressions=20,
        rate=1e6,
        timeout=86_400.0,
        attempt_timeout=3600.0,
        retry=Retry(attempts=100, wait=3600.0, wait_max=3600.0),
        on_missing=default("a value that is rather long " * 6),
    )
    assert str(explanation) == repr(explanation)
    assert [] == [line for line in str(explanation).splitlines() if len(line) > 80 or line != line.rstrip()]


def section(name: str, *args: Any, **options: Any) -> str:
    parts = str(explain(*args, **options)).split("\n\n")
    return next(part.partition("\n")[2] for part in parts if part.startswith(name))


def test_attempts_without_jitter_start_at_times_that_are_known_and_may_never_come() -> None:
    retry = Retry(attempts=4, wait=0.5, jitter="none")
    assert section("Time", StockConfig(), timeout=2.0, retry=retry) == (
        "  A lookup has 2 s from its first call on, retries and waits included.\n"
        "  While calls fail at once, attempts start:\n"
        "    attempt 1  at 0 s\n"
        "    attempt 2  at 0.5 s\n"
        "    attempt 3  at 1.5 s\n"
        "    attempt 4  never: 3.5 s is after timeout\n"
        "  A call that does not answer takes all of the time: attempt_timeout is None.\n"
        "  A call that still runs 7 s after its start is cancelled."
    )


def test_hedged_reads_are_told() -> None:
    assert (
        "  A call that takes longer than 95 % of the last ones is made once more, in at\n  most 2 % more calls.\n"
    ) in section("Time", StockConfig(), attempt_timeout="p95")


def test_without_retries_and_without_a_timeout_calls_have_the_only_limit() -> None:
    assert section("Time", StockConfig(), timeout=None, attempt_timeout=600.0, retry=None) == (
        "  timeout is None: a lookup has no time limit, only its calls have.\n"
        "  A key is asked for once; nothing is retried.\n"
        "  A call that still runs 1,200 s (20 min) after its start is cancelled."
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"keys": 1000},
            (
                "  distinct keys  1,000\n"
                "  asked for      1,000 or more\n"
                "  calls          10 or more, if each has 100 keys\n"
                "  time           at least 3 times the latency of a call (latency= is not given)\n"
                "  It is more when a key is on rows of several tasks."
            ),
        ),
        (
            {"keys": 1000, "reuse": False},
            (
                "  distinct keys  1,000\n"
                "  asked for      1,000 or more\n"
                "  calls          10 or more, if each has 100 keys\n"
                "  time           at least 3 times the latency of a call (latency= is not given)\n"
                "  It is more when a key is on rows of several tasks, or of several windows of\n"
                "  one task."
            ),
        ),
        (
            {"keys": 10_000, "rows": 1_000_000, "task_slots": 4, "latency": 0.5},
            (
                "  distinct keys  10,000 on 1,000,000 rows\n"
                "  asked for      10,000 to 1,000,000\n"
                "  calls          100 to 10,000, if each has 100 keys\n"
                "  time           at least 3.5 s with calls of 0.5 s\n"
                "  The least is when no key is on rows of several tasks; the most is when every\n"
                "  row asks.\n"
                "  If the keys are spread over all rows, 4 tasks ask for about 40,000 keys, and\n"
                "  more tasks for more. enrich_frame(..., shuffle=True) asks for 10,000, and\n"
                "  shuffles the rows once."
            ),
        ),
        (
            {"rows": 1000, "task_slots": 8, "latency": 0.5},
            (
                "  distinct keys  1,000 on 1,000 rows\n"
                "  asked for      1,000\n"
                "  calls          10, if each has 100 keys\n"
                "  time           at least 0.5 s with calls of 0.5 s"
            ),
        ),
        (
            {"keys": 1, "rows": 10, "batch_size": 1, "rate": 0.5},
            (
                "  distinct keys  1 on 10 rows\n"
                "  asked for      1 to 10\n"
                "  calls          1 to 10, if each has 1 key\n"
                "  time           at least the latency of a call (latency= is not given), and at\n"
                "                 least 2 s because of rate\n"
                "  The least is when no key is on rows of several tasks; the most is when every\n"
                "  row asks."
            ),
        ),
    ],
    ids=["keys", "no-reuse", "shuffle", "rows", "one-key"],
)
def test_the_estimate_is_for_the_numbers_that_are_given(given: dict[str, Any], said: str) -> None:
    assert said == section("Calls", StockConfig(), retry=None, **given)


def test_what_is_asked_before_the_source_comes_on_top(fresh_registry: None) -> None:
    register("near", OneShotConfig())
    source = tiers("near", OneShotConfig(), StockConfig(), timeout=2.0)
    assert section("In flight", source, task_slots=2).endswith(
        "  and    up to 16 = 8 x 2 task slots x 1 expression of the stage, of 'near',\n"
        "         which is asked first\n"
        "  and    up to 16 = 8 x 2 task slots x 1 expression of the stage, of 'one-shot',\n"
        "         which is asked first"
    )
    assert section("Time", source, retry=None).startswith(
        "  A lookup has 10 s from its first call on, retries and waits included.\n"
        "  Before that 'near' and 'one-shot' may take up to 4 s of it; a tier that fails\n"
        "  is left out.\n"
    )


def test_what_is_asked_in_place_of_the_source_comes_on_top(fresh_registry: None) -> None:
    register("archive", OneShotConfig())

    def last_word(key: Any) -> Any:
        return key

    options: Any = {"on_timeout": "archive", "on_missing": "archive", "on_error": last_word, "task_slots": 2}
    assert section("In flight", StockConfig(), **options) == (
        "  calls  8 = capacity 4 x 2 task slots x 1 expression of the stage, and up to as\n"
        "         many connections\n"
        "  keys   800 = 8 calls x batch_size 100\n"
        "  and    up to 16 = 8 x 2 task slots x 1 expression of the stage, of 'archive',\n"
        "         which is asked for some keys\n"
        "  and    up to 16 = 8 x 2 task slots x 1 expression of the stage, of the\n"
        "         function last_word, which is asked for some keys"
    )
    assert section("Time", StockConfig(), **options).endswith(
        "  A fallback that is asked has 10 s of its own, after that.\n"
        "  A call that still runs 20 s after its start is cancelled."
    )


def test_fallbacks_of_one_name_are_counted_together(fresh_registry: None) -> None:
    assert {"the function <lambda>": 16} == explain(
        StockConfig(), on_timeout=lambda key: 1, on_error=lambda key: 2, on_missing="null"
    ).fallbacks
    one, other = StockConfig(url="stock://one"), StockConfig(url="stock://other")
    options: Any = {"on_timeout": one, "on_error": other, "on_missing": lambda key: 1, "task_slots": 2}
    assert {"'stock'": 8, "the function <lambda>": 8} == explain(OneShotConfig(), **options).fallbacks
    assert "up to 16 = 8 x 2 task slots x 1 expression of the stage, of 'stock'," in " ".join(
        section("In flight", OneShotConfig(), **options).split()
    )


def test_a_fallback_that_several_options_name_is_counted_once_as_it_is_asked_once(fresh_registry: None) -> None:
    def last_word(key: Any) -> Any:
        return key

    register("archive", StockConfig(url="stock://archive"))
    same: Any = StockConfig(url="stock://archive", returns="string")  # all fallbacks have the type of the column
    explained = explain(OneShotConfig(), on_timeout="archive", on_error=same, on_missing=last_word)
    assert {"'archive'": 4, "the function last_word": 8} == explained.fallbacks
    assert {"the function last_word": 8} == explain(OneShotConfig(), on_error=last_word, on_missing=last_word).fallbacks


# --- explain: the numbers


def test_every_option_is_there_with_its_value_and_origin() -> None:
    explained = options_of(explain(StockConfig()))
    assert [option.name for option in fields(Options)] == list(explained)
    worked_out = {"capacity": 4, "batch_size": 100, "window": 20_000, "on_timeout": "fail", "on_error": "fail"}
    for option in fields(Options):
        usual = option.default_factory() if option.default_factory is not MISSING else option.default
        origin = "connector" if option.name in ("capacity", "batch_size") else "default"
        assert (worked_out.get(option.name, usual), origin) == explained[option.name]


def test_the_window_grows_with_capacity_and_batch_size() -> None:
    explained = options_of(explain(StockConfig(), capacity=50, batch_size=1000))
    assert (50, "given") == explained["capacity"]
    assert (200_000, "default") == explained["window"]
    assert (7, "given") == options_of(explain(StockConfig(), window=7))["window"]


def test_the_window_of_a_source_with_neighbours_is_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StockConnector, "neighbours", True)
    assert (20_000, "default") == options_of(explain(StockConfig()))["window"]
    assert (500_000, "default") == options_of(explain(StockConfig(), capacity=50, batch_size=1000))["window"]


def test_none_that_is_given_where_it_means_the_default_is_the_default() -> None:
    explained = options_of(explain(StockConfig(), capacity=None, on_error=None, cache=None, retry=None))
    assert [(4, "connector"), ("fail", "default")] == [explained["capacity"], explained["on_error"]]
    assert [(None, "given"), (None, "given")] == [explained["cache"], explained["retry"]]


@pytest.mark.parametrize("timeout", [0.5, 4.0, 30.0, 86_400.0])
def test_the_hard_limit_is_that_of_the_engine(timeout: float) -> None:
    engine = Mock(spec=Engine, now=lambda: 0.0)
    run = Run(engine, "stock", Options(timeout=timeout), lambda raws: (raws, {}), lambda parts: None)
    assert run.hard_limit == explain(StockConfig(), timeout=timeout).hard_limit


def test_a_job_takes_at_least_as_long_as_its_calls_one_after_the_other() -> None:
    estimate = explain(StockConfig(), keys=100_001, task_slots=5).estimate
    assert estimate is not None
    assert ((1001, None), 51) == (estimate.calls, estimate.rounds)
    assert 25.5 == estimate.floor(0.5)


def test_a_cache_bounds_the_lookups_by_keys_and_worker_processes() -> None:
    bounds = [
        explain(StockConfig(), keys=100, rows=rows, task_slots=8, cache=Cache(ttl=60)).estimate
        for rows in (None, 10_000, 500)
    ]
    assert [(100, 800), (100, 800), (100, 500)] == [bound.lookups for bound in bounds if bound is not None]


def test_a_function_is_shown_by_its_name_and_a_secret_not_at_all() -> None:
    def first_letter(key: Any) -> Any:
        return key

    backup = StockConfig(password="hunter2", url="stock://me:hunter2@host")
    shown = " ".join(str(explain(StockConfig(), on_missing=first_letter, on_error=backup)).split())
    assert "on_missing given the function first_letter" in shown
    assert "on_error given StockConfig(returns=None, url='stock://***@host', password=***)" in shown
    assert "hunter2" not in shown


# --- explain: what is refused


def refusal(source: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        explain(source, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", ["keys", "rows", "task_slots", "expressions"])
@pytest.mark.parametrize("wrong", [0, -1, 2.5, "8", True])
def test_a_number_of_things_is_a_whole_number(name: str, wrong: Any) -> None:
    assert refusal(StockConfig(), **{name: wrong}) == (
        f"{name} is {wrong!r}; it must be a whole number from 1 on. For example {name}=8."
    )


@pytest.mark.parametrize("wrong", [0, -0.1, float("nan"), float("inf"), "20ms"])
def test_a_latency_is_a_number_of_seconds(wrong: Any) -> None:
    assert refusal(StockConfig(), latency=wrong) == (
        f"latency is {wrong!r}; it must be a number of seconds above 0. For example latency=0.02."
    )


def test_there_are_no_more_keys_than_rows() -> None:
    assert refusal(StockConfig(), keys=2000, rows=1000) == (
        "keys is 2,000 and rows is 1,000; there are at most as many distinct keys as rows. Lower keys."
    )


def test_what_enrich_refuses_is_refused() -> None:
    wrong: Any = {"timeuot": 1.0}
    with pytest.raises(UnknownOptionError, match=r"has no option 'timeuot'\. Did you mean 'timeout'\?"):
        explain(StockConfig(), **wrong)
    with pytest.raises(UnknownConnectorError, match=r"^No connector is named 'stok'\."):
        explain("stok")
    assert refusal(StockConfig(), batch_size=1001) == (
        "batch_size is 1,001; the connector 'stock' takes at most 1,000 keys per call. Set batch_size=1000."
    )
    assert refusal(StockConfig(), on_missing="nul").startswith(
        "on_missing is 'nul'; it must be 'fail', 'null', default(value), a function of the key, or a source: its "
        "config or its name. Did you mean 'null'?"
    )
    assert refusal(OneShotConfig(), attempt_timeout="p95") == (
        "attempt_timeout is 'p95', but a call to 'one-shot' must not be made twice (its OneShotConfig says so). Leave "
        "attempt_timeout out, or declare the call idempotent."
    )
    assert refusal(OneShotConfig(), attempt_timeout=1.0) == (
        "attempt_timeout is 1.0, but a call to 'one-shot' must not be made twice (its OneShotConfig says so). Leave "
        "attempt_timeout out, or declare the call idempotent."
    )


# --- describe; where the type is DDL it needs a session, see spark/test_describe.py


def test_a_source_is_described_without_its_secrets() -> None:
    from pyspark.sql import types as t

    value = t.StructType(
        [
            t.StructField("name", t.StringType()),
            t.StructField("price", t.DecimalType(10, 2)),
            t.StructField("days", t.ArrayType(t.StructType([t.StructField(f"d{n}", t.DateType()) for n in range(9)]))),
        ]
    )
    config = StockConfig(url="stock://me:hunter2@localhost:9999", password="hunter2")
    assert str(describe(config, returns=value)) == text("""
        The source 'stock'
          connector  stock
          key        2 columns
                     of the Python types str, int
          calls      100 keys per call (at most 1,000)
                     4 calls in flight per worker process
          config     StockConfig(returns=None, url='stock://***@localhost:9999',
                     password=***)
          value      a struct, from returns=:
                       name   string
                       price  decimal(10, 2)
                       days   array<struct<d0:date, d1:date, d2:date, d3:date, d4:date,
                              d5:date, d6:date, d7:date, d8:date>>
    """)


def test_a_name_that_leaves_no_room_has_its_type_below() -> None:
    from pyspark.sql import types as t

    def shown(*names: str) -> str:
        value = t.StructType([t.StructField(name, t.DecimalType(10, 2)) for name in names])
        return textwrap.dedent(str(describe(OneShotConfig(), returns=value)).partition("returns=:\n")[2])

    long, longer = "b" * 44, "c" * 99
    assert (
        shown("name", long, longer)
        == f"name  decimal(10, 2)\n{long}\n      decimal(10, 2)\n{longer}\n      decimal(10, 2)"
    )
    assert shown(long) == f"{long}\n  decimal(10, 2)"


@pytest.mark.parametrize("length", [1, 43, 44, 55, 62, 63, 64, 65, 130])
def test_a_type_has_room_whatever_the_length_of_its_name(length: int) -> None:
    from pyspark.sql import types as t

    value = t.StructType([t.StructField("n" * length, t.TimestampNTZType()), t.StructField("m", t.DateType())])
    described = str(describe(OneShotConfig(), returns=value))
    assert "timestamp_ntz" in described, "it is on one line"
    assert max(map(len, described.splitlines())) <= max(80, 15 + length)


def test_a_plain_value_is_one_line() -> None:
    from pyspark.sql.types import LongType

    description = describe(OneShotConfig(), returns=LongType())
    assert str(description) == text("""
        The source 'one-shot'
          connector  one-shot
          key        one or more columns
          calls      1 key per call (at most 1)
                     8 calls in flight per worker process
          config     OneShotConfig(returns=None)
          value      bigint
                     from returns=
    """)
    assert repr(description) == str(description)
    assert (LongType(), None, 1) == (description.value, description.key_columns, description.max_batch_size)


def test_a_secret_that_is_a_reference_is_shown_as_one() -> None:
    from pyspark.sql.types import LongType

    config = StockConfig(password=Secret.env("STOCK_PASSWORD"))
    described = describe(config, returns=LongType()).config
    assert described.endswith("password=Secret.env('STOCK_PASSWORD'))")


# --- explain: its keywords


def test_the_keywords_of_explain_are_no_options_and_have_a_row_on_the_page_of_options() -> None:
    own = {**explain.__kwdefaults__}
    assert own.pop("returns") is None
    assert set() == own.keys() & {option.name for option in fields(Options)}
    page = (Path(__file__).parent.parent / "docs" / "options.md").read_text()
    table = re.search(r"^\| keyword \| default \| meaning \|\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert table is not None
    assert {name: str(usual) for name, usual in own.items()} == dict(
        re.findall(r"^\| `(\w+)` \| `(.*?)` \|", table[1], re.MULTILINE)
    )


def test_a_capacity_that_is_found_is_at_most_what_is_said() -> None:
    found = explain(StockConfig(), capacity="auto", task_slots=2)
    assert "max_capacity        connector  4" in str(found)
    assert "calls  at most 8 = capacity 4 x 2 task slots" in str(found)
    assert "max_capacity        given      30" in str(explain(StockConfig(), capacity="auto", max_capacity=30))


def test_a_source_that_can_be_listed_may_be_loaded_or_joined_instead() -> None:
    config = RedisConfig(key="user:{}")
    text = " ".join(section("Calls", config, keys=50_000, rows=1_000_000, task_slots=16).split())
    assert (
        "Lookups ask for 50,000 keys or more. preload=True reads the whole source in each of 16 worker processes: it "
        "costs less up to 3,125 keys in the source (50,000 / 16). A broadcast join reads the source once in all and "
        "costs less up to 50,000 keys, if each executor has the memory and the values may be as old as the job; so "
        "does a JDBC join with a table of a database, which needs no memory but shuffles all rows. Beyond that, "
        "lookups do."
    ) in text
    assert "preload" not in section("Calls", StockConfig(), keys=50_000, task_slots=16)


def test_a_source_that_is_loaded_is_not_asked_for_keys() -> None:
    text = " ".join(section("Calls", RedisConfig(), keys=50_000, preload=True).split())
    assert text == (
        "Each worker process loads the whole source once, before its first lookup, over one connection, and finds the "
        "keys of all its tasks in memory. The source is asked only for keys that the load could not answer."
    )
    with pytest.raises(ConfigError, match="has no scan, which lists the keys"):
        explain(StockConfig(), preload=True)


def test_tiers_leave_time_for_the_last_source(fresh_registry: None) -> None:
    register("near", OneShotConfig())
    assert refusal(tiers("near", StockConfig(), timeout=2.0), timeout=2.0) == (
        "The tiers may take 2 s for a key, tiers(timeout=2) each; it must be less than the option timeout (2 s), or "
        "nothing is left for the last source. Lower the one or raise the other."
    )


@pytest.mark.parametrize(
    ("sources", "options", "message"),
    [
        (
            ("near",),
            {},
            (
                "tiers() was given 'near'; it must be given two or more sources, each a name or a config, for example "
                "tiers('redis', 'users')."
            ),
        ),
        (
            (),
            {},
            (
                "tiers() was given no source; it must be given two or more sources, each a name or a config, for "
                "example tiers('redis', 'users')."
            ),
        ),
        (
            ("near", 7),
            {},
            (
                "tiers() was given 'near', 7; it must be given two or more sources, each a name or a config, for "
                "example tiers('redis', 'users')."
            ),
        ),
        (("a", "b"), {"write_back": 1}, "tiers(write_back=) is 1; it must be True or False, for example True."),
        (
            ("a", "b"),
            {"ttl": 60},
            "tiers(ttl=) is 60, but nothing is written. Set write_back=True, or leave ttl out.",
        ),
        (
            ("a", "b"),
            {"ttl": 0.5, "write_back": True},
            "tiers(ttl=) is 0.5; it must be a number of seconds from 1 to 31,536,000, for example ttl=1.0.",
        ),
        (
            ("a", "b"),
            {"timeout": True},
            "tiers(timeout=) is True; it must be a number of seconds from 0.001 to 3,600, for example timeout=1.0.",
        ),
    ],
)
def test_tiers_say_what_is_wrong(sources: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tiers(*sources, **options)
    assert str(caught.value) == message
