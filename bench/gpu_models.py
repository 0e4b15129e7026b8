"""Whole models on an NVIDIA GPU against torch under CUDA graphs.

    python bench/gpu_models.py [--json FILE] [--only NAME ...] [--precision f16] [--batch 32]
                               [--compile [MODE]] [--profile] [--sizes] [--folder FOLDER]

Each model is compared with torch on the CPU first. Times are of the device: 20 launches of a
captured graph between two events, ours and torch's in turns, the medians. With --compile the better
of torch and torch.compile counts, both under CUDA graphs. Time outside kernels is what the driver's
own trace of a launch leaves between them.

With --sizes: time of the host per call of models with an open batch, as sizes and addresses repeat
or are new, with graphs that calls of a bucket share and without.
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_zoo
import report
import torch

import tilewright as tw
from tilewright.driver import device_buckets
from tilewright.driver.device_launch import in_order
from tilewright.runtime import cuda, cuda_graphs

LAUNCHES, ROUNDS, TRACES = 20, 7, 3
HALVES = ("resnet18", "resnet50", "mobilenet_v2", "bert")  # models that are asked for in f16
WANT = {
    ("f32", 1): {"resnet18": 3.0, "mobilenet_v2": 2.5, "dqn": 2.5, "dcgan_generator": 2.0,
                 "lstm_lm_step": 1.6},
    ("f16", 1): dict.fromkeys(HALVES, 1.5),
    ("f16", 32): dict.fromkeys(HALVES, 1.15),
}  # fmt: skip
NAMES = {"f32": gpu_zoo.NAMES, "f16": HALVES}
MAX_OUTSIDE = 0.10  # of a model's time
LATE, LEAST_GAIN = "without dependent launch", 0.99  # 1, and what a clock's jitter takes
CHAINED = "with chains"
BUCKETS = (24, 32, 48, 64)  # largest batches of each
LEAST_SHARED = 3.0  # times faster than walking and capturing


def device_ms(start: Callable[[], object]) -> float:
    """Milliseconds of one run on the device, whatever ran before."""
    start()
    timer = cuda.Timer()
    timer.start()
    for _ in range(LAUNCHES):
        start()
    return timer.stop() / LAUNCHES


def captured(run: Callable[[], Any]) -> tuple[Callable[[], object], Any]:
    """What torch queues, as a CUDA graph, and where its results are."""
    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = run()
    return graph.replay, results


@dataclass(frozen=True, order=True)
class Ran:
    """A kernel in a trace, in microseconds."""

    begun: float
    ended: float
    name: str


def traced(start: Callable[[], object]) -> list[Ran]:
    """The kernels of one launch as the driver's trace tells them, in order; none where it does
    not."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as trace:
        start()
        torch.cuda.synchronize()
    return sorted(
        Ran(event.time_range.start, event.time_range.end, event.name)
        for event in trace.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )


def outside(kernels: list[Ran]) -> float:
    """The part of a launch's time in which no kernel runs."""
    busy, reached = 0.0, kernels[0].begun
    for each in kernels:
        busy += max(0.0, each.ended - max(each.begun, reached))
        reached = max(reached, each.ended)
    return 1 - busy / (reached - kernels[0].begun)


@dataclass(frozen=True)
class Late:
    """A launch that begins when those before it have ended."""

    launch: Any
    is_kernel: bool = True
    starts_early: bool = False

    def start(self, stream: int, is_early: bool = False) -> None:
        self.launch.start(stream)


def serial_graph(recorded: Any) -> cuda_graphs.Graph:
    """The launches of a call without dependent launch."""
    launches, waits = in_order(recorded.launches)
    return cuda_graphs.Graph(cuda_graphs.branched([Late(launch) for launch in launches], waits))


def rivals_of(
    made: gpu_zoo.Case, inputs: dict[str, torch.Tensor], options: argparse.Namespace
) -> dict[str, Callable[[], object]]:
    """What torch makes of the model, in the precision asked for."""
    on_gpu = made.module.cuda()
    if options.precision == "f16":
        on_gpu = on_gpu.half().to(memory_format=torch.channels_last)
        inputs = {key: x.half() if x.is_floating_point() else x for key, x in inputs.items()}
        inputs = {
            key: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
            for key, x in inputs.items()
        }
    rivals = {"torch": captured(lambda: on_gpu(*inputs.values()))[0]}
    if options.compile:
        quick = torch.compile(on_gpu, mode=options.compile)
        rivals["torch.compile"] = captured(lambda: quick(*inputs.values()))[0]
    return rivals


def last_of(module: Any) -> Any:
    """The launches of a module's last call."""
    (recorded,) = list(module._records.values())[-1:]
    return recorded


def with_chains(
    made: gpu_zoo.Case, inputs: dict[str, torch.Tensor], outputs: Any, options: argparse.Namespace
) -> Any:
    """The launches of the same model, its chains of products as one kernel each."""
    module = tw.compile(made.path, target="cuda", precision=options.precision, chains=True)
    for _ in range(3):
        module(*inputs.values(), out=outputs)
    return last_of(module)


def figures_of(name: str, options: argparse.Namespace) -> list[report.Figure]:
    made = gpu_zoo.case(name, options.folder, options.batch)
    with torch.no_grad():
        wanted = made.module(*made.inputs.values())
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    begun = time.perf_counter()
    module = tw.compile(made.path, target="cuda", precision=options.precision)
    compiled_s = time.perf_counter() - begun
    inputs = {key: value.cuda() for key, value in made.inputs.items()}
    outputs = module(*inputs.values())
    for _ in range(2):  # into the same arrays: as a graph
        module(*inputs.values(), out=outputs)
    error = report.error_of(list(map(cuda.to_host, outputs)), [each.numpy() for each in wanted])
    recorded = last_of(module)
    rivals = rivals_of(made, inputs, options)
    late = serial_graph(recorded)
    runs = {"ours": lambda: recorded.graph.launch(0), LATE: lambda: late.launch(0), **rivals}
    chained = with_chains(made, inputs, outputs, options)
    if len(chained.launches) < len(recorded.launches):
        runs[CHAINED] = lambda: chained.graph.launch(0)
    times: dict[str, list[float]] = {key: [] for key in runs}
    for _ in range(ROUNDS):
        for key, run in runs.items():
            times[key].append(device_ms(run))
    median = {key: statistics.median(found) for key, found in times.items()}
    best = min(median[key] for key in rivals)
    shown = [
        report.at_most(f"{name}: error", error, "", report.MODEL_TOLERANCE[options.precision]),
        report.Figure(f"{name}: ours", median["ours"], "ms"),
        *(report.Figure(f"{name}: {key}", median[key], "ms") for key in rivals),
        report.Figure(f"{name}: compile", compiled_s, "s"),
        report.Figure(f"{name}: kernels", len(recorded.launches), ""),
    ]
    gained = f"{name}: dependent launch brings"
    shown.append(report.at_least(gained, median[LATE] / median["ours"], "x", LEAST_GAIN))
    if CHAINED in median:  # off by default: tuning keeps them where they are faster
        brought = median["ours"] / median[CHAINED]
        shown.append(report.Figure(f"{name}: chains, over kernels apart", brought, "x"))
    traces = [found for _ in range(TRACES) if (found := traced(runs["ours"]))]
    if traces:
        idle = min(map(outside, traces))
        shown.append(report.at_most(f"{name}: outside kernels", idle, "", MAX_OUTSIDE))
    ratio = best / median["ours"]
    want = WANT.get((options.precision, options.batch), {}).get(name)
    speed = f"{name}: faster than torch"
    shown.append(
        report.Figure(speed, ratio, "x")
        if want is None
        else report.at_least(speed, ratio, "x", want)
    )
    if options.profile and traces:
        shown += timeline(name, traces[-1])
    return shown


def host_us(run: Callable[[], object]) -> float:
    """Microseconds of the host in a call, on an idle GPU."""
    cuda.synchronize()
    begun = time.perf_counter()
    run()
    return 1e6 * (time.perf_counter() - begun)


def figures_of_sizes(name: str, options: argparse.Namespace) -> list[report.Figure]:
    """Calls with batches of several buckets; first one call of each, so that kernels are loaded."""
    made = gpu_zoo.case(name, options.folder, 2, is_open=True)
    module: Any = tw.compile(made.path, target="cuda", precision=options.precision)
    on_gpu, error = made.module.cuda(), 0.0
    inputs = {
        batch: [x[:1].repeat_interleave(batch, 0).cuda().contiguous() for x in made.inputs.values()]
        for batch in range(BUCKETS[0] - 7, BUCKETS[-1] + 1)
    }
    batches: dict[int, list[int]] = {largest: [] for largest in BUCKETS}
    for batch in inputs:
        batches[device_buckets.rounded(batch)].append(batch)
    outputs = {batch: module(*given) for batch, given in inputs.items()}  # by walks
    times: dict[str, list[float]] = {}

    def call(what: str, batch: int, out: Any = None) -> Any:
        found: list[Any] = []
        took = host_us(lambda: found.append(module(*inputs[batch], out=out)))
        times.setdefault(what, []).append(took)
        return found[0]

    for shared in (True, False):
        module._records.clear()
        module._buckets = device_buckets.Buckets() if shared else Walking()
        how = "" if shared else ", each walked"
        for some in batches.values():
            call(f"first batch of a bucket{how}", some[0])
            call(f"second batch of a bucket{how}", some[1], outputs[some[1]])
            for batch in some[2:]:
                call(f"new batches of a bucket{how}", batch, outputs[batch])
            for _ in range(3):  # the first of them has a graph of its own, or is captured
                call(f"the same batch elsewhere{how}", some[0], module(*inputs[some[0]]))
        for batch in (BUCKETS[0], BUCKETS[-1]) * 8:
            call(f"two batches in turns{how}", batch, outputs[batch])
        times[f"two batches in turns{how}"] = times[f"two batches in turns{how}"][-4:]
        with torch.no_grad():
            for batch in (17, 23, 24, 40, 63):
                got = torch.from_dlpack(call(f"checked{how}", batch)[0]).float()
                want = on_gpu(*inputs[batch])
                error = max(error, float((got - want).abs().max() / want.abs().max()))
    times = {what: each for what, each in times.items() if not what.startswith("checked")}
    found = [
        report.Figure(f"{name}, {what}: host", statistics.median(each), "us")
        for what, each in times.items()
    ]
    new = "new batches of a bucket"
    gain = statistics.median(times[f"{new}, each walked"]) / statistics.median(times[new])
    found.append(report.at_least(f"{name}, {new}: of walking", gain, "x", LEAST_SHARED))
    limit = report.MODEL_TOLERANCE[options.precision]
    found.append(report.at_most(f"{name}, all batches: error", error, "", limit))
    return found


class Walking:
    """No graphs that calls share."""

    def run(self, *_: Any) -> bool:
        return False


def timeline(name: str, kernels: list[Ran]) -> list[report.Figure]:
    """Every kernel of a launch: when it began, and how long it took."""
    first = kernels[0].begun
    return [
        report.Figure(
            f"{name}: at {each.begun - first:.1f}: {each.name[-40:]}", each.ended - each.begun, "us"
        )
        for each in kernels
    ]


@report.on_gpu
def measure(options: argparse.Namespace) -> list[report.Figure]:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    figures: list[report.Figure] = []
    for name in options.only or NAMES[options.precision]:
        try:
            found = (figures_of_sizes if options.sizes else figures_of)(name, options)
            for each in found:  # what is known is shown, whatever comes after
                print(f"  {each.name}: {each.value:.4g} {each.unit}", flush=True)
            figures += found
        except Exception:  # one model's trouble is a figure of its own, not the end of the others
            print(f"{name}: {traceback.format_exc(limit=-3)[-600:]}")
            figures.append(report.Figure(f"{name}: ran", 0.0, "", ">= 1", False))
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--precision", choices=list(NAMES), default="f32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument(
        "--compile", nargs="?", const="default", help="also against torch.compile, in a mode of its"
    )
    parser.add_argument("--sizes", action="store_true", help="the host's time for new sizes")
    parser.add_argument("--profile", action="store_true", help="show every kernel of a launch")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "models")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
