"""Read model files without loading their weights.

A model file is a protocol buffer: fields with a number, a type, and a length or value. Most of it
is the raw data of initializers. `strip` skips these, so that only the rest becomes a `ModelProto`;
`Weights` then reads each one on demand.

Anything unusual (repeated fields, inconsistent lengths) is left to the regular parser.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from typing import NamedTuple

import numpy as np

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9  # field numbers in a model, a graph and a tensor
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
LEAST_BYTES = 1 << 12  # smaller data is kept in place


class Span(NamedTuple):
    """A range of bytes in a file."""

    start: int
    length: int


class _Field(NamedTuple):
    number: int
    kind: int
    start: int  # including its tag
    payload: Span  # its contents, for kind BYTES


class _UnexpectedStructure(Exception):
    """The file has an unexpected structure."""


@dataclass(frozen=True)
class Weights:
    """The raw data of a graph's initializers, by index, still in the file."""

    file: BufferedReader | BytesIO
    spans: dict[int, Span]

    def read(self, at: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]] | None:
        """The bytes of initializer `at`; None if they are not here."""
        span = self.spans.get(at)
        if span is None:
            return None
        data = np.empty(span.length, np.uint8)
        self.file.seek(span.start)
        count = 0
        while count < span.length:
            got = self.file.readinto(data[count:].data)
            if not got:
                return data[:count]  # truncated data is detected by the caller, who knows the shape
            count += got
        return data


def strip(file: BufferedReader, size: int) -> tuple[bytes, Weights]:
    """The bytes of a model without large initializers, and these."""
    try:
        return _stripped(file, size)
    except _UnexpectedStructure:
        file.seek(0)
        return file.read(), Weights(file, {})


def _stripped(file: BufferedReader, size: int) -> tuple[bytes, Weights]:
    spans: dict[int, Span] = {}
    out, graphs = bytearray(), 0
    for field in _fields(file, 0, size):
        if field.number != GRAPH or field.kind != BYTES:
            out += _copy(file, field, file.tell())
            continue
        graphs += 1
        if graphs > 1:
            raise _UnexpectedStructure
        graph, spans = _stripped_graph(file, field.payload)
        out += _tag(GRAPH) + _varint_bytes(len(graph)) + graph
        file.seek(field.payload.start + field.payload.length)
    return bytes(out), Weights(file, spans)


def _stripped_graph(file: BufferedReader, whole: Span) -> tuple[bytearray, dict[int, Span]]:
    out, spans, count = bytearray(), {}, 0
    for field in _fields(file, whole.start, whole.start + whole.length):
        if field.number != INITIALIZER or field.kind != BYTES:
            out += _copy(file, field, file.tell())
            continue
        end = file.tell()
        raw = _raw_data(file, field.payload)
        if raw is None:
            file.seek(end)
            out += _copy(file, field, end)
        else:
            spans[count] = raw.payload
            tensor = _read(file, Span(field.payload.start, raw.start - field.payload.start))
            after = raw.payload.start + raw.payload.length
            tensor += _read(file, Span(after, end - after))
            out += _tag(INITIALIZER) + _varint_bytes(len(tensor)) + tensor
            file.seek(end)
        count += 1
    return out, spans


def _raw_data(file: BufferedReader, tensor: Span) -> _Field | None:
    """The raw data of a tensor, if it is large enough to omit."""
    if tensor.length < LEAST_BYTES:
        return None
    end = tensor.start + tensor.length
    found = [f for f in _fields(file, tensor.start, end) if f.number == RAW_DATA]
    if len(found) != 1 or found[0].kind != BYTES or found[0].payload.length < LEAST_BYTES:
        return None
    return found[0]


def _fields(file: BufferedReader, start: int, end: int) -> Iterator[_Field]:
    """Iterate over the fields in a range; the file position is after each while it is processed."""
    at = start
    while at < end:
        file.seek(at)
        tag = _varint(file)
        number, kind = tag >> 3, tag & 7
        payload = Span(file.tell(), 0)
        if kind == VARINT:
            _varint(file)
        elif kind in (FIXED64, FIXED32):
            file.seek(8 if kind == FIXED64 else 4, 1)
        elif kind == BYTES:
            length = _varint(file)
            payload = Span(file.tell(), length)
            if payload.start + length > end:
                raise _UnexpectedStructure
            file.seek(payload.start + length)
        else:
            raise _UnexpectedStructure
        following = file.tell()
        if following > end or number == 0:
            raise _UnexpectedStructure
        yield _Field(number, kind, at, payload)
        at = following
    if at != end:
        raise _UnexpectedStructure


def _copy(file: BufferedReader, field: _Field, end: int) -> bytes:
    return _read(file, Span(field.start, end - field.start))


def _read(file: BufferedReader, span: Span) -> bytes:
    file.seek(span.start)
    data = file.read(span.length)
    if len(data) != span.length:
        raise _UnexpectedStructure
    return data


def _varint(file: BufferedReader) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise _UnexpectedStructure
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise _UnexpectedStructure


def _tag(number: int) -> bytes:
    return _varint_bytes(number << 3 | BYTES)


def _varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
