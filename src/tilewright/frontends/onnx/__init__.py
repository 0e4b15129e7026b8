"""ONNX models, from opset 7 to the newest that the `onnx` package supports."""

from tilewright.frontends.onnx.importer import Given, import_model
