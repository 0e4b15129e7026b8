"""Linear algebra: products of matrices, sums of products, determinants."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.dtype import F32, I8, I32, DType
from tilewright.base.tf32 import round_tf32
from tilewright.graph.op import (
    COMPLEX,
    FLOAT,
    INTEGER,
    NUMBER,
    OPAQUE,
    Attr,
    Call,
    Input,
    Op,
)
from tilewright.graph.ops.rules import broadcast_shapes, check_one_dtype, same_dim
from tilewright.graph.types import TensorType, Type
from tilewright.sym import ONE, Expr

Array = np.ndarray[Any, Any]


def product_shape(call: Call) -> tuple[Expr, ...]:
    """The shape of a @ b, as NumPy's matmul has it: stacks broadcast, vectors lose their axis."""
    a, b = call.shape(0), call.shape(1)
    if not a or not b:
        raise call.error("TW1202", f"{call.op} takes vectors and matrices, not scalars")
    left = (ONE, *a) if len(a) == 1 else a
    right = (*b, ONE) if len(b) == 1 else b
    same_dim(call, left[-1], right[-2], "the summed dimensions")
    stack = broadcast_shapes(call, [left[:-2], right[:-2]])
    rows = () if len(a) == 1 else (left[-2],)
    columns = () if len(b) == 1 else (right[-1],)
    return (*stack, *rows, *columns)


def is_packed(weights: DType, by: DType) -> bool:
    """Whether a matmul reads weights as they are stored, and multiplies them as another type."""
    return by is F32 and weights.is_int and weights.bits == I8.bits


def _matmul_type(call: Call) -> tuple[Type, ...]:
    a, b = call.tensor(0).dtype, call.tensor(1).dtype
    if not is_packed(b, a):
        check_one_dtype(call)
    return (TensorType(call["to"] or call.tensor(0).dtype, product_shape(call)),)


def wide(array: Array) -> Array:
    """Floats below 32 bits in f32: sums of products accumulate there and round once."""
    small = array.dtype.itemsize < 4 and array.dtype.kind not in "iub"
    return array.astype(np.float32) if small else array


def _matmul(call: Call, a: Array, b: Array) -> Array:
    to = a.dtype if call["to"] is None else call["to"].numpy
    read = round_tf32 if call["tf32"] else wide
    left = read(a)
    right = read(wide(b).astype(left.dtype, copy=False))
    return np.asarray(np.matmul(left, right)).astype(to)


def _matmul_integer_type(call: Call) -> tuple[Type, ...]:
    return (TensorType(I32, product_shape(call)),)


def exact(array: Array, zero: Array | None) -> Array:
    """Eight-bit integers less their zero point, as f64: sums of their products are exact there."""
    out = array.astype(np.float64)
    return out if zero is None else out - zero.astype(np.float64)


def to_i32(array: Array) -> Array:
    """Whole numbers in f64 as i32, wrapped."""
    return array.astype(np.int64).astype(np.int32)


def _matmul_integer(
    call: Call, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    return to_i32(np.matmul(exact(a, a_zero), exact(b, b_zero)))


def einsum_terms(equation: str) -> tuple[list[str], str]:
    """The letters of each operand, and of the result."""
    left, right = equation.split("->")
    return left.split(","), right


def _einsum_type(call: Call) -> tuple[Type, ...]:
    check_one_dtype(call)
    terms, result = einsum_terms(call["equation"])
    if len(terms) != len(call.types):
        raise call.error(
            "TW1203", f"{call['equation']} names {len(terms)} operands, got {len(call.types)}"
        )
    dims: dict[str, Expr] = {}
    for at, term in enumerate(terms):
        shape = call.shape(at)
        if len(shape) != len(term):
            raise call.error(
                "TW1203", f"{term} in {call['equation']} does not name {len(shape)} dimensions"
            )
        for letter, dim in zip(term, shape, strict=True):
            known = dims.setdefault(letter, dim)
            if known is ONE:
                dims[letter] = dim
            elif dim is not ONE:
                dims[letter] = same_dim(call, known, dim, f"the dimensions named {letter!r}")
    return (TensorType(call.tensor(0).dtype, tuple(dims[letter] for letter in result)),)


def _einsum(call: Call, *operands: Array) -> Array:
    made = np.einsum(call["equation"], *map(wide, operands), optimize=len(operands) > 1)
    return np.asarray(made).astype(operands[0].dtype)


def _det_type(call: Call) -> tuple[Type, ...]:
    shape = call.shape(0)
    if len(shape) < 2:
        raise call.error("TW1202", "det takes matrices, not vectors or scalars")
    same_dim(call, shape[-2], shape[-1], "the sides of a matrix")
    return (TensorType(call.tensor(0).dtype, shape[:-2]),)


def _det(call: Call, x: Array) -> Array:
    return np.asarray(np.linalg.det(wide(x))).astype(x.dtype)


OPS = (
    Op(
        "matmul",
        "The product of matrices or stacks of them; a vector is a row on the left, a column on "
        "the right. Sums of small floats are rounded once, to the type `to`, or else theirs. With "
        "`tf32`, operands of f32 are rounded to ten bits of mantissa. By f32, b may be integers of "
        "eight bits: the f32 that they are.",
        (Input("a", NUMBER), Input("b", NUMBER)),
        _matmul_type,
        _matmul,
        COMPLEX,
        (Attr("to", DType, None), Attr("tf32", bool, False)),
    ),
    Op(
        "matmul_integer",
        "(a - a_zero) @ (b - b_zero) of eight-bit integers, in i32. Zero points broadcast.",
        (
            Input("a", INTEGER),
            Input("b", INTEGER),
            Input("a_zero", INTEGER, optional=True),
            Input("b_zero", INTEGER, optional=True),
        ),
        _matmul_integer_type,
        _matmul_integer,
        COMPLEX,
    ),
    Op(
        "einsum",
        "The sum of products that the equation names, such as ab,bc->ac.",
        (Input("operands", NUMBER, variadic=True),),
        _einsum_type,
        _einsum,
        COMPLEX,
        (Attr("equation", str, required=True),),  # letters only, result spelt out
    ),
    Op(
        "det",
        "The determinants of a stack of square matrices.",
        (Input("x", FLOAT),),
        _det_type,
        _det,
        OPAQUE,
    ),
)
