"""Stream verifier: an accepted stream has one result, independent of timing.

Along one topological order it records, for every entry of every memory, the last task that wrote it
and the last task of each queue that read it since. An access that is not ordered after these by
happens-before is a race. One order is sufficient, since happens-before is determined by queues and
tokens alone. The fast check is in C (runtime/native/accel/verify.c); this module produces the
explanations.

Invariants and their errors: fields are valid, and a stream ends in one `finish` (TW7001, TW7004);
no race (TW7010); no deadlock (TW7011); no counter overflow (TW7012); no read of uninitialized
memory (TW7013); addresses in bounds (TW7014); no token left over (TW7015); `finish` is ordered
after everything (TW7016); no task exceeds the watchdog's steps (TW7017); no `rescale` reads its own
results (TW7050).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.accel.accesses import DRAM, Access, accesses, check_late_reads, check_range
from tilewright.accel.device import describe, load
from tilewright.accel.isa.steps import Indices, check_extents
from tilewright.accel.isa.stream import Stream, check_stream
from tilewright.accel.isa.table import MEMORIES, MICRO_OP_BITS, QUEUES, TOKEN_MAX, depth
from tilewright.accel.isa.text import print_instruction
from tilewright.accel.microcode import Microcode
from tilewright.accel.order import Order, order
from tilewright.base.errors import ExecutionError
from tilewright.runtime.accel import Accelerator

NO_TASK = -1  # as writer or reader of an entry
MICRO_OP_BYTES = MICRO_OP_BITS // 8


@dataclass(slots=True)
class _Memory:
    """The last accesses to the entries of a memory."""

    writer: Indices
    readers: Indices  # by queue

    @staticmethod
    def of(size: int) -> _Memory:
        return _Memory(
            np.full(size, NO_TASK, np.int64),
            np.full((len(QUEUES), size), NO_TASK, np.int64),
        )


def verify(stream: Stream) -> None:
    """Reject a stream whose result could depend on timing, or that has none."""
    check_stream(stream)
    check_extents(stream)
    refused = refusal(stream)
    if refused is not None:
        explain(stream)  # raises with an explanation
        raise refused


def is_accepted(stream: Stream) -> bool:
    return refusal(stream) is None


def refusal(stream: Stream) -> ExecutionError | None:
    """The verdict of the C verifier: equal to `explain`, a hundred times faster."""
    code = [t for t in stream.instructions if t.op == "aux" and t.format.name == "uop"]
    if any(stream.buffers[t["base"]].role != "uop" or t["offset"] % MICRO_OP_BYTES for t in code):
        return _error("TW7014", "microcode is loaded from where there is none", "see its buffer")
    device = Accelerator(describe(stream.geometry), "verify")
    loaded = load(device, stream)
    try:
        loaded.start()
        device.wait()
    except ExecutionError as error:
        return error
    return None


def explain(stream: Stream) -> Order:
    """The readable verifier: rejects a stream with an explanation, or returns its order."""
    check_stream(stream)
    check_extents(stream)
    found = order(stream)
    _check_counters(stream, found)
    memories = {name: _Memory.of(depth(name, stream.geometry)) for name in MEMORIES}
    buffers = {  # inputs, which no task writes, need no shadow memory
        at: _Memory.of(buffer.size_bytes)
        for at, buffer in enumerate(stream.buffers)
        if buffer.role in ("out", "temp")
    }
    microcode = Microcode(stream)
    for number in found.sequence:
        task = stream.instructions[number]
        uops = microcode.of(number, task)
        if len(uops):  # checked before they are used
            read = Access("uop", np.arange(task["ubegin"], task["uend"]), False)
            _check(stream, found, number, read, memories["uop"])
        touched = accesses(task, stream, uops)
        check_range(number, task, stream, touched)
        check_late_reads(number, task, uops)
        for access in touched:
            if access.memory != DRAM:
                _check(stream, found, number, access, memories[access.memory])
            elif access.base in buffers:
                _check(stream, found, number, access, buffers[access.base])
        microcode.load(number, task)
    return found


def _check(stream: Stream, found: Order, number: int, access: Access, memory: _Memory) -> None:
    """Check one access against all earlier ones, and record it."""
    cells, queue = access.cells(), int(found.queues[number])
    clock = found.clocks[number]
    writers = memory.writer[cells]
    _check_ordered(stream, found, number, access, cells, writers, clock)
    if not access.is_write:
        if (writers == NO_TASK).any():
            cell = int(cells[writers == NO_TASK][0])
            raise _error(
                "TW7013",
                f"{_task(stream, number)} reads {_cell(stream, access, cell)}, which nothing "
                "has written",
                "load it first, or start the sum with init=1",
            )
        memory.readers[queue, cells] = number
        return
    for readers in memory.readers[:, cells]:
        _check_ordered(stream, found, number, access, cells, readers, clock)
    memory.writer[cells] = number
    memory.readers[:, cells] = NO_TASK


def _check_ordered(
    stream: Stream,
    found: Order,
    number: int,
    access: Access,
    cells: Indices,
    others: Indices,
    clock: np.ndarray[Any, np.dtype[np.int64]],
) -> None:
    tasks = others >= 0
    theirs = others[tasks]
    racing = (clock[found.queues[theirs]] <= found.positions[theirs]) & (theirs != number)
    if not racing.any():
        return
    other = int(theirs[racing][0])
    touched = cells[tasks][racing & (theirs == other)]
    span = _cell(stream, access, int(touched[0]))
    if len(touched) > 1:
        span += f" to {int(touched[-1])}"
    ours, its = QUEUES[found.queues[number]], QUEUES[found.queues[other]]
    raise _error(
        "TW7010",
        f"a race on {span}: {_task(stream, other)} and {_task(stream, number)} are not ordered",
        f"a token is missing from {its} to {ours}, pushed by {other} or later and popped by "
        f"{number} or earlier",
    )


def _check_counters(stream: Stream, found: Order) -> None:
    """No token is left, no counter can overflow in any timing, `finish` is after everything."""
    for (source, target), pushed in found.left.items():
        raise _error(
            "TW7015",
            f"{len(pushed)} tokens from {QUEUES[source]} to {QUEUES[target]} are left over, the "
            f"last one of {_task(stream, pushed[-1])}",
            "pop every token that is pushed: the next stream would find it",
        )
    last = len(stream.instructions) - 1
    for queue, name in enumerate(QUEUES):
        count = int((found.queues == queue).sum()) - (queue == found.queues[last])
        if found.clocks[last, queue] < count:
            raise _error(
                "TW7016",
                f"finish does not wait for the end of the {name} queue",
                "let its last task push a token that store pops, or one that leads there",
            )
    pops: dict[tuple[int, int], list[int]] = {}  # positions in their queue, in order
    for number in found.sequence:
        for source in stream.instructions[number].pops():
            pair = (source, int(found.queues[number]))
            pops.setdefault(pair, []).append(int(found.positions[number]))
    pushes: Counter[tuple[int, int]] = Counter()
    for number in found.sequence:
        for target in stream.instructions[number].pushes():
            pair = (int(found.queues[number]), target)
            pushes[pair] += 1
            taken = int(np.searchsorted(pops[pair], found.clocks[number, target]))
            if pushes[pair] - taken > TOKEN_MAX:
                raise _error(
                    "TW7012",
                    f"the counter from {QUEUES[pair[0]]} to {QUEUES[target]} can reach "
                    f"{pushes[pair] - taken} at {_task(stream, number)}; it holds {TOKEN_MAX}",
                    "push fewer tokens ahead: let the pushing queue wait for one back",
                )


def _task(stream: Stream, number: int) -> str:
    names = [buffer.name for buffer in stream.buffers]
    return f"`{number}: {print_instruction(stream.instructions[number], names)}`"


def _cell(stream: Stream, access: Access, cell: int) -> str:
    if access.memory == DRAM:
        return f"byte {cell} of {stream.buffers[access.base].name}"
    return f"{access.memory}[{cell}]"


def _error(code: str, message: str, help: str) -> ExecutionError:
    return ExecutionError(code, message, help=help)
