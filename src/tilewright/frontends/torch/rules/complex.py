"""Complex numbers as pairs of real tensors.

A complex input or result of a graph is a real tensor with a last axis of two, PyTorch's own memory
layout. In between a complex value is a `Pair`. Linear operators and data movement apply the rule
for real tensors to each part; other operators have formulas here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilewright.base.dtype import BOOL, F64, DType
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.linalg import matmul
from tilewright.frontends.torch.rules.reduction import norm
from tilewright.frontends.torch.tensors import PARTS, dtype_of
from tilewright.graph import Builder, Value
from tilewright.graph.types import items_of


@dataclass(frozen=True)
class Pair:
    """A complex value."""

    re: Value
    im: Value


Made = Pair | Value | Sequence[Any]
PairRule = Callable[[Context], Any]


def is_complex(fake: Any) -> bool:
    """Whether PyTorch has a complex tensor, or several of which one is complex."""
    return any(isinstance(x, torch.Tensor) and x.is_complex() for x in pytree.tree_leaves(fake))


def parted(builder: Builder, x: Value) -> Pair:
    """Split a tensor with a last axis of two into its parts."""
    shape = x.tensor.shape
    assert shape is not None
    axis = len(shape) - 1
    parts: list[Value] = []
    for at in (0, 1):
        half = builder.add("slice", x, starts=(at,), ends=(at + 1,), axes=(axis,), steps=(1,))
        parts.append(builder.add("reshape", half, shape=items_of(shape[:-1])))
    return Pair(*parts)


def joined(builder: Builder, pair: Pair) -> Value:
    """The pair as a tensor with a last axis of two."""
    shape = pair.re.tensor.shape
    assert shape is not None
    parts = [builder.add("reshape", x, shape=items_of((*shape, 1))) for x in (pair.re, pair.im)]
    return builder.add("concat", *parts, axis=len(shape))


def _real(node: Context) -> DType:
    """The element type of the parts of the result."""
    of = node.results[0].dtype
    return dtype_of(PARTS.get(of, of))


def pair_of(node: Context, x: Any, of: DType) -> Pair:
    """A tensor or number as a pair."""
    if isinstance(x, Pair):
        return Pair(node.cast(x.re, of), node.cast(x.im, of))
    if isinstance(x, Value):
        re = node.cast(x, of)
        return Pair(re, node.full(0, of, node.shape(re)))
    number = complex(x)
    return Pair(node.value(number.real, of), node.value(number.imag, of))


# ------------------------------------------------------------------------------------ by parts


def by_parts(rule: Rule) -> PairRule:
    """Apply the rule for real tensors to each part: for linear operators."""

    def both(node: Context) -> Any:
        made = [rule(_part(node, at)) for at in (0, 1)]
        if isinstance(made[0], Value) and isinstance(made[1], Value):
            return Pair(made[0], made[1])
        return [Pair(re, im) for re, im in zip(*made, strict=True)]  # type: ignore[arg-type]

    return both


def _part(node: Context, at: int) -> Context:
    """A node restricted to one of the parts."""
    of = _real(node)

    def part(x: Any) -> Any:
        if isinstance(x, Pair):
            return x.im if at else x.re
        if isinstance(x, complex):
            return x.imag if at else x.real
        return x

    def own(name: str, x: Any) -> Any:
        """Real operands have no imaginary part; indices and masks apply to both parts."""
        if at and name in _ADDENDS and isinstance(x, (Value, int, float)):
            return node.full(0, of, node.shape(x)) if isinstance(x, Value) else 0
        return part(x)

    args = {
        name: [own(name, each) for each in x] if isinstance(x, (list, tuple)) else own(name, x)
        for name, x in node.args.items()
    }
    return replace(node, args=args)


_ADDENDS = {"other", "self", "value", "src", "fill_value", "tensors", "values", "source"}


# ------------------------------------------------------------------------------------ arithmetic


def _two(node: Context) -> tuple[Pair, Pair]:
    of = _real(node)
    return pair_of(node, node.args["self"], of), pair_of(node, node.args["other"], of)


def product(node: Context, a: Pair, b: Pair, op: Callable[[Value, Value], Value]) -> Pair:
    """(a + bi) (c + di) = (ac - bd) + (ad + bc) i, for any bilinear operation."""
    re = node.emit("sub", op(a.re, b.re), op(a.im, b.im))
    im = node.emit("add", op(a.re, b.im), op(a.im, b.re))
    return Pair(re, im)


def _mul(node: Context) -> Pair:
    return product(node, *_two(node), lambda x, y: node.emit("mul", x, y))


def _div(node: Context) -> Pair:
    if node.get("rounding_mode") is not None:
        raise Skip("rounded quotients of complex numbers")
    return _over(node, *_two(node))


def _over(node: Context, a: Pair, b: Pair) -> Pair:
    """a * conj(c) / s / |c|**2 with c = b / s, where s is the larger part of b, so that no square
    overflows or underflows."""
    large = node.emit("maximum", node.emit("abs", b.re), node.emit("abs", b.im))
    is_zero = node.emit("equal", large, 0.0)
    s = node.emit("where", is_zero, node.like(large, 1), large)
    c = Pair(node.emit("div", b.re, s), node.emit("div", b.im, s))
    above = product(
        node, a, Pair(c.re, node.emit("neg", c.im)), lambda x, y: node.emit("mul", x, y)
    )
    below = _square(node, c)
    re, im = (node.emit("div", node.emit("div", part, s), below) for part in (above.re, above.im))
    return Pair(re, im)


def _square(node: Context, x: Pair) -> Value:
    return node.emit("add", node.emit("mul", x.re, x.re), node.emit("mul", x.im, x.im))


def _self(node: Context) -> Pair:
    x = node.args["self"]
    return x if isinstance(x, Pair) else pair_of(node, x, _real(node))


def magnitude(node: Context, x: Pair) -> Value:
    """|x|, computed in f64, where squares of f32 neither overflow nor underflow."""
    of = x.re.tensor.dtype
    wide = Pair(node.cast(x.re, F64), node.cast(x.im, F64))
    return node.cast(node.emit("sqrt", _square(node, wide)), of)


def _angle(node: Context) -> Value:
    x = _self(node)
    return node.emit("atan2", x.im, x.re)


def _exp(node: Context) -> Pair:
    x = _self(node)
    return _polar(node, node.emit("exp", x.re), x.im)


def _polar(node: Context, size: Value, angle: Value) -> Pair:
    return Pair(
        node.emit("mul", size, node.emit("cos", angle)),
        node.emit("mul", size, node.emit("sin", angle)),
    )


def _log(node: Context) -> Pair:
    x = _self(node)
    return Pair(node.emit("log", magnitude(node, x)), node.emit("atan2", x.im, x.re))


def _log_of_base(base: float) -> PairRule:
    def rule(node: Context) -> Pair:
        made = _log(node)
        return Pair(*(node.emit("mul", part, 1 / math.log(base)) for part in (made.re, made.im)))

    return rule


def _root(node: Context) -> Pair:
    """The square root in the right half plane: its larger part by a sum of non-negative numbers,
    the other by a quotient, so that neither suffers from cancellation."""
    x = _self(node)
    halves = (node.emit("mul", part, 0.5) for part in (magnitude(node, x), node.emit("abs", x.re)))
    large = node.emit("sqrt", node.emit("add", *halves))
    twice = node.emit("mul", large, 2.0)
    is_zero = node.emit("equal", twice, 0.0)
    small = node.emit("div", x.im, node.emit("where", is_zero, node.like(twice, 1), twice))
    is_left, is_below = node.emit("less", x.re, 0.0), _is_negative(node, x.im)
    re = node.emit("where", is_left, node.emit("abs", small), large)
    turned = node.emit("where", is_below, node.emit("neg", large), large)
    im = node.emit("where", is_left, turned, small)
    is_endless = _is_endless(node, x.im)  # a quotient of two infinities would be NaN
    endless = node.like(re, float("inf"))
    return Pair(
        node.emit("where", is_endless, endless, re), node.emit("where", is_endless, x.im, im)
    )


def _is_negative(node: Context, part: Value) -> Value:
    """Whether a number is negative, -0.0 included."""
    return node.emit("less", node.emit("atan2", part, node.like(part, -1)), 0.0)


def _is_endless(node: Context, part: Value) -> Value:
    return node.emit("equal", node.emit("abs", part), float("inf"))


def _wave(even: str, odd: str, first: str, second: str, *, sign: str = "") -> PairRule:
    """f(a + bi) = even(a) first(b) + odd(a) second(b) i, with the imaginary part optionally
    negated."""

    def rule(node: Context) -> Pair:
        x = _self(node)
        re = node.emit("mul", node.emit(even, x.re), node.emit(first, x.im))
        im = node.emit("mul", node.emit(odd, x.re), node.emit(second, x.im))
        return Pair(re, node.emit(sign, im) if sign else im)

    return rule


def _tanh(node: Context) -> Pair:
    """(t (1 + u^2) + u (1 - t^2) i) / (1 + t^2 u^2), with t = tanh(a) and u = tan(b)."""
    x = _self(node)
    t, u = node.emit("tanh", x.re), node.emit("tan", x.im)
    t2, u2 = node.emit("mul", t, t), node.emit("mul", u, u)
    below = node.emit("add", node.emit("mul", t2, u2), 1.0)
    re = node.emit("mul", t, node.emit("add", u2, 1.0))
    im = node.emit("mul", u, node.emit("sub", 1.0, t2))
    return Pair(node.emit("div", re, below), node.emit("div", im, below))


def _norm(node: Context) -> Any:
    """The norm of the magnitudes."""
    return norm(replace(node, args={**node.args, "self": magnitude(node, _self(node))}))


def _sign(node: Context) -> Pair:
    x = _self(node)
    size = magnitude(node, x)
    zero = node.emit("equal", size, 0.0)
    by = node.emit("where", zero, node.like(size, 1), size)
    return Pair(node.emit("div", x.re, by), node.emit("div", x.im, by))


def _reciprocal(node: Context) -> Pair:
    return _over(node, pair_of(node, 1.0, _real(node)), _self(node))


LONGEST = 8  # multiplications for an integer power


def _power(node: Context) -> Pair:
    """To a real power: by multiplications, or by magnitude and angle."""
    exponent = node.get("exponent")
    if not isinstance(exponent, (int, float)):
        raise Skip(f"complex numbers to the power {exponent}")
    if exponent == 0.5:
        return _root(node)
    x = made = _self(node)
    if exponent not in range(1, LONGEST + 1):
        size = node.emit("pow", magnitude(node, x), float(exponent))
        return _polar(node, size, node.emit("mul", _angle(node), float(exponent)))
    for _ in range(int(exponent) - 1):
        made = product(node, made, x, lambda p, q: node.emit("mul", p, q))
    return made


def _conj(node: Context) -> Pair | Value | complex:
    x = node.args["self"]
    if isinstance(x, complex):
        return x.conjugate()
    return Pair(x.re, node.emit("neg", x.im)) if isinstance(x, Pair) else x


def _equal(op: str, joint: str) -> PairRule:
    def rule(node: Context) -> Value:
        of = _wider(node)
        a, b = (pair_of(node, node.args[name], of) for name in ("self", "other"))
        return node.emit(joint, node.emit(op, a.re, b.re), node.emit(op, a.im, b.im))

    return rule


def _wider(node: Context) -> DType:
    """The promoted type of the parts of the operands."""
    found = [x.re.tensor.dtype for x in node.args.values() if isinstance(x, Pair)]
    return max(found, key=lambda of: of.bits)


def _any_part(op: str, joint: str) -> PairRule:
    def rule(node: Context) -> Value:
        x = _self(node)
        return node.emit(joint, node.emit(op, x.re), node.emit(op, x.im))

    return rule


def _is_inf(node: Context) -> Value:
    x = _self(node)
    return node.emit("logical_or", _is_endless(node, x.re), _is_endless(node, x.im))


def _where(node: Context) -> Pair:
    a, b = _two(node)
    cond = node.cast(node["condition"], BOOL)
    return Pair(node.emit("where", cond, a.re, b.re), node.emit("where", cond, a.im, b.im))


# ------------------------------------------------------------------------------------ matrices


def _matmul(first: str, second: str) -> PairRule:
    def rule(node: Context) -> Pair:
        of = _real(node)
        a, b = (pair_of(node, node.args[name], of) for name in (first, second))
        return product(node, a, b, lambda x, y: matmul(node, x, y))

    return rule


def _plus(first: str, second: str) -> PairRule:
    """alpha times a product of two matrices, plus beta times an addend."""
    multiplied = _matmul(first, second)

    def rule(node: Context) -> Pair:
        of = _real(node)
        pairs = {"alpha": multiplied(node), "beta": pair_of(node, node.args["self"], of)}
        for name, pair in pairs.items():
            by = node.get(name, 1)
            if by != 1:
                factor = pair_of(node, by, of)
                pairs[name] = product(node, pair, factor, lambda x, y: node.emit("mul", x, y))
        made, addend = pairs.values()
        return Pair(node.emit("add", made.re, addend.re), node.emit("add", made.im, addend.im))

    return rule


# ------------------------------------------------------------------------------------ conversions


def _to_copy(node: Context) -> Pair | Value:
    of = _real(node)
    if node.results[0].is_complex():
        return pair_of(node, node.args["self"], of)
    return node.cast(_self(node).re, of)


def _complex(node: Context) -> Pair:
    of = _real(node)
    shape = items_of(node.out)
    re, im = (node.emit("expand", node.cast(node[name], of), shape=shape) for name in
              ("real", "imag"))  # fmt: skip
    return Pair(re, im)


def _polar_form(node: Context) -> Pair:
    return _polar(node, node["abs"], node["angle"])


def _filled(by: complex | str) -> PairRule:
    """A tensor filled with one number, or with that of an argument."""

    def rule(node: Context) -> Pair:
        number, of = complex(node.get(by, 0) if isinstance(by, str) else by), _real(node)
        return Pair(node.full(number.real, of, node.out), node.full(number.imag, of, node.out))

    return rule


# ------------------------------------------------------------------------------------ Fourier


def _transformed(
    node: Context, x: Value, axis: int, *, inverse: bool, onesided: bool = False, length: Any = None
) -> Value:
    """A Fourier transform along one axis of a tensor whose last axis holds the parts."""
    given: dict[str, Any] = {} if length is None else {"length": items_of([length])[0]}
    count = node.shape(x)[axis] if length is None else length
    made = node.emit("dft", x, None, None, axis=axis, inverse=inverse, onesided=onesided, **given)
    if inverse:  # the division is part of the normalisation
        made = node.emit("mul", made, node.value(count, x.tensor.dtype))
    return made


def _normalised(node: Context, x: Value, counts: Sequence[Any]) -> Value:
    """Divide by nothing, by the root of the number of elements, or by their number."""
    mode = int(node.args["normalization"])
    if mode == 0:
        return x
    total = node.value(1.0, F64)
    for count in counts:
        total = node.emit("mul", total, node.value(count, F64))
    by = node.emit("sqrt", total) if mode == 1 else total
    return node.emit("div", x, node.cast(by, x.tensor.dtype))


def _axes(node: Context, rank: int) -> list[int]:
    return [node.axis(int(axis), rank) for axis in node.args["dim"]]


def _real_to_complex(node: Context) -> Pair:
    x = node["self"]
    dims = node.shape(x)
    *others, last = _axes(node, len(dims))
    made = node.unsqueeze(x, len(dims))
    onesided = bool(node.args["onesided"])
    made = _transformed(node, made, last, inverse=False, onesided=onesided)
    for axis in others:
        made = _transformed(node, made, axis, inverse=False)
    made = _normalised(node, made, [dims[axis] for axis in (*others, last)])
    return parted(node.builder, made)


def _complex_to_complex(node: Context) -> Pair:
    pair = _self(node)
    dims = node.shape(pair.re)
    axes = _axes(node, len(dims))
    made = joined(node.builder, pair)
    for axis in axes:
        made = _transformed(node, made, axis, inverse=not node.args["forward"])
    return parted(node.builder, _normalised(node, made, [dims[axis] for axis in axes]))


def _complex_to_real(node: Context) -> Value:
    pair = _self(node)
    dims, length = node.shape(pair.re), node.args["last_dim_size"]
    *others, last = _axes(node, len(dims))
    made = joined(node.builder, pair)
    for axis in others:
        made = _transformed(node, made, axis, inverse=True)
    made = _transformed(node, made, last, inverse=True, onesided=True, length=length)
    made = _normalised(node, made, [*(dims[axis] for axis in others), length])
    return node.reshape(made, node.out)


_MOVING = (
    *("view", "_unsafe_view", "reshape", "expand", "permute", "transpose.int", "t", "slice.Tensor"),
    *("select.int", "cat", "split.Tensor", "split_with_sizes", "unbind.int", "repeat", "squeeze"),
    *("squeeze.dim", "squeeze.dims", "unsqueeze", "clone", "alias", "detach", "flip", "roll"),
    *("index.Tensor", "index_select", "gather", "constant_pad_nd", "diagonal", "unfold"),
    *("slice_scatter", "select_scatter", "triu", "tril", "as_strided", "lift_fresh_copy"),
    *("index_put", "_unsafe_index_put", "scatter.src", "scatter_add", "index_add", "embedding"),
    *("_unsafe_index.Tensor", "diagonal_scatter", "masked_select", "embedding_dense_backward"),
)
_LINEAR = (
    *("neg", "sum", "sum.dim_IntList", "mean", "mean.dim", "cumsum", "add.Tensor", "add.Scalar"),
    *("sub.Tensor", "sub.Scalar", "copy"),
)
BY_PARTS = frozenset(f"aten.{name}" for name in (*_MOVING, *_LINEAR))

PAIR_RULES: Mapping[str, PairRule] = {
    "aten.mul.Tensor": _mul,
    "aten.mul.Scalar": _mul,
    "aten.div.Tensor": _div,
    "aten.div.Scalar": _div,
    "aten.reciprocal": _reciprocal,
    "aten.pow.Tensor_Scalar": _power,
    "aten.abs": lambda node: magnitude(node, _self(node)),
    "aten.angle": _angle,
    "aten.exp": _exp,
    "aten.log": _log,
    "aten.log2": _log_of_base(2),
    "aten.log10": _log_of_base(10),
    "aten.sqrt": _root,
    "aten.sin": _wave("sin", "cos", "cosh", "sinh"),
    "aten.cos": _wave("cos", "sin", "cosh", "sinh", sign="neg"),
    "aten.sinh": _wave("sinh", "cosh", "cos", "sin"),
    "aten.cosh": _wave("cosh", "sinh", "cos", "sin"),
    "aten.tanh": _tanh,
    "aten.linalg_vector_norm": _norm,
    "aten.sgn": _sign,
    "aten.sign": _sign,
    "aten._conj": _conj,
    "aten.conj": _conj,
    "aten._conj_physical": _conj,
    "aten.conj_physical": _conj,
    "aten.resolve_conj": lambda node: node.args["self"],
    "aten.resolve_neg": lambda node: node.args["self"],
    "aten.eq.Tensor": _equal("equal", "logical_and"),
    "aten.eq.Scalar": _equal("equal", "logical_and"),
    "aten.ne.Tensor": _equal("not_equal", "logical_or"),
    "aten.ne.Scalar": _equal("not_equal", "logical_or"),
    "aten.isnan": _any_part("isnan", "logical_or"),
    "aten.isinf": _is_inf,
    "aten.where.self": _where,
    "aten.mm": _matmul("self", "mat2"),
    "aten.bmm": _matmul("self", "mat2"),
    "aten.matmul": _matmul("self", "other"),
    "aten.mv": _matmul("self", "vec"),
    "aten.dot": _matmul("self", "tensor"),
    "aten.addmm": _plus("mat1", "mat2"),
    "aten.baddbmm": _plus("batch1", "batch2"),
    "aten.addmv": _plus("mat", "vec"),
    "aten._to_copy": _to_copy,
    "prims.convert_element_type": _to_copy,
    "aten.real": lambda node: _self(node).re,
    "aten.imag": lambda node: _self(node).im,
    "aten.view_as_real": lambda node: joined(node.builder, _self(node)),
    "aten.view_as_complex": lambda node: parted(node.builder, node["self"]),
    "aten.complex": _complex,
    "aten.polar": _polar_form,
    **{f"aten.{name}": _filled("fill_value") for name in ("full", "full_like", "new_full")},
    **{f"aten.{name}": _filled(0) for name in ("zeros", "zeros_like", "new_zeros")},
    **{f"aten.empty{name}": _filled(0) for name in (".memory_format", "_like", "_strided")},
    **{f"aten.{name}": _filled(1) for name in ("ones", "ones_like", "new_ones")},
    "aten.new_empty": _filled(0),
    "aten.new_empty_strided": _filled(0),
    "aten.fill.Scalar": _filled("value"),
    "aten.scalar_tensor": _filled("s"),
    "aten._assert_tensor_metadata": lambda node: (),  # known at trace time
    "aten._fft_r2c": _real_to_complex,
    "aten._fft_c2c": _complex_to_complex,
    "aten._fft_c2r": _complex_to_real,
}
