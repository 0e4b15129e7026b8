"""GEMM in register tiles: B packed in panels, k and n blocked for L2, the epilogue fused.

    for parts of k, blocks of n           what the threads share out, and what stays in L2
      for tiles of m, panels of n         mr x nr accumulators, one micro-kernel
        for k                             mr * nr multiply-adds, B prefetched ahead

A GEMM with rows to share what is read of B, or whose B is a constant that is packed once, is of
this kind. `gemm_schedule` has the steps; `gemv` takes GEMMs of few rows, whose B is read once.
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
from tilewright.rules.match.contraction import Contraction, find_contraction
from tilewright.rules.rule import Rule
from tilewright.rules.sharing import MAX_THREAD_CHUNKS, piece_terms
from tilewright.rules.space import Column, Columns, Cost, Space, tile_sizes, unit
from tilewright.sym import ONE, Const, Expr
from tilewright.tensor.schedule import BlockRef, Schedule

FILLED_PANELS = 6  # of so many panels, one may be filled up with zeros


@dataclass(frozen=True)
class GemmPlan:
    """What is decided about a GEMM."""

    mr: int = unit("rows", "of the register tile")
    nr: int = unit("vectors", "of the register tile")
    parallel: str = unit("axis", "that threads share out")
    m_chunks: int = unit("chunks of m", "that threads share out; 1 for other axes")
    pack_a: bool = unit("flag", "a tile's part of A is copied to one place")
    pack_b: str = unit("where", "B is copied to panels")
    kc: int = unit("steps of k", "in a part of the sum; 0: it is not cut")
    kc_outermost: bool = unit("flag", "parts of k around blocks of n")
    nc_panels: int = unit("panels", "in a block of n that stays in L2")
    pad_n: bool = unit("flag", "the last panel is filled up with zeros")
    k_unroll: int = unit("steps of k", "that are unrolled")
    prefetch_b: int = unit("steps of k", "ahead; 0: none")
    prefetch_next_panel: bool = unit("flag", "the next block of B comes while this one is used")
    prefetch_a: bool = unit("flag", "the next rows of A come while these are used")
    alternate: bool = unit("flag", "every other call goes through n backwards")


@dataclass(frozen=True)
class Sizes:
    """A GEMM in numbers; dynamic extents are guessed."""

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
        """One matrix B."""
        return self.k * self.n * self.vector_bytes


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Contraction | None:
    return find_contraction(sch, block)


# --------------------------------------------------------------------------- the space


def plans(found: Contraction, context: RuleContext) -> Space[GemmPlan] | None:
    """All blockings of a GEMM; None where register tiles do not serve."""
    size, target = Sizes.of(found, context), context.target
    is_constant = found.b.buffer.name in context.constants
    if size.lanes < 2 or found.nest.guess(found.n[-1]) < size.lanes // 2:
        return None
    if not is_constant and is_dot_products(found):
        return None  # sums along what is contiguous are a reduction's business
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
        "kc": parts_of_k(found, size, machine, UNPACKED in packings(found, context)),
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
    """Whether few rows meet columns of B that are contiguous along k."""
    along_k = found.stride(found.b, found.k[-1]) is ONE
    return along_k and found.guess(found.m) <= GEMV_MAX_ROWS


def streams_weights(size: Sizes, l2_bytes: int) -> bool:
    """Whether a GEMM of few rows does little but read weights that exceed L2."""
    return size.m <= GEMV_MAX_ROWS and size.batch * size.b_bytes > l2_bytes


def max_rows(found: Contraction, machine: Machine) -> int:
    """Rows of A that can be read side by side.

    At dynamic distances each needs an address of its own. At multiples of the period of L1, all
    compete for the same set.
    """
    most = machine.address_registers
    if found.guess(found.m) <= most:
        return most  # B is read once
    held, period = machine.l1d.same_set_lines, machine.l1d.period_bytes
    few = max(1, held - 2)  # where B and results fall into the same sets too
    stride = found.stride(found.a, found.m[-1])
    if not isinstance(stride, Const):
        return few
    if found.extent(found.m[-1]) is None:
        return min(most, MAX_TAILS)
    shared = gcd(int(stride.value) * found.a.buffer.dtype.size_bytes, period)
    return min(most, max(held, few * period // shared))


def may_pack_a(found: Contraction) -> bool:
    """Whether tiles of A can be copied: it lies as [m, k] or [k, m], and all sizes are known."""
    extents = [found.extent(at) for at in (*found.m, *found.n, *found.k)]
    is_plain = len(found.m) == len(found.k) == 1 and None not in extents
    row = [found.nest.var(at) for at in (found.m[-1], found.k[-1])] if is_plain else []
    return is_plain and list(found.a.index[-2:]) in (row, row[::-1])


def packings(found: Contraction, context: RuleContext) -> tuple[str, ...]:
    """Where B may be copied to panels."""
    iterators: set[Expr] = {it.var for it in found.block.iters}
    if not all(at in iterators or isinstance(at, Const) for at in found.b.index):
        return (UNPACKED,)
    if found.b.buffer.name in context.constants:
        return (WEIGHT,)
    if found.unpacks_b:  # the whole of it is never in memory
        return (PANEL,)
    is_contiguous = found.stride(found.b, found.n[-1]) is ONE
    return (UNPACKED, PANEL, BEFORE) if is_contiguous else (PANEL, BEFORE)


def parts_of_k(
    found: Contraction, size: Sizes, machine: Machine, may_stay: bool = False
) -> tuple[int, ...]:
    """Into what k may be cut: divisors, so that all parts are alike; 0 is all of it.

    A vector of B takes a share of L1 at least, so that partial sums are seldom in memory, and so
    much that two panels of two vectors stay in L2 beside what streams by. A sum whose panels leave
    no room for the next ones may be cut. One of very many floats is always cut, where there are
    rows for it: in one chain it would lose digits. Shorter ones are cut where B may stay in its
    place: few of its rows are in L2 at a time then.
    """
    steps = found.extent(found.k[0]) if len(found.k) == 1 else None
    panels_bytes = 2 * 2 * size.vector_bytes  # a step of k
    least = machine.l1d.block_bytes // size.vector_bytes
    most, whole = machine.l2.kept_bytes // panels_bytes, longest_whole(size, machine)
    longest = longest_chain(found.block.writes[0].buffer.dtype)
    if steps is None or steps <= min(least if may_stay else whole, longest):
        return (0,)
    divisors = [d for d in range(1, min(most, steps - 1) + 1) if steps % d == 0]
    parts = [d for d in divisors if d >= least]
    if steps > longest and size.m > machine.address_registers:
        chains = [d for d in parts or divisors if least // 2 <= d <= longest]
        if chains:
            return tuple(chains)
    return (0, *parts) if may_stay or steps > whole else (0,)


def longest_whole(size: Sizes, machine: Machine) -> int:
    """Steps of k that packed panels are not cut for: two panels of two vectors pass through L2, and
    half as much again."""
    passing = machine.l2.passing_bytes // (2 * 2 * size.vector_bytes)
    return passing + passing // 2


def part_terms(found: Contraction, plan: GemmPlan, context: RuleContext) -> int:
    """Of parts of a sum in registers: where k is not cut, and the parts' total is a register too or
    one chain would lose digits; 0 is a single chain."""
    dtype, steps = found.block.writes[0].buffer.dtype, found.guess(found.k)
    is_short = not dtype.is_float or steps < 2 * shortest_part()
    if plan.kc or is_short or found.nest.is_dynamic(found.k):
        return 0
    is_free = fits_registers(2 * plan.mr, plan.nr, context.target)
    return shortest_part() if is_free or steps > longest_chain(dtype) else 0


def panel_counts(size: Sizes, context: RuleContext) -> tuple[int, ...]:
    """How many panels a block of n may have: what divides their number for some nr."""
    totals = {ceil_div(size.n, nr) for nr in tile_sizes(min(most_vectors(context.target), size.n))}
    return tuple(n for n in range(1, max(totals) + 1) if any(total % n == 0 for total in totals))


def row_tiles(found: Contraction, mr: int) -> int:
    """Tiles along the outermost iterator of m."""
    if not found.m:
        return 1
    return int(ceil_div(found.nest.guess(found.m[0]), row_tile(found, mr)[0]))


def chunk_counts(found: Contraction, mr_max: int, context: RuleContext) -> tuple[int, ...]:
    """Into how many chunks of equal size m may be cut for threads; 1 for the other axes."""
    totals, threads = {row_tiles(found, mr) for mr in range(1, mr_max + 1)}, context.threads
    most = 2 * MAX_THREAD_CHUNKS * threads
    return (1, *[n for n in range(threads, most + 1) if any(t % n == 0 for t in totals)])


def n_chunks(blocks: Column, parallel: Column, threads: int) -> Column:
    """Into how many chunks blocks of n go where parts of k are around them: a few per thread."""
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
    if found.m and found.extent(found.m[0]) is None:  # each tile of a dynamic m is a chunk
        is_whole = c["m_chunks"] == 1
        legal &= ~is_m | is_whole
    else:
        legal &= is_whole & (is_m == (c["m_chunks"] > 1))
    legal &= (c["pack_b"] == UNPACKED) | (c["pack_b"] == WEIGHT) | ((c["pack_b"] == BEFORE) == is_m)
    if streams_weights(size, target.l2_bytes):
        panel = nr * size.k * size.vector_bytes
        few = nr <= machine.fma_latency_cycles  # sums that hide the latency of one
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
        may_pad = (c["pack_b"] != UNPACKED) & ((size.n % nr == 0) | (size.n >= FILLED_PANELS * nr))
        legal &= (c["pad_n"] == 0) | may_pad
    if found.unpacks_b:
        legal &= nr * size.lanes % WIDENED_LANES == 0
    steps = np.where(c["kc"] > 0, c["kc"], found.extent(found.k[-1]) or 1)
    legal &= is_unrollable(steps, mr * nr, c["k_unroll"], machine)
    legal &= c["k_unroll"] <= np.maximum(1, machine.lines_ahead // nr)  # prefetched at once
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
    # Vectors of B, and rows of A that L1 does not keep, come from L2 beside the multiply-adds.
    rows_bytes = np.where(mr * kc * size.item_bytes > machine.l1d.kept_bytes, mr, 0)
    step_bytes = nr * size.vector_bytes + rows_bytes * size.item_bytes
    from_l2 = machine.exposed_share / 2 * fma * step_bytes / step_cycles(mr, nr, machine)
    passes = ceil_div(m, mr)
    b_bytes = batch * size.k * n * size.vector_bytes
    panel_bytes = np.maximum(kc, 1) * nr * size.vector_bytes
    a_bytes = m * kc * size.item_bytes
    is_packed = (c["pack_b"] == PANEL) | (c["pack_b"] == BEFORE)
    reread_bytes = np.where(c["pack_b"] == UNPACKED, c["nc_panels"], 1) * panel_bytes
    exceeds_l1 = reread_bytes > machine.l1d.kept_bytes  # rows in place: no stream to follow
    return Cost.of(
        fma=fma,
        from_l2=from_l2 / machine.l2.bytes_per_cycle,
        integers=_integers(found, context, batch * size.k * passes * ceil_div(n, nr), mr, nr),
        loads=fma * load_share(mr, nr, machine),
        tails=fma * TIE_SHARE * as_flags(size.m % mr > 0, size.n % nr > 0)
        + batch * size.k * ceil_div(n, nr) * _starved(size, m % mr, nr, machine),
        shared=_shared(size, c, machine, batch, ceil_div(chunks, threads)),
        wake=np.where(c["parallel"] == NONE, 0.0, machine.wake_cycles),
        **piece_terms(fma, _own_pieces(size, c, chunks, context), machine),
        pack=_pack(found, size, c, machine, b_bytes, (passes, batch * ceil_div(n, nr)), is_packed),
        pack_a=_pack_a(found, size, c, machine, batch * m, ceil_div(n, block)),
        steps_a=_steps_a(found, size, c, machine, batch * passes * ceil_div(n, nr)),
        crowded=machine.exposed_share * fma * _is_crowded(mr, nr, context.target),
        spread=_spread(found, c, context.target, batch * size.k * passes * ceil_div(n, nr)),
        strided=_strided(found, size, c, context.target, batch * size.k * passes),
        parts=_parts(found, size, c, context, (m, n, mr, nr), fma),
        panels=_panels(size, c, context, (m, mr, nr), panel_bytes, fma),
        padding=_padding(found, size, c, machine, fma),
        unroll=batch * size.k / c["k_unroll"],
        prefetch=_prefetch(size, c, machine, fma, passes, exceeds_l1, a_bytes),
    )


def _integers(
    found: Contraction, context: RuleContext, steps: Column, mr: Column, nr: Column
) -> Column:
    """What integers take beyond floats, in so many steps of register tiles."""
    types = (found.block.writes[0].buffer.dtype, found.a.buffer.dtype, found.b.buffer.dtype)
    more: Column = integer_cycles(types, context.target.machine, steps * mr * nr, steps * (mr + nr))
    return more


def _is_crowded(mr: Column, nr: Column, target: Target) -> Column:
    """Whether a tile takes nearly all registers: what else the loop holds may spill its sums."""
    crowded: Column = ~fits_registers(mr, nr, target, spare=target.spare_registers)
    return crowded


def _own_pieces(size: Sizes, c: Columns, chunks: Column, context: RuleContext) -> Column:
    """Chunks of m, or blocks or chunks of n, of all batches that a thread takes."""
    blocks = ceil_div(size.n, c["nr"] * c["nc_panels"])
    around = n_chunks(blocks, c["parallel"], context.threads)
    along_n = np.where(c["kc_outermost"] == 1, around, blocks)
    pieces = np.where(c["parallel"] == M, chunks, np.where(c["parallel"] == N, along_n, 1))
    own: Column = (c["parallel"] != NONE) * ceil_div(size.batch * pieces, context.threads)
    return own


def _starved(size: Sizes, rows: Column, nr: Column, machine: Machine) -> Column:
    """What the last rows of a panel wait, per step of k: for few, B does not come fast enough."""
    step = nr * size.vector_bytes / machine.l2.bytes_per_cycle
    late: Column = np.maximum(0, step - step_cycles(rows, nr, machine))
    return np.where(rows > 0, late, 0)


def _shared(size: Sizes, c: Columns, machine: Machine, batch: Column, rounds: Column) -> Column:
    """What every thread reads though they share out the other operand: A by n, B by m, which comes
    once for each of a thread's chunks."""
    a_bytes = batch * size.m * size.k * size.item_bytes
    b_bytes = (1 + rounds) * batch * size.b_bytes
    moved = np.where(c["parallel"] == N, a_bytes, np.where(c["parallel"] == M, b_bytes, 0))
    return machine.exposed_share * moved / machine.memory_bytes_per_cycle


def _pack(
    found: Contraction,
    size: Sizes,
    c: Columns,
    machine: Machine,
    b_bytes: Column,
    tiles: tuple[Column, Column],
    is_packed: Column,
) -> Column:
    """Packing B, or reading rows of it in place: the first tile of rows brings a block to L2, and
    the others find it there, unless its rows compete for the same sets; then whole lines come from
    beyond for every tile. Packing reads a block of each row: short ones end before a prefetcher has
    begun."""
    once = b_bytes / machine.memory_bytes_per_cycle
    row_lines = c["nc_panels"] * c["nr"] * size.vector_bytes / machine.l2.line_bytes
    late_share = np.minimum(1, machine.lines_ahead / row_lines)
    scattered = b_bytes / machine.scattered_bytes_per_cycle
    packed = np.where(c["pack_b"] == PANEL, once + late_share * (scattered - once), once)
    packed += 2 * b_bytes / machine.l2.bytes_per_cycle  # written to where it is read
    passes, panels = tiles
    line_bytes = np.maximum(c["nr"] * size.vector_bytes, machine.l2.line_bytes)
    lines = panels * size.k * line_bytes / machine.scattered_bytes_per_cycle
    kc = np.where(c["kc"] > 0, c["kc"], size.k)
    stride, row_bytes = _b_rows_bytes(found, size, c)
    stays = kc <= machine.l2.kept_rows(stride, row_bytes)
    again = np.where(stays, 0, (passes - 1) * lines)
    again += passes * b_bytes * _in_place_cycles(size, stride, machine)
    is_near = size.b_bytes <= machine.l2.block_bytes
    in_place = np.where(is_near, 0, machine.exposed_rows_share * once + again)
    return np.where(is_packed, packed, np.where(c["pack_b"] == UNPACKED, in_place, 0))


def _in_place_cycles(size: Sizes, stride_bytes: int, machine: Machine) -> float:
    """Of a byte of B out of L2, by rows at such a distance. What is prefetched to L1 is hidden,
    unless rows compete for the same sets there; vectors that lie in two lines are loaded twice."""
    l1d = machine.l1d
    is_kept = l1d.same_set_lines * l1d.sets_apart(stride_bytes) >= machine.lines_ahead
    is_split = stride_bytes % min(size.vector_bytes, l1d.line_bytes) > 0
    exposed = (machine.exposed_l2_share if is_kept else 1.0) / machine.l2.bytes_per_cycle
    return exposed + is_split / (size.vector_bytes * machine.loads_per_cycle)


def _b_rows_bytes(found: Contraction, size: Sizes, c: Columns) -> tuple[int, Column]:
    """From one row of B to the next, and of a row in a block of n."""
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
    """Copying A: tiles of rows for every block of n, out of L2 and into L1; columns once."""
    moved = rows * size.k * size.item_bytes
    once = 2 * moved / machine.memory_bytes_per_cycle
    copied = once if has_columns(found) else 2 * moved * blocks / machine.l2.bytes_per_cycle
    return np.where(c["pack_a"] == 1, copied, 0)


def _steps_a(
    found: Contraction, size: Sizes, c: Columns, machine: Machine, tiles: Column
) -> Column:
    """Reading A by columns in place: each step of k is a line of its own, in L1 while all fit."""
    line, l1d = machine.l1d.line_bytes, machine.l1d
    if not has_columns(found):
        return np.zeros(len(c["pack_a"]))
    apart = found.stride(found.a, found.k[-1])
    stride_bytes = int(apart.value) * size.item_bytes if isinstance(apart, Const) else line
    late = tiles * size.k * line / machine.scattered_bytes_per_cycle
    fit = min(l1d.kept_bytes // line, l1d.same_set_lines * l1d.sets_apart(stride_bytes))
    return np.where((c["pack_a"] == 1) | (size.k <= fit), 0, late)


def _spread(found: Contraction, c: Columns, target: Target, steps: Column) -> Column:
    """Filling vectors with numbers of A, where the load alone does not: as many operations as rows.
    Numbers along m, or along the one loop of k, are loaded together and multiplied lane by lane;
    loops over windows part them."""
    along_m = bool(found.m) and found.stride(found.a, found.m[-1]) is ONE
    if target.spreads_loads or along_m or len(found.k) == 1:
        return np.zeros(len(c["mr"]))
    operations: Column = steps * c["mr"] / target.machine.fma_per_cycle
    return operations


def _strided(found: Contraction, size: Sizes, c: Columns, target: Target, sweeps: Column) -> Column:
    """Reading vectors of B in place whose elements are apart, or the last of which is not full. Of
    a dynamic n, the last tile asks for every vector how much of it is there."""
    stride, extent = found.stride(found.b, found.n[-1]), found.extent(found.n[-1])
    apart = int(stride.value) if isinstance(stride, Const) else size.lanes
    vector = strided_cycles(apart, size.lanes, target.machine) if apart > 1 else 0
    is_masked = apart <= 1 and target.masks_loads(found.b.buffer.dtype.bits)
    rest = 0 if is_masked or extent is None else extent % size.lanes
    asked = (
        0.0 if is_masked or extent is not None else partial_cycles(size.lanes - 1, target.machine)
    )
    row = size.n * vector + partial_cycles(rest, target.machine) + c["nr"] * asked
    return np.where(c["pack_b"] == UNPACKED, sweeps * row, 0)


def _parts(
    found: Contraction,
    size: Sizes,
    c: Columns,
    context: RuleContext,
    tile: tuple[Column, Column, Column, Column],
    fma: Column,
) -> Column:
    """Cutting k brings partial sums to memory; not cutting it, panels or rows from beyond L2."""
    m, n, mr, nr = tile
    machine = context.target.machine
    l1, l2 = machine.l1d, machine.l2
    kc, block = np.maximum(c["kc"], 1), nr * c["nc_panels"]
    good = np.where(c["pack_b"] == PANEL, l1.size_bytes, l2.passing_bytes // 2)
    good = good / (nr * size.vector_bytes)
    # Sums are cleared, read and written by every part, and read once more by the epilogue.
    blocks = ceil_div(size.n, block)
    chunk = ceil_div(blocks, n_chunks(blocks, c["parallel"], context.threads)) * block
    sums_bytes = m * np.where(c["kc_outermost"] == 1, chunk, block) * size.vector_bytes
    # Rows of A that pass by push partial sums out of L2, and a tile waits for its own.
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
    """From one row of A to the next; of what is not known, or no row, one that fills all sets."""
    apart = found.stride(found.a, found.m[-1]) if found.m and not has_columns(found) else None
    return int(apart.value) * size.item_bytes if isinstance(apart, Const) else size.item_bytes


def _panels(
    size: Sizes,
    c: Columns,
    context: RuleContext,
    tile: tuple[Column, Column, Column],
    panel_bytes: Column,
    fma: Column,
) -> Column:
    """A is read again for every block of n; B, where a block outgrows its share of L2, comes from
    beyond for every tile of rows, hidden behind multiply-adds as far as these take as long."""
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
    """Zeros in the last panel are read and multiplied; a panel that is not whole is more code. Of a
    dynamic n, any number of vectors may be left over."""
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
    """Whether bringing a block of B takes a good part of the time that its rows take."""
    brought = size.item_bytes / machine.scattered_bytes_per_cycle  # per element, and used m times
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
) -> Column:
    """Stalls on what no prefetch hides, and instructions of prefetches that hide nothing."""
    wanted = np.where(passes > 1, machine.lines_ahead, machine.memory_lines_ahead)
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
        part_terms(found, plan, context),
    )
    return tiled(sch, BlockRef(found.nest.name), found, blocking)


def row_tile(found: Contraction, rows: int) -> tuple[int, ...]:
    """How many of each iterator of m a tile takes: all of the inner ones while they fit."""
    taken: list[int] = []
    for at in reversed(found.m):
        extent = found.extent(at)
        size = rows if extent is None else min(rows, extent)
        taken.append(size)
        rows = rows // size if size == extent else 1
    return tuple(reversed(taken))


GEMM = Rule("gemm", GemmPlan, match, plans, cost, apply)
