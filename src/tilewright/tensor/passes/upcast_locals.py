"""Keep thread-local 16-bit values as f32 where they are widened again by every use.

    alloc X: bf16[8]; X[ramp] = bf16x8(v); s = s + f32(X[0]); ... Y[ramp] = f32x8(X[ramp]) * a
    alloc X: f32[8];  X[ramp] = f32x8(bf16x8(v)); s = s + X[0]; ... Y[ramp] = X[ramp] * a

GPU registers hold 32 bits, and each use would unpack pairs again. Values are unchanged: rounded to
16 bits once. Buffers with other uses, or that take too many registers, stay as they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tilewright.base.dtype import BF16, F16, F32
from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.base.passes import PassContext
from tilewright.sym import Cast, Expr
from tilewright.tensor.ir import (
    Address,
    Alloc,
    Buffer,
    ExternCall,
    Function,
    Load,
    MaskedLoad,
    Stmt,
    Store,
    TensorCall,
)
from tilewright.tensor.scopes import LOCAL
from tilewright.tensor.visit import exprs, rewrite, walk


def upcast_locals(fn: Function, ctx: PassContext) -> Function:
    most = multiprocessor_of(ctx.target).accumulators
    wide = {buffer: replace(buffer, dtype=F32) for buffer in _kept(fn.body, most)}
    if not wide:
        return fn

    def expr_rule(expr: Expr) -> Expr:
        if isinstance(expr, Cast) and isinstance(expr.value, Cast):
            inner = expr.value.value  # a load widened by the rule below
            if isinstance(inner, Load) and inner.buffer in made and expr.dtype is inner.dtype:
                return inner
        if isinstance(expr, Load) and expr.buffer in wide:
            return Cast(Load(wide[expr.buffer], expr.index), expr.dtype)
        return expr

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Alloc) and stmt.buffer in wide:
            return replace(stmt, buffer=wide[stmt.buffer])
        if isinstance(stmt, Store) and stmt.buffer in wide:
            value = Cast(stmt.value, F32.with_lanes(stmt.value.dtype.lanes))
            return replace(stmt, buffer=wide[stmt.buffer], value=value)
        return stmt

    made = set(wide.values())
    return replace(fn, body=rewrite(fn.body, rule, expr_rule))


def _kept(root: Stmt, most: int) -> list[Buffer]:
    """Local buffers whose values are widened, each at least once; none if there are too many."""
    stmts = list(walk(root))
    local = [stmt.buffer for stmt in stmts if isinstance(stmt, Alloc)]
    found = {buffer for buffer in local if buffer.dtype in (BF16, F16) and buffer.memory == LOCAL}
    for stmt in stmts:
        if isinstance(stmt, (ExternCall, TensorCall)):
            found -= {region.buffer for region in stmt.regions}
        if isinstance(stmt, Store) and stmt.mask is not None:
            found.discard(stmt.buffer)
    read: Counter[Buffer] = Counter()
    for node in exprs(root):
        if isinstance(node, (Address, MaskedLoad)):
            found.discard(node.buffer)
        elif isinstance(node, Cast) and isinstance(node.value, Load) and node.dtype.scalar is F32:
            read[node.value.buffer] += node.dtype.lanes
    kept = [buffer for buffer in local if buffer in found and read[buffer] >= _count(buffer, most)]
    return kept if sum(_count(buffer, most) for buffer in kept) <= most else []


def _count(buffer: Buffer, most: int) -> int:
    """The number of elements; for a dynamic one, more than there are registers."""
    size = buffer.constant_bytes
    return most + 1 if size is None else size // buffer.dtype.size_bytes
