"""Functions of bytes as tables: the same bytes as step by step, for each of 256, natively too."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.graph.interp import interpret
from tilewright.graph.passes import remove_dead_nodes, tabulate_bytes

SILU = """
graph @main(%q: OF[n, 4]) {{
  %s = constant() {{data = f32[](0.05)}}
  %z = constant() {{data = OF[](3)}}
  %d = dequantize(%q, %s, %z) {{to = dtype f32}}
  %e = sigmoid(%d)
  %p = quantize(%e, %s, %z) {{to = dtype OF}}
  %t = dequantize(%p, %s, %z) {{to = dtype f32}}
  %m = mul(%d, %t)
  %y = quantize(%m, %s, %z) {{to = dtype OF}}
  return %y
}}
"""


def silu(of):
    return graph.parse(SILU.format().replace("OF", of))


def every(of):
    return np.arange(256, dtype=np.uint8).view(of).reshape(64, 4)


@pytest.mark.parametrize("of", ["u8", "i8"])
def test_all_steps_become_one_table(of):
    module = silu(of)
    context = PassContext(target=Target.parse("x86_64-linux-gnu -mcpu=haswell"))
    made = run_passes(module, (tabulate_bytes, remove_dead_nodes), context)
    ops = [node.op for node in made.main.nodes if node.op != "constant"]
    assert ops == (["lookup_bytes"] if of == "u8" else ["bitcast", "lookup_bytes"])
    given = every({"u8": np.uint8, "i8": np.int8}[of])
    np.testing.assert_array_equal(interpret(made, given)[0], interpret(module, given)[0])


@pytest.mark.parametrize("of", ["u8", "i8"])
def test_native_tables_give_the_bytes_of_the_reference(of):
    module, given = silu(of), every({"u8": np.uint8, "i8": np.int8}[of])
    np.testing.assert_array_equal(
        np.asarray(tw.compile(module, threads=1)(given)[0]), interpret(module, given)[0]
    )
