"""The random faults between a real Redis and plain sockets: all are played, and all end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from enrichkit.testing.bench import wait_until
from enrichkit.testing.proxy import FaultProxy, fault_proxy
from enrichkit.testing.storm import FAULTS, storm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enrichkit import local

pytestmark = pytest.mark.service


@pytest.fixture
def proxy(redis_server: local.RedisServer) -> Iterator[FaultProxy]:
    with fault_proxy(redis_server.host, redis_server.port) as made:
        yield made


def ping(proxy: FaultProxy) -> bool:
    with redis.Redis(host=proxy.host, port=proxy.port, socket_timeout=5.0) as client:
        return bool(client.ping())


def test_a_storm_plays_every_fault_and_leaves_a_healthy_network(proxy: FaultProxy) -> None:
    with storm(proxy, seed=1, calm=0.01, longest=0.05) as played:
        assert wait_until(lambda: set(played) == set(FAULTS)), played
    assert ping(proxy)
    assert "enrichkit-storm" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("fault", ["gone", "cut"])
def test_a_storm_of_one_fault_meets_the_client(proxy: FaultProxy, fault: str) -> None:
    with storm(proxy, seed=1, faults=[fault], calm=0.01, longest=0.05) as played:
        failed = 0
        once = Retry(NoBackoff(), 0)
        with redis.Redis(host=proxy.host, port=proxy.port, socket_timeout=5.0, retry=once) as client:
            while not failed:
                try:
                    client.ping()
                except redis.ConnectionError:
                    failed += 1
    assert set(played) <= {fault}
    assert ping(proxy)


def test_a_fault_that_does_not_exist_is_refused(proxy: FaultProxy) -> None:
    with (
        pytest.raises(ValueError, match=r"^storm\(\) was given the fault 'goen'") as caught,
        storm(proxy, seed=1, faults=["goen"]),
    ):
        raise AssertionError("the block must not run")
    assert (
        "storm() was given the fault 'goen', which does not exist. Did you mean 'gone'? "
        "Faults: late, cut, ended, frozen, gone, lost, sliced, stray, swapped." == str(caught.value)
    )
