"""reverse_compute_at: move a consumer under a loop of its producers, right after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright import sym
from tilewright.sym import ONE, ZERO, Const, Context, Expr, FloorDiv, Var
from tilewright.tensor.ir import (
    REDUCE,
    SPATIAL,
    Block,
    Buffer,
    For,
    Function,
    Range,
    Region,
)
from tilewright.tensor.regions import clipped, region_over
from tilewright.tensor.schedule.analysis.cover import Cover, check_total
from tilewright.tensor.schedule.analysis.intervals import (
    bounding_box,
    contains,
)
from tilewright.tensor.schedule.analysis.movable import (
    check_alone,
    check_finished,
    check_inputs_there,
    check_outputs_there,
    check_repeatable,
    check_runs_once,
)
from tilewright.tensor.schedule.analysis.refusal import path_to_block, path_to_loop, refuse
from tilewright.tensor.schedule.analysis.sites import (
    Scope,
    Site,
    inside_scope,
    is_under,
    loops_below,
    put,
    put_beside,
    region_of,
    scope_context,
    scope_of,
)
from tilewright.tensor.schedule.analysis.tree import (
    insert_after,
    reads_of,
    with_body,
    writes_of,
)
from tilewright.tensor.schedule.compute_at import check_same_scope


def reverse_compute_at(fn: Function, name: str, var: Var) -> Function:
    """
    Before: for y { for x in 0..8 { B[y * 8 + x] = A[y * 8 + x] } }  for i { C[i] = B[i] }
    After:  for y { for x in 0..8 { B[y * 8 + x] = A[y * 8 + x] }
                    for ax0 in 0..8 { C[y * 8 + ax0] = B[y * 8 + ax0] } }
            by reverse_compute_at(C, y)

    In every iteration the consumer processes the box just produced, so each of its instances runs
    exactly once, only earlier. Iterators that do not index the produced buffer, and reduction
    iterators, get loops over their full extent.
    """
    path, block = path_to_block(fn, name, "compute at a loop")
    loop_path, loop = path_to_loop(fn, var, "compute at the loop")
    check_same_scope(fn, block, path, loop, loop_path)
    scope = scope_of(path)
    site = scope.site(name)
    what = f"compute @{name} at %{var.name}"
    check_repeatable(fn, scope, block, what)
    near = _producers_under(fn, scope, block, site, loop)
    _check_nothing_reads_early(fn, scope, block, site, what)
    check_alone(fn, scope, block, loop_path, what)
    around = tuple([stmt for stmt in inside_scope(loop_path) if isinstance(stmt, For)])
    for producer in near:
        check_finished(fn, producer, around, what)
    ctx = scope_context(fn, scope, around)
    ranges, certain = _domain(fn, scope, block, near, loop, ctx)
    moved, cover = _moved(fn, block, ranges, around, ctx)
    check_inputs_there(fn, scope, moved, cover.loops, loop_path, path, what, certain)
    check_outputs_there(fn, scope, moved, cover.loops, loop_path, what)
    body = put(path, None)
    assert body is not None
    return put_beside(
        with_body(fn, body), var, near[-1].block, cover.around_stmt(moved), insert_after
    )


# --------------------------------------------------------------------------- order


def _producers_under(fn: Function, scope: Scope, block: Block, site: Site, loop: For) -> list[Site]:
    """The producers under the loop, in program order; all others are finished before it."""
    read = reads_of(block)
    producers = [
        other
        for other in scope.sites
        if other.block is not block and any(buffer in read for buffer in writes_of(other.block))
    ]
    near = [other for other in producers if is_under(other.path, loop)]
    if not near:
        raise refuse(
            fn,
            "TW2130",
            f"cannot compute @{block.name} at %{loop.var.name}: nothing under that loop "
            "computes what it reads",
            loop.var,
            help="choose a loop around one of get_producers(block)",
        )
    for other in producers:
        if not is_under(other.path, loop) and other.order > near[0].order:
            raise refuse(
                fn,
                "TW2130",
                f"cannot compute @{block.name} at %{loop.var.name}: it also reads what "
                f"@{other.block.name} computes after that loop",
                other.block.name,
            )
    if site.order < near[-1].order:
        raise refuse(
            fn,
            "TW2130",
            f"cannot compute @{block.name} at %{loop.var.name}: @{near[-1].block.name} comes "
            "after it",
            near[-1].block.name,
        )
    return near


def _check_nothing_reads_early(
    fn: Function, scope: Scope, block: Block, site: Site, what: str
) -> None:
    """No block before the consumer reads what it will overwrite."""
    for buffer in writes_of(block):
        for other in scope.readers(buffer, but=block):
            if other.order < site.order:
                raise refuse(
                    fn,
                    "TW2125",
                    f"cannot {what}: @{other.block.name} before it reads "
                    f"%{buffer.name}, which it overwrites",
                    other.block.name,
                )


# --------------------------------------------------------------------------- the box


def _domain(
    fn: Function,
    scope: Scope,
    block: Block,
    near: Sequence[Site],
    loop: For,
    ctx: Context,
) -> tuple[dict[Var, Range], list[Buffer]]:
    """Iterator -> the range whose inputs one iteration of the loop produces; and the buffers of
    which it has certainly produced all that these instances read."""
    last = near[-1]
    buffer = next(b for b in writes_of(last.block) if b in reads_of(block))
    produced = _produced(fn, scope, block, last, buffer, loop, ctx)
    for other in near[:-1]:
        if buffer in writes_of(other.block):
            region = region_of(other.block.writes, buffer)
            twin = bounding_box(other.block, region, loops_below(other.path, loop), ctx)
            if twin is None or not (
                contains(twin, produced, ctx) and contains(produced, twin, ctx)
            ):
                raise refuse(
                    fn,
                    "TW2131",
                    f"cannot compute @{block.name} at %{loop.var.name}: @{other.block.name} "
                    f"and @{last.block.name} write different parts of %{buffer.name}",
                    last.block.name,
                )
    _check_all_produced(fn, scope, block, last, buffer, loop)
    ranges: dict[Var, Range] = {}
    by_var = {it.var: it for it in block.iters}
    is_certain = True
    for r, made, dim in zip(
        region_of(block.reads, buffer).ranges, produced.ranges, buffer.shape, strict=True
    ):
        if _is_all(made, dim, ctx):
            continue  # its inputs are complete
        used = [v for v in by_var if sym.uses_var(r.start, {v})]
        if not used:
            is_certain = False
            continue
        iterator = by_var[used[0]]
        at, together = _undivided(r.start)
        offset = sym.simplify(sym.sub(at, iterator.var))
        if len(used) > 1 or sym.uses_var(offset, by_var) or r.extent is not ONE:
            raise refuse(
                fn,
                "TW2132",
                f"cannot compute @{block.name} at %{loop.var.name}: it reads "
                f"%{buffer.name} at {_shown(r)}, not at one iterator plus a constant",
                block.name,
                help="which instances an iteration can run cannot be determined; try compute_at",
            )
        if iterator.kind == REDUCE or iterator.var in ranges:
            is_certain = False  # a full range, or another dimension restricts it
            continue
        dim = sym.simplify(sym.mul(dim, together))
        _check_all_read(fn, block, iterator.extent, offset, dim, buffer, loop, ctx)
        start = sym.simplify(sym.sub(sym.mul(made.start, together), offset), ctx)
        ranges[iterator.var] = Range(start, sym.simplify(sym.mul(made.extent, together)))
    return ranges, [buffer] if is_certain else []


def _undivided(index: Expr) -> tuple[Expr, int]:
    """The dividend and divisor of an index that is a quotient."""
    if isinstance(index, FloorDiv) and isinstance(index.b, Const) and int(index.b.value) > 0:
        return index.a, int(index.b.value)
    return index, 1


def _check_all_produced(
    fn: Function, scope: Scope, block: Block, producer: Site, buffer: Buffer, loop: For
) -> None:
    """Every element that the block reads is written in some iteration of the producer's loops."""
    ctx = scope_context(fn, scope, ())
    region = region_of(producer.block.writes, buffer)
    total = bounding_box(producer.block, region, producer.loops, ctx)
    domain = {it.var: (ZERO, it.extent) for it in block.iters}
    needed = clipped(region_over(region_of(block.reads, buffer), domain, ctx), ctx)
    if total is None or not contains(total, needed, ctx):
        raise refuse(
            fn,
            "TW2131",
            f"cannot compute @{block.name} at %{loop.var.name}: it is not certain that "
            f"@{producer.block.name} writes all of %{buffer.name} that it reads",
            producer.block.name,
        )


def _shown(r: Range) -> str:
    return f"{r.start}" if r.extent is ONE else f"{r.start} +: {r.extent}"


def _is_all(made: Range, dim: Expr, ctx: Context) -> bool:
    return sym.prove(sym.le(made.start, 0), ctx) and sym.prove(
        sym.le(dim, sym.add(made.start, made.extent)), ctx
    )


def _check_all_read(
    fn: Function,
    block: Block,
    extent: Expr,
    offset: Expr,
    dim: Expr,
    buffer: Buffer,
    loop: For,
    ctx: Context,
) -> None:
    """Each instance reads an element in bounds, so that there is an iteration to run it in."""
    first = sym.prove(sym.le(0, offset), ctx)
    if not first or not sym.prove(sym.le(sym.add(extent, offset), dim), ctx):
        raise refuse(
            fn,
            "TW2133",
            f"cannot compute @{block.name} at %{loop.var.name}: some of its instances read "
            f"no element of %{buffer.name}, and would never run",
            block.name,
            help="it pads what it reads; compute the producer at a loop of this block instead",
        )


def _produced(
    fn: Function,
    scope: Scope,
    block: Block,
    producer: Site,
    buffer: Buffer,
    loop: For,
    ctx: Context,
) -> Region:
    """A box that contains what the producer writes in one iteration, and in no other."""
    inner = loops_below(producer.path, loop)
    box = bounding_box(producer.block, region_of(producer.block.writes, buffer), inner, ctx)
    if box is None:
        raise refuse(
            fn,
            "TW2131",
            f"cannot compute @{block.name} at %{loop.var.name}: what @{producer.block.name} "
            "computes in one iteration is not a box of known size",
            producer.block.name,
            help="choose a loop further in or out; split loops before fusing them",
        )
    check_runs_once(fn, scope, producer, inner, block, f"compute @{block.name} at %{loop.var.name}")
    return box


# --------------------------------------------------------------------------- building


def _moved(
    fn: Function, block: Block, ranges: dict[Var, Range], around: Sequence[For], ctx: Context
) -> tuple[Block, Cover]:
    cover = Cover(ctx, {each.var for each in around}, exact=True)
    values: dict[Var, Expr] = {}
    for kind in (SPATIAL, REDUCE):
        for it in block.iters:
            if it.kind == kind:
                cover.over(ranges.get(it.var, Range(ZERO, it.extent)), it.extent)
                values[it.var] = cover.values[-1]
    check_total(fn, cover, block.name, f"compute @{block.name} at %{around[-1].var.name}")
    bindings = tuple([values[it.var] for it in block.iters])
    return replace(block, bindings=bindings, predicate=cover.predicate), cover
