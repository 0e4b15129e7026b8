"""Read tensors stored in a model, with sizes checked before allocation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tilewright.base.errors import TilewrightError, UserError
from tilewright.frontends.onnx.external import ExternalData
from tilewright.frontends.onnx.wire import Weights

Array = np.ndarray[Any, Any]

MAX_BYTES = 1 << 40  # of one tensor
MAX_DENSE_BYTES = 1 << 31  # of a sparse tensor's dense form


@dataclass
class Tensors:
    """Reads the tensors of a model."""

    external: ExternalData
    weights: Weights | None = None  # initializers whose data is still in the file
    _read: dict[tuple[Any, ...], Array] = field(default_factory=dict)

    def initializer(self, at: int, tensor: TensorProto) -> Array:
        """The contents of the initializer at an index in the model's graph."""
        raw = None if self.weights is None else self.weights.read(at)
        return self.array(tensor, raw)

    def array(self, tensor: TensorProto, raw: Array | None = None) -> Array:
        """The contents of a tensor, from raw bytes if given."""
        try:
            return self._array(tensor, raw)
        except TilewrightError:
            raise
        except Exception as error:
            raise _damaged(tensor, str(error)) from error

    def _array(self, tensor: TensorProto, given: Array | None) -> Array:
        count = _checked_count(tensor)
        if tensor.data_location == TensorProto.EXTERNAL:
            return self._external(tensor, (count * _bits(tensor) + 7) // 8)
        if given is not None or tensor.HasField("raw_data"):
            raw = tensor.raw_data if given is None else given
            expected = (count * _bits(tensor) + 7) // 8
            if len(raw) != expected:
                raise _damaged(tensor, f"{len(raw)} bytes for {expected}")
            return _decoded(tensor, raw)
        return np.asarray(numpy_helper.to_array(tensor))

    def _external(self, tensor: TensorProto, expected: int) -> Array:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        key = (tuple(sorted(entries.items())), tensor.data_type, tuple(tensor.dims))
        if key not in self._read:
            raw = self.external.read(tensor.name, entries, expected)
            self._read[key] = _decoded(tensor, raw)
        return self._read[key]

    def dense(self, sparse: onnx.SparseTensorProto) -> Array:
        """Convert a sparse tensor to a dense one."""
        values, indices = self.array(sparse.values), self.array(sparse.indices)
        dims = tuple(sparse.dims)
        if any(dim < 0 for dim in dims) or math.prod(dims) * values.itemsize > MAX_DENSE_BYTES:
            raise _damaged(sparse.values, f"it would fill a tensor of {dims}")
        out = np.zeros(dims, values.dtype)
        try:
            if indices.ndim == 1:
                out.ravel()[indices] = values
            else:
                out[tuple(indices.T)] = values
        except (IndexError, ValueError) as error:
            raise _damaged(sparse.values, str(error)) from error
        return out


def _checked_count(tensor: TensorProto) -> int:
    """The number of elements, with untrusted dimensions checked."""
    if any(dim < 0 for dim in tensor.dims):
        raise _damaged(tensor, f"its shape is {list(tensor.dims)}")
    count = int(math.prod(tensor.dims))
    if count > MAX_BYTES:
        raise _damaged(tensor, f"its shape is {list(tensor.dims)}")
    return count


def _bits(tensor: TensorProto) -> int:
    """Bits per stored element; an error for text, which is not stored as bytes."""
    name = TensorProto.DataType.Name(tensor.data_type)
    small: dict[str, int] = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
    if name in small:
        return small[name]
    if name == "STRING":
        raise _damaged(tensor, "text is not stored as bytes")
    return int(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize) * 8


def _decoded(tensor: TensorProto, raw: bytes | Array) -> Array:
    """Decode raw bytes; types of less than a byte are unpacked by onnx."""
    of = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if _bits(tensor) >= 8 and of.kind != "b":
        return np.frombuffer(raw, of.newbyteorder("<")).astype(of, copy=False).reshape(tensor.dims)
    plain = TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=bytes(raw))
    return np.asarray(numpy_helper.to_array(plain))


def _damaged(tensor: TensorProto, why: str) -> UserError:
    return UserError("TW1105", f"tensor {tensor.name!r} is damaged: {why}")
