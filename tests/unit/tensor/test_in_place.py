"""Results in the memory of arguments."""

from __future__ import annotations

import numpy as np

from tilewright import te, tensor
from tilewright.tensor.in_place import in_place_pairs


def test_an_elementwise_result_may_take_the_memory_of_each_operand_of_its_shape():
    x, y = te.placeholder((1, 8), name="x"), te.placeholder((8,), name="y")
    z = te.compute((1, 8), lambda i, j: x[i, j] + y[j], name="z")
    assert in_place_pairs(te.function([x, y, z])) == ((0, 2),)


def test_an_operand_read_elsewhere_keeps_its_memory():
    x = te.placeholder((8,), name="x")
    turned = te.compute((8,), lambda i: x[7 - i] + x[i], name="turned")
    assert in_place_pairs(te.function([x, turned])) == ()


def test_an_operand_of_two_blocks_keeps_its_memory():
    x = te.placeholder((8, 8), name="x")
    k = te.reduce_axis((0, 8), name="k")
    total = te.compute((8,), lambda i: te.sum(x[i, k], axis=k), name="total")
    out = te.compute((8, 8), lambda i, j: x[i, j] - total[j], name="out")
    assert in_place_pairs(te.function([x, out])) == ()


def test_other_element_types_need_other_memory():
    x = te.placeholder((8,), "f32", name="x")
    y = te.compute((8,), lambda i: te.cast(x[i], "i32"), name="y")
    assert in_place_pairs(te.function([x, y])) == ()


def test_text_parses_to_the_same_pairs():
    x = te.placeholder((8,), name="x")
    y = te.compute((8,), lambda i: x[i] * 2.0, name="y")
    fn = te.function([x, y])
    assert in_place_pairs(tensor.parse(str(fn))) == in_place_pairs(fn) == ((0, 1),)
    got = np.zeros(8, np.float32)
    tensor.interpret(fn, np.ones(8, np.float32), got)
    assert (got == 2).all()
