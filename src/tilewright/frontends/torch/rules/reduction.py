"""Reductions and running sums along axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import sym
from tilewright.base.dtype import BOOL, F32, F64, I64, U8, U64, DType
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.graph import Value
from tilewright.graph.build import Builder
from tilewright.graph.ops.shape import product
from tilewright.graph.types import TensorType, items_of
from tilewright.sym import Const, Expr


def _keep(node: Context) -> bool:
    return bool(node.get("keepdim", False))


def _reduce(op: str) -> Rule:
    """Reduce in the result's element type; booleans as integers."""

    def rule(node: Context) -> Value:
        x = node.cast(node["self"], node.to)
        x = node.cast(x, I64) if node.to.is_bool else x
        return node.cast(node.emit(op, x, axes=node.axes(), keepdims=_keep(node)), node.to)

    return rule


def _extreme(op: str) -> Rule:
    def rule(node: Context) -> Value:
        return node.emit(op, node["self"], axes=node.axes(), keepdims=_keep(node))

    return rule


def _truth(op: str) -> Rule:
    """any and all; for bytes, the result is a byte."""

    def rule(node: Context) -> Value:
        x = node.cast(node["self"], BOOL)
        return node.cast(node.emit(op, x, axes=node.axes(), keepdims=_keep(node)), node.to)

    return rule


def count_of(dims: Sequence[Expr], axes: Sequence[int]) -> Expr:
    """The number of elements reduced to one."""
    return product([dims[axis] for axis in axes])


def moments(
    node: Context, x: Value, axes: tuple[int, ...], correction: float
) -> tuple[Value, Value]:
    """Variance with the divisor count - correction, and mean; reduced axes are kept."""
    of = x.tensor.dtype
    mean = node.emit("reduce_mean", x, axes=axes, keepdims=True)
    off = node.emit("sub", x, mean)
    total = node.emit("reduce_sum", node.emit("mul", off, off), axes=axes, keepdims=True)
    count = count_of(node.shape(x), axes)
    if isinstance(count, Const):
        by = max(float(count.value) - correction, 0.0)
        return node.emit("div", total, node.value(by, of)), mean
    left = node.emit("sub", node.cast(node.number(count), of), float(correction))
    return node.emit("div", total, node.emit("maximum", left, 0.0)), mean


def _correction(node: Context) -> float:
    if "unbiased" in node.args:
        return 1.0 if node.args["unbiased"] else 0.0
    return float(node.get("correction", 1.0))


def _computed(of: DType) -> DType:
    return F32 if of.is_float and of.bits < 32 else of


def _variance(node: Context) -> tuple[Value, Value]:
    axes = node.axes()
    x = node["self"]
    wide = node.cast(x, _computed(x.tensor.dtype))
    both = moments(node, wide, axes, _correction(node))
    if not _keep(node):
        kept = [dim for at, dim in enumerate(node.dims()) if at not in axes]
        both = (node.reshape(both[0], kept), node.reshape(both[1], kept))
    return both


def _var(node: Context) -> Value:
    return node.cast(_variance(node)[0], node.to)


def _std(node: Context) -> Value:
    return node.cast(node.emit("sqrt", _variance(node)[0]), node.to)


def _with_mean(root: bool) -> Rule:
    def rule(node: Context) -> tuple[Value, Value]:
        variance, mean = _variance(node)
        spread = node.emit("sqrt", variance) if root else variance
        return node.cast(spread, node.to), node.cast(mean, node.to)

    return rule


# ------------------------------------------------------------------------------------ places


def comparable(node: Context, x: Value) -> Value:
    """x in an ordered type: booleans as integers."""
    return node.cast(x, U8) if x.tensor.dtype.is_bool else x


def _arg(op: str) -> Rule:
    def rule(node: Context) -> Value:
        x = comparable(node, node["self"])
        if not node.rank():
            return node.constant(0)
        if node.get("dim") is None:
            flat = node.reshape(x, (product(node.dims()),))
            found = node.emit(op, flat, axis=0, keepdims=False)
            return node.reshape(found, node.out)
        return node.emit(op, x, axis=node.dim(), keepdims=_keep(node))

    return rule


def _with_places(kind: str) -> Rule:
    """The maximum or minimum along an axis, and its position."""

    def rule(node: Context) -> tuple[Value, Value]:
        x = node["self"]
        if not node.rank():
            return x, node.constant(0)
        axis, keep = node.dim(), _keep(node)
        best = node.emit(f"reduce_{kind}", x, axes=(axis,), keepdims=keep)
        where = node.emit(f"arg_{kind}", comparable(node, x), axis=axis, keepdims=keep)
        return best, where

    return rule


def _running(op: str) -> Rule:
    def rule(node: Context) -> Value:
        x = node.cast(node["self"], node.to)
        return node.emit(op, x, axis=node.dim()) if node.rank() else x

    return rule


def norm(node: Context) -> Value:
    """The p-norm along axes."""
    p = node.get("ord", node.get("p", 2))
    x = node.emit("abs", node.cast(node["self"], _computed(node.to)))
    where: dict[str, Any] = {"axes": node.axes(), "keepdims": _keep(node)}
    if p == float("inf"):
        made = node.emit("reduce_max", x, **where)
    elif p == float("-inf"):
        made = node.emit("reduce_min", x, **where)
    elif p == 0:
        made = node.emit("reduce_sum", node.cast(node.emit("not_equal", x, 0.0), x.tensor.dtype),
                         **where)  # fmt: skip
    elif p == 1:
        made = node.emit("reduce_sum", x, **where)
    elif p == 2:
        made = node.emit("sqrt", node.emit("reduce_sum", node.emit("mul", x, x), **where))
    else:
        powers = node.emit("reduce_sum", node.emit("pow", x, float(p)), **where)
        made = node.emit("pow", powers, 1 / p)
    return node.cast(made, node.to)


def _dist(node: Context) -> Value:
    """The p-norm of a difference."""
    a, b = node.cast(node["self"], node.to), node.cast(node["other"], node.to)
    apart = node.emit("abs", node.emit("sub", a, b))
    flat = node.reshape(apart, (product(node.shape(apart)),))
    p = float(node.get("p", 2))
    if p == float("-inf"):
        return node.emit("reduce_min", flat, axes=(0,), keepdims=False)
    return row_norms(node, flat, p)


def _distances(node: Context) -> Value:
    """The p-norms of the differences of all pairs of rows of two batches of matrices."""
    a, b, p = node["x1"], node["x2"], node.args["p"]
    left, right = node.unsqueeze(a, -2), node.unsqueeze(b, -3)
    apart = node.emit("abs", node.emit("sub", left, right))
    return row_norms(node, apart, p)


def row_norms(node: Context, x: Value, p: float) -> Value:
    """The p-norms along the last axis of non-negative numbers."""
    of, axis = x.tensor.dtype, (len(node.shape(x)) - 1,)
    if p == 0:
        differ = node.cast(node.emit("not_equal", x, 0.0), of)
        return node.emit("reduce_sum", differ, axes=axis, keepdims=False)
    if p == float("inf"):
        if node.shape(x)[-1] is sym.ZERO:
            return node.full(0.0, of, node.out)
        return node.emit("reduce_max", x, axes=axis, keepdims=False)
    if p == 1:
        return node.emit("reduce_sum", x, axes=axis, keepdims=False)
    powers = node.emit("mul", x, x) if p == 2 else node.emit("pow", x, float(p))
    total = node.emit("reduce_sum", powers, axes=axis, keepdims=False)
    return node.emit("sqrt", total) if p == 2 else node.emit("pow", total, 1 / p)


def _own_distances(node: Context) -> Value:
    """The distances of each row to all later rows."""
    rows = node.dims()[0]
    if not isinstance(rows, Const):
        raise Skip("pdist of a dynamic number of rows")
    pairs = [(i, j) for i in range(int(rows.value)) for j in range(i + 1, int(rows.value))]
    if not pairs:
        return node.full(0.0, node.to, node.out)
    first, second = (node.constant([pair[at] for pair in pairs]) for at in (0, 1))
    a, b = (node.emit("gather", node["self"], at, axis=0) for at in (first, second))
    return row_norms(node, node.emit("abs", node.emit("sub", a, b)), node.get("p", 2.0))


def _hash(node: Context) -> Value:
    """The exclusive or of all bits along axes; floats are converted to f64 first."""
    x, rank = node["self"], node.rank()
    is_float = x.tensor.dtype.is_float
    bits = node.emit("bitcast", node.cast(x, F64), to=U64) if is_float else node.cast(x, U64)
    if not rank:
        return bits
    axes, dims = node.axes(), node.dims()
    body = Builder()
    pair = [body.param(name, TensorType(U64, ())) for name in ("a", "b")]
    join = body.graph(body.add("bit_xor", *pair), name="join")
    (made,) = node.builder.add_many(
        "reduce_window",
        bits,
        node.value(0, U64),
        outputs=1,
        bodies=(join,),
        loc=node.loc,
        window=items_of([dim if axis in axes else 1 for axis, dim in enumerate(dims)]),
        strides=(1,) * rank,
        dilations=(1,) * rank,
        pads=(0,) * (2 * rank),
    )
    return node.reshape(made, node.out)


RULES: dict[str, Rule] = {
    "aten.hash_tensor": _hash,
    **{f"aten.sum{kind}": _reduce("reduce_sum") for kind in ("", ".dim_IntList")},
    **{f"aten.mean{kind}": _reduce("reduce_mean") for kind in ("", ".dim")},
    **{f"aten.prod{kind}": _reduce("reduce_prod") for kind in ("", ".dim_int")},
    "aten.amax": _extreme("reduce_max"),
    "aten.amin": _extreme("reduce_min"),
    "aten.max": _extreme("reduce_max"),
    "aten.min": _extreme("reduce_min"),
    **{f"aten.any{kind}": _truth("reduce_max") for kind in ("", ".dim", ".dims")},
    **{f"aten.all{kind}": _truth("reduce_min") for kind in ("", ".dim", ".dims")},
    **{f"aten.var{kind}": _var for kind in ("", ".dim", ".correction")},
    **{f"aten.std{kind}": _std for kind in ("", ".dim", ".correction")},
    **{f"aten.var_mean{kind}": _with_mean(root=False) for kind in ("", ".dim", ".correction")},
    **{f"aten.std_mean{kind}": _with_mean(root=True) for kind in ("", ".dim", ".correction")},
    "aten.argmax": _arg("arg_max"),
    "aten.argmin": _arg("arg_min"),
    "aten.max.dim": _with_places("max"),
    "aten.min.dim": _with_places("min"),
    "aten.cumsum": _running("cumsum"),
    "aten.cumprod": _running("cumprod"),
    "aten.linalg_vector_norm": norm,
    "aten.dist": _dist,
    "aten._cdist_forward": _distances,
    "aten._pdist_forward": _own_distances,
}
