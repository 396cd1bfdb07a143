"""The cost of calls, from the prices that the user names and the tokens that the service counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from enrichkit.errors import ConfigError

if TYPE_CHECKING:
    from enrichkit.plugin import Call

__all__ = ["Price", "Spent", "price_of", "priced", "units_of"]


MOST = 1_000_000


@dataclass(frozen=True)
class Price:
    """
    The prices of a model, in any currency, each for a million tokens.

    Attributes:
        input: Price of the tokens that the model reads; 0 or more.
        output: Price of the tokens that the model writes; 0 or more. Embedding models write none.
        cached: Price of the tokens read from the service's own cache of prompts, 0 to `input`; None: the price `input`.

    Raises:
        ConfigError: A price is not a number from 0 to 1,000,000, or `cached` is above `input`. Raised on the driver.

    >>> Price(input=0.15, output=0.60).of(1_000_000, 500_000)
    0.45
    """

    input: float
    output: float = 0.0
    cached: float | None = None

    def __post_init__(self) -> None:
        # `cached` is at most `input`, so that `input` is an upper bound for the price of a token that the model reads.
        for name, most in (("input", MOST), ("output", MOST), ("cached", self.input)):
            price = getattr(self, name)
            if (price is not None or name != "cached") and not (type(price) in (int, float) and 0 <= price <= most):
                raise ConfigError(
                    f"Price.{name} is {price!r}; it must be the price of a million tokens, a number from 0 to "
                    f"{most:,}. Write Price(input=0.15, output=0.60)."
                )

    def of(self, read: int, written: int, cached: int = 0) -> float:
        """
        Return the price of *read* tokens, of which *cached* come from the service's cache, plus that of *written*
        tokens.
        """
        saved = 0.0 if self.cached is None else min(cached, read) * (self.input - self.cached)
        return (read * self.input - saved + written * self.output) / 1e6


def price_of(value: Any, config: str) -> Price | None:
    """
    Return a `Price` made from *value*, a mapping of its fields, such as a table of a TOML file. Return *value* itself
    if it is a `Price` or None.
    """
    if isinstance(value, Mapping) and {"input"} <= set(value) <= {"input", "output", "cached"}:
        return Price(**value)
    if value is None or isinstance(value, Price):
        return value
    raise ConfigError(
        f"{config}.price is a {type(value).__name__} that is no Price; it takes input, output and cached, the first of "
        "which is required. Write price=Price(input=0.15, output=0.60)."
    )


def priced(read: int, written: int, price: Price | None) -> dict[str, float]:
    """Return the sum of the *read* and *written* tokens as `tokens`, and if there is a *price* also their `cost`."""
    units = {"tokens": float(read + written)}
    return units if price is None else units | {"cost": price.of(read, written)}


def units_of(price: Price | None) -> tuple[str, ...]:
    """Return the names of the units in which calls report their cost."""
    return ("requests", "tokens", "tokens_in", "tokens_out", *(() if price is None else ("cost",)))


class Spent:
    """
    A counter of the cost of one call, including a repeated request. It reports the cost to the engine.

    Args:
        call: The call.
        price: The prices of the model; None: no cost is computed, only tokens are counted.
    """

    def __init__(self, call: Call, price: Price | None) -> None:
        self._call, self._price = call, price
        self._units = dict.fromkeys(units_of(price), 0.0)

    def add(self, usage: Any) -> None:
        """
        Add and report the tokens in *usage*, a field of an answer. The APIs for chat and for responses name the counts
        in this field differently.
        """
        if isinstance(usage, dict):
            read = _count(usage, "prompt_tokens", "input_tokens")
            written = _count(usage, "completion_tokens", "output_tokens")
            details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
            cached = _count(details, "cached_tokens") if isinstance(details, dict) else 0
            cost = 0.0 if self._price is None else self._price.of(read, written, cached)
            more = {"tokens": read + written, "tokens_in": read, "tokens_out": written, "cost": cost}
            self._units |= {unit: amount + more.get(unit, 0) for unit, amount in self._units.items()}
        self.report(known=isinstance(usage, dict))

    def report(self, requests: int = 1, *, known: bool = True) -> None:
        """Report the cost so far and *requests* further requests; *known* is False if the cost of these is unknown."""
        self._units["requests"] += requests
        self._call.spent(**self._units)
        if not known:
            self._call.spent(tokens=math.nan)


def _count(usage: dict[str, Any], *names: str) -> int:
    return next((usage[name] for name in names if type(usage.get(name)) is int and usage[name] >= 0), 0)
