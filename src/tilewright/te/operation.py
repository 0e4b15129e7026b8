"""Tensors and the operations that define them.

A tensor is one output of an operation; `Read` is an element of it in an expression. They form the
whole graph: an operation's body contains the tensors it reads, and there are no other links. All of
it is data, built by `te.placeholder`, `te.compute`, `te.scan` and `te.extern`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import INDEX, DType
from tilewright.base.intern import Interned, interned, node, set_once
from tilewright.base.loc import UNKNOWN, Loc
from tilewright.sym import Const, Expr, Var
from tilewright.sym.text import FORMATTERS, ExprPrinter
from tilewright.te.axis import IterVar, bound
from tilewright.te.source import type_error, value_error
from tilewright.tensor.ir import Annotations, Buffer, Reducer, Stmt

Shape = tuple[Expr, ...]


class Operation:
    """Base class of operations, which define tensors.

    Examples:
        >>> from tilewright import te
        >>> A = te.placeholder((8,), name="A")
        >>> B = te.compute((8,), lambda i: A[i] + 1.0, name="B")
        >>> B.op.name, [t.name for t in B.op.input_tensors]
        ('B', ['A'])
    """

    __slots__ = ()
    name: str
    loc: Loc

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of each output."""
        raise NotImplementedError

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """The data type of each output."""
        raise NotImplementedError

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        """The tensors read, in order of first appearance."""
        return ()

    @property
    def num_outputs(self) -> int:
        return len(self.shapes)

    def output(self, index: int) -> Tensor:
        """Output `index` as a tensor."""
        return Tensor(self, index)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple([Tensor(self, k) for k in range(self.num_outputs)])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class _Weak(metaclass=Interned):
    __slots__ = ("__weakref__",)


@interned
class Tensor(_Weak):
    """Output `value_index` of an operation; unique, so compare with `is`.

    Examples:
        >>> from tilewright import te
        >>> A = te.placeholder((8, 4), name="A")
        >>> A.name, A.ndim, A.dtype
        ('A', 2, dtype('f32'))
        >>> print(A[3, 2])
        A[3, 2]
    """

    op: Operation
    value_index: int

    @property
    def name(self) -> str:
        return self.op.name if self.op.num_outputs == 1 else f"{self.op.name}.v{self.value_index}"

    @property
    def shape(self) -> Shape:
        return self.op.shapes[self.value_index]

    @property
    def dtype(self) -> DType:
        return self.op.dtypes[self.value_index]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: Any) -> Expr:
        parts = index if isinstance(index, tuple) else (index,)
        if len(parts) != self.ndim:
            raise value_error(
                "TW2404",
                f"{self.name} has {_count(self.ndim, 'dimension')}, indexed with {len(parts)}",
                help=f"its shape is ({', '.join(map(str, self.shape))})",
            )
        return Read(self, tuple([self._index(part, k) for k, part in enumerate(parts)]))

    def __call__(self, *index: Any) -> Expr:
        return self[index]

    __iter__ = None  # without it, iteration by indexing would not end

    def as_expr(self) -> Expr:
        """Convert a tensor of rank 0 to a read of its element."""
        if self.ndim:
            raise type_error(
                "TW2405",
                f"{self.name} is a tensor of {_count(self.ndim, 'dimension')}, not a value",
                help=f"read an element: {self.name}[{', '.join('ijkl'[: self.ndim])}]",
            )
        return Read(self, ())

    def _index(self, value: Any, axis: int) -> Expr:
        if isinstance(value, Tensor):
            value = value.as_expr()
        number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        expr = sym.const(int(value)) if number else value
        if not isinstance(expr, Expr) or not expr.dtype.is_int or expr.dtype.is_vector:
            what = f"{expr} of type {expr.dtype}" if isinstance(expr, Expr) else repr(value)
            raise type_error(
                "TW2405",
                f"index {axis} of {self.name} is {what}",
                help="an index is an integer, an axis or an integer expression",
            )
        if isinstance(expr, Const) and expr.value < 0:
            raise value_error(
                "TW2406",
                f"index {axis} of {self.name} is {expr.value}: negative indices do not count "
                "from the end",
                help=f"write {self.name}.shape[{axis}] - {-int(expr.value)}",
            )
        return sym.cast(expr, INDEX)

    def __repr__(self) -> str:
        return f"<Tensor {self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]>"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


# --------------------------------------------------------------------------- expressions


@interned
class Read(Expr):
    """An element of a tensor."""

    tensor: Tensor
    index: tuple[Expr, ...]
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        set_once(self, "dtype", self.tensor.dtype)

    def children(self) -> tuple[Expr, ...]:
        return self.index

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return Read(self.tensor, children)


@interned
class Reduce(Expr):
    """Component `value_index` of a reduction of `sources` over `axes`, where `where` holds."""

    reducer: Reducer
    sources: tuple[Expr, ...]
    axes: tuple[IterVar, ...]
    where: Expr
    init: tuple[Expr, ...]  # replaces the identity, if not empty
    value_index: int
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        set_once(self, "dtype", self.sources[self.value_index].dtype)

    def children(self) -> tuple[Expr, ...]:
        return (*self.sources, self.where, *self.init)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        n = len(self.sources)
        sources, where, init = children[:n], children[n], children[n + 1 :]
        return Reduce(self.reducer, sources, self.axes, where, init, self.value_index)

    def component(self, index: int) -> Reduce:
        """Another component of the same reduction."""
        return Reduce(self.reducer, self.sources, self.axes, self.where, self.init, index)


def _format_read(expr: Read, printer: ExprPrinter) -> str:
    return f"{expr.tensor.name}[{', '.join(printer(i) for i in expr.index)}]"


def _format_reduce(expr: Reduce, printer: ExprPrinter) -> str:
    sources = ", ".join(printer(source) for source in expr.sources)
    axes = ", ".join(printer(axis) for axis in expr.axes)
    return f"{expr.reducer.name}({sources}, axis=[{axes}])"


FORMATTERS.update({Read: _format_read, Reduce: _format_reduce})


def tensors_read(*roots: Expr) -> tuple[Tensor, ...]:
    """The tensors read by expressions, in order of first appearance."""
    found = {part.tensor: None for part in sym.walk(*roots) if isinstance(part, Read)}
    return tuple(found)


# --------------------------------------------------------------------------- operations


@node
class PlaceholderOp(Operation):
    """A tensor supplied by the caller.

    Examples:
        >>> from tilewright import te
        >>> type(te.placeholder((8,), name="A").op).__name__
        'PlaceholderOp'
    """

    name: str
    shape: Shape
    dtype: DType
    loc: Loc = UNKNOWN

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return (self.shape,)

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return (self.dtype,)


@node
class ComputeOp(Operation):
    """Elements defined by one expression per output, over the axes of the shape.

    The body contains no reduction, or it is one reduction whose component k defines output k.

    Examples:
        >>> from tilewright import te
        >>> B = te.compute((8,), lambda i: i * 2, name="B")
        >>> [axis.name for axis in B.op.axis]
        ['i']
    """

    name: str
    axis: tuple[IterVar, ...]
    body: tuple[Expr, ...]
    annotations: Annotations = ()
    loc: Loc = UNKNOWN

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return (tuple([axis.stop for axis in self.axis]),) * len(self.body)

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return tuple([value.dtype for value in self.body])

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        return tensors_read(*self.body)

    @property
    def reduction(self) -> Reduce | None:
        """The reduction in the body."""
        return self.body[0] if isinstance(self.body[0], Reduce) else None

    @property
    def reduce_axis(self) -> tuple[IterVar, ...]:
        return () if self.reduction is None else self.reduction.axes


@node
class ScanOp(Operation):
    """A recurrence over the first dimension: `init` defines the first steps, `update` the others.

    In the updates, `state[k]` refers to output k.

    Examples:
        >>> from tilewright import te
        >>> state = te.placeholder((8, 4), name="state")
        >>> init = te.compute((1, 4), lambda t, i: 0.0, name="init")
        >>> update = te.compute((8, 4), lambda t, i: state[t - 1, i] + 1.0, name="update")
        >>> type(te.scan(init, update, state).op).__name__
        'ScanOp'
    """

    name: str
    scan_axis: IterVar  # the steps that `update` computes
    init: tuple[Tensor, ...]
    update: tuple[Tensor, ...]
    state: tuple[Tensor, ...]
    annotations: Annotations = ()
    loc: Loc = UNKNOWN

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple([state.shape for state in self.state])

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return tuple([state.dtype for state in self.state])

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        return (*self.init, *self.update)


@node
class ExternOp(Operation):
    """Outputs written by an opaque statement over whole tensors, or by one per point of the
    independent variables `over`, with their extents.

    `body` refers to placeholder buffers, `ins` for the inputs and `outs` for the outputs.

    Examples:
        >>> from tilewright import te
        >>> A = te.placeholder((8,), name="A")
        >>> type(te.extern((8,), [A], "my_kernel", name="B").op).__name__
        'ExternOp'
    """

    name: str
    inputs: tuple[Tensor, ...]
    ins: tuple[Buffer, ...]
    outs: tuple[Buffer, ...]
    body: Stmt
    annotations: Annotations = ()
    loc: Loc = UNKNOWN
    over: tuple[tuple[Var, Expr], ...] = ()
    then: tuple[tuple[tuple[tuple[Var, Expr], ...], Stmt], ...] = ()  # more of these, in order

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple([buffer.shape for buffer in self.outs])

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return tuple([buffer.dtype for buffer in self.outs])

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        return self.inputs


def shape_of(shape: Any, what: str) -> Shape:
    """Convert a user's shape: a sequence of dimensions, or one dimension."""
    dims: Sequence[Any] = shape if isinstance(shape, (tuple, list)) else (shape,)
    found = tuple([bound(dim, f"a dimension of {what}") for dim in dims])
    for dim in found:
        if isinstance(dim, Const) and dim.value < 0:
            raise value_error("TW2402", f"a dimension of {what} is {dim.value}, below zero")
    return found
