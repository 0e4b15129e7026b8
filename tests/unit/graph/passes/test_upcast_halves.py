"""Models stored in fewer bits: the same answer, and the kernels of f32 models on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import graph
from tilewright.base.dtype import BF16, F16, F32, DType
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.optimize import optimize, pass_context
from tilewright.driver.options import Options
from tilewright.driver.pipelines import PIPELINES, precision_for
from tilewright.graph.interp import interpret
from tilewright.graph.passes import UPCAST, UPCAST_F16
from tilewright.graph.visit import walk
from tilewright.sym import const

GPU = Target.parse("cuda")
LAYER = """graph @main(%x: {half}[2, 32, 8, 8], %w: {half}[32, 32, 3, 3], %s: {half}[32, 1, 1]) {{
  %y = conv(%x, %w) {{dilations = (1, 1), pads = (1, 1, 1, 1), strides = (1, 1)}}
  %z = mul(%y, %s)
  %r = relu(%z)
  return %r
}}"""


def operands(module: graph.Module) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = [tuple(int(dim.value) for dim in param.tensor.shape) for param in module.main.params]
    dtypes = [param.tensor.dtype.numpy for param in module.main.params]
    return [random.uniform(-1, 1, s).astype(d) for s, d in zip(shapes, dtypes, strict=True)]


@pytest.mark.parametrize(
    ("half", "passes"), [(F16, UPCAST_F16), (BF16, UPCAST)], ids=["f16", "bf16"]
)
def test_products_and_what_follows_are_f32_and_results_are_halves(half, passes):
    before = graph.parse(LAYER.format(half=half.name))
    after = run_passes(before, passes, PassContext())
    computed = {node.output.tensor.dtype for node in walk(after.main) if node.op != "cast"}
    assert computed == {F32}
    assert [value.tensor.dtype for value in after.main.results] == [half]
    given = operands(before)
    (want,), (got,) = interpret(before, *given), interpret(after, *given, check=True)
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=0.05, atol=0.1)


def trained(dtype: DType) -> graph.Module:
    """A convolution and the batch norm that follows it."""
    random, build = np.random.default_rng(0), graph.Builder()
    x = build.param("x", graph.TensorType(dtype, tuple(map(const, (2, 32, 8, 8)))))
    w = build.constant(random.uniform(-1, 1, (32, 32, 3, 3)).astype(dtype.numpy))
    scale = [build.constant(random.uniform(1, 2, 32).astype(np.float32)) for _ in range(4)]
    windows = {"dilations": (1, 1), "pads": (1, 1, 1, 1), "strides": (1, 1)}
    y = build.add("cast", build.add("conv", x, w, **windows), to=F32)
    return build.module(build.add("cast", build.add("batch_norm", y, *scale), to=dtype))


@pytest.mark.parametrize("half", [F16, BF16], ids=str)
def test_a_batch_norm_of_halves_is_part_of_weights_that_tensor_cores_multiply(half):
    options = Options(precision=half.name)
    made = optimize(trained(half), GPU, options, pass_context(GPU, options))
    kernels = [body for node in walk(made.main) for body in node.bodies]
    operators = {node.op for body in kernels for node in walk(body)}
    assert "matmul" in operators
    assert not operators & {"conv", "batch_norm", "mul"}


def test_the_precision_of_a_model_is_that_of_all_it_multiplies():
    halves = graph.parse(LAYER.format(half="f16"))
    assert precision_for(halves, GPU, "f32") == "f16"
    assert precision_for(halves, GPU, "bf16") == "bf16"
    assert precision_for(halves, Target.parse("cpu"), "f32") == "f32"
    assert precision_for(graph.parse(LAYER.format(half="bf16")), GPU, "f32") == "bf16"
    mixed = graph.parse("""graph @main(%x: f16[32, 32], %y: f32[32, 32]) {
      %a = matmul(%x, %x)
      %b = matmul(%y, %y)
      return %a, %b
    }""")
    assert precision_for(mixed, GPU, "f32") == "f32"
    positions = graph.parse("""graph @main(%x: f16[32, 32], %p: f32[32, 1], %q: f32[1, 8]) {
      %a = matmul(%x, %x)
      %c = matmul(%p, %q)
      return %a, %c
    }""")
    assert precision_for(positions, GPU, "f32") == "f16"


def test_halves_are_widened_before_any_other_pass_looks():
    for precision, passes in (("f16", UPCAST_F16), ("bf16", UPCAST)):
        names = [step.__name__ for step in PIPELINES["cuda", precision]]
        assert names.index(passes[0].__name__) < names.index("fold_batch_norm")
