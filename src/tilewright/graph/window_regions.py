"""Regions of a convolution's result whose windows meet padding with the same weights.

Windows far apart, as those of atrous pyramids, reach beyond the image nearly everywhere: along an
axis of 33 positions with three weights 18 apart, the first 15 see two of them, the next three one,
and the last 15 two again. Each region is a convolution by what it sees, without padding: it reads
a part of the image, which negative padding cuts out, and together they multiply no zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod

from tilewright.graph.build import make_node
from tilewright.graph.ir import Node, Value

Cut = Callable[[tuple[slice, ...]], Value]  # makes a part of the weights


@dataclass(frozen=True)
class Band:
    """Positions of the result along an axis, and the weights that meet the image there."""

    start: int
    stop: int
    first: int
    end: int

    @property
    def extent(self) -> int:
        return self.stop - self.start

    @property
    def taps(self) -> int:
        return self.end - self.first


def bands(size: int, taps: int, apart: int, pad: int, extent: int) -> list[Band]:
    """The bands of an axis of so many elements and results, for windows of stride 1."""
    seen = [
        (max(0, pad - tap * apart), min(extent, size + pad - tap * apart)) for tap in range(taps)
    ]
    edges = {0, extent, *(at for pair in seen for at in pair if 0 < at < extent)}
    found = []
    for start, stop in pairwise(sorted(edges)):
        inside = [tap for tap, (low, high) in enumerate(seen) if low <= start and stop <= high]
        if inside:
            found.append(Band(start, stop, inside[0], inside[-1] + 1))
    return found


def axis_bands(node: Node) -> list[list[Band]]:
    """The bands along each spatial axis of a convolution channels last of static sizes and stride
    1; none where windows may lie outside of the image altogether."""
    x, w = node.inputs[:2]
    assert x is not None
    assert w is not None
    sizes, extents = x.tensor.static_shape or (), node.output.tensor.static_shape or ()
    taps, pads = (w.tensor.static_shape or ())[2:], node["pads"]
    given = zip(sizes[1:-1], taps, node["dilations"], pads, extents[1:-1], strict=False)
    found = [bands(*each) for each in given]
    whole = all(
        sum(band.extent for band in each) == extent
        for each, extent in zip(found, extents[1:-1], strict=True)
    )
    return found if whole else []


def multiplied_share(node: Node) -> float:
    """The share of a convolution's multiplications that are not by padding."""
    w, found = node.inputs[1], axis_bands(node)
    assert w is not None
    extents = (node.output.tensor.static_shape or ())[1:-1]
    taps = (w.tensor.static_shape or ())[2:]
    if not found:
        return 1.0
    used = prod(sum(band.extent * band.taps for band in each) for each in found)
    return used / prod((*extents, *taps))


def regions(node: Node, cut: Cut) -> tuple[list[Node], list[Node]]:
    """The convolutions of all regions, and what concatenates their results."""
    found = axis_bands(node)
    x, w = node.inputs[:2]
    assert x is not None
    assert w is not None
    sizes, channels = (x.tensor.static_shape or ())[1:-1], (slice(None), slice(None))
    low = node["pads"][: len(sizes)]
    convs: list[Node] = []
    for box in product(*found):
        weights = cut((*channels, *(slice(band.first, band.end) for band in box)))
        before = [
            pad - band.start - band.first * apart
            for pad, band, apart in zip(low, box, node["dilations"], strict=True)
        ]
        after = [
            band.extent + (band.taps - 1) * apart - size - pad
            for band, apart, size, pad in zip(box, node["dilations"], sizes, before, strict=True)
        ]
        attributes = {**dict(node.attributes), "pads": (*before, *after)}
        convs.append(make_node("conv", (x, weights, *node.inputs[2:]), attributes, node.loc))
    joined: list[Node] = []
    values = [each.output for each in convs]
    for axis in reversed(range(len(found))):
        count = len(found[axis])
        groups = [values[at : at + count] for at in range(0, len(values), count)]
        values = []
        for parts in groups:
            if count > 1:
                joined.append(make_node("concat", parts, {"axis": 1 + axis}, node.loc))
            values.append(joined[-1].output if count > 1 else parts[0])
    (last, *others) = (joined or convs)[::-1]
    made = replace(last, outputs=node.outputs)
    return (convs, [*others[::-1], made]) if joined else ([*others[::-1], made], [])
