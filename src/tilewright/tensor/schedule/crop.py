"""crop: restrict a block to the results that others read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright import sym
from tilewright.sym import TRUE, ZERO, Context, Expr, Var
from tilewright.tensor.ir import (
    SERIAL,
    Block,
    Buffer,
    For,
    Function,
    If,
    Let,
    Load,
    Region,
    Stmt,
)
from tilewright.tensor.regions import region_over, stop_of
from tilewright.tensor.schedule.analysis.intervals import bound_region
from tilewright.tensor.schedule.analysis.movable import own_axes
from tilewright.tensor.schedule.analysis.nests import perfect_chain
from tilewright.tensor.schedule.analysis.refusal import path_to_block, refuse
from tilewright.tensor.schedule.analysis.sites import (
    Scope,
    Site,
    region_of,
    scope_context,
    scope_of,
)
from tilewright.tensor.schedule.analysis.tree import (
    Path,
    loop_ranges,
    loops_on,
    nest,
    replace_at,
    with_body,
    writes_of,
)
from tilewright.tensor.visit import replace_buffers, walk


def crop(fn: Function, name: str) -> Function:
    """
    Before: for i in 0..64 { B[i] = A[i] + 1 }  for j in 0..5 { C[j] = B[j] * 2 }
    After:  for i in 0..5 { B[i] = A[i] + 1 }   for j in 0..5 { C[j] = B[j] * 2 }

    The buffer shrinks to what is read of it. The block must have its own, unmoved loops and be the
    only writer of its results.
    """
    path, block = path_to_block(fn, name, "crop")
    scope, loops, made = scope_of(path), loops_on(path), list(writes_of(block))
    axes = own_axes(block)
    is_own = (
        tuple(loop.var for loop in loops) == block.bindings
        and all(loop.kind == SERIAL and loop.start is ZERO for loop in loops)
        and bool(loops)
        and perfect_chain(loops[0])[1] is block
    )
    alone = all(len(scope.writers(buffer)) == 1 and buffer in fn.allocs for buffer in made)
    if scope.holder is not None or axes is None or not is_own or not alone:
        raise refuse(
            fn,
            "TW2181",
            f"cannot crop @{name}: it is not a block with loops of its own alone, one per "
            "iterator, that stores to places of its own in memory of the function",
            name,
            help="crop before loops are split or moved",
        )
    if block.predicate is not TRUE:
        raise refuse(fn, "TW2181", f"cannot crop @{name}: it is computed under a condition", name)
    if any(_loads(expr, made) for expr in _outside_blocks(fn.body)):
        raise refuse(
            fn, "TW2181", f"cannot crop @{name}: loops or conditions read what it stores", name
        )
    ctx = scope_context(fn, scope, ())
    old = {it.var: it.extent for it in block.iters}
    limits: dict[Var, Expr] = {}
    for axis, var in axes.items():
        stop = _read_until(scope, block, axis, ctx)
        if stop is None or any(isinstance(node, Load) for node in sym.walk(stop)):
            continue
        if sym.prove(sym.lt(stop, old[var]), ctx) and sym.prove(sym.le(0, stop), ctx):
            limits[var] = stop
    return _cropped(fn, path, block, axes, limits) if limits else fn


def _outside_blocks(stmt: Stmt) -> Iterator[Expr]:
    """Expressions outside of blocks that control which blocks run, and how often."""
    match stmt:
        case Block():
            yield from (stmt.predicate, *stmt.bindings)
            if not any(isinstance(inner, Block) for inner in walk(stmt.body)):
                return
        case For():
            yield from (stmt.start, stmt.stop)
        case If():
            yield stmt.cond
        case Let():
            yield stmt.value
    for child in stmt.children():
        yield from _outside_blocks(child)


def _loads(expr: Expr, buffers: Sequence[Buffer]) -> bool:
    return any(isinstance(node, Load) and node.buffer in buffers for node in sym.walk(expr))


def _read_until(scope: Scope, block: Block, axis: int, ctx: Context) -> Expr | None:
    """The upper bound of what others read along a dimension; None if unknown."""
    stops = [
        stop_of(region_over(_read(reader, buffer), loop_ranges(reader.loops), ctx).ranges[axis])
        for buffer in writes_of(block)
        for reader in scope.readers(buffer, but=block)
    ]
    for stop in stops:
        if all(sym.prove(sym.le(other, stop), ctx) for other in stops):
            return sym.simplify(stop, ctx)
    return None


def _read(reader: Site, buffer: Buffer) -> Region:
    return bound_region(reader.block, region_of(reader.block.reads, buffer))


def _cropped(
    fn: Function, path: Path, block: Block, axes: dict[int, Var], limits: dict[Var, Expr]
) -> Function:
    iters = tuple([replace(it, extent=limits.get(it.var, it.extent)) for it in block.iters])
    smaller: dict[Buffer, Buffer] = {}
    for buffer in writes_of(block):
        shape = list(buffer.shape)
        for axis, var in axes.items():
            shape[axis] = limits.get(var, shape[axis])
        smaller[buffer] = replace(buffer, shape=tuple(shape))
    loops = [replace(loop, stop=it.extent) for loop, it in zip(loops_on(path), iters, strict=True)]
    body = replace_at(
        path[: path.index(loops_on(path)[0]) + 1], nest(loops, replace(block, iters=iters))
    )
    assert body is not None
    allocs = tuple([smaller.get(buffer, buffer) for buffer in fn.allocs])
    return replace(with_body(fn, replace_buffers(body, smaller)), allocs=allocs)
