"""Segments in object stores: whole objects, read once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from enrichkit.journal import Journal, JournalError, Scope, stores
from enrichkit.journal.admin import expire_files, find_entries, list_parts
from enrichkit.journal.stores import ObjectStore, open_store
from enrichkit.journal.writer import Writer

from .support import NIGHTLY, TEXTS, index, read


@pytest.fixture(params=["mock", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "mock":
        return ObjectStore(pafs._MockFileSystem(), "bucket/journal")
    return ObjectStore(pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "journal")


def test_whole_segments_are_written(store: ObjectStore) -> None:
    sizes = []
    with Writer(store, TEXTS, NIGHTLY, linger=0, segment_bytes=10_000) as writer:
        for number in range(10):
            writer.append([f"{number}"], ["x" * 3000])
            sizes.append(len(index(store)))
    assert [0, 0, 3, 3, 3, 6, 6, 6, 9, 9] == [size if size % 3 == 0 else -1 for size in sizes]
    assert 10 == len(index(store))
    assert {str(number): "x" * 3000 for number in range(10)} == read(store, [str(number) for number in range(11)])


def test_segments_of_a_killed_writer_are_found(store: ObjectStore) -> None:
    writer = Writer(store, TEXTS, NIGHTLY, linger=0, segment_bytes=10_000)
    for number in range(5):
        writer.append([f"{number}"], ["x" * 3000])
    del writer
    assert ["0", "1", "2"] == sorted(read(store, [str(number) for number in range(5)]))


def test_large_segments_leave_the_memory(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(stores.tempfile, "tempdir", str(copies))
    expected = {str(number): str(number) * 100_000 for number in range(30)}
    with Writer(store, TEXTS, NIGHTLY) as writer:
        for key, value in expected.items():
            writer.append([key], [value])
            writer.flush()
    found = index(store)
    assert 0 == found._copied
    assert [] == list(copies.iterdir())
    assert expected == read(found, list(expected))


def test_a_refresh_reads_new_segments_only(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    real = store.read
    monkeypatch.setattr(store, "read", lambda file: reads.append(file.name) or real(file))
    found = index(store)
    for number in range(3):
        with Writer(store, TEXTS, NIGHTLY) as writer:
            writer.append([str(number)], ["x"])
        found.refresh()
        found.refresh()
        assert number + 1 == len(set(reads)) == len(reads) == len(found)


def test_a_segment_that_has_gone_is_deleted_already(store: ObjectStore) -> None:
    with Writer(store, TEXTS, NIGHTLY) as writer:
        writer.append(["a"], ["1"])
    (file,) = store.files(f"{TEXTS.digest}/run=nightly")
    store.delete(file)
    store.delete(file)
    assert [] == store.files(f"{TEXTS.digest}/run=nightly")


def test_a_writer_without_answers_writes_no_segment(store: ObjectStore) -> None:
    Writer(store, TEXTS, NIGHTLY).close()
    assert [] == store.folders("")


def test_jobs_share_answers(store: ObjectStore) -> None:
    shared = Scope("run=a", shared=True)
    with Writer(store, TEXTS, shared) as writer:
        writer.append(["a", "b"], ["1", None], [True, False])
    assert {"a": "1", "b": None} == read(store, ["a", "b", "c"], scope=Scope("run=b", shared=True))


def test_a_journal_is_listed_shown_and_expired(store: ObjectStore) -> None:
    with Writer(store, TEXTS, NIGHTLY, clock=lambda: 5.0) as writer:
        writer.append(["a", "b"], ["1", None], [True, False])
    ((part,), refused) = list_parts(store)
    assert ("run=nightly", 1, 2, {}) == (part.scope, part.files, part.entries, refused)
    assert ["1"] == [entry.value for entry in find_entries(store, "a")]
    assert (0, 0) == expire_files(store, 3600)
    assert 1 == expire_files(store, 0, now=4e9)[0]
    assert ([], {}) == list_parts(store)
    assert 0 == len(index(store))


def test_an_object_store_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        type_name = "s3"

        def get_file_info(self, selector: Any) -> Any:
            raise OSError("access denied")

        def open_output_stream(self, path: str, **options: Any) -> Any:
            raise OSError("access denied")

    store = ObjectStore(Broken(), "bucket")
    expected = (
        "The journal at 'bucket' cannot be {}: OSError: access denied. It needs a folder that all workers may read and "
        "write, with room on the disk."
    )
    with pytest.raises(JournalError) as raised:
        index(store)
    assert expected.format("read") == str(raised.value)
    writer = Writer(store, TEXTS, NIGHTLY)
    writer.append(["a"], ["1"])
    with pytest.raises(JournalError) as raised:
        writer.close()
    assert expected.format("written") == str(raised.value)


def test_a_uri_of_an_object_store_is_opened(tmp_path: Path) -> None:
    opened = open_store(Journal("s3://bucket/a/b?region=eu-west-1").path)
    assert isinstance(opened, ObjectStore)
    assert ("bucket/a/b", "s3") == (opened.root, opened.file_system.type_name)
    assert os.fspath(tmp_path) == open_store(f"file://{tmp_path}").root
