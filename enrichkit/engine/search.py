"""The search for the bad keys of a call: keys that make the source fail each call that contains them."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import TypeVar

__all__ = ["Search"]

T = TypeVar("T")


class Search:
    """
    The search for the bad keys of a failed call: it asks for the keys in four groups, and divides the groups that fail.

    To find *bad* keys among *keys*, the search takes at most 2 x bad x ceil(log2(keys)) calls, like bisection, but in
    half as many successive steps. Once so many groups have failed that dividing them further would hardly save calls,
    the search asks for each key of a failed group alone. So there are at most one and a half calls per key. A bound of
    one call per key is impossible, because the call for a group that fails settles no key.

    Args:
        keys: Keys of the call with which the search began.
        failed: Number of groups that failed, by depth. Groups of the same depth have no key in common, so at every
            depth there are at least as many bad keys as failed groups.
        depth: How often the keys have been divided.
    """

    PARTS = 4
    SHARE_ALONE = 0.7
    """
    If the search may take this many calls per key, or more, each key of a failed group is asked for alone.

    The value was found by trying all numbers of keys up to 130 and some up to 5,000: with a lower value, a few bad keys
    cost too many calls.
    """

    __slots__ = ("depth", "failed", "keys")

    def __init__(self, keys: int, failed: Counter[int] | None = None, depth: int = 0) -> None:
        self.keys = keys
        self.failed: Counter[int] = Counter() if failed is None else failed
        self.depth = depth

    def divide(self, group: list[T]) -> tuple[list[list[T]], Search]:
        """
        Count *group* as failed; return the parts of it to ask for next, and the search to which their calls belong.
        """
        self.failed[self.depth] += 1
        below = Search(self.keys, self.failed, self.depth + 1)
        calls = 2 * self.failed[self.depth] * math.ceil(math.log2(self.keys))
        if self.depth and calls >= self.SHARE_ALONE * self.keys:
            return [[key] for key in group], below
        size, larger = divmod(len(group), min(self.PARTS, len(group)))
        ends = [size * n + min(n, larger) for n in range(1 + min(self.PARTS, len(group)))]
        return [group[start:end] for start, end in pairwise(ends)], below
