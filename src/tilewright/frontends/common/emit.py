"""Emitting nodes: what a rule of any front end does once it has read a node of its model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtype import I64, DType
from tilewright.base.errors import UserError
from tilewright.base.loc import Loc
from tilewright.frontends.common.report import Skip
from tilewright.graph import Builder, Value
from tilewright.graph.op import Known
from tilewright.graph.types import TensorType, items_of
from tilewright.sym import ONE, Expr


class Emitter:
    """One node under translation, as far as emitting ours goes."""

    builder: Builder
    loc: Loc

    @property
    def op_type(self) -> str:
        """What the model calls the operator, for messages."""
        raise NotImplementedError

    def emit(self, op: str, *inputs: Value | float | None, **attributes: Any) -> Value:
        """A node with one output; numbers become constants of the first value's element type."""
        first = next((x for x in inputs if isinstance(x, Value)), None)
        given: list[Value | None] = []
        for x in inputs:
            if isinstance(x, (int, float)):
                assert first is not None, "a number needs a value beside it"
                given.append(self.like(first, x))
            else:
                given.append(x)
        return self.builder.add(op, *given, loc=self.loc, **attributes)

    def emit_many(
        self, op: str, *inputs: Value | None, outputs: int, **attributes: Any
    ) -> tuple[Value, ...]:
        return self.builder.add_many(op, *inputs, outputs=outputs, loc=self.loc, **attributes)

    def constant(self, array: Any, name: str = "c") -> Value:
        return self.builder.constant(array, name, self.loc)

    def like(self, value: Value, number: float) -> Value:
        """A scalar constant of another value's element type."""
        return self.constant(np.asarray(number).astype(value.tensor.dtype.numpy))

    def contents(self, value: Value | None) -> Known | None:
        """The contents of an integer value, as expressions of sizes, if known."""
        ((contents,), _) = self.builder.contents.of((value,))
        return contents

    def elements(self, value: Value) -> dict[int, Expr | float]:
        """Of the elements of a list those that are known, by position, though others are not:
        integers as expressions of sizes, numbers of other types as they are."""
        made = next((node for node in reversed(self.builder.nodes) if value in node.outputs), None)
        parts = made.inputs if made is not None and made.op == "concat" else (value,)
        found: dict[int, Expr | float] = {}
        at = 0
        for part in parts:
            assert part is not None
            if part.tensor.static_shape is None:
                break
            (known,), (data,) = self.builder.contents.of((part,))
            if known is not None:
                found |= dict(enumerate(known, at))
            elif data is not None:
                found |= dict(enumerate(map(float, data.ravel()), at))
            at += math.prod(part.tensor.static_shape)
        return found

    def shape(self, value: Value) -> tuple[Expr, ...]:
        """The shape of a value; its rank must be known."""
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            raise Skip(f"{self.op_type} on a tensor of unknown rank")
        return value.type.shape

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front."""
        if not -rank <= axis < max(rank, 1):
            message = f"axis {axis} of {self.op_type} is outside {rank} dimensions"
            raise UserError("TW1107", message, self.loc)
        return axis + rank if axis < 0 else axis

    def reshape(self, x: Value, dims: Sequence[Expr | int]) -> Value:
        """x in another shape, known as expressions of sizes."""
        return self.emit("reshape", x, shape=items_of(dims))

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """x with axes of one element, named as they are in the result."""
        dims = list(self.shape(x))
        for axis in sorted(self.axis(a, len(dims) + len(axes)) for a in axes):
            dims.insert(axis, ONE)
        return self.reshape(x, dims)

    def column(self, x: Value, axis: int, rank: int) -> Value:
        """A vector along one axis of tensors of a rank."""
        dims: list[Expr] = [ONE] * rank
        (dims[axis],) = self.shape(x)
        return self.reshape(x, dims)

    def cast(self, x: Value, to: DType) -> Value:
        """x converted to an element type, if it has another."""
        return x if x.tensor.dtype is to else self.emit("cast", x, to=to)

    def iota(self, count: Expr | int) -> Value:
        """0, 1, ... as i64."""
        (limit,) = items_of([count])
        return self.emit("range", start=0, limit=limit, delta=1, to=I64)

    def number(self, value: Expr | int) -> Value:
        """An expression of sizes as a scalar of i64."""
        (item,) = items_of([value])
        return self.emit("dims", values=item)
