"""The predicted cycles of the blockings of a GEMM."""

from __future__ import annotations

import numpy as np

from tilewright.base.machine import Machine
from tilewright.base.target import Target
from tilewright.rules.context import RuleContext
from tilewright.rules.cost import TIE_SHARE, integer_cycles
from tilewright.rules.cpu.gemm_model import (
    BATCH,
    NONE,
    M,
    N,
    as_flags,
    ceil_div,
    fits_registers,
    has_spare_slots,
    load_share,
    partial_cycles,
    step_cycles,
    strided_cycles,
    tiles_cycles,
)
from tilewright.rules.cpu.gemm_plan import Sizes, n_chunks, square_steps
from tilewright.rules.cpu.gemm_schedule import BEFORE, PANEL, UNPACKED, has_columns
from tilewright.rules.cpu.gemv import GEMV_MAX_ROWS
from tilewright.rules.cpu.register_transpose import square_cycles
from tilewright.rules.match.contraction import Contraction
from tilewright.rules.sharing import piece_terms
from tilewright.rules.space import Column, Columns, Cost
from tilewright.sym import ONE, Const


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
    is_idle = has_spare_slots(mr, nr, c["k_unroll"], machine)
    misses = as_flags(
        c["prefetch_b"] != wanted,
        (c["prefetch_next_panel"] == 1) != (is_passing(size, c, passes, machine) & exceeds_l1),
        (c["prefetch_a"] == 1)
        != ((a_bytes > machine.l2.kept_bytes) & (is_idle | (c["pack_a"] == 1))),
    )
    return fma * TIE_SHARE / size.lanes * misses
