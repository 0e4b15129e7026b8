"""Every public name of onnxruntime is here, with the same numbers and the same members."""

import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import tilewright
from tilewright import ort
from tilewright.ort import installed
from tilewright.ort.capi import onnxruntime_pybind11_state as state
from tilewright.ort.environment import INTERFACE
from tilewright.ort.errors import Absent

theirs = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: bench)")

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[batch, 4] x, float[other] w) => (float[batch, 4] y, float[other] z) {
  y = Tanh (x)
  z = Abs (w)
}"""


def test_continuous_integration_has_the_version_whose_interface_this_is():
    targets = Path(__file__).parents[3] / "Makefile"
    assert f"onnxruntime=={INTERFACE} " in targets.read_text()


@pytest.fixture(scope="module")
def data():
    return parser.parse_model(TEXT).SerializeToString()


@pytest.fixture(scope="module")
def session(data):
    return ort.InferenceSession(data)


def feed(rows=3):
    return {"x": np.ones((rows, 4), np.float32), "w": np.array([-1, 2], np.float32)}


def public(of):
    return [name for name in dir(of) if not name.startswith("_")]


def test_every_public_name_is_here():
    # Of a fresh process: modules that another test imported out of the package are names of it too.
    listing = "import onnxruntime; print(*dir(onnxruntime))"
    names = subprocess.check_output([sys.executable, "-c", listing], text=True).split()
    names = [name for name in names if not name.startswith("_")]
    assert len(names) >= 62
    assert [name for name in names if not hasattr(ort, name)] == []


def test_every_name_of_the_native_module_is_here_and_says_what_it_lacks():
    from onnxruntime.capi import onnxruntime_pybind11_state as real

    missing = [name for name in public(real) if not hasattr(state, name)]
    assert missing == []
    assert int(state.kSameAsRequested) == int(real.kSameAsRequested)
    absent = {name: value for name, value in vars(state).items() if isinstance(value, Absent)}
    assert set(absent) <= set(public(real))
    for name, value in absent.items():
        with pytest.raises(state.NotImplemented, match=rf"TW6040.*: {name} does not exist"):
            value()
    assert not hasattr(state.schemadef, "OpSchema")
    with pytest.raises(state.NotImplemented, match=r"TW6040.*: schemadef\.OpSchema does"):
        attrgetter("OpSchema")(state.schemadef)


MODULES = ("backend", "datasets", "quantization", "tools", "transformers")


def test_modules_in_python_are_those_of_the_installed_onnxruntime():
    program = f"""
import importlib, sys, tilewright.ort
sys.modules["onnxruntime"] = tilewright.ort
for name in {MODULES}:
    print(importlib.import_module("onnxruntime." + name).__file__)
import onnxruntime
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.quantization.calibrate import CalibraterBase
assert quantize_dynamic.__globals__["__name__"] == "onnxruntime.quantization.quantize"
assert sys.modules["onnxruntime.quantization.calibrate"].onnxruntime is tilewright.ort
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    folder = Path(theirs.__file__).parent
    assert done.stdout.split() == [str(folder / name / "__init__.py") for name in MODULES]


@pytest.mark.parametrize("name", MODULES)
def test_modules_that_nobody_has_installed_are_named(name, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ImportError, match=f"TW6040.*: onnxruntime.{name} does not exist"):
        installed.hand_over(f"tilewright.ort.{name}")


def test_every_member_of_every_class_is_here():
    missing = []
    for name in public(theirs):
        kind = getattr(theirs, name)
        if isinstance(kind, type) and not hasattr(kind, "__members__"):
            ours = getattr(ort, name)
            annotated = {
                key for base in ours.__mro__ for key in vars(base).get("__annotations__", {})
            }
            made = vars(ours()) if name == "OrtArenaCfg" else ()
            has = {*dir(ours), *annotated, *made}
            if name in ("OrtMemoryInfo",):
                has |= set(vars(ort.devices.cpu_memory()))
            if name in ("OrtEpContextData", "OrtEpContextDataBuffer"):
                continue  # cannot be had: making one raises
            missing += [f"{name}.{member}" for member in public(kind) if member not in has]
    assert missing == []


@pytest.mark.parametrize(
    "name", [n for n in public(theirs) if hasattr(getattr(theirs, n), "__members__")]
)
def test_enumerations_have_their_numbers(name):
    members = getattr(theirs, name).__members__
    ours = getattr(ort, name).__members__
    assert {key: int(value) for key, value in members.items()} == {
        key: int(value) for key, value in ours.items()
    }


def test_exceptions_have_their_names():
    from onnxruntime.capi import onnxruntime_pybind11_state as real

    errors = [n for n in dir(real) if isinstance(getattr(real, n), type)]
    errors = [n for n in errors if issubclass(getattr(real, n), Exception)]
    assert errors
    for name in errors:
        assert issubclass(getattr(state, name), Exception)
        assert getattr(state, name).__name__ == name


def test_it_takes_the_place_of_the_module(monkeypatch, data):
    for name in [name for name in sys.modules if name.split(".")[0] == "onnxruntime"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnxruntime", tilewright.ort)
    space: dict = {}
    program = """
import onnxruntime
import onnxruntime as rt
from onnxruntime import InferenceSession, SessionOptions
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile
import onnxruntime.capi.onnxruntime_inference_collection
session = rt.InferenceSession(data, providers=rt.get_available_providers())
try:
    session.run(["nothing"], {})
except InvalidArgument as error:
    caught = error
"""
    space["data"] = data
    exec(program, space)
    assert space["caught"].code == "TW6022"
    assert space["InferenceSession"] is ort.InferenceSession
    for name in [name for name in sys.modules if name.startswith("onnxruntime.")]:
        monkeypatch.delitem(sys.modules, name)


# ------------------------------------------------------------------ what has a meaning


def test_free_dimensions_are_fixed_by_name(data):
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    options.add_free_dimension_override_by_name("nothing of the kind", 2)
    session = ort.InferenceSession(data, options)
    assert session.module.inputs[0].shape == (2, 4)
    with pytest.raises(state.InvalidArgument):
        session.run(None, feed(3))


def test_free_dimensions_are_fixed_by_denotation():
    model = parser.parse_model(TEXT)
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 5)
    session = ort.InferenceSession(model.SerializeToString(), options)
    assert session.module.inputs[0].shape == (5, 4)


def stored_model(feedable=True):
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])]
    if feedable:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]))
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.array([2, 3], np.float32), "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def test_initializers_can_be_replaced_by_options():
    options = ort.SessionOptions()
    value = ort.OrtValue.ortvalue_from_numpy(np.array([5, 7], np.float32))
    options.add_initializer("w", value)
    session = ort.InferenceSession(stored_model(feedable=False), options)
    assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [5, 7]


def test_initializers_can_be_fed():
    session = ort.InferenceSession(stored_model())
    peer = theirs.InferenceSession(stored_model())
    assert [one.name for one in session.get_inputs()] == ["x"]
    for mine, other in zip(
        session.get_overridable_initializers(), peer.get_overridable_initializers(), strict=True
    ):
        assert (mine.name, mine.shape, mine.type) == (other.name, other.shape, other.type)
    one = {"x": np.ones(2, np.float32)}
    both = one | {"w": np.array([8, 9], np.float32)}
    assert session.run(None, one)[0].tolist() == [2, 3]
    assert session.run(None, both)[0].tolist() == peer.run(None, both)[0].tolist() == [8, 9]


def test_shapes_are_told_as_onnx_runtime_tells_them():
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[?, a, 3] x) => (float[a, ?, 3] y) { y = Transpose <perm = [1, 0, 2]> (x) }"""
    model = parser.parse_model(text).SerializeToString()
    mine, other = ort.InferenceSession(model), theirs.InferenceSession(model)
    assert mine.get_inputs()[0].shape == other.get_inputs()[0].shape
    assert mine.get_outputs()[0].shape == other.get_outputs()[0].shape


def test_runs_on_a_thread_of_its_own(session):
    from threading import Event

    done, got = Event(), []

    def callback(results, user_data, error):
        got.append((results, user_data, error))
        done.set()

    session.run_async(["z"], feed(), callback, "mine")
    assert done.wait(20)
    results, user_data, error = got[0]
    assert (results[0].tolist(), user_data, error) == ([1, 2], "mine", "")
    done.clear()
    session.run_async(["z"], {}, callback, None)
    assert done.wait(20)
    assert "TW6024" in got[1][2]


def test_profiles_are_written(data, tmp_path):
    import json

    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = ort.InferenceSession(data, options)
    assert session.get_profiling_start_time_ns() > 0
    session.run(None, feed())
    with open(session.end_profiling()) as file:
        events = json.load(file)
    assert events[0]["name"] == "model_run"
    assert any(event["cat"] == "Node" for event in events)
    assert session.end_profiling() == ""


def test_the_optimized_model_is_written(data, tmp_path):
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(data, options)
    written = theirs.InferenceSession(options.optimized_model_filepath)
    np.testing.assert_allclose(written.run(None, feed())[0], np.tanh(feed()["x"]), rtol=1e-6)


def test_outputs_are_computed_in_bound_memory(session):
    binding = session.io_binding()
    given = feed()
    for name, array in given.items():
        binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    y, z = np.zeros((3, 4), np.float32), np.zeros(2, np.float32)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    binding.bind_output("z", "cpu", 0, 1, z.shape, z.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(y, np.tanh(given["x"]), rtol=1e-6)
    assert z.tolist() == [1, 2]
    assert len(binding.get_outputs_as_ortvaluevector()) == 2


def test_models_are_compiled_ahead_of_time(data, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    compiler = ort.ModelCompiler(ort.SessionOptions(), path)
    compiler.compile_to_file()
    for source in (tmp_path / "net_ctx.onnx", compiler.compile_to_bytes()):
        assert ort.InferenceSession(source).run(["z"], feed())[0].tolist() == [1, 2]


def test_threads_of_a_shared_pool(data):
    ort.set_global_thread_pool_sizes(1, 1)
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    assert ort.InferenceSession(data, options).module.threads == 1
    ort.set_global_thread_pool_sizes(0, 0)


# ------------------------------------------------------------------ values


def test_values_tell_what_they_are():
    mine = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    other = theirs.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    for member in ("shape", "data_type", "element_type", "tensor_size_in_bytes", "device_name"):
        assert getattr(mine, member)() == getattr(other, member)()
    for member in ("is_tensor", "is_sparse_tensor", "is_tensor_sequence", "has_value"):
        assert getattr(mine, member)() == getattr(other, member)()
    mine.update_inplace(np.full((2, 3), 7, np.float32))
    shared = ort.OrtValue.from_dlpack(mine)
    assert shared.data_ptr() == mine.data_ptr()
    assert shared.numpy().tolist() == [[7, 7, 7], [7, 7, 7]]
    target = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], 1)
    ort.copy_tensors([mine], [target])
    assert target.numpy()[0, 0] == 7


def test_bits_of_types_that_numpy_lacks():
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
        np.array([0x3F80], np.uint16), TensorProto.BFLOAT16
    )
    assert (value.data_type(), float(value.numpy()[0])) == ("tensor(bfloat16)", 1.0)


def test_sparse_tensors_are_fed_written_out(session):
    device = ort.OrtDevice.make("cpu", 0)
    values, places = np.array([-4, 3], np.float32), np.array([0, 2])
    coo = ort.SparseTensor.sparse_coo_from_numpy([3], values, places, device)
    value = ort.OrtValue.ort_value_from_sparse_tensor(coo)
    assert value.data_type() == "sparse_tensor(float)"
    assert session.run(["z"], feed() | {"w": value})[0].tolist() == [4, 0, 3]
    csr = ort.SparseTensor.sparse_csr_from_numpy(
        [2, 2], values, np.array([1, 0]), np.array([0, 1, 2]), device
    )
    assert csr.dense().tolist() == [[0, -4], [3, 0]]
    assert csr.format() == ort.OrtSparseFormat.ORT_SPARSE_CSRC


# ------------------------------------------------------------------ what cannot be had, and faults


@pytest.mark.parametrize(
    "call",
    [
        lambda: ort.SessionOptions().register_custom_ops_library("x.so"),
        lambda: ort.register_execution_provider_library("x", "x.so"),
        lambda: ort.LoraAdapter().Load("x"),
        lambda: ort.OrtValue.ortvalue_from_shape_and_type([2], np.float32, "cuda"),
        lambda: ort.OrtEpContextData(),
    ],
)
def test_what_cannot_be_had_raises_by_name(call):
    with pytest.raises(state.NotImplemented) as caught:
        call()
    assert caught.value.code == "TW6040"


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("/no/such/model.onnx", "NoSuchFile"),
        (b"this is no model", "InvalidProtobuf"),
    ],
)
def test_models_that_do_not_load(source, kind):
    with pytest.raises(getattr(state, kind)):
        ort.InferenceSession(source)
    with pytest.raises(TypeError):
        ort.InferenceSession(5)


def test_what_means_nothing_is_accepted():
    ort.set_default_logger_severity(3)
    ort.set_default_logger_verbosity(0)
    ort.disable_telemetry_events()
    ort.enable_telemetry_events()
    ort.set_seed(1)
    ort.preload_dlls()
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.CPU)
    ort.create_and_register_allocator(info, ort.OrtArenaCfg(0, -1, -1, -1))
    assert ort.get_ep_devices()[0].ep_name in ort.get_available_providers()
    assert ort.get_version_string() == ort.__version__


def test_a_run_is_called_off(session):
    options = ort.RunOptions()
    options.terminate = True
    with pytest.raises(state.Fail):
        session.run(None, feed(), options)
