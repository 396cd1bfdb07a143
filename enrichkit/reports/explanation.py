"""`explain()`: the effect of options in numbers, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Unpack

from ..driver.connections import known_connections, too_many, warn_of_connections
from ..driver.fallbacks import fallback_capacities
from ..driver.planner import check_preload, limits_of, why_unlisted
from ..driver.tiers import check_tiers, main_source, tier_capacities
from ..engine.run import DAY, HARD_LIMIT_EXTRA, HARD_LIMIT_FACTOR
from ..errors import ConfigError
from ..interface import ConnectorConfig
from ..limits import rate_of
from ..options import Cache, Default, Options, OptionsDict, Retry
from ..secrets import redact
from ..sources.config import check_no_fields, find_source
from ..sources.tiers import Tiers
from .estimate import Attempt, Estimate, attempts, estimate
from .model import asked_by_tasks, keys_of_equal_cost
from .text import Report, count, paragraph, plural, seconds, table

if TYPE_CHECKING:
    from ..interface import Returns

__all__ = ["Explanation", "Setting", "explain"]

_ARGUMENTS = ("keys", "rows", "task_slots", "expressions", "latency", "returns")
_OPTIONS = frozenset(field.name for field in fields(Options))
SHOWN_ATTEMPTS = 8
SHUFFLE_WORTH = 1.5
"""A shuffle is recommended if, without it, tasks would ask for each distinct key this many times or more on average."""


@dataclass(frozen=True)
class Setting:
    """
    One option, its effective value, and the value's origin: `given`, `connector`, `default`, or `details` (the value
    follows from the option `details`).
    """

    name: str
    value: Any
    origin: str


@dataclass(frozen=True, repr=False)
class Explanation(Report):
    """
    The result of `explain`; its `str` is the text to print.

    Attributes:
        source: Name of the source.
        connector: Name of the source's connector.
        options: The options that the user gave, and the defaults of all other options.
        settings: The effective options, in the order of `Options`.
        capacity: Calls in flight per worker process.
        batch_size: Keys per call.
        task_slots: Tasks that run at the same time. None: not given, and all numbers are for one task at a time.
        expressions: Number of `enrich` expressions in the stage.
        fallbacks: For each source or function that is asked when this source has no answer, its name and its calls in
            flight per worker process. The calls of fallbacks with the same name are added up.
        tiers: For each source that is asked before this one, its name and its calls in flight per worker process.
        tier_timeout: Most seconds that each of the *tiers* may take for a key.
        attempts: The attempts of a key. Attempts that would start after `timeout` are listed, too, but are never made.
        hard_limit: Seconds after which a call is cancelled.
        estimate: The estimate for the given number of keys or rows. None: neither was given.
        latency: Seconds of one call, as given to `explain`.
        listed: Whether the connector can list the keys of the source, which the option `preload` needs.
        units: Units in which the connector reports what a call has cost.
        connections: Most connections that the source accepts from all its clients, as the source told `describe` or
            `enrich` in this Python process; None: the source has told neither of them.
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
    tiers: Mapping[str, int]
    tier_timeout: float
    attempts: tuple[Attempt, ...]
    hard_limit: float
    estimate: Estimate | None
    latency: float | None
    listed: bool = False
    units: tuple[str, ...] = ()
    connections: int | None = None

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
    source: str | ConnectorConfig | Tiers,
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
    Explain `enrich` with these *options*: keys and calls in flight, attempts that start in time, number of calls.

    Print the result to read it. `explain` neither runs a job nor asks the source, so it needs no Spark session. If the
    source has told `describe` how many connections it accepts, and the tasks in all slots may open more, a warning is
    logged once.

    Args:
        source: Name of a source, or its config.
        keys: Estimated number of distinct keys in the data. None: as many as *rows*.
        rows: Number of rows in the data.
        task_slots: Tasks that run at the same time on the cluster: executors x cores. `explain` cannot get this number
            from Spark. None: the numbers are for one task.
        expressions: Number of `enrich` expressions in one stage of the query. Each expression has its own worker
            processes.
        latency: Seconds of one call, for an estimate of the shortest time of the job.
        returns: As for `enrich`, so that the arguments of a call of `enrich` can be copied; no number depends on it.
        options: As for `enrich`.

    Raises:
        UnknownConnectorError: There is no source with the name *source*. Raised on the driver.
        ConfigError: An argument, option or config is wrong. Raised on the driver.

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
    check_no_fields(options, _OPTIONS, main_source(source), "explain()")
    checked = Options.of({**options}, "explain()", _ARGUMENTS)
    name, connector, config = find_source(main_source(source))
    instance = connector(config)
    capacity, batch_size, window = limits_of(name, instance, checked)
    check_preload(name, instance, checked)
    if isinstance(source, Tiers):
        check_tiers(source, checked)
    limits = {"max_capacity" if checked.tuned else "capacity": capacity, "batch_size": batch_size, "window": window}
    key_count = keys or rows
    limit = checked.longest_wait or DAY
    if task_slots is not None:
        warn_of_connections(name, connector, config, capacity, task_slots, expressions)
    return Explanation(
        source=name,
        connector=connector.name,
        options=checked,
        settings=tuple(_setting(field.name, checked, limits, options) for field in fields(checked)),
        capacity=capacity,
        batch_size=batch_size,
        task_slots=task_slots,
        expressions=expressions,
        fallbacks=fallback_capacities(checked),
        tiers=tier_capacities(source),
        tier_timeout=source.timeout if isinstance(source, Tiers) else 0.0,
        attempts=tuple(attempts(checked.retry)),
        hard_limit=min(DAY, max(HARD_LIMIT_FACTOR * limit, limit + HARD_LIMIT_EXTRA)),
        estimate=None if key_count is None else estimate(key_count, rows, task_slots, checked, capacity, batch_size),
        latency=latency,
        listed=not why_unlisted(instance),
        units=tuple(instance.units),
        connections=known_connections(connector, config),
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


def _in_flight(facts: Explanation) -> list[str]:
    slots, rate, limit = facts.task_slots or 1, rate_of(facts.options.rate), facts.options.limit
    calls = facts.capacity * slots * facts.expressions
    most = "at most " if facts.options.tuned else ""
    processes = f"{plural(slots, 'task slot')} x {plural(facts.expressions, 'expression')} of the stage"
    rows = [
        ("calls", f"{most}{calls:,} = capacity {facts.capacity:,} x {processes}, and up to as many connections"),
        ("keys", f"{calls * facts.batch_size:,} = {plural(calls, 'call')} x batch_size {facts.batch_size:,}"),
    ]
    if limit is not None:
        rows.append(("limit", f"at most {limit.calls:,} calls of the whole job"))
    if (budget := facts.options.budget) is not None:
        units = " and ".join(f"{amount:,.6g} {unit}" for unit, amount in budget.units.items())
        rows.append(("budget", f"{units} of the whole job; keys beyond it are over_budget"))
    for unit, amount in {} if rate is None else rate.per_second.items():
        noun = "calls" if unit == "requests" else unit
        if rate is not None and rate.per == "job":
            rows.append(("rate", f"{count(amount)} {noun} per second of the whole job"))
        else:
            total = amount * slots * facts.expressions
            rows.append(("rate", f"{count(total)} {noun} per second = {count(amount)} x {processes}"))
    sides = [(facts.tiers, "asked first"), (facts.fallbacks, "asked for some keys")]
    for name, capacity, when in ((name, n, when) for side, when in sides for name, n in side.items()):
        more = f"{capacity * slots * facts.expressions:,} = {capacity:,} x {processes}, of {name}"
        rows.append(("and", f"up to {more}, which is {when}"))
    lines = table(rows)
    if facts.connections is not None:
        fault = too_many(facts.connections, facts.capacity, slots, facts.expressions)
        lines += paragraph(
            f"The source may refuse connections: {fault}"
            if fault
            else f"The source takes {facts.connections:,} connections from all its clients."
        )
    if facts.task_slots is None:
        lines += paragraph("task_slots= is not given, so these are the numbers of one task at a time.")
    return lines


def _deadline(facts: Explanation) -> list[str]:
    timeout, attempt_timeout = facts.options.timeout, facts.options.seconds_of_attempt
    limit, most, last = math.inf if timeout is None else timeout, len(facts.attempts), facts.attempts[-1]
    lines = paragraph(
        "timeout is None: a lookup has no time limit, only its calls have."
        if timeout is None
        else f"A lookup has {seconds(timeout)} from its first call on, retries and waits included."
    )
    if facts.tiers:
        who = " and ".join(facts.tiers)
        spent = seconds(facts.tier_timeout * len(facts.tiers))
        lines += paragraph(f"Before that {who} may take up to {spent} of it; a tier that fails is left out.")
    if most == 1:
        lines += paragraph("A key is asked for once; nothing is retried.")
    else:
        sooner = " (sooner, as jitter draws)" if last.earliest != last.latest else ""
        lines += paragraph(f"While calls fail at once, attempts start{sooner}:")
        listed = [(f"attempt {attempt.number}", _start(attempt, limit)) for attempt in facts.attempts]
        if most > SHOWN_ATTEMPTS:
            listed[SHOWN_ATTEMPTS - 2 : -1] = [("...", "")]
        lines += table(listed, 4)
        if last.latest < limit < math.inf:
            each = seconds((limit - last.latest) / most)
            lines += paragraph(f"All {most} attempts fit when no call takes longer than {each}.")
        if facts.options.hedged:
            lines += paragraph(
                "A call that takes longer than 95 % of the last ones is made once more, in at most 2 % more calls."
            )
        elif attempt_timeout is None:
            lines += paragraph("A call that does not answer takes all of the time: attempt_timeout is None.")
        else:
            fit = sum(attempt.latest + (attempt.number - 1) * attempt_timeout < limit for attempt in facts.attempts)
            lines += paragraph(
                f"While calls do not answer, keys are asked for again after attempt_timeout, "
                f"{seconds(attempt_timeout)}, and the wait: {fit} of {most} attempts start in time."
            )
    if facts.fallbacks and timeout is not None:
        lines += paragraph(f"A fallback that is asked has {seconds(timeout)} of its own, after that.")
    return lines + paragraph(f"A call that still runs {seconds(facts.hard_limit)} after its start is cancelled.")


def _start(attempt: Attempt, limit: float) -> str:
    if attempt.earliest >= limit:
        return f"never: {seconds(attempt.earliest)} is after timeout"
    if attempt.earliest == attempt.latest:
        return f"at {seconds(attempt.latest)}"
    return f"by {seconds(attempt.latest)}" + (", unless timeout comes first" if attempt.latest >= limit else "")


def _calls(facts: Explanation) -> list[str]:
    job = facts.estimate
    if facts.options.loads is not None:
        return paragraph(
            "Each worker process loads the whole source once, before its first lookup, over one connection, and finds "
            "the keys of all its tasks in memory. The source is asked only for keys that the load could not answer."
        )
    if job is None:
        counts = " enrichkit.estimate(df, ...) counts the keys of a DataFrame, and says what they cost."
        return paragraph(f"Give keys= (distinct keys) or rows= for an estimate.{counts if facts.units else ''}")
    lines = table(
        [
            ("distinct keys", f"{job.keys:,}" + (f" on {plural(job.rows, 'row')}" if job.rows is not None else "")),
            ("asked for", _between(job.lookups)),
            ("calls", f"{_between(job.calls)}, if each has {plural(facts.batch_size, 'key')}"),
            ("time", _floor(facts, job)),
        ]
    )
    least, most = job.lookups
    where = "on rows of several tasks" + ("" if facts.options.reuse else ", or of several windows of one task")
    if most is None:
        lines += paragraph(f"It is more when a key is {where}.")
    elif least < most:
        by_process = "every worker process asks for every key, once as long as its cache keeps it"
        who = "every row asks" if most == job.rows else by_process
        lines += paragraph(f"The least is when no key is {where}; the most is when {who}.")
    lines += _shuffle(facts, job)
    if facts.listed:
        lines += _other_ways(facts, job)
    if facts.options.cache is not None:
        lines += paragraph("What a worker's cache holds from before is not asked for again.")
    if facts.units:
        lines += paragraph("enrichkit.estimate(df, ...) says what they cost, from the keys of a DataFrame.")
    if len(facts.attempts) > 1:
        lines += paragraph("Retries come on top: in the long run at most one for five calls.")
    return lines


def _shuffle(facts: Explanation, job: Estimate) -> list[str]:
    """Return the lines that say what `shuffle=True` would save; no lines if it would save little."""
    tasks, reuse = facts.task_slots or 1, facts.options.reuse and facts.options.cache is None
    if job.rows is None or tasks == 1 or not reuse:
        return []
    asked = asked_by_tasks(job.keys, job.rows, tasks)
    if asked < SHUFFLE_WORTH * job.keys:
        return []
    return paragraph(
        f"If the keys are spread over all rows, {tasks:,} tasks ask for about {asked:,.0f} keys, and more tasks for "
        f"more. enrich_frame(..., shuffle=True) asks for {job.keys:,}, and shuffles the rows once."
    )


def _other_ways(facts: Explanation, job: Estimate) -> list[str]:
    """Return lines that say up to which number of keys in the source a preload or a join costs less than lookups."""
    processes, asked = (facts.task_slots or 1) * facts.expressions, job.lookups[0]
    preload, once = keys_of_equal_cost(asked, processes), keys_of_equal_cost(asked, 1)
    lines = paragraph(
        f"Lookups ask for {asked:,} keys or more. preload=True reads the whole source in each of "
        f"{processes:,} worker process{'es' * (processes > 1)}: it costs less up to "
        f"{preload:,} keys in the source ({asked:,} / {processes:,})."
    )
    return lines + paragraph(
        f"A broadcast join reads the source once in all and costs less up to {once:,} keys, if each executor has the "
        "memory and the values may be as old as the job; so does a JDBC join with a table of a database, which needs "
        "no memory but shuffles all rows. Beyond that, lookups do."
    )


def _floor(facts: Explanation, job: Estimate) -> str:
    if facts.latency is not None:
        floor = job.floor(facts.latency)
        why = "" if floor == job.rounds * facts.latency else ", because of rate"
        return f"at least {seconds(floor)} with calls of {seconds(facts.latency)}{why}"
    rate = f", and at least {seconds(job.floor(0.0))} because of rate" if job.per_second is not None else ""
    times = f"{job.rounds:,} times the latency of a call" if job.rounds > 1 else "the latency of a call"
    return f"at least {times} (latency= is not given){rate}"


def _between(bounds: tuple[int, int | None]) -> str:
    low, high = bounds
    return f"{low:,} or more" if high is None else f"{low:,}" if low == high else f"{low:,} to {high:,}"
