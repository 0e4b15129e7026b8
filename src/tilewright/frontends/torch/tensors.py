"""Convert between PyTorch tensors and NumPy arrays, sharing memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tilewright.base.dtype import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    DType,
    dtype,
)
from tilewright.base.errors import Unsupported

Array = np.ndarray[Any, Any]

DTYPES: dict[torch.dtype, DType] = {
    torch.float64: F64,
    torch.float32: F32,
    torch.float16: F16,
    torch.bfloat16: BF16,
    torch.float8_e4m3fn: dtype("f8e4m3"),
    torch.float8_e4m3fnuz: dtype("f8e4m3fnuz"),
    torch.float8_e5m2: dtype("f8e5m2"),
    torch.float8_e5m2fnuz: dtype("f8e5m2fnuz"),
    torch.int64: I64,
    torch.int32: I32,
    torch.int16: I16,
    torch.int8: I8,
    torch.uint64: U64,
    torch.uint32: U32,
    torch.uint16: U16,
    torch.uint8: U8,
    torch.bool: BOOL,
}
# The element types of the parts of complex numbers.
PARTS = {
    torch.complex128: torch.float64,
    torch.complex64: torch.float32,
    torch.complex32: torch.float16,
}
# NumPy lacks these types: their bits are passed as integers of the same width.
_AS_BITS = {2: torch.int16, 1: torch.uint8}
_OWN = (torch.float64, torch.float32, torch.float16, torch.bool)


def dtype_of(of: torch.dtype) -> DType:
    """The element type of a PyTorch type."""
    found = DTYPES.get(of)
    if found is None:
        raise Unsupported("TW1104", f"element type {str(of).removeprefix('torch.')}")
    return found


def check_plain(tensor: torch.Tensor, what: str) -> None:
    """Check that a tensor is dense and on the CPU, so that its memory can be shared."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise Unsupported("TW1121", f"{what} is not a dense tensor")
    if tensor.device.type != "cpu":
        raise Unsupported(
            "TW1121", f"{what} is on {tensor.device}", help="move the model to the CPU first"
        )


def array_of(tensor: torch.Tensor, what: str = "a tensor") -> Array:
    """A tensor as an array; contiguous tensors share memory."""
    of = dtype_of(tensor.dtype)
    check_plain(tensor, what)
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if of.is_int or tensor.dtype in _OWN:
        return np.asarray(plain.numpy())
    bits = plain.view(_AS_BITS[tensor.element_size()]).numpy()
    return np.asarray(bits.view(of.numpy))


def tensor_of(array: Array, of: torch.dtype) -> torch.Tensor:
    """The inverse of `array_of` for an element type."""
    if dtype_of(of).is_int or of in _OWN:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.dtype(f"i{array.itemsize}"))).view(of)
