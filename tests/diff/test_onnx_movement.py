"""Shapes, indexing, reductions and sorting with random arguments, against ONNX Runtime.

Integer arguments (axes, bounds, indices) come as data and as constants: both paths are compared.
"""

import zlib

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tilewright.base.passes import run_passes
from tilewright.frontends.onnx import import_model
from tilewright.graph import interpret
from tilewright.graph.passes import CANONICAL
from tilewright.graph.verify import verify

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: bench)")


@pytest.fixture
def rng(request):
    """Numbers of its own for each case."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


def model_of(op, inputs, outputs, opset, attributes, *, dynamic=False, known=()):
    names = ["" if value is None else f"x{at}" for at, value in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{n}" for n in range(outputs)], **attributes)
    infos, constants = [], []
    for at, (name, value) in enumerate(zip(names, inputs, strict=True)):
        if value is None:
            continue
        if at in known:
            constants.append(numpy_helper.from_array(value, name))
            continue
        dims = [f"{name}d{axis}" for axis in range(value.ndim)] if dynamic else value.shape
        code = helper.np_dtype_to_tensor_dtype(value.dtype)
        infos.append(helper.make_tensor_value_info(name, code, dims))
    results = [onnx.ValueInfoProto(name=f"y{n}") for n in range(outputs)]
    graph = helper.make_graph([node], "test", infos, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def check(op, *inputs, outputs=1, opset=18, known=None, dynamic=True, rtol=1e-5, **attributes):
    """The same from both; static and dynamic, arguments as data and as constants, passes run."""
    inputs = [None if value is None else np.asarray(value) for value in inputs]
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model_of(op, inputs, outputs, opset, attributes).SerializeToString(), options
    )
    feeds = {f"x{at}": value for at, value in enumerate(inputs) if value is not None}
    expected = session.run(None, feeds)
    arguments = range(1, len(inputs)) if known is None else known
    for is_dynamic, fixed in ((False, ()), (False, arguments), (True, arguments)):
        if is_dynamic and not dynamic:
            continue
        model = model_of(op, inputs, outputs, opset, attributes, dynamic=is_dynamic, known=fixed)
        module = import_model(model)
        verify(module)
        args = [v for at, v in enumerate(inputs) if v is not None and at not in fixed]
        for version in (module, run_passes(module, CANONICAL)):
            verify(version)
            for have, want in zip(interpret(version, *args, check=True), expected, strict=True):
                assert have.shape == want.shape
                assert have.dtype == want.dtype
                np.testing.assert_allclose(have, want, rtol=rtol, atol=1e-6)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def some(rng, low, high, count):
    return [int(n) for n in rng.integers(low, high, count, endpoint=True)]


CASES = range(10)


@pytest.mark.parametrize("case", CASES)
def test_slice(case, rng):
    rank = int(rng.integers(1, 4))
    x = floats(rng, *some(rng, 1, 6, rank))
    axes = rng.permutation(rank)[: rng.integers(1, rank, endpoint=True)]
    steps = np.where(rng.random(len(axes)) < 0.5, 1, rng.choice([-3, -2, -1, 2], len(axes)))
    starts, ends = (np.array(some(rng, -9, 9, len(axes))) for _ in range(2))
    ends = np.where(rng.random(len(axes)) < 0.3, np.where(steps > 0, 1 << 40, -(1 << 40)), ends)
    named = axes - rank * (rng.random(len(axes)) < 0.5)
    check("Slice", x, starts, ends, named, steps)


@pytest.mark.parametrize("case", CASES)
def test_old_slice(case, rng):
    rank = int(rng.integers(1, 4))
    x = floats(rng, *some(rng, 1, 6, rank))
    axes = some(rng, 0, rank - 1, 1)
    check("Slice", x, opset=9, starts=some(rng, -9, 9, 1), ends=some(rng, -9, 9, 1), axes=axes)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("case", CASES)
def test_pad(mode, case, rng):
    x = floats(rng, *some(rng, 3, 5, 3))
    low = -1 if mode == "constant" else 0
    pads = np.array(some(rng, low, 2, 6))
    value = [np.float32(rng.standard_normal())] if case % 2 and mode == "constant" else []
    check("Pad", x, pads, *value, opset=19, mode=mode)
    axes = rng.permutation(3)[:2] - 3 * (case % 2)
    check("Pad", x, pads[:4], None, axes, opset=19, mode=mode)


@pytest.mark.parametrize("case", CASES)
def test_reshape(case, rng):
    dims = some(rng, 1, 4, 3)
    x = floats(rng, *dims)
    target = [[-1, dims[2]], [0, 0, -1], [dims[0], -1, 1, dims[2]], [0, -1], [-1]][case % 5]
    check("Reshape", x, np.array(target))


@pytest.mark.parametrize("case", CASES)
def test_expand_and_tile(case, rng):
    dims = [int(n) for n in rng.choice([1, 3], 3)]
    x = floats(rng, *dims)
    target = [int(n) if d == 1 else d for d, n in zip(dims, some(rng, 1, 4, 3), strict=True)]
    check("Expand", x, np.array(target[-2:] if case % 2 else [2, *target]), dynamic=False)
    check("Tile", x, np.array(some(rng, 0, 3, 3)))


@pytest.mark.parametrize("case", CASES)
def test_axes_of_one(case, rng):
    x = floats(rng, 2, 3)
    axes = rng.permutation(4)[:2] - 4 * (case % 2)
    check("Unsqueeze", x, axes)
    ones = floats(rng, 1, 3, 1, 2)
    picked = [[0], [2], [0, 2], [-2], [2, -4]][case % 5]
    check("Squeeze", ones, np.array(picked), dynamic=False)


@pytest.mark.parametrize("case", CASES)
def test_split(case, rng):
    x = floats(rng, 7, 6)
    axis = case % 2
    cuts = rng.multinomial(x.shape[axis], [1 / 3] * 3)
    check("Split", x, cuts, outputs=3, axis=axis)
    count = [2, 3][case % 2]  # the peer refuses parts of nothing
    wide = floats(rng, 8, 9)
    check("Split", wide, outputs=count, axis=axis, num_outputs=count, dynamic=False)


@pytest.mark.parametrize("case", CASES)
def test_gather(case, rng):
    x = floats(rng, 3, 4, 5)
    axis = int(rng.integers(-3, 3))
    indices = rng.integers(-3, 3, tuple(some(rng, 1, 3, int(rng.integers(0, 3)))))
    check("Gather", x, indices, axis=axis, known=())
    shape = [int(rng.integers(1, n + 1)) for n in x.shape]
    check("GatherElements", x, rng.integers(-3, 3, shape), axis=axis, known=())
    check("GatherND", x, rng.integers(-3, 3, (3, 2, 1 + case % 2)), batch_dims=case % 2, known=(1,))


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("case", range(4))
def test_scatter(reduction, case, rng):
    x = floats(rng, 3, 4, 5)
    axis = int(rng.integers(-3, 3))
    indices = np.argsort(rng.random(x.shape), axis=axis)  # no place twice
    shape = tuple(slice(int(rng.integers(1, n + 1))) for n in x.shape)
    if reduction != "none":
        indices = rng.integers(-3, 3, x.shape)
    indices = indices[shape]
    check(
        "ScatterElements",
        x,
        indices,
        floats(rng, *indices.shape),
        axis=axis,
        reduction=reduction,
        known=(),
    )
    rows = rng.permutation(12)[:5]
    places = np.stack(np.unravel_index(rows, (3, 4)), -1).astype(np.int64)
    check("ScatterND", x, places, floats(rng, 5, 5), reduction=reduction, known=(1,))


REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare"]


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("case", range(6))
def test_reductions(op, case, rng):
    x = np.abs(floats(rng, 3, 4, 2)) + 0.1
    if case == 5 and op not in ("LogSum", "LogSumExp", "L2", "Mean"):
        x = rng.integers(-5, 6, x.shape).astype(np.int32)
    axes = rng.permutation(3)[: 1 + case % 3] - 3 * (case % 2)
    keep = int(case < 3)
    check(f"Reduce{op}", x, axes, keepdims=keep, rtol=1e-4)
    check(f"Reduce{op}", x, keepdims=keep, rtol=1e-4)
    if op == "Sum":
        check("ReduceSum", x, np.zeros(0, np.int64), noop_with_empty_axes=1, rtol=1e-4)
    old = {"axes": [int(a) for a in axes % 3]}
    check(f"Reduce{op}", x, keepdims=keep, opset=11, rtol=1e-4, **old)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("case", range(6))
def test_places_of_extremes(op, case, rng):
    x = rng.integers(0, 3, (4, 5, 3)).astype(np.float32)
    last = {"select_last_index": case % 2}
    check(op, x, axis=int(rng.integers(-3, 3)), keepdims=case // 3, **last)


@pytest.mark.parametrize("case", range(8))
def test_running_sums(case, rng):
    x = floats(rng, 3, 4)
    flags = {"exclusive": case % 2, "reverse": case // 2 % 2}
    check("CumSum", x, np.int64(rng.integers(-2, 2)), **flags)


@pytest.mark.parametrize("case", CASES)
def test_top_k(case, rng):
    x = rng.integers(0, 5, (4, 6)).astype(np.float32)
    axis = case % 2
    k = np.array([int(rng.integers(0, x.shape[axis] + 1))])
    check("TopK", x, k, outputs=2, axis=axis - 2 * (case % 3 == 0), largest=case // 5)


@pytest.mark.parametrize("case", CASES)
def test_search(case, rng):
    x = rng.integers(0, 3, (3, 4)).astype(np.float32)
    check("NonZero", x)
    check("Compress", x, rng.random(3) < 0.5, axis=0, known=())
    check("Compress", x, rng.random(7) < 0.5, known=())
    flags = {"axis": case % 2} if case < 6 else {}
    check("Unique", x, outputs=4, sorted=1, **flags)
    if case >= 6:
        check("Unique", x, outputs=4, sorted=0)


@pytest.mark.parametrize("case", CASES)
def test_one_hot(case, rng):
    indices = rng.integers(-6, 6, (2, 3))
    values = np.array([-1.0, 3.0], np.float32)
    check("OneHot", indices, np.int64(4), values, axis=int(rng.integers(-3, 3)), known=(1,))


@pytest.mark.parametrize("case", CASES)
def test_boxes(case, rng):
    corners = np.sort(rng.random((2, 12, 2, 2)), axis=2).reshape(2, 12, 4).astype(np.float32)
    scores = rng.random((2, 3, 12)).astype(np.float32)
    limits = [np.array([int(rng.integers(0, 6))]), np.float32([rng.random()])]
    limits += [np.float32([rng.random() * 0.5])] if case % 2 else []
    check("NonMaxSuppression", corners, scores, *limits, center_point_box=case % 3 == 0)


@pytest.mark.parametrize("case", CASES)
def test_triangles_blocks_and_reversals(case, rng):
    x = floats(rng, 2, 4, 5)
    check("Trilu", x, np.int64(rng.integers(-6, 6)), upper=case % 2)
    image = floats(rng, 1, 8, 4, 6)
    mode = ["DCR", "CRD"][case % 2]
    check("DepthToSpace", image, blocksize=2, mode=mode)
    check("SpaceToDepth", image, blocksize=2)
    axes = {"batch_axis": case % 2, "time_axis": 1 - case % 2}
    lengths = np.array(some(rng, 1, x.shape[1 - case % 2], x.shape[case % 2]))
    check("ReverseSequence", x, lengths, **axes, known=())
    check("EyeLike", floats(rng, 3, 4), k=int(rng.integers(-3, 4)))
    check("Flatten", x, axis=int(rng.integers(-3, 4)))
    check("Transpose", x, perm=[int(n) for n in rng.permutation(3)])


@pytest.mark.parametrize("of", [np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("case", range(6))
def test_ranges(of, case, rng):
    start, limit = (of(n) for n in some(rng, -5, 9, 2))
    delta = of(rng.choice([-2, -1, 1, 3]))
    check("Range", start, limit, delta, known=(0, 1, 2))


@pytest.mark.parametrize("start", [None, 0, 1, -1, 5, -9])
@pytest.mark.parametrize("end", [None, 0, 2, -1, 9])
def test_parts_of_shapes(start, end):
    given = {name: n for name, n in (("start", start), ("end", end)) if n is not None}
    check("Shape", np.zeros((2, 3, 4), np.float32), **given)
