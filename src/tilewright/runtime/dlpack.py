"""DLPack's numbers of data types and devices.

Four-bit integers take a byte each; DLPack 1.1 calls that padded.
"""

from __future__ import annotations

from tilewright.base.dtype import DType, dtype
from tilewright.base.errors import UserTypeError
from tilewright.runtime import _native

_CODES: dict[str, tuple[int, int]] = {
    # name: (code, bits)
    "i4": (0, 4),
    "i2": (0, 2),
    "i8": (0, 8),
    "i16": (0, 16),
    "i32": (0, 32),
    "i64": (0, 64),
    "u4": (1, 4),
    "u2": (1, 2),
    "u8": (1, 8),
    "u16": (1, 16),
    "u32": (1, 32),
    "u64": (1, 64),
    "f16": (2, 16),
    "f32": (2, 32),
    "f64": (2, 64),
    "bf16": (4, 16),
    "bool": (6, 8),
    "f8e4m3": (10, 8),
    "f8e4m3fnuz": (11, 8),
    "f8e5m2": (12, 8),
    "f8e5m2fnuz": (13, 8),
    "f8e8m0": (14, 8),
    "f4e2m1": (17, 4),
}
_NAMES = {code: name for name, code in _CODES.items()}

# NumPy has these from ml_dtypes.
_LEARNED = ("f8e4m3", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0", "f4e2m1")
for _name in ("bf16", *_LEARNED, "i4", "u4", "i2", "u2"):
    _native.register_dtype(dtype(_name).numpy, *_CODES[_name])


def code_of(value: DType) -> tuple[int, int, int]:
    """DLPack's code, bits and lanes. `index` is an i64 in memory."""
    code, bits = _CODES["i64" if value.scalar_name == "index" else value.scalar_name]
    return code, bits, value.lanes


def dtype_of(code: int, bits: int, lanes: int) -> DType:
    """The data type with these DLPack numbers."""
    name = _NAMES.get((code, bits))
    if name is None:
        raise UserTypeError(
            "TW4001",
            f"no data type has DLPack's code {code} with {bits} bits",
            help="convert the array before handing it over",
        )
    return dtype(name).with_lanes(lanes)
