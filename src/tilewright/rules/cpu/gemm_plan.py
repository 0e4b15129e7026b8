"""The blockings of a GEMM: a plan, the space of plans, and which of them are legal."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from tilewright.base.machine import WIDENED_LANES, Machine
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.gemm_model import (
    BATCH,
    MAX_TAILS,
    NONE,
    M,
    N,
    ceil_div,
    fits_registers,
    is_unrollable,
    k_unroll_candidates,
    longest_chain,
    most_vectors,
    shortest_part,
)
from tilewright.rules.cpu.gemm_schedule import BEFORE, PANEL, UNPACKED, WEIGHT
from tilewright.rules.cpu.gemv import GEMV_MAX_ROWS
from tilewright.rules.cpu.register_transpose import SQUARE_ELEMENTS
from tilewright.rules.match.contraction import Contraction
from tilewright.rules.sharing import MAX_THREAD_CHUNKS
from tilewright.rules.space import Column, Columns, Space, tile_sizes, unit
from tilewright.sym import ONE, Const, Expr

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
    is_n = parallel == N  # comparing text takes long
    chunks = np.where(is_n, threads, 1)
    for per_thread in range(2, MAX_THREAD_CHUNKS + 1):
        is_even = is_n & (blocks % (per_thread * threads) == 0)
        chunks = np.where(is_even, per_thread * threads, chunks)
    return chunks


def _legal(found: Contraction, size: Sizes, context: RuleContext, c: Columns) -> Column:
    target, machine, mr, nr = context.target, context.target.machine, c["mr"], c["nr"]
    legal: Column = fits_registers(mr, nr, target)
    is_m, is_n = c["parallel"] == M, c["parallel"] == N
    is_packed = c["pack_b"] != UNPACKED
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
    legal &= ~is_packed | (c["pack_b"] == WEIGHT) | ((c["pack_b"] == BEFORE) == is_m)
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
    may_cut = ~is_packed | is_long
    legal &= (c["kc"] == 0) | may_cut
    blocks = ceil_div(size.n, nr * c["nc_panels"])
    chunks = n_chunks(blocks, c["parallel"], context.threads)
    legal &= (c["kc_outermost"] == 0) | ((c["kc"] > 0) & ~is_m & (blocks % chunks == 0))
    if found.extent(found.n[-1]) is not None:
        may_pad = is_packed & ((size.n % nr == 0) | (size.n >= MIN_PADDED_PANELS * nr))
        legal &= (c["pad_n"] == 0) | may_pad
    if found.unpacks_b:
        legal &= nr * size.lanes % WIDENED_LANES == 0
    steps = np.where(c["kc"] > 0, c["kc"], found.extent(found.k[-1]) or 1)
    legal &= is_unrollable(steps, mr * nr, c["k_unroll"], machine)
    legal &= c["k_unroll"] <= np.maximum(1, machine.lines_ahead // nr)  # prefetches in flight
    legal &= (c["prefetch_next_panel"] == 0) | ((c["prefetch_b"] > 0) & is_packed)
    return legal


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
