"""Warpgroup products: what they declare; `tests/targets/test_nvptx.py` has their code."""

import numpy as np

import tilewright as tw
from tilewright.intrin import wgmma


def test_a_product_means_what_numpy_says(tile):
    a, b, c = tile("bf16", 64, 16), tile("bf16", 16, 64), np.zeros((64, 64), np.float32)
    rows = a.reshape(8, 8, 2, 8).transpose(0, 2, 1, 3)
    columns = b.T.reshape(8, 8, 2, 8).transpose(0, 2, 1, 3)
    tw.interpret(wgmma.DOT.behavior, np.ascontiguousarray(rows), np.ascontiguousarray(columns), c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


def test_a_store_means_what_numpy_says(tile):
    source, target = tile("f32", 64, 64), np.zeros((64, 64), np.float32)
    tw.interpret(wgmma.STORE.behavior, source, target)
    np.testing.assert_array_equal(target, source)
