"""GEMM of bf16 and int8 on AMX tiles.

    for jb in parallel       blocks of n that stay in L2
      pack B[:, jb]            in the instruction's groups of k, unless B is constant
      for io                   register block of 32 rows
        for js                 strip of 32 columns
          for k                2 x 2 tiles of C; two of A and two of B are loaded
          tiles are stored, then the epilogue

The number of rows of A and C tiles is chosen to divide m: a tile of fourteen rows costs hardly more
per row than one of sixteen, and avoids padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilewright import sym
from tilewright.base.dots import dots_of
from tilewright.base.dtype import I32
from tilewright.base.machine import CONVERT_STORE_CYCLES
from tilewright.base.tiles import BLOCK_TILES, MIN_ROWS, ROW_BYTES
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.amx_schedule import (
    TILE_ROWS,
    Blocking,
    Kind,
    kind_of,
    tile_gemm,
)
from tilewright.rules.cpu.gemm_model import BATCH, NONE, M, N, ceil_div
from tilewright.rules.cpu.gemm_schedule import transposed_along_k
from tilewright.rules.match.contraction import Contraction, find_contraction
from tilewright.rules.match.nest import guess
from tilewright.rules.rule import Rule
from tilewright.rules.sharing import piece_terms
from tilewright.rules.space import Column, Columns, Cost, Space, unit
from tilewright.sym import ONE, Const, Expr
from tilewright.tensor.ir import Load
from tilewright.tensor.schedule import BlockRef, Schedule


@dataclass(frozen=True)
class AmxGemmPlan:
    """The blocking of a GEMM on AMX tiles."""

    tile_rows: int = unit("rows", "of a tile of A and C")
    row_tiles: int = unit("tiles", "of A in a register block")
    column_tiles: int = unit("tiles", "of B in a register block")
    strips: int = unit("register blocks", "along n in a block that stays in L2")
    parallel: str = unit("axis", "split across threads")
    prefetch_b: int = unit("steps of k", "prefetch distance of B; 0: next block of n")
    prefetch_a: bool = unit("flag", "rows of the next block of m are prefetched")


@dataclass(frozen=True)
class AmxGemm:
    """A GEMM of types that AMX multiplies."""

    gemm: Contraction
    kind: Kind
    b_is_constant: bool
    terms: tuple[int, ...] = ()  # outer iterators of k, which are unrolled

    @property
    def m(self) -> int:
        return self.gemm.nest.guess(self.gemm.m[-1])

    @property
    def n(self) -> int:
        return self.gemm.nest.guess(self.gemm.n[-1])

    @property
    def k(self) -> int:
        return self.gemm.guess(tuple(at for at in self.gemm.k if at not in self.terms))

    @property
    def products(self) -> int:
        """Tile multiplications per step of k and tile of C."""
        return self.gemm.guess(self.terms)

    def pieces(self, load: Load) -> int:
        """Distinct tiles of an operand that are loaded per step of k and tile of C."""
        of = {self.gemm.nest.var(at) for at in self.terms}
        dims = zip(load.buffer.shape, load.index, strict=True)
        return prod(
            guess(size, self.gemm.nest.likely)
            for size, at in dims
            if of.intersection(sym.free_vars(at))
        )

    @property
    def outer(self) -> int:
        """Independent GEMMs: batch and the outer axes of n."""
        return self.gemm.guess((*self.gemm.batch, *self.gemm.n[:-1]))

    @property
    def outer_m(self) -> int:
        return self.gemm.guess(self.gemm.m[:-1])

    @property
    def a_bytes(self) -> int:
        return self.outer_m * self.m * self.k * self.step_bytes(self.gemm.a)

    def step_bytes(self, load: Load) -> int:
        """Bytes of an operand per row or column and step of k."""
        return self.pieces(load) * load.buffer.dtype.size_bytes

    @property
    def transposes_a(self) -> bool:
        """Whether A is not contiguous along k."""
        return self.gemm.stride(self.gemm.a, self.gemm.k[-1]) is not ONE

    def strip_bytes(self, column_tiles: int) -> int:
        """Bytes of B in one register block."""
        return self.k * TILE_ROWS * column_tiles * self.step_bytes(self.gemm.b)

    def a_exceeds_l2(self, context: RuleContext) -> bool:
        """Whether the rows of A, which are reread for every block of n, exceed L2."""
        l2 = context.target.machine.l2
        return self.a_bytes // self.outer_m > l2.size_bytes - l2.block_bytes


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> AmxGemm | None:
    found = find_contraction(sch, block)
    kind = None if found is None else kind_of(found, context)
    if found is None or kind is None or not found.m:
        return None
    terms = _terms(found, context)
    if terms is None:
        return None
    made = AmxGemm(_longest_last(found), kind, found.b.buffer.name in context.constants, terms)
    if sch.get_consumers(block) and _prefers_dots(made, context):
        return None
    # With fewer rows, too much of a tile is padding.
    is_large = 2 * made.m >= MIN_ROWS and made.n >= TILE_ROWS
    return made if is_large and (found.extent(found.k[-1]) or 0) >= TILE_ROWS else None


def _prefers_dots(found: AmxGemm, context: RuleContext) -> bool:
    """Whether k is so short that dot products beat AMX: they keep their sums in registers, where
    AMX stores its tiles and the epilogue loads them again.

    Compares cycles per vector of sums for int8 with packed weights; operand traffic is the same.
    Dot products of bf16 run at a fraction of the rate.
    """
    a, b = found.gemm.a.buffer.dtype, found.gemm.b.buffer.dtype
    dots = dots_of(context.target, a.name, b.name, I32.name)
    is_simple = a.is_int and b.is_int and len(found.gemm.k) == 1
    if not dots or not is_simple or not found.b_is_constant:
        return False
    machine, dot = context.target.machine, dots[0]
    instructions = ceil_div(found.k, dot.group) * (1 if dot.adds else 2)
    steps = ceil_div(found.k, found.kind.depth)
    on_tiles = steps * machine.tile_cycles / TILE_ROWS + CONVERT_STORE_CYCLES
    return bool(instructions / machine.fma_per_cycle < on_tiles)


def _terms(found: Contraction, context: RuleContext) -> tuple[int, ...] | None:
    """The outer iterators of k that are unrolled: every index of an operand is a plain iterator, or
    a function of one iterator of k. None where an index is anything else, or the unrolled body
    would be too large."""
    iterators: set[Expr] = {it.var for it in found.block.iters}
    *outer, _ = found.k
    of_sum: dict[Expr, int] = {found.nest.var(at): at for at in outer}
    terms: dict[int, None] = {}
    for at in (*found.a.index, *found.b.index):
        if at in iterators or isinstance(at, Const):  # of a dimension of 1
            continue
        variables = sym.free_vars(at)
        if len(variables) != 1 or not of_sum.keys() >= variables.keys():
            return None
        terms |= {of_sum[var]: None for var in variables}
    made = tuple(terms)
    instructions = 2 * BLOCK_TILES**2 * found.guess(made)  # loads and multiplications
    is_static = all(found.extent(at) is not None for at in made)
    fits = is_static and instructions <= context.target.machine.loop_body_instructions
    return made if fits else None


def _longest_last(found: Contraction) -> Contraction:
    """Put the longest static iterator of m last: tiles run along the last one, and a dynamic one
    may not fill a register block."""
    extent, longest = max((found.extent(at) or 0, at) for at in found.m)
    if found.extent(found.m[-1]) is not None or extent < BLOCK_TILES * TILE_ROWS:
        return found
    return replace(found, m=(*(at for at in found.m if at != longest), longest))


def plans(found: AmxGemm, context: RuleContext) -> Space[AmxGemmPlan]:
    gemm, m, threads = found.gemm, found.m, context.threads
    column_tiles = 1 if found.n <= TILE_ROWS else 2
    total = ceil_div(found.n, TILE_ROWS * column_tiles)
    if gemm.extent(gemm.m[-1]) is None or m >= TILE_ROWS:
        rows = tuple(range(TILE_ROWS, MIN_ROWS - 1, -1))
        rows = rows if gemm.extent(gemm.m[-1]) is not None else (TILE_ROWS,)
    else:
        rows = (m,)
    # Divisions by a dynamic m are hard to simplify; packing B inside of the blocks of n keeps their
    # loop from being fused with that over rows.
    by_m = len(gemm.m) == 1 or gemm.extent(gemm.m[-1]) is not None
    by_m = by_m and found.b_is_constant
    axes = [BATCH] if found.outer > 1 else []
    axes += [N] if total > 1 else []
    axes += [M] if by_m else []
    # B stays in L2, beside the rows of A that are reused or stream through.
    is_far, l2 = found.a_exceeds_l2(context), context.target.machine.l2
    room = l2.kept_bytes if is_far else l2.passing_bytes

    def legal(c: Columns) -> Column:
        size = c["strips"] * found.strip_bytes(column_tiles)
        fits = (c["strips"] == 1) | (size <= room)
        prefetched = (c["prefetch_a"] == 0) | (c["strips"] > 2)
        ok: Column = fits & prefetched
        return ok

    return Space(
        AmxGemmPlan,
        {
            "tile_rows": rows,
            "row_tiles": (1,) if m <= TILE_ROWS else (2, 1),
            "column_tiles": (column_tiles,),
            "strips": (1, *[count for count in range(total, 1, -1) if total % count == 0]),
            "parallel": (NONE, *axes) if threads > 1 else (NONE,),
            "prefetch_b": (0, 2) if found.b_is_constant else (0,),
            "prefetch_a": (0, 1) if is_far else (0,),
        },
        legal,
    )


def cost(found: AmxGemm, c: Columns, context: RuleContext) -> Cost:
    machine, gemm, threads = context.target.machine, found.gemm, context.threads
    rows, tiles, columns = c["tile_rows"], c["row_tiles"], c["column_tiles"]
    m_blocks = ceil_div(found.m, rows * tiles)
    n_blocks = ceil_div(ceil_div(found.n, TILE_ROWS * columns), c["strips"])
    steps = ceil_div(found.k, found.kind.depth)
    blocks = found.outer * found.outer_m * m_blocks * n_blocks * c["strips"]
    far = machine.l3.bytes_per_cycle or machine.memory_bytes_per_cycle
    # A step of k: a tile multiply-add has a fixed cost and one per row; meanwhile tiles of B are
    # loaded from L2, those of A from L1.
    b_bytes = c["strips"] * columns * TILE_ROWS * found.k * found.step_bytes(gemm.b)
    in_l1 = b_bytes <= machine.l1d.size_bytes // 2
    b_rate = np.where(in_l1, machine.l1d.bytes_per_cycle, machine.tile_row_bytes_per_cycle)
    step = np.maximum(
        tile_step_cycles(found.products * tiles * columns, rows, machine.tile_cycles),
        found.pieces(gemm.b) * columns * TILE_ROWS * ROW_BYTES / b_rate,
    )
    step = step + found.pieces(gemm.a) * tiles * rows * ROW_BYTES / machine.l1d.bytes_per_cycle
    compute = blocks * steps * step
    # With an m tail, all of A is copied to a zero-padded buffer.
    copied = found.outer * 2 * found.a_bytes / machine.l2.bytes_per_cycle
    fill = np.where(found.m % (rows * tiles) != 0, copied, 0.0)
    # Each thread reads all of the operand that is not split.
    n_share = np.where(c["parallel"] == N, ceil_div(n_blocks, threads) / n_blocks, 1.0)
    m_all = found.outer_m * m_blocks
    m_share = np.where(c["parallel"] == M, ceil_div(m_all, threads) / m_all, 1.0)
    batch_share = np.where(
        c["parallel"] == BATCH, ceil_div(found.outer, threads) / found.outer, 1.0
    )
    b_all = found.outer * found.k * found.n * found.step_bytes(gemm.b)
    c_bytes = found.outer * found.outer_m * found.m * found.n
    c_bytes *= gemm.block.writes[0].buffer.dtype.size_bytes
    passes = np.maximum(1, n_blocks * n_share)
    a_far = found.a_exceeds_l2(context)
    a_rate = np.where(c["prefetch_a"] == 1, far, machine.scattered_bytes_per_cycle)
    a_all = found.outer * found.a_bytes
    a_again = a_all * (passes - 1) / (a_rate if a_far else machine.l2.bytes_per_cycle)
    # With rows split across threads, or one thread, the previous layer left A in this core's L2.
    is_near = (c["parallel"] == M) | (threads == 1)
    near = np.where(is_near, machine.l2.bytes_per_cycle, far)
    a_first = a_all / (a_rate if a_far else near)
    # The next block of B is prefetched while this one is used, if enough rows use it. Prefetching
    # by steps of k arrives just in time, at the price of a request per line and use.
    is_exposed = (c["prefetch_b"] == 0) & (m_blocks * m_share * found.outer_m <= 2)
    b_rate_far = np.where(is_exposed, machine.scattered_bytes_per_cycle, far)
    requests = np.where(
        c["prefetch_b"] > 0,
        b_all * found.outer_m * m_blocks / machine.l2.line_bytes / machine.loads_per_cycle,
        0.0,
    )
    packing = 0.0 if found.b_is_constant else 2 * b_all / machine.l2.bytes_per_cycle
    turning = 2 * a_all / machine.l2.bytes_per_cycle / threads if found.transposes_a else 0.0
    share = n_share * m_share * batch_share
    pieces = found.outer * np.where(c["parallel"] == BATCH, 1, n_blocks)
    pieces = pieces * np.where(c["parallel"] == M, m_all, 1)
    own = (c["parallel"] != NONE) * ceil_div(pieces, threads)
    return Cost.of(
        compute=compute * share,
        fill=fill * share,
        a=(a_first + a_again) * m_share * batch_share,
        b=b_all / b_rate_far * n_share * batch_share,
        c=c_bytes / machine.l2.bytes_per_cycle * share,
        requests=requests * share,
        packing=packing * n_share * batch_share,
        turn_a=turning + 0.0 * share,
        **piece_terms(compute * share, own, machine),
        wake=np.where(c["parallel"] == NONE, 0.0, machine.wake_cycles),
    )


def tile_step_cycles(tiles: Column, rows: Column, tile_cycles: float) -> Column:
    """Cycles of tile multiply-adds: half of the cost does not depend on the number of rows."""
    return tiles * tile_cycles * (1 + rows / TILE_ROWS) / 2


def apply(
    sch: Schedule, found: AmxGemm, plan: AmxGemmPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    blocking = Blocking(
        found.kind,
        plan.tile_rows,
        plan.row_tiles,
        plan.column_tiles,
        plan.strips,
        found.b_is_constant,
        plan.parallel,
        plan.prefetch_b,
        plan.prefetch_a,
        found.terms,
    )
    gemm = transposed_along_k(sch, found.gemm)
    return tile_gemm(sch, BlockRef(gemm.nest.name), gemm, blocking)


GEMM_AMX = Rule("gemm_amx", AmxGemmPlan, match, plans, cost, apply)
