"""Files read without their weights: the same model as read with them."""

import io
import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.base.errors import TilewrightError
from tilewright.frontends.onnx import import_model
from tilewright.frontends.onnx.wire import LEAST_BYTES, strip
from tilewright.graph import interpret

BIG = np.arange(5000, dtype=np.float32)
SMALL = np.arange(5, dtype=np.int64)


def model(*tensors):
    outputs = [helper.make_tensor_value_info(t.name, t.data_type, None) for t in tensors]
    return helper.make_model(helper.make_graph([], "g", [], outputs, list(tensors)))


def stripped(data):
    file = io.BufferedReader(io.BytesIO(data))
    return strip(file, len(data))


def test_large_data_stay_in_the_file():
    tensors = [numpy_helper.from_array(a, n) for a, n in ((BIG, "a"), (SMALL, "b"), (BIG * 2, "c"))]
    data = model(*tensors).SerializeToString()
    rest, weights = stripped(data)
    assert len(rest) < LEAST_BYTES
    assert sorted(weights.spans) == [0, 2]
    read = onnx.ModelProto.FromString(rest)
    assert [t.name for t in read.graph.initializer] == ["a", "b", "c"]
    assert weights.read(2).view(np.float32).tolist() == (BIG * 2).tolist()
    assert weights.read(1) is None


def test_all_else_is_kept():
    made = model(numpy_helper.from_array(BIG, "a"))
    made.producer_name = "somebody"
    made.metadata_props.add(key="k", value="v" * 10000)
    rest, _ = stripped(made.SerializeToString())
    read = onnx.ModelProto.FromString(rest)
    made.graph.initializer[0].ClearField("raw_data")
    assert read == made


def test_typed_data_are_left_to_the_parser(tmp_path):
    tensor = helper.make_tensor("a", TensorProto.FLOAT, [5000], BIG)
    path = tmp_path / "m.onnx"
    path.write_bytes(model(tensor).SerializeToString())
    (made,) = interpret(import_model(path))
    np.testing.assert_array_equal(made, BIG)


def test_arrays_are_aligned(tmp_path):
    path = tmp_path / "m.onnx"
    names = ["x" * n for n in range(1, 9)]
    path.write_bytes(model(*(numpy_helper.from_array(BIG, n) for n in names)).SerializeToString())
    for array in import_model(path).constants.values():
        assert array.flags.aligned
        assert array.flags.c_contiguous


@pytest.mark.parametrize("cut", [1, 100, 15_000])
def test_a_file_cut_off(tmp_path, cut):
    data = model(numpy_helper.from_array(BIG, "a")).SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data[:-cut])
    with pytest.raises(TilewrightError, match="TW1112"):
        import_model(path)


def test_odd_files_are_read_by_the_parser():
    tensor = numpy_helper.from_array(BIG, "a")
    more = TensorProto(raw_data=(BIG * 2).tobytes())
    twice = tensor.SerializeToString() + more.SerializeToString()
    graph = model(tensor)
    data = graph.SerializeToString() + graph.SerializeToString()  # a graph twice: merged
    assert stripped(data)[0] == data
    made = helper.make_model(helper.make_graph([], "g", [], []))
    made.graph.initializer.append(TensorProto.FromString(twice))
    assert onnx.ModelProto.FromString(stripped(made.SerializeToString())[0])


def test_both_ways_agree_on_changed_files(tmp_path):
    tensors = [numpy_helper.from_array(a, n) for a, n in ((BIG, "a"), (SMALL, "b"))]
    original = model(*tensors).SerializeToString()
    path = tmp_path / "m.onnx"
    for seed in range(300):
        rng = random.Random(seed)
        data = bytearray(original)
        for _ in range(rng.choice([1, 2, 6])):
            at = rng.choice([rng.randrange(60), rng.randrange(len(data)), len(data) - 40])
            data[at % len(data)] = rng.randrange(256)
        path.write_bytes(data)
        assert outcome(path) == outcome(bytes(data)), seed


def outcome(source):
    """The values of a model, or the code of the error."""
    try:
        return [array.tobytes() for array in interpret(import_model(source))]
    except TilewrightError as error:
        return error.code
