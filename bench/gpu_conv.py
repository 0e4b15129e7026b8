"""The convolutions of ResNet-18 and the depthwise ones of MobileNet on an NVIDIA GPU against cuDNN.

    python bench/gpu_conv.py [--json FILE] [--form f32 f16 f16x32] [--only SUBSTRING] [--plans N]
                             [--tiles 0 2 4] [--jobs N]

The workloads are those of table 2 of the TVM paper (OSDI 2018), with a bias: f32 of one image,
channels first, and f16 of one and of 32 images, channels last. cuDNN picks its algorithm by
measuring (`cudnn.benchmark`), TF32 is off. Both are CUDA graphs of 20 launches over operands that
rotate (weights that a model of f16 holds do not, on either side), and take turns; device times,
medians. `--plans N` measures the default plan of f32 and N others of the rule, the
cheapest by its estimate and some drawn at random: how well costs rank them; `--tiles 4` does so for
Winograd's method.
"""

from __future__ import annotations

import argparse
import math
import pickle
import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import conv
import numpy as np
import report
import torch
from gpu_turns import Run, captured, copies_of, recorded, seconds, seconds_of

import tilewright as tw
from tilewright import graph
from tilewright.base.errors import TilewrightError
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.codegen.build import build
from tilewright.codegen.cuda import CudaFunction
from tilewright.codegen.nvptx import device_code
from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import KernelSetting
from tilewright.graph.passes.choose_winograd import choose_winograd
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.rule import Choice
from tilewright.rules.space import plan_text
from tilewright.runtime import cuda
from tilewright.tensor.constants import Given, split_constant_blocks
from tilewright.tensor.ir import Function
from tilewright.tensor.passes import lower

TARGET = "cuda -arch=sm_90a"
ROUNDS, SEED = 7, 18
WANT = {  # geometric means over cuDNN
    "f32": {"C": 3.0, "D": 1.5},
    "f16": {"C": 1.4, "D": 1.5},
    "f16x32": {"C": 1.0, "D": 1.5},
}
IMAGES = {"f16": 1, "f16x32": 32}
# Of the largest result: sums in another order, Winograd on their side; results of f16 rounded.
TOLERANCE = {"f32": 1e-4, "f16": 2e-3, "f16x32": 2e-3}


def tile_of(case: conv.Case) -> int:
    """The tile of Winograd's method that the table of costs tells, 0 for none."""
    target = Target.parse(TARGET)
    _, w, b = conv.operands(case)
    text = f"""
    graph @main(%x: f32[1, {case.channels}, {case.size}, {case.size}]) {{
      %w = constant() {{data = "w"}}
      %b = constant() {{data = "b"}}
      %y = conv(%x, %w, %b) {{{attributes_of(case)}}}
      return %y
    }}"""
    costs = KernelCosts(KernelSetting(target, 1))
    module = graph.parse(text, {"w": w, "b": b})
    made = run_passes(module, (choose_winograd,), PassContext(target=target, costs=costs))
    found: int = made.main.nodes[-1].get("winograd", 0)
    return found


def attributes_of(case: conv.Case) -> str:
    pads = ", ".join([str(case.pad)] * 4)
    return (
        f"strides = ({case.stride}, {case.stride}), pads = ({pads}), dilations = (1, 1), "
        f"groups = {case.groups}"
    )


def function_of(case: conv.Case, tile: int = 0) -> Function:
    """The convolution as lowering writes it, in tiles of Winograd's method or directly."""
    per_group = case.channels // case.groups
    module = graph.parse(
        f"""
        graph @main(%x: f32[1, {case.channels}, {case.size}, {case.size}],
                    %w: f32[{case.out}, {per_group}, {case.kernel}, {case.kernel}],
                    %b: f32[{case.out}]) {{
          %y = conv(%x, %w, %b) {{{attributes_of(case)}, winograd = {tile}}}
          return %y
        }}
        """
    )
    return lower_graph(module.main, case.name)


def compiled(
    case: conv.Case, choices: dict[str, Choice] | None = None, tile: int | None = None
) -> dict[str, Any]:
    """Kernels of a convolution by a plan, ready to pickle, and what was decided."""
    function = function_of(case, tile_of(case) if tile is None else tile)
    made = schedule(function, TARGET, constants=("w", "b"), choices=choices)
    split = split_constant_blocks(made.schedule.function)
    device = lower(split.kernel, "gpu")  # as `tw.build` does: none starts early, which they lose by
    return {
        "function": device,
        "code": device_code(device, Target.parse(TARGET)),
        "split": split,
        "decisions": made.decisions,
    }


def compiled_bytes(
    case: conv.Case, choices: dict[str, Choice] | None, tile: int | None = None
) -> bytes | str:
    """What a worker process hands back: kernels, or why there are none."""
    try:
        return pickle.dumps(compiled(case, choices, tile))
    except TilewrightError as error:
        return error.message


def started(made: dict[str, Any], case: conv.Case) -> tuple[Run, Any]:
    """Launches of the kernels as a graph, and the result of the first."""
    run = CudaFunction(made["function"], Target.parse(TARGET), made["code"])
    arrays = conv.operands(case)
    out = np.zeros((1, case.out, case.out_size, case.out_size), np.float32)
    given: list[Any] = [*arrays, out]
    split = made["split"]
    packed: list[Any] = []
    if split.packer is not None:
        shapes = [[int(d.value) for d in p.shape] for p in split.results]
        packed = [np.zeros(shape, np.float32) for shape in shapes]
        build(split.packer)(*[given[at] for at in split.weights], *packed)
    sources = [
        given[p.position] if isinstance(p, Given) else packed[p.position] for p in split.params
    ]
    count = copies_of(sum(array.nbytes for array in sources))
    args = [[cuda.to_device(array) for array in sources] for _ in range(count)]
    return recorded(lambda turn, stream: run(*args[turn % count], stream=stream)), args[0][-1]


def rival(case: conv.Case, images: list[Any], weights: list[Any], bias: Any) -> tuple[Run, Any]:
    """cuDNN's convolution, as a CUDA graph over images and weights that take turns, and the result
    for the first of them."""

    def at(turn: int) -> Any:
        x, w = images[turn % len(images)], weights[turn % len(weights)]
        return torch.nn.functional.conv2d(
            x, w, bias, stride=case.stride, padding=case.pad, groups=case.groups
        )

    run = captured(at)
    with torch.no_grad():
        return run, at(0)


def half_module(case: conv.Case, images: int) -> Any:
    """A model of one convolution of f16, channels last."""
    _, w, b = conv.operands(case)
    pads = ", ".join([str(case.pad)] * 4)
    text = f"""
    graph @main(%x: f16[{images}, {case.size}, {case.size}, {case.channels}]) {{
      %w = constant() {{data = "w"}}
      %b = constant() {{data = "b"}}
      %wide = cast(%x) {{to = dtype f32}}
      %y = conv(%wide, %w, %b) {{
        strides = ({case.stride}, {case.stride}), pads = ({pads}), dilations = (1, 1),
        groups = {case.groups}, layout = "channels_last"}}
      %h = cast(%y) {{to = dtype f16}}
      return %h
    }}"""
    return tw.compile(graph.parse(text, {"w": w, "b": b}), target=TARGET, precision="f16")


def warmed(case: conv.Case, images: int) -> str:
    """Kernels of a model in the cache, by a worker process; why there are none."""
    try:
        half_module(case, images)
    except TilewrightError as error:
        return error.message
    return ""


def half_operands(case: conv.Case, images: int) -> list[Any]:
    """Images that take turns, channels last."""
    random = torch.Generator("cuda").manual_seed(SEED)
    shape = (images, case.channels, case.size, case.size)
    made = images * case.out * case.out_size**2
    count = copies_of((math.prod(shape) + made) * torch.float16.itemsize)
    found = [torch.randn(shape, generator=random, device="cuda").half() for _ in range(count)]
    return [x.to(memory_format=torch.channels_last) for x in found]


def half_started(case: conv.Case, images: int, given: list[Any]) -> tuple[Run, Any, str]:
    """Launches of a model's kernels as a graph, the first result, and what was decided."""
    module = half_module(case, images)
    rows = [x.permute(0, 2, 3, 1) for x in given]
    shape = (images, case.out_size, case.out_size, case.out)
    results = [torch.empty(shape, device="cuda", dtype=torch.float16) for _ in given]
    plans = [d for kernel in module.program.kernels.values() for d in kernel.decisions]
    shown = "; ".join(f"{d.rule} {d.plan} {d.predicted_ns / 1e3:.1f} us" for d in plans)

    def start(turn: int, stream: int) -> None:
        turn %= len(given)
        module(rows[turn], out=[results[turn]], stream=stream)

    return recorded(start), results[0], shown


def half_figures(case: conv.Case, form: str) -> tuple[list[report.Figure], float]:
    images = IMAGES[form]
    given = half_operands(case, images)
    ours, out, shown = half_started(case, images, given)
    print(f"  {form} {case.name}: {shown}")
    _, w, b = (torch.from_numpy(array).cuda().half() for array in conv.operands(case))
    theirs, want = rival(case, given, [w.to(memory_format=torch.channels_last)], b)
    cuda.synchronize()
    reference = want.permute(0, 2, 3, 1).float()
    error = float((out.float() - reference).abs().max() / reference.abs().max())
    return timed(f"{form} {case.name}", case, ours, theirs, error, TOLERANCE[form], images)


def figures_of(case: conv.Case, made: dict[str, Any]) -> tuple[list[report.Figure], float]:
    ours, out = started(made, case)
    x, w, b = (torch.from_numpy(array).cuda() for array in conv.operands(case))
    count = copies_of(sum(each.nbytes for each in (x, w, b)) + cuda.to_host(out).nbytes)
    theirs, want = rival(
        case, [x.clone() for _ in range(count)], [w.clone() for _ in range(count)], b
    )
    reference = want.cpu().numpy()
    error = float(np.abs(cuda.to_host(out) - reference).max() / np.abs(reference).max())
    for each in made["decisions"]:
        print(
            f"  {case.name} {each.block}: {each.rule} {each.plan} {each.predicted_ns / 1e3:.1f} us"
        )
    return timed(case.name, case, ours, theirs, error, TOLERANCE["f32"])


def timed(
    name: str,
    case: conv.Case,
    ours: Run,
    theirs: Run,
    error: float,
    limit: float,
    images: int = 1,
) -> tuple[list[report.Figure], float]:
    """Both in turns."""
    taken = seconds_of({"ours": ours, "cudnn": theirs}, ROUNDS)
    median = {key: 1e6 * seconds for key, seconds in taken.items()}
    ratio = median["cudnn"] / median["ours"]
    return [
        report.at_most(f"{name}: error", error, "", limit),
        report.Figure(f"{name}: ours", median["ours"], "us"),
        report.Figure(f"{name}: ours", 1e-6 * images * case.flops / median["ours"], "TFLOP/s"),
        report.Figure(f"{name}: cudnn", median["cudnn"], "us"),
        report.Figure(f"{name}: faster", ratio, "x"),
    ], ratio


def sampled(case: conv.Case, count: int, tile: int) -> list[dict[str, Choice]]:
    """Plans of the rule that takes a convolution: half of them cheap, half of them any."""
    made = schedule(function_of(case, tile), TARGET, constants=("w", "b"))
    offers = [offer for offer in made.offers if offer.is_open]
    if not offers:
        return []
    offer, random = offers[0], np.random.default_rng(SEED)
    columns = offer.space.sample(4096, random)
    order = np.argsort(offer.cost(columns).cycles, kind="stable")
    rows = [*order[: 8 * count : 8][: count // 2], *random.choice(order, count - count // 2)]
    texts = dict.fromkeys(plan_text(offer.space.plan_at(columns, int(row))) for row in rows)
    return [{offer.block: Choice(offer.rule.name, text)} for text in texts]


def compare_plans(cases: list[conv.Case], options: argparse.Namespace) -> list[report.Figure]:
    """Predicted against measured, plan by plan; the default's place among them."""
    figures = []
    wanted = [
        (case, choice, tile)
        for case in cases
        for tile in options.tiles
        for choice in (None, *sampled(case, options.plans, tile))
    ]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(compiled_bytes, *zip(*wanted, strict=True), chunksize=4))
    measured: dict[str, list[tuple[float, float, str]]] = {}
    for (case, _, tile), image in zip(wanted, found, strict=True):
        if isinstance(image, str):
            print(f"  {case.name}: {image}")
            continue
        made = pickle.loads(image)
        run, _ = started(made, case)
        took = 1e6 * min(seconds(run) for _ in range(4))
        decision = made["decisions"][0]
        predicted = sum(each.predicted_ns for each in made["decisions"]) / 1e3
        name = f"{case.name} winograd {tile}" if tile else case.name
        measured.setdefault(name, []).append((took, predicted, decision.plan))
        terms = " ".join(f"{name}={value:.0f}" for name, value in decision.terms.items())
        print(f"  plan {name} {took:.2f} {predicted:.2f} {decision.plan} | {terms}", flush=True)
    for name, rows in measured.items():
        best = min(took for took, *_ in rows)
        figures.append(report.Figure(f"{name}: default over best plan", rows[0][0] / best, "x"))
        figures.append(report.Figure(f"{name}: best plan", best, "us"))
    return figures


@report.on_gpu
def measure(options: argparse.Namespace) -> list[report.Figure]:
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    cases = [
        case
        for case in (*conv.RESNET18, *conv.MOBILENET)
        if not options.only or any(word in case.name for word in options.only)
    ]
    if options.plans:
        return compare_plans(cases, options)
    figures: list[report.Figure] = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for form in options.form or WANT:
            figures += form_figures(form, cases, pool)
    return figures


def form_figures(
    form: str, cases: list[conv.Case], pool: ProcessPoolExecutor
) -> list[report.Figure]:
    figures: list[report.Figure] = []
    ratios: dict[str, list[float]] = {}
    if form == "f32":
        images = list(pool.map(compiled_bytes, cases, [None] * len(cases)))
    else:
        images = list(pool.map(warmed, cases, [IMAGES[form]] * len(cases)))
    for case, image in zip(cases, images, strict=True):
        if isinstance(image, str) and image:
            print(f"  {form} {case.name}: {image}")
            figures.append(report.Figure(f"{form} {case.name}: ran", 0.0, "", ">= 1", False))
            continue
        found = figures_of(case, pickle.loads(image)) if image else half_figures(case, form)  # type: ignore[arg-type]  # bytes
        shown, ratio = found
        print(f"  {form} {case.name}: {ratio:.2f}x, error {shown[0].value:.1e}", flush=True)
        figures += shown
        ratios.setdefault(case.name[0], []).append(ratio)
    for kind, each in ratios.items():
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio in each))
        what = "ResNet-18" if kind == "C" else "depthwise"
        want = WANT[form][kind]
        figures.append(report.at_least(f"{form} {what}: faster, mean", mean, "x", want))
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--form", nargs="*", choices=list(WANT))
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--plans", type=int, default=0, help="plans to measure per convolution")
    parser.add_argument("--tiles", nargs="*", type=int, default=[0], help="of Winograd's method")
    parser.add_argument("--jobs", type=int, default=2, help="processes that compile")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
