"""Compare several models of one machine.

    differences(stream, inputs, ["cycle", str(simulator(geometry))], stalls=3)  # none

`outcome` runs a stream with possibly damaged words, and returns how it ends on one backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.accel.device import load, open_device, run_on
from tilewright.accel.isa.stream import Stream
from tilewright.accel.isa.table import word_bytes
from tilewright.base.errors import ExecutionError
from tilewright.runtime.accel import BACK_PRESSURE, NO_STALLS, TIMEOUT_CYCLES

Array = np.ndarray[Any, Any]


def random_inputs(stream: Stream, seed: int) -> dict[str, Array]:
    """Random bytes for every input of a stream."""
    random = np.random.default_rng(seed)
    return {
        one.name: random.integers(0, 256, one.size_bytes).astype(np.uint8)
        for one in stream.buffers
        if one.role == "in"
    }


def differences(
    stream: Stream,
    inputs: Mapping[str, Array],
    backends: Sequence[str],
    stalls: int | None = None,
    timeout_cycles: int = TIMEOUT_CYCLES,
) -> list[str]:
    """Differences between backends and the first one: in memory, and, for those with timing, in
    begin and end of tasks and in counters. With `BACK_PRESSURE` in the stalls, only RTL has
    timing."""
    found = []
    is_held = stalls is not None and stalls >= BACK_PRESSURE
    first, *rest = (run_on(one, stream, inputs, stalls, timeout_cycles) for one in backends)
    for name, other in zip(backends[1:], rest, strict=True):
        for buffer, values in first.outputs.items():
            wrong = np.flatnonzero(values != other.outputs[buffer])
            if len(wrong):
                found.append(f"{name}: {len(wrong)} bytes of {buffer}, the first at {wrong[0]}")
        if other.total < 0 or is_held:
            continue
        times = zip(first.begin, first.end, other.begin, other.end, strict=True)
        for number, (begin, end, its_begin, its_end) in enumerate(times):
            if (begin, end) != (its_begin, its_end):
                task = stream.instructions[number].op
                found.append(
                    f"{name}: {number}: {task} from {its_begin} to {its_end}, not {begin} to {end}"
                )
                break  # the first one is the cause
        counted = [(one.gemm_steps, one.read_beats, one.write_beats) for one in (first, other)]
        if counted[0] != counted[1]:
            found.append(f"{name}: counters {counted[1]}, not {counted[0]}")
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """The code of an error, or the outputs."""

    error: str
    outputs: dict[str, bytes]


def outcome(
    backend: str,
    stream: Stream,
    inputs: Mapping[str, Array],
    words: bytes,
    timeout_cycles: int,
    stalls: int = NO_STALLS,
) -> Outcome:
    """The outcome of a stream with these words; afterwards the device must run the undamaged
    stream."""
    device = open_device(stream.geometry, backend)
    device.reset(stalls)
    damaged = load(device, stream, inputs, words)
    error, outputs = "", {}
    try:
        damaged.start()
        device.wait(timeout_cycles)
        outputs = {name: values.tobytes() for name, values in damaged.outputs().items()}
    except ExecutionError as caught:
        error = caught.code
    device.reset()
    again = load(device, stream, inputs)
    again.start()
    device.wait()
    return Outcome(error, outputs)


def damage(words: bytes, stream: Stream, random: np.random.Generator) -> bytes:
    """Words with a flipped bit, or truncated."""
    size = word_bytes(stream.geometry)
    if random.random() < 0.15:
        return words[: int(random.integers(1, len(words) // size)) * size]
    changed = bytearray(words)
    bit = int(random.integers(0, 8 * len(words)))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
