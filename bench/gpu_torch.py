"""PyTorch models outside of the zoo on an NVIDIA GPU, against torch under CUDA graphs.

    python bench/gpu_torch.py [--json FILE] [--programs FOLDER] [--only REGEX] [--jobs 12]
                              [--journal FILE] [--stop-after SECONDS] [--kernels N] [--eager]
                              [--assemble]

The programs that bench/gpu_programs.py wrote, each in a process of its own: compiled by us and by
torch.compile side by side with others, timed one at a time, ours and torch's in turns, by least
times of graphs. Results are compared with eager's of f32, and may be MOST times as wrong as eager's
of the same precision. What torch loses by running operators one by one
or by a layout is not counted: the best of eager and torch.compile, both in CUDA graphs, is the
rival. A call with CUDA tensors must give the same, and the time that it takes of the host is shown.
Of the kernels that take longest it shows share, time, what the cost model predicted, rules
and bytes. With --eager there is no torch.compile, which takes most of the time.

With --assemble no GPU is needed: all are compiled for one, ptxas takes every kernel, and rules and
spills are told.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import re
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import gpu_programs
import journal
import report
import torch
from gpu_models import captured
from torch.utils import _pytree as pytree

import tilewright as tw
from tilewright.driver.device_module import DeviceModule
from tilewright.frontends.torch.calling import TorchModule
from tilewright.frontends.torch.program import import_program
from tilewright.graph.visit import walk
from tilewright.runtime import cuda, cuda_graphs

ROUNDS, LEAST_MS = 9, 4.0  # turns of each; a turn's launches take so long together
SECONDS = 400.0  # for one model
REPEATED = 10  # launches of a kernel by itself
HOST_CALLS = 5  # timed together; more would fill the queue of launches
SHOWN = 900  # characters of an error
MOST = 3.0  # times the error of eager in the same precision
OURS, EAGER, INDUCTOR = "ours", "torch", "torch.compile"
MARK = "outcome: "


# ------------------------------------------------------------------------------------ one model


def compiled(program: gpu_programs.Program, precision: str) -> tuple[DeviceModule, TorchModule]:
    """A program for the GPU, and as PyTorch calls it."""
    with torch.no_grad():
        imported = import_program(program.module().eval(), program.inputs())
    module = tw.compile(imported.module, target="cuda", precision=precision)
    assert isinstance(module, DeviceModule)
    called = imported.wrap(module)
    assert isinstance(called, TorchModule)
    return module, called


def host_us(run: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The host's part of a call."""
    least = math.inf
    for _ in range(rounds):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(HOST_CALLS):
            run()
        least = min(least, time.perf_counter() - begun)
    torch.cuda.synchronize()
    return 1e6 * least / HOST_CALLS


def called_alike(made: Any, outputs: Sequence[Any]) -> bool:
    """Whether a call with tensors gave what the module computes."""
    tensors = [each for each in pytree.tree_leaves(made) if isinstance(each, torch.Tensor)]
    exact = [torch.from_dlpack(each) for each in outputs]
    return len(tensors) != len(exact) or all(
        each.is_complex() or torch.equal(each.nan_to_num(), want.nan_to_num())
        for each, want in zip(tensors, exact, strict=True)
    )


def least_ms(runs: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """Milliseconds of one run of each on the device, in turns."""

    def turn(start: Callable[[], object], launches: int) -> float:
        start()
        timer = cuda.Timer()
        timer.start()
        for _ in range(launches):
            start()
        return timer.stop() / launches

    launches = {
        name: max(5, min(50, math.ceil(LEAST_MS / max(1e-3, turn(run, 5)))))
        for name, run in runs.items()
    }
    found: dict[str, float] = dict.fromkeys(runs, math.inf)
    for _ in range(rounds):
        for name, run in runs.items():
            found[name] = min(found[name], turn(run, launches[name]))
    return found


def in_nhwc(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Convolutions of f16 as torch likes them; inputs likewise."""

    def laid_out(x: torch.Tensor) -> torch.Tensor:
        return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x

    model._apply(laid_out)
    return tuple(map(laid_out, inputs))


def rivals_of(
    program: gpu_programs.Program, precision: str, *, eager: bool = False
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """What torch makes of a model, compiled too unless `eager`; and what it refused."""
    model, inputs = program.module("cuda").eval(), program.inputs("cuda")
    runs: dict[str, Callable[[], Any]] = {}
    refused: dict[str, str] = {}

    def add(name: str, made: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> bool:
        try:
            with torch.no_grad():
                made(*given)
            runs[name] = lambda: made(*given)
        except Exception as problem:
            refused[name] = str(problem)[-200:]
        return name in runs

    convolves = "aten.conv2d" in program.text
    if precision == "f16" and convolves:
        given = in_nhwc(model, inputs)
        if add(EAGER, model, given):
            inputs = given
        else:
            model = program.module("cuda").eval()  # views that need another layout
    if EAGER not in runs:
        add(EAGER, model, inputs)
    if not eager:
        add(INDUCTOR, torch.compile(model), inputs)
    return runs, refused


def errors(
    program: gpu_programs.Program, outputs: Sequence[Any], wanted: Sequence[torch.Tensor]
) -> tuple[float, float]:
    """Ours and eager's, against eager's in f32; infinite where that is 0 all over, or no number:
    weights that were made up may give what shows nothing."""
    with torch.no_grad():
        exact = program.in_f32().module("cuda").eval()(*program.in_f32().inputs("cuda"))
    results = [each.float().cpu().numpy() for each in exact]
    if not any(each.any() for each in results):
        return math.inf, math.inf
    eager = [each.float().cpu().numpy() for each in wanted]
    return report.error_of(list(map(cuda.to_host, outputs)), results), report.error_of(
        eager, results
    )


def outcome(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    precision = path.stem.split(".")[1]
    program = gpu_programs.read(path)
    begun = time.perf_counter()
    module, called = compiled(program, precision)
    told: dict[str, Any] = {"compile_s": time.perf_counter() - begun}
    begun = time.perf_counter()
    rivals, told["refused"] = rivals_of(program, precision, eager=options.eager)
    told["torch_s"] = time.perf_counter() - begun
    inputs = [each.contiguous() for each in program.inputs("cuda")]
    with options.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outputs = module(*inputs)
        for _ in range(2):  # into the same arrays: as a graph
            module(*inputs, out=outputs)
        (recorded,) = list(module._records.values())[-1:]
        told["is_alike"] = called_alike(called(*inputs), outputs)
        told["host_us"] = host_us(lambda: called(*inputs))
        runs: dict[str, Callable[[], object]] = {OURS: lambda: recorded.graph.launch(0)}
        for name, run in rivals.items():
            runs[name], results = captured(run)
            if name == EAGER:
                wanted = results
        told["ms"] = least_ms(runs)
        runs[EAGER]()
        torch.cuda.synchronize()
        told["error"], told["eager_error"] = errors(program, outputs, wanted)
        told["launches"] = len(recorded.launches)
        told["kernels"] = slowest(module, inputs, options.kernels)
    told["ratio"] = min(told["ms"][name] for name in rivals) / told["ms"][OURS]
    return told


def slowest(module: DeviceModule, given: list[torch.Tensor], count: int) -> list[str]:
    """Of the kernels that take longest: share of the time, launches, rules, bytes. Each launch is
    timed by a graph of it alone, for by itself it is as short as the clock's tick."""
    kernels = {
        node["label"]: module.program.kernels[node["function"]]
        for node in walk(module.program.module.main)
        if node.op == "kernel"
    }
    taken: dict[str, list[float]] = {}
    moved: dict[str, int] = {}
    rules: dict[str, str] = {}
    predicted: dict[str, float] = {}
    started = module.walk(*given)
    for launch in started.launches:
        stream = cuda.Stream()

        def repeated(handle: int, launch: Any = launch) -> None:
            for _ in range(REPEATED):
                launch.start(handle)

        graph = cuda_graphs.Graph(repeated, stream)
        ms = least_ms({"": lambda graph=graph: graph.launch(0)}, rounds=2)[""]  # type: ignore[misc]
        kernel = kernels.get(launch.label)
        name = launch.label if kernel is None else kernel.name
        taken.setdefault(name, []).append(1e3 * ms / REPEATED)
        moved[name] = sum(span.stop - span.start for span in launch.spans)
        decided = () if kernel is None else kernel.decisions
        rules[name] = " ".join(dict.fromkeys(each.rule for each in decided))
        predicted[name] = sum(each.predicted_ns for each in decided) / 1e3
    total = sum(map(sum, taken.values()))
    order = sorted(taken, key=lambda name: -sum(taken[name]))
    return [
        f"{sum(taken[name]) / total:6.1%} {sum(taken[name]):8.1f} us, {len(taken[name])} x {name} "
        f"[{rules[name]}] {moved[name] >> 10} KB, {predicted[name]:.1f} us predicted of each kernel"
        for name in order[:count]
    ]


def assembled(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What rules and ptxas make of a model."""
    import gpu_assemble

    ptxas = gpu_assemble.assembler()
    assert ptxas is not None, "ptxas is not installed (pip install 'tilewright[ptxas]')"
    begun = time.perf_counter()
    module, _ = compiled(gpu_programs.read(path), path.stem.split(".")[1])
    taken = time.perf_counter() - begun
    rules: Counter[str] = Counter()
    for node in walk(module.program.module.main):
        if node.op == "kernel":
            rules.update(each.rule for each in module.program.kernels[node["function"]].decisions)
    said = [
        f"{each.name}: {each.spilled_bytes} bytes spilled {each.said[-200:]}"
        for each in gpu_assemble.assembled(ptxas, module, "sm_90a")
        if each.trouble or each.spilled_bytes
    ]
    return {"compile_s": taken, "rules": dict(rules), "kernels": said}


# ------------------------------------------------------------------------------------ all of them


def in_process(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The outcome of a model, from a process of its own."""
    command = [sys.executable, __file__, "--one", str(path), "--kernels", str(options.kernels)]
    command += ["--lock", str(options.lock), *(["--assemble"] if options.assemble else [])]
    command += ["--eager"] if options.eager else []
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "2"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    running.add(process)
    try:
        output, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return {"failed": f"took longer than {SECONDS:.0f} s"}
    finally:
        running.discard(process)
    for line in output.splitlines():
        if line.startswith(MARK):
            found: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return found
    return {"failed": f"ended with {process.returncode}: {errors[-SHOWN:]}"}


running: set[subprocess.Popen[str]] = set()


def outcomes(
    paths: list[Path], options: argparse.Namespace
) -> Iterator[tuple[Path, dict[str, Any]]]:
    pool = ThreadPoolExecutor(options.jobs)
    try:
        jobs = {pool.submit(in_process, path, options): path for path in paths}
        for job in as_completed(jobs):
            yield jobs[job], job.result()
    finally:  # where the time is over
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(running):
            process.kill()


def line_of(name: str, told: dict[str, Any]) -> str:
    if "failed" in told:
        return f"{name}: FAILED {told['failed']}"
    if "rules" in told:
        return f"{name}: {told['compile_s']:.0f} s, {told['rules']}"
    times = ", ".join(f"{key} {1e3 * ms:.0f}" for key, ms in told["ms"].items())
    refused = "".join(f"; {key} refused: {why}" for key, why in told["refused"].items())
    host = f", {told['host_us']:.0f} us of the host" if "host_us" in told else ""
    return (
        f"{name}: {told['ratio']:.2f}x ({times} us), error {told['error']:.1e} "
        f"(torch {told['eager_error']:.1e}), "
        f"{told['launches']} launches{host}, "
        f"compile {told['compile_s']:.0f} and {told['torch_s']:.0f} s{refused}"
    )


def measure(options: argparse.Namespace) -> list[report.Figure]:
    if not options.assemble and not cuda.is_available():
        print("skipped: no NVIDIA GPU can be used here")
        return []
    kept = journal.Journal.of(options)
    order = [gpu_programs.title(*case) for case in gpu_programs.cases()]
    paths = [options.programs / f"{name}.pt" for name in order if re.search(options.only, name)]
    missing = [path.stem for path in paths if not path.exists()]
    if missing:
        print(f"not written: {', '.join(missing)}")
    left = [path for path in paths if path.exists() and path.stem not in kept.found]
    for path, told in kept.limited(outcomes(left, options)):
        kept.add(path.stem, **told)
        print(line_of(path.stem, told), flush=True)
        for line in told.get("kernels", []) if options.assemble else []:
            print(f"    {line}", flush=True)
    print("\nworst first")
    for name in sorted(kept.found, key=lambda name: kept.found[name].get("ratio", 0.0)):
        print(line_of(name, kept.found[name]))
        for line in kept.found[name].get("kernels", []):
            print(f"    {line}")
    return figures_of(kept.found)


def figures_of(found: dict[str, dict[str, Any]]) -> list[report.Figure]:
    figures: list[report.Figure] = []
    for name, told in found.items():
        if "failed" in told:
            figures.append(report.Figure(f"{name}: ran", 0.0, "", ">= 1", False))
        elif "ratio" in told:
            # Rounding of results alone may be the lesser part of what eager is wrong by.
            floor = report.MODEL_TOLERANCE[name.split(".")[1]] / MOST
            is_checked = math.isfinite(told["eager_error"])
            limit = MOST * max(told["eager_error"], floor) if is_checked else 0.0
            figures.append(report.at_most(f"{name}: error", told["error"], "", limit))
            alike = told.get("is_alike", True)
            figures.append(report.Figure(f"{name}: same by tensors", alike, "", "1", alike))
            figures.append(report.Figure(f"{name}: faster than torch", told["ratio"], "x"))
    for suffix in sorted({name.split(".", 1)[1] for name in found}):
        ratios = [
            told["ratio"]
            for name, told in found.items()
            if name.endswith(suffix) and "ratio" in told
        ]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            figures.append(report.Figure(f"{suffix}: geometric mean of {len(ratios)}", mean, "x"))
            below = sum(ratio < 1 for ratio in ratios)
            figures.append(report.Figure(f"{suffix}: slower than torch", below, "models"))
    return figures


def one(options: argparse.Namespace) -> None:
    """The process of one model."""
    try:
        told = (assembled if options.assemble else outcome)(options.one, options)
    except Exception:
        told = {"failed": traceback.format_exc(limit=-4)[-SHOWN:]}
    print(MARK + json.dumps(told), flush=True)
    os._exit(0)  # graphs and pools need not be taken apart


def arguments(parser: argparse.ArgumentParser) -> None:
    folder = Path(__file__).parent
    parser.add_argument("--programs", type=Path, default=folder / "models" / "programs")
    parser.add_argument("--only", default="", help="a regular expression on names of programs")
    parser.add_argument("--jobs", type=int, default=12, help="models compiled at a time")
    parser.add_argument("--kernels", type=int, default=6, help="shown of each model")
    parser.add_argument("--assemble", action="store_true", help="no GPU: compile and assemble")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--lock", type=Path, default=Path("/tmp/gpu_torch.lock"))
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    journal.arguments(parser)


if __name__ == "__main__":
    if "--one" in sys.argv:
        parser = argparse.ArgumentParser()
        arguments(parser)
        one(parser.parse_args())
    else:
        report.run(__doc__, measure, arguments)
