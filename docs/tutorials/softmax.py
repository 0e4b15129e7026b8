"""Softmax, fused.

Four passes over a matrix become one pass per row, first by a hand-written schedule, then, together
with neighbouring element-wise operators, by the graph compiler.
"""

import numpy as np

import tilewright as tw
from tilewright import te

# ## Four stages
#
# The largest element of a row, the exponentials relative to it, their sum, the quotient.

n, m = te.var("n"), te.var("m")
x = te.placeholder((n, m), name="x")
k1, k2 = te.reduce_axis((0, m), name="k1"), te.reduce_axis((0, m), name="k2")
top = te.compute((n,), lambda i: te.max(x[i, k1], axis=k1), name="top")
e = te.compute((n, m), lambda i, j: te.exp(x[i, j] - top[i]), name="e")
total = te.compute((n,), lambda i: te.sum(e[i, k2], axis=k2), name="total")
y = te.compute((n, m), lambda i, j: e[i, j] / total[i], name="y")
softmax = te.function([n, m, x, y], name="softmax")

# As written, each stage traverses the whole matrix, and `e` is a whole matrix. `compute_at` moves every
# stage under the row loop of the last one (consumers before producers): one pass, with intermediates of
# one row.

sch = tw.Schedule(softmax)
row, _ = sch.get_loops(sch.get_block("y"))
for name in ("total", "e", "top"):
    sch.compute_at(sch.get_block(name), row)
sch.parallel(row)
print(sch.function)

# ## Check
#
# The interpreter first, then native code.

rng = np.random.default_rng(0)
a = rng.standard_normal((5, 33), dtype=np.float32)
exps = np.exp(a - a.max(1, keepdims=True))
want = exps / exps.sum(1, keepdims=True)
out = np.zeros_like(a)
tw.interpret(sch.function, 5, 33, a, out)
np.testing.assert_allclose(out, want, rtol=1e-5)
out[...] = 0
tw.build(sch.function, target="cpu")(5, 33, a, out)
np.testing.assert_allclose(out, want, rtol=1e-5)
print("agrees with NumPy")

# ## In a model
#
# The graph compiler does this automatically, and across operators. Scaled and masked scores with a
# softmax, as in attention, become one kernel:

from tilewright import graph

model = graph.parse("""
graph @main(%scores: f32[rows, 64], %mask: f32[rows, 64]) {
  %scale = constant() {data = f32[](0.125)}
  %scaled = mul(%scores, %scale)
  %masked = add(%scaled, %mask)
  %y = softmax(%masked) {axes = (1,)}
  return %y
}
""")
compiled = tw.compile(model)
scores, mask = (rng.standard_normal((7, 64), dtype=np.float32) for _ in range(2))
(got,) = compiled(scores, mask)
exps = np.exp(scores * 0.125 + mask)
np.testing.assert_allclose(np.asarray(got), exps / exps.sum(1, keepdims=True), rtol=1e-4)
print(compiled.profile(scores, mask))
