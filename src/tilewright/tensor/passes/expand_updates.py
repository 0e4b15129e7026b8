"""Expand reduction updates into loads and stores.

    C[i] sum= A[k]                              C[i] = C[i] + A[k]
    (I[i], V[i]) argmax= (k, A[k])              let i0 = ..; let v0 = ..; I[i] = i0; V[i] = v0

All elements of a tuple are combined before any of them is stored.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.sym import Expr, Var, var
from tilewright.tensor.ir import Function, Let, Load, Stmt, Store, Update, seq
from tilewright.tensor.visit import rewrite


def expand_updates(fn: Function, ctx: PassContext) -> Function:
    body = rewrite(fn.body, _expand)
    return fn if body is fn.body else replace(fn, body=body)


def _expand(stmt: Stmt) -> Stmt:
    if not isinstance(stmt, Update):
        return stmt
    reducer, index = stmt.reducer, stmt.index
    env: dict[Var, Expr] = dict(zip(reducer.rhs, stmt.values, strict=True))
    for lhs, buffer in zip(reducer.lhs, stmt.buffers, strict=True):
        env[lhs] = Load(buffer, index)
    results = [sym.substitute(result, env) for result in reducer.result]
    if len(results) == 1:
        return Store(stmt.buffers[0], index, results[0], None, stmt.loc)
    names = [var(buffer.name, buffer.dtype) for buffer in stmt.buffers]
    body = seq(
        *[
            Store(buffer, index, name, None, stmt.loc)
            for buffer, name in zip(stmt.buffers, names, strict=True)
        ]
    )
    for name, result in zip(reversed(names), reversed(results), strict=True):
        body = Let(name, result, body, stmt.loc)
    return body
