"""Convolutions on dot-product instructions: the same bits as NumPy, on every target that has some.

Every target is interpreted; what the machine at hand has runs natively too.
"""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.dots import DOTS, dots_of
from tilewright.base.dtype import F32, U8
from tilewright.base.target import Target
from tilewright.codegen.build import build
from tilewright.graph import Builder, TensorType, interpret
from tilewright.rules import default_schedule
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.conv_dot import CONV_DOT
from tilewright.sym import const
from tilewright.tensor.constants import Given, split_constant_blocks

TARGETS = {
    "vnni": ("x86_64-linux-gnu -mcpu=cascadelake", "u8", "i8", "i32"),
    "avx2": ("x86_64-linux-gnu -mcpu=haswell", "i16", "i16", "i32"),
    "bf16": ("x86_64-linux-gnu -mcpu=cooperlake", "bf16", "bf16", "f32"),
    "neon": ("aarch64-linux-gnu -mcpu=neoverse-n1", "i8", "i8", "i32"),
}
every_target = pytest.mark.parametrize("kind", TARGETS)
NUMPY = {"i32": np.int32, "f32": np.float32, "i16": np.int16, "u8": np.uint8, "i8": np.int8}
NUMPY["bf16"] = ml_dtypes.bfloat16

# The host, without the matrix tiles that would serve instead.
WITHOUT_TILES = "cpu -mattr=-amx-tile" if Target.host().has("amx") else "cpu"


class Conv:
    """A convolution channels last: [n, height, width, c] by [o, c, kernel, kernel]."""

    def __init__(self, kind, size, c, o, kernel, stride=1, dilation=1, groups=1, pad=0, dynamic=""):
        self.kind, self.kernel, self.stride, self.dilation = kind, kernel, stride, dilation
        self.groups, self.pad, self.dynamic = groups, pad, dynamic
        self.target, a, b, self.wide = TARGETS[kind]
        reach = (kernel - 1) * dilation + 1
        height, width = ((side - 1) * stride + reach - 2 * pad for side in size)
        random = np.random.default_rng(0)

        def values(of, shape):
            if of == "bf16":  # whole numbers, whose sums are exact
                return random.integers(-4, 5, shape).astype(NUMPY[of])
            limits = np.iinfo(NUMPY[of])
            made = random.integers(limits.min, limits.max, shape, endpoint=True)
            return made.astype(NUMPY[of])

        self.types = (a, b)
        self.x = values(a, (1 + (kernel == 3 and pad == 1), height, width, c))
        self.w = values(b, (o, c // groups, kernel, kernel))
        self.size = size

    @property
    def function(self):
        (n, height, width, c), (o, inner, kernel, _) = self.x.shape, self.w.shape
        out = list(self.size)
        if self.dynamic:
            out[0] = te.var("y")
            height = (out[0] - 1) * self.stride + (kernel - 1) * self.dilation + 1 - 2 * self.pad
        X = te.placeholder((n, height, width, c), self.types[0], name="X")
        W = te.placeholder(self.w.shape, self.types[1], name="W")
        seen, pad = X, self.pad
        if pad:
            zero = te.const(0, self.types[0])

            def padded(n, y, x, c):
                inside = te.all(y >= pad, y < height + pad, x >= pad, x < width + pad)
                return te.if_then_else(inside, X[n, y - pad, x - pad, c], zero)

            seen = te.compute((n, height + 2 * pad, width + 2 * pad, c), padded, name="P")
        rc, ri, rj = (te.reduce_axis((0, size), name="r") for size in self.w.shape[1:])
        per_group = o // self.groups

        def element(n, y, x, m):
            channel = rc if self.groups == 1 else m // per_group * inner + rc
            at = (y * self.stride + ri * self.dilation, x * self.stride + rj * self.dilation)
            left = te.cast(seen[(n, *at, channel)], self.wide)
            return te.sum(left * te.cast(W[m, rc, ri, rj], self.wide), axis=[rc, ri, rj])

        Y = te.compute((n, *out, o), element, name="Y")
        return te.function([X, W, Y], name="conv")

    @property
    def want(self):
        around = [(0, 0), (self.pad, self.pad), (self.pad, self.pad), (0, 0)]
        x = np.pad(self.x.astype(np.int64), around)
        w = self.w.astype(np.int64)
        (o, inner, kernel, _), (height, width) = w.shape, self.size
        made = np.zeros((x.shape[0], height, width, o), np.int64)
        for i in range(kernel):
            for j in range(kernel):
                rows = slice(i * self.dilation, None, self.stride)
                columns = slice(j * self.dilation, None, self.stride)
                part = x[:, rows, columns][:, :height, :width]
                for m in range(o):
                    first = m // (o // self.groups) * inner
                    made[..., m] += part[..., first : first + inner] @ w[m, :, i, j]
        return made.astype(NUMPY[self.wide])

    @property
    def is_here(self):
        """Whether the machine at hand multiplies these types."""
        return bool(dots_of(Target.host(), *self.types, self.wide))


def run(fn, arguments, native):
    """Pack what is constant, then call; natively or by the interpreter."""
    call = build if native else (lambda f: lambda *args: tw.interpret(f, *args))
    split = split_constant_blocks(fn)
    packed = [np.zeros([int(d.value) for d in b.shape], b.dtype.numpy) for b in split.results]
    if split.packer is not None:
        call(split.packer)(*(arguments[at] for at in split.weights), *packed)
    given = (
        arguments[p.position] if isinstance(p, Given) else packed[p.position] for p in split.params
    )
    call(split.kernel)(*given)


def check(conv, threads=1):
    for target, native in [(conv.target, False)] + [(WITHOUT_TILES, True)] * conv.is_here:
        scheduled = default_schedule(conv.function, target, threads=threads, constants=["W"])
        assert any(f"call {dot.name}.update" in str(scheduled.function) for dot in DOTS)
        got = np.zeros(conv.want.shape, conv.want.dtype)
        run(scheduled.function, [conv.x, conv.w, got], native)
        np.testing.assert_array_equal(got, conv.want)


@every_target
def test_windows_of_whole_groups(kind):
    check(Conv(kind, (5, 6), 16, 32, 3))


@every_target
def test_channels_that_fill_no_panel(kind):
    check(Conv(kind, (4, 5), 8, 37, 3, stride=2, dilation=2))


@every_target
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.sampled
def test_padding_is_made_where_it_is_read(kind, threads):
    check(Conv(kind, (6, 7), 4, 32, 3, pad=1), threads)


@every_target
def test_groups_of_channels(kind):
    check(Conv(kind, (4, 4), 16, 64, 3, groups=2))


def test_a_height_that_only_the_run_knows():
    check(Conv("neon", (9, 6), 16, 24, 3, stride=2, dynamic="y"))
    check(Conv("vnni", (5, 4), 8, 32, 3, dynamic="y"))


def test_every_plan_gives_the_same_answer():
    conv = Conv("neon", (5, 6), 16, 24, 3)
    context = RuleContext(Target.parse(conv.target), 2, frozenset(["W"]))
    problem = CONV_DOT.match(sch := tw.Schedule(conv.function), sch.get_block("Y"), context)
    space = CONV_DOT.plans(problem, context)
    some = space.columns()
    assert ((CONV_DOT.cost(problem, some, context).cycles) > 0).all()
    rows = np.random.default_rng(1).permutation(len(some["mr"]))[:6]
    assert len(rows) == 6
    for row in rows:
        plan = space.plan_at(some, row)
        sch = tw.Schedule(conv.function)
        CONV_DOT.apply(sch, CONV_DOT.match(sch, sch.get_block("Y"), context), plan, context)
        got = np.zeros(conv.want.shape, conv.want.dtype)
        run(sch.function, [conv.x, conv.w, got], conv.is_here)
        np.testing.assert_array_equal(got, conv.want, err_msg=str(plan))


@pytest.mark.parametrize(
    "conv",
    [
        Conv("neon", (4, 4), 16, 16, 3, groups=16),  # depthwise
        Conv("neon", (4, 4), 6, 16, 3),  # no whole groups
        Conv("vnni", (4, 4), 16, 16, 3, groups=2),  # groups narrower than a vector
    ],
    ids=["depthwise", "channels", "groups"],
)
def test_what_has_no_such_plan(conv):
    context = RuleContext(Target.parse(conv.target), 1, frozenset(["W"]))
    sch = tw.Schedule(conv.function)
    assert CONV_DOT.match(sch, sch.get_block("Y"), context) is None


@pytest.mark.parametrize(("groups", "stride"), [(1, 1), (32, 1), (32, 2), (2, 1)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.sampled
def test_padding_by_a_zero_point_in_the_kernel(groups, stride, threads):
    """Between two products, of an image so small that a kernel of its own would not pay."""
    b, rng = Builder(), np.random.default_rng(0)
    x = b.param("x", TensorType(U8, tuple(map(const, (1, 9, 9, 32)))))
    window = {"dilations": (1, 1), "pads": (0,) * 4, "layout": "channels_last"}
    w = b.constant(rng.integers(-9, 9, (32, 32, 1, 1)).astype(np.int8), "v")
    scale, zero = b.constant(np.float32(40.0), "scale"), b.constant(np.uint8(7), "zero")
    sums = b.add("conv_integer", x, w, groups=1, strides=(1, 1), **window)
    image = b.add("quantize", b.add("cast", sums, to=F32), scale, zero, to=U8)
    padded = b.add("pad", image, None, zero, pads=(0, 1, 1, 0, 0, 1, 1, 0))
    taps = b.constant(rng.integers(-9, 9, (32, 32 // groups, 3, 3)).astype(np.int8), "w")
    made = b.add("conv_integer", padded, taps, groups=groups, strides=(stride, stride), **window)
    module = b.module(made)
    array = rng.integers(0, 255, (1, 9, 9, 32)).astype(np.uint8)
    (got,) = tw.compile(module, threads=threads)(array)
    np.testing.assert_array_equal(np.asarray(got), interpret(module, array)[0])
