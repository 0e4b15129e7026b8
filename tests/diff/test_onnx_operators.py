"""Operators of ONNX with random attributes and shapes, interpreted, against ONNX Runtime."""

import zlib

import numpy as np
import onnx
import pytest
from onnx import helper

from tilewright.frontends.onnx import import_model
from tilewright.graph import interpret

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: bench)")


def code_of(array):
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def check(op, *inputs, outputs=("y",), opset=18, rtol=1e-4, atol=1e-5, **attributes):
    """Both give the same, with the shapes known and with every dimension unknown."""
    names = ["" if value is None else f"x{at}" for at, value in enumerate(inputs)]
    node = helper.make_node(op, names, outputs, **attributes)
    feeds = {name: value for name, value in zip(names, inputs, strict=True) if value is not None}
    results = [onnx.ValueInfoProto(name=name) for name in outputs if name]

    def model(dynamic):
        infos = [
            helper.make_tensor_value_info(
                name,
                code_of(value),
                [f"{name}d{axis}" for axis in range(value.ndim)] if dynamic else value.shape,
            )
            for name, value in feeds.items()
        ]
        graph = helper.make_graph([node], "test", infos, results)
        opsets = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model(False).SerializeToString(), options)
    expected = session.run(None, feeds)
    for dynamic in (False, True):
        given = interpret(import_model(model(dynamic)), *feeds.values(), check=True)
        for have, want in zip(given, expected, strict=True):
            assert have.shape == want.shape
            assert have.dtype == want.dtype
            np.testing.assert_allclose(have, want, rtol=rtol, atol=atol)


@pytest.fixture
def rng(request):
    """Numbers of its own for each case."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def some(rng, low, high, count):
    return [int(n) for n in rng.integers(low, high, count, endpoint=True)]


CASES = range(8)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_conv(rank, case, rng):
    groups = int(rng.integers(1, 4))
    inside, out = groups * int(rng.integers(1, 4)), groups * int(rng.integers(1, 4))
    x = floats(rng, 2, inside, *some(rng, 7, 10, rank))
    w = floats(rng, out, inside // groups, *some(rng, 1, 3, rank))
    pads = {"pads": some(rng, 0, 2, 2 * rank)}
    if case % 4 == 1:
        pads = {"auto_pad": "SAME_UPPER"}
    elif case % 4 == 2:
        pads = {"auto_pad": "SAME_LOWER"}
    elif case % 4 == 3:
        pads = {"auto_pad": "VALID"}
    more = {"strides": some(rng, 1, 3, rank), "group": groups, **pads}
    if "auto_pad" not in pads or case % 4 == 3:
        more["dilations"] = some(rng, 1, 2, rank)
    bias = floats(rng, out) if case % 2 else None
    check("Conv", x, w, *([] if bias is None else [bias]), **more)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_conv_transpose(rank, case, rng):
    groups = int(rng.integers(1, 3))
    inside, out = groups * int(rng.integers(1, 3)), int(rng.integers(1, 4))
    x = floats(rng, 2, inside, *some(rng, 3, 6, rank))
    w = floats(rng, inside, out, *some(rng, 2, 3, rank))
    strides = some(rng, 1, 3, rank)
    more = {"strides": strides, "group": groups}
    if case % 3 == 0:
        more["dilations"] = some(rng, 1, 2, rank)
        more["pads"] = some(rng, 0, 1, 2 * rank)
        more["output_padding"] = [int(rng.integers(0, s)) for s in strides]
    elif case % 3 == 1:
        more["auto_pad"] = "SAME_UPPER"
        more["strides"] = some(rng, 1, 2, rank)  # ONNX Runtime refuses to pad what is missing
    else:
        more["output_shape"] = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    check("ConvTranspose", x, w, **more)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_pool(op, rank, case, rng):
    x = floats(rng, 2, 3, *some(rng, 7, 10, rank))
    kernel = some(rng, 2, 3, rank)
    more = {"kernel_shape": kernel, "strides": some(rng, 1, 3, rank)}
    outputs = ["y"]
    if case % 3 == 0:
        more["strides"] = [min(s, k) for s, k in zip(more["strides"], kernel, strict=True)]
        more["auto_pad"] = ["SAME_UPPER", "SAME_LOWER", "VALID"][case % 2]
    else:
        more["pads"] = some(rng, 0, 1, 2 * rank)
        if op != "LpPool":
            more["ceil_mode"] = int(rng.integers(0, 2))
    if op == "AveragePool":
        more["count_include_pad"] = int(rng.integers(0, 2))
    if op == "MaxPool":
        outputs = ["y", "index"] if case % 2 else ["y"]
        if "pads" in more:
            more["dilations"] = some(rng, 1, 2, rank)
    check(op, x, outputs=outputs, **more)


@pytest.mark.parametrize("shapes", [
    [(3, 4), (4, 5)], [(4,), (4, 5)], [(3, 4), (4,)], [(4,), (4,)], [(2, 3, 4), (4, 5)],
    [(2, 3, 4), (2, 4, 5)], [(3, 1, 3, 4), (2, 4, 5)], [(4,), (2, 4, 5)], [(2, 3, 4), (4,)],
])  # fmt: skip
def test_matmul(shapes, rng):
    check("MatMul", *(floats(rng, *shape) for shape in shapes))


@pytest.mark.parametrize("bits", range(8))
def test_gemm(bits, rng):
    a, b = floats(rng, 3, 4), floats(rng, 4, 5)
    a, b = a.T.copy() if bits & 1 else a, b.T.copy() if bits & 2 else b
    c = [floats(rng, 5), floats(rng, 3, 1), floats(rng, 1), None][bits // 2]
    kinds = {"transA": bits & 1, "transB": bits >> 1 & 1, "alpha": 0.5, "beta": 1.5}
    check("Gemm", a, b, *([] if c is None else [c]), **kinds)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bihd,bjhd->bhij", [(2, 4, 3, 5), (2, 6, 3, 5)]),
        ("bhij,bjhd->bihd", [(2, 3, 4, 6), (2, 6, 3, 5)]),
        ("...ij,jk->...ik", [(2, 3, 4), (4, 5)]),
        ("ij->ji", [(2, 3)]),
        ("ii->i", [(3, 3)]),
        ("ij->", [(2, 3)]),
        ("i,j->ij", [(2,), (3,)]),
        ("ij,ij->", [(2, 3), (2, 3)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
        ("abc,cd->ad", [(2, 3, 4), (4, 5)]),
        ("abc,abd->acd", [(2, 3, 4), (2, 3, 5)]),
    ],
)
def test_einsum(equation, shapes, rng):
    check("Einsum", *(floats(rng, *shape) for shape in shapes), equation=equation)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(op, opset, axis, rng):
    check(op, floats(rng, 2, 3, 4), opset=opset, axis=axis)


def test_normalizations(rng):
    x, per_channel = floats(rng, 2, 4, 5, 6), [floats(rng, 4) for _ in range(4)]
    variance = np.abs(per_channel[3])
    check("BatchNormalization", x, *per_channel[:3], variance, epsilon=1e-3)
    check("InstanceNormalization", x, *per_channel[:2])
    check("LayerNormalization", x, floats(rng, 5, 6), floats(rng, 5, 6), axis=2)
    check("LayerNormalization", x, floats(rng, 6), axis=-1)
    check("LRN", x, size=3, alpha=0.1, beta=0.7, bias=1.5)
    check("LpNormalization", x, axis=1, p=1)
    check("LpNormalization", x, axis=-1, p=2)
    check("MeanVarianceNormalization", x, axes=[0, 2, 3])


RESIZES = [
    ("nearest", "half_pixel"),
    ("nearest", "asymmetric"),
    ("nearest", "align_corners"),
    ("nearest", "pytorch_half_pixel"),
    ("linear", "half_pixel"),
    ("linear", "asymmetric"),
    ("linear", "align_corners"),
    ("linear", "pytorch_half_pixel"),
    ("cubic", "half_pixel"),
    ("cubic", "align_corners"),
]


@pytest.mark.parametrize(("mode", "coordinates"), RESIZES)
@pytest.mark.parametrize("sizes", [(8, 10), (3, 4), (5, 11), (1, 3)])
def test_resize_to_sizes(mode, coordinates, sizes, rng):
    x = floats(rng, 1, 2, 5, 6)
    to = np.array([1, 2, *sizes], np.int64)
    kinds = {"mode": mode, "coordinate_transformation_mode": coordinates}
    check("Resize", x, None, None, to, **kinds)


@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("scale", [0.5, 1.5, 2.0, 0.6])
def test_resize_by_scales(nearest, scale, rng):
    x = floats(rng, 1, 2, 5, 6)
    scales = np.array([1, 1, scale, scale], np.float32)
    kinds = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    check("Resize", x, None, scales, nearest_mode=nearest, **kinds)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("antialias", [0, 1])
def test_resize_smoothly(mode, antialias, rng):
    x = floats(rng, 1, 2, 9, 12)
    scales = np.array([1, 1, 0.5, 0.4], np.float32)
    check("Resize", x, None, scales, mode=mode, antialias=antialias, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_sample(mode, padding, align, rng):
    x = floats(rng, 2, 3, 5, 6)
    grid = (floats(rng, 2, 4, 4, 2) * 0.8).astype(np.float32)
    kinds = {"mode": mode, "padding_mode": padding, "align_corners": align}
    check("GridSample", x, grid, **kinds)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("extras", [False, True])
def test_recurrent(direction, kind, extras, rng):
    time, batch, width, hidden = 5, 3, 4, 6
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    ways = 2 if direction == "bidirectional" else 1
    x = floats(rng, time, batch, width)
    w, r = floats(rng, ways, gates * hidden, width), floats(rng, ways, gates * hidden, hidden)
    inputs = [x, w, r]
    more = {"hidden_size": hidden, "direction": direction}
    if extras:
        lengths = np.array([5, 2, 3], np.int32)
        states = [floats(rng, ways, batch, hidden) for _ in range(2 if kind == "LSTM" else 1)]
        inputs += [floats(rng, ways, 2 * gates * hidden), lengths, *states]
        if kind == "LSTM":
            inputs.append(floats(rng, ways, 3 * hidden))
        if kind == "GRU":
            more["linear_before_reset"] = 1
        more["clip"] = 0.9
    outputs = ["y", "h", "c"] if kind == "LSTM" else ["y", "h"]
    check(kind, *inputs, outputs=outputs, **more)


def test_recurrent_activations(rng):
    x, w, r = floats(rng, 4, 2, 3), floats(rng, 2, 20, 3), floats(rng, 2, 20, 5)
    names = ["HardSigmoid", "ScaledTanh", "Affine", "Sigmoid", "LeakyRelu", "Softsign"]
    numbers = {"activation_alpha": [0.3, 0.9, 0.8, 0.1], "activation_beta": [0.4, 0.7, 0.1]}
    more = {"activations": names, "hidden_size": 5, "direction": "bidirectional", **numbers}
    check("LSTM", x, w, r, outputs=["y", "h", "c"], **more)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_align(mode, ratio, rng):
    x = floats(rng, 2, 3, 10, 12)
    rois = np.array([[1, 1, 7, 6], [0, 2, 11, 9], [3, 3, 4, 4.5]], np.float32)
    images = np.array([0, 1, 1], np.int64)
    more = {"output_height": 3, "output_width": 2, "spatial_scale": 0.9}
    check("RoiAlign", x, rois, images, mode=mode, sampling_ratio=ratio, **more)


def test_max_roi_pool(rng):
    x = floats(rng, 2, 3, 10, 12)
    rois = np.array([[0, 1, 1, 7, 6], [1, 0, 2, 11, 9], [1, 3, 3, 4, 5]], np.float32)
    check("MaxRoiPool", x, rois, pooled_shape=[3, 2], spatial_scale=0.9)


@pytest.mark.parametrize("op", ["Elu", "Selu", "Celu", "Softplus", "Softsign", "HardSigmoid",
                                "HardSwish", "Mish", "ThresholdedRelu", "LeakyRelu"])  # fmt: skip
def test_activations(op, rng):
    check(op, floats(rng, 3, 4) * 3)


def test_quantized_products(narrow_weights, rng):
    a = rng.integers(0, 255, (2, 3, 4), np.uint8)
    b = narrow_weights(4, 5)
    number = np.float32
    zero = (np.array(5, np.uint8), np.array(3, np.int8))
    check("MatMulInteger", a, b, *zero)
    numbers = (a, number(0.1), zero[0], b, number(0.2), zero[1], number(3), zero[0])
    check("QLinearMatMul", *map(np.asarray, numbers), atol=1)


def test_quantized_convolution(narrow_weights, rng):
    x = rng.integers(0, 255, (1, 4, 6, 6), np.uint8)
    w = rng.integers(0, 255, (6, 2, 3, 3), np.uint8)
    zero = np.array(5, np.uint8)
    number = np.float32
    check("ConvInteger", x, w, zero, np.array(130, np.uint8), group=2, pads=[1, 1, 1, 1])
    w = narrow_weights(*w.shape)
    scales, zeros = np.abs(floats(rng, 6)) + 0.01, np.zeros(6, np.int8)
    numbers = (x, number(0.1), zero, w, scales, zeros, number(30), zero)
    bias = rng.integers(-999, 999, 6).astype(np.int32)
    check("QLinearConv", *map(np.asarray, numbers), bias, group=2, pads=[1, 1, 1, 1], atol=1)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_quantize_along_an_axis(axis, rng):
    x = floats(rng, 3, 4, 5) * 50
    count = x.shape[axis]
    scale = np.abs(floats(rng, count)) + 0.1
    zero = rng.integers(-20, 20, count).astype(np.int8)
    check("QuantizeLinear", x, scale, zero, axis=axis, atol=1)
    q = rng.integers(-128, 127, x.shape, np.int8)
    check("DequantizeLinear", q, scale, zero, axis=axis)
