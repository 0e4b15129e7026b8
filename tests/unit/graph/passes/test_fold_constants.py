"""Constants that are computed while compiling: what is only moved is not copied."""

import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.base.passes import PassContext
from tilewright.graph import Builder, TensorType
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
