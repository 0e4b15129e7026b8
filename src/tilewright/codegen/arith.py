"""Arithmetic with the IR's meaning: wrapping integers, floor division, NaN-keeping minima.

Integer division never traps: as in NumPy, x // 0 and x % 0 are 0, and the least integer divided by
-1 is itself. Floats may be contracted (a * b + c in one rounding), nothing else is relaxed.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dtype import F16, INDEX, DType
from tilewright.codegen.builder import FunctionText, Value, splat
from tilewright.codegen.convert import Converter
from tilewright.codegen.machine import Machine
from tilewright.codegen.types import is_small_float, register_type, vector

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_BOOL = {"add": "or", "mul": "and", "min": "and", "max": "or", "sub": "xor"}


class Arithmetic:
    """Operations on values of IR types, written to one function."""

    def __init__(self, builder: FunctionText, machine: Machine) -> None:
        self.b = builder
        self.machine = machine
        self.convert = Converter(builder, machine)

    def binary(self, name: str, a: Value, b: Value, of: DType, *, natural: bool = False) -> Value:
        """add, sub, mul, div; `natural`: neither operand nor the result is below 0."""
        if of.is_float:
            return self.in_float(of, lambda x, y: self.b.op(f"{_FLOAT[name]} contract", x, y), a, b)
        if of.is_bool:
            return self.b.op(_BOOL[name], a, b)
        flags = (" nuw nsw" if natural else " nsw") if of.scalar is INDEX else ""
        return self.convert.wrap(self.b.op(name + flags, a, b), of)

    def in_float(self, of: DType, op: Callable[..., Value], *args: Value) -> Value:
        """An operation on floats, in f32 for the small ones, or in f16 where that exists."""
        if not is_small_float(of):
            return op(*args)
        if of.scalar is F16 and self.machine.computes_f16:
            half, bits = vector("half", of.lanes), register_type(of)
            result = op(*(self.b.convert("bitcast", arg, half) for arg in args))
            return self.b.convert("bitcast", result, bits) if result.type == half else result
        result = op(*(self.convert.widen(arg, of) for arg in args))
        if result.type == vector("float", of.lanes):
            return self.convert.narrow(result, of)
        return result

    def minmax(self, name: str, a: Value, b: Value, of: DType) -> Value:
        """min, max; a NaN operand gives NaN."""
        if of.is_bool:
            return self.b.op(_BOOL[name], a, b)
        if of.is_int:
            intrinsic = ("s" if of.kind == "int" else "u") + name
            return self.b.intrinsic(intrinsic, a.type, a, b)
        full = {"min": "minimum", "max": "maximum"}[name]

        def op(x: Value, y: Value) -> Value:
            # Which zero is returned for -0 and +0 is left open.
            return self.b.intrinsic(full, x.type, x, y, flags="nsz")

        return self.in_float(of, op, a, b)

    def compare(self, name: str, a: Value, b: Value, of: DType) -> Value:
        """eq, ne, lt, le."""
        if of.is_float:
            code = "une" if name == "ne" else f"o{name}"
            return self.in_float(of, lambda x, y: self.b.compare(f"fcmp {code}", x, y), a, b)
        code = name if name in ("eq", "ne") else ("s" if of.kind == "int" else "u") + name
        return self.b.compare(f"icmp {code}", a, b)

    # ------------------------------------------------------------------ division

    def divmod_const(
        self, want: str, a: Value, divisor: int, of: DType, non_negative: bool
    ) -> Value:
        """a // divisor or a % divisor, for a constant other than 0."""
        b = self.b
        if divisor > 0 and divisor & (divisor - 1) == 0:
            # Shifts and masks round towards minus infinity, whatever the sign.
            if want == "mod":
                return b.op("and", a, splat(a.type, str(divisor - 1)))
            shift = splat(a.type, str(divisor.bit_length() - 1))
            return b.op("ashr" if of.kind == "int" else "lshr", a, shift)
        number = splat(a.type, str(divisor))
        if of.kind == "uint" or (non_negative and divisor > 0):
            return b.op("udiv" if want == "div" else "urem", a, number)
        if divisor == -1:
            zero = splat(a.type, "0")
            return zero if want == "mod" else self.convert.wrap(b.op("sub", zero, a), of)
        return self._floor(want, a, number, of)

    def divmod(self, want: str, a: Value, divisor: Value, of: DType, non_negative: bool) -> Value:
        """a // divisor or a % divisor; `non_negative`: neither is below 0."""
        b = self.b
        zero, one = splat(a.type, "0"), splat(a.type, "1")
        by_zero = b.compare("icmp eq", divisor, zero)
        safe = b.select(by_zero, one, divisor)
        if of.kind == "uint" or non_negative:
            result = b.op("udiv" if want == "div" else "urem", a, safe)
        else:
            safe = self._avoid_overflow(a, safe, of)
            result = self._floor(want, a, safe, of)
        return b.select(by_zero, zero, result)

    def truncdivmod(self, want: str, a: Value, divisor: Value, of: DType) -> Value:
        """Division that rounds towards zero, as in C."""
        b = self.b
        zero, one = splat(a.type, "0"), splat(a.type, "1")
        by_zero = b.compare("icmp eq", divisor, zero)
        safe = b.select(by_zero, one, divisor)
        if of.kind == "uint":
            result = b.op("udiv" if want == "div" else "urem", a, safe)
        else:
            safe = self._avoid_overflow(a, safe, of)
            result = b.op("sdiv" if want == "div" else "srem", a, safe)
        return b.select(by_zero, zero, self.convert.wrap(result, of))

    def _avoid_overflow(self, a: Value, divisor: Value, of: DType) -> Value:
        """The least integer over -1 traps on some machines; over 1 it gives the wrapped result."""
        b = self.b
        bits = max(8, of.bits)
        least = b.compare("icmp eq", a, splat(a.type, str(-(1 << (bits - 1)))))
        minus = b.compare("icmp eq", divisor, splat(a.type, "-1"))
        return b.select(b.op("and", least, minus), splat(a.type, "1"), divisor)

    def _floor(self, want: str, a: Value, divisor: Value, of: DType) -> Value:
        """From the truncated quotient: where the remainder's sign differs from the divisor's,
        q - 1 and r + divisor."""
        b = self.b
        remainder = b.op("srem", a, divisor)
        zero = splat(a.type, "0")
        differs = b.compare("icmp slt", b.op("xor", remainder, divisor), zero)
        adjust = b.op("and", b.compare("icmp ne", remainder, zero), differs)
        if want == "mod":
            return b.select(adjust, b.op("add", remainder, divisor), remainder)
        quotient = b.op("sdiv", a, divisor)
        lowered = b.op("sub", quotient, b.convert("zext", adjust, a.type))
        return self.convert.wrap(lowered, of)
