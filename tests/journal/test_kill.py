"""Writers in processes of their own: killed, many at once, and read meanwhile."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from .support import index, read, write

pytestmark = pytest.mark.slow

WRITER = """
    import sys

    class NoPandas:  # PyArrow would import it, which takes 1.4 seconds of CPU time, and needs it for nothing
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "pandas":
                raise ImportError(name)

    sys.meta_path.insert(0, NoPandas)
    import pyarrow as pa
    from enrichkit.journal import Scope
    from enrichkit.journal.stores import LocalStore
    from enrichkit.journal.table import Table
    from enrichkit.journal.writer import Writer

    folder, name, count, size, linger = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    table = Table("users", "fingerprint", (pa.string(),), pa.string())
    with Writer(LocalStore(folder), table, Scope("run=nightly"), task=name, linger=linger) as writer:
        for start in range(0, count, size):
            keys = [f"{name}-{number}" for number in range(start, start + size)]
            writer.append(keys, [key * 20 for key in keys])
            writer.flush()
            # The rows leave the engine: from here on the answers must not be lost.
            sys.stdout.write(f"{start + size}\\n")
            sys.stdout.flush()
"""


def start(folder: Path, name: str, count: int, size: int, linger: int = 60) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", textwrap.dedent(WRITER), str(folder), name, *map(str, (count, size, linger))]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("size", [1, 40, 3000])
def test_answers_whose_rows_have_left_survive_a_kill(tmp_path: Path, size: int) -> None:
    rng = random.Random(size)
    for attempt in range(4):
        name = f"0-{attempt}"
        writer = start(tmp_path, name, 10**9, size)
        assert writer.stdout is not None
        lines = rng.randint(1, 3000 // size + 40)
        for _ in range(lines):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        said = [*writer.stdout.read().split("\n")]
        writer.wait()
        writer.stdout.close()
        left = max([lines * size, *(int(line) for line in said[:-1] if line)])
        keys = [f"{name}-{number}" for number in range(left + 2 * size)]
        found = index(tmp_path)
        answers = read(found, keys)
        assert left <= len(answers) <= left + size
        assert all(value == key * 20 for key, value in answers.items())
        assert 0 == found.damaged


def test_many_processes_write_while_others_read(tmp_path: Path) -> None:
    writers = [start(tmp_path, f"{number}-0", 3000, 50) for number in range(4)]
    keys = [f"{number}-0-{key}" for number in range(4) for key in range(3000)]
    found = index(tmp_path)
    sizes = [0]
    while any(writer.poll() is None for writer in writers):
        found.refresh()
        answers = read(found, keys)
        assert all(value == key * 20 for key, value in answers.items())
        sizes.append(len(answers))
    for writer in writers:
        writer.communicate()
    assert sorted(sizes) == sizes
    found.refresh()
    assert {key: key * 20 for key in keys} == read(found, keys)
    assert 4 == len(list(tmp_path.rglob("*.journal")))
    assert (0, {}) == (found.damaged, found.refused)


def test_a_file_that_may_not_grow_keeps_what_it_has(tmp_path: Path) -> None:
    """The system takes a part of a write and refuses the rest, as on a full disk."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    arguments = [str(tmp_path), "0-0", "100000", "40", "60"]
    program = limit + textwrap.dedent(WRITER)
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert "JournalError: The journal at " in done.stderr
    assert "cannot be written: OSError: [Errno 27] File too large." in done.stderr
    left = int(done.stdout.split()[-1])
    keys = [f"0-0-{number}" for number in range(left + 40)]
    assert left == len(read(tmp_path, keys))
    assert 100_000 == max(file.stat().st_size for file in tmp_path.rglob("*.journal"))


def test_a_second_run_asks_for_what_the_first_did_not_finish_and_a_third_for_nothing(tmp_path: Path) -> None:
    keys = [f"0-0-{number}" for number in range(200_000)]
    writer = start(tmp_path, "0-0", 200_000, 500)
    assert writer.stdout is not None
    for _ in range(200):
        writer.stdout.readline()
    writer.kill()
    writer.communicate()
    found = index(tmp_path)
    known = set(found.lookup(keys).places.to_pylist())
    asked = [key for place, key in enumerate(keys) if place not in known]
    assert len(asked) <= 100_000
    write(tmp_path, {key: key * 20 for key in asked}, task="0-1")
    first, second = index(tmp_path).lookup(keys), index(tmp_path).lookup(keys)
    assert 200_000 == len(first)
    assert first.values.equals(second.values)
    assert [key * 20 for key in keys] == first.values.to_pylist()
