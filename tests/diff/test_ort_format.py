"""Models in ONNX Runtime's own file format, which it writes for phones and other small machines."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from tests.tolerances import check_close

import tilewright.ort as ort
from tilewright.base.errors import TilewrightError, UserError
from tilewright.frontends.onnx import import_model
from tilewright.frontends.onnx.flatbuffer import MAX_READS_PER_BYTE, Damaged, Flatbuffer
from tilewright.frontends.onnx.load import load_model
from tilewright.graph import interpret

onnxruntime = pytest.importorskip("onnxruntime")

TEXT = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3],
           metadata_props: ["language": "en"]>
g (float[batch, 40] x, bool turn, int64[2] key) =>
    (float[batch, 40] y, seq(float[?, ?]) parts, string[2] word) {
  mean = ReduceMean<axes = [0, 1], keepdims = 0> (x)
  cut = Clip (x, , mean)
  both = Concat<axis = 0> (x, cut)
  parts = SplitToSequence<axis = 0> (both)
  y = If (turn) <
    then_branch = t () => (a) { large = MatMul (x, w)  a = Add (large, cut) },
    else_branch = e () => (b) { half = Constant<value = float {0.5}> ()  b = Mul (cut, half) }>
  word = ai.onnx.ml.LabelEncoder
    <keys_int64s = [1, 2], values_strings = ["one", "two"], default_string = "many"> (key)
}"""


def written(tmp_path, level=None):
    model = onnx.parser.parse_model(TEXT)
    weights = np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    path = tmp_path / "model.ort"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level or onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return path


@pytest.fixture
def path(tmp_path):
    return written(tmp_path)


def test_a_model_is_read(path):
    x = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32)
    theirs = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    ours = ort.InferenceSession(str(path))
    assert [(i.name, i.shape, i.type) for i in ours.get_inputs()] == [
        (i.name, i.shape, i.type) for i in theirs.get_inputs()
    ]
    assert ours.get_modelmeta().custom_metadata_map == {"language": "en"}
    for turn in (True, False):
        feed = {"x": x, "turn": np.array(turn), "key": np.array([2, 7])}
        got, want = ours.run(None, feed), theirs.run(None, feed)
        check_close(got[0], want[0], 40)
        for a, b in zip(got[1], want[1], strict=True):
            check_close(a, b)
        assert list(got[2]) == list(want[2]) == ["two", "many"]


def test_a_file_and_its_bytes_are_the_same_model(path):
    assert import_model(path) == import_model(path.read_bytes(), name="model.ort")


def test_weights_stay_in_the_file_until_used(path):
    with load_model(path) as loaded:
        (at,) = (i for i, t in enumerate(loaded.model.graph.initializer) if t.name == "w")
        tensor = loaded.model.graph.initializer[at]
        assert not tensor.raw_data
        assert tensor.data_type == TensorProto.FLOAT
        assert loaded.tensors.initializer(at, tensor).shape == (40, 40)


def test_fused_operators(tmp_path):
    every = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    x = np.ones((2, 40), np.float32)
    y, *_ = interpret(import_model(written(tmp_path, every)), x, np.array(False), np.array([1, 2]))
    check_close(y, x / 2)


def test_damaged_files(path):
    whole = path.read_bytes()
    for end in (8, 12, 40, len(whole) // 2, len(whole) - 5000):
        with pytest.raises(UserError, match=r"TW1112|TW1105"):
            import_model(whole[:end])
    draw = np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(whole)
        for at in draw.integers(8, len(data), 4):
            data[at] = draw.integers(256)
        try:
            import_model(bytes(data))
        except TilewrightError:
            continue


def test_parts_read_many_times_over():
    buffer = Flatbuffer(b"\0" * 16)
    for _ in range(MAX_READS_PER_BYTE * len(buffer.data) // 4):
        buffer.follow(0)
    with pytest.raises(Damaged, match="many times"):
        buffer.follow(0)
