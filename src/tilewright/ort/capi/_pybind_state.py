"""The same as `onnxruntime_pybind11_state`, under the name that ONNX Runtime imports it by."""

from tilewright.ort.capi.onnxruntime_pybind11_state import *  # noqa: F403
