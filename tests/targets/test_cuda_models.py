"""Whole models for a GPU, on machines without one: launches interpreted, races detected."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright import graph
from tilewright.base.dtype import dtype as dtype_of
from tilewright.base.dtype import from_numpy
from tilewright.base.errors import TilewrightError, Unsupported
from tilewright.base.target import Target
from tilewright.codegen.conditions import AGAIN, BEGIN, CHOOSE, conditions_ptx
from tilewright.codegen.launches import kernels_of
from tilewright.driver import build, kernel_code, lowering
from tilewright.driver.device_control import Choice, HostDecided, Loop
from tilewright.driver.device_module import DeviceModule
from tilewright.driver.options import Options
from tilewright.runtime.array import Array
from tilewright.sym import Size, free_vars
from tilewright.tune import Budget, Database

sys.path.insert(0, str(Path(__file__).parent))
from host_gpu import CAPTURED, HostGpu, assembled, fetched, on_host, view


def model(nodes, inputs, outputs, weights=()):
    """An ONNX model; shapes of inputs by name."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(array, name) for name, array in dict(weights).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


F = TensorProto.FLOAT


def convolution(groups=1, stride=1, pads=1, kernel=3, channels=8, outputs=12, size=10):
    nodes = [
        helper.make_node(
            "Conv", ["x", "w", "b"], ["c"], pads=[pads] * 4, strides=[stride] * 2, group=groups,
            kernel_shape=[kernel] * 2,
        ),
        helper.make_node("Relu", ["c"], ["y"]),
    ]  # fmt: skip
    weights = {"w": random(outputs, channels // groups, kernel, kernel), "b": random(outputs)}
    return model(nodes, {"x": (F, [1, channels, size, size])}, ["y"], weights)


def dense(m, k, n, transposed=False):
    w = random(n, k) if transposed else random(k, n)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["c"], transB=int(transposed)),
        helper.make_node("Tanh", ["c"], ["y"]),
    ]
    return model(nodes, {"x": (F, [m, k])}, ["y"], {"w": w, "b": random(n)})


def single(op, *shape, **attributes):
    return model([helper.make_node(op, ["x"], ["y"], **attributes)], {"x": (F, list(shape))}, ["y"])


def norm():
    nodes = [helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], axis=-1)]
    return model(nodes, {"x": (F, [2, 9, 80])}, ["y"], {"s": random(80), "b": random(80)})


def attention(length=24):
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    return model(nodes, {name: (F, [1, 2, length, 16]) for name in "qkv"}, ["y"])


def lstm(steps=3):
    nodes = [helper.make_node("LSTM", ["x", "w", "r", "b"], ["y", "h"], hidden_size=20)]
    weights = {"w": random(1, 80, 12), "r": random(1, 80, 20), "b": random(1, 160)}
    return model(nodes, {"x": (F, [steps, 1, 12])}, ["y", "h"], weights)


def recurrent_step(op, gates, states, batch=2, width=12, **attributes):
    """One step from a given state."""
    names = ["h0", "c0"][:states]
    nodes = [
        helper.make_node(op, ["x", "w", "r", "b", "", *names], ["y", "h"], hidden_size=20,
                         **attributes),
    ]  # fmt: skip
    shapes = {"w": (1, gates * 20, width), "r": (1, gates * 20, 20), "b": (1, 2 * gates * 20)}
    weights = {name: 0.3 * random(*shape) for name, shape in shapes.items()}
    inputs = {"x": (F, [1, batch, width]), **{name: (F, [1, batch, 20]) for name in names}}
    return model(nodes, inputs, ["y", "h"], weights)


def recurrent_chain():
    """A step of two layers, and a product of what the second leaves."""
    layers = [("x", "u", "s", "d", "h1"), ("h1", "v", "t", "e", "h2")]
    nodes = [
        helper.make_node("LSTM", [x, w, r, b], ["", h], hidden_size=80) for x, w, r, b, h in layers
    ] + [helper.make_node("MatMul", ["h2", "p"], ["y"])]
    weights = {name: 0.3 * random(1, 320, 80) for name in "svt"} | {"u": 0.3 * random(1, 320, 70)}
    weights |= {"d": random(1, 640), "e": random(1, 640), "p": random(80, 90)}
    return model(nodes, {"x": (F, [1, 1, 70])}, ["y"], weights)


def transposed():
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1],
                         kernel_shape=[4, 4]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]  # fmt: skip
    return model(nodes, {"x": (F, [1, 16, 5, 5])}, ["y"], {"w": random(16, 3, 4, 4)})


def windows(product):
    """Rows of windows are multiplied, then lie as an image again; or the other way round."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Reshape", ["m", "before"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 1, 3, 2, 4, 5]),
        helper.make_node("Reshape", ["t", "after"], ["y"]),
    ]
    shape, before, after = [1, 6, 6, 24], [1, 2, 3, 2, 3, 24], [4, 9, 24]
    if product == "of windows":
        shape, before, after = [4, 9, 24], [1, 2, 2, 3, 3, 24], [1, 6, 6, 24]
    weights = {"w": random(24, 24), "before": np.array(before), "after": np.array(after)}
    return model(nodes, {"x": (F, shape)}, ["y"], weights)


MODELS = {
    "conv": convolution(),
    "conv_of_a_pixel": convolution(size=1, channels=16),
    "conv_strided": convolution(stride=2, size=11),
    "conv_pointwise": convolution(kernel=1, pads=0, channels=96, outputs=40, size=7),
    "conv_split": convolution(channels=256, outputs=16, size=5),
    "conv_depthwise": convolution(groups=12, channels=12),
    "conv_grouped": convolution(groups=2),
    "gemm": dense(33, 40, 65),
    "gemv": dense(1, 200, 70),
    "gemv_transposed": dense(1, 200, 70, transposed=True),
    "softmax": single("Softmax", 5, 300, axis=-1),
    "softmax_first": single("Softmax", 30, 7, axis=0),
    "norm": norm(),
    "pool": single("MaxPool", 1, 3, 9, 9, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "mean": single("GlobalAveragePool", 1, 16, 7, 7),
    "transpose": single("Transpose", 40, 3, 50, perm=[2, 0, 1]),
    "top": single("ReduceMax", 3, 700, axes=[1], keepdims=0),
    "attention": attention(),
    "attention_of_any_length": attention("length"),
    "lstm": lstm(),
    "lstm_step": lstm(steps=1),
    "recurrent_step": recurrent_step("LSTM", 4, 2),
    "recurrent_row": recurrent_step("LSTM", 4, 2, batch=1, width=60),
    "recurrent_chain": recurrent_chain(),
    "gru_step": recurrent_step("GRU", 3, 1, linear_before_reset=1),
    "rnn_step": recurrent_step("RNN", 1, 1),
    "conv_transposed": transposed(),
    "windows_of_a_product": windows("of an image"),
    "product_of_windows": windows("of windows"),
}


def inputs_of(module):
    found = []
    for spec in module.inputs:
        shape = [dim if isinstance(dim, int) else 3 for dim in spec.shape]
        found.append(random(*shape))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_on_threads_what_it_computes_on_a_cpu(name):
    module = tw.compile(MODELS[name], target="cuda -arch=sm_90a")
    assert isinstance(module, DeviceModule)
    assert not module.fallbacks
    inputs = inputs_of(module)
    got = fetched(on_host(module), on_host(module)(*inputs))
    want = tw.compile(MODELS[name], target="cpu", threads=1)(*inputs)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["windows_of_a_product", "product_of_windows"])
def test_what_cannot_follow_a_product_is_a_kernel_of_its_own(name):
    """Threads that have a tile of a product do not store it elsewhere, but rules still tile it."""
    module = tw.compile(MODELS[name], target="cuda", cache=False)
    kernels = module.program.kernels.values()
    assert [[each.rule for each in kernel.decisions] for kernel in kernels] == [
        ["gemm"],
        ["elementwise"],
    ]
    assert not any(kernel.fell_back for kernel in kernels)


def open_dense():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    weights = {"w": random(40, 65), "b": random(65)}
    return model(nodes, {"x": (F, ["n", "length", 40])}, ["y"], weights)


def open_convolution(shape, outputs, kernel, stride=1):
    pads = [kernel // 2] * 4
    node = helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=pads, strides=[stride] * 2)
    weights = {"w": random(outputs, shape[1], kernel, kernel), "b": random(outputs)}
    nodes = [node, helper.make_node("Relu", ["c"], ["y"])]
    return model(nodes, {"x": (F, shape)}, ["y"], weights)


GROUPED = [(32, 32, 8, 10), (24, 48, 3, 9), (64, 32, 2, 7), (16, 48, 4, 12)]


@pytest.mark.parametrize(("channels", "outputs", "groups", "size"), GROUPED)
def test_blocks_of_grouped_convolutions_are_of_one_group(channels, outputs, groups, size):
    net = convolution(groups, channels=channels, outputs=outputs, size=size)
    module = tw.compile(net, target="cuda -arch=sm_90a", cache=False)
    rules = {each.rule for k in module.program.kernels.values() for each in k.decisions}
    assert "convolution" in rules
    x = random(1, channels, size, size)
    (got,) = fetched(on_host(module), on_host(module)(x))
    (want,) = tw.compile(net, target="cpu", threads=1)(x)
    np.testing.assert_allclose(got, np.asarray(want), rtol=2e-4, atol=2e-5)


OPEN = {
    "matmul": (open_dense(), (2, 17, 40), "gemm"),
    "batch": (open_convolution(["n", 16, 9, 9], 32, 3, 2), (3, 16, 9, 9), "convolution"),
    "image": (open_convolution(["n", 8, "h", "w"], 12, 3), (2, 8, 11, 13), "convolution"),
    "pixels": (open_convolution(["n", 32, "h", "w"], 48, 1), (2, 32, 5, 7), "convolution"),
}


@pytest.mark.parametrize("name", OPEN)
def test_products_of_open_sizes_are_tiled(name):
    net, shape, rule = OPEN[name]
    module = tw.compile(net, target="cuda -arch=sm_90a", cache=False)
    assert rule in {each.rule for k in module.program.kernels.values() for each in k.decisions}
    x = random(*shape)
    (got,) = fetched(on_host(module), on_host(module)(x))
    (want,) = tw.compile(net, target="cpu", threads=1)(x)
    np.testing.assert_allclose(got, np.asarray(want), rtol=2e-4, atol=2e-5)


def linear(shape, n):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    return model(nodes, {"x": (F, shape)}, ["y"], {"w": random(shape[-1], n), "b": random(n)})


def batched(x, z):
    return model([helper.make_node("MatMul", ["x", "z"], ["y"])], {"x": (F, x), "z": (F, z)}, ["y"])


BATCHED = {
    "1x1": (open_convolution(["n", 64, 8, 8], 64, 1), [(64, 8, 8)]),
    "3x3": (open_convolution(["n", 64, 8, 8], 64, 3), [(64, 8, 8)]),
    "matmul": (linear(["n", 128, 64], 64), [(128, 64)]),
    "batch": (batched(["n", 2, 128, 64], ["n", 2, 64, 128]), [(2, 128, 64), (2, 64, 128)]),
}
IN_HALVES = {"f16": 1e-3, "bf16": 8e-3, "tf32": 1e-3}  # of the largest output


def check_in_halves(net, precision, *cases):
    """Tensor cores multiply, and give what the CPU does for inputs of all these shapes."""
    module = tw.compile(net, target="cuda -arch=sm_90a", precision=precision, cache=False)
    rules = {each.rule for k in module.program.kernels.values() for each in k.decisions}
    assert "gemm_hopper" in rules
    exact = tw.compile(net, target="cpu", threads=1)
    for shapes in cases:
        given = [random(*shape) for shape in shapes]
        (got,) = fetched(on_host(module), on_host(module)(*given))
        want = np.asarray(exact(*given)[0])
        limit = IN_HALVES[precision] * np.abs(want).max(initial=0.0)
        np.testing.assert_allclose(got, want, rtol=0, atol=limit)
    return module


@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "f16") for name in BATCHED), ("3x3", "bf16"), ("matmul", "tf32")],
)
@pytest.mark.sampled
def test_tensor_cores_multiply_whatever_the_batch(name, precision):
    net, shapes = BATCHED[name]
    check_in_halves(net, precision, *([(n, *shape) for shape in shapes] for n in (1, 3, 0)))


def test_windows_are_rows_of_tensor_cores_on_sm_80():
    net, x = convolution(channels=64, outputs=64, size=8), random(1, 64, 8, 8)
    module = tw.compile(net, target="cuda -arch=sm_80", precision="f16", cache=False)
    rules = {each.rule for k in module.program.kernels.values() for each in k.decisions}
    assert "gemm_ampere" in rules
    assert not rules & {"gemm", "reduction"}
    (got,) = fetched(on_host(module), on_host(module)(x))
    want = np.asarray(tw.compile(net, target="cpu", threads=1)(x)[0])
    np.testing.assert_allclose(got, want, rtol=0, atol=IN_HALVES["f16"] * np.abs(want).max())


def test_the_host_describes_tiles_by_sizes():
    """It does not know the names that kernels give to products of sizes, h * w."""
    net = open_convolution(["n", 64, "h", "w"], 64, 1)
    module = tw.compile(net, target="cuda -arch=sm_90a", precision="f16", cache=False)
    kernels = [k for code in module.codes.values() for k in kernels_of(code.steps) if k.maps]
    assert kernels
    for made in (each for kernel in kernels for each in kernel.maps):
        assert all(isinstance(v, Size) for v in free_vars(made.height, made.width))


def test_tensor_cores_multiply_whatever_the_image():
    net = open_convolution(["n", 64, "h", "w"], 64, 1)
    check_in_halves(net, "f16", *([(n, 64, 7, 9)] for n in (1, 3, 0)))


def test_a_schedule_that_a_gpu_has_no_room_for_gives_way_to_a_modest_one(monkeypatch):
    made = kernel_code._kernel

    def refusing(job, fn, scheduled):
        if "shared" in str(scheduled):
            raise Unsupported("TW2219", "tiles take more than there is")
        return made(job, fn, scheduled)

    monkeypatch.setattr(kernel_code, "_kernel", refusing)
    module = tw.compile(dense(33, 40, 65), target="cuda -arch=sm_90a", cache=False)
    (kernel,) = module.program.kernels.values()
    assert [each.rule for each in kernel.decisions] == ["reduction"]
    assert "tiles take more" in kernel.fell_back


def test_sums_of_open_sizes_are_a_threads_own():
    """An index that is divided by a size, then by a number, is the same divided by both."""
    weights = {"w": random(12, 8, 5), "b": random(12)}
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[2, 2], strides=[2])
    net = model([node], {"x": (F, ["batch", 8, "frames"])}, ["y"], weights)
    module = tw.compile(net, target="cuda -arch=sm_90a", cache=False)
    assert not any("tw_workspace" in code.ptx for code in module.codes.values())
    x = random(3, 8, 11)
    (got,) = fetched(on_host(module), on_host(module)(x))
    (want,) = tw.compile(net, target="cpu", threads=1)(x)
    np.testing.assert_allclose(got, np.asarray(want), rtol=2e-4, atol=2e-5)


def test_tensor_cores_multiply_where_less_precision_is_asked_for():
    net = dense(128, 256, 192)
    module = tw.compile(net, target="cuda -arch=sm_90a", precision="bf16", cache=False)
    rules = [d.rule for k in module.program.kernels.values() for d in k.decisions]
    assert "gemm_hopper" in rules
    inputs = inputs_of(module)
    (got,) = fetched(on_host(module), on_host(module)(*inputs))
    (want,) = tw.compile(net, target="cpu", threads=1)(*inputs)
    np.testing.assert_allclose(got, np.asarray(want), atol=0.2)
    (recorded,) = module._records.values()
    products = [launch for launch in recorded.launches if launch.kernel.maps]
    assert products
    for launch in products:  # a multiprocessor has room for one block: they may start early
        assert 2 * launch.kernel.shared_bytes > module.target.shared_bytes
        assert launch.starts_early


def quantized(node, weights, shape, axis):
    """A layer between quantize and dequantize; its weights have a scale for each column."""
    columns = weights.shape[axis]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=axis),
        node,
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "ys", "z"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "ys", "z"], ["y"]),
    ]
    scales = {"xs": np.float32(0.02), "ys": np.float32(0.05), "z": np.uint8(128)}
    given = {"w": weights, "ws": np.linspace(0.001, 0.01, columns, dtype=np.float32)}
    given |= {"wz": np.zeros(columns, np.int8), **scales}
    given = {name: np.asarray(array) for name, array in given.items()}
    return model(nodes, {"x": (F, shape)}, ["y"], given)


def bytes_of(*shape):
    return np.random.default_rng(1).integers(-127, 128, shape).astype(np.int8)


def dynamic_quantized():
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=F),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    return model(nodes, {"x": (F, [6, 32])}, ["y"], {"w": bytes_of(32, 24)})


INTEGERS = {
    "matmul": quantized(
        helper.make_node("MatMul", ["xd", "wd"], ["c"]), bytes_of(32, 24), [6, 32], 1
    ),
    "conv": quantized(
        helper.make_node("Conv", ["xd", "wd"], ["c"], pads=[1] * 4),
        bytes_of(8, 4, 3, 3),
        [1, 4, 6, 6],
        0,
    ),
    "dynamic": dynamic_quantized(),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_quantized_models_multiply_their_integers(name):
    module = tw.compile(INTEGERS[name], "cuda -arch=sm_90a", precision="int8", cache=False)
    assert any("_integer" in kernel for kernel in module.program.kernels)
    (x,) = inputs_of(module)
    (got,) = fetched(on_host(module), on_host(module)(x))
    (want,) = tw.compile(INTEGERS[name], target="cpu", threads=1)(x)
    np.testing.assert_allclose(got, np.asarray(want), rtol=1e-6, atol=1e-6)


def quantized_convolution(channels, kernel, size=8, images=1):
    return quantized(
        helper.make_node("Conv", ["xd", "wd"], ["c"], pads=[kernel // 2] * 4),
        bytes_of(32, channels, kernel, kernel),
        [images, channels, size, size],
        0,
    )


CONVOLVED = {
    "1x1": (quantized_convolution(64, 1), (1, 64, 8, 8)),
    "3x3": (quantized_convolution(64, 3), (1, 64, 8, 8)),
    "few channels": (quantized_convolution(3, 3, 12), (1, 3, 12, 12)),
    "dynamic batch": (quantized_convolution(32, 3, images="n"), (3, 32, 8, 8)),
}


@pytest.mark.parametrize("name", CONVOLVED)
def test_convolutions_of_bytes_take_tensor_cores(name):
    net, shape = CONVOLVED[name]
    module = tw.compile(net, "cuda -arch=sm_90a", precision="int8", cache=False)
    rules = {each.rule for k in module.program.kernels.values() for each in k.decisions}
    assert "gemm_hopper" in rules
    assert "reduction" not in rules
    x = random(*shape)
    (got,) = fetched(on_host(module), on_host(module)(x))
    np.testing.assert_array_equal(got, np.asarray(tw.compile(net, target="cpu", threads=1)(x)[0]))


@pytest.mark.parametrize("precision", ["f16", "int8"])
def test_groups_that_tensor_cores_outrun_become_one(precision, monkeypatch):
    # Of a model as large as those that gain by it, the interpreter would take minutes.
    densify_groups = sys.modules["tilewright.graph.passes.densify_groups"]
    monkeypatch.setattr(densify_groups, "_full_tiles", lambda node, sm: sm.count)
    node = helper.make_node("Conv", ["xd", "wd"], ["c"], pads=[1] * 4, group=4)
    nets = {
        "f16": convolution(4, channels=64, outputs=32, size=8),
        "int8": quantized(node, bytes_of(32, 16, 3, 3), [1, 64, 8, 8], 0),
    }
    module = tw.compile(nets[precision], "cuda -arch=sm_90a", precision=precision, cache=False)
    rules = {each.rule for k in module.program.kernels.values() for each in k.decisions}
    assert "gemm_hopper" in rules
    x = random(1, 64, 8, 8)
    (got,) = fetched(on_host(module), on_host(module)(x))
    want = np.asarray(tw.compile(nets[precision], target="cpu", threads=1)(x)[0])
    limit = 1e-3 * np.abs(want).max() if precision == "f16" else 0.0
    np.testing.assert_allclose(got, want, rtol=0, atol=limit)


@pytest.mark.parametrize(("stride", "outputs"), [(1, 128), (2, 256)])
def test_groups_become_as_many_as_bulk_copies_read_windows_of(stride, outputs, monkeypatch):
    """Eight groups of 16 channels are two of 64: implicit GEMMs of a batch, in one kernel."""
    densify_groups = sys.modules["tilewright.graph.passes.densify_groups"]
    monkeypatch.setattr(densify_groups, "_full_tiles", lambda node, sm: sm.count)
    size = 6 * stride
    net = convolution(8, stride, channels=128, outputs=outputs, size=size)
    module = tw.compile(net, "cuda -arch=sm_90a", precision="f16", cache=False)
    (kernel,) = (
        each
        for each in module.program.kernels.values()
        if "gemm_hopper" in {decision.rule for decision in each.decisions}
    )
    assert len(kernel.decisions) == 1
    x = random(1, 128, size, size)
    (got,) = fetched(on_host(module), on_host(module)(x))
    want = np.asarray(tw.compile(net, target="cpu", threads=1)(x)[0])
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-3 * np.abs(want).max())


def convolutions_of_bytes(channels=128):
    """Two: what the first leaves is channels last."""
    text = ""
    for at in (1, 2):
        text += f"""%i{at} = conv_integer(%x{at - 1}, %w) {{
            pads = (1, 1, 1, 1), strides = (1, 1), dilations = (1, 1), groups = 1}}
          %f{at} = cast(%i{at}) {{to = dtype f32}}
          %x{at} = quantize(%f{at}, %s, %z) {{to = dtype i8}}
        """
    weights = {"w": bytes_of(channels, channels, 3, 3), "s": np.float32(3e3), "z": np.int8(0)}
    constants = "\n".join(f'%{name} = constant() {{data = "{name}"}}' for name in weights)
    return graph.parse(
        f"graph @main(%x0: i8[1, {channels}, 4, 4]) {{ {constants}\n{text} return %x2 }}",
        {name: np.asarray(array) for name, array in weights.items()},
    )


def test_windows_of_bytes_are_copied_from_the_image():
    """Where a pixel has whole rows of a tile."""
    net = convolutions_of_bytes()
    module = tw.compile(net, "cuda -arch=sm_90a", precision="int8", cache=False)
    copied = [code.ptx for code in module.codes.values() if ".im2col." in code.ptx]
    assert copied
    for ptx in copied:
        assembled(ptx)
    x = bytes_of(1, 128, 4, 4)
    (got,) = fetched(on_host(module), on_host(module)(x))
    np.testing.assert_array_equal(got, np.asarray(graph.interpret(net, x)[0]))


TOP = """
graph @main(%x: {dtype}[{shape}]) {{
  %k = constant() {{data = "k"}}
  %y, %at = top_k(%x, %k) {{axis = 1, {told}}}
  return %y, %at
}}
"""


@pytest.mark.parametrize(
    ("shape", "count", "largest", "pieces", "dtype"),
    [
        ((2, 20), 3, True, (1,), "f32"),
        ((2, 37), 3, False, (3, 2), "f32"),
        ((1, 9, 2), 2, False, (2,), "f16"),
        ((2, 9), 9, True, (4,), "f32"),
        ((2, 20), 3, True, (4,), "f64"),
        ((2, 20), 3, False, (4,), "i64"),
        ((2, 20), 3, True, (4,), "u64"),
        ((2, 20), 3, False, (4,), "u8"),
        (("n", "m"), 3, True, (4,), "f32"),
    ],
)
@pytest.mark.sampled
def test_the_best_of_lines_are_found_by_all_threads(shape, count, largest, pieces, dtype):
    """In pieces, and all of them; of equals the first, NaN the greatest."""
    told = f"largest = {str(largest).lower()}"
    text = TOP.format(dtype=dtype, shape=", ".join(map(str, shape)), told=told)
    k = {"k": np.array([count])}
    dims = [dim if isinstance(dim, int) else 11 for dim in shape]
    low = 0 if dtype.startswith("u") else -9
    x = np.random.default_rng(0).integers(low, 9, dims).astype(dtype_of(dtype).numpy)
    if dtype.startswith("f"):
        x.flat[:4], x.flat[-1] = (np.nan, np.inf, -np.inf, -0.0), np.nan
    elif dtype == "u64":
        x.flat[0] = np.iinfo(np.uint64).max
    cut = graph.parse(text.replace(told, f"{told}, pieces = {pieces}"), k)
    module = on_host(tw.compile(cut, target="cuda -arch=sm_90a"))
    got = fetched(module, module(x))
    for mine, want in zip(got, tw.compile(graph.parse(text, k), target="cpu")(x), strict=True):
        np.testing.assert_array_equal(mine, np.asarray(want))
    rules = {each.rule for k in module.program.kernels.values() for each in k.decisions}
    assert rules <= {"reduction", "elementwise", "rows"}


SCATTERED = {
    "rows": ("scatter_nd", "", (4, 6), [[1], [-1], [1]], (3, 6)),
    "elements": ("scatter_nd", "", (4, 3), [[1, 2], [0, 0], [1, 2]], (3,)),
    "along lines": ("scatter_elements", "axis = 1, ", (4, 5), [[3, 0], [1, 4]], (2, 2)),
    "across lines": (
        "scatter_elements", "axis = 0, ", (5, 3), [[1, 0, 2], [1, 4, 2], [-1, 0, 1]], (3, 3)),
    "more than results": ("scatter_nd", "", (2, 3), [[1], [0], [1], [1]], (4, 3)),
    "any rows": ("scatter_nd", "", (4, 6), [[1], [-1], [1]], (3, 6), (4, 6), ("n", 1), ("n", 6)),
    "any lines": (
        "scatter_elements", "axis = 1, ", (4, 5), [[3, 0], [1, 4]], (2, 2), ("m", 5), ("n", 2),
        ("n", 2)),
    "one row": ("scatter_nd", "", (4, 6), [2], (6,)),
    "one element": ("scatter_nd", "", (4, 6), [2, -1], ()),
    "no rows": (
        "scatter_nd", "", (4, 6), np.zeros((0, 1), np.int64), (0, 6), (4, 6), ("n", 1), ("n", 6)),
    "no lines": (
        "scatter_elements", "axis = 1, ", (4, 5), np.zeros((0, 2), np.int64), (0, 2), ("m", 5),
        ("n", 2), ("n", 2)),
}  # fmt: skip


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max"])
@pytest.mark.parametrize("form", SCATTERED)
@pytest.mark.sampled
def test_updates_are_looked_for_by_all_results(form, reduction):
    """Of several at one place the last stays, or all are joined."""
    op, axis, *shapes = SCATTERED[form]
    shape, at, updated = shapes[0], np.array(shapes[1]), shapes[2]
    known = shapes[3:] or [shape, at.shape, updated]
    params = [(*each, dims) for each, dims in zip([("x", "f32"), ("at", "i64"), ("u", "f32")],
                                                  known, strict=True)]  # fmt: skip
    told = ", ".join(f"%{n}: {of}[{', '.join(map(str, dims))}]" for n, of, dims in params)
    call = f'{op}(%x, %at, %u) {{{axis}reduction = "{reduction}"}}'
    net = graph.parse(f"graph @main({told}) {{ %y = {call} return %y }}")
    args = [random(*shape), at, -random(*updated)]
    module = on_host(tw.compile(net, target="cuda -arch=sm_90a"))
    (got,) = fetched(module, module(*args))
    (want,) = tw.compile(net, target="cpu")(*args)
    np.testing.assert_allclose(got, np.asarray(want), rtol=1e-6)
    rules = {each.rule for k in module.program.kernels.values() for each in k.decisions}
    assert "fallback" not in rules


@pytest.mark.parametrize("shape", ["2, 2, 3, 4", "n, 2, h, 4"])
@pytest.mark.parametrize("pad", [0, 1, 2])
@pytest.mark.sampled
def test_where_the_greatest_of_windows_lie(shape, pad):
    """Several results of one kernel; with a padding of 2 some windows see nothing else."""
    window = f"kernel = (2, 2), strides = (2, 2), pads = {(pad,) * 4}, dilations = (1, 1)"
    call = f"%y, %at = max_pool(%x) {{{window}}}"
    net = graph.parse(f"graph @main(%x: f32[{shape}]) {{ {call} return %y, %at }}")
    x = random(2, 2, 3, 4)
    module = on_host(tw.compile(net, target="cuda -arch=sm_90a"))
    wanted = graph.interpret(net, x)
    for got, want in zip(fetched(module, module(x)), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_kernels_of_the_gpu_are_told_from_those_of_the_host():
    module = tw.compile(MODELS["gemv"], target="cuda", cache=False)
    assert module.codes.keys() == module.program.kernels.keys()
    assert all(".entry" in code.ptx for code in module.codes.values())


def test_a_second_call_with_the_same_addresses_is_a_graph():
    module = on_host(tw.compile(MODELS["gemv"], target="cuda", cache=False))
    (x,) = inputs_of(module)
    given = module.empty(x.shape, module.inputs[0].dtype)
    module._gpu.copy_in(given.address, x, 0)
    out = module.empty((1, 70), module.outputs[0].dtype)
    for _ in range(3):
        module(given, out=[out])
    (recorded,) = module._records.values()
    assert recorded.graph
    (got,) = fetched(module, [out])
    want = tw.compile(MODELS["gemv"], target="cpu", threads=1)(x)
    np.testing.assert_allclose(got, np.asarray(want[0]), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ([], "TW4042"),
        (["text"], "TW4041"),
        ([np.zeros((1, 200), np.float64)], "TW4001"),
        ([np.zeros(200, np.float32)], "TW4002"),
        ([np.zeros((1, 201), np.float32)], "TW4003"),
    ],
)
def test_bad_inputs_are_named_before_anything_runs(args, code):
    module = on_host(tw.compile(MODELS["gemv"], target="cuda", cache=False))
    with pytest.raises(TilewrightError) as caught:
        module(*args)
    assert caught.value.code == code


def on_gpu(module, array, offset_bytes=0, device=(2, 0), strides=None, read_only=False):
    """An array that pretends to be on a GPU."""
    memory = module._gpu.allocate(array.nbytes + offset_bytes, 0)
    return Array._from_address(
        memory.address + offset_bytes, array.shape, strides, 2, 32, 1, device, read_only, memory
    )


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"device": (2, 1)}, "TW4005"),
        ({"strides": (400, 2)}, "TW4004"),
        ({"offset_bytes": 4}, "TW4007"),
    ],
)
def test_arrays_on_a_gpu_that_kernels_cannot_use_are_named(options, code):
    module = on_host(tw.compile(MODELS["gemv"], target="cuda", cache=False))
    with pytest.raises(TilewrightError) as caught:
        module(on_gpu(module, random(1, 200), **options))
    assert caught.value.code == code
    assert "x" in caught.value.message


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (lambda module: on_gpu(module, random(1, 70), read_only=True), "TW4006"),
        (lambda module: on_gpu(module, random(1, 71)), "TW4003"),
        (lambda module: np.zeros((1, 70), np.float32), "TW4005"),
    ],
)
def test_outputs_that_cannot_be_written_are_named(made, code):
    module = on_host(tw.compile(MODELS["gemv"], target="cuda", cache=False))
    with pytest.raises(TilewrightError) as caught:
        module(random(1, 200), out=[made(module)])
    assert caught.value.code == code


def test_a_captured_stream_is_refused_until_the_model_has_run():
    module = on_host(tw.compile(MODELS["gemv"], target="cuda", cache=False))
    given, out = on_gpu(module, random(1, 200)), on_gpu(module, random(1, 70))
    with pytest.raises(TilewrightError, match="has not run yet") as caught:
        module(given, out=[out], stream=CAPTURED)
    assert caught.value.code == "TW4024"
    module(given)
    module(given, out=[out], stream=CAPTURED)


def test_a_captured_stream_takes_no_arrays_of_the_host():
    module = on_host(tw.compile(MODELS["gemv"], target="cuda", cache=False))
    x = random(1, 200)
    module(x)
    with pytest.raises(TilewrightError, match="x is in host memory") as caught:
        module(x, stream=CAPTURED)
    assert caught.value.code == "TW4024"


def test_what_a_caller_captures_has_memory_of_its_own():
    """Its graph may run while other calls do, and after other models have been called."""
    module = on_host(tw.compile(MODELS["conv_split"], target="cuda", cache=False))
    given = on_device(module, *inputs_of(module))
    (want,) = fetched(module, module(given))
    (got,) = fetched(module, module(given, stream=CAPTURED))
    np.testing.assert_array_equal(got, want)
    (owner, memory, *_) = module._captured[-1]
    others = [block for scratch in module._scratch.values() for block, _ in scratch.blocks]
    assert memory
    assert not {id(each) for each in memory} & {id(each) for each in others}
    assert not owner._counts.keys() & module._counts.keys()
    assert CAPTURED not in module._scratch


def test_sizes_that_no_call_had_are_not_captured():
    net = graph.parse("graph @main(%x: f32[n, 4]) { %y = neg(%x) return %y }")
    module = on_host(tw.compile(net, target="cuda"))
    module(random(2, 4))
    module(on_device(module, random(2, 4)), stream=CAPTURED)
    with pytest.raises(TilewrightError, match="with these sizes") as caught:
        module(on_device(module, random(3, 4)), stream=CAPTURED)
    assert caught.value.code == "TW4024"


@pytest.mark.parametrize("precision", ["f32", "tf32", "bf16", "f16"])
def test_what_f16_cannot_hold_is_infinite_there_alone(precision):
    """An operand of the second product is 102400: no other type silently takes the place of f16."""
    net = graph.parse("""graph @main(%x: f32[8, 64], %w: f32[64, 64], %v: f32[64, 64]) {
      %a = matmul(%x, %w) %y = matmul(%a, %v) return %y
    }""")
    module = on_host(tw.compile(net, target="cuda -arch=sm_90a", precision=precision))
    shapes = ((8, 64), 40), ((64, 64), 40), ((64, 64), 1e-3)
    (got,) = fetched(module, module(*(np.full(shape, n, np.float32) for shape, n in shapes)))
    np.testing.assert_allclose(got, np.inf if precision == "f16" else 6553.6, rtol=4e-3)


def test_calls_of_one_stream_share_their_memory():
    module = on_host(tw.compile(MODELS["conv_split"], target="cuda", cache=False))
    (x,) = inputs_of(module)
    held = [module(x) for _ in range(3)]
    scratch = module._scratch[0].blocks
    assert len({out.address for (out,) in held}) == 3
    assert all(len(each.memory) == len(scratch) for each in module._records.values())
    assert len({id(memory) for each in module._records.values() for memory in each.memory}) == len(
        scratch
    )


def test_a_profile_has_every_launch():
    module = on_host(tw.compile(MODELS["gemm"], target="cuda", cache=False))
    (x,) = inputs_of(module)
    record = module.profile(x)
    assert sum(event.flops for event in record.events) >= 2 * 33 * 40 * 65
    assert all(event.duration_ns == 1000 and event.size_bytes for event in record.events)


def test_one_step_of_a_recurrence_is_a_product_and_what_follows():
    module = tw.compile(lstm(steps=1), target="cuda", cache=False)
    labels = [node["label"] for node in module.program.module.main.nodes if node.op == "kernel"]
    assert not any("lstm" in label for label in labels)


def test_a_row_is_computed_by_the_kernel_that_multiplies_it():
    module = tw.compile(MODELS["recurrent_row"], target="cuda -arch=sm_90a", cache=False)
    rules = {k.name: [d.rule for d in k.decisions] for k in module.program.kernels.values()}
    (found,) = [each for name, each in rules.items() if "matmul" in name]
    assert found == ["gemv"]  # of [x, h] beside each other
    assert len(module.codes) == 2


def test_products_of_one_row_that_follow_each_other_are_one_kernel():
    chain = tw.compile(MODELS["recurrent_chain"], target="cuda -arch=sm_90a", chains=True)
    (code,) = chain.codes.values()
    (kernel,) = code.kernels
    assert kernel.is_together
    (x,) = inputs_of(on_host(chain))
    (want,) = tw.compile(MODELS["recurrent_chain"], target="cpu", threads=1)(x)
    for stream in (0, 5):  # whose calls may overlap
        (got,) = fetched(chain, chain(x, stream=stream))
        np.testing.assert_allclose(got, np.asarray(want), rtol=2e-4, atol=2e-5)
    assert len({memory.address for memory in chain._counts.values()}) == 2
    apart = tw.compile(MODELS["recurrent_chain"], target="cuda -arch=sm_90a")
    kernels = [each for made in apart.codes.values() for each in made.kernels]
    assert len(kernels) > 3
    assert not any(each.is_together for each in kernels)


CONTROL = {
    "if": """
graph @main(%c: bool[], %x: f32[4]) {
  %y = if(%c, %x) do {
    graph(%a: f32[4]) { %b = neg(%a) return %b }
    graph(%a: f32[4]) { return %a }
  }
  %z = exp(%y)
  return %z
}
""",
    "switch": """
graph @main(%i: i64[], %x: f32[4]) {
  %y = switch(%i, %x) do {
    graph(%a: f32[4]) { %b = neg(%a) return %b }
    graph(%a: f32[4]) { return %a }
    graph(%a: f32[4]) { %b = add(%a, %a) return %b }
  }
  %z = exp(%y)
  return %z
}
""",
    "loop": """
graph @main(%n: i64[], %x: f32[4]) {
  %y, %s = loop(%n, none, %x, %x) {carried = 1} do {
    graph(%i: i64[], %going: bool[], %a: f32[4], %fixed: f32[4]) {
      %b = mul(%a, %fixed)
      %d = add(%b, %fixed)
      return %going, %d, %b
    }
  }
  return %y, %s
}
""",
    "swapped": """
graph @main(%n: i64[], %x: f32[4], %z: f32[4]) {
  %y, %w = loop(%n, none, %x, %z) {carried = 2} do {
    graph(%i: i64[], %going: bool[], %a: f32[4], %b: f32[4]) {
      %c = neg(%a)
      return %going, %b, %c
    }
  }
  return %y, %w
}
""",
    "while": """
graph @main(%x: f32[4], %most: f32[]) {
  %y = loop(none, none, %x, %most) {carried = 1} do {
    graph(%i: i64[], %going: bool[], %a: f32[4], %m: f32[]) {
      %b = add(%a, %a)
      %s = reduce_max(%b) {axes = (0,), keepdims = false}
      %c = less(%s, %m)
      return %c, %b
    }
  }
  return %y
}
""",
    "nested": """
graph @main(%n: i64[], %c: bool[], %x: f32[4]) {
  %y = loop(%n, none, %x, %c) {carried = 1} do {
    graph(%i: i64[], %going: bool[], %a: f32[4], %d: bool[]) {
      %b = if(%d, %a) do {
        graph(%e: f32[4]) { %f = add(%e, %e) return %f }
        graph(%e: f32[4]) { %f = neg(%e) return %f }
      }
      return %going, %b
    }
  }
  return %y
}
""",
    "shifted": """
graph @main(%h: f32[4], %x: f32[5, 4]) {
  %y, %s = scan(%h, %x) {states = 1, inputs = 1} do {
    graph(%a: f32[4], %e: f32[4]) { return %e, %a }
  }
  return %y, %s
}
""",
    "scan": """
graph @main(%h: f32[4], %x: f32[5, 4]) {
  %y, %s = scan(%h, %x) {states = 1, inputs = 1} do {
    graph(%a: f32[4], %e: f32[4]) {
      %b = mul(%a, %e)
      %d = tanh(%b)
      return %d, %b
    }
  }
  return %y, %s
}
""",
}


DECIDED = [
    ("if", [np.array(True), random(4)]),
    ("if", [np.array(False), random(4)]),
    ("switch", [np.array(1), random(4)]),
    ("switch", [np.array(7), random(4)]),
    ("swapped", [np.array(3), random(4), -random(4)]),
    ("while", [np.abs(random(4)), np.array(30, np.float32)]),
    ("nested", [np.array(3), np.array(True), random(4)]),
    ("nested", [np.array(3), np.array(False), random(4)]),
    ("nested", [np.array(0), np.array(False), random(4)]),
    ("scan", [random(4), random(5, 4)]),
    ("shifted", [random(4), random(5, 4)]),
]


class Told:
    """A graph that only tells what it would launch."""

    def __init__(self, gpu, launches):
        self.gpu, self.launches = gpu, launches

    def launch(self, stream):
        self.gpu.started += [launch.label for launch in self.launches]


class Clock:
    """A timer of a GPU that knows how long chains take."""

    def __init__(self, gpu, chained_ms):
        self.gpu, self.times = gpu, {True: chained_ms, False: 1.0}

    def start(self, stream):
        self.gpu.started.clear()

    def stop(self, stream):
        return self.times["chain" in self.gpu.started]


@pytest.mark.parametrize(
    ("chained_ms", "is_right", "helps"),
    [(0.9, True, True), (1.0, True, False), (0.5, False, False)],
)
def test_chains_are_kept_where_they_measure_faster_and_answer_the_same(
    chained_ms, is_right, helps, monkeypatch
):
    nodes = [helper.make_node("MatMul", ["x", "u"], ["a"]),
             helper.make_node("MatMul", ["a", "v"], ["y"])]  # fmt: skip
    net = model(nodes, {"x": (F, [1, 64])}, ["y"], {"u": random(64, 64), "v": random(64, 96)})
    made = [tw.compile(net, target="cuda -arch=sm_90a", chains=chains) for chains in (False, True)]
    gpu = HostGpu(made[0].target)
    gpu.started, clock = [], Clock(gpu, chained_ms)
    monkeypatch.setattr(gpu, "timer", lambda: clock)
    monkeypatch.setattr(gpu, "graph", lambda launches, waits: Told(gpu, launches))
    load = gpu.load

    def loaded(code, kernel):
        module = load(code, kernel)
        if kernel.name.startswith("chain") and not is_right:
            module.launch = lambda *args, **how: None  # leaves what was in memory
        return module

    monkeypatch.setattr(gpu, "load", loaded)
    for module in made:
        module._gpu = gpu
    assert (build.chains_gain(*made, {}) > 1.0) == helps


def chains_of(module):
    return [name for name in module.program.kernels if name.startswith("chain")]


def test_a_verdict_on_chains_is_recorded_and_serves_later_compilations(monkeypatch):
    nodes = [helper.make_node("MatMul", ["x", "u"], ["a"]),
             helper.make_node("MatMul", ["a", "v"], ["y"])]  # fmt: skip
    net = model(nodes, {"x": (F, [1, 64])}, ["y"], {"u": random(64, 64), "v": random(64, 96)})
    target = Target.parse("cuda -arch=sm_90a")
    with Database() as database:
        plain = tw.compile(net, target, database=database)
        assert not chains_of(plain)
        tuning = Options(tune=Budget(minutes=1), database=database)
        for gain in (1.5, 1.0):
            monkeypatch.setattr(build, "chains_gain", lambda *given, gain=gain: gain)
            tuned = build.build_device(plain.program, target, tuning, plain.inside.placement, None)
            later = tw.compile(net, target, database=database)
            assert chains_of(tuned) == chains_of(later)
            assert bool(chains_of(later)) is (gain > 1.0)
            assert not chains_of(tw.compile(net, target, database=database, chains=False))
            assert not chains_of(tw.compile(net, target, database=""))


@pytest.mark.parametrize("by_graph", [True, False])
@pytest.mark.parametrize(("name", "args"), DECIDED)
@pytest.mark.sampled
def test_control_flow_is_launched_as_graphs(name, args, by_graph):
    """One graph that decides, or graphs and what the host decides between them."""
    module = tw.compile(graph.parse(CONTROL[name]), target="cuda")
    module._gpu = HostGpu(module.target, decides=by_graph)
    want = tw.compile(graph.parse(CONTROL[name]), target="cpu", threads=1)(*args)
    given = [on_device(module, arg) for arg in args]
    outputs = module(*given)
    for _ in range(2):
        module(*given, out=outputs)
        for a, b in zip(fetched(module, outputs), want, strict=True):
            np.testing.assert_allclose(a, np.asarray(b), rtol=1e-5)
    (recorded,) = module._records.values()
    decides = any(isinstance(each, (Choice, Loop)) for each in recorded.launches)
    assert decides == (name not in ("scan", "shifted"))
    assert isinstance(recorded.graph, HostDecided) == (decides and not by_graph)


@pytest.mark.parametrize("name", ["if", "swapped", "nested"])
def test_a_caller_s_capture_needs_graphs_that_decide(name):
    """The host cannot look at a condition while a stream is only recorded."""
    (args,) = [args for each, args in DECIDED if each == name][:1]
    module = tw.compile(graph.parse(CONTROL[name]), target="cuda")
    module._gpu = HostGpu(module.target, decides=False)
    given = [on_device(module, arg) for arg in args]
    outputs = module(*given)
    module(*given, out=outputs)
    with pytest.raises(TilewrightError) as caught:
        module(*given, out=outputs, stream=CAPTURED)
    assert caught.value.code == "TW4070"
    assert "12.4" in caught.value.message


OF_NUMBERS = {
    "sort": """
graph @main(%x: f32[2, 5]) {
  %y = sort(%x) {axis = 1} do {
    graph(%a: f32[], %b: f32[]) { %c = greater(%a, %b) return %c }
  }
  return %y
}
""",
    "window": """
graph @main(%x: f32[2, 5]) {
  %s = constant() {data = f32[](1.0)}
  %y = reduce_window(%x, %s) {window = (1, 3), strides = (1, 1), dilations = (1, 1),
                              pads = (0, 1, 0, 1)} do {
    graph(%a: f32[], %b: f32[]) { %c = mul(%a, %b) return %c }
  }
  return %y
}
""",
}


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_bodies_of_numbers_are_part_of_a_kernel(name):
    text, x = OF_NUMBERS[name], random(2, 5)
    module = on_host(tw.compile(graph.parse(text), target="cuda"))
    (want,) = graph.interpret(graph.parse(text), x)
    (made,) = fetched(module, module(on_device(module, x)))
    np.testing.assert_allclose(made, want, rtol=1e-6)


def test_sizes_that_depend_on_values_are_neither_captured_nor_saved(tmp_path):
    module = on_host(tw.compile(graph.parse(CONTROL["loop"]), target="cuda"))
    args = [np.array(3), random(4)]
    with pytest.raises(TilewrightError) as caught:
        module(*(on_device(module, arg) for arg in args), stream=CAPTURED)
    assert caught.value.code == "TW4070"
    with pytest.raises(TilewrightError) as caught:
        module.save(tmp_path / "model.so")
    assert caught.value.code == "TW6015"
    assert not list(tmp_path.iterdir())


def on_device(module, array):
    """A copy that pretends to be on a GPU."""
    made = module.empty(array.shape, from_numpy(array.dtype))
    view(made.address, array.shape, made.dtype)[...] = array
    return made


@pytest.mark.parametrize("turns", [3, 0])
def test_a_loop_that_keeps_all_its_turns_is_decided_by_the_host(turns):
    module = on_host(tw.compile(graph.parse(CONTROL["loop"]), target="cuda"))
    args = [np.array(turns), random(4)]
    want = tw.compile(graph.parse(CONTROL["loop"]), target="cpu", threads=1)(*args)
    for _ in range(2):
        got = fetched(module, module(*args))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, np.asarray(b), rtol=1e-5)


def test_sizes_of_inputs_choose_the_launches():
    nodes = [helper.make_node("Gemm", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    net = model(nodes, {"x": (F, ["batch", 40])}, ["y"], {"w": random(40, 24)})
    module = on_host(tw.compile(net, target="cuda", cache=False))
    for batch in (1, 5, 33):
        x = random(batch, 40)
        (got,) = fetched(module, module(x))
        (want,) = tw.compile(net, target="cpu", threads=1)(x)
        np.testing.assert_allclose(got, np.asarray(want), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("arch", "rule"), [("sm_90a", "gemm_hopper"), ("sm_80", "gemm_ampere")])
def test_tensor_cores_multiply_batches_of_any_size(arch, rule):
    nodes = [helper.make_node("Gemm", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    net = model(nodes, {"x": (F, ["batch", 72])}, ["y"], {"w": random(72, 48)})
    module = tw.compile(net, target=f"cuda -arch={arch}", precision="bf16", cache=False)
    assert rule in [d.rule for k in module.program.kernels.values() for d in k.decisions]
    on_host(module)
    for batch in (0, 1, 70):
        x = random(batch, 72)
        (got,) = fetched(module, module(x))
        (want,) = tw.compile(net, target="cpu", threads=1)(x)
        assert got.shape == (batch, 48)
        np.testing.assert_allclose(got, np.asarray(want), rtol=5e-2, atol=0.2)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_f32_is_never_multiplied_as_tf32(arch):
    module = tw.compile(dense(128, 256, 192), target=f"cuda -arch={arch}", cache=False)
    for code in module.codes.values():
        assert "mma" not in code.ptx
        assert "tf32" not in code.ptx


def test_sizes_in_a_range_are_a_graph_too_and_others_are_refused():
    program = graph.parse("graph @main(%x: f32[n, 40]) { %y = tanh(%x) return %y }")
    module = tw.compile(program, target="cuda", dynamic={"n": (1, 8)}, cache=False)
    on_host(module)
    assert not module._varies
    for n in (1, 8):
        x = random(n, 40)
        out = module(x)
        np.testing.assert_allclose(fetched(module, out)[0], np.tanh(x), rtol=1e-5)
    for n in (0, 9):
        with pytest.raises(TilewrightError) as caught:
            module(random(n, 40))
        assert caught.value.code == "TW4012"
        assert "not in 1..8" in caught.value.message


def test_launches_that_wait_for_memory_start_early():
    module = tw.compile(lstm(steps=1), target="cuda -arch=sm_90a", cache=False)
    on_host(module)
    module(*inputs_of(module))
    (recorded,) = module._records.values()
    assert any(launch.is_kernel for launch in recorded.launches)
    assert all(launch.starts_early for launch in recorded.launches if launch.is_kernel)
    assert all("griddepcontrol.wait" in code.ptx for code in module.codes.values())
    plain = {"without": ("choose_winograd",), "cache": False}  # one kernel computes
    computes = on_host(tw.compile(MODELS["conv_split"], target="cuda -arch=sm_90a", **plain))
    computes(*inputs_of(computes))
    (recorded,) = computes._records.values()
    assert len(recorded.launches) > 1  # parts of the sum, and what adds them up
    assert [launch.starts_early for launch in recorded.launches if launch.flops] == [False]
    assert all(launch.starts_early for launch in recorded.launches if not launch.flops)


def test_both_products_of_attention_compute():
    """Whichever moves more: blocks of neither may lie where those before it left room."""
    plain = tw.compile(attention(96), target="cuda -arch=sm_90a", cache=False)
    on_host(plain)(*inputs_of(plain))
    (recorded,) = plain._records.values()
    computing = [launch for launch in recorded.launches if launch.flops]
    assert len(computing) == 2 < len(recorded.launches)
    assert not any(launch.starts_early for launch in computing)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled
def test_the_assembler_takes_every_kernel(name, arch):
    module = tw.compile(MODELS[name], target=f"cuda -arch={arch}")
    for code in module.codes.values():
        told = assembled(code.ptx, arch)
        assert not re.search(r"[1-9]\d* bytes spill", told), told


def test_the_assembler_takes_the_kernels_that_decide():
    told = assembled(conditions_ptx(), "sm_80", "-c")  # the driver links them
    assert all(name in told for name in (CHOOSE, BEGIN, AGAIN))


def test_a_quantized_model_multiplies_bytes_in_warpgroups():
    """With its scales, bias, activation and quantization in the same kernel."""
    quantized = np.random.default_rng(0).integers(-127, 128, (128, 64)).astype(np.int8)
    weights = {
        "w": quantized, "sw": np.float32(0.02), "zw": np.int8(0), "b": random(64),
        "sx": np.float32(0.03), "zx": np.uint8(120), "sy": np.float32(0.5), "zy": np.uint8(128),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "sx", "zx"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "sy", "zy"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "sy", "zy"], ["y"]),
    ]
    given = model(nodes, {"x": (F, [24, 128])}, ["y"], weights)
    made = tw.compile(given, target="cuda -arch=sm_90a", precision="int8")
    products = [code for code in made.codes.values() if ".s32.s8.s8" in code.ptx]
    assert [len(code.kernels) for code in products] == [1]
    x = random(24, 128)
    (got,) = fetched(made, on_host(made)(x))
    sums = (np.clip(np.rint(x / 0.03) + 120, 0, 255) - 120) @ quantized.astype(np.float64)
    steps = np.rint(np.maximum(sums * 0.03 * 0.02 + weights["b"], 0) / 0.5)
    assert (np.abs(got / 0.5 - np.minimum(steps, 127)) > 0).mean() < 0.01  # ties apart


def test_few_rows_of_a_number_that_calls_tell_have_kernels_of_their_own():
    """Each call takes the first that fits; weights are those that it takes."""
    weights = {"w": (random(128, 96) / 8).astype(np.float16)}
    program = graph.parse("""graph @main(%x: f16[b, 32, 128]) {
      %w = constant() {data = "w"}
      %y = matmul(%x, %w)
      return %y
    }""", weights)  # fmt: skip
    module = on_host(tw.compile(program, target="cuda -arch=sm_90a", cache=False))
    (node,) = [node for node in module.program.module.main.nodes if node.op == "kernel"]
    assert [most for _, most in node["limits"]] == [2, 4, 16, 64]
    wanted = dict(zip((1, 3, 5, 17, 65), (*node["variants"], node["function"]), strict=True))
    for count, name in wanted.items():
        x = random(count, 32, 128).astype(np.float16)
        assert {launch.kernel.name.rpartition("_")[0] for launch in module.walk(x).launches} == {
            name
        }
        (found,) = fetched(module, module(x))
        np.testing.assert_allclose(found, x.astype("f") @ weights["w"].astype("f"), atol=2e-2)


def few_rows(k=64, n=64, **options):
    text = f"graph @main(%x: f16[b, 1, {k}], %w: f16[{k}, {n}]) {{ %y = matmul(%x, %w) return %y }}"
    return tw.compile(graph.parse(text), target="cuda -arch=sm_90a", cache=False, **options)


@pytest.mark.parametrize(("k", "n", "rows"), [(64, 64, (5, 8)), (512, 64, (7, 13))])
def test_rows_of_which_no_call_has_more_than_a_tile(k, n, rows):
    module = on_host(few_rows(k, n, dynamic={"b": rows}))
    for count in rows:
        x, w = random(count, 1, k).astype(np.float16), random(k, n).astype(np.float16)
        (found,) = fetched(module, module(x, w))
        np.testing.assert_allclose(found, x.astype("f") @ w.astype("f"), atol=5e-2)


def test_kernels_whose_plan_is_the_same_for_few_rows_are_one():
    module = few_rows()
    (node,) = [node for node in module.program.module.main.nodes if node.op == "kernel"]
    assert [most for _, most in node["limits"]] == [2]  # and none for up to 64
    assert set(module.codes) == {node["function"], *node["variants"]}


def test_fewer_rows_than_a_variant_is_for_take_the_kernel_of_their_plan(monkeypatch):
    """The kernel for up to 4 is there, the one for up to 2 is not."""

    def is_for_several(variant, kernel):
        return any(str(cond) == "b <= 16" for cond in variant.requires)  # its middle is 4

    monkeypatch.setattr(lowering, "has_other_plan", is_for_several)
    module = on_host(few_rows())
    (node,) = [node for node in module.program.module.main.nodes if node.op == "kernel"]
    assert node["variants"][0] == node["function"] != node["variants"][1]
    for count in (1, 3, 17):
        x, w = random(count, 1, 64).astype(np.float16), random(64, 64).astype(np.float16)
        (found,) = fetched(module, module(x, w))
        np.testing.assert_allclose(found, x.astype("f") @ w.astype("f"), atol=5e-2)


def test_a_variant_without_code_is_left_out(monkeypatch):
    def without_variants(jobs, *args, **options):
        made, images = compile_all(jobs, *args, **options)
        return [made[0], *[Unsupported("TW3053", "too large")] * (len(made) - 1)], images

    compile_all = lowering.compile_all
    monkeypatch.setattr(lowering, "compile_all", without_variants)
    module = few_rows()
    (node,) = [node for node in module.program.module.main.nodes if node.op == "kernel"]
    assert set(module.codes) == {node["function"]}


def test_no_variant_is_for_one_size_alone():
    """Rules count on several where a size is not known."""
    module = few_rows(k=4096, n=4096, dynamic={"b": (1, 4096)})
    limits = [node.get("limits") for node in module.program.module.main.nodes]
    assert [[most for _, most in each] for each in limits if each] == [[2, 4, 16]]


def test_variants_stay_where_other_kernels_are_a_chain():
    weights = {name: 0.3 * random(80, 80) for name in "uvw"}
    program = graph.parse("""graph @main(%x: f32[1, 80], %z: f32[b, 80]) {
      %u = constant() {data = "u"}
      %v = constant() {data = "v"}
      %w = constant() {data = "w"}
      %p = matmul(%x, %u)
      %q = matmul(%p, %v)
      %r = matmul(%z, %w)
      return %q, %r
    }""", weights)  # fmt: skip
    module = on_host(tw.compile(program, target="cuda -arch=sm_90a", chains=True, cache=False))
    calls = [node for node in module.program.module.main.nodes if node.op == "kernel"]
    assert "chain" in [node["label"] for node in calls]
    assert any(node.get("variants") for node in calls)
    x, z = random(1, 80), random(2, 80)
    found = fetched(module, module(x, z))
    for got, want in zip(found, (x @ weights["u"] @ weights["v"], z @ weights["w"]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
