"""Which answer counts, what a refresh sees, and how entries are found."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enrichkit.columnar import Keys
from enrichkit.journal import Journal, JournalError, Scope, entries, files, opening
from enrichkit.journal import index as index_module
from enrichkit.journal.entries import Entries
from enrichkit.journal.index import Index
from enrichkit.journal.opening import index_of
from enrichkit.journal.writer import Writer

from .support import NIGHTLY, TEXTS, index, only_file, opened, read, write

SHARED = Scope("run=nightly", shared=True)
OTHER = Scope("query=q,batch=7", shared=True)


def test_the_first_answer_counts(tmp_path: Path) -> None:
    write(tmp_path, {"a": "later"}, now=20.0)
    write(tmp_path, {"a": "first", "b": "b"}, now=10.0)
    write(tmp_path, {"a": None}, now=30.0)
    assert {"a": "first", "b": "b"} == read(tmp_path, ["a", "b", "c"])


def test_all_processes_choose_the_same_of_answers_of_one_moment(tmp_path: Path) -> None:
    for value in "1234":
        write(tmp_path, {"a": value})
    paths = sorted(tmp_path.rglob("*.journal"))
    expected = read(tmp_path, ["a"])
    for order in (paths, paths[::-1]):
        found = None
        for path in paths:
            path.rename(path.with_suffix(".away"))
        for path in order:
            path.with_suffix(".away").rename(path)
            found = found or index(tmp_path)
            found.refresh()
        assert found is not None
        assert expected == read(found, ["a"])


def test_within_a_file_the_first_answer_counts(tmp_path: Path) -> None:
    with Writer(opened(tmp_path), TEXTS, NIGHTLY, clock=lambda: 1.0) as one:
        found = index(tmp_path)
        for value in "3124":
            one.append(["a", value], [value, value])
            one.flush()
            found.refresh()
    assert "3" == read(found, ["a"])["a"] == read(tmp_path, ["a"])["a"]


def test_other_runs_see_shared_answers_only(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1"}, scope=SHARED)
    write(tmp_path, {"b": "2"}, scope=NIGHTLY)
    write(tmp_path, {"c": "3"}, scope=Scope("run=other"))
    assert {"a": "1"} == read(tmp_path, ["a", "b", "c"], scope=OTHER)
    assert {"b": "2"} == read(tmp_path, ["a", "b", "c"], scope=NIGHTLY)


def test_a_replay_takes_what_its_own_run_has_written(tmp_path: Path) -> None:
    """Another run wrote an earlier answer after this run had read the journal: the rows have left with its own."""
    write(tmp_path, {"a": "other"}, scope=OTHER, now=10.0)
    write(tmp_path, {"a": "own"}, scope=SHARED, now=20.0)
    assert {"a": "own"} == read(tmp_path, ["a"], scope=SHARED)
    assert {"a": "other"} == read(tmp_path, ["a"], scope=OTHER)
    assert {"a": "other"} == read(tmp_path, ["a"], scope=Scope("any", shared=True))


def test_runs_that_share_answers_share_an_index(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), shared=True)
    write(tmp_path, {"a": "other"}, scope=OTHER, now=10.0)
    write(tmp_path, {"a": "own"}, scope=SHARED, now=20.0)
    first, second = index_of(journal, TEXTS, SHARED), index_of(journal, TEXTS, OTHER)
    assert first is second
    assert ["own"] == first.lookup(["a"], SHARED).values.to_pylist()
    assert ["other"] == first.lookup(["a"], OTHER).values.to_pylist()


def test_a_process_keeps_few_indexes(tmp_path: Path) -> None:
    """Each micro-batch of a streaming query has a scope."""
    journal = Journal(str(tmp_path))
    for batch in range(30):
        scope = journal.scope("q", batch)
        assert index_of(journal, TEXTS, scope) is index_of(journal, TEXTS, scope)
    assert len(opening._indexes) <= opening._MOST_INDEXES


def test_old_answers_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, {"a": "old", "b": "old"}, now=900.0)
    write(tmp_path, {"b": "new"}, now=950.0)
    assert {"a": "old", "b": "old"} == read(tmp_path, ["a", "b"], max_age=100.0)
    assert {"b": "new"} == read(tmp_path, ["a", "b"], max_age=99.0)
    assert {} == read(tmp_path, ["a", "b"], max_age=49.0)


def test_a_refresh_sees_new_files_and_new_blocks(tmp_path: Path) -> None:
    found = index(tmp_path)
    assert {} == read(found, ["a"])
    with Writer(opened(tmp_path), TEXTS, NIGHTLY, linger=0) as one:
        for number in range(20):
            one.append([str(number)], ["x"])
            write(tmp_path, {f"file-{number}": "y"})
            found.refresh()
            assert 2 * number + 2 == len(found)
    assert 20 == len(read(found, [str(number) for number in range(30)]))


def test_files_that_did_not_change_are_not_read_again(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1"})
    store = opened(tmp_path)
    found = index(store)
    store.read = None  # type: ignore[method-assign, assignment]  # a call would fail
    found.refresh()
    assert {"a": "1"} == read(found, ["a"])


def test_deleted_files_are_forgotten_on_refresh_and_readable_before(tmp_path: Path) -> None:
    big = {str(number): "x" * 1000 for number in range(2000)}
    write(tmp_path, big, block=500)
    write(tmp_path, {"a": "1"})
    found = index(tmp_path)
    largest = max(tmp_path.rglob("*.journal"), key=lambda file: file.stat().st_size)
    hits = found.lookup(["7"])
    largest.unlink()
    assert big == read(found, list(big))
    found.refresh()
    assert {"a": "1"} == read(found, ["a", "7"])
    assert ["x" * 1000] == hits.values.to_pylist()


def test_a_file_that_goes_while_it_is_read_is_no_error(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1"})
    store = opened(tmp_path)
    found = Index(store, TEXTS, NIGHTLY)
    listed = store.files(f"{TEXTS.digest}/{NIGHTLY.folder}")
    store.files = lambda folder: listed  # type: ignore[method-assign]
    only_file(tmp_path).unlink()
    found.refresh()
    assert 0 == len(found)


def test_a_file_that_must_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a": "1"})
    store = opened(tmp_path)

    def refuse(file: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store, "read", refuse)
    found = index(store)
    assert ["[Errno 13] Permission denied"] == list(found.refused.values())
    assert {} == read(found, ["a"])


def test_a_refresh_that_failed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {str(number): "x" * 90_000 for number in range(5)}, block=1)
    store = opened(tmp_path)
    found = index(store)
    write(tmp_path, {"a": "x" * 90_000, "b": "1"}, block=1)
    keep = store.keep
    monkeypatch.setattr(store, "keep", lambda file, data: os.stat("/nowhere/at/all/" + chr(0)))
    with pytest.raises(ValueError, match="null"):
        found.refresh()
    assert 0 == len(found)
    monkeypatch.setattr(store, "keep", keep)
    found.refresh()
    assert 7 == len(found)


def test_equal_hashes_do_not_make_keys_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (entries, index_module):
        monkeypatch.setattr(module, "hashes_of", lambda columns: np.zeros(len(columns[0]), np.uint64))
    expected = {str(number): f"value {number}" for number in range(50)}
    write(tmp_path, expected, block=7)
    write(tmp_path, {"3": "later", "x": "y"}, now=2000.0)
    found = index(tmp_path)
    asked = [*expected, "absent", "x"]
    random.Random(1).shuffle(asked)
    assert {**expected, "x": "y"} == read(found, asked)
    assert {} == read(found, ["absent"])


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=12), st.lists(st.integers(0, 40), unique=True))
def test_all_entries_with_a_hash_are_candidates(chunks: list[list[int]], asked: list[int]) -> None:
    found = Entries(1)
    everything: list[int] = []
    for chunk in chunks:
        found.add(pa.record_batch([pa.array(chunk, pa.int64())], names=["key0"]))
        everything += chunk
        found.sort()
    places, numbers = found.candidates(entries.hashes_of([pa.array(asked, pa.int64())]))
    pairs = [
        (place, number) for place, key in enumerate(asked) for number, other in enumerate(everything) if key == other
    ]
    assert pairs == sorted(zip(places.tolist(), numbers.tolist(), strict=True))
    assert places.tolist() == sorted(places.tolist())
    if pairs:
        assert [everything[number] for number in numbers] == found.rows(numbers).column(0).to_pylist()


def test_runs_are_merged(tmp_path: Path) -> None:
    found = Entries(1)
    for number in range(200):
        found.add(pa.record_batch([pa.array([number])], names=["key0"]))
        found.sort()
    assert len(found._runs) <= 8
    assert 200 == sum(len(run) for run, _ in found._runs)


def test_an_index_has_a_largest_number_of_entries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(entries, "_MOST", 10)
    write(tmp_path, {str(number): "x" for number in range(11)})
    with pytest.raises(JournalError) as raised:
        index(tmp_path)
    assert "The journal has more than 10 entries of one scope; expire some, or use run ids." == str(raised.value)


def test_mapped_files_take_no_file_descriptor(tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path, {f"{number}-{key}": "x" * 100 for key in range(1000)}, task=f"{number}-0")
    before = len(os.listdir("/proc/self/fd"))
    found = index(tmp_path)
    assert (30_000, 0) == (len(found), found._copied)
    assert before == len(os.listdir("/proc/self/fd"))


def test_an_empty_look_up_finds_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        hits = index(tmp_path).lookup([])
        assert (0, pa.string()) == (len(hits), hits.values.type)
        write(tmp_path, {"a": "1"})


def test_copies_of_small_blocks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "COPY_BYTES", 5_000)
    expected = {str(number): "x" * 50 for number in range(400)}
    for start in range(0, 400, 100):
        write(tmp_path, dict(list(expected.items())[start : start + 100]), block=2)
    found = index(tmp_path)
    assert found._copied <= 5_000
    assert expected == read(found, list(expected))


def test_a_million_entries_take_12_bytes_of_memory_each(tmp_path: Path) -> None:
    """In a process of its own. What is mapped is not counted: the system takes it back when it needs memory."""
    count = 1_000_000
    column = pa.array([f"user-{number:07d}" for number in range(count)])
    with Writer(opened(tmp_path), TEXTS, NIGHTLY, linger=60) as one:
        for start in range(0, count, 10_000):
            part = column[start : start + 10_000]
            one.append(Keys([part], part.to_pylist), part)
    program = f"""
        import sys
        import pyarrow as pa
        from enrichkit.journal import Scope
        from enrichkit.journal.index import Index
        from enrichkit.journal.stores import LocalStore
        from enrichkit.journal.table import Table

        def own():
            lines = dict(line.split(":") for line in open("/proc/self/status") if ":" in line)
            return int(lines["RssAnon"].split()[0]) * 1024

        pa.array([None], pa.string())
        table = Table("users", "fingerprint", (pa.string(),), pa.string())
        index = Index(LocalStore({str(tmp_path)!r}), table, Scope("run=nightly"))
        index.lookup(["a"])
        before = own()
        index.refresh()
        assert len(index) == {count}
        print((own() - before) / {count})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 60  # 12, and what was allocated while the entries were sorted


def test_look_ups_and_refreshes_run_side_by_side(tmp_path: Path) -> None:
    found = index(tmp_path)
    written: list[str] = []
    wrong: list[object] = []
    done = threading.Event()

    def look_up() -> None:
        while not done.is_set():
            asked = written.copy()
            found.refresh()
            if len(asked) != len(found.lookup(asked)):
                wrong.append(len(asked))

    threads = [threading.Thread(target=look_up) for _ in range(2)]
    for thread in threads:
        thread.start()
    with Writer(opened(tmp_path), TEXTS, NIGHTLY) as one:
        for start in range(0, 3000, 30):
            keys = [str(number) for number in range(start, start + 30)]
            one.append(keys, keys)
            one.flush()
            written += keys
    done.set()
    for thread in threads:
        thread.join()
    assert [] == wrong
