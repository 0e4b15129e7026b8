"""Behaviour of instructions in NumPy, executed by both simulators.

Scratchpads are initialized to poison: reading an entry that was not written is an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.accel.accesses import DRAM, Access, accesses, check_late_reads, check_range
from tilewright.accel.isa.steps import Indices, Steps, box, count_entries, steps
from tilewright.accel.isa.stream import Instruction, Stream
from tilewright.accel.isa.table import (
    ALU_FUNCTIONS,
    MEMORIES,
    REQUANTIZING,
    depth,
    dram_bytes,
    entry_shape,
)
from tilewright.accel.memory import Memory
from tilewright.accel.microcode import Microcode
from tilewright.base.errors import ExecutionError

Array = np.ndarray[Any, Any]
_SCRATCH = {"inp": np.int8, "wgt": np.int8, "acc": np.int32, "out": np.int8}
_GEMM_CHUNK = 4096  # steps per batch: their weights are expanded


class Machine:
    """The state of an accelerator during a stream."""

    def __init__(self, stream: Stream, memory: Memory) -> None:
        self.stream, self.memory = stream, memory
        self.microcode = Microcode(stream)
        g = stream.geometry
        self.scratch: dict[str, Array] = {
            name: np.zeros(
                (depth(name, stream.geometry), *entry_shape(name, stream.geometry)), kind
            )
            for name, kind in _SCRATCH.items()
        }
        self.written = {name: np.zeros(depth(name, g), np.bool_) for name in MEMORIES}

    def execute(self, number: int) -> None:
        """Run one task, from its reads to its writes."""
        task = self.stream.instructions[number]
        uops = self.microcode.of(number, task)
        touched = accesses(task, self.stream, uops)
        check_range(number, task, self.stream, touched)
        check_late_reads(number, task, uops)
        self._check_poison(number, task, touched)
        if task.op in ("load", "aux"):
            self._load(number, task)
        elif task.op == "store":
            self._store(task)
        elif task.op == "gemm":
            _gemm(self.scratch, steps(task, uops))
        elif task.op == "alu":
            _alu(self.scratch, task, steps(task, uops), self.stream.geometry.taps)

    def _check_poison(self, number: int, task: Instruction, found: list[Access]) -> None:
        """Reject reads of poison, and mark writes."""
        for access in found:
            at_dram = access.memory == DRAM
            flags = self.memory.written[access.base] if at_dram else self.written[access.memory]
            cells = access.cells()
            if not access.is_write and not flags[cells].all():
                name = self.stream.buffers[access.base].name if at_dram else access.memory
                cell = int(cells[~flags[cells]][0])
                raise ExecutionError(
                    "TW7013",
                    f"{number}: {task.op} reads {name}[{cell}], which nothing has written",
                    help="flush the host's buffers; load scratchpads before they are read",
                )
        for access in found:
            if access.is_write:
                at_dram = access.memory == DRAM
                flags = self.memory.written[access.base] if at_dram else self.written[access.memory]
                flags[access.cells()] = True

    def _load(self, number: int, task: Instruction) -> None:
        if task.format.memory == "uop":
            self.microcode.load(number, task)
            return
        area, size = box(task), dram_bytes(task.format, self.stream.geometry)
        starts = task["offset"] + area.dram * size
        raw = self.memory.device[task["base"]][starts[:, None] + np.arange(size)]
        target = self.scratch[task.format.memory]
        if task.format.has_neighbours:
            whole = np.full((count_entries(task), *target.shape[1:]), task["value"])
            whole[area.sram - task["sram"]] = raw.view(np.int8).reshape(-1, *whole.shape[1:])
            places = task["sram"] + np.arange(len(whole))
            target[places] = self._with_neighbours(whole, task["x0"] + task["x"] + task["x1"])
            return
        target[area.sram] = _widen(raw, task.format.element).reshape(-1, *target.shape[1:])
        target[area.pads] = np.array(task["value"]).astype(target.dtype)

    def _with_neighbours(self, entries: Array, columns: int) -> Array:
        """Combine the bytes of preceding entries in a row with an entry's own to one number."""
        rows = entries.reshape(-1, max(1, columns), *entries.shape[1:]) & 255
        taps = self.stream.geometry.taps
        made = rows << 8 * (taps - 1)
        for back in range(1, taps):
            made[:, back:] |= rows[:, :-back] << 8 * (taps - 1 - back)
        return made.reshape(entries.shape).astype(np.uint32).view(np.int32)

    def _store(self, task: Instruction) -> None:
        area, size = box(task), dram_bytes(task.format, self.stream.geometry)
        starts = task["offset"] + area.dram * size
        values = np.ascontiguousarray(self.scratch[task.format.memory][area.sram])
        raw = values.view(np.uint8).reshape(len(area.sram), size)
        self.memory.device[task["base"]][starts[:, None] + np.arange(size)] = raw


def _widen(raw: Array, element: str) -> Array:
    """Entries in DRAM format as numbers."""
    if element == "i32":
        return raw.view(np.int32)
    if element == "i4":
        halves = np.stack((raw & 15, raw >> 4), -1).reshape(len(raw), 2 * raw.shape[1])
        return (halves.astype(np.int8) ^ 8) - 8
    return raw.view(np.int8)


def _gemm(scratch: dict[str, Array], found: Steps) -> None:
    """Sum the steps of each accumulator, from its last overwriting step on."""
    acc, inp, wgt = scratch["acc"], scratch["inp"], scratch["wgt"]
    begin = np.full(len(acc), -1, np.int64)
    numbers = np.arange(len(found.dst), dtype=np.int64)
    np.maximum.at(begin, found.dst[found.first], numbers[found.first])
    acc[begin >= 0] = 0
    kept = numbers[numbers >= begin[found.dst]]
    for at in range(0, len(kept), _GEMM_CHUNK):
        some = kept[at : at + _GEMM_CHUNK]
        a = inp[found.src[some]].astype(np.int32)
        b = wgt[found.aux[some]].astype(np.int32)
        np.add.at(acc, found.dst[some], np.matmul(a, b.transpose(0, 2, 1)))


def _alu(scratch: dict[str, Array], task: Instruction, found: Steps, taps: int) -> None:
    """Steps take effect in sequence; independent ones are batched."""
    function = ALU_FUNCTIONS[task["fn"]]
    acc = scratch["acc"]
    if function in REQUANTIZING:
        scratch["out" if function == "requant" else "acc"][found.dst] = _requantize(
            acc, task, found
        )
        return
    for some in _independent(task, found):
        dst, src, aux = found.dst[some], found.src[some], found.aux[some]
        a = acc[src].astype(np.int64)
        b = np.array(task["value"], np.int64) if task["imm"] else acc[aux].astype(np.int64)
        if function in ("mac", "mul"):
            made = np.array(acc[dst] if function == "mac" else 0, np.int64)
            for at in range(0, 8 * taps, 8):
                made = made + (a >> at).astype(np.int8).astype(np.int64) * (b >> at).astype(np.int8)
        elif function == "shift":
            made = np.where(b >= 0, a >> np.clip(b, 0, 31), a << np.clip(-b, 0, 31))
        else:
            made = {"add": np.add, "max": np.maximum, "min": np.minimum}[function](a, b)
        acc[dst] = made.astype(np.int32)  # modulo 2**32


def _independent(task: Instruction, found: Steps) -> list[Indices]:
    """Batches of steps without dependences between them."""
    runs: list[Indices] = []
    begin = 0
    touched: set[int] = set()
    reads: set[int] = set()
    operands = [found.src] if task["imm"] else [found.src, found.aux]
    for step, dst in enumerate(found.dst.tolist()):
        sources = {int(operand[step]) for operand in operands}
        if dst in touched or dst in reads or sources & touched:
            runs.append(np.arange(begin, step))
            begin, touched, reads = step, set(), set()
        touched.add(dst)
        reads |= sources
    runs.append(np.arange(begin, len(found.dst)))
    return runs


def _requantize(acc: Array, task: Instruction, found: Steps) -> Array:
    """clamp(round((sum + bias) * multiplier / 2**shift) + zero, low, high), half up.

    The sum with its bias wraps in 32 bits, the product with its rounding in 64, as in hardware
    adders of these widths. Shifts use their low 6 bits.
    """
    bias, multiplier, shift = (acc[found.aux + at].astype(np.int64) for at in range(3))
    total = (acc[found.src] + bias).astype(np.int32).astype(np.int64)
    shift = shift & 63
    half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)
    scaled = (total * multiplier + half) >> shift
    low, high = task["low"], task["high"]
    made: Array = np.clip(scaled + task["zero"], low, high).astype(np.int8)
    return made
