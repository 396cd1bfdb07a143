"""`enrichkit journal list | show | expire`."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from enrichkit.journal import JournalError, Scope
from enrichkit.journal.admin import Entry, Part, expire_files, find_entries, list_parts
from enrichkit.journal.blocks import Header, encode_block
from enrichkit.journal.stores import LocalStore
from enrichkit.journal.table import Table
from enrichkit.journal.writer import Writer

from .support import NIGHTLY, TEXTS, index, only_file, opened, read, write

NUMBERS = Table("orders", "f", (pa.int32(), pa.date32()), pa.float64())


def test_a_folder_that_does_not_exist_holds_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path / "absent")
    assert ([], {}) == list_parts(store)
    assert [] == find_entries(store, "a")
    assert (0, 0) == expire_files(store, 0)


def test_parts_are_listed(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1", "b": None}, block=1, now=5.0)
    write(tmp_path, {"c": "3"}, now=9.0)
    write(tmp_path, {"c": "3"}, now=7.0, scope=Scope("run=x", shared=True))
    files = list(tmp_path.rglob("*.journal"))
    own = sum(file.stat().st_size for file in files if file.parent.name == "run=nightly")
    other = sum(file.stat().st_size for file in files if file.parent.name == "shared")
    (tmp_path / TEXTS.digest / "shared" / "notes.journal").write_text("notes")
    (tmp_path / TEXTS.digest / "shared" / "empty.journal").write_text("")
    (tmp_path / "notes.txt").write_text("")
    parts, refused = list_parts(opened(tmp_path))
    head: dict[str, Any] = {"source": "users", "table": TEXTS.digest, "key_types": ("string",), "value_type": "string"}
    assert [
        Part(
            **head,
            scope="run=nightly",
            shared=False,
            files=2,
            entries=3,
            bytes=own,
            oldest=5.0,
            newest=9.0,
            damaged=0,
            torn=0,
        ),
        Part(
            **head,
            scope="run=x",
            shared=True,
            files=1,
            entries=1,
            bytes=other,
            oldest=7.0,
            newest=7.0,
            damaged=0,
            torn=0,
        ),
    ] == parts
    assert {f"{TEXTS.digest}/shared/notes.journal": "it is no file of a journal"} == refused


def test_torn_ends_and_damage_are_listed(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1", "b": "2"}, block=1)
    file = only_file(tmp_path)
    file.write_bytes(file.read_bytes()[:-9])
    ((part,), _) = list_parts(opened(tmp_path))
    assert (1, 0) == (part.entries, part.damaged)
    assert part.torn > 100


def test_the_answers_to_a_key_are_shown(tmp_path: Path) -> None:
    write(tmp_path, {"7": "new", "8": "other"}, now=9.0)
    write(tmp_path, {"7": None}, now=5.0, scope=Scope("run=x", shared=True))
    number = Table("ages", "f", (pa.int64(),), pa.int64())
    write(tmp_path, {7: 70, 8: 80}, table=number, now=7.0)
    found = find_entries(opened(tmp_path), "7")
    assert [
        ("users", "run=x", None, False, 5.0),
        ("ages", "run=nightly", 70, True, 7.0),
        ("users", "run=nightly", "new", True, 9.0),
    ] == [(entry.source, entry.scope, entry.value, entry.found, entry.written_at) for entry in found]
    assert (tmp_path / found[0].file).exists()
    assert isinstance(found[0], Entry)
    assert [70] == [entry.value for entry in find_entries(opened(tmp_path), 7)]
    assert [] == find_entries(opened(tmp_path), "9")
    assert [] == find_entries(opened(tmp_path), "7", "8")


def test_a_key_of_several_parts_is_shown(tmp_path: Path) -> None:
    day = dt.date(2026, 7, 30)
    write(tmp_path, {(1, day): 1.5, (2, day): 2.5}, table=NUMBERS)
    for key in ((2, day), ("2", "2026-07-30")):
        assert [2.5] == [entry.value for entry in find_entries(opened(tmp_path), *key)]


def test_old_files_expire(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1"})
    old = only_file(tmp_path)
    os.utime(old, (1000, 1000))
    size = old.stat().st_size
    write(tmp_path, {"b": "2"}, scope=Scope("run=b"))
    foreign = old.with_name("notes.journal")
    foreign.write_text("x")
    os.utime(foreign, (1000, 1000))
    assert (0, 0) == expire_files(opened(tmp_path), 100, now=1099)
    assert (0, 0) == expire_files(opened(tmp_path), 100, now=1100, scope="run=b")
    assert (1, size) == expire_files(opened(tmp_path), 100, now=1100)
    assert {} == read(tmp_path, ["a"])
    assert {"b": "2"} == read(tmp_path, ["b"], scope=Scope("run=b"))
    assert foreign.exists()


def test_an_empty_folder_goes_with_its_last_file(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1"})
    folder = only_file(tmp_path).parent
    expire_files(opened(tmp_path), 0, now=4e9, scope="run=nightly")
    assert not folder.exists()
    write(tmp_path, {"a": "2"})
    assert {"a": "2"} == read(tmp_path, ["a"])


def test_an_expiry_does_not_break_those_who_read(tmp_path: Path) -> None:
    expected = {str(number): "x" * 500 for number in range(1000)}
    write(tmp_path, expected)
    found = index(tmp_path)
    expire_files(opened(tmp_path), 0, now=4e9)
    assert expected == read(found, list(expected))
    found.refresh()
    assert {} == read(found, list(expected))


def test_a_writer_begins_a_new_file_after_an_expiry(tmp_path: Path) -> None:
    with Writer(opened(tmp_path), TEXTS, NIGHTLY, linger=0) as writer:
        for number in range(5):
            writer.append([str(number)], ["x"])
            assert 1 == expire_files(opened(tmp_path), 0, now=4e9)[0]
        writer.append(["last"], ["x"])
    assert ["last"] == list(read(tmp_path, [*"01234", "last"]))


def test_a_journal_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    for what, call in (
        ("read", lambda store: list_parts(store)),
        ("read", lambda store: find_entries(store, "a")),
        ("cleared", lambda store: expire_files(store, 0)),
    ):
        with pytest.raises(JournalError) as raised:
            call(opened(path))
        assert str(raised.value).startswith(f"The journal at {str(path)!r} cannot be {what}: NotADirectoryError: ")


def test_the_scope_of_a_writer_is_that_of_its_files(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1"})
    assert only_file(tmp_path).name.startswith(f"{NIGHTLY.mark}-0-0-")


def test_what_cannot_be_read_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a": "1"})
    folder = only_file(tmp_path).parent
    (folder / "foreign.journal").write_text("PAR1")
    (folder / "empty.journal").write_text("")
    header = Header.of(TEXTS, NIGHTLY.name, "0-0", 0.0)
    other = encode_block(pa.record_batch([[1]], names=["x"]), 0.0, header.salt)
    (folder / "other.journal").write_bytes(b"".join([header.encode(), *other]))
    store = opened(tmp_path)
    assert ["1"] == [entry.value for entry in find_entries(store, "a")]
    (folder / "foreign.journal").unlink()
    monkeypatch.setattr(LocalStore, "read", lambda self, file: os.stat(tmp_path / "absent"))
    assert [] == find_entries(store, "a")
    assert {2} == {len(list_parts(store)[1])}


def test_a_file_that_has_gone_is_deleted_already(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1"})
    store = opened(tmp_path)
    (file,) = store.files(f"{TEXTS.digest}/run=nightly")
    store.delete(file)
    store.delete(file)
    assert [] == store.files(f"{TEXTS.digest}/run=nightly")
