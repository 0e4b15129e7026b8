"""Which attention is several kernels, and that the answer stays the same."""

from dataclasses import dataclass

import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import KernelSetting
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.costs import ESTIMATED, Price
from tilewright.graph.passes.choose_attention import choose_attention
from tilewright.sym import const, size

SERVER = Target.parse("aarch64-linux-gnu -mcpu=neoverse-n1")


def model(queries=4, keys=96, heads=2, features=16, **attributes):
    """Attention, of a dynamic number of queries where none is given."""
    b = Builder()
    rows = size("queries") if queries is None else const(queries)
    q = b.param("q", TensorType(F32, (const(1), const(heads), rows, const(features))))
    shape = tuple(map(const, (1, heads, keys, features)))
    k, v = b.param("k", TensorType(F32, shape)), b.param("v", TensorType(F32, shape))
    return b.module(b.add("attention", q, k, v, **attributes))


@dataclass
class Prices:
    """A table that knows what one kernel takes; each of several takes 1."""

    one: float
    has_times: bool = False

    def prices(self, candidates):
        times = (self.one, *[1.0] * (len(candidates) - 1))
        return tuple(
            Price(each.name, ns, ESTIMATED) for each, ns in zip(candidates, times, strict=True)
        )


def operators(module, costs, target=SERVER):
    ctx = PassContext(target=target, costs=costs)
    made = run_passes(module, (choose_attention,), ctx)
    return [node.op for node in made.main.nodes if node.op != "constant"], ctx.choices


def test_the_cheaper_form_is_taken_and_noted():
    several, (choice,) = operators(model(), Prices(one=6.0))
    assert several == ["mul", "transpose", "matmul", "softmax", "matmul"]
    assert choice.chosen == "GEMM, softmax, GEMM"
    assert [price.name for price in choice.prices] == [
        "one kernel", "1: mul", "2: matmul", "3: softmax", "4: matmul"
    ]  # fmt: skip
    one, (choice,) = operators(model(), Prices(one=4.0))
    assert one == ["attention"]
    assert choice.chosen == "one kernel"


@pytest.mark.parametrize(
    "module",
    [
        model(queries=None),  # a dynamic number
        model(causal=True, past=-1),  # a query that sees no key
        model(queries=2048, keys=2048),  # scores that no cache holds
    ],
)
def test_other_attention_stays_one_kernel(module):
    assert operators(module, Prices(one=1e9)) == (["attention"], [])


def test_nothing_is_chosen_without_a_table_or_for_a_gpu():
    assert operators(model(), None)[0] == ["attention"]
    assert operators(model(), Prices(1e9), Target.parse("cuda"))[0] == ["attention"]


@pytest.mark.parametrize(("queries", "form"), [(2, "GEMM, softmax, GEMM"), (64, "one kernel")])
def test_rules_price_few_queries_as_products(queries, form):
    costs = KernelCosts(KernelSetting(SERVER, 1), use_cache=False)
    _, (choice,) = operators(model(queries, features=64), costs)
    assert choice.chosen == form


def test_both_forms_give_the_same():
    module = model()
    made = run_passes(module, (choose_attention,), PassContext(target=SERVER, costs=Prices(1e9)))
    assert made is not module
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1, 2, rows, 16)).astype(np.float32) for rows in (4, 96, 96)]
    expected = interpret(module, *inputs)[0]
    np.testing.assert_allclose(interpret(made, *inputs)[0], expected, rtol=1e-5, atol=1e-6)
