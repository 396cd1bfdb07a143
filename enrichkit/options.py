"""The engine's options: one frozen dataclass, checked on the driver before any row moves; long by its documentation."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, TypedDict

from .connector import Connector, ConnectorConfig
from .errors import ConfigError, UnknownOptionError
from .key_function import not_of_one_argument

__all__ = [
    "MOST_BATCH_SIZE",
    "MOST_CAPACITY",
    "Cache",
    "Default",
    "Options",
    "OptionsDict",
    "Policy",
    "Retry",
    "default",
    "did_you_mean",
]

MOST_CAPACITY, MOST_BATCH_SIZE = 10_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Default:
    """The value that takes the place of one that could not be had. Made by `default`."""

    value: Any


def default(value: Any) -> Default:
    """
    Use *value* where a lookup timed out, failed or found nothing; the status still tells what happened.

    Args:
        value: A Python value of the declared type; checked on the driver.

    >>> default("unknown")
    Default(value='unknown')
    """
    return Default(value)


Policy: TypeAlias = str | Default | ConnectorConfig | Callable[[Any], Any]
"""
What a row gets instead of a value: `"fail"` (the task), `"null"`, `default(value)`, what a function of the key returns,
or what another source holds, which is named or given as its config.
"""


@dataclass(frozen=True, slots=True)
class Retry:
    """
    When and how often a key is asked again after a transient error.

    Attributes:
        attempts: Calls for one key, the first included; 1 to 100.
        wait: Seconds before the second attempt; 0 to 3,600.
        factor: Each further wait is this much longer; 1 to 100.
        wait_max: Longest wait, in seconds; at least `wait`.
        jitter: `"full"` draws each wait from 0 to its length, as AWS advises against retry storms; `"none"` does not.
        on_missing: Ask again also when the source does not hold the key.

    >>> Retry(attempts=5, wait=0.1)
    Retry(attempts=5, wait=0.1, factor=2.0, wait_max=5.0, jitter='full', on_missing=False)
    """

    attempts: int = 3
    wait: float = 0.05
    factor: float = 2.0
    wait_max: float = 5.0
    jitter: str = "full"
    on_missing: bool = False

    def __post_init__(self) -> None:
        _whole("Retry.attempts", self.attempts, 1, 100)
        _seconds("Retry.wait", self.wait, 0.0, 3600.0)
        _number("Retry.factor", self.factor, 1.0, 100.0)
        _seconds("Retry.wait_max", self.wait_max, 0.0, 3600.0)
        if self.wait_max < self.wait:
            raise ConfigError(
                f"Retry.wait_max is {self.wait_max}; it must be at least Retry.wait ({self.wait}). Raise wait_max."
            )
        _choice("Retry.jitter", self.jitter, ("full", "none"))
        _flag("Retry.on_missing", self.on_missing)


@dataclass(frozen=True, slots=True)
class Cache:
    """
    Remember answers in each worker process, across tasks and micro-batches.

    Attributes:
        ttl: Seconds that a value may be used; 0.001 to 604,800 (a week).
        max_bytes: Most bytes of keys and values; the oldest leave first. 1 KiB to 1 TiB.
        missing_ttl: Seconds that a miss is remembered; None: as long as a value; 0: not at all.

    >>> Cache(ttl=60)
    Cache(ttl=60, max_bytes=134217728, missing_ttl=None)
    """

    ttl: float
    max_bytes: int = 128 * 2**20
    missing_ttl: float | None = None

    def __post_init__(self) -> None:
        _seconds("Cache.ttl", self.ttl, 0.001, 604_800.0)
        _whole("Cache.max_bytes", self.max_bytes, 1024, 2**40)
        if self.missing_ttl is not None:
            _seconds("Cache.missing_ttl", self.missing_ttl, 0.0, 604_800.0)


class OptionsDict(TypedDict, total=False):
    """The keywords of `enrich`, for type checkers; `Options` describes them."""

    capacity: int | None
    batch_size: int | None
    window: int | None
    window_bytes: int
    timeout: float | None
    attempt_timeout: float | None
    on_timeout: Policy
    on_error: Policy
    on_missing: Policy
    max_fallback_ratio: float
    retry: Retry | None
    stall_timeout: float
    cache: Cache | None
    rate: float | None
    details: bool
    show_keys: bool
    deterministic: bool
    carrier: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """
    How lookups flow. All durations in seconds.

    Attributes:
        capacity: Calls in flight per worker process, late ones included, and the size of the connection pool; 1 to
            10,000. None: the connector's.
        batch_size: Keys per call; 1 to the connector's maximum. None: the connector's.
        window: Rows admitted and not yet emitted, per task; 1 to 100,000,000.
            None: 20,000, or 4 x `capacity` x `batch_size` if that is more; 10 x for a source with neighbours, as
            PostgreSQL.
        window_bytes: Bytes of answers not yet emitted, per task, above which only the oldest rows are looked up.
        timeout: One lookup from its first slot to its outcome, retries and waits included; 0.001 to 86,400.
            None: unbounded, and then `attempt_timeout` is required.
        attempt_timeout: After it a key may be asked again while its first call goes on; shorter than `timeout`.
        on_timeout: What a row gets whose lookup timed out: `"fail"` (the task), `"null"`, `default(value)`, a function
            of the key, or another source. `"fail"`, or `"null"` with `details=True`, when not given.
        on_error: What a row gets whose lookup failed or whose key the source refuses. Likewise.
        on_missing: What a row gets whose key the source does not hold: the same choices.
        max_fallback_ratio: When more than this share of a task's keys, from the 100th on, timed out, failed or were
            refused, the task fails, whatever `on_timeout` and `on_error` say; 1.0: never.
        retry: After transient errors; None: one attempt.
        stall_timeout: How long a failing source may hold calls back before the task fails; 0.001 to 86,400.
        cache: Remember answers; None: do not.
        rate: Calls per second per worker process; 0.001 to 1,000,000. None: no limit.
        details: Return `struct<value, status, error, attempts, latency, origin>` instead of the value.
        show_keys: Show keys in messages instead of a hash of them.
        deterministic: Let Spark move and repeat the expression, as join conditions and aggregates need.
        carrier: `"arrow"`, `"pandas"`, or `"auto"`: Arrow where PySpark has `arrow_udf`.
    """

    capacity: int | None = None
    batch_size: int | None = None
    window: int | None = None
    window_bytes: int = 64 * 2**20
    timeout: float | None = 10.0
    attempt_timeout: float | None = None
    on_timeout: Policy | None = None
    on_error: Policy | None = None
    on_missing: Policy = "null"
    max_fallback_ratio: float = 0.5
    retry: Retry | None = field(default_factory=Retry)
    stall_timeout: float = 60.0
    cache: Cache | None = None
    rate: float | None = None
    details: bool = False
    show_keys: bool = False
    deterministic: bool = False
    carrier: str = "auto"

    @classmethod
    def of(cls, given: dict[str, Any]) -> Options:
        """Return the options *given* as keywords; raises `ConfigError` with a hint for a misspelt one."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise UnknownOptionError(
                    f"enrich() has no option {name!r}.{did_you_mean(name, known)} Options: {', '.join(known)}. "
                    "What concerns the source belongs to its config."
                )
        return cls(**given)

    def __post_init__(self) -> None:
        if self.capacity is not None:
            _whole("capacity", self.capacity, 1, MOST_CAPACITY)
        if self.batch_size is not None:
            _whole("batch_size", self.batch_size, 1, MOST_BATCH_SIZE)
        if self.window is not None:
            _whole("window", self.window, 1, 100_000_000)
        _whole("window_bytes", self.window_bytes, 1024, 2**40)
        if self.timeout is not None:
            _seconds("timeout", self.timeout, 0.001, 86_400.0)
        if self.attempt_timeout is not None:
            _seconds("attempt_timeout", self.attempt_timeout, 0.001, 86_400.0)
        if self.timeout is None and self.attempt_timeout is None:
            raise ConfigError(
                "timeout is None, so a lookup may take for ever; attempt_timeout must then be set, for example "
                "attempt_timeout=30.0."
            )
        if self.timeout is not None and self.attempt_timeout is not None and self.attempt_timeout >= self.timeout:
            raise ConfigError(
                f"attempt_timeout is {self.attempt_timeout}; it must be shorter than timeout ({self.timeout}), which "
                "covers all attempts. Lower attempt_timeout or raise timeout."
            )
        for name in ("on_timeout", "on_error", "on_missing"):
            if getattr(self, name) is not None or name == "on_missing":
                _policy(name, getattr(self, name))
        _number("max_fallback_ratio", self.max_fallback_ratio, 0.0, 1.0)
        _instance("retry", self.retry, Retry, "Retry(attempts=3)")
        _instance("cache", self.cache, Cache, "Cache(ttl=60)")
        retry = self.retry
        if retry and retry.attempts > 1 and retry.jitter == "none" and retry.wait >= (self.timeout or math.inf):
            raise ConfigError(
                f"Retry.wait is {retry.wait}; it must be shorter than timeout ({self.timeout}), or no second attempt "
                "ever happens. Lower wait or raise timeout."
            )
        _seconds("stall_timeout", self.stall_timeout, 0.001, 86_400.0)
        if self.rate is not None:
            _number("rate", self.rate, 0.001, 1_000_000.0)
        for name in ("details", "show_keys", "deterministic"):
            _flag(name, getattr(self, name))
        _choice("carrier", self.carrier, ("auto", "arrow", "pandas"))

    def policy(self, name: str) -> Policy:
        """Return the effective `on_timeout`, `on_error` or `on_missing`."""
        given: Policy | None = getattr(self, name)
        if given is not None:
            return given
        return "null" if self.details else "fail"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` when one of *known* looks like *name*, else an empty text."""
    known = list(known)
    close = [other for other in known if other.lower() == name.lower()] or difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _whole(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        short = name.split(".")[-1]
        above = isinstance(value, int) and value > high
        raise ConfigError(
            f"{name} is {value!r}; it must be a whole number from {low:,} to {high:,}. "
            f"Set {short}={f'{high:d} or less' if above else f'{low:d} or more'}."
        )


def _number(name: str, value: Any, low: float, high: float, unit: str = "") -> None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or not low <= value <= high:
        what = f"a number{unit} from {low:,g} to {high:,g}"
        raise ConfigError(
            f"{name} is {value!r}; it must be {what}, for example {name.split('.')[-1]}={_example(low, high)}."
        )


def _seconds(name: str, value: Any, low: float, high: float) -> None:
    _number(name, value, low, high, " of seconds")


def _example(low: float, high: float) -> float:
    return next(candidate for candidate in (1.0, 0.5, low, high) if low <= candidate <= high)


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be True or False, for example {name.split('.')[-1]}=True.")


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        options = ", ".join(map(repr, allowed))
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise ConfigError(
            f"{name} is {value!r}; it must be one of {options}.{hint} Set {name.split('.')[-1]}={allowed[0]!r}."
        )


def _instance(name: str, value: Any, cls: type, example: str) -> None:
    if value is not None and not isinstance(value, cls):
        raise ConfigError(f"{name} is {value!r}; it must be {cls.__name__}(...) or None, for example {name}={example}.")


def _policy(name: str, value: Any) -> None:
    # A name is looked for where sources are. Classes can be called, but the one of a source is a slip for its config,
    # and so is default without its value.
    slip = value is default or (isinstance(value, type) and issubclass(value, ConnectorConfig | Connector | Default))
    if slip or value == "" or not (isinstance(value, str | Default | ConnectorConfig) or callable(value)):
        raise ConfigError(
            f"{name} is {value!r}; it must be 'fail', 'null', default(value), a function of the key, or a source: its "
            f"config or its name. For example {name}='null'."
        )
    if callable(value) and not isinstance(value, ConnectorConfig):
        _function_of_the_key(name, value)


def _function_of_the_key(name: str, function: Callable[[Any], Any]) -> None:
    fault = not_of_one_argument(function, "a key")
    if fault is not None:
        raise ConfigError(
            f"{name} is the function {fault} It gets one argument, a tuple if there are several key columns. For "
            f"example {name}=lambda key: None."
        )
