"""Matrix products."""

from __future__ import annotations

from tilewright.base.dtype import BOOL, I32, I64, DType
from tilewright.frontends.common.loops import Values, repeated
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.shape import transpose
from tilewright.graph import Value


def matmul(node: Context, a: Value, b: Value) -> Value:
    return node.emit("matmul", a, b)


def _product(first: str, second: str) -> Rule:
    return lambda node: matmul(node, node[first], node[second])


def _weighted(node: Context, product: Value, added: Value) -> Value:
    """beta * added + alpha * product; with beta = 0, NaN in `added` is ignored."""
    alpha, beta = node.get("alpha", 1), node.get("beta", 1)
    if alpha != 1:
        product = node.emit("mul", product, node.value(alpha, node.to))
    if beta == 0:
        return product
    if beta != 1:
        added = node.emit("mul", added, node.value(beta, node.to))
    return node.emit("add", product, added)


def _plus(first: str, second: str) -> Rule:
    def rule(node: Context) -> Value:
        return _weighted(node, matmul(node, node[first], node[second]), node["self"])

    return rule


def _addbmm(node: Context) -> Value:
    """Products summed over the batch."""
    products = matmul(node, node["batch1"], node["batch2"])
    total = node.emit("reduce_sum", products, axes=(0,), keepdims=False)
    return _weighted(node, total, node["self"])


def linear(node: Context) -> Value:
    """x times the transpose of the weights, plus a bias."""
    weight = node["weight"]
    rank = node.rank("weight")
    turned = transpose(node, weight, (1, 0)) if rank == 2 else weight
    made = matmul(node, node["input"], turned)
    bias = node.get("bias")
    return made if bias is None else node.emit("add", made, bias)


def _int_mm(node: Context) -> Value:
    """int8 GEMM with i32 results."""
    wide: DType = I32
    return matmul(node, node.cast(node["self"], wide), node.cast(node["mat2"], wide))


def _triangle(compare: str) -> Rule:
    """The part of a matrix on one side of a diagonal, zeros elsewhere."""

    def rule(node: Context) -> Value:
        x, (rows, columns) = node["self"], node.dims()[-2:]
        on = node.emit("sub", node.iota(columns), node.unsqueeze(node.iota(rows), 1))
        kept = node.emit(compare, on, node.value(node.get("diagonal", 0), on.tensor.dtype))
        if x.tensor.dtype is BOOL:
            return node.emit("logical_and", kept, x)
        return node.emit("where", kept, x, node.like(x, 0))

    return rule


def _trilinear(node: Context) -> Value:
    """The product of three tensors with added axes of one, summed along axes."""
    product: Value | None = None
    for at in (1, 2, 3):
        x = node[f"i{at}"]
        axes = node.args[f"expand{at}"]
        x = node.unsqueeze(x, *axes) if axes else x
        product = x if product is None else node.emit("mul", product, x)
    assert product is not None
    axes = tuple(node.args["sumdim"])
    return node.emit("reduce_sum", product, axes=axes, keepdims=False) if axes else product


def _grouped(first: str, second: str) -> Rule:
    """Grouped GEMM: groups of rows, each times a matrix of its own; `offs` has the ends of groups.

    A loop over groups, so that memory does not grow with their number.
    """

    def rule(node: Context) -> Value:
        a, b, ends = node[first], node[second], node.get("offs")
        if ends is None:
            return matmul(node, a, b)
        if (node.rank(first), node.rank(second)) != (2, 3):
            raise Skip(f"{node.op_type} of matrices whose columns are grouped")
        (count,) = node.shape(ends)
        none = node.full(0, node.to, node.out)
        wide = node.cast(ends, I64)
        (made,) = repeated(node, node.number(count), [none], [a, b, wide], _group)
        bias = node.get("bias")
        return made if bias is None else node.emit("add", made, bias)

    return rule


def _group(node: Context, i: Value, states: Values, fixed: Values) -> Values:
    """Compute the rows of group i; the others are unchanged."""
    a, b, ends = fixed
    end = node.emit("gather", ends, i, axis=0)
    before = node.emit("gather", ends, node.emit("maximum", node.emit("sub", i, 1), 0), axis=0)
    start = node.emit("where", node.emit("equal", i, 0), node.constant(0), before)
    row = node.unsqueeze(node.iota(node.shape(a)[0]), 1)
    mine = node.emit(
        "logical_and", node.emit("greater_equal", row, start), node.emit("less", row, end)
    )
    product = matmul(node, a, node.emit("gather", b, i, axis=0))
    return [node.emit("where", mine, node.cast(product, states[0].tensor.dtype), states[0])]


RULES: dict[str, Rule] = {
    "aten.mm": _product("self", "mat2"),
    "aten.bmm": _product("self", "mat2"),
    "aten.matmul": _product("self", "other"),
    "aten.mv": _product("self", "vec"),
    "aten.dot": _product("self", "tensor"),
    "aten.addmm": _plus("mat1", "mat2"),
    "aten.baddbmm": _plus("batch1", "batch2"),
    "aten.addmv": _plus("mat", "vec"),
    "aten.addbmm": _addbmm,
    "aten._trilinear": _trilinear,
    "aten.linear": linear,
    "aten._int_mm": _int_mm,
    "aten._grouped_mm": _grouped("self", "mat2"),
    "transformers.grouped_mm_fallback": _grouped("input", "weight"),
    "aten.tril": _triangle("less_equal"),
    "aten.triu": _triangle("greater_equal"),
}
