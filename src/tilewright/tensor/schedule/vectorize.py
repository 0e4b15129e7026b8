"""vectorize: map iterations to vector lanes."""

from __future__ import annotations

from dataclasses import replace

from tilewright.sym import Var
from tilewright.tensor.ir import VECTOR, Function
from tilewright.tensor.schedule.analysis.concurrency import (
    check_concurrent,
    check_constant_extent,
    check_nesting,
    check_serial,
)
from tilewright.tensor.schedule.analysis.refusal import path_to_loop
from tilewright.tensor.schedule.analysis.tree import replace_at, with_body


def vectorize(fn: Function, var: Var) -> Function:
    """
    Before: for i in 0..16
    After:  for i in vector 0..16
    """
    path, loop = path_to_loop(fn, var, "vectorize")
    check_serial(fn, loop, "vectorize")
    check_constant_extent(fn, loop, "vectorize")
    check_concurrent(fn, path, loop, "vectorize")
    made = replace(loop, kind=VECTOR)
    check_nesting(fn, path, made, "vectorize")
    return with_body(fn, replace_at(path, made))
