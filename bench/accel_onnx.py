"""Models quantized by ONNX Runtime on the accelerator: what stays on the host, and the errors.

    python bench/accel_onnx.py [--json FILE] [--zoo FOLDER] [--models resnet18 ...]
                               [--target vta-sim] [--inputs 4]

Convolutional models of bench/models.py, quantized by ONNX Runtime's static quantizer and compiled
from the file. All but the first quantize and the last dequantize run on the accelerator, and the
result is that of the interpreter on the integer graph, bit for bit. Distances from ONNX Runtime are
in steps of the quantized output, over the input of calibration and random ones: the accelerator's,
which requantizes in fixed point, beside our CPU's, which multiplies by floats.
`bench/accel_minilm.py` does the same for MiniLM, of which much is computed in floats.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import report
import zoo

import tilewright as tw
from tilewright.base.target import Target
from tilewright.driver.accelerate import AcceleratedModule, integer_graph
from tilewright.driver.optimize import load_graph
from tilewright.driver.placement import ACCELERATOR
from tilewright.graph import Module, interpret
from tilewright.graph.ir import Node

Array = np.ndarray[Any, Any]
MODELS = ("resnet18", "mobilenet_v2", "resnet50")
ENDS = {0: ["quantize"], -1: ["dequantize"]}  # what the host keeps: the first node and the last


def measure(options: argparse.Namespace) -> list[report.Figure]:
    zoo.ensure_models(options.zoo, options.models)
    return [
        figure
        for case in zoo.cases_of(options.zoo, options.models)
        for figure in whole(zoo.quantized(case, options.zoo / "int8"), options)
    ]


def whole(case: zoo.Case, options: argparse.Namespace) -> list[report.Figure]:
    name = case.name
    made = tw.compile(str(case.model), target=options.target)
    assert isinstance(made, AcceleratedModule)
    rows = [(node, device, why) for _, node, device, why in made.placement.rows()]
    kept = [(node, why) for node, device, why in rows if device != ACCELERATOR]
    for node, why in kept:
        print(f"{name}, on the host: {' '.join(operators(node))} {why}".rstrip())
    ends = sum(operators(rows[at][0]) == end for at, end in ENDS.items())
    beside = len(kept) - ends

    graph = integer_graph(load_graph(case.model), Target.parse(options.target))
    step = step_of(graph)
    cpu = tw.compile(str(case.model))
    session = onnxruntime.InferenceSession(str(case.model), providers=["CPUExecutionProvider"])
    distances: dict[str, list[Array]] = {"accelerator": [], "CPU": []}
    same = 0
    for given in inputs_of(case, options.inputs):
        (got,), (native,) = made(**given), cpu(**given)
        (want,), (theirs,) = interpret(graph, *given.values()), session.run(None, given)
        same += np.array_equal(np.asarray(got), want)
        distances["accelerator"].append(steps(got, theirs, step))
        distances["CPU"].append(steps(native, theirs, step))
    far, near = (float(np.max(one)) for one in distances.values())
    return [
        report.at_least(f"{name}, nodes on the accelerator", float(len(rows) - len(kept)), "", 1),
        report.at_most(f"{name}, nodes on the host beside its ends", float(beside), "", 0),
        report.Figure(f"{name}, cycles there", made.cycles / 1e6, "Mcycles"),
        report.at_least(f"{name}, bits of the interpreter", float(same), "inputs", options.inputs),
        report.Figure(f"{name}, farthest from ONNX Runtime, our CPU", near, "steps"),
        report.at_most(f"{name}, farthest from ONNX Runtime", far, "steps", near),
        *(
            report.Figure(f"{name}, mean distance, our {place}", float(np.mean(one)), "steps")
            for place, one in distances.items()
        ),
    ]


def operators(node: Node) -> list[str]:
    """Those of a node, or in it where it is fused."""
    inner = [one for body in node.bodies for one in body.nodes] or [node]
    return [one.op for one in inner if one.op != "constant"]


def step_of(graph: Module) -> float:
    """What one more in the last layer's bytes is worth."""
    last = next(node for node in graph.main.nodes if graph.main.results[0] in node.outputs)
    scale = next(node for node in graph.main.nodes if last.inputs[1] in node.outputs)
    data = scale["data"]
    return float(graph.constants[data] if isinstance(data, str) else data)


def steps(ours: Any, theirs: Array, step: float) -> Array:
    """How far two dequantized tensors are apart, as integers."""
    apart: Array = np.abs(np.asarray(ours) - theirs)
    return np.rint(apart / step).astype(np.int64)


def inputs_of(case: zoo.Case, number: int) -> list[dict[str, Any]]:
    """That of the file, and random ones as wide."""
    first = dict(np.load(case.inputs))
    random = np.random.default_rng(0)
    others = [
        {
            name: random.normal(array.mean(), array.std(), array.shape).astype(array.dtype)
            for name, array in first.items()
        }
        for _ in range(number - 1)
    ]
    return [first, *others]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--zoo", type=Path, default=zoo.DEFAULT)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--target", default="vta-sim")
    parser.add_argument("--inputs", type=int, default=4, help="that of calibration, random ones")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
