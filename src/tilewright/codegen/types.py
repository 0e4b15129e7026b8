"""Data types as LLVM sees them, in registers and in memory.

Small floats (f16, bf16, f8, f4) are integers in both: arithmetic widens them to f32 and rounds
back, see `convert.py`. Integers of two and four bits are bytes that hold a value of so many bits. A
bool is a bit in a register and a byte in memory.
"""

from __future__ import annotations

import math
import struct

import numpy as np

from tilewright.base.dtype import BF16, F16, F32, DType
from tilewright.sym import Const

_REGISTER = {
    "f64": "double",
    "f32": "float",
    "f16": "i16",
    "bf16": "i16",
    "f8e4m3": "i8",
    "f8e4m3fnuz": "i8",
    "f8e5m2": "i8",
    "f8e5m2fnuz": "i8",
    "f8e8m0": "i8",
    "f4e2m1": "i8",
    "i64": "i64",
    "i32": "i32",
    "i16": "i16",
    "i8": "i8",
    "i4": "i8",
    "i2": "i8",
    "u64": "i64",
    "u32": "i32",
    "u16": "i16",
    "u8": "i8",
    "u4": "i8",
    "u2": "i8",
    "bool": "i1",
    "index": "i64",
}


def vector(element: str, lanes: int) -> str:
    """The type of `lanes` elements; one lane is the element itself."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def lanes_of(type_: str) -> int:
    """The number of lanes of an LLVM type."""
    return int(type_[1 : type_.index(" ")]) if type_.startswith("<") else 1


def element_of(type_: str) -> str:
    """The LLVM type of one lane."""
    return type_[type_.index(" x ") + 3 : -1] if type_.startswith("<") else type_


def mangled(type_: str) -> str:
    """An LLVM type as intrinsic names spell it: v16f32."""
    element = element_of(type_)
    short = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}.get(
        element, element
    )
    return f"v{lanes_of(type_)}{short}" if type_.startswith("<") else short


def register_type(of: DType) -> str:
    return vector(_REGISTER[of.scalar_name], of.lanes)


def memory_type(of: DType) -> str:
    return vector("i8" if of.is_bool else _REGISTER[of.scalar_name], of.lanes)


def is_small_float(of: DType) -> bool:
    """Whether arithmetic on this type is done in f32."""
    return of.is_float and of.bits < 32


def float_bits(value: float, of: DType) -> int:
    """The bit pattern of a number rounded to a float type."""
    array = np.array(value, np.float64).astype(of.numpy)
    return int.from_bytes(array.tobytes(), "little")


def literal(value: Const) -> str:
    """A scalar constant's LLVM text, without its type."""
    of, number = value.dtype.scalar, value.value
    if of.is_bool:
        return "true" if number else "false"
    if of.is_float:
        return float_literal(float(number), of)
    bits = max(8, of.bits)
    number = int(number)
    return str(number - (1 << bits) if number >= 1 << (bits - 1) else number)


def float_literal(number: float, of: DType) -> str:
    """LLVM writes f32 and f64 as the bits of a double; small floats are integers here."""
    if is_small_float(of):
        return str(float_bits(number, of))
    if math.isnan(number):
        return "0x7FF8000000000000"
    if of.scalar is F32:
        number = float(np.float32(number))
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


NATIVE_NAMES = {F16: "half", BF16: "bfloat"}
