"""From a structure and its decisions to a schedule, by primitives only.

Consumers come before producers, so that a tile exists before something is computed inside of it.
Optional steps (vectorizing a copy, unrolling) are attempted, and skipped where refused. A refused
step of the structure itself fails the point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.base.dots import DOTS, Dot
from tilewright.base.errors import ScheduleError
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.epilogue import fuse_epilogue
from tilewright.rules.cpu.gemm_schedule import copy_of, inline_crop, producer_of
from tilewright.rules.cpu.vectorize import REDUCTION_LANES, vectorize_stage
from tilewright.rules.match.contraction import Contraction, contraction
from tilewright.rules.match.nest import attempt, block_of, fused, nest_of
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import Call, Load
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import exprs, output_buffers
from tilewright.tune.grids import Value
from tilewright.tune.sketch.fields import long_sum
from tilewright.tune.sketch.stage import Stage
from tilewright.tune.sketch.structure import (
    BLOCKS,
    DOT,
    FOLLOW,
    PARTS,
    PLAIN,
    ROWS,
    UNDER,
    Structure,
    Way,
)

UNROLLED_NODES = 40  # epilogues up to this size are unrolled over the registers of a tile


@dataclass(frozen=True)
class Tiles:
    """The loops of a tile at which other stages can be placed."""

    outer: LoopRef | None  # the innermost parallel loop
    block: LoopRef | None  # the innermost loop around a block that stays in L2
    around: LoopRef | None  # the innermost loop around a finished register tile, or block of them
    lanes: int


def apply_structure(
    sch: Schedule, structure: Structure, values: Mapping[str, Value], context: RuleContext
) -> None:
    """Schedule every stage by its alternative."""
    made: dict[str, Tiles] = {}
    for name in reversed(list(structure.ways)):
        stage, way = structure.stages[name], structure.ways[name]
        own = {
            key[len(name) + 1 :]: value
            for key, value in values.items()
            if key.startswith(f"{name}.")
        }
        if way.is_tiled:
            followers = [
                other for other, _ in structure.of_kind(FOLLOW) if _reads(sch, other.name, name)
            ]
            made[name] = _tile(sch, stage, way, own, [each.name for each in followers], context)
        elif way.kind == UNDER:
            _under(sch, stage, own, made, context)
        elif way.kind == PLAIN:
            _plain(sch, stage, own, context)
        elif way.kind == ROWS:
            _rows(sch, stage, own, context)
        elif way.kind == PARTS:
            _parts(sch, stage, own, context)


def _reads(sch: Schedule, consumer: str, producer: str) -> bool:
    return any(each.name == consumer for each in sch.get_consumers(BlockRef(producer)))


# --------------------------------------------------------------------------- tiles


def _tile(
    sch: Schedule,
    stage: Stage,
    way: Way,
    own: Mapping[str, Value],
    followers: Sequence[str],
    context: RuleContext,
) -> Tiles:
    """Split every axis, order the levels, keep the tile in registers, parallelize the outermost
    loops."""
    block = sch.get_block(stage.name)
    if way.kind == DOT:
        return _dot(sch, block, stage, way, own, context)
    width = _number(own, f"{stage.axes[way.lanes].name}.inner") * stage.lanes
    panels = [_pack(sch, stage, way, name, width) for name in way.packed]
    levels = _split_axes(sch, block, stage, way, own)
    between = (
        [*levels.sums, *levels.middle] if way.kind == BLOCKS else [*levels.middle, *levels.sums]
    )
    sch.reorder(*levels.outer, *levels.block, *between, *levels.steps, *levels.inner, *levels.lane)
    for loop in (*levels.near, *levels.inner):
        sch.unroll(loop)
    attempt(sch, sch.vectorize, *levels.lane)
    around = [*levels.outer, *levels.block, *([] if way.kind == BLOCKS else levels.middle)]
    inner_lanes = stage.lanes
    if stage.reduced:
        _finish(sch, block, stage, way, around[-1], followers, inner_lanes)
        first = levels.sums[0] if levels.sums else levels.steps[0]
        attempt(sch, sch.decompose_reduction, block, first)
    else:
        for name in followers:
            place = _lanes_place(sch, name, stage, way)
            _follow(sch, name, place, way, around[-1], inner_lanes)
    for name, panel in zip(way.packed, panels, strict=True):
        if name in context.constants:
            sch.annotate(panel, CONSTANT, True)  # packed before the first call
        else:
            _share_copy(sch, panel, context)
    shared = levels.outer
    if context.threads > 1 and shared:
        whole = fused(sch, shared)
        sch.parallel(whole)
        shared = [whole]
    inner = [*shared, *levels.block]
    return Tiles(shared[-1], inner[-1], inner[-1], inner_lanes)


def _dot(
    sch: Schedule,
    block: BlockRef,
    stage: Stage,
    way: Way,
    own: Mapping[str, Value],
    context: RuleContext,
) -> Tiles:
    """Tiles whose innermost step is a dot-product instruction; B is packed in its groups."""
    nest = nest_of(sch, block)
    found = None if nest is None else contraction(nest)
    assert found is not None
    dot = next(each for each in DOTS if each.name == way.intrin)
    width = _number(own, f"{stage.axes[way.lanes].name}.inner") * dot.lanes
    multiples = [1] * len(stage.axes)
    name = stage.axes[way.lanes].name
    columns = width * _number(own, f"{name}.middle") * _number(own, f"{name}.block")
    # An instruction has no tail.
    multiples[found.n[-1]], multiples[found.k[-1]] = columns, dot.steps
    sch.pad(block, multiples)
    panel = copy_of(sch, block, found, found.b)
    filled = producer_of(sch, block, found, found.a)
    inline_crop(sch, block)
    levels = _split_axes(sch, block, stage, way, own)
    *far, last = levels.steps
    calls, group = sch.split(last, [None, dot.steps])
    sums = [*far, calls]
    sch.reorder(
        *levels.outer,
        *levels.block,
        *levels.middle,
        *sums,
        *levels.inner,
        *levels.lane,
        group,
    )
    for loop in levels.inner:
        sch.unroll(loop)
    around = [*levels.outer, *levels.block, *levels.middle][-1]
    fuse_epilogue(sch, block, around, dot.lanes, width)
    init = sch.decompose_reduction(block, sums[0])
    if filled is not None:
        _, lane = sch.split(sch.get_loops(filled)[-1], [None, dot.lanes * dot.group])
        attempt(sch, sch.vectorize, lane)
    _pack_groups(sch, panel, found, dot, width)
    sch.tensorize(levels.lane[0], dot.name)
    sch.tensorize(sch.get_loops(init)[-1], dot.name)
    shared = levels.outer
    if context.threads > 1:
        whole = fused(sch, shared)
        sch.parallel(whole)
        shared = [whole]
        _share_copy(sch, panel, context)
    inner = [*shared, *levels.block]
    return Tiles(shared[-1], inner[-1], inner[-1], dot.lanes)


def _pack_groups(sch: Schedule, panel: BlockRef, found: Contraction, dot: Dot, width: int) -> None:
    """Pack panels as wide as a tile; in each, per group of k, the elements of all lanes."""
    deep, column = found.nest.var(found.k[-1]), found.nest.var(found.n[-1])
    names = [f"x{axis}" for axis in range(len(found.b.index))]
    k = names[found.b.index.index(deep)]
    j = names[found.b.index.index(column)]
    others = [name for name in names if name not in (k, j)]
    places = [*others, f"{j} // {width}", f"{k} // {dot.group}", f"{j} % {width}"]
    places.append(f"{k} % {dot.group}")
    sch.transform_layout(panel, ("write", 0), f"({', '.join(names)}) -> ({', '.join(places)})")
    own = sch.get_loops(panel)[-len(names) :]
    rest = [loop for name, loop in zip(names, own, strict=True) if name not in (k, j)]
    calls, group = sch.split(own[names.index(k)], [None, dot.group])
    vectors, lane = sch.split(own[names.index(j)], [None, dot.lanes])
    sch.reorder(*rest, vectors, calls, lane, group)
    attempt(sch, sch.unroll, group)


@dataclass
class _Levels:
    """The loops of a tiled stage, by level, in program order."""

    outer: list[LoopRef]
    block: list[LoopRef]
    middle: list[LoopRef]
    inner: list[LoopRef]
    lane: list[LoopRef]
    sums: list[LoopRef]  # reduction, around the tiles of a block or right outside of the steps
    steps: list[LoopRef]  # reduction, around a register tile
    near: list[LoopRef]  # unrolled reduction


def _split_axes(
    sch: Schedule, block: BlockRef, stage: Stage, way: Way, own: Mapping[str, Value]
) -> _Levels:
    loops = _axis_loops(sch, block, stage)
    found = _Levels([], [], [], [], [], [], [], [])
    lanes_first: dict[int, list[LoopRef]] = {}
    for at, axis in enumerate(stage.axes):
        if axis.is_reduced:
            _split_reduction(sch, loops[at], at, stage, way, own, found)
            continue
        if at not in stage.spatial:
            found.outer.append(loops[at])
            continue
        sizes = [_number(own, f"{axis.name}.{level}") for level in ("block", "middle", "inner")]
        names = [
            each for each, size in zip(("block", "middle", "inner"), sizes, strict=True) if size > 1
        ]
        factors: list[int | None] = [None, *(size for size in sizes if size > 1)]
        if at == way.lanes:
            factors.append(stage.lanes)
            names.append("lane")
        parts = sch.split(loops[at], factors) if len(factors) > 1 else [loops[at]]
        found.outer.append(parts[0])
        for level, loop in zip(names, parts[1:], strict=True):
            getattr(found, level).append(loop)
            if at == way.lanes:
                lanes_first.setdefault(at, []).append(loop)
    if own["order"] == "lanes":
        mine = {loop for some in lanes_first.values() for loop in some}
        for loops_of_level in (found.block, found.middle):
            loops_of_level.sort(key=lambda loop: loop not in mine)
    return found


def _axis_loops(sch: Schedule, block: BlockRef, stage: Stage) -> list[LoopRef]:
    """The loop of every axis; merged axes are fused."""
    loops = sch.get_loops(block)
    return [fused(sch, [loops[at] for at in some]) for some in stage.merged] or loops


def _split_reduction(
    sch: Schedule,
    loop: LoopRef,
    at: int,
    stage: Stage,
    way: Way,
    own: Mapping[str, Value],
    found: _Levels,
) -> None:
    """Split a reduction into outer blocks, steps, and unrolled steps."""
    axis = stage.axes[at]
    unroll = _number(own, f"{axis.name}.unroll", 1)
    if way.kind == BLOCKS and at == long_sum(stage):
        size = _number(own, f"{axis.name}.block")
        far, loop = sch.split(loop, [None, size])
        found.sums.append(far)
    if unroll > 1:
        far, near = sch.split(loop, [None, unroll])
        found.steps[len(found.steps) - len(found.near) : len(found.steps) - len(found.near)] = [far]
        found.steps.append(near)
        found.near.append(near)
    else:
        place = len(found.steps) - len(found.near)
        found.steps.insert(place, loop)


def _finish(
    sch: Schedule,
    block: BlockRef,
    stage: Stage,
    way: Way,
    around: LoopRef,
    followers: Sequence[str],
    lanes: int,
) -> None:
    """Store complete results of a tile, through their epilogue."""
    if stage.merged:  # a tile is no box of the result: accumulate in place
        return
    made = block_of(sch.function, block.name).writes[0].buffer
    through = bool(followers) and made not in output_buffers(sch.function)
    places = {name: _lanes_place(sch, name, stage, way) for name in followers}
    if through and all(_is_small(sch, name) for name in followers):
        if way.kind != BLOCKS:
            sch.set_scope(block, 0, "local")
            _lanes_last(sch, block, stage, way)
        for name, place in places.items():
            _follow(sch, name, place, way, around, lanes)
        return
    if way.kind != BLOCKS:
        for index in range(stage.outputs):
            store = sch.cache_write(block, index, "local")
            sch.reverse_compute_at(store, around)
            _vectorize_copy(sch, store, stage, way, around, lanes)
        _lanes_last(sch, block, stage, way)
    for name, place in places.items():
        _follow(sch, name, place, way, around, lanes)


def _lanes_last(sch: Schedule, block: BlockRef, stage: Stage, way: Way) -> None:
    """Make the lanes of a register tile innermost, whatever the result's layout."""
    for index, touch in enumerate(stage.writes[: stage.outputs]):
        place = _dimension(touch.dims, way.lanes)
        rank = len(touch.dims)
        if place is None or place == rank - 1:
            continue
        names = [f"x{axis}" for axis in range(rank)]
        order = [name for at, name in enumerate(names) if at != place] + [names[place]]
        sch.transform_layout(
            block, ("write", index), f"({', '.join(names)}) -> ({', '.join(order)})"
        )


def _dimension(dims: Sequence[Mapping[int, int] | None], axis: int) -> int | None:
    """The dimension that an axis indexes."""
    found = [at for at, dim in enumerate(dims) if dim is not None and axis in dim]
    return found[0] if len(found) == 1 else None


def _is_small(sch: Schedule, name: str) -> bool:
    nodes = list(exprs(block_of(sch.function, name).body))
    return len(nodes) <= UNROLLED_NODES and not any(isinstance(node, Call) for node in nodes)


def _vectorize_copy(
    sch: Schedule, store: BlockRef, stage: Stage, way: Way, around: LoopRef, lanes: int
) -> None:
    """Store a register tile, vectorized along its lanes."""
    place = _dimension(stage.writes[0].dims, way.lanes)
    _own_lanes(sch, store, around, place, lanes, unrolled=True)


def _lanes_place(sch: Schedule, name: str, stage: Stage, way: Way) -> int | None:
    """The epilogue's iterator along a tile's lanes, as long as the result has its original
    layout."""
    block = block_of(sch.function, name)
    iterators = [it.var for it in block.iters]
    written = stage.writes[0].buffer
    dimension = _dimension(stage.writes[0].dims, way.lanes)
    place: int | None = None
    for expr in exprs(block.body):
        if (
            isinstance(expr, Load)
            and expr.buffer.name.startswith(written)
            and dimension is not None
        ):
            index = expr.index[dimension] if dimension < len(expr.index) else None
            if index in iterators:
                place = iterators.index(index)
    return place


def _follow(
    sch: Schedule, name: str, place: int | None, way: Way, around: LoopRef, lanes: int
) -> None:
    """Fuse an epilogue into a tile."""
    reference = sch.get_block(name)
    small = _is_small(sch, name)
    sch.reverse_compute_at(reference, around)
    _own_lanes(sch, reference, around, place, lanes, unrolled=small and way.kind != BLOCKS)


def _own_lanes(
    sch: Schedule,
    reference: BlockRef,
    around: LoopRef,
    place: int | None,
    lanes: int,
    *,
    unrolled: bool,
) -> None:
    """Vectorize a block over one tile: along its axis at `place`, the last one otherwise."""
    loops = sch.get_loops(reference)
    own = loops[[loop.var for loop in loops].index(around.var) + 1 :]
    if not own:
        return
    at = len(own) - 1 if place is None or place >= len(own) else place
    far, lane = sch.split(own[at], [None, lanes])
    rest = [far if loop == own[at] else loop for loop in own]
    if at != len(own) - 1:
        attempt(sch, sch.reorder, *rest, lane)
    attempt(sch, sch.vectorize, lane)
    if unrolled:
        for loop in rest:
            attempt(sch, sch.unroll, loop)


# --------------------------------------------------------------------------- operands


def _pack(sch: Schedule, stage: Stage, way: Way, name: str, width: int) -> BlockRef:
    """Pack an operand in panels as wide as a tile, the elements of one step contiguous."""
    block = block_of(sch.function, stage.name)
    index = next(at for at, read in enumerate(block.reads) if read.buffer.name == name)
    panel = sch.cache_read(BlockRef(stage.name), index, "global")
    touch = next(each for each in stage.reads if each.buffer == name)
    place = _dimension(touch.dims, way.lanes)
    assert place is not None
    names = [f"x{axis}" for axis in range(len(touch.dims))]
    rest = [each for at, each in enumerate(names) if at != place]
    lane = names[place]
    places = [f"{lane} // {width}", *rest, f"{lane} % {width}"]
    sch.transform_layout(panel, ("write", 0), f"({', '.join(names)}) -> ({', '.join(places)})")
    loops = sch.get_loops(panel)
    far, near = sch.split(loops[place], [None, stage.lanes])
    order = [loop for at, loop in enumerate(loops) if at != place]
    sch.reorder(far, *order, near)
    attempt(sch, sch.vectorize, near)
    return panel


def _share_copy(sch: Schedule, panel: BlockRef, context: RuleContext) -> None:
    if context.threads > 1:
        attempt(sch, sch.parallel, sch.get_loops(panel)[0])


# --------------------------------------------------------------------------- other alternatives


def _under(
    sch: Schedule,
    stage: Stage,
    own: Mapping[str, Value],
    made: dict[str, Tiles],
    context: RuleContext,
) -> None:
    """Compute what a tile of its consumers needs of a producer, inside of the tile."""
    reference = sch.get_block(stage.name)
    tiles = [made[each.name] for each in sch.get_consumers(reference) if each.name in made]
    if not tiles:
        raise ScheduleError("TW2705", f"no tile reads @{stage.name} itself: copies of it are read")
    tile = tiles[0]
    loop = tile.outer if own["level"] == "outer" else tile.block
    assert loop is not None
    sch.compute_at(reference, loop)
    loops = sch.get_loops(reference)
    depth = [each.var for each in loops].index(loop.var) + 1
    made[stage.name] = Tiles(loop, loop, loop, stage.lanes)
    vectorize_stage(sch, reference, depth, context, _number(own, "accumulators"))


def _plain(sch: Schedule, stage: Stage, own: Mapping[str, Value], context: RuleContext) -> None:
    """The program's loops: vectorized along the last spatial axis, parallel along the others."""
    block = sch.get_block(stage.name)
    loops = _axis_loops(sch, block, stage)
    spatial = [loop for loop, axis in zip(loops, stage.axes, strict=True) if not axis.is_reduced]
    sums = [loop for loop, axis in zip(loops, stage.axes, strict=True) if axis.is_reduced]
    if not spatial:
        return
    *outer, last = spatial
    far, lane = sch.split(last, [None, stage.lanes])
    attempt(sch, sch.reorder, *outer, far, *sums, lane)
    attempt(sch, sch.vectorize, lane)
    unroll = _number(own, "unroll")
    if unroll > 1:
        attempt(sch, sch.annotate, far, "unroll", unroll)
    if context.threads > 1:
        whole = fused(sch, outer) if outer else far
        rows = 1
        for axis in [each for each in stage.axes if not each.is_reduced][:-1]:
            rows *= axis.extent
        size = -(-rows // (_number(own, "chunks", 1) * context.threads)) if outer else 1
        if size > 1:
            whole, _ = sch.split(whole, [None, size])
        attempt(sch, sch.parallel, whole)


def _rows(sch: Schedule, stage: Stage, own: Mapping[str, Value], context: RuleContext) -> None:
    """Serial results, each vectorized along its reduction."""
    block = sch.get_block(stage.name)
    vectorize_stage(
        sch, block, 0, context, _number(own, "accumulators"), vector_axis=REDUCTION_LANES
    )
    if context.threads > 1:
        for name in [stage.name, *(each.name for each in sch.get_producers(block))]:
            _share_rows(sch, name, stage)


def _share_rows(sch: Schedule, name: str, stage: Stage) -> None:
    """Parallelize along the results of a block that rfactor made or left."""
    loops = sch.get_loops(BlockRef(name))
    rows = [loop for loop in loops if _is_serial(sch, name, loop)][: len(stage.spatial)]
    if rows:
        attempt(sch, sch.parallel, rows[0])


def _is_serial(sch: Schedule, name: str, loop: LoopRef) -> bool:
    block = block_of(sch.function, name)
    kinds = {it.var: it.kind for it in block.iters}
    bound = dict(zip(block.bindings, block.iters, strict=True))
    found = bound.get(loop.var)
    return found is not None and kinds[found.var] == "spatial"


def _parts(sch: Schedule, stage: Stage, own: Mapping[str, Value], context: RuleContext) -> None:
    """Split the reduction across threads; combine the partial results after."""
    block = sch.get_block(stage.name)
    loops = sch.get_loops(block)
    longest = long_sum(stage)
    far, _ = sch.split(loops[longest], [_number(own, "parts"), None])
    partial = sch.rfactor(far, 0)
    inner = sch.get_loops(partial)
    if context.threads > 1:
        attempt(sch, sch.reorder, far, *[loop for loop in inner if loop.var is not far.var])
        attempt(sch, sch.parallel, far)
    vectorize_stage(sch, partial, 1, context, _number(own, "accumulators"))


def _number(own: Mapping[str, Value], name: str, otherwise: int = 1) -> int:
    value = own.get(name, otherwise)
    assert isinstance(value, int)
    return value
