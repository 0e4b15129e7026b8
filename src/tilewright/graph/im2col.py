"""Convolutions in a form that matrix tiles and dot products can multiply.

    conv(x, w)  =  matmul(rows of patches(x), matrix of w)                        unfolded
    conv(x, w)  =  conv(x as lines of one channel, w as lines, filled up)         in lines
    conv(x, w)  =  conv(rows of patches along lines, w of one axis)               in rows
    conv(x, w)  =  matmul(rows of patches(bands of x), matrix of w)               in bands
    conv(x, w)  =  matmul(rows of patches(x) by group, matrices of w)             by groups

A row of patches is what one window sees; with one tap it is there already. Element-wise work behind
a product can be done on its rows too, so that it stays with the product. Of few channels, what a
window sees of a line is contiguous anyway, and as good as one pixel of many channels. Of lines too
short for tiles, windows are unfolded along the line alone: what follows each other then is rows of
the same tap, from one line to the next, and less is copied than by unfolding all. A band is what
windows see of as many lines as they are apart, as one pixel of many channels: windows are a few
bands, one below the other, and bands overlap along lines alone.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dots import dots_of
from tilewright.base.machine import CONVERT_STORE_CYCLES, LOOP_CYCLES, Machine
from tilewright.base.multiprocessor import WINDOW_BYTES
from tilewright.base.target import Target
from tilewright.base.tiles import COLUMNS, MIN_ROWS, ROW_BYTES, ROWS, register_blocks, tile_product
from tilewright.graph import ir
from tilewright.graph.ir import Attribute, Node, Value
from tilewright.graph.match import Array, Replacement, Scope, Steps, shape_of
from tilewright.graph.ops import OPS
from tilewright.graph.ops.layout import CHANNELS_LAST
from tilewright.graph.types import item_of, items_of
from tilewright.sym import ONE, ZERO, Const, Expr

MAX_PADDED_RATIO = 1.25  # times what tiles of sixteen rows, all of use, would take
MIN_IM2COL_RATIO = 1.5  # times as many elements must all windows have


def constant_weights(node: Node, scope: Scope) -> Array | None:
    """The weights of a convolution that can be a product: constant, channels last, one group."""
    is_product = node.get("layout") == CHANNELS_LAST and node.get("groups", 1) == 1
    return scope.constant(node.inputs[1]) if is_product else None


def foldable_weights(node: Node, scope: Scope) -> Array | None:
    """The same, if it is a product that fills tiles."""
    weights = constant_weights(node, scope)
    return weights if weights is not None and fills_tiles(weights) else None


def fills_tiles(weights: Array) -> bool:
    """Whether filters are as many, and see as much, as a tile has columns."""
    columns, *inner = weights.shape
    return bool(min(columns, prod(inner)) >= COLUMNS)


def fits_tiles(node: Node, weights: Array) -> bool:
    """Whether pairs of tiles can be loaded straight from the image, windows and all.

    A tile is some pixels beside each other, a whole number of them in a row; two tiles lie in one
    row or in two. With one tap there is nothing to unfold.
    """
    _, inner, *taps = weights.shape
    shape = shape_of(node.output) or ()
    if all(tap == 1 for tap in taps) or not all(isinstance(dim, Const) for dim in shape[1:]):
        return False  # of images there may be any number
    sizes = [int(dim.value) for dim in shape if isinstance(dim, Const)]
    row_bytes = inner * weights.dtype.itemsize if weights.dtype.itemsize == 1 else inner * 2
    if row_bytes % ROW_BYTES:
        return False
    return bool(register_blocks(sizes[-2], sizes[-3] if len(taps) > 1 else 1))


def fits_dots(node: Node, weights: Array, target: Any) -> bool:
    """Whether dot products read groups of channels straight from the image, windows and all."""
    x = node.inputs[0]
    if not isinstance(target, Target) or x is None or node.inputs[1] is None:
        return False
    dots = dots_of(target, x.tensor.dtype.name, node.inputs[1].tensor.dtype.name, "i32")
    _, inner, *taps = weights.shape
    is_window = any(tap != 1 for tap in taps) or any(stride != 1 for stride in node["strides"])
    return bool(dots) and is_window and inner % dots[0].group == 0


def fits_padded_tiles(node: Node, weights: Array, depth: int, machine: Machine) -> bool:
    """Whether tiles can be loaded straight from an image with channels of zeros up to a whole
    number of tiles, and that takes less than unfolding."""
    columns, inner, *taps = weights.shape
    missing = -inner % depth
    filled = np.broadcast_to(weights[:, :1], (columns, inner + missing, *taps))
    steps = prod(taps) * -(-inner // depth)
    unfolded_steps = -(-prod(taps) * inner // depth)
    is_cheap = steps * columns <= unfolded_steps * (columns + _unfolding_columns(machine))
    return missing > 0 and is_cheap and fits_tiles(node, filled)


def prefers_dots(node: Node, weights: Array, target: Target) -> bool:
    """Whether dot products of few channels, filled up to a group, take less than lines of windows
    take to be copied, each by itself, and tiles to be multiplied.

    Cycles of one output position; sums go to memory either way.
    """
    x, w = node.inputs[:2]
    assert x is not None
    assert w is not None
    types, machine = (x.tensor.dtype.name, w.tensor.dtype.name), target.machine
    tile, dots = tile_product(target, *types), dots_of(target, *types, "i32")
    columns, inner, *taps = weights.shape
    if not dots or tile is None:
        return bool(dots)
    if inner > dots[0].group:
        return False
    vectors = -(-columns // dots[0].lanes)
    summed = prod(taps) * vectors / machine.fma_per_cycle
    copied = prod(taps[:-1]) * (LOOP_CYCLES + CONVERT_STORE_CYCLES)
    return bool(summed < copied + -(-prod(taps) * inner // tile.depth) * vectors)


def with_channels(
    steps: Steps, node: Node, x: Value, weights: Array, missing: int
) -> tuple[Value, Array, dict[str, Attribute]]:
    """An image and weights with so many more channels of zeros, and attributes of the convolution.

    Edges are padded in the same copy, unless windows skip pixels: rules copy those once more, to
    keep them apart.
    """
    attributes, pads, taps = dict(node.attributes), tuple(node["pads"]), weights.ndim - 2
    before, after = pads[:taps], pads[taps:]
    if any(stride != 1 for stride in node["strides"]):
        more = steps.add("pad", x, pads=(0, missing), axes=(taps + 1,))
    else:
        attributes["pads"] = (0,) * len(pads)
        edges = (*before, 0, *after, missing)
        more = steps.add("pad", x, pads=edges, axes=tuple(range(1, taps + 2)))
    return more, np.pad(weights, [(0, 0), (0, missing), *[(0, 0)] * taps]), attributes


def fits_single_channel_rows(node: Node, weights: Array, machine: Machine) -> bool:
    """Whether tiles can be loaded from lines of few channels, and that takes less than unfolding.

    A tap of a line is then all that windows see of it, filled up with zeros to whole tiles.
    """
    columns, inner, *taps = weights.shape
    x, shape = node.inputs[0], shape_of(node.output) or ()
    dims = (*((x and shape_of(x)) or ())[1:], *shape[1:])
    if len(taps) < 2 or node["dilations"][-1] != 1 or columns % COLUMNS:
        return False
    if node["strides"][-1] >= taps[-1]:  # unfolding copies every pixel once
        return False
    if not all(isinstance(dim, Const) for dim in dims) or not _is_known(tuple(node["pads"])):
        return False
    *_, height, width = _places(node)
    deep = ROW_BYTES // 2
    steps = prod(taps[:-1]) * -(-taps[-1] * inner // deep)
    unfolded_steps = -(-prod(taps) * inner // deep)
    is_cheap = steps * columns <= unfolded_steps * (columns + _unfolding_columns(machine))
    return inner < deep and is_cheap and bool(register_blocks(width, height))


def _unfolding_columns(machine: Machine) -> float:
    """Columns that tiles multiply while a row of theirs is unfolded, written and read again."""
    moved_cycles = 2 * ROW_BYTES / machine.l2.bytes_per_cycle
    return moved_cycles * ROWS * COLUMNS / machine.tile_cycles


def fits_partial_im2col(node: Node, weights: Array) -> bool:
    """Whether windows can be unfolded along lines alone, and tiles go on from line to line."""
    columns, inner, *taps = weights.shape
    shape = shape_of(node.output) or ()
    row_bytes = inner * taps[-1] * (1 if weights.dtype.itemsize == 1 else 2)
    if len(taps) != 2 or taps[0] == 1 or node["strides"][0] != 1 or columns % COLUMNS:
        return False
    if row_bytes % ROW_BYTES or not all(isinstance(dim, Const) for dim in shape[1:]):
        return False
    return _is_known(tuple(node["pads"])) and _extra_lines(node) is not None


def _extra_lines(node: Node) -> int | None:
    """Lines to compute in vain, so that all places are pairs of tiles; None if they cost too much.

    A product of tiles takes as long as multiplying half of sixteen rows, whatever rows it has.
    """
    height, width = _places(node)
    best: tuple[float, int] | None = None
    for extra in range(height // 4 + 2):
        places = (height + extra) * width
        for tall in range(MIN_ROWS, ROWS + 1):
            if places % (2 * tall) == 0:
                cost = places * (ROWS + tall) / (2 * tall)
                best = min(best or (cost, extra), (cost, extra))
    return best[1] if best and best[0] <= MAX_PADDED_RATIO * height * width else None


def partial_im2col(
    steps: Steps,
    node: Node,
    x: Value,
    weights: Array,
    bias: Value | None,
    op: str,
    **attributes: Attribute,
) -> list[Node] | None:
    """A convolution as one along a single axis, of windows unfolded along the other.

    There are a few lines more than it needs, so that what is left of the last tile can be read.
    """
    columns, inner, *taps = weights.shape
    (height, width), extra = _places(node), _extra_lines(node) or 0
    top, left, bottom, right = (int(pad) for pad in node["pads"])
    padded = steps.add("pad", x, pads=(top, left, bottom + extra, right), axes=(1, 2))
    kernel, strides = (1, taps[1]), (1, node["strides"][1])
    dilations = (1, node["dilations"][1])
    seen = steps.add("patches", padded, kernel=kernel, strides=strides, dilations=dilations)
    images, lines, *_ = shape_of(seen) or ()
    assert isinstance(lines, Const)
    places = int(lines.value) * width
    rows = steps.add("reshape", seen, shape=(*items_of((images,)), places, taps[1] * inner))
    moved = weights.transpose(0, 3, 1, 2)
    factor = steps.scope.new_constant(
        np.ascontiguousarray(moved.reshape(columns, taps[1] * inner, taps[0])), "w", node
    )
    steps.nodes.append(factor)
    reach = (taps[0] - 1) * node["dilations"][0]
    cut = places - (height + reach) * width
    attributes = {
        **dict(node.attributes),
        "pads": (0, -cut),
        "strides": (1,),
        "dilations": (node["dilations"][0] * width,),
        **attributes,
    }
    value = steps.add(op, rows, factor.output, **attributes)
    if bias is not None:
        value = steps.add("add", value, bias)
    steps.add("reshape", value, shape=items_of(shape_of(node.output) or ()))
    return steps.done()


def _places(node: Node) -> tuple[int, ...]:
    """The spatial dimensions of a result, channels last, all known."""
    shape = shape_of(node.output) or ()
    return tuple(int(dim.value) for dim in shape[1:-1] if isinstance(dim, Const))


def _is_known(pads: tuple[Attribute, ...]) -> bool:
    return all(isinstance(pad, int) for pad in pads)


def as_single_channel_rows(
    steps: Steps, node: Node, x: Value, weights: Array, bias: Value | None, **attributes: Attribute
) -> list[Node] | None:
    """A convolution of few channels as one of a single channel, over lines of all of them.

    Windows see a little more than they should, times zero: lines are padded for the last.
    """
    columns, inner, *taps = weights.shape
    rank, shape = len(taps), shape_of(x) or ()
    deep = ROW_BYTES // 2
    long = -(-taps[-1] * inner // deep) * deep
    pads = [int(pad) for pad in node["pads"]]
    wide = int(shape[rank].value) + pads[rank - 1] if isinstance(shape[rank], Const) else 0
    last = (shape_of(node.output) or ())[rank]
    seen = (int(last.value) - 1) * node["strides"][-1] if isinstance(last, Const) else 0
    pads[-1] = max(0, seen + -(-long // inner) - wide)
    padded = steps.add("pad", x, pads=tuple(pads), axes=tuple(range(1, 1 + rank)))
    *outer, width, _ = shape_of(padded) or ()
    assert isinstance(width, Const)
    line = int(width.value) * inner
    lines = steps.add("reshape", padded, shape=(*items_of(tuple(outer)), line, 1))
    flat = np.moveaxis(weights, 1, -1).reshape(columns, 1, *taps[:-1], taps[-1] * inner)
    filled = np.pad(flat, [(0, 0)] * (rank + 1) + [(0, long - taps[-1] * inner)])
    factor = steps.scope.new_constant(filled, "w", node)
    steps.nodes.append(factor)
    attributes = {
        **dict(node.attributes),
        "pads": (0,) * (2 * rank),
        "strides": (*node["strides"][:-1], node["strides"][-1] * inner),
        **attributes,
    }
    value = steps.add("conv", lines, factor.output, **attributes)
    if bias is not None:
        steps.add("add", value, bias)
    return steps.done()


def im2col(
    steps: Steps,
    node: Node,
    x: Value,
    weights: Array,
    bias: Value | None,
    product: str,
    *,
    multiple: int = 1,
    **attributes: Attribute,
) -> list[Node] | None:
    """A convolution as a product of the windows of an image with its weights, rows and matrix
    filled up to a multiple of so many."""
    seen, matrix = _rows_of(steps, node, x, weights.shape[2:]), _matrix_of(weights)
    missing = -matrix.shape[0] % multiple
    if missing:
        seen = steps.add("pad", seen, pads=(0, missing), axes=(2,))
        matrix = np.pad(matrix, ((0, missing), (0, 0)))
    factor = steps.scope.new_constant(matrix, "w", node)
    steps.nodes.append(factor)
    return _multiplied(steps, node, seen, factor.output, bias, product, **attributes)


def _multiplied(
    steps: Steps,
    node: Node,
    rows: Value,
    matrix: Value,
    bias: Value | None,
    product: str,
    **attributes: Attribute,
) -> list[Node] | None:
    value = steps.add(product, rows, matrix, **attributes)
    if bias is not None:
        value = steps.add("add", value, bias)
    steps.add("reshape", value, shape=items_of(shape_of(node.output) or ()))
    return steps.done()


def im2col_by_groups(
    steps: Steps,
    node: Node,
    x: Value,
    weights: Array,
    bias: Value | None,
    product: str,
    **attributes: Attribute,
) -> list[Node] | None:
    """A grouped convolution as a batch of products, each of the windows of a group's channels."""
    columns, inner, *taps = weights.shape
    groups = int(node["groups"])
    rows = _rows_of(steps, node, x, tuple(taps))
    apart = steps.add("reshape", rows, shape=(-1, prod(taps), groups, inner))
    turned = steps.add("transpose", apart, perm=(2, 0, 1, 3))
    seen = steps.add("reshape", turned, shape=(groups, -1, inner * prod(taps)))
    matrices = np.stack([_matrix_of(part) for part in np.split(weights, groups)])
    factor = steps.scope.new_constant(matrices, "w", node)
    steps.nodes.append(factor)
    sums = steps.add(product, seen, factor.output, **attributes)
    value = steps.add("transpose", sums, perm=(1, 0, 2))
    if bias is not None:
        own = steps.add("reshape", bias, shape=(groups, columns // groups))
        value = steps.add("add", value, own)
    steps.add("reshape", value, shape=items_of(shape_of(node.output) or ()))
    return steps.done()


def reads_group_windows(node: Node, weights: Array, size_bytes: int) -> bool:
    """Whether bulk copies read windows of each group's channels from the image."""
    is_known = node.get("layout") == CHANNELS_LAST and all(
        isinstance(dim, Const) for dim in shape_of(node.output) or ()
    )
    return is_known and weights.shape[1] * size_bytes % WINDOW_BYTES == 0 and weights.ndim == 4


def has_fewer_windows(node: Node, scope: Scope) -> bool:
    """Whether a convolution by weights that a run computes sees fewer windows than it has filters.

    Its windows as rows take less memory than its weights then, and a GEMM reads the weights once;
    the convolution as it is reads them for every line of the image.
    """
    x, weights, *_ = node.inputs
    if node.get("layout") != CHANNELS_LAST or node.get("groups", 1) != 1 or not x or not weights:
        return False
    *places, filters = shape_of(node.output) or (ONE,)
    inner, *taps = (shape_of(weights) or (ONE, ONE))[1:]
    dims = (*places, filters, inner, *taps, *(shape_of(x) or ()))
    if scope.constant(weights) is not None or not all(isinstance(dim, Const) for dim in dims):
        return False
    if {x.tensor.dtype, weights.tensor.dtype} != {node.output.tensor.dtype}:
        return False
    windows = prod(int(dim.value) for dim in places if isinstance(dim, Const))
    is_more = windows < int(filters.value) and any(tap is not ONE for tap in taps)
    return is_more and not any(dim is ZERO for dim in dims)


def im2col_by_inputs(steps: Steps, node: Node) -> list[Node] | None:
    """A convolution as a product of the windows of an image with weights that a run computes."""
    x, weights, bias = (*node.inputs, None)[:3]
    assert x is not None
    assert weights is not None
    dims = [int(dim.value) for dim in shape_of(weights) or () if isinstance(dim, Const)]
    filters, inner, *taps = dims
    # The channels of a window go before its taps, as in the weights: those are more to move.
    count, long = len(taps), inner * prod(taps)
    rows = _rows_of(steps, node, x, tuple(taps))
    parts = steps.add("reshape", rows, shape=(-1, *taps, inner))
    turned = steps.add("transpose", parts, perm=(0, 1 + count, *range(1, 1 + count)))
    seen = steps.add("reshape", turned, shape=(-1, long))
    flat = steps.add("reshape", weights, shape=(filters, long))
    matrix = steps.add("transpose", flat, perm=(1, 0))
    return _multiplied(steps, node, seen, matrix, bias, "matmul")


def fits_banded_matrix(node: Node, weights: Array, pixel: int, multiple: int) -> bool:
    """Whether bands of whole pixels of so many channels are much less than all windows, whose rows
    are a multiple long; pixels that are whole already are copied as they are."""
    _, inner, *taps = weights.shape
    shape = shape_of(node.inputs[0]) if node.inputs[0] is not None else None
    if len(taps) != 2 or node["dilations"] != (1, 1) or not _is_known(tuple(node["pads"])):
        return False
    if shape is None or not all(isinstance(dim, Const) for dim in shape[1:]) or not inner % pixel:
        return False
    apart, _ = node["strides"]
    height, _ = _places(node)
    bands = height + -(-taps[0] // apart) - 1
    banded = bands * -(-apart * taps[1] * inner // pixel) * pixel
    window = -(-prod(taps) * inner // multiple) * multiple
    return bool(taps[0] > apart and MIN_IM2COL_RATIO * banded <= height * window)


def as_banded_matrix(
    steps: Steps,
    node: Node,
    x: Value,
    weights: Array,
    bias: Value | None,
    product: str,
    *,
    pixel: int,
    **attributes: Attribute,
) -> list[Node] | None:
    """A convolution of few channels as a product of windows of bands, pixels of so many channels.

    Windows reach over a whole number of bands, the last lines times zero.
    """
    columns, inner, *taps = weights.shape
    (height, width), (apart, along) = _places(node), node["strides"]
    *_, lines, _, _ = shape_of(x) or ()
    assert isinstance(lines, Const)
    top, left, _, right = (int(pad) for pad in node["pads"])
    reach = -(-taps[0] // apart)
    bands = height + reach - 1
    below = bands * apart - top - int(lines.value)
    padded = steps.add("pad", x, pads=(top, left, below, right), axes=(1, 2))
    kernel, strides = (apart, taps[1]), (apart, along)
    seen = steps.add("patches", padded, kernel=kernel, strides=strides, dilations=(1, 1))
    images = items_of((shape_of(x) or ())[:1])
    channels = prod(kernel) * inner
    band = steps.add("reshape", seen, shape=(*images, bands, width, channels))
    missing = -channels % pixel
    if missing:
        band = steps.add("pad", band, pads=(0, missing), axes=(3,))
    moved = np.pad(weights, ((0, 0), (0, 0), (0, reach * apart - taps[0]), (0, 0)))
    moved = moved.reshape(columns, inner, reach, apart, taps[1]).transpose(0, 3, 4, 1, 2)
    moved = moved.reshape(columns, channels, reach, 1)
    filled = np.pad(moved, ((0, 0), (0, missing), (0, 0), (0, 0)))
    below_each_other = {"pads": (0, 0, 0, 0), "strides": (1, 1), "dilations": (1, 1)}
    return im2col(
        steps,
        replace(node, attributes=ir.attributes(**{**dict(node.attributes), **below_each_other})),
        band,
        filled,
        bias,
        product,
        multiple=1,
        **attributes,
    )


def _matrix_of(weights: Array) -> Array:
    """Weights [out, in, *taps] as a matrix [taps * in, out]."""
    moved = np.moveaxis(weights, (0, 1), (-1, -2))
    return np.ascontiguousarray(moved.reshape(-1, weights.shape[0]))


def _rows_of(steps: Steps, node: Node, x: Value, taps: tuple[int, ...]) -> Value:
    """Rows of what a convolution reads, [images, places, taps * channels]."""
    pads = tuple(node.get("pads", ()))
    if is_padded(pads):
        axes = tuple(range(1, 1 + len(taps)))
        x = steps.add("pad", x, pads=pads, axes=axes)
    shape = shape_of(x) or ()
    is_whole = tuple(node["dilations"]) == (1,) * len(taps) and all(
        isinstance(dim, Const) and dim.value == tap
        for dim, tap in zip(shape[1 : 1 + len(taps)], taps, strict=True)
    )
    is_window = any(k != 1 for k in taps) or any(s != 1 for s in node["strides"])
    if is_window and not is_whole:
        x = steps.add(
            "patches", x, kernel=taps, strides=node["strides"], dilations=node["dilations"]
        )
        shape = shape_of(x) or ()
    # A window that sees the whole image is the image: a fully connected layer, say.
    places = (ONE,) if is_whole else shape[1 : 1 + len(taps)]
    long = prod(taps) * int(shape[-1].value) if isinstance(shape[-1], Const) else -1
    rows = _counted(shape[0], _product(places))
    return steps.add("reshape", x, shape=(*items_of(rows), long))


def is_padded(pads: tuple[Attribute, ...]) -> bool:
    """Whether any pad may be other than 0; those of an open size are expressions."""
    return any(not isinstance(pad, int) or pad != 0 for pad in pads)


def _counted(images: Expr, places: Expr) -> tuple[Expr, Expr]:
    """The number of rows as images and places of each; as one image, all rows fill tiles at once.

    Where it is not known how many images there are, places of each are better kept apart: of all
    together nobody knows whether they fill tiles.
    """
    if isinstance(images, Const) and isinstance(places, Const):
        return ONE, _product((images, places))
    return images, places


def _product(dims: tuple[Expr, ...]) -> Expr:
    total: Expr = ONE
    for dim in dims:
        total = sym.mul(total, dim)
    return sym.simplify(total)


# ------------------------------------------------------------------------------------ behind


def flatten_rows(node: Node, scope: Scope) -> Replacement:
    """Element-wise work on the places of an image, done on rows if an operand is rows."""
    op = OPS.get(node.op)
    if op is None or not op.is_map or op.foldable:
        return None
    if len(node.outputs) != 1 or not node.inputs or not _is_by_places(node):
        return None
    shape = shape_of(node.output) or ()
    rows = next((r for v in node.inputs if (r := _source(v, shape, scope)) is not None), None)
    if rows is None or len(shape) < 4:
        return None
    steps = Steps(node, scope)
    given: list[Value | None] = []
    for value in node.inputs:
        taken = _as_rows(steps, value, rows, shape) if value is not None else None
        if value is not None and taken is None:
            return None
        given.append(taken)
    made = steps.add(node.op, *given, **dict(node.attributes))
    if shape_of(made) != shape_of(rows):
        return None
    steps.add("reshape", made, shape=items_of(shape))
    return steps.done()


def _is_by_places(node: Node) -> bool:
    """Whether places may be put in a row: channels, if an operand has some of its own, are last."""
    said = {attr.name: node.get(attr.name, attr.default) for attr in OPS[node.op].attributes}
    if said.get("layout", CHANNELS_LAST) != CHANNELS_LAST:
        return False
    others = [shape_of(value) for value in node.inputs[1:] if value is not None]
    return "axis" not in said or all(shape == () for shape in others)


def _source(value: Value | None, shape: tuple[Expr, ...], scope: Scope) -> Value | None:
    """The rows [images, places, channels] that a value of this shape is made of, in one way or
    another: all that counts is that a row is a place."""
    node = scope.producer(value, "reshape")
    source = None if node is None else node.inputs[0]
    if value is None or source is None or len(shape_of(source) or ()) != 3:
        return None
    of, to = shape_of(source) or (), shape_of(value) or ()
    same = len(to) == len(shape) and all(a is b for a, b in zip(to, shape, strict=True))
    return source if same and of[-1] is to[-1] else None


def _as_rows(steps: Steps, value: Value, rows: Value, shape: tuple[Expr, ...]) -> Value | None:
    """An operand as rows: of all places, or the same for all."""
    source = _source(value, shape, steps.scope)
    if source is not None and shape_of(source) == shape_of(rows):
        return source
    own = shape_of(value) or ()
    if len(own) == len(shape) and all(a is b for a, b in zip(own, shape, strict=True)):
        wide = _widening(value, steps.scope)
        if wide is None:
            return steps.add("reshape", value, shape=items_of(shape_of(rows) or ()))
        narrow, *others = wide.inputs
        assert narrow is not None
        made = steps.add("reshape", narrow, shape=items_of(shape_of(rows) or ()))
        return steps.add(wide.op, made, *others, **dict(wide.attributes))
    if any(dim is not ONE for dim in own[:-1]):
        return None
    return value if len(own) <= 1 else steps.add("reshape", value, shape=(item_of(own[-1]),))


def _widening(value: Value, scope: Scope) -> Node | None:
    """What makes a value, for one user, of the same in fewer bytes: these are what to keep."""
    node = scope.producer(value)
    op = None if node is None else OPS.get(node.op)
    if node is None or op is None or not op.is_map:
        return None
    first, *others = node.inputs
    if first is None or not scope.is_used_once(value) or not _is_by_places(node):
        return None
    if shape_of(first) != shape_of(value) or any(each and shape_of(each) for each in others):
        return None
    return node if first.tensor.dtype.size_bytes < value.tensor.dtype.size_bytes else None
