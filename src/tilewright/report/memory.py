"""Arena occupation over time: the bytes and the lifetime of each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.graph.memory import MemoryPlan, spans
from tilewright.runtime import _native
from tilewright.runtime.module import Module
from tilewright.sym import Const, Expr, Var, free_vars


@dataclass(frozen=True)
class Slot:
    """A value's bytes in the arena."""

    name: str
    offset: int
    size_bytes: int
    first: int  # step
    last: int


def slots_of(
    plan: MemoryPlan, module: Module, arrays: Sequence[Any]
) -> tuple[tuple[Slot, ...], int]:
    """The slots for a call with these arrays, whose shapes determine dynamic sizes."""
    sizes = _sizes(module, arrays)
    numbers = [_number(slot.size_bytes, sizes) for slot in plan.slots]
    if any(number is None for number in numbers):
        return (), 0
    known = tuple(number or 0 for number in numbers)
    if plan.offsets is not None:
        offsets, total = plan.offsets, plan.arena_bytes or 0
    else:
        offsets, total = _native.plan_arena(known, tuple(spans(list(plan.slots))))
    begin = min((slot.first for slot in plan.slots), default=0)  # constants precede
    found = [
        Slot(slot.value.name, offset, size, slot.first - begin, slot.last - begin)
        for slot, offset, size in zip(plan.slots, offsets, known, strict=True)
    ]
    return tuple(found), total


def _sizes(module: Module, arrays: Sequence[Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for spec, array in zip(module.inputs, arrays, strict=True):
        for dim, size in zip(spec.shape, np.shape(array), strict=True):
            if isinstance(dim, str):
                found.setdefault(dim, size)
    return found


def _number(expr: Expr, sizes: Mapping[str, int]) -> int | None:
    env: dict[Var, Expr] = {}
    for var in free_vars(expr):
        if var.name not in sizes:
            return None
        env[var] = sym.const(sizes[var.name])
    value = sym.simplify(sym.substitute(expr, env))
    return int(value.value) if isinstance(value, Const) else None
