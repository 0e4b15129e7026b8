"""Reject programs that exceed the capacity of a memory.

    alloc %t: f32[2304] in amx.tile { ... }        refused: 9216 bytes, of 8192

Changes nothing. It runs last, when every live buffer is in an enclosing `alloc`. Memories without a
declared capacity are not checked: stack and heap are `assign_memory`'s business, shared memory that
of the GPU code generator.
"""

from __future__ import annotations

from tilewright.base.errors import Unsupported
from tilewright.base.passes import PassContext
from tilewright.tensor.ir import Alloc, Function, Stmt


def check_capacity(fn: Function, ctx: PassContext) -> Function:
    stack: list[tuple[Stmt, dict[str, int]]] = [(fn.body, {})]
    while stack:
        stmt, taken = stack.pop()
        if isinstance(stmt, Alloc) and stmt.buffer.memory.capacity_bytes is not None:
            name = stmt.buffer.memory.name
            taken = {**taken, name: _with(stmt, taken.get(name, 0))}
        stack.extend((child, taken) for child in stmt.children())
    return fn


def _with(stmt: Alloc, taken: int) -> int:
    """The bytes used in a memory, this buffer included."""
    buffer, memory = stmt.buffer, stmt.buffer.memory
    size = buffer.constant_bytes
    if size is None:
        raise Unsupported(
            "TW2219",
            f"%{buffer.name} in {buffer.scope} has a size that is not known when compiling",
            stmt.loc,
            help=f"it has {memory.capacity_bytes} bytes: split the loops around by constants",
        )
    together = taken + -(-size // memory.alignment_bytes) * memory.alignment_bytes
    assert memory.capacity_bytes is not None
    if together > memory.capacity_bytes:
        raise Unsupported(
            "TW2219",
            f"%{buffer.name} takes {size} bytes of {memory.name} after {taken} of "
            f"{memory.capacity_bytes} are taken",
            stmt.loc,
            help="keep smaller tiles, or fewer at a time",
        )
    return together
