"""Convolutions on Hopper without a GPU: GEMM whose bulk copies read windows from the image."""

import re
import sys
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.errors import ExecutionError, UserError
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.rule import Choice
from tilewright.tensor import parse
from tilewright.tensor.constants import split_constant_blocks
from tilewright.tensor.passes import lower

sys.path.insert(0, str(Path(__file__).parent))
from host_gpu import fetched, on_host
from test_hopper import ALONE, PINGPONG, STREAM_K, small_gpu

TARGET = "cuda -arch=sm_90a"
TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}


def text(image, out=32, kernel=3, stride=1, pad=1, dilation=1, dtype="f16"):
    """A convolution as products of its windows, with a bias."""
    n, h, w, c = image
    reach = (kernel - 1) * dilation + 1
    rows, columns = ((size + 2 * pad - reach) // stride + 1 for size in (h, w))
    around = f"%p = pad(%x) {{pads = ({pad}, {pad}, {pad}, {pad}), axes = (1, 2)}}" if pad else ""
    rounded = "tf32 = true" if dtype == "f32" else "to = dtype f32"
    return f"""graph @main(%x: {dtype}[{n}, {h}, {w}, {c}], %w: {dtype}[{kernel**2 * c}, {out}],
                           %b: f32[{out}]) {{
      {around}
      %s = patches({"%p" if pad else "%x"}) {{kernel = ({kernel}, {kernel}),
        strides = ({stride}, {stride}), dilations = ({dilation}, {dilation})}}
      %r = reshape(%s) {{shape = (1, {n * rows * columns}, {kernel**2 * c})}}
      %m = matmul(%r, %w) {{{rounded}}}
      %a = add(%m, %b)
      %y = cast(%a) {{to = dtype {dtype}}}
      return %y
    }}"""


CASES = {
    "lines and images follow each other": {"image": (2, 10, 9, 64)},
    "a stride": {"image": (1, 11, 11, 128), "stride": 2},
    "an even size and a stride": {"image": (2, 8, 8, 64), "stride": 2},
    "one position and a stride": {"image": (2, 9, 9, 64), "kernel": 1, "stride": 2, "pad": 0},
    "a dilation": {"image": (1, 12, 12, 64), "pad": 2, "dilation": 2},
    "nothing around": {"image": (2, 7, 7, 64), "pad": 0},
    "a wide kernel": {"image": (1, 7, 7, 64), "kernel": 5, "pad": 2},
    "bf16": {"image": (1, 8, 8, 64), "dtype": "bf16"},
    "tf32": {"image": (1, 8, 8, 32), "dtype": "f32"},
}


@cache
def planned(blocks=ALONE, target=TARGET, **case):
    fn = lower_graph(graph.parse(text(**case)).main, "conv")
    plan = f"groups=1 block_n=32 slots=4 span=1 split_k=1 boxes=1 {blocks}"
    made = schedule(fn, target, constants=("w",), choices={"m": Choice("gemm_hopper", plan)})
    assert [decision.rule for decision in made.decisions] == ["gemm_hopper"]
    return made.schedule.function


def built(**case):
    """Code of the kernel; weights are packed beforehand."""
    return tw.build(split_constant_blocks(planned(**case)).kernel, TARGET)


def operands(image, out=32, kernel=3, dtype="f16", **_):
    rng = np.random.default_rng(0)
    shapes = (image, (kernel**2 * image[-1], out))
    given = [rng.standard_normal(shape).astype(TYPES[dtype]) for shape in shapes]
    return [*given, rng.standard_normal(out).astype(np.float32)]


def check(fn, case, seed=0):
    given = operands(**case)
    (want,) = graph.interpret(graph.parse(text(**case)), *given)
    out = np.full(want.shape, np.nan).astype(TYPES[case.get("dtype", "f16")])
    tw.interpret(fn, *given, out, seed=seed)
    limit = 0.5 if case.get("dtype") == "bf16" else 0.1
    np.testing.assert_allclose(
        out.astype(np.float32), np.asarray(want).astype(np.float32), rtol=1e-2, atol=limit
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled
def test_a_convolution_is_a_product_of_its_windows(name):
    scheduled = planned(**CASES[name])
    check(scheduled, CASES[name])
    lowered = lower(scheduled, "gpu")
    assert "tma.window" in str(lowered)
    assert parse(str(lowered)) == lowered
    check(lowered, CASES[name], seed=3)


@pytest.mark.parametrize("blocks", [STREAM_K, PINGPONG])
def test_tiles_of_windows_are_shared(blocks):
    case = CASES["lines and images follow each other"]
    check(lower(planned(blocks, small_gpu(2), **case), "gpu"), case, seed=1)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled
def test_windows_are_never_stored(name):
    run = built(**CASES[name])
    assert "cp.async.bulk.tensor.4d.shared::cluster.global.im2col" in run.ptx
    assert not re.search(r"^\s*call", run.ptx, re.MULTILINE)
    assert len(run.kernels) == 1
    image, weights = run.kernels[0].maps
    assert image.buffer.name == "x"
    assert image.corners
    assert not weights.corners


def test_corners_are_those_of_the_padding():
    run = built(image=(1, 12, 10, 64), pad=1, stride=2)
    made = run.kernels[0].maps[0]
    # From -1, two steps each; the last windows begin at 9 of 0..11, and at 7 of 0..9.
    assert made.corners == (-1, -1, -2, -2, 2, 2)
    assert made.channels == 64


def test_older_gpus_store_windows():
    fn = lower_graph(graph.parse(text(image=(1, 8, 8, 64), out=64)).main, "conv")
    made = schedule(fn, "cuda -arch=sm_80", constants=("w",))
    assert [decision.rule for decision in made.decisions] == ["gemm_ampere", "elementwise"]
    lowered = lower(made.schedule.function, "gpu")
    assert "tma.window" not in str(lowered)
    check(lowered, {"image": (1, 8, 8, 64), "out": 64})


def with_body(old, new):
    made = text(image=(1, 8, 8, 64)).replace(old, new)
    return schedule(lower_graph(graph.parse(made).main, "conv"), TARGET, constants=("w",))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("axes = (1, 2)", 'axes = (1, 2), mode = "reflect"'),  # no zeros
        ("strides = (1, 1)", "strides = (1, 1)"),
    ],
)
def test_other_pads_are_stored(old, new):
    made = with_body(old, new)
    lowered = str(lower(made.schedule.function, "gpu"))
    assert ("tma.window" in lowered) == (old == new)


FAULTS = {
    "no wait for a box": (r"\n[^\n]*mbarrier\.wait:bool\(address\(%full[^\n]*", ""),
    "a kernel position too far": (r"(tma\.window[^\n]*), %k_0_1 % 3, ", r"\1, %k_0_1 % 3 + 1, "),
    "too many pixels": (r"(tma\.window:bool\([^,]*, [^,]*), 64,", r"\1, 72,"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    case = CASES["lines and images follow each other"]
    good = str(lower(planned(**case), "gpu"))
    bad = re.sub(*FAULTS[fault], good, count=1)
    assert bad != good
    with pytest.raises((ExecutionError, AssertionError)):
        check(parse(bad), case)


def model(channels=64, kernel=3, stride=1, size=6):
    rng, pad = np.random.default_rng(1), kernel // 2
    constants = {
        "w": rng.standard_normal((64, channels, kernel, kernel)).astype(np.float32) / 16,
        "b": rng.standard_normal(64).astype(np.float32),
        "v": rng.standard_normal((64, 64, 1, 1)).astype(np.float32) / 8,
    }
    return graph.parse(
        f"""graph @main(%x: f32[2, {channels}, {size}, {size}]) {{
      %w = constant() {{data = "w"}}
      %b = constant() {{data = "b"}}
      %v = constant() {{data = "v"}}
      %c = conv(%x, %w, %b) {{strides = ({stride}, {stride}), pads = ({pad}, {pad}, {pad}, {pad}),
                             dilations = (1, 1), groups = 1}}
      %r = relu(%c)
      %y = conv(%r, %v) {{strides = (2, 2), pads = (0, 0, 0, 0), dilations = (1, 1), groups = 1}}
      return %y
    }}""",
        constants,
    )


@pytest.mark.parametrize("precision", ["f16", "bf16", "tf32"])
@pytest.mark.parametrize("channels", [64, 5])
@pytest.mark.sampled
def test_a_model_is_multiplied_by_tensor_cores(precision, channels):
    module = tw.compile(model(channels), target=TARGET, precision=precision, cache=False)
    rules = [d.rule for k in module.program.kernels.values() for d in k.decisions]
    assert rules.count("gemm_hopper") == 2
    x = np.random.default_rng(0).standard_normal((2, channels, 6, 6)).astype(np.float32)
    (want,) = graph.interpret(model(channels), x)
    (out,) = fetched(module, on_host(module)(x))
    np.testing.assert_allclose(out, want, rtol=2e-2, atol=3e-2)


@pytest.mark.parametrize(("filters", "rules"), [(10, 1), (8, 1), (6, 0)])
def test_few_filters_of_a_window_are_multiplied_by_tensor_cores(filters, rules):
    """An image is read in 16 bits then, and results are written once."""
    w = np.random.default_rng(1).standard_normal((filters, 12, 3, 3)).astype(np.float32)
    net = graph.parse(
        """graph @main(%x: f32[1, 12, 9, 9]) {
          %w = constant() {data = @w}
          %c = conv(%x, %w) {strides = (1, 1), pads = (1, 1, 1, 1), dilations = (1, 1),
                             groups = 1}
          %y = relu(%c)
          return %y
        }""",
        {"w": w},
    )
    module = tw.compile(net, target=TARGET, precision="f16", cache=False)
    found = [d.rule for k in module.program.kernels.values() for d in k.decisions]
    assert found.count("gemm_hopper") == rules
    x = np.random.default_rng(0).standard_normal((1, 12, 9, 9)).astype(np.float32)
    (want,) = graph.interpret(net, x)
    (out,) = fetched(module, on_host(module)(x))
    np.testing.assert_allclose(out, want, rtol=2e-2, atol=3e-2)


def test_windows_of_few_channels_are_copied_from_bands():
    net = model(channels=3, kernel=7, stride=2, size=20)
    module = tw.compile(net, target=TARGET, precision="f16", cache=False)
    first = next(code for code in module.codes.values() if any(k.maps for k in code.kernels))
    assert any(made.corners for kernel in first.kernels for made in kernel.maps)


def test_windows_stay_in_the_kernel_that_multiplies_them():
    module = tw.compile(model(), target=TARGET, precision="f16", cache=False)
    assert not [
        name
        for name in module.program.kernels
        if name.startswith(("pad_", "patches_")) and "matmul" not in name
    ]


def test_tiles_of_a_small_image_are_whole():
    """Copies of windows fill whole tiles, also where the image has fewer pixels than a tile."""
    fn = lower_graph(graph.parse(text(image=(1, 7, 7, 512), out=512)).main, "conv")
    plan = f"groups=1 block_n=32 slots=5 span=1 split_k=1 boxes=4 {ALONE}"
    with pytest.raises(UserError, match="TW2702"):  # shared memory does not hold them
        schedule(fn, TARGET, constants=("w",), choices={"m": Choice("gemm_hopper", plan)})
