"""Integrity check of library files: loading a damaged one would crash the process.

A sealed file ends with a record of its length and of a checksum of everything except the weights,
which may be large and are read lazily:

    [file ... weights ...][magic][weights' start, end][length of all before][sha256]

Files without the record (from a linker, or after `strip`) are only checked against the lengths in
their headers.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tilewright.base.errors import UserError

WEIGHTS = b".tw_weights"
_MAGIC = b"TILEWRIGHT SEAL1"
_RECORD = struct.Struct("<16sQQQ32s")
_CHUNK = 1 << 20

# 64-bit little-endian ELF: file header, program header, section header.
_ELF = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOBITS = 8


def seal(path: Path) -> None:
    """Append the record to a file that has just been written."""
    with path.open("r+b") as file:
        length = file.seek(0, 2)
        start, end = _weights(file, length)
        digest = _digest(file, length, start, end)
        file.seek(length)
        file.write(_RECORD.pack(_MAGIC, start, end, length, digest))


def check_whole(path: Path) -> None:
    """Raise an error if a file is truncated or modified."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size >= _RECORD.size:
            file.seek(size - _RECORD.size)
            magic, start, end, length, digest = _RECORD.unpack(file.read(_RECORD.size))
            if magic == _MAGIC:
                good = length == size - _RECORD.size and start <= end <= length
                if not good or _digest(file, length, start, end) != digest:
                    raise _damaged(path, "its checksum is wrong")
                return
        file.seek(0)
        if file.read(len(_ELF)) == _ELF and not _fits(file, size):
            raise _damaged(path, f"it is truncated after {size} bytes")


def overwrite_weights(path: Path, data: Mapping[int, Any]) -> bool:
    """Overwrite weights, which the checksum leaves out, by where they are in bytes; false if the
    file does not tell where its weights are."""
    with path.open("r+b") as file:
        start, end = _weights(file, file.seek(0, 2))
        for place, array in data.items():
            if start + place + array.nbytes > end:
                return False
            file.seek(start + place)
            file.write(array.tobytes())
    return True


def _damaged(path: Path, why: str) -> UserError:
    return UserError("TW4033", f"{path} is damaged: {why}", help="write or copy the file once more")


def _digest(file: BinaryIO, length: int, start: int, end: int) -> bytes:
    """The checksum of the file without the bytes from start to end."""
    found = hashlib.sha256(struct.pack("<QQQ", start, end, length))
    for begin, stop in ((0, start), (end, length)):
        file.seek(begin)
        while begin < stop:
            chunk = file.read(min(_CHUNK, stop - begin))
            if not chunk:
                break
            found.update(chunk)
            begin += len(chunk)
    return found.digest()


def _sections(file: BinaryIO) -> tuple[list[tuple[int, ...]], int]:
    """The headers of an ELF file's sections, and the index of the section with their names."""
    file.seek(0)
    header = _HEADER.unpack(file.read(_HEADER.size))
    place, size, count, names = header[5], header[10], header[11], header[12]
    file.seek(place)
    return [_SECTION.unpack(file.read(size)[: _SECTION.size]) for _ in range(count)], names


def _weights(file: BinaryIO, length: int) -> tuple[int, int]:
    """The range of the weights in the file; empty in other formats."""
    file.seek(0)
    if file.read(len(_ELF)) != _ELF or length < _HEADER.size:
        return length, length
    sections, names = _sections(file)
    file.seek(sections[names][4])
    table = file.read(sections[names][5])
    for section in sections:
        if table[section[0] :].split(b"\0", 1)[0] == WEIGHTS:
            return section[4], section[4] + section[5]
    return length, length


def _fits(file: BinaryIO, size: int) -> bool:
    """Whether all segments and sections are inside the file."""
    try:
        file.seek(0)
        header = _HEADER.unpack(file.read(_HEADER.size))
        place, entry, count = header[4], header[8], header[9]
        file.seek(place)
        ends: list[int] = [place + entry * count]
        for _ in range(count):
            segment = _SEGMENT.unpack(file.read(entry)[: _SEGMENT.size])
            ends.append(segment[2] + segment[5])
        sections, _ = _sections(file)
        ends += [s[4] + s[5] for s in sections if s[1] != _NOBITS]
    except struct.error:
        return False
    return max(ends) <= size
