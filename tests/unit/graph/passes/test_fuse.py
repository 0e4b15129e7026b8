"""Fusion of random graphs: the same values, and kernels of the form that is promised."""

import random
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.ir import Module, Value
from tilewright.graph.op import COMPLEX, OPAQUE
from tilewright.graph.ops import OPS
from tilewright.graph.parser import parse
from tilewright.graph.passes import FUSED
from tilewright.graph.verify import verify
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.sym import const, size

SHAPE = (4, 6)


def _random_model(seed: int) -> tuple[Module, list[Any]]:
    """A graph of nodes that take any of the values before them, all of one shape or transposed."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    b = Builder()
    n = size("n")
    flat = TensorType(F32, (n, const(SHAPE[1])))
    values = [b.param(f"x{at}", flat) for at in range(3)]
    weights = b.constant(numbers.standard_normal((6, 6), np.float32), "w")
    half = b.constant(np.float32(0.5), "half")
    for _ in range(rng.randint(3, 14)):
        x, y = rng.choice(values), rng.choice(values)
        values.append(_step(b, rng.choice(STEPS), x, y, weights, half))
    results = rng.sample(values[3:], min(2, len(values) - 3))
    arrays = [numbers.standard_normal(SHAPE, np.float32) for _ in range(3)]
    return b.module(*results), arrays


STEPS = ("add", "half", "tanh", "norm", "sum", "matmul", "turn", "reshape", "cumsum", "cut")


def _step(b: Builder, kind: str, x: Value, y: Value, weights: Value, half: Value) -> Value:
    n = x.tensor.shape[0]  # type: ignore[index]  # ranks are known here
    if kind == "add":
        return b.add("add", x, y)
    if kind == "half":
        return b.add("mul", x, half)
    if kind == "tanh":
        return b.add("tanh", x)
    if kind == "norm":
        return b.add("softmax", x, axes=(1,))
    if kind == "sum":
        return b.add("sub", x, b.add("reduce_sum", y, axes=(1,), keepdims=True))
    if kind == "matmul":
        return b.add("matmul", x, weights)
    if kind == "turn":
        turned = b.add("transpose", b.add("transpose", x, perm=(1, 0)), perm=(1, 0))
        return b.add("matmul", turned, weights)
    if kind == "reshape":
        parts = b.add("reshape", x, shape=(n, 2, 3))
        return b.add("reshape", b.add("exp", b.add("tanh", parts)), shape=(n, 6))
    if kind == "cut":
        left = b.add("slice", x, starts=(0,), ends=(3,), axes=(1,))
        right = b.add("slice", y, starts=(3,), ends=(6,), axes=(1,))
        return b.add("concat", left, right, axis=1)
    return b.add("cumsum", x, axis=1)


@pytest.mark.parametrize("seed", range(40))
def test_fusion_keeps_values(seed: int) -> None:
    module, arrays = _random_model(seed)
    want = interpret(module, *arrays)
    fused = run_passes(module, FUSED)
    verify(fused)
    got = interpret(fused, *arrays, check=True)
    for a, b in zip(want, got, strict=True):
        assert np.array_equal(a, b)
    for node in fused.main.nodes:
        assert node.op in ("fused", "constant", "reshape") or OPS[node.op].pattern == OPAQUE
        for body in node.bodies:
            inner = [OPS[each.op].pattern for each in body.nodes if each.op != "constant"]
            assert inner.count(COMPLEX) <= 1
            lower_graph(body, "kernel", fused.constants)


def test_without_fusion_every_node_is_alone() -> None:
    module, arrays = _random_model(3)
    alone = run_passes(module, FUSED, PassContext(options={"fuse.enabled": False}))
    assert alone.stage == "fused"
    for node in alone.main.nodes:
        for body in node.bodies:
            assert sum(each.op != "constant" for each in body.nodes) == 1
    for a, b in zip(interpret(module, *arrays), interpret(alone, *arrays), strict=True):
        assert np.array_equal(a, b)


def test_a_fused_model_is_left_as_it_is() -> None:
    module, _ = _random_model(5)
    fused = run_passes(module, FUSED)
    assert run_passes(fused, FUSED) == fused


def test_concats_of_concats_do_not_multiply_in_one_kernel() -> None:
    b = Builder()
    value = b.add("tanh", b.param("x", TensorType(F32, (const(8),))))
    for _ in range(12):
        value = b.add("concat", b.add("neg", value), value, axis=0)
        value = b.add("concat", value, value, axis=0)
    for node in run_passes(b.module(value), FUSED).main.nodes:
        places = 1
        for each in [each for body in node.bodies for each in body.nodes]:
            places *= max(each.inputs.count(part) for part in each.inputs or (None,))
        assert places <= 16


def test_what_can_end_a_kernel_of_long_functions_is_no_prologue() -> None:
    """One kernel of gates, whose result a row of a product takes, and what is beside it."""
    b = Builder()
    gates, kept = (b.param(name, TensorType(F32, (const(1), const(64)))) for name in ("g", "s"))
    weights = b.constant(np.ones((128, 32), np.float32), "w")
    state = b.add("mul", b.add("sigmoid", gates), b.add("tanh", gates))
    product = b.add("matmul", b.add("concat", state, kept, axis=1), weights)
    fused = run_passes(
        b.module(product, b.add("neg", state)), FUSED, PassContext(target=Target.parse("cuda"))
    )
    inner = [[each.op for each in body.nodes] for n in fused.main.nodes for body in n.bodies]
    assert sorted(inner) == [["concat", "matmul"], ["sigmoid", "tanh", "mul", "neg"]]


@pytest.mark.parametrize(
    ("target", "parts", "op", "kernels"),
    [
        ("x86_64-linux-gnu", 32, "relu", 1),
        ("x86_64-linux-gnu", 33, "relu", 34),
        ("x86_64-linux-gnu", 33, "transpose", 1),  # moved, not computed
        ("cuda -arch=sm_90a", 33, "relu", 1),  # where each kernel costs a launch
    ],
)
def test_many_parts_are_computed_by_kernels_of_their_own(target, parts, op, kernels):
    b = Builder()
    given = [b.param(f"x{at}", TensorType(F32, (const(2), const(8)))) for at in range(parts)]
    how = {"perm": (1, 0)} if op == "transpose" else {}
    joined = b.add("concat", *[b.add(op, x, **how) for x in given], axis=0)
    made = run_passes(b.module(joined), FUSED, PassContext(target=Target.parse(target)))
    assert sum(node.op != "constant" for node in made.main.nodes) == kernels


@pytest.mark.parametrize(("target", "kernels"), [("x86_64-linux-gnu", 2), ("cuda -arch=sm_90a", 1)])
def test_images_leave_channels_last_in_kernels_of_their_own(target, kernels):
    text = """graph @main(%x: f32[1, 8, 8, 16], %w: f32[16, 16, 3, 3]) -> (f32[1, 16, 8, 8]) {
      %y = conv(%x, %w) {strides = (1, 1), pads = (1, 1, 1, 1), dilations = (1, 1),
                         layout = "channels_last"}
      %r = relu(%y)
      %t = transpose(%r) {perm = (0, 3, 1, 2)}
      return %t
    }"""
    made = run_passes(parse(text), FUSED, PassContext(target=Target.parse(target)))
    assert sum(node.op == "fused" or node.op == "transpose" for node in made.main.nodes) == kernels


@pytest.mark.parametrize(
    "nodes",
    [
        "%y = matmul(%x, %x)",
        "%t = transpose(%x) {perm = (1, 0)} %y = matmul(%x, %t)",
        "%t = transpose(%x) {perm = (1, 0)} %y = matmul(%t, %x)",
        "%t = transpose(%x) {perm = (1, 0)} %p = matmul(%x, %t) %y = add(%p, %x)",
    ],
)
@pytest.mark.parametrize("target", ["x86_64-linux-gnu -mcpu=haswell", "cuda -arch=sm_90a"])
def test_a_matrix_times_itself_is_a_gemm_of_two_parameters(target, nodes):
    text = f"graph @main(%x: f32[64, 64]) -> (f32[64, 64]) {{ {nodes} return %y }}"
    before = parse(text)
    made = run_passes(before, FUSED, PassContext(target=Target.parse(target)))
    (kernel,) = [node for node in made.main.nodes if node.op == "fused"]
    assert len(set(kernel.inputs)) == 1
    assert len(kernel.inputs) >= 2
    x = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    np.testing.assert_allclose(interpret(made, x)[0], interpret(before, x)[0], rtol=1e-6)
    rules = {each.rule for each in schedule(lower_graph(kernel.bodies[0], "k"), target).decisions}
    assert rules & {"gemm", "sgemm"}, rules
