"""
The name server of a service: one that never answers, and a name whose first address is dead.

The client of this connector asks the system for addresses, so a test runs a process in namespaces of Linux (`unshare`):
in a network with loopback alone, where 127.0.0.7 is the name server, and with the files of `FILES`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.service, pytest.mark.more]

FILES = {
    "hosts": "127.0.0.1 localhost\n127.0.0.9 two.test\n127.0.0.1 two.test\n",
    "host.conf": "multi on\n",
    "resolv.conf": "nameserver 127.0.0.7\n",
    "nsswitch.conf": "hosts: files dns\n",
}

SYSTEM = """
import contextlib, fcntl, socket, struct, threading
import pyarrow as pa
from enrichkit import local
from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.worker.entry import arrow_batches
from enrichkit_http import HttpConfig
from pyspark.sql.types import StringType

with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS: the new network is up


class NameServer(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.7", 53))
        self.asked, self.answers = threading.Event(), False
        self.start()

    def run(self):
        while True:
            question, client = self.socket.recvfrom(512)
            self.asked.set()
            if self.answers:
                end = question.index(b"\\0", 12) + 5
                is_a = question[end - 4 : end - 2] == b"\\0\\1"
                counts = struct.pack(">4H", 1, is_a, 0, 0)
                address = b"\\xc0\\x0c" + struct.pack(">2HIH", 1, 1, 0, 4) + bytes((127, 0, 0, 1))
                self.socket.sendto(question[:2] + b"\\x81\\x80" + counts + question[12:end] + address * is_a, client)


def rows(host, port, first, last, **options):
    config = HttpConfig(url=f"http://{host}:{port}/{{}}", insecure=True, value="name")
    plan, _ = make_plan(config, 1, StringType(), {"details": True, **options})
    keys = pa.array([f"u{n}" for n in range(first, last)])
    found = [row for array in arrow_batches(pack(plan), [(keys,)]) for row in array.to_pylist()]
    return [(row["status"], row["attempts"]) for row in found]


def is_ok(found, count):
    assert found == [("ok", 1)] * count, found
"""

HANGS = (
    SYSTEM
    + """
names, found = NameServer(), []
with local.http() as service:
    hangs = threading.Thread(target=lambda: found.extend(rows("named.test", service.port, 0, 200)))
    hangs.start()
    assert names.asked.wait(60)
    is_ok(rows("127.0.0.1", service.port, 200, 700), 500)
    assert hangs.is_alive()
    names.answers = True
    hangs.join()
    is_ok(found, 200)
    names.answers = False
    names.asked.clear()
    threading.Thread(target=lambda: rows("another.test", service.port, 700, 800), daemon=True).start()
    assert names.asked.wait(60)
    print("ends")
"""
)

DEAD = (
    SYSTEM
    + """
with local.http() as service, contextlib.ExitStack() as open_sockets:
    if first == "silent":
        open_sockets.enter_context(socket.create_server(("127.0.0.9", service.port), backlog=0))
        for _ in range(4):  # the queue of the listener is full after the first ones; Linux drops what comes then
            waiting = open_sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.9", service.port))
    is_ok(rows("two.test", service.port, 0, 200), 200)
    print("ends")
"""
)


def run_in_a_system_of_its_own(folder: Path, script: str) -> None:
    """Run the Python *script*, which prints "ends", where only loopback and the names of `FILES` exist."""
    unshare = shutil.which("unshare")
    assert unshare is not None, "the package util-linux has unshare"
    for name, text in FILES.items():
        (folder / name).write_text(text)
    mounts = " && ".join(f"mount --bind {folder / name} /etc/{name}" for name in FILES)
    command = [unshare, "--user", "--map-root-user", "--mount", "--net", "sh", "-c", f'{mounts} && exec "$0" -c "$1"']
    done = subprocess.run([*command, sys.executable, script], capture_output=True, text=True, timeout=240, check=False)
    assert (done.stdout, done.returncode) == ("ends\n", 0), done.stderr


def test_a_name_server_that_never_answers_holds_up_no_other_service_and_not_the_end_of_the_process(
    tmp_path: Path,
) -> None:
    """And when it answers, the keys that have waited get their values."""
    run_in_a_system_of_its_own(tmp_path, HANGS)


@pytest.mark.parametrize("first", ["silent", "refuses"])
def test_a_dead_first_address_of_a_name_costs_no_row(tmp_path: Path, first: str) -> None:
    run_in_a_system_of_its_own(tmp_path, f"first = {first!r}\n{DEAD}")
