"""Fold the scale of attention scores into the exponentials that are taken of them.

    T[i, j] = select(mask, S[i, j] * 0.125, -inf); attend(T, V, M, L, O)

    T[i, j] = select(mask, S[i, j], -inf); attend(T, V, M, L, O, 0.125)

An exponential is exp2(score * factor - max * factor): one FMA whatever the factor is. The running
maximum M is then unscaled, so nothing else may read M.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import Const, Expr, Mul, Select
from tilewright.tensor.ir import Address, Buffer, Call, Eval, For, Function, Load, Stmt, Store
from tilewright.tensor.passes.rewriter import Rewriter
from tilewright.tensor.passes.stagger_attention import ATTEND, calls_of
from tilewright.tensor.visit import exprs, rewrite, walk

PLAIN_ARGS = 7  # arguments of `attend` without a scale


def fold_scale(fn: Function, ctx: PassContext) -> Function:
    if not calls_of(fn.body, ATTEND):
        return fn
    body = _Steps(fn.body)(fn.body)
    assert body is not None
    return fn if body is fn.body else replace(fn, body=body)


class _Steps(Rewriter):
    tracks = False

    def __init__(self, root: Stmt) -> None:
        super().__init__()
        self.read = {node.buffer for node in exprs(root) if isinstance(node, Load)}

    def visit_for(self, loop: For) -> Stmt | None:
        steps = calls_of(loop, ATTEND)
        inner = [s for s in walk(loop.body) if isinstance(s, For) and calls_of(s, ATTEND)]
        if inner or len(steps) != 1 or len(steps[0].args) != PLAIN_ARGS:
            return super().visit_for(loop)
        scores, _, top, *_ = steps[0].args
        assert isinstance(scores, Address)
        assert isinstance(top, Address)
        return loop if top.buffer in self.read else _folded(loop, steps[0], scores.buffer)


def _folded(loop: For, attend: Call, scores: Buffer) -> Stmt:
    stores = [s for s in walk(loop) if isinstance(s, Store) and s.buffer is scores]
    factors = {_factor(store.value) for store in stores}
    if len(factors) != 1:
        return loop
    (factor,) = factors
    if factor is None:
        return loop

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store) and stmt.buffer is scores:
            return replace(stmt, value=_without(stmt.value))
        if isinstance(stmt, Eval) and stmt.value is attend:
            return Eval(Call(attend.op, (*attend.args, factor), attend.dtype), stmt.loc)
        return stmt

    made = rewrite(loop, rule)
    assert made is not None
    return made


def _factor(value: Expr) -> Const | None:
    """The positive constant that an unmasked score is multiplied by."""
    if isinstance(value, Select):
        _, kept, never = value.children()
        masked = isinstance(never, Const) and never.value == -math.inf
        return _factor(kept) if masked else None
    if not isinstance(value, Mul):
        return None
    factor = value.b if isinstance(value.b, Const) else value.a
    return factor if isinstance(factor, Const) and 0 < factor.value < math.inf else None


def _without(value: Expr) -> Expr:
    if isinstance(value, Select):
        cond, kept, never = value.children()
        return sym.select(cond, _without(kept), never)
    assert isinstance(value, Mul)
    return value.a if isinstance(value.b, Const) else value.b
