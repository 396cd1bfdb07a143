"""When a key is asked again: back-off with full jitter, and a budget against retry storms."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..options import Retry

__all__ = ["RETRY_AFTER_MAX", "Budget", "backoff"]

RETRY_AFTER_MAX = 60.0
"""Longest Retry-After that is honoured, in seconds; botocore clamps likewise."""


def backoff(retry: Retry, failures: int, retry_after: float | None, rng: random.Random) -> float:
    """
    Return the seconds to wait after the *failures*-th failure of a key, 1 or more.

    Full jitter after "Exponential Backoff And Jitter" (AWS Architecture Blog). A Retry-After of the source is a lower
    bound, clamped to 0..60; one that is not a number is ignored.
    """
    wait = min(retry.wait_max, retry.wait * retry.factor ** (failures - 1))
    if retry.jitter == "full":
        wait = rng.uniform(0.0, wait)
    if retry_after is not None and retry_after == retry_after:  # a NaN is not equal to itself
        wait = max(wait, min(max(retry_after, 0.0), RETRY_AFTER_MAX))
    return wait


class Budget:
    """
    A bucket of tokens that bounds the share of retries, one per engine.

    The ratios are those of the AWS SDKs' standard mode: a retry costs 5, one after a timeout 10, a clean success gives
    back 1, so at most 20 % (10 %) more calls in the long run. The bucket is smaller because every Spark worker process
    has its own.
    """

    SIZE = 100
    RETRY = 5
    RETRY_AFTER_TIMEOUT = 10
    BISECTION = 1  # the source is not overloaded, but a flood of poisoned keys must not multiply its calls either

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = self.SIZE

    def spend(self, cost: int) -> bool:
        """Take *cost* tokens; False, and nothing taken, when there are not so many."""
        if self.tokens < cost:
            return False
        self.tokens -= cost
        return True

    def earn(self) -> None:
        """Give one token back after a clean call."""
        self.tokens = min(self.SIZE, self.tokens + 1)
