"""Data types: one interned value per type, named as in Rust and MLIR.

    dtype("f32"), dtype("bf16"), dtype("f8e4m3"), dtype("i4"), dtype("bool"), dtype("index")
    dtype("f32x16")   a vector of sixteen f32
    dtype("float32"), dtype("bfloat16"), dtype("int8x4")   NumPy's names mean the same types

`index` is the type of loop variables and sizes: a signed 64-bit integer in memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.base.errors import UserError

_finfo: Any = ml_dtypes.finfo  # untyped
_SCALARS: dict[str, tuple[str, int, Any]] = {
    # name: (kind, bits, numpy type)
    "f64": ("float", 64, np.float64),
    "f32": ("float", 32, np.float32),
    "f16": ("float", 16, np.float16),
    "bf16": ("float", 16, ml_dtypes.bfloat16),
    "f8e4m3": ("float", 8, ml_dtypes.float8_e4m3fn),
    "f8e4m3fnuz": ("float", 8, ml_dtypes.float8_e4m3fnuz),
    "f8e5m2": ("float", 8, ml_dtypes.float8_e5m2),
    "f8e5m2fnuz": ("float", 8, ml_dtypes.float8_e5m2fnuz),
    "f8e8m0": ("float", 8, ml_dtypes.float8_e8m0fnu),  # powers of two: scales of blocks
    "f4e2m1": ("float", 4, ml_dtypes.float4_e2m1fn),
    "i64": ("int", 64, np.int64),
    "i32": ("int", 32, np.int32),
    "i16": ("int", 16, np.int16),
    "i8": ("int", 8, np.int8),
    "i4": ("int", 4, ml_dtypes.int4),
    "i2": ("int", 2, ml_dtypes.int2),
    "u64": ("uint", 64, np.uint64),
    "u32": ("uint", 32, np.uint32),
    "u16": ("uint", 16, np.uint16),
    "u8": ("uint", 8, np.uint8),
    "u4": ("uint", 4, ml_dtypes.uint4),
    "u2": ("uint", 2, ml_dtypes.uint2),
    "bool": ("bool", 8, np.bool_),
    "index": ("int", 64, np.int64),
    "str": ("str", 64, np.object_),  # text; in graphs only, without native code
}
# Aliases: the names of NumPy, TVM and ONNX. Programs are printed with the short names.
_ALIASES: dict[str, str] = {
    np.dtype(numpy_type).name: name
    for name, (_, _, numpy_type) in _SCALARS.items()
    if name not in ("bool", "index", "str")
}
MAX_LANES = (1 << 16) - 1  # DLPack's field has 16 bits
_VECTOR = re.compile(r"(?P<scalar>[a-z0-9_]+?)(x(?P<lanes>[1-9][0-9]{0,4}))?")
_known: dict[str, DType] = {}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DType:
    """A scalar or short-vector type, made by `dtype(name)` and unique: compare with `is`."""

    name: str
    scalar_name: str
    kind: str
    bits: int  # of one lane
    lanes: int
    numpy: np.dtype[Any]  # of one lane

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """Whether it is a signed or unsigned integer, including `index`; `bool` is not."""
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float")

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    @property
    def is_str(self) -> bool:
        return self.kind == "str"

    @property
    def has_inf(self) -> bool:
        """Whether a float type has infinities; most types below 16 bits have none."""
        return self.is_float and (self.bits >= 16 or self.scalar_name == "f8e5m2")

    @property
    def is_vector(self) -> bool:
        return self.lanes > 1

    @property
    def significand_bits(self) -> int:
        """The precision of a float type in bits, including the implicit leading bit."""
        return int(_finfo(self.numpy).nmant) + 1

    @property
    def size_bytes(self) -> int:
        """Bytes of one value in memory. Types of less than a byte take one byte each."""
        return self.lanes * max(1, self.bits // 8)

    @property
    def scalar(self) -> DType:
        return self if self.lanes == 1 else dtype(self.scalar_name)

    def with_lanes(self, lanes: int) -> DType:
        return dtype(self.scalar_name if lanes == 1 else f"{self.scalar_name}x{lanes}")

    @property
    def min(self) -> int | float:
        """The minimum: -inf for floats that have it."""
        if self.is_float:
            return float("-inf") if self.has_inf else self.min_finite
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def max(self) -> int | float:
        """The maximum: inf for floats that have it."""
        if self.is_float:
            return float("inf") if self.has_inf else self.max_finite
        if self.is_bool:
            return 1
        return (1 << (self.bits - (1 if self.kind == "int" else 0))) - 1

    @property
    def min_finite(self) -> float:
        """The least finite value of a float type."""
        return float(_finfo(self.numpy).min)

    @property
    def max_finite(self) -> float:
        """The greatest finite value of a float type."""
        return float(_finfo(self.numpy).max)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"dtype({self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (dtype, (self.name,))


def dtype(value: str | DType | np.dtype[Any] | type) -> DType:
    """Return the data type of a name, NumPy dtype, scalar class or DType."""
    if isinstance(value, DType):
        return value
    if not isinstance(value, str):
        return from_numpy(np.dtype(value))
    found = _known.get(value)
    if found is None:
        found = _known[value] = _parse(value)
    return found


def from_numpy(value: np.dtype[Any]) -> DType:
    """Return the data type with this NumPy element type (never `index`)."""
    for name, (_, _, numpy_type) in _SCALARS.items():
        if value == np.dtype(numpy_type):
            return dtype(name)
    raise UserError(
        "TW0001", f"no data type corresponds to numpy's {value}", help=f"use one of {_names()}"
    )


def is_dtype_name(text: str) -> bool:
    """Whether `text` is the name of a data type."""
    match = _VECTOR.fullmatch(text)
    return match is not None and match["scalar"] in _SCALARS


def _parse(text: str) -> DType:
    match = _VECTOR.fullmatch(text)
    scalar = "" if match is None else _ALIASES.get(match["scalar"], match["scalar"])
    lanes = 0 if match is None else int(match["lanes"] or 1)
    if scalar not in _SCALARS or lanes > MAX_LANES:
        raise UserError("TW0001", f"unknown data type {text!r}", help=f"use one of {_names()}")
    kind, bits, numpy_type = _SCALARS[scalar]
    name = scalar if lanes == 1 else f"{scalar}x{lanes}"
    if name in _known:
        return _known[name]
    made = DType(name, scalar, kind, bits, lanes, np.dtype(numpy_type))
    _known[name] = made
    return made


def _names() -> str:
    return ", ".join(_SCALARS)


F64, F32, F16, BF16 = dtype("f64"), dtype("f32"), dtype("f16"), dtype("bf16")
I64, I32, I16, I8 = dtype("i64"), dtype("i32"), dtype("i16"), dtype("i8")
U64, U32, U16, U8 = dtype("u64"), dtype("u32"), dtype("u16"), dtype("u8")
BOOL, INDEX, STR = dtype("bool"), dtype("index"), dtype("str")
