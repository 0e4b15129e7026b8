"""unroll: the body is repeated once per iteration."""

from __future__ import annotations

from dataclasses import replace

from tilewright.sym import Var
from tilewright.tensor.ir import UNROLL, Function
from tilewright.tensor.schedule.analysis.concurrency import check_constant_extent, check_serial
from tilewright.tensor.schedule.analysis.refusal import path_to_loop
from tilewright.tensor.schedule.analysis.tree import replace_at, with_body


def unroll(fn: Function, var: Var) -> Function:
    """
    Before: for i in 0..4
    After:  for i in unroll 0..4
    """
    path, loop = path_to_loop(fn, var, "unroll")
    check_serial(fn, loop, "unroll")
    check_constant_extent(fn, loop, "unroll")
    return with_body(fn, replace_at(path, replace(loop, kind=UNROLL)))
