"""hoist_padding: pad in the transpose before a convolution.

A convolution copies what it pads, row by row. An image that is copied anyway, such as a transposed
input of the model, gets its padding in that copy, if that is cheaper: without padding, a transpose
takes the pixels of an image as one axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, Target
from tilewright.graph.costs import (
    Candidate,
    alone,
    candidate_of,
    costs_of,
    note_choice,
    weights_stay,
)
from tilewright.graph.im2col import is_padded
from tilewright.graph.ir import Module, Node
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches
from tilewright.graph.ops.layout import CHANNELS_LAST
from tilewright.graph.rates import rates_of, size_bytes


def hoist_padding(module: Module, ctx: PassContext) -> Module:
    """Before: conv(transpose(%x)) {pads = (1, 1, 1, 1)}.   After: conv(pad(transpose(%x)))."""
    in_cache = weights_stay(module, ctx.target)

    def pad_first(node: Node, scope: Scope) -> Replacement:
        made = _pad_first(node, scope)
        if made is None or not _is_cheaper(node, made, scope, ctx, in_cache):
            return None
        return made

    return rewrite_matches(module, (pad_first,))


def _pad_first(node: Node, scope: Scope) -> list[Node] | None:
    """A convolution of an image without other readers."""
    if node.op != "conv" or node.get("layout") != CHANNELS_LAST or node.get("groups", 1) != 1:
        return None
    x, pads = node.inputs[0], tuple(node.get("pads", ()))
    if x is None or not is_padded(pads) or node.get("winograd", 0):
        return None
    if scope.producer(x, "transpose") is None or not scope.is_used_once(x):
        return None
    steps = Steps(node, scope)
    padded = steps.add("pad", x, pads=pads, axes=tuple(range(1, 1 + len(pads) // 2)))
    attributes = {**dict(node.attributes), "pads": (0,) * len(pads)}
    steps.add("conv", padded, *node.inputs[1:], **attributes)
    return steps.done()


def _is_cheaper(
    node: Node, made: Sequence[Node], scope: Scope, ctx: PassContext, in_cache: bool
) -> bool:
    """Whether a transpose that pads, or a pad after it, takes less time than a convolution that
    pads; without prices, yes."""
    x, costs = node.inputs[0], costs_of(ctx)
    moved = None if x is None else scope.producer(x, "transpose")
    if moved is None or costs is None or not isinstance(ctx.target, Target):
        return True
    if ctx.target.kind != CPU:
        return True
    pad, conv = made
    weights = frozenset({1}) if _is_constant(node, scope) else frozenset[int]()
    asked = (
        Candidate("transpose", alone(moved)),
        Candidate("padded by the convolution", alone(node), weights, in_cache),
        replace(candidate_of("transpose that pads", (moved, pad)), is_fused=True),
        Candidate("pad", alone(pad)),
        Candidate("convolution", alone(conv), weights, in_cache),
    )
    prices = costs.prices(asked)
    if prices is None:
        return True
    # Of a convolution that pads, the price is without the copy, which all of its plans make.
    moved_ns, pads_ns, both_ns, pad_ns, conv_ns = (price.ns for price in prices)
    launch_ns, machine = rates_of(ctx.target).launch_ns, ctx.target.machine
    copied_ns = 2 * size_bytes(moved.output) / machine.l2.bytes_per_cycle * machine.cycle_ns
    is_less = (
        min(both_ns, moved_ns + launch_ns + pad_ns) + conv_ns <= moved_ns + copied_ns + pads_ns
    )
    chosen = (asked[2] if is_less else asked[1]).name
    note_choice(ctx, "hoist_padding", node, node.op, chosen, prices)
    return is_less


def _is_constant(node: Node, scope: Scope) -> bool:
    w = node.inputs[1]
    return w is not None and scope.producer(w, "constant") is not None
