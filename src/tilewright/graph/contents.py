"""Compile-time contents of small tensors.

Models compute shapes: `Shape`, `Gather`, `Concat`, then `Reshape`. Propagating contents through the
operators' `evaluate` (integers, as expressions of sizes) and `reference` (numbers of any type)
yields the shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtype import INDEX, DType
from tilewright.graph.ir import Attribute, Value
from tilewright.graph.op import FLOAT, Call, Item, Known, Op, as_arrays
from tilewright.graph.types import TensorType, Type
from tilewright.sym import ZERO, Const, const

KNOWN_ELEMENTS = 1024  # size limit of tracked tensors

Array = np.ndarray[Any, Any]


class Contents:
    """Known contents of the values of a graph."""

    def __init__(self) -> None:
        self.known: dict[Value, Known] = {}  # integers, as expressions of sizes
        self.data: dict[Value, Array] = {}  # numbers of any type, derived from constants

    def learn(self, value: Value, array: Array) -> None:
        """Record the contents of a small tensor."""
        if array.size > KNOWN_ELEMENTS or array.dtype == object:
            return
        self.data[value] = array
        if array.dtype.kind in "iub":
            self.known[value] = tuple(const(int(x), INDEX) for x in array.ravel().tolist())

    def of(
        self, inputs: Sequence[Value | None]
    ) -> tuple[tuple[Known | None, ...], tuple[Array | None, ...]]:
        """The known contents of a node's inputs, as expressions and as numbers."""
        known = tuple(None if v is None else self._known(v) for v in inputs)
        data = tuple(None if v is None else self.data.get(v) for v in inputs)
        return known, data

    def _known(self, value: Value) -> Known | None:
        of = value.type
        if isinstance(of, TensorType) and of.dtype.is_int and of.shape and ZERO in of.shape:
            return ()  # empty
        return self.known.get(value)

    def follow(self, op: Op, call: Call, outputs: Sequence[Value]) -> None:
        """Compute the contents of a node's outputs from those of its inputs, if known."""
        if not all(_is_small(value.type) for value in outputs):
            return
        contents = None if op.evaluate is None else op.evaluate(call)
        if contents is not None:
            numbers = numbers_of(contents)
            of = outputs[0].tensor
            if numbers is None:
                self.known[outputs[0]] = contents
            else:
                array = array_of(numbers, of.dtype)
                self.learn(outputs[0], array.reshape(of.static_shape or ()))
            return
        if not op.pure or call.bodies or not any(call.has(at) for at in range(len(call.types))):
            return
        if any(call.has(at) and call.array(at) is None for at in range(len(call.types))):
            return
        try:
            with np.errstate(all="ignore"):
                made = as_arrays(op.reference(call, *call.data))
        except (ArithmeticError, LookupError, ValueError):
            return  # invalid data is reported at run time
        for value, array in zip(outputs, made, strict=True):
            if isinstance(array, np.ndarray):
                self.learn(value, array)


def numbers_of(contents: Known) -> list[int] | None:
    """Known contents as numbers, if all are constant."""
    numbers = [int(x.value) for x in contents if isinstance(x, Const)]
    return numbers if len(numbers) == len(contents) else None


def array_of(numbers: Sequence[int], of: DType) -> Array:
    """Numbers as an array; values beyond 64 bits wrap, as at run time."""
    half = 1 << 63
    wrapped = [(number + half) % (2 * half) - half for number in numbers]
    return np.array(wrapped, np.int64).astype(of.numpy)


def _is_small(of: Type) -> bool:
    shape = of.static_shape if isinstance(of, TensorType) else None
    return shape is not None and math.prod(shape) <= KNOWN_ELEMENTS


def fold_inputs(
    op: Op,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Attribute],
    contents: Contents,
) -> tuple[tuple[Value | None, ...], dict[str, Attribute]]:
    """Move inputs with known contents to attributes of the same names."""
    left, given = list(inputs), dict(attributes)
    for name, at in op.foldable.items():
        value = left[at] if at < len(left) else None
        ((known,), (numbers,)) = contents.of((value,))
        if value is None or value.tensor.rank not in (0, 1):
            continue
        items: tuple[Item, ...]
        if known is not None:
            items = tuple(int(x.value) if isinstance(x, Const) else x for x in known)
        elif numbers is not None and op.inputs[at].kind == FLOAT:
            items = tuple(float(x) for x in numbers.ravel())
        else:
            continue
        given[name] = items if value.tensor.rank == 1 else items[0]
        left[at] = None
    while left and left[-1] is None:
        left.pop()
    return tuple(left), given
