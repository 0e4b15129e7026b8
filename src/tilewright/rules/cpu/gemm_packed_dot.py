"""GEMM of quantized rows by sub-byte weights with scales per group of k, by dot products.

    for nc panels in parallel    whose B stays in L2
      for tile of rows             which stays in L1
        for panel                    columns whose sums stay in registers
          for group                    the scales of each column and of each row
            for bytes                    unpacked in registers, mr x nr dot products
            the group's sums are scaled and added to the results

Bytes are packed in the order dot products take them, by panels. Of two weights in a byte, one
belongs to the first half of a group and one to the second, so that the low and the high nibbles of
a vector both multiply contiguous elements of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.dots import Dot, code_dots_of
from tilewright.base.dtype import F32, I8, I32
from tilewright.rules.context import RuleContext
from tilewright.rules.cost import TIE_SHARE
from tilewright.rules.cpu.dot_model import register_tile, row_counts, tile_cycles, whole
from tilewright.rules.cpu.epilogue import fuse_epilogue
from tilewright.rules.cpu.gemm_model import NONE, M, N, ceil_div, load_share, most_vectors
from tilewright.rules.cpu.gemm_packed import constant_panel, scale_panels
from tilewright.rules.match.contraction import operands
from tilewright.rules.match.nest import Nest, block_of, nest_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, doublings, tile_sizes, unit
from tilewright.sym import Const
from tilewright.tensor.ir import REDUCE, SPATIAL, Buffer
from tilewright.tensor.passes.tails import TAILS
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule


@dataclass(frozen=True)
class PackedDotPlan:
    """The blocking of a GEMM of quantized rows by sub-byte weights."""

    dot: str = unit("intrinsic", "dot product of a group of k")
    mr: int = unit("rows", "of the register tile")
    nr: int = unit("vectors", "of the register tile")
    nc_panels: int = unit("panels", "in a block of n that stays in L2")
    parallel: str = unit("axis", "split across threads")


@dataclass(frozen=True)
class PackedDots:
    """The block that sums over groups, the one that scales and adds the sums, and the one that
    unpacks weights."""

    sums: Nest  # rows, groups, columns; values in a byte, bytes
    b: Buffer  # the packed bytes
    codes: BlockRef | None  # the block that unpacks them
    total: BlockRef  # rows, columns; groups
    dot: Dot

    def extent(self, at: int) -> int:
        return self.sums.guess(at)

    @property
    def is_dynamic(self) -> bool:
        """Whether the number of rows is dynamic."""
        return not isinstance(self.sums.extent(0), Const)

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """Rows, groups, columns, values in a byte, bytes of a group."""
        rows, groups, columns, per_byte, length = map(self.extent, range(len(self.sums.loops)))
        return rows, groups, columns, per_byte, length

    @property
    def panel_vector_bytes(self) -> int:
        """Bytes of a panel of one vector, with its scales."""
        _, groups, _, _, length = self.sizes
        return groups * self.dot.lanes * (length + F32.size_bytes)


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> PackedDots | None:
    nest = nest_of(sch, block)
    found = None if nest is None else operands(nest.block)
    readers = sch.get_consumers(block)
    if nest is None or found is None or len(readers) != 1:
        return None
    kinds = [SPATIAL, SPATIAL, SPATIAL, REDUCE, REDUCE]
    if [it.kind for it in nest.block.iters] != kinds or nest.is_dynamic(range(1, len(kinds))):
        return None
    (a, b), (_, group, column, half, byte) = found, [it.var for it in nest.block.iters]
    adds = [it.kind for it in block_of(sch.function, readers[0].name).iters]
    if adds != [SPATIAL, SPATIAL, REDUCE] or len(nest.loops) != len(kinds):
        return None
    made = ((ref, block_of(sch.function, ref.name)) for ref in sch.get_producers(block))
    codes = next((ref for ref, each in made if each.writes[0].buffer is b.buffer), None)
    order = [group, byte, column] if codes is None else [group, half, byte, column]
    stored = b.buffer if codes is None else block_of(sch.function, codes.name).reads[0].buffer
    if list(b.index) != order or stored.name not in context.constants:
        return None
    if a.buffer.dtype is not I8 or nest.writes[0].buffer.dtype is not I32:
        return None
    dots = code_dots_of(context.target, b.buffer.dtype.name)
    length = nest.guess(len(kinds) - 1)
    if not dots or length % min(dot.group for dot in dots):
        return None
    dot = whole(dots, length)
    return PackedDots(nest, stored, codes, readers[0], dot)


# --------------------------------------------------------------------------- the space


def plans(found: PackedDots, context: RuleContext) -> Space[PackedDotPlan] | None:
    rows, _, columns, _, _ = found.sizes
    target, dot, vectors = context.target, found.dot, columns // found.dot.lanes
    if columns % dot.lanes:
        return None

    def legal(c: Columns) -> Column:
        legal: Column = _registers(dot, c["mr"], c["nr"], 1) <= target.vector_registers
        panels = ceil_div(vectors, c["nr"])
        legal &= (vectors % c["nr"] == 0) & (panels % c["nc_panels"] == 0)
        legal &= (c["parallel"] != M) | (ceil_div(rows, c["mr"]) > 1)
        legal &= (c["parallel"] != N) | (c["nc_panels"] <= ceil_div(panels, context.threads))
        room = target.machine.l2.block_bytes
        block_bytes = c["nc_panels"] * c["nr"] * found.panel_vector_bytes
        legal &= (c["nc_panels"] == 1) | ((block_bytes <= room) & (rows > c["mr"]))
        return legal

    return Space(
        PackedDotPlan,
        {
            "dot": (dot.name,),
            "mr": row_counts(target.machine)[:rows],
            "nr": tile_sizes(min(vectors, most_vectors(target))),
            "nc_panels": doublings(vectors),
            "parallel": (NONE, N, M) if context.threads > 1 else (NONE,),
        },
        legal,
    )


def _registers(dot: Dot, mr: Any, nr: Any, tiles: int) -> Any:
    """Registers for accumulators, A, and a step's B, all of which LLVM loads before use."""
    operands = mr + nr * dot.groups + 1 if dot.groups > 1 else 2 * nr + 1
    return tiles * mr * nr + operands


def cost(found: PackedDots, c: Columns, context: RuleContext) -> Cost:
    """Cycles of the thread that finishes last."""
    machine, dot = context.target.machine, found.dot
    rows, groups, columns, per_byte, length = found.sizes
    mr, nr = c["mr"], c["nr"]
    threads = np.where(c["parallel"] == NONE, 1, context.threads)
    shared = {axis: np.where(c["parallel"] == axis, context.threads, 1) for axis in (M, N)}
    full, rest = divmod(rows, mr)
    panels = ceil_div(columns // (nr * dot.lanes), shared[N])
    tiles = ceil_div(ceil_div(rows, mr), shared[M]) * panels * groups
    size = length * per_byte
    dots = panels * groups * (
        full * tile_cycles(dot, machine, mr, nr, size, True)
        + np.where(rest, tile_cycles(dot, machine, np.maximum(rest, 1), nr, size, True), 0)
    ) / shared[M]  # fmt: skip
    read = length // dot.group * nr  # vectors of bytes
    unpacked = tiles * read * per_byte / machine.fma_per_cycle if per_byte > 1 else 0
    # Per group: conversion, two multiplications, a load of scales; and the latency of a new chain.
    scaled = tiles * (mr * nr * ((1 + 2) / machine.fma_per_cycle + 1 / machine.loads_per_cycle))
    begun = tiles * dot.chain_cycles * 2
    # A row tile is multiplied by the panels of a block in turn; each block sweeps all rows.
    passes = ceil_div(rows, mr)
    all_bytes = columns // dot.lanes * found.panel_vector_bytes
    near = nr * found.panel_vector_bytes <= machine.l1d.size_bytes // 2
    b_bytes = np.where((c["nc_panels"] == 1) & near, 1, passes) * all_bytes
    a_bytes = ceil_div(panels, c["nc_panels"]) * rows * groups * size
    memory = all_bytes / machine.memory_bytes_per_cycle / threads
    return Cost.of(
        work=np.maximum(dots + unpacked, memory),
        loads=load_share(mr, nr, machine) * dots,
        scaled=scaled,
        begun=begun,
        spilled=np.where(
            _registers(dot, mr, nr, 2) <= context.target.vector_registers,  # totals beside the sums
            0.0,
            2 * tiles * mr * nr / machine.loads_per_cycle,
        ),
        b_from_l2=machine.exposed_share * b_bytes / threads / machine.l2.bytes_per_cycle,
        a_from_l2=machine.exposed_share * a_bytes / threads / machine.l2.bytes_per_cycle,
        tails=2 * TIE_SHARE * dots * (rows % mr > 0),
        wake=np.where(c["parallel"] == NONE, 0.0, machine.wake_cycles),
    )


# --------------------------------------------------------------------------- the schedule


def apply(
    sch: Schedule, found: PackedDots, plan: PackedDotPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    dot, sums = found.dot, BlockRef(found.sums.name)
    width, group = plan.nr * dot.lanes, dot.group
    reader = found.codes or sums
    panels = [
        constant_panel(sch, reader, found.b, width, group),
        *scale_panels(sch, found.total, width, context),
    ]
    row, column, each = sch.get_loops(found.total)
    tile, near = sch.split(row, [None, plan.mr])
    block, panel, vector, lane = sch.split(column, [None, plan.nc_panels, plan.nr, dot.lanes])
    sch.reorder(block, tile, panel, each, near, vector, lane)
    sch.vectorize(lane)
    for loop in (near, vector):
        sch.unroll(loop)
    stores = fuse_epilogue(sch, found.total, panel, dot.lanes, width)
    sch.set_scope(sums, 0, "local")
    sch.compute_at(sums, each)
    *_, row, group_of, column, half, byte = sch.get_loops(sums)
    vector, lane = sch.split(column, [None, dot.lanes])
    far, step = sch.split(byte, [None, dot.steps])
    sch.reorder(group_of, far, *_tile_loops(dot, row, vector, half), lane, step)
    for loop in (half, row, vector):
        sch.unroll(loop)
    init = sch.decompose_reduction(sums, far)
    sch.decompose_reduction(found.total, each)
    done = [sums, found.total, init, *panels, *stores]
    if found.codes is not None:
        _unpack(sch, found.codes, far, dot)
        done.append(found.codes)
    sch.tensorize(lane, plan.dot)
    sch.tensorize(sch.get_loops(init)[-1], plan.dot)
    if plan.parallel != NONE:
        sch.parallel(block if plan.parallel == N else tile)
    if found.is_dynamic:
        sch.annotate(tile, TAILS, True)
    return tuple(done)


def _tile_loops(dot: Dot, row: LoopRef, vector: LoopRef, half: LoopRef) -> list[LoopRef]:
    """The loops of a register tile: both halves of the bytes held are multiplied by all rows."""
    first, second = register_tile(dot, [row], vector)
    return [vector, half, row] if first is vector else [half, first, second]


def _unpack(sch: Schedule, codes: BlockRef, at: LoopRef, dot: Dot) -> None:
    """Unpack bytes where they are used, in the order of the dot products."""
    sch.set_scope(codes, 0, "local")
    sch.compute_at(codes, at)
    sch.transform_layout(
        codes, ("write", 0), f"(g, h, r, j) -> (g, h, r // {dot.group}, j, r % {dot.group})"
    )
    *_, _, half, byte, column = sch.get_loops(codes)
    group, step = sch.split(byte, [None, dot.group])
    vector, lane = sch.split(column, [None, dot.lanes])
    sch.reorder(group, vector, half, lane, step)
    for loop in (group, vector, half):
        sch.unroll(loop)
    sch.vectorize(sch.fuse(lane, step))


GEMM_PACKED_DOT = Rule("gemm_packed_dot", PackedDotPlan, match, plans, cost, apply)
