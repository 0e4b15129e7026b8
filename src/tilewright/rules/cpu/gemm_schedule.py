"""Schedule steps that turn a contraction into a blocked, packed, register-tiled GEMM.

    for kb                   blocks of kc steps of k, where k is long
      for jb                 blocks of nc panels that stay in L2
        pack B[:, jb]          unless packed before
        for io                 register tiles of m
          pack A[io, :]          where its rows would compete for sets of L1
          for jp               panels
            for k              mr x nr multiply-adds in registers
            the epilogue (bias, activation), and the store

Where k is not blocked, a tile is finished in registers and the epilogue is applied there. Where it
is, tiles are accumulated in memory and the epilogue follows the last block of k. The loop over
blocks of k is inside of that over blocks of n where the rows of A would not stay in L2 otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.errors import ScheduleError
from tilewright.base.machine import WIDENED_LANES
from tilewright.rules.cpu.epilogue import fuse_epilogue
from tilewright.rules.cpu.gemm_model import BATCH, NONE, M, N
from tilewright.rules.cpu.register_transpose import SQUARE_ELEMENTS, transpose_squares
from tilewright.rules.match.contraction import Contraction, find_contraction, operands
from tilewright.rules.match.nest import attempt, block_of, fused
from tilewright.sym import ONE
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import ALTERNATING, Buffer, Load, Store
from tilewright.tensor.passes.cut_sums import PART_TERMS
from tilewright.tensor.passes.tails import TAILS
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule
from tilewright.tensor.visit import output_buffers

BEFORE, PANEL, WEIGHT, UNPACKED = "before", "panel", "weight", "none"


@dataclass(frozen=True)
class Blocking:
    """The blocking that the steps apply; rules make it from their plans."""

    mr: tuple[int, ...]  # rows of the register tile, per iterator of m
    nr: int  # vectors of the register tile
    lanes: int
    parallel: str  # the axis split across threads: N, M, BATCH or NONE
    parallel_chunks: int  # of m or n
    nc_panels: int  # panels of nr vectors in a block of n that stays in L2
    pad_n_to: int  # elements
    kc: int  # steps of k in a block of k; 0: k is not blocked
    kc_outermost: bool  # blocks of k outside of blocks of n, or inside
    pack_b: str  # BEFORE, PANEL, WEIGHT or UNPACKED
    k_unroll: int
    prefetch_b: int  # prefetch distance in steps of k; 0: none
    prefetch_next_panel: bool  # the next block of B while this one is used
    prefetch_a: bool  # the next rows of A while these are used
    alternate: bool = False  # alternating direction along n, call by call
    pack_a: bool = False  # per register tile, by rows or by columns
    pack_rows_ahead: int = 1  # prefetch distance, in rows of B, while packing
    pack_squares: int = 0  # steps of k in a tile of B packed by squares; 0: lane by lane
    part_terms: int = 0  # terms per partial sum in registers; 0: a single chain

    @property
    def width(self) -> int:
        """Elements of n in a panel."""
        return self.nr * self.lanes


@dataclass
class _Loops:
    """The loops around a register tile, outermost first."""

    outer: list[LoopRef]
    chunk: list[LoopRef]
    part: list[LoopRef]
    block: LoopRef
    rows: list[LoopRef]
    panel: LoopRef
    done: LoopRef  # at the end of each of its iterations, results are complete

    @property
    def inside(self) -> LoopRef:
        """The innermost loop around a block of B."""
        return self.block if self.done != self.block or not self.part else self.part[-1]

    @property
    def inner(self) -> LoopRef:
        """The innermost loop around a tile."""
        return self.panel


def tiled(sch: Schedule, c: BlockRef, found: Contraction, plan: Blocking) -> tuple[BlockRef, ...]:
    """Tile, pack, fuse the epilogue, prefetch and parallelize."""
    sch.pad(c, _multiples(found, plan))
    panel = copy_of(sch, c, found, found.b) if plan.pack_b != UNPACKED else None
    rows = copy_of(sch, c, found, found.a) if plan.pack_a else None
    padding = producer_of(sch, c, found, found.b) if panel is None else None
    if padding is not None:  # last: a padded read is a select, where `operands` finds no load
        sch.compute_inline(padding)
    inline_crop(sch, c)
    tile = _block_k(sch, c, found, plan) if plan.kc else c
    loops, own = _split(sch, c, found, plan)
    if plan.kc:
        sch.set_scope(tile, 0, "local")
        sch.compute_at(tile, loops.inner)
        own = _order_tile(sch, tile, loops, found, plan)
        stores = _place_epilogue_after_k(sch, c, loops, plan)
    else:
        stores = fuse_epilogue(sch, c, loops.inner, plan.lanes, plan.width)
    depth = own[: len(found.k)]
    sch.decompose_reduction(tile, depth[0])
    near: LoopRef | None = None
    if plan.k_unroll > 1:
        depth[-1], near = unrolled_sum(sch, depth[-1], plan.k_unroll)
    if plan.part_terms:
        for loop in depth:
            sch.annotate(loop, PART_TERMS, plan.part_terms)
    scheduled = [c, tile, *stores]
    if panel is not None:
        if plan.pack_b == PANEL:
            sch.compute_at(panel, loops.inside)
        _pack_panels(sch, panel, found, plan)
        scheduled.append(panel)
    if rows is not None:
        if has_columns(found):
            is_each = bool(loops.outer) and plan.parallel in (NONE, BATCH)
            if is_each:  # the columns of one matrix stay in L2, those of a batch may not
                sch.compute_at(rows, loops.outer[-1])
            _pack_columns(sch, rows, found, plan)
            if plan.parallel != NONE and not is_each:
                sch.parallel(sch.get_loops(rows)[0])
        else:
            sch.compute_at(rows, loops.rows[-1])
            _pack_rows(sch, rows, found, plan)
        scheduled.append(rows)
    if plan.prefetch_b:
        read = _operand_read_index(sch, tile, found, found.b)
        far = -(-plan.prefetch_b // plan.k_unroll)
        attempt(sch, sch.prefetch, tile, read, depth[-1], far, near, True)
        if plan.prefetch_next_panel and panel is not None and plan.pack_b == PANEL:
            if not plan.pack_squares:  # which read rows that the hardware prefetches
                attempt(sch, sch.prefetch, panel, 0, loops.inside, 1, depth[-1])
        elif plan.prefetch_next_panel:
            attempt(sch, sch.prefetch, tile, read, loops.inside, 1, depth[-1])
    if plan.prefetch_a and loops.rows:
        reader = tile if rows is None or has_columns(found) else rows
        read = _operand_read_index(sch, tile, found, found.a) if reader is tile else 0
        attempt(sch, sch.prefetch, reader, read, loops.rows[-1], 1, depth[-1])
    if plan.parallel != NONE:
        shared = {N: [*loops.outer, loops.done], BATCH: loops.outer}
        shared[M] = [*loops.outer, *loops.chunk]
        shared_loop = fused(sch, shared[plan.parallel])
        sch.parallel(shared_loop)
        if plan.parallel == M and not loops.rows:
            loops.rows.append(shared_loop)
    if found.m and found.extent(found.m[-1]) is None:
        sch.annotate(loops.rows[-1], TAILS, True)
    if plan.alternate:
        _alternate(sch, c, found, plan)
    return tuple(dict.fromkeys(scheduled))


def _alternate(sch: Schedule, c: BlockRef, found: Contraction, plan: Blocking) -> None:
    """Traverse n in alternating direction, starting with the panels used last. Without threads, the
    loop becomes a parallel one of one thread: the runtime keeps the direction."""
    loop, *_ = sch.get_loops(c)
    if plan.parallel == NONE:
        loop = fused(sch, sch.get_loops(c)[: len(found.batch) + len(found.n)])
        if not attempt(sch, sch.parallel, loop):
            return
        sch.annotate(loop, "threads", 1)
    sch.annotate(loop, ALTERNATING, True)


def unrolled_sum(sch: Schedule, depth: LoopRef, steps: int) -> tuple[LoopRef, LoopRef]:
    """Unroll the reduction: fewer branches and address updates per multiply-add."""
    far, near = sch.split(depth, [None, steps])
    sch.unroll(near)
    return far, near


# --------------------------------------------------------------------------- operands


def _multiples(found: Contraction, plan: Blocking) -> list[int]:
    """The multiples that extents are padded to."""
    multiples = [1] * len(found.block.iters)
    multiples[found.n[-1]] = plan.pad_n_to
    return multiples


def operand(sch: Schedule, block: BlockRef, found: Contraction, which: Load) -> Load:
    """The load that a contraction's operand has become by now: copied, padded."""
    before, now = (
        operands(each, is_masked=True) for each in (found.block, block_of(sch.function, block.name))
    )
    assert before is not None
    assert now is not None
    return now[before.index(which)]


def read_index(sch: Schedule, block: BlockRef, buffer: Buffer) -> int:
    reads = block_of(sch.function, block.name).reads
    return next(at for at, read in enumerate(reads) if read.buffer is buffer)


def _operand_read_index(sch: Schedule, block: BlockRef, found: Contraction, which: Load) -> int:
    """Which of a block's reads is an operand, original or copied."""
    reads = [read.buffer for read in block_of(sch.function, block.name).reads]
    is_read = which.buffer in reads
    return reads.index(which.buffer if is_read else operand(sch, block, found, which).buffer)


def producer_of(sch: Schedule, c: BlockRef, found: Contraction, which: Load) -> BlockRef | None:
    """The block that pads an operand, if any."""
    buffer = operand(sch, c, found, which).buffer
    return None if buffer is which.buffer else maker_of(sch, c, buffer)


def maker_of(sch: Schedule, reader: BlockRef, buffer: Buffer) -> BlockRef | None:
    """The block that writes a buffer another one reads."""
    for producer in sch.get_producers(reader):
        if block_of(sch.function, producer.name).writes[0].buffer is buffer:
            return producer
    return None


def transposed_along_k(sch: Schedule, found: Contraction) -> Contraction:
    """Copy A to make it contiguous along k, unless it is; the copy is left to the transpose
    rule."""
    if found.stride(found.a, found.k[-1]) is ONE:
        return found
    c = BlockRef(found.nest.name)
    sch.reindex_read(c, found.read_index(found.a), "global")
    made = find_contraction(sch, c)
    assert made is not None
    return made


def copy_of(sch: Schedule, c: BlockRef, found: Contraction, which: Load) -> BlockRef:
    """A block that copies an operand: the one that dequantizes or pads it, or a new one."""
    made = producer_of(sch, c, found, which)
    if found.unpacks_b and which is found.b:
        maker = maker_of(sch, made or c, which.buffer)
        assert maker is not None
        if made is None:
            return maker
        sch.compute_inline(maker)
    if made is not None:
        return made
    buffer = operand(sch, c, found, which).buffer
    return sch.cache_read(c, read_index(sch, c, buffer), "global")


def _pack_panels(sch: Schedule, panel: BlockRef, found: Contraction, plan: Blocking) -> None:
    """Pack B as [panel, k, n in panel]."""
    depth = {found.nest.var(at) for at in found.k}
    column = found.nest.var(found.n[-1])
    names = [f"x{axis}" for axis in range(len(found.b.index))]
    of = dict(zip(names, found.b.index, strict=True))
    stack = [name for name in names if of[name] not in depth and of[name] is not column]
    deep = [name for name in names if of[name] in depth]
    j = next(name for name in names if of[name] is column)
    places = [*stack, f"{j} // {plan.width}", *deep, f"{j} % {plan.width}"]
    sch.transform_layout(panel, ("write", 0), f"({', '.join(names)}) -> ({', '.join(places)})")
    own = sch.get_loops(panel)[-len(names) :]
    if plan.pack_b == WEIGHT:
        sch.annotate(panel, CONSTANT, True)
    column_loop = own[names.index(j)]
    rest = [loop for loop in own if loop != column_loop]
    lanes = WIDENED_LANES if found.unpacks_b else plan.lanes
    far, lane = sch.split(column_loop, [None, lanes])
    contiguous = found.unpacks_b or found.stride(found.b, found.n[-1]) is ONE
    if contiguous:
        sch.reorder(*rest, far, lane)
    elif not _pack_squares(sch, panel, found, far, rest, lane, plan.pack_squares):
        sch.reorder(far, *rest, lane)  # a few columns at a time, whose lines stay in L1
    sch.vectorize(lane)
    if plan.pack_b == PANEL and contiguous and rest and not found.unpacks_b:
        attempt(sch, sch.prefetch, panel, 0, rest[-1], plan.pack_rows_ahead)
    if plan.pack_b == BEFORE and plan.parallel != NONE:
        sch.parallel(sch.get_loops(panel)[0])


def _pack_squares(
    sch: Schedule,
    panel: BlockRef,
    found: Contraction,
    far: LoopRef,
    rest: list[LoopRef],
    lane: LoopRef,
    width: int,
) -> bool:
    """Pack B, contiguous along k, by squares that are transposed in registers, where it can be."""
    if not width:
        return False
    point = sch.checkpoint()
    try:
        deep, step = sch.split(rest[-1], [None, width])
        sch.reorder(*rest[:-1], far, deep, step, lane)
        copy = sch.cache_read(panel, 0, "local")
        sch.compute_at(copy, deep)
        dims = [
            next(at for at, index in enumerate(found.b.index) if index is found.nest.var(it))
            for it in (found.n[-1], found.k[-1])
        ]
        transpose_squares(sch, copy, found.b.buffer.rank, dims[0], dims[1], SQUARE_ELEMENTS)
    except ScheduleError as error:
        sch.abandon(point, "transpose_squares", error)
        return False
    return True


def _pack_rows(sch: Schedule, rows: BlockRef, found: Contraction, plan: Blocking) -> None:
    """Pack the rows of a register tile at a stride that puts neighbouring rows into different sets
    of L1."""
    rank = len(found.a.index)
    _, lane = sch.split(sch.get_loops(rows)[-1], [None, plan.lanes])
    sch.vectorize(lane)
    sch.storage_align(rows, 0, rank - 2, 2 * plan.lanes, plan.lanes)


def has_columns(found: Contraction) -> bool:
    """Whether A lies as [k, m], contiguous along m."""
    return found.a.index[-1] is found.nest.var(found.m[-1]) if found.m else False


def _pack_columns(sch: Schedule, columns: BlockRef, found: Contraction, plan: Blocking) -> None:
    """Pack A as [m // mr, k, m % mr] before the GEMM: in place, each step of k is another line."""
    names = [f"x{axis}" for axis in range(len(found.a.index))]
    *rest, k, m = names
    (rows,) = plan.mr
    places = [*rest, f"{m} // {rows}", k, f"{m} % {rows}"]
    sch.transform_layout(columns, ("write", 0), f"({', '.join(names)}) -> ({', '.join(places)})")
    _, lane = sch.split(sch.get_loops(columns)[-1], [None, rows])
    if rows > 1:
        sch.vectorize(lane)


# --------------------------------------------------------------------------- loops


def _split(
    sch: Schedule, c: BlockRef, found: Contraction, plan: Blocking
) -> tuple[_Loops, list[LoopRef]]:
    """Split and order the loops; returns those around a register tile, and those of the tile."""
    loops = sch.get_loops(c)  # reduction loops come last
    outer = [loops[at] for at in (*found.batch, *found.n[:-1])]
    rows, inner = [], []
    for position, size in zip(found.m, plan.mr, strict=True):
        loop = loops[position]
        if size > 1:
            loop, near = sch.split(loop, [None, size])
            inner.append(near)
        rows.append(loop)
    chunk: list[LoopRef] = []
    sizes = [None, plan.nc_panels, plan.nr, plan.lanes]
    column = loops[found.n[-1]]
    if plan.kc_outermost:
        far, jb, jp, ji, jv = sch.split(column, [plan.parallel_chunks, *sizes])
        chunk = [far]
    else:
        jb, jp, ji, jv = sch.split(column, sizes)
        if plan.parallel == M and found.extent(found.m[0]) is None:
            chunk, rows = rows[:1], rows[1:]
        elif plan.parallel == M and rows:
            far, rows[0] = sch.split(rows[0], [plan.parallel_chunks, None])
            chunk = [far]
    depth = loops[len(found.nest.spatial) :]
    part = depth if plan.kc else []
    own = [] if plan.kc else depth
    between = [*part, jb] if plan.kc_outermost else [jb, *part]
    sch.reorder(*outer, *chunk, *between, *rows, jp, *own, *inner, ji, jv)
    done = chunk[-1] if plan.kc_outermost else jb
    for loop in (*inner, ji):
        sch.unroll(loop)
    sch.vectorize(jv)
    return _Loops(outer, chunk, part, jb, rows, jp, done), [*own, *inner, ji, jv]


def _block_k(sch: Schedule, c: BlockRef, found: Contraction, plan: Blocking) -> BlockRef:
    """Block k by rfactor: the new block computes a partial sum, the old one adds it to the
    result."""
    far, _ = sch.split(sch.get_loops(c)[found.k[0]], [None, plan.kc])
    return sch.rfactor(far, 0)


def _order_tile(
    sch: Schedule, tile: BlockRef, loops: _Loops, found: Contraction, plan: Blocking
) -> list[LoopRef]:
    """Order the loops of a partial-sum tile after it was moved under those of the result, k
    outermost.

    On entry they follow the order of the block's iterators: block of k, spatial, k.
    """
    all_loops = sch.get_loops(tile)
    own = all_loops[all_loops.index(loops.inner) + 1 :]
    part, *spatial, depth = own
    rows = [spatial[at] for at in found.m]
    column = spatial[found.n[-1]]
    rest = [loop for loop in spatial if loop not in rows and loop != column]
    ji, jv = sch.split(column, [plan.nr, plan.lanes])
    sch.reorder(part, *rest, depth, *rows, ji, jv)
    for loop in (*rows, ji):
        sch.unroll(loop)
    sch.vectorize(jv)
    return [depth, *rows, ji, jv]


# --------------------------------------------------------------------------- results


def inline_crop(sch: Schedule, c: BlockRef) -> None:
    """Inline the block that crops padding into its consumer."""
    consumers = sch.get_consumers(c)
    if len(consumers) != 1 or not sch.get_consumers(consumers[0]):
        return
    crop = block_of(sch.function, consumers[0].name)
    is_copy = isinstance(crop.body, Store) and isinstance(crop.body.value, Load)
    if not is_copy or crop.writes[0].buffer in output_buffers(sch.function):
        return
    attempt(sch, sch.compute_inline, consumers[0])


def _place_epilogue_after_k(
    sch: Schedule, c: BlockRef, loops: _Loops, plan: Blocking
) -> list[BlockRef]:
    """Zero the result before the first block of k; apply the epilogue after the last."""
    sch.decompose_reduction(c, loops.part[0])
    done: list[BlockRef] = []
    for reference in sch.get_consumers(c):
        point = sch.checkpoint()
        try:
            sch.reverse_compute_at(reference, loops.done)
            _, lane = sch.split(sch.get_loops(reference)[-1], [None, plan.lanes])
            sch.vectorize(lane)
            done.append(reference)
        except ScheduleError as error:
            sch.abandon(point, f"epilogue {reference.name}", error)
    return done
