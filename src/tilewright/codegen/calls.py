"""Calls of the known scalar functions as LLVM instructions.

Transcendental functions are not here: `math` expands them into arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.base.dtype import F32, DType
from tilewright.codegen.arith import Arithmetic
from tilewright.codegen.builder import FunctionText, Value, i32, splat
from tilewright.codegen.quotients import saturating_quotient
from tilewright.codegen.types import float_literal, is_small_float, register_type

Rule = Callable[[Arithmetic, DType, DType, tuple[Value, ...]], Value]


def _unary(name: str) -> Rule:
    def rule(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
        return arith.in_float(of, lambda x: arith.b.intrinsic(name, x.type, x), *args)

    return rule


def _copysign(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    return arith.in_float(of, lambda x, y: arith.b.intrinsic("copysign", x.type, x, y), *args)


def _fma(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    return arith.in_float(of, lambda x, y, z: arith.b.intrinsic("fma", x.type, x, y, z), *args)


def _saturating_div(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    if of.scalar is not F32 or not arith.machine.fuses:
        return arith.binary("div", args[0], args[1], of)
    return saturating_quotient(arith.b, *args)


def _fmod(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    return arith.in_float(of, lambda x, y: arith.b.op("frem", x, y), *args)


def _rsqrt(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    def op(x: Value) -> Value:
        one = splat(x.type, "1.0")
        return arith.b.op("fdiv", one, arith.b.intrinsic("sqrt", x.type, x))

    return arith.in_float(of, op, *args)


def _scale_power(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    """y * 2**n for a whole float n: AVX-512 has it; the third argument is the product otherwise."""
    y, n, by_steps = args
    lanes = 512 // of.bits
    if y.lanes % lanes or not arith.machine.scales:
        return by_steps
    kind = "ps" if of.scalar is F32 else "pd"
    current = i32(4)  # the rounding mode of the processor
    name = f"llvm.x86.avx512.mask.scalef.{kind}.512"

    def scaled(y: Value, n: Value) -> Value:
        return arith.b.call(name, y.type, y, n, y, Value(f"i{lanes}", "-1"), current)

    return _by_vectors(arith.b, lanes, scaled, y, n)


def _by_vectors(b: FunctionText, lanes: int, op: Callable[..., Value], *args: Value) -> Value:
    """An operation on vectors of so many lanes, of which the arguments are one or several."""
    count = args[0].lanes
    if count == lanes:
        return op(*args)
    firsts = range(0, count, lanes)
    found = [op(*[b.shuffle(arg, range(f, f + lanes)) for arg in args]) for f in firsts]
    while len(found) > 1:
        found += found[-1:] * (len(found) % 2)
        found = [b.concat(*pair) for pair in zip(found[::2], found[1::2], strict=True)]
    (whole,) = found
    return whole if whole.lanes == count else b.shuffle(whole, range(count))


def _lookup(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    """Entries of a table of 16 or 32 numbers, by the low bits of the first argument."""
    at, *table = args
    b = arith.b
    padded = b.widen(at, -(-at.lanes // 16) * 16)
    whole = _by_vectors(b, 16, lambda part: _permuted(arith, part, table), padded)
    if at.lanes == 1:
        return b.extract(whole, 0)
    return whole if whole.lanes == at.lanes else b.shuffle(whole, range(at.lanes))


def _row(table: Sequence[Value]) -> Value:
    return Value(f"<{len(table)} x float>", f"<{', '.join(map(str, table))}>")


def _permuted(arith: Arithmetic, at: Value, table: Sequence[Value]) -> Value:
    if len(table) == 16:
        name = "llvm.x86.avx512.permvar.sf.512"
        return arith.b.call(name, "<16 x float>", _row(table), at)
    name = "llvm.x86.avx512.vpermi2var.ps.512"
    return arith.b.call(name, "<16 x float>", _row(table[:16]), at, _row(table[16:]))


def _abs(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    (x,) = args
    b = arith.b
    if of.kind in ("uint", "bool"):
        return x
    if of.kind == "int":
        callee = b.module.declare(x.type, f"llvm.abs.{_name(x)}", [x.type, "i1"])
        return arith.convert.wrap(b.value(x.type, f"call {x.type} {callee}({x}, i1 false)"), of)
    if is_small_float(of):
        return b.op("and", x, splat(x.type, str((1 << (of.bits - 1)) - 1)))
    return b.intrinsic("fabs", x.type, x)


def _isnan(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    x = arith.convert.widen(args[0], of)
    return arith.b.compare("fcmp uno", x, x)


def _isinf(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    x = arith.convert.widen(args[0], of)
    size = arith.b.intrinsic("fabs", x.type, x)
    return arith.b.compare("fcmp oeq", size, splat(x.type, float_literal(float("inf"), of)))


def _bitwise(name: str) -> Rule:
    def rule(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
        return arith.b.op(name, *args)

    return rule


def _bit_not(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    (x,) = args
    ones = "true" if of.is_bool else "-1"
    return arith.convert.wrap(arith.b.op("xor", x, splat(x.type, ones)), of)


def _shift_left(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    x, count = args
    b = arith.b
    zero = splat(x.type, "0")
    fits = b.compare("icmp ult", count, splat(x.type, str(of.bits)))
    safe = b.select(fits, count, zero)
    return arith.convert.wrap(b.select(fits, b.op("shl", x, safe), zero), of)


def _shift_right(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    x, count = args
    b = arith.b
    most = splat(x.type, str(of.bits - 1))
    if of.kind == "int":  # shifting by more leaves copies of the sign
        return b.op("ashr", x, b.intrinsic("umin", x.type, count, most))
    fits = b.compare("icmp ule", count, most)
    zero = splat(x.type, "0")
    return b.select(fits, b.op("lshr", x, b.select(fits, count, zero)), zero)


def _popcount(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    size = _abs(arith, of, result, args)  # NumPy counts the bits of the absolute value
    return arith.b.intrinsic("ctpop", size.type, size)


def _truncdiv(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    return arith.truncdivmod("div", args[0], args[1], of)


def _truncmod(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    return arith.truncdivmod("mod", args[0], args[1], of)


def _bits(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    return arith.b.convert("bitcast", args[0], register_type(result))


def _prefetch(arith: Arithmetic, of: DType, result: DType, args: tuple[Value, ...]) -> Value:
    # for reading, to be kept in every level, into the data cache
    return arith.b.call("llvm.prefetch.p0", "void", args[0], i32(0), i32(3), i32(1))


def _name(value: Value) -> str:
    return f"v{value.lanes}{value.type.split(' x ')[-1][:-1]}" if value.lanes > 1 else value.type


RULES: dict[str, Rule] = {
    "sqrt": _unary("sqrt"),
    "floor": _unary("floor"),
    "ceil": _unary("ceil"),
    "trunc": _unary("trunc"),
    "round": _unary("roundeven"),
    "rsqrt": _rsqrt,
    "copysign": _copysign,
    "fma": _fma,
    "saturating_div": _saturating_div,
    "ranged_div": _saturating_div,  # `rounding` knows better where it becomes a byte
    "fmod": _fmod,
    "abs": _abs,
    "scale_power": _scale_power,
    "lookup": _lookup,
    "isnan": _isnan,
    "isinf": _isinf,
    "truncdiv": _truncdiv,
    "truncmod": _truncmod,
    "bit_and": _bitwise("and"),
    "bit_or": _bitwise("or"),
    "bit_xor": _bitwise("xor"),
    "bit_not": _bit_not,
    "shift_left": _shift_left,
    "shift_right": _shift_right,
    "popcount": _popcount,
    "bits_of": _bits,
    "from_bits": _bits,
    "prefetch": _prefetch,
}
