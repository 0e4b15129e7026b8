"""The submodules that programs reach for by name, mostly for the exceptions in them."""

from tilewright.ort.capi import (
    _pybind_state,
    onnxruntime_inference_collection,
    onnxruntime_pybind11_state,
    onnxruntime_validation,
)
