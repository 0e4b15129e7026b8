"""Products of bf16 and of bytes on the tiles of AMX.

for jb in parallel       blocks of panels that stay in the second cache
  pack B[:, jb]            in groups as the instruction wants them, unless done before
  for io                   32 rows
    for js                 32 columns
      for k                two by two tiles of C; two of A and two of B are loaded
      the tiles go to memory, and through what follows

Tiles of A and C have as many rows as divide those of the product well: a tile of fourteen rows
takes hardly longer per row than one of sixteen, and no rows have to be filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.intrin.amx import ROWS as SIDE  # the intrinsics below are declared there
from tilewright.intrin.amx import SCOPE, scope_of
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.gemm_schedule import copy_of, operand, producer_of, read_index
from tilewright.rules.match.contraction import Contraction, contraction
from tilewright.rules.match.nest import attempt, block_of, fused, nest_of
from tilewright.sym import ONE, Const, Expr
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import SPATIAL, For, Load, Seq, Update
from tilewright.tensor.passes.interleave_loops import GUEST, HOST, INTERLEAVE
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.schedule.analysis.tree import find_loop
from tilewright.tensor.visit import output_buffers

PARALLEL_WORK = 4_000_000  # multiply-adds of all threads: what takes a few microseconds
PARALLEL_BYTES = 1 << 17  # of A and the result: where sums are short, they take the time
SHALLOWEST = 16  # steps of a sum: of a tile that is filled up with zeros, the rest still pays
LOWEST = 8  # rows of a tile, at least, where there is a choice
BLOCK_CYCLES, ROW_CYCLES = 32, 2  # of four products of tiles with their loads; per row of A
AHEAD, FEW_BLOCKS = 2, 2  # steps that weights are asked for where so few blocks of rows use them
FEW_STRIPS = 4  # in which to ask for the rows of the next block
PACKED_TOGETHER = 4  # tiles of B: what a line of memory, or two, hold of a row
FILL_CYCLES = 80  # to copy what four products read of A, where rows are filled up


@dataclass(frozen=True)
class Kind:
    """What the instructions multiply."""

    feature: str
    dot: str
    load: str  # of A and of B, the prefixes of the names
    load_b: str
    store: str
    depth: int  # steps of the sum in a tile
    group: int  # steps side by side in a row of B


KINDS = {
    ("bf16", "bf16", "f32"): Kind(
        "amx-bf16", "amx_bf16_dot", "amx_load_bf16", "amx_load_bf16", "amx_store_f32", 32, 2
    ),
    ("i8", "i8", "i32"): Kind(
        "amx-int8", "amx_i8_dot", "amx_load_i8", "amx_load_i8", "amx_store_i32", 64, 4
    ),
    ("u8", "i8", "i32"): Kind(
        "amx-int8", "amx_u8_dot", "amx_load_u8", "amx_load_i8", "amx_store_i32", 64, 4
    ),
}


@dataclass(frozen=True)
class AmxPlan:
    """Everything that is decided about a product."""

    kind: Kind
    tall: int  # rows of a tile
    row_tiles: int  # in a block of registers
    column_tiles: int
    strips: int  # register blocks in a block of columns
    is_weight: bool
    share: str  # what threads share out: "columns", "rows", "stack", ""
    ahead: int  # steps of the sum that weights are asked for; 0: a block of them, ahead of its use
    next_rows: bool  # ask for the rows of the next block


def kind_of(found: Contraction, context: RuleContext) -> Kind | None:
    """The instructions that multiply what a product does, if the target has them."""
    a, b = found.a.buffer.dtype.name, found.b.buffer.dtype.name
    kind = KINDS.get((a, b, found.block.writes[0].buffer.dtype.name))
    return kind if kind is not None and context.target.has(kind.feature) else None


def amx_plan(found: Contraction, context: RuleContext) -> AmxPlan | None:
    """The decisions for a product; None where the tiles do not serve."""
    kind = kind_of(found, context)
    if kind is None or not found.m:
        return None
    iterators: set[Expr] = {it.var for it in found.block.iters}
    plain = all(
        at in iterators or isinstance(at, Const)  # of a dimension of 1
        for load in (found.a, found.b)
        for at in load.index
    )
    if not plain or found.stride(found.a, found.k[-1]) is not ONE:
        return None
    rows, columns = found.nest.guess(found.m[-1]), found.nest.guess(found.n[-1])
    if rows < 4 or columns < SIDE or (found.extent(found.k[-1]) or 0) < SHALLOWEST:
        return None
    column_tiles = 1 if columns <= SIDE else 2
    total = -(-columns // (SIDE * column_tiles))
    tall, row_tiles = SIDE, 1 if rows <= SIDE else 2
    if found.extent(found.m[-1]) is not None:
        tall, row_tiles = tall_of(rows, total)
    bytes_each = found.guess(found.k) * SIDE * column_tiles * found.b.buffer.dtype.size_bytes
    is_weight = found.b.buffer.name in context.constants
    row_bytes = found.guess(found.k) * found.a.buffer.dtype.size_bytes
    # Rows are read again for every block of B.
    is_far = row_bytes * rows > context.target.l2_bytes // 4 * 3
    room = context.target.l2_bytes // (2 if is_far else 8)
    most = max(1, room // max(1, bytes_each))
    blocks = -(-rows // (tall * row_tiles))
    share = _share(found, context, total, blocks if is_weight else 0)
    each = -(-total // (context.threads if share == "columns" else 1))
    size = -(-each // -(-each // most))
    strips = next(s for s in range(size, 0, -1) if total % s == 0)
    return AmxPlan(
        kind,
        tall,
        row_tiles,
        column_tiles,
        strips,
        is_weight,
        share,
        # Weights that few rows use come as fast as they are used: in order, and just before. So do
        # those for rows so long that asking for the next ones would take too many requests.
        ahead=AHEAD if blocks <= FEW_BLOCKS or (is_far and strips < FEW_STRIPS) else 0,
        # From the second cache tiles come by themselves, faster than by asking for their lines.
        next_rows=is_far and strips >= FEW_STRIPS,
    )


def tall_of(rows: int, strips: int) -> tuple[int, int]:
    """Rows of a tile, and tiles of a block: what takes the fewest cycles for all rows.

    Rows that are left over mean that all are copied to where zeros fill them up, which the strips
    of columns share.
    """

    def cost(tall: int, tiles: int) -> float:
        blocks = -(-rows // (tall * tiles))
        cycles = (BLOCK_CYCLES + ROW_CYCLES * tall) * (1 if tiles > 1 else 0.6)
        fill = FILL_CYCLES / strips if rows % (tall * tiles) else 0
        return blocks * (cycles + fill)

    choices = [(tall, tiles) for tall in range(SIDE, LOWEST - 1, -1) for tiles in (2, 1)]
    if rows <= SIDE:
        return max(rows, 1), 1
    return min(choices, key=lambda choice: cost(*choice))


def _share(found: Contraction, context: RuleContext, columns: int, blocks: int) -> str:
    """What threads share out; each reads all of what they do not, so rather the larger operand.

    Of weights that are small, all read all: a thread's rows are those that the layer before, which
    shares out rows as well, has left in its own cache.
    """
    threads = context.threads
    outer = found.guess((*found.batch, *found.n[:-1]))
    if threads == 1 or not _is_much(found):
        return ""
    if outer % threads == 0 or outer >= 4 * threads:
        return "stack"
    if len(found.m) > 1 and found.extent(found.m[-1]) is None:
        return "columns"  # quotients by a number of rows not known say little
    size = found.guess(found.k) * found.nest.guess(found.n[-1])
    is_small = size * found.b.buffer.dtype.size_bytes <= context.target.l2_bytes // 8
    if is_small and blocks >= 3 * threads:
        return "rows"
    if blocks >= 4 * threads and found.guess(found.m) > found.nest.guess(found.n[-1]):
        return "rows"
    return "columns" if columns >= threads else "rows"


def _is_much(found: Contraction) -> bool:
    """Whether a product takes long enough for another thread: by its sums, or by what it moves."""
    rows = found.guess((*found.batch, *found.n[:-1], *found.m))
    depth, columns = found.guess(found.k), found.nest.guess(found.n[-1])
    result = found.block.writes[0].buffer.dtype.size_bytes
    moved = rows * (depth * found.a.buffer.dtype.size_bytes + columns * result)
    return rows * columns * depth >= PARALLEL_WORK or moved >= PARALLEL_BYTES


def gemm_amx(sch: Schedule, block: BlockRef, context: RuleContext) -> tuple[BlockRef, ...]:
    """Schedule a GEMM of small types on tiles."""
    nest = nest_of(sch, block)
    found = None if nest is None else contraction(nest)
    plan = None if found is None else amx_plan(found, context)
    return () if found is None or plan is None else amx(sch, block, found, plan)


def amx(sch: Schedule, c: BlockRef, found: Contraction, plan: AmxPlan) -> tuple[BlockRef, ...]:
    """Pad to whole tiles, pack B, and leave the sums to the instructions."""
    sch.pad(c, _multiples(found, plan))
    panel = copy_of(sch, c, found, found.b)
    padded = producer_of(sch, c, found, found.a)
    followers = followers_of(sch, c)
    registers = registers_of(sch, c, found, plan)
    loops = dict(enumerate(sch.get_loops(c)))
    cut = cut_loops(sch, found, plan, loops, blocks_first=_are_blocks_first(found, plan))
    sch.reverse_compute_at(registers.store, cut.js)
    done, at = follow(sch, followers, cut.js, plan.strips, plan.column_tiles)
    load_tiles(sch, found, plan, registers, cut)
    if padded is not None:
        _fill(sch, found, plan, padded, cut.io)
    if not plan.is_weight:
        sch.compute_at(panel, cut.jb)
    group(sch, found, plan, panel)
    if plan.is_weight and plan.ahead:
        attempt(sch, sch.prefetch, registers.b, 0, cut.ro, plan.ahead)
    elif plan.is_weight:  # the next block comes while this one is used
        attempt(sch, sch.prefetch, registers.b, 0, cut.jb, 1, cut.ro)
    if plan.next_rows:
        attempt(sch, sch.prefetch, registers.a, 0, cut.io, 1, cut.ro)
    init = use_tiles(sch, c, found, plan, registers, cut)
    pack(sch, found, plan, panel)
    overlap(sch, at, cut.ro, done, -(-found.guess(found.k) // plan.kind.depth))
    if plan.share:
        sch.parallel(_shared(sch, found, plan, cut))
    made = (c, panel, padded, *registers.all, init, *done)
    return tuple(x for x in made if x is not None)


def _are_blocks_first(found: Contraction, plan: AmxPlan) -> bool:
    """Whether a block of columns meets all outer rows before the next one does.

    What numbers not known divide is hard to see through: where such rows are shared out, or there
    are several, they come before blocks.
    """
    *outer, last = [found.extent(at) is not None for at in found.m]
    return all(outer) or (last and plan.share != "rows")


def _shared(sch: Schedule, found: Contraction, plan: AmxPlan, cut: Cut) -> LoopRef:
    """The loop that threads share out."""
    around = {"stack": cut.stack, "columns": cut.to_blocks, "rows": [*cut.outer, cut.io]}
    is_open = found.extent(found.n[-1]) is None
    if is_open and cut.jb in around[plan.share]:  # quotients by such a number say little
        sch.reorder(cut.jb, *cut.to_blocks[:-1])
        return cut.jb
    return fused(sch, around[plan.share])


@dataclass(frozen=True)
class Registers:
    """The blocks that load the operands of a product into tiles, and store it."""

    a: BlockRef
    b: BlockRef
    store: BlockRef

    @property
    def all(self) -> tuple[BlockRef, ...]:
        return self.a, self.b, self.store


def registers_of(sch: Schedule, c: BlockRef, found: Contraction, plan: AmxPlan) -> Registers:
    """Let a product read and write tiles."""
    short = scope_of(plan.tall)
    a = sch.cache_read(c, read_index(sch, c, operand(sch, c, found, found.a).buffer), short)
    b = sch.cache_read(c, read_index(sch, c, operand(sch, c, found, found.b).buffer), SCOPE)
    return Registers(a, b, sch.cache_write(c, 0, short))


@dataclass(frozen=True)
class Cut:
    """The loops around the tiles of a product."""

    stack: list[LoopRef]
    outer: list[LoopRef]  # those and the loops over blocks of columns and outer rows
    jb: LoopRef  # blocks of columns
    io: LoopRef  # blocks of rows
    js: LoopRef  # strips of columns: one block of registers
    sums: list[LoopRef]

    @property
    def ro(self) -> LoopRef:
        """Steps of the sum, of a tile each."""
        return self.sums[-1]

    @property
    def to_blocks(self) -> list[LoopRef]:
        """All loops down to that over blocks of columns."""
        return self.outer[: self.outer.index(self.jb) + 1]


def cut_loops(
    sch: Schedule,
    found: Contraction,
    plan: AmxPlan,
    loops: Mapping[int, LoopRef],
    *,
    blocks_first: bool,
) -> Cut:
    """Cut the loops of a product, named by their iterators, around blocks of registers."""
    stack = [loops[at] for at in (*found.batch, *found.n[:-1])]
    *row_outer, row = [loops[at] for at in found.m]
    io, im, ii = sch.split(row, [None, plan.row_tiles, plan.tall])
    jb, js, jm, ji = sch.split(loops[found.n[-1]], [None, plan.strips, plan.column_tiles, SIDE])
    *far, last = [loops[at] for at in found.k]
    ro, ri = sch.split(last, [None, plan.kind.depth])
    outer = [*stack, jb, *row_outer] if blocks_first else [*stack, *row_outer, jb]
    sch.reorder(*outer, io, js, *far, ro, im, jm, ii, ji, ri)
    sch.unroll(im)
    sch.unroll(jm)
    return Cut(stack, outer, jb, io, js, [*far, ro])


def load_tiles(
    sch: Schedule, found: Contraction, plan: AmxPlan, registers: Registers, cut: Cut
) -> None:
    """Load tiles where they are multiplied, laid out as registers hold them."""
    sch.compute_at(registers.a, cut.ro)
    sch.compute_at(registers.b, cut.ro)
    _lay_out(sch, found, plan, registers)


def use_tiles(
    sch: Schedule, c: BlockRef, found: Contraction, plan: AmxPlan, registers: Registers, cut: Cut
) -> BlockRef:
    """Leave loads, stores and sums to the instructions; the block that clears the sums."""
    _tensorize_copies(sch, found, plan, registers)
    init = sch.decompose_reduction(c, cut.sums[0])
    sch.tensorize(sch.get_loops(c)[-3], plan.kind.dot, rows=plan.tall)
    sch.tensorize(sch.get_loops(init)[-2], plan.kind.dot, rows=plan.tall)
    return init


def _fill(sch: Schedule, found: Contraction, plan: AmxPlan, padded: BlockRef, at: LoopRef) -> None:
    """Make the filled rows of A where they are read; before all if many blocks read them."""
    columns = found.extent(found.n[-1])
    once = columns is None or columns <= SIDE * plan.column_tiles * plan.strips
    if once or plan.share in ("stack", "rows"):
        sch.compute_at(padded, at)
    *outer, last = sch.get_loops(padded)
    _, lane = sch.split(last, [None, plan.kind.depth])
    attempt(sch, sch.vectorize, lane)
    if not once and plan.share == "columns":
        sch.parallel(outer[-1])


def _multiples(found: Contraction, plan: AmxPlan) -> list[int]:
    multiples = [1] * len(found.block.iters)
    multiples[found.m[-1]] = plan.tall * plan.row_tiles
    multiples[found.n[-1]] = SIDE * plan.column_tiles
    if found.extent(found.n[-1]) is None:
        multiples[found.n[-1]] *= plan.strips
    multiples[found.k[-1]] = plan.kind.depth
    return multiples


# --------------------------------------------------------------------------- results

LINE_BYTES = 64  # of the cache
FEW_STEPS = 4  # products of tiles in a sum


def followers_of(sch: Schedule, c: BlockRef) -> list[BlockRef]:
    """What reads the product and can be applied to a block of it."""
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


def follow(
    sch: Schedule, followers: list[BlockRef], at: LoopRef, strips: int, tiles: int
) -> tuple[list[BlockRef], LoopRef]:
    """Apply what follows to each block of registers' results, `tiles` wide, of `strips` at a loop.

    Small results are packed from several vectors at a time, and fill a line of the cache: bytes are
    made of several blocks beside each other, by the turns of another loop.
    """
    done, lanes = [], SIDE
    made = [block_of(sch.function, reference.name).writes[0].buffer for reference in followers]
    widest = max([buffer.dtype.size_bytes for buffer in made], default=LINE_BYTES)
    beside = LINE_BYTES // (SIDE * widest)  # tiles whose results fill a line
    if beside <= tiles:
        lanes = SIDE * max(1, beside)
    elif len(made) == 1 and tiles * strips % beside == 0:
        lanes = SIDE * beside
        at, _ = sch.split(at, [None, beside // tiles])
    for reference in followers:
        if attempt(sch, sch.reverse_compute_at, reference, at):
            _, lane = sch.split(sch.get_loops(reference)[-1], [None, lanes])
            attempt(sch, sch.vectorize, lane)
            done.append(reference)
    return done, at


def overlap(sch: Schedule, at: LoopRef, sums: LoopRef, done: list[BlockRef], steps: int) -> None:
    """What follows some sums runs between the products of the next, in a loop `at` over both.

    Tiles are multiplied by a unit of their own, which would wait for the vector units otherwise.
    Of short sums there is little to run between.
    """
    path = find_loop(sch.function, at.var)
    assert path is not None
    assert isinstance(path[-1], For)
    loop = path[-1]
    if steps < FEW_STEPS or not done or loop.extent is ONE:
        return
    parts = len(loop.body.stmts) if isinstance(loop.body, Seq) else 1
    stored = parts - len(done) - 1
    if stored < 1:  # in a loop of its own, with the sums
        return
    # Sums go to memory last: what follows those before them has read it by then.
    stages = [0] * (stored + 1) + [1] * len(done)
    order = [*range(stored), parts - 1, *range(stored, parts - 1)]
    if attempt(sch, sch.software_pipeline, at, stages, order):
        sch.annotate(sums, INTERLEAVE, HOST)
        for reference in done:
            loops = sch.get_loops(reference)
            sch.annotate(loops[loops.index(at) + 1], INTERLEAVE, GUEST)


# --------------------------------------------------------------------------- layouts


def _axis(found: Contraction, load: Load, at: int) -> int:
    """Which dimension of an operand an iterator runs over."""
    return next(i for i, e in enumerate(load.index) if e is found.nest.var(at))


def _map(rank: int, first: int, second: int, places: str) -> str:
    """The index map that takes two dimensions to `places`, behind all others."""
    names = [f"x{axis}" for axis in range(rank)]
    others = [names[axis] for axis in range(rank) if axis not in (first, second)]
    target = places.format(y=names[first], x=names[second])
    return f"({', '.join(names)}) -> ({', '.join([*others, target])})"


def _lay_out(sch: Schedule, found: Contraction, plan: AmxPlan, registers: Registers) -> None:
    """Tiles as registers hold them."""
    deep, tall = plan.kind.depth, plan.tall
    group(sch, found, plan, registers.b)
    i, k = _axis(found, found.a, found.m[-1]), _axis(found, found.a, found.k[-1])
    tiled = f"{{y}} // {tall}, {{x}} // {deep}, {{y}} % {tall}, {{x}} % {deep}"
    sch.transform_layout(registers.a, ("write", 0), _map(len(found.a.index), i, k, tiled))
    rank, i, j = _written(found)
    square = f"{{y}} // {tall}, {{x}} // 16, {{y}} % {tall}, {{x}} % 16"
    sch.transform_layout(registers.store, ("read", 0), _map(rank, i, j, square))


def group(sch: Schedule, found: Contraction, plan: AmxPlan, copy: BlockRef) -> None:
    """A copy of B in tiles, the steps of a group side by side."""
    k, j = _axis(found, found.b, found.k[-1]), _axis(found, found.b, found.n[-1])
    group = plan.kind.group
    grouped = f"{{x}} // 16, {{y}} // {group}, {{x}} % 16, {{y}} % {group}"
    sch.transform_layout(copy, ("write", 0), _map(len(found.b.index), k, j, grouped))


def _written(found: Contraction) -> tuple[int, int, int]:
    """Of the result: the number of dimensions, that of rows, that of columns."""
    body = found.block.body
    assert isinstance(body, Update)
    row, column = found.nest.var(found.m[-1]), found.nest.var(found.n[-1])
    return len(body.index), body.index.index(row), body.index.index(column)


def _tensorize_copies(
    sch: Schedule, found: Contraction, plan: AmxPlan, registers: Registers
) -> None:
    """One instruction loads or stores a tile."""
    kind = plan.kind
    k, j = _axis(found, found.b, found.k[-1]), _axis(found, found.b, found.n[-1])
    tensorize(sch, registers.b, len(found.b.index), k, j, (0, SIDE), f"{kind.load_b}_groups")
    i, k = _axis(found, found.a, found.m[-1]), _axis(found, found.a, found.k[-1])
    a_rank, rows = len(found.a.index), {"rows": plan.tall}
    tensorize(sch, registers.a, a_rank, i, k, (plan.tall, 0), f"{kind.load}_rows", **rows)
    rank, i, j = _written(found)
    tensorize(sch, registers.store, rank, i, j, (plan.tall, SIDE), kind.store, **rows)


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
    """Split a copy into tiles along two of its loops; one call each."""
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


def pack(sch: Schedule, found: Contraction, plan: AmxPlan, panel: BlockRef) -> None:
    """Loops of the packing: whole groups, along a few contiguous columns.

    Of all columns, those of different strips lie as far apart as makes them compete for the same
    places of the first cache.
    """
    rank = len(found.b.index)
    own = sch.get_loops(panel)[-rank:]
    k = own[_axis(found, found.b, found.k[-1])]
    j = own[_axis(found, found.b, found.n[-1])]
    rest = [loop for loop in own if loop not in (k, j)]
    ko, kg = sch.split(k, [None, plan.kind.group])
    jo, js, ji = sch.split(j, [None, PACKED_TOGETHER, SIDE])
    sch.reorder(*rest, jo, ko, js, ji, kg)
    if found.stride(found.b, found.k[-1]) is ONE:  # a group is contiguous
        sch.vectorize(kg)
    else:
        sch.unroll(kg)
    if plan.is_weight:
        sch.annotate(panel, CONSTANT, True)
