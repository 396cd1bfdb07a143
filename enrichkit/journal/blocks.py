"""
The bytes of a file of the journal: a header, then blocks.

=========  ========================================================================================
header     magic (8 bytes), version, length and CRC-32 of the rest, 4 bytes unused; the rest is JSON
block      magic (4), rows (4), length of the payload (8), seconds since 1970 (8), CRC-32 of the
           payload (4), CRC-32 of the 28 bytes before it (4)
payload    one encapsulated Arrow IPC message: a record batch
=========  ========================================================================================

All numbers are little-endian; header and payload have sizes divisible by 8, so that Arrow can read them in place. A
CRC-32 detects every error burst of up to 32 bits, and thus every single wrong byte. The checksums of all blocks of a
file start from a random number in the header of the file. So bytes inside a value that look like a block are not
mistaken for a block.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from .table import Schema, Table

__all__ = ["MAGIC", "VERSION", "Block", "Header", "RefusedFileError", "Scan", "encode_block", "read_header", "scan"]

MAGIC = b"\x89EKJ\r\n\x1a\n"
"""
The first bytes of a file. As with PNG files, these bytes cannot be mistaken for text, and show whether a program has
converted line ends in the file.
"""
VERSION = 1
_MOST_HEADER = 16 << 20
_PREFIX = struct.Struct("<8sIIII")
_BLOCK = struct.Struct("<4sIQdII")
_BLOCK_MAGIC = b"EKB\x01"
_NEXT_BLOCK = re.compile(re.escape(_BLOCK_MAGIC))


class _Meta(msgspec.Struct):
    """The JSON part of a header; `schema` is the schema as Arrow IPC writes it."""

    source: str
    table: str
    scope: str
    task: str
    created: float
    salt: int
    schema: bytes


class RefusedFileError(Exception):
    """A file does not belong to this journal, or cannot be read as a part of it; the message says why."""


@dataclass(frozen=True)
class Header:
    """
    The content of the header of a file.

    Attributes:
        source: Name of the source, only for people to read.
        table: Digest of the table.
        scope: Name of the scope that wrote the file.
        task: Partition and attempt of the task, only for people to read.
        schema: Columns of the blocks.
        created: When the header was made, in seconds since 1970.
        salt: The number from which the checksums of the blocks start.
    """

    source: str
    table: str
    scope: str
    task: str
    schema: Schema
    created: float
    salt: int = field(default_factory=lambda: int.from_bytes(os.urandom(4), "little"))

    @classmethod
    def of(cls, table: Table, scope: str, task: str, created: float) -> Header:
        """Return the header of a new file."""
        return cls(table.source, table.digest, scope, task, table.schema, created)

    def encode(self) -> bytes:
        """Return the bytes with which the file begins."""
        schema = self.schema.serialize().to_pybytes()
        meta = _Meta(self.source, self.table, self.scope, self.task, self.created, self.salt, schema)
        body = msgspec.json.encode(meta)
        body += b" " * (-(_PREFIX.size + len(body)) % 64)
        crc = zlib.crc32(body, zlib.crc32(struct.pack("<II", VERSION, len(body))))
        return _PREFIX.pack(MAGIC, VERSION, len(body), crc, 0) + body


def read_header(data: memoryview) -> tuple[Header, int] | None:
    """
    Return the header of a file and its length in bytes; None when the header has not been written completely.

    Raises:
        RefusedFileError: The file is no file of a journal, has another version, or has a damaged header.
    """
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise RefusedFileError("it is no file of a journal")
    if len(data) < _PREFIX.size:
        return None
    _, version, length, crc, _ = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise RefusedFileError(f"it has version {version} of the format, and this enrichkit reads version {VERSION}")
    if length > _MOST_HEADER:
        raise RefusedFileError("its header is damaged")
    if len(data) < _PREFIX.size + length:
        return None
    body = data[_PREFIX.size : _PREFIX.size + length]
    if crc != zlib.crc32(body, zlib.crc32(struct.pack("<II", version, length))):
        raise RefusedFileError("its header is damaged")
    try:
        meta = msgspec.json.decode(body, type=_Meta)
        schema = pa.ipc.read_schema(pa.py_buffer(meta.schema))
    except (msgspec.DecodeError, pa.ArrowException, OSError) as error:
        raise RefusedFileError(f"its header cannot be read ({type(error).__name__})") from error
    header = Header(meta.source, meta.table, meta.scope, meta.task, schema, meta.created, meta.salt)
    return header, _PREFIX.size + length


def encode_block(batch: Any, written_at: float, salt: int) -> tuple[bytes, Any]:
    """Return the header and the payload of the block that holds *batch*."""
    payload = batch.serialize()
    start = _BLOCK.pack(_BLOCK_MAGIC, len(batch), payload.size, written_at, zlib.crc32(payload, salt), 0)[:-4]
    return start + struct.pack("<I", zlib.crc32(start, salt)), payload


class Block(NamedTuple):
    """One block of a file: the offset and length of its payload, its rows, and when it was written."""

    offset: int
    length: int
    rows: int
    written_at: float


@dataclass
class Scan:
    """
    The progress of a reader through the blocks of a file.

    Attributes:
        end: Offset at which the next block begins.
        damaged: How many times blocks were skipped because their bytes are wrong.
        torn: Number of bytes after the last whole block; they come from a write that was cut off or has not ended yet.
    """

    end: int
    damaged: int = 0
    torn: int = 0


def scan(data: memoryview, state: Scan, salt: int, *, check: bool = True) -> Iterator[Block]:
    """
    Yield the whole blocks of a file from `state.end` on, and move `state.end` past them.

    Bytes that do not form a whole block are skipped if a block follows; each skip adds 1 to `state.damaged`. If no
    block follows, the next scan begins with these bytes.

    Args:
        data: All bytes of the file so far.
        state: The progress of the last scan, from which this scan continues.
        salt: `Header.salt`.
        check: Whether to compare the checksums of the payloads, too; the checksums of block headers are always
            compared.
    """
    position = state.end
    while position < len(data):
        block = _block_at(data, position, salt, check=check)
        if block is None:
            # The bytes here are no valid block, so even their length is unknown. The scan continues at the next bytes
            # that look like the start of a block, and checks them like any other block.
            follower = _NEXT_BLOCK.search(data, position + 1)
            position = follower.start() if follower else len(data)
            continue
        if position > state.end:  # bytes before this block were skipped, because they are no valid block
            state.damaged += 1
        state.end = position = block.offset + block.length
        yield block
    state.torn = max(0, len(data) - state.end)


def _block_at(data: memoryview, position: int, salt: int, *, check: bool) -> Block | None:
    offset = position + _BLOCK.size
    if offset > len(data):
        return None
    magic, rows, length, written_at, payload_crc, crc = _BLOCK.unpack_from(data, position)
    if magic != _BLOCK_MAGIC or crc != zlib.crc32(data[position : offset - 4], salt) or length > len(data) - offset:
        return None
    if check and payload_crc != zlib.crc32(data[offset : offset + length], salt):
        return None
    return Block(offset, length, rows, written_at)
