"""What a function is counted with: what its blocks do, or what they say they stand for."""

from tilewright import graph, sym, te
from tilewright.lower.graph import lower_graph
from tilewright.tensor.flops import STANDS_FOR, flops_of

CONV = """
graph @main(%x: f32[1, 10, 14, 8], %w: f32[24, 8, 3, 3]) {
  %y = conv(%x, %w) {strides = (1, 1), pads = (1, 1, 1, 1), dilations = (1, 1),
    layout = "channels_last", winograd = METHOD}
  return %y
}
"""


def test_products_and_sums_are_counted():
    n = te.var("n")
    a, b = te.placeholder((n, 8), name="a"), te.placeholder((8, 5), name="b")
    k = te.reduce_axis((0, 8), name="k")
    c = te.compute((n, 5), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    d = te.compute((n, 5), lambda i, j: te.exp(c[i, j]), name="d")
    counted = flops_of(te.function([a, b, d], name="f"))
    assert sym.evaluate(counted, {n: 3}) == 3 * 5 * (2 * 8 + 1)


def test_products_of_integers_are_counted_and_their_indices_are_not():
    a, b = te.placeholder((4, 8), "u8", name="a"), te.placeholder((8, 5), "i8", name="b")
    k = te.reduce_axis((0, 8), name="k")

    def element(i, j):
        return te.sum(te.cast(a[i, k], "i32") * te.cast(b[k, j], "i32"), axis=k)

    c = te.compute((4, 5), element, name="c")
    d = te.compute((20,), lambda i: c[i // 5, i % 5], name="d")
    assert flops_of(te.function([a, b, d], name="f")) is sym.const(4 * 5 * 8 * 2)


def test_a_block_is_counted_with_what_it_stands_for():
    a = te.placeholder((4, 6), name="a")
    b = te.compute((4, 6), lambda i, j: a[i, j] + a[i, j] * 2.0, name="b", attrs={STANDS_FOR: 7})
    assert flops_of(te.function([a, b], name="f")) is sym.const(4 * 6 * 7)


def test_winograd_counts_as_the_convolution_it_replaces():
    counted = []
    for method in ("0", "2", "4"):
        module = graph.parse(CONV.replace("METHOD", method))
        counted.append(flops_of(lower_graph(module.main, "conv")))
    assert counted == [sym.const(2 * 9 * 8 * 24 * 10 * 14)] * 3
