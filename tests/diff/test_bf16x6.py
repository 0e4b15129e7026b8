"""Models compiled with precision bf16x6 are as exact as those of f32, on tiles where there are."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.dtype import F32
from tilewright.base.target import Target
from tilewright.base.tiles import tile_product
from tilewright.graph import Builder, TensorType
from tilewright.sym import const, size

HAS_TILES = tile_product(Target.host(), "bf16", "bf16") is not None


def layers(k, n, lead):
    """x + W2 tanh(W1 x + b), rows along axes of which names are dynamic."""
    rng = np.random.default_rng(0)
    first, second, bias = (
        (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for shape in ((k, n), (n, k), (n,))
    )
    b = Builder()
    dims = [size(dim) if isinstance(dim, str) else const(dim) for dim in (*lead, k)]
    x = b.param("x", TensorType(F32, tuple(dims)))
    hidden = b.add("tanh", b.add("add", b.add("matmul", x, b.constant(first)), b.constant(bias)))
    module = b.module(b.add("add", b.add("matmul", hidden, b.constant(second)), x))

    def exact(x):
        wide = x.astype(np.float64)
        return np.tanh(wide @ first + bias) @ second + wide

    return module, exact


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("k", "n", "lead", "shapes"),
    [
        (256, 512, (96,), [(96,)]),
        (400, 530, (1, 250), [(1, 250)]),  # neither rows, columns nor sums fill tiles
        (256, 512, ("rows",), [(1,), (33,), (150,)]),
        (256, 512, ("batch", "steps"), [(1, 1), (3, 17), (2, 64)]),
        (256, 4096, (128,), [(128,)]),  # a long sum
    ],
)
def test_models_are_as_exact_as_those_of_f32(k, n, lead, shapes, threads):
    module, exact = layers(k, n, lead)
    plain, split = (tw.compile(module, threads=threads, precision=p) for p in ("f32", "bf16x6"))
    chosen = [each.chosen for each in split.choices if each.step == "split_matmuls"]
    assert any(name.startswith("bf16x6") for name in chosen) == HAS_TILES
    for rows in shapes:
        x = np.random.default_rng(1).standard_normal((*rows, k)).astype(np.float32)
        want = exact(x)
        errors = [np.abs(np.asarray(model(x)[0]) - want).max() for model in (plain, split)]
        assert errors[1] <= 3 * errors[0]
