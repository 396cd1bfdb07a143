"""A limit of the whole job with real processes: they join, are killed, and their share returns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from enrichkit_redis import RedisConfig

from benchmarks.job_rate import Place, Workers, most
from enrichkit import Rate

if TYPE_CHECKING:
    from enrichkit import local


@pytest.mark.more  # it looks at the clock
@pytest.mark.service
def test_processes_share_a_rate_and_the_share_of_a_killed_one_returns(
    redis_server: local.RedisServer, http_service: local.HttpService
) -> None:
    place = Place(http_service, {}, {"redis": RedisConfig(url=redis_server.url)})
    workers = Workers(place.payload("redis", rate=Rate(100, per="job", store=place.configs["redis"])))
    http_service.script(latency=0.01, log=True)
    try:
        workers.join(2)
        time.sleep(3.0)
        workers.kill()
        killed = time.monotonic()
        time.sleep(4.0)
    finally:
        workers.end()
    times = place.arrivals()
    assert most(times, 2.0) <= 210  # 2 s: a busy machine may let the calls of 50 ms arrive together
    assert sum(killed + 2.0 <= at < killed + 4.0 for at in times) >= 150
