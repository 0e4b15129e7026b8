"""prefetch: memory is asked for what later iterations of a loop will read."""

from __future__ import annotations

from dataclasses import replace

from tilewright import sym
from tilewright.base.loc import Synthetic
from tilewright.sym import Var
from tilewright.tensor.calls import call
from tilewright.tensor.ir import SPATIAL, Address, Block, Eval, For, Function, Iter, seq
from tilewright.tensor.regions import region_over, substitute_region
from tilewright.tensor.schedule.analysis.boxes import bound_region
from tilewright.tensor.schedule.analysis.cover import Cover
from tilewright.tensor.schedule.analysis.memory import chosen
from tilewright.tensor.schedule.analysis.refusal import path_to_block, path_to_loop, refuse
from tilewright.tensor.schedule.analysis.sites import (
    inside_scope,
    is_under,
    loops_below,
    put,
    same_scope,
    scope_context,
    scope_of,
)
from tilewright.tensor.schedule.analysis.tree import fresh_block_name, loop_ranges, with_body

LINE_BYTES = 64  # of a cache line: one request fetches it whole


def prefetch(fn: Function, name: str, index: int, var: Var, offset: int) -> tuple[Function, str]:
    """
    Before: for i { for j in 0..64 { C[i, j] = A[i, j] } }
    After:  for i { for ax0 in 0..1 { for ax1 in 0..4 {
              block A_prefetch where i + 2 < n { prefetch(address(A[i + 2 + ax0, ax1 * 16])) } } }
              for j in 0..64 { C[i, j] = A[i, j] } }                  by prefetch(C, 0, i, 2)

    One request per line of memory; none for iterations beyond the last, or outside of the buffer.
    """
    path, block = path_to_block(fn, name, "prefetch")
    read = chosen(fn, block, block.reads, index, "read", "prefetch a read")
    buffer = read.buffer
    loop_path, loop = path_to_loop(fn, var, "prefetch at the loop")
    if not same_scope(path, loop_path) or not is_under(path, loop):
        raise refuse(
            fn,
            "TW2143",
            f"cannot prefetch for @{name} at loop %{var.name}: the loop is not around the block",
            var,
            help="pass one of get_loops(block)",
        )
    if offset < 1:
        raise refuse(
            fn,
            "TW2143",
            f"cannot prefetch at loop %{var.name}: {offset} iterations ahead is not ahead",
            var,
        )
    scope = scope_of(path)
    if any(is_under(writer.path, loop) for writer in scope.writers(buffer)):
        raise refuse(
            fn,
            "TW2143",
            f"cannot prefetch %{buffer.name} at loop %{var.name}: it is computed inside the loop, "
            "and later iterations' part is not there yet",
            name,
            help="only what is complete before the loop can be prefetched",
        )
    around = [stmt for stmt in inside_scope(loop_path) if isinstance(stmt, For)]
    ctx = scope_context(fn, scope, around)
    region = region_over(bound_region(block, read), loop_ranges(loops_below(path, loop)), ctx)
    ahead = sym.add(var, offset)
    region = substitute_region(region, {var: ahead})
    cover = Cover(ctx, {each.var for each in around})
    line = max(1, LINE_BYTES // max(1, buffer.dtype.bits // 8))
    for axis, (r, dim) in enumerate(zip(region.ranges, buffer.shape, strict=True)):
        cover.over(r, dim, step=line if axis == buffer.rank - 1 else 1)
    if not sym.prove(sym.lt(ahead, loop.stop), ctx):
        cover.conditions.insert(0, sym.lt(ahead, loop.stop))
    iters = tuple([Iter(sym.var(f"v{a}"), dim, SPATIAL) for a, dim in enumerate(buffer.shape)])
    address = Address(buffer, tuple([it.var for it in iters]))
    loc = Synthetic("prefetch")
    made = Block(
        fresh_block_name(fn, f"{buffer.name}_prefetch"),
        iters,
        tuple(cover.values),
        (),
        (),
        Eval(call("prefetch", address), loc),
        None,
        cover.predicate,
        (),
        loc,
    )
    body = seq(cover.around_stmt(made), loop.body)
    return with_body(fn, put(loop_path, replace(loop, body=body))), made.name
