"""What a piece of a program uses from around it: the arguments of an outlined function."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.sym import Expr, Var
from tilewright.sym import walk as walk_expr
from tilewright.tensor import ir
from tilewright.tensor.ir import Address, Buffer, Load, MaskedLoad, Stmt
from tilewright.tensor.visit import walk


@dataclass(frozen=True, slots=True)
class Captures:
    variables: tuple[Var, ...]
    buffers: tuple[Buffer, ...]


def captures(body: Stmt, bound: tuple[Var, ...] = ()) -> Captures:
    """The variables and buffers used in `body` and not defined there or in `bound`."""
    variables: dict[Var, None] = {}
    buffers: dict[Buffer, None] = {}
    own_variables: set[Var] = set(bound)
    own_buffers: set[Buffer] = set()
    roots: list[Expr] = []
    for stmt in walk(body):
        roots.extend(stmt.exprs())
        if isinstance(stmt, (ir.For, ir.Let)):
            own_variables.add(stmt.var)
        elif isinstance(stmt, ir.Alloc):
            own_buffers.add(stmt.buffer)
            roots.extend(stmt.buffer.shape)
        elif isinstance(stmt, ir.Store):
            buffers[stmt.buffer] = None
        elif isinstance(stmt, ir.Update):
            buffers.update(dict.fromkeys(stmt.buffers))
            own_variables.update(stmt.reducer.lhs, stmt.reducer.rhs)
            roots.extend(stmt.reducer.result)
        elif isinstance(stmt, (ir.TensorCall, ir.ExternCall)):
            buffers.update(dict.fromkeys(region.buffer for region in stmt.regions))
    for node in walk_expr(*roots):
        if isinstance(node, Var):
            variables[node] = None
        elif isinstance(node, (Load, MaskedLoad, Address)):
            buffers[node.buffer] = None
    for buffer in list(buffers):  # strides and sizes are made of dimensions
        for dim in buffer.shape:
            for node in walk_expr(dim):
                if isinstance(node, Var):
                    variables[node] = None
    return Captures(
        tuple(v for v in variables if v not in own_variables),
        tuple(b for b in buffers if b not in own_buffers),
    )
