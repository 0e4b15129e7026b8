"""Refuses programs that keep more in a memory than it has room for.

    alloc %t: f32[2304] in amx.tile { ... }        refused: 9216 bytes, of 8192

Changes nothing. It runs last, when every buffer that is alive at a place stands in an `alloc`
around it. Memories without a declared capacity are not looked at: what a stack or a heap has room
for is `assign_memory`'s, and a GPU's shared memory is its code generator's.
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
    """The bytes taken of a memory once the buffer is there too."""
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
