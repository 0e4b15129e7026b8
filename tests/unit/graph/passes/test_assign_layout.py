"""Assigning layouts keeps the answer, and moves what it should."""

import numpy as np
import pytest

from tilewright.base.dtype import dtype
from tilewright.base.passes import PassContext, run_passes
from tilewright.base.target import Target
from tilewright.driver.costs import KernelCosts
from tilewright.driver.kernels import KernelSetting
from tilewright.graph import Builder, TensorType, interpret, parse
from tilewright.graph.costs import AT_LEAST, ESTIMATED, MEASURED, Price
from tilewright.graph.passes import (
    canonicalize,
    fold_constants,
    merge_common_subexpressions,
    remove_dead_nodes,
)
from tilewright.graph.passes.assign_layout import assign_layout
from tilewright.graph.verify import verify
from tilewright.sym import const

AFTER = (fold_constants, canonicalize, merge_common_subexpressions, remove_dead_nodes)
CONV = "dilations = (1, 1), pads = (1, 1, 1, 1), strides = (1, 1)"
PARAMS = "%x: f32[2, 8, 12, 12], %w: f32[8, 8, 3, 3], %d: f32[8, 1, 3, 3], %v: f32[8]"

# Each with the number of transposes that are left.
BODIES = {
    "residual": (
        f"""%a = conv(%x, %w, %v) {{{CONV}}}
        %n = batch_norm(%a, %v, %v, %v, %v)
        %r = relu(%n)
        %b = conv(%r, %d) {{{CONV}, groups = 8}}
        %y = add(%b, %r)""",
        2,
    ),
    "squeeze and excite": (
        f"""%a = conv(%x, %w) {{{CONV}}}
        %m = reduce_mean(%a) {{axes = (2, 3), keepdims = true}}
        %s = conv(%m, %w) {{{CONV}}}
        %g = sigmoid(%s)
        %y = mul(%a, %g)""",
        2,
    ),
    "concat and slices": (
        f"""%a = conv(%x, %w) {{{CONV}}}
        %l = slice(%a) {{axes = (1,), ends = (4,), starts = (0,)}}
        %h = slice(%a) {{axes = (-3,), ends = (8,), starts = (4,)}}
        %c = concat(%h, %l, %a) {{axis = 1}}
        %p = pad(%c) {{pads = (0, 1, 0, 0, 0, 0, 2, 1)}}
        %y = max_pool(%p) {{dilations = (1, 1), kernel = (2, 2), pads = (0, 0, 0, 0),
                            strides = (2, 2)}}""",
        2,
    ),
    "up and down": (
        f"""%a = conv(%x, %w) {{{CONV}}}
        %u = resize(%a) {{axes = (2, 3), sizes = (24, 18), mode = "linear"}}
        %q = avg_pool(%u) {{dilations = (1, 1), kernel = (3, 3), pads = (1, 1, 1, 1),
                            strides = (2, 2)}}
        %g = group_norm(%q, %v, %v) {{groups = 4}}
        %y = softmax(%g) {{axes = (1,)}}""",
        2,
    ),
    "flattened": (
        f"""%a = conv(%x, %w) {{{CONV}}}
        %y = reshape(%a) {{shape = (2, 1152)}}""",
        2,
    ),
    "tokens": (
        f"""%a = conv(%x, %w) {{{CONV}}}
        %f = reshape(%a) {{shape = (2, 8, 144)}}
        %y = transpose(%f) {{perm = (0, 2, 1)}}""",
        1,
    ),
    "mean of channels": (
        f"""%a = conv(%x, %w) {{{CONV}}}
        %y = reduce_max(%a) {{axes = (1,), keepdims = false}}""",
        1,
    ),
    "an operand of fewer axes": (
        f"""%a = conv(%x, %w) {{{CONV}}}
        %t = reshape(%v) {{shape = (8, 1, 1)}}
        %y = add(%a, %t)""",
        2,
    ),
}


class Table:
    """A table of costs that knows what a kernel takes by the candidate's name."""

    threads, has_times, is_lowered = 1, False, False

    def __init__(self, **ns):
        self.ns, self.asked = ns, []

    def prices(self, candidates):
        self.asked += [each.name for each in candidates]
        ns = [self.ns[each.name.replace(" ", "_")] for each in candidates]
        return tuple(Price(c.name, n, ESTIMATED) for c, n in zip(candidates, ns, strict=True))


def last_is_faster():
    return Table(channels_first=1e6, channels_last=1.0, transpose=1.0)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_layouts_keep_the_answer(body):
    text, transposes = body
    module = parse(f"graph @main({PARAMS}) {{ {text} return %y }}")
    moved = run_passes(module, (assign_layout, *AFTER), PassContext(costs=last_is_faster()))
    verify(moved)
    convolutions = [node for node in moved.main.nodes if node.op == "conv"]
    assert all(node["layout"] == "channels_last" for node in convolutions)
    assert sum(node.op == "transpose" for node in moved.main.nodes) == transposes
    random = np.random.default_rng(0)
    shapes = [value.tensor.static_shape for value in module.main.params]
    arrays = [random.random(shape).astype(np.float32) for shape in shapes]
    (want,), (found,) = interpret(module, *arrays), interpret(moved, *arrays)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_bodies_of_control_flow_are_moved_on_their_own():
    module = parse(
        f"""
        graph @main(%c: bool[], %x: f32[1, 8, 16, 16], %w: f32[8, 8, 3, 3]) {{
          %y = if(%c, %x, %w) do {{
            graph (%a: f32[1, 8, 16, 16], %b: f32[8, 8, 3, 3]) {{
              %p = conv(%a, %b) {{{CONV}}}
              return %p
            }}
            graph (%e: f32[1, 8, 16, 16], %f: f32[8, 8, 3, 3]) {{
              return %e
            }}
          }}
          return %y
        }}
        """
    )
    moved = run_passes(module, (assign_layout,), PassContext(costs=last_is_faster()))
    verify(moved)
    (node,) = moved.main.nodes
    assert [inner.op for inner in node.bodies[0].nodes] == ["transpose", "conv", "transpose"]


def test_models_without_images_stay_the_same_object():
    module = parse("graph @main(%x: f32[4, 4]) { %y = relu(%x) return %y }")
    assert assign_layout(module, PassContext()) is module


CHAIN = f"""
graph @main(%x: f32[1, 8, 64, 64], %w: f32[8, 8, 3, 3], %v: f32[8, 8, 1, 1]) {{
  %a = conv(%x, %w) {{{CONV}}}
  %b = conv(%a, %v) {{dilations = (1, 1), pads = (0, 0, 0, 0), strides = (1, 1)}}
  return %b
}}
"""


def test_without_a_table_of_costs_layouts_stay():
    module = parse(CHAIN)
    assert assign_layout(module, PassContext()) is module


def test_layouts_stay_where_transposes_cost_more_than_they_bring():
    module = parse(CHAIN)
    costs = Table(channels_first=2e4, channels_last=1e4, transpose=1e6)
    assert assign_layout(module, PassContext(costs=costs)) is module
    costs = Table(channels_first=2e6, channels_last=1e6, transpose=1e4)
    assert assign_layout(module, PassContext(costs=costs)) is not module


def test_only_transposes_at_borders_are_asked_for():
    costs = Table(channels_first=1e7, channels_last=1e4, transpose=1e3)
    assign_layout(parse(CHAIN), PassContext(costs=costs))
    assert costs.asked.count("transpose") == 2  # not that of %a
    assert costs.asked.count("channels last") == 2


def test_a_kernel_is_not_asked_for_in_a_form_whose_multiplications_alone_take_longer():
    costs = Table(channels_first=1e7, channels_last=1e4, transpose=1e3)
    ctx = PassContext(costs=costs)
    assert assign_layout(parse(CHAIN), ctx) is not None
    assert "channels first" not in costs.asked
    assert {choice.prices[0].source for choice in ctx.choices} == {AT_LEAST}


def test_what_is_slightly_faster_by_estimates_is_no_reason_to_leave_channels_last():
    module = parse(CHAIN)
    nearly = Table(channels_first=9.5e8, channels_last=1e9, transpose=1.0)
    assert assign_layout(module, PassContext(costs=nearly)) is not module
    clearly = Table(channels_first=8e8, channels_last=1e9, transpose=1.0)
    assert assign_layout(module, PassContext(costs=clearly)) is module


@pytest.mark.parametrize(
    ("types", "processor", "is_lowered"),
    [
        (("u8", "i8", "conv_integer"), "cascadelake", False),
        (("u8", "i8", "conv_integer"), "emeraldrapids", False),
        (("f32", "f32", "conv"), "emeraldrapids", True),
    ],
)
def test_what_is_cheapest_in_a_form_of_few_bits_goes_channels_last(types, processor, is_lowered):
    of, weights, op = types
    b = Builder()
    x = b.param("x", TensorType(dtype(of), tuple(map(const, (1, 64, 28, 28)))))
    w = b.constant(np.ones((64, 64, 3, 3), dtype(weights).numpy))
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    module = b.module(b.add(op, x, w, **window))
    target = Target.parse(f"x86_64-linux-gnu -mcpu={processor}")
    costs = KernelCosts(KernelSetting(target, 1), is_lowered=is_lowered)
    ctx = PassContext(target=target, costs=costs)
    assert assign_layout(module, ctx) is not module
    assert ctx.choices[0].chosen == "channels last"


class Times:
    """A table of costs that has a time for every kernel."""

    threads, has_times, is_lowered = 1, True, False

    def __init__(self):
        self.asked = []

    def prices(self, candidates):
        self.asked += [node.op for each in candidates for node in each.kernel.nodes]
        return tuple(Price(each.name, 1.0 + at, MEASURED) for at, each in enumerate(candidates))


def test_a_kernel_of_two_results_is_weighed_by_its_time():
    module = parse(
        """
        graph @main(%x: f32[1, 8, 16, 16]) {
          %y, %places = max_pool(%x) {dilations = (1, 1), kernel = (2, 2), pads = (0, 0, 0, 0),
                                      strides = (2, 2)}
          return %y, %places
        }
        """
    )
    times = Times()
    assert assign_layout(module, PassContext(costs=times)) is module  # first is faster
    assert times.asked.count("max_pool") == 2
