"""Shared by the accelerator's rules: sizes, memories, and the intrinsics of an operator's
stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright import sym
from tilewright.accel.intrin import LIMITS, SCOPES, of_geometry
from tilewright.base.errors import ScheduleError
from tilewright.base.geometry import Geometry
from tilewright.rules.match.nest import block_of
from tilewright.rules.space import Column, Columns
from tilewright.tensor.ir import Block, Load, Store
from tilewright.tensor.schedule import BlockRef, Schedule

SLOTS = (2, 1)  # candidates for tiles in flight
MEMORY_OF = {"inp": "inp", "wgt": "wgt", "out": "out"}  # of stages; all others are in acc


def sizes(block: Block) -> list[int]:
    """Extents of a block's iterators."""
    return [int(it.extent.value) if isinstance(it.extent, sym.Const) else 0 for it in block.iters]


def scoped(
    sch: Schedule, stages: tuple[str, ...], slots: int, banks: Mapping[str, int] | None = None
) -> None:
    """Place stages in their memories, with rotating slots, some in separate banks."""
    for name in stages:
        scope = SCOPES[MEMORY_OF.get(name, "acc")]
        bank = (banks or {}).get(name, 0)
        sch.set_scope(sch.get_block(name), 0, scope.member(slots=slots, bank=bank).reference)


def together(c: Columns, tasks: Column, units: Sequence[Column | float], g: Geometry) -> Column:
    """Combined cycles of units: the slowest, if they work on different tiles concurrently, else the
    sum."""
    each = np.broadcast_arrays(*units)
    alone = np.sum(each, axis=0) + tasks * g.latency_cycles
    made: Column = np.where(c["slots"] > 1, np.maximum.reduce(each), alone)
    return made


def tensorized(
    sch: Schedule, stage: str, intrin: str, g: Geometry, loops: int, **given: int
) -> None:
    """Tensorize the innermost loops of a stage, over one entry."""
    at = sch.get_loops(sch.get_block(stage))[-loops]
    sch.tensorize(at, of_geometry(intrin, g, **given))


def finish_tile(sch: Schedule, g: Geometry, done: list[str]) -> list[BlockRef]:
    """Parameters, requantization and the store, which all operators end in."""
    tensorized(sch, "par", "vta_load_acc", g, 2)
    tensorized(sch, "out", "vta_requant", g, 2, **limits_of(sch, "out"))
    tensorized(sch, "y", "vta_store_out", g, 2)
    return [BlockRef(name) for name in (*done, "par", "out", "y")]


def limits_of(sch: Schedule, stage: str) -> dict[str, int]:
    """Zero point and limits of the results, read from the requantization."""
    body = block_of(sch.function, stage).body
    assert isinstance(body, Store)
    value = clamped = body.value
    while isinstance(clamped, sym.Cast):
        clamped = clamped.children()[0]
    if not isinstance(clamped, sym.Min) or not isinstance(clamped.a, sym.Max):
        raise ScheduleError("TW7042", f"{value} is no requantization", help="see accel/operators")
    high, low, moved = clamped.b, clamped.a.b, clamped.a.a
    zero = moved.b if isinstance(moved, sym.Add) else sym.ZERO
    numbers = [int(one.value) for one in (zero, low, high) if isinstance(one, sym.Const)]
    return {one.name: number for one, number in zip(LIMITS, numbers, strict=True)}


def factors_of(sch: Schedule, stage: str) -> dict[str, int]:
    """The factors of two tensors in `x * a + z * b`."""
    found, body = {}, block_of(sch.function, stage).body
    for term in body.value.children() if isinstance(body, Store) else ():
        read = next(node for node in sym.walk(term) if isinstance(node, Load))
        factor = next((n for n in term.children() if isinstance(n, sym.Const)), sym.ONE)
        found[read.buffer.name] = int(factor.value) if isinstance(term, sym.Mul) else 1
    return found
