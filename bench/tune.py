"""What tuning gains on models outside its development, and its robustness.

    python bench/tune.py zoo [--json FILE] [--minutes 5] [--only NAME ...] [--precision f32 bf16]
    python bench/tune.py tail [--minutes 1] [--only NAME ...]      kernels no model of the zoo has
    python bench/tune.py gpu [--minutes 1] [--only NAME ...]       models in f16 on a GPU
    python bench/tune.py stranger [--minutes 1] [--seeds 5]        rates of the machine off by 2x
                                  [--target "cpu -mcpu=haswell"]   the same with AVX2 code only
    python bench/tune.py faults [--count 100] [--kills 50]         candidates that crash, hang, lie
    python bench/tune.py sketches [--minutes 3]                    kernels no rule knows; and TVM

Untuned and tuned run in turns, in the same process, after tuning: the figure is the middle of the
ratios of neighbouring runs. Both are built several times for it, since the same code has another
speed where its memory lies elsewhere; the figure is the mean. Each tuning starts from an empty
database.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import report
import tune_sketches
import tune_tvm
from report import Figure
from tune_faults import faults
from tune_kernels import KERNELS, Kernel

from tilewright.driver.device_launch import CudaGpu
from tilewright.driver.device_module import DeviceModule
from tilewright.driver.tuning.device import Version

ROOT = Path(__file__).parent
ZOO = ROOT / "models"
PAIRS, PAIRS_S = 41, 4.0  # of a comparison after tuning, at most
LEAST_BUILDS, MAX_BUILDS = 3, 9  # of modules to compare,
BUILDS_SHARE = 0.1  # and more than the least while that much of the time of tuning is left
GPU_RUNS, GPU_MODELS = 20, ("gemm", "resnet18")
KERNELS_SHOWN = 12  # of a model, the costliest
LEAST_GAIN = 0.98
MEAN_GAIN = {"f32": 1.05, "bf16": 1.08, "int8": 1.08}
TAIL_MEAN = 1.25
RATE_SPREAD, RATES = 2.0, ("bytes-per-cycle", "-ns")
STRANGERS = ("5x5", "1-d, 9", "matmul 257x129x511", "3x3, odd channels", "sum of a middle axis")


@dataclass
class Tuned:
    """A model untuned and tuned."""

    name: str
    untuned: Any
    tuned: Any
    inputs: list[Any]
    built: Callable[[], tuple[Any, Any]]  # both once more, their memory elsewhere
    curve: list[tuple[float, float]] = field(default_factory=list)  # seconds, gain expected
    stages: list[tuple[float, str]] = field(default_factory=list)  # when each began

    @property
    def outcome(self) -> Any:
        return self.tuned.tuning

    def run(self, module: Any) -> Callable[[], Any]:
        if not isinstance(module, DeviceModule):
            return lambda: module(*self.inputs)
        version = Version(module, self.inputs, CudaGpu())  # as a graph: the host takes no part
        return lambda: version.whole_ns(GPU_RUNS)

    @property
    def spent(self) -> str:
        """Where the seconds went."""
        seconds: dict[str, float] = {}
        for (begin, stage), (end, _) in itertools.pairwise(self.stages):
            seconds[stage] = seconds.get(stage, 0.0) + end - begin
        return ", ".join(f"{stage} {each:.1f}" for stage, each in seconds.items())

    def early(self, seconds: float) -> float:
        """The share of the expected gain that was there after so many seconds."""
        if not self.curve or self.curve[-1][1] <= 1.0:
            return 1.0
        then = max([gain for at, gain in self.curve if at <= seconds], default=1.0)
        return (then - 1.0) / (self.curve[-1][1] - 1.0)


def tuned_model(
    name: str,
    model: Any,
    minutes: float,
    threads: int,
    inputs: Sequence[Any] | None = None,
    **more: Any,
) -> Tuned:
    """Compile a model twice, once with tuning."""
    import tilewright as tw
    from tilewright.tune.budget import Budget

    curve: list[tuple[float, float]] = []
    stages: list[tuple[float, str]] = []

    def listen(snapshot: Any) -> None:
        stages.append((snapshot.seconds, snapshot.stage))
        before = sum(each.baseline_ns for each in snapshot.tasks)
        after = sum(each.best_ns for each in snapshot.tasks)
        curve.append((snapshot.seconds, before / after if after else 1.0))

    folder = tempfile.TemporaryDirectory()
    database = Path(folder.name) / "records.sqlite"
    compiled = partial(tw.compile, model, threads=threads, **more)
    untuned = compiled(database="")
    tuned = compiled(database=database, tune=Budget(minutes=minutes), tuning=listen)

    def built() -> tuple[Any, Any]:
        with_records = compiled(database=database)  # what lies before the other changes places
        return compiled(database=""), with_records

    given = list(inputs) if inputs is not None else random_inputs(untuned)
    made = Tuned(name, untuned, tuned, given, built, curve, stages)
    weakref.finalize(made, folder.cleanup)
    return made


def random_inputs(module: Any) -> list[Any]:
    random = np.random.default_rng(16)
    return [report.aligned(_random(each, random)) for each in module.inputs]


def _random(spec: Any, random: np.random.Generator) -> Any:
    shape = [dim if isinstance(dim, int) else 1 for dim in spec.shape]
    if spec.dtype.kind == "float":
        return random.standard_normal(shape).astype(spec.dtype.numpy)
    return random.integers(0, 2, shape).astype(spec.dtype.numpy)


def in_turns(first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """Both in turns: `Paired`, the first's times and the second's."""
    from tilewright.tune.stats import Paired

    for run in (first, second, first, second):
        run()
    times: tuple[list[float], list[float]] = ([], [])
    begun = time.perf_counter()
    while len(times[0]) < PAIRS and (len(times[0]) < 7 or time.perf_counter() - begun < PAIRS_S):
        sides = ((0, first), (1, second))
        for side, run in sides if len(times[0]) % 2 == 0 else sides[::-1]:
            run()  # caches and threads are as the module itself leaves them
            start = time.perf_counter()
            run()
            times[side].append(time.perf_counter() - start)
    return Paired(tuple(times[0]), tuple(times[1]))


def gain_of(made: Tuned) -> float:
    """Untuned by tuned time, in turns: the mean of modules built again and again."""
    from tilewright.tune.stats import geometric_mean

    pairs = [in_turns(made.run(made.untuned), made.run(made.tuned))]
    kept: list[tuple[Any, Any]] = []
    latest = time.perf_counter() + BUILDS_SHARE * made.outcome.seconds
    while len(pairs) < LEAST_BUILDS or (len(pairs) < MAX_BUILDS and time.perf_counter() < latest):
        kept.append(made.built())  # these keep their memory: the next have others
        pairs.append(in_turns(*map(made.run, kept[-1])))
    gain, told = geometric_mean([pair.gain for pair in pairs]), made.outcome
    middle = f"{gain:6.3f} ({' '.join(f'{pair.gain:.3f}' for pair in pairs)})"
    middle += f"  tuner says {told.gain:.3f}, of it choices of the graph {told.graph_gain:.3f}"
    tried = f"{told.trials} trials, {told.failed} failed, {told.seconds:.0f} s"
    print(f"{made.name:40} {middle}  {tried}, {told.model}: {told.stopped}", flush=True)
    print(f"  seconds: {made.spent}", flush=True)
    show_kernels(told)
    return gain


def show_kernels(told: Any) -> None:
    """What is left to gain: each kernel's share of the roofline, before and after."""
    for each in sorted(told.tasks, key=lambda task: -task.baseline_ns)[:KERNELS_SHOWN]:
        before, after = (each.floor_ns / max(ns, 1.0) for ns in (each.baseline_ns, each.best_ns))
        shares = f"roofline {before:4.2f} -> {after:4.2f}, {each.trials} trials"
        winner = told.winners.get(each.name)
        choice = " ".join(f"{a}: {b}" for a, b in winner.choices.items()) if winner else ""
        line = f"  {each.label[:36]:36} {each.baseline_ns / 1e3:9.1f} us {each.gain:6.3f} {shares}"
        print(f"{line}  {choice}", flush=True)


def means(gains: Sequence[float], name: str, want: float) -> Figure:
    from tilewright.tune.stats import geometric_mean

    return report.at_least(f"{name}: geometric mean of the gain", geometric_mean(gains), "x", want)


# --------------------------------------------------------------------------- models of the zoo


def zoo(options: argparse.Namespace) -> list[Figure]:
    """Every model, tuned."""
    import zoo as models

    models.ensure_models(options.zoo, options.only)
    figures: list[Figure] = []
    for precision in options.precision:
        gains, early, over = [], [], []
        for case in models.cases_of(options.zoo, options.only):
            chosen = models.quantized(case, options.zoo / "int8") if precision == "int8" else case
            with np.load(chosen.inputs) as stored:
                arrays = {name: stored[name] for name in stored.files}
            made = tuned_model(
                f"{case.name} {precision}",
                chosen.model,
                options.minutes,
                options.threads,
                precision="f32" if precision == "int8" else precision,
                dynamic=fixed_sizes(chosen.model, arrays),
            )
            made.inputs = [report.aligned(arrays[each.name]) for each in made.untuned.inputs]
            gains.append(gain_of(made))
            early.append(made.early(60.0))
            over.append(made.outcome.seconds / (60.0 * options.minutes))
            figures.append(report.at_least(f"{made.name}: gain", gains[-1], "x", LEAST_GAIN))
        if gains:
            figures.append(means(gains, precision, MEAN_GAIN[precision]))
            middle = report.median(early)
            figures.append(report.at_least(f"{precision}: of it after 60 s", middle, "", 0.5))
            figures.append(
                report.at_most(f"{precision}: budget used, at most", max(over), "", 1.05)
            )
    return figures


def fixed_sizes(model: Path, arrays: dict[str, Any]) -> dict[str, int] | None:
    """The dynamic sizes of a model as its inputs have them."""
    from tilewright.driver.optimize import load_graph
    from tilewright.sym import Size

    found = {
        dim.name: int(size)
        for param in load_graph(model).main.params
        if param.name in arrays
        for dim, size in zip(param.tensor.shape or (), arrays[param.name].shape, strict=True)
        if isinstance(dim, Size)
    }
    return found or None


# --------------------------------------------------------------------------- kernels of the tail


def tail(options: argparse.Namespace) -> list[Figure]:
    """Kernels that rules were not made for."""
    gains, figures = [], []
    for kernel in chosen_kernels(options.only):
        made = tuned_kernel(kernel, options.minutes, options.threads, options.target)
        gains.append(gain_of(made))
        figures.append(report.at_least(f"{kernel.name}: gain", gains[-1], "x", LEAST_GAIN))
    return [*figures, means(gains, "tail", TAIL_MEAN)]


def chosen_kernels(only: Sequence[str] | None) -> list[Kernel]:
    return [each for each in KERNELS if not only or each.name in only]


def untuned_kernel(kernel: Kernel, threads: int, target: str) -> Any:
    import tilewright as tw

    return tw.compile(kernel.module(), target, threads=threads, database="")


def tuned_kernel(kernel: Kernel, minutes: float, threads: int, target: str) -> Tuned:
    return tuned_model(kernel.name, kernel.module(), minutes, threads, target=target)


# --------------------------------------------------------------------------- a GPU

GEMM = """graph @main(%a: f16[1000, 1000], %b: f16[1000, 1000]) -> (f16[1000, 1000]) {
  %c = matmul(%a, %b)
  return %c
}"""


def gpu(options: argparse.Namespace) -> list[Figure]:
    """A GEMM, and models of the zoo in f16, on the GPU of this machine."""
    import zoo as models

    from tilewright import graph

    target = options.target if options.target != "cpu" else "cuda"
    chosen, figures = list(options.only or GPU_MODELS), []
    if "gemm" in chosen:
        chosen.remove("gemm")
        gemm = tuned_model("GEMM f16", graph.parse(GEMM), options.minutes, 0, target=target)
        figures.append(report.at_least("GEMM f16: gain", gain_of(gemm), "x", LEAST_GAIN))
    models.ensure_models(options.zoo, chosen)
    for case in models.cases_of(options.zoo, chosen):
        with np.load(case.inputs) as stored:
            arrays = {name: stored[name] for name in stored.files}
        sizes = fixed_sizes(case.model, arrays)
        more = {"precision": "f16", "dynamic": sizes, "target": target}
        made = tuned_model(f"{case.name} f16", case.model, options.minutes, 0, **more)
        specs = made.untuned.inputs
        made.inputs = [arrays[each.name].astype(each.dtype.numpy) for each in specs]
        figures.append(report.at_least(f"{made.name}: gain", gain_of(made), "x", LEAST_GAIN))
    return figures


# --------------------------------------------------------------------------- an unknown processor


def stranger(options: argparse.Namespace) -> list[Figure]:
    """Tuning from wrong rates against tuning from the right ones; calibration alone."""
    from tilewright.base.target import Target
    from tilewright.tune.stats import geometric_mean

    kernels = chosen_kernels(options.only or STRANGERS)
    machine = Target.parse(options.target).machine
    right = {
        each.name: tuned_kernel(each, options.minutes, options.threads, options.target)
        for each in kernels
    }
    before, after, calibrated = [], [], []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        off = wrong_rates(machine.numbers(), seed)
        target = with_rates(options.target, off)
        print(f"seed {seed}: {target}")
        healed = with_rates(options.target, off | measured_rates(machine.with_numbers(off)))
        for kernel in kernels:
            known = right[kernel.name]
            made = tuned_kernel(kernel, options.minutes, options.threads, target)
            again = untuned_kernel(kernel, options.threads, healed)
            untuned = in_turns(made.run(made.untuned), known.run(known.untuned)).gain
            tuned = in_turns(made.run(made.tuned), known.run(known.tuned)).gain
            measured = in_turns(made.run(again), known.run(known.untuned)).gain
            before, after = [*before, untuned], [*after, tuned]
            calibrated.append(measured)
            told = f"untuned {untuned:.3f} calibrated {measured:.3f} tuned {tuned:.3f}"
            print(f"  {kernel.name:40} {told}", flush=True)
    return [
        Figure("untuned, wrong rates by right ones", geometric_mean(before), "x"),
        report.at_most("calibrated, by right rates", geometric_mean(calibrated), "x", 1.03),
        report.at_most("tuned, from wrong by right rates", geometric_mean(after), "x", 1.02),
    ]


def wrong_rates(numbers: Mapping[str, float], seed: int) -> dict[str, float]:
    """Every rate of a machine off by up to 2x, either way."""
    random = np.random.default_rng(seed)
    return {
        name: value * RATE_SPREAD ** random.uniform(-1, 1)
        for name, value in numbers.items()
        if name.endswith(RATES) and value > 0
    }


def measured_rates(machine: Any) -> dict[str, float]:
    """What calibration finds where it starts from the given numbers."""
    from tilewright.driver.calibrate import calibrate

    found = calibrate(machine=machine)
    return {
        each.name: each.value for each in found if not each.refused and each.name.endswith(RATES)
    }


def with_rates(target: str, rates: Mapping[str, float]) -> str:
    return " ".join([target, *(f"-{name}={value:.4g}" for name, value in rates.items())])


# --------------------------------------------------------------------------- sketches alone


def sketches(options: argparse.Namespace) -> list[Figure]:
    """Kernels that no rule knows; convolutions against TVM's, where it is installed."""
    alike = {"threads": options.threads, "minutes": options.minutes}
    given = argparse.Namespace(workers=1, only="", model="", log=None, **alike)
    figures = tune_sketches.measure(given)
    if importlib.util.find_spec("tvm") is None:
        print("TVM is not installed: nothing to compare convolutions with")
        return figures
    return figures + tune_tvm.measure(
        argparse.Namespace(only=options.only, clock=tune_tvm.WALL, **alike)
    )


# --------------------------------------------------------------------------- the script

COMMANDS: dict[str, Callable[[argparse.Namespace], list[Figure]]] = {
    "zoo": zoo,
    "tail": tail,
    "gpu": gpu,
    "stranger": stranger,
    "faults": faults,
    "sketches": sketches,
}
MINUTES = {"zoo": 5.0, "tail": 1.0, "gpu": 1.0, "stranger": 1.0, "faults": 1.0, "sketches": 3.0}


def measure(options: argparse.Namespace) -> list[Figure]:
    options.minutes = options.minutes or MINUTES[options.what]
    return COMMANDS[options.what](options)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=list(COMMANDS))
    parser.add_argument("--minutes", type=float, help="for each model or kernel")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--target", default="cpu", help="of tail, gpu and stranger")
    parser.add_argument("--only", nargs="*", help="names of models or kernels")
    parser.add_argument("--precision", nargs="*", default=["f32"], choices=list(MEAN_GAIN))
    parser.add_argument("--zoo", type=Path, default=ZOO, help="a folder of models")
    parser.add_argument("--seeds", type=int, default=5, help="of stranger: how many")
    parser.add_argument("--first-seed", type=int, default=0, help="of stranger")
    parser.add_argument("--count", type=int, default=100, help="of faults: candidates of a kind")
    parser.add_argument("--kills", type=int, default=50, help="of faults: at random moments")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
