"""tensorize: replace a computation by a call of a tensor intrinsic with the same behaviour."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.sym import TRUE, Expr, Var
from tilewright.tensor.intrin import COMPUTE, RESET, UPDATE, TensorIntrin
from tilewright.tensor.ir import (
    REDUCE,
    Block,
    For,
    Function,
    If,
    Iter,
    Region,
    Seq,
    Stmt,
    Store,
    TensorCall,
    Update,
)
from tilewright.tensor.regions import access_regions, stop_of
from tilewright.tensor.schedule.analysis.matching import (
    EXTENTS,
    INDEX,
    OPERATION,
    START,
    Match,
    Mismatch,
    match_block,
    match_init,
)
from tilewright.tensor.schedule.analysis.nests import perfect_chain
from tilewright.tensor.schedule.analysis.refusal import path_to_block, path_to_loop, refuse
from tilewright.tensor.schedule.analysis.tree import loop_ranges, replace_at, with_body
from tilewright.tensor.schedule.blockize import divided
from tilewright.tensor.visit import substitute


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls that replace the computation."""

    body: Stmt
    init: Stmt | None
    tiles: tuple[Region, ...]


def tensorize(fn: Function, at: Var | str, intrin: TensorIntrin) -> Function:
    """
    Before: for io { for ii in 0..8 { block C(io * 8 + ii) { C[...] = A[...] + B[...] } } }
    After:  for io { block C(io) {
              call add8.compute(A[io * 8 +: 8], B[io * 8 +: 8], C[io * 8 +: 8]) } }

    A reduction that continues outside becomes init { call X.reset(...) } call X.update(...). A copy
    of select(cond, A[...], 3), where the condition is uniform in the tile, becomes
    if cond { call X.compute(...) } else { C[...] = 3 }: a padded copy. A sum of
    select(cond, A[...] * B[...], 0) becomes if cond { call X.update(...) }.
    `at` is the outermost loop of the tile, or a block made by `blockize`.
    """
    declared = _declared_block(fn, intrin)
    if isinstance(at, Var):
        _, loop = path_to_loop(fn, at, "tensorize")
        _, inner = perfect_chain(loop)
        new_fn, block_name, _, _ = divided(fn, at)
        assert isinstance(inner, Block)
        kept_name = inner.name
    else:
        path_to_block(fn, at, "tensorize")
        new_fn, block_name, kept_name = fn, at, at
    path, block = path_to_block(new_fn, block_name, "tensorize")
    try:
        calls = _matched(intrin, declared, block)
        _check_inside(calls.tiles, block)
    except Mismatch as mismatch:
        raise refuse(
            fn,
            mismatch.code,
            f"cannot tensorize @{kept_name} with {intrin.reference}: {mismatch}",
            at if isinstance(at, Var) else kept_name,
            help="the intrinsic is:\n" + str(intrin.behavior).rstrip(),
        ) from None
    reads, writes = access_regions(calls.body, calls.init, block.iters)
    made = replace(
        block, name=kept_name, reads=reads, writes=writes, body=calls.body, init=calls.init
    )
    return with_body(new_fn, replace_at(path, made))


def _declared_block(fn: Function, intrin: TensorIntrin) -> Block:
    """The single block of an intrinsic's declared behaviour."""
    body = intrin.behavior.body
    block = perfect_chain(body)[1] if isinstance(body, For) else body
    if (
        not isinstance(block, Block)
        or not isinstance(block.body, (Store, Update))
        or block.predicate is not TRUE
        or not all(isinstance(it.extent, sym.Const) for it in block.iters)
    ):
        raise refuse(
            fn,
            "TW2166",
            f"cannot tensorize with {intrin.reference}: it is not declared as one block over a "
            "tile of constant extents",
            help="declare it by a single te.compute over constant shapes",
        )
    return block


def _tile_of(stmt: Stmt) -> Block:
    """The block inside of a blockized nest, with iterators relative to the tile's origin."""
    chain, inner = perfect_chain(stmt) if isinstance(stmt, For) else ([], stmt)
    if not isinstance(inner, Block):
        raise Mismatch(EXTENTS, "it is not a nest of loops around one block; blockize it first")
    if inner.predicate is not TRUE:
        raise Mismatch(EXTENTS, f"its tile is not full: it has the condition {inner.predicate}")
    inside = loop_ranges(chain)
    corner: dict[Var, Expr] = {}
    iters: list[Iter] = []
    for it, binding in zip(inner.iters, inner.bindings, strict=True):
        parts = sym.split_terms(binding, inside)
        bounds = None if parts is None else sym.symbolic_bounds(parts[1], inside)
        if parts is None or bounds is None or bounds[0] is not sym.ZERO:
            raise Mismatch(EXTENTS, f"%{it.var.name} = {binding} does not divide into tiles")
        if bounds[1] is sym.ZERO:
            corner[it.var] = parts[0]
            continue
        moved = Iter(sym.var(it.var.name), sym.simplify(bounds[1] + 1), it.kind)
        corner[it.var] = sym.add(parts[0], moved.var)
        iters.append(moved)
    body = substitute(inner.body, corner)
    init = None if inner.init is None else substitute(inner.init, corner)
    return Block(inner.name, tuple(iters), (), (), (), body, init, TRUE, (), inner.loc)


def _call(
    intrin: TensorIntrin, phase: str, regions: tuple[Region, ...], block: Block
) -> TensorCall:
    return TensorCall(intrin.name, phase, regions, intrin.arguments, block.loc)


def _matched(intrin: TensorIntrin, declared: Block, block: Block) -> _Calls:
    """The calls that replace the block, or `Mismatch`."""
    tile = _tile_of(block.body)
    if isinstance(declared.body, Update) and isinstance(tile.body, (Store, Seq)):
        return _reset(intrin, declared, block, tile)
    if isinstance(declared.body, Store) and _is_padded(tile):
        return _padded(intrin, declared, block, tile)
    cond, tile = _without_condition(block, tile)
    match = match_block(declared, tile)
    regions = tuple([match.tiles[buffer] for buffer in intrin.behavior.buffers])
    written = {match.tiles[buffer].buffer for buffer in intrin.outputs}
    for buffer in intrin.inputs:
        if match.tiles[buffer].buffer in written:
            name = match.tiles[buffer].buffer.name
            raise Mismatch(INDEX, f"it reads %{name} while it writes it")
    if not isinstance(declared.body, Update):
        return _Calls(_call(intrin, COMPUTE, regions, block), None, regions)
    goes_on = any(it.kind == REDUCE for it in block.iters)
    if tile.init is not None:
        _check_init(declared, tile.init, tile, match)
        if goes_on:
            raise Mismatch(START, "every tile starts anew while a reduction goes on around it")
        if cond is not TRUE:
            raise Mismatch(START, f"a tile starts anew only if {cond}; decompose_reduction first")
        return _Calls(_call(intrin, COMPUTE, regions, block), None, regions)
    update: Stmt = _call(intrin, UPDATE, regions, block)
    if cond is not TRUE:
        update = If(cond, update, None, block.loc)
    if block.init is None:
        return _Calls(update, None, regions)
    start = _tile_of(block.init)
    _check_init(declared, start.body, start, match)
    reset = _call(intrin, RESET, _outputs(intrin, match), block)
    return _Calls(update, reset, regions)


def _without_condition(block: Block, tile: Block) -> tuple[Expr, Block]:
    """The condition under which a tile of a reduction adds anything, and the tile without it."""
    update = tile.body
    if not isinstance(update, Update) or len(update.values) != 1:
        return TRUE, tile
    (value,), inside = update.values, {it.var for it in tile.iters}
    if not isinstance(value, sym.Select) or value.b is not update.reducer.identity[0]:
        return TRUE, tile
    ctx = sym.EMPTY.bind_all({it.var: (sym.ZERO, it.extent) for it in (*block.iters, *tile.iters)})
    cond = sym.simplify(value.cond, ctx)
    if sym.uses_var(cond, inside):
        return TRUE, tile
    return cond, replace(tile, body=replace(update, values=(value.a,)))


def _is_padded(tile: Block) -> bool:
    """Whether the tile as a whole is either computed or set to a constant."""
    value = tile.body.value if isinstance(tile.body, Store) else None
    inside = {it.var for it in tile.iters}
    return (
        isinstance(value, sym.Select)
        and isinstance(value.b, sym.Const)
        and not sym.uses_var(value.cond, inside)
    )


def _padded(intrin: TensorIntrin, declared: Block, block: Block, tile: Block) -> _Calls:
    store = tile.body
    assert isinstance(store, Store)
    assert isinstance(store.value, sym.Select)
    choice = store.value
    match = match_block(declared, replace(tile, body=replace(store, value=choice.a)))
    regions = tuple([match.tiles[buffer] for buffer in intrin.behavior.buffers])
    fill: Stmt = replace(store, value=choice.b)
    for it in reversed(tile.iters):
        fill = For(it.var, sym.ZERO, it.extent, fill)
    call = _call(intrin, COMPUTE, regions, block)
    return _Calls(If(choice.cond, call, fill, block.loc), None, regions)


def _reset(intrin: TensorIntrin, declared: Block, block: Block, tile: Block) -> _Calls:
    if declared.init is None:
        raise Mismatch(OPERATION, "it is a plain store, the intrinsic a reduction without init")
    stores = tile.body.stmts if isinstance(tile.body, Seq) else (tile.body,)
    if not all(isinstance(each, Store) and isinstance(each.value, sym.Const) for each in stores):
        raise Mismatch(OPERATION, "it is a plain store, the intrinsic a reduction")
    match = match_init(declared, tile.body, tile)
    regions = _outputs(intrin, match)
    return _Calls(_call(intrin, RESET, regions, block), None, regions)


def _outputs(intrin: TensorIntrin, match: Match) -> tuple[Region, ...]:
    return tuple([match.tiles[buffer] for buffer in intrin.outputs])


def _check_init(declared: Block, init: Stmt, tile: Block, match: Match) -> None:
    """The tile's init equals that of the declared reduction."""
    if declared.init is None:
        raise Mismatch(
            START, "it has an init, the intrinsic only updates; decompose_reduction first"
        )
    spatial = tuple([it for it in tile.iters if it.kind != REDUCE])
    try:
        found = match_init(declared, init, replace(tile, iters=spatial))
    except Mismatch as mismatch:
        raise Mismatch(START, f"it starts differently: {mismatch}") from None
    for buffer, region in found.tiles.items():
        other = match.tiles[buffer]
        same = region.buffer is other.buffer and all(
            sym.equal(a.start, b.start) for a, b in zip(region.ranges, other.ranges, strict=True)
        )
        if not same:
            raise Mismatch(START, f"its init sets other elements of %{region.buffer.name}")


def _check_inside(tiles: tuple[Region, ...], block: Block) -> None:
    """Tiles are in bounds, including parts that the intrinsic does not access."""
    ctx = sym.EMPTY.bind_all({it.var: (sym.ZERO, _reached(it.extent)) for it in block.iters})
    for region in tiles:
        for axis, (r, dim) in enumerate(zip(region.ranges, region.buffer.shape, strict=True)):
            if r.extent is sym.ONE:
                continue
            inside = sym.logical_and(sym.le(0, r.start), sym.le(stop_of(r), dim))
            if not sym.prove(inside, ctx):
                raise Mismatch(
                    INDEX,
                    f"the tile {r.start} +: {r.extent} may reach outside of dimension {axis} of "
                    f"%{region.buffer.name}, which is {dim}",
                )


def _reached(extent: Expr) -> Expr:
    """An upper bound of an iterator where it has any value: n for an extent max(n, 0)."""
    if isinstance(extent, sym.Max) and sym.ZERO in (extent.a, extent.b):
        return extent.a if extent.b is sym.ZERO else extent.b
    return extent
