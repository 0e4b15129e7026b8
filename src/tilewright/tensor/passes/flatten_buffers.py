"""Replace indices by row-major offsets; intermediate buffers become one-dimensional.

    T: f32[8, n]   T[i, j]      ->      T: f32[8 * n]   T[i * n + j]

`align(axis, factor, offset)` pads the stride of an axis until stride % factor == offset. Parameters
keep their shape, which is the contract with the caller, and so do buffers passed to an external
kernel. `stride(address, axis)` becomes that stride. From here on the function is in stage flat.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import ONE, ZERO, Const, Expr
from tilewright.tensor.ir import (
    FLAT,
    SCHEDULED,
    Address,
    Alloc,
    Buffer,
    Call,
    ExternCall,
    Function,
    Load,
    MaskedLoad,
    Ramp,
    Stmt,
    Store,
)
from tilewright.tensor.visit import rewrite, walk

STRIDE = "stride"


def flatten_buffers(fn: Function, ctx: PassContext) -> Function:
    if fn.stage != SCHEDULED:
        return fn
    flat: dict[Buffer, Buffer] = {buffer: buffer for buffer in fn.buffers}
    strides = {buffer: strides_of(buffer) for buffer in fn.buffers}
    handed_out: set[Buffer] = set()
    for stmt in walk(fn.body):
        if isinstance(stmt, ExternCall):
            handed_out.update(region.buffer for region in stmt.regions)
    for stmt in walk(fn.body):
        if isinstance(stmt, Alloc):
            buffer = stmt.buffer
            steps = strides_of(buffer)
            made = buffer if buffer in handed_out else _one_dimensional(buffer, steps)
            flat[buffer] = made
            strides[buffer] = strides[made] = steps

    def offset(buffer: Buffer, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        total: Expr = ZERO
        for at, step in zip(index, strides[buffer], strict=True):
            first = at.base if isinstance(at, Ramp) else at
            total = sym.add(total, sym.mul(first, step))
        for at, step in zip(index, strides[buffer], strict=True):
            if isinstance(at, Ramp):  # at most one per index
                total = Ramp(total, sym.mul(at.stride, step), at.lanes)
        return (total,)

    def expr_rule(expr: Expr) -> Expr:
        if isinstance(expr, Load):
            return Load(flat[expr.buffer], offset(expr.buffer, expr.index))
        if isinstance(expr, MaskedLoad):
            return MaskedLoad(flat[expr.buffer], offset(expr.buffer, expr.index), expr.mask)
        if isinstance(expr, Address):
            return Address(flat[expr.buffer], offset(expr.buffer, expr.index))
        if isinstance(expr, Call) and expr.op == STRIDE:
            address, axis = expr.args
            assert isinstance(address, Address)
            assert isinstance(axis, Const)
            return strides[address.buffer][int(axis.value)]
        return expr

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store):
            index = offset(stmt.buffer, stmt.index)
            return Store(flat[stmt.buffer], index, stmt.value, stmt.mask, stmt.loc)
        if isinstance(stmt, Alloc):
            return stmt if flat[stmt.buffer] is stmt.buffer else Alloc(flat[stmt.buffer], stmt.body)
        return stmt

    return replace(fn, body=rewrite(fn.body, rule, expr_rule), stage=FLAT)


def strides_of(buffer: Buffer) -> tuple[Expr, ...]:
    """The stride of each axis, in elements."""
    paddings = {axis % max(1, buffer.rank): (f, o) for axis, f, o in buffer.align}
    steps: list[Expr] = []
    step: Expr = ONE
    for axis in range(buffer.rank - 1, -1, -1):
        if axis in paddings:
            factor, offset = paddings[axis]
            # The least s >= step with s % factor == offset.
            gap = sym.floormod(sym.sub(offset, step), factor)
            step = sym.simplify(sym.add(step, gap))
        steps.append(step)
        step = sym.mul(step, buffer.shape[axis])
    return tuple(reversed(steps))


def _one_dimensional(buffer: Buffer, strides: tuple[Expr, ...]) -> Buffer:
    size = sym.simplify(sym.mul(buffer.shape[0], strides[0])) if buffer.rank else ONE
    if buffer.rank == 1 and size is buffer.shape[0]:
        return replace(buffer, align=()) if buffer.align else buffer
    return Buffer(buffer.name, (size,), buffer.dtype, buffer.scope)
