"""Serialize parts of a model for a library, as read by runtime/native/accel/parts.c.

`saved_arrays` are stored with the model's weights; `saved_numbers` describe the parts, once the
arrays' offsets are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.accel.declared import STEPS
from tilewright.accel.device import LIBRARY, SIMULATORS, backend_of, describe
from tilewright.accel.isa.encode import encode_all, encode_microcode
from tilewright.accel.isa.stream import Buffer
from tilewright.accel.kernels import kernel_name, kernel_objects
from tilewright.accel.part import INPUTS, OUTPUTS, Part
from tilewright.base.target import Target

Array = np.ndarray[Any, Any]


def saved_backend(target: Target) -> str:
    """The backend for the parts of a saved model; a hardware library is named by the caller's
    environment."""
    return f"${LIBRARY}" if target.text.split()[0] == "vta" else backend_of(target.text)


def saved_kernels(parts: Sequence[Part], host: Target) -> dict[str, bytes]:
    """Object code of the simulator's kernels, by name. Other backends need none."""
    if not parts or saved_backend(parts[0].target) not in SIMULATORS.values():
        return {}
    g = parts[0].stream.geometry
    names = [kernel_name(step, g) for step in STEPS]
    return dict(zip(names, kernel_objects(g, host), strict=True))


def saved_arrays(parts: Sequence[Part]) -> list[Array]:
    """Descriptions, streams, initial contents of buffers, and layouts."""
    found: list[Array] = []
    for part in parts:
        stream, g = part.stream, part.stream.geometry
        found.append(np.frombuffer(describe(g), np.uint8))
        found.append(np.frombuffer(encode_all(stream.instructions, g), np.uint8))
        found += [array for one in stream.buffers if (array := _held(part, one)) is not None]
        for at, layout, _, fill in part.inputs:
            found.append(gather_indices(partial(layout.pack, fill=fill, g=g), part.shapes[at]))
        for form, _ in part.outputs:
            found.append(gather_indices(partial(form.unpack, g=g), (form.size_bytes(g),)))
    return found


def saved_numbers(parts: Sequence[Part], arrays: Iterable[tuple[int, Array]]) -> tuple[int, ...]:
    """All parts: header, buffers, inputs and outputs, given the arrays and their offsets."""
    kept, numbers = iter(arrays), list[int]()
    for part in parts:
        stream = part.stream
        (config, words), (tasks, _) = next(kept), next(kept)
        numbers += [config, len(words) // 4, tasks, len(stream.instructions), part.round]
        numbers += [len(stream.buffers), len(part.inputs), len(part.outputs)]
        names = [buffer.name for buffer in stream.buffers]
        numbers += [names.index(INPUTS), names.index(OUTPUTS)]
        for buffer in stream.buffers:
            data = -1 if _held(part, buffer) is None else next(kept)[0]
            roles = (buffer.role in ("out", "temp"), buffer.name in part.per_round)
            numbers += [buffer.size_bytes, data, *roles, buffer.role == "uop"]
        moved = [(at, offset) for at, _, offset, _ in part.inputs]
        for at, offset in [*moved, *[(-1, offset) for _, offset in part.outputs]]:
            data, indices = next(kept)
            numbers += [at, offset, data, len(indices)]
    return tuple(map(int, numbers))


def _held(part: Part, buffer: Buffer) -> Array | None:
    """The initial contents of a buffer for every call."""
    if buffer.role == "uop":
        code = encode_microcode(part.stream.microcode, part.stream.geometry)
        return np.frombuffer(code, np.uint8)
    return part.stored.get(buffer.name)


def gather_indices(move: Callable[[Array], Array], shape: tuple[int, ...]) -> Array:
    """A data movement as an array: for each result byte its source position, or the complement of a
    constant."""
    indices = np.arange(math.prod(shape), dtype=np.uint32)
    zeros, ones = (_moved(move, np.full(shape, value)) for value in (0, 255))
    found = np.zeros(len(zeros), np.int32)
    for shift in (0, 8, 16, 24):
        found |= _moved(move, (indices >> shift & 255).reshape(shape)) << shift
    return np.where(zeros == ones, ~zeros, found)


def _moved(move: Callable[[Array], Array], given: Array) -> Array:
    """Apply a movement of bytes to numbers of 8 bits."""
    return move(given.astype(np.uint8).view(np.int8)).reshape(-1).view(np.uint8).astype(np.int32)
