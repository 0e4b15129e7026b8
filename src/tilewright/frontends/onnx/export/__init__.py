"""Graph modules as ONNX models: at any stage, for Netron and for other runtimes.

model = to_onnx(module)              an onnx.ModelProto that `onnx.checker` accepts
write_onnx(module, "stage.onnx")     the same in a file

What ONNX has is a node of ONNX's; what it lacks is a function of the domain `tilewright`, whose
body says what it computes. Kernels of a lowered model have no such body: they are nodes of that
domain, to be looked at.
"""

from tilewright.frontends.onnx.export.model import to_onnx, write_onnx
