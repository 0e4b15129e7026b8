"""A whole model in one screen: compile, run, profile, save, load.

python examples/model.py
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
from onnx import numpy_helper, parser

import tilewright as tw

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
classifier (float[batch, 64] x) => (float[batch, 10] y) {
  a = Gemm (x, w1, b1)
  h = Relu (a)
  z = Gemm (h, w2, b2)
  y = Softmax <axis = -1> (z)
}"""


def main() -> None:
    random = np.random.default_rng(0)
    weights = {
        name: 0.1 * random.standard_normal(shape).astype(np.float32)
        for name, shape in (("w1", (64, 128)), ("b1", 128), ("w2", (128, 10)), ("b2", 10))
    }
    onnx_model = parser.parse_model(TEXT)
    onnx_model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in weights.items()
    )

    model = tw.compile(onnx_model)  # also: a path
    print(model)
    for batch in (1, 7):  # one compilation for every size
        x = random.standard_normal((batch, 64)).astype(np.float32)
        (y,) = model(x)
        hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0)
        scores = np.exp(hidden @ weights["w2"] + weights["b2"])
        np.testing.assert_allclose(np.asarray(y), scores / scores.sum(1, keepdims=True), rtol=1e-4)
    print(model.profile(x))

    if shutil.which("cc") is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = model.save(Path(folder) / "classifier.so")
            (again,) = tw.load(path)(x)
            np.testing.assert_array_equal(np.asarray(again), np.asarray(y))
            print(f"saved and loaded: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
