"""Emit nodes from translation rules, for all importers."""

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
    """A node under translation, as far as emission is concerned."""

    builder: Builder
    loc: Loc

    @property
    def op_type(self) -> str:
        """The operator's name in the model, for messages."""
        raise NotImplementedError

    def emit(self, op: str, *inputs: Value | float | None, **attributes: Any) -> Value:
        """Emit a node with one output; numbers become constants of the first value's element
        type."""
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
        """The known elements of a list, by position, where others are not known: integers as
        expressions of sizes, other types as numbers."""
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
        """Normalize an axis."""
        if not -rank <= axis < max(rank, 1):
            message = f"axis {axis} of {self.op_type} is outside {rank} dimensions"
            raise UserError("TW1107", message, self.loc)
        return axis + rank if axis < 0 else axis

    def reshape(self, x: Value, dims: Sequence[Expr | int]) -> Value:
        """Reshape x to a shape given as expressions of sizes."""
        return self.emit("reshape", x, shape=items_of(dims))

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """Insert axes of length one; axes are those of the result."""
        dims = list(self.shape(x))
        for axis in sorted(self.axis(a, len(dims) + len(axes)) for a in axes):
            dims.insert(axis, ONE)
        return self.reshape(x, dims)

    def column(self, x: Value, axis: int, rank: int) -> Value:
        """A vector reshaped to broadcast along one axis of tensors of a rank."""
        dims: list[Expr] = [ONE] * rank
        (dims[axis],) = self.shape(x)
        return self.reshape(x, dims)

    def cast(self, x: Value, to: DType) -> Value:
        """Convert x to an element type, if it has another."""
        return x if x.tensor.dtype is to else self.emit("cast", x, to=to)

    def iota(self, count: Expr | int) -> Value:
        """0, 1, ... as i64."""
        (limit,) = items_of([count])
        return self.emit("range", start=0, limit=limit, delta=1, to=I64)

    def number(self, value: Expr | int) -> Value:
        """An expression of sizes as an i64 scalar."""
        (item,) = items_of([value])
        return self.emit("dims", values=item)
