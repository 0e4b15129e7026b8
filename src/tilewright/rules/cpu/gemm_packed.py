"""GEMM of few rows by sub-byte weights with scales per group of k, dequantized in registers.

    for panel in parallel      columns whose sums stay in registers
      for tile of rows
        for group                the scale of each column
          for byte                 unpacked in registers, multiplied by one or two elements of a row
          the group's sums are scaled and added to the results

Weights are packed in the order they are read: [panel, k, n in panel]. They are expanded to floats
in registers only, so memory traffic is that of the packed bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.machine import WIDENED_LANES
from tilewright.rules.context import RuleContext
from tilewright.rules.cost import TIE_SHARE
from tilewright.rules.cpu.epilogue import fuse_epilogue
from tilewright.rules.cpu.gemm_model import (
    NONE,
    N,
    ceil_div,
    fits_registers,
    is_unrollable,
    most_vectors,
    near_unroll_candidates,
)
from tilewright.rules.cpu.gemm_schedule import read_index, unrolled_sum
from tilewright.rules.match.contraction import stored_operand
from tilewright.rules.match.nest import Nest, block_of, nest_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, tile_sizes, unit
from tilewright.sym import Const, Mul
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import REDUCE, SPATIAL, Buffer, Load, Update
from tilewright.tensor.reducers import builtin
from tilewright.tensor.schedule import BlockRef, Schedule


@dataclass(frozen=True)
class PackedPlan:
    """The register tile of a GEMM by sub-byte weights."""

    mr: int = unit("rows", "of the register tile")
    nr: int = unit("vectors of bytes", "of the register tile")
    parallel: str = unit("axis", "split across threads")
    k_unroll: int = unit("bytes along k", "per iteration of the unrolled loop")


@dataclass(frozen=True)
class Packed:
    """The block that sums over groups, and the one that scales and adds the sums."""

    sums: Nest  # rows, groups, columns; bytes, values in a byte
    b: Load
    total: BlockRef  # rows, columns; groups

    def extent(self, at: int) -> int:
        found = self.sums.extent(at)
        assert isinstance(found, Const)
        return int(found.value)

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """Rows, groups, columns, bytes of a group, values in a byte."""
        rows, groups, columns, length, per_byte = map(self.extent, range(len(self.sums.loops)))
        return rows, groups, columns, length, per_byte


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Packed | None:
    nest = nest_of(sch, block)
    body = None if nest is None else nest.block.body
    if nest is None or not isinstance(body, Update) or len(body.buffers) != 1:
        return None
    if body.reducer is not builtin("sum", body.buffers[0].dtype):
        return None
    product, readers = body.values[0], sch.get_consumers(block)
    b = stored_operand(product.b) if isinstance(product, Mul) else None
    if b is None or b.buffer.name not in context.constants or len(readers) != 1:
        return None
    shape = [SPATIAL, SPATIAL, SPATIAL, REDUCE, REDUCE]
    if [it.kind for it in nest.block.iters] != shape or len(nest.loops) != len(shape):
        return None
    _, group, column, byte, _ = [it.var for it in nest.block.iters]
    adds = [it.kind for it in block_of(sch.function, readers[0].name).iters]
    if adds != [SPATIAL, SPATIAL, REDUCE] or list(b.index) != [group, byte, column]:
        return None
    if nest.is_dynamic(range(len(shape))):
        return None
    return Packed(nest, b, readers[0])


def plans(found: Packed, context: RuleContext) -> Space[PackedPlan] | None:
    rows, _, columns, length, _ = found.sizes
    target, vectors = context.target, columns // WIDENED_LANES
    registers = ceil_div(WIDENED_LANES, target.lanes(found.sums.writes[0].buffer.dtype.bits))
    if columns % WIDENED_LANES:
        return None

    def legal(c: Columns) -> Column:
        legal: Column = fits_registers(c["mr"], c["nr"] * registers, target)
        legal &= (rows % c["mr"] == 0) & (vectors % c["nr"] == 0)
        body = c["mr"] * c["nr"] * registers
        legal &= is_unrollable(length, body, c["k_unroll"], target.machine)
        return legal

    return Space(
        PackedPlan,
        {
            "mr": tuple(range(1, rows + 1)),
            "nr": tile_sizes(min(vectors, max(1, most_vectors(target) // registers))),
            "parallel": (NONE, N) if context.threads > 1 else (NONE,),
            "k_unroll": near_unroll_candidates(target.machine),
        },
        legal,
    )


def cost(found: Packed, c: Columns, context: RuleContext) -> Cost:
    """Cycles of the thread that finishes last."""
    machine, target = context.target.machine, context.target
    rows, groups, columns, length, per_byte = found.sizes
    of = found.sums.writes[0].buffer.dtype
    registers = ceil_div(WIDENED_LANES, target.lanes(of.bits))
    threads = np.where(c["parallel"] == N, context.threads, 1)
    panels = ceil_div(ceil_div(columns, WIDENED_LANES * c["nr"]), threads)
    steps = panels * (rows / c["mr"]) * groups * length * per_byte
    vectors = c["nr"] * registers
    # Extracting a value into a word and converting it to a float, beside loading its factor.
    unpacked = steps * vectors * (2 + 1 / registers) / machine.fma_per_cycle
    multiplied = steps * np.maximum(
        c["mr"] * vectors / machine.fma_per_cycle,
        machine.fma_latency_cycles / (1 + vectors),
    )
    bytes_read = groups * length * columns * found.b.buffer.dtype.size_bytes
    scaled = steps / (length * per_byte) * c["mr"] * vectors
    return Cost.of(
        work=np.maximum(
            unpacked + multiplied, bytes_read / machine.memory_bytes_per_cycle / threads
        ),
        scaled=scaled * (1 / machine.loads_per_cycle + 2 / machine.fma_per_cycle),
        spilled=np.where(fits_registers(2 * c["mr"], vectors, target), 0, scaled),
        numbers=TIE_SHARE * steps * c["mr"] / machine.loads_per_cycle,
        unroll=steps / per_byte / c["k_unroll"],
        wake=np.where(c["parallel"] == NONE, 0.0, machine.wake_cycles),
    )


def apply(
    sch: Schedule, found: Packed, plan: PackedPlan, context: RuleContext
) -> tuple[BlockRef, ...]:
    sums, width = BlockRef(found.sums.name), plan.nr * WIDENED_LANES
    panels = [
        constant_panel(sch, sums, found.b.buffer, width),
        *scale_panels(sch, found.total, width, context),
    ]
    row, column, group = sch.get_loops(found.total)
    tile, near = sch.split(row, [None, plan.mr])
    block, vector, lane = sch.split(column, [None, plan.nr, WIDENED_LANES])
    sch.reorder(block, tile, group, near, vector, lane)
    sch.vectorize(lane)
    for loop in (near, vector):
        sch.unroll(loop)
    stores = fuse_epilogue(sch, found.total, tile, WIDENED_LANES, width)
    sch.set_scope(sums, 0, "local")
    sch.compute_at(sums, group)
    *_, row, group_of, column, byte, half = sch.get_loops(sums)
    vector, lane = sch.split(column, [None, WIDENED_LANES])
    sch.reorder(group_of, byte, half, row, vector, lane)
    sch.vectorize(lane)
    for loop in (half, row, vector):
        sch.unroll(loop)
    sch.decompose_reduction(sums, byte)
    sch.decompose_reduction(found.total, group)
    if plan.k_unroll > 1:
        unrolled_sum(sch, byte, plan.k_unroll)
    if plan.parallel == N:
        sch.parallel(block)
    return (sums, found.total, *panels, *stores)


def scale_panels(
    sch: Schedule, total: BlockRef, width: int, context: RuleContext
) -> list[BlockRef]:
    """Pack the scales and offsets of columns by panels."""
    reads = [read.buffer for read in block_of(sch.function, total.name).reads]
    weights = [buffer for buffer in reads if buffer.name in context.constants]
    return [constant_panel(sch, total, buffer, width) for buffer in weights]


def constant_panel(
    sch: Schedule, reader: BlockRef, weights: Buffer, width: int, group: int = 1
) -> BlockRef:
    """Pack constant weights, or their scales, as [panel, k // group, n in panel, k % group]."""
    panel = sch.cache_read(reader, read_index(sch, reader, weights), "global")
    *outer, j = names = [f"x{axis}" for axis in range(len(weights.shape))]
    places = [f"{j} // {width}", *outer, f"{j} % {width}"]
    if group > 1:
        k = outer[-1]
        places[-2:] = [f"{k} // {group}", places[-1], f"{k} % {group}"]
    sch.transform_layout(panel, ("write", 0), f"({', '.join(names)}) -> ({', '.join(places)})")
    loops = sch.get_loops(panel)
    if group == 1:
        _, lane = sch.split(loops[-1], [None, WIDENED_LANES])
        sch.vectorize(lane)
    sch.annotate(panel, CONSTANT, True)
    return panel


GEMM_PACKED = Rule("gemm_packed", PackedPlan, match, plans, cost, apply)
