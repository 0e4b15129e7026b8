"""Operators that write where their data says: loops and stores, in place of a tensor expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright import sym, te
from tilewright.base.dtype import DType
from tilewright.sym import ZERO, Expr, Var
from tilewright.te import BufferView, Tensor
from tilewright.tensor.ir import For, If, Stmt, Store, seq

Body = Callable[[list[BufferView], list[BufferView]], Stmt]


def procedure(
    shapes: Sequence[Sequence[Expr]],
    inputs: Sequence[Tensor],
    body: Body,
    name: str,
    dtypes: Sequence[DType],
) -> tuple[Tensor, ...]:
    """Tensors that a statement, made from views of inputs and outputs, fills in order."""
    made = te.extern([tuple(s) for s in shapes], list(inputs), body, name=name, dtype=list(dtypes))
    return tuple(made)


def loops(dims: Sequence[Expr], body: Callable[..., Stmt], name: str = "i") -> Stmt:
    """body(positions) for all positions of some dimensions, in order."""
    variables: list[Var] = [sym.var(f"{name}{at}") for at in range(len(dims))]
    stmt = body(*variables)
    for variable, dim in reversed(list(zip(variables, dims, strict=True))):
        stmt = For(variable, ZERO, dim, stmt)
    return stmt


def store(view: BufferView, index: Sequence[Expr], value: Expr) -> Stmt:
    return Store(view.buffer, tuple(sym.as_expr(at) for at in index), value)


def when(tests: Sequence[Expr], then: Stmt) -> Stmt:
    """A statement under conditions, if there are any."""
    return If(sym.all_of(*tests), then) if tests else then


__all__ = ["loops", "procedure", "seq", "store", "when"]
