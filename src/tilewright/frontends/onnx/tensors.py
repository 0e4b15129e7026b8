"""Tensors stored in a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tilewright.base.errors import UserError

Array = np.ndarray[Any, Any]


def to_array(tensor: onnx.TensorProto) -> Array:
    """The contents of an initializer."""
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except Exception as error:
        raise UserError("TW1105", f"initializer {tensor.name!r} is damaged: {error}") from error


def dense_array(sparse: onnx.SparseTensorProto) -> Array:
    """A sparse initializer written out."""
    values, indices = to_array(sparse.values), to_array(sparse.indices)
    out = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        out.ravel()[indices] = values
    else:
        out[tuple(indices.T)] = values
    return out
