"""Weights in the form that kernels read: kernels that pack alike share code and packed weights."""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.base.target import Target
from tilewright.driver import packing, workers
from tilewright.driver.packing import side_by_side

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[64, 96] x) => (float[64, 64] y, float[64, 64] z) {
  h = MatMul (x, w)
  y = Relu (h)
  g = Tanh (x)
  i = MatMul (g, w)
  z = Neg (i)
}"""


@pytest.fixture(scope="module")
def two_products(weighted):
    """Two kernels that differ in what follows a product with the same weights."""
    return weighted(TEXT, 96, 64)


def answers(module):
    x = np.random.default_rng(1).standard_normal((64, 96)).astype(np.float32)
    return [np.asarray(one) for one in module(x)]


def test_kernels_that_pack_alike_share_their_packed_weights(two_products):
    module = tw.compile(two_products)
    program = module.inside.program
    packers = [k.packer for k in program.kernels.values() if k.packer is not None]
    assert len(packers) == 2
    assert packers[0].text == packers[1].text
    assert sum("#" in name for name in program.module.constants) == 1


def test_without_packing_weights_stay_as_they_are(two_products):
    module = tw.compile(two_products, packing=False)
    assert list(module.inside.program.module.constants) == ["w"]
    for a, b in zip(answers(module), answers(tw.compile(two_products)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_packer_that_the_cache_lost_is_made_again(two_products, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(workers, "host_cores", lambda: 1)  # no workers: they have another cache
    first = tw.compile(two_products)
    entries = sorted((tmp_path / "objects").iterdir())
    packer = [path for path in entries if b"\npacker\n" in path.read_bytes()]
    assert len(packer) == 1
    packer[0].unlink()
    for a, b in zip(answers(tw.compile(two_products)), answers(first), strict=True):
        np.testing.assert_array_equal(a, b)


def test_memory_of_weights_lies_side_by_side():
    given = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "number": np.array(7, np.int64),
        "none": np.zeros((0, 4), np.float16),
        "small": np.ones(5, ml_dtypes.bfloat16),
    }
    placed = side_by_side(given)
    places = [each.ctypes.data for each in placed.values() if each.size]
    assert places == sorted(places)
    assert all(place % 64 == 0 for place in places)
    for name, each in given.items():
        assert (placed[name].dtype, placed[name].shape) == (each.dtype, each.shape)
        assert placed[name].flags["C_CONTIGUOUS"]
    assert side_by_side({}) == {}


@pytest.mark.parametrize("is_packed", [True, False])
def test_weights_are_packed_where_the_model_reads_them(two_products, monkeypatch, is_packed):
    asked = []
    kept = packing.empty
    monkeypatch.setattr(packing, "empty", lambda shape, of: asked.append(shape) or kept(shape, of))
    constants = tw.compile(two_products, packing=is_packed).inside.program.module.constants
    (each,) = constants.values()
    assert asked == [(each.nbytes,)]


def test_constants_that_are_views_are_read_in_order():
    w = np.arange(12, dtype=np.float32).reshape(3, 4).T
    made = packing.Packing({"w": w}, {}, {}, Target.host()).finish(["w"])
    np.testing.assert_array_equal(made["w"], w)
    assert made["w"].flags["C_CONTIGUOUS"]


def test_packed_weights_have_no_subnormal_numbers(weighted):
    model = weighted(TEXT, 96, 64)
    (weights,) = model.graph.initializer
    tiny = np.full((96, 64), 1e-40, np.float32)
    tiny[3, 5], tiny[95] = 2.0**-126, 0.5
    weights.raw_data = tiny.tobytes()
    program = tw.compile(model).inside.program
    (packed,) = (np.asarray(w) for name, w in program.module.constants.items() if "#" in name)
    assert set(np.unique(packed)) == {0.0, np.float32(2.0**-126), 0.5}
