"""The interface of lowerings to a node, and functions that many lowerings share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import sym, te
from tilewright.base.dtype import F32, INDEX, DType
from tilewright.base.errors import Unsupported
from tilewright.graph.build import make_call
from tilewright.graph.ir import Node
from tilewright.graph.op import Call
from tilewright.graph.types import TensorType
from tilewright.sym import ONE, ZERO, Const, Expr
from tilewright.te import Tensor

ScalarBody = Callable[..., tuple[Expr, ...]]  # maps expressions to the body's results


@dataclass(frozen=True)
class Use:
    """One use of an operator: its call as in type rules, and its outputs."""

    call: Call
    outputs: tuple[TensorType, ...]
    name: str  # a name hint for tensors
    bodies: tuple[ScalarBody, ...] = ()  # of operators with scalar functions

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
        return Unsupported("TW1501", f"no native code for {self.call.op} {what}", self.call.loc)


def use_of(node: Node) -> Use:
    """Describe a use of an operator on tensors."""
    _, call = make_call(
        node.op,
        node.inputs,
        dict(node.attributes),
        bodies=node.bodies,
        loc=node.loc,
        outputs=len(node.outputs),
    )
    return Use(call, tuple(value.tensor for value in node.outputs), node.outputs[0].name)


# Maps a node's input tensors (None: absent) to its output tensors.
Lowering = Callable[..., Tensor | tuple[Tensor, ...]]
# Describes the part of a use without native code ("to f8e8m0"); "" if there is none.
Refusal = Callable[[Use], str]
# Conditions on sizes without which a use of an operator is undefined.
Requirement = Callable[[Use], Sequence[Expr]]


def shape_of(of: TensorType) -> tuple[Expr, ...]:
    assert of.shape is not None
    return of.shape


def broadcast_index(
    operand: Sequence[Expr], shape: Sequence[Expr], index: Sequence[Expr]
) -> tuple[Expr, ...]:
    """The index of an operand's element for the output element at `index`, by NumPy's
    broadcasting."""
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
    """Apply fn to the elements of broadcast operands; absent ones are passed as None."""

    def element(*index: Expr) -> Expr:
        values = [
            None if operand is None else read_broadcast(operand, use.shape, index)
            for operand in operands
        ]
        return te.cast(fn(*values), use.dtype)

    return te.compute(use.shape, element, name=use.name)


def static(dim: Expr) -> int | None:
    """A dimension as a number, if constant."""
    return int(dim.value) if isinstance(dim, Const) else None


# ------------------------------------------------------------------------------------ values


def wide_type(of: DType) -> DType:
    """The type of computation: low-precision floats compute in f32."""
    return F32 if of.is_float and of.bits < 32 else of


def wide(value: Expr) -> Expr:
    """Convert a value to its type of computation."""
    return te.cast(value, wide_type(value.dtype))


def number(value: Expr | int | float, of: DType) -> Expr:
    """A number, or an expression of sizes, converted to a type."""
    return te.cast(value, of) if isinstance(value, Expr) else te.const(value, of)


STORED = {"stage": "stored"}  # attribute of a tensor that rules must not inline into its readers

# ------------------------------------------------------------------------------------ indices


def front_axis(axis: int, rank: int) -> int:
    """Normalize a negative axis."""
    return axis + rank if axis < 0 else axis


def product(dims: Sequence[Expr]) -> Expr:
    """The number of elements of a shape."""
    out: Expr = ONE
    for dim in dims:
        out = sym.mul(out, dim)
    return sym.simplify(out)


def flat_index(index: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    """The row-major position of an element."""
    out: Expr = ZERO
    for at, dim in zip(index, shape, strict=True):
        out = sym.add(sym.mul(out, dim), at)
    return out


def split_index(flat: Expr, shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """The index of the element at row-major position `flat`."""
    if any(dim == ZERO for dim in shape):
        return (ZERO,) * len(shape)  # no elements; avoids division by zero
    found: list[Expr] = []
    below: Expr = ONE
    for axis in reversed(range(len(shape))):
        at = flat if below is ONE else sym.floordiv(flat, below)
        found.append(at if axis == 0 else sym.floormod(at, shape[axis]))
        below = sym.simplify(sym.mul(below, shape[axis]))
    return tuple(reversed(found))


def group_of(channel: Expr, channels: Expr, groups: int) -> Expr:
    """The group of a channel, out of `channels` in total."""
    if groups == 1 or static(channels) == 0:
        return ZERO
    return sym.floordiv(channel, sym.simplify(sym.floordiv(channels, groups)))


def placed(index: Sequence[Expr], axis: int, at: Expr) -> tuple[Expr, ...]:
    """An index with another position along one axis."""
    return (*index[:axis], at, *index[axis + 1 :])


def counted(index: Expr, dim: Expr, *, from_end: bool = True) -> Expr:
    """Normalize an index from memory and clamp it to the dimension."""
    index = te.cast(index, INDEX)
    front = te.select(index < 0, index + dim, index) if from_end else index
    return sym.maximum(sym.minimum(front, sym.sub(dim, 1)), 0)


def read_at(tensor: Tensor, index: Sequence[Expr], *from_memory: int) -> Expr:
    """An element at clamped positions from memory along some axes; 0 for an empty tensor."""
    return unless_empty(tensor, from_memory, tensor[tuple(index)])


def unless_empty(tensor: Tensor, axes: Sequence[int], value: Expr) -> Expr:
    """A value computed from elements along possibly empty axes; 0 if empty."""
    doubtful = [tensor.shape[axis] for axis in axes]
    tests = [sym.lt(0, dim) for dim in doubtful if static(dim) is None]
    if any(static(dim) == 0 for dim in doubtful):
        return te.const(0, value.dtype)
    return te.if_then_else(te.all(*tests), value, te.const(0, value.dtype)) if tests else value


def unless_none(count: Expr, dim: Expr) -> list[Expr]:
    """The condition that a dimension is not empty, if `count` elements are read."""
    nothing = sym.eq(count, 0)
    return [sym.simplify(sym.any_of(sym.le(1, dim), nothing))]


def item(use: Use, at: int, tensor: Tensor | None, position: int) -> Expr:
    """An element of an integer scalar or list: constant, or read from memory."""
    known = use.call.value(at)
    if known is not None:
        return known[position]
    assert tensor is not None
    return te.cast(tensor[(position,) if tensor.ndim else ()], INDEX)


def real_item(use: Use, at: int, tensor: Tensor | None, position: int) -> Expr | float:
    """An element of a list of floats: constant, or read from memory."""
    known = use.call.array(at)
    if known is not None:
        return float(known[position])
    assert tensor is not None
    return tensor[(position,)]


def copied(tensor: Tensor, name: str) -> Tensor:
    """A copy."""
    return te.compute(tensor.shape, lambda *index: tensor[index], name=name)
