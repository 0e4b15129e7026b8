"""set_scope: move an intermediate buffer to another memory scope."""

from __future__ import annotations

from dataclasses import replace

from tilewright.tensor.ir import Buffer, Function
from tilewright.tensor.schedule.analysis.memory import check_memory, chosen
from tilewright.tensor.schedule.analysis.movable import (
    check_intermediate,
    check_seen,
    memory_used_at,
)
from tilewright.tensor.schedule.analysis.refusal import path_to_block
from tilewright.tensor.schedule.analysis.sites import scope_of
from tilewright.tensor.scopes import memory_of
from tilewright.tensor.visit import replace_buffers


def set_scope(fn: Function, name: str, index: int, memory: str) -> Function:
    """
    Before: alloc B: f32[n]
    After:  alloc B: f32[n] in shared

    `index` is a position among the buffers the block writes.
    """
    path, block = path_to_block(fn, name, "set the memory")
    memory = check_memory(fn, memory, name, "set the memory")
    buffer = chosen(fn, block, block.writes, index, "write", "set the memory").buffer
    check_intermediate(fn, buffer, name, f"set the memory of @{name}")
    if buffer.scope == memory:
        return fn
    scope = scope_of(path)
    uses = [site.path for site in (*scope.writers(buffer), *scope.readers(buffer))]
    own = memory_used_at(memory_of(memory), uses)
    for writer in scope.writers(buffer):
        for reader in scope.readers(buffer):
            what = f"set the memory of %{buffer.name}"
            check_seen(fn, buffer, own, writer.path, reader.path, what)
    return with_buffer(fn, buffer, replace(buffer, scope=memory))


def with_buffer(fn: Function, old: Buffer, new: Buffer) -> Function:
    """The function with an intermediate replaced by one of the same shape."""
    allocs = tuple([new if buffer is old else buffer for buffer in fn.allocs])
    return replace(fn, body=replace_buffers(fn.body, {old: new}), allocs=allocs)
