"""Unroll loops marked so, which turns indices into small buffers into constants.

    for i in unroll 0..2 { acc[i] = 0 }      acc[0] = 0; acc[1] = 0

Accumulators with constant indices end up in registers. A serial loop annotated `unroll = 4` runs
four iterations at a time, and the tail one by one. A loop whose expansion would exceed `limit`
statements stays as it is.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import ZERO, Const, const, var
from tilewright.tensor.ir import (
    SERIAL,
    UNROLL,
    For,
    Function,
    Stmt,
    annotated,
    annotation,
    seq,
)
from tilewright.tensor.visit import copies, fresh_copy, rewrite, walk


def unroll_loops(fn: Function, ctx: PassContext) -> Function:
    limit: int = ctx.option("unroll_loops.limit", 2048)

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For):
            return stmt
        if stmt.kind == UNROLL:
            return _unrolled(stmt, limit)
        factor = annotation(stmt, "unroll")
        if factor is not None and stmt.kind == SERIAL:
            plain = replace(stmt, annotations=annotated(stmt.annotations, "unroll", None))
            return _by_factor(plain, int(factor), limit)
        return stmt

    body = rewrite(fn.body, rule)
    return fn if body is fn.body else replace(fn, body=body)


def _unrolled(loop: For, limit: int) -> Stmt | None:
    extent = sym.simplify(loop.extent)
    size = sum(1 for _ in walk(loop.body))
    if not isinstance(extent, Const) or extent.value * size > limit:
        return replace(loop, kind=SERIAL)
    steps = [sym.add(loop.start, const(k)) for k in range(int(extent.value))]
    return seq(*copies(loop.body, loop.var, steps)) if steps else None


def _by_factor(loop: For, factor: int, limit: int) -> Stmt | None:
    extent = sym.simplify(loop.extent)
    if isinstance(extent, Const) and extent.value <= factor:
        return _unrolled(loop, limit)
    if factor < 2 or factor * sum(1 for _ in walk(loop.body)) > limit:
        return loop
    rounds = sym.simplify(sym.maximum(sym.floordiv(extent, factor), 0))
    done = sym.mul(rounds, factor)
    outer = var(loop.var.name)
    base = sym.add(loop.start, sym.mul(outer, factor))
    steps = [sym.add(base, const(k)) for k in range(factor)]
    made = copies(loop.body, loop.var, steps)
    main = replace(loop, var=outer, start=ZERO, stop=rounds, body=seq(*made))
    if sym.prove(sym.eq(done, extent)):
        return main
    rest = fresh_copy(replace(loop, start=sym.simplify(sym.add(loop.start, done))))
    return seq(main, rest)
