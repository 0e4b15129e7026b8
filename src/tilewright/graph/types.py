"""The types of values in a model: tensors with symbolic shapes, sequences, optionals.

f32[batch, 3, 224, 224]    dimensions are integer expressions over sizes
i64[]                      a scalar
f32[*]                     a tensor whose rank is not known
seq<f32[n]>   opt<i64[]>   a sequence, an optional
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.dtype import DType
from tilewright.sym import Const, Expr


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor. `shape` is None where even the rank is unknown."""

    dtype: DType
    shape: tuple[Expr, ...] | None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The dimensions as numbers, if all are known."""
        if self.shape is None or not all(isinstance(dim, Const) for dim in self.shape):
            return None
        return tuple(int(dim.value) for dim in self.shape if isinstance(dim, Const))

    def __str__(self) -> str:
        dims = "*" if self.shape is None else ", ".join(str(dim) for dim in self.shape)
        return f"{self.dtype}[{dims}]"


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list of values of one type, of any length."""

    element: Type

    def __str__(self) -> str:
        return f"seq<{self.element}>"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value that may be absent."""

    element: Type

    def __str__(self) -> str:
        return f"opt<{self.element}>"


Type = TensorType | SequenceType | OptionalType
