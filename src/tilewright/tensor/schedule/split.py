"""split: turn one loop into a nest of loops."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright import sym
from tilewright.sym import ZERO, Const, Expr, Var
from tilewright.tensor.ir import SERIAL, Block, For, Function, Stmt
from tilewright.tensor.schedule.analysis.refusal import path_to_loop, refuse
from tilewright.tensor.schedule.analysis.tree import (
    loop_context,
    loops_on,
    replace_at,
    scope_blocks,
    with_body,
)
from tilewright.tensor.visit import rewrite, substitute


def split(fn: Function, var: Var, factors: Sequence[int | None]) -> tuple[Function, list[Var]]:
    """
    Before: for i in 0..n { body(i) }
    After:  for i_0 in 0..ceil(n / f) { for i_1 in 0..f { body(i_0 * f + i_1) where it is < n } }

    One factor may be None: it is inferred. The condition is omitted where it always holds.
    """
    path, loop = path_to_loop(fn, var, "split")
    sizes = _resolve(fn, loop, factors)
    ctx = loop_context(fn, loops_on(path))
    variables = [sym.var(f"{var.name}_{at}") for at in range(len(sizes))]
    inner = ctx.bind_all({v: (ZERO, s) for v, s in zip(variables, sizes, strict=True)})
    index: Expr = variables[0]
    for new, extent in zip(variables[1:], sizes[1:], strict=True):
        index = index * extent + new
    index = loop.start + index
    body = substitute(loop.body, {var: index})
    within = sym.lt(index, loop.stop)
    if not sym.prove(within, inner):
        body = guarded(body, within)
    for new, extent in zip(reversed(variables), reversed(sizes), strict=True):
        body = For(new, ZERO, extent, body, SERIAL, "", (), loop.loc)
    return with_body(fn, replace_at(path, body)), variables


def guarded(body: Stmt, condition: Expr) -> Stmt:
    """The body, with the blocks of this scope predicated."""
    here = set(scope_blocks(body))  # not nested blocks, which depend on no loop

    def guard(stmt: Stmt) -> Stmt:
        if stmt not in here:
            return stmt
        assert isinstance(stmt, Block)
        return replace(stmt, predicate=sym.logical_and(stmt.predicate, condition))

    return rewrite(body, guard)


def _is_factor(value: Any) -> bool:
    """Whether this is a positive integer of any kind, NumPy's too, but not a boolean."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= 1
    except TypeError:
        return False


def _resolve(fn: Function, loop: For, factors: Sequence[int | None]) -> list[Expr]:
    """The extents of the new loops, or a refusal."""
    name = f"%{loop.var.name}"
    if loop.kind != SERIAL:
        raise refuse(
            fn,
            "TW2103",
            f"cannot split loop {name}: it is {loop.kind} already",
            loop.var,
            help=f"split first, then make the parts {loop.kind}",
        )
    if len(factors) < 2:
        raise refuse(
            fn, "TW2104", f"cannot split loop {name} into {len(factors)}: give two factors or more"
        )
    if sum(factor is None for factor in factors) > 1:
        raise refuse(
            fn, "TW2104", f"cannot split loop {name}: only one factor may be None", loop.var
        )
    given: list[Any] = list(factors)
    bad = [f for f in given if f is not None and not _is_factor(f)]
    if bad:
        raise refuse(
            fn,
            "TW2104",
            f"cannot split loop {name}: factor {bad[0]} is not a positive integer",
            loop.var,
        )
    known = 1
    for factor in factors:
        known *= 1 if factor is None else int(factor)
    extent = loop.extent
    if any(factor is None for factor in factors):
        rest = sym.simplify(sym.ceildiv(extent, known))
        return [rest if factor is None else sym.const(int(factor)) for factor in factors]
    if not isinstance(extent, Const):
        raise refuse(
            fn,
            "TW2104",
            f"cannot split loop {name}: its extent {extent} is not known to be at most {known}",
            loop.var,
            help="let one factor be None",
        )
    if known < extent.value:
        shown = " * ".join(str(factor) for factor in factors)
        raise refuse(
            fn,
            "TW2104",
            f"cannot split loop {name}: {shown} = {known} does not cover extent {extent.value}",
            loop.var,
            help="let one factor be None, or use factors whose product is at least the extent",
        )
    return [sym.const(int(factor)) for factor in factors if factor is not None]
