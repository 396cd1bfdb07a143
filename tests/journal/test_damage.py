"""Files that were cut, changed, or that are none of the journal: entries may be lost, and no wrong value is found."""

from __future__ import annotations

import json
import logging
import os
import shutil
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enrichkit.journal import Scope
from enrichkit.journal.blocks import MAGIC, Header, Scan, encode_block, read_header, scan
from enrichkit.journal.table import Table
from enrichkit.journal.writer import Writer

from .support import NIGHTLY, TEXTS, index, only_file, opened, read, write

ENTRIES = {f"key-{number}": f"value-{number}" for number in range(12)}
KEYS = [*ENTRIES, "absent"]


def write_blocks(folder: Path) -> tuple[Path, bytes, list[int]]:
    """Write three blocks of four entries. Return the file, its bytes, and where each block ends."""
    write(folder, ENTRIES, block=4)
    file = only_file(folder)
    data = file.read_bytes()
    found = read_header(memoryview(data))
    assert found is not None
    header, end = found
    blocks = list(scan(memoryview(data), Scan(end), header.salt))
    return file, data, [block.offset + block.length for block in blocks]


def test_a_cut_at_every_byte_loses_only_the_blocks_that_are_not_whole(tmp_path: Path) -> None:
    file, data, ends = write_blocks(tmp_path)
    assert [len(data)] == ends[-1:]
    for size in range(len(data) + 1):
        file.write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        found = index(tmp_path)
        assert dict(list(ENTRIES.items())[: 4 * whole]) == read(found, KEYS), size
        assert (0, {}) == (found.damaged, found.refused)


@pytest.mark.slow
def test_a_wrong_byte_anywhere_loses_its_block_only(tmp_path: Path) -> None:
    file, data, ends = write_blocks(tmp_path)
    begins = [read_header(memoryview(data))[1], *ends]  # type: ignore[index]  # the header is whole
    for place in range(len(data)):
        for flip in (1 << place % 8, 0xFF):
            file.write_bytes(data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :])
            found = read(tmp_path, KEYS)
            assert found.items() <= ENTRIES.items()
            if place >= begins[0]:
                lost = next(number for number, end in enumerate(ends) if place < end)
                kept = [key for number, key in enumerate(ENTRIES) if number // 4 != lost]
                assert kept == list(found), place
            elif not 20 <= place < 24:  # four bytes of the header say nothing
                assert {} == found, place


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_bytes_that_were_changed_moved_or_removed_give_no_wrong_value(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    file, good, _ = write_blocks(folder)
    begin, end = sorted(data.draw(st.tuples(st.integers(0, len(good)), st.integers(0, len(good)))))
    other = data.draw(
        st.binary(max_size=200)
        | st.just(b"")
        | st.tuples(st.integers(0, len(good)), st.integers(0, len(good))).map(lambda cut: good[min(cut) : max(cut)])
    )
    file.write_bytes(good[:begin] + other + good[end:])
    assert read(folder, KEYS).items() <= ENTRIES.items()
    shutil.rmtree(folder)


def test_damage_in_the_middle_is_counted_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, data, ends = write_blocks(tmp_path)
    broken = bytearray(data)
    broken[ends[0] + 40] ^= 1
    file.write_bytes(broken)
    with caplog.at_level(logging.WARNING):
        found = index(tmp_path)
        found.refresh()
    assert 1 == found.damaged
    assert 8 == len(found)
    path = file.relative_to(tmp_path)
    assert [
        f"The journal at {str(tmp_path)!r} has damaged blocks in {path}; their keys are asked for again."
    ] == caplog.messages


def test_a_value_that_looks_like_a_block_is_a_value(tmp_path: Path) -> None:
    """The checksums of each file start from another number, so an answer cannot bring a block that counts."""
    table = Table("s", "f", (pa.string(),), pa.binary())
    forged = pa.record_batch([["key"], [b"forged"], [True]], schema=table.schema)
    for salt in (0, 1):
        head, payload = encode_block(forged, 0.0, salt)
        write(tmp_path / str(salt), {"a": b"x" * 7 + head + payload.to_pybytes() + MAGIC, "b": b"b"}, table=table)
        file = only_file(tmp_path / str(salt))
        data = bytearray(file.read_bytes())
        assert ["a", "b"] == list(read(tmp_path / str(salt), ["a", "b", "key"], table=table))
        data[read_header(memoryview(data))[1] + 8] ^= 0xFF  # type: ignore[index]  # the header is whole
        file.write_bytes(data)
        assert {} == read(tmp_path / str(salt), ["a", "b", "key"], table=table)


def test_a_block_of_another_file_does_not_count(tmp_path: Path) -> None:
    first, data, _ = write_blocks(tmp_path)
    write(tmp_path / "other", {"key-1": "wrong"})
    other = only_file(tmp_path / "other").read_bytes()
    _, end = read_header(memoryview(other))  # type: ignore[misc]  # the header is whole
    first.write_bytes(data + other[end:])
    assert ENTRIES == read(tmp_path, KEYS)


def test_a_torn_end_is_read_when_it_is_whole(tmp_path: Path) -> None:
    file, data, ends = write_blocks(tmp_path)
    found = None
    for size in (10, 30, ends[0] - 1, ends[0], ends[0] + 7, ends[1] + 40, ends[2] - 1, ends[2]):
        file.write_bytes(data[:size])
        found = found or index(tmp_path)
        found.refresh()
        assert 4 * sum(end <= size for end in ends) == len(found)
    assert found is not None
    assert ENTRIES == read(found, KEYS)
    assert 0 == found.damaged


def test_bytes_that_come_after_their_size_are_read(tmp_path: Path) -> None:
    """As a network file system may show a write."""
    file, data, ends = write_blocks(tmp_path)
    file.write_bytes(data[: ends[1] + 50] + bytes(len(data) - ends[1] - 50))
    found = index(tmp_path)
    assert 8 == len(found)
    file.write_bytes(data)
    found.refresh()
    assert ENTRIES == read(found, KEYS)
    assert 0 == found.damaged


def test_a_later_block_after_a_torn_one_is_found(tmp_path: Path) -> None:
    file, data, ends = write_blocks(tmp_path)
    for size in range(ends[0], ends[1]):
        file.write_bytes(data[:size] + data[ends[1] :])
        found = index(tmp_path)
        assert [*list(ENTRIES)[:4], *list(ENTRIES)[8:]] == list(read(found, KEYS))
        assert (size > ends[0]) == found.damaged


def test_other_versions_and_other_files_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, {"a": "1"})
    file = only_file(tmp_path)
    data = file.read_bytes()
    mark = NIGHTLY.mark
    files = {
        f"{mark}-foreign.journal": b"PAR1 and more",
        f"{mark}-version.journal": data[:8] + struct.pack("<I", 2) + data[12:],
        f"{mark}-length.journal": data[:12] + b"\xff" * 4 + data[16:],
        f"{mark}-header.journal": data[:40] + b"?" + data[41:],
        f"{mark}-table.journal": _with(data, table="0" * 32),
        f"{mark}-schema.journal": _with(data, schema="QQ=="),
        f"{mark}-list.journal": _with(data, salt=[]),
        f"{mark}-empty.journal": b"",
        f"{mark}-short.journal": b"\x89EK",
        "notes.txt": b"PAR1",
        "other-scope.journal": b"PAR1",
    }
    for name, content in files.items():
        (file.parent / name).write_bytes(content)
    (file.parent / f"{mark}-folder.journal").mkdir()
    os.mkfifo(file.parent / f"{mark}-pipe.journal")
    (file.parent / f"{mark}-link.journal").symlink_to("nowhere")
    with caplog.at_level(logging.WARNING):
        found = index(tmp_path)
        found.refresh()
    assert {"a": "1"} == read(found, ["a"])
    reasons = {Path(path).name.removeprefix(mark): reason for path, reason in found.refused.items()}
    assert {
        "-foreign.journal": "it is no file of a journal",
        "-version.journal": "it has version 2 of the format, and this enrichkit reads version 1",
        "-length.journal": "its header is damaged",
        "-header.journal": "its header is damaged",
        "-table.journal": "it belongs to another source, or to other types",
        "-schema.journal": "its header cannot be read (ArrowInvalid)",
        "-list.journal": "its header cannot be read (ValidationError)",
    } == reasons
    assert len(reasons) == len(caplog.messages)
    folder = file.parent.relative_to(tmp_path)
    assert (
        f"The journal at {str(tmp_path)!r} ignores {folder}/{mark}-foreign.journal: it is no file of a journal."
    ) in caplog.messages


def _with(data: bytes, **changes: object) -> bytes:
    """Return the file with another header, whose checksum is right."""
    _, end = read_header(memoryview(data))  # type: ignore[misc]  # the header is whole
    body = json.dumps({**json.loads(data[24:end]), **changes}).encode()
    body += b" " * (-(24 + len(body)) % 64)
    crc = zlib.crc32(body, zlib.crc32(struct.pack("<II", 1, len(body))))
    return struct.pack("<8sIIII", MAGIC, 1, len(body), crc, 0) + body + data[end:]


def test_a_block_with_fewer_rows_than_it_says_is_damaged(tmp_path: Path) -> None:
    header = Header.of(TEXTS, NIGHTLY.name, "0-0", 0.0)
    batch = pa.record_batch([["a", "b"], ["1", "2"], [True, True]], schema=TEXTS.schema)
    other = pa.record_batch([[1]], names=["x"])
    path = tmp_path / TEXTS.digest / NIGHTLY.folder / f"{NIGHTLY.mark}-x.journal"
    path.parent.mkdir(parents=True)
    blocks = b"".join(b"".join(encode_block(part, 0.0, header.salt)) for part in (other, batch))
    path.write_bytes(header.encode() + blocks)
    found = index(tmp_path)
    assert 1 == found.damaged
    assert {"a": "1", "b": "2"} == read(found, ["a", "b"])


def test_scopes_whose_folders_are_one_do_not_mix(tmp_path: Path) -> None:
    """As on a file system that ignores case."""
    write(tmp_path, {"a": "1"})
    write(tmp_path, {"a": "2"}, scope=Scope("run=NIGHTLY"))
    folders = tmp_path / TEXTS.digest
    for file in (folders / "run=NIGHTLY").iterdir():
        file.rename(folders / "run=nightly" / file.name)
    assert {"a": "1"} == read(tmp_path, ["a"])


def test_a_block_of_any_size_is_whole(tmp_path: Path) -> None:
    """Blocks below and above the size up to which they are copied, in one file."""
    expected = {}
    with Writer(opened(tmp_path), TEXTS, NIGHTLY, linger=60) as writer:
        for number, size in enumerate((1, 70_000, 3, 3, 65_000, 65_500, 2_000_000, 1, 90_000)):
            expected[str(number)] = "x" * size
            writer.append([str(number)], ["x" * size])
            writer.flush()
    assert expected == read(tmp_path, list(expected))
