"""Models written back as ONNX: valid, and ONNX Runtime gives what our interpreter gives."""

import numpy as np
import onnx
import pytest
from onnx import parser

from tilewright.base.errors import UserError
from tilewright.base.passes import run_passes
from tilewright.frontends.onnx import import_model
from tilewright.frontends.onnx.export import to_onnx, write_onnx
from tilewright.graph import interpret
from tilewright.graph.parser import parse
from tilewright.graph.passes import CANONICAL, FUSED, LAYOUT, OPTIMIZED

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: bench)")
STAGES = {
    "imported": (),
    "canonical": CANONICAL,
    "fused": (*CANONICAL, *OPTIMIZED, *LAYOUT, *FUSED),
}
HEAD = '<ir_version: 8, opset_import: ["" : 17]> '

MODELS = {
    "shapes": (
        """g (float[n, 6] x) => (float[m, 3] y) {
            s = Shape (x)
            zero = Constant <value = int64[1] {0}> ()
            first = Gather (s, zero)
            two = Constant <value = int64[1] {2}> ()
            three = Constant <value = int64[1] {3}> ()
            rows = Mul (first, two)
            target = Concat <axis = 0> (rows, three)
            y = Reshape (x, target)
        }""",
        [(3, 6)],
    ),
    "a norm and a product": (
        """g (float[n, 8] x, float[8, 4] w) => (float[n, 4] y) {
            axes = Constant <value = int64[1] {-1}> ()
            m = ReduceMean <axes = [1]> (x)
            c = Sub (x, m)
            p = MatMul (c, w)
            t = Softmax (p)
            y = Gelu2 (t)
        }""".replace("y = Gelu2 (t)", "y = Erf (t)"),
        [(3, 8), (8, 4)],
    ),
    "an image": (
        """g (float[n, 3, 12, 12] x, float[8, 3, 3, 3] w) => (float[] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w)
            r = Relu (c)
            y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
        }""",
        [(2, 3, 12, 12), (8, 3, 3, 3)],
    ),
    "a loop and a branch": (
        """g (float[n, 3] x) => (float[n, 3] y) {
            trip = Constant <value = int64 {4}> ()
            go = Constant <value = bool {1}> ()
            z = Loop (trip, go, x) <body = b (int64 i, bool c, float[n, 3] s)
                => (bool d, float[n, 3] t) {
                d = Identity (c)
                h = Constant <value = float {0.5}> ()
                t = Mul (s, h)
            }>
            total = ReduceSum <keepdims = 0> (z)
            none = Constant <value = float {0.0}> ()
            low = Less (total, none)
            y = If (low) <
                then_branch = t () => (float[n, 3] a) { a = Neg (z) },
                else_branch = e () => (float[n, 3] b) { b = Exp (z) }
            >
        }""",
        [(2, 3)],
    ),
    "an LSTM": (
        """g (float[5, 2, 3] x, float[1, 16, 3] w, float[1, 16, 4] r) => (float[] y) {
            y, h, c = LSTM <hidden_size = 4> (x, w, r)
        }""",
        [(5, 2, 3), (1, 16, 3), (1, 16, 4)],
    ),
    "boxes": (
        """g (float[2, n, 4] b, float[2, c, n] s) => (int64[k, 3] y) {
            most = Constant <value = int64[1] {3}> ()
            overlap = Constant <value = float[1] {0.1}> ()
            y = NonMaxSuppression (b, s, most, overlap)
        }""",
        [(2, 9, 4), (2, 3, 9)],
    ),
    "boxes without a limit": (
        """g (float[1, 9, 4] b, float[1, 3, 9] s) => (int64[k, 3] y) {
            y = NonMaxSuppression (b, s)
        }""",
        [(1, 9, 4), (1, 3, 9)],
    ),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_gives_the_same(name, stage):
    text, shapes = MODELS[name]
    random = np.random.default_rng(0)
    args = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    module = run_passes(import_model(parser.parse_model(HEAD + text)), STAGES[stage])
    written = to_onnx(module)
    onnx.checker.check_model(written, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(written.SerializeToString(), options)
    names = [info.name for info in session.get_inputs()]
    given = session.run(None, dict(zip(names, args, strict=True)))
    for have, want in zip(given, interpret(module, *args), strict=True):
        assert have.shape == want.shape
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


OF_OURS = {
    "switch": (
        """graph @main(%x: f32[n], %i: i64[]) {
  %y = switch(%i, %x) do {
    graph(%v: f32[n]) {
      %a = neg(%v)
      return %a
    }
    graph(%v: f32[n]) {
      %a = relu(%v)
      return %a
    }
    graph(%v: f32[n]) {
      return %v
    }
  }
  return %y
}""",
        [(np.linspace(-1, 1, 5, dtype=np.float32), np.array(at)) for at in (0, 1, 2, 9)],
    ),
    "rows of bytes by four bits with a sign": (
        """graph @main(%x: i8[n, 8], %b: i8[2, 2, 3], %s: f32[2, 3], %t: f32[n, 2]) {
  %y = matmul_packed(%x, %b, %s, none, %t) {per_byte = 2, zero = 16}
  return %y
}""",
        [
            (
                np.arange(-8, 8, dtype=np.int8).reshape(2, 8),
                np.arange(-128, 125, 22, dtype=np.int8).reshape(2, 2, 3),
                np.ones((2, 3), np.float32),
                np.array([[1, 2], [4, 0.5]], np.float32),
            )
        ],
    ),
    "segments, counted by a narrow integer": (
        """graph @main(%x: f32[5, 3], %i: i64[5], %n: i32[]) {
  %a = segment_reduce(%x, %i, %n) {reduction = "add"}
  return %a
}""",
        [(np.ones((5, 3), np.float32), np.array([1, 1, -1, 3, 7]), np.array(4, np.int32))],
    ),
    "segments and slices": (
        """graph @main(%x: f32[n, 3], %i: i64[n], %s: i64[2, 1]) {
  %a = segment_reduce(%x, %i) {count = 4, reduction = "max"}
  %b = gather_slices(%a, %s) {sizes = (2, 3), axes = (0,)}
  %c = gather_slices(%a, %s) {sizes = (1, 3), axes = (-2,), collapsed = (-2,)}
  return %a, %b, %c
}""",
        [
            (
                np.arange(15, dtype=np.float32).reshape(5, 3),
                np.array([1, 1, -1, 3, 7]),
                np.array([[9], [1]]),
            )
        ],
    ),
}


@pytest.mark.parametrize("name", OF_OURS)
def test_operators_of_ours_by_those_of_onnx(name):
    text, given = OF_OURS[name]
    module = parse(text)
    written = to_onnx(module)
    onnx.checker.check_model(written, full_check=True)
    session = ort.InferenceSession(written.SerializeToString())
    names = [info.name for info in session.get_inputs()]
    for args in given:
        made = session.run(None, dict(zip(names, args, strict=True)))
        for have, want in zip(made, interpret(module, *args), strict=True):
            np.testing.assert_array_equal(have, want)


def test_kernels_become_functions():
    text = "g (float[n, 4] x) => (float[n, 4] y) { a = Exp (x)\n b = Neg (a)\n y = Tanh (b) }"
    module = run_passes(import_model(parser.parse_model(HEAD + text)), STAGES["fused"])
    written = to_onnx(module)
    (function,) = written.functions
    assert [node.op_type for node in function.node] == ["Exp", "Neg", "Tanh"]
    assert (function.domain, function.name) == ("tilewright", "exp_neg_tanh")


def test_what_onnx_lacks_stays_a_node_of_ours():
    module = parse(
        "graph @main(%x: f32[4]) {\n  %b = random_bits() {seed = 1, shape = (4,)}\n  return %b\n}"
    )
    written = to_onnx(module)
    onnx.checker.check_model(written)
    assert written.graph.node[0].domain == "tilewright"


def test_names_of_inputs_and_outputs_are_kept(tmp_path):
    outputs = "float[batch, 4] y, float[batch, 4] z"
    text = f"g (float[batch, 4] x) => ({outputs}) {{ y = Exp (x)\n z = Neg (x) }}"
    path = write_onnx(import_model(parser.parse_model(HEAD + text)), tmp_path / "out.onnx")
    session = ort.InferenceSession(path)
    assert [info.name for info in session.get_outputs()] == ["y", "z"]
    assert session.get_outputs()[0].shape == ["batch", 4]
    with pytest.raises(UserError, match="TW1118"):
        write_onnx(import_model(parser.parse_model(HEAD + text)), tmp_path / "no" / "out.onnx")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.onnx"]
