"""If whose branches differ in rank: what follows is translated for each branch apart."""

import numpy as np
import onnx
import pytest

from tilewright.base.errors import ExecutionError, UserError
from tilewright.frontends.onnx import import_model
from tilewright.graph import interpret
from tilewright.graph.verify import verify
from tilewright.graph.visit import walk

HEAD = '<ir_version: 10, opset_import: ["" : 21, "local" : 1]>\n'
SQUEEZE = """
        last = Constant <value_ints = [-1]> ()
        one = Constant <value_ints = [1]> ()
        s = Shape <start = -1> (x)
        c = Equal (s, one)
        q = If (c) <then_branch = t () => (float[n] a) { a = Squeeze (x, last) },
                    else_branch = f () => (float[n, k] b) { b = Identity (x) }>
"""


def imported(text):
    module = import_model(onnx.parser.parse_model(HEAD + text))
    verify(module)
    return module


def ops(module):
    return [node.op for node in walk(module.main)]


def test_what_follows_is_in_both_branches():
    module = imported(f"g (float[n, k] x) => (float[m] y) {{{SQUEEZE} y = ReduceMax (q, last) }}")
    assert ops(module).count("if") == 1
    assert ops(module).count("reduce_max") == 2
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert interpret(module, x, check=True)[0].tolist() == [[1], [3], [5]]
    assert interpret(module, x[:, :1], check=True)[0].tolist() == [4]


def test_a_branch_that_does_not_fit_is_never_taken():
    text = f"g (float[n, k] x, float[4, 5] w) => (float[m] y) {{{SQUEEZE} y = MatMul (q, w) }}"
    text = text.replace("MatMul (q, w)", 'Einsum <equation = "i,ij->j"> (q, w)')
    module = imported(text)
    assert "if" not in ops(module)
    x, w = np.ones((4, 1), np.float32), np.ones((4, 5), np.float32)
    assert interpret(module, x, w, check=True)[0].tolist() == [4] * 5
    with pytest.raises(ExecutionError, match="TW1017"):
        interpret(module, np.ones((4, 2), np.float32), w)


def test_a_model_that_fits_neither_branch_is_refused():
    with pytest.raises(UserError):
        imported(
            f"g (float[n, k] x) => (float[m] y) {{{SQUEEZE} y = Transpose <perm = [1, 2, 0]> (q) }}"
        )


def test_what_follows_a_taken_branch_counts_too():
    """The rank is unclear inside of a branch that is always taken, and used outside of it."""
    text = f"""g (float[n, k] x) => (float[m] y) {{
        always = Constant <value_ints = [1]> ()
        yes = Cast <to = 9> (always)
        v = If (yes) <then_branch = u () => (float[n] q) {{{SQUEEZE} }},
                      else_branch = w () => (float[n, k] z) {{ z = Identity (x) }}>
        p = Neg (v)
        y = Flatten <axis = 0> (p)
    }}"""
    module = imported(text)
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert interpret(module, x, check=True)[0].tolist() == [[0, -1, -2, -3, -4, -5]]
    assert interpret(module, x[:, :1], check=True)[0].tolist() == [[0, -2, -4]]


def test_two_in_a_row():
    text = f"""g (float[i, j, k] x) => (float y) {{{SQUEEZE}
        s2 = Shape <start = -1> (q)
        c2 = Equal (s2, one)
        r = If (c2) <then_branch = t2 () => (float[n] a2) {{ a2 = Squeeze (q, last) }},
                     else_branch = f2 () => (float[n, k] b2) {{ b2 = Identity (q) }}>
        y = Abs (r)
    }}"""
    module = imported(text)
    for shape, want in (((2, 3, 4), (2, 3, 4)), ((2, 3, 1), (2, 3)), ((2, 1, 1), (2,))):
        assert interpret(module, np.ones(shape, np.float32), check=True)[0].shape == want
