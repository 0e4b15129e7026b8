"""Write a small classifier as an ONNX file: two dense layers on 4 numbers, 3 classes."""

import sys

import numpy as np
from onnx import numpy_helper, parser, save

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
classifier (float[batch, 4] x) => (float[batch, 3] scores) {
  a = Gemm (x, w1, b1)
  h = Relu (a)
  z = Gemm (h, w2, b2)
  scores = Softmax <axis = -1> (z)
}"""


def main(path: str) -> None:
    random = np.random.default_rng(0)
    model = parser.parse_model(TEXT)
    for name, shape in (("w1", (4, 16)), ("b1", (16,)), ("w2", (16, 3)), ("b2", (3,))):
        weights = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    save(model, path)


if __name__ == "__main__":
    main(sys.argv[1])
