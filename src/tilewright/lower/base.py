"""What a lowering sees of a node, and the pieces that many lowerings share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import sym, te
from tilewright.base.dtype import DType
from tilewright.base.errors import Unsupported
from tilewright.graph.op import Call
from tilewright.graph.types import TensorType
from tilewright.sym import ONE, ZERO, Const, Expr
from tilewright.te import Tensor


@dataclass(frozen=True)
class Use:
    """One use of an operator: its call as the type rules saw it, and what it must produce."""

    call: Call
    outputs: tuple[TensorType, ...]
    name: str  # a hint for the tensors made

    def __getitem__(self, attribute: str) -> Any:
        return self.call[attribute]

    @property
    def shape(self) -> tuple[Expr, ...]:
        """The shape of the first output."""
        return shape_of(self.outputs[0])

    @property
    def dtype(self) -> DType:
        """The element type of the first output."""
        return self.outputs[0].dtype

    def unsupported(self, what: str) -> Unsupported:
        return Unsupported("TW1301", f"no native code for {self.call.op} {what}", self.call.loc)


# The tensors of a node's outputs from those of its inputs (None: absent).
Lowering = Callable[..., Tensor | tuple[Tensor, ...]]


def shape_of(of: TensorType) -> tuple[Expr, ...]:
    assert of.shape is not None
    return of.shape


def broadcast_index(
    operand: Sequence[Expr], shape: Sequence[Expr], index: Sequence[Expr]
) -> tuple[Expr, ...]:
    """Where NumPy's broadcasting reads an operand for the output element at `index`."""
    lead = len(shape) - len(operand)
    found: list[Expr] = []
    for dim, full, at in zip(operand, shape[lead:], index[lead:], strict=True):
        if dim is ONE:
            found.append(ZERO)
        elif dim is full or sym.equal(dim, full):
            found.append(at)
        else:  # 1 or the full size, known only at run time
            found.append(sym.minimum(at, sym.sub(dim, 1)))
    return tuple(found)


def read_broadcast(operand: Tensor, shape: Sequence[Expr], index: Sequence[Expr]) -> Expr:
    """The element of a broadcast operand."""
    return operand[broadcast_index(operand.shape, shape, index)]


def elementwise(use: Use, fn: Callable[..., Any], *operands: Tensor | None) -> Tensor:
    """fn over the elements of broadcast operands; absent ones are passed as None."""

    def element(*index: Expr) -> Expr:
        values = [
            None if operand is None else read_broadcast(operand, use.shape, index)
            for operand in operands
        ]
        return te.cast(fn(*values), use.dtype)

    return te.compute(use.shape, element, name=use.name)


def static(dim: Expr) -> int | None:
    """A dimension as a number, if it is one."""
    return int(dim.value) if isinstance(dim, Const) else None
