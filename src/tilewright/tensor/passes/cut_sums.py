"""Split long accumulation chains into partial sums, where a loop is annotated so.

    for k in 0..1024 [part_terms = 64] { T[0] = T[0] + A[k] * B[k] }

    for o in 0..16 {
      alloc P
      P[0] = 0.0
      for k in o * 64..o * 64 + 64 { P[0] = P[0] + A[k] * B[k] }
      T[0] = T[0] + P[0]
    }

Rounding error grows with the square root of a chain's length, for partial sums with those of their
length and of their number. Both accumulators are local: the partial sum stays in registers, the
total, used once per part, need not. The annotation gives the least number of terms per part.
Accumulators have constant indices, as in unrolled code; of nested loops the innermost one with
enough terms for a part is split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import ONE, ZERO, Add, Const, Expr
from tilewright.tensor.ir import (
    SERIAL,
    Address,
    Alloc,
    Broadcast,
    Buffer,
    ExternCall,
    For,
    Function,
    If,
    Load,
    MaskedLoad,
    Ramp,
    Stmt,
    Store,
    TensorCall,
    annotated,
    annotation,
    seq,
)
from tilewright.tensor.passes.accesses import writes_of
from tilewright.tensor.passes.rewriter import Rewriter
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import replace_buffers, rewrite, walk

Place = tuple[Buffer, tuple[Expr, ...]]  # an element or a vector of a local buffer
PART_TERMS = "part_terms"  # the annotation of a loop
MANY = 1 << 40  # iterations of a loop of dynamic extent


def cut_sums(fn: Function, ctx: PassContext) -> Function:
    if not any(isinstance(stmt, For) and annotation(stmt, PART_TERMS) for stmt in walk(fn.body)):
        return fn
    local = {stmt.buffer for stmt in walk(fn.body) if isinstance(stmt, Alloc)}
    body = _SplitSums({buffer for buffer in local if _may_sum(buffer)})(fn.body)
    assert body is not None
    return replace(fn, body=rewrite(body, _without_mark))


def _without_mark(stmt: Stmt) -> Stmt:
    if not isinstance(stmt, For) or annotation(stmt, PART_TERMS) is None:
        return stmt
    return replace(stmt, annotations=annotated(stmt.annotations, PART_TERMS, None))


def _may_sum(buffer: Buffer) -> bool:
    """Whether a buffer may hold accumulators in registers."""
    is_flat = len(buffer.shape) == 1 and isinstance(buffer.shape[0], Const)
    return buffer.memory.owner is Owner.THREAD and is_flat


class _SplitSums(Rewriter):
    tracks = False

    def __init__(self, local: set[Buffer]) -> None:
        super().__init__()
        self.local = local
        self.least = 0  # least terms per part; 0 without an annotation

    def visit_for(self, loop: For) -> Stmt | None:
        asked = annotation(loop, PART_TERMS)
        if not isinstance(asked, int):
            return self.cut(loop) if self.least else super().visit_for(loop)
        before, self.least = self.least, asked
        try:
            return self.cut(loop)
        finally:
            self.least = before

    def cut(self, loop: For) -> Stmt | None:
        terms = _terms(loop.body, self.local) if loop.kind == SERIAL else {}
        if not terms:
            return super().visit_for(loop)
        each = max(terms.values())
        if each >= self.least:
            inner = super().visit_for(loop)
            is_part = inner is loop and each < 2 * self.least
            return _in_parts(loop, terms, 1) if is_part else inner
        if not isinstance(loop.extent, Const):
            return _in_parts(loop, terms, -(-self.least // each))
        extent = int(loop.extent.value)
        most = extent * each // self.least
        if most < 2:
            return loop
        # Equal parts, if that at most halves their number.
        even = (parts for parts in range(min(most, extent), most // 2, -1) if extent % parts == 0)
        return _in_parts(loop, terms, -(-extent // next(even, most)))


def _count(loop: For) -> int:
    return int(loop.extent.value) if isinstance(loop.extent, Const) else MANY


def _terms(root: Stmt, local: set[Buffer]) -> dict[Place, int]:
    """Terms added to each accumulator in local buffers. Buffers that are used in any other way, or
    conditionally, are left out."""
    found: Counter[Place] = Counter()
    odd: set[Buffer] = set()
    stack = [(root, 1)]
    while stack:
        stmt, times = stack.pop()
        if isinstance(stmt, If):
            odd.update(buffer for inner in walk(stmt) for buffer, _ in writes_of(inner))
        if isinstance(stmt, (ExternCall, TensorCall)):
            odd.update(region.buffer for region in stmt.regions)
        elif isinstance(stmt, Store) and stmt.buffer in local:
            term = _added(stmt)
            if term is not None:
                found[stmt.buffer, stmt.index] += times
                odd.update(_read(term))
                continue
            odd.add(stmt.buffer)
        elif isinstance(stmt, For):
            if stmt.kind != SERIAL:
                return {}
            times *= _count(stmt)
        odd.update(_read(*stmt.exprs()))
        stack += [(child, times) for child in reversed(stmt.children())]
    sums = {place: count for place, count in found.items() if place[0] not in odd}
    return {} if any(_overlap(sums, buffer) for buffer in {b for b, _ in sums}) else sums


def _added(stmt: Store) -> Expr | None:
    """The term that a store adds to the element it writes, at a constant index."""
    (at,) = stmt.index
    is_run = isinstance(at, Const) or (isinstance(at, Ramp) and at.stride is ONE)
    first = at.base if isinstance(at, Ramp) else at
    if not is_run or not isinstance(first, Const) or stmt.mask is not None:
        return None
    before = Load(stmt.buffer, stmt.index)
    if not isinstance(stmt.value, Add):
        return None
    a, b = stmt.value.children()
    return b if a is before else a if b is before else None


def _read(*roots: Expr) -> Iterator[Buffer]:
    for node in sym.walk(*roots):
        if isinstance(node, (Load, MaskedLoad, Address)):
            yield node.buffer


def _overlap(places: dict[Place, int], buffer: Buffer) -> bool:
    runs = sorted(_run(index) for each, index in places if each is buffer)
    return any(end > start for (_, end), (start, _) in pairwise(runs))


def _run(index: tuple[Expr, ...]) -> tuple[int, int]:
    (at,) = index
    first, lanes = (at.base, at.lanes) if isinstance(at, Ramp) else (at, 1)
    assert isinstance(first, Const)
    return int(first.value), int(first.value) + lanes


def _in_parts(loop: For, terms: dict[Place, int], steps: int) -> Stmt:
    """The loop split into parts of so many iterations."""
    mapping = {buffer: replace(buffer, name=f"{buffer.name}_part") for buffer, _ in terms}
    begin = [Store(mapping[buffer], at, _zero(buffer, at)) for buffer, at in terms]
    end = [
        Store(buffer, at, sym.add(Load(buffer, at), Load(mapping[buffer], at)))
        for buffer, at in terms
    ]
    body = replace_buffers(loop.body, mapping)
    if steps == 1:
        return replace(loop, body=_allocated(mapping, seq(*begin, body, *end)))
    part = sym.var(f"{loop.var.name}_part")
    start = sym.add(loop.start, sym.mul(part, steps))
    extent = loop.extent
    stop = sym.add(start, steps)
    if not isinstance(extent, Const) or int(extent.value) % steps:
        stop = sym.minimum(stop, loop.stop)
    inside = replace(loop, start=sym.simplify(start), stop=sym.simplify(stop), body=body)
    count = sym.simplify(sym.ceildiv(extent, steps))
    return For(part, ZERO, count, _allocated(mapping, seq(*begin, inside, *end)), loc=loop.loc)


def _allocated(mapping: dict[Buffer, Buffer], body: Stmt) -> Stmt:
    for buffer in mapping.values():
        body = Alloc(buffer, body, body.loc)
    return body


def _zero(buffer: Buffer, index: tuple[Expr, ...]) -> Expr:
    zero = sym.const(0.0, buffer.dtype)
    (at,) = index
    return Broadcast(zero, at.lanes) if isinstance(at, Ramp) else zero
