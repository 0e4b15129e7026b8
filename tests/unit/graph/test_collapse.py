"""Several axes of a kernel as one."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.graph.collapse import collapse_axes
from tilewright.graph.interp import interpret
from tilewright.graph.parser import parse


def body(text):
    return parse(f"graph @main({text}").main


DYNAMIC = """%x: f32[s, b, 8], %w: f32[8, 6], %c: f32[6]) -> (f32[s, b, 6]) {
  %y = matmul(%x, %w)
  %z = add(%y, %c)
  return %z
}"""


def test_dynamic_rows_become_one_axis():
    found = collapse_axes(body(DYNAMIC), "cpu")
    assert [len(param.tensor.shape) for param in found.params] == [2, 2, 1]
    assert str(found.results[0].tensor.shape[0]) == "s * b"


@pytest.mark.parametrize(
    "text",
    [
        DYNAMIC.replace("[s, b,", "[s, 4,"),  # tiles lie along an axis of known size
        DYNAMIC.replace("%c: f32[6]", "%c: f32[b, 6]"),  # an operand that not all rows share
        DYNAMIC.replace("%w: f32[8, 6]", "%w: f32[s, 8, 6]"),  # weights of their own
        # weights that are an operand of each matrix, too
        """%x: f32[s, b, b], %w: f32[b, b]) {
          %y = matmul(%x, %w)
          %z = add(%y, %w)
          return %z
        }""",
    ],
)
def test_other_rows_stay(text):
    graph = body(text)
    assert collapse_axes(graph, "cpu") is graph


@pytest.mark.parametrize("sizes", [(1, 1), (5, 1), (3, 4), (1, 9), (0, 2)])
def test_the_answer_is_the_same_for_every_size(sizes):
    rng = np.random.default_rng(0)
    module = tw.compile(parse(f"graph @main({DYNAMIC}"))
    x = rng.standard_normal((*sizes, 8)).astype(np.float32)
    w, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 6), (6,)))
    np.testing.assert_allclose(np.asarray(module(x, w, c)[0]), x @ w + c, 1e-5, 1e-5)


TRANSPOSE = """%x: f32[1, 8, h, w], %y: f32[1, h, w, 8]) {
  %z = transpose(%x) {perm = (0, 2, 3, 1)}
  %s = add(%z, %y)
  return %s
}"""
TO_FIRST = """%x: f32[1, 6, 7, 8], %y: f32[1, 8, 1, 1]) {
  %z = transpose(%x) {perm = (0, 3, 1, 2)}
  %s = add(%z, %y)
  return %s
}"""
CONV = """%x: f32[1, 8, h, w], %v: f32[4, 8, 1, 1], %y: f32[4, 1, 1]) {
  %z = conv(%x, %v) {strides = (1, 1), pads = (0, 0, 0, 0), dilations = (1, 1)}
  %s = add(%z, %y)
  return %s
}"""


BIASED = """%x: f32[1, 8, h, w], %v: f32[4, 8, 1, 1], %b: f32[4]) {
  %z = conv(%x, %v, %b) {strides = (1, 1), pads = (0, 0, 0, 0), dilations = (1, 1)}
  return %z
}"""
CONV_LAST = """%x: f32[1, h, w, 8], %v: f32[4, 8, 1, 1], %y: f32[1, h, w, 4], %c: f32[4],
    %s: f32[1, 1, 1, 4]) {
  %a = transpose(%x) {perm = (0, 3, 1, 2)}
  %z = conv(%a, %v) {strides = (1, 1), pads = (0, 0, 0, 0), dilations = (1, 1)}
  %b = transpose(%z) {perm = (0, 2, 3, 1)}
  %t = add(%b, %y)
  %u = add(%t, %c)
  %r = mul(%u, %s)
  return %r
}"""


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (TRANSPOSE, ["1, 8, h * w", "1, h * w, 8"]),
        (TRANSPOSE.replace("h, w", "6, 7"), ["1, 8, 42", "1, 42, 8"]),
        (
            TRANSPOSE.replace("%y: f32[1, h, w, 8]", "%y: f32[1, 1, 1, 8]"),
            ["1, 8, h * w", "1, 1, 8"],
        ),
        (TO_FIRST, ["1, 42, 8", "1, 8, 1"]),
        (CONV, ["1, 8, h * w", "4, 8", "4, 1"]),
        (CONV.replace("h, w", "6, 7"), ["1, 8, 42", "4, 8", "4, 1"]),
        (CONV_LAST, ["1, h * w, 8", "4, 8", "1, h * w, 4", "4", "1, 1, 4"]),
        (BIASED, ["1, 8, h * w", "4, 8", "4, 1"]),
        (BIASED.replace("f32", "bf16"), ["1, 8, h * w", "4, 8, 1", "4"]),  # rounded once
        (
            BIASED.replace("h, w", "h")
            .replace("1, 1]", "1]")
            .replace(", 0, 0)", ")")
            .replace("(1, 1)", "(1)"),
            ["1, 8, h", "4, 8", "4, 1"],
        ),
    ],
)
def test_positions_become_one_axis(text, shapes):
    found = collapse_axes(body(text), "cpu")
    assert [", ".join(map(str, param.tensor.shape)) for param in found.params] == shapes


def test_positions_stay_on_gpus():
    graph = body(TO_FIRST)
    assert collapse_axes(graph, "cuda") is graph
    graph = body(CONV)
    assert collapse_axes(graph, "cuda") is graph
    assert collapse_axes(graph, "wasm") is not graph


@pytest.mark.parametrize(
    "text",
    [
        TRANSPOSE.replace("(0, 2, 3, 1)", "(0, 3, 2, 1)").replace("1, h, w, 8", "1, w, h, 8"),
        TRANSPOSE.replace("%y: f32[1, h, w, 8]", "%y: f32[1, 1, w, 8]"),  # broadcast along one
        TRANSPOSE.replace("%y: f32[1, h, w, 8]", "%y: f32[w, 8]"),  # what not all rows share
        CONV.replace("pads = (0", "pads = (1"),
        CONV.replace("strides = (1", "strides = (2"),
        CONV.replace("strides", "groups = 4, strides")
        .replace("[4, 8,", "[4, 1,")
        .replace("[1, 8,", "[1, 4,"),  # each channel on its own
        CONV.replace("%v: f32[4, 8, 1, 1]", "%v: f32[4, 8, 1, 3]"),
        CONV.replace("%y: f32[4, 1, 1]", "%y: f32[1, w]"),
        CONV_LAST.replace("(0, 2, 3, 1)", "(0, 3, 2, 1)").replace("1, h, w, 4", "1, w, h, 4"),
        CONV_LAST.replace("%s: f32[1, 1, 1, 4]", "%s: f32[w, 4]"),
        # a square image of as many channels, read in both layouts
        CONV.replace("h, w", "8, 8")
        .replace("[4,", "[8,")
        .replace(
            "add(%z, %y)", "transpose(%z) {perm = (0, 2, 3, 1)} %q = add(%z, %s) %o = add(%q, %y)"
        )
        .replace("return %s", "return %o"),
        # weights that are the image, too
        """%v: f32[6, 6, 1, 1]) {
          %y = conv(%v, %v) {dilations = (1, 1), groups = 1, pads = (0, 0, 0, 0), strides = (1, 1)}
          return %y
        }""",
    ],
)
def test_other_positions_stay(text):
    graph = body(text)
    assert collapse_axes(graph, "cpu") is graph


GROUPED = """%x: f32[n, 8, h, w], %v: f32[12, 4, 1, 1], %b: f32[12], %y: f32[n, 12, h, w],
    %s: f32[n, 12, 1, 1]) {
  %z = conv(%x, %v, %b) {strides = (1, 1), pads = (0, 0, 0, 0), dilations = (1, 1), groups = 2}
  %t = mul(%z, %s)
  %u = add(%t, %y)
  return %u
}"""


GROUPED_LAST = """%x: f32[n, h, w, 8], %v: f32[12, 4, 1, 1], %b: f32[12], %y: f32[n, h, w, 12],
    %s: f32[12]) -> (f32[n, h, w, 12]) {
  %q = transpose(%x) {perm = (0, 3, 1, 2)}
  %z = conv(%q, %v, %b) {strides = (1, 1), pads = (0, 0, 0, 0), dilations = (1, 1), groups = 2}
  %t = transpose(%z) {perm = (0, 2, 3, 1)}
  %m = mul(%t, %s)
  %u = add(%m, %y)
  return %u
}"""


def test_groups_are_a_batch_of_gemms():
    found = collapse_axes(body(GROUPED), "cpu")
    assert [", ".join(map(str, param.tensor.shape)) for param in found.params] == [
        "n, 2, 4, h * w",
        "2, 6, 4",
        "2, 6, 1",
        "n, 2, 6, h * w",
        "n, 2, 6, 1",
    ]
    assert [node.op for node in found.nodes] == ["matmul", "add", "mul", "add"]


@pytest.mark.parametrize(
    "text",
    [
        GROUPED.replace("pads = (0", "pads = (1").replace(
            "%y: f32[n, 12, h,", "%y: f32[n, 12, h + 1,"
        ),
        GROUPED.replace("f32", "f16"),  # rounded once, with the bias
        GROUPED.replace("%s: f32[n, 12, 1, 1]", "%s: f32[w]"),  # along a part of the positions
        GROUPED_LAST.replace("%s: f32[12]", "%s: f32[w, 12]"),
    ],
)
def test_other_groups_stay(text):
    graph = body(text)
    assert collapse_axes(graph, "cpu") is graph


def test_groups_from_and_to_channels_last_are_a_batch_of_gemms():
    found = collapse_axes(body(GROUPED_LAST), "cpu")
    assert [", ".join(map(str, param.tensor.shape)) for param in found.params] == [
        "n, h * w, 2, 4",
        "2, 6, 4",
        "2, 6, 1",
        "n, h * w, 2, 6",
        "2, 6",
    ]
    assert [node.op for node in found.nodes if node.op != "constant"] == [
        "transpose",
        "matmul",
        "add",
        "transpose",
        "mul",
        "add",
    ]
    perms = [node["perm"] for node in found.nodes if node.op == "transpose"]
    assert perms == [(0, 2, 3, 1), (0, 3, 1, 2)]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 5, 7), (3, 1, 16), (0, 2, 2), (1, 6, 2)])
def test_groups_from_and_to_channels_last_give_the_same_answer_for_every_size(sizes):
    rng = np.random.default_rng(0)
    shapes = (*sizes, 8), (12, 4, 1, 1), (12,), (*sizes, 12), (12,)
    given = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    model = parse(f"graph @main({GROUPED_LAST}")
    (want,) = interpret(model, *given)
    np.testing.assert_allclose(np.asarray(tw.compile(model)(*given)[0]), want, 1e-5, 1e-5)


@pytest.mark.parametrize("sizes", [(1, 1), (5, 7), (8, 8), (1, 20), (0, 3)])
def test_transposed_positions_give_the_same_answer_for_every_size(sizes):
    rng = np.random.default_rng(0)
    shapes = (1, *sizes, 8), (4, 8, 1, 1), (1, *sizes, 4), (4,), (1, 1, 1, 4)
    given = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    model = parse(f"graph @main({CONV_LAST}")
    (want,) = interpret(model, *given)
    np.testing.assert_allclose(np.asarray(tw.compile(model)(*given)[0]), want, 1e-5, 1e-5)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 5, 7), (3, 1, 16), (0, 2, 2), (1, 0, 3)])
def test_groups_give_the_same_answer_for_every_size(sizes):
    rng = np.random.default_rng(0)
    n, h, w = sizes
    shapes = (n, 8, h, w), (12, 4, 1, 1), (12,), (n, 12, h, w), (n, 12, 1, 1)
    given = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    model = parse(f"graph @main({GROUPED}")
    (want,) = interpret(model, *given)
    np.testing.assert_allclose(np.asarray(tw.compile(model)(*given)[0]), want, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        # Source and result have one shape: the side of the transpose tells the form of a value.
        (
            """graph @main(%x: f32[s, s, s], %z: f32[s, s, s]) {
              %t = transpose(%x) {perm = (1, 2, 0)} %e = exp(%z) %y = add(%e, %t) return %y
            }""",
            [(3, 3, 3)] * 2,
        ),
        (
            """graph @main(%x: f32[h, w, h, w]) {
              %r = relu(%x) %t = transpose(%r) {perm = (2, 3, 0, 1)} %y = mul(%x, %t) return %y
            }""",
            [(3, 3, 3, 3)],
        ),
        (
            """graph @main(%x: f32[s, s, s]) {
              %t = transpose(%x) {perm = (1, 2, 0)} %y = add(%x, %t) return %y
            }""",
            [(4, 4, 4)],
        ),
    ],
)
def test_values_beside_a_transpose_keep_their_form(text, shapes):
    model = parse(text)
    given = [np.random.default_rng(0).standard_normal(of).astype(np.float32) for of in shapes]
    (want,) = interpret(model, *given)
    (got,) = tw.compile(model, threads=1)(*given)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5)


NORM = """%x: f32[4, n, 6], %s: f32[6], %b: f32[6]) {
  %t = tanh(%x)
  %y = layer_norm(%t, %s, %b) {axis = 2}
  %z = add(%y, %x)
  return %z
}"""
MEAN = """%x: f32[2, 3, 5, 6]) {
  %q = mul(%x, %x)
  %m = reduce_mean(%q) {axes = (2, 3), keepdims = true}
  %y = div(%x, %m)
  return %y
}"""


ROWS = """%x: f32[3, 4, 4, 6], %y: f32[3, 4, 4, 2], %s: f32[8], %b: f32[8]) {
  %t = concat(%x, %y) {axis = -1}
  %z = layer_norm(%t, %s, %b) {axis = 3}
  return %z
}"""


@pytest.mark.parametrize(("text", "rank"), [(NORM, 2), (MEAN, 3), (ROWS, 2)])
def test_rows_of_norms_become_one_axis(text, rank):
    found = collapse_axes(body(text), "cpu")
    assert len(found.params[0].tensor.shape) == len(found.results[0].tensor.shape) == rank
    rng = np.random.default_rng(0)
    given = [
        rng.standard_normal([getattr(dim, "value", 7) for dim in param.tensor.shape], np.float32)
        for param in body(text).params
    ]
    (want,) = interpret(parse(f"graph @main({text}"), *given)
    (out,) = tw.compile(parse(f"graph @main({text}"))(*given)
    np.testing.assert_allclose(np.asarray(out), want, 1e-5, 1e-5)


@pytest.mark.parametrize(
    "text",
    [
        NORM.replace("%b: f32[6]", "%b: f32[n, 6]")
        .replace(", %b)", ")")
        .replace("%y, %x", "%y, %b"),
        NORM.replace("axis = 2", "axis = 1").replace("f32[6]", "f32[n, 6]"),  # one axis of rows
        MEAN.replace("(2, 3)", "(1, 2)"),  # another axis within the row
        MEAN.replace("= true", "= false").replace("div(%x, %m)", "neg(%x)"),
        # rows in another order, of equal sizes
        NORM.replace("[4, n, 6]", "[4, 4, 6]").replace(
            "tanh(%x)", "transpose(%x) {perm = (1, 0, 2)}"
        ),
        # within rows of two axes, and along the axis of rows
        MEAN.replace("mul(%x, %x)", "concat(%x, %x) {axis = 3}").replace("div(%x", "div(%q"),
        NORM.replace("tanh(%x)", "concat(%x, %x) {axis = 1}").replace("add(%y, %x)", "neg(%y)"),
    ],
)
def test_rows_that_differ_otherwise_stay(text):
    graph = body(text)
    assert collapse_axes(graph, "cpu") is graph
