"""Calls of what is not a tensor program: external kernels and instructions, see `externs.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.tensor.externs import Behavior, behavior
from tilewright.tensor.interp.failures import Failures
from tilewright.tensor.interp.memory import Memory, garbage, next_stamp

Box = tuple[Memory, tuple[int, ...], tuple[int, ...]]  # memory, starts, extents


def call_extern(
    symbol: str,
    boxes: tuple[Box, ...],
    outputs: int,
    failures: Failures,
    at: int,
    values: tuple[Any, ...],
) -> None:
    """Run an external kernel on regions; the last `outputs` of them are written."""
    function = _behavior(symbol, failures, at, values)
    first_output = len(boxes) - outputs
    views = []
    for number, (memory, starts, extents) in enumerate(boxes):
        inside = tuple(slice(a, a + n) for a, n in zip(starts, extents, strict=True))
        for start, extent, size in zip(starts, extents, memory.shape, strict=True):
            if start < 0 or start + extent > size:
                last = tuple(a + max(n, 1) - 1 for a, n in zip(starts, extents, strict=True))
                wrong = starts if start < 0 else last
                failures.bounds(at, values, "region of", memory, wrong)
        view = memory.data.reshape(memory.shape)[inside]
        if number >= first_output:
            memory.stamps.reshape(memory.shape)[inside] = next_stamp()
        if memory.is_written is not None:
            flags = memory.is_written.reshape(memory.shape)[inside]
            if number >= first_output:
                flags[...] = True
            elif not flags.all():
                missing = np.argwhere(~flags)[0]
                index = tuple(int(a + i) for a, i in zip(starts, missing, strict=True))
                element = int(np.ravel_multi_index(index, memory.shape))
                failures.uninitialised(at, values, memory, element)
        views.append(view)
    function(*views)


def elements(box: Box) -> list[int]:
    """The positions of the elements of a region."""
    memory, starts, extents = box
    inside = tuple(slice(max(0, a), a + n) for a, n in zip(starts, extents, strict=True))
    positions = np.arange(memory.size).reshape(memory.shape)[inside]
    found: list[int] = positions.reshape(-1).tolist()
    return found


def call_instruction(
    symbol: str,
    args: tuple[Any, ...],
    failures: Failures,
    at: int,
    values: tuple[Any, ...],
) -> None:
    """Run an instruction on numbers and addresses; what it changed counts as written."""
    function = _behavior(symbol, failures, at, values)
    actual: list[Any] = []
    before: list[tuple[NDArray[np.bool_], NDArray[Any], NDArray[Any]]] = []
    for arg in args:
        if not isinstance(arg, tuple):
            actual.append(arg)
            continue
        memory, element = arg
        data = memory.data[element:]
        if memory.is_written is not None:
            flags = memory.is_written[element:]
            data[~flags] = garbage(memory.buffer)  # so that what is stored there shows
            before.append((flags, data, data.copy()))
        actual.append(data)
    function(*actual)
    for flags, new, old in before:
        flags |= (_bytes(new) != _bytes(old)).any(axis=1)


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.view(np.uint8).reshape(len(array), -1)


def _behavior(symbol: str, failures: Failures, at: int, values: tuple[Any, ...]) -> Behavior:
    found = behavior(symbol)
    if found is None:
        failures.unknown(at, values, symbol)
    return found
