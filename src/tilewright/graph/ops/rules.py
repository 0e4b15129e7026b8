"""Type rules shared by many operators."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import sym
from tilewright.base.dtype import BOOL
from tilewright.base.errors import UserTypeError
from tilewright.graph.op import Call
from tilewright.graph.types import TensorType, Type
from tilewright.sym import ONE, Const, Expr, Size

EMPTY = sym.Context()


def same_type(call: Call) -> Sequence[Type]:
    """The output has the type of the first input."""
    return (call.tensor(0),)


def same_dim(call: Call, a: Expr, b: Expr, what: str) -> Expr:
    """Unify two dimensions that must be equal: prefer a number, then a size, then an expression,
    about which schedules can prove less."""
    if isinstance(a, Const) and isinstance(b, Const) and a is not b:
        raise call.error("TW1015", f"{what} of {call.op} differ: {a} and {b}")
    if isinstance(a, Const) or (isinstance(a, Size) and not isinstance(b, (Const, Size))):
        return a
    return b


def contents_or_sizes(call: Call, at: int, name: str) -> tuple[Expr, ...]:
    """A shape given by input `at`: its contents if known, else as many new sizes."""
    contents = call.value(at)
    if contents is not None:
        return contents
    shape = call.tensor(at).static_shape
    if shape is None or len(shape) != 1:
        raise call.error(
            "TW1016", f"the number of dimensions given by input {at} of {call.op} is unknown"
        )
    return tuple(sym.size(f"{name}_{axis}") for axis in range(shape[0]))


def broadcast_dims(a: Expr, b: Expr) -> Expr | None:
    """The broadcast of two dimensions; None if impossible."""
    if a is b or b is ONE:
        return a
    if a is ONE:
        return b
    if isinstance(a, Const) and isinstance(b, Const):
        return None
    # One is symbolic: it is 1 or equal to the other. A number above 1 determines the result.
    if isinstance(a, Const):
        return a
    if isinstance(b, Const):
        return b
    return a if sym.equal(a, b, EMPTY) else sym.simplify(sym.maximum(a, b))


def broadcast_shapes(call: Call, shapes: Sequence[tuple[Expr, ...]]) -> tuple[Expr, ...]:
    """NumPy's broadcasting of symbolic shapes."""
    rank = max((len(shape) for shape in shapes), default=0)
    out: list[Expr] = []
    for axis in range(-rank, 0):
        dim: Expr = ONE
        for shape in shapes:
            if len(shape) < -axis:
                continue
            joined = broadcast_dims(dim, shape[axis])
            if joined is None:
                shown = " and ".join(_show(shape) for shape in shapes)
                raise call.error("TW1011", f"{call.op} cannot broadcast {shown}")
            dim = joined
        out.append(dim)
    return tuple(out)


def _show(shape: tuple[Expr, ...]) -> str:
    return "[" + ", ".join(str(dim) for dim in shape) + "]"


def broadcast(call: Call) -> Sequence[Type]:
    """All inputs are broadcast together and have one element type."""
    check_one_dtype(call)
    shapes = [call.shape(at) for at in range(len(call.types)) if call.has(at)]
    return (TensorType(call.tensor(0).dtype, broadcast_shapes(call, shapes)),)


def broadcast_to_bool(call: Call) -> Sequence[Type]:
    """Comparisons: like `broadcast`, with a boolean result."""
    (out,) = broadcast(call)
    assert isinstance(out, TensorType)
    return (TensorType(BOOL, out.shape),)


def check_one_dtype(call: Call, start: int = 0) -> None:
    """Check that all tensor inputs from `start` on have one element type."""
    first = call.tensor(start).dtype
    for at in range(start + 1, len(call.types)):
        if call.has(at) and call.tensor(at).dtype is not first:
            raise UserTypeError(
                "TW1012",
                f"{call.op} needs one element type, got {first} and {call.tensor(at).dtype}",
                call.loc,
            )
