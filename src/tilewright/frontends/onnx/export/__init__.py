"""Export graph modules as ONNX models, at any stage, for Netron and other runtimes.

model = to_onnx(module)              an onnx.ModelProto that `onnx.checker` accepts
write_onnx(module, "stage.onnx")     the same in a file

Operators of ONNX are exported as such; others as functions of the domain `tilewright`, whose bodies
define them. Kernels of a lowered model have no such body: they are opaque nodes of that domain.
"""

from tilewright.frontends.onnx.export.model import to_onnx, write_onnx
