"""Shared by operators that only move elements: propagation of known contents, and axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.graph.op import Call, Known
from tilewright.sym import Expr

Array = np.ndarray[Any, Any]


def moved(
    reference: Callable[..., Array], *sources: int, variadic: bool = False
) -> Callable[[Call], Known | None]:
    """Make an `evaluate` function for an operator that moves elements.

    The reference is run on expressions, as an array of objects, in place of the inputs at `sources`
    (all of them if `variadic`). Other inputs must be known numbers.
    """

    def run(call: Call) -> Known | None:
        arrays: list[Array | None] = []
        for at in range(len(call.types)):
            if not call.has(at):
                arrays.append(None)
                continue
            found = objects(call, at) if variadic or at in sources else call.array(at)
            if found is None:
                return None
            arrays.append(found)
        try:
            made = reference(call, *arrays)
        except (LookupError, ValueError):
            return None  # invalid data is reported at run time
        except TypeError:
            return None  # comparison of symbolic expressions
        return tuple(sym.as_expr(item) for item in np.asarray(made, object).ravel().tolist())

    return run


def objects(call: Call, at: int) -> Array | None:
    """The known contents of input `at` as an array of objects."""
    contents, shape = call.value(at), call.tensor(at).static_shape
    if contents is None or shape is None:
        return None
    column = np.empty(len(contents), object)
    column[:] = contents
    return column.reshape(shape)


def check_axis(call: Call, axis: int, rank: int) -> int:
    """Normalize a negative axis."""
    if not -rank <= axis < max(rank, 1):
        raise call.error(
            "TW1301",
            f"axis {axis} of {call.op} is outside a tensor of {rank} dimensions",
            help=f"use {-rank} to {rank - 1}" if rank else "",
        )
    return axis + rank if axis < 0 else axis


def check_axes(call: Call, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Normalize negative axes, which must be distinct."""
    found = tuple(check_axis(call, axis, rank) for axis in axes)
    if len(set(found)) < len(found):
        raise call.error("TW1301", f"{call.op} names an axis twice: {list(axes)}")
    return found


def new_sizes(call: Call, count: int) -> tuple[Expr, ...]:
    """New sizes as dimensions."""
    return tuple(sym.size(f"{call.op}_{axis}") for axis in range(count))
