"""Which quantized layers run there: results as the CPU's, and a reason for what stays."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

import tilewright as tw

STEP = 0.05  # of results
INTO = "qx = QuantizeLinear (x, xs, z)"
CONV = "c = Conv <pads = [1, 1, 1, 1]> (dx, dw)"
BACK = "y = DequantizeLinear (q, ys, z)"
LAYER = f"dx = DequantizeLinear (qx, xs, z) dw = DequantizeLinear (w, ws, z) {CONV}"
IMAGE = "float[1, 16, 9, 9] x"


def model(head, *body, w=(20, 16, 3, 3), **constants):
    """An ONNX model: its signature, its nodes, the shape of its weights, constants besides."""
    made = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> net ({head}) {{ {" ".join(body)} }}'
    )
    random = np.random.default_rng(0)
    constants |= {"w": random.integers(-127, 128, w).astype(np.int8), "z": np.int8(0)}
    constants |= {"u": np.uint8(128), "xs": np.float32(0.02), "ws": np.float32(0.004)}
    constants |= {"ys": np.float32(STEP)}
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    return made


def there(given, x):
    """The model for the accelerator, whose results are the CPU's but for a step."""
    made, here = tw.compile(given, target="vta-sim"), tw.compile(given)
    for a, b in zip(made(x), here(x), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        step = 1 if a.dtype == np.int8 else STEP * 1.001
        assert np.abs(a.astype(np.float64) - b).max() <= step
    return made


def reasons(made):
    """The reasons of what the host runs."""
    return [why for _, _, device, why in made.placement.rows() if why and device.kind == "cpu"]


def floats(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("shape", "count"),
    [((16, 1), 0), ((1, 1, 16), 0), ((1, 1, 1), 0), ((16,), 1), ((1, 16), 1), ((1, 1), 1)],
)
def test_a_bias_is_one_of_columns(shape, count):
    bias = np.linspace(-2, 3, int(np.prod(shape))).astype(np.float32).reshape(shape)
    outs = "1, 16, 16" if len(shape) == 3 else "16, 16"
    given = model(
        f"float[16, 64] x) => (float[{outs}] y",
        f"{INTO} dx = DequantizeLinear (qx, xs, z) dw = DequantizeLinear (w, ws, z)",
        f"p = MatMul (dx, dw) c = Add (p, b) q = QuantizeLinear (c, ys, z) {BACK}",
        w=(64, 16),
        b=bias,
    )
    made = there(given, floats(16, 64))
    assert made.placement.counts().get("accel", 0) == count
    assert reasons(made) == [] if count else "its shape, bias or scales" in reasons(made)[0]


@pytest.mark.parametrize(
    ("result", "last"),
    [
        ("int8[1, 20, 9, 9] q", ""),
        ("int8[1, 1620] y", "y = Flatten (q)"),
        ("int8[1, 20, 8, 8] y", "y = MaxPool <kernel_shape = [2, 2]> (q)"),
    ],
)
def test_bytes_with_a_sign_are_for_everybody(result, last):
    body = f"{INTO} {LAYER} q = QuantizeLinear (c, ys, z) {last}"
    made = there(model(f"{IMAGE}) => ({result}", body), floats(1, 16, 9, 9))
    assert made.placement.counts()["accel"] == 1


def test_no_zero_point_is_one_of_zero():
    body = (
        "qx = QuantizeLinear (x, xs) dx = DequantizeLinear (qx, xs) dw = DequantizeLinear (w, ws)"
    )
    body += f" {CONV} q = QuantizeLinear (c, ys) y = DequantizeLinear (q, ys)"
    made = there(model(f"{IMAGE}) => (float[1, 20, 9, 9] y", body), floats(1, 16, 9, 9))
    assert made.placement.counts()["accel"] == 1


def test_cycles_of_layers_with_the_same_attributes():
    """Of two parts; a layer of the first comes behind one of the second in the graph."""
    branch = (
        "d{0} = DequantizeLinear (q{0}, xs, z) w{0} = DequantizeLinear (v{0}, ws, z) "
        "c{0} = Conv <pads = [1, 1, 1, 1]> (d{0}, w{0}) p{0} = QuantizeLinear (c{0}, ys, z) "
        "f{0} = DequantizeLinear (p{0}, ys, z)"
    )
    given = model(
        f"{IMAGE}, float[1, 64, 9, 9] k) => (float[1, 32, 9, 9] fb, float[1, 16, 9, 9] fa",
        f"{INTO} dx = DequantizeLinear (qx, xs, z) dw = DequantizeLinear (w, ws, z) {CONV}",
        "q = QuantizeLinear (c, ys, z) f = DequantizeLinear (q, ys, z) t = Tanh (f)",
        "qa = QuantizeLinear (t, xs, z)",
        branch.format("a"),
        "qb = QuantizeLinear (k, xs, z)",
        branch.format("b"),
        w=(20, 16, 3, 3),
        va=np.ones((16, 20, 3, 3), np.int8),
        vb=np.ones((32, 64, 3, 3), np.int8),
    )
    made = tw.compile(given, target="vta-sim")
    assert len(made.streams) == 2
    shown = {
        node.output.name: why
        for _, node, device, why in made.placement.rows()
        if device.kind == "accel"
    }
    assert len(shown) == 3
    for row in made.report():
        assert shown[row["name"]].startswith(f"{row['cycles']:,} cycles, {row['bytes']:,} bytes")


IMAGES = "(float[1, 20, 9, 9] y"
LINE = "c = Conv <pads = [1, 1]> (dx, dw) q = QuantizeLinear (c, ys, z)"
LEFT = {
    "its images have 1 dimensions": model(
        "float[1, 16, 30] x) => (float[1, 20, 30] y",
        f"{INTO} {LAYER[: -len(CONV)]} {LINE} {BACK}",
        w=(20, 16, 3),
    ),
    "only quantize and dequantize around": model(
        f"{IMAGE}) => {IMAGES}",
        f"{INTO} q = QLinearConv <pads = [1, 1, 1, 1]> (qx, xs, z, w, ws, z, ys, z) {BACK}",
    ),
    "an operand is of u8": model(
        f"uint8[1, 16, 9, 9] x) => {IMAGES}",
        "dx = DequantizeLinear (x, xs, u) dw = DequantizeLinear (w, ws, z)",
        f"{CONV} q = QuantizeLinear (c, ys, z) {BACK}",
    ),
    "its result is of u8": model(
        f"{IMAGE}) => (uint8[1, 20, 9, 9] q", f"{INTO} {LAYER} q = QuantizeLinear (c, ys, u)"
    ),
    "its result is not quantized": model(
        f"{IMAGE}) => {IMAGES}", f"{INTO} {LAYER} y = Relu (c)"
    ),
    "an operand is not dequantized": model(
        f"{IMAGE}) => {IMAGES}", "dw = DequantizeLinear (w, ws, z)",
        "y = Conv <pads = [1, 1, 1, 1]> (x, dw)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", LEFT)
def test_what_is_no_layer_of_bytes_has_a_reason(why):
    (told,) = reasons(tw.compile(LEFT[why], target="vta-sim"))
    assert told.startswith(why)
