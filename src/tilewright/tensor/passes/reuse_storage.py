"""Let intermediate buffers with disjoint lifetimes share memory.

    T = f(A); U = g(T); V = h(U)      T = f(A); U = g(T); T = h(U)

In a sequence of statements, a buffer is live from its first use to its last. A buffer that becomes
live takes the memory of a dead one of the same element type and size, or of a constant size that is
enlarged as needed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from tilewright.base.passes import PassContext
from tilewright.sym import Const, const
from tilewright.tensor.ir import Alloc, Buffer, ExternCall, For, Function, Stmt, seq
from tilewright.tensor.passes.accesses import touched_buffers
from tilewright.tensor.passes.pipeline_loops import flatten_body
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import replace_buffers, rewrite, walk


def reuse_storage(fn: Function, ctx: PassContext) -> Function:
    if sum(isinstance(stmt, Alloc) for stmt in walk(fn.body)) < 2:
        return fn
    merged: dict[Buffer, Buffer] = {}

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For):
            body = _shared(stmt.body, merged)
            return stmt if body is stmt.body else replace(stmt, body=body)
        return stmt

    body = _shared(rewrite(fn.body, rule), merged)
    if not merged:
        return fn
    return replace(fn, body=replace_buffers(body, merged))


@dataclass(eq=False, slots=True)
class _Slot:
    """Memory for buffers that are live one after another."""

    buffers: list[Buffer]
    size: Const | None  # None: all of them have the same dynamic shape
    last: int


def _shared(body: Stmt, merged: dict[Buffer, Buffer]) -> Stmt:
    """The sequence with fewer allocations; the replacements are added to `merged`."""
    if not isinstance(body, Alloc) and not any(isinstance(s, Alloc) for s in body.children()):
        return body
    allocs: list[Alloc] = []
    steps: list[Stmt] = []
    flatten_body(body, allocs, steps)
    lives = _lifetimes(steps, [alloc.buffer for alloc in allocs])
    slots: list[_Slot] = []
    for buffer in sorted(lives, key=lambda one: lives[one][0]):
        first, last = lives[buffer]
        size = buffer.shape[0] if buffer.rank == 1 else None
        fixed = size if isinstance(size, Const) else None
        slot = next((s for s in slots if s.last < first and _fits(buffer, fixed, s)), None)
        if slot is None:
            slots.append(_Slot([buffer], fixed, last))
        else:
            slot.buffers.append(buffer)
            slot.last = last
            if fixed is not None and slot.size is not None:
                slot.size = const(max(int(fixed.value), int(slot.size.value)))
    if len(slots) == len(lives):
        return body
    starts: dict[int, list[Buffer]] = defaultdict(list)
    for slot in slots:
        home = slot.buffers[0]
        if slot.size is not None and home.shape[0] is not slot.size:
            home = replace(home, shape=(slot.size,))
        starts[lives[slot.buffers[0]][0]].append(home)
        merged.update((buffer, home) for buffer in slot.buffers if buffer is not home)
    for alloc in allocs:
        if alloc.buffer not in lives:
            starts[0].append(alloc.buffer)
    result: Stmt | None = None
    for at in range(len(steps) - 1, -1, -1):
        result = steps[at] if result is None else seq(steps[at], result)
        for buffer in reversed(starts.get(at, ())):
            result = Alloc(buffer, result)
    assert result is not None
    return result


def _lifetimes(steps: list[Stmt], buffers: list[Buffer]) -> dict[Buffer, tuple[int, int]]:
    """First and last use of each heap buffer; buffers passed to external kernels are excluded."""
    wanted = {buffer for buffer in buffers if buffer.memory.owner is Owner.DEVICE}
    found: dict[Buffer, tuple[int, int]] = {}
    for at, step in enumerate(steps):
        for stmt in walk(step):
            if isinstance(stmt, ExternCall):
                wanted -= {region.buffer for region in stmt.regions}
            for buffer in touched_buffers(stmt):
                if buffer in wanted:
                    found[buffer] = (found.get(buffer, (at, at))[0], at)
    return {buffer: found[buffer] for buffer in buffers if buffer in found and buffer in wanted}


def _fits(buffer: Buffer, size: Const | None, slot: _Slot) -> bool:
    home = slot.buffers[0]
    if home.dtype is not buffer.dtype or home.rank != buffer.rank:
        return False
    if size is not None and slot.size is not None:
        return True
    return all(a is b for a, b in zip(home.shape, buffer.shape, strict=True))
