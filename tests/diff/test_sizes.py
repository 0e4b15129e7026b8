"""Sizes that only the data tells, where no shape fits the data, and in whose order."""

from typing import Any

import numpy as np
import pytest

from tilewright import sym
from tilewright.base.dtype import F32, I64
from tilewright.base.errors import Unsupported
from tilewright.codegen.build import build
from tilewright.graph import Builder, TensorType
from tilewright.graph.ir import Node, Value
from tilewright.lower.sizes import fresh_sizes, lower_sizes
from tilewright.tensor import interpret


def _param(b: Builder, name: str, array: Any) -> Value:
    of = I64 if array.dtype == np.int64 else F32
    return b.param(name, TensorType(of, tuple(sym.const(dim) for dim in array.shape)))


def _run(op: str, *arrays: Any, **attributes: Any) -> list[int]:
    b = Builder()
    values = [_param(b, f"x{at}", array) for at, array in enumerate(arrays)]
    b.add_many(op, *values, outputs=2 if op == "top_k" else 1, **attributes)
    fn = lower_sizes(b.nodes[-1])
    assert fn is not None
    found = []
    for run in (lambda *args: interpret(fn, *args), build(fn, "cpu")):
        out = np.zeros(len(fresh_sizes(b.nodes[-1])), np.int64)
        run(*map(np.asarray, arrays), out)
        found.append(out.tolist())
    assert found[0] == found[1]
    return found[0]


_X = np.ones((4, 6), np.float32)


def _ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize(
    ("op", "arrays", "sizes"),
    [
        ("reshape", (_X, _ints(5, 5)), [-1, -1]),
        ("reshape", (_X, _ints(-1, -1)), [-1, -1]),
        ("reshape", (_X, _ints(-1, 5)), [-1, -1]),
        ("reshape", (_X, _ints(0, -1)), [-1, -1]),
        ("reshape", (_X, _ints(-2, -12)), [-2, -12]),
        ("reshape", (_X[:0], _ints(0, 7)), [0, 7]),
        ("expand", (np.ones((4, 1), np.float32), _ints(4, -3)), [-3]),
        ("range", (_ints(1)[0], _ints(5)[0], _ints(0)[0]), [-1]),
        ("range", (np.float32(0), np.float32(np.inf), np.float32(1)), [-1]),
        ("range", (np.float32(0), np.float32(1), np.float32(0)), [-1]),
        ("tile", (_X, _ints(-1, 1)), [-1, 6]),
        ("slice", (_X, _ints(0, 0), _ints(4, 6), _ints(0, 1), _ints(0, 1)), [-1, 6]),
        ("slice", (_X, _ints(0), _ints(4), _ints(2)), [-1, -1]),
        ("reduce_sum", (_X, _ints(-3)), [-1, -1]),
        ("random_bits", (_ints(2, -5),), [2, -5]),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_data_that_no_shape_fits_gives_no_size(op: str, arrays: Any, sizes: list[int]) -> None:
    needs = {"random_bits": {"seed": 1}, "range": {"to": F32}}
    assert _run(op, *arrays, **needs.get(op, {})) == sizes


def test_more_than_all_are_not_the_greatest() -> None:
    assert _run("top_k", _X, _ints(7), axis=1) == [-1]


def test_extreme_bounds_of_slices_do_not_overflow() -> None:
    least, most = -(1 << 63), (1 << 63) - 1
    assert _run("slice", _X, _ints(most, least), _ints(least, most), _ints(0, 1), _ints(-1, 2)) == [
        4,
        3,
    ]
    assert _run("slice", _X, _ints(3, 5), _ints(least, least), _ints(0, 1), _ints(least, -5)) == [
        1,
        2,
    ]


def test_sizes_that_an_input_or_attribute_mentions_are_not_the_nodes_own() -> None:
    b = Builder()
    n = sym.size("n")
    x = b.param("x", TensorType(F32, (n, sym.const(3))))
    y = b.add("expand", x, shape=(n, 3))
    assert fresh_sizes(b.nodes[-1]) == ()
    assert lower_sizes(b.nodes[-1]) is None
    b.add("nonzero", y)
    (own,) = fresh_sizes(b.nodes[-1])
    assert own in b.nodes[-1].output.tensor.shape
    assert fresh_sizes(b.nodes[-1], {own}) == ()


def test_an_operator_without_a_rule_is_refused() -> None:
    x = Value("x", TensorType(F32, (sym.const(4),)))
    node = Node("relu", (x,), (Value("y", TensorType(F32, (sym.size("n"),))),))
    with pytest.raises(Unsupported, match="TW1503"):
        lower_sizes(node)
