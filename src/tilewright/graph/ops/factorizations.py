"""Matrix factorizations: triangular, orthogonal, diagonal factors.

All operate on batches of matrices, compute in f64 and round once. `info` is the column, counted
from 1, at which a factorization found no pivot; 0 on success.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import I32, I64
from tilewright.graph.op import FLOAT, INTEGER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.rules import check_one_dtype, same_dim
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Expr

Array = np.ndarray[Any, Any]

SWEEPS = 16  # Jacobi sweeps over all pairs; convergence is quadratic
NEGLIGIBLE = 2.0**-52  # off-diagonal element relative to the diagonal, in f64


def _matrix(
    call: Call, at: int = 0, *, square: bool = False
) -> tuple[tuple[Expr, ...], Expr, Expr]:
    """The batch dimensions, m and n of an operand."""
    shape = call.shape(at)
    if len(shape) < 2:
        raise call.error("TW1202", f"{call.op} takes matrices, not vectors or scalars")
    if square:
        same_dim(call, shape[-2], shape[-1], "the sides of a matrix")
    return shape[:-2], shape[-2], shape[-1]


def _type(call: Call, *dims: Expr) -> TensorType:
    return TensorType(call.tensor(0).dtype, dims)


def _wide(x: Array) -> Array:
    return np.array(x, np.float64)


def _least(m: Expr, n: Expr) -> Expr:
    return sym.simplify(sym.minimum(m, n))


# ------------------------------------------------------------------------------------ Cholesky


def _cholesky_type(call: Call) -> tuple[Type, ...]:
    batch, n, _ = _matrix(call, square=True)
    return _type(call, *batch, n, n), TensorType(I32, batch)


def _cholesky(call: Call, x: Array) -> tuple[Array, Array]:
    a, n = _wide(x), x.shape[-1]
    lower = np.zeros_like(a)
    info = np.zeros(x.shape[:-2], np.int32)
    for j in range(n):
        left = a[..., j:, j] - np.einsum("...ik,...k->...i", lower[..., j:, :j], lower[..., j, :j])
        info = np.where((info == 0) & ~(left[..., 0] > 0), j + 1, info).astype(np.int32)
        lower[..., j:, j] = left / np.sqrt(left[..., :1])
    return lower.astype(x.dtype), info


# ------------------------------------------------------------------------------------ LU


def _lu_type(call: Call) -> tuple[Type, ...]:
    batch, m, n = _matrix(call)
    least = _least(m, n)
    return _type(call, *batch, m, n), TensorType(I32, (*batch, least)), TensorType(I32, batch)


def _lu(call: Call, x: Array) -> tuple[Array, Array, Array]:
    m, n = x.shape[-2:]
    packed = _wide(x)
    pivots = np.zeros((*x.shape[:-2], min(m, n)), np.int32)
    info = np.zeros(x.shape[:-2], np.int32)
    for at in np.ndindex(*x.shape[:-2]):
        a = packed[at]
        for j in range(min(m, n)):
            row = j + int(np.argmax(np.abs(a[j:, j])))
            pivots[(*at, j)] = row + 1
            a[[j, row]] = a[[row, j]]
            if a[j, j] == 0:
                info[at] = info[at] or j + 1
                continue
            a[j + 1 :, j] /= a[j, j]
            a[j + 1 :, j + 1 :] -= np.outer(a[j + 1 :, j], a[j, j + 1 :])
    return packed.astype(x.dtype), pivots, info


def _row_order_type(call: Call) -> tuple[Type, ...]:
    pivots = call.shape(0)
    if not pivots:
        raise call.error("TW1202", "row_order takes vectors of pivots, not scalars")
    rows = call.value(1)
    return (TensorType(I64, (*pivots[:-1], rows[0] if rows else sym.size("rows"))),)


def _row_order(call: Call, pivots: Array, rows: Array) -> Array:
    m = int(rows.reshape(()))
    made = np.broadcast_to(np.arange(m), (*pivots.shape[:-1], m)).copy()
    for at in np.ndindex(*pivots.shape[:-1]):
        for step, row in enumerate(pivots[at]):
            other = min(max(int(row) - 1, 0), m - 1)
            made[at][[step, other]] = made[at][[other, step]]
    return made


# ------------------------------------------------------------------------------------ solving


def _solve_type(call: Call) -> tuple[Type, ...]:
    check_one_dtype(call)
    batch, n, _ = _matrix(call, square=True)
    other, rows, columns = _matrix(call, 1)
    same_dim(call, n, rows, "the sides of a matrix and its right-hand sides")
    if len(batch) != len(other):
        raise call.error("TW1202", f"{call.op} takes stacks of one shape; they do not broadcast")
    for a, b in zip(batch, other, strict=True):
        same_dim(call, a, b, "the dimensions of stacks")
    return (_type(call, *batch, n, columns),)


def _solve(call: Call, a: Array, b: Array) -> Array:
    n, made, wide = a.shape[-1], _wide(b), _wide(a)
    for step in range(n):
        i = step if call["lower"] else n - 1 - step
        known = slice(0, i) if call["lower"] else slice(i + 1, n)
        made[..., i, :] -= np.einsum("...k,...kc->...c", wide[..., i, known], made[..., known, :])
        if not call["unit"]:
            made[..., i, :] /= wide[..., i, i, None]
    return made.astype(b.dtype)


# ------------------------------------------------------------------------------------ QR


def _householder_type(call: Call) -> tuple[Type, ...]:
    batch, m, n = _matrix(call)
    return _type(call, *batch, m, n), _type(call, *batch, _least(m, n))


def _householder(call: Call, x: Array) -> tuple[Array, Array]:
    m, n = x.shape[-2:]
    packed = _wide(x)
    tau = np.zeros((*x.shape[:-2], min(m, n)))
    for at in np.ndindex(*x.shape[:-2]):
        a = packed[at]
        for j in range(min(m, n)):
            rest = np.sqrt(np.sum(a[j + 1 :, j] ** 2))
            if rest == 0:
                continue
            beta = -np.copysign(np.sqrt(a[j, j] ** 2 + rest**2), a[j, j])
            tau[(*at, j)] = (beta - a[j, j]) / beta
            a[j + 1 :, j] /= a[j, j] - beta
            a[j, j] = beta
            row = tau[(*at, j)] * (a[j, j + 1 :] + a[j + 1 :, j] @ a[j + 1 :, j + 1 :])
            a[j, j + 1 :] -= row
            a[j + 1 :, j + 1 :] -= np.outer(a[j + 1 :, j], row)
    return packed.astype(x.dtype), tau.astype(x.dtype)


def _reflected_type(call: Call) -> tuple[Type, ...]:
    check_one_dtype(call)
    batch, m, n = _matrix(call)
    return (_type(call, *batch, m, n),)


def _reflected(call: Call, x: Array, tau: Array) -> Array:
    m, n = x.shape[-2:]
    made = np.zeros(x.shape)
    made[..., range(min(m, n)), range(min(m, n))] = 1
    for at in np.ndindex(*x.shape[:-2]):
        q = made[at]
        for j in range(tau.shape[-1] - 1, -1, -1):
            v = np.concatenate([[1.0], _wide(x[at])[j + 1 :, j]])
            q[j:] -= np.outer(v, float(tau[(*at, j)]) * (v @ q[j:]))
    return made.astype(x.dtype)


# ------------------------------------------------------------------------------------ spectra


def _eigh_type(call: Call) -> tuple[Type, ...]:
    batch, n, _ = _matrix(call, square=True)
    return _type(call, *batch, n), _type(call, *batch, n, n)


def _signs(vectors: Array) -> Array:
    """1 or -1 for each column: makes its first element of the largest magnitude positive."""
    if not vectors.size:
        return np.ones((*vectors.shape[:-2], 1, vectors.shape[-1]))
    at = np.argmax(np.abs(vectors), axis=-2, keepdims=True)
    return np.where(np.take_along_axis(vectors, at, axis=-2) < 0, -1.0, 1.0)


def _eigh(call: Call, x: Array) -> tuple[Array, Array]:
    values, vectors = np.linalg.eigh(_wide(x), UPLO="L")
    vectors = vectors * _signs(vectors)
    return values.astype(x.dtype), vectors.astype(x.dtype)


def _svd_type(call: Call) -> tuple[Type, ...]:
    batch, m, n = _matrix(call)
    if sym.prove(sym.lt(m, n)):
        raise call.error("TW1202", "svd takes matrices with at least as many rows as columns")
    return _type(call, *batch, m, n), _type(call, *batch, n), _type(call, *batch, n, n)


def _svd(call: Call, x: Array) -> tuple[Array, Array, Array]:
    u, s, v = np.linalg.svd(_wide(x), full_matrices=False)
    v = np.swapaxes(v, -1, -2)
    u = np.where(s[..., None, :] == 0, 0.0, u * _signs(v))
    return u.astype(x.dtype), s.astype(x.dtype), (v * _signs(v)).astype(x.dtype)


OPS = (
    Op(
        "cholesky",
        "The lower triangular factor l of matrices l @ l', whose lower triangles are read, and "
        "info.",
        (Input("x", FLOAT),),
        _cholesky_type,
        _cholesky,
        OPAQUE,
    ),
    Op(
        "lu",
        "Both triangular factors, packed, by elimination with partial pivoting; the row, counted "
        "from 1, that each step exchanged with; and info.",
        (Input("x", FLOAT),),
        _lu_type,
        _lu,
        OPAQUE,
    ),
    Op(
        "row_order",
        "The order of `rows` rows of a matrix after the exchanges given by pivots.",
        (Input("pivots", INTEGER), Input("rows", INTEGER, folds=True)),
        _row_order_type,
        _row_order,
        OPAQUE,
    ),
    Op(
        "triangular_solve",
        "The solutions of a @ x = b for triangular matrices a; the other triangle is not read. "
        "`unit`: the diagonal is 1.",
        (Input("a", FLOAT), Input("b", FLOAT)),
        _solve_type,
        _solve,
        OPAQUE,
        (Attr("lower", bool, True), Attr("unit", bool, False)),
    ),
    Op(
        "householder",
        "The factor r of q @ r, and below its diagonal the Householder vectors of q, without "
        "their leading 1; and the factor tau of each.",
        (Input("x", FLOAT),),
        _householder_type,
        _householder,
        OPAQUE,
    ),
    Op(
        "householder_product",
        "The product of reflections, packed as by `householder`; as many of its columns as they "
        "have.",
        (Input("x", FLOAT), Input("tau", FLOAT)),
        _reflected_type,
        _reflected,
        OPAQUE,
    ),
    Op(
        "eigh",
        "The eigenvalues, ascending, and eigenvectors of symmetric matrices, whose lower "
        "triangles are read. In each vector, the first element of the largest magnitude is "
        "positive.",
        (Input("x", FLOAT),),
        _eigh_type,
        _eigh,
        OPAQUE,
    ),
    Op(
        "svd",
        "u, s and v of u @ diag(s) @ v', s descending, for at least as many rows as columns. "
        "Columns of u for singular values of zero are zero; in each column of v, the first "
        "element of the largest magnitude is positive.",
        (Input("x", FLOAT),),
        _svd_type,
        _svd,
        OPAQUE,
    ),
)
