"""cache_write: let a block write to another memory scope, with a block that copies the results
back."""

from __future__ import annotations

from dataclasses import replace

from tilewright.sym import TRUE, Context
from tilewright.tensor.ir import Buffer, For, Function, Region, seq
from tilewright.tensor.schedule.analysis.concurrency import check_still_concurrent
from tilewright.tensor.schedule.analysis.cover import cache_name, copy_nest
from tilewright.tensor.schedule.analysis.intervals import bounding_box
from tilewright.tensor.schedule.analysis.memory import check_memory, chosen
from tilewright.tensor.schedule.analysis.movable import check_repeatable, check_seen, memory_used_at
from tilewright.tensor.schedule.analysis.refusal import path_to_block, refuse
from tilewright.tensor.schedule.analysis.sites import (
    Site,
    common_depth,
    loops_above,
    put,
    region_of,
    scope_context,
    scope_of,
)
from tilewright.tensor.schedule.analysis.tree import find_block, fresh_block_name, with_body
from tilewright.tensor.schedule.cache_read import top_place
from tilewright.tensor.scopes import memory_of
from tilewright.tensor.visit import replace_buffers


def cache_write(fn: Function, name: str, index: int, memory: str) -> tuple[Function, str]:
    """
    Before: for i { C[i] = A[i] + 1 }
    After:  for i { C_local[i] = A[i] + 1 }  for ax0 { C[ax0] = C_local[ax0] }

    The copy block is named after the new buffer; consumers still read the old one. It is placed as
    far out as possible: after the block's outermost loop, or inside of the loops that it shares
    with a consumer.
    """
    path, block = path_to_block(fn, name, "cache a write")
    memory = check_memory(fn, memory, name, "cache a write")
    buffer = chosen(fn, block, block.writes, index, "write", "cache a write").buffer
    scope = scope_of(path)
    check_repeatable(fn, scope, block, f"cache a write of @{name}")
    site = scope.site(name)
    shared = [common_depth(other.path, path) for other in scope.readers(buffer, but=block)]
    place = max(shared, default=top_place(scope, path))
    own = memory_used_at(memory_of(memory), [path[:place], path])
    check_seen(fn, buffer, own, path, path[:place], f"cache a write of @{name}")
    loops = loops_above(scope, path, place)
    ctx = scope_context(fn, scope, loops)
    box = _box(fn, site, buffer, place, ctx)
    cache = replace(buffer, name=cache_name(buffer, memory), scope=memory, align=())
    copy_name = fresh_block_name(fn, cache.name)
    nest = copy_nest(fn, name, copy_name, cache, buffer, box, ctx, loops, "cache_write", exact=True)
    made = with_body(fn, put(path, replace_buffers(block, {buffer: cache})))
    where = find_block(made, name)
    assert where is not None
    made = with_body(made, put(where[: place + 1], seq(where[place], nest)))
    made = replace(made, allocs=(*made.allocs, cache))
    if block.predicate is not TRUE:  # the copy would run where the block does not
        copied = find_block(made, copy_name)
        assert copied is not None
        check_still_concurrent(fn, made, copied, f"cache a write of @{name} under")
    return made, copy_name


def _box(fn: Function, site: Site, buffer: Buffer, place: int, ctx: Context) -> Region:
    """Exactly the elements that the block has written where the copy runs."""
    block = site.block
    below = [stmt for stmt in site.path[place:] if isinstance(stmt, For)]
    box = bounding_box(block, region_of(block.writes, buffer), below, ctx)
    if box is None:
        raise refuse(
            fn,
            "TW2131",
            f"cannot cache a write of @{block.name}: what it has written of %{buffer.name} before "
            "the copy is not a box of known size",
            block.name,
        )
    return box
