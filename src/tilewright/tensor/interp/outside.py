"""Calls of what is not a tensor program: external kernels and instructions, see `externs.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.tensor.externs import Behavior, behavior
from tilewright.tensor.interp.failures import Failures
from tilewright.tensor.interp.memory import Memory

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
    before: list[tuple[Memory, int, NDArray[Any]]] = []
    for arg in args:
        if isinstance(arg, tuple):
            memory, element = arg
            actual.append(memory.data[element:])
            before.append((memory, element, actual[-1].copy()))
        else:
            actual.append(arg)
    function(*actual)
    for memory, element, old in before:
        if memory.is_written is not None:
            new = memory.data[element : element + len(old)]
            changed = old.view(np.uint8).reshape(len(old), -1) != new.view(np.uint8).reshape(
                len(new), -1
            )
            memory.is_written[element : element + len(old)] |= changed.any(axis=1)


def _behavior(symbol: str, failures: Failures, at: int, values: tuple[Any, ...]) -> Behavior:
    found = behavior(symbol)
    if found is None:
        failures.unknown(at, values, symbol)
    return found
