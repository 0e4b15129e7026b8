"""Convert convolutions to GEMMs and to other forms for matrix tiles and dot products.

    conv(x, w)  =  matmul(rows of patches(x), matrix of w)                        unfolded
    conv(x, w)  =  conv(x as lines of one channel, w as lines, filled up)         in lines
    conv(x, w)  =  conv(rows of patches along lines, w of one axis)               in rows
    conv(x, w)  =  matmul(rows of patches(bands of x), matrix of w)               in bands
    conv(x, w)  =  matmul(rows of patches(x) by group, matrices of w)             by groups

A row of patches is one window; 1x1 convolutions need no copy. Element-wise operators after a GEMM
are moved to its rows too, so that they fuse as its epilogue. With few channels, the part of a
window in one image line is contiguous, and equivalent to one pixel of many channels. If lines are
too short for tiles, windows are unfolded along the line only: rows of the same kernel position then
continue from one line to the next, and less is copied than by full im2col. A band combines as many
lines as the vertical stride to one line of pixels with more channels: a window is a few bands below
each other, and bands overlap along lines only.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from tilewright import sym
from tilewright.base.multiprocessor import WINDOW_BYTES
from tilewright.base.tiles import COLUMNS
from tilewright.graph import ir
from tilewright.graph.ir import Attribute, Node, Value
from tilewright.graph.match import Array, Replacement, Scope, Steps, shape_of
from tilewright.graph.ops import OPS
from tilewright.graph.ops.layout import CHANNELS_LAST
from tilewright.graph.types import item_of, items_of
from tilewright.sym import ONE, ZERO, Const, Expr

MIN_IM2COL_RATIO = 1.5  # size of all windows relative to the image, at least


def constant_weights(node: Node, scope: Scope) -> Array | None:
    """Constant weights of a channels-last convolution with one group; None otherwise."""
    is_product = node.get("layout") == CHANNELS_LAST and node.get("groups", 1) == 1
    return scope.constant(node.inputs[1]) if is_product else None


def foldable_weights(node: Node, scope: Scope, *, least: int = COLUMNS) -> Array | None:
    """The same, if the GEMM fills tiles, of at least so many filters."""
    weights = constant_weights(node, scope)
    return weights if weights is not None and fills_tiles(weights, least=least) else None


def fills_tiles(weights: Array, *, least: int = COLUMNS) -> bool:
    """Whether there are as many filters as a tile takes, and inputs of each as a tile has
    columns."""
    columns, *inner = weights.shape
    return bool(columns >= least and prod(inner) >= COLUMNS)


def with_channels(
    steps: Steps, node: Node, x: Value, weights: Array, missing: int
) -> tuple[Value, Array, dict[str, Attribute]]:
    """Zero-pad the channels of an image and weights; returns them with the convolution's
    attributes.

    Edges are padded in the same copy, unless the stride exceeds one: rules then copy the image
    again to separate the phases.
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


def partial_im2col(
    steps: Steps,
    node: Node,
    x: Value,
    weights: Array,
    bias: Value | None,
    op: str,
    *,
    extra: int = 0,
    **attributes: Attribute,
) -> list[Node] | None:
    """Convert a convolution to one along a single axis, of windows unfolded along the other.

    A few extra lines may be added, so that a rule can read beyond the last position.
    """
    columns, inner, *taps = weights.shape
    height, width = _output_positions(node)
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


def _output_positions(node: Node) -> tuple[int, ...]:
    """The spatial dimensions of a channels-last result, all static."""
    shape = shape_of(node.output) or ()
    return tuple(int(dim.value) for dim in shape[1:-1] if isinstance(dim, Const))


def _is_known(pads: tuple[Attribute, ...]) -> bool:
    return all(isinstance(pad, int) for pad in pads)


def as_single_channel_rows(
    steps: Steps,
    node: Node,
    x: Value,
    weights: Array,
    bias: Value | None,
    op: str,
    *,
    deep: int,
    **attributes: Attribute,
) -> list[Node] | None:
    """Convert a convolution with few channels to one with a single channel, over whole lines.

    The part of a window in a line becomes a multiple of `deep` elements, the last ones with zero
    weights: lines are padded for the last.
    """
    columns, inner, *taps = weights.shape
    rank, shape = len(taps), shape_of(x) or ()
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
    value = steps.add(op, lines, factor.output, **attributes)
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
    """Convert a convolution to a GEMM of im2col rows and a weight matrix, with k padded to a
    multiple."""
    seen, matrix = _rows_of(steps, node, x, weights.shape[2:]), _matrix_of(weights)
    missing = -matrix.shape[0] % multiple
    if missing:
        seen = steps.add("pad", seen, pads=(0, missing), axes=(2,))
        matrix = np.pad(matrix, ((0, missing), (0, 0)))
    factor = steps.scope.new_constant(matrix, "w", node)
    steps.nodes.append(factor)
    return _gemm(steps, node, seen, factor.output, bias, product, **attributes)


def _gemm(
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
    """Whether a convolution with dynamic weights has fewer windows than filters.

    Its im2col rows then take less memory than its weights, which a GEMM reads only once; direct
    convolution reads them for every line of the image.
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
    """Convert a convolution with dynamic weights to a GEMM of im2col rows."""
    x, weights, bias = (*node.inputs, None)[:3]
    assert x is not None
    assert weights is not None
    dims = [int(dim.value) for dim in shape_of(weights) or () if isinstance(dim, Const)]
    filters, inner, *taps = dims
    # Order rows by channels, then kernel positions, as in the weights, which would be more to move.
    count, long = len(taps), inner * prod(taps)
    rows = _rows_of(steps, node, x, tuple(taps))
    parts = steps.add("reshape", rows, shape=(-1, *taps, inner))
    turned = steps.add("transpose", parts, perm=(0, 1 + count, *range(1, 1 + count)))
    seen = steps.add("reshape", turned, shape=(-1, long))
    flat = steps.add("reshape", weights, shape=(filters, long))
    matrix = steps.add("transpose", flat, perm=(1, 0))
    return _gemm(steps, node, seen, matrix, bias, "matmul")


def fits_banded_matrix(node: Node, weights: Array, pixel: int, multiple: int) -> bool:
    """Whether bands with whole pixels are much smaller than all windows, with rows padded to a
    multiple; pixels that need no padding are copied directly."""
    _, inner, *taps = weights.shape
    shape = shape_of(node.inputs[0])
    if len(taps) != 2 or node["dilations"] != (1, 1) or not _is_known(tuple(node["pads"])):
        return False
    if shape is None or not all(isinstance(dim, Const) for dim in shape[1:]) or not inner % pixel:
        return False
    apart, _ = node["strides"]
    height, _ = _output_positions(node)
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
    """Convert a convolution with few channels to a GEMM of windows over bands.

    Windows are extended to whole bands, with zero weights for the last lines.
    """
    columns, inner, *taps = weights.shape
    (height, width), (apart, along) = _output_positions(node), node["strides"]
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
    """Weights [out, in, *kernel] as a matrix [kernel * in, out]."""
    moved = np.moveaxis(weights, (0, 1), (-1, -2))
    return np.ascontiguousarray(moved.reshape(-1, weights.shape[0]))


def _rows_of(steps: Steps, node: Node, x: Value, taps: tuple[int, ...]) -> Value:
    """The im2col rows of a convolution's input, [images, positions, kernel * channels]."""
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
    # A window that covers the whole image is the image: a fully connected layer.
    places = (ONE,) if is_whole else shape[1 : 1 + len(taps)]
    long = prod(taps) * int(shape[-1].value) if isinstance(shape[-1], Const) else -1
    rows = _row_counts(shape[0], _product(places))
    return steps.add("reshape", x, shape=(*items_of(rows), long))


def is_padded(pads: tuple[Attribute, ...]) -> bool:
    """Whether any pad may be nonzero; dynamic ones are expressions."""
    return any(not isinstance(pad, int) or pad != 0 for pad in pads)


def _row_counts(images: Expr, places: Expr) -> tuple[Expr, Expr]:
    """The number of rows as (images, positions per image); as one image if static, so that tiles
    span images.

    For a dynamic batch the positions of an image are kept apart: whether the total fills tiles is
    unknown.
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
    """Move an element-wise operator on an image to im2col rows, if an operand is rows."""
    op = OPS.get(node.op)
    if op is None or not op.is_map or op.foldable:
        return None
    if len(node.outputs) != 1 or not node.inputs or not _is_positionwise(node):
        return None
    shape = shape_of(node.output) or ()
    rows = next((r for v in node.inputs if (r := _source_rows(v, shape, scope)) is not None), None)
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


def _is_positionwise(node: Node) -> bool:
    """Whether the operator is independent of position: channels, if an operand has its own, are
    last."""
    said = {attr.name: node.get(attr.name, attr.default) for attr in OPS[node.op].attributes}
    if said.get("layout", CHANNELS_LAST) != CHANNELS_LAST:
        return False
    others = [shape_of(value) for value in node.inputs[1:] if value is not None]
    return "axis" not in said or all(shape == () for shape in others)


def _source_rows(value: Value | None, shape: tuple[Expr, ...], scope: Scope) -> Value | None:
    """The rows [images, positions, channels] that a value was reshaped from, possibly through other
    shapes."""
    node = scope.producer(value, "reshape")
    source = None if node is None else node.inputs[0]
    if value is None or source is None or len(shape_of(source) or ()) != 3:
        return None
    of, to = shape_of(source) or (), shape_of(value) or ()
    same = len(to) == len(shape) and all(a is b for a, b in zip(to, shape, strict=True))
    return source if same and of[-1] is to[-1] else None


def _as_rows(steps: Steps, value: Value, rows: Value, shape: tuple[Expr, ...]) -> Value | None:
    """An operand in the form of rows: one per position, or broadcast."""
    source = _source_rows(value, shape, steps.scope)
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
    """The node that widens a narrower value, if this is its only use: the narrow one is kept."""
    node = scope.producer(value)
    op = None if node is None else OPS.get(node.op)
    if node is None or op is None or not op.is_map:
        return None
    first, *others = node.inputs
    if first is None or not scope.is_used_once(value) or not _is_positionwise(node):
        return None
    if shape_of(first) != shape_of(value) or any(each and shape_of(each) for each in others):
        return None
    return node if first.tensor.dtype.size_bytes < value.tensor.dtype.size_bytes else None
