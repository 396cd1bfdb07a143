"""The event loop releases the GIL while many responses arrive quickly, and only then."""

from __future__ import annotations

import pytest
from enrichkit_http import gil_yield


@pytest.mark.parametrize(
    ("seconds_apart", "pauses"),
    [(0.00001, 9), (0.00005, 9), (0.0001, 0), (0.01, 0)],
    ids=["100,000/s", "20,000/s", "10,000/s", "100/s"],
)
def test_a_pause_follows_every_few_responses_that_come_quickly(
    seconds_apart: float, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    slept: list[float] = []
    monkeypatch.setattr(gil_yield, "monotonic", lambda: now)
    monkeypatch.setattr(gil_yield, "sleep", slept.append)
    counter = gil_yield.GilYield()
    for _ in range(10 * gil_yield.RESPONSES):
        now += seconds_apart
        counter.count_response()
    assert slept == [gil_yield.PAUSE] * pauses
