"""parallel: run iterations on the threads of a pool."""

from __future__ import annotations

from dataclasses import replace

from tilewright.sym import Var
from tilewright.tensor.ir import PARALLEL, Function
from tilewright.tensor.schedule.analysis.concurrency import (
    check_concurrent,
    check_nesting,
    check_serial,
)
from tilewright.tensor.schedule.analysis.refusal import path_to_loop
from tilewright.tensor.schedule.analysis.tree import replace_at, with_body


def parallel(fn: Function, var: Var) -> Function:
    """
    Before: for i in 0..n
    After:  for i in parallel 0..n
    """
    path, loop = path_to_loop(fn, var, "parallelize")
    check_serial(fn, loop, "parallelize")
    check_concurrent(fn, path, loop, "parallelize")
    made = replace(loop, kind=PARALLEL)
    check_nesting(fn, path, made, "parallelize")
    return with_body(fn, replace_at(path, made))
