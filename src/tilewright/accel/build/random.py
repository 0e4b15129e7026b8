"""Random valid streams, for tests that compare machines.

    stream = random_stream(geometry, seed=7, tasks=40)

First all memories are filled. Then follow tasks of any kind, with random valid fields. Each is
ordered after the conflicting tasks of other queues, by a minimal number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewright.accel.accesses import DRAM, accesses, check_late_reads
from tilewright.accel.banks import assign_banks
from tilewright.accel.isa.steps import micro_array
from tilewright.accel.isa.stream import Buffer, Instruction, MicroOp, Stream, Value, check_stream
from tilewright.accel.isa.table import (
    ALU_FUNCTIONS,
    AUX_FORMATS,
    FIELD_INDEX,
    LOAD_FORMATS,
    LOOPS,
    MICRO_OP_BITS,
    QUEUES,
    REQUANT_ENTRIES,
    REQUANTIZING,
    STORE_FORMATS,
    Format,
    depth,
    dram_bytes,
)
from tilewright.base.errors import ExecutionError
from tilewright.base.geometry import Geometry

Fields = dict[str, Value]
X, OUT, CODE = range(3)  # base registers
MAX_STEPS = 48
MAX_ENTRIES = 24


def random_stream(geometry: Geometry, seed: int, tasks: int = 30) -> Stream:
    """Generate a stream of about `tasks` random tasks after those that fill the memories."""
    return _Maker(geometry, np.random.default_rng(seed)).make(tasks)


@dataclass(slots=True)
class _Task:
    instruction: Instruction
    reads: dict[str, set[int]]
    writes: dict[str, set[int]]


class _Maker:
    def __init__(self, geometry: Geometry, random: np.random.Generator) -> None:
        self._g, self._random = geometry, random
        largest = max(dram_bytes(one, geometry) for one in (*LOAD_FORMATS, *AUX_FORMATS))
        entries = max(depth(name, geometry) for name in ("inp", "wgt", "acc"))
        self._sizes = (largest * entries, largest * MAX_ENTRIES * 4)
        half = {name: depth(name, geometry) // 2 for name in ("inp", "wgt", "acc")}
        self._code = tuple(
            MicroOp(
                self._integer(half["acc"] // 2),
                self._integer(min(half["inp"], half["acc"]) // 2),
                self._integer(min(half["wgt"], half["acc"]) // 2),
            )
            for _ in range(depth("uop", geometry))
        )
        self._rows = micro_array(self._code)
        self._tasks: list[_Task] = []
        self._synced: dict[tuple[int, int], int] = {}

    def _integer(self, limit: int) -> int:
        """A number from 0 to `limit`, exclusive."""
        return int(self._random.integers(0, max(1, limit)))

    def _maybe(self, chance: float) -> bool:
        return bool(self._random.random() < chance)

    def make(self, tasks: int) -> Stream:
        self._fill()
        kinds = (self._load, self._aux, self._gemm, self._alu, self._alu, self._store)
        for _ in range(tasks):
            kinds[self._integer(len(kinds))]()
        self._finish()
        stream = self._stream()
        check_stream(stream)
        return assign_banks(stream)

    def _stream(self) -> Stream:
        code_bytes = len(self._code) * MICRO_OP_BITS // 8
        buffers = (
            Buffer("x", "in", self._sizes[X]),
            Buffer("y", "out", self._sizes[OUT]),
            Buffer("code", "uop", code_bytes),
        )
        tasks = tuple(one.instruction for one in self._tasks)
        return Stream(self._g, buffers, self._code, tasks)

    def _add(self, op: str, **fields: Value) -> None:
        """Append a task, after all tasks that it depends on."""
        made = Instruction.make(op, **fields)
        stream = replace(self._stream(), instructions=(made,))
        first, last = (made["ubegin"], made["uend"]) if op in ("gemm", "alu") else (0, 0)
        task = _Task(made, {}, {})
        for access in accesses(made, stream, self._rows[first:last]):
            name = f"{DRAM}{access.base}" if access.memory == DRAM else access.memory
            touched = task.writes if access.is_write else task.reads
            touched.setdefault(name, set()).update(access.cells().tolist())
        own = made.queue
        for other in range(len(QUEUES)):
            if other != own:
                latest = self._latest_conflict(task, other)
                if latest > self._synced.get((other, own), -1):
                    self._synced[other, own] = latest
                    self._set(self._tasks[latest], "push", own)
                    self._set(task, "pop", other)
        self._tasks.append(task)

    @staticmethod
    def _set(task: _Task, name: str, queue: int) -> None:
        values = list(task.instruction.values)
        values[FIELD_INDEX[task.instruction.op][name]] |= 1 << queue
        task.instruction = Instruction(task.instruction.op, tuple(values))

    def _latest_conflict(self, task: _Task, queue: int) -> int:
        for number in range(len(self._tasks) - 1, -1, -1):
            other = self._tasks[number]
            if other.instruction.queue != queue:
                continue
            for mine, theirs in (
                (task.writes, other.writes),
                (task.writes, other.reads),
                (task.reads, other.writes),
            ):
                if any(
                    not cells.isdisjoint(theirs.get(name, set())) for name, cells in mine.items()
                ):
                    return number
        return -1

    def _finish(self) -> None:
        """The end waits for the last task of every queue."""
        done = _Task(Instruction.make("finish"), {}, {})
        for queue in range(len(QUEUES) - 1):
            own = [at for at, one in enumerate(self._tasks) if one.instruction.queue == queue]
            if own and own[-1] > self._synced.get((queue, len(QUEUES) - 1), -1):
                self._set(self._tasks[own[-1]], "push", len(QUEUES) - 1)
                self._set(done, "pop", queue)
        self._tasks.append(done)

    # ----------------------------------------------------------------------- tasks

    def _fill(self) -> None:
        g = self._g
        self._add("aux", fmt="uop", base=CODE, x=depth("uop", g))
        for fmt in ("inp", "wgt"):
            self._add("load", fmt=fmt, base=X, x=depth(fmt, g))
        self._add("aux", fmt="acc", base=X, x=depth("acc", g))
        used = max(one.dst for one in self._code), max(one.src for one in self._code)
        count = depth("acc", g) - max(used)
        self._add("alu", fn="requant", uend=1, n0=count, dst_0=1, src_0=1, dst0=0, src0=0)
        written = sorted(self._tasks[-1].writes["out"])
        self._out = (written[0], written[-1] + 1)

    def _box(self, kind: Format, op: str, room: tuple[int, int], size: int) -> Fields:
        """Extents, strides and padding of a transfer within bounds."""
        width = dram_bytes(kind, self._g)
        x, y, z = (1 + self._integer(extent) for extent in (5, 3, 2))
        if self._maybe(0.2):
            x, y, z = 1 + self._integer(MAX_ENTRIES), 1, 1
        if self._maybe(0.05):
            x *= 0
        pads: dict[str, int] = {}
        if op != "store" and self._maybe(0.5):
            pads = {name: self._integer(3) for name in ("x0", "x1", "y0", "y1")}
        columns = x + pads.get("x0", 0) + pads.get("x1", 0)
        rows = y + pads.get("y0", 0) + pads.get("y1", 0)
        while columns * rows * z > room[1] - room[0]:
            x, y, z, pads, columns, rows = 1, 1, 1, {}, 1, 1
        strides = [1 if self._maybe(0.7) else self._integer(4), self._integer(9), self._integer(20)]
        align = min(width, self._g.bus_bytes)
        while True:
            last = sum((n - 1) * s for n, s in zip((x, y, z), strides, strict=True) if n)
            left = size - (last + 1) * width
            if left >= 0:
                break
            strides = [stride // 2 for stride in strides]
        fields: Fields = {
            "x": x, "y": y, "z": z, "xstride": strides[0], "ystride": strides[1],
            "zstride": strides[2], **pads,
            "sram": min(
                room[1] - 1, room[0] + self._integer(room[1] - room[0] - columns * rows * z + 1)
            ),
            "offset": self._integer(left // align + 1) * align,
        }  # fmt: skip
        if pads:
            fields["value"] = int(self._random.integers(-128, 128))
        return fields

    def _load(self) -> None:
        kind = LOAD_FORMATS[self._integer(len(LOAD_FORMATS))]
        room = (0, depth(kind.memory, self._g))
        box = self._box(kind, "load", room, self._sizes[X])
        self._add("load", fmt=kind.name, base=X, **box)

    def _aux(self) -> None:
        if self._maybe(0.1):  # reload the same microcode
            at, size = self._integer(len(self._code)), MICRO_OP_BITS // 8
            count = 1 + self._integer(min(8, len(self._code) - at))
            offset = at * size
            if not offset % min(size, self._g.bus_bytes):
                self._add("aux", fmt="uop", base=CODE, sram=at, offset=offset, x=count)
            return
        kinds = [one for one in AUX_FORMATS if one.memory == "acc"]
        kind = kinds[self._integer(len(kinds))]
        box = self._box(kind, "aux", (0, depth("acc", self._g)), self._sizes[X])
        self._add("aux", fmt=kind.name, base=X, **box)

    def _steps(self, memories: tuple[str, str, str], spare: int) -> Fields:
        """Loops with addresses in bounds; every operand may use half of its memory."""
        begin = self._integer(len(self._code))
        end = begin + self._integer(min(6, len(self._code) - begin) + 1)
        extents = [1] * LOOPS
        for _ in range(self._integer(4)):
            extents[self._integer(LOOPS)] = self._integer(5) if self._maybe(0.9) else 0
        while max(1, end - begin) * int(np.prod(extents)) > MAX_STEPS:
            extents[int(np.argmax(extents))] //= 2
        fields: Fields = {"ubegin": begin, "uend": end}
        fields |= {f"n{loop}": extents[loop] for loop in range(LOOPS)}
        for name, memory in zip(("dst", "src", "aux"), memories, strict=True):
            room = depth(memory, self._g)
            room -= max(
                int(self._rows[begin:end, ("dst", "src", "aux").index(name)].max(initial=0)), 0
            )
            room -= 1 + (spare if name == "aux" else 0)
            for loop in range(LOOPS):
                stride = self._integer(4)
                if (extents[loop] - 1) * stride <= room:
                    fields[f"{name}_{loop}"] = stride
                    room -= max(0, extents[loop] - 1) * stride
            fields[f"{name}0"] = self._integer(room + 1)
        return fields

    def _gemm(self) -> None:
        over = [name for name in ("i0", "i1", "i2", "i3", "u") if self._maybe(0.4)]
        fields = self._steps(("acc", "inp", "wgt"), 0)
        self._add("gemm", init=int(self._maybe(0.5)), over=over, **fields)

    def _alu(self) -> None:
        function = ALU_FUNCTIONS[self._integer(len(ALU_FUNCTIONS))]
        spare = REQUANT_ENTRIES - 1 if function in REQUANTIZING else 0
        fields = self._steps(("acc", "acc", "acc"), spare)
        fields["imm"] = int(self._maybe(0.4))
        span = 40 if function == "shift" else 1 << 31
        fields["value"] = int(self._random.integers(-span, span))
        for name in ("zero", "low", "high"):
            fields[name] = int(self._random.integers(-128, 128))
        if self._maybe(0.5):
            fields |= {"low": -128, "high": 127}
        made = Instruction.make("alu", fn=function, **fields)
        try:
            check_late_reads(0, made, self._rows[made["ubegin"] : made["uend"]])
        except ExecutionError:  # a single step has no such dependence
            fields |= {"uend": made["ubegin"] + 1} | {f"n{loop}": 1 for loop in range(LOOPS)}
        self._add("alu", fn=function, **fields)

    def _store(self) -> None:
        kind = STORE_FORMATS[self._integer(len(STORE_FORMATS))]
        room = self._out if kind.name == "out" else (0, depth("acc", self._g))
        box = self._box(kind, "store", room, self._sizes[OUT])
        self._add("store", fmt=kind.name, base=OUT, **box)
