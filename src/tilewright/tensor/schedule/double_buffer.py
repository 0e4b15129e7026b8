"""double_buffer: fill a buffer for the next iteration while this one uses it."""

from __future__ import annotations

from dataclasses import replace

from tilewright.tensor.ir import SERIAL, Function, annotated, annotation
from tilewright.tensor.schedule.analysis.movable import check_intermediate
from tilewright.tensor.schedule.analysis.refusal import path_to_block, refuse
from tilewright.tensor.schedule.analysis.sites import common_depth, loops_above, put, scope_of
from tilewright.tensor.schedule.analysis.tree import ordered_vars, with_body, writes_of
from tilewright.tensor.schedule.software_pipeline import STAGE

KEY = "double_buffer_scope"


def double_buffer(fn: Function, name: str) -> Function:
    """
    Before: block A_shared { A_shared[...] = A[...] }
    After:  block A_shared { annotate double_buffer_scope = 0  A_shared[...] = A[...] }

    Lowering gives the buffer two slots, and runs the block one iteration ahead in the innermost
    loop around all uses.
    """
    path, block = path_to_block(fn, name, "double-buffer")
    made = list(writes_of(block))
    if len(made) != 1:
        raise refuse(
            fn,
            "TW2144",
            f"cannot double-buffer @{name}: it writes {len(made)} buffers, not one",
            name,
        )
    check_intermediate(fn, made[0], name, f"double-buffer @{name}")
    scope = scope_of(path)
    others = [*scope.readers(made[0], but=block), *scope.writers(made[0], but=block)]
    depth = min([common_depth(site.path, path) for site in others], default=0)
    around = loops_above(scope, path, depth)
    if not others or not around:
        raise refuse(
            fn,
            "TW2144",
            f"cannot double-buffer @{name}: no loop is around it and all who use %{made[0].name}",
            name,
            help="compute_at moves it under a loop of its consumers",
        )
    loop = around[-1]
    if loop.kind != SERIAL or annotation(loop, STAGE) is not None:
        what = "pipelined already" if loop.kind == SERIAL else loop.kind
        raise refuse(
            fn,
            "TW2144",
            f"cannot double-buffer @{name}: loop %{loop.var.name} around it is {what}",
            loop.var,
        )
    if loop.var in ordered_vars(block):
        raise refuse(
            fn,
            "TW2144",
            f"cannot double-buffer @{name}: it carries values along %{loop.var.name} from one "
            "iteration to the next",
            loop.var,
        )
    marked = replace(block, annotations=annotated(block.annotations, KEY, 0))
    return with_body(fn, put(path, marked))
