"""Loading models from files that are missing, damaged or hostile."""

import os

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.base.errors import Unsupported, UserError, UserTypeError
from tilewright.frontends.onnx import import_model
from tilewright.frontends.onnx.tensors import MAX_DENSE_BYTES
from tilewright.frontends.open_model import open_model
from tilewright.graph import interpret

OPSETS = [helper.make_opsetid("", 21)]


def relu(**fields):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (2,)) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=fields.pop("opset_imports", OPSETS), **fields)


def stored(*tensors):
    """A model that returns its initializers."""
    outputs = [helper.make_tensor_value_info(t.name, t.data_type, None) for t in tensors]
    return helper.make_model(helper.make_graph([], "g", [], outputs, list(tensors)))


def external(location, *, dims=(4,), name="w", of=TensorProto.FLOAT, **entries):
    tensor = TensorProto(name=name, data_type=of, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


WEIGHTS = np.arange(4, dtype=np.float32)


@pytest.fixture
def folder(tmp_path):
    """A model's folder beside a secret."""
    (tmp_path / "secret.bin").write_bytes(b"\x01" * 16)
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights.bin").write_bytes(WEIGHTS.tobytes())
    return model


def load(folder, *tensors):
    path = folder / "model.onnx"
    path.write_bytes(stored(*tensors).SerializeToString())
    return interpret(import_model(path))


def refused(folder, *tensors):
    with pytest.raises(UserError) as caught:
        load(folder, *tensors)
    return caught.value


# ------------------------------------------------------------------------------------ sources


def test_a_path_bytes_or_a_model(tmp_path):
    model = relu()
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    want = import_model(model)
    for source in (path, str(path), path.read_bytes(), bytearray(path.read_bytes())):
        assert import_model(source) == want


def test_sources_that_are_none(tmp_path):
    for source in (tmp_path / "none.onnx", tmp_path, "a\0b"):
        with pytest.raises(UserError, match="TW1111"):
            import_model(source)
    for source in (17, None, [b""]):
        with pytest.raises(UserTypeError, match="TW1111"):
            import_model(source)


@pytest.mark.parametrize("name", ["m.tflite", "m.keras", "M.H5", "m.pt", "m.pth", "m.safetensors"])
def test_formats_of_others_are_told(name):
    with pytest.raises(UserError, match="TW1128"):
        open_model(name)


def test_a_pipe_is_not_a_file(tmp_path):
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="TW1111"):
        import_model(pipe)


def test_bytes_that_are_no_model():
    data = relu().SerializeToString()
    for bad in (b"", b"\0", b"hello", data[:-3], b"version https://git-lfs.github.com/spec/v1\n"):
        with pytest.raises(UserError, match="TW1112"):
            import_model(bad)


def test_names_that_are_not_text():
    data = relu().SerializeToString()
    for name in (b"Relu", b"\x01x"):
        for at in range(data.count(name)):
            place = -1
            for _ in range(at + 1):
                place = data.index(name, place + 1)
            bad = bytearray(data)
            bad[place + len(name) - 1] = 0xFF
            with pytest.raises(UserError, match="TW1112"):
                import_model(bytes(bad))


def test_names_of_dimensions_that_are_not_text():
    plain = helper.make_tensor_type_proto(TensorProto.FLOAT, ("dimension",))
    for of in (
        plain,
        helper.make_sequence_type_proto(plain),
        helper.make_optional_type_proto(plain),
    ):
        x, y = (helper.make_value_info(name, of) for name in "xy")
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
        data = helper.make_model(graph, opset_imports=OPSETS).SerializeToString()
        with pytest.raises(UserError, match="TW1112"):
            import_model(data.replace(b"dimension", b"dim\xffnsion", 1))


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 32)
    with pytest.raises(UserError, match="more than a model file can have"):
        import_model(path)


def test_deep_nesting_is_no_crash():
    graph = helper.make_graph([], "leaf", [], [])
    try:
        for _ in range(300):
            body = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)
            graph = helper.make_graph([body], "g", [], [])
            if graph.ByteSize() > 1 << 20:
                break
    except RecursionError:
        pass
    with pytest.raises((UserError, Unsupported)):
        import_model(helper.make_model(graph, opset_imports=OPSETS).SerializeToString())


def test_opsets():
    with pytest.raises(Unsupported, match="TW1114"):
        import_model(relu(opset_imports=[helper.make_opsetid("", 999)]))
    with pytest.raises(Unsupported, match="TW1114"):
        import_model(relu(opset_imports=[helper.make_opsetid("", -3)]))
    model = relu()
    del model.opset_import[:]
    with pytest.raises(UserError, match="TW1113"):
        import_model(model)


# ------------------------------------------------------------------------------------ tensors


@pytest.mark.parametrize(
    "array",
    [
        WEIGHTS,
        np.arange(3, dtype=np.int64),
        np.array([True, False]),
        np.array([1, 2], ml_dtypes.bfloat16),
        np.array([1, -2, 3], ml_dtypes.int4),
        np.array(["a", "b"], object),
        np.zeros((0, 3), np.float16),
    ],
)
def test_stored_tensors(array):
    (made,) = interpret(import_model(stored(numpy_helper.from_array(array, "w"))))
    assert made.dtype == array.dtype
    assert made.tolist() == array.tolist()


@pytest.mark.parametrize(
    "fields",
    [
        {"raw_data": b"123"},
        {"raw_data": b"\0" * 20},
        {"dims": [1 << 62], "raw_data": b""},
        {"dims": [1 << 40, 1 << 40], "float_data": [1.0]},
        {"dims": [-4], "raw_data": b"\0" * 16},
        {"float_data": [1.0, 2.0]},
        {"data_type": 99, "raw_data": b"\0" * 16},
        {"data_type": TensorProto.STRING, "raw_data": b"\0" * 16},
    ],
)
def test_damaged_tensors(fields):
    tensor = TensorProto(**{"name": "w", "data_type": TensorProto.FLOAT, "dims": [4], **fields})
    graph = helper.make_graph([], "g", [], [onnx.ValueInfoProto(name="w")], [tensor])
    with pytest.raises(UserError, match="TW1105"):
        import_model(helper.make_model(graph))


def sparse(dims, indices):
    values = numpy_helper.from_array(np.ones(len(indices), np.float32), "w")
    return onnx.SparseTensorProto(
        values=values, indices=numpy_helper.from_array(np.array(indices), "i"), dims=dims
    )


def with_sparse(tensor):
    graph = helper.make_graph([], "g", [], [onnx.ValueInfoProto(name="w")])
    graph.sparse_initializer.append(tensor)
    return helper.make_model(graph)


def test_sparse_tensors_are_written_out():
    (made,) = interpret(import_model(with_sparse(sparse([2, 3], [1, 5]))))
    assert made.tolist() == [[0, 1, 0], [0, 0, 1]]
    (made,) = interpret(import_model(with_sparse(sparse([2, 3], [[0, 0], [1, 2]]))))
    assert made.tolist() == [[1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("dims", [[MAX_DENSE_BYTES], [1 << 40, 1 << 40], [-1], [3]])
def test_sparse_tensors_do_not_fill_memory(dims):
    with pytest.raises(UserError, match="TW1105"):
        import_model(with_sparse(sparse(dims, [5])))


# ------------------------------------------------------------------------------------ external data


def test_weights_beside_the_model(folder):
    (made,) = load(folder, external("weights.bin"))
    np.testing.assert_array_equal(made, WEIGHTS)
    (made,) = load(folder, external("weights.bin", dims=(2,), offset=8, length=8))
    np.testing.assert_array_equal(made, WEIGHTS[2:])
    (folder / "deep").mkdir()
    (folder / "weights.bin").rename(folder / "deep" / "weights.bin")
    (made,) = load(folder, external("deep/weights.bin"))
    np.testing.assert_array_equal(made, WEIGHTS)


def test_small_types_beside_the_model(folder):
    (folder / "packed.bin").write_bytes(bytes([0x21, 0x0F]))
    (made,) = load(folder, external("packed.bin", dims=(3,), of=TensorProto.INT4))
    assert made.tolist() == [1, 2, -1]


def test_constants_may_be_external(folder):
    node = helper.make_node("Constant", [], ["y"], value=external("weights.bin"))
    graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="y")])
    path = folder / "model.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=OPSETS).SerializeToString())
    np.testing.assert_array_equal(interpret(import_model(path))[0], WEIGHTS)


@pytest.mark.parametrize(
    "location",
    [
        "../secret.bin",
        "sub/../../secret.bin",
        "/etc/hostname",
        "C:\\secret.bin",
        "..\\secret.bin",
        "\\\\server\\share",
        "",
        "a\0b",
        ".",
    ],
)
def test_names_that_lead_out_are_refused(folder, location):
    error = refused(folder, external(location))
    assert error.code in ("TW1115", "TW1116")
    if location != ".":
        assert error.code == "TW1115"


def test_absolute_names_are_refused_even_inside(folder):
    assert refused(folder, external(str(folder / "weights.bin"))).code == "TW1115"


def test_links_are_refused(folder):
    (folder / "link.bin").symlink_to(folder.parent / "secret.bin")
    assert refused(folder, external("link.bin")).code == "TW1115"
    (folder / "inside.bin").symlink_to(folder / "weights.bin")
    assert refused(folder, external("inside.bin")).code == "TW1115"
    (folder / "up").symlink_to(folder.parent, target_is_directory=True)
    assert refused(folder, external("up/secret.bin")).code == "TW1115"
    os.link(folder.parent / "secret.bin", folder / "hard.bin")
    assert refused(folder, external("hard.bin")).code == "TW1115"


def test_the_folder_itself_may_be_a_link(folder, tmp_path):
    (tmp_path / "alias").symlink_to(folder, target_is_directory=True)
    (made,) = load(tmp_path / "alias", external("weights.bin"))
    np.testing.assert_array_equal(made, WEIGHTS)


def test_what_is_no_file_is_refused(folder):
    (folder / "sub").mkdir()
    assert refused(folder, external("sub")).code == "TW1115"
    os.mkfifo(folder / "pipe")
    assert refused(folder, external("pipe")).code == "TW1115"
    assert refused(folder, external("none.bin")).code == "TW1116"


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": 4},
        {"offset": 1 << 60},
        {"offset": -4},
        {"offset": "x"},
        {"offset": "9" * 40},
        {"length": 12},
        {"length": -1},
        {"length": 1 << 50},
        {"offset": "٣"},
    ],
)
def test_positions_are_checked(folder, entries):
    assert refused(folder, external("weights.bin", **entries)).code == "TW1116"


def test_sizes_are_checked_before_anything_is_read(folder):
    assert refused(folder, external("weights.bin", dims=(1 << 38,))).code == "TW1116"
    assert refused(folder, external("weights.bin", dims=(1 << 61,))).code == "TW1105"


def test_one_region_is_read_once(folder):
    tensors = [external("weights.bin", name=f"w{n}") for n in range(50)]
    made = load(folder, *tensors)
    assert len(made) == 50
    shapes = [(4,), (2, 2), (1, 4), (4, 1)]
    tensors = [external("weights.bin", name=f"w{n}", dims=s) for n, s in enumerate(shapes)]
    assert refused(folder, *tensors).code == "TW1117"


def test_a_model_without_a_folder_has_no_external_data():
    with pytest.raises(UserError, match="give the path"):
        import_model(stored(external("weights.bin")))


def test_a_truncated_file_is_named(folder):
    (folder / "weights.bin").write_bytes(b"\0" * 7)
    error = refused(folder, external("weights.bin"))
    assert error.code == "TW1116"
    assert "weights.bin" in error.message
