"""Kernels other than GEMMs and convolutions, one by one, against NumPy and torch.

    python bench/kernels.py [--json FILE] [--threads 1 2] [--only SUBSTRING] [--rounds N]

Element-wise chains, reductions, softmax and normalizations, transposes, gathers, attention and
recurrent layers, each from a graph through the default schedule. Peers that are not installed are
left out; torch runs its own fused operators. The floor is one pass over operands and results at
the bandwidth of a copy that large, measured in the same run, or arithmetic at the peak where there
is more of it. Times are the least of interleaved rounds. Compile time is that of the calling
process, schedule to object code.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import report
from rich.console import Console
from rich.table import Table

from tilewright import graph
from tilewright.base.target import Target
from tilewright.codegen.build import Options as BuildOptions
from tilewright.codegen.build import build, compile_object, load_object
from tilewright.lower.graph import lower_graph
from tilewright.rules import default_schedule
from tilewright.tensor.constants import Given, split_constant_blocks

Array = np.ndarray[Any, Any]
Run = Callable[[], object]
PEAK_FLOPS_PER_NS = 177.0  # of one core


@dataclass(frozen=True)
class Case:
    """A graph, and how peers say the same."""

    name: str
    text: str
    numpy: Callable[..., Any] | None = None
    torch: str = ""  # a function of module `torch` called T, its arrays named as in the graph
    flops: float = 0.0
    constants: tuple[str, ...] = ()
    limit_ms: float = 150.0  # of compiling


def one(shape: str, result: str, body: str) -> str:
    return f"graph @main({shape}) -> ({result}) {{ {body} }}"


def attention(heads: int, queries: int, keys: int, features: int) -> Case:
    shapes = ", ".join(
        f"%{name}: f32[1, {heads}, {n}, {features}]"
        for name, n in (("q", queries), ("k", keys), ("v", keys))
    )
    return Case(
        f"attention {heads} x {queries} x {keys} x {features}",
        one(
            shapes,
            f"f32[1, {heads}, {queries}, {features}]",
            "%y = attention(%q, %k, %v) return %y",
        ),
        None,
        "T.nn.functional.scaled_dot_product_attention(q, k, v)",
        4.0 * heads * queries * keys * features,
    )


def lstm(steps: int, hidden: int) -> Case:
    gates = '(("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0))'
    return Case(
        f"lstm steps {steps} x {hidden}",
        one(
            f"%g: f32[{steps}, 1, {4 * hidden}], %r: f32[{4 * hidden}, {hidden}], "
            f"%h: f32[1, {hidden}], %c: f32[1, {hidden}]",
            f"f32[{steps}, 1, {hidden}]",
            f"%y = lstm(%g, %r, none, %h, %c) {{activations = {gates}, reverse = false}} return %y",
        ),
        flops=8.0 * steps * hidden * hidden,
        constants=("r",),
        limit_ms=400.0,
    )


X = "%x: f32[1024, 1024]"
CASES = [
    Case(
        "relu 1M",
        one(X, "f32[1024, 1024]", "%y = relu(%x) return %y"),
        lambda x: np.maximum(x, 0),
        "T.relu(x)",
        limit_ms=50,
    ),
    Case(
        "add bias 4k",
        one("%x: f32[4, 1024], %w: f32[1024]", "f32[4, 1024]", "%y = add(%x, %w) return %y"),
        lambda x, w: x + w,
        "x + w",
        limit_ms=50,
    ),
    Case(
        "gelu 128 x 3072",
        one(
            "%x: f32[128, 3072]",
            "f32[128, 3072]",
            "%c = constant() {data = f32[](0.70710678)} %s = mul(%x, %c) %e = erf(%s) "
            "%o = constant() {data = f32[](1.0)} %p = add(%e, %o) %h = mul(%x, %p) "
            "%t = constant() {data = f32[](0.5)} %y = mul(%h, %t) return %y",
        ),
        None,
        "T.nn.functional.gelu(x)",
    ),
    Case(
        "quantize 128 x 768",
        one(
            "%x: f32[128, 768], %s: f32[], %z: u8[]",
            "u8[128, 768]",
            "%y = quantize(%x, %s, %z) {to = dtype u8} return %y",
        ),
        None,
        "T.quantize_per_tensor(x, float(s) + 1, 0, T.quint8)",
        limit_ms=50,
    ),
    Case(
        "sum of all 1M",
        one(X, "f32[]", "%y = reduce_sum(%x) {keepdims = false} return %y"),
        lambda x: x.sum(),
        "x.sum()",
    ),
    Case(
        "sum of columns",
        one(X, "f32[1, 1024]", "%y = reduce_sum(%x) {axes = (0,)} return %y"),
        lambda x: x.sum(0),
        "x.sum(0)",
    ),
    Case(
        "sum of rows",
        one(X, "f32[1024, 1]", "%y = reduce_sum(%x) {axes = (1,)} return %y"),
        lambda x: x.sum(1),
        "x.sum(1)",
    ),
    Case(
        "argmax 64 x 32000",
        one("%x: f32[64, 32000]", "i64[64, 1]", "%y = arg_max(%x) {axis = 1} return %y"),
        lambda x: x.argmax(1),
        "x.argmax(1)",
        limit_ms=300,
    ),
    Case(
        "softmax 1536 x 128",
        one("%x: f32[1536, 128]", "f32[1536, 128]", "%y = softmax(%x) {axes = (1,)} return %y"),
        None,
        "T.softmax(x, 1)",
    ),
    Case(
        "softmax of channels 2 x 21 x 128 x 128",
        one(
            "%x: f32[2, 21, 128, 128]",
            "f32[2, 21, 128, 128]",
            "%y = softmax(%x) {axes = (1,)} return %y",
        ),
        None,
        "T.softmax(x, 1)",
    ),
    Case(
        "layer norm 128 x 768",
        one(
            "%x: f32[128, 768], %w: f32[768], %b: f32[768]",
            "f32[128, 768]",
            "%y = layer_norm(%x, %w, %b) {axis = 1} return %y",
        ),
        None,
        "T.nn.functional.layer_norm(x, (768,), w, b)",
    ),
    Case(
        "group norm 320 x 32 x 32",
        one(
            "%x: f32[1, 320, 32, 32], %w: f32[320], %b: f32[320]",
            "f32[1, 320, 32, 32]",
            "%y = group_norm(%x, %w, %b) {groups = 32} return %y",
        ),
        None,
        "T.nn.functional.group_norm(x, 32, w, b)",
        limit_ms=250,
    ),
    Case(
        "transpose 1024 x 1024",
        one(X, "f32[1024, 1024]", "%y = transpose(%x) {perm = (1, 0)} return %y"),
        lambda x: np.ascontiguousarray(x.T),
        "x.T.contiguous()",
    ),
    Case(
        "channels last 64 x 56 x 56",
        one(
            "%x: f32[1, 64, 56, 56]",
            "f32[1, 56, 56, 64]",
            "%y = transpose(%x) {perm = (0, 2, 3, 1)} return %y",
        ),
        lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)),
        "x.permute(0, 2, 3, 1).contiguous()",
    ),
    Case(
        "heads first 128 x 12 x 64",
        one(
            "%x: f32[1, 128, 12, 64]",
            "f32[1, 12, 128, 64]",
            "%y = transpose(%x) {perm = (0, 2, 1, 3)} return %y",
        ),
        lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3)),
        "x.permute(0, 2, 1, 3).contiguous()",
        limit_ms=50,
    ),
    Case(
        "concat 64 + 32 channels",
        one(
            "%x: f32[1, 64, 56, 56], %z: f32[1, 32, 56, 56]",
            "f32[1, 96, 56, 56]",
            "%y = concat(%x, %z) {axis = 1} return %y",
        ),
        lambda x, z: np.concatenate([x, z], 1),
        "T.cat([x, z], 1)",
    ),
    Case(
        "embedding and layer norm",
        one(
            "%x: f32[3000, 768], %i: i64[1, 128], %w: f32[768], %b: f32[768]",
            "f32[1, 128, 768]",
            "%e = gather(%x, %i) {axis = 0} %y = layer_norm(%e, %w, %b) {axis = 2} return %y",
        ),
        None,
        "T.nn.functional.layer_norm(T.nn.functional.embedding(i, x), (768,), w, b)",
    ),
    attention(12, 128, 128, 64),
    attention(12, 197, 197, 64),
    attention(4, 2048, 2048, 64),
    attention(12, 1, 512, 64),
    lstm(35, 650),
]


# ------------------------------------------------------------------------------------ contenders


def operands(main: Any) -> list[Array]:
    random = np.random.default_rng(0)
    made = []
    for value in main.params:
        shape = [int(dim.value) for dim in value.tensor.shape]
        if value.tensor.dtype.is_float:
            scale = 0.03 if value.name == "r" else 1.0
            made.append(np.asarray(random.standard_normal(shape) * scale, np.float32))
        else:
            made.append(np.asarray(random.integers(0, 5, shape), value.tensor.dtype.numpy))
    return made


def tilewright_run(case: Case, module: Any, arrays: list[Array], threads: int) -> tuple[Run, float]:
    """The scheduled kernel, and the milliseconds of compiling it."""
    target = Target.parse("cpu")
    begun = time.process_time()
    main = module.main
    fn = lower_graph(main, "kernel", module.constants)
    made = default_schedule(fn, target, threads=threads, constants=case.constants)
    split = split_constant_blocks(made.function)
    options = BuildOptions(cache=False)
    image = compile_object(split.kernel, target, options)
    spent_ms = (time.process_time() - begun) * 1e3
    kernel = load_object(split.kernel, target, image, options)
    results = [
        np.zeros([int(d.value) for d in value.tensor.shape], value.tensor.dtype.numpy)
        for value in main.results
    ]
    given = [*arrays, *results]
    packed: list[Array] = []
    if split.packer is not None:
        buffers = split.packer.params[len(split.weights) :]
        packed = [np.zeros([int(d.value) for d in b.shape], b.dtype.numpy) for b in buffers]
        build(split.packer)(*[given[at] for at in split.weights], *packed)
    args = [
        given[param.position] if isinstance(param, Given) else packed[param.position]
        for param in split.params
    ]
    return (lambda: kernel(*args, threads=threads)), spent_ms


def torch_run(case: Case, main: Any, arrays: list[Array], threads: int) -> Run:
    import torch  # optional

    torch.set_num_threads(threads)
    names = {
        value.name: torch.from_numpy(array)
        for value, array in zip(main.params, arrays, strict=True)
    }
    code = compile(case.torch, case.name, "eval")

    def run() -> object:
        with torch.inference_mode():
            return eval(code, {"T": torch, **names})

    return run


def floor_s(case: Case, arrays: list[Array], main: Any, threads: int) -> float:
    """One pass over memory as fast as a copy of that size, or the arithmetic."""
    results = sum(
        math.prod(int(d.value) for d in value.tensor.shape) * value.tensor.dtype.size_bytes
        for value in main.results
    )
    touched = sum(array.nbytes for array in arrays) + results
    if case.name.startswith("embedding"):
        touched = 2 * results
    source = np.ones(max(1, touched // 2), np.uint8)
    target = np.empty_like(source)
    copy = min(report.seconds(lambda: np.copyto(target, source), budget_s=0.02, least=5))
    return max(copy / threads, case.flops / PEAK_FLOPS_PER_NS / threads * 1e-9)


# ------------------------------------------------------------------------------------ the table


def measure(options: argparse.Namespace) -> list[report.Figure]:
    table = Table("kernel", "threads", "us", "floor us", "NumPy", "torch", "compile ms")
    figures: list[report.Figure] = []
    ratios: list[float] = []
    for case in CASES:
        if options.only not in case.name:
            continue
        module = graph.parse(case.text)
        main = module.main
        arrays = operands(main)
        for threads in options.threads:
            run, spent_ms = tilewright_run(case, module, arrays, threads)
            runs: dict[str, Run] = {"tilewright": run}
            if case.numpy is not None and threads == 1:
                runs["numpy"] = lambda case=case, arrays=arrays: case.numpy(*arrays)
            if case.torch and find_spec("torch") is not None:
                runs["torch"] = torch_run(case, main, arrays, threads)
            best = report.interleaved(runs, rounds=options.rounds, budget_s=0.01)
            own, floor = best["tilewright"], floor_s(case, arrays, main, threads)
            peers = [
                f"{best[peer] / own:.2f}" if peer in best else "" for peer in ("numpy", "torch")
            ]
            table.add_row(
                case.name,
                str(threads),
                f"{own * 1e6:.1f}",
                f"{floor * 1e6:.1f}",
                *peers,
                f"{spent_ms:.0f}",
            )
            label = f"{case.name}, {threads} threads"
            figures.append(report.Figure(f"{label}: over the floor", own / floor, "x"))
            if len(best) > 1:
                ratio = min(best[peer] for peer in best if peer != "tilewright") / own
                ratios.append(ratio)
                figures.append(report.Figure(f"{label}: best peer", ratio, "x"))
            figures.append(
                report.Figure(f"{label}: compile", spent_ms, "ms", f"<= {case.limit_ms:g}")
            )
    Console().print(table)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        return [report.at_least("best peer, geometric mean", mean, "x", 1.0), *figures]
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="", help="kernels whose names hold this")
    parser.add_argument("--rounds", type=int, default=5)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
