"""compute_at: move a producer under a loop of its consumers, computing just what they need
there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright import sym
from tilewright.sym import Context, Expr, Var
from tilewright.tensor.ir import (
    REDUCE,
    SPATIAL,
    THREAD,
    THREAD_LEVEL,
    VTHREAD,
    Block,
    Buffer,
    For,
    Function,
    Range,
    Region,
    Seq,
)
from tilewright.tensor.regions import region_over, union
from tilewright.tensor.schedule.analysis.cover import Cover, check_total
from tilewright.tensor.schedule.analysis.intervals import bound_region
from tilewright.tensor.schedule.analysis.movable import (
    check_alone,
    check_inputs_late,
    check_inputs_there,
    check_intermediate,
    check_repeatable,
    own_axes,
    rivals,
)
from tilewright.tensor.schedule.analysis.refusal import path_to_block, path_to_loop, refuse
from tilewright.tensor.schedule.analysis.sites import (
    Scope,
    Site,
    inside_scope,
    is_under,
    known_variables,
    loops_below,
    put,
    put_beside,
    region_of,
    same_scope,
    scope_context,
    scope_of,
    speaks_only_of,
)
from tilewright.tensor.schedule.analysis.tree import (
    Path,
    insert_before,
    reads_of,
    with_body,
    writes_of,
)
from tilewright.tensor.scopes import Owner


def compute_at(fn: Function, name: str, var: Var) -> Function:
    """
    Before: for i { B[i] = A[i] }  for y { for x in 0..8 { C[y * 8 + x] = B[y * 8 + x] } }
    After:  for y { for ax0 in 0..8 { B[y * 8 + ax0] = A[y * 8 + ax0] }
                    for x in 0..8 { C[y * 8 + x] = B[y * 8 + x] } }     by compute_at(B, y)

    In every iteration the producer computes a box that contains all that its consumers read there.
    Boxes of different iterations may overlap: those elements are recomputed. For a `shared` buffer
    the box is the union over all threads of a block; every thread computes all of it until the new
    loops are bound to threads. `local` memory is private to a thread, as is `global` memory that is
    used under thread loops only. A reduction is refused where several threads would add to the same
    elements.
    """
    path, block = path_to_block(fn, name, "compute at a loop")
    loop_path, loop = path_to_loop(fn, var, "compute at the loop")
    check_same_scope(fn, block, path, loop, loop_path)
    scope = scope_of(path)
    site = scope.site(name)
    what = f"compute @{name} at %{var.name}"
    check_repeatable(fn, scope, block, what)
    for buffer in writes_of(block):
        check_intermediate(fn, buffer, name, what)
    axes = own_axes(block)
    if axes is None:
        raise refuse(
            fn,
            "TW2122",
            f"cannot {what}: it does not write at its spatial iterators, one per dimension",
            name,
            help="the box to compute cannot be determined from the box that is read",
        )
    readers = _readers(fn, scope, block, loop)
    check_inputs_late(fn, scope, block, site, readers[0].order, loop_path, what)
    _check_inputs_early(fn, scope, block, readers[0], loop, what)
    check_alone(fn, scope, block, loop_path, what)
    around = tuple([stmt for stmt in inside_scope(loop_path) if isinstance(stmt, For)])
    ranges = _needed(fn, scope, block, axes, readers, loop, around, what)
    moved, cover = _moved(fn, scope, block, ranges, around)
    check_inputs_there(fn, scope, moved, cover.loops, loop_path, path, what)
    body = put(path, None)
    assert body is not None
    return put_beside(
        with_body(fn, body), var, readers[0].block, cover.around_stmt(moved), insert_before
    )


def check_same_scope(fn: Function, block: Block, path: Path, loop: For, loop_path: Path) -> None:
    if not same_scope(path, loop_path):
        raise refuse(
            fn,
            "TW2124",
            f"cannot compute @{block.name} at %{loop.var.name}: they are not inside the same block",
            loop.var,
        )


def _readers(fn: Function, scope: Scope, block: Block, loop: For) -> list[Site]:
    made = writes_of(block)
    readers = [
        site
        for site in scope.sites
        if site.block is not block and any(buffer in made for buffer in reads_of(site.block))
    ]
    if not readers:
        raise refuse(
            fn,
            "TW2123",
            f"cannot compute @{block.name} at %{loop.var.name}: nothing reads its results",
            block.name,
        )
    for reader in readers:
        if not is_under(reader.path, loop):
            raise refuse(
                fn,
                "TW2123",
                f"cannot compute @{block.name} at %{loop.var.name}: @{reader.block.name}, "
                "which reads its results, is not under that loop",
                reader.block.name,
                help="choose a loop around all consumers",
            )
    return readers


def _check_inputs_early(
    fn: Function, scope: Scope, block: Block, first: Site, loop: For, what: str
) -> None:
    """The block's inputs are not computed next to its first consumer, inside of the statement that
    the block is to be placed before."""
    below = first.path[next(at for at, s in enumerate(first.path) if s is loop) + 1 :]
    anchor = below[1] if isinstance(below[0], Seq) else below[0]
    for buffer in reads_of(block):
        for writer in scope.writers(buffer, but=block):
            if is_under(writer.path, anchor):
                raise refuse(
                    fn,
                    "TW2125",
                    f"cannot {what}: @{writer.block.name}, which writes %{buffer.name}, would come "
                    "after it",
                    writer.block.name,
                    help="choose a loop further inside",
                )


# --------------------------------------------------------------------------- the box


def _needed(
    fn: Function,
    scope: Scope,
    block: Block,
    axes: dict[int, Var],
    readers: Sequence[Site],
    loop: For,
    around: Sequence[For],
    what: str,
) -> dict[Var, Range]:
    """Spatial iterator -> the range of it that one iteration of `loop` needs."""
    shared = _threads_sharing(fn, scope, block, around, what)
    ctx = scope_context(fn, scope, [outer for outer in around if outer not in shared])
    known = known_variables(fn, scope, [outer for outer in around if outer not in shared])
    needed: dict[Var, Range] = {}
    for buffer in writes_of(block):
        box: Region | None = None
        for reader in readers:
            if buffer not in reads_of(reader.block):
                continue
            region = bound_region(reader.block, region_of(reader.block.reads, buffer))
            running = {
                each.var: (each.start, each.stop)
                for each in (*shared, *loops_below(reader.path, loop))
            }
            touched = _spoken(region_over(region, running, ctx), known)
            box = touched if box is None else union(box, touched, ctx)
        if box is None:
            continue
        for axis, iterator in axes.items():
            r = box.ranges[axis]
            if iterator in needed:  # several outputs: the union of what they need
                r = _both(needed[iterator], r, buffer.shape[axis], ctx)
            needed[iterator] = r
    return needed


def _spoken(region: Region, known: set[Var]) -> Region:
    """The region, with dimensions that depend on unknown variables widened to all."""
    ranges = [
        r
        if speaks_only_of(r.start, known) and speaks_only_of(r.extent, known)
        else Range(sym.ZERO, dim)
        for r, dim in zip(region.ranges, region.buffer.shape, strict=True)
    ]
    return Region(region.buffer, tuple(ranges))


def _both(a: Range, b: Range, dim: Expr, ctx: Context) -> Range:
    line = Buffer("line", (dim,), sym.ZERO.dtype)
    return union(Region(line, (a,)), Region(line, (b,)), ctx).ranges[0]


def _threads_sharing(
    fn: Function, scope: Scope, block: Block, around: Sequence[For], what: str
) -> list[For]:
    """The enclosing thread loops that share one `shared` buffer."""
    shared = [buffer for buffer in writes_of(block) if buffer.memory.owner is Owner.BLOCK]
    if not shared:
        return []
    if any(isinstance(stmt, For) and stmt.kind == THREAD for stmt in scope.prefix):
        assert scope.holder is not None
        raise refuse(
            fn,
            "TW2129",
            f"cannot {what}: threads around @{scope.holder.name} share "
            f"%{shared[0].name}, and what they need together cannot be determined inside of it",
            block.name,
        )
    threads = [each for each in around if each.kind == VTHREAD or each.level == THREAD_LEVEL]
    if threads and block.init is not None:
        raise rivals(fn, threads[0], shared[0], shared[0].memory, what)
    return threads


# --------------------------------------------------------------------------- building


def _moved(
    fn: Function,
    scope: Scope,
    block: Block,
    ranges: dict[Var, Range],
    around: Sequence[For],
) -> tuple[Block, Cover]:
    """The block at its new place, and the loops over the box it computes there."""
    ctx = scope_context(fn, scope, around)
    cover = Cover(ctx, {each.var for each in around})
    values: dict[Var, Expr] = {}
    for kind in (SPATIAL, REDUCE):
        for it in block.iters:
            if it.kind != kind:
                continue
            if kind == SPATIAL:
                cover.over(ranges[it.var], it.extent)
            else:
                cover.all_of(it.extent)
            values[it.var] = cover.values[-1]
    check_total(fn, cover, block.name, f"compute @{block.name} at %{around[-1].var.name}")
    bindings = tuple([values[it.var] for it in block.iters])
    return replace(block, bindings=bindings, predicate=cover.predicate), cover
