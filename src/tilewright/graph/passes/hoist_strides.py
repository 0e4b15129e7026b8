"""hoist_strides: take the pixels that a strided 1x1 convolution reads before it.

A convolution channels first is then a GEMM over whole images, without strides. One channels last
skips pixels at no cost, but a transpose before it would move all of them.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, Target
from tilewright.graph.build import make_node
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, rewrite_matches
from tilewright.graph.ops.layout import CHANNELS_LAST
from tilewright.sym import ONE, Const


def hoist_strides(module: Module, ctx: PassContext) -> Module:
    """Before: conv(%x, %w: f32[m, c, 1, 1]) {strides = (2, 2)}.
    After: conv(slice(%x) {steps = (2, 2)}, %w) {strides = (1, 1)}."""
    if not isinstance(ctx.target, Target) or ctx.target.kind != CPU:
        return module
    return rewrite_matches(module, (_slice_first,))


def _slice_first(node: Node, scope: Scope) -> Replacement:
    found = without_strides(node)
    if found is None:
        return None
    x, (taken, conv) = node.inputs[0], found
    if node.get("layout") == CHANNELS_LAST:
        moved = None if x is None else scope.producer(x, "transpose")
        if moved is None or x is None or not scope.is_used_once(x):
            return None
    return taken, conv


def without_strides(node: Node) -> tuple[Node, Node] | None:
    """A slice, and a convolution of it that makes the same output: of a strided 1x1 convolution
    without padding."""
    if node.op != "conv" or node.get("winograd", 0):
        return None
    if not all(isinstance(pad, int) and pad == 0 for pad in node["pads"]):
        return None
    x, w, *rest = node.inputs
    taps = () if w is None else w.tensor.shape or ()
    strides = tuple(node["strides"])
    if x is None or x.tensor.shape is None or set(strides) <= {1}:
        return None
    if not taps or any(dim is not ONE for dim in taps[2:]) or taps[1] is ONE:
        return None
    first = 1 if node.get("layout") == CHANNELS_LAST else 2
    axes = tuple(range(first, first + len(strides)))
    shape = [int(dim.value) if isinstance(dim, Const) else dim for dim in x.tensor.shape]
    bounds = {"starts": (0,) * len(axes), "ends": tuple(shape[axis] for axis in axes)}
    taken = make_node("slice", (x,), {"axes": axes, "steps": strides, **bounds}, node.loc)
    attributes = {**dict(node.attributes), "strides": (1,) * len(axes)}
    conv = make_node("conv", (taken.output, w, *rest), attributes, node.loc)
    if conv.output.type != node.output.type:
        return None
    return taken, replace(conv, outputs=node.outputs)
