"""specialize: assign a loop's bulk copies to a producer warp, the rest to consumer warpgroups."""

from __future__ import annotations

from dataclasses import replace

from tilewright.sym import Var
from tilewright.tensor.ir import SERIAL, Function, TensorCall, annotated
from tilewright.tensor.roles import SPECIALIZE, TILE_SCOPE
from tilewright.tensor.schedule.analysis.refusal import path_to_loop, refuse
from tilewright.tensor.schedule.analysis.tree import replace_at, with_body
from tilewright.tensor.visit import walk

MAX_SLOTS = 16
MAX_RESIDENT = 4


def specialize(
    fn: Function,
    var: Var,
    slots: int,
    blocks: int = 0,
    beside: int = 1,
    resident: int = 1,
    stream_k: bool = False,
    pingpong: bool = False,
) -> Function:
    """
    Before: for k { call copy(...); call dot(...) }
    After:  for k [specialize = (slots, blocks, beside, resident, stream_k, pingpong)] { ... }

    Lowering creates a ring of `slots` tiles and its barriers. With `blocks`, that many thread
    blocks are persistent and run all tiles of the kernel; then `beside` slots for each tile that is
    copied outside of the loop let the next one load while this one is in use. The registers of a
    multiprocessor are divided among `resident` blocks. Persistent blocks may split the steps of all
    tiles evenly (`stream_k`), so that some tiles are summed by several blocks. With `pingpong`, two
    warpgroups of a persistent block alternate: one stores the results of its tile while the other
    multiplies.
    """
    path, loop = path_to_loop(fn, var, "specialize")
    fits = 2 <= slots <= MAX_SLOTS and 1 <= beside <= MAX_SLOTS
    fits &= bool(blocks) or not (stream_k or pingpong)
    fits &= not (stream_k and pingpong)
    if not fits or blocks < 0 or not 1 <= resident <= MAX_RESIDENT:
        raise refuse(
            fn,
            "TW2180",
            f"cannot specialize loop %{var.name} with {slots} slots, {blocks} blocks, {beside} "
            f"tiles beside it and {resident} blocks at once",
            var,
            help=f"use 2 to {MAX_SLOTS} slots, 0 blocks or more, 1 to {MAX_SLOTS} tiles, and 1 "
            f"to {MAX_RESIDENT} blocks at once; blocks that share steps, or whose warpgroups take "
            f"turns, stay; they do not do both",
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
    usual = (0, 0, 1, 1, 0, 0)
    plan: tuple[int, ...] = (slots, blocks, beside, resident, int(stream_k), int(pingpong))
    while len(plan) > 2 and plan[-1] == usual[len(plan) - 1]:
        plan = plan[:-1]
    made = replace(loop, annotations=annotated(loop.annotations, SPECIALIZE, plan))
    return with_body(fn, replace_at(path, made))
