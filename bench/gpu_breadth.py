"""Models of many kinds on an NVIDIA GPU against ONNX Runtime on the CPU: errors, and slow kernels.

    python bench/gpu_breadth.py [--json FILE] [--models FOLDER] [--only NAME ...] [--precision f16]
                                [--journal FILE] [--stop-after SECONDS] [--kernels N]

The models of bench/breadth.py, exported by it beforehand, each with the inputs of all its cases.
Prints the device time of a call, and of the kernels that take longest their rules, TFLOP/s and
TB/s. No peer is timed.
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import journal
import numpy as np
import report

import tilewright as tw
from tilewright.driver.device_module import DeviceModule
from tilewright.graph.visit import walk
from tilewright.runtime import cuda
from tilewright.runtime.profiler import TERA

DEFAULT = Path(__file__).parent / "models" / "breadth"
TURNS = 5


def reference(path: Path, inputs: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    return [np.asarray(each) for each in session.run(None, inputs)]


def rules_of(module: DeviceModule) -> dict[str, str]:
    """Which rules made the kernels of each label."""
    found: dict[str, str] = {}
    for node in walk(module.program.module.main):
        if node.op == "kernel":
            kernel = module.program.kernels[node["function"]]
            found[node["label"] or kernel.name] = " ".join(
                dict.fromkeys(each.rule for each in kernel.decisions)
            )
    return found


def slowest(module: DeviceModule, given: Sequence[Any], count: int) -> list[str]:
    """Of the kernels that take longest: share of the time, rules, rates."""
    rules = rules_of(module)
    runs: dict[str, list[Any]] = defaultdict(list)
    for event in module.profile(*given).events:
        runs[event.kernel].append(event)
    total = sum(event.duration_ns for events in runs.values() for event in events)
    order = sorted(runs, key=lambda name: -sum(each.duration_ns for each in runs[name]))
    said = []
    for name in order[:count]:
        took = sum(each.duration_ns for each in runs[name])
        flops = sum(each.flops for each in runs[name]) / took / TERA
        moved = sum(each.size_bytes for each in runs[name]) / took / TERA
        said.append(
            f"{took / total:6.1%} {took / 1e3:8.1f} us, {len(runs[name])} x {name} "
            f"[{rules.get(name, '')}]: {flops:.2f} TFLOP/s, {moved:.2f} TB/s"
        )
    return said


def device_ms(module: DeviceModule, given: Sequence[Any]) -> float:
    """The median of a few calls into the same arrays."""
    outputs = module(*given)
    times = []
    for _ in range(TURNS):
        module(*given, out=outputs)
        timer = cuda.Timer()
        timer.start()
        module(*given, out=outputs)
        times.append(timer.stop())
    return statistics.median(times)


def outcome(name: str, options: argparse.Namespace) -> dict[str, Any]:
    path = options.models / f"{name}.onnx"
    begun = time.perf_counter()
    module = tw.compile(path, target="cuda", precision=options.precision)
    told: dict[str, Any] = {"compile_s": time.perf_counter() - begun, "cases": {}}
    assert isinstance(module, DeviceModule)
    for given_path in sorted(options.models.glob(f"{name}.*.in.npz")):
        inputs = dict(np.load(given_path))
        wanted = reference(path, inputs)
        given = [cuda.to_device(inputs[spec.name]) for spec in module.inputs]
        outputs = module(*given)
        first = report.error_of(list(map(cuda.to_host, outputs)), wanted)
        for _ in range(2):  # launch by launch, then as a graph
            module(*given, out=outputs)
        told["cases"][given_path.name.removesuffix(".in.npz")] = {
            "error": max(first, report.error_of(list(map(cuda.to_host, outputs)), wanted)),
            "ms": device_ms(module, given),
            "kernels": slowest(module, given, options.kernels),
        }
    return told


def figures_of(name: str, told: dict[str, Any], options: argparse.Namespace) -> list[report.Figure]:
    if "failed" in told:
        return [report.Figure(f"{name}: ran", 0.0, "", ">= 1", False)]
    found = [report.Figure(f"{name}: compile", told["compile_s"], "s")]
    for case, said in told["cases"].items():
        limit = report.MODEL_TOLERANCE[options.precision]
        found.append(report.at_most(f"{case}: error", said["error"], "", limit))
        found.append(report.Figure(f"{case}: ours", said["ms"], "ms"))
    return found


@report.on_gpu
def measure(options: argparse.Namespace) -> list[report.Figure]:
    kept = journal.Journal.of(options)
    found = sorted(path.stem for path in options.models.glob("*.onnx"))
    names = [name for name in options.only or found if name in found]
    for name in kept.limited(name for name in names if name not in kept.found):
        try:
            told = outcome(name, options)
        except Exception:  # one model's trouble is its own
            told = {"failed": traceback.format_exc(limit=-3)[-900:]}
        kept.add(name, **told)
        print(f"{name}: {told.get('failed', '')}", flush=True)
        for case, said in told.get("cases", {}).items():
            print(f"  {case}: error {said['error']:.2g}, {said['ms']:.3f} ms", flush=True)
            for line in said["kernels"]:
                print(f"    {line}", flush=True)
    return [
        figure for name, told in kept.found.items() for figure in figures_of(name, told, options)
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", type=Path, default=DEFAULT)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--precision", choices=list(report.MODEL_TOLERANCE), default="f32")
    parser.add_argument("--kernels", type=int, default=4, help="shown of each case")
    journal.arguments(parser)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
