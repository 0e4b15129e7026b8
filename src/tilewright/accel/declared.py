"""One step of every computing instruction as a tensor function.

    print(step_function("gemm", geometry))

The arithmetic is that of `behaviour.py`, which batches steps; a test compares them. The simulators
in C call the code generated from these functions (`kernels.py`).
"""

from __future__ import annotations

from typing import Any

from tilewright import te
from tilewright.accel.isa.table import ALU_FUNCTIONS, REQUANTIZING
from tilewright.base.errors import UserError
from tilewright.base.geometry import Geometry
from tilewright.tensor import Function

STEPS = ("gemm", *ALU_FUNCTIONS)


def step_function(name: str, geometry: Geometry) -> Function:
    """The behaviour of one step; parameters are its operands, then its result."""
    if name not in STEPS:
        raise UserError(
            "TW7002", f"there is no step {name!r}", help=f"there are: {', '.join(STEPS)}"
        )
    if name == "gemm":
        return _gemm(geometry)
    if name in REQUANTIZING:
        return _requant(name, geometry)
    return _alu(name, geometry)


def _gemm(g: Geometry) -> Function:
    inp = te.placeholder((g.batch, g.block_in), "i8", name="inp")
    wgt = te.placeholder((g.block_out, g.block_in), "i8", name="wgt")
    k = te.reduce_axis((0, g.block_in), name="k")
    acc = te.compute(
        (g.batch, g.block_out),
        lambda b, o: te.sum(te.cast(inp[b, k], "i32") * te.cast(wgt[o, k], "i32"), axis=k),
        name="acc",
    )
    return te.function([inp, wgt, acc], name="vta_gemm")


def accumulation(g: Geometry) -> Function:
    """Accumulate products; a step marked as first overwrites."""
    shape = (g.batch, g.block_out)
    product, old = (te.placeholder(shape, "i32", name=name) for name in ("product", "old"))
    first = te.placeholder((1,), "i64", name="first")

    def step(b: Any, o: Any) -> Any:
        return te.if_then_else(te.eq(first[0], 0), old[b, o], te.const(0, "i32")) + product[b, o]

    return te.function([product, first, old, te.compute(shape, step, name="acc")], name="vta_sum")


def _alu(name: str, g: Geometry) -> Function:
    shape = (g.batch, g.block_out)
    src, aux, old = (te.placeholder(shape, "i32", name=one) for one in ("src", "aux", "old"))

    def step(b: Any, o: Any) -> Any:
        x, y = src[b, o], aux[b, o]
        if name == "add":
            return x + y
        if name == "max":
            return te.max(x, y)
        if name == "min":
            return te.min(x, y)
        if name == "shift":
            right = te.shift_right(x, te.min(te.max(y, 0), 31))
            left = te.shift_left(x, -te.max(te.min(y, 0), -31))  # the least number has no negation
            return te.if_then_else(y >= 0, right, left)
        made = _low_byte(x) * _low_byte(y)
        for at in range(8, 8 * g.taps, 8):
            made = made + _low_byte(te.shift_right(x, at)) * _low_byte(te.shift_right(y, at))
        return made if name == "mul" else old[b, o] + made

    acc = te.compute(shape, step, name="acc")
    operands = [src, aux, old] if name == "mac" else [src, aux]
    return te.function([*operands, acc], name=f"vta_{name}")


def _low_byte(value: Any) -> Any:
    return te.cast(te.cast(value, "i8"), "i32")


def _requant(name: str, g: Geometry) -> Function:
    shape = (g.batch, g.block_out)
    names = ("src", "bias", "multiplier", "shift")
    operands = [te.placeholder(shape, "i32", name=name) for name in names]
    src, bias, multiplier, shift = operands
    limits = [te.placeholder((1,), "i32", name=name) for name in ("zero", "low", "high")]
    zero, low, high = limits

    def step(b: Any, o: Any) -> Any:
        total = te.cast(src[b, o] + bias[b, o], "i64") * te.cast(multiplier[b, o], "i64")
        by = te.cast(te.bitwise_and(shift[b, o], 63), "i64")
        one = te.const(1, "i64")
        half = te.if_then_else(by > 0, te.shift_left(one, te.max(by - 1, 0)), te.const(0, "i64"))
        rounded = te.shift_right(total + half, by) + te.cast(zero[0], "i64")
        clamped = te.min(te.max(rounded, te.cast(low[0], "i64")), te.cast(high[0], "i64"))
        return te.cast(clamped, "i8" if name == "requant" else "i32")

    out = te.compute(shape, step, name="out")
    return te.function([*operands, *limits, out], name=f"vta_{name}")
