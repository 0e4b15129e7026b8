"""Facts about index expressions that select better instructions: signs, divisors, ramps."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tilewright.base.dtype import INDEX
from tilewright.sym import (
    ZERO,
    Add,
    And,
    Cast,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Lt,
    Max,
    Min,
    Mul,
    Select,
    Size,
    Sub,
    Var,
    add,
    floordiv,
    fold,
    folded,
    mul,
    simplify,
    sub,
)
from tilewright.tensor.ir import Broadcast, Ramp


def is_non_negative(expr: Expr, known: Mapping[Var, object]) -> bool:
    """Whether an integer is certainly non-negative, given variables that are."""

    def fact(node: Expr, of: tuple[bool, ...]) -> bool:
        if isinstance(node, Const):
            return bool(node.value >= 0)
        if isinstance(node, Var):
            return isinstance(node, Size) or node in known
        if isinstance(node, FloorMod):
            return of[1]
        if isinstance(node, Max):
            return of[0] or of[1]
        if isinstance(node, (Add, Mul, FloorDiv, Min, Ramp)):
            return of[0] and of[1]
        if isinstance(node, Select):
            return of[1] and of[2]
        if isinstance(node, Broadcast):
            return of[0]
        if isinstance(node, Cast):
            return node.value.dtype.kind in ("uint", "bool") and node.dtype.bits == 64
        return False

    return expr.dtype.kind == "uint" or fold(expr, fact)


def _divisor_of(node: Expr, of: tuple[int, ...]) -> int:
    """A number that divides the integer, as large as can be shown; 0 for the constant 0."""
    if isinstance(node, Const):
        return abs(int(node.value))
    if isinstance(node, (Add, Sub, Min, Max, FloorMod)):
        return math.gcd(of[0], of[1])
    if isinstance(node, Mul):
        return of[0] * of[1]
    if isinstance(node, Select):
        return math.gcd(of[1], of[2])
    if isinstance(node, Broadcast):
        return of[0]
    return 1


divisor = folded(_divisor_of)  # an unrolled body has the same indices many times


def as_ramp(index: Expr) -> tuple[Expr, Expr] | None:
    """(base, stride) when a vector of integers is base, base + stride, ...; None otherwise."""
    if isinstance(index, Ramp) and index.base.dtype.lanes == 1:
        return index.base, index.stride
    if isinstance(index, Broadcast) and index.value.dtype.lanes == 1:
        return index.value, sub(index.value, index.value)
    if isinstance(index, (Add, Sub, Mul)):
        a, b = as_ramp(index.a), as_ramp(index.b)
        if a is None or b is None:
            return None
        if isinstance(index, Mul):
            for (base, stride), (factor, step) in ((a, b), (b, a)):
                if isinstance(step, Const) and step.value == 0:
                    return mul(base, factor), mul(stride, factor)
            return None
        combine = add if isinstance(index, Add) else sub
        return combine(a[0], b[0]), combine(a[1], b[1])
    return None


def first_lanes(test: Lt | Le) -> tuple[Expr, bool] | None:
    """(n, True) if a comparison holds of lanes 0 to n - 1, (n, False) of all others; else None."""
    of = test.a.dtype
    if of.scalar is not INDEX or of.lanes == 1:
        return None
    a, b = as_ramp(test.a), as_ramp(test.b)
    if a is None or b is None:
        return None
    step = simplify(sub(a[1], b[1]))
    if not isinstance(step, Const) or step.value not in (1, -1):
        return None
    equal = isinstance(test, Le)
    if step.value == 1:
        return add(sub(b[0], a[0]), int(equal)), True
    return add(sub(a[0], b[0]), int(not equal)), False


def as_offsets(index: Expr) -> tuple[Expr, tuple[int, ...]] | None:
    """(base, offsets) when every lane is a static offset from a scalar; else None."""
    if isinstance(index, Ramp) and index.base.dtype.lanes == 1:
        if not isinstance(index.stride, Const):
            return None
        step = int(index.stride.value)
        return index.base, tuple(lane * step for lane in range(index.lanes))
    if isinstance(index, Broadcast) and index.value.dtype.lanes == 1:
        return index.value, (0,) * index.lanes
    if not isinstance(index, (Add, Sub, Mul, FloorDiv, FloorMod)):
        return None
    a, b = as_offsets(index.a), as_offsets(index.b)
    if a is None or b is None:
        return None
    (x, xs), (y, ys) = a, b
    if isinstance(index, (Add, Sub)):
        sign = 1 if isinstance(index, Add) else -1
        combine = add if sign == 1 else sub
        return combine(x, y), tuple(i + sign * j for i, j in zip(xs, ys, strict=True))
    if not isinstance(y, Const) or any(ys):
        return None
    number = int(y.value)
    if isinstance(index, Mul):
        return mul(x, number), tuple(i * number for i in xs)
    if number == 0 or not (isinstance(x, Const) or divisor(x) % number == 0):
        return None
    first = int(x.value) if isinstance(x, Const) else 0  # of which a whole number is left out
    pairs = [divmod(first + i, number) for i in xs]
    base = mul(x, 0) if isinstance(x, Const) or isinstance(index, FloorMod) else floordiv(x, number)
    return base, tuple(pair[isinstance(index, FloorMod)] for pair in pairs)


@dataclass(frozen=True, slots=True)
class Pitched:
    """Lanes in rows with a dynamic pitch: each at a static offset within a static row."""

    base: Expr
    pitch: Expr  # between neighbouring rows
    rows: tuple[int, ...]
    offsets: tuple[int, ...]


def as_pitched(index: Expr) -> Pitched | None:
    """The rows that the lanes of an index are in; None where offsets are dynamic, or there is one
    row."""
    match index:
        case Mul(a, Broadcast(factor)) | Mul(Broadcast(factor), a) if factor.dtype.lanes == 1:
            known, inner = as_offsets(a), as_pitched(a)
            if known is not None and not isinstance(factor, Const):
                base, rows = known
                return Pitched(mul(base, factor), factor, rows, (0,) * len(rows))
            if inner is None or (any(inner.offsets) and not isinstance(factor, Const)):
                return None
            scaled = (0,) * len(inner.offsets)
            if isinstance(factor, Const):
                scaled = tuple(each * int(factor.value) for each in inner.offsets)
            return Pitched(mul(inner.base, factor), mul(inner.pitch, factor), inner.rows, scaled)
        case Add(a, b):
            far, near = as_pitched(a), as_offsets(b)
            if far is None or near is None:
                far, near = as_pitched(b), as_offsets(a)
            if far is None or near is None:
                return None
            offsets = tuple(x + y for x, y in zip(far.offsets, near[1], strict=True))
            return replace(far, base=add(far.base, near[0]), offsets=offsets)
        case Sub(a, b):
            far, near = as_pitched(a), as_offsets(b)
            if far is None or near is None:
                return None
            offsets = tuple(x - y for x, y in zip(far.offsets, near[1], strict=True))
            return replace(far, base=sub(far.base, near[0]), offsets=offsets)
    return None


def without_constant(expr: Expr) -> tuple[Expr, int]:
    """A sum without its constants, and their total."""
    if isinstance(expr, Const):
        return mul(expr, 0), int(expr.value)
    if not isinstance(expr, (Add, Sub)):
        return expr, 0
    (a, x), (b, y) = without_constant(expr.a), without_constant(expr.b)
    return (add(a, b), x + y) if isinstance(expr, Add) else (sub(a, b), x - y)


def split_sum(expr: Expr, is_part: Callable[[Expr], bool]) -> tuple[Expr, Expr]:
    """The summands of an index that pass a test, and the others."""
    if is_part(expr):
        return expr, ZERO
    if isinstance(expr, (Add, Sub)):
        (a, x), (b, y) = split_sum(expr.a, is_part), split_sum(expr.b, is_part)
        join = add if isinstance(expr, Add) else sub
        return join(a, b), join(x, y)
    if isinstance(expr, Mul) and is_part(expr.b):
        part, rest = split_sum(expr.a, is_part)
        return mul(part, expr.b), mul(rest, expr.b)
    return ZERO, expr


def common_part(index: Expr) -> tuple[Expr, Expr]:
    """A vector of indices as a scalar, common to all lanes, plus a vector."""
    match index:
        case Broadcast(value, lanes) if value.dtype.lanes == 1:
            return value, Broadcast(ZERO, lanes)
        case Ramp(base, stride, lanes) if base.dtype.lanes == 1:
            return base, Ramp(ZERO, stride, lanes)
        case Add(a, b):
            (x, xs), (y, ys) = common_part(a), common_part(b)
            return add(x, y), _sum_of_lanes(xs, ys)
        case Sub(a, Broadcast(value)) if value.dtype.lanes == 1:
            x, xs = common_part(a)
            return sub(x, value), xs
        case Mul(a, Broadcast(factor)) if factor.dtype.lanes == 1:
            x, xs = common_part(a)
            return mul(x, factor), xs if _is_nothing(xs) else Mul(xs, index.b)
    return ZERO, index


def _sum_of_lanes(a: Expr, b: Expr) -> Expr:
    if _is_nothing(a):
        return b
    return a if _is_nothing(b) else Add(a, b)


def _is_nothing(lanes: Expr) -> bool:
    return isinstance(lanes, Broadcast) and lanes.value is ZERO


def open_lanes(mask: Expr) -> range | None:
    """The lanes that a constant mask enables, if contiguous."""
    found = known_lanes(mask)
    lanes = [] if found is None else [lane for lane, test in enumerate(found) if test]
    if not lanes or lanes[-1] - lanes[0] >= len(lanes):
        return None
    return range(lanes[0], lanes[-1] + 1)


def known_lanes(mask: Expr) -> tuple[bool, ...] | None:
    """The lanes of a constant mask."""
    if isinstance(mask, And):
        left, right = known_lanes(mask.a), known_lanes(mask.b)
        return None if left is None or right is None else tuple(map(operator.and_, left, right))
    if not isinstance(mask, (Lt, Le)):
        return None
    a, b = as_offsets(mask.a), as_offsets(mask.b)
    if a is None or b is None:
        return None
    apart = simplify(sub(a[0], b[0]))
    if not isinstance(apart, Const):
        return None
    test = operator.lt if isinstance(mask, Lt) else operator.le
    return tuple(test(int(apart.value) + x, y) for x, y in zip(a[1], b[1], strict=True))
