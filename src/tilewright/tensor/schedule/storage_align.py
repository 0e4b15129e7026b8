"""storage_align: pad rows of an intermediate, against bank conflicts."""

from __future__ import annotations

from dataclasses import replace

from tilewright.tensor.ir import Function
from tilewright.tensor.schedule.analysis.memory import chosen
from tilewright.tensor.schedule.analysis.movable import check_intermediate
from tilewright.tensor.schedule.analysis.refusal import path_to_block, refuse
from tilewright.tensor.schedule.set_scope import with_buffer


def storage_align(
    fn: Function, name: str, index: int, axis: int, factor: int, offset: int
) -> Function:
    """
    Before: alloc B: f32[32, 32] in shared
    After:  alloc B: f32[32, 32] in shared align(0, 32, 1)

    The stride of `axis` becomes the least s, no smaller than it was, with s % factor == offset.
    """
    _, block = path_to_block(fn, name, "align a buffer")
    buffer = chosen(fn, block, block.writes, index, "write", "align a buffer").buffer
    check_intermediate(fn, buffer, name, f"align a buffer of @{name}")
    if not -buffer.rank <= axis < buffer.rank:
        raise refuse(
            fn,
            "TW2142",
            f"cannot align %{buffer.name}: it has {buffer.rank} dimensions, and no axis {axis}",
            name,
        )
    if factor < 1 or not 0 <= offset < factor:
        raise refuse(
            fn,
            "TW2142",
            f"cannot align %{buffer.name}: no number leaves remainder {offset} when divided by "
            f"{factor}",
            name,
            help="factor is at least 1, offset from 0 to factor - 1",
        )
    at = axis % buffer.rank
    kept = [entry for entry in buffer.align if entry[0] != at]
    align = tuple(sorted([*kept, (at, factor, offset)]))
    return fn if align == buffer.align else with_buffer(fn, buffer, replace(buffer, align=align))
