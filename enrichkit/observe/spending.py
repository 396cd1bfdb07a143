"""What the calls of a source have cost, and estimates of what reuse, cache, journal, tiers and preload have saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .stats import Stats
    from .view import Saved, Spending

__all__ = ["rate_of_tokens", "saved_by", "spending_of", "words"]


def saved_by(stats: Stats) -> dict[str, int]:
    """Return about how many rows of *stats* were answered without calls, by the name of what answered them."""
    found = {
        "reuse": stats.rows - stats.null_keys - stats.keys + stats.shared + stats.reused,
        "cache": stats.cached,
        "journal": stats.journaled,
        "tiers": stats.tiered,
        "preload": stats.preloaded,
    }
    return {name: rows for name, rows in found.items() if rows > 0}


def spending_of(stats: Stats, seconds: float) -> Spending | None:
    """Return what the calls of *stats*, made within *seconds*, have cost; None: the source has reported no costs."""
    if not stats.spent:
        return None
    paid = stats.metered * stats.sent / max(1, stats.calls)  # about how many keys were in calls of known cost
    mean = {unit: amount / paid for unit, amount in stats.spent.items()} if paid else {}
    saved: list[Saved] = [
        {"by": name, "rows": rows, "spent": {unit: amount * rows for unit, amount in mean.items()}}
        for name, rows in saved_by(stats).items()
    ]
    return {
        "spent": dict(stats.spent),
        "per_second": {unit: amount / seconds for unit, amount in stats.spent.items()} if seconds > 0 else {},
        "unknown": max(0, stats.calls - stats.metered),
        "saved": saved,
    }


def rate_of_tokens(spending: Spending) -> float | None:
    """Return the tokens that the calls used per second; None if the source does not report tokens."""
    return spending["per_second"].get("tokens")


def words(spending: Spending) -> str:
    """
    Return *spending* as a sentence.

    >>> words({"spent": {"tokens": 9000.0, "cost": 0.0125}, "per_second": {"tokens": 300.0}, "unknown": 1,
    ...     "saved": [{"by": "journal", "rows": 40, "spent": {"tokens": 4000.0, "cost": 0.005}}]})
    '9,000 tokens (300 per second), cost 0.0125, of 1 call not known; saved about 0.005 (journal: 40 rows)'
    """
    spent, parts = spending["spent"], []
    if "tokens" in spent:
        rate = rate_of_tokens(spending)
        parts.append(f"{spent['tokens']:,.0f} tokens" + (f" ({rate:,.0f} per second)" if rate else ""))
    if "cost" in spent:
        parts.append(f"cost {_amount(spent['cost'])}")
    parts += [f"{amount:,.6g} {unit}" for unit, amount in spent.items() if unit not in _NAMED]
    if spending["unknown"]:
        parts.append(f"of {spending['unknown']:,} call{'s' * (spending['unknown'] != 1)} not known")
    unit = next((unit for unit in ("cost", "tokens") if unit in spent), None)
    if spending["saved"] and unit is not None:
        total = sum(each["spent"].get(unit, 0.0) for each in spending["saved"])
        by = ", ".join(f"{each['by']}: {each['rows']:,} rows" for each in spending["saved"])
        amount = _amount(total) if unit == "cost" else f"{total:,.0f} tokens"
        return f"{', '.join(parts)}; saved about {amount} ({by})"
    return ", ".join(parts)


_NAMED = {"requests", "tokens", "tokens_in", "tokens_out", "cost"}


def _amount(cost: float) -> str:
    return f"{cost:,.2f}" if cost >= 100 else f"{cost:.4g}"
