"""GEMM-like operators."""

from __future__ import annotations

import string
from collections.abc import Sequence

from tilewright import sym
from tilewright.base.dtype import F32
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.frontends.onnx.rules.tensors import Dim, dims, reshape, transpose
from tilewright.graph import Value
from tilewright.graph.types import items_of
from tilewright.sym import ONE, Expr


def gemm(node: Context) -> Value:
    """alpha * A @ B + beta * C."""
    a, b = node[0], node[1]
    if node.attr("transA", 0):
        a = transpose(node, a, 1, 0)
    if node.attr("transB", 0):
        b = transpose(node, b, 1, 0)
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    product = node.emit("matmul", a, b)
    if alpha != 1.0:
        product = node.emit("mul", product, alpha)
    c = node.get(2)
    if c is None or beta == 0.0:
        return product
    return node.emit("add", product, c if beta == 1.0 else node.emit("mul", c, beta))


def _matmul_integer(node: Context) -> Value:
    zeros = (by_row(node, node.get(2)), node.get(3))
    return node.emit("matmul_integer", node[0], node[1], *zeros)


def by_row(node: Context, zero: Value | None) -> Value | None:
    """Reshape a vector of zero points or scales per row to broadcast with the matrix."""
    if zero is None or zero.tensor.rank != 1 or zero.tensor.static_shape == (1,):
        return zero
    return node.unsqueeze(zero, 1)


def _qlinear_matmul(node: Context) -> Value:
    """Accumulate in i32 (f32 for floats), dequantize, quantize."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node[at] for at in range(8))
    if a.tensor.dtype.is_float:
        reals = [
            node.emit("dequantize", x, scale, zero, to=F32)
            for x, scale, zero in ((a, a_scale, a_zero), (b, b_scale, b_zero))
        ]
        real = node.emit("matmul", *reals)
    else:
        total = node.emit("matmul_integer", a, b, by_row(node, a_zero), b_zero)
        rows = by_row(node, a_scale)
        scale = node.emit("cast", node.emit("mul", rows, b_scale), to=F32)
        real = node.emit("mul", node.emit("cast", total, to=F32), scale)
    return node.emit("quantize", real, y_scale, y_zero, to=y_zero.tensor.dtype)


def _einsum(node: Context) -> Value:
    """Translate to a GEMM if possible, else to a sum of products."""
    terms, result = _spelt_out(node)
    if len(terms) == 2:
        product = _try_matmul(node, terms[0], terms[1], result)
        if product is not None:
            return product
    return node.emit("einsum", *node.inputs, equation=f"{','.join(terms)}->{result}")


def _try_matmul(node: Context, a: str, b: str, result: str) -> Value | None:
    """Classify letters as batch, m, k and n; None if the equation is not a GEMM."""
    if any(len(set(term)) < len(term) for term in (a, b, result)):
        return None  # a diagonal
    batch = [c for c in a if c in b and c in result]
    summed = [c for c in a if c in b and c not in result]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    sizes = [dict(zip(t, dims(node, node[at]), strict=True)) for at, t in enumerate((a, b))]
    if not summed or not set(rows + columns) <= set(result):
        return None
    if any(sizes[0][c] != sizes[1][c] for c in batch + summed):
        return None  # a broadcast dimension
    left = _grouped(node, 0, a, batch, rows, summed, sizes[0])
    right = _grouped(node, 1, b, batch, summed, columns, sizes[1])
    product = node.emit("matmul", left, right)
    every = {**sizes[1], **sizes[0]}
    order = [*batch, *rows, *columns]
    product = reshape(node, product, *(every[c] for c in order))
    return transpose(node, product, *(order.index(c) for c in result))


def _grouped(
    node: Context,
    at: int,
    term: str,
    batch: list[str],
    first: list[str],
    second: list[str],
    sizes: dict[str, Dim],
) -> Value:
    """An operand as a batch of matrices."""
    moved = transpose(node, node[at], *(term.index(c) for c in (*batch, *first, *second)))
    sides = []
    for letters in (first, second):
        count: Expr = ONE
        for letter in letters:
            count = sym.mul(count, sizes[letter])
        sides.append(count)
    return reshape(node, moved, *(sizes[c] for c in batch), *items_of(sides))


def _spelt_out(node: Context) -> tuple[list[str], str]:
    """The terms of an equation, with ellipses replaced by letters and an explicit result."""
    text = node.attr("equation").replace(" ", "")
    left, arrow, result = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(node.inputs):
        raise Skip(f"Einsum {text} with {len(node.inputs)} operands")
    free = [c for c in string.ascii_letters if c not in text]
    hidden = [
        node.rank(at) - (len(term) - 3) if "..." in term else 0 for at, term in enumerate(terms)
    ]
    letters = "".join(free[: max(hidden)])
    terms = [
        term.replace("...", letters[len(letters) - count :])
        for term, count in zip(terms, hidden, strict=True)
    ]
    if arrow:
        return terms, result.replace("...", letters)
    return terms, letters + _once(terms, letters)


def _once(terms: Sequence[str], hidden: str) -> str:
    """The implicit result: the letters that occur once, in alphabetical order."""
    every = "".join(terms)
    return "".join(c for c in sorted(set(every)) if every.count(c) == 1 and c not in hidden)


RULES: dict[str, Rule] = {
    "Gemm": gemm,
    "MatMul": lambda node: node.emit("matmul", node[0], node[1]),
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
    "Einsum": _einsum,
    "Det": lambda node: node.emit("det", node[0]),
}
