"""Scalar expressions: the nodes of shapes, indices and values.

Proofs are about integers of type `index`; the same arithmetic nodes also represent the values of a
tensor program, and the tensor layer adds leaves (loads, calls).

- Nodes are interned: equal expressions are one object, and `==` is identity.
- `FloorDiv` and `FloorMod` round towards minus infinity: x == (x // y) * y + x % y, and x % y has
  the sign of y. `Div` is the true division of floats.
- Nodes say what was written; the operators (`a + b`) fold constants on the way, see `ops.py`.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import struct
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.base.dtype import BOOL, INDEX, DType, dtype
from tilewright.base.intern import Interned, interned, set_once

Number = int | float | bool


class Expr(metaclass=Interned):
    """Base class of all scalar expressions. `dtype` is always set."""

    __slots__ = ("__weakref__",)
    dtype: DType

    def children(self) -> tuple[Expr, ...]:
        """Operand expressions, in order."""
        return ()

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        """The same node with other operands."""
        assert not children
        return self

    def __bool__(self) -> bool:
        raise TypeError(
            "an expression has no truth value: use te.all / te.any / te.if_then_else, "
            "or `is` to compare nodes"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __reduce__(self) -> tuple[Any, ...]:
        names = [f.name for f in fields(self) if f.init]  # type: ignore[arg-type]
        return (type(self), tuple(getattr(self, name) for name in names))

    if TYPE_CHECKING:  # operators are installed by ops.py, printing by text.py

        def __add__(self, other: Any) -> Expr: ...
        def __radd__(self, other: Any) -> Expr: ...
        def __sub__(self, other: Any) -> Expr: ...
        def __rsub__(self, other: Any) -> Expr: ...
        def __mul__(self, other: Any) -> Expr: ...
        def __rmul__(self, other: Any) -> Expr: ...
        def __truediv__(self, other: Any) -> Expr: ...
        def __rtruediv__(self, other: Any) -> Expr: ...
        def __floordiv__(self, other: Any) -> Expr: ...
        def __rfloordiv__(self, other: Any) -> Expr: ...
        def __mod__(self, other: Any) -> Expr: ...
        def __rmod__(self, other: Any) -> Expr: ...
        def __lt__(self, other: Any) -> Expr: ...
        def __le__(self, other: Any) -> Expr: ...
        def __gt__(self, other: Any) -> Expr: ...
        def __ge__(self, other: Any) -> Expr: ...
        def __neg__(self) -> Expr: ...


def _fresh_ids() -> itertools.count[int]:
    # Ids must be unique across processes that exchange programs.
    return itertools.count(random.SystemRandom().getrandbits(44) << 18)


_ids = _fresh_ids()


def _reseed() -> None:
    global _ids
    _ids = _fresh_ids()


os.register_at_fork(after_in_child=_reseed)


@interned
class Var(Expr):
    """A variable: a loop, a block iterator, a scalar parameter. Identified by `uid`, not by
    name."""

    name: str
    dtype: DType
    uid: int


@interned
class Size(Var):
    """A dimension of a shape; nonnegative."""


@interned
class Const(Expr):
    """A constant. `bits` distinguishes 0.0 from -0.0; build with `const`."""

    value: Number
    dtype: DType
    bits: int


@interned
class Binary(Expr):
    """Base class of nodes with two operands of one type."""

    a: Expr
    b: Expr
    dtype: DType = field(init=False)
    symbol: ClassVar[str] = "?"

    def __post_init__(self) -> None:
        set_once(self, "dtype", self.a.dtype)

    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return type(self)(*children)


@interned
class Add(Binary):
    symbol: ClassVar[str] = "+"


@interned
class Sub(Binary):
    symbol: ClassVar[str] = "-"


@interned
class Mul(Binary):
    symbol: ClassVar[str] = "*"


@interned
class Div(Binary):
    """True division, floats only."""

    symbol: ClassVar[str] = "/"


@interned
class FloorDiv(Binary):
    symbol: ClassVar[str] = "//"


@interned
class FloorMod(Binary):
    symbol: ClassVar[str] = "%"


@interned
class Min(Binary):
    """The minimum. A NaN operand gives NaN."""

    symbol: ClassVar[str] = "min"


@interned
class Max(Binary):
    """The maximum. A NaN operand gives NaN."""

    symbol: ClassVar[str] = "max"


@interned
class Compare(Binary):
    """Base class of comparisons: operands of one type, a boolean (vector) result."""

    def __post_init__(self) -> None:
        set_once(self, "dtype", BOOL.with_lanes(self.a.dtype.lanes))


@interned
class Eq(Compare):
    symbol: ClassVar[str] = "=="


@interned
class Ne(Compare):
    symbol: ClassVar[str] = "!="


@interned
class Lt(Compare):
    symbol: ClassVar[str] = "<"


@interned
class Le(Compare):
    symbol: ClassVar[str] = "<="


@interned
class And(Binary):
    symbol: ClassVar[str] = "and"


@interned
class Or(Binary):
    symbol: ClassVar[str] = "or"


@interned
class Not(Expr):
    a: Expr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        set_once(self, "dtype", self.a.dtype)

    def children(self) -> tuple[Expr, ...]:
        return (self.a,)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return Not(*children)


@interned
class Select(Expr):
    """`a` if `cond`, else `b`. Only the selected operand is evaluated: a guarded load is safe."""

    cond: Expr
    a: Expr
    b: Expr
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        set_once(self, "dtype", self.a.dtype)

    def children(self) -> tuple[Expr, ...]:
        return (self.cond, self.a, self.b)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return Select(*children)


@interned
class Cast(Expr):
    """Conversion by value. Float to integer truncates and saturates; NaN becomes 0."""

    value: Expr
    dtype: DType

    def children(self) -> tuple[Expr, ...]:
        return (self.value,)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return Cast(children[0], self.dtype)


_NAN = float("nan")


def const(value: Number, of: str | DType = INDEX) -> Const:
    """The constant `value` of type `of`, rounded to the type."""
    if of is INDEX:
        return Const(int(value), INDEX, 0)
    kind = dtype(of).scalar
    if kind.is_float:
        number = float(kind.numpy.type(value)) if kind.name != "f64" else float(value)
        if math.isnan(number):
            return Const(_NAN, kind, 1)
        return Const(number, kind, struct.unpack("<q", struct.pack("<d", number))[0])
    if kind.is_bool:
        return Const(bool(value), kind, 0)
    return Const(int(value), kind, 0)


def var(name: str, of: str | DType = INDEX) -> Var:
    """A new variable; `name` is only a hint for the printer."""
    return Var(name, dtype(of), next(_ids))


def size(name: str) -> Size:
    """A new dimension variable."""
    return Size(name, INDEX, next(_ids))


TRUE, FALSE = const(True, BOOL), const(False, BOOL)
ZERO, ONE = const(0), const(1)
