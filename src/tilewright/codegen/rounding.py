"""Rounding to narrow integers, and back to floats, in as few instructions as possible.

    u8(round(x) + zero)                x clamped, then rounded by the conversion itself
    u8(round(ranged_div(x, by)) + zero)     no clamp: all quotients are nearly in range
    f32(u8(round(x) + zero)) - zero    no integers at all: x + 1.5 * 2**23 is rounded by the
                                       addition, which can be an FMA with a preceding product

The bounds of the type, less the zero point, are integers, so clamping and rounding commute. NaN
becomes 0, as in `Cast`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright import sym
from tilewright.base.dtype import F32, DType
from tilewright.codegen.builder import FunctionText, Value, splat
from tilewright.codegen.handlers import Emitting
from tilewright.codegen.quotients import is_usual, quotient, saturating_quotient
from tilewright.codegen.types import float_literal, mangled, register_type, vector
from tilewright.sym import Expr
from tilewright.tensor.ir import Broadcast, Call

MAGIC = 1.5 * 2**23  # adding it rounds to an integer
MOST = 2.0**16  # bound on a zero point
NEON = 4  # lanes of 32 bits in a vector of AArch64
PACKED = 64  # bytes packed from four 512-bit vectors


@dataclass(frozen=True)
class Rounded:
    """A narrow integer: x rounded, plus a zero point, saturated."""

    x: Expr
    zero: Expr | None
    to: DType
    back: bool  # converted back to float, less the zero point


def rounded(node: Expr) -> Rounded | None:
    """The rounding that an expression is, if any."""
    if isinstance(node, sym.Cast):
        if node.dtype.is_int:
            return _integer(node)
        found = _integer(node.value) if node.dtype.scalar is F32 else None
        if found is not None and found.zero is None:
            return Rounded(found.x, None, found.to, back=True)
    if isinstance(node, sym.Sub) and isinstance(node.a, sym.Cast) and node.dtype.scalar is F32:
        found = _integer(node.a.value)
        if found is not None and found.zero is node.b:
            return Rounded(found.x, found.zero, found.to, back=True)
    return None


def _integer(node: Expr) -> Rounded | None:
    if not isinstance(node, sym.Cast) or not node.dtype.is_int or not 8 <= node.dtype.bits <= 16:
        return None
    value, zero = node.value, None
    if isinstance(value, sym.Add):
        value, zero = (value.a, value.b) if _is_whole(value.b) else (value.b, value.a)
        if not _is_whole(zero):
            return None
    if not isinstance(value, Call) or value.op != "round" or value.dtype.scalar is not F32:
        return None
    return Rounded(value.args[0], zero, node.dtype, back=False) if node.dtype.lanes > 1 else None


def _is_whole(node: Expr) -> bool:
    """Whether it is an integer of few bits."""
    inner = node.value if isinstance(node, Broadcast) else node
    if isinstance(inner, sym.Const):
        number = float(inner.value)
        return abs(number) <= MOST and number.is_integer()
    of = inner.value.dtype if isinstance(inner, sym.Cast) else F32
    return of.is_int and of.bits <= 16


def _is_of_bytes(found: Rounded) -> bool:
    """Whether the integer and its zero point are bytes."""
    zero = found.zero.value if isinstance(found.zero, Broadcast) else found.zero
    if isinstance(zero, sym.Const):
        return found.to.bits == 8 and abs(float(zero.value)) <= 255
    return found.to.bits == 8 and (
        zero is None or (isinstance(zero, sym.Cast) and zero.value.dtype.bits == 8)
    )


def _adds_nothing_negative(zero: Expr | None) -> bool:
    """Whether the least integer stays the least when the zero point is added to it."""
    inner = zero.value if isinstance(zero, Broadcast) else zero
    if isinstance(inner, sym.Const):
        return float(inner.value) >= 0
    return inner is None or (isinstance(inner, sym.Cast) and inner.value.dtype.kind == "uint")


def emit(e: Emitting, found: Rounded) -> Value | None:
    """The instructions; None where the machine's conversions do not round."""
    saturates = not found.back and e.machine.saturates and _is_of_bytes(found)
    if not found.back and not e.machine.rounds and not saturates:
        return None
    by = _range_of(found)
    if by is not None and e.machine.fuses:
        return _ranged(e, found, by)
    zero = None if found.zero is None else e.expr(found.zero)
    return _converted(e, found, e.expr(found.x), zero)


def _range_of(found: Rounded) -> Expr | None:
    """The divisor of a `ranged_div`, whose quotients are nearly in range."""
    if found.back or not _is_of_bytes(found) or not isinstance(found.x, Call):
        return None
    if found.zero is not None and not isinstance(found.zero, Broadcast):
        return None
    by = found.x.args[1] if found.x.op == "ranged_div" else None
    return by.value if isinstance(by, Broadcast) and by.dtype.scalar is F32 else None


def _ranged(e: Emitting, found: Rounded, by: Expr) -> Value:
    """Branch on usual divisors, which always goes one way, instead of general division."""
    assert isinstance(found.x, Call)
    b, x, divisor = e.b, e.expr(found.x.args[0]), e.expr(found.x.args[1])
    zero = None if found.zero is None else e.expr(found.zero)
    with b.branch(is_usual(b, e.expr(by))) as (usual, other):
        with usual:
            numbers = quotient(b, x, divisor)
            if e.machine.packs and x.lanes == PACKED:
                quick = _packed(b, _nearest(e, numbers), zero, found.to)
            else:
                quick = _short_saturated(e, numbers, zero, found.to)
        with other:
            careful = _converted(e, found, saturating_quotient(b, x, divisor), zero)
    return b.phi((quick, usual.end), (careful, other.end))


def _converted(e: Emitting, found: Rounded, x: Value, zero: Value | None) -> Value:
    """Any operand, including NaN and infinities."""
    b = e.b
    if not found.back and e.machine.saturates and _is_of_bytes(found):
        return _saturated(e, x, zero, found.to)
    is_packed = not found.back and e.machine.packs and found.to.bits == 8 and x.lanes == PACKED
    at = MAGIC if found.back else 0.0
    low, high = (_end(b, x.type, end, zero, at) for end in (found.to.min, found.to.max))
    moved = b.op("fadd contract", x, _number(x.type, MAGIC)) if found.back else x
    # The order of operands decides what NaN becomes: the lower bound, or, packed, NaN.
    if not is_packed or found.to.kind == "int" or not _adds_nothing_negative(found.zero):
        moved = b.select(b.compare("fcmp ogt", moved, low), moved, low)
    if is_packed:  # what overflows upwards converts to the least integer, as NaN does
        moved = b.select(b.compare("fcmp olt", high, moved), high, moved)
    else:
        moved = b.select(b.compare("fcmp olt", moved, high), moved, high)
    made = b.op("fsub", moved, _number(x.type, MAGIC)) if found.back else _whole(e, moved, zero)
    if is_packed:
        made = _packed(b, made, None, found.to)
    elif not found.back:
        made = b.convert("trunc", made, register_type(found.to))
    if found.to.kind == "uint":
        return made
    nothing = splat(made.type, "0")
    if found.back:
        nothing = _number(x.type, 0.0)
        if zero is not None:
            nothing = b.op("fsub", nothing, zero)
    return b.select(b.compare("fcmp ord", x, x), made, nothing)


def _number(type_: str, number: float) -> Value:
    return splat(type_, float_literal(number, F32))


def _end(b: FunctionText, type_: str, end: float, zero: Value | None, at: float) -> Value:
    """A bound of the type, less the zero point, moved by `at`: exact."""
    number = _number(type_, end + at)
    return number if zero is None else b.op("fsub", number, zero)


def _whole(e: Emitting, value: Value, zero: Value | None) -> Value:
    """The nearest 32-bit integers, plus the zero point."""
    whole = _nearest(e, value)
    return whole if zero is None else e.b.op("add", whole, e.b.convert("fptosi", zero, whole.type))


def _saturated(e: Emitting, x: Value, zero: Value | None, to: DType) -> Value:
    """By conversions that saturate and map NaN to 0, then by narrowing ones.

    Values that exceed i16 are out of range by more than a zero point, so the zero point is added in
    i16.
    """
    b, halves = e.b, vector("i16", x.lanes)
    short = b.convert("trunc", _clamped(b, _nearest(e, x), -(2**15), 2**15 - 1), halves)
    point = None
    if zero is not None:
        point = b.select(b.compare("fcmp ord", x, x), _short(b, zero), splat(halves, "0"))
    return _byte(b, short, point, to)


def _short_saturated(e: Emitting, x: Value, zero: Value | None, to: DType) -> Value:
    """For values that fit i16: they are the low bits of a float rounded by an addition."""
    b, words = e.b, vector("i32", x.lanes)
    if e.machine.saturates:
        whole = b.convert("bitcast", b.op("fadd", x, _number(x.type, MAGIC)), words)
    else:
        whole = _clamped(b, _nearest(e, x), -(2**15), 2**15 - 1)  # as packing does
    short = b.convert("trunc", whole, vector("i16", x.lanes))
    return _byte(b, short, None if zero is None else _short(b, zero), to)


def _byte(b: FunctionText, short: Value, zero: Value | None, to: DType) -> Value:
    """i16 plus a zero point, saturated."""
    if zero is not None:
        short = b.call(f"llvm.sadd.sat.{mangled(short.type)}", short.type, short, zero)
    return b.convert("trunc", _clamped(b, short, int(to.min), int(to.max)), register_type(to))


def _short(b: FunctionText, zero: Value) -> Value:
    """A zero point as i16."""
    words = b.convert("fptosi", zero, vector("i32", zero.lanes))
    return b.convert("trunc", words, vector("i16", zero.lanes))


def _nearest(e: Emitting, x: Value) -> Value:
    """The nearest 32-bit integers, saturating; on AArch64 four lanes at a time."""
    b, all_words = e.b, vector("i32", x.lanes)
    if not e.machine.saturates:
        return b.call(f"llvm.lrint.{mangled(all_words)}.{mangled(x.type)}", all_words, x)
    if x.lanes < NEON or x.lanes & (x.lanes - 1):
        even = b.call(f"llvm.roundeven.{mangled(x.type)}", x.type, x)
        name = f"llvm.fptosi.sat.{mangled(all_words)}.{mangled(x.type)}"
        return b.call(name, all_words, even)
    name, words = "llvm.aarch64.neon.fcvtns.v4i32.v4f32", vector("i32", NEON)
    firsts = range(0, x.lanes, NEON)
    parts = [x] if x.lanes == NEON else [b.shuffle(x, range(at, at + NEON)) for at in firsts]
    parts = [b.call(name, words, part) for part in parts]
    while len(parts) > 1:
        parts = [b.concat(*parts[at : at + 2]) for at in range(0, len(parts), 2)]
    return parts[0]


def _clamped(b: FunctionText, value: Value, low: int, high: int) -> Value:
    """Signed integers between two ends."""
    name = mangled(value.type)
    above = b.call(f"llvm.smax.{name}", value.type, value, splat(value.type, str(low)))
    return b.call(f"llvm.smin.{name}", value.type, above, splat(value.type, str(high)))


def _packed(b: FunctionText, whole: Value, zero: Value | None, to: DType) -> Value:
    """Saturating packs to bytes, plus a zero point. Packs work within quarters, which are permuted
    last."""
    quarters = [b.shuffle(whole, range(at, at + 16)) for at in range(0, PACKED, 16)]
    words, row = vector("i16", 32), vector("i8", PACKED)
    halves = [
        b.call("llvm.x86.avx512.packssdw.512", words, quarters[at], quarters[at + 1])
        for at in (0, 2)
    ]
    if zero is not None:
        point = b.shuffle(_short(b, zero), range(32))  # the same in all lanes
        halves = [b.call("llvm.sadd.sat.v32i16", words, each, point) for each in halves]
    name = "packuswb" if to.kind == "uint" else "packsswb"
    mixed = b.call(f"llvm.x86.avx512.{name}.512", row, *halves)
    groups = b.convert("bitcast", mixed, vector("i32", 16))
    return b.convert("bitcast", b.shuffle(groups, [at % 4 * 4 + at // 4 for at in range(16)]), row)
