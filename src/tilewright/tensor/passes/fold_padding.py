"""Let bulk copies read the source of a padded copy: out-of-bounds elements are zero-filled by
hardware.

    for x in 0..128 { block A_pad(x) { A_pad[x] = select(x < 100, A[x], 0) } }
    call tma_load(A_pad[0 +: 128], T)

    call tma_load(A[0 +: 128], T)

The padded copy, made by `pad`, is removed where only such copies read it. Their boxes start inside
of the source; what lies beyond its last row or column is filled. The source may have other axes, or
be part of a larger buffer, such as interleaved heads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import ONE, Const, Expr, Select, Var, conjuncts
from tilewright.tensor.bulk_copies import can_copy
from tilewright.tensor.intrin import intrinsic
from tilewright.tensor.ir import (
    Block,
    Buffer,
    Call,
    Eval,
    Function,
    Load,
    Range,
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
    """A block that pads, and the element of the source at each index of the padded buffer."""

    block: Block
    padded: Buffer
    source: Buffer
    index: tuple[Var, ...]
    place: tuple[Expr, ...]

    def moved(self, region: Region) -> Region | None:
        """The box of the source for a box of the padded buffer; None if it is none."""
        spans = dict(zip(self.index, region.ranges, strict=True))
        starts: dict[Var, Expr] = {var: span.start for var, span in spans.items()}
        wide = [var for var, span in spans.items() if span.extent is not ONE]
        ranges: list[Range] = []
        found: list[Var] = []
        for at in self.place:
            along = sym.linear(at, wide)
            if along is None or len(along[0]) > 1 or any(by is not ONE for by in along[0].values()):
                return None
            found += along[0]
            extents = [spans[var].extent for var in along[0]]
            start = sym.simplify(sym.substitute(at, starts))
            ranges.append(Range(start, extents[0] if extents else ONE))
        return Region(self.source, tuple(ranges)) if found == wide else None


def fold_padding(fn: Function, ctx: PassContext) -> Function:
    found = [made for stmt in walk(fn.body) if (made := padding_of(stmt, fn)) is not None]
    folded = {made.padded: made for made in found if _is_folded(fn, made)}
    if not folded:
        return fn
    gone = {made.block.name for made in folded.values()}

    def moved(region: Region) -> Region:
        made = folded.get(region.buffer)
        return region if made is None else made.moved(region) or region

    def rule(stmt: Stmt) -> Stmt | None:
        match stmt:
            case Block(name=name) if name in gone:
                return None
            case Block(reads=reads):
                return replace(stmt, reads=tuple([moved(read) for read in reads]))
            case TensorCall(regions=regions):
                return replace(stmt, regions=tuple([moved(each) for each in regions]))
            case _:
                return stmt

    body = rewrite(fn.body, rule)
    allocs = tuple([buffer for buffer in fn.allocs if buffer not in folded])
    return replace(fn, body=body, allocs=allocs)


def _is_folded(fn: Function, made: Padding) -> bool:
    """Whether only bulk copies read a padded buffer, all of boxes that they can read from the
    source."""
    if not is_only_copied(fn, made.block, made.padded):
        return False
    regions = [
        region
        for stmt in walk(fn.body)
        if isinstance(stmt, TensorCall) or (isinstance(stmt, Block) and stmt is not made.block)
        for region in (stmt.regions if isinstance(stmt, TensorCall) else stmt.reads)
        if region.buffer is made.padded
    ]
    return all(made.moved(region) is not None for region in regions)


def padding_of(stmt: Stmt, fn: Function) -> Padding | None:
    """A block that copies a buffer and writes zero beyond its extents, if bulk copies of rows and
    columns can read that buffer instead."""
    if not isinstance(stmt, Block) or not isinstance(stmt.body, Store):
        return None
    value, index = stmt.body.value, stmt.body.index
    if not isinstance(value, Select) or stmt.body.buffer not in fn.allocs:
        return None
    cond, inside, zero = value.children()
    iters = tuple([it.var for it in stmt.iters])
    if not isinstance(inside, Load) or index != iters:
        return None
    if not isinstance(zero, Const) or zero.value != 0:
        return None
    # The condition tests each index against the extent of its own axis.
    axes = list(zip(inside.index, inside.buffer.shape, strict=True))
    for test in conjuncts(cond):
        own = [at for at, dim in axes if isinstance(at, Var) and test is sym.lt(at, dim)]
        if len(own) != 1 or sum(sym.uses_var(at, {own[0]}) for at, _ in axes) != 1:
            return None
        # The box's next row must follow the row's columns: with an axis between them, such as
        # interleaved heads, a copy would read the next head's columns there.
        if own[0] is inside.index[-1] and len(axes) > 1 and inside.index[-2] is not iters[-2]:
            return None
    made = Padding(stmt, stmt.body.buffer, inside.buffer, iters, inside.index)
    # A box like the kernels': several rows and columns, one of every other axis.
    rank = len(iters)
    extents = (ONE,) * (rank - 2) + (sym.const(2),) * min(2, rank)
    box = Region(made.padded, tuple([Range(sym.ZERO, extent) for extent in extents]))
    return made if can_copy(made.source) and made.moved(box) is not None else None


def is_only_copied(
    fn: Function, block: Block, buffer: Buffer, copies: tuple[str, ...] = COPIES
) -> bool:
    """Whether only such copies read a buffer, and no other block writes it."""
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
