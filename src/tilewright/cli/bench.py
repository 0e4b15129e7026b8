"""tilewright bench MODEL"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from tilewright.cli import common
from tilewright.cli.common import (
    Dims,
    Inputs,
    Json,
    Model,
    Precision,
    Seed,
    Target,
    Threads,
    Without,
)
from tilewright.cli.peers import PEERS, peer_run
from tilewright.runtime.module import Module as Compiled
from tilewright.runtime.profiler import Record, profile


@common.command
def bench(
    model: Model,
    inputs: Inputs = None,
    dim: Dims = None,
    seed: Seed = 0,
    target: Target = "cpu",
    threads: Threads = 0,
    precision: Precision = "f32",
    without: Without = None,
    seconds: Annotated[float, typer.Option(min=0, help="Measuring time.")] = 2.0,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="Also measure: onnxruntime, openvino (.onnx), torch, inductor (.pt2)"),
    ] = None,
    kernels: Annotated[int, typer.Option(min=0, help="Number of kernels to list.")] = 12,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace of passes and a run to this file.")
    ] = None,
    json: Json = False,
) -> None:
    """Benchmark a model: median, 90th percentile, time of each kernel."""
    if any(each not in PEERS for each in peer or ()):
        raise typer.BadParameter(f"known: {', '.join(PEERS)}", param_hint="--peer")
    common.check_folder(trace)
    module = common.read_module(model, target, threads, precision, without)
    arrays = common.make_inputs(module.inputs, inputs, dim, seed)
    runs: dict[str, Callable[[], Any]] = {"tilewright": lambda: module(*arrays)}
    for each in peer or ():
        runs[each] = peer_run(each, str(model), module, arrays, threads)
    times = measure(runs, seconds)
    record = module.profile(*arrays)
    if trace is not None:
        from tilewright.report.trace import write_trace

        with common.writing(trace):
            write_trace(trace, traced(module, arrays), module.timings)
    report = {
        "model": str(model),
        "threads": threads,
        "runs": {name: summary(values) for name, values in times.items()},
        "kernels": [
            {
                "kernel": total.kernel,
                "calls": total.calls,
                "ms": total.total_ns / 1e6,
                "gflops": total.gflops,
                "gbytes": total.gbytes,
            }
            for total in record.kernels()
        ],
    }
    if json:
        common.print_json(report)
    else:
        _show(report, kernels)


def traced(module: Compiled, arrays: list[Any]) -> Record:
    """Profile one run with the threads' shares of kernels; without them, for a loaded library."""
    with profile(shares=True) as record:
        module(*arrays)
    return record if record.events else module.profile(*arrays)


def measure(runs: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Times of single calls in ms, alternating between the candidates, so that noise affects
    all."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    with common.progress("measuring") as move:
        begun = time.perf_counter()
        while (spent := time.perf_counter() - begun) < seconds or len(times["tilewright"]) < 3:
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                times[name].append((time.perf_counter() - start) * 1e3)
            move("calls", int(min(spent, seconds) * 10), int(seconds * 10))
    return times


def summary(values: list[float]) -> dict[str, float]:
    return {
        "calls": len(values),
        "median_ms": statistics.median(values),
        "p90_ms": float(np.percentile(values, 90)),
        "min_ms": min(values),
    }


def _show(report: dict[str, Any], limit: int) -> None:
    table = Table("", "calls", "median ms", "p90 ms", "min ms", "ratio")
    ours = report["runs"]["tilewright"]["median_ms"]
    for name, one in report["runs"].items():
        numbers = [f"{one[key]:.3f}" for key in ("median_ms", "p90_ms", "min_ms")]
        table.add_row(name, str(one["calls"]), *numbers, f"{one['median_ms'] / ours:.2f}")
    common.output().print(table)
    total = sum(one["ms"] for one in report["kernels"]) or 1.0
    table = Table("kernel", "calls", "ms", "share", "GFLOP/s", "GB/s")
    for one in report["kernels"][:limit]:
        table.add_row(
            one["kernel"],
            str(one["calls"]),
            f"{one['ms']:.3f}",
            f"{one['ms'] / total:.1%}",
            f"{one['gflops']:.1f}",
            f"{one['gbytes']:.1f}",
        )
    common.output().print(table)
