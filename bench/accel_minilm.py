"""MiniLM in int8 beside the accelerator: matrix products there, all else on the CPU.

    python bench/accel_minilm.py [--json FILE] [--zoo FOLDER] [--model minilm6] [--target vta-sim]

The model of bench/models.py, quantized by ONNX Runtime's static quantizer. Products of bytes, those
of attention in batches among them, run on the functional simulator; results are compared with the
interpreter of the integer graph, bit for bit, and with ONNX Runtime, beside our CPU's distance.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime
import report
import zoo

import tilewright as tw
from tilewright.base.target import Target
from tilewright.driver.accelerate import AcceleratedModule, integer_graph
from tilewright.driver.compile import load_graph
from tilewright.graph import interpret


def measure(options: argparse.Namespace) -> list[report.Figure]:
    zoo.ensure_models(options.zoo, [options.model])
    (plain,) = zoo.cases_of(options.zoo, [options.model])
    case = zoo.quantized(plain, options.zoo / "int8")
    inputs = dict(np.load(case.inputs))
    whole = integer_graph(load_graph(case.model), Target.parse(options.target))
    kinds = Counter(node.op for node in whole.main.nodes)
    given = [inputs[value.name] for value in whole.main.params]
    want = interpret(whole, *given)
    made = tw.compile(str(case.model), target=options.target)
    assert isinstance(made, AcceleratedModule)
    got = [np.asarray(one) for one in made(**inputs)]
    same = all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
    for one in ("quantized_matmul", "quantized_batch_matmul"):
        print(f"{kinds[one]} {one}")
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
    products = kinds["quantized_matmul"] + kinds["quantized_batch_matmul"]
    return [
        report.at_least("matrix products of bytes", float(products), "", 1),
        report.at_least("of them on the accelerator", float(len(rows)), "", products),
        report.at_least("bits of the interpreter", float(same), "", 1),
        report.Figure("cycles there", made.cycles / 1e6, "Mcycles"),
        report.at_most("from ONNX Runtime, over our CPU's distance", far / near, "x", 1.0),
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--zoo", type=Path, default=Path("zoo"))
    parser.add_argument("--model", default="minilm6")
    parser.add_argument("--target", default="vta-sim")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
