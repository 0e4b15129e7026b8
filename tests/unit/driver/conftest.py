"""A small model with weights, a dynamic size and two outputs, compiled once for all tests here."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

import tilewright as tw
from tilewright.driver.tuning import lab
from tilewright.tune import tuner

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 8] x) => (float[n, 4] y, float[n, 8] z) {
  h = MatMul (x, w)
  y = Relu (h)
  z = Tanh (x)
}"""


@pytest.fixture(scope="session")
def weighted():
    """What makes an ONNX model of a text, with weights `w` of a shape."""

    def make(text, *shape):
        made = parser.parse_model(text)
        w = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        made.graph.initializer.append(numpy_helper.from_array(w, "w"))
        return made

    return make


@pytest.fixture
def small_rounds(monkeypatch):
    """As few candidates in a round of tuning as may be, however long the budget is, and one process
    that checks them: each loads the compiler."""
    monkeypatch.setattr(tuner, "FIRST_RATE", 1.0)
    monkeypatch.setattr(lab, "host_cores", lambda: 1)


@pytest.fixture(scope="session")
def model(weighted):
    """The ONNX model."""
    return weighted(TEXT, 8, 4)


@pytest.fixture(scope="session")
def module(model):
    return tw.compile(model)


@pytest.fixture
def x():
    return np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
