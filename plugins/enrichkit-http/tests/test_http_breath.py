"""The loop lets go of Python's lock while answers come thick and fast, and only then."""

from __future__ import annotations

import pytest
from enrichkit_http import breath


@pytest.mark.parametrize(
    ("seconds_apart", "moments"),
    [(0.00001, 9), (0.00005, 9), (0.0001, 0), (0.01, 0)],
    ids=["100,000/s", "20,000/s", "10,000/s", "100/s"],
)
def test_a_moment_follows_every_few_answers_that_come_fast(
    seconds_apart: float, moments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    slept: list[float] = []
    monkeypatch.setattr(breath, "monotonic", lambda: now)
    monkeypatch.setattr(breath, "sleep", slept.append)
    one = breath.Breath()
    for _ in range(10 * breath.ANSWERS):
        now += seconds_apart
        one.answered()
    assert slept == [breath.MOMENT] * moments
