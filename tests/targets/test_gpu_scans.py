"""Running sums and products on a GPU: pieces side by side, then what they come to."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.tensor.passes import lower

TARGET = "cuda -arch=sm_90a"
FORMS = {  # shape, axis, attributes
    "whole pieces": ("3, 64", 1, "piece = 16"),
    "a piece that is not full": ("2, 50", 1, "piece = 16"),
    "pieces of pieces": ("2, 70", 1, "piece = 4"),
    "exclusive": ("3, 50", 1, "piece = 8, exclusive = true"),
    "from the end": ("3, 50", 1, "piece = 8, reverse = true"),
    "both, along the first axis": ("40, 3", 0, "piece = 8, reverse = true, exclusive = true"),
    "lines of several blocks": ("96, 24", 1, "piece = 8"),
    "one line": ("50", 0, "piece = 8"),
    "no pieces": ("3, 20", 1, "piece = 0"),
}


def model(op, shape, axis, attributes, dtype="f32"):
    return graph.parse(f"""graph @main(%x: {dtype}[{shape}]) {{
      %y = {op}(%x) {{axis = {axis}, {attributes}}}
      return %y
    }}""")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", ["cumsum", "cumprod"])
@pytest.mark.sampled
def test_results_are_those_of_numpy(op, form):
    shape, axis, attributes = FORMS[form]
    module = model(op, shape, axis, attributes)
    made = schedule(lower_graph(module.main, "running"), TARGET)
    assert "fallback" not in [decision.rule for decision in made.decisions]
    x = np.random.default_rng(0).uniform(0.8, 1.2, [int(n) for n in shape.split(",")])
    x = x.astype(np.float32)
    (want,) = graph.interpret(module, x)
    out = np.full(want.shape, np.nan, np.float32)
    tw.interpret(lower(made.schedule.function, "gpu"), x, out)
    np.testing.assert_allclose(out, want, rtol=1e-5)


def test_integers_are_exact():
    module = model("cumsum", "300", 0, "piece = 32", "i64")
    x = np.random.default_rng(0).integers(-(1 << 60), 1 << 60, 300)
    (want,) = graph.interpret(module, x)
    out = np.zeros(300, np.int64)
    made = schedule(lower_graph(module.main, "running"), TARGET)
    tw.interpret(lower(made.schedule.function, "gpu"), x, out)
    np.testing.assert_array_equal(out, want)


def test_a_model_on_a_gpu_goes_along_in_pieces():
    module = tw.compile(model("cumsum", "4, 500", 1, "exclusive = false"), target=TARGET)
    rules = [d.rule for kernel in module.program.kernels.values() for d in kernel.decisions]
    assert rules.count("scan") == 2
    assert "fallback" not in rules
