"""split_conv_transpose: transposed convolutions as plain ones, one per phase of the stride.

With a stride s, output o = q s + p uses only the taps of its phase p, every s-th one. So each phase
is a plain convolution of stride 1 over the same input, whose kernel is every s-th tap, reversed.
The output interleaves their results, and nothing is multiplied by inserted zeros. Along an axis,
with pad b and dilation d:

    o + b = i s + k d      k = f + j s where f d = p + b modulo s, i = q + (p + b - f d) / s - j d

With so few output channels that vectors would be mostly empty, all phases become channels of one
convolution, whose window covers the taps of all of them. An input of one element along every
spatial axis is a GEMM; on a GPU its result has the memory layout of the image, and element-wise
consumers become the GEMM's epilogue.

A plain convolution multiplies its padding by the weights, which a transposed one does not do, and
zero times infinity is not zero. Weights that are not known to be finite are multiplied in a GEMM
whose columns are added up to the image (`col2im`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright import sym
from tilewright.base.dtype import F32, F64
from tilewright.base.passes import PassContext
from tilewright.base.target import CUDA, Target
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Array, Replacement, Scope, remade, rewrite_matches, shape_of
from tilewright.graph.op import ELEMENTWISE
from tilewright.graph.ops import OPS
from tilewright.graph.ops.layout import CHANNELS_FIRST
from tilewright.graph.types import item_of, items_of
from tilewright.sym import ONE, Const, Expr

MAX_PHASE_KERNELS = 64  # phases of a transposed convolution


def split_conv_transpose(module: Module, ctx: PassContext) -> Module:
    """Before: conv_transpose(x, w).   After: interleave(conv(x, w1), conv(x, w2), ...)."""
    target = ctx.target
    lanes = target.lanes(32) if isinstance(target, Target) else 0
    on_gpu = isinstance(target, Target) and target.kind == CUDA

    def as_product(node: Node, scope: Scope) -> Replacement:
        return _as_product(node, scope, channels_first=on_gpu)

    def together(node: Node, scope: Scope) -> Replacement:
        return _together(node, scope, lanes)

    split = rewrite_matches(module, (as_product, together, _by_phase, _by_columns))
    return rewrite_matches(split, (_before_reshape,)) if on_gpu else split


@dataclass(frozen=True)
class _Axis:
    """A transposed convolution along one spatial axis."""

    size: Expr  # of the input
    out: Expr
    kernel: int
    stride: int
    dilation: int
    begin: int


@dataclass(frozen=True)
class _Phase:
    """The plain convolution of one phase along an axis."""

    first: int  # tap
    taps: int
    ahead: int  # offset of the input element that the first tap reads, from the output's index
    begin: int
    end: int


def _axes(node: Node) -> list[_Axis] | None:
    """The spatial axes of a channels-first convolution with a static kernel; otherwise None."""
    x, w, y = node.inputs[0], node.inputs[1], node.output
    if node.get("layout", CHANNELS_FIRST) != CHANNELS_FIRST or x is None or w is None:
        return None
    given, kernel, made = shape_of(x), shape_of(w), shape_of(y)
    if given is None or kernel is None or made is None:
        return None
    if not all(isinstance(dim, Const) for dim in kernel):
        return None
    found = []
    for axis in range(len(given) - 2):
        taps = int(kernel[axis + 2].value)
        stride, dilation = node["strides"][axis], node["dilations"][axis]
        begin = node["pads"][axis]
        found.append(_Axis(given[axis + 2], made[axis + 2], taps, stride, dilation, begin))
    return found


# ------------------------------------------------------------------------------------ one element


def _as_product(node: Node, scope: Scope, *, channels_first: bool) -> Replacement:
    """An input of one element: a GEMM of its channels by all taps that padding does not cut off.
    If the image stays channels-first, so do the columns of the weights, and no transpose is
    needed."""
    if node.op != "conv_transpose" or node.get("groups", 1) != 1:
        return None
    axes = _axes(node)
    if axes is None or any(axis.size is not ONE or axis.dilation != 1 for axis in axes):
        return None
    if any(node["output_padding"]) or any(pad < 0 for pad in node["pads"]):
        return None
    x, w, bias = (*node.inputs, None)[:3]
    assert x is not None
    assert w is not None
    rank, nodes = len(axes), _Nodes(node, scope)
    spatial = list(range(2, rank + 2))
    (batch, *_), (channels, outputs, *_) = shape_of(x) or (), _numbers(w)
    starts = tuple(node["pads"][:rank])
    cuts = node["pads"][rank:]
    ends = tuple(axis.kernel - cut for axis, cut in zip(axes, cuts, strict=True))
    kept = [end - start for start, end in zip(starts, ends, strict=True)]
    weights = nodes.add("slice", w, starts=starts, ends=ends, axes=tuple(spatial))
    if not channels_first:
        weights = nodes.add("transpose", weights, perm=(0, *spatial, 1))
    flat = outputs * math.prod(kept)
    weights = nodes.add("reshape", weights, shape=(channels, flat))
    rows = nodes.add("reshape", x, shape=(item_of(batch), channels))
    product = nodes.add("matmul", rows, weights)
    if channels_first:
        if bias is not None:
            column = nodes.add("reshape", bias, shape=(outputs, 1))
            spread = nodes.add("tile", column, repeats=(1, math.prod(kept)))
            product = nodes.add("add", product, nodes.add("reshape", spread, shape=(flat,)))
        last = remade(node, "reshape", product, shape=(item_of(batch), outputs, *kept))
        return (*nodes.made, last)
    image = nodes.add("reshape", product, shape=(item_of(batch), *kept, outputs))
    if bias is not None:
        image = nodes.add("add", image, bias)
    last = remade(node, "transpose", image, perm=(0, rank + 1, *range(1, rank + 1)))
    return (*nodes.made, last)


def _before_reshape(node: Node, scope: Scope) -> Replacement:
    """Element-wise consumers of a GEMM's result before its reshape to an image: one kernel."""
    op = OPS.get(node.op)
    if op is None or op.pattern != ELEMENTWISE or len(node.inputs) != 1:
        return None
    image = scope.producer(node.inputs[0], "reshape")
    made = None if image is None else scope.producer(image.inputs[0], "add")
    if image is None or made is None or scope.producer(made.inputs[0], "matmul") is None:
        return None
    if not scope.is_used_once(image.output) or not scope.is_used_once(made.output):
        return None
    nodes = _Nodes(node, scope)
    value = nodes.add(node.op, made.output, **dict(node.attributes))
    return (*nodes.made, remade(node, "reshape", value, **dict(image.attributes)))


# ------------------------------------------------------------------------------------ phases


def _by_phase(node: Node, scope: Scope) -> Replacement:
    if node.op != "conv_transpose":
        return None
    axes = _axes(node)
    if axes is None or not 1 <= math.prod(axis.stride for axis in axes) <= MAX_PHASE_KERNELS:
        return None
    phases = [_phases(axis) for axis in axes]
    if any(found is None for found in phases):
        return None
    every_phase = list(itertools.product(*(found for found in phases if found is not None)))
    is_padded = any(max(p.begin, p.end) > 0 for chosen in every_phase for p in chosen if p.taps)
    if is_padded and not _has_finite_weights(node, scope):
        return None
    x, w, bias = (*node.inputs, None)[:3]
    assert x is not None
    assert w is not None
    nodes = _Nodes(node, scope)
    parts: list[Value | None] = []
    for chosen in every_phase:
        if any(phase.taps == 0 for phase in chosen):  # kernels smaller than their stride
            parts.append(None)
            continue
        weights = _sub_kernel(nodes, w, axes, chosen, node.get("groups", 1))
        pads = (*(phase.begin for phase in chosen), *(phase.end for phase in chosen))
        settings = {
            "strides": (1,) * len(axes),
            "dilations": tuple(axis.dilation for axis in axes),
            "pads": pads,
            "groups": node.get("groups", 1),
        }
        parts.append(nodes.add("conv", x, weights, bias, **settings))
    if len(parts) == 1:
        *before, last = nodes.made
        # With a possibly empty input, the types of empty results may differ.
        same = last.output.type == node.output.type
        return (*before, replace(last, outputs=node.outputs)) if same else None
    if None in parts and bias is not None:
        return None
    every = _filled(nodes, node, parts)
    return (*nodes.made, _in_turn(node, every, axes))


def _filled(nodes: _Nodes, node: Node, parts: Sequence[Value | None]) -> list[Value]:
    """Results of all phases, zeros for those without taps."""
    some = [part for part in parts if part is not None]
    if len(some) == len(parts):
        return some
    zero = nodes.constant(np.zeros((), node.output.tensor.dtype.numpy))
    zeros = nodes.add("expand", zero, shape=items_of(shape_of(some[0]) or ()))
    return [zeros if part is None else part for part in parts]


def _together(node: Node, scope: Scope, lanes: int) -> Replacement:
    """Phases as channels of one convolution, if fuller vectors outweigh the added taps."""
    if node.op != "conv_transpose" or node.get("groups", 1) != 1 or not lanes:
        return None
    axes, weights = _axes(node), scope.constant(node.inputs[1])
    if axes is None or weights is None or any(axis.dilation != 1 for axis in axes):
        return None
    found = [_phases(axis) for axis in axes]
    phases = [each for each in found if each is not None]
    count, channels = math.prod(axis.stride for axis in axes), weights.shape[1]
    if len(phases) < len(axes) or not 1 < count <= MAX_PHASE_KERNELS:
        return None
    if any(phase.taps == 0 for each in phases for phase in each):
        return None
    if not _has_finite_weights(node, scope):
        return None
    lows = [min(p.ahead - p.taps + 1 for p in each) for each in phases]
    sides = [max(p.ahead for p in each) - low + 1 for each, low in zip(phases, lows, strict=True)]
    apart = math.prod(sum(p.taps for p in each) for each in phases) * -(-channels // lanes)
    if math.prod(sides) * -(-count * channels // lanes) >= apart:
        return None
    x, bias = node.inputs[0], (*node.inputs, None)[2]
    assert x is not None
    nodes = _Nodes(node, scope)
    window = _window(weights, axes, phases, lows, sides)
    w = nodes.constant(window.reshape(count * channels, *window.shape[-1 - len(axes) :]))
    if bias is not None:
        bias = nodes.add("tile", bias, repeats=(count,))
    ends = [max(p.end for p in each) for each in phases]
    every = nodes.add(
        "conv",
        x,
        w,
        bias,
        strides=(1,) * len(axes),
        dilations=(1,) * len(axes),
        pads=(*(-low for low in lows), *ends),
        groups=1,
    )
    parts = [
        nodes.add("slice", every, starts=(at * channels,), ends=((at + 1) * channels,), axes=(1,))
        for at in range(count)
    ]
    return (*nodes.made, _in_turn(node, parts, axes))


def _has_finite_weights(node: Node, scope: Scope) -> bool:
    """Whether all weights are known to be finite."""
    weights = scope.constant(node.inputs[1])
    return node.get("finite", False) or (weights is not None and bool(np.isfinite(weights).all()))


def _window(
    weights: Array,
    axes: Sequence[_Axis],
    phases: Sequence[Sequence[_Phase]],
    lows: Sequence[int],
    sides: Sequence[int],
) -> Array:
    """Weights [phase along each axis..., output, input, *window] of all phases in one window."""
    inner, outer = weights.shape[:2]
    out = np.zeros((*(axis.stride for axis in axes), outer, inner, *sides), weights.dtype)
    for place in np.ndindex(*(axis.stride for axis in axes)):
        chosen = [each[at] for each, at in zip(phases, place, strict=True)]
        for taps in np.ndindex(*(phase.taps for phase in chosen)):
            three = zip(chosen, taps, axes, strict=True)
            source = tuple(phase.first + j * axis.stride for phase, j, axis in three)
            pairs = zip(chosen, taps, lows, strict=True)
            target = tuple(phase.ahead - j - low for phase, j, low in pairs)
            out[(*place, slice(None), slice(None), *target)] = weights[(..., *source)].T
    return out


def _in_turn(node: Node, parts: Sequence[Value], axes: Sequence[_Axis]) -> Node:
    """Interleave phases to the output of a node."""
    return remade(
        node,
        "interleave",
        *parts,
        axes=tuple(range(2, len(axes) + 2)),
        factors=tuple(axis.stride for axis in axes),
        sizes=tuple(item_of(axis.out) for axis in axes),
    )


# ------------------------------------------------------------------------------------ columns


def _by_columns(node: Node, scope: Scope) -> Replacement:
    """GEMM and col2im: the channels of each element times all taps, summed at their positions."""
    if node.op != "conv_transpose" or node.output.tensor.dtype not in (F32, F64):
        return None  # sums of 16-bit floats must be rounded once
    axes = _axes(node)
    if axes is None or any(pad < 0 for pad in node["pads"]):
        return None
    if any(more >= axis.stride for more, axis in zip(node["output_padding"], axes, strict=True)):
        return None  # col2im would infer more columns than there are
    x, w, bias = (*node.inputs, None)[:3]
    assert x is not None
    assert w is not None
    nodes, groups, rank = _Nodes(node, scope), node.get("groups", 1), len(axes)
    (batch, *_), (channels, outputs, *taps) = shape_of(x) or (), _numbers(w)
    inner, columns = channels // groups, outputs * math.prod(taps)
    places = sym.simplify(math.prod((axis.size for axis in axes), start=ONE))
    rows = nodes.add("reshape", w, shape=(groups, inner, columns))
    rows = nodes.add("transpose", rows, perm=(0, 2, 1))
    x = nodes.add("reshape", x, shape=(item_of(batch), groups, inner, item_of(places)))
    product = nodes.add("matmul", rows, x)
    product = nodes.add(
        "reshape", product, shape=(item_of(batch), groups * columns, item_of(places))
    )
    settings = {
        "image_shape": tuple(item_of(axis.out) for axis in axes),
        "block_shape": tuple(taps),
        **{name: node[name] for name in ("strides", "dilations", "pads")},
    }
    if bias is None:
        return (*nodes.made, remade(node, "col2im", product, **settings))
    image = nodes.add("col2im", product, **settings)
    bias = nodes.add("reshape", bias, shape=(groups * outputs, *(1,) * rank))
    return (*nodes.made, remade(node, "add", image, bias))


def _phases(axis: _Axis) -> list[_Phase] | None:
    """All phases along an axis; None unless output - (input - 1) * stride is static."""
    stride, dilation = axis.stride, axis.dilation
    if math.gcd(stride, dilation) != 1:
        return None
    # With output = (size - 1) * stride + rest, a phase has size - 1 + ceil(rest / stride) outputs.
    rest = sym.simplify(sym.sub(axis.out, sym.mul(sym.sub(axis.size, 1), stride)))
    if not isinstance(rest, Const):
        return None
    more = -(-int(rest.value) // stride) - 1  # outputs of a phase, minus the input's size
    found = []
    for phase in range(stride):
        first = (phase + axis.begin) * pow(dilation, -1, stride) % stride if stride > 1 else 0
        taps = max(0, -(-(axis.kernel - first) // stride))
        ahead = (phase + axis.begin - first * dilation) // stride
        begin = (taps - 1) * dilation - ahead
        found.append(_Phase(first, taps, ahead, begin, more + ahead))
    return found


def _sub_kernel(
    nodes: _Nodes, w: Value, axes: Sequence[_Axis], chosen: Sequence[_Phase], groups: int
) -> Value:
    """The reversed taps of a phase, as weights [outputs, inputs per group, *taps]."""
    spatial = tuple(range(2, len(axes) + 2))
    pairs = list(zip(axes, chosen, strict=True))
    part = nodes.add(
        "slice",
        w,
        starts=tuple(phase.first + (phase.taps - 1) * axis.stride for axis, phase in pairs),
        ends=tuple(phase.first - 1 if phase.first else -axis.kernel - 1 for axis, phase in pairs),
        axes=spatial,
        steps=tuple(-axis.stride for axis, _ in pairs),
    )
    if groups == 1:
        return nodes.add("transpose", part, perm=(1, 0, *spatial))
    channels, each, *_ = _numbers(w)
    taps = tuple(phase.taps for phase in chosen)
    inner = channels // groups
    part = nodes.add("reshape", part, shape=(groups, inner, each, *taps))
    part = nodes.add("transpose", part, perm=(0, 2, 1, *(axis + 1 for axis in spatial)))
    return nodes.add("reshape", part, shape=(groups * each, inner, *taps))


class _Nodes:
    """New nodes that replace one."""

    def __init__(self, like: Node, scope: Scope) -> None:
        self.like, self.scope = like, scope
        self.made: list[Node] = []

    def add(self, op: str, *inputs: Value | None, **attributes: object) -> Value:
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        hint = self.like.output.name
        node = self.scope.new(op, *given, like=self.like, hint=hint, **attributes)  # type: ignore[arg-type]  # attributes are data
        self.made.append(node)
        return node.output

    def constant(self, array: Array) -> Value:
        node = self.scope.new_constant(array, self.like.output.name, self.like)
        self.made.append(node)
        return node.output


def _numbers(value: Value) -> list[int]:
    """The dimensions of weights, which are static."""
    return [int(dim.value) for dim in shape_of(value) or () if isinstance(dim, Const)]
