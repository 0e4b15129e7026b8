"""Operators on the ALU: depthwise convolution, pooling, sums of tensors, requantizing copies.

Tiles are pipelined through aux, ALU and store, as convolutions are through their units; all
operands are in `acc`. Each tap of a window is one task over all positions of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright import sym
from tilewright.accel.intrin import blend_passes
from tilewright.accel.isa.table import ACC_BANKS, LOOPS, REQUANT_RELOAD_CYCLES, depth, word_bytes
from tilewright.accel.rules.conv import LATENCY, TASK_CYCLES, even_tiles
from tilewright.accel.rules.tiles import (
    SLOTS,
    factors_of,
    finish_tile,
    scoped,
    sizes,
    tensorized,
    together,
)
from tilewright.base.geometry import Geometry
from tilewright.base.target import geometry_of
from tilewright.rules.context import RuleContext
from tilewright.rules.match.nest import block_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, unit
from tilewright.tensor.ir import REDUCE, Block, Update
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.schedule.analysis.tree import find_block

# A bank is read once per cycle, so operands and sums are in different ones, in either slot.
BANKS = {"a": 1, "par": 1, "b": 2, "acc": 3}


@dataclass(frozen=True)
class VectorPlan:
    rows: int = unit("positions", "rows of a tile")
    columns: int = unit("positions", "columns of a tile, or entries of a tensor without rows")
    outs: int = unit("blocks", "of channels of a tile")
    slots: int = unit("tiles", "in flight, each in its share of the memories")


@dataclass(frozen=True)
class Found:
    """An operator of the ALU: extents, operands of a tile and passes over it."""

    images: int
    outs: int
    rows: int
    columns: int
    reads: tuple[str, ...]  # stages of 8-bit operands
    taps: tuple[int, int] = (1, 1)
    steps: tuple[int, int] = (1, 1)  # strides of windows
    reach: tuple[int, int] = (1, 1)  # positions of one window
    passes: int = 1  # over every entry of results
    neighbours: int = 1  # taps that a step multiplies


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Found | None:
    if block.name != "out" or find_block(sch.function, "wgt") is not None:
        return None
    reads = tuple([name for name in ("a", "b") if find_block(sch.function, name) is not None])
    n, o, i, j = sizes(block_of(sch.function, "out"))[:4]
    if find_block(sch.function, "acc") is None:
        return Found(n, o, i, j, reads)
    acc = block_of(sch.function, "acc")
    if not isinstance(acc.body, Update):
        passes = 1 + len(blend_passes(**factors_of(sch, "acc")))
        return Found(n, o, i, j, reads, passes=passes)
    taps = [size for size, it in zip(sizes(acc), acc.iters, strict=True) if it.kind == REDUCE]
    kh, kw, near = (*taps, 1)[:3]
    (down, tall), (right, wide) = (_slopes(acc, axis) for axis in (2, 3))
    reach = ((kh - 1) * tall + 1, (kw - 1) * wide + near)
    return Found(n, o, i, j, reads, (kh, kw), (down, right), reach, 1 + kh * kw, near)


def _slopes(acc: Block, axis: int) -> tuple[int, int]:
    """The stride of windows along an axis, and their taps."""
    read = next(region for region in acc.reads if region.buffer.name == "a")
    parts = sym.linear(read.ranges[axis].start, [it.var for it in acc.iters])
    taps = [it for it in acc.iters if it.kind == REDUCE]
    found = []
    for it in (acc.iters[axis], taps[axis - 2]):
        slope = parts[0].get(it.var) if parts is not None else None
        found.append(int(slope.value) if isinstance(slope, sym.Const) else 1)
    return found[0], found[1]


def plans(found: Found, context: RuleContext) -> Space[VectorPlan] | None:
    g = geometry_of(context.target)
    most = depth("acc", g) // ACC_BANKS
    columns = even_tiles(found.columns, most)
    candidates = {
        "rows": even_tiles(found.rows, most),
        "columns": columns if found.rows == 1 else columns[:4],
        "outs": even_tiles(found.outs, most),
        "slots": SLOTS,
    }
    return Space(
        VectorPlan,
        candidates,
        lambda c: (
            (_used(found, c) * ACC_BANKS <= depth("acc", g))
            & (c["rows"] * c["columns"] * c["outs"] * c["slots"] <= depth("out", g))
        ),
        stages=(("rows", "columns"), ("outs", "slots")),
    )


def _area(found: Found, c: Columns) -> Column:
    """Entries of a tile of the windowed operand."""
    tall = (c["rows"] - 1) * found.steps[0] + found.reach[0]
    wide = (c["columns"] - 1) * found.steps[1] + found.reach[1]
    area: Column = c["outs"] * tall * wide
    return area


def _used(found: Found, c: Columns) -> Column:
    results = c["outs"] * c["rows"] * c["columns"]
    has_windows = found.taps != (1, 1)
    second = c["outs"] * found.taps[0] * found.taps[1] if has_windows else results
    used: Column = _area(found, c) + (second if "b" in found.reads else 0) + c["outs"] * 3
    most: Column = np.maximum(used, results)  # results share no bank with the first operand
    return most


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    g = geometry_of(context.target)
    tiles = (
        found.images
        * -(-found.rows // c["rows"])
        * -(-found.columns // c["columns"])
        * -(-found.outs // c["outs"])
    )
    results = c["outs"] * c["rows"] * c["columns"]
    entry = g.batch * g.block_out / g.bus_bytes
    operands = _used(found, c)
    # Taps are loops of one task, except for the first one, which overwrites.
    tasks = tiles * (3.0 + len(found.reads) + min(found.passes, LOOPS))
    load = tiles * operands * entry + tasks * word_bytes(g) / g.bus_bytes
    vectors = found.images * found.outs * found.rows * found.columns
    # Concurrent loads stall the ALU in a bank that it owns.
    alu = vectors * found.passes + tiles * (
        c["outs"] * REQUANT_RELOAD_CYCLES + 0.4 * operands + 8.0
    )
    slowest = together(c, tiles, [load, alu, vectors * entry], g)
    first = load / tiles + 2 * g.latency_cycles
    last = alu / tiles + results * entry + g.latency_cycles + 3 * LATENCY
    return Cost.of(units=slowest, first=first, last=last, tasks=TASK_CYCLES * tasks)


def apply(sch: Schedule, found: Found, plan: VectorPlan, context: RuleContext) -> list[BlockRef]:
    n, o, i, j, b, f = sch.get_loops(sch.get_block("y"))
    oo, oi = sch.split(o, [None, plan.outs])
    io, ii = sch.split(i, [None, plan.rows])
    tile, ji = sch.split(j, [None, plan.columns])
    sch.reorder(n, oo, io, tile, oi, ii, ji, b, f)
    stages = [*found.reads, "par", "out"]
    sch.compute_at(sch.get_block("out"), tile)
    g = geometry_of(context.target)
    if found.passes > 1:
        sch.compute_at(sch.get_block("acc"), tile)
        stages.append("acc")
    for name in (*found.reads, "par"):
        sch.compute_at(sch.get_block(name), tile)
    scoped(sch, tuple(stages), plan.slots, BANKS)
    if found.passes > 1:
        _steps_of_alu(sch, found, g)
    for name in found.reads:
        wide = {"a": "vta_load_row8", "b": "vta_load_acc"} if found.neighbours > 1 else {}
        tensorized(sch, name, wide.get(name, "vta_load_acc8"), g, 2)
    return finish_tile(sch, g, [name for name in stages if name not in ("par", "out")])


def _steps_of_alu(sch: Schedule, found: Found, g: Geometry) -> None:
    body = block_of(sch.function, "acc").body
    if not isinstance(body, Update):
        tensorized(sch, "acc", "vta_blend", g, 2, **factors_of(sch, "acc"))
        return
    loops = sch.get_loops(sch.get_block("acc"))
    n, o, i, j, b_, f, kh, kw, *t = loops[-9 if found.neighbours > 1 else -8 :]
    sch.reorder(kh, kw, n, o, i, j, b_, f, *t)
    if t:
        tensorized(sch, "acc", "vta_dot", g, 3, taps=found.neighbours)
        return
    name = "vta_max" if body.reducer.name == "max" else "vta_mac"
    tensorized(sch, "acc", name, g, 2)


VECTOR = Rule("vta_vector", VectorPlan, match, plans, cost, apply)
