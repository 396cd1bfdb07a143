"""The engine's options: what each takes, and the whole text of what it says to anything else."""

from __future__ import annotations

import dataclasses
import functools
import math
import pickle
import typing
from typing import Any

import pytest

from enrichkit import Cache, Connector, ConnectorConfig, Options, Retry, default
from enrichkit.errors import ConfigError, UnknownOptionError, did_you_mean
from enrichkit.options import Default, OptionsDict


def refusal(**given: Any) -> str:
    """The message that refuses *given*."""
    with pytest.raises(ConfigError) as caught:
        Options.of(given)
    return str(caught.value)


WHOLE = {
    "capacity": ("1 to 10,000, or 'auto'", 1, 10_000),
    "batch_size": ("1 to 1,000,000", 1, 1_000_000),
    "window": ("1 to 100,000,000", 1, 100_000_000),
    "window_bytes": ("1,024 to 1,099,511,627,776", 1024, 2**40),
}
SECONDS = {
    "timeout": ("0.001 to 86,400", 0.001, 86_400),
    "attempt_timeout": ("0.001 to 86,400", 0.001, 86_400),
    "stall_timeout": ("0.001 to 86,400", 0.001, 86_400),
}
FLAGS = ("details", "show_keys", "deterministic")
POLICIES = ("on_timeout", "on_error", "on_missing")


# --- all of them


def test_the_defaults_are_those_that_the_documentation_names() -> None:
    options = Options()
    assert dataclasses.asdict(options) == {
        "capacity": None,
        "max_capacity": None,
        "batch_size": None,
        "window": None,
        "window_bytes": 64 * 2**20,
        "timeout": 10.0,
        "attempt_timeout": None,
        "on_timeout": None,
        "on_error": None,
        "on_missing": "null",
        "max_fallback_ratio": 0.5,
        "retry": {
            "attempts": 3,
            "wait": 0.05,
            "factor": 2.0,
            "wait_max": 5.0,
            "jitter": "full",
            "on_missing": False,
        },
        "stall_timeout": 60.0,
        "reuse": True,
        "reuse_bytes": 64 * 2**20,
        "preload": False,
        "journal": None,
        "cache": None,
        "rate": None,
        "limit": None,
        "budget": None,
        "details": False,
        "absent_fields": "fail",
        "show_keys": False,
        "deterministic": False,
        "carrier": "auto",
    }


def test_type_checkers_know_the_same_options() -> None:
    assert [f.name for f in dataclasses.fields(Options)] == list(typing.get_type_hints(OptionsDict))


def test_options_travel() -> None:
    options = Options(timeout=1, retry=Retry(attempts=5), cache=Cache(ttl=3), on_error=default({"name": "?"}))
    assert options == pickle.loads(pickle.dumps(options))


@pytest.mark.parametrize(
    ("name", "hint"),
    [("timeuot", " Did you mean 'timeout'?"), ("on_eror", " Did you mean 'on_error'?"), ("zzz", "")],
)
def test_an_unknown_option_is_named_with_the_closest_one(name: str, hint: str) -> None:
    assert refusal(**{name: 1}) == (
        f"enrich() has no option {name!r}.{hint} Options: capacity, max_capacity, batch_size, window, "
        "window_bytes, timeout, attempt_timeout, on_timeout, on_error, on_missing, max_fallback_ratio, retry, "
        "stall_timeout, reuse, reuse_bytes, preload, journal, cache, rate, limit, budget, "
        "details, absent_fields, show_keys, deterministic, carrier. What concerns the source belongs to its config."
    )


def test_an_unknown_option_is_a_type_error_too() -> None:
    with pytest.raises(TypeError):
        Options.of({"timeuot": 1})
    assert issubclass(UnknownOptionError, ValueError)


@pytest.mark.parametrize(("name", "hint"), [("redsi", " Did you mean 'redis'?"), ("mongo", ""), ("", "")])
def test_a_hint_is_given_only_when_something_is_close(name: str, hint: str) -> None:
    assert hint == did_you_mean(name, ["redis", "http"])


# --- whole numbers


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_number_takes_both_ends_of_its_range(name: str) -> None:
    _, low, high = WHOLE[name]
    assert (low, high) == (getattr(Options(**{name: low}), name), getattr(Options(**{name: high}), name))


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", ["8", 8.0, True, math.nan, [8]])
def test_a_whole_number_is_nothing_else(name: str, value: Any) -> None:
    text, low, _ = WHOLE[name]
    assert refusal(**{name: value}) == (
        f"{name} is {value!r}; it must be a whole number from {text}. Set {name}={low} or more."
    )


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_number_out_of_its_range_is_told_the_nearest_one(name: str) -> None:
    text, low, high = WHOLE[name]
    for value, right in ((low - 1, f"{low} or more"), (-5, f"{low} or more"), (high + 1, f"{high} or less")):
        assert refusal(**{name: value}) == (
            f"{name} is {value!r}; it must be a whole number from {text}. Set {name}={right}."
        )


def test_window_bytes_cannot_be_switched_off() -> None:
    assert refusal(window_bytes=None) == (
        "window_bytes is None; it must be a whole number from 1,024 to 1,099,511,627,776. Set window_bytes=1024 or "
        "more."
    )


# --- seconds and other numbers


@pytest.mark.parametrize("name", SECONDS)
def test_seconds_take_both_ends_of_their_range_and_whole_numbers(name: str) -> None:
    _, low, high = SECONDS[name]
    others = {"timeout": None} if name == "attempt_timeout" else {}
    for value in (low, 1, high):
        assert value == getattr(Options(**others, **{name: value}), name)


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", ["10", True, math.nan, math.inf, 0, -1.0, 86_401, 1j])
def test_seconds_are_a_finite_number_in_their_range(name: str, value: Any) -> None:
    text, _, _ = SECONDS[name]
    other = ", or 'p95'" if name == "attempt_timeout" else ""
    assert refusal(**{name: value}) == (
        f"{name} is {value!r}; it must be a number of seconds from {text}{other}, for example {name}=1.0."
    )


@pytest.mark.parametrize("value", ["1", True, -0.1, 1.1, math.nan, None])
def test_max_fallback_ratio_is_a_share(value: Any) -> None:
    assert refusal(max_fallback_ratio=value) == (
        f"max_fallback_ratio is {value!r}; it must be a number from 0 to 1, for example max_fallback_ratio=1.0."
    )


def test_max_fallback_ratio_takes_both_ends_of_its_range() -> None:
    assert [Options(max_fallback_ratio=value).max_fallback_ratio for value in (0, 1)] == [0, 1]


@pytest.mark.parametrize("value", ["1", True, 0, -1.0, 1_000_001, math.inf])
def test_rate_is_a_number_of_calls(value: Any) -> None:
    assert (
        refusal(rate=value) == f"rate is {value!r}; it must be a number from 0.001 to 1,000,000, for example rate=1.0."
    )


def test_rate_takes_both_ends_of_its_range_and_none() -> None:
    assert [Options(rate=value).rate for value in (0.001, 1_000_000, None)] == [0.001, 1_000_000, None]


# --- flags, policies, the carrier


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", ["yes", 1, 0, None])
def test_a_flag_is_true_or_false(name: str, value: Any) -> None:
    assert refusal(**{name: value}) == f"{name} is {value!r}; it must be True or False, for example {name}=True."


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_fail_null_a_default_a_function_or_a_source(name: str) -> None:
    """A name that is none of the first two is looked for where sources are; see `test_fallbacks.py`."""
    for value in ("fail", "null", default("?"), default(None), "users", ConnectorConfig(), str.upper, lambda key: key):
        assert value == Options(**{name: value}).policy(name)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(
    "value",
    ["", 0, True, [], default, Default, ConnectorConfig, Connector],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_a_policy_is_nothing_else(name: str, value: Any) -> None:
    assert refusal(**{name: value}) == (
        f"{name} is {value!r}; it must be 'fail', 'null', default(value), a function of the key, or a source: its "
        f"config or its name. For example {name}='null'."
    )


@pytest.mark.parametrize("name", POLICIES)
def test_a_function_takes_the_key_and_nothing_else(name: str) -> None:
    """T18: testIncompatibleTimeoutSignatureFailsFast."""

    def two(tenant: str, user: str) -> None: ...

    assert refusal(**{name: two}) == (
        f"{name} is the function two(tenant: 'str', user: 'str') -> 'None', which cannot be called with a key alone: "
        "missing a required argument: 'user'. It gets one argument, a tuple if there are several key columns. For "
        f"example {name}=lambda key: None."
    )
    for one in (lambda key, more=None: None, functools.partial(two, "tenant"), {1: 2}.get, str, int):
        assert one == Options(**{name: one}).policy(name)


def test_what_a_function_holds_is_not_in_the_message() -> None:
    def ask(url: str, key: int, more: int, password: str = "hunter2") -> None: ...

    assert refusal(on_error=functools.partial(ask, "redis://me:hunter2@host")) == (
        "on_error is the function ask(key: 'int', more: 'int', password: 'str') -> 'None', which cannot be called with "
        "a key alone: missing a required argument: 'more'. It gets one argument, a tuple if there are several key "
        "columns. For example on_error=lambda key: None."
    )


def test_on_missing_has_no_default_that_depends_on_anything() -> None:
    """None would read as "not given", and what is not given fails the task for the two other policies."""
    assert refusal(on_missing=None) == (
        "on_missing is None; it must be 'fail', 'null', default(value), a function of the key, or a source: its "
        "config or its name. For example on_missing='null'."
    )


def test_timeouts_and_errors_fail_the_task_unless_their_status_is_visible() -> None:
    for details, policy in ((False, "fail"), (True, "null")):
        options = Options(details=details)
        assert [policy, policy, "null"] == [options.policy(name) for name in POLICIES]
        given = Options(details=details, on_timeout="fail", on_error="null")
        assert [given.policy(name) for name in POLICIES] == ["fail", "null", "null"]


@pytest.mark.parametrize("carrier", ["auto", "arrow", "pandas"])
def test_the_carrier_is_one_of_three(carrier: str) -> None:
    assert carrier == Options(carrier=carrier).carrier


@pytest.mark.parametrize(
    ("value", "hint"), [("panda", " Did you mean 'pandas'?"), ("polars", ""), (None, ""), ([], "")]
)
def test_the_carrier_is_nothing_else(value: Any, hint: str) -> None:
    assert refusal(carrier=value) == (
        f"carrier is {value!r}; it must be one of 'auto', 'arrow', 'pandas'.{hint} Set carrier='auto'."
    )


@pytest.mark.parametrize(("value", "hint"), [("Null", " Did you mean 'null'?"), ("keep", ""), (None, "")])
def test_absent_fields_fail_or_are_null(value: Any, hint: str) -> None:
    assert Options(absent_fields="null").absent_fields == "null"
    assert refusal(absent_fields=value) == (
        f"absent_fields is {value!r}; it must be one of 'fail', 'null'.{hint} Set absent_fields='fail'."
    )


# --- options that depend on each other


def test_a_lookup_must_end_at_some_time() -> None:
    assert refusal(timeout=None) == (
        "timeout is None, so a lookup may take for ever; attempt_timeout must then be set to a number of "
        "seconds, for example attempt_timeout=30.0."
    )
    assert refusal(timeout=None, attempt_timeout="p95") == refusal(timeout=None)
    assert Options(timeout=None, attempt_timeout=30).attempt_timeout == 30


def test_hedged_reads_are_written_in_one_way() -> None:
    options = Options(attempt_timeout="p95")
    assert (options.hedged, options.seconds_of_attempt, options.longest_wait) == (True, None, 10.0)
    assert refusal(attempt_timeout="p99") == (
        "attempt_timeout is 'p99'; it must be a number of seconds from 0.001 to 86,400, or 'p95', for example "
        "attempt_timeout=1.0."
    )


@pytest.mark.parametrize("attempt_timeout", [2, 3])
def test_an_attempt_is_shorter_than_the_lookup(attempt_timeout: int) -> None:
    assert refusal(timeout=2, attempt_timeout=attempt_timeout) == (
        f"attempt_timeout is {attempt_timeout}; it must be shorter than timeout (2), which covers all attempts. "
        "Lower attempt_timeout or raise timeout."
    )


def test_a_second_attempt_must_be_possible() -> None:
    assert refusal(timeout=1.0, retry=Retry(wait=1.0, jitter="none")) == (
        "Retry.wait is 1.0; it must be shorter than timeout (1.0), or no second attempt ever happens. Lower wait or "
        "raise timeout."
    )
    assert Options(timeout=1.0, retry=Retry(wait=1.0)).timeout == 1.0, "jitter may draw a shorter wait"
    assert Options(timeout=1.0, retry=Retry(attempts=1, wait=1.0, jitter="none")).timeout == 1.0


# --- Retry and Cache


@pytest.mark.parametrize("value", [3, True, "3", {"attempts": 3}, Retry])
def test_retry_is_a_retry_or_none(value: Any) -> None:
    assert refusal(retry=value) == (
        f"retry is {value!r}; it must be Retry(...) or None, for example retry=Retry(attempts=3)."
    )


def test_no_retry_is_said_with_none() -> None:
    assert Options(retry=None).retry is None


@pytest.mark.parametrize("value", [60, True, {"ttl": 60}, Cache])
def test_cache_is_a_cache_or_none(value: Any) -> None:
    assert (
        refusal(cache=value) == f"cache is {value!r}; it must be Cache(...) or None, for example cache=Cache(ttl=60)."
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"attempts": 0}, "Retry.attempts is 0; it must be a whole number from 1 to 100. Set attempts=1 or more."),
        (
            {"attempts": 101},
            "Retry.attempts is 101; it must be a whole number from 1 to 100. Set attempts=100 or less.",
        ),
        ({"attempts": 2.0}, "Retry.attempts is 2.0; it must be a whole number from 1 to 100. Set attempts=1 or more."),
        ({"wait": -1}, "Retry.wait is -1; it must be a number of seconds from 0 to 3,600, for example wait=1.0."),
        ({"wait": "1"}, "Retry.wait is '1'; it must be a number of seconds from 0 to 3,600, for example wait=1.0."),
        ({"factor": 0.5}, "Retry.factor is 0.5; it must be a number from 1 to 100, for example factor=1.0."),
        ({"factor": math.inf}, "Retry.factor is inf; it must be a number from 1 to 100, for example factor=1.0."),
        (
            {"wait_max": 3601},
            "Retry.wait_max is 3601; it must be a number of seconds from 0 to 3,600, for example wait_max=1.0.",
        ),
        (
            {"wait": 2, "wait_max": 1},
            "Retry.wait_max is 1; it must be at least Retry.wait (2). Raise wait_max.",
        ),
        (
            {"jitter": "ful"},
            "Retry.jitter is 'ful'; it must be one of 'full', 'none'. Did you mean 'full'? Set jitter='full'.",
        ),
        ({"jitter": None}, "Retry.jitter is None; it must be one of 'full', 'none'. Set jitter='full'."),
        ({"on_missing": 1}, "Retry.on_missing is 1; it must be True or False, for example on_missing=True."),
    ],
)
def test_a_wrong_retry_says_what_is_right(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Retry(**given)
    assert said == str(caught.value)


def test_a_retry_takes_the_ends_of_its_ranges() -> None:
    assert Retry(attempts=1, wait=0, factor=1, wait_max=0, jitter="none", on_missing=True).attempts == 1
    assert Retry(attempts=100, wait=3600, factor=100, wait_max=3600).attempts == 100


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ttl": 0}, "Cache.ttl is 0; it must be a number of seconds from 0.001 to 604,800, for example ttl=1.0."),
        (
            {"ttl": None},
            "Cache.ttl is None; it must be a number of seconds from 0.001 to 604,800, for example ttl=1.0.",
        ),
        (
            {"ttl": 604_801},
            "Cache.ttl is 604801; it must be a number of seconds from 0.001 to 604,800, for example ttl=1.0.",
        ),
        ({"ttl": 1, "jitter": 1.0}, "Cache.jitter is 1.0; it must be a number from 0 to 0.9, for example jitter=0.5."),
        (
            {"ttl": 1, "stale_if_error": -1},
            (
                "Cache.stale_if_error is -1; it must be a number of seconds from 0 to 604,800, for example "
                "stale_if_error=1.0."
            ),
        ),
        (
            {"ttl": 1, "refresh_ahead": None},
            "Cache.refresh_ahead is None; it must be a number from 0 to 1,000, for example refresh_ahead=1.0.",
        ),
        (
            {"ttl": 1, "max_bytes": 1000},
            (
                "Cache.max_bytes is 1000; it must be a whole number from 1,024 to 1,099,511,627,776. Set "
                "max_bytes=1024 or more."
            ),
        ),
        (
            {"ttl": 1, "missing_ttl": -1},
            "Cache.missing_ttl is -1; it must be a number of seconds from 0 to 604,800, for example missing_ttl=1.0.",
        ),
    ],
)
def test_a_wrong_cache_says_what_is_right(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cache(**given)
    assert said == str(caught.value)


def test_a_cache_takes_the_ends_of_its_ranges() -> None:
    assert Cache(ttl=0.001, max_bytes=1024, missing_ttl=0).missing_ttl == 0
    assert Cache(ttl=604_800, max_bytes=2**40, missing_ttl=604_800).missing_ttl == 604_800


@pytest.mark.parametrize("name", ["many", "how", "ordered", "barrier", "into"])
def test_an_argument_of_enrich_frame_leads_there(name: str) -> None:
    assert refusal(**{name: True}) == (
        f"enrich() has no option {name!r}, because a column has one value for each row, in the order of the rows. "
        f"enrich_frame(df, source, on=..., {name}=...) has it."
    )


# --- a capacity that is found


def test_a_capacity_may_be_found() -> None:
    assert Options(capacity="auto").tuned
    assert Options(capacity="auto", max_capacity=30).max_capacity == 30
    assert not Options(capacity=8).tuned


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"capacity": "automatic"},
            "capacity is 'automatic'; it must be a whole number from 1 to 10,000, or 'auto'. Set capacity=1 or more.",
        ),
        (
            {"max_capacity": 5},
            "max_capacity is 5, but capacity is None. Set capacity='auto', or leave max_capacity out.",
        ),
        (
            {"capacity": "auto", "max_capacity": 0},
            "max_capacity is 0; it must be a whole number from 1 to 10,000. Set max_capacity=1 or more.",
        ),
    ],
)
def test_a_capacity_that_is_found_has_a_most(given: dict[str, Any], message: str) -> None:
    assert refusal(**given) == message
