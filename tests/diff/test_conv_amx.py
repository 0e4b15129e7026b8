"""Convolutions of bf16 and bytes on tiles that are loaded from the image, against NumPy."""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.target import Target
from tilewright.codegen.build import build
from tilewright.rules import default_schedule
from tilewright.tensor.constants import Given, split_constant_blocks

needs_tiles = pytest.mark.skipif(
    not Target.parse("cpu").has("amx-int8"), reason="this machine has no AMX"
)
# shape of the image and output channels; window, stride, dilation, pads
CASES = {
    "pairs in a row": ((1, 28, 28, 64, 64), (3, 1, 1, 1)),
    "pairs in two rows": ((2, 12, 10, 64, 48), (5, 1, 1, 2)),
    "strides": ((2, 16, 16, 64, 32), (3, 2, 1, 1)),
    "strides without padding": ((1, 33, 33, 64, 16), (3, 2, 1, 0)),
    "dilation": ((1, 20, 20, 64, 32), (3, 1, 2, 2)),
    "blocks of channels": ((1, 14, 14, 256, 256), (3, 1, 1, 1)),
    "pairs of rows that threads cannot halve": ((1, 14, 14, 256, 256), (1, 1, 1, 0)),
    "no pairs": ((1, 7, 7, 64, 32), (3, 1, 1, 1)),
    "odd channels": ((1, 14, 14, 40, 24), (3, 1, 1, 1)),
}


def convolution(sizes, window, of, weight, wide):
    """Channels last, what pads a stage of its own, bias and relu behind."""
    (n, h, w, c, o), (k, s, d, p) = sizes, window
    X, W = (
        te.placeholder((n, h, w, c), of, name="X"),
        te.placeholder((o, c, k, k), weight, name="W"),
    )
    bias = te.placeholder((o,), wide, name="bias")
    P = X
    if p:
        P = te.compute(
            (n, h + 2 * p, w + 2 * p, c),
            lambda b, y, x, i: te.if_then_else(
                te.all(y >= p, y < h + p, x >= p, x < w + p),
                X[b, y - p, x - p, i],
                te.const(0, of),
            ),
            name="P",
        )
    places = [(size + 2 * p - (k - 1) * d - 1) // s + 1 for size in (h, w)]
    r, i, j = (te.reduce_axis((0, e), name=x) for x, e in (("r", c), ("i", k), ("j", k)))

    def sums(b, y, x, m):
        seen = te.cast(P[b, y * s + i * d, x * s + j * d, r], wide)
        return te.sum(seen * te.cast(W[m, r, i, j], wide), axis=[r, i, j])

    Y = te.compute((n, *places, o), sums, name="Y")
    Z = te.compute(
        (n, *places, o), lambda *at: te.max(Y[at] + bias[at[-1]], te.const(0, wide)), name="Z"
    )
    return te.function([X, W, bias, Z], name="convolution"), (n, *places, o)


def expected(x, w, bias, window, shape):
    k, s, d, p = window
    x = np.pad(x.astype(np.float64), ((0, 0), (p, p), (p, p), (0, 0)))
    y = np.zeros(shape)
    for i in range(k):
        for j in range(k):
            rows = slice(i * d, i * d + (shape[1] - 1) * s + 1, s)
            columns = slice(j * d, j * d + (shape[2] - 1) * s + 1, s)
            y += x[:, rows, columns] @ w[:, :, i, j].astype(np.float64).T
    return np.maximum(y + bias, 0)


def run(scheduled, given):
    """Pack the weights, then run the kernel, on two threads."""
    split = split_constant_blocks(scheduled)
    packed = [np.zeros([int(d.value) for d in b.shape], b.dtype.numpy) for b in split.results]
    assert split.packer is not None
    build(split.packer)(*(given[at] for at in split.weights), *packed)
    build(split.kernel)(
        *(given[p.position] if isinstance(p, Given) else packed[p.position] for p in split.params),
        threads=2,
    )


@needs_tiles
@pytest.mark.parametrize("types", [("bf16", "bf16", "f32"), ("u8", "i8", "i32")], ids=str)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("any_batch", [False, True])
@pytest.mark.sampled
def test_tiles_are_loaded_from_the_image(case, types, any_batch):
    sizes, window = CASES[case]
    fn, (_, *rest) = convolution(
        (te.var("n") if any_batch else sizes[0], *sizes[1:]), window, *types
    )
    shape = (sizes[0], *rest)
    random = np.random.default_rng(0)
    k = window[0]
    if types[0] == "bf16":
        x, w = (
            random.standard_normal(s).astype(ml_dtypes.bfloat16)
            for s in (sizes[:4], (sizes[4], sizes[3], k, k))
        )
        bias = random.standard_normal(sizes[4]).astype(np.float32)
    else:
        x = random.integers(0, 256, sizes[:4]).astype(np.uint8)
        w = random.integers(-128, 128, (sizes[4], sizes[3], k, k)).astype(np.int8)
        bias = random.integers(-99, 99, sizes[4]).astype(np.int32)
    scheduled = default_schedule(fn, threads=2, constants=("W",)).function
    taken = case not in ("no pairs", "odd channels")
    assert ("amx_load" in str(scheduled)) == taken
    if not taken:
        return
    given = [x, w, bias, np.zeros(shape, bias.dtype)]
    run(scheduled, given)
    want = expected(x, w, bias, window, shape)
    np.testing.assert_allclose(given[3], want, rtol=1e-4, atol=1e-3 * np.abs(want).max() / 100)


@needs_tiles
@pytest.mark.parametrize("any_batch", [False, True])
@pytest.mark.parametrize(("apart", "height", "width"), [(6, 12, 32), (1, 5, 28), (32, 4, 20)])
@pytest.mark.sampled
def test_windows_over_a_line_are_loaded_as_they_overlap(apart, height, width, any_batch):
    """One channel, whose taps along a line are what a tile sums over."""
    long, n, o = (width - 1) * apart + 32, 2, 32
    X = te.placeholder((te.var("n") if any_batch else n, height + 2, long, 1), "bf16", name="X")
    W = te.placeholder((o, 1, 3, 32), "bf16", name="W")
    c, i, j = (te.reduce_axis((0, e), name=x) for x, e in (("c", 1), ("i", 3), ("j", 32)))

    def sums(b, y, x, m):
        seen = te.cast(X[b, y + i, x * apart + j, c], "f32")
        return te.sum(seen * te.cast(W[m, c, i, j], "f32"), axis=[c, i, j])

    Y = te.compute((X.shape[0], height, width, o), sums, name="Y")
    scheduled = default_schedule(
        te.function([X, W, Y], name="lines"), threads=2, constants=("W",)
    ).function
    assert f"windows(stride={apart}" in str(scheduled)
    random = np.random.default_rng(0)
    x = random.integers(-8, 9, (n, height + 2, long, 1)).astype(ml_dtypes.bfloat16)
    w = random.integers(-8, 9, (o, 1, 3, 32)).astype(ml_dtypes.bfloat16)
    given = [x, w, np.zeros((n, height, width, o), np.float32)]
    run(scheduled, given)
    seen = np.lib.stride_tricks.sliding_window_view(x[..., 0].astype(np.float32), (3, 32), (1, 2))
    want = np.einsum("nyxij,oij->nyxo", seen[:, :, ::apart], w[:, 0].astype(np.float32))
    np.testing.assert_array_equal(given[2], want)


@needs_tiles
def test_threads_share_a_line_of_one_image():
    X, W = te.placeholder((1, 3856, 64), "bf16", name="X"), te.placeholder((64, 64, 3), "bf16")
    r, i = te.reduce_axis((0, 64), name="r"), te.reduce_axis((0, 3), name="i")
    Y = te.compute(
        (1, 3840, 64),
        lambda b, p, m: te.sum(
            te.cast(X[b, p + i * 8, r], "f32") * te.cast(W[m, r, i], "f32"), axis=[r, i]
        ),
        name="Y",
    )
    fn = te.function([X, W, Y], name="line")
    scheduled = default_schedule(fn, threads=2, constants=(W.name,)).function
    assert "amx_load" in str(scheduled)
    assert "in parallel 0.." in str(scheduled)
    random = np.random.default_rng(0)
    x = random.integers(-8, 9, (1, 3856, 64)).astype(ml_dtypes.bfloat16)
    w = random.integers(-8, 9, (64, 64, 3)).astype(ml_dtypes.bfloat16)
    given = [x, w, np.zeros((1, 3840, 64), np.float32)]
    run(scheduled, given)
    taps = [x[:, 8 * k : 8 * k + 3840].astype(np.float32) for k in range(3)]
    want = sum(seen @ w[:, :, k].astype(np.float32).T for k, seen in enumerate(taps))
    np.testing.assert_array_equal(given[2], want)


@needs_tiles
@pytest.mark.parametrize("any_batch", [False, True])
@pytest.mark.parametrize("lines", [9, 10])
def test_the_last_tile_of_a_line_computes_some_places_in_vain(lines, any_batch):
    """49 places are no pairs of tiles, 56 are: if what those see is there, it may be multiplied."""
    n, c, o = 2, 64, 32
    X = te.placeholder((te.var("n") if any_batch else n, lines * 7, c), "bf16", name="X")
    W = te.placeholder((o, c, 3), "bf16", name="W")
    r, i = te.reduce_axis((0, c), name="r"), te.reduce_axis((0, 3), name="i")
    Y = te.compute(
        (X.shape[0], 49, o),
        lambda b, p, m: te.sum(
            te.cast(X[b, p + i * 7, r], "f32") * te.cast(W[m, r, i], "f32"), axis=[r, i]
        ),
        name="Y",
    )
    Z = te.compute((X.shape[0], 49, o), lambda *at: te.max(Y[at], te.const(0, "f32")), name="Z")
    fn = te.function([X, W, Z], name="rows")
    scheduled = default_schedule(fn, threads=2, constants=("W",)).function
    assert ("amx_load" in str(scheduled)) == (lines == 10)
    random = np.random.default_rng(0)
    x = random.integers(-8, 9, (n, lines * 7, c)).astype(ml_dtypes.bfloat16)
    w = random.integers(-8, 9, (o, c, 3)).astype(ml_dtypes.bfloat16)
    given = [x, w, np.zeros((n, 49, o), np.float32)]
    if lines == 10:
        run(scheduled, given)
        taps = [x[:, 7 * k : 7 * k + 49].astype(np.float32) for k in range(3)]
        want = sum(seen @ w[:, :, k].astype(np.float32).T for k, seen in enumerate(taps))
        np.testing.assert_array_equal(given[2], np.maximum(want, 0))


def test_reindexed_windows_keep_the_answer():
    A, r = te.placeholder((18,), name="A"), te.reduce_axis((0, 3), name="r")
    C = te.compute((8,), lambda i: te.sum(A[i * 2 + r], axis=r), name="C")
    sch = tw.Schedule(te.function([A, C], name="windows"))
    sch.reindex_read(sch.get_block("C"), 0, "local")
    a, c = np.arange(18, dtype=np.float32), np.zeros(8, np.float32)
    tw.interpret(sch.function, a, c)
    np.testing.assert_array_equal(c, [a[2 * i : 2 * i + 3].sum() for i in range(8)])
