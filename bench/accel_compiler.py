"""The accelerator's compiler: share of peak of layers, cycles of whole models, by the cycle model.

    python bench/accel_compiler.py [--json FILE] [--models NAME ...] [--builders]
                                   [--points N] [--jobs N] [--layers NAME ...]

Geometry 1x16x16, buffers 32K/256K/128K/32K, a bus of 64 bits, 64 cycles of memory latency; peak is
one GEMM step (256 multiply-accumulates) a cycle. Layers are the 3x3 and 1x1 convolutions of
ResNet-18, requantized, each compiled from te by the default plan of its rule into one verified
stream. `one slot` is the same plan without slots that take turns: what it lacks is the latency that
they hide. `bound` is what the slowest of GEMM, ALU, reads and writes takes alone, the roofline.
Whole models are one stream each, from the first convolution to the classifier. `--points` compares
the default plan of each layer with so many random ones, compiled and timed by so many processes.
Cycles do not depend on the machine that runs this.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import report
from accel_models import MODELS

from tilewright.accel.build import build_gemm
from tilewright.accel.compiler import compile_function
from tilewright.accel.cycle import Timing
from tilewright.accel.device import time_on
from tilewright.accel.isa import Stream
from tilewright.accel.operators import Axis, Conv, conv
from tilewright.accel.part import compile_part
from tilewright.accel.rules import RULES, schedule
from tilewright.accel.verify import verify
from tilewright.base.target import Target
from tilewright.rules.context import RuleContext
from tilewright.rules.rule import Choice
from tilewright.rules.space import plan_text
from tilewright.tensor import Schedule

TARGET = Target.parse("vta-sim")
assert TARGET.geometry is not None
GEOMETRY = TARGET.geometry


def layer(ins: int, size: int, outs: int, kernel: int = 3, stride: int = 1) -> Conv:
    """A square convolution, channels in blocks of 16."""
    pad = kernel // 2
    rows, columns = (Axis(size, kernel, stride, pad, pad, 1, at == 0) for at in (0, 1))
    return Conv(1, 1, ins, outs, rows, columns)


# name, how often ResNet-18 has it, least share of peak
LAYERS = (
    ("64-64 3x3 56", 4, layer(4, 56, 4), 0.9),
    ("64-128 3x3 s2 56", 1, layer(4, 56, 8, stride=2), 0.9),
    ("64-128 1x1 s2 56", 1, layer(4, 56, 8, 1, 2), 0.6),
    ("128-128 3x3 28", 3, layer(8, 28, 8), 0.9),
    ("128-256 3x3 s2 28", 1, layer(8, 28, 16, stride=2), 0.9),
    ("128-256 1x1 s2 28", 1, layer(8, 28, 16, 1, 2), 0.6),
    ("256-256 3x3 14", 3, layer(16, 14, 16), 0.9),
    ("256-512 3x3 s2 14", 1, layer(16, 14, 32, stride=2), 0.9),
    ("256-512 1x1 s2 14", 1, layer(16, 14, 32, 1, 2), 0.6),
    ("512-512 3x3 7", 3, layer(32, 7, 32), 0.9),
)
GEMM = (64, 32, 32)  # blocks of m, n, k
GEMM_TILE = (64, 8, 4)


def measure(options: argparse.Namespace) -> list[report.Figure]:
    figures = []
    total = 0
    best = 0.0
    chosen = [one for one in LAYERS if one[0] in options.layers]
    for name, count, shape, least in chosen:
        stream, alone = with_and_without_slots(shape)
        verify(stream)
        one, two = timed(alone), timed(stream)
        total += count * two.total
        best = max(best, two.share_of_peak)
        figures += compared(name, one, two, least)
        vectors = shape.out_blocks * shape.rows.out * shape.columns.out
        bound = max(two.gemm_steps, vectors, two.read_beats, two.write_beats)
        figures.append(report.Figure(f"{name}, of its bound", bound / two.total, "of roofline"))
        if options.points:
            figures += against_points(name, shape, two.total, options)
    figures.append(report.at_least("best layer", best, "of peak", 0.96))
    if len(chosen) == len(LAYERS):
        figures.append(
            report.at_most("ResNet-18, 19 convolutions one by one", total / 1e6, "Mcycles", 7.1)
        )
    if options.builders:
        streams = [build_gemm(GEOMETRY, GEMM, GEMM_TILE, slots) for slots in (1, 2)]
        figures += compared("GEMM 64x512x512, by its builder", *map(timed, streams), 0.9)
    for name in options.models:
        figures += whole(name)
    return figures


def with_and_without_slots(shape: Conv) -> tuple[Stream, Stream]:
    """A layer by its default plan, and by the same without tiles that take turns."""
    fn = conv(shape, GEOMETRY)
    sch, log = schedule(fn, TARGET)
    decided = log.decisions[0]
    alone = Choice(decided.rule, decided.plan.replace("slots=2", "slots=1"))
    assert alone.plan != decided.plan
    made = sch.function, schedule(fn, TARGET, alone)[0].function
    return compile_function(made[0], TARGET), compile_function(made[1], TARGET)


def timed(stream: Stream) -> Timing:
    return time_on("timing", stream)


def compared(name: str, one: Timing, two: Timing, least: float) -> list[report.Figure]:
    """Shares of peak without and with slots that take turns."""
    return [
        report.Figure(f"{name}, one slot", one.share_of_peak, "of peak"),
        report.at_least(f"{name}, two slots", two.share_of_peak, "of peak", least),
        report.at_least(f"{name}, gain", one.total / two.total, "x", 1.05),
    ]


def against_points(
    name: str, shape: Conv, default: int, options: argparse.Namespace
) -> list[report.Figure]:
    """The default plan's cycles over those of the best of some random plans."""
    fn, context = conv(shape, GEOMETRY), RuleContext(TARGET)
    sch = Schedule(fn)
    rule = RULES[0][0]
    space = rule.plans(rule.match(sch, sch.get_block("acc"), context), context)
    assert space is not None
    columns = space.sample(options.points, np.random.default_rng(0))
    plans = [plan_text(space.plan_at(columns, row)) for row in range(len(columns["rows"]))]
    begun = time.perf_counter()
    with ProcessPoolExecutor(options.jobs) as pool:
        found = list(pool.map(partial(cycles_of, shape), plans, chunksize=4))
    rate = len(found) / (time.perf_counter() - begun)
    best = min(default, *found)
    return [
        report.at_most(f"{name}, default over best of {len(found)}", default / best, "x", 1.03),
        report.at_least(f"{name}, points", rate, "1/s", 20),
    ]


def cycles_of(shape: Conv, plan: str) -> int:
    """Of a layer by one plan."""
    made = schedule(conv(shape, GEOMETRY), TARGET, Choice(RULES[0][0].name, plan))[0].function
    return timed(compile_function(made, TARGET)).total


def whole(name: str) -> list[report.Figure]:
    """A model as one stream."""
    make, most = MODELS[name]
    graph, constants = make()
    begun = time.perf_counter()
    part = compile_part(graph, constants, TARGET)
    compiled = time.perf_counter()
    timing = part.timing()
    timed = time.perf_counter()
    return [
        report.at_most(name, timing.total / 1e6, "Mcycles", most),
        report.Figure(f"{name}, GEMM", timing.share_of_peak, "of peak"),
        report.Figure(f"{name}, tasks", float(len(part.stream.instructions)), ""),
        report.Figure(f"{name}, compiling", compiled - begun, "s"),
        report.Figure(f"{name}, cycle model", timing.total / (timed - compiled) / 1e6, "Mcycles/s"),
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    names = [layer[0] for layer in LAYERS]
    parser.add_argument("--layers", nargs="*", default=names, choices=names)
    parser.add_argument("--points", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--builders", action="store_true")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
