"""Formulas of a tiled stage: tile sizes at every level, trips and bytes touched.

Every tiled stage has five levels:

    step       one iteration of the innermost loop around a register tile
    tile       a register tile with its reduction (or block of it)
    middle     the register tiles that share operands in L1
    block      the tiles of a block in L2
    whole      all of a thread's work, and that of all threads
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright import sym
from tilewright.base.dots import DOTS
from tilewright.rules.context import RuleContext
from tilewright.sym import Expr, Var
from tilewright.tune.features import Access, levels
from tilewright.tune.sketch.fields import long_sum
from tilewright.tune.sketch.stage import Stage, Touch
from tilewright.tune.sketch.structure import BLOCKS, DOT, Way

LEVEL_NAMES = ("step", "tile", "middle", "block", "whole")


def tile_formulas(stage: Stage, way: Way, context: RuleContext) -> dict[str, Expr]:
    """Tile sizes at every level, trips and bytes, as expressions of the decisions."""
    names: dict[str, Var] = {}

    def decided(name: str) -> Var:
        return names.setdefault(name, sym.var(name))

    tiles: dict[str, dict[int, Expr]] = {level: {} for level in LEVEL_NAMES}
    chunk: dict[int, Expr] = {}
    vectors: Expr = sym.const(1)
    chunks: Expr = sym.const(1)
    extents = {at: axis.extent for at, axis in enumerate(stage.axes)}
    found: dict[str, Expr] = {}
    longest = long_sum(stage)
    unrolled: Expr = sym.const(1)
    for at, axis in enumerate(stage.axes):
        whole = sym.const(axis.extent)
        if axis.is_reduced:
            unroll: Expr = sym.const(1)
            if at in stage.reduced and way.kind != DOT:
                unroll = decided(f"{axis.name}.unroll")
            elif way.kind == DOT and at == stage.reduced[-1]:
                unroll = sym.const(_dot_steps(way))
            part: Expr = whole
            if way.kind == BLOCKS and at == longest:
                part = sym.minimum(decided(f"{axis.name}.block"), axis.extent)
            unrolled = sym.mul(unrolled, 1 if way.kind == DOT else unroll)
            sizes: tuple[Expr, ...] = (unroll, part, part, whole, whole)
            chunk[at] = whole
        elif at in stage.spatial:
            inner = decided(f"{axis.name}.inner")
            vectors = sym.mul(vectors, inner)
            near: Expr = sym.mul(inner, stage.lanes) if at == way.lanes else inner
            middle = sym.mul(near, decided(f"{axis.name}.middle"))
            block = sym.mul(middle, decided(f"{axis.name}.block"))
            sizes = (near, near, sym.minimum(middle, whole), sym.minimum(block, whole), whole)
            chunks = sym.mul(chunks, sym.ceildiv(axis.extent, block))
            chunk[at] = sizes[3]
        else:
            sizes = (whole,) * 5
            chunk[at] = whole
        for level, size in zip(LEVEL_NAMES, sizes, strict=True):
            tiles[level][at] = size
        found[f"tile/block/{at}"] = sizes[3]
        found[f"tile/chunk/{at}"] = chunk[at]
    line = context.target.machine.l1d.line_bytes
    accesses = [
        Access(touch.buffer, touch.element_bytes, touch.shape, touch.dims, touch.spans, line)
        for touch in stage.touches
    ]
    found.update(levels(accesses, tiles, extents))
    loads: Expr = sym.const(0)
    operands: Expr = sym.const(0)
    for touch in stage.reads:
        one = _loaded(stage, way, touch, tiles["step"])
        loads = sym.add(loads, one)
        if touch.uses(way.lanes) and touch.loads == 1:
            operands = sym.add(operands, _loaded(stage, way, touch, tiles["step"], single=True))
    lanes_axis = stage.axes[way.lanes].extent
    across = sym.mul(sym.ceildiv(lanes_axis, stage.lanes), stage.lanes)
    found["vectors"] = vectors
    found["unrolled"] = unrolled
    found["loads"] = loads
    found["operands"] = operands
    found["chunks"] = chunks
    found["idle"] = sym.sub(across, lanes_axis)
    return found


def _dot_steps(way: Way) -> int:
    """Reduction steps per call of the instruction."""
    return next(each.steps for each in DOTS if each.name == way.intrin)


def _loaded(
    stage: Stage, way: Way, touch: Touch, tile: Mapping[int, Expr], *, single: bool = False
) -> Expr:
    """Loads of an operand per step: a vector along the lanes, or one broadcast element."""
    total: Expr = sym.const(1 if single else touch.loads)
    step = touch.step(way.lanes)
    for at in (*stage.spatial, *stage.reduced):
        if not touch.uses(at) or (single and stage.axes[at].is_reduced):
            continue
        if way.kind == DOT and stage.axes[at].is_reduced:
            continue  # one vector of each operand per call
        size = tile[at]
        if at == way.lanes and (step in (0, 1) or touch.buffer in way.packed):
            size = sym.ceildiv(size, stage.lanes)
        total = sym.mul(total, size)
    return total
