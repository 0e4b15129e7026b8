"""ONNX models: opsets 7 to the newest the `onnx` package knows."""

from tilewright.frontends.onnx.importer import Given, import_model
