"""From a model file to a library called from C.

A trained network becomes `ring.so`: one file with code and weights, without Python or a framework. A
C program of thirty lines calls it.
"""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import tilewright as tw

# ## A trained model
#
# We train a small model right here: two layers that distinguish points inside and outside a ring. Any
# `.onnx` file works as well.

rng = np.random.default_rng(1)
points = rng.uniform(-1, 1, (4000, 2)).astype(np.float32)
labels = (np.hypot(*points.T) < 0.7).astype(np.float32)[:, None]
w1, b1 = rng.standard_normal((2, 32)).astype(np.float32), np.zeros(32, np.float32)
w2, b2 = 0.1 * rng.standard_normal((32, 1)).astype(np.float32), np.zeros(1, np.float32)
for _ in range(600):
    hidden = np.maximum(points @ w1 + b1, 0)
    guess = 1 / (1 + np.exp(-(hidden @ w2 + b2)))
    error = (guess - labels) / len(points)
    back = (error @ w2.T) * (hidden > 0)
    for weight, gradient in (
        (w2, hidden.T @ error),
        (b2, error.sum(0)),
        (w1, points.T @ back),
        (b1, back.sum(0)),
    ):
        weight -= 4.0 * gradient
print(f"right on {((guess > 0.5) == (labels > 0.5)).mean():.1%} of the points")

nodes = [
    helper.make_node("Gemm", ["points", "w1", "b1"], ["a"], name="first"),
    helper.make_node("Relu", ["a"], ["h"], name="relu"),
    helper.make_node("Gemm", ["h", "w2", "b2"], ["z"], name="second"),
    helper.make_node("Sigmoid", ["z"], ["inside"], name="sigmoid"),
]
network = helper.make_graph(
    nodes,
    "ring",
    [helper.make_tensor_value_info("points", onnx.TensorProto.FLOAT, ["batch", 2])],
    [helper.make_tensor_value_info("inside", onnx.TensorProto.FLOAT, ["batch", 1])],
    [numpy_helper.from_array(v, n) for n, v in {"w1": w1, "b1": b1, "w2": w2, "b2": b2}.items()],
)
onnx.save(helper.make_model(network, opset_imports=[helper.make_opsetid("", 17)]), "ring.onnx")

# ## Compile and save
#
# `save` writes the library and, beside it, a C header that needs no other file.

model = tw.compile("ring.onnx")
print(model)
model.save("ring.so")
print("\n".join(Path("ring.h").read_text().splitlines()[-20:]))

# ## Call it from C
#
# Arguments are DLPack tensors: inputs first, then outputs, which the caller allocates. The number of
# points is not fixed; the library takes it from the shapes, and checks that they agree.

PROGRAM = r"""
#include <stdio.h>
#include "ring.h"

int main(void) {
  float points[3][2] = {{0.1f, 0.2f}, {0.9f, 0.9f}, {-0.4f, 0.3f}};
  float inside[3][1];
  int64_t in_shape[] = {3, 2}, out_shape[] = {3, 1};
  DLTensor in = {.data = points, .device = {kDLCPU, 0}, .ndim = 2,
                 .dtype = {kDLFloat, 32, 1}, .shape = in_shape};
  DLTensor out = {.data = inside, .device = {kDLCPU, 0}, .ndim = 2,
                  .dtype = {kDLFloat, 32, 1}, .shape = out_shape};
  const DLTensor *args[] = {&in, &out};
  if (ring(args, 2) != 0) {
    fprintf(stderr, "%s\n", tw_last_error());
    return 1;
  }
  for (int i = 0; i < 3; i++)
    printf("(%4.1f, %4.1f) %s\n", points[i][0], points[i][1],
           inside[i][0] > 0.5f ? "inside" : "outside");
  return 0;
}
"""
Path("main.c").write_text(PROGRAM)
compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
assert compiler is not None
command = [compiler, "-std=c11", "main.c", "./ring.so", "-o", "main", "-Wl,-rpath,$ORIGIN"]
subprocess.run(command, check=True)
print(subprocess.run(["./main"], check=True, capture_output=True, text=True).stdout)

# Python gets the same numbers through `tw.load`, which maps the library and does not import the
# compiler:

again = tw.load("ring.so")
(got,) = again(np.array([[0.1, 0.2], [0.9, 0.9], [-0.4, 0.3]], np.float32))
print(np.asarray(got).round(3).ravel())

# `examples/cmake` has a CMake project that does this as part of a build; see the guide
# [Saving, and calling from C and C++](../guides/deploy.md).
