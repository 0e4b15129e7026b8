"""Reductions: axes are an attribute in early opsets, an input later; unified here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.base.dtype import F64
from tilewright.frontends.onnx.rules.base import Context, Rule
from tilewright.graph import Value

Shaped = Callable[[Context, Value, dict[str, Any]], Value]


def _reduction(build: Shaped) -> Rule:
    """A reduction along the node's axes; `build` gets the input and the arguments."""

    def rule(node: Context) -> Value:
        return build(node, node[0], _where(node))

    return rule


def _where(node: Context) -> dict[str, Any]:
    """Arguments of a reduction. Without axes, all are reduced, or none if the node says so."""
    keep = bool(node.attr("keepdims", 1))
    axes = node.attr("axes")
    if axes is None:
        axes = node.ints(1)
    if axes is None and node.has(1):
        return {"axes": node[1], "keepdims": keep}
    if not axes:
        axes = () if node.attr("noop_with_empty_axes", 0) else tuple(range(node.rank()))
    rank = node.rank()
    # ONNX Runtime takes an axis that is named twice for one.
    return {"axes": tuple(sorted({node.axis(axis, rank) for axis in axes})), "keepdims": keep}


def reduce(node: Context, op: str, x: Value, where: dict[str, Any]) -> Value:
    """Emit a reduction; axes may be dynamic."""
    axes, keep = where["axes"], where["keepdims"]
    if isinstance(axes, Value):
        return node.emit(op, x, axes, keepdims=keep)
    if not axes:
        return x
    return node.emit(op, x, axes=axes, keepdims=keep)


def _plain(op: str) -> Rule:
    return _reduction(lambda node, x, where: reduce(node, op, x, where))


def _l1(node: Context, x: Value, where: dict[str, Any]) -> Value:
    return reduce(node, "reduce_sum", node.emit("abs", x), where)


def _sum_square(node: Context, x: Value, where: dict[str, Any]) -> Value:
    return reduce(node, "reduce_sum", node.emit("mul", x, x), where)


def _in_float(node: Context, x: Value, build: Callable[[Value], Value]) -> Value:
    """Compute roots and logarithms of integers in floats."""
    of = x.tensor.dtype
    if of.is_float:
        return build(x)
    return node.emit("cast", build(node.emit("cast", x, to=F64)), to=of)


def _l2(node: Context, x: Value, where: dict[str, Any]) -> Value:
    return _in_float(node, x, lambda y: node.emit("sqrt", _sum_square(node, y, where)))


def _log_sum(node: Context, x: Value, where: dict[str, Any]) -> Value:
    return _in_float(node, x, lambda y: node.emit("log", reduce(node, "reduce_sum", y, where)))


def _log_sum_exp(node: Context, x: Value, where: dict[str, Any]) -> Value:
    """log(sum(exp(x))) = m + log(sum(exp(x - m))) for m = max(x), where finite."""

    def build(y: Value) -> Value:
        most = reduce(node, "reduce_max", y, {**where, "keepdims": True})
        finite = node.emit("less", node.emit("abs", most), np.inf)
        most = node.emit("where", finite, most, node.like(y, 0.0))
        total = reduce(node, "reduce_sum", node.emit("exp", node.emit("sub", y, most)), where)
        if not where["keepdims"]:
            most = node.emit("reshape", most, node.emit("shape", total))
        return node.emit("add", node.emit("log", total), most)

    return _in_float(node, x, build)


def _arg(op: str) -> Rule:
    def rule(node: Context) -> Value:
        return node.emit(
            op,
            node[0],
            axis=node.axis(node.attr("axis", 0), node.rank()),
            keepdims=bool(node.attr("keepdims", 1)),
            last=bool(node.attr("select_last_index", 0)),
        )

    return rule


def _running(op: str) -> Rule:
    def rule(node: Context) -> Value:
        flags = {name: bool(node.attr(name, 0)) for name in ("exclusive", "reverse")}
        axis = node.ints(1)
        if axis is not None:
            return node.emit(op, node[0], axis=node.axis(axis[0], node.rank()), **flags)
        return node.emit(op, node[0], node[1], **flags)

    return rule


RULES: dict[str, Rule] = {
    "ReduceSum": _plain("reduce_sum"),
    "ReduceMean": _plain("reduce_mean"),
    "ReduceMax": _plain("reduce_max"),
    "ReduceMin": _plain("reduce_min"),
    "ReduceProd": _plain("reduce_prod"),
    "ReduceL1": _reduction(_l1),
    "ReduceL2": _reduction(_l2),
    "ReduceSumSquare": _reduction(_sum_square),
    "ReduceLogSum": _reduction(_log_sum),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ArgMax": _arg("arg_max"),
    "ArgMin": _arg("arg_min"),
    "CumSum": _running("cumsum"),
    "CumProd": _running("cumprod"),
}
