"""Models of one node of ONNX Runtime's own operators, and ONNX Runtime's results."""

from typing import Any

import numpy as np
import onnx
from onnx import helper

MICROSOFT = "com.microsoft"


def model_of(op, inputs, outputs, domain=MICROSOFT, **attributes) -> onnx.ModelProto:
    """One node over inputs (None where absent), all graph inputs."""
    names = ["" if value is None else f"x{at}" for at, value in enumerate(inputs)]
    node = helper.make_node(op, names, outputs, domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in zip(names, inputs, strict=True)
        if value is not None
    ]
    results = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    graph = helper.make_graph([node], "test", infos, results)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def onnxruntime_results(model, inputs) -> tuple[list[np.ndarray], list[Any]]:
    """The inputs that are there, and what ONNX Runtime makes of them."""
    import onnxruntime as ort  # tests skip without it

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options)
    feeds = {f"x{at}": value for at, value in enumerate(inputs) if value is not None}
    return list(feeds.values()), session.run(None, feeds)
