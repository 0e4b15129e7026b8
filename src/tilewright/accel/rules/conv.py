"""Convolution and GEMM on the array: tiles of rows, columns and blocks of output channels.

While one tile is multiplied, the operands of the next part of the reduction are loaded into the
other slot, the previous tile is requantized in other banks of `acc`, and the one before is stored.
`hold` selects what is kept between tiles: `none` reloads operands for every part of every tile;
`weights` keeps those of some output channels for all tiles of the image; `image` keeps a tile of it
for all output channels. A final residual sum adds ALU passes over a tile, but no stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright import sym
from tilewright.accel.intrin import blend_passes
from tilewright.accel.isa.table import (
    OPCODES,
    REQUANT_ENTRIES,
    REQUANT_RELOAD_CYCLES,
    depth,
    word_bytes,
)
from tilewright.accel.rules.tiles import (
    SLOTS,
    factors_of,
    finish_tile,
    limits_of,
    scoped,
    sizes,
    tensorized,
    together,
)
from tilewright.base.target import geometry_of
from tilewright.rules.context import RuleContext
from tilewright.rules.match.nest import block_of
from tilewright.rules.rule import Rule
from tilewright.rules.space import Column, Columns, Cost, Space, unit
from tilewright.tensor.ir import Load, Update
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.schedule.analysis.tree import find_block

TASK_CYCLES = 3.0  # cost of an additional task: to generate and fetch it
# With a residual sum, GEMM's results and the ALU's other operands are in different banks.
BANKS = {"acc": 1, "scale": 1, "sum": 1, "par": 1, "a": 3, "b": 3}
HOLDS = ("none", "weights", "image")
LATENCY = max(opcode.latency_cycles for opcode in OPCODES)


@dataclass(frozen=True)
class ConvPlan:
    rows: int = unit("positions", "rows of a tile")
    columns: int = unit("positions", "columns of a tile")
    outs: int = unit("blocks", "of output channels of a tile")
    ins: int = unit("blocks", "of input channels loaded at a time")
    hold: str = unit("operand", "that is kept between tiles")
    slots: int = unit("tiles", "in flight, each in its share of the memories")


@dataclass(frozen=True)
class Found:
    """A convolution on packed tensors: extents of its loops, and strides of its windows."""

    images: int  # and groups
    outs: int
    rows: int
    columns: int
    ins: int
    ratio: int
    taps: tuple[int, int]
    row_step: tuple[int, int]  # strides of windows and of taps, in loaded rows
    column_step: tuple[int, int]
    passes: int = 1  # of the ALU over a tile; more than one for a residual sum
    weight_bits: int = 8

    @property
    def has_residual(self) -> bool:
        return self.passes > 1

    def reach(self, tile: Column, axis: int) -> Column:
        """Positions loaded for a number of windows."""
        step = (self.row_step, self.column_step)[axis]
        return (tile - 1) * step[0] + (self.taps[axis] - 1) * step[1] + 1


def match(sch: Schedule, block: BlockRef, context: RuleContext) -> Found | None:
    if block.name != "acc" or find_block(sch.function, "wgt") is None:
        return None
    found = block_of(sch.function, "acc")
    n, u, o, i, j, _, _, c, k, kh, kw, _ = sizes(found)
    assert isinstance(found.body, Update)
    read = next(
        node
        for node in sym.walk(*found.body.values)
        if isinstance(node, Load) and node.buffer.name == "inp"
    )
    steps = []
    order = [it.var for it in found.iters]
    for at, (window, tap) in zip((3, 4), ((3, 9), (4, 10)), strict=True):
        parts = sym.linear(read.index[at], order)
        assert parts is not None
        slopes = [parts[0].get(order[one], sym.ZERO) for one in (window, tap)]
        steps.append(tuple([int(s.value) if isinstance(s, sym.Const) else 0 for s in slopes]))
    rows, columns = [(a or 1, b or 1) for a, b in steps]
    has_residual = find_block(sch.function, "sum") is not None
    passes = 2 + len(blend_passes(**factors_of(sch, "sum"))) if has_residual else 1
    (weights,) = (one for one in sch.function.buffers if one.name == "w")
    return Found(n * u, o, i, j, c, k, (kh, kw), rows, columns, passes, weights.dtype.bits)


def even_tiles(extent: int, most: int) -> tuple[int, ...]:
    """Candidate tile sizes: those that split an extent evenly, up to a limit."""
    found = {-(-extent // parts) for parts in range(1, extent + 1)}
    return tuple(sorted((one for one in found if one <= most), reverse=True)) or (1,)


def plans(found: Found, context: RuleContext) -> Space[ConvPlan] | None:
    g = geometry_of(context.target)
    most = depth("acc", g) // max(SLOTS)
    candidates: dict[str, Sequence[int | str]] = {
        "rows": even_tiles(found.rows, most),
        "columns": even_tiles(found.columns, most)[:4]
        if found.rows > 1
        else even_tiles(found.columns, most),
        "outs": even_tiles(found.outs, most),
        "ins": even_tiles(found.ins, depth("wgt", g))[::-1],
        "hold": HOLDS,
        "slots": SLOTS,
    }

    def legal(c: Columns) -> Column:
        entries = used(found, c)
        fits = np.ones(len(c["rows"]), np.bool_)
        for name, count in entries.items():
            # With a residual sum, `acc` is divided into its banks.
            is_banked = name == "acc" and found.has_residual
            fits &= count * (max(SLOTS) if is_banked else c["slots"]) <= depth(name, g)
        return fits

    # Tile sizes first, with the least depth.
    stages = (("rows", "columns", "outs"), ("ins", "hold", "slots"))
    return Space(ConvPlan, candidates, legal, stages=stages)


def used(found: Found, c: Columns) -> dict[str, Column]:
    """Entries of every memory per slot."""
    area = found.reach(c["rows"], 0) * found.reach(c["columns"], 1)
    holds_image, holds_weights = c["hold"] == "image", c["hold"] == "weights"
    taps = found.taps[0] * found.taps[1] * found.ratio
    return {
        "inp": area * found.ratio * np.where(holds_image, found.ins, c["ins"]),
        "wgt": c["outs"] * taps * np.where(holds_weights, found.ins, c["ins"]),
        "acc": _sums(found, c),
    }


def _sums(found: Found, c: Columns) -> Column:
    """Entries of `acc` per slot; with a residual sum, a slot is two banks of two tensors each."""
    tile: Column = c["outs"] * c["rows"] * c["columns"]
    own: Column = tile + REQUANT_ENTRIES * c["outs"]
    both: Column = 2 * (tile + own + REQUANT_ENTRIES)
    return both if found.has_residual else own


def cost(found: Found, c: Columns, context: RuleContext) -> Cost:
    """Cycles: units work concurrently, so the slowest one counts, plus what does not overlap."""
    g = geometry_of(context.target)
    bus = g.bus_bytes
    down, across = -(-found.rows // c["rows"]), -(-found.columns // c["columns"])
    tiles = found.images * down * across
    far, parts = -(-found.outs // c["outs"]), -(-found.ins // c["ins"])
    taps = found.taps[0] * found.taps[1] * found.ratio
    steps = found.images * found.outs * found.rows * found.columns * found.ins * taps
    mean = {**c, "rows": found.rows / down, "columns": found.columns / across}
    entries = used(found, mean)
    image = entries["inp"] * g.entry_bytes()["inp"] / bus
    weights = entries["wgt"] * g.entry_bytes()["wgt"] / bus * found.weight_bits / 8
    loads_image = tiles * np.where(c["hold"] == "image", 1, far * parts)
    loads_weights = np.where(c["hold"] == "weights", far * found.images, tiles * far * parts)
    tasks = tiles * far * (parts + 4) + loads_image + loads_weights + _of_tails(found, c)
    load = loads_image * image + loads_weights * weights + tasks * word_bytes(g) / bus
    gemm = steps + 2.0 * tiles * far * parts
    vectors = found.images * found.outs * found.rows * found.columns
    # Passes of a residual sum are dependent: rescale, multiply and add, requantize.
    gaps = found.passes * LATENCY * found.has_residual
    # It loads its operand, and per tile the parameters of both requantizations.
    parameters = tiles * far * REQUANT_ENTRIES * (c["outs"] + 1) * g.entry_bytes()["acc"]
    beside = found.has_residual * (vectors * g.batch * g.block_out + parameters) / bus
    load = load + beside
    alu = vectors * found.passes + far * tiles * (c["outs"] * REQUANT_RELOAD_CYCLES + gaps)
    store = vectors * g.batch * g.block_out / bus
    loaded = tiles * far * parts
    slowest = together(c, loaded, [load, gemm, alu, store], g)
    part = gemm / loaded
    first = image + weights + 2 * g.latency_cycles
    last = (alu + store) / (tiles * far) + g.latency_cycles + 3 * LATENCY
    # Each row of a part of the image is a separate request.
    lines = loads_image * np.where(c["hold"] == "image", found.ins, c["ins"]) * mean["rows"]
    requests = (across > 1) * (lines + vectors / c["columns"])
    # The array waits where the next part takes longer to load than this one to multiply.
    waits = loaded * np.maximum(
        0.0, np.minimum(1.0, load / slowest) * (g.latency_cycles - part) / 4
    )
    # Kept operands are loaded while the last two parts that use the previous ones are multiplied,
    # as are the operands of a residual sum.
    exposed = np.maximum(0.0, weights + image - 2.0 * (part - beside / loaded))
    often = np.where(c["hold"] == "weights", far * found.images, tiles) - 1
    changes = np.where(c["hold"] == "none", 0.0, often * exposed)
    return Cost.of(
        units=slowest,
        first=first,
        last=last,
        waits=waits,
        changes=changes,
        requests=requests,
        tasks=TASK_CYCLES * tasks,
    )


def _of_tails(found: Found, c: Columns) -> Column:
    """Additional requests of partial tiles, whose rows are not contiguous."""
    far, parts = -(-found.outs // c["outs"]), -(-found.ins // c["ins"])
    holds = c["hold"] == "image"
    loads, blocks = np.where(holds, 1, far * parts), np.where(holds, found.ins, c["ins"])
    stores = far * (1 + found.has_residual)
    short = (found.rows % c["rows"] > 0) * -(-found.columns // c["columns"])
    thin = (found.columns % c["columns"] > 0) * -(-found.rows // c["rows"])
    more: Column = short * (loads * (blocks - 1) + stores * (c["outs"] - 1))
    more += thin * loads * (blocks * found.reach(c["rows"], 0) - 1)
    more += thin * stores * (c["outs"] * c["rows"] - 1)
    return found.images * more


def apply(sch: Schedule, found: Found, plan: ConvPlan, context: RuleContext) -> list[BlockRef]:
    n, u, o, i, j, b, f = sch.get_loops(sch.get_block("y"))
    oo, oi = sch.split(o, [None, plan.outs])
    io, ii = sch.split(i, [None, plan.rows])
    jo, ji = sch.split(j, [None, plan.columns])
    tiles = [io, jo, oo] if plan.hold == "image" else [oo, io, jo]
    sch.reorder(n, u, *tiles, oi, ii, ji, b, f)
    residual = ("sum", "a") if found.has_residual else ()
    for name in ("out", *residual, "acc"):
        sch.compute_at(sch.get_block(name), tiles[-1])
    loops = sch.get_loops(sch.get_block("acc"))[-12:]
    an, au, ao, ai, aj, ab, af, c, k, kh, kw, e = loops
    co, ci = sch.split(c, [None, plan.ins])
    sch.reorder(co, an, au, ao, ai, aj, ci, k, kh, kw, ab, af, e)
    sch.compute_at(sch.get_block("inp"), jo if plan.hold == "image" else co)
    sch.compute_at(sch.get_block("wgt"), oo if plan.hold == "weights" else co)
    # Parameters share the slot of their sums: in another one they would be in GEMM's bank.
    beside = ("par", "scale", "b") if residual else ("par",)
    for name in beside:
        sch.compute_at(sch.get_block(name), tiles[-1])
    stages = ("inp", "wgt", "acc", *beside, *residual, "out")
    scoped(sch, stages, plan.slots, BANKS if residual else None)
    g = geometry_of(context.target)
    if residual:
        tensorized(sch, "scale", "vta_load_acc", g, 2)
        tensorized(sch, "a", "vta_rescale", g, 2, **limits_of(sch, "a"))
        tensorized(sch, "b", "vta_load_acc8", g, 2)
        tensorized(sch, "sum", "vta_blend", g, 2, **factors_of(sch, "sum"))
    tensorized(sch, "acc", "vta_gemm", g, 3)
    tensorized(sch, "inp", "vta_load_inp", g, 2)
    tensorized(sch, "wgt", "vta_load_wgt" if found.weight_bits == 8 else "vta_load_wgt4", g, 2)
    return finish_tile(sch, g, ["inp", "wgt", "acc", *residual, *beside[1:]])


CONV = Rule("vta_conv", ConvPlan, match, plans, cost, apply)
