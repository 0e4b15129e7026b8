"""Forms of convolutions: all give the same answer, and the cheapest is taken."""

import numpy as np
import pytest

from tilewright.base.dtype import BF16, F32, I8, U8
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import KernelSetting
from tilewright.graph import Builder, Module, TensorType, interpret
from tilewright.graph.conv_forms import Problem, forms_of
from tilewright.graph.costs import AT_LEAST, ESTIMATED
from tilewright.graph.match import Steps, rewrite_matches
from tilewright.graph.passes import im2col_convolutions, lower_precision
from tilewright.graph.verify import verify
from tilewright.graph.visit import Instead
from tilewright.sym import const, size

TARGETS = {
    "tiles": "x86_64-linux-gnu -mcpu=sapphirerapids",
    "vnni": "x86_64-linux-gnu -mcpu=cascadelake",
    "avx2": "x86_64-linux-gnu -mcpu=haswell",
    "bf16": "x86_64-linux-gnu -mcpu=znver4",
    "neon": "aarch64-linux-gnu -mcpu=neoverse-n1",
}
WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}


def model(of, image, filters, kernel=(3, 3), batch=1, repeated=1, **window):
    """Convolutions of one image, channels last, by constant weights."""
    b = Builder()
    images = batch if not isinstance(batch, int) else const(batch)
    x = b.param("x", TensorType(of, (images, *map(const, image))))
    op, kind = ("conv", np.float32) if of is F32 else ("conv_integer", np.int8)
    random = np.random.default_rng(0)
    made = []
    for _ in range(repeated):
        w = random.integers(-9, 9, (filters, image[-1], *kernel)).astype(kind)
        attributes = {**WINDOW, **window}
        made.append(b.add(op, x, b.constant(w), groups=1, layout="channels_last", **attributes))
    return b.module(*made)


def on(name, threads=1):
    target = Target.parse(TARGETS[name])
    return PassContext(target=target, costs=KernelCosts(KernelSetting(target, threads)))


def chosen(module, ctx):
    step = lower_precision if module.main.params[0].tensor.dtype is F32 else im2col_convolutions
    verify(run_passes(module, (step,), ctx))
    return [choice.chosen for choice in ctx.choices]


def in_form(module, name, target):
    """The module with its convolution in a form; None if the form does not apply."""
    applied = []

    def rule(node, scope):
        if node.op != "conv_integer":
            return None
        problem = Problem(node, node.inputs[0], scope.constant(node.inputs[1]))
        nodes = forms_of(problem, target)[name](Steps(node, scope), problem)
        applied.append(nodes)
        return None if nodes is None else Instead(tuple(nodes), node.outputs)

    made = rewrite_matches(module, (rule,))
    return made if applied[0] is not None else None


@pytest.mark.parametrize("batch", [2, size("n")], ids=str)
@pytest.mark.parametrize(
    ("image", "kernel", "window"),
    [
        ((9, 8, 3), (3, 3), {}),
        ((8, 7, 20), (3, 3), {"pads": (1, 0, 2, 1)}),
        ((9, 11, 5), (2, 4), {"strides": (2, 1), "pads": (1, 2, 0, 0)}),
        ((12, 9, 4), (3, 2), {"dilations": (2, 1), "strides": (1, 2)}),
        ((6, 5, 8), (1, 1), {"strides": (2, 2), "pads": (0,) * 4}),
    ],
)
def test_every_form_gives_the_same_bits(image, kernel, window, batch):
    module = model(U8, image, 16, kernel, batch, **window)
    x = np.random.default_rng(1).integers(0, 255, (2, *image)).astype(np.uint8)
    (want,) = interpret(module, x)
    target = Target.parse(TARGETS["tiles"])
    (node,) = (node for node in module.main.nodes if node.op == "conv_integer")
    (weights,) = module.constants.values()
    names = list(forms_of(Problem(node, node.inputs[0], weights), target))
    assert len(names) > 1
    for name in names:
        made = in_form(module, name, target)
        if made is not None:
            verify(made)
            np.testing.assert_array_equal(interpret(made, x)[0], want, name)


@pytest.mark.parametrize(
    ("name", "of", "numbers"),
    [
        ("tiles", I8, ["channels of 64"]),
        ("tiles", U8, ["channels of 4", "channels of 64"]),
        ("vnni", I8, []),  # match_signs makes bytes unsigned
        ("vnni", U8, ["channels of 4"]),
        ("neon", I8, ["channels of 4"]),
        ("bf16", BF16, ["channels of 2"]),
        ("tiles", BF16, ["channels of 2", "channels of 32"]),
        ("avx2", BF16, []),
    ],
)
def test_channels_to_add_are_those_of_instructions(name, of, numbers):
    module = model(F32 if of is BF16 else of, (8, 8, 3), 16)
    (node,) = (node for node in module.main.nodes if node.op.startswith("conv"))
    (weights,) = module.constants.values()
    b = Builder()
    x = b.param("x", TensorType(of, node.inputs[0].tensor.shape))
    problem = Problem(node, x, weights.astype(BF16.numpy if of is BF16 else np.int8))
    forms = forms_of(problem, Target.parse(TARGETS[name]))
    assert [form for form in forms if form.startswith("channels")] == numbers


@pytest.mark.parametrize(
    ("name", "of", "image", "filters", "form"),
    [
        # An image of 23 pixels is no multiple of anything.
        ("vnni", U8, (28, 28, 64), 64, "direct"),
        ("vnni", U8, (23, 23, 64), 64, "direct"),
        ("bf16", F32, (28, 28, 64), 64, "direct"),
        ("bf16", F32, (23, 23, 64), 64, "direct"),
        ("neon", I8, (23, 23, 64), 64, "direct"),
        ("vnni", U8, (28, 28, 6), 12, "channels of 4"),
        ("tiles", F32, (28, 28, 128), 128, "direct"),
        ("tiles", F32, (7, 7, 512), 512, "rows + 1"),
        ("tiles", U8, (7, 7, 512), 512, "rows + 1"),
        ("tiles", F32, (56, 56, 48), 64, "channels of 32"),
    ],
)
def test_the_form_is_that_of_the_instructions_that_run_it(name, of, image, filters, form):
    ctx = on(name)
    assert chosen(model(of, image, filters), ctx) == [form]
    (choice,) = ctx.choices
    assert choice.what == "convolution"
    ns = {price.name: price.ns for price in choice.prices}
    assert ns[form] < 1.1 * min(ns.values())
    assert {price.source for price in choice.prices} <= {ESTIMATED, AT_LEAST}


def test_copies_of_short_runs_take_time_for_each():
    """Windows of 7 x 7 pixels are lines of 21 bytes, of which vectors copy none whole."""
    ctx = on("vnni")
    assert chosen(model(U8, (224, 224, 3), 64, (7, 7), strides=(2, 2), pads=(3,) * 4), ctx) == [
        "channels of 4"
    ]
    ns = {price.name: price.ns for price in ctx.choices[0].prices}
    assert ns["im2col"] > ns["channels of 4"]


@pytest.mark.parametrize("kernel", [(3, 3), (1, 1)])
def test_without_instructions_for_bf16_convolutions_stay_in_f32(kernel):
    module = model(F32, (14, 14, 64), 64, kernel, pads=(kernel[0] // 2,) * 4)
    after = run_passes(module, (lower_precision,), on("vnni"))
    assert not any(node.op == "cast" for node in after.main.nodes)


def test_short_sums_stay_in_f32_where_rounding_does_not_pay():
    image = model(F32, (6, 6, 3), 4, (1, 3), pads=(0, 0, 0, 0))
    ctx = on("bf16")
    (form,) = chosen(image, ctx)
    ns = {price.name: price.ns for price in ctx.choices[0].prices}
    assert form == min(ns, key=ns.__getitem__)
    assert "as it is" in ns


def test_equal_convolutions_are_priced_once(monkeypatch):
    asked = []
    estimated = KernelCosts.estimated
    monkeypatch.setattr(
        KernelCosts, "estimated", lambda self, each: (asked.append(each), estimated(self, each))[1]
    )
    counts = []
    for repeated in (1, 3):
        asked.clear()
        assert len(chosen(model(U8, (8, 8, 16), 16, repeated=repeated), on("vnni"))) == repeated
        counts.append(len(asked))
    assert counts[0] == counts[1]


def test_matrices_are_not_compared():
    ctx = on("vnni")
    assert chosen(model(U8, (8, 8, 16), 16, (1, 1), pads=(0,) * 4), ctx) == []


def test_without_prices_windows_are_rows():
    module: Module = model(U8, (8, 8, 16), 16)
    after = im2col_convolutions(module, PassContext(target=Target.parse(TARGETS["vnni"])))
    assert "matmul_integer" in [node.op for node in after.main.nodes]
