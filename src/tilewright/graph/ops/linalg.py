"""Linear algebra: GEMM, contractions, determinants."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.bf16x6 import PIECES, PRODUCTS, left_piece, pieces_of, right_piece
from tilewright.base.dtype import BF16, F32, I8, I32, U8, DType
from tilewright.base.tf32 import round_tf32
from tilewright.graph.op import (
    COMPLEX,
    FLOAT,
    INJECTIVE,
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
from tilewright.sym import ONE, Const, Expr, const

Array = np.ndarray[Any, Any]

NIBBLE = 16  # number of 4-bit values
HALF = 4  # bits of half a byte


def product_shape(call: Call) -> tuple[Expr, ...]:
    """The shape of a @ b, as in NumPy's matmul: batches broadcast, vectors lose their axis."""
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


def _matmul_type(call: Call) -> tuple[Type, ...]:
    check_one_dtype(call)
    return (TensorType(call["to"] or call.tensor(0).dtype, product_shape(call)),)


def wide(array: Array) -> Array:
    """Convert low-precision floats to f32, in which sums accumulate before rounding once."""
    small = array.dtype.itemsize < 4 and array.dtype.kind not in "iub"
    return array.astype(np.float32) if small else array


def _matmul(call: Call, a: Array, b: Array) -> Array:
    to = a.dtype if call["to"] is None else call["to"].numpy
    read = round_tf32 if call["tf32"] else wide
    return np.asarray(np.matmul(read(a), read(b))).astype(to)


def _bf16_pieces_type(call: Call) -> tuple[Type, ...]:
    of, shape, parts, length = call.tensor(0).dtype, call.shape(0), call["parts"], call["length"]
    if of is not F32 or not shape:
        raise call.error("TW1007", f"{call.op} takes rows of f32, not {call.types[0]}")
    *rows, k = shape
    if not isinstance(k, Const) or parts < 1 or parts * length < k.value:
        raise call.error("TW1015", f"{call.op}: {parts} parts of {length} do not hold {k} numbers")
    stack = [const(parts)] if parts > 1 else []
    return (TensorType(BF16, (*stack, *rows, const(PIECES), const(length))),)


def _bf16_pieces(call: Call, x: Array) -> Array:
    *rows, k = x.shape
    parts, length = call["parts"], call["length"]
    padded = np.pad(x, [(0, 0)] * len(rows) + [(0, parts * length - k)])
    by_parts = np.moveaxis(padded.reshape(*rows, parts, length), -2, 0)
    return np.asarray(pieces_of(by_parts if parts > 1 else by_parts[0], -2))


def _matmul_pieces_type(call: Call) -> tuple[Type, ...]:
    a, b = call.shape(0), call.shape(1)
    check_one_dtype(call)
    if call.tensor(0).dtype is not BF16 or len(b) < 3 or len(a) < len(b):
        raise call.error(
            "TW1202", f"{call.op} takes bf16 as [..., m, {PIECES}, k] and [..., {PIECES}, k, n]"
        )
    *stack, b_pieces, k, n = b
    for at, dim in enumerate(stack):
        same_dim(call, a[at], dim, "stacks")
    for pieces in (a[-2], b_pieces):
        same_dim(call, pieces, const(PIECES), "pieces")
    same_dim(call, a[-1], k, "the summed dimensions")
    return (TensorType(F32, (*a[:-2], n)),)


def _matmul_pieces(call: Call, a: Array, b: Array) -> Array:
    stack = b.shape[:-3]
    rows = wide(a).reshape(*stack, -1, *a.shape[-2:])
    terms = [
        np.matmul(rows[..., left_piece(p), :], wide(b)[..., right_piece(p), :, :])
        for p in range(PRODUCTS)
    ]
    total = sum(terms[::-1])  # smallest terms first
    return np.asarray(total).reshape(*a.shape[:-2], b.shape[-1])


def _matmul_packed_type(call: Call) -> tuple[Type, ...]:
    a, b, per_byte = call.shape(0), call.shape(1), call["per_byte"]
    if not a or len(b) != 3 or per_byte not in (1, 2):
        raise call.error("TW1202", f"{call.op} takes weights as [groups, bytes, n], 1 or 2 a byte")
    of, packed = call.tensor(0).dtype, call.tensor(1).dtype
    if of is not (I8 if call.has(4) else F32) or packed.bits != U8.bits:
        raise call.error(
            "TW1007", f"{call.op} takes f32, or i8 with scales, and bytes, not {of} and {packed}"
        )
    if (per_byte > 1 or call.has(4)) and packed not in (I8, U8):
        raise call.error("TW1007", f"{call.op} has no integers in {packed}")
    (*stack, k), (groups, length, n) = a, b
    same_dim(
        call, k, sym.simplify(sym.mul(sym.mul(groups, length), per_byte)), "the summed dimensions"
    )
    for at in (2, 3):
        if call.has(at):
            if len(call.shape(at)) != 2:
                raise call.error("TW1202", f"{call.op} takes scales and offsets as [groups, n]")
            same_dim(call, call.shape(at)[0], groups, "groups")
            same_dim(call, call.shape(at)[1], n, "columns")
    if call.has(4):
        *rows, each = call.shape(4) or (ONE,)
        if len(rows) != len(stack):
            raise call.error("TW1202", f"{call.op} takes scales of a as [..., groups]")
        for have, want in zip((*rows, each), (*stack, groups), strict=True):
            same_dim(call, have, want, "scales of a and its groups")
    return (TensorType(F32, (*stack, n)),)


def packed_codes(packed: Array, per_byte: int) -> Array:
    """Unpack values of four or eight bits, [groups, k / groups, n]: the lower halves of bytes are
    the first half of a group. Signed 4-bit values are the upper bits of bytes, so multiplied by
    sixteen."""
    if per_byte == 1:
        return packed
    if packed.dtype == np.int8:
        halves = packed << HALF, packed & -NIBBLE
    else:
        halves = packed & NIBBLE - 1, packed >> HALF
    return np.concatenate(halves, axis=1)


def unpacked(
    packed: Array, scale: Array, offset: Array | None = None, *, per_byte: int, zero: int
) -> Array:
    """The dequantized weights [k, n] in f32."""
    codes = packed_codes(packed, per_byte)
    weights = (codes.astype(np.float32) - np.float32(zero)) * scale[:, None]
    if offset is not None:
        weights = weights + offset[:, None]
    return np.asarray(weights.reshape(-1, packed.shape[-1]))


def _matmul_packed(
    call: Call,
    a: Array,
    b: Array,
    scale: Array,
    offset: Array | None = None,
    a_scale: Array | None = None,
) -> Array:
    per_byte, zero = call["per_byte"], call["zero"]
    if a_scale is None:
        weights = unpacked(b, scale, offset, per_byte=per_byte, zero=zero)
        return np.asarray(np.matmul(a, weights))
    groups, _, n = b.shape
    codes = exact(packed_codes(b, per_byte), np.asarray(zero))
    rows = np.moveaxis(exact(a, None).reshape(-1, groups, codes.shape[1]), 1, 0)
    total = np.matmul(rows, codes).astype(np.float32) * scale[:, None]
    if offset is not None:
        total = total + rows.sum(axis=2, keepdims=True).astype(np.float32) * offset[:, None]
    by_group = total * np.moveaxis(a_scale.reshape(-1, groups), 1, 0)[:, :, None]
    return np.asarray(by_group.sum(axis=0).reshape(*a.shape[:-1], n))


def _matmul_integer_type(call: Call) -> tuple[Type, ...]:
    return (TensorType(I32, product_shape(call)),)


def exact(array: Array, zero: Array | None) -> Array:
    """8-bit integers less their zero point, in f64, where sums of products are exact."""
    out = array.astype(np.float64)
    return out if zero is None else out - zero.astype(np.float64)


def to_i32(array: Array) -> Array:
    """Convert integers in f64 to i32, with wrapping."""
    return array.astype(np.int64).astype(np.int32)


def _matmul_integer(
    call: Call, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    return to_i32(np.matmul(exact(a, a_zero), exact(b, b_zero)))


def einsum_terms(equation: str) -> tuple[list[str], str]:
    """The letters of each operand and of the result."""
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
        "The product of matrices or batches of them; a vector is a row on the left, a column on "
        "the right. Sums of low-precision floats are rounded once, to the type `to`, or else to "
        "theirs. With `tf32`, operands of f32 are rounded to ten bits of mantissa.",
        (Input("a", NUMBER), Input("b", NUMBER)),
        _matmul_type,
        _matmul,
        COMPLEX,
        (Attr("to", DType, None), Attr("tf32", bool, False)),
    ),
    Op(
        "bf16_pieces",
        "Rows of f32 [..., k] as sums of three of bf16 [..., 3, length]: each number rounded, "
        "then the remainder rounded, twice. Rows are zero-padded. With several `parts` of a row, "
        "each of this length, the result is a batch [parts, ..., 3, length].",
        (Input("x", FLOAT),),
        _bf16_pieces_type,
        _bf16_pieces,
        INJECTIVE,
        (Attr("length", int, required=True), Attr("parts", int, 1)),
    ),
    Op(
        "matmul_pieces",
        "GEMM of f32 matrices split into pieces of bf16, [..., m, 3, k] and [3, k, n] or a batch "
        "of those: the sum of the six products of pieces that are significant in f32 "
        "(`base/bf16x6.py`).",
        (Input("a", FLOAT), Input("b", FLOAT)),
        _matmul_pieces_type,
        _matmul_pieces,
        COMPLEX,
    ),
    Op(
        "matmul_packed",
        "a @ ((b - zero) * scale + offset) in f32. b is [groups, k / groups, n] of eight bits "
        "each, or of four, two in a byte: the lower bits are of the first half of a group; signed "
        "ones are taken as the upper bits of a byte. Scale and offset are [groups, n]. With "
        "`scale_sums`, for few rows, sums over groups are scaled instead of weights. a is f32, or "
        "i8 with a scale for every group of a row: then sums over groups are of integers.",
        (
            Input("a", NUMBER),
            Input("b", NUMBER),
            Input("scale", FLOAT),
            Input("offset", FLOAT, optional=True),
            Input("a_scale", FLOAT, optional=True),
        ),
        _matmul_packed_type,
        _matmul_packed,
        COMPLEX,
        (
            Attr("per_byte", int, 1),
            Attr("zero", int, 0),
            Attr("scale_sums", bool, False),
        ),
    ),
    Op(
        "matmul_integer",
        "(a - a_zero) @ (b - b_zero) of 8-bit integers, in i32. Zero points broadcast.",
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
        "The sum of products given by the equation, such as ab,bc->ac.",
        (Input("operands", NUMBER, variadic=True),),
        _einsum_type,
        _einsum,
        COMPLEX,
        (Attr("equation", str, required=True),),  # single letters, with an explicit result
    ),
    Op(
        "det",
        "The determinants of a batch of square matrices.",
        (Input("x", FLOAT),),
        _det_type,
        _det,
        OPAQUE,
    ),
)
