"""Structures of sketches: an alternative for every stage, before any numbers are decided.

    C:tile@j+B;D:follow            C in register tiles, lanes along j, B packed; D fused behind it
    across:under;blur:tile@x       across is computed where a tile of blur needs it
    total:parts                    partial results by threads, combined after

Alternatives for a stage, as text and as data:

    plain          the program's loops: vectorized innermost, parallel outermost
    tile@a         S S S R R S: four levels of spatial tiles around a tile in registers, in which
                   the whole sum is taken; axis `a` has the lanes
    blocks@a       S S R S R S: the sum is taken in blocks, so that operands stay in a cache
    rows           vectorized along the reduction (rfactor), parallel along results
    parts          parallel along the reduction (rfactor), vectorized where possible
    dot(name)@a    as `tile`, the innermost step an instruction for dot products (tensorize)
    under          computed inside of its consumer's tile (compute_at)
    follow         fused into its producer's tile (reverse_compute_at)

`+B` after a tiled way packs the operand B into panels as wide as a tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.tune.sketch.stage import Stage

PLAIN, TILE, BLOCKS, ROWS, PARTS = "plain", "tile", "blocks", "rows", "parts"
DOT, UNDER, FOLLOW = "dot", "under", "follow"
TILED = (TILE, BLOCKS, DOT)


@dataclass(frozen=True)
class Way:
    """The alternative chosen for a stage."""

    kind: str
    lanes: int = -1  # the axis of lanes, of tiled ways
    packed: tuple[str, ...] = ()  # buffers that are packed
    intrin: str = ""

    @property
    def is_tiled(self) -> bool:
        return self.kind in TILED

    def text(self, stage: Stage) -> str:
        shown = f"{self.kind}({self.intrin})" if self.intrin else self.kind
        if self.is_tiled:
            shown += f"@{stage.axes[self.lanes].name}"
        return "".join([shown, *(f"+{name}" for name in self.packed)])


@dataclass(frozen=True)
class Structure:
    """An alternative for every stage, in program order."""

    stages: Mapping[str, Stage]
    ways: Mapping[str, Way]

    @property
    def name(self) -> str:
        return ";".join(f"{name}:{way.text(self.stages[name])}" for name, way in self.ways.items())

    def of_kind(self, *kinds: str) -> Iterator[tuple[Stage, Way]]:
        for name, way in self.ways.items():
            if way.kind in kinds:
                yield self.stages[name], way

    @property
    def tiled(self) -> list[tuple[Stage, Way]]:
        return list(self.of_kind(*TILED))
