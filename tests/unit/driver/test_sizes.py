"""Sizes that users fix, or bound."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.errors import UserError
from tilewright.base.extents import ASSUMED
from tilewright.base.target import Target
from tilewright.driver.kernel_code import function_of, schedule_job
from tilewright.driver.kernels import KernelSetting
from tilewright.driver.lowering import Recorded, jobs_of, planned_calls
from tilewright.driver.optimize import optimize
from tilewright.driver.options import Options
from tilewright.driver.size_variants import variants_of
from tilewright.driver.sizes import ranges_of, sizes_to_measure, with_sizes

MODEL = "graph @main(%x: f32[batch, 4], %y: f32[batch, n]) { %z = neg(%x) return %z, %y }"


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_sizes_in_range_pass_and_others_are_refused():
    module = tw.compile(graph.parse(MODEL), dynamic={"batch": (1, 3), "n": (0, 2)})
    for batch, n in ((1, 0), (3, 2)):
        made, _ = module(ones(batch, 4), ones(batch, n))
        assert made.shape == (batch, 4)
    with pytest.raises(UserError, match=r"the size batch is not in 1\.\.3"):
        module(ones(4, 4), ones(4, 1))
    with pytest.raises(UserError, match=r"the size n is not in 0\.\.2"):
        module(ones(1, 4), ones(1, 3))


def test_a_fixed_size_is_a_number():
    module = tw.compile(graph.parse(MODEL), dynamic={"batch": 2})
    assert [spec.shape for spec in module.inputs] == [(2, 4), (2, "n")]
    with pytest.raises(UserError, match="TW4003"):
        module(ones(3, 4), ones(3, 1))


def test_sizes_may_be_numbers_of_numpy():
    module = tw.compile(graph.parse(MODEL), dynamic={"batch": np.int64(2), "n": np.array([1, 3])})
    assert [spec.shape for spec in module.inputs] == [(2, 4), (2, "n")]


@pytest.mark.parametrize(
    "dynamic",
    [
        {"rows": 1},
        *({"batch": odd} for odd in ((3, 1), -1, (1,), (1, 2, 3), (1, None), 1.5, "4", "12", None)),
    ],
)
def test_absurd_sizes_are_refused(dynamic):
    with pytest.raises(UserError, match="TW6005"):
        tw.compile(graph.parse(MODEL), dynamic=dynamic)


def test_ranges_are_measured_at_their_ends_and_their_middle():
    assert sizes_to_measure({"n": (1, 64), "m": 4, "k": (7, 7)}) == {"n": (1, 8, 64), "k": (7,)}
    assert sizes_to_measure(None) == {}
    assert sizes_to_measure({"n": (0, 9)}) == {"n": (1, 3, 9)}


PRODUCT = """graph @main(%x: f32[m, 256], %w: f32[256, 512]) -> (f32[m, 512]) {
  %y = matmul(%x, %w)
  return %y
}"""
SERVER = Target.parse("x86_64-linux-gnu -mcpu=cascadelake")


def job(dynamic):
    """The kernel of a product whose rows are in a range."""
    module = optimize(with_sizes(graph.parse(PRODUCT), dynamic), SERVER, Options(threads=2))
    setting = KernelSetting(SERVER, 2, ranges=ranges_of(module))
    return next(job for job in jobs_of(module, setting).values() if job.label == "matmul")


def test_a_range_is_a_condition_of_kernels_and_part_of_their_keys():
    open_one, bounded = job(None), job({"m": (1, 64)})
    assert [str(cond) for cond in function_of(bounded).requires] == ["1 <= m", "m <= 64"]
    assert function_of(open_one).requires == ()
    assert open_one.key != bounded.key != job({"m": (1, 32)}).key
    assert graph.parse(str(with_sizes(graph.parse(PRODUCT), {"m": (1, 64)}))).main


def test_rules_price_at_a_size_of_the_range():
    def cost(dynamic):
        made = job(dynamic)
        return schedule_job(made, function_of(made)).decisions[0]

    small, large = cost({"m": (1, 4)}), cost({"m": (512, 8192)})
    assert small.plan != large.plan
    assert 100 * small.predicted_ns < large.predicted_ns
    assert cost({"m": (ASSUMED.elements - 1, ASSUMED.elements + 1)}).plan == cost(None).plan


def test_a_range_serves_every_size_in_it():
    module = tw.compile(graph.parse(PRODUCT), dynamic={"m": (1, 64)}, threads=2, database="")
    x, w = np.random.default_rng(0).standard_normal((2, 64, 512)).astype(np.float32)
    weights = np.resize(w, (256, 512)).copy()
    for m in (1, 2, 7, 63, 64):
        (y,) = module(x[:m, :256].copy(), weights)
        np.testing.assert_allclose(np.asarray(y), x[:m, :256] @ weights, rtol=1e-3, atol=1e-3)
    with pytest.raises(UserError, match=r"the size m is not in 1\.\.64"):
        module(np.ones((65, 256), np.float32), weights)


def test_a_range_of_one_size_is_that_size():
    module = graph.parse(PRODUCT)
    assert str(with_sizes(module, {"m": (4, 4)})) == str(with_sizes(module, {"m": 4}))


TWO_PRODUCTS = """graph @main(%x: f32[m, 64], %y: f32[n, 64], %w: f32[64, 64]) {
  %a = matmul(%x, %w)
  %b = matmul(%y, %w)
  return %a, %b
}"""


@pytest.mark.parametrize("most", [2, 4100])
def test_a_kernel_on_record_leaves_what_another_call_takes(most):
    """The variant of the first product for up to 2 rows is the second's own kernel, or its variant
    too."""
    target = Target.parse("cuda -arch=sm_90a")
    ranges = {"m": (1, 4096), "n": (1, most)}
    module = optimize(with_sizes(graph.parse(TWO_PRODUCTS), ranges), target, Options())
    setting = KernelSetting(target, 1, ranges=ranges_of(module))

    def recorded(count):
        return lambda called: {key: Recorded({}) for key in list(called)[:count]}

    names = [list(planned_calls(module, setting, recorded(count))[1]) for count in range(9)]
    assert [each == names[0] for each in names] == [True] * 9
    assert sum("matmul" in name for name in names[0]) == 2


DECODER = """graph @main(%q: f32[b, 2, t, 16], %k: f32[b, 2, m, 16], %v: f32[b, 2, m, 16]) {
  %y = attention(%q, %k, %v) {scale = 0.25}
  return %y
}"""


def test_attention_of_one_query_and_of_few_has_kernels_of_its_own(tmp_path):
    """Calls of none and of many queries take the one for any number."""
    module = tw.compile(graph.parse(DECODER), threads=1)
    (node,) = [node for node in module.inside.program.module.main.nodes if node.get("variants")]
    none, *few = node["variants"]
    assert none == node["function"]
    assert none not in few
    module.save(tmp_path / "decoder.so")
    loaded = tw.load(tmp_path / "decoder.so")
    make = np.random.default_rng(0).standard_normal
    sizes = [(1, 1, 1), (2, 1, 33), (1, 1, 0), (2, 0, 5), (1, 2, 40), (2, 9, 7), (1, 40, 33)]
    for batch, queries, keys in sizes:
        q, k, v = (make((batch, 2, rows, 16)).astype(np.float32) for rows in (queries, keys, keys))
        scores = np.exp(np.einsum("bhid,bhjd->bhij", q, k) / 4)
        sums = scores.sum(-1, keepdims=True)
        weights = np.divide(scores, sums, out=np.zeros_like(scores), where=sums != 0)
        for each in (module, loaded):
            np.testing.assert_allclose(each(q, k, v)[0], weights @ v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("queries", "found"),
    [((1, 512), [1, 32]), ((0, 512), [0, 1, 32]), ((2, 512), [32]), ((1, 8), [1]), ((40, 512), [])],
)
def test_kernels_for_few_queries_are_made_where_there_may_be_few(queries, found):
    target = Target.parse("cpu -mcpu=cascadelake")
    module = optimize(with_sizes(graph.parse(DECODER), {"t": queries}), target, Options())
    setting = KernelSetting(target, 1, ranges=ranges_of(module))
    job = next(each for each in jobs_of(module, setting).values() if "attention" in each.label)
    assert [limit.most for limit, _ in variants_of(job)] == found
