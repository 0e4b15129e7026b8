"""The convolutions of ResNet-18 and the depthwise ones of MobileNet, one by one, against peers.

    python bench/conv.py [--json FILE] [--threads 1 2] [--only SUBSTRING] [--rounds N]

The workloads are those of table 2 of the TVM paper (OSDI 2018), batch 1, f32, with a bias.
Tilewright's kernels take images channels last, as they lie inside a network, and weights packed
before the first call. Peers get whatever serves them best: torch the fastest of its plain,
channels-last and blocked (oneDNN) layouts, ONNX Runtime and OpenVINO a model of the one
convolution. Peers that are not installed are left out. The floor is the larger of arithmetic at
the peak measured in the same run, and of one pass over inputs, weights and results at the
bandwidth of a copy of that size. Times are the least of interleaved rounds.
"""

from __future__ import annotations

import argparse
import io
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import gemm
import numpy as np
import report

from tilewright import graph
from tilewright.base.target import Target
from tilewright.codegen.build import build
from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import KernelSetting
from tilewright.graph.passes.choose_winograd import best_tile, with_tile
from tilewright.lower.graph import lower_graph
from tilewright.rules import default_schedule
from tilewright.tensor.constants import Given, split_constant_blocks

Array = np.ndarray[Any, Any]
Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A square image, channels in and out, a square kernel, a stride."""

    name: str
    size: int
    channels: int
    out: int
    kernel: int
    stride: int
    groups: int = 1

    @property
    def pad(self) -> int:
        return self.kernel // 2

    @property
    def out_size(self) -> int:
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def flops(self) -> float:
        terms = self.kernel**2 * self.channels // self.groups
        return 2.0 * self.out_size**2 * self.out * terms

    @property
    def size_bytes(self) -> int:
        weights = self.out * self.channels // self.groups * self.kernel**2
        return 4 * (self.size**2 * self.channels + self.out_size**2 * self.out + weights)


RESNET18 = [
    Case(f"C{at}", *spec)
    for at, spec in enumerate(
        (
            (224, 3, 64, 7, 2),
            (56, 64, 64, 3, 1),
            (56, 64, 64, 1, 1),
            (56, 64, 128, 3, 2),
            (56, 64, 128, 1, 2),
            (28, 128, 128, 3, 1),
            (28, 128, 256, 3, 2),
            (28, 128, 256, 1, 2),
            (14, 256, 256, 3, 1),
            (14, 256, 512, 3, 2),
            (14, 256, 512, 1, 2),
            (7, 512, 512, 3, 1),
        ),
        1,
    )
]
MOBILENET = [
    Case(f"D{at}", size, channels, channels, 3, stride, channels)
    for at, (size, channels, stride) in enumerate(
        (
            (112, 32, 1),
            (112, 64, 2),
            (56, 128, 1),
            (56, 128, 2),
            (28, 256, 1),
            (28, 256, 2),
            (14, 512, 1),
            (14, 512, 2),
            (7, 1024, 1),
        ),
        1,
    )
]


def aligned(array: Array) -> Array:
    """A copy that starts on a cache line, as memory of the runtime does."""
    raw = np.zeros(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    made = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def operands(case: Case) -> list[Array]:
    """Image (channels first), weights, bias."""
    random = np.random.default_rng(0)
    per_group = case.channels // case.groups
    shapes = (
        (1, case.channels, case.size, case.size),
        (case.out, per_group, case.kernel, case.kernel),
        (case.out,),
    )
    return [random.standard_normal(shape, dtype=np.float32) for shape in shapes]


# --------------------------------------------------------------------------- contenders


def tilewright_run(case: Case, arrays: list[Array], threads: int) -> tuple[Run, Array]:
    """The scheduled kernel on packed weights, and where its result is."""
    x, w, b = arrays
    pads = ", ".join([str(case.pad)] * 4)
    module = graph.parse(
        f"""
        graph @main(%x: f32[1, {case.size}, {case.size}, {case.channels}],
                    %w: f32[{", ".join(map(str, w.shape))}], %b: f32[{case.out}]) {{
          %y = conv(%x, %w, %b) {{
            strides = ({case.stride}, {case.stride}), pads = ({pads}), dilations = (1, 1),
            groups = {case.groups}, layout = "channels_last"}}
          return %y
        }}
        """
    )
    (node,) = module.main.nodes
    tile, target = 0, Target.parse("cpu")
    is_plain = (case.kernel, case.stride, case.groups) == (3, 1, 1)
    if is_plain and case.out % target.lanes(32) == 0:
        costs = KernelCosts(KernelSetting(target, threads))
        tile, _ = best_tile(node, case.channels, costs, in_cache=True)
    kernel = replace(module.main, nodes=(with_tile(node, tile) if tile else node,))
    fn = lower_graph(kernel, case.name)
    made = default_schedule(fn, "cpu", threads=threads, constants=("w", "b"))
    split = split_constant_blocks(made.function)
    out = aligned(np.zeros((1, case.out_size, case.out_size, case.out), np.float32))
    given = [aligned(x.transpose(0, 2, 3, 1)), w, b, out]
    packed: list[Array] = []
    if split.packer is not None:
        shapes = [
            [int(d.value) for d in p.shape] for p in split.packer.params[len(split.weights) :]
        ]
        packed = [aligned(np.zeros(shape, np.float32)) for shape in shapes]
        build(split.packer)(*[given[at] for at in split.weights], *packed)
    kernel = build(split.kernel)
    args = [
        given[param.position] if isinstance(param, Given) else packed[param.position]
        for param in split.params
    ]
    return lambda: kernel(*args, threads=threads), out


def torch_runs(case: Case, arrays: list[Array], threads: int) -> dict[str, Run]:
    import torch  # optional

    torch.set_num_threads(threads)
    x, w, b = (torch.from_numpy(array) for array in arrays)
    layer = torch.nn.Conv2d(
        case.channels, case.out, case.kernel, case.stride, case.pad, groups=case.groups
    ).eval()
    layer.weight.data, layer.bias.data = w, b  # type: ignore[union-attr]
    last = torch.channels_last
    nhwc = torch.nn.Conv2d(
        case.channels, case.out, case.kernel, case.stride, case.pad, groups=case.groups
    ).eval()
    nhwc.weight.data, nhwc.bias.data = w.clone(), b  # type: ignore[union-attr]
    nhwc = nhwc.to(memory_format=last)
    moved = x.to(memory_format=last)

    def run(module: Any, image: Any) -> Run:
        def call() -> object:
            with torch.inference_mode():
                return module(image)

        return call

    found = {"plain": run(layer, x), "last": run(nhwc, moved)}
    try:
        from torch.utils import mkldnn

        found["blocked"] = run(mkldnn.to_mkldnn(layer), x.to_mkldnn())
    except (RuntimeError, ImportError):
        pass
    return {f"torch {name}": each for name, each in found.items()}


def onnx_model(case: Case, arrays: list[Array]) -> bytes:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node(
        "Conv",
        ["x", "w", "b"],
        ["y"],
        kernel_shape=[case.kernel] * 2,
        strides=[case.stride] * 2,
        pads=[case.pad] * 4,
        group=case.groups,
    )
    out = [1, case.out, case.out_size, case.out_size]
    body = helper.make_graph(
        [node],
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(arrays[0].shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(arrays[1], "w"), numpy_helper.from_array(arrays[2], "b")],
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def onnxruntime_run(case: Case, arrays: list[Array], threads: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(onnx_model(case, arrays), options, ["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(arrays[0]))
    out = np.zeros((1, case.out, case.out_size, case.out_size), np.float32)
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(out))
    return lambda: session.run_with_iobinding(binding)


def openvino_run(case: Case, arrays: list[Array], threads: int) -> Run:
    import openvino as ov

    core = ov.Core()
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    model = core.read_model(io.BytesIO(onnx_model(case, arrays)))
    compiled = core.compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    request.set_input_tensor(ov.Tensor(arrays[0], shared_memory=True))
    return lambda: request.infer()


# --------------------------------------------------------------------------- the comparison


def peers(case: Case, arrays: list[Array], threads: int) -> dict[str, Run]:
    found: dict[str, Run] = {}
    if find_spec("torch"):
        found |= torch_runs(case, arrays, threads)
    if find_spec("onnxruntime") and find_spec("onnx"):
        found["ONNX Runtime"] = onnxruntime_run(case, arrays, threads)
    if find_spec("openvino") and find_spec("onnx"):
        found["OpenVINO"] = openvino_run(case, arrays, threads)
    return found


def check(case: Case, arrays: list[Array], out: Array) -> None:
    """The answer by NumPy, within what a sum of so many terms may be off."""
    x, w, b = arrays
    pads = ", ".join([str(case.pad)] * 4)
    shapes = [", ".join(map(str, array.shape)) for array in arrays]
    module = graph.parse(
        f"graph @main(%x: f32[{shapes[0]}], %w: f32[{shapes[1]}], %b: f32[{shapes[2]}]) {{"
        f"%y = conv(%x, %w, %b) {{strides = ({case.stride}, {case.stride}), pads = ({pads}),"
        f"dilations = (1, 1), groups = {case.groups}}} return %y }}"
    )
    (want,) = graph.interpret(module, x, w, b)
    np.testing.assert_allclose(out.transpose(0, 3, 1, 2), want, rtol=1e-3, atol=1e-3)


def copy_run(case: Case) -> tuple[Run, float]:
    """A copy of as many bytes as the kernel must move."""
    half = aligned(np.zeros(max(1, case.size_bytes // 8), np.float32))
    other = aligned(np.zeros_like(half))
    return lambda: np.copyto(other, half), 2.0 * half.nbytes


def in_turns(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """The least time of each; threads of the one before have gone to sleep when it starts."""
    best = dict.fromkeys(runs, math.inf)
    for _ in range(rounds):
        for name, run in runs.items():
            time.sleep(0.01)
            best[name] = min(best[name], *report.seconds(run, budget_s=0.01, least=3))
    return best


def compare(cases: list[Case], threads: int, rounds: int) -> list[report.Figure]:
    figures: list[report.Figure] = []
    ratios: list[float] = []
    for case in cases:
        arrays = operands(case)
        ours, out = tilewright_run(case, arrays, threads)
        ours()
        check(case, arrays, out)
        peak, peak_flops = gemm.peak_run(threads, 50_000)
        copied, copied_bytes = copy_run(case)
        others = peers(case, arrays, threads)
        runs = {"tilewright": ours, "peak": peak, "copy": copied, **others}
        best = in_turns(runs, rounds)
        mine = best["tilewright"]
        floor = max(
            case.flops * best["peak"] / peak_flops,
            case.size_bytes * best["copy"] / copied_bytes,
        )
        label = f"{case.name} {case.size}x{case.size} {case.channels}>{case.out} k{case.kernel}"
        label += f" s{case.stride} x{threads}"
        figures.append(report.Figure(label, mine * 1e6, "us"))
        figures.append(report.Figure(f"{label} floor / time", floor / mine, "x"))
        if others:
            name = min(others, key=lambda each: best[each])
            ratios.append(best[name] / mine)
            figures.append(report.Figure(f"{label} {name} / tilewright", ratios[-1], "x"))
        print(f"{label:40s} {mine * 1e6:8.1f} us  floor {floor / mine:5.2f}", end="")
        print("".join(f"  {k} {best[k] / mine:.2f}" for k in others), flush=True)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        name = "ResNet-18" if cases[0].groups == 1 else "MobileNet depthwise"
        text = f"{name} convolutions, best peer / tilewright, geometric mean, x{threads}"
        figures.append(report.at_least(text, mean, "x", 1.3))
        print(text, f"{mean:.3f}", flush=True)
    return figures


def measure(options: argparse.Namespace) -> list[report.Figure]:
    figures: list[report.Figure] = []
    for threads in options.threads:
        for cases in (RESNET18, MOBILENET):
            chosen = [case for case in cases if options.only in case.name]
            if chosen:
                figures += compare(chosen, threads, options.rounds)
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="", help="workloads whose name holds this")
    parser.add_argument("--rounds", type=int, default=10)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
