"""Run streams on a device of the driver: simulators in C, RTL, hardware.

timing = run_on("functional", stream, {"x": x, "w": w})  # timing.outputs
timing = time_on("timing", stream)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.accel.cycle import Timing
from tilewright.accel.isa.encode import encode_all
from tilewright.accel.isa.steps import MAX_STEPS
from tilewright.accel.isa.stream import Stream
from tilewright.accel.isa.table import (
    AHEAD,
    ALU_GAP_CYCLES,
    BURST_BEATS,
    BY_NUMBER,
    FETCH_AHEAD,
    IN_FLIGHT,
    MEMORIES,
    MICRO_OP,
    OPCODE_BITS,
    QUEUE_DEPTH,
    QUEUES,
    REQUANT_RELOAD_CYCLES,
    TOKEN_MAX,
    Field,
    depth,
    widths,
    word_bytes,
)
from tilewright.accel.memory import Memory
from tilewright.accel.verilate import simulator
from tilewright.base.errors import UserError
from tilewright.base.geometry import Geometry
from tilewright.base.target import geometry_of
from tilewright.runtime.accel import NO_STALLS, TIMEOUT_CYCLES, Accelerator, DeviceBuffer

Array = np.ndarray[Any, Any]

LIBRARY = "TILEWRIGHT_ACCELERATOR"  # path of the library of target "vta"
SIMULATORS = {"vta-sim": "functional", "vta-cycle": "cycle"}
VERSION = 3
OPCODES_IN_C = 7
FORMATS_IN_C = 4
# Fields in the order of `enum tw_accel_field` in runtime/native/accel/accel.h.
FIELDS_IN_C = (
    *("pop", "push", "fmt", "sram", "base", "offset", "x", "y", "z"),
    *("xstride", "ystride", "zstride", "x0", "x1", "y0", "y1", "value"),
    *("ubegin", "uend", "dst0", "src0", "aux0"),
    *("n0", "dst_0", "src_0", "aux_0", "n1", "dst_1", "src_1", "aux_1"),
    *("n2", "dst_2", "src_2", "aux_2", "n3", "dst_3", "src_3", "aux_3"),
    *("init", "over", "banks", "fn", "imm", "zero", "low", "high"),
)
_ELEMENT_BITS = {"i4": 4, "i8": 8, "i32": 32, "u64": 64}


def describe(geometry: Geometry) -> bytes:
    """The `tw_accel_config` of a geometry, from the instruction table."""
    g, bits = geometry, widths(geometry)
    numbers = [VERSION, g.batch, g.block_in, g.block_out, g.taps]
    numbers += [depth(m, g) for m in MEMORIES]
    numbers += [g.bus_bytes, g.latency_cycles, word_bytes(g), OPCODE_BITS]
    numbers += [QUEUE_DEPTH, TOKEN_MAX, BURST_BEATS, IN_FLIGHT, AHEAD, FETCH_AHEAD]
    numbers += [REQUANT_RELOAD_CYCLES, ALU_GAP_CYCLES, MAX_STEPS]
    opcodes = [BY_NUMBER.get(number) for number in range(OPCODES_IN_C)]
    numbers += [0 if one is None else QUEUES.index(one.queue) for one in opcodes]
    numbers += [0 if one is None else one.latency_cycles for one in opcodes]
    for one in opcodes:
        used = 0 if one is None else sum(bits[field.width] for field in one.fields)
        numbers.append(OPCODE_BITS + used)
    formats = [() if one is None else one.formats for one in opcodes]
    rows = [(*one, *[None] * (FORMATS_IN_C - len(one))) for one in formats]
    numbers += [0 if one is None else MEMORIES.index(one.memory) for row in rows for one in row]
    numbers += [0 if one is None else _ELEMENT_BITS[one.element] for row in rows for one in row]
    numbers += [0 if one is None else int(one.has_neighbours) for row in rows for one in row]
    for opcode in opcodes:
        bit_fields = {} if opcode is None else _bit_fields(opcode.fields, OPCODE_BITS, bits)
        numbers += [number for name in FIELDS_IN_C for number in bit_fields.get(name, (0, 0, 0, 0))]
    numbers += [number for one in _bit_fields(MICRO_OP, 0, bits).values() for number in one]
    return np.array(numbers, np.int32).tobytes()


def _bit_fields(
    fields: tuple[Field, ...], at: int, bits: dict[str, int]
) -> dict[str, tuple[int, int, int, int]]:
    """Offset, width, signedness and number of choices of every field."""
    found = {}
    for field in fields:
        choices = len(field.names) if field.names and not field.is_set else 0
        found[field.name] = (at, bits[field.width], int(field.is_signed), choices)
        at += bits[field.width]
    return found


@dataclass(frozen=True, slots=True)
class Loaded:
    """A stream's buffers on a device."""

    device: Accelerator
    stream: Stream
    buffers: tuple[DeviceBuffer, ...]
    words: bytes

    def start(self) -> None:
        writable = 0
        for at, buffer in enumerate(self.stream.buffers):
            writable |= (buffer.role in ("out", "temp")) << at
        count = len(self.words) // word_bytes(self.stream.geometry)
        self.device.submit(self.words, count, self.buffers, writable)

    def write(self, inputs: Mapping[str, Array]) -> None:
        """Copy new values of some buffers to the device."""
        for buffer, memory in zip(self.stream.buffers, self.buffers, strict=True):
            if buffer.name in inputs:
                memory.host[:] = (
                    np.ascontiguousarray(inputs[buffer.name]).reshape(-1).view(np.uint8)
                )
                memory.flush()

    def run(self, timeout_cycles: int = TIMEOUT_CYCLES) -> Timing:
        """Outputs, and times as far as the backend has them."""
        self.start()
        self.device.wait(timeout_cycles)
        begin, end = self.device.times()
        counters = self.device.counters()
        return Timing(
            begin=begin,
            end=end,
            total=end[-1],
            gemm_steps=counters.gemm_steps,
            read_beats=counters.read_beats,
            write_beats=counters.write_beats,
            outputs=self.outputs(),
        )

    def outputs(self) -> dict[str, Array]:
        """The bytes of the outputs, as i8."""
        found = {}
        for buffer, memory in zip(self.stream.buffers, self.buffers, strict=True):
            if buffer.role == "out":
                memory.invalidate()
                found[buffer.name] = memory.host.view(np.int8).copy()
        return found


def backend_of(target: str) -> str:
    """The backend of a target: a simulator in C, the RTL, or a device's library."""
    name, geometry = target.split()[0], geometry_of(target)
    if name in SIMULATORS:
        return SIMULATORS[name]
    if name == "vta-rtl":
        return str(simulator(geometry))
    library = os.environ.get(LIBRARY, "")
    if not library:
        raise UserError(
            "TW7036",
            "there is no library of an accelerator",
            help=f"set {LIBRARY} to one that has `tw_accel_backend`; or try vta-sim",
        )
    return library


def open_device(geometry: Geometry, backend: str) -> Accelerator:
    """Open a device of the driver; simulators need the compiled kernels."""
    if backend not in SIMULATORS.values():
        return Accelerator(describe(geometry), backend, None)
    # Imported here: verification alone needs no code generator.
    from tilewright.accel.kernels import load_kernels

    return Accelerator(describe(geometry), backend, load_kernels(geometry))


def load(
    device: Accelerator,
    stream: Stream,
    inputs: Mapping[str, Array] | None = None,
    words: bytes | None = None,
) -> Loaded:
    """Allocate, fill and flush a stream's buffers; `words` replace its instructions."""
    memory = Memory(stream)
    for name, values in (inputs or {}).items():
        memory.write(name, values)
        memory.flush(name)
    buffers = []
    for at, buffer in enumerate(stream.buffers):
        made = device.allocate(buffer.size_bytes)
        if memory.written[at].any():
            made.host[:] = memory.host[at]
            made.flush()
        buffers.append(made)
    if words is None:
        words = encode_all(stream.instructions, stream.geometry)
    return Loaded(device, stream, tuple(buffers), words)


def run_on(
    backend: str,
    stream: Stream,
    inputs: Mapping[str, Array] | None,
    stalls: int | None = None,
    timeout_cycles: int = TIMEOUT_CYCLES,
) -> Timing:
    """Run a stream once on a backend."""
    device = open_device(stream.geometry, backend)
    device.reset(NO_STALLS if stalls is None else stalls)
    timing = load(device, stream, inputs).run(timeout_cycles)
    return timing if inputs is not None else replace(timing, outputs={})


class Runner:
    """Runs a stream repeatedly. Every calling thread has its own device, which stays open, with the
    weights, until the runner is released."""

    def __init__(self, target: str, stream: Stream, weights: Mapping[str, Array]) -> None:
        self.target, self.stream, self.weights = target, stream, weights
        self._idle: list[Loaded] = []

    def run(self, inputs: Mapping[str, Array]) -> Timing:
        try:
            loaded = self._idle.pop()
        except IndexError:
            device = open_device(self.stream.geometry, backend_of(self.target))
            loaded = load(device, self.stream, self.weights)
        try:
            loaded.device.reset()  # cancels the stream of a call that was interrupted
            loaded.write(inputs)
            return loaded.run()
        finally:  # the device is usable after a trap
            self._idle.append(loaded)


def time_on(backend: str, stream: Stream, stalls: int | None = None) -> Timing:
    """Times without outputs."""
    return run_on(backend, stream, None, stalls)
