"""Functional simulator: runs a stream task by task, in an order permitted by its tokens.

    outputs = simulate(stream, {"x": x, "w": w})

This is the reference, in NumPy for readability. `seed` selects another order: a stream accepted by
the verifier gives the same result for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.accel.behaviour import Machine
from tilewright.accel.isa.steps import check_extents
from tilewright.accel.isa.stream import Stream, check_stream
from tilewright.accel.memory import Memory
from tilewright.accel.order import order

Array = np.ndarray[Any, Any]


def prepare(stream: Stream, inputs: Mapping[str, Array]) -> Memory:
    """A memory with the inputs written and flushed."""
    memory = Memory(stream)
    for name, values in inputs.items():
        memory.write(name, values)
        memory.flush(name)
    return memory


def results(stream: Stream, memory: Memory) -> dict[str, Array]:
    """The bytes of the outputs, as i8."""
    found = {}
    for buffer in stream.buffers:
        if buffer.role == "out":
            memory.invalidate(buffer.name)
            found[buffer.name] = memory.read(buffer.name, "i8", (buffer.size_bytes,))
    return found


def run(stream: Stream, memory: Memory, seed: int | None = None) -> None:
    """Run a stream on a memory that the caller flushes and invalidates."""
    check_stream(stream)
    check_extents(stream)
    machine = Machine(stream, memory)
    for number in order(stream, seed).sequence:
        machine.execute(number)


def simulate(
    stream: Stream, inputs: Mapping[str, Array], seed: int | None = None
) -> dict[str, Array]:
    """Run a stream and return its outputs by name."""
    memory = prepare(stream, inputs)
    run(stream, memory, seed)
    return results(stream, memory)
