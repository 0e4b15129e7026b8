"""Matrix factorizations, and solvers, inverses, determinants and functions based on them."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import sym
from tilewright.base.dtype import F64, I64
from tilewright.frontends.common.loops import Values, repeated
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.linalg import matmul
from tilewright.frontends.torch.rules.shape import slice_axis, transpose
from tilewright.graph import Value
from tilewright.graph.ops.rules import broadcast_dims
from tilewright.graph.types import items_of
from tilewright.sym import ONE, Const, Expr

TAYLOR = 14  # terms of the exponential of a matrix whose norm is at most 1/2
EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52}


def transposed(node: Context, x: Value) -> Value:
    """x with its last two axes exchanged."""
    rank = len(node.shape(x))
    return transpose(node, x, (*range(rank - 2), rank - 1, rank - 2))


def _identity(node: Context, like: Value) -> Value:
    """Identity matrices in the shape of `like`, a batch of square matrices."""
    dims = node.shape(like)
    row = node.iota(dims[-1])
    same = node.emit("equal", node.unsqueeze(row, 1), row)
    return node.emit("expand", node.cast(same, like.tensor.dtype), shape=items_of(dims))


def _expanded(node: Context, x: Value, lead: Sequence[Expr]) -> Value:
    """A batch of matrices, expanded to batch dimensions."""
    dims = (*lead, *node.shape(x)[-2:])
    return x if node.shape(x) == dims else node.emit("expand", x, shape=items_of(dims))


def _batch_dims(node: Context, a: Value, b: Value) -> list[Expr]:
    """The batch dimensions that two batches of matrices broadcast to."""
    one, two = (list(node.shape(x)[:-2]) for x in (a, b))
    rank = max(len(one), len(two))
    one, two = ([ONE] * (rank - len(dims)) + dims for dims in (one, two))
    found = [broadcast_dims(p, q) for p, q in zip(one, two, strict=True)]
    return [p if joint is None else joint for joint, p in zip(found, one, strict=True)]


def triangular_solve(
    node: Context, a: Value, b: Value, *, lower: bool, unit: bool = False
) -> Value:
    lead = _batch_dims(node, a, b)
    pair = (_expanded(node, x, lead) for x in (a, b))
    return node.emit("triangular_solve", *pair, lower=lower, unit=unit)


def _diagonal(node: Context, x: Value) -> Value:
    """The diagonals [..., k] of [..., m, n]: masked sums of one element per row or column."""
    m, n = node.shape(x)[-2:]
    on = node.emit("equal", node.unsqueeze(node.iota(m), 1), node.iota(n))
    kept = node.emit("where", on, x, node.like(x, 0))
    short = _is_less(n, m)
    axis = len(node.shape(x)) - (2 if short else 1)
    return node.emit("reduce_sum", kept, axes=(axis,), keepdims=False)


def _is_less(a: Expr, b: Expr) -> bool:
    if not (isinstance(a, Const) and isinstance(b, Const)):
        if a is b:
            return False
        raise Skip("factors of matrices of dynamic, different sides")
    return int(a.value) < int(b.value)


def _triangle(node: Context, x: Value, *, lower: bool, unit: bool = False) -> Value:
    """One triangle of x, zeros elsewhere; with `unit`, ones on the diagonal."""
    m, n = node.shape(x)[-2:]
    row, column = node.unsqueeze(node.iota(m), 1), node.iota(n)
    order = ("greater" if unit else "greater_equal") if lower else "less_equal"
    kept = node.emit("where", node.emit(order, row, column), x, node.like(x, 0))
    if unit:
        on = node.emit("equal", row, column)
        kept = node.emit("where", on, node.like(x, 1), kept)
    return kept


def _check_info(node: Context, info: Value, message: str) -> None:
    """Check at run time that a factorization succeeded."""
    axes = tuple(range(len(node.shape(info))))
    most = node.emit("reduce_max", info, axes=axes, keepdims=False) if axes else info
    node.importer.check(node.emit("less_equal", most, 0), message, node)


# ------------------------------------------------------------------------------------ Cholesky


def _factor(node: Context, x: Value) -> tuple[Value, Value]:
    upper = bool(node.get("upper", False))
    lower, info = node.emit_many("cholesky", transposed(node, x) if upper else x, outputs=2)
    return transposed(node, lower) if upper else lower, info


def _cholesky(node: Context) -> Value:
    made, info = _factor(node, node["self"])
    if all(dim is not sym.ZERO for dim in node.dims()):
        _check_info(node, info, "cholesky: a matrix is not positive-definite")
    return made


def _cholesky_solve(node: Context) -> Value:
    """l @ l' @ x = b."""
    return _by_cholesky(node, node["input2"], node["self"])


def _by_cholesky(node: Context, factor: Value, b: Value) -> Value:
    lower = transposed(node, factor) if node.get("upper", False) else factor
    first = triangular_solve(node, lower, b, lower=True)
    return triangular_solve(node, transposed(node, lower), first, lower=False)


def _cholesky_inverse(node: Context) -> Value:
    return _by_cholesky(node, node["self"], _identity(node, node["self"]))


# ------------------------------------------------------------------------------------ LU


def _lu(node: Context, x: Value) -> tuple[Value, Value, Value]:
    packed, pivots, info = node.emit_many("lu", x, outputs=3)
    return packed, pivots, info


def _permutation(node: Context, pivots: Value, rows: Expr, like: Value) -> Value:
    """P of P @ L @ U: column i is the unit vector of the row at position i."""
    (item,) = items_of([rows])
    order = node.emit("row_order", pivots, rows=item)
    place = node.unsqueeze(node.iota(rows), 1)
    same = node.emit("equal", place, node.unsqueeze(order, len(node.shape(order)) - 1))
    return node.cast(same, like.tensor.dtype)


def _lu_factor(node: Context) -> tuple[Value, Value, Value]:
    if not node.get("pivot", True):
        raise Skip("LU without pivots")
    return _lu(node, node["A"])


def _unpacked(node: Context, packed: Value) -> tuple[Value, Value]:
    m, n = node.shape(packed)[-2:]
    rank = len(node.shape(packed))
    left = slice_axis(node, packed, rank - 1, 0, m) if _is_less(m, n) else packed
    right = slice_axis(node, packed, rank - 2, 0, n) if _is_less(n, m) else packed
    return _triangle(node, left, lower=True, unit=True), _triangle(node, right, lower=False)


def _linalg_lu(node: Context) -> tuple[Value, Value, Value]:
    if not node.get("pivot", True):
        raise Skip("LU without pivots")
    packed, pivots, _ = _lu(node, node["A"])
    return _permutation(node, pivots, node.dims("A")[-2], packed), *_unpacked(node, packed)


def _lu_unpack(node: Context) -> tuple[Value, Value, Value]:
    packed, pivots = node["LU_data"], node["LU_pivots"]
    nothing = node.full(0, packed.tensor.dtype, (0,))
    order = nothing
    if node.get("unpack_pivots", True):
        order = _permutation(node, pivots, node.dims("LU_data")[-2], packed)
    if not node.get("unpack_data", True):
        return order, nothing, nothing
    return order, *_unpacked(node, packed)


def _by_lu(node: Context, packed: Value, pivots: Value, b: Value, *, adjoint: bool) -> Value:
    """P @ L @ U @ x = b, or (P @ L @ U)' @ x = b."""
    order = _permutation(node, pivots, node.shape(packed)[-2], packed)
    if adjoint:
        across = transposed(node, packed)
        first = triangular_solve(node, across, b, lower=True)
        return matmul(node, order, triangular_solve(node, across, first, lower=False, unit=True))
    first = triangular_solve(
        node, packed, matmul(node, transposed(node, order), b), lower=True, unit=True
    )
    return triangular_solve(node, packed, first, lower=False)


def _sided(node: Context, packed: Value, pivots: Value, b: Value, *, adjoint: bool) -> Value:
    if node.get("left", True):
        return _by_lu(node, packed, pivots, b, adjoint=adjoint)
    made = _by_lu(node, packed, pivots, transposed(node, b), adjoint=not adjoint)
    return transposed(node, made)


def _lu_solve(node: Context) -> Value:
    adjoint = bool(node.get("adjoint", False))
    return _sided(node, node["LU"], node["pivots"], node["B"], adjoint=adjoint)


def _solve(node: Context) -> tuple[Value, Value, Value, Value]:
    a, b = node["A"], node["B"]
    packed, pivots, info = _lu(node, a)
    if node.get("check_errors", False):
        _check_info(node, info, "solve: a matrix is singular")
    rank = node.rank("B")
    is_vector = rank == 1 or (node.rank("A") - 1 == rank and node.dims("B") == node.dims("A")[:-1])
    if is_vector:
        made = _sided(node, packed, pivots, node.unsqueeze(b, rank), adjoint=False)
        return node.reshape(made, node.out), packed, pivots, info
    return _sided(node, packed, pivots, b, adjoint=False), packed, pivots, info


def _inverse(node: Context) -> tuple[Value, Value]:
    packed, pivots, info = _lu(node, node["A"])
    if node.get("check_errors", False):
        _check_info(node, info, "inv: a matrix is singular")
    made = _by_lu(node, packed, pivots, _identity(node, node["A"]), adjoint=False)
    return made, info


def _sign(node: Context, pivots: Value, like: Value) -> Value:
    """The sign of the permutation, 1 or -1."""
    (count,) = node.shape(pivots)[-1:]
    stays = node.emit("equal", node.cast(pivots, I64), node.emit("add", node.iota(count), 1))
    one = node.like(like, 1)
    signs = node.emit("where", stays, one, node.like(like, -1))
    return node.emit("reduce_prod", signs, axes=(len(node.shape(signs)) - 1,), keepdims=False)


def _det(node: Context) -> tuple[Value, Value, Value]:
    packed, pivots, _ = _lu(node, node["A"])
    wide = node.cast(_diagonal(node, packed), F64)
    axis = len(node.shape(wide)) - 1
    made = node.emit("reduce_prod", wide, axes=(axis,), keepdims=False)
    made = node.emit("mul", made, _sign(node, pivots, wide))
    return node.cast(made, node.to), packed, pivots


def _slogdet(node: Context) -> tuple[Value, Value, Value, Value]:
    packed, pivots, _ = _lu(node, node["A"])
    wide = node.cast(_diagonal(node, packed), F64)
    axis = (len(node.shape(wide)) - 1,)
    signs = node.emit("reduce_prod", node.emit("sign", wide), axes=axis, keepdims=False)
    sign = node.emit("mul", signs, _sign(node, pivots, wide))
    logs = node.emit("log", node.emit("abs", wide))
    total = node.emit("reduce_sum", logs, axes=axis, keepdims=False)
    return node.cast(sign, node.to), node.cast(total, node.to), packed, pivots


def _check_errors(node: Context) -> tuple[()]:
    _check_info(
        node, node["info"], f"{node.get('api_name', 'linalg')}: no factors of a matrix exist"
    )
    return ()


# ------------------------------------------------------------------------------------ triangles


def _triangular(node: Context) -> Value:
    a, b = node["self"], node["B"]
    upper, unit = bool(node.args["upper"]), bool(node.get("unitriangular", False))
    if node.get("left", True):
        return triangular_solve(node, a, b, lower=not upper, unit=unit)
    return transposed(
        node,
        triangular_solve(node, transposed(node, a), transposed(node, b), lower=upper, unit=unit),
    )


def _triangular_solve(node: Context) -> tuple[Value, Value]:
    a, b = node["A"], node["self"]
    upper, unit = bool(node.get("upper", True)), bool(node.get("unitriangular", False))
    across = bool(node.get("transpose", False))
    lead = _batch_dims(node, a, b)
    copy = _expanded(node, a, lead)
    left = transposed(node, a) if across else a
    return triangular_solve(node, left, b, lower=upper == across, unit=unit), copy


# ------------------------------------------------------------------------------------ QR


def _columns(node: Context, packed: Value, count: Expr) -> Value:
    """A given number of columns of reflections, padded with zeros."""
    *lead, m, n = node.shape(packed)
    axis = len(lead) + 1
    if _is_less(count, n):
        return slice_axis(node, packed, axis, 0, count)
    if not _is_less(n, count):
        return packed
    more = node.full(0, packed.tensor.dtype, (*lead, m, sym.simplify(sym.sub(count, n))))
    return node.emit("concat", packed, more, axis=axis)


def _qr(node: Context) -> tuple[Value, Value]:
    x, mode = node["A"], node.get("mode", "reduced")
    packed, tau = node.emit_many("householder", x, outputs=2)
    m, n = node.shape(x)[-2:]
    least = m if _is_less(m, n) else n
    rows = m if mode == "complete" else least
    cut = slice_axis(node, packed, node.rank("A") - 2, 0, rows) if _is_less(rows, m) else packed
    r = _triangle(node, cut, lower=False)
    if mode == "r":
        return node.full(0, x.tensor.dtype, (0,)), r
    return node.emit("householder_product", _columns(node, packed, rows), tau), r


def _ormqr(node: Context) -> Value:
    """A product of reflections, or its transpose, times a matrix from either side."""
    packed, tau, other = node["self"], node["input2"], node["input3"]
    q = node.emit("householder_product", _columns(node, packed, node.dims()[-2]), tau)
    q = transposed(node, q) if node.get("transpose", False) else q
    return matmul(node, q, other) if node.get("left", True) else matmul(node, other, q)


# ------------------------------------------------------------------------------------ spectra


def _eigh(node: Context) -> tuple[Value, Value]:
    x = node["A"]
    given = transposed(node, x) if str(node.get("UPLO", "L")).upper() == "U" else x
    values, vectors = node.emit_many("eigh", given, outputs=2)
    if not node.get("compute_v", True):
        vectors = node.full(0, x.tensor.dtype, node.dims_of(node.results[1]))
    return values, vectors


def _complete(node: Context, u: Value, columns: Expr) -> Value:
    """Complete orthonormal columns, some of which may be zero, to a given number.

    Householder reflections of orthonormal columns reproduce them up to signs, those of R's
    diagonal.
    """
    packed, tau = node.emit_many("householder", u, outputs=2)
    q = node.emit("householder_product", _columns(node, packed, columns), tau)
    signs = _diagonal(node, packed)
    one = node.like(signs, 1)
    signs = node.emit("where", node.emit("less", signs, 0.0), node.like(signs, -1), one)
    *lead, count = node.shape(signs)
    if _is_less(count, columns):
        more = node.full(1, u.tensor.dtype, (*lead, sym.simplify(sym.sub(columns, count))))
        signs = node.emit("concat", signs, more, axis=len(lead))
    return node.emit("mul", q, node.unsqueeze(signs, len(lead)))


def svd(node: Context, x: Value, *, full: bool = False) -> tuple[Value, Value, Value]:
    """u, s, v' of x."""
    m, n = node.shape(x)[-2:]
    across = _is_less(m, n)
    u, s, v = node.emit_many("svd", transposed(node, x) if across else x, outputs=3)
    long, short = (n, m) if across else (m, n)
    u = _complete(node, u, long if full else short)
    if across:
        return v, s, transposed(node, u)
    return u, s, transposed(node, v)


def _svd(node: Context) -> tuple[Value, Value, Value]:
    x = node["A"]
    if not node.get("compute_uv", True):
        nothing = [node.full(0, node.to, node.dims_of(node.results[at])) for at in (0, 2)]
        m, n = node.shape(x)[-2:]
        given = transposed(node, x) if _is_less(m, n) else x
        return nothing[0], node.emit_many("svd", given, outputs=3)[1], nothing[1]
    return svd(node, x, full=bool(node.get("full_matrices", False)))


def _pseudo_inverse(node: Context) -> Value:
    """v @ diag(1 / s) @ u', without singular values below a tolerance."""
    x = node["self"]
    m, n = node.shape(x)[-2:]
    of = x.tensor.dtype
    if node.get("hermitian", False):  # u @ diag(values) @ u', with the signs in u
        values, vectors = node.emit_many("eigh", x, outputs=2)
        s = node.emit("abs", values)
        signs = node.emit("sign", values)
        u = node.emit("mul", vectors, node.unsqueeze(signs, len(node.shape(signs)) - 1))
        v = transposed(node, vectors)
    else:
        u, s, v = svd(node, x)
    rank = len(node.shape(s))
    if not (isinstance(m, Const) and isinstance(n, Const)):
        raise Skip("the pseudo-inverse of a matrix of dynamic sides")
    if sym.ZERO in (m, n):
        return node.full(0, of, node.out)
    usual = EPSILON.get(of.name, 2.0**-23) * max(int(m.value), int(n.value))
    first = node.emit("reduce_max", s, axes=(rank - 1,), keepdims=True)
    absolute = node.get("atol")
    relative = node.get("rcond", node.get("rtol"))
    if relative is None and absolute is not None:  # the default: 0 if an absolute one is given
        bound = node.value(absolute, of)
        given = node.emit("greater", bound, 0.0)
        relative = node.emit("where", given, node.like(s, 0), node.like(s, usual))
    share = node.value(usual if relative is None else relative, of)
    limit = node.emit("mul", first, _on_axis(node, share))
    if absolute is not None:
        limit = node.emit("maximum", limit, _on_axis(node, node.value(absolute, of)))
    inverse = node.emit("where", node.emit("greater", s, limit),
                        node.emit("reciprocal", s), node.like(s, 0))  # fmt: skip
    scaled = node.emit("mul", transposed(node, v), node.unsqueeze(inverse, rank - 1))
    return matmul(node, scaled, transposed(node, u))


def _on_axis(node: Context, x: Value) -> Value:
    """A number per matrix of a batch, broadcast against a vector per matrix."""
    rank = len(node.shape(x))
    return node.unsqueeze(x, rank) if rank else x


# ------------------------------------------------------------------------------------ exponential


def _exponential(node: Context) -> Value:
    """Scaling and squaring: halve x until its norm is at most 1/2, Taylor series, square."""
    x = node.cast(node["self"], F64)
    rank = len(node.shape(x))
    if sym.ZERO in node.shape(x):
        return node["self"]
    sums = node.emit("reduce_sum", node.emit("abs", x), axes=(rank - 2,), keepdims=True)
    norm = node.emit("reduce_max", sums, axes=(rank - 1,), keepdims=True)
    steps = node.emit("ceil", node.emit("log2", node.emit("maximum", norm, 0.5)))
    steps = node.emit("maximum", node.emit("add", steps, 1.0), 0.0)
    x = node.emit("mul", x, node.emit("exp2", node.emit("neg", steps)))
    made = unit = _identity(node, x)
    for term in range(TAYLOR, 0, -1):  # 1 + x (1 + x/2 (1 + x/3 ...))
        made = node.emit("add", unit, node.emit("div", matmul(node, x, made), float(term)))
    count = node.cast(steps, I64)
    most = node.emit("reduce_max", count, axes=tuple(range(rank)), keepdims=False)
    return node.cast(_squared(node, made, count, most), node.to)


def _squared(node: Context, x: Value, count: Value, most: Value) -> Value:
    """Square each matrix of a batch as often as its count says."""

    def step(inner: Context, i: Value, states: Values, fixed: Values) -> Values:
        twice = matmul(inner, states[0], states[0])
        return (inner.emit("where", inner.emit("less", i, fixed[0]), twice, states[0]),)

    return repeated(node, most, (x,), (count,), step)[0]


RULES: dict[str, Rule] = {
    "aten.cholesky": _cholesky,
    "aten.linalg_cholesky_ex": lambda node: _factor(node, node["self"]),
    "aten.cholesky_solve": _cholesky_solve,
    "aten.cholesky_inverse": _cholesky_inverse,
    "aten.linalg_lu_factor_ex": _lu_factor,
    "aten.linalg_lu": _linalg_lu,
    "aten.lu_unpack": _lu_unpack,
    "aten.linalg_lu_solve": _lu_solve,
    "aten._linalg_solve_ex": _solve,
    "aten.linalg_inv_ex": _inverse,
    "aten._linalg_det": _det,
    "aten._linalg_slogdet": _slogdet,
    "aten._linalg_check_errors": _check_errors,
    "aten.linalg_solve_triangular": _triangular,
    "aten.triangular_solve": _triangular_solve,
    "aten.geqrf": lambda node: node.emit_many("householder", node["self"], outputs=2),
    "aten.linalg_qr": _qr,
    "aten.linalg_householder_product": lambda node: node.emit(
        "householder_product", node["input"], node["tau"]
    ),
    "aten.ormqr": _ormqr,
    "aten._linalg_eigh": _eigh,
    "aten._linalg_svd": _svd,
    "aten.linalg_pinv.atol_rtol_tensor": _pseudo_inverse,
    "aten.linalg_pinv.atol_rtol_float": _pseudo_inverse,
    "aten.linalg_pinv": _pseudo_inverse,
    "aten.linalg_pinv.rcond_tensor": _pseudo_inverse,
    "aten.linalg_matrix_exp": _exponential,
}
