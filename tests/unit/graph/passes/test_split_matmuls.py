"""Which products of f32 become six of bf16, and that they are as exact."""

import numpy as np
import pytest

from tilewright.base.dtype import BF16, F32
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import KernelSetting
from tilewright.graph import Builder, TensorType, interpret
from tilewright.graph.collapse import collapse_axes
from tilewright.graph.costs import alone
from tilewright.graph.passes import SPLIT
from tilewright.graph.passes.split_matmuls import split_matmuls
from tilewright.sym import const, size

TILES = Target.parse("x86_64-linux-gnu -mcpu=emeraldrapids")
VECTORS = Target.parse("x86_64-linux-gnu -mcpu=cascadelake")


def model(lead, k, n, weights=None, to=None):
    """A product by weights, of rows along axes of which names are dynamic."""
    b = Builder()
    dims = [size(dim) if isinstance(dim, str) else const(dim) for dim in (*lead, k)]
    x = b.param("x", TensorType(F32, tuple(dims)))
    if weights is None:
        weights = np.random.default_rng(0).standard_normal((k, n)).astype(np.float32)
    return b.module(b.add("matmul", x, b.constant(weights), to=to))


def split(module, target=TILES, threads=1):
    """The module after the pass, and the choice that was noted, if any."""
    costs = KernelCosts(KernelSetting(target, threads), use_cache=False)
    ctx = PassContext(target=target, costs=costs)
    made = run_passes(module, SPLIT, ctx)
    return made, [choice.chosen for choice in ctx.choices]


@pytest.mark.parametrize(
    ("lead", "k", "n", "chosen"),
    [
        ((512,), 1024, 1024, "bf16x6"),
        ((1, 512), 1024, 1024, "bf16x6"),
        (("rows",), 768, 3072, "bf16x6"),
        ((3136,), 64, 256, "bf16x6"),
        ((1,), 768, 768, "f32"),  # most rows of a tile would be zeros
        ((8,), 768, 768, "f32"),
        ((512,), 1024, 8, "f32"),
        ((512,), 16, 1024, None),  # no tile of the sum is full
    ],
)
def test_the_choice_follows_from_the_sizes(lead, k, n, chosen):
    _, choices = split(model(lead, k, n))
    assert choices == ([chosen] if chosen else [])


def test_long_sums_whose_rows_exceed_l2_are_cut_into_parts():
    made, (chosen,) = split(model((128,), 3072, 768))
    assert chosen == "bf16x6 in 2 parts"
    assert [node.op for node in made.main.nodes if node.op != "constant"] == [
        "bf16_pieces",
        "matmul_pieces",
        "reduce_sum",
    ]


@pytest.mark.parametrize("target", [VECTORS, Target.parse("aarch64-linux-gnu")])
def test_without_tiles_of_bf16_nothing_changes(target):
    before = model((512,), 1024, 1024)
    after, choices = split(before, target)
    assert after.main.nodes == before.main.nodes
    assert not choices


def test_results_that_are_rounded_stay():
    before = model((512,), 1024, 1024, to=BF16)
    after, choices = split(before)
    assert after.main.nodes == before.main.nodes
    assert not choices


def test_without_a_table_of_costs_nothing_changes():
    before = model((512,), 1024, 1024)
    assert split_matmuls(before, PassContext(target=TILES)) is before


@pytest.mark.parametrize("odd", [np.inf, np.nan, np.finfo(np.float32).max])
def test_weights_that_are_not_finite_in_bf16_stay(odd):
    weights = np.ones((256, 256), np.float32)
    weights[3, 4] = odd
    after, choices = split(model((512,), 256, 256, weights))
    assert choices == ["f32"]
    assert "matmul" in [node.op for node in after.main.nodes]


@pytest.mark.parametrize(("k", "parts"), [(250, 1), (3100, 2)])
def test_results_are_as_exact_as_those_of_f32(k, parts):
    before = model((1, 128), k, 770)
    after, (chosen,) = split(before)
    assert chosen == ("bf16x6" if parts == 1 else f"bf16x6 in {parts} parts")
    x = np.random.default_rng(1).standard_normal((1, 128, k)).astype(np.float32)
    (weights,) = before.constants.values()
    exact = x.astype(np.float64) @ weights.astype(np.float64)
    plain, made = (interpret(module, x)[0] for module in (before, after))
    assert np.abs(made - exact).max() <= 3 * np.abs(plain - exact).max()


@pytest.mark.parametrize(
    ("k", "shapes"),
    [
        (768, ["bf16[batch * steps, 3, 768]", "bf16[3, 768, 768]"]),
        (4096, ["bf16[2, batch * steps, 3, 2048]", "bf16[2, 3, 2048, 768]"]),
    ],
)
def test_rows_along_several_dynamic_axes_are_one_axis_of_the_kernel(k, shapes):
    module, _ = split(model(("batch", "steps"), k, 768))
    (product,) = (node for node in module.main.nodes if node.op == "matmul_pieces")
    kernel = collapse_axes(alone(product), "cpu")
    assert [str(value.type) for value in kernel.params] == shapes
