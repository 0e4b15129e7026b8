"""A whole model compiled for other machines, linked with the runtime and run by an emulator."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

import tilewright as tw
from tilewright.base.errors import UserError
from tilewright.driver.compare import is_close
from tilewright.frontends.onnx import import_model
from tilewright.graph.interp import interpret

TARGETS = [
    pytest.param("aarch64-linux-gnu -mcpu=cortex-a76", marks=pytest.mark.arm),
    pytest.param("riscv64-linux-gnu", marks=pytest.mark.riscv),
    pytest.param("x86_64-linux-gnu -mcpu=haswell", marks=[pytest.mark.x86, pytest.mark.fuzz]),
]
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 3, 8, 8] x) => (float[n, 5] y) {
  a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w1, b1)
  b = Relu (a)
  c = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b)
  d = Flatten (c)
  e = Gemm (d, w2)
  y = Softmax <axis = -1> (e)
}"""


def model():
    made = parser.parse_model(TEXT)
    random = np.random.default_rng(0)
    for name, shape in (("w1", (8, 3, 3, 3)), ("b1", (8,)), ("w2", (128, 5))):
        array = 0.2 * random.standard_normal(shape).astype(np.float32)
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_a_model_gives_the_same_answer_there(run_model_elsewhere, target):
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    _, y = run_model_elsewhere(model(), target, x, np.zeros((2, 5), np.float32))
    (want,) = interpret(import_model(model()), x)
    assert is_close(y, want)


def test_a_model_for_another_machine_is_not_called_here():
    module = tw.compile(model(), target="riscv64-linux-gnu")
    assert str(module.inputs[0]) == "x: f32[n, 3, 8, 8]"
    with pytest.raises(UserError) as caught:
        module(np.zeros((1, 3, 8, 8), np.float32))
    assert caught.value.code == "TW3005"
