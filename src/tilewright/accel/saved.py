"""Parts of a model as data for a library: what runtime/native/accel/parts.c reads.

arrays = saved_arrays(parts)            # to be kept with the model's weights
numbers = saved_numbers(parts, places)  # of these parts, given where the arrays begin there
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tilewright.accel.device import LIBRARY, backend_of, describe
from tilewright.accel.isa.encode import encode_all, encode_microcode
from tilewright.accel.isa.stream import Buffer
from tilewright.accel.layers import Layout
from tilewright.accel.part import Part
from tilewright.base.target import Target

Array = np.ndarray[Any, Any]


def saved_backend(target: Target) -> str:
    """What runs the parts of a saved model; the library of hardware is named by the environment of
    whoever calls it."""
    return f"${LIBRARY}" if target.text.split()[0] == "vta" else backend_of(target.text)


def saved_arrays(parts: Sequence[Part]) -> list[Array]:
    """Descriptions, streams, and what buffers hold from the beginning."""
    found: list[Array] = []
    for part in parts:
        stream = part.stream
        found.append(np.frombuffer(describe(stream.geometry), np.uint8))
        found.append(np.frombuffer(encode_all(stream.instructions, stream.geometry), np.uint8))
        found += [array for one in stream.buffers if (array := _held(part, one)) is not None]
    return found


def saved_numbers(parts: Sequence[Part], places: Iterable[int]) -> tuple[int, ...]:
    """Every part: its head, buffers, inputs and outputs."""
    at, numbers = iter(places), list[int]()
    for part in parts:
        stream = part.stream
        words = len(describe(stream.geometry)) // 4
        numbers += [next(at), words, next(at), len(stream.instructions)]
        numbers += [len(stream.buffers), len(part.inputs), len(part.outputs)]
        for buffer in stream.buffers:
            place = -1 if _held(part, buffer) is None else next(at)
            numbers += [buffer.size_bytes, place, int(buffer.role in ("out", "temp"))]
        bases = {buffer.name: base for base, buffer in enumerate(stream.buffers)}
        for argument, layout, name, fill in part.inputs:
            numbers += [argument, bases[name], *_layout(layout), fill]
        for layout, name in part.outputs:
            numbers += [-1, bases[name], *_layout(layout), 0]
    return tuple(numbers)


def _held(part: Part, buffer: Buffer) -> Array | None:
    """What a buffer holds in every call."""
    if buffer.role == "uop":
        code = encode_microcode(part.stream.microcode, part.stream.geometry)
        return np.frombuffer(code, np.uint8)
    return part.stored.get(buffer.name)


def _layout(layout: Layout) -> list[int]:
    return [*layout.image, layout.depth, int(len(layout.shape) == 2)]
