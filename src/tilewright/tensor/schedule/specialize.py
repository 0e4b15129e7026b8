"""specialize: the bulk copies of a loop go to a producer warp, the rest to consumer warpgroups."""

from __future__ import annotations

from dataclasses import replace

from tilewright.sym import Var
from tilewright.tensor.ir import SERIAL, Function, TensorCall, annotated
from tilewright.tensor.passes.specialize_roles import SPECIALIZE, TILE_SCOPE
from tilewright.tensor.schedule.analysis.refusal import path_to_loop, refuse
from tilewright.tensor.schedule.analysis.tree import replace_at, with_body
from tilewright.tensor.visit import walk

MOST_SLOTS = 16


def specialize(fn: Function, var: Var, slots: int, blocks: int = 0) -> Function:
    """
    Before: for k { call copy(...); call dot(...) }
    After:  for k [specialize = (slots, blocks)] { ... }

    Lowering makes a ring of `slots` tiles and its barriers. With `blocks`, that many thread blocks
    stay for all tiles of the kernel.
    """
    path, loop = path_to_loop(fn, var, "specialize")
    if not 2 <= slots <= MOST_SLOTS or blocks < 0:
        raise refuse(
            fn,
            "TW2180",
            f"cannot specialize loop %{var.name} with {slots} slots and {blocks} blocks",
            var,
            help=f"use 2 to {MOST_SLOTS} slots, and 0 blocks or more",
        )
    copies = [
        stmt
        for stmt in walk(loop)
        if isinstance(stmt, TensorCall) and stmt.regions[-1].buffer.scope == TILE_SCOPE
    ]
    if loop.kind != SERIAL or not copies:
        what = f"it is {loop.kind}" if loop.kind != SERIAL else "no bulk copy is inside"
        raise refuse(
            fn,
            "TW2180",
            f"cannot specialize loop %{var.name}: {what}",
            var,
            help="tensorize the copies of its tiles with a tma_load intrinsic first",
        )
    made = replace(loop, annotations=annotated(loop.annotations, SPECIALIZE, (slots, blocks)))
    return with_body(fn, replace_at(path, made))
