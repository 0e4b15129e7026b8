"""Calls of a bucket of sizes share one graph: on a GPU in host memory, launches interpreted."""

import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import UserError
from tilewright.driver import device_buckets, device_walk
from tilewright.driver.device_buckets import rounded
from tilewright.runtime import cuda

sys.path.insert(0, str(Path(__file__).parent))
from host_gpu import ChangeableGraph, fetched, on_host

NET = """graph @main(%x: f32[n, 16], %w: f32[16, 24]) {
  %y = matmul(%x, %w)
  %s = softmax(%y) {axes = (1,)}
  %t = reduce_sum(%y) {axes = (1,)}
  return %s, %t
}"""
KEPT = "graph @main(%x: f32[n, 8]) { %y = tanh(%x) return %y, %x }"
TANH = "graph @main(%x: f32[n]) { %y = tanh(%x) return %y }"
WEIGHTS = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)


@pytest.fixture(autouse=True)
def _counts():
    ChangeableGraph.made = ChangeableGraph.changed = 0


@pytest.fixture
def walks(monkeypatch):
    """The sizes of all walks over nodes."""
    found, results = [], device_walk.Walk.results

    def noted(self):
        found.append({str(size): int(value) for size, value in self.sizes.items()})
        return results(self)

    monkeypatch.setattr(device_walk.Walk, "results", noted)
    return found


def compiled(text=NET, **more):
    return on_host(tw.compile(tw.graph.parse(text), target="cuda", cache=False, **more))


def numbers(n):
    return np.random.default_rng(n).standard_normal((n, 16)).astype(np.float32)


def check(module, n, **more):
    made = module(numbers(n), WEIGHTS, **more)
    compare(module, n, made)
    return made


def compare(module, n, made):
    got, y = fetched(module, made), numbers(n) @ WEIGHTS
    powers = np.exp(y - y.max(1, keepdims=True))
    np.testing.assert_allclose(got[0], powers / powers.sum(1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(got[1], y.sum(1, keepdims=True), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "largest"),
    [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 8), (9, 12), (13, 16), (17, 24), (25, 32)],
)
def test_buckets_end_at_powers_of_two_and_between(size, largest):
    assert rounded(size) == largest


def test_new_sizes_of_a_bucket_are_neither_walked_nor_captured(walks):
    module = compiled()
    kept = [check(module, n) for n in (17, 18)]  # the first call of a bucket, and the second
    walks.clear()
    kept += [check(module, n) for n in (19, 24, 20, 23, 21, 22)]
    assert not walks
    assert ChangeableGraph.made == 1
    assert ChangeableGraph.changed


def test_every_bucket_has_a_graph():
    module = compiled()
    for n in (5, 6, 7, 8, 14, 15, 16, 6, 8, 13):
        check(module, n)
    assert ChangeableGraph.made == 3


def test_arrays_elsewhere_change_only_the_launches_that_use_them(walks):
    module = compiled()
    kept = [check(module, 20) for _ in range(2)]  # results live, so each has its own memory
    walks.clear()
    ChangeableGraph.changed = 0
    kept += [check(module, 20) for _ in range(3)]
    assert not walks
    assert ChangeableGraph.changed
    assert len({made[0].address for made in kept}) == 5


def on_gpu(array):
    """An array in the GPU's memory, at one address for all calls."""
    dims = ", ".join(map(str, array.shape))
    twice = compiled(f"graph @main(%x: f32[{dims}]) {{ %y = add(%x, %x) return %y }}")
    return twice(array / 2)[0]


def test_calls_that_recur_get_a_graph_of_their_own(walks):
    module = compiled()
    check(module, 17)
    weights = on_gpu(WEIGHTS)
    calls = [(on_gpu(numbers(n)), check(module, n)) for n in (18, 19)]
    for x, out in calls * device_buckets.OFTEN:
        module(x, weights, out=out)
    walks.clear()
    changed = ChangeableGraph.changed
    for x, out in calls * 3:
        module(x, weights, out=out)
    assert len(walks) <= 2  # one for each
    walks.clear()
    module(calls[0][0], weights, out=calls[0][1])
    assert not walks
    assert ChangeableGraph.changed == changed
    compare(module, 18, calls[0][1])


def test_few_graphs_are_kept(monkeypatch):
    monkeypatch.setattr(device_buckets, "MAX_BUCKETS", 2)
    module = compiled()
    kept = [check(module, n) for n in (5, 6, 7, 8, 9, 10, 13, 14)]
    assert ChangeableGraph.made == 4
    buckets = module._buckets._buckets
    assert sum(map(len, buckets.values())) <= 2
    kept += [check(module, n) for n in (5, 6)]  # the oldest is made again
    assert ChangeableGraph.made == 5


def test_sizes_are_checked_for_every_call():
    module = compiled(dynamic={"n": (1, 20)})
    for n in (17, 18, 19):
        check(module, n)
    assert ChangeableGraph.made == 1
    with pytest.raises(UserError) as caught:
        check(module, 21)
    assert caught.value.code == "TW4012"
    check(module, 20)


def test_variants_for_fewer_rows_are_other_graphs():
    """The kernels of one row are not those of many, and empty ones are not launched."""
    module = compiled()
    for n in (1, 0, 2, 1, 3, 24, 1, 23, 0, 22, 2):
        check(module, n)


def test_results_that_share_memory_with_inputs_are_walked(walks):
    module = compiled(TANH)
    for n in (17, 18, 19):
        x = np.linspace(-1, 1, n, dtype=np.float32)
        (given,) = module(np.arctanh(x * 0.9))  # an array of the GPU
        made = module(given, out=[given])
        np.testing.assert_allclose(fetched(module, made)[0], np.tanh(x * 0.9), atol=1e-5)


def test_copies_are_walked():
    module = compiled(KEPT)
    for n in (17, 18, 19, 20):
        x = np.full((n, 8), n / 20, np.float32)
        y, same = fetched(module, module(x))
        np.testing.assert_allclose(y, np.tanh(x), rtol=1e-5)
        np.testing.assert_array_equal(same, x)
    assert not ChangeableGraph.made


def test_a_gpu_whose_driver_is_older_walks():
    module = compiled()
    module._gpu.decides = False
    for n in (17, 18, 19):
        check(module, n)
    assert not ChangeableGraph.made


def test_a_failing_change_leaves_the_rest_known(monkeypatch):
    module = compiled()
    for n in (17, 18):
        check(module, n)
    real, left = ChangeableGraph.change, [1]

    def failing(self, at, launch):
        if not left:
            raise RuntimeError("out of memory")
        left.pop()
        real(self, at, launch)

    monkeypatch.setattr(ChangeableGraph, "change", failing)
    with pytest.raises(RuntimeError):
        check(module, 24)
    monkeypatch.setattr(ChangeableGraph, "change", real)
    for n in (18, 24, 19):
        check(module, n)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_a_gpu_computes_what_calls_of_a_bucket_ask_for(walks, precision):
    if not cuda.is_available():
        pytest.skip("no NVIDIA GPU can be reached")
    layers = "".join(
        f"""
        %a{at} = matmul(%x{at}, %w)
        %b{at} = softmax(%a{at}) {{axes = (1,)}}
        %x{at + 1} = add(%x{at}, %b{at})"""
        for at in range(3)
    )
    text = f"graph @main(%x0: f32[n, 128], %w: f32[128, 128]) {{ {layers} return %x3 }}"
    module = tw.compile(tw.graph.parse(text), target="cuda", precision=precision, cache=False)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((128, 128)).astype(np.float32)
    kept = []
    for n in (130, 190, 131, 192, 140, 250, 256, 200, 150, 255):
        x = rng.standard_normal((n, 128)).astype(np.float32)
        walks.clear()
        kept.append(module(x, w))
        assert not walks or n in (130, 190, 250, 256)
        for _ in range(3):
            powers = np.exp((y := x @ w) - y.max(1, keepdims=True))
            x = x + powers / powers.sum(1, keepdims=True)
        got = cuda.to_host(kept[-1][0])
        limit = 1e-3 if precision == "f32" else 0.1
        np.testing.assert_allclose(got, x, atol=limit)
