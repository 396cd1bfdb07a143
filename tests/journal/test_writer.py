"""What the writer gives to the storage, and when; files and their modes; storage that refuses."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from enrichkit.columnar import Keys
from enrichkit.journal import Journal, JournalError, sinks, writer
from enrichkit.journal.opening import index_of, writer_of
from enrichkit.journal.table import Table
from enrichkit.journal.writer import Writer

from .support import NIGHTLY, TEXTS, index, only_file, opened, read


def test_a_writer_without_answers_makes_no_file(tmp_path: Path) -> None:
    with Writer(opened(tmp_path), TEXTS, NIGHTLY) as empty:
        empty.append([], [])
        empty.flush()
    assert [] == list(tmp_path.iterdir())


def test_a_flush_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda descriptor, parts: calls.append(len(parts)) or writev(descriptor, parts))
    with Writer(opened(tmp_path), TEXTS, NIGHTLY, linger=60) as one:
        for number in range(300):
            one.append([str(number)], ["x"])
        one.append([str(number) for number in range(300, 500)], ["x"] * 200)
        one.append(Keys([pa.array(["columns"])], ["columns"]), pa.array(["x"]))
        one.append(["last"], ["x"])
        assert (502, []) == (one.waiting, calls)
        one.flush()
        assert (0, [3]) == (one.waiting, calls)
        assert (502, one.bytes) == (one.entries, only_file(tmp_path).stat().st_size - len(one._header.encode()))
        one.append(["more"], ["x"])
    assert [3, 2] == calls
    assert 503 == len(index(tmp_path))


def test_a_short_write_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda descriptor, parts: writev(descriptor, [parts[0][:7]]))
    with Writer(opened(tmp_path), TEXTS, NIGHTLY) as one:
        one.append(["a", "b"], ["1", "2"])
    assert {"a": "1", "b": "2"} == read(tmp_path, ["a", "b"])


def test_answers_are_written_when_they_have_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(writer.time, "monotonic", lambda: now[0])
    one = Writer(opened(tmp_path), TEXTS, NIGHTLY, linger=0.005)
    waiting = []
    for at in (0.0, 0.004, 0.0051, 0.0052, 0.0102, 0.0103):
        now[0] = at
        one.append([str(at)], ["x"])
        waiting.append(one.waiting)
    assert [1, 2, 0, 1, 0, 1] == waiting


def test_without_linger_each_append_is_written(tmp_path: Path) -> None:
    one = Writer(opened(tmp_path), TEXTS, NIGHTLY, linger=0)
    for number in range(3):
        one.append([str(number)], ["x"])
        assert number + 1 == len(index(tmp_path))


def test_many_answers_do_not_wait(tmp_path: Path) -> None:
    one = Writer(opened(tmp_path), TEXTS, NIGHTLY, linger=60)
    one.append([str(number) for number in range(writer.BLOCK_ROWS)], ["x"] * writer.BLOCK_ROWS)
    assert 0 == one.waiting
    one.append([str(number) for number in range(100)], ["x" * (writer.BLOCK_BYTES // 64)] * 100)
    assert 0 == one.waiting


def test_a_large_call_becomes_several_blocks(tmp_path: Path) -> None:
    keys = [str(number) for number in range(100)]
    with Writer(opened(tmp_path), TEXTS, NIGHTLY) as one:
        one.append(keys, ["x" * (1 << 20)] * 100)
    found = index(tmp_path)
    assert 100 == len(found)
    assert 7 <= len(found._ends) <= 10
    assert ["x" * (1 << 20)] == found.lookup(["99"]).values.to_pylist()


def test_chunked_values_are_taken(tmp_path: Path) -> None:
    with Writer(opened(tmp_path), TEXTS, NIGHTLY) as one:
        one.append(["a", "b"], pa.chunked_array([["1"], [None]]), pa.array([True, False]))
        one.append(["c"], ["3"], pa.array([True]))
    assert {"a": "1", "b": None, "c": "3"} == read(tmp_path, ["a", "b", "c"])


def test_only_the_user_may_read(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "journal"
    with Writer(opened(folder), TEXTS, NIGHTLY) as one:
        one.append(["a"], ["1"])
    file = only_file(folder)
    assert 0o600 == file.stat().st_mode & 0o777
    assert [0o700] * 3 == [path.stat().st_mode & 0o777 for path in (file.parent, file.parent.parent, folder)]


def test_a_folder_that_its_group_may_write_is_a_journal_of_the_group(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    with Writer(opened(tmp_path), TEXTS, NIGHTLY) as one:
        one.append(["a"], ["1"])
    file = only_file(tmp_path)
    assert (0o660, 0o2770) == (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o7777)


@pytest.mark.parametrize("sync", [True, False])
def test_sync_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool) -> None:
    calls: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _, name=name: calls.append(name))
    with Writer(opened(tmp_path), TEXTS, NIGHTLY, sync=sync) as one:
        for key in "ab":
            one.append([key], ["1"])
            one.flush()
    assert (["fsync", "fdatasync", "fdatasync"] if sync else []) == calls


def test_a_full_disk_is_named_and_leaves_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writev = os.writev
    full = [False]

    def write_a_part(descriptor: int, parts: Any) -> int:
        if full[0]:
            if len(parts[0]) > 20:
                return writev(descriptor, [parts[0][:20]])
            raise OSError(errno.ENOSPC, "No space left on device")
        return writev(descriptor, parts)

    monkeypatch.setattr(os, "writev", write_a_part)
    one = Writer(opened(tmp_path), TEXTS, NIGHTLY, linger=60)
    one.append(["a"], ["1"])
    one.flush()
    full[0] = True
    one.append(["b"], ["2"])
    with pytest.raises(JournalError) as raised:
        one.flush()
    assert (
        f"The journal at {str(tmp_path)!r} cannot be written: OSError: [Errno 28] No space left on device. It needs a "
        "folder that all workers may read and write, with room on the disk."
    ) == str(raised.value)
    full[0] = False
    one.append(["c"], ["3"])
    one.close()
    assert 2 == len(list(tmp_path.rglob("*.journal")))
    found = index(tmp_path)
    assert {"a": "1", "c": "3"} == read(found, ["a", "b", "c"])
    assert 0 == found.damaged


def test_a_path_that_is_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(JournalError, match=r"cannot be written: FileExistsError"):
        Writer(opened(path), TEXTS, NIGHTLY, linger=0).append(["a"], ["1"])
    with pytest.raises(JournalError, match=r"cannot be read: NotADirectoryError"):
        index(path)


def test_a_folder_that_vanishes_is_made_again(tmp_path: Path) -> None:
    one = Writer(opened(tmp_path / "journal"), TEXTS, NIGHTLY, linger=0)
    one.append(["a"], ["1"])
    (tmp_path / "journal").rename(tmp_path / "moved")
    one.append(["b"], ["2"])
    for file in (tmp_path / "moved").rglob("*.journal"):
        assert 2 == len(read(tmp_path / "moved", ["a", "b"]))  # the file is still there, under another name
        file.unlink()
    one.append(["c"], ["3"])
    assert {"c": "3"} == read(tmp_path / "journal", ["a", "b", "c"])


def test_a_folder_that_goes_between_making_and_opening_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open
    failures = [FileNotFoundError()]

    def open_later(*arguments: Any, **options: Any) -> int:
        if failures:
            raise failures.pop()
        return real(*arguments, **options)

    monkeypatch.setattr(sinks.os, "open", open_later)
    with Writer(opened(tmp_path), TEXTS, NIGHTLY) as one:
        one.append(["a"], ["1"])
    assert {"a": "1"} == read(tmp_path, ["a"])


def test_a_fork_writes_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Writer(opened(tmp_path), TEXTS, NIGHTLY, linger=0)
    one.append(["a"], ["1"])
    monkeypatch.setattr(os, "getpid", lambda: 1)
    one.append(["b"], ["2"])
    assert 2 == len(list(tmp_path.rglob("*.journal")))
    assert {"a": "1", "b": "2"} == read(tmp_path, ["a", "b"])


def test_threads_append_and_flush_at_the_same_time(tmp_path: Path) -> None:
    one = Writer(opened(tmp_path), TEXTS, NIGHTLY)
    seen: list[int] = []

    def work(number: int) -> None:
        for start in range(0, 2000, 10):
            keys = [f"{number}-{start + step}" for step in range(10)]
            one.append(keys, keys)
            one.flush()
        seen.append(len(read(tmp_path, [f"{number}-{step}" for step in range(2000)])))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [2000] * 4 == seen


def test_wide_types_of_values_are_stored(tmp_path: Path) -> None:
    table = Table("s", "f", (pa.int32(), pa.date32()), pa.struct([pa.field("a", pa.int8(), metadata={"k": "v"})]))
    with Writer(opened(tmp_path), table, NIGHTLY) as one:
        one.append([], [])
    assert 0 == len(index(tmp_path, table=table))


def test_a_journal_opens_its_writer_and_its_index(tmp_path: Path) -> None:
    journal = Journal(f"file://{tmp_path}", run_id="a", sync=True)
    with writer_of(journal, TEXTS, journal.scope(), task="3-0") as one:
        one.append(["a"], ["1"])
    first = index_of(journal, TEXTS, journal.scope())
    assert {"a": "1"} == read(first, ["a"])
    with writer_of(journal, TEXTS, journal.scope(), task="3-1") as one:
        one.append(["b"], ["2"])
    assert first is index_of(journal, TEXTS, journal.scope())
    assert {"a": "1", "b": "2"} == read(first, ["a", "b"])
    assert first is not index_of(journal, TEXTS, Journal("/x", run_id="b").scope())


def test_a_uri_of_no_file_system_is_named() -> None:
    with pytest.raises(JournalError) as raised:
        writer_of(Journal("ftp://x/y", run_id="a"), TEXTS, NIGHTLY, task="0-0")
    assert str(raised.value).startswith("Journal.path 'ftp://x/y' is no URI that pyarrow knows (")
    assert str(raised.value).endswith("); allowed are s3://, gs://, abfss:// and hdfs://, or the path of a folder.")
