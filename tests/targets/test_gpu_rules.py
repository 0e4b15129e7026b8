"""Plans of GPU rules: whatever is decided, threads compute what plain loops compute."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright import graph, te
from tilewright.base.errors import TilewrightError
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.codegen.nvptx import device_code
from tilewright.graph.passes.lower_precision import lower_precision_f16
from tilewright.lower.graph import lower_graph
from tilewright.rules import gpu as rules
from tilewright.rules import schedule
from tilewright.rules.rule import Choice
from tilewright.rules.space import plan_text
from tilewright.tensor import interpret
from tilewright.tensor.constants import Given, split_constant_blocks
from tilewright.tensor.passes import lower
from tilewright.tensor.visit import kernels_of

sys.path.insert(0, str(Path(__file__).parent))
from host_gpu import assembled

TARGET = "cuda -arch=sm_90a"


def convolution(channels, out, size, kernel=3, stride=1, pad=1, batch=1, winograd=0):
    module = graph.parse(
        f"""
        graph @main(%x: f32[{batch}, {channels}, {size}, {size}],
                    %w: f32[{out}, {channels}, {kernel}, {kernel}], %b: f32[{out}]) {{
          %c = conv(%x, %w, %b) {{
            strides = ({stride}, {stride}), pads = ({pad}, {pad}, {pad}, {pad}),
            dilations = (1, 1), groups = 1, winograd = {winograd}}}
          %y = relu(%c)
          return %y
        }}
        """
    )
    return lower_graph(module.main, "conv")


def product(k, n, rows=1, transposed=False):
    x = te.placeholder((rows, k), "f32", name="x")
    w = te.placeholder((n, k) if transposed else (k, n), "f32", name="w")
    b = te.placeholder((n,), "f32", name="b")
    r = te.reduce_axis((0, k), name="r")

    def term(i, j):
        return te.sum(x[i, r] * (w[j, r] if transposed else w[r, j]), axis=r)

    c = te.compute((rows, n), term, name="c")
    d = te.compute((rows, n), lambda i, j: c[i, j] + b[j], name="d")
    return te.function([x, w, b, d], name="product")


def arrays_of(fn):
    random = np.random.default_rng(3)
    return [
        random.standard_normal([int(dim.value) for dim in param.shape]).astype(np.float32)
        for param in fn.params
    ]


def on_threads(fn, block, rule, plan, constants=("w", "b")):
    """What a plan computes, kernels interpreted, weights packed beforehand; and the decisions."""
    choices = {block: Choice(rule, plan)} if plan else None
    made = schedule(fn, TARGET, constants=constants, choices=choices)
    split = split_constant_blocks(made.schedule.function)
    arrays = arrays_of(fn)
    packed = [np.zeros([int(d.value) for d in p.shape], np.float32) for p in split.results]
    if split.packer is not None:
        interpret(split.packer, *[arrays[at] for at in split.weights], *packed)
    args = [
        arrays[p.position] if isinstance(p, Given) else packed[p.position] for p in split.params
    ]
    args[-1][...] = np.nan
    device = lower(split.kernel, "gpu", PassContext(target=Target.parse(TARGET)))
    interpret(device, *args)
    return args[-1], made


def check(fn, block, rule, plan, constants=("w", "b")):
    got, made = on_threads(fn, block, rule, plan, constants)
    want = arrays_of(fn)
    interpret(fn, *want)
    np.testing.assert_allclose(got, want[-1], rtol=2e-4, atol=2e-4)
    assert any(each.rule == rule for each in made.decisions), made.refusals
    return made


def plan_of(fields, values):
    return " ".join(f"{name}={value}" for name, value in zip(fields, values, strict=True))


CONVOLUTION = ("block_m", "block_y", "block_x", "block_k", "thread_m", "thread_y", "slices",
               "split_k")  # fmt: skip
CONVOLUTIONS = [
    ((8, 16, 8), (16, 4, 8, 4, 4, 2, 1, 1)),
    ((8, 16, 8), (16, 4, 8, 4, 4, 2, 2, 1)),  # groups of threads share the sum
    ((8, 16, 8), (16, 8, 8, 2, 8, 4, 1, 4)),  # blocks share it
    ((8, 16, 8), (16, 8, 4, 2, 4, 4, 2, 2)),  # both
    ((8, 20, 7), (20, 7, 7, 8, 4, 7, 4, 1)),
    ((6, 8, 12, 5, 2, 2), (8, 3, 6, 2, 2, 3, 2, 1)),  # strides
    ((16, 16, 6, 1, 1, 0), (16, 6, 6, 16, 4, 3, 4, 1)),  # pointwise
    ((3, 3, 9, 3, 1, 1, 2), (3, 9, 9, 3, 3, 1, 1, 1)),  # a batch, few channels
    ((13, 11, 7, 1, 1, 0), (8, 7, 7, 4, 4, 1, 2, 1)),  # sizes that no tile divides
    ((13, 11, 11, 3, 1, 1, 2), (8, 4, 11, 4, 4, 2, 1, 1)),
    ((13, 11, 27, 3, 2, 0), (8, 8, 13, 4, 4, 2, 1, 2)),  # blocks share the sum
    ((37, 5, 13, 1, 1, 0), (8, 2, 13, 4, 2, 2, 4, 4)),
    ((3, 5, 69, 3, 1, 0), (8, 2, 16, 4, 2, 2, 1, 1)),
]


@pytest.mark.parametrize(("shape", "plan"), CONVOLUTIONS)
@pytest.mark.sampled
def test_convolutions_by_any_plan(shape, plan):
    check(convolution(*shape), "c_sum", "convolution", plan_of(CONVOLUTION, plan))


WINOGRAD = ("block_m", "block_y", "block_x", "block_k", "thread_m", "thread_y", "thread_x",
            "split_k", "transform_threads")  # fmt: skip
WINOGRADS = [
    (4, (8, 32, 9), (32, 1, 16, 8, 4, 1, 4, 1, 32)),  # tiles reach over the edge, rows are filled
    (2, (8, 8, 7), (8, 1, 16, 8, 2, 1, 2, 1, 32)),
    (4, (16, 8, 8), (8, 1, 4, 4, 1, 1, 1, 2, 32)),  # blocks share the sum
    (4, (16, 16, 6, 3, 1, 0, 2), (16, 1, 2, 4, 1, 1, 1, 1, 32)),  # a batch, no pads
]


@pytest.mark.parametrize(("tile", "shape", "plan"), WINOGRADS)
def test_convolutions_by_winograds_method(tile, shape, plan):
    fn = convolution(*shape, winograd=tile)
    made = check(fn, "c_product", "winograd", plan_of(WINOGRAD, plan))
    split = split_constant_blocks(made.schedule.function)
    assert split.packer is not None, "weights are transformed beforehand"
    assert len([*kernels_of(lower(split.kernel, "gpu").body)]) == 3


def test_winograds_method_needs_weights_that_are_known():
    fn = convolution(8, 16, 8, winograd=4)
    made = schedule(fn, TARGET)
    assert not any(each.rule == "winograd" for each in made.decisions)


def test_winograds_method_stays_in_registers():
    plan = Choice("winograd", plan_of(WINOGRAD, (16, 1, 16, 8, 2, 1, 4, 2, 64)))
    fn = convolution(32, 16, 16, winograd=4)
    made = schedule(fn, TARGET, constants=("w", "b"), choices={"c_product": plan})
    split = split_constant_blocks(made.schedule.function)
    device = lower(split.kernel, "gpu", PassContext(target=Target.parse(TARGET)))
    said = assembled(device_code(device, Target.parse(TARGET)).ptx)
    assert said.count("0 bytes spill stores, 0 bytes spill loads") == 3


def depthwise(images, size, channels, stride=1, kind="f16", kernel=3, pad=1):
    module = graph.parse(
        f"""
        graph @main(%x: {kind}[{images}, {size}, {size}, {channels}],
                    %w: {kind}[{channels}, 1, {kernel}, {kernel}], %b: f32[{channels}]) {{
          %c = conv(%x, %w) {{
            strides = ({stride}, {stride}), pads = ({pad}, {pad}, {pad}, {pad}),
            dilations = (1, 1), groups = {channels}, layout = "channels_last", to = dtype f32}}
          %d = add(%c, %b)
          %y = cast(%d) {{to = dtype {kind}}}
          return %y
        }}
        """
    )
    return lower_graph(module.main, "depthwise")


@pytest.mark.parametrize(
    ("shape", "plan"),
    [
        ((2, 8, 16), "columns=4 lanes=8 threads=32 across=2"),
        ((1, 7, 32, 2), "columns=2 lanes=8 threads=32 across=2"),
        ((2, 9, 32, 2, "f16", 5, 0), "columns=1 lanes=2 threads=32 across=16"),
        ((1, 8, 16, 1, "f32"), "columns=2 lanes=4 threads=32 across=4"),
        ((1, 8, 32, 1, "f16", 7, 3), "columns=2 lanes=8 threads=32 across=4"),
        # The last block is partial.
        ((2, 5, 24), "columns=1 lanes=4 threads=64 across=2"),
        ((2, 7, 12), "columns=7 lanes=2 threads=32 across=3"),
        ((1, 5, 11, 1, "f16", 5, 2), "columns=5 lanes=1 threads=128 across=11"),
    ],
)
def test_depthwise_convolutions_of_channels_side_by_side(shape, plan):
    check_depthwise(depthwise(*shape), plan)


def strip(image, out, kernel, strides=None, pads=None, groups=None):
    """A depthwise convolution over any number of axes, with several results per channel."""
    axes = len(kernel)
    pads = pads or tuple(size // 2 for size in kernel) * 2
    module = graph.parse(
        f"""
        graph @main(%x: f16[{", ".join(map(str, image))}],
                    %w: f16[{", ".join(map(str, (out, 1, *kernel)))}], %b: f32[{out}]) {{
          %c = conv(%x, %w) {{
            strides = {strides or (1,) * axes}, pads = {pads}, dilations = {(1,) * axes},
            groups = {image[-1]}, layout = "channels_last", to = dtype f32}}
          %y = add(%c, %b)
          return %y
        }}
        """.replace(",)", ")")
    )
    return lower_graph(module.main, "strip")


@pytest.mark.parametrize(
    ("shape", "plan"),
    [
        (((2, 9, 16), 16, (5,)), "columns=3 lanes=4 threads=32 across=2"),  # a sequence
        (((2, 8, 12), 24, (3,)), "columns=2 lanes=4 threads=32 across=3"),
        (((1, 6, 7, 8), 16, (3, 3)), "columns=1 lanes=4 threads=32 across=4"),
        (((1, 6, 6, 4), 8, (3, 3), (2, 2)), "columns=3 lanes=1 threads=32 across=8"),
        (((2, 4, 6, 16), 16, (1, 5)), "columns=2 lanes=8 threads=32 across=2"),
        (((2, 6, 4, 16), 16, (5, 1)), "columns=4 lanes=8 threads=32 across=1"),
    ],
)
def test_depthwise_convolutions_of_sequences_strips_and_repeated_channels(shape, plan):
    check_depthwise(strip(*shape), plan)


def check_depthwise(fn, plan):
    made = schedule(fn, TARGET, constants=("w", "b"), choices={"c": Choice("depthwise", plan)})
    split = split_constant_blocks(made.schedule.function)
    arrays = [
        array.astype(param.dtype.numpy)
        for array, param in zip(arrays_of(fn), fn.params, strict=True)
    ]
    packed = [np.zeros([int(d.value) for d in p.shape], p.dtype.numpy) for p in split.results]
    interpret(split.packer, *[arrays[at] for at in split.weights], *packed)
    args = [
        arrays[p.position] if isinstance(p, Given) else packed[p.position] for p in split.params
    ]
    device = lower(split.kernel, "gpu", PassContext(target=Target.parse(TARGET)))
    interpret(device, *args)
    want = [array.copy() for array in arrays]
    interpret(fn, *want)
    np.testing.assert_allclose(
        args[-1].astype(np.float32), want[-1].astype(np.float32), rtol=2e-3, atol=2e-3
    )
    assembled(device_code(device, Target.parse(TARGET)).ptx)


@pytest.mark.parametrize(
    ("size", "channels"), [(19, 728), (150, 64), (83, 42), (11, 672), (7, 220)]
)
def test_depthwise_convolutions_of_any_size_fill_blocks_and_wait_once(size, channels):
    """Whatever blocks do not divide: a last one is partial. Padding takes no branches."""
    made = schedule(depthwise(8, size, channels), TARGET, constants=("w", "b"))
    (decision,) = made.decisions
    plan = dict(each.split("=") for each in decision.plan.split())
    assert decision.rule == "depthwise"
    assert int(plan["lanes"]) >= min(4, channels & -channels)
    split = split_constant_blocks(made.schedule.function)
    device = lower(split.kernel, "gpu", PassContext(target=Target.parse(TARGET)))
    ptx = device_code(device, Target.parse(TARGET)).ptx
    assert ptx.count("bra") <= 2  # for a last block
    assert "0 bytes spill stores, 0 bytes spill loads" in assembled(ptx)


@pytest.mark.parametrize(("size", "kernel"), [(28, 7), (32, 9)])
def test_large_windows_of_single_channels_spill_nothing(size, kernel):
    fn = depthwise(8, size, 96, 1, "f16", kernel, kernel // 2)
    made = schedule(fn, TARGET, constants=("w", "b"))
    assert [each.rule for each in made.decisions] == ["depthwise"]
    split = split_constant_blocks(made.schedule.function)
    device = lower(split.kernel, "gpu", PassContext(target=Target.parse(TARGET)))
    said = assembled(device_code(device, Target.parse(TARGET)).ptx)
    assert "0 bytes spill stores, 0 bytes spill loads" in said


def test_threads_of_a_depthwise_convolution_load_sixteen_bytes():
    fn = depthwise(32, 112, 64, 2)
    made = schedule(fn, TARGET, constants=("w", "b"))
    assert [each.rule for each in made.decisions] == ["depthwise"]
    split = split_constant_blocks(made.schedule.function)
    device = lower(split.kernel, "gpu", PassContext(target=Target.parse(TARGET)))
    ptx = device_code(device, Target.parse(TARGET)).ptx
    assert "ld.global.v4" in ptx
    assert "st.global.v4" in ptx
    assert "ld.global.b16" not in ptx
    assert "0 bytes spill stores, 0 bytes spill loads" in assembled(ptx)


@pytest.mark.parametrize("shape", [(8, 16, 8), (4, 12, 10, 3, 2), (12, 8, 13), (32, 32, 4),
                                   (29, 23, 7, 1, 1, 0), (17, 9, 11, 3, 2),
                                   (3, 24, 80, 20, 20, 0)])  # fmt: skip
def test_convolutions_by_the_default_plan(shape):
    check(convolution(*shape), "c_sum", "convolution", None)


def test_weights_that_are_not_known_are_not_packed():
    fn = convolution(8, 16, 8)
    plan = plan_of(CONVOLUTION, (16, 4, 8, 4, 4, 2, 2, 1))
    made = check(fn, "c_sum", "convolution", plan, constants=())
    assert split_constant_blocks(made.schedule.function).packer is None


def test_a_convolution_keeps_its_tiles_small():
    """Each step over channels fills the same tile of shared memory."""
    fn = convolution(32, 16, 8)
    plan = plan_of(CONVOLUTION, (16, 4, 8, 4, 4, 2, 1, 1))
    made = schedule(
        fn, TARGET, constants=("w", "b"), choices={"c_sum": Choice("convolution", plan)}
    )
    kernel = split_constant_blocks(made.schedule.function).kernel
    text = str(lower(kernel, "gpu", PassContext(target=Target.parse(TARGET))))
    sizes = [line for line in text.splitlines() if "alloc" in line and "in shared" in line]
    assert any("f32[240]" in line for line in sizes), sizes  # 4 channels of 6 x 10 pixels
    assert any("f32[576]" in line for line in sizes), sizes  # 4 channels, 9 positions, 16 out


GEMV = ("lanes", "vector", "parts", "unroll")
GEMVS = [
    ((96, 40), (5, 4, 16, 4)),
    ((97, 40), (10, 2, 8, 8)),  # a sum that no group divides
    ((130, 18), (9, 1, 13, 4)),
    ((96, 40, 3), (2, 4, 32, 8)),  # several rows
]


@pytest.mark.parametrize(("shape", "plan"), GEMVS)
def test_gemv_by_any_plan(shape, plan):
    check(product(*shape), "c", "gemv", plan_of(GEMV, plan))


@pytest.mark.parametrize("shape", [(200, 70), (65, 13), (500, 7)])
def test_gemv_by_the_default_plan(shape):
    check(product(*shape), "c", "gemv", None)


def test_loads_of_a_gemv_stay_in_registers():
    """Of the 25,088 rows behind a convolutional network, each thread asks for a divisor at once."""
    made = check(product(784, 64), "c", "gemv", None)
    plan = dict(each.split("=") for each in made.decisions[0].plan.split())
    each = -(-784 // int(plan["parts"]))
    assert each <= int(plan["unroll"]) or each % int(plan["unroll"]) == 0


def test_a_gemv_loads_ahead_only_what_it_reads():
    """Sixteen of 11 x 11 pixels lie in a box of 12 x 11, which is not copied."""
    a = te.placeholder((2, 11, 11, 32), name="a")
    rows, columns = te.reduce_axis((0, 11), name="rows"), te.reduce_axis((0, 11), name="columns")
    sums = te.compute(
        (2, 32), lambda n, c: te.sum(a[n, rows, columns, c], axis=(rows, columns)), name="c"
    )
    made = check(te.function([a, sums], name="sums"), "c", "gemv", plan_of(GEMV, (8, 4, 8, 16)))
    assert "a_local" not in str(made.schedule.function)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("k", "plan", "shape"),
    [(96, (5, 4, 16, 4), [2, 6, 16, 20]), (97, (10, 2, 8, 8), [2, 97, 20])],  # no equal parts
)
def test_gemv_packs_weights_as_threads_ask_for_them(k, plan, shape, transposed):
    made = check(product(k, 40, transposed=transposed), "c", "gemv", plan_of(GEMV, plan))
    (packed,) = split_constant_blocks(made.schedule.function).results
    assert [int(dim.value) for dim in packed.shape] == shape


@pytest.mark.parametrize(("shape", "rule"), [((2, 520, 16), "gemv"), ((3, 20, 64), "reduction")])
def test_what_reads_each_sum_many_times_has_threads_of_its_own(shape, rule):
    """The few threads that hold sums would write all that they scale."""
    x = te.placeholder(shape, "f32", name="x")
    w = te.placeholder(shape, "f32", name="w")
    r = te.reduce_axis((0, shape[1]), name="r")
    batch, _, n = shape
    c = te.compute((batch, n), lambda i, j: te.sum(x[i, r, j], axis=r), name="c")
    y = te.compute(shape, lambda i, k, j: c[i, j] * w[i, k, j], name="y")
    fn = te.function([x, w, y], name="scaled")
    made = schedule(fn, TARGET, only=frozenset({rule, "elementwise"}))
    assert [each.rule for each in made.decisions] == [rule, "elementwise"]
    device = lower(made.schedule.function, "gpu")
    assert len([*kernels_of(device.body)]) == 2
    got, want = arrays_of(fn), arrays_of(fn)
    interpret(device, *got)
    interpret(fn, *want)
    np.testing.assert_allclose(got[-1], want[-1], rtol=2e-4, atol=2e-4)


def windows(channels, wide, kind="f16", size=6):
    """The pixels of a row that three columns of a kernel see, side by side, filled up to `wide`."""
    x = te.placeholder((2, size, channels), kind, name="x")

    def element(n, i, c):
        column = i + c // channels - 1
        inside = te.all(c < 3 * channels, column >= 0, column < size)
        return te.if_then_else(inside, x[n, column, c % channels], te.const(0, kind))

    y = te.compute((2, size, wide), element, name="y")
    return te.function([x, y], name="windows")


@pytest.mark.parametrize(
    ("channels", "wide", "vector"),
    [(32, 128, 8), (24, 128, 8), (20, 64, 4), (3, 16, 1), (16, 50, 2), (7, 32, 1)],
)
def test_windows_are_copied_by_vectors_that_channels_and_edges_are_multiples_of(
    channels, wide, vector
):
    fn = windows(channels, wide)
    wider = Choice("elementwise", f"threads=64 vector={2 * vector} unroll=1")
    with pytest.raises(TilewrightError, match="vector"):
        schedule(fn, TARGET, choices={"y": wider})
    widest = Choice("elementwise", f"threads=64 vector={vector} unroll=1")
    made = schedule(fn, TARGET, choices={"y": widest})
    device = lower(made.schedule.function, "gpu", PassContext(target=Target.parse(TARGET)))
    arrays = [
        each.astype(param.dtype.numpy) for each, param in zip(arrays_of(fn), fn.params, strict=True)
    ]
    want = [each.copy() for each in arrays]
    interpret(device, *arrays)
    interpret(fn, *want)
    np.testing.assert_array_equal(arrays[-1], want[-1])
    ptx = device_code(device, Target.parse(TARGET)).ptx
    assert re.search(r"@%p\d+ ld\.global" + (r"\.v4" if vector == 8 else ""), ptx)
    assembled(ptx)


def gathered():
    """Tokens of a window around each token: a feature of all of them, then the next feature."""
    x = te.placeholder((12, 4, 64), "f32", name="x")
    at = te.placeholder((9, 8), "i64", name="at")

    def taken(b, t, i):
        return x[te.min(te.max(at[i % 9, t], 0), 11), b, i // 9]

    return te.function([x, at, te.compute((4, 8, 576), taken, name="y")], name="gathered")


@pytest.mark.parametrize("plan", ["threads=32 vector=1 unroll=9", "threads=64 vector=1 unroll=1"])
def test_runs_of_a_divisor_have_one_quotient(plan):
    fn = gathered()
    made = schedule(fn, TARGET, choices={"y": Choice("elementwise", plan)})
    device = lower(made.schedule.function, "gpu", PassContext(target=Target.parse(TARGET)))
    random = np.random.default_rng(0)
    given = random.standard_normal((12, 4, 64)).astype(np.float32), random.integers(0, 12, (9, 8))
    got, want = np.zeros((4, 8, 576), np.float32), np.zeros((4, 8, 576), np.float32)
    interpret(device, *given, got)
    interpret(fn, *given, want)
    np.testing.assert_array_equal(got, want)


def test_only_runs_of_a_divisor_are_offered():
    fn, plan = gathered(), Choice("elementwise", "threads=64 vector=1 unroll=3")
    with pytest.raises(TilewrightError, match="unroll"):
        schedule(fn, TARGET, choices={"y": plan})


def transposed(shape, perm):
    """With a bias along the last axis of the result."""
    x = te.placeholder(shape, "f32", name="x")
    b = te.placeholder((shape[perm[-1]],), "f32", name="b")
    made = tuple(shape[axis] for axis in perm)

    def element(*at):
        return x[tuple(at[perm.index(axis)] for axis in range(len(perm)))] + b[at[-1]]

    return te.function([x, b, te.compute(made, element, name="y")], name="transposed")


@pytest.mark.parametrize(
    ("shape", "perm", "plan"),
    [
        ((40, 70), (1, 0), (32, 32, 256)),
        ((40, 70), (1, 0), (16, 64, 128)),
        ((2, 33, 3, 20), (0, 2, 3, 1), (16, 32, 512)),  # channels last
        ((3, 40, 50), (2, 0, 1), (64, 16, 256)),
    ],
)
def test_transposes_go_through_tiles(shape, perm, plan):
    fields = plan_of(("rows", "columns", "threads"), plan)
    made = check(transposed(shape, perm), "y", "transpose", fields, constants=())
    text = str(lower(made.schedule.function, "gpu"))
    read, written = (re.search(rf"{name}\[[^=]*%ax\w+ % (\d+)\]", text) for name in ("= %x", "%y"))
    # Neighbouring threads have neighbours of memory, on either side.
    assert read
    assert written


@pytest.mark.parametrize(
    ("shape", "perm", "rule"),
    [
        ((64, 64), (1, 0), "transpose"),
        ((40, 50, 3), (1, 0, 2), "elementwise"),  # lines stay whole
        ((2, 3, 40, 40), (0, 2, 3, 1), "elementwise"),  # results of three neighbours
    ],
)
def test_what_reads_across_lines_is_a_transpose(shape, perm, rule):
    made = schedule(transposed(shape, perm), TARGET)
    assert [each.rule for each in made.decisions] == [rule]


def test_an_index_that_neighbours_share_leaves_accesses_as_wide_as_they_are():
    text = "graph @main(%x: f32[64, 768], %at: i64[512]) {"
    text += "%y = gather(%x, %at) {axis = 0} return %y }"
    made = schedule(lower_graph(graph.parse(text).main, "f"), TARGET)
    assert [(each.rule, each.plan) for each in made.decisions] == [
        ("elementwise", "threads=256 vector=4 unroll=1")
    ]
    device = lower(made.schedule.function, "gpu", PassContext(target=Target.parse(TARGET)))
    ptx = device_code(device, Target.parse(TARGET)).ptx
    assert len(re.findall(r"(?:ld|st)\.global\.v4\.b32", ptx)) == 2


@pytest.mark.parametrize(
    ("dims", "sizes", "vector"),
    [
        ("b, 3, 8", (5, 3, 8), 4),
        ("b, 7, 6", (5, 7, 6), 2),
        ("b, n", (3, 5), 1),
        ("8, n", (8, 5), 4),
    ],
)
def test_known_axes_beside_one_that_calls_tell_are_taken_by_vectors(dims, sizes, vector):
    text = f"graph @main(%x: f32[{dims}]) {{ %y = abs(%x) %z = sqrt(%y) return %z }}"
    fn = lower_graph(graph.parse(text).main, "f")
    made = schedule(fn, TARGET)
    (offer,) = made.offers
    assert max(offer.space.columns()["vector"]) == vector
    wide = Choice("elementwise", f"threads=32 vector={vector} unroll=1")
    made = schedule(fn, TARGET, choices={made.decisions[0].block: wide})
    told = [size for dim, size in zip(dims.split(", "), sizes, strict=True) if not dim.isdigit()]
    x = np.random.default_rng(0).standard_normal(sizes, np.float32)
    interpret(lower(made.schedule.function, "gpu"), x, out := np.zeros_like(x), *told)
    np.testing.assert_allclose(out, np.sqrt(np.abs(x)), rtol=1e-6)


def interleaved(rows=20, channels=3, wide=4):
    """Channels of some columns side by side: the index of a result is divided."""
    x = te.placeholder((channels, rows, wide), "f32", name="x")
    y = te.compute(
        (rows, channels * wide), lambda i, c: x[c % channels, i, c // channels] + 1.0, name="y"
    )
    return te.function([x, y], name="interleaved")


@pytest.mark.parametrize("unroll", [1, 12])
def test_neighbours_whose_indices_are_divided_may_be_one_thread_s(unroll):
    plan = f"threads=32 vector=1 unroll={unroll}"
    made = check(interleaved(), "y", "elementwise", plan, constants=())
    text = str(lower(made.schedule.function, "gpu"))
    assert ("ramp" in text) == (unroll > 1)  # stores of 16 bytes
    assert ("% 3" in text) == (unroll == 1)


def test_neighbours_of_one_thread_may_lie_in_planes_that_no_block_divides():
    x = te.placeholder((3, 5, 7, 4), "f32", name="x")
    y = te.compute((5, 7, 12), lambda h, w, c: x[c % 3, h, w, c // 3] + 1.0, name="y")
    plan = "threads=32 vector=1 unroll=12"
    check(te.function([x, y], name="planes"), "y", "elementwise", plan, constants=())


def test_divisions_are_counted_where_threads_are_many():
    (few,) = schedule(interleaved(), TARGET).decisions
    (many,) = schedule(interleaved(rows=1 << 20), TARGET).decisions
    assert few.plan.endswith("unroll=1")
    assert many.plan.endswith(("unroll=4", "unroll=12"))


def test_plans_that_do_not_fit_are_refused():
    plan = plan_of(CONVOLUTION, (16, 3, 8, 4, 4, 2, 1, 1))  # two rows per thread, three per block
    with pytest.raises(TilewrightError) as caught:
        check(convolution(8, 16, 8), "c_sum", "convolution", plan)
    assert caught.value.code == "TW2702"


# The convolutions of ResNet-18 and DQN, and products of the LSTM and the MLP of the zoo: where a
# register that is spilled, or an array of a thread that ends up in memory, costs most.
HOT = {
    "C1": convolution(3, 64, 224, 7, 2, 3),
    "C2": convolution(64, 64, 56),
    "C4": convolution(64, 128, 56, 3, 2),
    "C5": convolution(64, 128, 56, 1, 2, 0),
    "C6": convolution(128, 128, 28),
    "C9": convolution(256, 256, 14),
    "C10": convolution(256, 512, 14, 3, 2),
    "C12": convolution(512, 512, 7),
    "dqn": convolution(4, 32, 84, 8, 4, 0),
    "last of a generator": convolution(128, 3, 32, 2, 1, 1),
    "lstm": product(1300, 2600),
    "words": product(650, 10000),
    "mlp": product(2048, 2048),
}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("name", HOT)
@pytest.mark.sampled
def test_hot_kernels_stay_in_registers(name, arch):
    target = Target.parse(f"cuda -arch={arch}")
    made = schedule(HOT[name], target, constants=("w", "b"))
    assert {each.rule for each in made.decisions} & {"convolution", "gemv"}, made.refusals
    kernel = split_constant_blocks(made.schedule.function).kernel
    code = device_code(lower(kernel, "gpu", PassContext(target=target)), target)
    told = assembled(code.ptx, arch)
    assert not re.search(r"[1-9]\d* bytes (spill|stack frame)", told), told


def tailed(m, n, k):
    """A GEMM of operands along m and n."""
    a, b = te.placeholder((k, m), name="a"), te.placeholder((k, n), name="b")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((m, n), lambda i, j: te.sum(a[r, i] * b[r, j], axis=r), name="c")
    return te.function([a, b, c], name="f")


@pytest.mark.parametrize("sizes", [(45, 37, 19), (64, 50, 40), (33, 128, 9)])
def test_tails_of_gemms_are_multiplied_without_branches(sizes):
    m, n, k = sizes
    made = schedule(tailed(m, n, k), TARGET).schedule.function
    guarded = set(re.findall(r"block @(\w+)\([^\n]*\n *where", str(made)))
    assert not guarded & {"c", "c_init"}
    ptx = device_code(lower(made, "gpu"), Target.parse(TARGET)).ptx
    assert "local" not in ptx  # sums are in registers
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((k, m), (k, n)))
    out = np.full((m, n), np.nan, np.float32)
    interpret(lower(made, "gpu"), a, b, out)
    np.testing.assert_allclose(out, a.T @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [(417, 1243, 392), (137, 51, 1299), (474, 1304, 640)])
def test_tiles_of_sizes_that_none_divides_are_no_larger(sizes):
    m, n, k = sizes
    fn, target = tailed(m, n, k), Target.parse(TARGET)
    made = schedule(fn, TARGET)
    assert made.decisions[0].rule == "gemm"
    # Its code would be refused if they took more than a block has.
    device_code(lower(made.schedule.function, "gpu", PassContext(target=target)), target)


@pytest.mark.parametrize("sizes", [(16, 4096, 64, 24), (16, 512, 512, 16)])
def test_tiles_of_sums_over_several_iterators_fit(sizes):
    m, n, k, inner = sizes
    a, b = te.placeholder((m, k, inner), name="a"), te.placeholder((k, inner, n), name="b")
    r, s = te.reduce_axis((0, k), name="r"), te.reduce_axis((0, inner), name="s")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r, s] * b[r, s, j], axis=[r, s]), name="c")
    target = Target.parse("cuda -arch=sm_80")
    made = schedule(te.function([a, b, c], name="f"), target)
    assert made.decisions[0].rule == "gemm"
    device_code(lower(made.schedule.function, "gpu", PassContext(target=target)), target)


@pytest.mark.parametrize("op", ["softmax(%x) {axes = (1,)}", "layer_norm(%x, %s, %b) {axis = 1}"])
def test_rows_of_halves_stay_in_registers(op):
    row, target = "bf16[8192]", Target.parse(TARGET)
    text = f"graph @main(%x: bf16[8192, 8192], %s: {row}, %b: {row}) {{ %y = {op} return %y }}"
    made = schedule(lower_graph(graph.parse(text).main, "f"), target)
    assert made.decisions[0].plan == "threads=256 vector=8 rows=1 ahead=1"
    lowered = lower(made.schedule.function, "gpu", PassContext(target=target))
    told = assembled(device_code(lowered, target).ptx, "sm_90a")
    assert not re.search(r"[1-9]\d* bytes (spill|stack frame)", told), told
    assert int(re.search(r"Used (\d+) registers", told).group(1)) <= 64  # of four blocks


def test_few_rows_have_as_many_slots_as_there_is_room_for():
    a, b = te.placeholder((128, 4096), "bf16", name="a"), te.placeholder((4096, 4096), "bf16")
    r = te.reduce_axis((0, 4096), name="r")

    def term(i, j):
        return te.sum(te.cast(a[i, r], "f32") * te.cast(b[j, r], "f32"), axis=r)

    c = te.compute((128, 4096), term, name="c")
    made = schedule(te.function([a, b, c], name="f"), TARGET)
    assert "block_n=64 slots=6 span=2 split_k=1 boxes=2" in made.decisions[0].plan


@pytest.mark.parametrize("name", ["C5", "C10"])
def test_legal_plans_fit_shared_memory(name):
    """Those that take most of it: what the code declares is what the rule counts."""
    target = Target.parse("cuda -arch=sm_80")
    made = schedule(HOT[name], target, constants=("w", "b"))
    (offer,) = [each for each in made.offers if each.rule.name == "convolution"]
    columns = offer.space.columns()
    taken = rules.convolution._stored_bytes(offer.problem.problem, columns)
    for row in np.argsort(-taken, kind="stable")[:3]:
        choice = Choice("convolution", plan_text(offer.space.plan_at(columns, int(row))))
        fn = schedule(HOT[name], target, constants=("w", "b"), choices={offer.block: choice})
        kernel = split_constant_blocks(fn.schedule.function).kernel
        ptx = device_code(lower(kernel, "gpu", PassContext(target=target)), target).ptx
        declared = sum(map(int, re.findall(r"\.shared .*\[(\d+)\];", ptx)))
        assert 0 < declared <= min(taken[row], 48 << 10)


def test_weights_are_loaded_before_a_kernel_waits():
    """Through the cache that is not coherent the assembler would load them behind the wait."""
    fn, target = replace(product(512, 128), attrs=(("weights", (1,)),)), Target.parse(TARGET)
    made = schedule(fn, TARGET)
    ptx = device_code(lower(made.schedule.function, "gpu", PassContext(target=target)), target).ptx
    before, after = ptx.split("griddepcontrol.wait")
    assert before.count("ld.global.") > 4
    assert "ld.global.nc" not in before
    assert "ld.global." in after


@pytest.mark.parametrize(("dtype", "vectors"), [("f32", 8), ("bf16", 4)])
def test_threads_that_share_a_result_read_by_sixteen_bytes(dtype, vectors):
    x = te.placeholder((64, 8192), dtype, name="x")
    k = te.reduce_axis((0, 8192), name="k")
    y = te.compute((64,), lambda i: te.max(te.cast(x[i, k], "f32"), axis=k), name="y")
    made = schedule(te.function([x, y], name="f"), TARGET)
    assert [each.rule for each in made.decisions] == ["reduction"]
    device = lower(made.schedule.function, "gpu")
    reads = re.findall(r"ld\.global\S*", device_code(device, TARGET).ptx)
    assert len(reads) == vectors
    assert all(read.endswith(".v4.b32") for read in reads)


def test_the_bias_of_groups_is_of_channels_wherever_they_are():
    """As many columns as channels: added along the last axis it would be of columns."""
    rng = np.random.default_rng(0)

    def numbers(*shape):
        values = ", ".join(map(str, rng.integers(-4, 5, shape).ravel() / 4))
        return f"f32[{', '.join(map(str, shape))}]({values})"

    module = graph.parse(f"""graph @main(%x: f32[2, 4, 4, 4]) {{
      %w = constant() {{data = {numbers(4, 2, 3, 3)}}}
      %b = constant() {{data = {numbers(4)}}}
      %y = conv(%x, %w, %b) {{strides = (1, 1), pads = (1, 1, 1, 1), dilations = (1, 1),
        groups = 2}}
      return %y
    }}""")
    low = lower_precision_f16(module, PassContext(target=Target.parse(TARGET)))
    assert any(node.get("to") for node in low.main.nodes if node.op == "conv")
    x = rng.standard_normal((2, 4, 4, 4), np.float32)
    (want,), (got,) = graph.interpret(module, x), graph.interpret(low, x)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=2e-2, atol=2e-2)
