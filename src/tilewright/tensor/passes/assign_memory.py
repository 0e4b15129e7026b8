"""Choose between stack and heap for the intermediates of a CPU function.

Buffers of a small constant size go on the stack (scope `local`), where LLVM can promote them to
registers; all others on the heap (scope `global`), whatever scope the schedule requested. Memories
of special units (`amx.tile`) are left alone.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.passes import PassContext
from tilewright.sym import Const
from tilewright.tensor.ir import Alloc, Buffer, Function
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import replace_buffers, walk


def assign_memory(fn: Function, ctx: PassContext) -> Function:
    limit: int = ctx.option("assign_memory.limit", 32 * 1024)  # bytes, of one buffer
    room: int = ctx.option("assign_memory.total", 256 * 1024)
    moved: dict[Buffer, Buffer] = {}
    allocs = [
        stmt.buffer
        for stmt in walk(fn.body)
        if isinstance(stmt, Alloc) and stmt.buffer.memory.owner is not Owner.UNIT
    ]
    for buffer in sorted(allocs, key=lambda one: one.scope != "local"):
        size = 1
        for dim in buffer.shape:
            size = size * int(dim.value) if isinstance(dim, Const) else limit + 1
        size *= buffer.dtype.size_bytes
        scope = "local" if size <= limit and size <= room else "global"
        if scope == "local":
            room -= size
        if scope != buffer.scope:
            moved[buffer] = replace(buffer, scope=scope)
    if not moved:
        return fn
    return replace(fn, body=replace_buffers(fn.body, moved))
