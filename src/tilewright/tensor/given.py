"""Validation of arguments where a tensor function is expected."""

from __future__ import annotations

from tilewright.base.errors import UserTypeError
from tilewright.tensor.ir import Function


def check_function(value: object, verb: str) -> None:
    """Raise unless the value is a function; `verb` tells what was to be done with it."""
    if isinstance(value, Function):
        return
    if isinstance(getattr(value, "function", None), Function):
        help = f"pass its function: {type(value).__name__.lower()}.function"
    else:
        help = "make a function with te.function(...) or tensor.parse(...)"
    raise UserTypeError("TW2195", f"cannot {verb} a {type(value).__name__}", help=help)
