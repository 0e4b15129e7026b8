"""MiniLM in int8 with the accelerator: GEMMs there, the rest on the CPU.

    python bench/accel_minilm.py [--json FILE] [--zoo FOLDER] [--model minilm6] [--target vta-sim]
                                 [--rtl] [--library FILE]

The model of bench/models.py, quantized by ONNX Runtime's static quantizer. Products of bytes, those
of attention in batches among them, run on the functional simulator. Every product is compared
with the interpreter, bit for bit, on random bytes; between products are functions of floats, which
native code rounds otherwise than NumPy. The distance of the whole from ONNX Runtime is shown beside
that of our CPU. `--rtl` runs every product in RTL as well: memory, and begin and end of every
instruction, are those of the cycle model.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import report
import zoo

import tilewright as tw
from tilewright.accel.compare import differences
from tilewright.accel.part import compile_part
from tilewright.accel.verilate import simulator
from tilewright.base.target import Target
from tilewright.driver.accelerate import AcceleratedModule, layers_of
from tilewright.driver.optimize import load_graph
from tilewright.graph import Graph, Module, Value, interpret
from tilewright.graph.ir import Node

Array = np.ndarray[Any, Any]
SAME = 1 + 1e-5  # floats around the products are rounded as they come


def is_product(node: Node) -> bool:
    return node.op in ("quantized_matmul", "quantized_batch_matmul")


def measure(options: argparse.Namespace) -> list[report.Figure]:
    zoo.ensure_models(options.zoo, [options.model])
    (plain,) = zoo.cases_of(options.zoo, [options.model])
    case = zoo.quantized(plain, options.zoo / "int8")
    inputs = dict(np.load(case.inputs))
    target = Target.parse(options.target)
    made = tw.compile(str(case.model), target=options.target)
    assert isinstance(made, AcceleratedModule)
    got = [np.asarray(one) for one in made(**inputs)]
    graph, constants = layers_of(load_graph(case.model), target)
    checked = [agrees(node, constants, options) for node in graph.nodes if is_product(node)]
    rows = made.report()
    by_kind = Counter[str]()
    for row in rows:
        by_kind[row["op"]] += row["cycles"]
    print({kind: f"{cycles / 1e6:.3f} Mcycles" for kind, cycles in by_kind.items()})
    session = onnxruntime.InferenceSession(str(case.model), providers=["CPUExecutionProvider"])
    theirs = session.run(None, inputs)
    ours = [np.asarray(one) for one in tw.compile(str(case.model))(**inputs)]
    far, near = (
        max(float(np.abs(a - b).max()) for a, b in zip(some, theirs, strict=True))
        for some in (got, ours)
    )
    products = len(checked)
    same, alike = (sum(one) for one in zip(*checked, strict=True))
    there = sum(row["op"].endswith("matmul") for row in rows)
    figures = [
        report.at_least("matrix products of bytes", float(products), "", 1),
        report.at_least("of them on the accelerator", float(there), "", products),
        report.at_least("that give the interpreter's bits", float(same), "", products),
        report.Figure("cycles there", made.cycles / 1e6, "Mcycles"),
        report.Figure("farthest from ONNX Runtime, our CPU", near, ""),
        report.at_most("farthest from ONNX Runtime", far, "", near * SAME),
    ]
    if options.rtl:
        figures.append(report.at_least("alike in RTL", float(alike), "", products))
    return figures


def agrees(
    node: Node, constants: Mapping[Value, Array], options: argparse.Namespace
) -> tuple[bool, bool]:
    """Whether a layer gives on random bytes what the interpreter gives, and is alike in RTL."""
    operands = tuple(value for value in node.inputs if value is not None)
    graph = Graph("main", operands, (node,), node.outputs)
    part = compile_part(graph, constants, Target.parse(options.target))
    random = np.random.default_rng(0)
    given = [
        constants[value]
        if value in constants
        else random.integers(-128, 128, value.tensor.static_shape).astype(np.int8)
        for value in operands
    ]
    (want,) = interpret(Module({"main": graph}), *given)
    same = np.array_equal(part.run(*given)[0], want)
    if not options.rtl:
        return same, True
    library = str(options.library or simulator(part.stream.geometry))
    told = differences(part.stream, part.packed(*given), ["cycle", "functional", library])
    for one in told:
        print(f"{node.outputs[0].name}: {one}")
    return same, not told


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--zoo", type=Path, default=Path("zoo"))
    parser.add_argument("--model", default="minilm6")
    parser.add_argument("--target", default="vta-sim")
    parser.add_argument("--rtl", action="store_true")
    parser.add_argument("--library", help="of the RTL, where there is no Verilator")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
