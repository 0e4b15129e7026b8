"""Operators with data-dependent writes: loops and stores instead of tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import sym, te
from tilewright.base.dtype import DType
from tilewright.sym import ZERO, Expr, Var
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import SERIAL, For, If, Stmt, Store, seq

Body = Callable[..., Stmt]  # of views of inputs and outputs, and of indices


def procedure(
    shapes: Sequence[Sequence[Expr]],
    inputs: Sequence[Tensor],
    body: Body,
    name: str,
    dtypes: Sequence[DType],
    over: Sequence[Expr] = (),
    then: Sequence[tuple[Sequence[Expr], Body]] = (),
) -> tuple[Tensor, ...]:
    """Tensors that a statement, built from views of inputs and outputs, writes sequentially; or,
    with extents `over`, one statement for each index, in any order; `then` follows."""
    dims, types = [tuple(s) for s in shapes], list(dtypes)
    more = [(tuple(extents), follows) for extents, follows in then]
    given = list(inputs)
    return tuple(te.extern(dims, given, body, name, types, over=tuple(over), then=more))


def loops(
    dims: Sequence[Expr], body: Callable[..., Stmt], name: str = "i", kind: str = SERIAL
) -> Stmt:
    """Run body(positions) for all positions of some dimensions, in order."""
    variables: list[Var] = [sym.var(f"{name}{at}") for at in range(len(dims))]
    stmt = body(*variables)
    for variable, dim in reversed(list(zip(variables, dims, strict=True))):
        stmt = For(variable, ZERO, dim, stmt, kind)
    return stmt


def store(view: BufferView, index: Sequence[Expr], value: Expr) -> Stmt:
    return Store(view.buffer, tuple(sym.as_expr(at) for at in index), value)


def when(tests: Sequence[Expr], then: Stmt) -> Stmt:
    """A statement under conditions, if any."""
    return If(sym.all_of(*tests), then) if tests else then


__all__ = ["loops", "procedure", "seq", "store", "when"]
