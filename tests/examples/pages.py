"""What the tests of the documentation share: the blocks of a page, and a model to run them on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import numpy_helper, parser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(
    r"(?P<output><div class=\"output\" markdown>\n\n)?"
    r"^(?P<mark>`{3,})(?P<language>\w*)(?: +title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<body>.*?)^(?P=mark)$",
    re.MULTILINE | re.DOTALL,
)

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
classifier (float[batch, 64] x) => (float[batch, 10] y) {
  a = Gemm (x, w1, b1)
  h = Relu (a)
  z = Gemm (h, w2, b2)
  y = Softmax <axis = -1> (z)
}"""

LAYER = """<ir_version: 8, opset_import: ["" : 17]>
classifier (float[batch, 64] x) => (float[batch, 10] y) {
  z = Gemm (x, w, b)
  y = Softmax <axis = -1> (z)
}"""
WEIGHTS = {
    MODEL: {"w1": (64, 128), "b1": (128,), "w2": (128, 10), "b2": (10,)},
    LAYER: {"w": (64, 10), "b": (10,)},
}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it is, its text; whether it is what code prints."""

    language: str
    title: str
    body: str
    is_output: bool


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(m["language"], m["title"] or "", m["body"], bool(m["output"]))
        for m in FENCE.finditer(text)
    ]


def write_model(path: Path, text: str = MODEL) -> None:
    """The model that the guides work on."""
    random = np.random.default_rng(0)
    model = parser.parse_model(text)
    for name, shape in WEIGHTS[text].items():
        weights = 0.3 * random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    path.write_bytes(model.SerializeToString())
