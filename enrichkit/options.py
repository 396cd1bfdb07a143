"""
The engine's options: one frozen dataclass, which the driver checks before any row is processed.

The module is long because each option is documented here.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias, TypedDict

from .errors import ConfigError, UnknownOptionError, did_you_mean
from .functions import signature_problem
from .interface import Connector, ConnectorConfig
from .journal.config import Journal
from .limits import Budget, Limit, Rate, requests_per_second

__all__ = [
    "MOST_BATCH_SIZE",
    "MOST_CAPACITY",
    "Cache",
    "Default",
    "Options",
    "OptionsDict",
    "Policy",
    "Preload",
    "Retry",
    "check_choice",
    "check_known",
    "default",
]

MOST_CAPACITY, MOST_BATCH_SIZE = 10_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Default:
    """A value for rows whose lookup has no answer. The function `default` makes it."""

    value: Any


def default(value: Any) -> Default:
    """
    Use *value* for rows whose lookup timed out, failed or found nothing; their status still says which of these it was.

    Args:
        value: A Python value of the declared type; checked on the driver.

    >>> default("unknown")
    Default(value='unknown')
    """
    return Default(value)


Policy: TypeAlias = str | Default | ConnectorConfig | Callable[[Any], Any]
"""
The fallback for a row without an answer: `"fail"` (the task fails), `"null"`, `default(value)`, a function of the key,
or another source, as its name or its config.
"""


@dataclass(frozen=True, slots=True)
class Retry:
    """
    When and how often a key is looked up again after a transient error.

    Attributes:
        attempts: Most calls for one key, the first call included; 1 to 100.
        wait: Longest wait before the second attempt, in seconds; 0 to 3,600.
        factor: Factor by which the longest wait grows with each further attempt; 1 to 100.
        wait_max: The longest wait never grows beyond this number of seconds; at least `wait`, at most 3,600.
        jitter: `"full"` draws each wait at random between 0 and the longest wait, which AWS recommends against retry
            storms; `"none"` always takes the longest wait.
        on_missing: Whether a key that the source does not hold is looked up again, too.

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
        _check_whole("Retry.attempts", self.attempts, 1, 100)
        _check_seconds("Retry.wait", self.wait, 0.0, 3600.0)
        _check_number("Retry.factor", self.factor, 1.0, 100.0)
        _check_seconds("Retry.wait_max", self.wait_max, 0.0, 3600.0)
        if self.wait_max < self.wait:
            raise ConfigError(
                f"Retry.wait_max is {self.wait_max}; it must be at least Retry.wait ({self.wait}). Raise wait_max."
            )
        check_choice("Retry.jitter", self.jitter, ("full", "none"))
        _check_flag("Retry.on_missing", self.on_missing)


@dataclass(frozen=True, slots=True)
class Cache:
    """
    How each worker process remembers answers, across tasks and micro-batches.

    Attributes:
        ttl: Most seconds for which a value may be used; 0.001 to 604,800 (a week).
        max_bytes: Most bytes of the cache, its hash tables included; the answers that are asked for least are removed
            first. 1 KiB to 1 TiB.
        missing_ttl: Seconds for which a miss is remembered, i.e. that the source does not hold a key. None: as long as
            a value; 0: not at all.
        jitter: The lifetime of each answer is shortened by a random share, which is at most this number, so that not
            all answers expire together; 0 to 0.9.
        stale_if_error: Seconds after its expiry for which a value may still be used if a new lookup fails or times out,
            or if the source is unavailable; 0 to 604,800. 0: not at all. The origin of such rows is `stale`.
        refresh_ahead: An answer that is still asked for is refreshed in the background before it expires. The number
            says how long before, on average, as a multiple of the time that a call takes; 0 to 1,000. 0: no answer is
            refreshed before it expires.

    >>> Cache(ttl=60, stale_if_error=3600)
    Cache(ttl=60, max_bytes=134217728, missing_ttl=None, jitter=0.1, stale_if_error=3600, refresh_ahead=0.0)
    """

    ttl: float
    max_bytes: int = 128 * 2**20
    missing_ttl: float | None = None
    jitter: float = 0.1
    stale_if_error: float = 0.0
    refresh_ahead: float = 0.0

    def __post_init__(self) -> None:
        _check_seconds("Cache.ttl", self.ttl, 0.001, 604_800.0)
        _check_whole("Cache.max_bytes", self.max_bytes, 1024, 2**40)
        if self.missing_ttl is not None:
            _check_seconds("Cache.missing_ttl", self.missing_ttl, 0.0, 604_800.0)
        _check_number("Cache.jitter", self.jitter, 0.0, 0.9)
        _check_seconds("Cache.stale_if_error", self.stale_if_error, 0.0, 604_800.0)
        _check_number("Cache.refresh_ahead", self.refresh_ahead, 0.0, 1_000.0)


_TIME_OF_DAY = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?")


@dataclass(frozen=True, slots=True)
class Preload:
    """
    How each worker process loads a whole source before its first lookup.

    Attributes:
        refresh: When the source is loaded again, while lookups still use the old answers: seconds between the end of a
            load and the next one, 0.001 to 604,800 (a week); or a time of each day, such as `"03:15"` or `"03:15Z"`
            (both UTC) or `"03:15+07:00"`. None: never.
        max_bytes: Most bytes of keys and values; a larger source fails the task. 1 KiB to 1 TiB. While a source is
            loaded again, its old and new answers together may take twice as many.
        on_refresh_error: What happens when the source cannot be loaded again: `"serve"` (lookups use the old answers
            until a later refresh succeeds) or `"fail"` (the tasks fail).

    >>> Preload(refresh=600)
    Preload(refresh=600, max_bytes=268435456, on_refresh_error='serve')
    """

    refresh: float | str | None = None
    max_bytes: int = 256 * 2**20
    on_refresh_error: str = "serve"

    def __post_init__(self) -> None:
        if isinstance(self.refresh, str):
            if _TIME_OF_DAY.fullmatch(self.refresh) is None:
                raise ConfigError(
                    f"Preload.refresh is {self.refresh!r}; a time of day has hours from 00 to 23 and minutes, and may "
                    "have an offset from UTC. Write '03:15', '03:15Z' or '03:15+07:00'."
                )
        elif self.refresh is not None:
            _check_seconds("Preload.refresh", self.refresh, 0.001, 604_800.0)
        _check_whole("Preload.max_bytes", self.max_bytes, 1024, 2**40)
        check_choice("Preload.on_refresh_error", self.on_refresh_error, ("serve", "fail"))

    def wait(self, now: dt.datetime) -> float | None:
        """
        Return the seconds from *now*, the end of a load, to the next load; None if there is no next load.

        >>> Preload("10:15+07:00").wait(dt.datetime(2026, 7, 30, 3, 14, tzinfo=dt.UTC))
        60.0
        """
        if not isinstance(self.refresh, str):
            return self.refresh
        at = dt.time.fromisoformat(self.refresh)
        zone = at.tzinfo or dt.UTC
        due = dt.datetime.combine(now.astimezone(zone).date(), at.replace(tzinfo=zone))
        return (due - now + (dt.timedelta(days=1) if due <= now else dt.timedelta())).total_seconds()


OF_FRAMES = ("many", "how", "ordered", "barrier", "into")
"""
Arguments of `enrich_frame` that users pass to `enrich` by mistake; the error message then points to `enrich_frame`.
"""


class OptionsDict(TypedDict, total=False):
    """The keywords of `enrich`, for type checkers; `Options` describes them."""

    capacity: int | Literal["auto"] | None
    max_capacity: int | None
    batch_size: int | None
    window: int | None
    window_bytes: int
    timeout: float | None
    attempt_timeout: float | Literal["p95"] | None
    on_timeout: Policy
    on_error: Policy
    on_missing: Policy
    max_fallback_ratio: float
    retry: Retry | None
    stall_timeout: float
    reuse: bool
    reuse_bytes: int
    preload: bool | Preload
    journal: Journal | None
    cache: Cache | None
    rate: float | Rate | None
    limit: Limit | None
    budget: Budget | None
    details: bool
    absent_fields: str
    show_keys: bool
    deterministic: bool
    carrier: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """
    How lookups are made: how many at a time, how long they may take, and what follows a failure. All durations are in
    seconds.

    Attributes:
        capacity: Most calls in flight per worker process, and the size of its connection pool; 1 to 10,000. A call
            whose keys have timed out is counted, too, until it has ended. None: the connector's default. `"auto"`: the
            engine finds the number between 1 and `max_capacity`, from the latency of the source and from the calls that
            the source refuses.
        max_capacity: Most calls in flight per worker process with `capacity="auto"`; 1 to 10,000. None: the connector's
            default capacity.
        batch_size: Most keys per call; 1 to the connector's maximum. None: the connector's default. A call has fewer
            keys if answers are so large that the answers to all calls in flight would fill more than half of
            `window_bytes`.
        window: Most rows of a task that may be under way: taken for lookup and not yet returned to Spark; 1 to
            100,000,000. None: 20,000, or 4 x `capacity` x `batch_size` if that is more. The factor is 10 instead of 4
            for a source that is faster if the keys of a call are neighbors in key order, such as PostgreSQL.
        window_bytes: Limit for the bytes of a task's answers that Spark has not taken yet. A task above this limit
            looks up only its oldest rows, and makes no new calls at all while finished rows wait for Spark.
        timeout: Seconds for one lookup, from the start of its first call to its outcome, retries and waits included;
            0.001 to 86,400. None: no limit, and then `attempt_timeout` is required.
        attempt_timeout: Seconds after which a key may be asked for again while its first call goes on; shorter than
            `timeout`. `"p95"`: hedged reads. If a call takes longer than 95 % of the last calls, its keys are asked for
            once more, and the first answer is used; this makes at most 2 % more calls.
        on_timeout: Value of a row whose lookup timed out: `"fail"` (the task fails), `"null"`, `default(value)`, a
            function of the key, or another source. Default: `"fail"`, or `"null"` with `details=True`.
        on_error: Value of a row whose lookup failed or whose key the source refuses; choices and default as for
            `on_timeout`.
        on_missing: Value of a row whose key the source does not hold; choices as for `on_timeout`.
        max_fallback_ratio: Largest share of a task's keys that may time out, fail or be refused, whatever `on_timeout`
            and `on_error` say. With a larger share the task fails, as soon as 100 of its keys are done. 1.0: the task
            fails at no share.
        retry: How a key is asked for again after a transient error. None: one attempt.
        stall_timeout: Seconds after which the task fails if the source is unavailable all this time, or if calls are
            held back all this time because they fail; 0.001 to 86,400.
        reuse: Whether an answer or a miss is used for all later rows of its task with the same key, so that a task asks
            for a key once. Errors and fallbacks are never kept. If there is a `cache`, it decides how long an answer is
            used.
        reuse_bytes: Most bytes of answers that a task keeps for `reuse`; the least recently used answers are removed
            first; 1024 to 2**40.
        preload: Whether each worker process loads the whole source before its first lookup, as `Preload` says; True
            means `Preload()`. For small tables.
        journal: Where answers are written, so that a task or job that runs again does not ask the source for them
            again; see `Journal`. None: nowhere.
        cache: How answers are remembered beyond the end of the task. None: there is no cache.
        rate: Calls per second per worker process, 0.001 to 1,000,000; or a `Rate`, per process or for the whole job.
            None: no limit.
        limit: Calls in flight of the whole job, as a `Limit`; each worker process has at most `capacity` of them. None:
            no limit.
        budget: The most that the whole job may spend, in tokens or in money, as a `Budget`; rows beyond it have the
            status `over_budget` and get what `on_error` says. For sources that say what a call costs, such as `llm`.
            None: no limit.
        details: Whether to return `struct<value, status, error, attempts, latency, origin>` instead of the value.
        absent_fields: What happens when a declared field, or the path in the config, is absent from all of the first 20
            answers of a task, or from all answers of a task that has fewer: `"fail"` (the task fails, because the name
            is probably misspelled), or `"null"`. While no answer has the field, the first 1,000 rows of a task wait for
            more answers, so that even `show(5)`, which needs few rows, fails. If some answers have the field, it is
            null for the other answers, with either choice.
        show_keys: Whether messages show keys instead of hashes of keys.
        deterministic: Whether Spark may move and repeat the expression, as join conditions and aggregates require.
        carrier: Format in which Spark and the Python worker exchange rows: `"arrow"`, `"pandas"`, or `"auto"`, which is
            Arrow if PySpark has `arrow_udf`, else pandas.
    """

    capacity: int | Literal["auto"] | None = None
    max_capacity: int | None = None
    batch_size: int | None = None
    window: int | None = None
    window_bytes: int = 64 * 2**20
    timeout: float | None = 10.0
    attempt_timeout: float | Literal["p95"] | None = None
    on_timeout: Policy | None = None
    on_error: Policy | None = None
    on_missing: Policy = "null"
    max_fallback_ratio: float = 0.5
    retry: Retry | None = field(default_factory=Retry)
    stall_timeout: float = 60.0
    reuse: bool = True
    reuse_bytes: int = 64 * 2**20
    preload: bool | Preload = False
    journal: Journal | None = None
    cache: Cache | None = None
    rate: float | Rate | None = None
    limit: Limit | None = None
    budget: Budget | None = None
    details: bool = False
    absent_fields: str = "fail"
    show_keys: bool = False
    deterministic: bool = False
    carrier: str = "auto"

    @classmethod
    def of(cls, given: dict[str, Any], function: str = "enrich()", arguments: Sequence[str] = ()) -> Options:
        """
        Return the options that the keywords *given* set.

        Args:
            given: Keywords of *function* besides its own arguments.
            function: The function that the user called, for messages.
            arguments: Names of the optional arguments of *function*, which the message suggests, too, for a misspelled
                keyword.

        Raises:
            ConfigError: An option is unknown or wrong.
        """
        check_known(given, [*arguments, *(f.name for f in fields(cls))], function)
        return cls(**given)

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_timeouts()
        self._check_fallbacks()
        self._check_retry_and_cache()
        self._check_preload()
        _check_seconds("stall_timeout", self.stall_timeout, 0.001, 86_400.0)
        if self.rate is not None and not isinstance(self.rate, Rate):
            _check_number("rate", self.rate, 0.001, 1_000_000.0)
        _check_instance("limit", self.limit, Limit, "Limit(50, per='job', store='redis')")
        _check_instance("budget", self.budget, Budget, "Budget(tokens=2_000_000, store='redis')")
        for name in ("reuse", "details", "show_keys", "deterministic"):
            _check_flag(name, getattr(self, name))
        check_choice("absent_fields", self.absent_fields, ("fail", "null"))
        check_choice("carrier", self.carrier, ("auto", "arrow", "pandas"))

    def _check_sizes(self) -> None:
        if self.max_capacity is not None and not self.tuned:
            raise ConfigError(
                f"max_capacity is {self.max_capacity!r}, but capacity is {self.capacity!r}. Set capacity='auto', or "
                "leave max_capacity out."
            )
        if self.capacity is not None and not self.tuned:
            _check_whole("capacity", self.capacity, 1, MOST_CAPACITY, other=", or 'auto'")
        sizes = (("max_capacity", MOST_CAPACITY), ("batch_size", MOST_BATCH_SIZE), ("window", 100_000_000))
        for name, most in sizes:
            value = getattr(self, name)
            if value is not None:
                _check_whole(name, value, 1, most)
        for name in ("window_bytes", "reuse_bytes"):
            _check_whole(name, getattr(self, name), 1024, 2**40)

    def _check_timeouts(self) -> None:
        if self.timeout is not None:
            _check_seconds("timeout", self.timeout, 0.001, 86_400.0)
        if self.attempt_timeout is not None and not self.hedged:
            _check_seconds("attempt_timeout", self.attempt_timeout, 0.001, 86_400.0, other=", or 'p95'")
        attempt_timeout = self.seconds_of_attempt
        if self.timeout is None and attempt_timeout is None:
            raise ConfigError(
                "timeout is None, so a lookup may take for ever; attempt_timeout must then be set to a number of "
                "seconds, for example attempt_timeout=30.0."
            )
        if self.timeout is not None and attempt_timeout is not None and attempt_timeout >= self.timeout:
            raise ConfigError(
                f"attempt_timeout is {attempt_timeout}; it must be shorter than timeout ({self.timeout}), which "
                "covers all attempts. Lower attempt_timeout or raise timeout."
            )

    def _check_fallbacks(self) -> None:
        for name in ("on_timeout", "on_error", "on_missing"):
            if getattr(self, name) is not None or name == "on_missing":
                _check_policy(name, getattr(self, name))
        _check_number("max_fallback_ratio", self.max_fallback_ratio, 0.0, 1.0)

    def _check_retry_and_cache(self) -> None:
        _check_instance("retry", self.retry, Retry, "Retry(attempts=3)")
        _check_instance("cache", self.cache, Cache, "Cache(ttl=60)")
        _check_instance("journal", self.journal, Journal, "Journal('/data/answers', run_id='2026-07-30')")
        retry = self.retry
        if retry and retry.attempts > 1 and retry.jitter == "none" and retry.wait >= (self.timeout or math.inf):
            raise ConfigError(
                f"Retry.wait is {retry.wait}; it must be shorter than timeout ({self.timeout}), or no second attempt "
                "ever happens. Lower wait or raise timeout."
            )

    def _check_preload(self) -> None:
        if not isinstance(self.preload, bool | Preload):
            raise ConfigError(
                f"preload is {self.preload!r}; it must be True, False or a Preload, for example Preload(refresh=600)."
            )
        for name in ("cache", "journal"):
            if self.preload and getattr(self, name) is not None:
                raise ConfigError(
                    f"preload comes with {name}; a source that is loaded before the first lookup needs no {name}, "
                    f"which would keep the same answers once more. Leave {name} or preload out."
                )

    @property
    def loads(self) -> Preload | None:
        """How the source is loaded before the first lookup; None if it is not loaded."""
        return self.preload if isinstance(self.preload, Preload) else Preload() if self.preload else None

    @property
    def tuned(self) -> bool:
        """Whether the engine finds the capacity by itself, from the latency of the source."""
        return self.capacity == "auto"

    @property
    def hedged(self) -> bool:
        """Whether the keys of a call that is slow for its source are asked for once more."""
        return self.attempt_timeout == "p95"

    @property
    def seconds_of_attempt(self) -> float | None:
        """Seconds after which a key may be asked again while its first call goes on; None: not set, or `"p95"`."""
        return None if isinstance(self.attempt_timeout, str) else self.attempt_timeout

    @property
    def longest_wait(self) -> float | None:
        """
        Most seconds of a lookup (`timeout`) or, if that is None, of an attempt (`attempt_timeout`); one of them is
        always set.
        """
        return self.timeout or self.seconds_of_attempt

    @property
    def calls_per_second(self) -> float | None:
        """The calls per second that `rate` allows, to a worker process or to the whole job; None: no limit."""
        return requests_per_second(self.rate)

    def policy(self, name: str) -> Policy:
        """Return the effective fallback of the option *name*: `on_timeout`, `on_error` or `on_missing`."""
        policy: Policy | None = getattr(self, name)
        if policy is not None:
            return policy
        return "null" if self.details else "fail"


LIKENESS = 0.65
"""
Least similarity of an unknown name to an option at which a message suggests the option. At 0.6, the usual value, `url`
would count as similar to `journal`.
"""


def check_known(names: Iterable[str], known: Sequence[str], function: str) -> None:
    """Raise an `UnknownOptionError` with a hint when one of *names* is not in *known*, the keywords of *function*."""
    for name in names:
        if name not in known:
            if name in OF_FRAMES:
                raise UnknownOptionError(
                    f"{function} has no option {name!r}, because a column has one value for each row, in the order of "
                    f"the rows. enrich_frame(df, source, on=..., {name}=...) has it."
                )
            raise UnknownOptionError(
                f"{function} has no option {name!r}.{did_you_mean(name, known, LIKENESS)} Options: {', '.join(known)}. "
                "What concerns the source belongs to its config."
            )


def check_choice(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """
    Raise a `ConfigError` when the *value* of the option *name* is not in *allowed*, which holds texts, True or False.
    """
    # True and False are compared by identity, because 1 is equal to True.
    if any(value is choice or (isinstance(choice, str) and value == choice) for choice in allowed):
        return
    texts = [choice for choice in allowed if isinstance(choice, str)]
    hint = did_you_mean(value, texts) if isinstance(value, str) else ""
    raise ConfigError(
        f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.{hint} "
        f"Set {name.split('.')[-1]}={allowed[0]!r}."
    )


def _check_whole(name: str, value: Any, low: int, high: int, *, other: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        short = name.split(".")[-1]
        above = isinstance(value, int) and value > high
        raise ConfigError(
            f"{name} is {value!r}; it must be a whole number from {low:,} to {high:,}{other}. "
            f"Set {short}={f'{high:d} or less' if above else f'{low:d} or more'}."
        )


def _check_number(name: str, value: Any, low: float, high: float, unit: str = "", *, other: str = "") -> None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or not low <= value <= high:
        most = f"{high:,.0f}" if high >= 1_000 else f"{high:g}"  # `:g` would show 1e+06
        what = f"a number{unit} from {low:,g} to {most}"
        raise ConfigError(
            f"{name} is {value!r}; it must be {what}{other}, for example {name.split('.')[-1]}={_example(low, high)}."
        )


def _check_seconds(name: str, value: Any, low: float, high: float, *, other: str = "") -> None:
    _check_number(name, value, low, high, " of seconds", other=other)


def _example(low: float, high: float) -> float:
    return next(candidate for candidate in (1.0, 0.5, low, high) if low <= candidate <= high)


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be True or False, for example {name.split('.')[-1]}=True.")


def _check_instance(name: str, value: Any, cls: type, example: str) -> None:
    if value is not None and not isinstance(value, cls):
        raise ConfigError(f"{name} is {value!r}; it must be {cls.__name__}(...) or None, for example {name}={example}.")


def _check_policy(name: str, value: Any) -> None:
    # Any text but "" is accepted here, because it may be the name of a source, which the planner looks up. Classes are
    # callable, too, so a check of callables alone would accept two mistakes: the class of a config or connector instead
    # of a config, and `default` instead of `default(value)`.
    is_slip = value is default or (isinstance(value, type) and issubclass(value, ConnectorConfig | Connector | Default))
    if is_slip or value == "" or not (isinstance(value, str | Default | ConnectorConfig) or callable(value)):
        raise ConfigError(
            f"{name} is {value!r}; it must be 'fail', 'null', default(value), a function of the key, or a source: its "
            f"config or its name. For example {name}='null'."
        )
    if callable(value) and not isinstance(value, ConnectorConfig):
        _check_function(name, value)


def _check_function(name: str, function: Callable[[Any], Any]) -> None:
    problem = signature_problem(function, "a key")
    if problem is not None:
        raise ConfigError(
            f"{name} is the function {problem} It gets one argument, a tuple if there are several key columns. For "
            f"example {name}=lambda key: None."
        )
