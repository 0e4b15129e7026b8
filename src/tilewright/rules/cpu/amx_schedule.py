"""Schedule steps that map a contraction to AMX tiles, shared by GEMM, convolution and attention.

Tiles of A and C have the plan's number of rows, those of B are whole; B is packed in the
instruction's groups of k. The matrix unit runs beside the vector units, so the epilogue of one
register block is interleaved with the multiplications of the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from tilewright.base.tiles import BLOCK_TILES, ROW_BYTES, TILE_PRODUCTS
from tilewright.base.tiles import ROWS as TILE_ROWS
from tilewright.intrin.amx import SCOPE, scope_of  # the intrinsics below are declared there
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.gemm_model import BATCH, NONE, M, N
from tilewright.rules.cpu.gemm_schedule import copy_of, operand, producer_of, read_index
from tilewright.rules.cpu.register_transpose import SQUARE_ELEMENTS
from tilewright.rules.match.contraction import Contraction
from tilewright.rules.match.nest import attempt, block_of, fused
from tilewright.sym import ONE
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import SPATIAL, For, Load, Seq, Update
from tilewright.tensor.passes.interleave_loops import GUEST, HOST, INTERLEAVE
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.schedule.analysis.tree import find_loop
from tilewright.tensor.visit import output_buffers


@dataclass(frozen=True)
class Kind:
    """The instructions for one combination of types."""

    feature: str
    dot: str
    load: str  # name prefixes of the loads of A and of B
    load_b: str
    store: str
    depth: int  # steps of k in a tile
    group: int  # steps of k interleaved in a row of B


KINDS = {
    (of.a, of.b, of.c): Kind(
        of.feature,
        f"amx_{of.a}_dot",
        f"amx_load_{of.a}",
        f"amx_load_{of.b}",
        f"amx_store_{of.c}",
        of.depth,
        of.group,
    )
    for of in TILE_PRODUCTS
}


def kind_of(found: Contraction, context: RuleContext) -> Kind | None:
    """The instructions for a contraction's types, if the target has them."""
    a, b = found.a.buffer.dtype.name, found.b.buffer.dtype.name
    kind = KINDS.get((a, b, found.block.writes[0].buffer.dtype.name))
    return kind if kind is not None and context.target.has(kind.feature) else None


@dataclass(frozen=True)
class Blocking:
    """The blocking that the steps apply."""

    kind: Kind
    tile_rows: int
    row_tiles: int  # in a register block
    column_tiles: int
    strips: int  # register blocks in a block of n
    b_is_constant: bool
    parallel: str  # n, m, batch or none
    prefetch_b: int  # prefetch distance in steps of k; 0: the next block of n
    prefetch_a: bool  # of the next block of m
    terms: tuple[int, ...] = ()  # outer iterators of k, which are unrolled


def tile_gemm(
    sch: Schedule, c: BlockRef, found: Contraction, plan: Blocking
) -> tuple[BlockRef, ...]:
    """Pad to whole tiles, pack B, and tensorize."""
    sch.pad(c, _multiples(found, plan))
    panel = copy_of(sch, c, found, found.b)
    padded = producer_of(sch, c, found, found.a)
    epilogue = epilogue_of(sch, c)
    registers = registers_of(sch, c, found, plan)
    loops = dict(enumerate(sch.get_loops(c)))
    cut = split_loops(sch, found, plan, loops, blocks_first=_are_blocks_first(found, plan))
    sch.reverse_compute_at(registers.store, cut.js)
    done, at = fuse_epilogue(sch, epilogue, cut.js, plan.strips, plan.column_tiles)
    load_tiles(sch, found, plan, registers, cut)
    if padded is not None:
        _pad_rows(sch, found, plan, padded, cut.io)
    if not plan.b_is_constant:
        sch.compute_at(panel, cut.jb)
    lay_out_b(sch, found, plan, panel)
    if plan.b_is_constant and plan.prefetch_b:
        attempt(sch, sch.prefetch, registers.b, 0, cut.ro, plan.prefetch_b)
    elif plan.b_is_constant:  # the next block while this one is used
        attempt(sch, sch.prefetch, registers.b, 0, cut.jb, 1, cut.ro)
    if plan.prefetch_a:
        attempt(sch, sch.prefetch, registers.a, 0, cut.io, 1, cut.ro)
    init = tensorize_tiles(sch, c, found, plan, registers, cut)
    pack(sch, found, plan, panel)
    overlap(sch, at, cut.ro, done, -(-found.guess(found.k) // plan.kind.depth))
    if plan.parallel != NONE:
        sch.parallel(_parallel_loop(sch, found, plan, cut))
    made = (c, panel, padded, *registers.all, init, *done)
    return tuple(x for x in made if x is not None)


def _are_blocks_first(found: Contraction, plan: Blocking) -> bool:
    """Whether the loop over blocks of n is outside of the outer loops of m.

    Not where a dynamic m is split across threads, or an outer one is dynamic: divisions by it would
    be hard to simplify.
    """
    *outer, last = [found.extent(at) is not None for at in found.m]
    return all(outer) or (last and plan.parallel != M)


def _parallel_loop(sch: Schedule, found: Contraction, plan: Blocking, cut: TileLoops) -> LoopRef:
    """The loop that is split across threads."""
    around = {BATCH: cut.batch, N: cut.to_blocks, M: [*cut.outer, cut.io]}
    is_dynamic = found.extent(found.n[-1]) is None
    if is_dynamic and cut.jb in around[plan.parallel]:  # divisions by a dynamic n do not simplify
        sch.reorder(cut.jb, *cut.to_blocks[:-1])
        return cut.jb
    return fused(sch, around[plan.parallel])


@dataclass(frozen=True)
class Registers:
    """The blocks that load the operands of a contraction into tiles, and store the result."""

    a: BlockRef
    b: BlockRef
    store: BlockRef

    @property
    def all(self) -> tuple[BlockRef, ...]:
        return self.a, self.b, self.store


def registers_of(sch: Schedule, c: BlockRef, found: Contraction, plan: Blocking) -> Registers:
    """Make a contraction read and write tile registers."""
    short = scope_of(plan.tile_rows)
    a = sch.cache_read(c, read_index(sch, c, operand(sch, c, found, found.a).buffer), short)
    b = sch.cache_read(c, read_index(sch, c, operand(sch, c, found, found.b).buffer), SCOPE)
    return Registers(a, b, sch.cache_write(c, 0, short))


@dataclass(frozen=True)
class TileLoops:
    """The loops around the tiles of a contraction."""

    batch: list[LoopRef]
    outer: list[LoopRef]  # `batch`, `jb` and the outer loops of m
    jb: LoopRef  # blocks of n
    io: LoopRef  # register blocks of m
    js: LoopRef  # strips of n: register blocks in a block
    sums: list[LoopRef]  # steps of k
    terms: list[LoopRef]  # unrolled outer loops of k

    @property
    def ro(self) -> LoopRef:
        """The loop over steps of k of one tile each."""
        return self.sums[-1]

    @property
    def innermost(self) -> LoopRef:
        """The innermost loop around the tile multiplications."""
        return (*self.sums, *self.terms)[-1]

    @property
    def to_blocks(self) -> list[LoopRef]:
        """All loops down to that over blocks of n."""
        return self.outer[: self.outer.index(self.jb) + 1]


def split_loops(
    sch: Schedule,
    found: Contraction,
    plan: Blocking,
    loops: Mapping[int, LoopRef],
    *,
    blocks_first: bool,
) -> TileLoops:
    """Split and order the loops of a contraction, given by iterator, around register blocks."""
    batch = [loops[at] for at in (*found.batch, *found.n[:-1])]
    *row_outer, row = [loops[at] for at in found.m]
    io, im, ii = sch.split(row, [None, plan.row_tiles, plan.tile_rows])
    jb, js, jm, ji = sch.split(
        loops[found.n[-1]], [None, plan.strips, plan.column_tiles, TILE_ROWS]
    )
    *far, last = [loops[at] for at in found.k if at not in plan.terms]
    terms = [loops[at] for at in plan.terms]
    ro, ri = sch.split(last, [None, plan.kind.depth])
    outer = [*batch, jb, *row_outer] if blocks_first else [*batch, *row_outer, jb]
    sch.reorder(*outer, io, js, *far, ro, *terms, im, jm, ii, ji, ri)
    for loop in (*terms, im, jm):
        sch.unroll(loop)
    return TileLoops(batch, outer, jb, io, js, [*far, ro], terms)


def load_tiles(
    sch: Schedule, found: Contraction, plan: Blocking, registers: Registers, cut: TileLoops
) -> None:
    """Load tiles where they are multiplied, in register layout."""
    sch.compute_at(registers.a, cut.innermost)
    sch.compute_at(registers.b, cut.innermost)
    _lay_out_tiles(sch, found, plan, registers)


def tensorize_tiles(
    sch: Schedule,
    c: BlockRef,
    found: Contraction,
    plan: Blocking,
    registers: Registers,
    cut: TileLoops,
) -> BlockRef:
    """Tensorize loads, stores and multiplications; returns the block that zeroes the sums."""
    _tensorize_copies(sch, found, plan, registers)
    init = sch.decompose_reduction(c, cut.sums[0])
    sch.tensorize(sch.get_loops(c)[-3], plan.kind.dot, rows=plan.tile_rows)
    sch.tensorize(sch.get_loops(init)[-2], plan.kind.dot, rows=plan.tile_rows)
    return init


def _pad_rows(
    sch: Schedule, found: Contraction, plan: Blocking, padded: BlockRef, at: LoopRef
) -> None:
    """Pad rows of A where they are read; all at once if several blocks of n read them."""
    columns = found.extent(found.n[-1])
    once = columns is None or columns <= TILE_ROWS * plan.column_tiles * plan.strips
    if once or plan.parallel in (BATCH, M):
        sch.compute_at(padded, at)
    *outer, last = sch.get_loops(padded)
    _, lane = sch.split(last, [None, plan.kind.depth])
    attempt(sch, sch.vectorize, lane)
    if not once and plan.parallel == N:
        sch.parallel(outer[-1])


def _multiples(found: Contraction, plan: Blocking) -> list[int]:
    multiples = [1] * len(found.block.iters)
    multiples[found.m[-1]] = plan.tile_rows * plan.row_tiles
    multiples[found.n[-1]] = TILE_ROWS * plan.column_tiles
    if found.extent(found.n[-1]) is None:
        multiples[found.n[-1]] *= plan.strips
    multiples[found.k[-1]] = plan.kind.depth
    return multiples


# --------------------------------------------------------------------------- results


def epilogue_of(sch: Schedule, c: BlockRef) -> list[BlockRef]:
    """The consumers of a contraction that can be applied per register block."""
    results = output_buffers(sch.function)
    if block_of(sch.function, c.name).writes[0].buffer in results:
        return []
    consumers = sch.get_consumers(c)
    if len(consumers) == 1 and sch.get_consumers(consumers[0]):
        crop = block_of(sch.function, consumers[0].name)
        if crop.writes[0].buffer not in results:
            attempt(sch, sch.compute_inline, consumers[0])
            consumers = sch.get_consumers(c)
    blocks = [block_of(sch.function, reference.name) for reference in consumers]
    if any(it.kind != SPATIAL for block in blocks for it in block.iters):
        return []
    return consumers


def fuse_epilogue(
    sch: Schedule, epilogue: list[BlockRef], at: LoopRef, strips: int, tiles: int
) -> tuple[list[BlockRef], LoopRef]:
    """Apply the epilogue to each register block, `tiles` wide, of `strips` in a loop.

    Narrow results are packed from several vectors, to fill a cache line: int8 results combine
    several neighbouring register blocks in one more loop.
    """
    done, lanes = [], TILE_ROWS
    made = [block_of(sch.function, reference.name).writes[0].buffer for reference in epilogue]
    widest = max([buffer.dtype.size_bytes for buffer in made], default=ROW_BYTES)
    beside = ROW_BYTES // (TILE_ROWS * widest)  # tiles whose results fill a cache line
    if beside <= tiles:
        lanes = TILE_ROWS * max(1, beside)
    elif len(made) == 1 and tiles * strips % beside == 0:
        lanes = TILE_ROWS * beside
        at, _ = sch.split(at, [None, beside // tiles])
    for reference in epilogue:
        if attempt(sch, sch.reverse_compute_at, reference, at):
            _, lane = sch.split(sch.get_loops(reference)[-1], [None, lanes])
            attempt(sch, sch.vectorize, lane)
            done.append(reference)
    return done, at


def overlap(sch: Schedule, at: LoopRef, sums: LoopRef, done: list[BlockRef], steps: int) -> None:
    """Software-pipeline a loop so that the epilogue of one iteration runs beside the tile
    multiplications of the next: the matrix unit and the vector units work concurrently. Short
    reductions have too few steps to interleave with."""
    path = find_loop(sch.function, at.var)
    assert path is not None
    assert isinstance(path[-1], For)
    loop = path[-1]
    # With fewer steps than a register block has tiles there is too little to interleave with.
    if steps < BLOCK_TILES * BLOCK_TILES or not done or loop.extent is ONE:
        return
    parts = len(loop.body.stmts) if isinstance(loop.body, Seq) else 1
    stored = parts - len(done) - 1
    if stored < 1:  # the store is in the loop of the sums
        return
    # Tiles are stored last, after the previous epilogue has read the buffer.
    stages = [0] * (stored + 1) + [1] * len(done)
    order = [*range(stored), parts - 1, *range(stored, parts - 1)]
    if attempt(sch, sch.software_pipeline, at, stages, order):
        sch.annotate(sums, INTERLEAVE, HOST)
        for reference in done:
            loops = sch.get_loops(reference)
            sch.annotate(loops[loops.index(at) + 1], INTERLEAVE, GUEST)


# --------------------------------------------------------------------------- layouts


def _axis(found: Contraction, load: Load, at: int) -> int:
    """Which dimension of an operand an iterator indexes."""
    return next(i for i, e in enumerate(load.index) if e is found.nest.var(at))


def _map(rank: int, first: int, second: int, places: str) -> str:
    """The index map that moves two dimensions to `places`, behind all others."""
    names = [f"x{axis}" for axis in range(rank)]
    others = [names[axis] for axis in range(rank) if axis not in (first, second)]
    target = places.format(y=names[first], x=names[second])
    return f"({', '.join(names)}) -> ({', '.join([*others, target])})"


def _lay_out_tiles(sch: Schedule, found: Contraction, plan: Blocking, registers: Registers) -> None:
    """Lay tile buffers out as registers hold them."""
    deep, tile_rows = plan.kind.depth, plan.tile_rows
    lay_out_b(sch, found, plan, registers.b)
    i, k = _axis(found, found.a, found.m[-1]), _axis(found, found.a, found.k[-1])
    tiled = f"{{y}} // {tile_rows}, {{x}} // {deep}, {{y}} % {tile_rows}, {{x}} % {deep}"
    sch.transform_layout(registers.a, ("write", 0), _map(len(found.a.index), i, k, tiled))
    rank, i, j = _written(found)
    square = f"{{y}} // {tile_rows}, {{x}} // {TILE_ROWS}, {{y}} % {tile_rows}, {{x}} % {TILE_ROWS}"
    sch.transform_layout(registers.store, ("read", 0), _map(rank, i, j, square))


def lay_out_b(sch: Schedule, found: Contraction, plan: Blocking, copy: BlockRef) -> None:
    """Lay a copy of B out in tiles with the k steps of a group contiguous."""
    k, j = _axis(found, found.b, found.k[-1]), _axis(found, found.b, found.n[-1])
    group = plan.kind.group
    grouped = f"{{x}} // {TILE_ROWS}, {{y}} // {group}, {{x}} % {TILE_ROWS}, {{y}} % {group}"
    sch.transform_layout(copy, ("write", 0), _map(len(found.b.index), k, j, grouped))


def _written(found: Contraction) -> tuple[int, int, int]:
    """The rank of the result, and its dimensions of m and n."""
    body = found.block.body
    assert isinstance(body, Update)
    row, column = found.nest.var(found.m[-1]), found.nest.var(found.n[-1])
    return len(body.index), body.index.index(row), body.index.index(column)


def _tensorize_copies(
    sch: Schedule, found: Contraction, plan: Blocking, registers: Registers
) -> None:
    """Tensorize the tile loads and stores."""
    kind = plan.kind
    k, j = _axis(found, found.b, found.k[-1]), _axis(found, found.b, found.n[-1])
    tensorize(sch, registers.b, len(found.b.index), k, j, (0, TILE_ROWS), f"{kind.load_b}_groups")
    i, k = _axis(found, found.a, found.m[-1]), _axis(found, found.a, found.k[-1])
    a_rank, rows = len(found.a.index), {"rows": plan.tile_rows}
    tensorize(sch, registers.a, a_rank, i, k, (plan.tile_rows, 0), f"{kind.load}_rows", **rows)
    rank, i, j = _written(found)
    tensorize(sch, registers.store, rank, i, j, (plan.tile_rows, TILE_ROWS), kind.store, **rows)


def tensorize(
    sch: Schedule,
    block: BlockRef,
    rank: int,
    first: int,
    second: int,
    tiles: tuple[int, int],
    intrinsic: str,
    **parameters: int,
) -> None:
    """Split a copy into tiles along two of its loops, and tensorize it."""
    own = sch.get_loops(block)[-rank:]
    rest = [loop for axis, loop in enumerate(own) if axis not in (first, second)]
    y, x = own[first], own[second]
    outer = []
    if tiles[0]:
        far, y = sch.split(y, [None, tiles[0]])
        outer.append(far)
    if tiles[1]:
        far, x = sch.split(x, [None, tiles[1]])
        outer.append(far)
    sch.reorder(*rest, *outer, y, x)
    for loop in outer:
        sch.unroll(loop)
    sch.tensorize(y, intrinsic, **parameters)


def pack(sch: Schedule, found: Contraction, plan: Blocking, panel: BlockRef) -> None:
    """Order the packing loops: whole groups of k, over a few neighbouring strips of n.

    Columns of all strips at once would lie so far apart that they compete for the same sets of L1.
    """
    rank = len(found.b.index)
    own = sch.get_loops(panel)[-rank:]
    k = own[_axis(found, found.b, found.k[-1])]
    j = own[_axis(found, found.b, found.n[-1])]
    rest = [loop for loop in own if loop not in (k, j)]
    ko, kg = sch.split(k, [None, plan.kind.group])
    # A row of so many tiles is one or two cache lines.
    tiles = gcd(2 * BLOCK_TILES, plan.strips * plan.column_tiles)
    jo, js, ji = sch.split(j, [None, tiles, TILE_ROWS])
    sch.reorder(*rest, jo, ko, js, ji, kg)
    if found.stride(found.b, found.k[-1]) is ONE:  # squares of groups are transposed in registers
        ko, kq = sch.split(ko, [None, SQUARE_ELEMENTS])
        ji, jq = sch.split(ji, [None, SQUARE_ELEMENTS])
        sch.reorder(ko, js, ji, kq, jq, kg)
        sch.vectorize(sch.fuse(sch.fuse(kq, jq), kg))
    else:  # rows of a group are loaded whole, and interleaved in registers
        sch.vectorize(sch.fuse(ji, kg))
    if plan.b_is_constant:
        sch.annotate(panel, CONSTANT, True)
