"""`explain()`: what the options come to, in numbers, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Unpack

from .config import find_source
from .connector import ConnectorConfig
from .engine.run import DAY, HARD_LIMIT_EXTRA, HARD_LIMIT_FACTOR
from .errors import ConfigError
from .estimate import Attempt, Estimate, attempts, estimate
from .fallbacks import capacities
from .options import Cache, Default, Options, OptionsDict, Retry
from .plan import limits_of
from .report import Report, count, paragraph, plural, seconds, table
from .secrets import redact

if TYPE_CHECKING:
    from .connector import Returns

__all__ = ["Explanation", "Setting", "explain"]

SHOWN_ATTEMPTS = 8


@dataclass(frozen=True)
class Setting:
    """One option: its effective value, and where that came from: `given`, `connector`, `default` or `details`."""

    name: str
    value: Any
    origin: str


@dataclass(frozen=True, repr=False)
class Explanation(Report):
    """
    What `explain` worked out; `str` of it is the text.

    Attributes:
        source: Name of the source.
        connector: Name of its connector.
        options: As checked.
        settings: The effective options, in the order of `Options`.
        capacity: Calls in flight per worker process.
        batch_size: Keys per call.
        task_slots: Tasks that run at a time; None: not given, and the numbers are those of one.
        expressions: Enrich expressions in the stage.
        fallbacks: For each source or function that is asked when this one has no answer, its calls in flight per
            worker process; those of the same name together.
        attempts: The attempts of a key, also those that start after `timeout`, which are never made.
        hard_limit: Seconds after which a call is cancelled.
        estimate: For the keys or rows that were given; None: neither was.
        latency: Seconds of one call, as given.
    """

    source: str
    connector: str
    options: Options
    settings: tuple[Setting, ...]
    capacity: int
    batch_size: int
    task_slots: int | None
    expressions: int
    fallbacks: Mapping[str, int]
    attempts: tuple[Attempt, ...]
    hard_limit: float
    estimate: Estimate | None
    latency: float | None

    def __str__(self) -> str:
        parts = [
            [f"enrich({self.source!r}, ...), connector {self.connector!r}"],
            [
                "Options and where they come from; durations in seconds",
                *table([(s.name, s.origin, _shown(s.value)) for s in self.settings]),
            ],
            ["In flight, on the whole cluster", *_in_flight(self)],
            ["Time of one lookup", *_deadline(self)],
            ["Calls", *_calls(self)],
        ]
        return "\n\n".join("\n".join(part) for part in parts)


def explain(
    source: str | ConnectorConfig,
    *,
    keys: int | None = None,
    rows: int | None = None,
    task_slots: int | None = None,
    expressions: int = 1,
    latency: float | None = None,
    returns: Returns | None = None,
    **options: Unpack[OptionsDict],
) -> Explanation:
    """
    Say what `enrich` with these *options* comes to: what is in flight, which attempts fit, how many calls; print it.

    Nothing is asked and nothing runs: neither a Spark session nor the source is needed.

    Args:
        source: Name of a source, or its config.
        keys: Distinct keys in the data, an estimate; None: as many as *rows*.
        rows: Rows in the data.
        task_slots: Tasks that run at a time on the cluster, executors x cores; Spark does not tell. None: as for one.
        expressions: Enrich expressions in one stage of the query; each has worker processes of its own.
        latency: Seconds that one call takes, for the time that the job takes at least.
        returns: As for `enrich`, so that a call can be copied; not looked at, because no number depends on it.
        options: As for `enrich`.

    Raises:
        UnknownConnectorError: Nothing is named *source*. On the driver.
        ConfigError: An argument, option or config is wrong. On the driver.

    >>> print(explain("users", keys=50_000, task_slots=16, timeout=0.5))
    enrich('users', ...), connector 'http'
    ...
    >>> explain("users", keys=50_000, task_slots=16).estimate.calls
    (100, None)
    """
    for name, number in (("keys", keys), ("rows", rows), ("task_slots", task_slots), ("expressions", expressions)):
        if (number is not None or name == "expressions") and (type(number) is not int or number < 1):
            raise ConfigError(f"{name} is {number!r}; it must be a whole number from 1 on. For example {name}=8.")
    if latency is not None and not (type(latency) in (int, float) and 0 < latency < math.inf):
        raise ConfigError(f"latency is {latency!r}; it must be a number of seconds above 0. For example latency=0.02.")
    if keys is not None and rows is not None and keys > rows:
        raise ConfigError(
            f"keys is {keys:,} and rows is {rows:,}; there are at most as many distinct keys as rows. Lower keys."
        )
    checked = Options.of({**options})
    name, connector, config = find_source(source)
    instance = connector(config)
    capacity, batch_size, window = limits_of(name, instance, checked)
    limits = {"capacity": capacity, "batch_size": batch_size, "window": window}
    wanted = keys or rows
    limit = checked.timeout or checked.attempt_timeout or DAY
    return Explanation(
        source=name,
        connector=connector.name,
        options=checked,
        settings=tuple(_setting(field.name, checked, limits, options) for field in fields(checked)),
        capacity=capacity,
        batch_size=batch_size,
        task_slots=task_slots,
        expressions=expressions,
        fallbacks=capacities(checked),
        attempts=tuple(attempts(checked.retry)),
        hard_limit=min(DAY, max(HARD_LIMIT_FACTOR * limit, limit + HARD_LIMIT_EXTRA)),
        estimate=None if wanted is None else estimate(wanted, rows, task_slots, checked, capacity, batch_size),
        latency=latency,
    )


def _setting(name: str, options: Options, limits: Mapping[str, int], given: Mapping[str, Any]) -> Setting:
    value = getattr(options, name)
    if name in given and (value is not None or name not in (*limits, "on_timeout", "on_error")):
        return Setting(name, value, "given")
    if name in limits:
        return Setting(name, limits[name], "default" if name == "window" else "connector")
    if name in ("on_timeout", "on_error"):
        return Setting(name, options.policy(name), "details" if options.details else "default")
    return Setting(name, value, "default")


def _shown(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return count(value)
    if isinstance(value, Retry | Cache):
        return ", ".join(f"{field.name} {_shown(getattr(value, field.name))}" for field in fields(value))
    if isinstance(value, Default):
        return redact(f"default({value.value!r})")
    if callable(value) and not isinstance(value, ConnectorConfig):
        return f"the function {getattr(value, '__name__', type(value).__name__)}"
    return redact(repr(value))


def _in_flight(of: Explanation) -> list[str]:
    slots, rate = of.task_slots or 1, of.options.rate
    calls = of.capacity * slots * of.expressions
    processes = f"{plural(slots, 'task slot')} x {plural(of.expressions, 'expression')} of the stage"
    rows = [
        ("calls", f"{calls:,} = capacity {of.capacity:,} x {processes}, and up to as many connections"),
        ("keys", f"{calls * of.batch_size:,} = {plural(calls, 'call')} x batch_size {of.batch_size:,}"),
    ]
    if rate is not None:
        rows.append(("rate", f"{count(rate * slots * of.expressions)} calls per second = {count(rate)} x {processes}"))
    for name, capacity in of.fallbacks.items():
        more = f"{capacity * slots * of.expressions:,} = {capacity:,} x {processes}, of {name}"
        rows.append(("and", f"up to {more}, which is asked for some keys"))
    lines = table(rows)
    if of.task_slots is None:
        lines += paragraph("task_slots= is not given, so these are the numbers of one task at a time.")
    return lines


def _deadline(of: Explanation) -> list[str]:
    timeout, attempt_timeout = of.options.timeout, of.options.attempt_timeout
    limit, most, last = math.inf if timeout is None else timeout, len(of.attempts), of.attempts[-1]
    lines = paragraph(
        "timeout is None: a lookup has no time limit, only its calls have."
        if timeout is None
        else f"A lookup has {seconds(timeout)} from its first call on, retries and waits included."
    )
    if most == 1:
        lines += paragraph("A key is asked for once; nothing is retried.")
    else:
        sooner = " (sooner, as jitter draws)" if last.earliest != last.latest else ""
        lines += paragraph(f"While calls fail at once, attempts start{sooner}:")
        listed = [(f"attempt {attempt.number}", _start(attempt, limit)) for attempt in of.attempts]
        if most > SHOWN_ATTEMPTS:
            listed[SHOWN_ATTEMPTS - 2 : -1] = [("...", "")]
        lines += table(listed, 4)
        if last.latest < limit < math.inf:
            each = seconds((limit - last.latest) / most)
            lines += paragraph(f"All {most} attempts fit when no call takes longer than {each}.")
        if attempt_timeout is None:
            lines += paragraph("A call that does not answer takes all of the time: attempt_timeout is None.")
        else:
            fit = sum(attempt.latest + (attempt.number - 1) * attempt_timeout < limit for attempt in of.attempts)
            lines += paragraph(
                f"While calls do not answer, keys are asked for again after attempt_timeout, "
                f"{seconds(attempt_timeout)}, and the wait: {fit} of {most} attempts start in time."
            )
    if of.fallbacks and timeout is not None:
        lines += paragraph(f"A fallback that is asked has {seconds(timeout)} of its own, after that.")
    return lines + paragraph(f"A call that still runs {seconds(of.hard_limit)} after its start is cancelled.")


def _start(attempt: Attempt, limit: float) -> str:
    if attempt.earliest >= limit:
        return f"never: {seconds(attempt.earliest)} is after timeout"
    if attempt.earliest == attempt.latest:
        return f"at {seconds(attempt.latest)}"
    return f"by {seconds(attempt.latest)}" + (", unless timeout comes first" if attempt.latest >= limit else "")


def _calls(of: Explanation) -> list[str]:
    job = of.estimate
    if job is None:
        return paragraph("Give keys= (distinct keys) or rows= for an estimate.")
    lines = table(
        [
            ("distinct keys", f"{job.keys:,}" + (f" on {plural(job.rows, 'row')}" if job.rows is not None else "")),
            ("asked for", _between(job.lookups)),
            ("calls", f"{_between(job.calls)}, if each has {plural(of.batch_size, 'key')}"),
            ("time", _floor(of, job)),
        ]
    )
    least, most = job.lookups
    if most is None:
        lines += paragraph("It is more when a key is on rows of several tasks, or of several windows of one task.")
    elif least < most:
        by_process = "every worker process asks for every key, once as long as its cache keeps it"
        who = "every row asks" if most == job.rows else by_process
        lines += paragraph(
            "The least is when no key is on rows of several tasks, or of several windows of one task; the most is when "
            f"{who}."
        )
    if of.options.cache is not None:
        lines += paragraph("What a worker's cache holds from before is not asked for again.")
    if len(of.attempts) > 1:
        lines += paragraph("Retries come on top: in the long run at most one for five calls.")
    return lines


def _floor(of: Explanation, job: Estimate) -> str:
    if of.latency is not None:
        floor = job.floor(of.latency)
        why = "" if floor == job.rounds * of.latency else ", because of rate"
        return f"at least {seconds(floor)} with calls of {seconds(of.latency)}{why}"
    rate = f", and at least {seconds(job.floor(0.0))} because of rate" if job.per_second is not None else ""
    times = f"{job.rounds:,} times the latency of a call" if job.rounds > 1 else "the latency of a call"
    return f"at least {times} (latency= is not given){rate}"


def _between(bounds: tuple[int, int | None]) -> str:
    low, high = bounds
    return f"{low:,} or more" if high is None else f"{low:,}" if low == high else f"{low:,} to {high:,}"
