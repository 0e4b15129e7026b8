"""Models that the fuzzer found to fail, made small: compiled, against the interpreter."""

import numpy as np
import onnx
import pytest

import tilewright
from tilewright.frontends.onnx import import_model
from tilewright.graph import interpret

HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'

CASES = {
    "a constant that only an unsigned type holds": (
        """g (uint64[k] x) => (uint64[k] y)
        <uint64[1] c = {18446744073709551615}, int64[1] s = {1}> {
            d = Reshape (c, s)
            y = BitwiseAnd (x, d)
        }""",
        [(np.arange(3, dtype=np.uint64),)],
    ),
    "a product with no rows": (
        "g (float[0, 8] x, float[8, 16] w) => (float[0, 16] y) { y = MatMul (x, w) }",
        [(np.ones((0, 8), np.float32), np.ones((8, 16), np.float32))],
    ),
    "an index into a dimension that is a product": (
        """g (float[m, k] x, int64 i) => (float y) <int64[1] flat = {-1}> {
            v = Reshape (x, flat)
            y = Gather (v, i)
        }""",
        [(np.arange(6, dtype=np.float32).reshape(2, 3), np.array(at)) for at in (0, 5, -1)],
    ),
    "sizes after a loop that does not turn": (
        """g (int64[m, 2] x, int64 trip) => (int64[t, m, 2] z, int64[q] y) <int64[1] flat = {-1}> {
            s, z = Loop (trip, , x) <body = b (int64 i, bool c, int64[m, 2] v)
                                           => (bool d, int64[m, 2] w, int64[m, 2] r) {
                d = Identity (c)
                w = Neg (v)
                r = Identity (w)
            }>
            y = Reshape (x, flat)
        }""",
        [(np.arange(6).reshape(3, 2), np.array(turns)) for turns in (0, 1, 3)],
    ),
    "a loop beside a sequence": (
        """g (float[2, k] x) => (float[a, b] y) <int64 four = {4}> {
            l = SequenceConstruct (x, x)
            s = ConcatFromSequence <axis = 0> (l)
            y = Loop (four, , s) <body = b (int64 i, bool c, float[p, q] v)
                                        => (bool d, float[p, q] w) {
                d = Identity (c)
                w = Add (v, v)
            }>
        }""",
        [(np.ones((2, extent), np.float32),) for extent in (1, 5)],
    ),
    "a part of a dimension that may be empty": (
        """g (int64[2, m] x) => (int64[2, a] y)
        <int64[1] b = {-3}, int64[1] e = {5}, int64[1] at = {1}, int64[1] step = {2}> {
            y = Slice (x, b, e, at, step)
        }""",
        [(np.arange(2 * extent).reshape(2, extent),) for extent in (0, 1, 6, 7)],
    ),
    "no index of several dimensions": (
        """g (int64[3, 0] i, float[1, 1] x) => (float[3, 0, 1] y) {
            y = Gather <axis = 0> (x, i)
        }""",
        [(np.zeros((3, 0), np.int64), np.ones((1, 1), np.float32))],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_native_code_agrees_with_the_interpreter(name):
    text, calls = CASES[name]
    model = onnx.parser.parse_model(HEAD + text)
    module = import_model(model)
    compiled = tilewright.compile(model, target="cpu", threads=1)
    for arguments in calls:
        expected = interpret(module, *arguments)
        for got, want in zip(compiled(*arguments), expected, strict=True):
            np.testing.assert_array_equal(np.asarray(got), want)
