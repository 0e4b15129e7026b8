"""Declare intrinsics from the text of their behaviour.

    declare("func @copy4(%X: f32[4], %Y: f32[4]) stage scheduled { ... }", compute=lower)

where `lower(X, Y)` returns the statement that implements it. A family:

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

Lower = Callable[..., Stmt]  # of the behaviour's buffers, in order


def declare(
    behavior: str,
    *,
    compute: Lower | None = None,
    reset: Lower | None = None,
    update: Lower | None = None,
) -> TensorIntrin:
    """Declare an intrinsic with the given behaviour, implemented by one statement per phase."""
    return intrin.declare(member(behavior, compute=compute, reset=reset, update=update))


def member(
    behavior: str,
    *,
    compute: Lower | None = None,
    reset: Lower | None = None,
    update: Lower | None = None,
) -> TensorIntrin:
    """The same for a member of a family, which `declare_family` registers."""
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
    """The stride in elements along an axis of the tile."""
    return Call("stride", (address(buffer), sym.const(axis)), INDEX)


def stride_bytes(buffer: Buffer, axis: int = 0) -> Expr:
    """The stride in bytes."""
    return stride(buffer, axis) * buffer.dtype.size_bytes


def instruction(name: str, *args: Expr) -> Stmt:
    """A call for its side effect: of an LLVM intrinsic, or of an internal instruction."""
    return Eval(Call(name, args, BOOL))
