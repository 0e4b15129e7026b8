"""Submodules that programs import by name, mostly for their exceptions."""

from tilewright.ort.capi import (
    _pybind_state,
    onnxruntime_inference_collection,
    onnxruntime_pybind11_state,
    onnxruntime_validation,
)
