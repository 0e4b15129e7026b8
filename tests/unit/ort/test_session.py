"""ONNX Runtime's interface."""

import numpy as np
import pytest
from onnx import helper, parser

import tilewright as ort
from tilewright.base.errors import TilewrightError

TEXT = """<ir_version: 8, opset_import: ["" : 17], producer_name: "test">
net (float[batch, 4] x, int64[2] picks) => (float[batch, 2] y, float[batch, 4] z) {
  z = Tanh (x)
  y = Gather <axis = 1> (z, picks)
}"""


@pytest.fixture(scope="module")
def data():
    made = parser.parse_model(TEXT)
    helper.set_model_props(made, {"key": "value"})
    return made.SerializeToString()


@pytest.fixture(scope="module")
def session(data):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def feed():
    return {"x": np.ones((3, 4), np.float32), "picks": np.array([2, 0])}


def test_run_gives_numpy_arrays_by_name(session):
    y, z = session.run(None, feed())
    assert type(y) is np.ndarray
    assert y.shape == (3, 2)
    np.testing.assert_allclose(z, np.tanh(feed()["x"]), rtol=1e-6)
    only, again = session.run(["z", "z"], feed())
    np.testing.assert_array_equal(only, z)
    np.testing.assert_array_equal(again, z)


def test_inputs_and_outputs_are_described_in_onnx_runtimes_words(session):
    described = [(one.name, one.shape, one.type) for one in session.get_inputs()]
    assert described == [
        ("x", ["batch", 4], "tensor(float)"),
        ("picks", [2], "tensor(int64)"),
    ]
    assert [one.name for one in session.get_outputs()] == ["y", "z"]
    assert session.get_outputs()[0].shape == ["batch", 2]


def test_threads_are_honoured(session):
    assert session.module.threads == 1


def test_lists_and_ort_values_are_fed_too(session):
    x = ort.OrtValue.ortvalue_from_numpy(feed()["x"])
    (y,) = session.run(["y"], {"x": x, "picks": [2, 0]})
    assert y.shape == (3, 2)
    (value,) = session.run_with_ort_values(["y"], {"x": x, "picks": [2, 0]})
    assert (value.shape(), value.data_type()) == ([3, 2], "tensor(float)")


def test_inputs_and_outputs_can_be_bound(session):
    binding = session.io_binding()
    for name, array in feed().items():
        binding.bind_cpu_input(name, array)
    mine = np.zeros((3, 2), np.float32)
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(mine))
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    y, z = binding.copy_outputs_to_cpu()
    assert y is mine
    np.testing.assert_array_equal(z, session.run(["z"], feed())[0])
    np.testing.assert_array_equal(mine, session.run(["y"], feed())[0])
    assert binding.get_outputs()[1].shape() == [3, 4]


def test_metadata_comes_from_the_file(session):
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.graph_name) == ("test", "net")
    assert meta.custom_metadata_map == {"key": "value"}
    assert session.get_providers() == ort.get_available_providers() == ["CPUExecutionProvider"]
    assert ort.get_device() == "CPU"


def test_a_path_works_like_bytes(data, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    assert ort.InferenceSession(str(path)).run(["z"], feed())[0].shape == (3, 4)


def test_a_saved_library_works_too(session, tmp_path):
    loaded = ort.InferenceSession(session.module.save(tmp_path / "net.so"))
    np.testing.assert_array_equal(loaded.run(["y"], feed())[0], session.run(["y"], feed())[0])
    assert [one.shape for one in loaded.get_inputs()] == [["batch", 4], [2]]


def test_other_providers_fall_back_with_a_warning(data):
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        ort.InferenceSession(data, providers=["CUDAExecutionProvider"])


@pytest.mark.parametrize(
    ("names", "change", "code"),
    [
        (["nothing"], {}, "TW6022"),
        (None, {"more": np.zeros(2)}, "TW6023"),
        (None, {"x": np.zeros((3, 4))}, "TW4001"),
        (None, {"x": np.zeros((3, 5), np.float32)}, "TW4003"),
    ],
)
def test_mistakes_are_named(session, names, change, code):
    with pytest.raises(TilewrightError) as caught:
        session.run(names, feed() | change)
    assert caught.value.code == code


def test_a_missing_input_is_named(session):
    with pytest.raises(ValueError, match="picks"):
        session.run(None, {"x": feed()["x"]})


def test_an_unknown_input_is_named_though_an_optional_one_is_absent():
    text = """<ir_version: 8, opset_import: ["" : 18]>
    net (float[2] x, optional(float[2]) o) => (bool y) { y = OptionalHasElement (o) }"""
    session = ort.InferenceSession(parser.parse_model(text).SerializeToString())
    x = np.zeros(2, np.float32)
    assert not session.run(None, {"x": x})[0]
    with pytest.raises(ValueError, match="no input typo"):
        session.run(None, {"x": x, "typo": x})


def test_types_that_are_no_tensors_are_named_as_onnx_runtime_does():
    from tilewright.ort.values import kind_name as _kind_name

    assert _kind_name("seq<f32[*]>") == "seq(tensor(float))"
    assert _kind_name("opt<seq<u8[n]>>") == "optional(seq(tensor(uint8)))"
    assert _kind_name("map<i64, f32>") == "map(int64,tensor(float))"
