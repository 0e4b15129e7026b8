"""Models on an NVIDIA GPU against torch on the CPU, and planted faults against the interpreter.

    python bench/gpu_check.py [--json FILE] [--only NAME ...] [--folder FOLDER] [--jobs N]

Every model of bench/models.py with sizes known, some with an open batch or length, in f32 and f16;
one of each kind in bf16 and tf32, one quantized by ONNX Runtime; two as code of sm_80.
`--only faults` needs no GPU: of the faults of synchronization that tests/targets plants in kernels,
so many the interpreter finds. `--only sanitizer`: what three tools of NVIDIA's compute-sanitizer
find in a convolutional, a transformer and a recurrent model. Models are shared out among N
processes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import gpu_assemble
import gpu_zoo
import int8
import models
import report
import torch

import tilewright as tw
from tilewright.base.errors import ExecutionError
from tilewright.runtime import cuda
from tilewright.tensor import parse

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "targets"))
import test_ampere as ampere
import test_clusters as clusters
import test_cuda_models as cuda_models
import test_proxies as proxies
import test_roles as roles

PRECISIONS = ("f32", "f16")
HOPPER, AMPERE = "cuda -arch=sm_90a", "cuda -arch=sm_80"
ENCODERS = ("bert", "smallbert", "minibert")
FUSED = ("smallbert", "f16", "attention_hopper")  # a rule that must be there
ON_AMPERE = ("resnet18", "bert")
OPEN_BATCH = ("dqn", "mlp", "dcgan_generator", "mobilenet_v2", "resnet18", "smallbert")
BATCHES = (1, 3, 8)  # of models whose batch is open
STATIC = (*(name for name in models.MODELS if not name.endswith("_dyn")), *ENCODERS)
OPEN = tuple(name for name in models.MODELS if name.endswith("_dyn"))
BYTES = "int8"
MORE_PRECISIONS = {
    "bf16": ("resnet18", "smallbert", "lstm_lm_step"),
    "tf32": ("resnet18", "smallbert"),
}
QUANTIZED = "dqn"  # quantizing a large model takes minutes
FAULTS, LEAST_FAULTS, LEAST_FENCES = "faults", 100, 40
SANITIZER, TOOLS = "sanitizer", ("memcheck", "racecheck", "synccheck")
SANITIZED = (("resnet18", "f16"), FUSED[:2], ("lstm_lm_step", "f32"))
SHARED_BYTES = 160 * 1024  # of a block: the tools need some of what there is


def error_of(outputs: Sequence[Any], wanted: Any) -> float:
    """The largest difference from torch, as a part of the largest output."""
    exact = wanted if isinstance(wanted, tuple) else (wanted,)
    return report.error_of(list(map(cuda.to_host, outputs)), [each.numpy() for each in exact])


def static(name: str, target: str, folder: Path, precision: str) -> float:
    """A model whose sizes are known: launch by launch, then as a graph."""
    made = gpu_zoo.case(name, folder)
    with torch.no_grad():
        wanted = made.module(*made.inputs.values())
    module = tw.compile(made.path, target=target, precision=precision)
    if (name, precision, target) == (*FUSED[:2], HOPPER):
        assert FUSED[2] in rules_of(module), "another rule took the case's place"
    given = [cuda.to_device(x.numpy()) for x in made.inputs.values()]
    outputs = module(*given)
    first = error_of(outputs, wanted)
    for _ in range(2):
        module(*given, out=outputs)
    return max(first, error_of(outputs, wanted))


def rules_of(module: Any) -> set[str]:
    return {each.rule for made in module.program.kernels.values() for each in made.decisions}


def open_batch(name: str, folder: Path, precision: str) -> float:
    """A model whose batch is open, with several."""
    path = gpu_zoo.case(name, folder, 2, is_open=True).path
    module = tw.compile(path, target=HOPPER, precision=precision)
    worst = 0.0
    for batch in BATCHES:
        made = gpu_zoo.case(name, folder, batch, is_open=True)
        with torch.no_grad():
            wanted = made.module(*made.inputs.values())
        worst = max(worst, error_of(module(*(x.numpy() for x in made.inputs.values())), wanted))
    return worst


def open_cases(name: str, folder: Path, precision: str) -> float:
    """A model of the zoo that has open sizes, with the inputs of all its cases."""
    made = models.build(name)
    folder.mkdir(parents=True, exist_ok=True)
    module = tw.compile(models.export(name, folder), target=HOPPER, precision=precision)
    worst = 0.0
    for inputs in made.cases.values():
        with torch.no_grad():
            wanted = made.module(*inputs.values())
        worst = max(worst, error_of(module(*(x.numpy() for x in inputs.values())), wanted))
    return worst


def of_bytes() -> float:
    """Quantized convolutions, against the same integers on the CPU."""
    cases = [(net, cuda_models.random(*shape)) for net, shape in cuda_models.CONVOLVED.values()]
    cases.append((cuda_models.convolutions_of_bytes(), cuda_models.bytes_of(1, 128, 4, 4)))
    worst = 0.0
    for net, x in cases:
        exact = tw.compile(net, target="cpu")(x)
        outputs = tw.compile(net, target=HOPPER, precision=BYTES)(x)
        worst = max(worst, report.error_of(list(map(cuda.to_host, outputs)), exact))
    return worst


def quantized(name: str, folder: Path) -> float:
    """A model that ONNX Runtime quantized, against the same on the CPU: integers are equal but for
    ties that floats round differently."""
    inputs = [x.numpy() for x in gpu_zoo.case(name, folder).inputs.values()]
    path = gpu_assemble.path_of(name, BYTES, folder)
    exact = tw.compile(path, target="cpu", precision=BYTES)(*inputs)
    outputs = tw.compile(path, target=HOPPER, precision=BYTES)(*inputs)
    return report.error_of(list(map(cuda.to_host, outputs)), exact)


def planted() -> list[report.Figure]:
    """Faults that are planted in programs for Hopper, for clusters of blocks and for sm_80, and
    those that are found; the same of fences between threads and asynchronous instructions."""
    count = found = 0
    for suite, arguments_of in ((roles, roles.operands), (ampere, ampere.arguments)):
        for make, shape, seed in product(suite.FAULTS.values(), suite.SHAPES, range(3)):
            count += 1
            try:
                program = parse(make(suite.program(shape)))
                tw.interpret(program, *arguments_of(shape), seed=seed)
            except ExecutionError as error:
                found += error.code in suite.FOUND
    for form, make in clusters.FAULTS.values():
        count += 1
        given, _, out = clusters.given_of(form)
        try:
            tw.interpret(parse(make(clusters.program(form))), *given, out)
        except ExecutionError as error:
            found += error.code in clusters.FOUND
    fences = [
        proxies.interpreted_with(fault, seed) in proxies.FOUND
        for fault, seed in product(proxies.FAULTS, proxies.SEEDS)
    ]
    return [
        report.at_least("planted faults of synchronization", count, "", LEAST_FAULTS),
        report.at_least("planted faults that are found", found, "", count),
        report.at_least("planted faults of fences", len(fences), "", LEAST_FENCES),
        report.at_least("planted faults of fences that are found", sum(fences), "", len(fences)),
    ]


def sanitizer() -> str | None:
    """NVIDIA's checker of kernels: on the path, or in the toolkit's folder."""
    folders = sorted(Path("/usr/local").glob("cuda*/compute-sanitizer/compute-sanitizer"))
    return shutil.which("compute-sanitizer") or next(map(str, reversed(folders)), None)


def sanitized(options: argparse.Namespace) -> list[report.Figure]:
    """What the tools find in models that run alone, each in a process of its own."""
    program = sanitizer()
    if program is None:
        print("compute-sanitizer is not installed: models are not checked by it")
        return []
    paths = {name: str(gpu_zoo.case(name, options.folder).path) for name, _ in SANITIZED}
    with tempfile.TemporaryDirectory() as cache:
        # Compiled once, for less shared memory than others.
        environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": cache}

        def run(name: str, precision: str, *before: str) -> subprocess.CompletedProcess[str]:
            script = str(Path(__file__).with_name("gpu_run.py"))
            command = [*before, sys.executable, script, paths[name], "--precision", precision]
            command += ["--shared", str(SHARED_BYTES)]
            return subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment
            )

        def errors_of(case: tuple[str, str, str]) -> report.Figure:
            name, precision, tool = case
            done = run(name, precision, program, "--tool", tool)
            told = re.search(r"SUMMARY: (\d+)", done.stdout)
            found = int(told[1]) if told is not None and not done.returncode else -1
            title = f"{name} {precision}, {tool}: errors"
            if found:
                print(f"{title}: {done.stdout[-1200:]} {done.stderr[-600:]}")
            print(f"  {title}: {found}", flush=True)
            return report.Figure(title, found, "", "0", found == 0)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda each: run(*each), SANITIZED))
            return list(
                pool.map(errors_of, ((*each, tool) for each in SANITIZED for tool in TOOLS))
            )


@dataclass(frozen=True)
class Check:
    """A model, what is checked of it, how, and the error it may have."""

    name: str
    title: str
    run: Callable[[], float]
    limit: float


def checks(folder: Path) -> Iterator[Check]:
    def check(
        name: str, what: str, precision: str, run: Callable[..., float], *more: object
    ) -> Check:
        limit = report.MODEL_TOLERANCE[precision]
        title = f"{name}{what}, {precision}"
        return Check(name, title, partial(run, name, *more, folder, precision), limit)

    for name, precision in product(STATIC, PRECISIONS):
        yield check(name, "", precision, static, HOPPER)
    for precision, names in MORE_PRECISIONS.items():
        for name in names:
            yield check(name, "", precision, static, HOPPER)
    for name, precision in product(ON_AMPERE, PRECISIONS):
        yield check(name, " as sm_80", precision, static, AMPERE)
    for name, precision in product(OPEN_BATCH, PRECISIONS):
        yield check(name, ", open batch", precision, open_batch)
    for name, precision in product(OPEN, PRECISIONS):
        yield check(name, "", precision, open_cases)
    yield Check(BYTES, "quantized convolutions", of_bytes, 0.0)  # integers are exact
    if find_spec("onnxruntime") is not None:
        run = partial(quantized, QUANTIZED, folder)
        yield Check(BYTES, f"{QUANTIZED}, quantized", run, int8.TOLERANCE)


def checked(options: argparse.Namespace) -> list[report.Figure]:
    """The checks of some models, one after the other."""
    figures = []
    for check in checks(options.folder):
        if options.only and check.name not in options.only:
            continue
        try:
            figure = report.at_most(f"{check.title}: error", check.run(), "", check.limit)
        except Exception:  # one model's trouble is a figure of its own, not the end of the others
            print(f"{check.title}: {traceback.format_exc(limit=-3)[-600:]}")
            figure = report.Figure(f"{check.title}: ran", 0.0, "", ">= 1", False)
        print(f"  {figure.name}: {figure.value:.3g}", flush=True)
        figures.append(figure)
    return figures


def by_processes(names: Sequence[str], options: argparse.Namespace) -> list[report.Figure]:
    """The checks of models, some in each of several processes: they begin with long imports."""

    def figures_of(some: Sequence[str]) -> list[report.Figure]:
        with tempfile.NamedTemporaryFile(suffix=".json") as told:
            command = [sys.executable, __file__, "--only", *some, "--json", told.name]
            done = subprocess.run(
                [*command, "--folder", str(options.folder)],
                capture_output=True,
                text=True,
                check=False,
            )
            found = json.loads(Path(told.name).read_text() or "[]")
        print(
            "\n".join(line for line in done.stdout.splitlines() if line[:1].isspace()), flush=True
        )
        if not found:
            print(f"{', '.join(some)}: {done.stderr[-600:]}")
            return [report.Figure(f"{name}: ran", 0.0, "", ">= 1", False) for name in some]
        return [report.Figure(**figure) for figure in found]

    shares = [names[at :: options.jobs] for at in range(min(options.jobs, len(names)))]
    with ThreadPoolExecutor(options.jobs) as pool:
        return [figure for found in pool.map(figures_of, shares) for figure in found]


def measure(options: argparse.Namespace) -> list[report.Figure]:
    figures = planted() if not options.only or FAULTS in options.only else []
    if not cuda.is_available():
        print("no NVIDIA GPU can be used here: models are skipped")
        return figures
    if not options.only or SANITIZER in options.only:
        figures += sanitized(options)
    names = list(dict.fromkeys(check.name for check in checks(options.folder)))
    chosen = [name for name in names if not options.only or name in options.only]
    if options.jobs > 1 and len(chosen) > 1:
        return figures + by_processes(chosen, options)
    return figures + checked(options)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "models")
    parser.add_argument("--jobs", type=int, default=1)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
