"""Operators of ONNX's first drafts, against ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.base.errors import Unsupported
from tilewright.frontends.onnx import import_model
from tilewright.graph import interpret
from tilewright.graph.verify import verify

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: bench)")


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Affine", {"alpha": 0.7, "beta": -0.2}),
        ("Crop", {"border": [1, 2, 1, 0]}),
        ("Crop", {"border": [1, 2, 0, 0], "scale": [2, 3]}),
        ("ImageScaler", {"scale": 0.5, "bias": [1.0, 2.0, -3.0]}),
        ("ParametricSoftplus", {"alpha": 0.6, "beta": 1.4}),
        ("Scale", {"scale": 3.0}),
        ("ScaledTanh", {"alpha": 0.6, "beta": 1.4}),
    ],
    ids=str,
)
def test_as_in_onnx_runtime(op, attributes):
    x = 20 * np.random.default_rng(0).standard_normal((2, 3, 5, 6)).astype(np.float32)
    model = model_of(op, x.shape, attributes)
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    module = import_model(model)
    verify(module)
    (have,) = interpret(module, x, check=True)
    assert have.shape == want.shape
    np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Crop", {"border": [-1, 0, 0, 0]}),
        ("Crop", {"border": [4, 0, 4, 0]}),
        ("Crop", {"border": [0, 0, 0, 0], "scale": [9, 2]}),
        ("ImageScaler", {"bias": [1.0]}),
    ],
    ids=str,
)
def test_what_onnx_runtime_refuses_is_refused(op, attributes):
    with pytest.raises(Unsupported, match="TW1101"):
        import_model(model_of(op, (2, 3, 5, 6), attributes))


def model_of(op, shape, attributes):
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "test", [info], [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 7)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=3)
