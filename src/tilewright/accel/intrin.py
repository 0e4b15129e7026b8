"""Tensor intrinsics of the accelerator: its memories, and one step of every task.

    sch.tensorize(loop, "vta_gemm")                       # acc += inp * transpose(wgt)
    sch.tensorize(loop, intrinsic("vta_requant", zero=-3, block_out=4))

Intrinsics operate on one entry of each memory; the number of entries of a task results from folding
the enclosing loops (`compiler/fold.py`). A load whose tile is a select between memory and a
constant becomes a load where the condition holds and a fill elsewhere: padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright import te
from tilewright.accel.isa.table import ACC_BANKS
from tilewright.base.geometry import ACC_BYTES, Geometry
from tilewright.lower.quantize import requantized
from tilewright.tensor.intrin import TensorIntrin, declare_family, intrinsic
from tilewright.tensor.ir import Function
from tilewright.tensor.parameters import Parameter
from tilewright.tensor.scopes import MemoryScope, Owner, declare_scope
from tilewright.tensor.visit import replace_buffers

# Number of rotating slots of a buffer, so that a unit fills one while another is read.
SLOTS = Parameter("slots", 1, 8, default=1, is_layout=True)
# The bank of `acc` of the first slot, counted from 1; following slots are in following banks.
BANK = Parameter("bank", 0, ACC_BANKS, default=0, is_layout=True)
SCOPES = {
    name: declare_scope(
        MemoryScope(f"vta.{name}", Owner.UNIT, is_addressable=False, parameters=(SLOTS, BANK))
    )
    for name in ("inp", "wgt", "acc", "out")
}
INP, WGT, ACC, OUT = (SCOPES[name].reference for name in ("inp", "wgt", "acc", "out"))
DRAM = "global"
_SHAPE = (
    Parameter("batch", 1, default=1),
    Parameter("block_in", 1, default=16),
    Parameter("block_out", 1, default=16),
)
BYTE = (Parameter("zero", -128, 127, 0), Parameter("low", -128, 127, -128))
LIMITS = (*BYTE, Parameter("high", -128, 127, 127))
FACTOR_BITS = 7  # bits of factors per multiply-add pass; two passes take 14
FACTOR_MAX = 127 * 128 + 63
FACTORS = tuple(Parameter(name, -FACTOR_MAX, FACTOR_MAX) for name in ("a", "b"))


def _placed(fn: Function, scopes: tuple[str, ...]) -> TensorIntrin:
    """An intrinsic whose parameters are in these memories."""
    moved = {
        buffer: replace(buffer, scope=scope)
        for buffer, scope in zip(fn.buffers, scopes, strict=True)
    }
    body = replace_buffers(fn.body, moved)
    return TensorIntrin(fn.name, replace(fn, params=tuple(moved.values()), body=body))


def _copy(name: str, shape: str, of: str, to: str, scopes: tuple[str, str], **size: int) -> Any:
    """Copy an entry between memories."""
    extents = _extents(shape, size)
    x = te.placeholder(extents, of, name="x")
    y = te.compute(extents, lambda *at: x[at] if of == to else te.cast(x[at], to), name="y")
    return _placed(te.function([x, y], name=name), scopes)


def _extents(shape: str, size: dict[str, int]) -> tuple[int, int]:
    batch, near, far = size["batch"], size["block_in"], size["block_out"]
    return {"inp": (batch, near), "wgt": (far, near), "acc": (batch, far)}[shape]


def _gemm(batch: int, block_in: int, block_out: int) -> TensorIntrin:
    inp = te.placeholder((batch, block_in), "i8", name="inp")
    wgt = te.placeholder((block_out, block_in), "i8", name="wgt")
    k = te.reduce_axis((0, block_in), name="k")
    acc = te.compute(
        (batch, block_out),
        lambda b, o: te.sum(te.cast(inp[b, k], "i32") * te.cast(wgt[o, k], "i32"), axis=k),
        name="acc",
    )
    return _placed(te.function([inp, wgt, acc], name="vta_gemm"), (INP, WGT, ACC))


def low_byte(value: Any) -> Any:
    return te.cast(te.cast(value, "i8"), "i32")


def byte_at(value: Any, number: Any) -> Any:
    return low_byte(te.shift_right(value, te.cast(number * 8, "i32")))


def _mul(x: Any, y: Any) -> Any:
    return low_byte(x) * low_byte(y)


REDUCERS: dict[str, Callable[..., Any]] = {"sum": te.sum, "max": te.max}
# Reducing steps have one reduce iterator, so that `reset` and `update` exist.
STEPS: dict[str, tuple[str, Callable[[Any, Any], Any], int]] = {
    "vta_add": ("sum", lambda x, y: x, 1),
    "vta_max": ("max", lambda x, y: x, 1),
    "vta_mac": ("sum", _mul, 2),
}


def _step(name: str, batch: int, block_in: int, block_out: int) -> TensorIntrin:
    """acc = reducer(acc, value(x, y)): a reduction of one step."""
    reducer, value, operands = STEPS[name]
    shape = (batch, block_out)
    x, y = (te.placeholder(shape, "i32", name=one) for one in ("x", "y"))
    r = te.reduce_axis((0, 1), name="r")
    acc = te.compute(
        shape, lambda b, o: REDUCERS[reducer](value(x[b, o], y[b, o]), axis=r), name="acc"
    )
    fn = te.function([*(x, y)[:operands], acc], name=name)
    return _placed(fn, (ACC,) * (operands + 1))


def _dot(taps: int, batch: int, block_in: int, block_out: int) -> TensorIntrin:
    """acc += products of neighbouring entries with the bytes of another: the `mac` of a geometry
    with `taps` taps, where entries of x include their neighbours."""
    x = te.placeholder((taps, batch, block_out), "i32", name="x")
    y = te.placeholder((batch, block_out), "i32", name="y")
    t = te.reduce_axis((0, taps), name="t")
    acc = te.compute(
        (batch, block_out),
        lambda b, o: te.sum(low_byte(x[t, b, o]) * byte_at(y[b, o], t), axis=t),
        name="acc",
    )
    return _placed(te.function([x, y, acc], name="vta_dot"), (ACC, ACC, ACC))


def _blend(a: int, b: int, batch: int, block_in: int, block_out: int) -> TensorIntrin:
    """acc = i8(x) * a + i8(y) * b: the sum of two tensors of different scales."""
    shape = (batch, block_out)
    x, y = (te.placeholder(shape, "i32", name=one) for one in ("x", "y"))
    acc = te.compute(shape, lambda i, o: low_byte(x[i, o]) * a + low_byte(y[i, o]) * b, name="acc")
    return _placed(te.function([x, y, acc], name="vta_blend"), (ACC, ACC, ACC))


def blend_passes(a: int, b: int) -> list[tuple[str, int, int]]:
    """x * a + y * b by 8-bit multiply-adds: for each pass the function, its operand and number.

    Operands are x, y, and the sum itself. Factors of more than 7 bits are high * 128 + low: the
    high parts' sum is shifted before the low parts are added.
    """
    is_long = max(abs(a), abs(b)) >= 1 << FACTOR_BITS
    highs = [(by + 64) >> FACTOR_BITS if is_long else 0 for by in (a, b)]
    lows = [by - (high << FACTOR_BITS) for by, high in zip((a, b), highs, strict=True)]
    high, low = ([("mac", at, by & 255) for at, by in enumerate(of) if by] for of in (highs, lows))
    passes = [*high, ("shift", 2, -FACTOR_BITS), *low] if is_long else low
    return [("mul", *passes[0][1:]), *passes[1:]]


def _requant(
    name: str, zero: int, low: int, high: int, batch: int, block_in: int, block_out: int
) -> TensorIntrin:
    shape = (batch, block_out)
    names = ("src", "bias", "multiplier", "shift")
    operands = [te.placeholder(shape, "i32", name=name) for name in names]
    src, bias, multiplier, shift = operands

    def step(b: Any, o: Any) -> Any:
        limits = zero, low, high
        return requantized(src[b, o], bias[b, o], multiplier[b, o], shift[b, o], limits)

    back = name == "vta_rescale"
    out = te.compute(
        shape, lambda *at: te.cast(step(*at), "i32") if back else step(*at), name="out"
    )
    fn = te.function([*operands, out], name=name)
    return _placed(fn, (ACC,) * len(operands) + (ACC if back else OUT,))


declare_family("vta_gemm", _SHAPE, _gemm)
for _name in ("vta_requant", "vta_rescale"):
    declare_family(_name, (*LIMITS, *_SHAPE), partial(_requant, _name))
declare_family("vta_dot", (Parameter("taps", 2, ACC_BYTES), *_SHAPE), _dot)
declare_family("vta_blend", (*FACTORS, *_SHAPE), _blend)
for _name in STEPS:
    declare_family(_name, _SHAPE, partial(_step, _name))
# name: shape of the entry, types in DRAM and in the scratchpad, its memory
LOADS = {
    "vta_load_inp": ("inp", "i8", "i8", INP),
    "vta_load_wgt": ("wgt", "i8", "i8", WGT),
    "vta_load_wgt4": ("wgt", "i4", "i8", WGT),
    "vta_load_acc": ("acc", "i32", "i32", ACC),
    "vta_load_acc8": ("acc", "i8", "i32", ACC),
    "vta_load_row8": ("acc", "i8", "i32", ACC),  # operands of `vta_dot`, whole rows at a time
}
STORES = {"vta_store_out": ("acc", "i8", OUT), "vta_store_acc": ("acc", "i32", ACC)}
for _name, (_entry, _of, _to, _scope) in LOADS.items():
    _make = partial(_copy, _name, _entry, _of, _to, (DRAM, _scope))
    declare_family(_name, _SHAPE, _make)
for _name, (_entry, _of, _scope) in STORES.items():
    _make = partial(_copy, _name, _entry, _of, _of, (_scope, DRAM))
    declare_family(_name, _SHAPE, _make)


def of_geometry(name: str, geometry: Geometry, **given: int) -> TensorIntrin:
    """The member of a family for a geometry."""
    g = geometry
    shape = {"batch": g.batch, "block_in": g.block_in, "block_out": g.block_out}
    return intrinsic(name, {**given, **shape}.items())
