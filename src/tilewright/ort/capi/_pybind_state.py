"""An alias of `onnxruntime_pybind11_state`: the name that ONNX Runtime imports it by."""

from tilewright.ort.capi.onnxruntime_pybind11_state import *  # noqa: F403
