"""Mark a flat function as device code: its outermost thread loops are kernels to launch."""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.passes import PassContext
from tilewright.tensor.ir import DEVICE, Function


def enter_device(fn: Function, ctx: PassContext) -> Function:
    return fn if fn.stage == DEVICE else replace(fn, stage=DEVICE)
