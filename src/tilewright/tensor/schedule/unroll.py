"""unroll: repeat the body once per iteration."""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.sym import Const, Var
from tilewright.tensor.ir import UNROLL, For, Function
from tilewright.tensor.schedule.analysis.concurrency import check_constant_extent, check_serial
from tilewright.tensor.schedule.analysis.refusal import path_to_loop
from tilewright.tensor.schedule.analysis.tree import loop_context, loops_on, replace_at, with_body
from tilewright.tensor.schedule.split import guarded

MAX_COPIES = 16  # of a predicated body, for a dynamic extent


def unroll(fn: Function, var: Var) -> Function:
    """
    Before: for i in 0..4                 for i in 0..n, where n is at most 4
    After:  for i in unroll 0..4          for i in unroll 0..4 where i < n
    """
    path, loop = path_to_loop(fn, var, "unroll")
    check_serial(fn, loop, "unroll")
    around = [each for each in loops_on(path) if each is not loop]  # the loop itself may be empty
    loop = _bounded(loop, loop_context(fn, around))
    check_constant_extent(fn, loop, "unroll")
    return with_body(fn, replace_at(path, replace(loop, kind=UNROLL)))


def _bounded(loop: For, ctx: sym.Context) -> For:
    """The loop with its extent raised to its static bound, if that is small."""
    if isinstance(loop.extent, Const):
        return loop
    most = sym.bounds(loop.extent, ctx)
    if most.upper is None or not 0 < most.upper <= MAX_COPIES:
        return loop
    body = loop.body
    if most.lower != most.upper:
        body = guarded(body, sym.lt(loop.var, loop.stop))
    return replace(loop, stop=loop.start + most.upper, body=body)
