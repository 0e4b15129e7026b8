"""GEMM-like operators, attention, transforms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import BOOL, F32, I8, I32, I64, DType
from tilewright.frontends.onnx.export.emitter import Emitter, Rule, Unwritable
from tilewright.frontends.onnx.export.rules.elementwise import narrowed, of_input, wide_type
from tilewright.graph.ir import Node
from tilewright.graph.ops.linalg import NIBBLE
from tilewright.sym import Const, Expr


def _matmul(e: Emitter, node: Node) -> str:
    names, of, to = e.inputs(node), of_input(node), node.outputs[0].tensor.dtype
    work = to if to is not of else wide_type(of)
    if work is not of:
        names = [e.cast(name, work) for name in names]
    made = e.emit("MatMul", *names)
    return made if work is to else e.cast(made, to)


def _matmul_packed(e: Emitter, node: Node) -> str:
    """Unpacked weights, and a GEMM."""
    a, b, scale, offset, a_scale = [*e.inputs(node), "", ""][:5]
    shape, of = node.outputs[0].tensor.shape, node.inputs[0]
    if shape is None or of is None or of.tensor.shape is None:
        raise Unwritable("matmul_packed of an unknown rank")
    n = shape[-1]
    if a_scale:
        groups = e.emit("Reshape", e.cast(a, F32), e.items((*shape[:-1], *_groups(node))))
        a = e.emit("Mul", groups, e.emit("Unsqueeze", a_scale, e.ints(-1)))
        a = e.emit("Reshape", a, e.items(of.tensor.shape))
    if node.get("per_byte", 1) > 1:
        b = e.emit("Concat", *_halves(e, b, of_input(node, 1)), axis=1)
    weights = e.emit("Sub", e.cast(b, F32), e.scalar(node.get("zero", 0), F32))
    weights = e.emit("Mul", weights, e.emit("Unsqueeze", scale, e.ints(1)))
    if offset:
        weights = e.emit("Add", weights, e.emit("Unsqueeze", offset, e.ints(1)))
    return str(e.emit("MatMul", a, e.emit("Reshape", weights, e.items((-1, n)))))


def _groups(node: Node) -> tuple[Expr, Expr]:
    """The number of groups, and their length."""
    assert node.inputs[1] is not None
    groups, length, _ = node.inputs[1].tensor.shape or ()
    return groups, sym.mul(length, node.get("per_byte", 1))


def _halves(e: Emitter, b: str, of: DType) -> tuple[str, str]:
    """The values in the lower and upper halves of bytes."""
    whole, by = e.cast(b, I32), e.scalar(NIBBLE, I32)
    low = e.emit("Mod", whole, by)
    high = e.emit("Sub", whole, low)
    if of is not I8:
        return low, e.emit("Div", high, by)
    middle = e.scalar(NIBBLE // 2, I32)
    low = e.emit("Sub", e.emit("Mod", e.emit("Add", low, middle), by), middle)
    return e.emit("Mul", low, by), high


def _matmul_integer(e: Emitter, node: Node) -> str:
    """(a - a_zero) @ (b - b_zero) in 32 bits."""
    a, b, *zeros = [e.cast(name, I32) if name else "" for name in e.inputs(node)]
    moved = [
        e.emit("Sub", x, zero) if zero else x
        for x, zero in zip((a, b), [*zeros, "", ""][:2], strict=True)
    ]
    return str(e.emit("MatMul", *moved))


def _einsum(e: Emitter, node: Node) -> str:
    names, of = e.inputs(node), of_input(node)
    if wide_type(of) is not of:
        names = [e.cast(name, wide_type(of)) for name in names]
    return narrowed(e, e.emit("Einsum", *names, equation=node["equation"]), node)


def _attention(e: Emitter, node: Node) -> list[str]:
    """Decomposed: scores, masks, weights and values."""
    q, k, v, mask, lengths = [*e.inputs(node), "", ""][:5]
    of, to = of_input(node), node.outputs[0].tensor.dtype
    shapes = [value.tensor.shape for value in node.inputs[:3] if value is not None]
    if any(shape is None for shape in shapes):
        raise Unwritable("attention of an unknown rank")
    work = F32 if of.size_bytes < 4 else of
    if work is not of:
        q, k, v = (e.cast(x, work) for x in (q, k, v))
    qs, ks, vs = ([*shape] for shape in shapes if shape is not None)
    scale = node.get("scale")
    if scale is None:
        if not isinstance(qs[3], Const):
            raise Unwritable("attention over features of an unknown number")
        scale = 1 / math.sqrt(int(qs[3].value))
    k, v = (_repeated(e, x, shape, qs) for x, shape in ((k, ks), (v, vs)))
    raw = e.emit("MatMul", e.emit("Mul", q, e.scalar(scale, work)), _swapped(e, k))
    cap = node.get("softcap", 0.0)
    capped = raw
    if cap:
        limit = e.scalar(cap, work)
        capped = e.emit("Mul", e.emit("Tanh", e.emit("Div", raw, limit)), limit)
    scores = capped
    low = e.scalar(-np.inf, work)
    seen = _seen(e, node, qs[2], ks[2], lengths)
    if seen:
        scores = e.emit("Where", seen, scores, low)
    if mask:
        value = node.inputs[3]
        assert value is not None
        if value.tensor.dtype is BOOL:
            mask = e.emit("Where", mask, e.scalar(0, work), low)
        elif value.tensor.dtype is not work:
            mask = e.cast(mask, work)
        scores = e.emit("Add", scores, mask)
    greatest = e.emit("ReduceMax", scores, e.ints(-1), keepdims=1)
    hidden = e.emit("IsInf", greatest, detect_positive=0)
    base = e.emit("Where", hidden, e.scalar(0, work), greatest)
    powers = e.emit("Exp", e.emit("Sub", scores, base))
    if node.get("round_weights"):
        powers = e.cast(e.cast(powers, of_input(node, 2)), work)
    total = e.emit("ReduceSum", powers, e.ints(-1), keepdims=1)
    nothing = e.emit("Equal", total, e.scalar(0, work))
    weights = e.emit("Div", powers, e.emit("Where", nothing, e.scalar(1, work), total))
    out = e.emit("MatMul", weights, v)
    shown = {"raw": raw, "capped": capped, "masked": scores, "weights": weights}[
        node.get("scores", "raw")
    ]
    made = [out, shown][: len(node.outputs)]
    return made if work is to else [e.cast(x, to) for x in made]


def _swapped(e: Emitter, x: str) -> str:
    return str(e.emit("Transpose", x, perm=[0, 1, 3, 2]))


def _repeated(e: Emitter, x: str, shape: list[Expr], like: list[Expr]) -> str:
    """Keys repeated for the heads that share them."""
    if shape[1] is like[1]:
        return x
    group = like[1] // shape[1]
    apart = e.emit("Unsqueeze", x, e.ints(2))
    copies = e.emit("Expand", apart, e.items((shape[0], shape[1], group, shape[2], shape[3])))
    return str(e.emit("Reshape", copies, e.items((shape[0], like[1], shape[2], shape[3]))))


def _seen(e: Emitter, node: Node, rows: Expr, columns: Expr, lengths: str) -> str:
    """The mask of visible keys, or nothing if all are visible."""
    left, right = node.get("window", (-1, -1))
    causal = node.get("causal", False)
    if not causal and left < 0 and right < 0 and not lengths:
        return ""
    zero, one = e.constant(np.int64(0)), e.constant(np.int64(1))
    key = e.emit("Range", zero, e.size(columns), one)
    row = e.emit("Unsqueeze", e.emit("Range", zero, e.size(rows), one), e.ints(1))
    tests = []
    if lengths:
        ends = e.emit("Reshape", e.cast(lengths, I64), e.ints(-1, 1, 1, 1))
        tests.append(e.emit("Less", key, ends))
        place = e.emit("Add", row, e.emit("Sub", ends, e.size(rows)))
    else:
        place = e.emit("Add", row, e.size(node.get("past", 0)))
    if causal:
        tests.append(e.emit("LessOrEqual", key, place))
    if left >= 0:
        first = e.emit("Sub", place, e.constant(np.int64(left)))
        tests.append(e.emit("GreaterOrEqual", key, first))
    if right >= 0:
        last = e.emit("Add", place, e.constant(np.int64(right)))
        tests.append(e.emit("LessOrEqual", key, last))
    made = tests[0]
    for test in tests[1:]:
        made = e.emit("And", made, test)
    return str(made)


def _dft(e: Emitter, node: Node) -> str:
    flags: dict[str, Any] = {name: int(node.get(name, False)) for name in ("inverse", "onesided")}
    return str(e.emit("DFT", e.inputs(node)[0], e.operand(node, 1), e.operand(node, 2), **flags))


def _stft(e: Emitter, node: Node) -> str:
    window = e.inputs(node)[2] if len(node.inputs) > 2 else ""
    parts = [e.inputs(node)[0], e.operand(node, 1), window, e.operand(node, 3)]
    return str(e.emit("STFT", *parts, onesided=int(node.get("onesided", True))))


RULES: dict[str, Rule] = {
    "matmul": _matmul,
    "matmul_packed": _matmul_packed,
    "matmul_integer": _matmul_integer,
    "einsum": _einsum,
    "det": lambda e, node: str(e.emit("Det", *e.inputs(node))),
    "attention": _attention,
    "dft": _dft,
    "stft": _stft,
}
COMPOSITES = ("matmul_packed", "matmul_integer", "attention")
