"""Repeats the bodies of unrolled loops, so that indices into small buffers become constants.

    for i in unroll 0..2 { acc[i] = 0 }      acc[0] = 0; acc[1] = 0

Accumulators indexed by constants end up in registers. A loop whose expansion would exceed `limit`
statements stays a loop.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import Const, const
from tilewright.tensor.ir import SERIAL, UNROLL, Alloc, For, Function, Let, Stmt, seq
from tilewright.tensor.passes.rewriter import fresh_copy
from tilewright.tensor.visit import rewrite, substitute, walk


def unroll_loops(fn: Function, ctx: PassContext) -> Function:
    limit: int = ctx.option("unroll_loops.limit", 2048)

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For) or stmt.kind != UNROLL:
            return stmt
        extent = sym.simplify(stmt.extent)
        inside = list(walk(stmt.body))
        if not isinstance(extent, Const) or extent.value * len(inside) > limit:
            return replace(stmt, kind=SERIAL)
        has_binders = any(isinstance(inner, (For, Let, Alloc)) for inner in inside)
        copy = fresh_copy if has_binders else substitute
        steps = [sym.add(stmt.start, const(k)) for k in range(int(extent.value))]
        return seq(*[copy(stmt.body, {stmt.var: at}) for at in steps]) if steps else None

    body = rewrite(fn.body, rule)
    return fn if body is fn.body else replace(fn, body=body)
