"""Whole models on the accelerator's three models: functional simulator, cycle model, RTL.

    python bench/accel_machines.py [--json FILE] [--models NAME ...] [--rtl] [--interpreter]
                                   [--target TEXT] [--library FILE]

Every model is one verified stream, for another target than the default one (1x16x16, buffers
32K/256K/128K/32K, a bus of 64 bits, 64 cycles of memory latency) if it is given. All three leave
the same memory; cycle model and RTL agree on begin and end of every instruction. `--interpreter`
compares with the integer graph in NumPy as well. Times are of one core.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import numpy as np
import report
from accel_models import MODELS

from tilewright.accel.compare import differences
from tilewright.accel.device import load, open_device, run_on
from tilewright.accel.part import Part, compile_part
from tilewright.accel.verify import verify
from tilewright.accel.verilate import simulator
from tilewright.base.target import Target
from tilewright.graph import Module, interpret

Array = np.ndarray[Any, Any]
# Seconds or rates that are asked for, of models: functional ms, verifying s, RTL s.
FUNCTIONAL_MS = {"ResNet-18": 150.0}
VERIFYING_S = {"ResNet-50": 5.0}
RTL_S = {"ResNet-18": 120.0}


def measure(options: argparse.Namespace) -> list[report.Figure]:
    return [figure for name in options.models for figure in whole(name, options)]


def whole(name: str, options: argparse.Namespace) -> list[report.Figure]:
    make, most = MODELS[name]
    graph, constants = make()
    target = Target.parse(options.target)
    part = compile_part(graph, constants, target)
    begun = time.process_time()
    verify(part.stream)
    verifying = time.process_time() - begun
    shape = graph.params[0].tensor.static_shape or ()
    x = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    given = part.packed(x)
    functional, outputs = timed(part, "functional", given)
    cycle, _ = timed(part, "cycle", given)
    timing, _ = timed(part, "timing", None)
    cycles = part.timing().total
    figures = [
        report.at_most(name, cycles / 1e6, "Mcycles", most),
        _figure(f"{name}, verifying", verifying, "s", VERIFYING_S.get(name)),
        _figure(f"{name}, functional", 1000 * functional, "ms", FUNCTIONAL_MS.get(name)),
        report.at_least(f"{name}, cycle model", cycles / timing / 1e6, "Mcycles/s", 20),
        report.Figure(f"{name}, cycle model and memory", cycles / cycle / 1e6, "Mcycles/s"),
    ]
    if options.interpreter:
        whole_graph = Module({"main": replace(graph, name="main")})
        (want,) = interpret(whole_graph, x, *constants.values())
        same = np.array_equal(part.run(x)[0], want)
        figures.append(report.at_least(f"{name}, bits of the interpreter", float(same), "", 1))
    if options.rtl:
        library = str(options.library or simulator(part.stream.geometry))
        begun = time.process_time()
        told = differences(part.stream, given, ["cycle", library])
        took = time.process_time() - begun - cycle
        made = run_on("cycle", part.stream, given).outputs
        same = all(np.array_equal(made[one], outputs[one]) for one in made)
        for one in told:
            print(f"{name}: {one}")
        figures += [
            report.at_least(f"{name}, RTL agrees", float(not told and same), "", 1),
            _figure(f"{name}, RTL", took, "s", RTL_S.get(name)),
        ]
    return figures


def _figure(name: str, value: float, unit: str, most: float | None) -> report.Figure:
    return (
        report.Figure(name, value, unit)
        if most is None
        else report.at_most(name, value, unit, most)
    )


def timed(
    part: Part, backend: str, given: dict[str, Array] | None
) -> tuple[float, dict[str, Array]]:
    """Seconds of one core, the least of three runs, without making the stream."""
    device = open_device(part.stream.geometry, backend)
    loaded = load(device, part.stream, given)
    found = []
    for _ in range(3):
        loaded.start()
        begun = time.process_time()
        device.wait()
        found.append(time.process_time() - begun)
    return min(found), {} if given is None else loaded.outputs()


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--target", default="vta-sim")
    parser.add_argument("--rtl", action="store_true")
    parser.add_argument("--library", help="of the RTL, where there is no Verilator")
    parser.add_argument("--interpreter", action="store_true")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
