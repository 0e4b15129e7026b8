"""Fusion is decided by the prices of the kernels that there would be either way."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import KernelSetting
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.costs import ESTIMATED, MEASURED, Price
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.verify import verify
from tilewright.sym import const

SERVER = Target.parse("aarch64-linux-gnu -mcpu=neoverse-n1")


@dataclass
class Prices:
    """A table that knows what the kernels of some names take, and that others take 1."""

    ns: dict[str, float]
    source: str = ESTIMATED
    has_times: bool = False
    asked: list = field(default_factory=list)

    def prices(self, candidates):
        assert all(each.is_fused for each in candidates)
        self.asked.append(
            [(each.name, [node.op for node in each.kernel.nodes]) for each in candidates]
        )
        return tuple(
            Price(each.name, self.ns.get(each.name, 1.0), self.source) for each in candidates
        )

    def measured(self, candidates):
        return self.prices(candidates) if self.source == MEASURED else None


def spread(rows=64):
    """A row that is computed, then added to every row."""
    b = Builder()
    row = b.param("row", TensorType(F32, (const(1), const(48))))
    x = b.param("x", TensorType(F32, (const(rows), const(48))))
    return b.module(b.add("add", x, b.add("exp", row)))


def kernels(module, costs, target=SERVER):
    ctx = PassContext(target=target, costs=costs)
    made = run_passes(module, (fuse,), ctx)
    verify(made)
    nodes = [node for node in made.main.nodes if node.op != "constant"]
    found = [[n.op for n in node.bodies[0].nodes] if node.bodies else [node.op] for node in nodes]
    return found, ctx.choices, made


@pytest.mark.parametrize(
    ("together", "expected"),
    [(1.0, [["exp", "add"]]), (1e9, [["exp"], ["add"]])],
)
def test_a_spread_value_is_where_the_table_says(together, expected):
    module = spread()
    found, (choice,), made = kernels(module, Prices({"together": together}))
    assert found == expected
    assert choice.step == "fuse"
    assert [price.name for price in choice.prices] == ["together", "first", "second"]
    arrays = [np.linspace(-1, 1, 48, dtype=np.float32)[None], np.ones((64, 48), np.float32)]
    np.testing.assert_array_equal(interpret(made, *arrays)[0], interpret(module, *arrays)[0])


def test_candidates_are_the_kernels_of_either_way():
    table = Prices({})
    kernels(spread(), table)
    assert table.asked == [[("together", ["exp", "add"]), ("first", ["exp"]), ("second", ["add"])]]


def test_no_price_is_asked_of_a_kernel_that_reads_a_value_at_too_many_places():
    b = Builder()
    value = b.add("neg", b.param("x", TensorType(F32, (const(4),))))
    for _ in range(2):
        value = b.add("concat", *[value] * 64, axis=0)
    table = Prices({})
    found, _, _ = kernels(b.module(value), table)
    assert found == [["neg"], ["concat"], ["concat"]]
    assert not table.asked


def test_without_a_price_bytes_and_operations_decide():
    class Unknown(Prices):
        def prices(self, candidates):
            return None

    plain, choices, _ = kernels(spread(), None)
    unknown, noted, _ = kernels(spread(), Unknown({}))
    assert plain == unknown
    assert not choices
    assert not noted


def test_estimates_count_every_part_of_a_kernel():
    """A kernel that computes a row and adds it to 4096 takes no less than one that adds it."""
    costs = KernelCosts(KernelSetting(SERVER, 1), use_cache=False)
    found, (choice,), _ = kernels(spread(rows=4096), costs)
    assert {price.source for price in choice.prices} == {ESTIMATED}
    together, first, second = (price.ns for price in choice.prices)
    assert together >= second > first > 0
    assert found == [["exp", "add"]]  # the row is computed once, and one kernel is called less


def test_kernels_of_no_elements_have_no_price():
    costs = KernelCosts(KernelSetting(SERVER, 1), use_cache=False)
    found, choices, _ = kernels(spread(rows=0), costs)
    assert found == kernels(spread(rows=0), None)[0]
    assert not choices
