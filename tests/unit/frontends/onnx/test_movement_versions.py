"""Shapes, indexing, reductions and sorting as older opsets had them."""

import numpy as np
import onnx
import pytest
from onnx import helper

from tilewright.base.errors import ExecutionError, UserError
from tilewright.frontends.onnx import import_model
from tilewright.graph import interpret

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def run(op, *inputs, opset, outputs=1, **attributes):
    """The results of one node at an opset, arguments as data and as constants."""
    names = ["" if x is None else f"x{at}" for at, x in enumerate(inputs)]
    made = [f"y{at}" for at in range(outputs)]
    node = helper.make_node(op, names, made, **attributes)
    feeds = {name: np.asarray(x) for name, x in zip(names, inputs, strict=True) if x is not None}
    found = []
    for known in (False, True):
        fixed = [name for name in feeds if known and name != "x0"]
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in feeds.items()
            if name not in fixed
        ]
        constants = [onnx.numpy_helper.from_array(feeds[name], name) for name in fixed]
        results = [onnx.ValueInfoProto(name=n) for n in made]
        graph = helper.make_graph([node], "g", infos, results, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        args = [x for name, x in feeds.items() if name not in fixed]
        found.append(interpret(import_model(model), *args, check=True))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    return found[0][0] if outputs == 1 else found[0]


@pytest.mark.parametrize("opset", [7, 9, 11, 12])
def test_axes_of_squeezes_were_attributes(opset):
    negative = opset >= 11
    made = run("Unsqueeze", X, opset=opset, axes=[0, -1 if negative else 4])
    assert made.shape == (1, 2, 3, 4, 1)
    assert run("Squeeze", made, opset=opset, axes=[0, 4]).shape == (2, 3, 4)
    assert run("Squeeze", made, opset=opset).shape == (2, 3, 4)


def test_axes_of_squeezes_are_inputs():
    made = run("Unsqueeze", X, np.array([0, -1]), opset=13)
    assert made.shape == (1, 2, 3, 4, 1)
    assert run("Squeeze", made, np.array([0, -1]), opset=13).shape == (2, 3, 4)
    assert run("Squeeze", made, opset=13).shape == (2, 3, 4)


def test_parts_of_a_split():
    for opset, given in ((7, {"split": [1, 3]}), (11, {"split": [1, 3]})):
        parts = run("Split", X, opset=opset, outputs=2, axis=2, **given)
        assert [p.shape[2] for p in parts] == [1, 3]
    for opset in (13, 18):
        parts = run("Split", X, np.array([1, 3]), opset=opset, outputs=2, axis=2)
        assert [p.shape[2] for p in parts] == [1, 3]
    assert [p.shape[2] for p in run("Split", X, opset=13, outputs=2, axis=2)] == [2, 2]
    uneven = run("Split", X, opset=18, outputs=3, axis=2, num_outputs=3)
    assert [p.shape[2] for p in uneven] == [2, 2, 0]


def test_parts_of_a_split_make_up_the_whole():
    with pytest.raises(ExecutionError, match="do not make up the whole"):
        run("Split", X, np.array([1, 2]), opset=18, outputs=2, axis=2)


@pytest.mark.parametrize("sizes", [(1, 2), (3, 3), (4,), (1, 1, 2), (5, -1)])
def test_known_parts_of_a_split_make_up_the_whole(sizes):
    listed = ", ".join(map(str, sizes))
    for dims in ("2, 3, 4", "2, 3, n"):
        text = f"""<ir_version: 8, opset_import: ["" : 17]>
        net (float[{dims}] x) => (float[a, b, c] y, float[d, e, f] z)
        <int64[{len(sizes)}] s = {{{listed}}}> {{ y, z = Split <axis = 2> (x, s) }}"""
        with pytest.raises(UserError, match=r"Split of|do not make up the whole"):
            interpret(import_model(onnx.parser.parse_model(text)), X)
    if sizes in ((1, 2), (3, 3)):  # of another n
        x = np.zeros((2, 3, sum(sizes)), np.float32)
        made = interpret(import_model(onnx.parser.parse_model(text)), x)
        assert [part.shape[2] for part in made] == list(sizes)


def test_bounds_of_slices():
    want = X[:, 1:, ::1]
    np.testing.assert_array_equal(run("Slice", X, opset=9, starts=[1], ends=[99], axes=[1]), want)
    np.testing.assert_array_equal(run("Slice", X, opset=9, starts=[0, 1], ends=[9, 9]), X[:, 1:])
    for opset in (10, 11, 13):
        bounds = [np.array([n], np.int32) for n in (1, 99, 1)]
        np.testing.assert_array_equal(run("Slice", X, *bounds, opset=opset), want)
    steps = [np.array([n]) for n in (-1, -99, 2, -2)]
    np.testing.assert_array_equal(run("Slice", X, *steps, opset=13), X[:, :, ::-2])


def test_amounts_of_pads():
    want = np.pad(X, ((0, 0), (1, 0), (0, 2)), constant_values=3)
    amounts = [0, 1, 0, 0, 0, 2]
    np.testing.assert_array_equal(run("Pad", X, opset=7, pads=amounts, value=3.0), want)
    for opset in (11, 13, 18):
        made = run("Pad", X, np.array(amounts), np.float32(3), opset=opset)
        np.testing.assert_array_equal(made, want)
    edge = run("Pad", X, opset=7, pads=amounts, mode="edge")
    np.testing.assert_array_equal(edge, np.pad(X, ((0, 0), (1, 0), (0, 2)), mode="edge"))
    axes = run("Pad", X, np.array([1, 2]), None, np.array([-1]), opset=18)
    np.testing.assert_array_equal(axes, np.pad(X, ((0, 0), (0, 0), (1, 2))))


@pytest.mark.parametrize(
    ("op", "fn", "since"),
    [("ReduceSum", np.sum, 13), ("ReduceMax", np.max, 18), ("ReduceMean", np.mean, 18)],
)
def test_axes_of_reductions(op, fn, since):
    for opset in (7, 11, since - 1):
        made = run(op, X, opset=opset, axes=[0, 2], keepdims=0)
        np.testing.assert_allclose(made, fn(X, axis=(0, 2)))
        np.testing.assert_allclose(run(op, X, opset=opset), fn(X, keepdims=True))
    made = run(op, X, np.array([0, -1]), opset=since, keepdims=0)
    np.testing.assert_allclose(made, fn(X, axis=(0, 2)))
    same = run(op, X, np.array([], np.int64), opset=since, noop_with_empty_axes=1)
    np.testing.assert_array_equal(same, X)
    np.testing.assert_allclose(run(op, X, opset=since), fn(X, keepdims=True))


def test_no_reduction_of_composite_reductions_is_not_the_input():
    none = np.array([], np.int64)
    made = run("ReduceSumSquare", X, none, opset=18, noop_with_empty_axes=1)
    np.testing.assert_array_equal(made, X * X)
    made = run("ReduceL1", -X, none, opset=18, noop_with_empty_axes=1)
    np.testing.assert_array_equal(made, X)


def test_k_of_top_k_was_an_attribute():
    for opset, arguments, given in (
        (9, [], {"k": 2}),
        (10, [np.array([2])], {}),
        (11, [np.array([2])], {}),
    ):
        values, indices = run("TopK", X, *arguments, opset=opset, outputs=2, axis=2, **given)
        np.testing.assert_array_equal(values, X[:, :, [3, 2]])
        assert indices.dtype == np.int64


def test_scatter_has_two_names():
    x, indices, updates = np.zeros(4, np.float32), np.array([2]), np.float32([7])
    for op, opset in (("Scatter", 9), ("ScatterElements", 11), ("ScatterElements", 18)):
        assert run(op, x, indices, updates, opset=opset).tolist() == [0, 0, 7, 0]


def test_modes_of_blocks():
    x = np.arange(16, dtype=np.float32).reshape(1, 4, 2, 2)
    old, new = (run("DepthToSpace", x, opset=n, blocksize=2) for n in (7, 11))
    np.testing.assert_array_equal(old, new)
    other = run("DepthToSpace", x, opset=11, blocksize=2, mode="CRD")
    np.testing.assert_array_equal(other, old)  # one channel is left: no difference
    np.testing.assert_array_equal(run("SpaceToDepth", old, opset=7, blocksize=2), x)


def test_the_last_of_equals():
    x = np.float32([1, 3, 3])
    assert run("ArgMax", x, opset=7, keepdims=0) == 1
    assert run("ArgMax", x, opset=12, keepdims=0, select_last_index=1) == 2
    assert run("ArgMin", x, opset=13, axis=-1).tolist() == [0]


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 21, 25])
def test_what_never_changed(opset):
    np.testing.assert_array_equal(run("Transpose", X, opset=opset), X.T)
    np.testing.assert_array_equal(run("Flatten", X, opset=opset, axis=2), X.reshape(6, 4))
    assert run("Shape", X, opset=opset).tolist() == [2, 3, 4]
    assert run("Size", X, opset=opset) == 24
    np.testing.assert_array_equal(run("Gather", X, np.array([1]), opset=opset, axis=1), X[:, [1]])
    np.testing.assert_array_equal(
        run("Concat", X, X, opset=opset, axis=1), np.concatenate([X, X], 1)
    )
    np.testing.assert_array_equal(
        run("Tile", X, np.array([1, 2, 1]), opset=opset), np.tile(X, (1, 2, 1))
    )
    made = run("Reshape", X, np.array([0, -1]), opset=opset)
    np.testing.assert_array_equal(made, X.reshape(2, 12))


def test_zeros_of_reshapes():
    x = np.zeros((0, 3), np.float32)
    assert run("Reshape", x, np.array([3, 0]), opset=14, allowzero=1).shape == (3, 0)
    assert run("Reshape", x, np.array([0, 3]), opset=13).shape == (0, 3)


def test_constants_of_all_kinds():
    for name, value, of in (
        ("value_float", 2.5, np.float32),
        ("value_floats", [1.0, 2.0], np.float32),
        ("value_int", 7, np.int64),
        ("value_ints", [7, 8], np.int64),
        ("value_string", "a", object),
        ("value_strings", ["a", "b"], object),
    ):
        made = run("Constant", opset=13, **{name: value})
        assert made.dtype == of
        assert made.tolist() == value
    tensor = onnx.numpy_helper.from_array(np.float16([1, 2]))
    assert run("Constant", opset=7, value=tensor).dtype == np.float16
    made = run(
        "ConstantOfShape",
        np.array([2, 2]),
        opset=9,
        value=onnx.numpy_helper.from_array(np.array([3])),
    )
    assert made.tolist() == [[3, 3], [3, 3]]
    assert run("ConstantOfShape", np.array([2]), opset=9).dtype == np.float32
