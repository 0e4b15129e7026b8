"""densify_groups: merge groups of convolutions, with zero weights between channels of former
groups.

Grouped convolutions cannot use matrix units, which do many more multiply-adds per cycle: wasting
some on zeros may still be faster. Dot-product instructions need the channels of one group to fill
the lanes of a register; several small groups together may. On CPUs this is for integers, and the
cheapest number of merged groups is used (`graph/conv_forms.py`); on GPUs wherever tensor cores
apply, by useful multiply-adds per cycle.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import gcd, inf, prod

import numpy as np

from tilewright.base.dots import Dot, dots_of, multiplies_bytes
from tilewright.base.dtype import F16
from tilewright.base.multiprocessor import WINDOW_BYTES, Multiprocessor, multiprocessor_of
from tilewright.base.passes import PassContext
from tilewright.base.target import CUDA, Target
from tilewright.graph import ir
from tilewright.graph.conv_forms import FormPrices, Problem
from tilewright.graph.costs import ESTIMATED, LEAST_SPEEDUP, Price, note_choice
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Array, Replacement, Scope, Steps, rewrite_matches
from tilewright.graph.ops.layout import CHANNELS_LAST
from tilewright.graph.passes.stream_attention import has_streams
from tilewright.graph.visit import Instead
from tilewright.sym import Const, const

CONVOLUTIONS = ("conv", "conv_integer")


def densify_groups(module: Module, ctx: PassContext) -> Module:
    """Before: conv_integer(%x, %w) {groups = 4}.   After: conv_integer(%x, %whole) {groups = 1}."""
    target = ctx.target
    if not isinstance(target, Target) or not multiplies_bytes(target):
        return module
    prices = FormPrices(module, ctx, "densify_groups")
    return rewrite_matches(module, (partial(widen, target=target, prices=prices),))


def widen(node: Node, scope: Scope, *, target: Target, prices: FormPrices) -> Replacement:
    """Merge groups of a convolution without zero points and with constant weights."""
    if node.op not in CONVOLUTIONS:
        return None
    weights, groups = scope.constant(node.inputs[1]), int(node.get("groups", 1))
    if weights is None or node.inputs[1] is None:
        return None
    merged, found = merged_groups(node, weights.shape, target, prices)
    if found:
        chosen = f"{groups // merged} groups"
        note_choice(prices.ctx, "densify_groups", node, "grouped convolution", chosen, found)
    if merged == 1:
        return None
    steps = Steps(node, scope)
    parts = np.split(weights, groups // merged)
    made = np.concatenate([whole_weights(part, merged) for part in parts])
    whole = steps.constant(made, node.inputs[1].tensor, "w")
    attributes = {**dict(node.attributes), "groups": groups // merged}
    steps.add(node.op, node.inputs[0], whole, *node.inputs[2:], **attributes)
    nodes = steps.done()
    return None if nodes is None else Instead(tuple(nodes), node.outputs)


def widened(node: Node, target: Target, prices: FormPrices) -> Node:
    """A convolution with the shapes of weights that it will have after this pass."""
    w = node.inputs[1] if node.op in CONVOLUTIONS else None
    shape = None if w is None else w.tensor.static_shape
    merged = 1 if shape is None else merged_groups(node, shape, target, prices)[0]
    return node if merged == 1 else _with_groups(node, merged)


def _with_groups(node: Node, merged: int) -> Node:
    """A convolution with the shapes of weights where so many groups are one."""
    w = node.inputs[1]
    assert w is not None
    out, inner, *taps = w.tensor.static_shape or ()
    whole = Value(w.name, replace(w.tensor, shape=tuple(map(const, (out, inner * merged, *taps)))))
    attributes = {**dict(node.attributes), "groups": int(node["groups"]) // merged}
    return replace(
        node,
        inputs=(node.inputs[0], whole, *node.inputs[2:]),
        attributes=ir.attributes(**attributes),
    )


def merged_groups(
    node: Node, shape: tuple[int, ...], target: Target, prices: FormPrices
) -> tuple[int, tuple[Price, ...]]:
    """How many groups to merge, and the prices that were compared."""
    ops = CONVOLUTIONS if target.kind == CUDA else ("conv_integer",)
    has_zeros = node.op == "conv_integer" and any(node.inputs[2:4])
    if node.op not in ops or node.get("layout") != CHANNELS_LAST or has_zeros or shape[1] == 1:
        return 1, ()
    groups = int(node.get("groups", 1))
    if target.kind == CUDA:
        sm = multiprocessor_of(target)
        # Without merging each lane has a filter of its own, so that each reads one weight per cycle
        # from L1, unless filters are short enough to share cache lines.
        assert node.inputs[1] is not None
        filter_bytes = prod(shape[1:]) * node.inputs[1].tensor.dtype.size_bytes
        apart = max(1.0, 4 * sm.shared_words_per_cycle / filter_bytes)
        rate = sm.tensor_fma_per_cycle * min(1.0, _full_tiles(node, sm) / sm.count)
        reads_windows = has_streams(target) and node.op == "conv"
        merged = _filling_windows(node, shape, groups, sm) if reads_windows else groups
        return (merged if merged * apart <= rate else 1), ()
    return _cheapest(node, shape, target, prices) if groups > 1 else (1, ())


def _cheapest(
    node: Node, shape: tuple[int, ...], target: Target, prices: FormPrices
) -> tuple[int, tuple[Price, ...]]:
    """How many groups to merge on a CPU, and the prices: none, what fills a dot product, or all.
    More zeros need to be faster by a margin, since estimates are inexact."""
    x, w = node.inputs[:2]
    assert x is not None
    assert w is not None
    groups = int(node["groups"])
    dots = dots_of(target, x.tensor.dtype.name, w.tensor.dtype.name, "i32")
    dots = dots or dots_of(target, "i16", "i16", "i32")
    filling = _filling(dots[0], shape, groups) if dots else 0
    of, found = w.tensor.dtype.numpy, dict[int, Price]()
    for merged in filter(None, dict.fromkeys((1, filling, groups))):
        dims = (shape[0], shape[1] * merged, *shape[2:])
        problem = Problem(_with_groups(node, merged), x, np.broadcast_to(np.zeros((), of), dims))
        ns = prices.least_ns(problem)
        if ns is not None:
            found[merged] = Price(f"{groups // merged} groups", ns, ESTIMATED)
    best = next(iter(found), 1)
    for merged, price in found.items():
        best = merged if price.ns * LEAST_SPEEDUP < found[best].ns else best
    return best, tuple(found.values())


def _full_tiles(node: Node, sm: Multiprocessor) -> float:
    """How many multiprocessors a convolution's result can occupy; infinite for dynamic sizes."""
    sizes = [dim.value for dim in node.output.tensor.shape or () if isinstance(dim, Const)]
    if len(sizes) != len(node.output.tensor.shape or ()):
        return inf
    return prod(sizes) / sm.full_tile_elements


def _filling_windows(node: Node, shape: tuple[int, ...], groups: int, sm: Multiprocessor) -> int:
    """How many groups have channels enough that bulk copies read windows of them from the image;
    all of them where none do."""
    channels = WINDOW_BYTES // F16.size_bytes
    merged = channels // gcd(channels, shape[1])
    is_known = _full_tiles(node, sm) < inf and len(shape) == 4
    return merged if is_known and groups % merged == 0 else groups


def _filling(dot: Dot, shape: tuple[int, ...], groups: int) -> int:
    """How many groups fill the lanes of a dot product; 0 if none do."""
    out, inner = shape[0] // groups, shape[1]
    merged = dot.lanes // gcd(dot.lanes, out)
    return merged if groups % merged == 0 and merged * inner % dot.group == 0 else 0


def whole_weights(weights: Array, groups: int) -> Array:
    """Weights [out, in of a group, *window] as [out, in, *window], zero between different
    groups."""
    out, inner, *taps = weights.shape
    parts = weights.reshape(groups, out // groups, inner, *taps)
    whole = np.zeros((groups, out // groups, groups, inner, *taps), weights.dtype)
    for group in range(groups):
        whole[group, :, group] = parts[group]
    return whole.reshape(out, groups * inner, *taps)
