"""Conversions between data types, as LLVM instructions.

Floats narrower than 32 bits are widened to f32 exactly and rounded back to nearest even, by
instructions where the machine has them and by integer arithmetic elsewhere:

widening   the bits moved into f32's place, times 2**(127 - bias): exact, subnormals included
narrowing  of normal numbers: add half a unit in the last place less one, plus the last bit kept;
           of numbers below the least normal one: adding a power of two whose unit in the last
           place is the least subnormal makes the adder round
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.dtype import BF16, F16, F32, F64, DType
from tilewright.codegen.builder import FunctionText, Value, splat
from tilewright.codegen.machine import TBL, Machine
from tilewright.codegen.types import (
    NATIVE_NAMES,
    element_of,
    float_literal,
    is_small_float,
    mangled,
    register_type,
    vector,
)


@dataclass(frozen=True, slots=True)
class Format:
    """The layout of a small float below its sign bit.

    What is not a number: ieee has infinities and NaNs at the highest exponent; fn one NaN, of all
    ones; fnuz one NaN, in the place of minus zero; finite none at all.
    """

    bits: int
    mantissa: int
    bias: int
    kind: str = "ieee"

    @property
    def scale(self) -> float:
        """Brings the bits of this format, read as f32's, to their value."""
        return 2.0 ** (127 - self.bias)

    @property
    def shift(self) -> int:
        """How far the mantissa moves to stand in f32's place."""
        return 23 - self.mantissa

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def infinity(self) -> int:
        """The bits of infinity: what too large a number becomes."""
        ones = self.sign - 1
        if self.kind == "ieee":
            return ones & ~((1 << self.mantissa) - 1)
        return self.sign if self.kind == "fnuz" else ones

    @property
    def highest(self) -> int:
        """The bits below which all are numbers, and which are what becomes too large."""
        ones = self.sign - 1
        return {"ieee": self.infinity, "fn": ones - 1, "fnuz": ones, "finite": ones}[self.kind]

    @property
    def nan(self) -> int:
        if self.kind == "ieee":
            return self.infinity | 1 << (self.mantissa - 1)
        return self.sign if self.kind in ("fnuz", "finite") else self.infinity


FORMATS = {
    "f16": Format(16, 10, 15),
    "bf16": Format(16, 7, 127),
    "f8e5m2": Format(8, 2, 15),
    "f8e5m2fnuz": Format(8, 2, 16, "fnuz"),
    "f8e4m3": Format(8, 3, 7, "fn"),
    "f8e4m3fnuz": Format(8, 3, 8, "fnuz"),
    "f4e2m1": Format(4, 1, 1, "finite"),
}


class Converter:
    """Conversions written to one function."""

    def __init__(self, builder: FunctionText, machine: Machine) -> None:
        self.b = builder
        self.machine = machine

    def cast(self, value: Value, have: DType, want: DType) -> Value:
        """By value: integers wrap, floats round to nearest even, float to integer saturates."""
        if have is want or ((have.kind, have.bits) == (want.kind, want.bits) and not have.is_float):
            return value
        if want.is_bool:
            return self._to_bool(value, have)
        if have.is_float:
            return self._from_float(value, have, want)
        to_type = register_type(want)
        if not want.is_float:
            return self._to_int(value, have, want)
        wide = self.compute_type(want)
        if self._has_byte_exponents(value, have) and want.scalar is F32:
            return self._bytes_to_floats(value, have)
        name = "sitofp" if have.kind == "int" else "uitofp"
        number = self.b.convert(name, value, register_type(wide))
        return number if number.type == to_type else self.narrow(number, want)

    def _has_byte_exponents(self, value: Value, have: DType) -> bool:
        """Whether bytes become the last digits of floats by looking them up."""
        return (
            self.machine.byte_tables == TBL
            and have.is_int
            and have.bits <= 8
            and value.lanes % self.machine.byte_lanes == 0
        )

    def _bytes_to_floats(self, value: Value, have: DType) -> Value:
        """A byte below the exponent of 2**23 is that much more than 2**23: one instruction places
        both, one subtracts. Conversions have half the throughput, or a quarter."""
        b, lanes = self.b, value.lanes
        offset = 0
        if have.is_signed:
            offset = 128
            value = b.op("xor", value, splat(value.type, "-128"))
        digits = b.with_bytes(value, (0, 0, 0x4B))
        number = b.convert("bitcast", digits, vector("float", lanes))
        return b.op(
            "fsub", number, splat(number.type, float_literal(float((1 << 23) + offset), F32))
        )

    def _to_bool(self, value: Value, have: DType) -> Value:
        if have.is_float:
            value = self.widen(value, have)
            zero = splat(value.type, float_literal(0.0, F32))
            return self.b.compare("fcmp une", value, zero)
        return self.b.compare("icmp ne", value, splat(value.type, "0"))

    def _to_int(self, value: Value, have: DType, want: DType) -> Value:
        to_type = register_type(want)
        have_bits = 1 if have.is_bool else max(8, have.bits)
        if have_bits < max(8, want.bits):
            value = self.b.convert("sext" if have.kind == "int" else "zext", value, to_type)
        elif have_bits > max(8, want.bits):
            value = self.b.convert("trunc", value, to_type)
        return self.wrap(value, want)

    def wrap(self, value: Value, of: DType) -> Value:
        """Keep an integer of less than a byte within its bits."""
        if of.bits >= 8 or of.is_bool:
            return value
        if of.kind == "uint":
            return self.b.op("and", value, splat(value.type, str((1 << of.bits) - 1)))
        rest = splat(value.type, str(8 - of.bits))
        return self.b.op("ashr", self.b.op("shl", value, rest), rest)

    def _from_float(self, value: Value, have: DType, want: DType) -> Value:
        if want.is_float:
            return self._float_to_float(value, have, want)
        value = self.widen(value, have)
        to_type = register_type(want)
        if value.lanes > 1:
            return self._from_lanes(value, want)
        name = "fptosi.sat" if want.kind == "int" else "fptoui.sat"
        whole = self.b.call(f"llvm.{name}.{mangled(to_type)}.{mangled(value.type)}", to_type, value)
        if want.bits >= 8:
            return whole
        low, high = splat(to_type, str(int(want.min))), splat(to_type, str(int(want.max)))
        if want.kind == "uint":
            return self.b.intrinsic("umin", to_type, whole, high)
        whole = self.b.intrinsic("smax", to_type, whole, low)
        return self.b.intrinsic("smin", to_type, whole, high)

    def _from_lanes(self, value: Value, want: DType) -> Value:
        """Saturated by comparisons: LLVM takes its own saturating vectors apart."""
        of = F64 if element_of(value.type) == "double" else F32
        low, high = int(want.min), int(want.max)
        # The greatest number of the float type that is an integer of the other.
        spare = max(0, high.bit_length() - (53 if of is F64 else 24))
        top = high >> spare << spare
        least, most = (splat(value.type, float_literal(float(x), of)) for x in (low, top))
        inside = self.b.select(self.b.compare("fcmp ogt", value, least), value, least)
        inside = self.b.select(self.b.compare("fcmp olt", inside, most), inside, most)
        to_type = register_type(want)
        whole = self.b.convert("fptosi" if want.kind == "int" else "fptoui", inside, to_type)
        if spare:
            above = self.b.compare("fcmp ogt", value, most)
            whole = self.b.select(above, splat(to_type, str(high)), whole)
        if low == 0:
            return whole  # NaN was not greater than 0
        known = self.b.compare("fcmp ord", value, value)
        return self.b.select(known, whole, splat(to_type, "0"))

    def _float_to_float(self, value: Value, have: DType, want: DType) -> Value:
        if is_small_float(have):
            value = self.widen(value, have)
        if is_small_float(want):
            if value.type == register_type(F64.with_lanes(value.lanes)):
                value = self._to_odd(value)
            return self.narrow(value, want)
        to_type = register_type(want)
        if value.type == to_type:
            return value
        wider = element_of(to_type) == "double"
        return self.b.convert("fpext" if wider else "fptrunc", value, to_type)

    def _to_odd(self, value: Value) -> Value:
        """f64 to f32, inexact results made odd: a later rounding to fewer bits is then exact."""
        b, lanes = self.b, value.lanes
        float_type, int_type = vector("float", lanes), vector("i32", lanes)
        nearest = b.convert("fptrunc", value, float_type)
        back = b.convert("fpext", nearest, value.type)
        bits = b.convert("bitcast", nearest, int_type)
        away = b.compare(
            "fcmp ogt",
            b.intrinsic("fabs", value.type, back),
            b.intrinsic("fabs", value.type, value),
        )
        inward = b.op("sub", bits, b.convert("zext", away, int_type))
        odd = b.op("or", inward, splat(int_type, "1"))
        inexact = b.compare("fcmp one", back, value)
        return b.convert("bitcast", b.select(inexact, odd, bits), float_type)

    # ------------------------------------------------------------------ small floats

    def compute_type(self, of: DType) -> DType:
        """The type in which arithmetic on `of` is done."""
        return F64.with_lanes(of.lanes) if of.scalar is F64 else F32.with_lanes(of.lanes)

    def widen(self, value: Value, of: DType) -> Value:
        """A float as f32, or as f64 if it is one."""
        if not is_small_float(of):
            return value
        b, lanes = self.b, value.lanes
        float_type, int_type = vector("float", lanes), vector("i32", lanes)
        if of.scalar is F16 and self.machine.converts_f16:
            half = b.convert("bitcast", value, vector("half", lanes))
            return b.convert("fpext", half, float_type)
        if of.scalar is BF16 and self.machine.splits_words and lanes % 2 == 0:
            return self._halves_of_words(value)
        bits = b.convert("zext", value, int_type)
        if of.scalar_name == "f8e8m0":
            return self._power_of_two(bits)
        if of.scalar is BF16:
            bits = b.op("shl", bits, splat(int_type, "16"))
            return b.convert("bitcast", bits, float_type)
        form = FORMATS[of.scalar_name]
        sign = b.op("and", bits, splat(int_type, str(form.sign)))
        sign = b.op("shl", sign, splat(int_type, str(32 - form.bits)))
        rest = b.op("and", bits, splat(int_type, str(form.sign - 1)))
        moved = b.op("shl", rest, splat(int_type, str(form.shift)))
        number = b.op(
            "fmul",
            b.convert("bitcast", moved, float_type),
            splat(float_type, float_literal(form.scale, F32)),
        )
        exact = b.convert("bitcast", number, int_type)
        quiet = splat(int_type, str(0x7FC00000))
        if form.kind == "fnuz":
            special = b.compare("icmp eq", bits, splat(int_type, str(form.sign)))
            exact = b.select(special, quiet, exact)
        elif form.kind != "finite":
            special = b.compare("icmp uge", rest, splat(int_type, str(form.infinity)))
            # The exponent of all ones; f8e4m3 has only the NaN there.
            ones = b.op("or", moved, splat(int_type, str(0x7F800000)))
            exact = b.select(special, ones if form.kind == "ieee" else quiet, exact)
        return b.convert("bitcast", b.op("or", exact, sign), float_type)

    def _halves_of_words(self, value: Value) -> Value:
        """bf16 that lie in pairs in words of 32 bits: one instruction each, without taking them
        apart before."""
        b, lanes = self.b, value.lanes
        words = b.convert("bitcast", value, vector("i32", lanes // 2))
        low = b.op("shl", words, splat(words.type, "16"))
        high = b.op("and", words, splat(words.type, str(-(1 << 16))))
        return b.convert("bitcast", b.interleave(low, high), vector("float", lanes))

    def _power_of_two(self, bits: Value) -> Value:
        """f8e8m0, which is an exponent of f32: 0 is that of 2**-127, 255 means NaN."""
        b = self.b
        least = splat(bits.type, str(0x00400000))
        number = b.op("shl", bits, splat(bits.type, "23"))
        number = b.select(b.compare("icmp eq", bits, splat(bits.type, "0")), least, number)
        is_nan = b.compare("icmp eq", bits, splat(bits.type, "255"))
        number = b.select(is_nan, splat(bits.type, str(0x7FC00000)), number)
        return b.convert("bitcast", number, vector("float", bits.lanes))

    def _exponent(self, bits: Value) -> Value:
        """The nearest power of two, upwards halfway; NaN for what none is near to."""
        b = self.b

        def number(n: int) -> Value:
            return splat(bits.type, str(n))

        normal = b.op("lshr", b.op("add", bits, number(1 << 22)), number(23))
        above = b.convert("zext", b.compare("icmp uge", bits, number(0x00600000)), bits.type)
        power = b.select(b.compare("icmp ult", bits, number(1 << 23)), above, normal)
        # Zero, what has a sign, and what rounds past the last exponent have no place.
        least = b.compare("icmp eq", bits, number(0))
        power = b.select(b.compare("icmp ugt", bits, number(0x7F3FFFFF)), number(255), power)
        return b.select(least, number(255), power)

    def narrow(self, value: Value, of: DType) -> Value:
        """An f32 rounded to a small float."""
        b, lanes = self.b, value.lanes
        native = NATIVE_NAMES.get(of.scalar)
        if (of.scalar is F16 and self.machine.converts_f16) or (
            of.scalar is BF16 and self.machine.converts_bf16
        ):
            rounded = b.convert("fptrunc", value, vector(str(native), lanes))
            return b.convert("bitcast", rounded, vector("i16", lanes))
        int_type = vector("i32", lanes)
        if of.scalar_name == "f8e8m0":
            power = self._exponent(b.convert("bitcast", value, int_type))
            return b.convert("trunc", power, register_type(of.with_lanes(lanes)))
        form = FORMATS[of.scalar_name]

        def number(n: int) -> Value:
            return splat(int_type, str(n))

        bits = b.convert("bitcast", value, int_type)
        size = b.op("and", bits, number(0x7FFFFFFF))
        last = b.op("and", b.op("lshr", size, number(form.shift)), number(1))
        half = b.op("add", size, number((1 << (form.shift - 1)) - 1))
        normal = b.op("lshr", b.op("add", half, last), number(form.shift))
        normal = b.op("sub", normal, number((127 - form.bias) << form.mantissa))
        if form.bias != 127:
            normal = self._subnormal(size, normal, form)
        too_large = b.compare("icmp ugt", normal, number(form.highest))
        result = b.select(too_large, number(form.infinity), normal)
        sign = b.op("lshr", bits, number(32 - form.bits))
        sign = b.op("and", sign, number(form.sign))
        if form.kind == "fnuz":  # zero has no sign
            sign = b.select(b.compare("icmp eq", result, number(0)), number(0), sign)
        is_nan = b.compare("icmp ugt", size, number(0x7F800000))
        result = b.select(is_nan, number(form.nan), result)
        return b.convert("trunc", b.op("or", result, sign), register_type(of.with_lanes(lanes)))

    def _subnormal(self, size: Value, normal: Value, form: Format) -> Value:
        """`normal` unless the number lies below the least normal one."""
        b = self.b
        float_type = vector("float", size.lanes)
        magic = 2.0 ** (1 - form.bias - form.mantissa + 23)
        magic_bits = (23 + 1 - form.bias - form.mantissa + 127) << 23
        added = b.op(
            "fadd",
            b.convert("bitcast", size, float_type),
            splat(float_type, float_literal(magic, F32)),
        )
        rounded = b.op(
            "sub", b.convert("bitcast", added, size.type), splat(size.type, str(magic_bits))
        )
        least_normal = (1 - form.bias + 127) << 23
        small = b.compare("icmp ult", size, splat(size.type, str(least_normal)))
        return b.select(small, rounded, normal)
