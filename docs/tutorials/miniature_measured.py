"""The miniature, measured.

The network of [the miniature compiler](miniature.md), compared with `tw.compile` on one thread.
"""

import contextlib
import io
import runpy
import time
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright import graph
from tilewright.base.dtype import F32
from tilewright.sym import const

# ## The same network
#
# Node by node, with the graph builder.

with contextlib.redirect_stdout(io.StringIO()):
    miniature = runpy.run_path(str(Path(__file__).with_name("miniature.py")))
model, compiled, x = miniature["model"], miniature["compiled"], miniature["x"]

builder = graph.Builder()
values: dict[object, graph.Value] = {}
for node in miniature["in_order"](model):
    given = [values[each] for each in node.inputs]
    if node.op == "input":
        shape = tuple(map(const, node.shape))
        values[node] = builder.param("x", graph.TensorType(F32, shape))
    elif node.op == "weight":
        values[node] = builder.constant(node.data, "w")
    elif node.op == "square":
        values[node] = builder.add("mul", *given, *given)
    else:
        values[node] = builder.add(node.op, *given)
real = tw.compile(builder.module(values[model]), threads=1)
np.testing.assert_allclose(np.asarray(real(x)[0]), compiled(x), rtol=1e-3, atol=1e-3)
print(real)

# ## Comparison
#
# The minimum of sixty runs each.

best = {"miniature": float("inf"), "tilewright": float("inf")}
for _ in range(60):
    for name, run in (("miniature", compiled), ("tilewright", real)):
        begun = time.perf_counter()
        run(x)
        best[name] = min(best[name], time.perf_counter() - begun)
ratio = best["miniature"] / best["tilewright"]
for name, seconds in best.items():
    print(f"{name}: {seconds * 1e6:.0f} us")
print(f"the miniature takes {ratio:.2f} times as long")

# The difference comes from prepacked weights, tails, tiles chosen by the machine model, and
# prefetching. The miniature lacks dynamic sizes, other operators, threads and saving altogether.
