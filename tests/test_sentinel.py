"""A job whose Redis master ends and whose passwords are replaced while it runs: it loses no row."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
import redis
from enrichkit_redis import RedisConfig

from enrichkit import Secret, local
from enrichkit.local.redis_sentinel import redis_sentinel

from .faults import INT

if TYPE_CHECKING:
    from pathlib import Path

    from .sparkless import Worker

pytestmark = [pytest.mark.service, pytest.mark.waits]

KEYS = 1000


@pytest.mark.parametrize("kind", local.redis_servers())
def test_a_job_outlives_a_fail_over_and_new_passwords(kind: str, tmp_path: Path, worker: Worker) -> None:
    file = tmp_path / "password"
    file.write_text("pw0")
    done: list[str] = []
    with redis_sentinel(kind) as shop:
        first, second = shop.server_ports

        def password(number: int, *ports: int) -> None:
            """Servers do not tell each other of their users; each one gets the new password."""
            for port in ports:
                with redis.Redis(port=port) as client:
                    client.execute_command("ACL", "SETUSER", "job", "on", "resetpass", f">pw{number}", "~*", "+@all")
                    if number:
                        client.execute_command("CLIENT", "KILL", "USER", "job")
            time.sleep(0.3)
            file.write_text(f"pw{number}")

        def faults() -> None:
            time.sleep(0.5)
            password(1, first, second)
            done.append("a new password at the master")
            time.sleep(0.5)
            shop.kill(shop.sentinel_ports[0])
            shop.kill(first)
            done.append("the first sentinel and the master have ended")
            time.sleep(3.5)
            password(2, second)
            done.append("a new password at the new master")

        with redis.Redis(port=first) as client:
            client.mset({f"k{n}": n for n in range(KEYS)})
            assert client.wait(1, 5000) == 1
        password(0, first, second)
        config = RedisConfig(
            url="redis:///0",
            key="k{}",
            sentinel=shop.sentinels,
            master=shop.master,
            username="job",
            password=Secret.file(str(file)),
        )
        options = {"max_fallback_ratio": 0.0, "timeout": 5.0, "batch_size": 2, "rate": 100.0}
        worker.outcomes(config, INT, [0], **options)
        thread = threading.Thread(target=faults)
        thread.start()
        rows = worker.outcomes(config, INT, list(range(KEYS)), **options)
        over_before = thread.is_alive()
        thread.join()
        with redis.Redis(port=second) as client:
            assert client.info("replication")["role"] == "master"
            answered = client.info("commandstats")["cmdstat_mget"]["calls"]
    assert [row["value"] for row in rows] == [*range(KEYS)]
    assert {row["status"] for row in rows} == {"ok"}
    assert not over_before, "the job was over before the faults"
    assert len(done) == 3
    assert 0 < answered < KEYS / 2, "the former master answered the first keys, the new one the others"
