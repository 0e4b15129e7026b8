"""Models as text: what is printed reads back as the same model."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.dtype import BF16, F32, STR
from tilewright.base.errors import ParseError
from tilewright.graph import Builder, SequenceType, TensorType, parse
from tilewright.graph.printer import quoted, unquoted, word
from tilewright.graph.types import OptionalType
from tilewright.sym import const, size

N = size("n")


def test_types_are_inferred_where_left_out():
    module = parse(
        """
graph @main(%x: f32[n, 4]) {
  %s = shape(%x)
  %i = constant() {data = i64[](0)}
  %n = gather(%s, %i) {axis = 0}
  %u = reshape(%n) {shape = (1,)}
  %r = constant() {data = i64[2](2, -1)}
  %t = concat(%u, %r) {axis = 0}
  %y = reshape(%x, %t)
  return %y
}
"""
    )
    assert str(module.main.results[0].type) == "f32[n, 2, 2]"


@pytest.mark.parametrize("name", ["/model/layers.0/Add_output_0", "12", "x y", "größe", "", "a.b"])
def test_odd_names_read_back(name):
    builder = Builder()
    x = builder.param(name, TensorType(F32, (N,)))
    big = builder.constant(np.zeros(100, np.float32), name or "c")
    y = builder.add("concat", x, big, axis=0, name=name)
    module = builder.module(y)
    assert parse(str(module), module.constants) == module


def test_words_and_quotes():
    assert word("a/b") == "a_b"
    assert word("1x") == "v1x"
    for text in ('a"b', "a\\b", "line\nbreak", "", "\\n", "tab\t"):
        assert unquoted(quoted(text)) == text


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.5, -0.0, np.inf, -np.inf, np.nan], np.float32),
        np.array([], np.int64),
        np.array(7, np.uint8),
        np.array([True, False]),
        np.array([0.5, 2.0], ml_dtypes.bfloat16),
        np.array([-8, 7], ml_dtypes.int4),
        np.array(["a", 'say "b"', ""], object),
        np.zeros((2, 0, 3), np.float16),
    ],
)
def test_small_constants_are_written_out(array):
    builder = Builder()
    module = builder.module(builder.constant(array))
    back = parse(str(module))
    (made,) = back.constants.values()
    assert made.dtype == array.dtype
    assert made.shape == array.shape
    plain = object if array.dtype == object else np.float64
    np.testing.assert_array_equal(made.astype(plain), array.astype(plain))
    assert str(back) == str(module)
    assert back == parse(str(module), back.constants)


def test_attributes_of_all_kinds():
    builder = Builder()
    x = builder.param("x", TensorType(F32, (N, const(2))))
    y = builder.add("reshape", x, shape=(2, N))
    z = builder.add("cast", y, to=BF16)
    e = builder.add("optional", of=SequenceType(TensorType(STR, (N,))))
    module = builder.module(z, e)
    text = str(module)
    assert "shape = (2, expr n)" in text
    assert "to = dtype bf16" in text
    assert "of = type seq<str[n]>" in text
    assert parse(text) == module


def test_types_read_back():
    of = OptionalType(SequenceType(TensorType(F32, None)))
    builder = Builder()
    module = builder.module(builder.param("x", of))
    assert str(of) in str(module)
    assert parse(str(module)) == module


def test_two_models_differ_by_structure_not_by_names():
    a = parse("graph @main(%x: f32[n]) { %y = exp(%x) return %y }")
    b = parse("graph @main(%p: f32[k]) { %q = exp(%p) return %q }")
    c = parse("graph @main(%p: f32[k]) { %q = neg(%p) return %q }")
    assert a == b
    assert hash(a) == hash(b)
    assert a != c


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph @main(%x: f32[4]) { %x = exp(%x) return %x }", "already defined"),
        ("graph @main(%x: f32[4]) { return %y }", "not defined"),
        ("graph @main(%x: f32[4]) { %y = call(%x) {graph = @f} return %y }", "must be written"),
        ("graph @main(%x: f32[4]) { %y = exp(%x) return %y } rubbish", "expected a graph"),
        ("graph @main(%x: f33[4]) { return %x }", "unknown data type"),
    ],
)
def test_texts_that_are_no_models(text, message):
    with pytest.raises(ParseError, match=message):
        parse(text)
