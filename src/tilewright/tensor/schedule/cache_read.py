"""cache_read: let a consumer read a copy of its input in another memory scope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.sym import Context
from tilewright.tensor.ir import Buffer, For, Function, Region, Seq, seq
from tilewright.tensor.regions import clipped, region_over, whole
from tilewright.tensor.schedule.analysis.cover import cache_name, copy_nest
from tilewright.tensor.schedule.analysis.intervals import bound_region, contains, written_box
from tilewright.tensor.schedule.analysis.memory import check_memory, chosen
from tilewright.tensor.schedule.analysis.movable import check_seen, check_straight, fills, memory_at
from tilewright.tensor.schedule.analysis.refusal import path_to_block, refuse
from tilewright.tensor.schedule.analysis.sites import (
    Scope,
    Site,
    common_depth,
    loops_above,
    put,
    region_of,
    scope_context,
    scope_of,
    shared_loops,
)
from tilewright.tensor.schedule.analysis.tree import (
    Path,
    find_block,
    fresh_block_name,
    loop_ranges,
    with_body,
    writes_of,
)
from tilewright.tensor.visit import replace_buffers


def cache_read(
    fn: Function, name: str, index: int, memory: str, also: Sequence[str] = ()
) -> tuple[Function, str]:
    """
    Before: for i { C[i] = A[i] + 1 }
    After:  for ax0 { A_shared[ax0] = A[ax0] }  for i { C[i] = A_shared[i] + 1 }

    The copy block is named after the new buffer. It is placed as far out as possible: before the
    consumer's outermost loop, copying the whole buffer; but if the buffer is computed inside of a
    loop around the consumer, inside of that loop, copying what the consumer reads there. `also`
    names later consumers that read the copy too, if it is one of the whole buffer.
    """
    path, block = path_to_block(fn, name, "cache a read")
    memory = check_memory(fn, memory, name, "cache a read")
    buffer = chosen(fn, block, block.reads, index, "read", "cache a read").buffer
    if buffer in writes_of(block):
        raise refuse(
            fn,
            "TW2140",
            f"cannot cache a read of @{name}: it writes %{buffer.name} as well, and would not see "
            "its own results in a copy",
            name,
        )
    scope = scope_of(path)
    check_straight(fn, scope, f"cache a read of @{name}")
    place = _place(scope, scope.site(name), buffer)
    for writer in scope.writers(buffer):
        what = f"cache a read of @{name}"
        memory_now = memory_at(fn, scope, buffer, name, path[:place])
        check_seen(fn, buffer, memory_now, writer.path, path[: place + 1], what)
    loops = loops_above(scope, path, place)
    box = _box(fn, scope, scope.site(name), buffer, place)
    cache = replace(buffer, name=cache_name(buffer, memory), scope=memory, align=())
    copy_name = fresh_block_name(fn, cache.name)
    ctx = scope_context(fn, scope, loops)
    if also:
        _check_others(fn, scope, scope.site(name), box, also, ctx)
    exact = buffer not in fn.buffers
    nest = copy_nest(fn, name, copy_name, buffer, cache, box, ctx, loops, "cache_read", exact=exact)
    made = fn
    for each in (*also, name):
        where = find_block(made, each)
        assert where is not None
        made = with_body(made, put(where, replace_buffers(where[-1], {buffer: cache})))
    where = find_block(made, name)
    assert where is not None
    made = with_body(made, put(where[: place + 1], seq(nest, where[place])))
    return replace(made, allocs=(*made.allocs, cache)), copy_name


def _check_others(
    fn: Function, scope: Scope, site: Site, box: Region, also: Sequence[str], ctx: Context
) -> None:
    """Other consumers of the copy find in it all they read, unchanged, and are after it."""
    buffer, first = box.buffer, site.block.name
    is_whole = contains(box, whole(buffer), ctx)
    if not is_whole or any(each.order > site.order for each in scope.writers(buffer)):
        raise refuse(
            fn,
            "TW2140",
            f"cannot share the copy that @{first} reads: it has not all of %{buffer.name}, or a "
            "block writes there later",
            first,
        )
    later = [each.block.name for each in scope.readers(buffer) if each.order > site.order]
    for name in also:
        if name not in later:
            raise refuse(
                fn,
                "TW2140",
                f"cannot share the copy that @{first} reads with @{name}: it does not read "
                f"%{buffer.name} after @{first}",
                first,
            )


def top_place(scope: Scope, path: Path) -> int:
    """The position on a path of the statement directly inside of the scope."""
    top = len(scope.prefix)
    return top + 1 if isinstance(path[top], Seq) else top


def _place(scope: Scope, site: Site, buffer: Buffer) -> int:
    """The statement on the path to the consumer before which the copy is placed.

    No writer of the buffer is inside of that statement, so the copy stays valid while it runs.
    """
    shared = [common_depth(other.path, site.path) for other in scope.writers(buffer)]
    return max(shared, default=top_place(scope, site.path))


def _box(fn: Function, scope: Scope, site: Site, buffer: Buffer, place: int) -> Region:
    """The box to copy, all of whose elements are initialized."""
    above = loops_above(scope, site.path, place)
    if (
        not above
        and scope.holder is None
        and (buffer in fn.buffers or _fills(fn, scope, site, buffer))
    ):
        return whole(buffer)
    ctx = scope_context(fn, scope, above)
    below = [stmt for stmt in site.path[place:] if isinstance(stmt, For)]
    region = bound_region(site.block, region_of(site.block.reads, buffer))
    needed = region_over(region, loop_ranges(below), ctx)
    if buffer in fn.buffers or _is_computed(fn, scope, site, clipped(needed, ctx), ctx):
        return needed
    raise refuse(
        fn,
        "TW2128",
        f"cannot cache a read of @{site.block.name}: it is not certain that all of %{buffer.name} "
        "that would be copied has been computed",
        site.block.name,
    )


def _fills(fn: Function, scope: Scope, site: Site, buffer: Buffer) -> bool:
    """Whether an earlier nest, sharing no loop with the block, has written the whole buffer."""
    return any(
        writer.order < site.order
        and not shared_loops(writer.path, site.path)
        and fills(fn, scope, writer, buffer)
        for writer in scope.writers(buffer)
    )


def _is_computed(fn: Function, scope: Scope, site: Site, box: Region, ctx: Context) -> bool:
    """Whether all elements of a box are initialized when the block runs.

    `ctx` has the ranges of the loops around the block that the box depends on.
    """
    buffer = box.buffer
    writers = scope.writers(buffer)
    for writer in writers:
        if writer.order < site.order:
            shared = shared_loops(writer.path, site.path)
            rest = [loop for loop in writer.loops if loop not in shared]
            done = written_box(writer.block, region_of(writer.block.writes, buffer), rest, ctx)
            if done is not None and contains(done, box, ctx):
                return True
    if scope.holder is None:
        return _fills(fn, scope, site, buffer)
    declared = [region for region in scope.holder.reads if region.buffer is buffer]
    if writers or not declared or not contains(declared[0], box, ctx):
        return False
    outer = scope_of(scope.prefix)
    holder = outer.site(scope.holder.name)
    ctx = scope_context(fn, outer, holder.loops)
    region = clipped(bound_region(scope.holder, declared[0]), ctx)
    return _is_computed(fn, outer, holder, region, ctx)
