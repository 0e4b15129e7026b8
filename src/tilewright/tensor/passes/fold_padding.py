"""Bulk copies read the source of a padded copy: what lies outside comes as zero by itself.

    for x in 0..128 { block A_pad(x) { A_pad[x] = select(x < 100, A[x], 0) } }
    call tma_load(A_pad[0 +: 128], T)

    call tma_load(A[0 +: 128], T)

The padded copy, made by `pad`, is gone where nothing but such copies reads it. Their boxes begin
inside of the source, whatever lies behind its last row or column is filled up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import Const, Select, conjuncts
from tilewright.tensor.intrin import intrinsic
from tilewright.tensor.ir import (
    Block,
    Buffer,
    Call,
    Eval,
    Function,
    Load,
    Region,
    Stmt,
    Store,
    TensorCall,
)
from tilewright.tensor.visit import exprs, rewrite, walk, written_buffers

COPY = "tma.load"
COPIES = (COPY, "tma.multicast", "cp.async.tile")


@dataclass(frozen=True)
class Padding:
    """A block that pads, and what it pads."""

    block: Block
    padded: Buffer
    source: Buffer


def fold_padding(fn: Function, ctx: PassContext) -> Function:
    found = [made for stmt in walk(fn.body) if (made := padding_of(stmt, fn)) is not None]
    sources = {
        made.padded: made.source for made in found if is_only_copied(fn, made.block, made.padded)
    }
    if not sources:
        return fn
    gone = {made.block.name for made in found if made.padded in sources}

    def rule(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Block(name=name) if name in gone:
                return None
            case Block(reads=reads):
                return replace(stmt, reads=tuple([_moved(read, sources) for read in reads]))
            case TensorCall(regions=regions):
                return replace(stmt, regions=tuple([_moved(each, sources) for each in regions]))
            case _:
                return stmt

    body = rewrite(fn.body, rule)
    allocs = tuple([buffer for buffer in fn.allocs if buffer not in sources])
    return replace(fn, body=body, allocs=allocs)


def _moved(region: Region, sources: dict[Buffer, Buffer]) -> Region:
    return replace(region, buffer=sources.get(region.buffer, region.buffer))


def padding_of(stmt: Stmt, fn: Function) -> Padding | None:
    """A block that copies a buffer and sets what lies behind its extents to zero."""
    if not isinstance(stmt, Block) or not isinstance(stmt.body, Store):
        return None
    value, index = stmt.body.value, stmt.body.index
    if not isinstance(value, Select) or stmt.body.buffer not in fn.allocs:
        return None
    cond, inside, zero = value.children()
    if not isinstance(inside, Load) or inside.index != index:
        return None
    if not isinstance(zero, Const) or zero.value != 0:
        return None
    if index != tuple([it.var for it in stmt.iters]):
        return None
    tests = set(conjuncts(cond))
    whole = inside.buffer.shape
    allowed = {sym.lt(at, dim) for at, dim in zip(index, whole, strict=True)}
    grown = [
        sym.lt(at, dim)
        for at, dim, wide in zip(index, whole, stmt.body.buffer.shape, strict=True)
        if wide is not dim
    ]
    if tests != set(grown) or not tests <= allowed:
        return None
    return Padding(stmt, stmt.body.buffer, inside.buffer)


def is_only_copied(
    fn: Function, block: Block, buffer: Buffer, copies: tuple[str, ...] = COPIES
) -> bool:
    """Whether such copies alone read a buffer, and no block writes it but its own."""
    for stmt in walk(fn.body):
        if isinstance(stmt, TensorCall):
            touched = any(region.buffer is buffer for region in stmt.regions)
            if touched and not _is_bulk_copy(stmt, copies):
                return False
        elif isinstance(stmt, Block) and stmt.name != block.name:
            reads = any(
                isinstance(node, Load) and node.buffer is buffer for node in exprs(stmt.body)
            )
            if reads or buffer in written_buffers(stmt):
                return False
    return True


def _is_bulk_copy(call: TensorCall, copies: tuple[str, ...]) -> bool:
    step = intrinsic(call.intrin, call.arguments).implementation(call.phase)
    return isinstance(step, Eval) and isinstance(step.value, Call) and step.value.op in copies
