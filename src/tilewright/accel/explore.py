"""Design space exploration of the accelerator: array shapes, memories and buses within a chip's
resources.

    found = explore({"net": (graph, constants)}, Limits(dsp=220, bram=140))
    print(table(front(found)))

Every layer is planned for every design: its cycles are those of its cheapest plan by the rules'
costs, which are within a few percent of the cycle model; layers are built once per array. Half of
the designs are random samples, the others neighbours of the best. `confirm` compiles streams of
designs and times them. Area is estimated (`area.py`). The front is Pareto-optimal in cycles,
multipliers and block memories.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from itertools import product
from operator import ne
from typing import Any

import numpy as np

from tilewright.accel.area import estimate
from tilewright.accel.hardware import check
from tilewright.accel.part import compile_part, kernels_of, predict_part
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
TAPS = (1, 4)
ROUNDS = 4  # of neighbours


@dataclass(frozen=True, slots=True)
class Limits:
    """Available resources of a chip; 0: unlimited."""

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
    is_confirmed: bool = False  # timed by the cycle model

    @property
    def mean(self) -> float:
        """The geometric mean of cycles over all models."""
        return math.exp(sum(map(math.log, self.cycles.values())) / len(self.cycles))


@cache
def candidates(limits: Limits) -> tuple[Geometry, ...]:
    """Designs that fit and have RTL, largest first."""
    found = []
    for shape, taps, bus, sizes in product(SHAPES, TAPS, BUSES, product(*KILOBYTES.values())):
        try:
            inp, wgt, acc, uop = (size << 10 for size in sizes)
            geometry = Geometry(*shape, inp, wgt, acc, uop, bus, taps=taps)
            check(geometry)
        except UserError:
            continue
        if limits.admit(estimate(geometry)):
            found.append(geometry)
    found.sort(key=lambda g: (-g.macs_per_cycle, -g.bus_bits, -estimate(g)["RAMB36"]))
    return tuple(found)


def explore(
    models: Models,
    limits: Limits,
    most: int = 200,
    seed: int = 0,
    run: Callable[..., Iterable[list[Design]]] = map,
) -> Iterator[Design]:
    """Evaluate designs: the default, random ones, then neighbours of the best.

    `run` is a map function, possibly over several processes.
    """
    every = candidates(limits)
    numbers = {one: astuple(one) for one in every}
    random = np.random.default_rng(seed)
    left = [one for one in (Geometry(),) if one in every]
    left += [every[at] for at in random.permutation(len(every)) if every[at] != Geometry()]
    found: list[Design] = []
    for share in range(ROUNDS + 1):
        if share:  # nearest to the front first
            best = [one.geometry for one in front(found)]
            left.sort(
                key=lambda one: min(
                    (_distance(numbers[one], numbers[two]) for two in best), default=0
                )
            )
        wanted = most * (ROUNDS + share) // (2 * ROUNDS)
        while left and len(found) < wanted:  # some designs cannot run all layers
            some = left[: wanted - len(found)]
            left = left[len(some) :]
            arrays = list(dict.fromkeys(one.array for one in some))
            groups = [[one for one in some if one.array == array] for array in arrays]
            for made in run(partial(evaluate, models), groups):
                found += made
                yield from made


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """The number of parameters in which two designs differ."""
    return sum(map(ne, one, other))


def evaluate(models: Models, designs: Sequence[Geometry]) -> list[Design]:
    """Evaluate designs with one array by the plans of layers, without designs that a layer does not
    fit."""
    try:
        kernels = {name: kernels_of(*one, designs[0].array) for name, one in models.items()}
    except TilewrightError:
        return []  # a layer is not supported on this array
    found = []
    for geometry in designs:
        target = Target.parse(f"vta-sim {geometry.options}")
        try:
            cycles = {
                name: predict_part(graph, kernels[name], target)
                for name, (graph, _) in models.items()
            }
        except TilewrightError:
            continue
        found.append(Design(geometry, estimate(geometry), cycles))
    return found


def confirm(models: Models, design: Design) -> Design:
    """Evaluate designs by the cycle model on compiled streams."""
    target = Target.parse(f"vta-sim {design.geometry.options}")
    cycles = {
        name: float(compile_part(*one, target).timing().total) for name, one in models.items()
    }
    return replace(design, cycles=cycles, is_confirmed=True)


def front(designs: Iterable[Design]) -> list[Design]:
    """The Pareto-optimal designs, fastest first."""
    kept: list[Design] = []
    for one in sorted(designs, key=lambda d: (d.mean, d.area["DSP48"], d.area["RAMB36"])):
        if not any(
            other.area["DSP48"] <= one.area["DSP48"] and other.area["RAMB36"] <= one.area["RAMB36"]
            for other in kept
        ):
            kept.append(one)
    return kept


def table(designs: Sequence[Design]) -> str:
    """Format designs as rows of a table."""
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
    """Plot multipliers against cycles as SVG, with the front connected."""
    most_dsp = max((one.area["DSP48"] for one in designs), default=0)
    most = max((one.mean for one in designs), default=0.0)

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
