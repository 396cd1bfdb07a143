"""
`estimate()`: what a job will cost, computed from the distinct keys of its DataFrame, a sample of them, and a few calls.

Spark counts the keys and their bytes, exactly unless `approximate=True`. The cost of a key is nearly a linear function
of its bytes, so the cost of a few keys is enough to estimate the cost of all: `trial.py` fits a line to these costs,
and applies the line to the numbers of keys and bytes that Spark has counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from ..driver.planner import make_plan, names_of, without_secrets
from ..errors import ConfigError
from ..limits import rate_of
from .counted import counted_in, keyed_by, sample_of
from .text import Report, count, paragraph, plural, seconds, table
from .trial import extrapolated, point_of, spread, try_calls

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from ..interface import Connector, ConnectorConfig, Returns
    from ..options import OptionsDict
    from ..plan import Plan
    from ..sources.tiers import Tiers

__all__ = ["CostEstimate", "estimate"]


@dataclass(frozen=True, repr=False)
class CostEstimate(Report):
    """
    The result of `estimate`; its `str` is the text to print.

    Attributes:
        source: Name of the source.
        rows: Rows of the DataFrame.
        distinct: Distinct keys.
        asked: Keys that are asked for: each key once per partition that has it, or, with `shuffle`, once per job.
        calls: Calls of the job, without retries.
        batch_size: Keys per call.
        spent: Estimated cost of the job's calls, by unit: `requests`, `tokens`, `cost` and other units that the
            connector counts.
        seconds: Fewest seconds that the job can take, computed from the option `rate` and from the seconds that the
            calls for the estimate took. None: no `rate` is set, and no call was answered.
        bound: The limit from which *seconds* follows, as text: the rate of a unit, for example `the rate of tokens`, or
            `the latency of a call`; empty if *seconds* is None.
        sampled: Number of keys in the sample.
        tried: Calls that were made for the estimate and were answered.
        paid: Cost of all calls that were made for the estimate, failed calls included, by unit.
        failed: Calls that were made for the estimate and failed.
    """

    source: str
    rows: int
    distinct: int
    asked: int
    calls: int
    batch_size: int
    spent: Mapping[str, float]
    seconds: float | None
    bound: str
    sampled: int
    tried: int
    paid: Mapping[str, float]
    failed: int

    @property
    def tokens(self) -> float | None:
        """Tokens of the job; None: the connector does not count them."""
        return self.spent.get("tokens")

    @property
    def cost(self) -> float | None:
        """Price of the job, in the currency of the prices in the config; None: the config has no prices."""
        return self.spent.get("cost")

    def __str__(self) -> str:
        lines = [
            ("rows", f"{self.rows:,}"),
            ("distinct keys", f"{self.distinct:,}, and {self.asked:,} asked for as the rows are partitioned"),
            ("calls", f"{self.calls:,}, each with {plural(self.batch_size, 'key')}, without retries"),
            *((unit, _rounded(amount)) for unit, amount in self.spent.items()),
        ]
        if self.seconds is not None:
            lines.append(("time", f"at least {seconds(self.seconds)}, because of {self.bound}"))
        told = [f"What enrich({self.source!r}, ...) will cost, an estimate", *table(lines)]
        how = f"Seen: {plural(self.sampled, 'key')} of the DataFrame"
        if self.tried:
            paid = ", ".join(f"{_rounded(amount)} {unit}" for unit, amount in self.paid.items())
            how += f", and {plural(self.tried, 'call')} of the source{f', which have cost {paid}' if paid else ''}"
        how += f". {plural(self.failed, 'call')} more failed." if self.failed else "."
        if not self.tried:
            how += " The source was not asked, so the lengths of its answers are a guess of the connector."
        how += " What a cache or a journal holds from before is not asked for again, and costs nothing."
        return "\n".join([*told, *paragraph(how)])


def _rounded(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 1000 else count(float(f"{amount:.4g}"))


def estimate(
    df: DataFrame,
    source: str | ConnectorConfig | Tiers,
    *keys: Column | str,
    sample: float = 0.01,
    calls: int = 20,
    approximate: bool = False,
    shuffle: bool = False,
    task_slots: int | None = None,
    returns: Returns | None = None,
    **options: Unpack[OptionsDict],
) -> CostEstimate:
    """
    Estimate what `enrich` with these arguments will cost for *df*: calls, tokens, price and time.

    Spark counts the distinct keys of *df*, which takes a job with a shuffle of the key columns. A sample of the keys
    comes to the driver. A few keys of the sample are **asked for and paid**, so that the length of answers is known;
    with `calls=0`, no key is asked for, and the connector guesses that length.

    Args:
        df: The DataFrame that will be enriched, with the partitions that it will have in the job.
        source: As for `enrich`.
        keys: As for `enrich`.
        sample: Share of the distinct keys to take as a sample, above 0 and up to 1. Whatever the share, the sample has
            about 50 keys at least (if there are so many) and 10,000 at most.
        calls: Most calls to make, each with `batch_size` keys; 0 to 1,000.
        approximate: Whether distinct keys are counted with an error of about 2 %, but without a shuffle.
        shuffle: Whether to assume that each key is asked for once per job, as with `enrich_frame(..., shuffle=True)`.
        task_slots: Number of tasks that run at the same time; the estimate of the time depends on it. None: one.
        returns: As for `enrich`.
        options: As for `enrich`; the estimate of the time takes `rate` and `limit` into account.

    Raises:
        ConfigError: An argument, option or config is wrong, or none of the calls was answered. Raised on the driver.

    >>> print(estimate(df, "users", "user_id", calls=0))
    What enrich('users', ...) will cost, an estimate
    ...
    """
    _check(sample, calls, task_slots)
    if not keys:
        raise ConfigError(
            "estimate() was given no key; it needs one or more key columns, as in estimate(df, 'llm', 'text')."
        )
    plan, _ = make_plan(source, len(keys), returns, options, names=names_of(keys))
    keyed = keyed_by(df, keys)
    counted = counted_in(keyed, len(keys), approximate=approximate)
    if shuffle:
        counted = counted._replace(
            asked=counted.distinct, bytes=counted.bytes * counted.distinct / max(1, counted.asked)
        )
    found = sample_of(keyed, len(keys), counted.distinct, sample)
    groups = spread(found, plan.batch_size, calls)
    tried = try_calls(plan, groups)
    if groups and not tried.points:
        raise ConfigError(
            f"None of the {plural(len(groups), 'call')} that estimate() made was answered: "
            f"{without_secrets(tried.problem, plan.config)} Mend that, or use calls=0, which makes none."
        )
    connector = plan.connector(plan.config)
    of_sample = [found[start : start + plan.batch_size] for start in range(0, len(found), plan.batch_size)]
    guessed = [point_of(group, connector.cost(tuple(key for _, key in group))) for group in of_sample]
    spent = _ordered(connector, extrapolated(guessed, counted) | extrapolated(tried.points, counted))
    number = math.ceil(counted.asked / plan.batch_size)
    least, bound = _time(plan, number, spent, tried.took, task_slots or 1)
    return CostEstimate(
        source=plan.source,
        rows=counted.rows,
        distinct=counted.distinct,
        asked=counted.asked,
        calls=number,
        batch_size=plan.batch_size,
        spent=spent,
        seconds=least,
        bound=bound,
        sampled=len(found),
        tried=len(tried.points),
        paid=_ordered(connector, tried.paid),
        failed=len(groups) - len(tried.points),
    )


def _ordered(connector: Connector[Any], amounts: Mapping[str, float]) -> dict[str, float]:
    """Return *amounts* in the order in which the connector names its units."""
    return {unit: amounts[unit] for unit in dict.fromkeys((*connector.units, *amounts)) if unit in amounts}


def _check(sample: Any, calls: Any, task_slots: Any) -> None:
    if type(sample) not in (int, float) or not 0 < sample <= 1:
        raise ConfigError(f"sample is {sample!r}; it must be a share above 0, up to 1. For example sample=0.01.")
    if type(calls) is not int or not 0 <= calls <= 1000:
        raise ConfigError(f"calls is {calls!r}; it must be a whole number from 0 to 1,000. For example calls=20.")
    if task_slots is not None and (type(task_slots) is not int or task_slots < 1):
        raise ConfigError(
            f"task_slots is {task_slots!r}; it must be a whole number from 1 on. For example task_slots=8."
        )


def _time(plan: Plan, calls: int, spent: Mapping[str, float], took: Sequence[float], slots: int) -> tuple[Any, str]:
    """
    Return the fewest seconds that *calls* calls take in a job, and the name of the limit that causes them.

    The result is `(None, "")` if no limit is known.
    """
    bounds: dict[str, float] = {}
    rate, limit = rate_of(plan.options.rate), plan.options.limit
    if rate is not None:
        for unit, amount in rate.per_second.items():
            of_job = amount * (1 if rate.per == "job" else slots)
            bounds[f"the rate of {unit}"] = spent.get(unit, float(calls) if unit == "requests" else 0.0) / of_job
    if took:
        in_flight = min(plan.capacity * slots, math.inf if limit is None else limit.calls)
        bounds["the latency of a call"] = math.ceil(calls / in_flight) * math.fsum(took) / len(took)
    bound = max(bounds, key=lambda name: bounds[name], default="")
    return bounds.get(bound), bound
