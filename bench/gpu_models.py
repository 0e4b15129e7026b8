"""Whole models on an NVIDIA GPU against torch under CUDA graphs, f32, batch 1.

    python bench/gpu_models.py [--json FILE] [--only NAME ...] [--compile] [--folder FOLDER]

Each model is compared with torch on the CPU first. Times are of the device: 20 launches of a
captured graph between two events, ours and torch's in turns, the medians. With --compile the better
of torch and torch.compile counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import gpu_zoo
import numpy as np
import report
import torch

import tilewright as tw
from tilewright.runtime import cuda

LAUNCHES, ROUNDS = 20, 7
WANT = {"resnet18": 3.0, "mobilenet_v2": 2.5, "dqn": 2.5, "dcgan_generator": 2.0,
        "lstm_lm_step": 1.6}  # fmt: skip
TOLERANCE = 2e-3  # of the largest output, between f32 evaluations of a deep model


def device_ms(start: Callable[[], object]) -> float:
    """Milliseconds of one run on the device."""
    timer = cuda.Timer()
    timer.start()
    for _ in range(LAUNCHES):
        start()
    return timer.stop() / LAUNCHES


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """What torch queues, as a CUDA graph."""
    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    return graph.replay


def figures_of(name: str, options: argparse.Namespace) -> list[report.Figure]:
    made = gpu_zoo.case(name, options.folder)
    with torch.no_grad():
        wanted = made.module(*made.inputs.values())
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    begun = time.perf_counter()
    module = tw.compile(made.path, target="cuda")
    compiled_s = time.perf_counter() - begun
    inputs = {key: value.cuda() for key, value in made.inputs.items()}
    outputs: tuple[object, ...] = ()
    for _ in range(3):
        outputs = module(*inputs.values())
    error = 0.0
    for got, want in zip(outputs, wanted, strict=False):
        reference = want.numpy()
        found = torch.from_dlpack(got).cpu().numpy()
        error = max(error, float(np.abs(found - reference).max() / np.abs(reference).max()))
    (recorded,) = list(module._kept.values())[-1:]
    on_gpu = made.module.cuda()
    rivals = {"torch": captured(lambda: on_gpu(*inputs.values()))}
    if options.compile:
        quick = torch.compile(on_gpu, mode="max-autotune-no-cudagraphs")
        rivals["torch.compile"] = captured(lambda: quick(*inputs.values()))
    runs = {"ours": lambda: recorded.graph.launch(0), **rivals}
    times: dict[str, list[float]] = {key: [] for key in runs}
    for _ in range(ROUNDS):
        for key, run in runs.items():
            times[key].append(device_ms(run))
    median = {key: statistics.median(found) for key, found in times.items()}
    best = min(value for key, value in median.items() if key != "ours")
    shown = [
        report.at_most(f"{name}: error", error, "", TOLERANCE),
        report.Figure(f"{name}: ours", median["ours"], "ms"),
        *(report.Figure(f"{name}: {key}", median[key], "ms") for key in rivals),
        report.Figure(f"{name}: compile", compiled_s, "s"),
        report.Figure(f"{name}: kernels", len(recorded.launches), ""),
    ]
    ratio = best / median["ours"]
    want = WANT.get(name)
    speed = f"{name}: faster than torch"
    shown.append(
        report.Figure(speed, ratio, "x")
        if want is None
        else report.at_least(speed, ratio, "x", want)
    )
    if options.profile:
        shown += slowest(name, recorded)
    return shown


def repeat(start: Callable[[int], None], stream: int) -> None:
    for _ in range(LAUNCHES):
        start(stream)


def slowest(name: str, recorded: object, count: int = 10) -> list[report.Figure]:
    """The kernels that take longest, each timed by itself."""
    found = []
    for launch in recorded.launches:  # type: ignore[attr-defined]
        if hasattr(launch, "kernel"):
            again = cuda.Graph(lambda stream, launch=launch: repeat(launch.start, stream))
            ms = min(device_ms(again.launch) / LAUNCHES for _ in range(3))
            found.append((ms, launch.kernel.name, launch.grid, launch.block))
    found.sort(reverse=True)
    return [
        report.Figure(f"{name}: {kernel[-44:]} {grid[0]}x{block[0]}", 1e3 * ms, "us")
        for ms, kernel, grid, block in found[:count]
    ]


def measure(options: argparse.Namespace) -> list[report.Figure]:
    if not cuda.is_available():
        print("skipped: no NVIDIA GPU can be used here")
        return []
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    figures: list[report.Figure] = []
    for name in options.only or gpu_zoo.NAMES:
        try:
            found = figures_of(name, options)
            for each in found:  # what is known is shown, whatever comes after
                print(f"  {each.name}: {each.value:.4g} {each.unit}", flush=True)
            figures += found
        except Exception:  # one model's trouble is a figure of its own, not the end of the others
            print(f"{name}: {traceback.format_exc(limit=-3)[-600:]}")
            figures.append(report.Figure(f"{name}: ran", 0.0, "", ">= 1", False))
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--compile", action="store_true", help="also against torch.compile")
    parser.add_argument("--profile", action="store_true", help="show the slowest kernels")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "models")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
