"""GEMM with register tiles: B packed into panels, k and n blocked for L2, fused epilogue.

    for kb, jb                 blocks of kc steps of k; blocks of nc panels that stay in L2
      for io, jp               register tiles of m, panels of n: mr x nr accumulators
        for k                  mr * nr multiply-adds, B prefetched ahead

The rule takes GEMMs with enough rows to reuse B, and those whose B is a constant, which is packed
once. Threads share blocks of n, tiles of m, or the batch. `gemm_schedule` has the schedule steps;
`gemv` takes GEMMs of few rows, which read B once, unpacked.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from tilewright.base.machine import WIDENED_LANES, Machine
from tilewright.base.target import Target
from tilewright.rules.context import RuleContext
from tilewright.rules.cost import TIE_SHARE, integer_cycles
from tilewright.rules.cpu.gemm_model import (
    BATCH,
    MAX_TAILS,
    NONE,
    M,
    N,
    as_flags,
    ceil_div,
    fits_registers,
    is_unrollable,
    issue_cycles,
    k_unroll_candidates,
    load_share,
    longest_chain,
    most_vectors,
    partial_cycles,
    shortest_part,
    step_cycles,
    strided_cycles,
    tiles_cycles,
)
from tilewright.rules.cpu.gemm_schedule import (
    BEFORE,
    PANEL,
    UNPACKED,
    WEIGHT,
    Blocking,
    has_columns,
    tiled,
)
from tilewright.rules.cpu.gemv import GEMV_MAX_ROWS
from tilewright.rules.cpu.squares import SQUARE_ELEMENTS, square_cycles
from tilewright.rules.match.contraction import Contraction, find_contraction
from tilewright.rules.rule import Rule
from tilewright.rules.sharing import MAX_THREAD_CHUNKS, piece_terms
from tilewright.rules.space import Column, Columns, Cost, Space, tile_sizes, unit
from tilewright.sym import ONE, Const, Expr
from tilewright.tensor.schedule import BlockRef, Schedule

MIN_PADDED_PANELS = 6  # with fewer panels, zeros in the last one waste too much


@dataclass(frozen=True)
class GemmPlan:
    """The blocking of a GEMM."""

    mr: int = unit("rows", "of the register tile")
    nr: int = unit("vectors", "of the register tile")
    parallel: str = unit("axis", "split across threads")
    m_chunks: int = unit("chunks of m", "split across threads; 1 for other axes")
    pack_a: bool = unit("flag", "A is packed per register tile")
    pack_b: str = unit("where", "B is packed: before all, per panel, as a weight, not at all")
    kc: int = unit("steps of k", "in a block of k; 0: k is not blocked")
    kc_outermost: bool = unit("flag", "blocks of k around blocks of n")
    nc_panels: int = unit("panels", "in a block of n that stays in L2")
    pad_n: bool = unit("flag", "n is padded to whole panels with zeros")
    k_unroll: int = unit("steps of k", "per iteration of the unrolled loop")
    prefetch_b: int = unit("steps of k", "prefetch distance of B; 0: no prefetch")
    prefetch_next_panel: bool = unit("flag", "the next block of B is prefetched meanwhile")
    prefetch_a: bool = unit("flag", "the next rows of A are prefetched meanwhile")
    alternate: bool = unit("flag", "alternating direction along n, call by call")


@dataclass(frozen=True)
class Sizes:
    """The sizes of a GEMM as numbers; dynamic extents are guessed."""

    batch: int
    m: int
    n: int  # vectors
    k: int
    lanes: int
    item_bytes: int

    @staticmethod
    def of(found: Contraction, context: RuleContext) -> Sizes:
        dtype = found.block.writes[0].buffer.dtype
        lanes = context.target.lanes(dtype.bits)
        return Sizes(
            found.guess(found.batch) * found.guess(found.n[:-1]),
            found.guess(found.m),
            ceil_div(found.nest.guess(found.n[-1]), lanes),
            found.guess(found.k),
            lanes,
            dtype.size_bytes,
        )

    @property
    def vector_bytes(self) -> int:
        return self.lanes * self.item_bytes

    @property
    def b_bytes(self) -> int:
        """Bytes of B of one batch element."""
        return self.k * self.n * self.vector_bytes


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Contraction | None:
    return find_contraction(sch, block)


# --------------------------------------------------------------------------- the space


def plans(found: Contraction, context: RuleContext) -> Space[GemmPlan] | None:
    """All blockings of a GEMM; None where register tiles do not pay."""
    size, target = Sizes.of(found, context), context.target
    is_constant = found.b.buffer.name in context.constants
    if size.lanes < 2 or found.nest.guess(found.n[-1]) < size.lanes // 2:
        return None
    if not is_constant and is_dot_products(found):
        return None  # dot products along contiguous k are the reduction rule's business
    is_dynamic_n = found.extent(found.n[-1]) is None
    streaming = is_constant and streams_weights(size, target.l2_bytes)
    may_pack = may_pack_a(found)
    machine = target.machine
    mr_max = min(machine.address_registers if may_pack else max_rows(found, machine), size.m)
    candidates: dict[str, tuple[int | str, ...]] = {
        "mr": tuple(range(1, mr_max + 1)),
        "nr": tile_sizes(min(most_vectors(context.target), size.n)),
        "parallel": (NONE,) if context.threads == 1 else (NONE, BATCH, N, M),
        "m_chunks": (1,) if context.threads == 1 else chunk_counts(found, mr_max, context),
        "pack_a": (0, 1) if may_pack else (0,),
        "pack_b": packings(found, context),
        "kc": kc_candidates(found, size, machine, UNPACKED in packings(found, context)),
        "kc_outermost": (0, 1),
        "nc_panels": (1,) if is_dynamic_n or streaming else panel_counts(size, context),
        "pad_n": (1,) if is_dynamic_n else (0, 1),
        "k_unroll": k_unroll_candidates(machine),
        "prefetch_b": (0, machine.lines_ahead, machine.memory_lines_ahead),
        "prefetch_next_panel": (0, 1),
        "prefetch_a": (0, 1),
        "alternate": (int(streaming),),
    }
    return Space(
        GemmPlan,
        candidates,
        lambda columns: _legal(found, size, context, columns),
        stages=(
            ("mr", "nr", "parallel", "m_chunks", "pack_a", "pack_b"),
            ("kc", "kc_outermost"),
            ("nc_panels", "pad_n"),
            ("k_unroll", "prefetch_b", "prefetch_next_panel", "prefetch_a"),
        ),
        from_each="kc",
    )


def is_dot_products(found: Contraction) -> bool:
    """Whether m is small and B is contiguous along k (B transposed)."""
    along_k = found.stride(found.b, found.k[-1]) is ONE
    return along_k and found.guess(found.m) <= GEMV_MAX_ROWS


def streams_weights(size: Sizes, l2_bytes: int) -> bool:
    """Whether a GEMM is bound by streaming weights: few rows, and B exceeds L2."""
    return size.m <= GEMV_MAX_ROWS and size.batch * size.b_bytes > l2_bytes


def max_rows(found: Contraction, machine: Machine) -> int:
    """How many rows of A a register tile can read without packing.

    With a dynamic row stride each row needs an address register of its own. Where the stride is a
    multiple of L1's set period, all rows compete for the same sets.
    """
    most = machine.address_registers
    if found.guess(found.m) <= most:
        return most  # B is read once
    held, period = machine.l1d.same_set_lines, machine.l1d.period_bytes
    few = max(1, held - 2)  # B and C may fall into the same sets too
    stride = found.stride(found.a, found.m[-1])
    if not isinstance(stride, Const):
        return few
    if found.extent(found.m[-1]) is None:
        return min(most, MAX_TAILS)
    shared = gcd(int(stride.value) * found.a.buffer.dtype.size_bytes, period)
    return min(most, max(held, few * period // shared))


def may_pack_a(found: Contraction) -> bool:
    """Whether A can be packed per register tile: it lies as [m, k] or [k, m], and all sizes are
    static."""
    extents = [found.extent(at) for at in (*found.m, *found.n, *found.k)]
    is_plain = len(found.m) == len(found.k) == 1 and None not in extents
    row = [found.nest.var(at) for at in (found.m[-1], found.k[-1])] if is_plain else []
    return is_plain and list(found.a.index[-2:]) in (row, row[::-1])


def packings(found: Contraction, context: RuleContext) -> tuple[str, ...]:
    """The candidates of `pack_b`: where B may be packed into panels."""
    iterators: set[Expr] = {it.var for it in found.block.iters}
    if not all(at in iterators or isinstance(at, Const) for at in found.b.index):
        return (UNPACKED,)
    if found.b.buffer.name in context.constants:
        return (WEIGHT,)
    if found.unpacks_b:  # B is dequantized on the fly: it never exists as a whole in memory
        return (PANEL,)
    is_contiguous = found.stride(found.b, found.n[-1]) is ONE
    return (UNPACKED, PANEL, BEFORE) if is_contiguous else (PANEL, BEFORE)


def kc_candidates(
    found: Contraction, size: Sizes, machine: Machine, may_stay_unpacked: bool = False
) -> tuple[int, ...]:
    """The candidates of `kc`: divisors of k, so that all blocks are alike; 0 leaves k unblocked.

    At least, one vector column of a block of B takes a share of L1, so that partial sums rarely go
    to memory; at most, two panels of two vectors stay in L2 beside what streams through. k is
    blocked only where the panels of a whole k leave no room for the next ones, where B may stay
    unpacked (few of its rows are in L2 at a time then), or, given enough rows, where a single
    accumulation chain of floats would be too inaccurate.
    """
    steps = found.extent(found.k[0]) if len(found.k) == 1 else None
    panels_bytes = 2 * 2 * size.vector_bytes  # a step of k
    least = machine.l1d.block_bytes // size.vector_bytes
    most, whole = machine.l2.kept_bytes // panels_bytes, longest_whole(size, machine)
    longest = longest_chain(found.block.writes[0].buffer.dtype)
    if steps is None or steps <= min(least if may_stay_unpacked else whole, longest):
        return (0,)
    divisors = [d for d in range(1, min(most, steps - 1) + 1) if steps % d == 0]
    parts = [d for d in divisors if d >= least]
    if steps > longest and size.m > machine.address_registers:
        chains = [d for d in parts or divisors if least // 2 <= d <= longest]
        if chains:
            return tuple(chains)
    return (0, *parts) if may_stay_unpacked or steps > whole else (0,)


def longest_whole(size: Sizes, machine: Machine) -> int:
    """The largest k that is not blocked: two packed panels of two vectors stream through L2 with
    half as much again."""
    passing = machine.l2.passing_bytes // (2 * 2 * size.vector_bytes)
    return passing + passing // 2


def part_terms(found: Contraction, plan: GemmPlan, context: RuleContext) -> int:
    """Terms per partial sum where a long sum is accumulated in several chains in registers; 0: one
    chain.

    Used where k is not blocked, and either registers are left for a second set of accumulators or a
    single chain would be too inaccurate.
    """
    dtype, steps = found.block.writes[0].buffer.dtype, found.guess(found.k)
    is_short = not dtype.is_float or steps < 2 * shortest_part()
    if plan.kc or is_short or found.nest.is_dynamic(found.k):
        return 0
    is_free = fits_registers(2 * plan.mr, plan.nr, context.target)
    return shortest_part() if is_free or steps > longest_chain(dtype) else 0


def panel_counts(size: Sizes, context: RuleContext) -> tuple[int, ...]:
    """The candidates of `nc_panels`: divisors of the number of panels for some nr."""
    totals = {ceil_div(size.n, nr) for nr in tile_sizes(min(most_vectors(context.target), size.n))}
    return tuple(n for n in range(1, max(totals) + 1) if any(total % n == 0 for total in totals))


def row_tiles(found: Contraction, mr: int) -> int:
    """Register tiles along the outermost iterator of m."""
    if not found.m:
        return 1
    return int(ceil_div(found.nest.guess(found.m[0]), row_tile(found, mr)[0]))


def chunk_counts(found: Contraction, mr_max: int, context: RuleContext) -> tuple[int, ...]:
    """The candidates of `m_chunks`: numbers of chunks of equal size; 1 for the other parallel
    axes."""
    totals, threads = {row_tiles(found, mr) for mr in range(1, mr_max + 1)}, context.threads
    most = 2 * MAX_THREAD_CHUNKS * threads
    return (1, *[n for n in range(threads, most + 1) if any(t % n == 0 for t in totals)])


def n_chunks(blocks: Column, parallel: Column, threads: int) -> Column:
    """Parallel chunks of n where the loop over blocks of k is outermost: a few per thread if they
    divide."""
    chunks = np.where(parallel == N, threads, 1)
    for per_thread in range(2, MAX_THREAD_CHUNKS + 1):
        is_even = (parallel == N) & (blocks % (per_thread * threads) == 0)
        chunks = np.where(is_even, per_thread * threads, chunks)
    return chunks


def _legal(found: Contraction, size: Sizes, context: RuleContext, c: Columns) -> Column:
    target, machine, mr, nr = context.target, context.target.machine, c["mr"], c["nr"]
    legal: Column = fits_registers(mr, nr, target)
    is_m, is_n = c["parallel"] == M, c["parallel"] == N
    legal &= (c["parallel"] != BATCH) | (size.batch > 1)
    legal &= (mr <= max_rows(found, target.machine)) | (c["pack_a"] == 1)
    legal &= (c["pack_a"] == 0) | (size.m > mr)
    tiles = np.array([row_tiles(found, rows) for rows in range(1, int(mr.max(initial=1)) + 1)])
    is_whole = tiles[mr - 1] % c["m_chunks"] == 0
    if found.m and found.extent(found.m[0]) is None:  # of a dynamic m, each tile is a chunk
        is_whole = c["m_chunks"] == 1
        legal &= ~is_m | is_whole
    else:
        legal &= is_whole & (is_m == (c["m_chunks"] > 1))
    legal &= (c["pack_b"] == UNPACKED) | (c["pack_b"] == WEIGHT) | ((c["pack_b"] == BEFORE) == is_m)
    if streams_weights(size, target.l2_bytes):
        panel = nr * size.k * size.vector_bytes
        few = nr <= machine.fma_latency_cycles  # accumulators that hide the latency of one FMA
        legal &= (nr <= 2) | (few & (panel <= machine.l2.block_bytes))
    panels = ceil_div(size.n, nr)
    legal &= (panels % c["nc_panels"] == 0) & (
        ~is_n | (c["nc_panels"] <= ceil_div(panels, context.threads))
    )
    legal &= (c["nc_panels"] == 1) | (c["pad_n"] == 1) | (size.n % nr == 0)
    legal &= (c["kc"] == 0) | (size.m > mr)
    chain = longest_chain(found.block.writes[0].buffer.dtype)
    is_long = size.k > min(longest_whole(size, machine), chain)
    may_cut = (c["pack_b"] == UNPACKED) | is_long
    legal &= (c["kc"] == 0) | may_cut
    blocks = ceil_div(size.n, nr * c["nc_panels"])
    chunks = n_chunks(blocks, c["parallel"], context.threads)
    legal &= (c["kc_outermost"] == 0) | ((c["kc"] > 0) & ~is_m & (blocks % chunks == 0))
    if found.extent(found.n[-1]) is not None:
        may_pad = (c["pack_b"] != UNPACKED) & (
            (size.n % nr == 0) | (size.n >= MIN_PADDED_PANELS * nr)
        )
        legal &= (c["pad_n"] == 0) | may_pad
    if found.unpacks_b:
        legal &= nr * size.lanes % WIDENED_LANES == 0
    steps = np.where(c["kc"] > 0, c["kc"], found.extent(found.k[-1]) or 1)
    legal &= is_unrollable(steps, mr * nr, c["k_unroll"], machine)
    legal &= c["k_unroll"] <= np.maximum(1, machine.lines_ahead // nr)  # prefetches in flight
    legal &= (c["prefetch_next_panel"] == 0) | ((c["prefetch_b"] > 0) & (c["pack_b"] != UNPACKED))
    return legal


# --------------------------------------------------------------------------- the cost


def cost(found: Contraction, c: Columns, context: RuleContext) -> Cost:
    """Cycles of the thread that finishes last."""
    size, machine, threads = Sizes.of(found, context), context.target.machine, context.threads
    mr, nr, kc = c["mr"], c["nr"], np.where(c["kc"] > 0, c["kc"], size.k)
    is_m, is_n, is_batch = (c["parallel"] == axis for axis in (M, N, BATCH))
    chunks = np.where(c["m_chunks"] > 1, c["m_chunks"], ceil_div(size.m, mr))
    chunk_rows = ceil_div(ceil_div(size.m, mr), chunks) * mr
    m = np.where(is_m, np.minimum(size.m, ceil_div(chunks, threads) * chunk_rows), size.m)
    block = nr * c["nc_panels"]
    n = np.where(
        is_n, np.minimum(size.n, ceil_div(ceil_div(size.n, block), threads) * block), size.n
    )
    batch = np.where(is_batch, ceil_div(size.batch, threads), size.batch)
    fma = batch * size.k * tiles_cycles(m, n, mr, nr, machine)
    # Vectors of B, and rows of A that exceed L1, are loaded from L2 beside the multiply-adds.
    rows_bytes = np.where(mr * kc * size.item_bytes > machine.l1d.kept_bytes, mr, 0)
    step_bytes = nr * size.vector_bytes + rows_bytes * size.item_bytes
    from_l2 = machine.exposed_share / 2 * fma * step_bytes / step_cycles(mr, nr, machine)
    passes = ceil_div(m, mr)
    b_bytes = batch * size.k * n * size.vector_bytes
    panel_bytes = np.maximum(kc, 1) * nr * size.vector_bytes
    a_bytes = m * kc * size.item_bytes
    is_packed = (c["pack_b"] == PANEL) | (c["pack_b"] == BEFORE)
    reread_bytes = np.where(c["pack_b"] == UNPACKED, c["nc_panels"], 1) * panel_bytes
    exceeds_l1 = reread_bytes > machine.l1d.kept_bytes  # hardware does not prefetch rows
    return Cost.of(
        fma=fma,
        from_l2=from_l2 / machine.l2.bytes_per_cycle,
        integers=_integers(found, context, batch * size.k * passes * ceil_div(n, nr), mr, nr),
        loads=fma * load_share(mr, nr, machine),
        tails=fma * TIE_SHARE * as_flags(size.m % mr > 0, size.n % nr > 0)
        + batch * size.k * ceil_div(n, nr) * _b_stall(size, m % mr, nr, machine),
        shared=_replicated_reads(size, c, machine, batch, ceil_div(chunks, threads)),
        wake=np.where(c["parallel"] == NONE, 0.0, machine.wake_cycles),
        **piece_terms(fma, _chunks_per_thread(size, c, chunks, context), machine),
        pack=_pack(found, size, c, context, b_bytes, (passes, batch * ceil_div(n, nr)), is_packed),
        pack_a=_pack_a(found, size, c, machine, batch * m, ceil_div(n, block)),
        steps_a=_column_reads_a(found, size, c, machine, batch * passes * ceil_div(n, nr)),
        crowded=machine.exposed_share * fma * _is_crowded(mr, nr, context.target),
        spread=_broadcast_a(found, c, context.target, batch * size.k * passes * ceil_div(n, nr)),
        strided=_strided_b(found, size, c, context.target, batch * size.k * passes),
        parts=_k_blocking(found, size, c, context, (m, n, mr, nr), fma),
        panels=_n_blocking(size, c, context, (m, mr, nr), panel_bytes, fma),
        padding=_padding(found, size, c, machine, fma),
        unroll=batch * size.k / c["k_unroll"],
        prefetch=_prefetch(
            size, c, machine, fma, passes, exceeds_l1, a_bytes, _b_row_bytes(found, size, c)[0]
        ),
    )


def _integers(
    found: Contraction, context: RuleContext, steps: Column, mr: Column, nr: Column
) -> Column:
    """Extra cycles of integer types over floats, for so many steps of k of a register tile."""
    types = (found.block.writes[0].buffer.dtype, found.a.buffer.dtype, found.b.buffer.dtype)
    more: Column = integer_cycles(types, context.target.machine, steps * mr * nr, steps * (mr + nr))
    return more


def _is_crowded(mr: Column, nr: Column, target: Target) -> Column:
    """Whether a tile takes nearly all registers, so that other values of the loop may spill
    accumulators."""
    crowded: Column = ~fits_registers(mr, nr, target, spare=target.spare_registers)
    return crowded


def _chunks_per_thread(size: Sizes, c: Columns, chunks: Column, context: RuleContext) -> Column:
    """Parallel chunks (of m, n or batch) that one thread runs; 0 without threads."""
    blocks = ceil_div(size.n, c["nr"] * c["nc_panels"])
    around = n_chunks(blocks, c["parallel"], context.threads)
    along_n = np.where(c["kc_outermost"] == 1, around, blocks)
    pieces = np.where(c["parallel"] == M, chunks, np.where(c["parallel"] == N, along_n, 1))
    own: Column = (c["parallel"] != NONE) * ceil_div(size.batch * pieces, context.threads)
    return own


def _b_stall(size: Sizes, rows: Column, nr: Column, machine: Machine) -> Column:
    """Cycles per step of k that a tail tile stalls on B: with few rows, L2's bandwidth limits
    it."""
    step = nr * size.vector_bytes / machine.l2.bytes_per_cycle
    late: Column = np.maximum(0, step - step_cycles(rows, nr, machine))
    return np.where(rows > 0, late, 0)


def _replicated_reads(
    size: Sizes, c: Columns, machine: Machine, batch: Column, rounds: Column
) -> Column:
    """Cycles for the operand that every thread reads in full: A where n is split, B where m is
    split (once more for each further chunk of a thread)."""
    a_bytes = batch * size.m * size.k * size.item_bytes
    b_bytes = (1 + rounds) * batch * size.b_bytes
    moved = np.where(c["parallel"] == N, a_bytes, np.where(c["parallel"] == M, b_bytes, 0))
    return machine.exposed_share * moved / machine.memory_bytes_per_cycle


def _pack(
    found: Contraction,
    size: Sizes,
    c: Columns,
    context: RuleContext,
    b_bytes: Column,
    tiles: tuple[Column, Column],
    is_packed: Column,
) -> Column:
    """Cycles to pack B, or to read its rows unpacked.

    Unpacked, the first row tile brings a block of B to L2, where the others find it, unless its
    rows compete for the same sets; then every row tile fetches whole lines from beyond L2. Packing
    per panel reads a short piece of each row, which ends before the hardware prefetcher has
    started.
    """
    machine = context.target.machine
    once = b_bytes / machine.memory_bytes_per_cycle
    row_lines = c["nc_panels"] * c["nr"] * size.vector_bytes / machine.l2.line_bytes
    late_share = np.minimum(1, machine.lines_ahead / row_lines)
    scattered = b_bytes / machine.scattered_bytes_per_cycle
    moved = 2 * b_bytes / machine.l2.bytes_per_cycle  # read and written
    late = np.where(c["pack_b"] == PANEL, late_share * (scattered - once), 0)
    packed = _transposed(found, c, context, b_bytes / size.item_bytes, once + moved, late)
    passes, panels = tiles
    line_bytes = np.maximum(c["nr"] * size.vector_bytes, machine.l2.line_bytes)
    lines = panels * size.k * line_bytes / machine.scattered_bytes_per_cycle
    kc = np.where(c["kc"] > 0, c["kc"], size.k)
    stride, row_bytes = _b_row_bytes(found, size, c)
    stays = kc <= machine.l2.kept_rows(stride, row_bytes)
    again = np.where(stays, 0, (passes - 1) * lines)
    again += passes * b_bytes * _in_place_cycles(size, stride, machine)
    is_near = size.b_bytes <= machine.l2.block_bytes
    in_place = np.where(is_near, 0, machine.exposed_rows_share * once + again)
    return np.where(is_packed, packed, np.where(c["pack_b"] == UNPACKED, in_place, 0))


def _transposed(
    found: Contraction,
    c: Columns,
    context: RuleContext,
    elements: Column,
    moved: Column,
    late: Column,
) -> Column:
    """Cycles to pack B, given those to move it and those that its latency adds.

    Where B is not contiguous along n, elements are moved lane by lane; or by squares, beside memory
    accesses of rows that the hardware prefetches, where a block of k is a multiple of a square.
    """
    machine = context.target.machine
    if found.unpacks_b or found.stride(found.b, found.n[-1]) is ONE:
        return moved + late
    blocks = c["kc"].tolist()
    are_squares = {kc: square_steps(found, kc, context) > 0 for kc in set(blocks)}
    by_squares = np.maximum(moved, elements * square_cycles(machine))
    by_lanes = moved + late + elements * machine.gather_lane_cycles
    return np.where([are_squares[kc] for kc in blocks], by_squares, by_lanes)


def _in_place_cycles(size: Sizes, stride_bytes: int, machine: Machine) -> float:
    """Cycles per byte of unpacked B from L2, for rows of this stride.

    The latency of lines prefetched to L1 is hidden, unless rows compete for the same sets there;
    vectors that straddle two lines are loaded twice.
    """
    l1d = machine.l1d
    is_kept = l1d.same_set_lines * l1d.sets_apart(stride_bytes) >= machine.lines_ahead
    is_split = stride_bytes % min(size.vector_bytes, l1d.line_bytes) > 0
    exposed = (machine.exposed_l2_share if is_kept else 1.0) / machine.l2.bytes_per_cycle
    return exposed + is_split / (size.vector_bytes * machine.loads_per_cycle)


def _b_row_bytes(found: Contraction, size: Sizes, c: Columns) -> tuple[int, Column]:
    """The row stride of B in bytes, and the bytes of a row within a block of n."""
    apart = found.stride(found.b, found.k[-1])
    row_bytes = size.n * size.vector_bytes
    stride = int(apart.value) * size.item_bytes if isinstance(apart, Const) else row_bytes
    return stride, np.minimum(row_bytes, c["nc_panels"] * c["nr"] * size.vector_bytes)


def _pack_a(
    found: Contraction,
    size: Sizes,
    c: Columns,
    machine: Machine,
    rows: Column,
    blocks: Column,
) -> Column:
    """Cycles to pack A: row tiles once per block of n (L2 to L1), columns once."""
    moved = rows * size.k * size.item_bytes
    once = 2 * moved / machine.memory_bytes_per_cycle
    copied = once if has_columns(found) else 2 * moved * blocks / machine.l2.bytes_per_cycle
    return np.where(c["pack_a"] == 1, copied, 0)


def _column_reads_a(
    found: Contraction, size: Sizes, c: Columns, machine: Machine, tiles: Column
) -> Column:
    """Cycles to read A in place where it is [k, m]: each step of k touches another line, which
    stays in L1 only while all of them fit, and in L2 if all of A does."""
    line, l1d = machine.l1d.line_bytes, machine.l1d
    if not has_columns(found):
        return np.zeros(len(c["pack_a"]))
    apart = found.stride(found.a, found.k[-1])
    stride_bytes = int(apart.value) * size.item_bytes if isinstance(apart, Const) else line
    is_near = size.m * size.k * size.item_bytes <= machine.l2.kept_bytes
    rate = machine.l2.bytes_per_cycle if is_near else machine.scattered_bytes_per_cycle
    late = tiles * size.k * line / rate
    fit = min(l1d.kept_bytes // line, l1d.same_set_lines * l1d.sets_apart(stride_bytes))
    return np.where((c["pack_a"] == 1) | (size.k <= fit), 0, late)


def _broadcast_a(found: Contraction, c: Columns, target: Target, steps: Column) -> Column:
    """Cycles to broadcast elements of A where a load cannot: one operation per row and step.

    Free where A is contiguous along m or k is one loop: elements are loaded as a vector and
    multiplied lane by lane. Windows (several loops of k) rule that out.
    """
    along_m = bool(found.m) and found.stride(found.a, found.m[-1]) is ONE
    if target.has_broadcast_load or along_m or len(found.k) == 1:
        return np.zeros(len(c["mr"]))
    operations: Column = steps * c["mr"] / target.machine.fma_per_cycle
    return operations


def _strided_b(
    found: Contraction, size: Sizes, c: Columns, target: Target, sweeps: Column
) -> Column:
    """Cycles to load unpacked vectors of B that are strided or partial. With a dynamic n, the last
    tile tests for every vector how many of its elements exist."""
    stride, extent = found.stride(found.b, found.n[-1]), found.extent(found.n[-1])
    apart = int(stride.value) if isinstance(stride, Const) else size.lanes
    vector = strided_cycles(apart, size.lanes, target.machine) if apart > 1 else 0
    is_masked = apart <= 1 and target.has_masked_load(found.b.buffer.dtype.bits)
    rest = 0 if is_masked or extent is None else extent % size.lanes
    asked = (
        0.0 if is_masked or extent is not None else partial_cycles(size.lanes - 1, target.machine)
    )
    row = size.n * vector + partial_cycles(rest, target.machine) + c["nr"] * asked
    return np.where(c["pack_b"] == UNPACKED, sweeps * row, 0)


def _k_blocking(
    found: Contraction,
    size: Sizes,
    c: Columns,
    context: RuleContext,
    tile: tuple[Column, Column, Column, Column],
    fma: Column,
) -> Column:
    """Cycles by the choice of `kc`: blocking k sends partial sums through memory; not blocking it
    sends panels of B or rows of A through L2 again."""
    m, n, mr, nr = tile
    machine = context.target.machine
    l1, l2 = machine.l1d, machine.l2
    kc, block = np.maximum(c["kc"], 1), nr * c["nc_panels"]
    good = np.where(c["pack_b"] == PANEL, l1.size_bytes, l2.passing_bytes // 2)
    good = good / (nr * size.vector_bytes)
    # Each block of k reads and writes all partial sums; the epilogue reads them once more.
    blocks = ceil_div(size.n, block)
    chunk = ceil_div(blocks, n_chunks(blocks, c["parallel"], context.threads)) * block
    sums_bytes = m * np.where(c["kc_outermost"] == 1, chunk, block) * size.vector_bytes
    # Rows of A that stream by evict partial sums from L2, and a tile waits for its own.
    row_bytes = kc * size.item_bytes
    stride_bytes = _row_stride_bytes(found, size)
    fits = m <= l2.kept_rows(stride_bytes, row_bytes)
    stay = fits & (m * row_bytes + sums_bytes <= l2.size_bytes - l2.block_bytes)
    rate = np.where(stay, l2.bytes_per_cycle, machine.scattered_bytes_per_cycle)
    partial = 2 * m * n * size.vector_bytes * (size.k / kc + 1) / rate
    misfit = TIE_SHARE * fma * np.abs(np.log2(kc / good))
    outer = np.where(c["kc_outermost"] == fits, 0, TIE_SHARE * fma)
    beyond = ceil_div(m, mr) * size.k * n * size.vector_bytes / machine.scattered_bytes_per_cycle
    whole = np.where(size.k * nr * size.vector_bytes > l2.kept_bytes, beyond, 0)
    rows_bytes = np.where(c["kc"] > 0, kc, size.k) * size.item_bytes
    again = machine.exposed_share * fma * (size.m > l2.kept_rows(stride_bytes, rows_bytes))
    total: Column = np.where(c["kc"] > 0, partial + misfit + outer, whole) + again
    return total


def _row_stride_bytes(found: Contraction, size: Sizes) -> int:
    """The row stride of A in bytes; where unknown, that of an element, which spreads over all
    sets."""
    apart = found.stride(found.a, found.m[-1]) if found.m and not has_columns(found) else None
    return int(apart.value) * size.item_bytes if isinstance(apart, Const) else size.item_bytes


def _n_blocking(
    size: Sizes,
    c: Columns,
    context: RuleContext,
    tile: tuple[Column, Column, Column],
    panel_bytes: Column,
    fma: Column,
) -> Column:
    """Cycles by the choice of `nc_panels`: A is read again for every block of n. A block of B that
    outgrows its share of L2 comes from beyond for every row tile, hidden behind multiply-adds as
    far as these take as long."""
    m, mr, nr = tile
    machine = context.target.machine
    half = is_passing(size, c, ceil_div(m, mr), machine) & (c["pack_b"] != PANEL)
    room = np.where(half, machine.l2.passing_bytes, machine.l2.kept_bytes)
    block_bytes = c["nc_panels"] * panel_bytes
    blocks = ceil_div(size.n, nr * c["nc_panels"])
    a_bytes = m * size.k * size.item_bytes
    again = 2 * TIE_SHARE * blocks * a_bytes / machine.l2.bytes_per_cycle
    outgrown = (c["nc_panels"] > 1) & (block_bytes > room)
    parts = np.where(c["kc"] > 0, size.k / np.maximum(c["kc"], 1), 1)
    beyond = np.where(outgrown, blocks * parts * ceil_div(m, mr) * block_bytes, 0)
    transfer = beyond / machine.scattered_bytes_per_cycle
    total: Column = again + machine.exposed_share * transfer + np.maximum(0, transfer - fma)
    return total


def _padding(found: Contraction, size: Sizes, c: Columns, machine: Machine, fma: Column) -> Column:
    """Cycles for the tail of n: padded with zeros it is read and multiplied, unpadded it is more
    code. With a dynamic n, any number of vectors may remain."""
    nr = c["nr"]
    if found.extent(found.n[-1]) is None:
        computed: Column = fma * (nr - 1) / (2 * size.n)
        return computed
    vectors = np.where(c["pad_n"] == 1, ceil_div(size.n, nr) * nr, size.n) - size.n
    share = vectors / max(1, size.n)
    ragged = 2 * TIE_SHARE * ((c["pad_n"] == 0) & (size.n % nr > 0))
    weights = share * size.b_bytes / machine.memory_bytes_per_cycle
    read: Column = weights * (size.m <= GEMV_MAX_ROWS)
    total: Column = read + fma * (TIE_SHARE * (share > 0) + ragged)
    return total


def is_passing(size: Sizes, c: Columns, passes: Column, machine: Machine) -> Column:
    """Whether loading a block of B takes a good part of the time of its multiply-adds, so that the
    next block should be prefetched meanwhile and both need room in L2."""
    brought = size.item_bytes / machine.scattered_bytes_per_cycle  # per element, reused m times
    used = size.m / (size.lanes * machine.fma_per_cycle)
    is_dear = machine.exposed_share * used <= brought
    found: Column = (passes > 1) & is_dear & (c["pack_b"] != UNPACKED)
    return found


def _prefetch(
    size: Sizes,
    c: Columns,
    machine: Machine,
    fma: Column,
    passes: Column,
    exceeds_l1: Column,
    a_bytes: Column,
    b_stride: int,
) -> Column:
    """Tie-breaking cycles for prefetches that are missing, or that hide nothing."""
    wanted = np.where(passes > 1, machine.lines_ahead, machine.memory_lines_ahead)
    # Rows of an unpacked B that compete for the same sets would be evicted before they are used.
    held = machine.l1d.kept_rows(b_stride, c["nr"] * size.vector_bytes)
    is_held = (c["pack_b"] != UNPACKED) | (held >= machine.memory_lines_ahead)
    wanted = np.where(is_held, wanted, np.minimum(wanted, machine.lines_ahead))
    wanted = np.where(exceeds_l1, wanted, 0)
    mr, nr = c["mr"], c["nr"]
    is_idle = issue_cycles(mr, nr, machine) < mr * nr / machine.fma_per_cycle
    misses = as_flags(
        c["prefetch_b"] != wanted,
        (c["prefetch_next_panel"] == 1) != (is_passing(size, c, passes, machine) & exceeds_l1),
        (c["prefetch_a"] == 1)
        != ((a_bytes > machine.l2.kept_bytes) & (is_idle | (c["pack_a"] == 1))),
    )
    return fma * TIE_SHARE / size.lanes * misses


# --------------------------------------------------------------------------- the schedule


def apply(
    sch: Schedule, found: Contraction, plan: GemmPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    size, machine = Sizes.of(found, context), context.target.machine
    lanes, row_lines = size.lanes, ceil_div(plan.nr * size.vector_bytes, machine.l2.line_bytes)
    blocks = ceil_div(size.n, plan.nr * plan.nc_panels)
    n_parts = int(n_chunks(np.array(blocks), np.array(plan.parallel), context.threads))
    blocking = Blocking(
        row_tile(found, plan.mr),
        plan.nr,
        lanes,
        plan.parallel,
        plan.m_chunks if plan.parallel == M else n_parts,
        plan.nc_panels,
        plan.nr * lanes if plan.pad_n else lanes,
        plan.kc,
        plan.kc_outermost,
        plan.pack_b,
        plan.k_unroll,
        plan.prefetch_b,
        plan.prefetch_next_panel,
        plan.prefetch_a,
        plan.alternate,
        plan.pack_a,
        max(1, machine.lines_ahead // row_lines),
        0 if plan.pack_b == WEIGHT else square_steps(found, plan.kc, context),
        part_terms(found, plan, context),
    )
    return tiled(sch, BlockRef(found.nest.name), found, blocking)


def square_steps(found: Contraction, kc: int, context: RuleContext) -> int:
    """Steps of k in a tile of B, stored as [n, k], that is packed by squares: the most that divide
    a block of k, since lanes of a partial tile are moved one by one; 0 where B cannot be packed
    so."""
    steps, dtype = kc or found.extent(found.k[-1]), found.b.buffer.dtype
    lanes = context.target.lanes(dtype.bits)
    is_along_k = found.stride(found.b, found.k[-1]) is ONE
    if not is_along_k or steps is None or not 1 < lanes <= SQUARE_ELEMENTS**2:
        return 0
    most = min(steps, context.target.machine.lines_ahead * lanes)
    widths = range(SQUARE_ELEMENTS, most + 1, SQUARE_ELEMENTS)
    return max((width for width in widths if steps % width == 0), default=0)


def row_tile(found: Contraction, rows: int) -> tuple[int, ...]:
    """How many of each iterator of m a register tile spans: the inner ones in full while they
    fit."""
    taken: list[int] = []
    for at in reversed(found.m):
        extent = found.extent(at)
        size = rows if extent is None else min(rows, extent)
        taken.append(size)
        rows = rows // size if size == extent else 1
    return tuple(reversed(taken))


GEMM = Rule("gemm", GemmPlan, match, plans, cost, apply)
