"""Properties of a kernel's bulk copies: the destination tile, rows, bytes."""

from __future__ import annotations

from tilewright import sym
from tilewright.sym import ONE, ZERO, Const
from tilewright.tensor.ir import Address, Buffer, Call, Eval, For, Stmt
from tilewright.tensor.roles import COPY, MULTICAST

ALIGN_BYTES = 16  # of every row that a bulk copy reads


def can_copy(buffer: Buffer) -> bool:
    """Whether bulk copies can read a buffer's rows: they begin at whole multiples of 16 bytes."""
    size_bytes = sym.simplify(sym.mul(buffer.shape[-1], buffer.dtype.size_bytes))
    return sym.simplify(sym.floormod(size_bytes, ALIGN_BYTES)) is ZERO


def is_copy(stmt: Stmt) -> bool:
    return called(stmt) in (COPY, MULTICAST)


def target_of(stmt: Stmt) -> Buffer:
    assert isinstance(stmt, Eval)
    assert isinstance(stmt.value, Call)
    target = stmt.value.args[0]
    assert isinstance(target, Address)
    return target.buffer


def heights(copy: Stmt) -> tuple[int | None, int]:
    """The rows of the matrix that is copied from, if they are known, and those of a box."""
    assert isinstance(copy, Eval)
    assert isinstance(copy.value, Call)
    _, source, rows, stride, _ = copy.value.args
    assert isinstance(source, Address)
    assert isinstance(rows, Const)
    assert isinstance(stride, Call)
    axis = stride.args[1]
    assert isinstance(axis, Const)
    height = sym.simplify(source.buffer.shape[int(axis.value)])
    return int(height.value) if isinstance(height, Const) else None, int(rows.value)


def copied_bytes(stmt: Stmt) -> int:
    """Of all copies in a statement, as often as its loops repeat them."""
    if isinstance(stmt, For):
        times = sym.simplify(stmt.extent)
        assert isinstance(times, Const)
        return int(times.value) * copied_bytes(stmt.body)
    if not is_copy(stmt):
        return sum(copied_bytes(child) for child in stmt.children())
    assert isinstance(stmt, Eval)
    call = stmt.value
    assert isinstance(call, Call)
    target, _, rows, *_ = call.args
    assert isinstance(target, Address)
    assert isinstance(rows, Const)
    width = sym.simplify(target.buffer.shape[-1])
    assert isinstance(width, Const)
    parts = call.args[-1] if call.op == MULTICAST else ONE
    assert isinstance(parts, Const)
    size = int(rows.value) * int(width.value) * target.buffer.dtype.size_bytes
    return size * int(parts.value)


def called(stmt: Stmt) -> str:
    """What a statement calls, if it does nothing else."""
    return stmt.value.op if isinstance(stmt, Eval) and isinstance(stmt.value, Call) else ""
