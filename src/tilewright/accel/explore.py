"""Searches designs of the accelerator: shapes, memories and buses that a chip has room for.

    found = explore({"net": (graph, constants)}, Limits(dsp=220, bram=140))
    print(table(front(found)))

Every layer of every model is scheduled anew for every design: cycles are those of the cheapest plan
of each, by the rules' costs, which follow the cycle model within a few percent. `confirm` compiles
a design's streams and times them. Area is estimated (`area.py`). The front holds what no other
design beats in cycles, multipliers and block memories at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from tilewright.accel.area import estimate
from tilewright.accel.hardware import package
from tilewright.accel.part import compile_part, predict_part
from tilewright.base.errors import TilewrightError, UserError
from tilewright.base.geometry import Geometry
from tilewright.base.target import Target
from tilewright.graph.ir import Graph, Value

Array = np.ndarray[Any, Any]
Models = Mapping[str, tuple[Graph, Mapping[Value, Array]]]
SHAPES = tuple(
    (batch, block_in, block_out)
    for batch, block_in, block_out in product((1, 2, 4), (4, 8, 16, 32), (4, 8, 16, 32))
    if block_out % block_in == 0 and (batch == 1 or block_in == block_out)
)
KILOBYTES = {
    "inp": (16, 32, 64),
    "wgt": (64, 128, 256, 512),
    "acc": (32, 64, 128, 256),
    "uop": (8, 16, 32),
}
BUSES = (64, 128, 256)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a chip has, or may be used of it; 0: any amount."""

    dsp: int = 0
    bram: int = 0
    luts: int = 0

    def admit(self, area: Mapping[str, int]) -> bool:
        limits = {"DSP48": self.dsp, "RAMB36": self.bram, "LUT": self.luts}
        return all(not limit or area[name] <= limit for name, limit in limits.items())


@dataclass(frozen=True)
class Design:
    geometry: Geometry
    area: dict[str, int]
    cycles: dict[str, float]  # by model
    is_confirmed: bool = False  # by the cycle model

    @property
    def mean(self) -> float:
        """Cycles over all models, their geometric mean."""
        return math.exp(sum(map(math.log, self.cycles.values())) / len(self.cycles))


def candidates(limits: Limits) -> list[Geometry]:
    """Designs that fit, and that have RTL: those that use most of the chip first."""
    found = []
    for shape, sizes in product(SHAPES, product(*KILOBYTES.values(), BUSES)):
        inp, wgt, acc, uop = (size << 10 for size in sizes[:-1])
        try:
            geometry = Geometry(*shape, inp, wgt, acc, uop, sizes[-1])
            package(geometry)
        except UserError:
            continue
        if limits.admit(estimate(geometry)):
            found.append(geometry)
    return sorted(found, key=lambda g: (-g.macs_per_cycle, -g.bus_bits, -estimate(g)["RAMB36"]))


def explore(
    models: Models,
    limits: Limits,
    most: int = 200,
    seed: int = 0,
    run: Callable[..., Iterable[Design | None]] = map,
) -> Iterator[Design]:
    """Designs that fit, with their cycles as they are known: the default, then some at random.

    `run` is a map, maybe one of many processes.
    """
    found = [one for one in candidates(limits) if one != Geometry()]
    random = np.random.default_rng(seed)
    left = [one for one in (Geometry(),) if limits.admit(estimate(one))]
    left += [found[at] for at in random.permutation(len(found))]
    while left and most > 0:  # some designs have no room for a layer: others take their place
        some, left = left[:most], left[most:]
        for one in run(partial(evaluate, models), some):
            if one is not None:
                most -= 1
                yield one


def evaluate(models: Models, geometry: Geometry) -> Design | None:
    """A design by its layers' plans; None where a layer does not fit."""
    target = Target.parse(f"vta-sim {geometry.options}")
    try:
        cycles = {name: predict_part(*one, target) for name, one in models.items()}
    except TilewrightError:
        return None
    return Design(geometry, estimate(geometry), cycles)


def confirm(models: Models, design: Design) -> Design:
    """The same by the cycle model, on compiled streams."""
    target = Target.parse(f"vta-sim {design.geometry.options}")
    cycles = {
        name: float(compile_part(*one, target).timing().total) for name, one in models.items()
    }
    return replace(design, cycles=cycles, is_confirmed=True)


def front(designs: Iterable[Design]) -> list[Design]:
    """What no other design beats, fastest first."""
    kept: list[Design] = []
    for one in sorted(designs, key=lambda d: (d.mean, d.area["DSP48"], d.area["RAMB36"])):
        if not any(
            other.area["DSP48"] <= one.area["DSP48"] and other.area["RAMB36"] <= one.area["RAMB36"]
            for other in kept
        ):
            kept.append(one)
    return kept


def table(designs: Sequence[Design]) -> str:
    """Designs as rows of text."""
    if not designs:
        return "no design fits\n"
    names = list(designs[0].cycles)
    heads = [*(f"{name}, Mcycles" for name in names), "DSP48", "RAMB36", "LUT", "design"]
    rows = [heads]
    for one in designs:
        mark = "" if one.is_confirmed else "~"
        cells = [f"{mark}{one.cycles[name] / 1e6:.3f}" for name in names]
        cells += [str(one.area[name]) for name in ("DSP48", "RAMB36", "LUT")]
        rows.append([*cells, one.geometry.options])
    wide = [max(len(row[at]) for row in rows) for at in range(len(heads))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip() + "\n"
        for row in rows
    )


WIDE, TALL, EDGE = 640, 400, 56


def plot(designs: Sequence[Design]) -> str:
    """Multipliers against cycles as SVG: every design a dot, the front joined."""
    most_dsp = max(one.area["DSP48"] for one in designs)
    most = max(one.mean for one in designs)

    def place(one: Design) -> tuple[float, float]:
        x = EDGE + (WIDE - 2 * EDGE) * one.area["DSP48"] / most_dsp
        return round(x, 1), round(TALL - EDGE - (TALL - 2 * EDGE) * one.mean / most, 1)

    best = sorted(front(designs), key=lambda one: one.area["DSP48"])
    line = " ".join(f"{x},{y}" for x, y in map(place, best))
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="3" fill="{"#c33" if one in best else "#99a"}">'
        f"<title>{one.geometry.options}: {one.mean / 1e6:.2f}M cycles</title></circle>"
        for one in designs
        for x, y in (place(one),)
    )
    axes = f"M{EDGE} {EDGE}V{TALL - EDGE}H{WIDE - EDGE}"
    texts = "".join(
        f'<text x="{x}" y="{y}" font-size="12" font-family="sans-serif">{text}</text>'
        for x, y, text in (
            (EDGE, TALL - 16, f"DSP48, up to {most_dsp}"),
            (EDGE, EDGE - 12, f"cycles (geometric mean), up to {most / 1e6:.1f}M"),
        )
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {TALL}">'
        f'<path d="{axes}" fill="none" stroke="#444"/>{texts}'
        f'<polyline points="{line}" fill="none" stroke="#c33"/>{dots}</svg>\n'
    )
