"""Declaring an intrinsic from the text of its behaviour.

    declare("func @copy4(%X: f32[4], %Y: f32[4]) stage scheduled { ... }", compute=lower)

where `lower(X, Y)` gives the statement that carries the instruction out. A family of them:

    def _copy(n: int) -> TensorIntrin:
        return member(f"func @copy(%X: f32[{n}], %Y: f32[{n}]) ...", compute=lower)

    declare_family("copy", (Parameter("n", 1, 16),), _copy)      # intrinsic("copy", n=4)
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import sym
from tilewright.base.dtype import BOOL, INDEX
from tilewright.sym import ZERO, Expr
from tilewright.tensor import intrin
from tilewright.tensor.intrin import TensorIntrin
from tilewright.tensor.ir import Address, Buffer, Call, Eval, Stmt
from tilewright.tensor.parser import parse

Lower = Callable[..., Stmt]  # from the behaviour's buffers, in order


def declare(
    behavior: str,
    *,
    compute: Lower | None = None,
    reset: Lower | None = None,
    update: Lower | None = None,
) -> TensorIntrin:
    """Declare what `behavior` computes, carried out by one statement per phase."""
    return intrin.declare(member(behavior, compute=compute, reset=reset, update=update))


def member(
    behavior: str,
    *,
    compute: Lower | None = None,
    reset: Lower | None = None,
    update: Lower | None = None,
) -> TensorIntrin:
    """The same of one member of a family, which `declare_family` has made known."""
    fn = parse(behavior)
    compute_stmt, reset_stmt, update_stmt = [
        None if lower is None else lower(*fn.buffers) for lower in (compute, reset, update)
    ]
    return TensorIntrin(fn.name, fn, compute_stmt, reset_stmt, update_stmt)


def address(buffer: Buffer, *index: int) -> Expr:
    """The address of an element, the first one by default."""
    at = tuple(sym.const(i) for i in index) if index else (ZERO,) * buffer.rank
    return Address(buffer, at)


def stride(buffer: Buffer, axis: int = 0) -> Expr:
    """The distance in memory, in elements, between neighbours along an axis of the tile."""
    return Call("stride", (address(buffer), sym.const(axis)), INDEX)


def stride_bytes(buffer: Buffer, axis: int = 0) -> Expr:
    """The same distance in bytes."""
    return stride(buffer, axis) * buffer.dtype.size_bytes


def instruction(name: str, *args: Expr) -> Stmt:
    """A call for its effect: of an LLVM intrinsic, or of an instruction of ours."""
    return Eval(Call(name, args, BOOL))
