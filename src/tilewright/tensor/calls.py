"""The scalar functions an expression may call: types, NumPy meaning, effects.

One table, read by the builder, the parser, the verifier, the interpreter and code generation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.dtype import BOOL, DType, dtype
from tilewright.base.errors import UserTypeError
from tilewright.base.tf32 import round_tf32
from tilewright.sym import Expr, as_expr
from tilewright.tensor.ir import Call


@dataclass(frozen=True, slots=True)
class CallSpec:
    """A known function. The result has the type of the first argument unless `boolean`, or unless
    `same_bits` names the kind of type, int or float, that the same bits are read as."""

    name: str
    arity: int
    numpy: Callable[..., Any] | None  # None: has an effect, no value
    domain: str = "float"  # float, int, any
    boolean: bool = False
    same_bits: str = ""


_vector_erf = np.vectorize(math.erf, otypes=[np.float64])


def _exp_nonpositive(x: Any) -> Any:
    power = np.exp(np.minimum(x, x.dtype.type(0)))
    computed = np.finfo(np.float64 if power.dtype == np.float64 else np.float32)
    return np.where(power < float(computed.tiny), power.dtype.type(0), power)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _rsqrt(x: Any) -> Any:
    return 1 / np.sqrt(x)


def _erf(x: Any) -> Any:
    return _vector_erf(x).astype(np.asarray(x).dtype)


def _truncdiv(a: Any, b: Any) -> Any:
    q = np.floor_divide(a, b)
    return q + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0)))


def _truncmod(a: Any, b: Any) -> Any:
    return a - _truncdiv(a, b) * b


def _fma(a: Any, b: Any, c: Any) -> Any:
    return a * b + c


def _bits_of(x: Any) -> Any:
    return x.view(f"i{x.dtype.itemsize}")


def _from_bits(x: Any) -> Any:
    return x.view(f"f{x.dtype.itemsize}")


_SPECS = (
    CallSpec("exp", 1, np.exp),
    CallSpec("exp_nonpositive", 1, _exp_nonpositive),  # exp(min(x, 0)), 0 for subnormal numbers
    CallSpec("exp2", 1, np.exp2),
    CallSpec("expm1", 1, np.expm1),
    CallSpec("log", 1, np.log),
    CallSpec("log2", 1, np.log2),
    CallSpec("log10", 1, np.log10),
    CallSpec("log1p", 1, np.log1p),
    CallSpec("sqrt", 1, np.sqrt),
    CallSpec("rsqrt", 1, _rsqrt),
    CallSpec("sigmoid", 1, _sigmoid),
    CallSpec("erf", 1, _erf),
    CallSpec("round_tf32", 1, round_tf32),
    CallSpec("sin", 1, np.sin),
    CallSpec("cos", 1, np.cos),
    CallSpec("tan", 1, np.tan),
    CallSpec("asin", 1, np.arcsin),
    CallSpec("acos", 1, np.arccos),
    CallSpec("atan", 1, np.arctan),
    CallSpec("sinh", 1, np.sinh),
    CallSpec("cosh", 1, np.cosh),
    CallSpec("tanh", 1, np.tanh),
    CallSpec("asinh", 1, np.arcsinh),
    CallSpec("acosh", 1, np.arccosh),
    CallSpec("atanh", 1, np.arctanh),
    CallSpec("atan2", 2, np.arctan2),
    CallSpec("pow", 2, np.power),
    CallSpec("fmod", 2, np.fmod),
    CallSpec("floor", 1, np.floor),
    CallSpec("ceil", 1, np.ceil),
    CallSpec("trunc", 1, np.trunc),
    CallSpec("round", 1, np.rint),  # half to even
    CallSpec("copysign", 2, np.copysign),
    CallSpec("fma", 3, _fma),
    CallSpec("saturating_div", 2, np.divide),  # beyond a byte: any quotient of that sign beyond it
    CallSpec("ranged_div", 2, np.divide),  # by a number that makes bytes of all of a range, nearly
    CallSpec("isnan", 1, np.isnan, boolean=True),
    CallSpec("isinf", 1, np.isinf, boolean=True),
    CallSpec("abs", 1, np.abs, "any"),
    CallSpec("truncdiv", 2, _truncdiv, "int"),
    CallSpec("truncmod", 2, _truncmod, "int"),
    CallSpec("bit_and", 2, np.bitwise_and, "int"),
    CallSpec("bit_or", 2, np.bitwise_or, "int"),
    CallSpec("bit_xor", 2, np.bitwise_xor, "int"),
    CallSpec("bit_not", 1, np.bitwise_not, "int"),
    CallSpec("shift_left", 2, np.left_shift, "int"),
    CallSpec("shift_right", 2, np.right_shift, "int"),
    CallSpec("popcount", 1, np.bitwise_count, "int"),
    CallSpec("bits_of", 1, _bits_of, same_bits="int"),  # f64 f32 f16 to a signed integer
    CallSpec("from_bits", 1, _from_bits, "int", same_bits="float"),
    CallSpec("barrier.shared", 0, None),  # all threads of a block meet; shared memory is visible
    CallSpec("barrier.global", 0, None),
    CallSpec("fence.async", 0, None),  # asynchronous instructions see what the thread wrote
    CallSpec("grid.launch", 0, None),  # what is queued behind this kernel may start
    CallSpec("grid.wait", 0, None),  # all kernels queued before it have ended
    CallSpec("prefetch", 1, None, "any"),  # of an Address
)
CALLS: dict[str, CallSpec] = {spec.name: spec for spec in _SPECS}


def result_type(spec: CallSpec, args: tuple[Expr, ...]) -> DType:
    """The type a call of a known function has."""
    if not args:
        return BOOL
    of = args[0].dtype
    if spec.same_bits:
        return dtype(f"{spec.same_bits[0]}{of.bits}").with_lanes(of.lanes)
    return BOOL.with_lanes(of.lanes) if spec.boolean else of


def call(op: str, *args: Any) -> Expr:
    """A call of a known function, checked; numbers take the first argument's type.

    Examples:
        >>> from tilewright import tensor
        >>> from tilewright.sym import const
        >>> print(tensor.call("exp", const(1.0, "f32")))
        exp(f32(1.0))
    """
    spec = CALLS.get(op)
    if spec is None:
        raise UserTypeError("TW2001", f"unknown function {op}")
    if len(args) != spec.arity:
        raise UserTypeError("TW2002", f"{op} takes {spec.arity} arguments, got {len(args)}")
    first = as_expr(args[0]) if args else None
    exprs = tuple(as_expr(arg, first.dtype.scalar) for arg in args) if first is not None else ()
    for arg in exprs:
        bad_domain = (spec.domain == "float" and not arg.dtype.is_float) or (
            spec.domain == "int" and not arg.dtype.is_int
        )
        if bad_domain or arg.dtype is not exprs[0].dtype:
            raise UserTypeError(
                "TW2003",
                f"{op} does not take {', '.join(str(a.dtype) for a in exprs)}",
                help=f"it takes operands of one {spec.domain} type: insert te.cast(x, dtype)",
            )
    return Call(op, exprs, result_type(spec, exprs))
