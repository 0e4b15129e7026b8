"""Constants that are computed while compiling: what is only moved is not copied."""

import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.base.passes import PassContext
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.passes import fold_constants
from tilewright.sym import const


@pytest.mark.parametrize(
    ("op", "attributes", "is_shared"),
    [("transpose", {"perm": (1, 0)}, True), ("neg", {}, False)],
)
def test_a_constant_in_another_order_is_a_view(op, attributes, is_shared):
    given = np.arange(1 << 10, dtype=np.float32).reshape(32, 32)
    build = Builder()
    x = build.param("x", TensorType(F32, (const(32), const(32))))
    moved = build.add(op, build.constant(given, "w"), **attributes)
    module = fold_constants(build.module(build.add("add", x, moved)), PassContext())
    assert not any(node.op == op for node in module.main.nodes)
    (made,) = (array for name, array in module.constants.items() if name != "w")
    np.testing.assert_array_equal(made, given.T if is_shared else -given)
    assert np.shares_memory(made, given) is is_shared


@pytest.mark.parametrize(
    ("limit", "between", "is_folded"),
    [
        (1 << 8, 1 << 20, False),
        (1 << 12, 1 << 20, True),
        (1 << 12, 1 << 12, False),
        (1 << 20, 0, True),
    ],
)
def test_a_large_value_may_lie_between_constants(limit, between, is_folded):
    """The hidden layer of position biases: [64, 2] @ [2, 64] is larger than what is stored."""
    rng = np.random.default_rng(0)
    shapes = (64, 2), (2, 64), (64, 4)
    places, first, second = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    build = Builder()
    x = build.param("x", TensorType(F32, (const(64), const(4))))
    hidden = build.add("matmul", build.constant(places, "p"), build.constant(first, "a"))
    both = build.add("add", build.add("relu", hidden), build.add("exp", hidden))
    bias = build.add("matmul", both, build.constant(second, "b"))
    module = build.module(build.add("add", x, bias))
    limits = {"fold_constants.limit": limit, "fold_constants.between_limit": between}
    folded = fold_constants(module, PassContext(options=limits))
    assert ("matmul" not in {node.op for node in _used(folded)}) is is_folded
    given = np.zeros((64, 4), np.float32)
    np.testing.assert_allclose(interpret(folded, given)[0], interpret(module, given)[0], 1e-5)


def _used(module):
    """The nodes that the result depends on."""
    found, values = [], set(module.main.results)
    for node in reversed(module.main.nodes):
        if values & set(node.outputs):
            found.append(node)
            values |= set(node.inputs)
    return found
