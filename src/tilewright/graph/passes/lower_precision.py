"""lower_precision: products of f32 read their operands in bf16, and sum in f32.

It runs where a user asks for it by name. Weights are rounded at compile time; what else a product
reads is rounded by whoever computes it, so that less is moved too. Between products everything
stays f32: norms, softmax and sums lose nothing. But of a large value that products read rounded
anyway, sums take the rounded one too: writing and reading it twice would take longer than
multiplying. On GPUs, where a second form of a value is a kernel of its own, so they do of any.
Convolutions are products of their windows; those of groups stay as they are, but GPUs read their
operands rounded. Attention stays as it is where there are no tiles to multiply. Recurrent layers
read their weights rounded: that a step takes as long as bringing them is all that counts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from tilewright.base.dtype import BF16, F16, F32, DType
from tilewright.base.machine import Machine
from tilewright.base.multiprocessor import BULK_ROW_BYTES, WINDOW_BYTES
from tilewright.base.passes import PassContext
from tilewright.base.target import CUDA
from tilewright.base.tiles import ROW_BYTES, tile_product
from tilewright.base.tiles import ROWS as TILE_ROWS
from tilewright.graph.im2col import (
    as_banded_matrix,
    as_single_channel_rows,
    fits_banded_matrix,
    fits_padded_tiles,
    fits_partial_im2col,
    fits_single_channel_rows,
    fits_tiles,
    flatten_rows,
    foldable_weights,
    im2col,
    partial_im2col,
    with_channels,
)
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches, shape_of
from tilewright.graph.ops.layout import CHANNELS_LAST
from tilewright.graph.passes.decompose import pieces_of
from tilewright.graph.passes.remove_dead_nodes import remove_dead_nodes
from tilewright.graph.passes.stream_attention import (
    features_of,
    has_streams,
    missing_features,
    streamed_features,
)
from tilewright.graph.rates import rates_of, size_bytes
from tilewright.graph.views import is_view
from tilewright.sym import ONE, Const

MIN_FILLED_RATIO = 8  # of a length to what copies read whole: shorter ones are mostly filling
RECURRENT = ("rnn", "gru", "lstm")


def lower_precision(module: Module, ctx: PassContext) -> Module:
    """Before: matmul(%a, %b).   After: matmul(cast(%a), cast(%b)) {to = dtype f32}."""
    return _lowered(module, ctx, BF16)


def lower_precision_f16(module: Module, ctx: PassContext) -> Module:
    """The same with f16, whose range is smaller: what a model has beyond it becomes infinite."""
    return _lowered(module, ctx, F16)


def lower_precision_tf32(module: Module, ctx: PassContext) -> Module:
    """Products of f32 whose operands tensor cores round to ten bits of mantissa. What is between
    products, and what memory holds, stays as it is."""
    if not has_streams(ctx.target):
        return module
    return rewrite_matches(rewrite_matches(module, (matmul_tf32, conv_tf32)), (flatten_rows,))


def matmul_tf32(node: Node, scope: Scope) -> Replacement:
    """A GEMM of f32 operands."""
    a, b = node.inputs if node.op == "matmul" else (None, None)
    if a is None or b is None or a.tensor.dtype is not F32 or node.get("tf32"):
        return None
    if len(shape_of(a) or ()) < 2 or len(shape_of(b) or ()) < 2 or not is_long(a):
        return None
    steps = Steps(node, scope)
    steps.add("matmul", a, b, **{**dict(node.attributes), "tf32": True})
    return steps.done()


def conv_tf32(node: Node, scope: Scope) -> Replacement:
    """A convolution as a product of its windows."""
    x = node.inputs[0] if node.op == "conv" else None
    weights = None if x is None else foldable_weights(node, scope)
    if x is None or weights is None or x.tensor.dtype is not F32:
        return None
    bias, steps = (*node.inputs[2:], None)[0], Steps(node, scope)
    whole = BULK_ROW_BYTES // F32.size_bytes
    return im2col(steps, node, x, weights, bias, "matmul", multiple=whole, tf32=True)


def _lowered(module: Module, ctx: PassContext, small: DType) -> Module:
    tiles = tile_product(ctx.target, small.name, small.name) is not None
    machine = ctx.target.machine if tiles else None
    streams = has_streams(ctx.target)
    gpu = ctx.target is not None and ctx.target.kind == CUDA
    rules = (
        partial(matmul, small=small, streams=streams),
        partial(conv, machine=machine, streams=streams, gpu=gpu, small=small),
        partial(attention, tiles=tiles, streams=streams, small=small),
        partial(recurrent, small=small),
    )
    if gpu:
        module = rewrite_matches(module, (partial(split_attention, streams=streams),))
    rounded = rewrite_matches(rewrite_matches(module, rules), (flatten_rows,))
    kept_bytes = 0 if streams else rates_of(ctx.target).kept_bytes
    reading = partial(read_rounded, small=small, kept_bytes=kept_bytes)
    rounded = remove_dead_nodes(rewrite_matches(rounded, (reading,)), ctx)
    rounded = rewrite_matches(rounded, (partial(round_first, small=small),))
    return rewrite_matches(rounded, (flatten_rows,))


def matmul(node: Node, scope: Scope, *, small: DType, streams: bool) -> Replacement:
    """A GEMM: of operands that bulk copies read, rows are filled up to what those take."""
    a, b = node.inputs if node.op == "matmul" else (None, None)
    if a is None or b is None or a.tensor.dtype is not F32:
        return None
    if len(shape_of(a) or ()) < 2 or len(shape_of(b) or ()) < 2 or not is_long(a):
        return None
    steps = Steps(node, scope)
    if not streams:
        steps.add("matmul", _rounded(steps, a, small), _rounded(steps, b, small), to=F32)
        return steps.done()
    last = (shape_of(a) or ())[-1]
    whole = BULK_ROW_BYTES // small.size_bytes
    missing = -int(last.value) % whole if isinstance(last, Const) else 0
    if isinstance(last, Const) and int(last.value) < MIN_FILLED_RATIO * whole:
        missing = 0
    ranks = [len(shape_of(each) or ()) for each in (a, b)]
    left = _filled(steps, a, small, ranks[0] - 1, missing)
    steps.add("matmul", left, _filled(steps, b, small, ranks[1] - 2, missing), to=F32)
    return steps.done()


def _filled(steps: Steps, value: Value, small: DType, axis: int, missing: int) -> Value:
    """A rounded value, zeros behind its last elements along an axis. A matrix is rounded before its
    axes change places: tensor cores take either order."""
    turned = steps.scope.producer(value, "transpose")
    source, rank = None if turned is None else turned.inputs[0], len(shape_of(value) or ())
    swap = (*range(rank - 2), rank - 1, rank - 2)
    if turned is not None and source is not None and tuple(turned["perm"]) == swap:
        inner = _filled(steps, source, small, swap[axis], missing)
        return steps.add("transpose", inner, perm=swap)
    rounded = _rounded(steps, value, small)
    return steps.add("pad", rounded, pads=(0, missing), axes=(axis,)) if missing else rounded


def conv(
    node: Node, scope: Scope, *, machine: Machine | None, streams: bool, gpu: bool, small: DType
) -> Replacement:
    """A convolution: in a form whose images tiles can read, where a machine has them, or else as a
    product of its windows."""
    x = node.inputs[0] if node.op == "conv" else None
    if x is None or x.tensor.dtype is not F32:
        return None
    bias = (*node.inputs[2:], None)[0]
    steps = Steps(node, scope)
    weights = foldable_weights(node, scope)
    if weights is None:
        return _grouped(steps, node, x, bias, small) if streams else None
    narrow = weights.astype(small.numpy)
    if machine and fits_single_channel_rows(node, weights, machine):
        return as_single_channel_rows(
            steps, node, _rounded(steps, x, small), narrow, bias, to=F32, winograd=0
        )
    if streams:
        image = _rounded(steps, x, small)
        pixel, whole = WINDOW_BYTES // small.size_bytes, BULK_ROW_BYTES // small.size_bytes
        if fits_banded_matrix(node, weights, pixel, whole):
            return as_banded_matrix(steps, node, image, narrow, bias, "matmul", pixel=pixel, to=F32)
        return im2col(steps, node, image, narrow, bias, "matmul", multiple=whole, to=F32)
    depth = ROW_BYTES // small.size_bytes
    is_padded = machine is not None and fits_padded_tiles(node, weights, depth, machine)
    if is_padded or (fits_tiles(node, weights) and not gpu):
        image, attributes = _rounded(steps, x, small), dict(node.attributes)
        if is_padded:
            missing = -weights.shape[1] % depth
            image, narrow, attributes = with_channels(steps, node, image, narrow, missing)
        rounded = scope.new_constant(narrow, "w", node)
        steps.nodes.append(rounded)
        attributes |= {"to": F32, "winograd": 0}
        sums = steps.add("conv", image, rounded.output, **attributes)
        if bias is not None:
            steps.add("add", sums, bias)
        return steps.done()
    if machine and fits_partial_im2col(node, narrow):
        return partial_im2col(
            steps, node, _rounded(steps, x, small), narrow, bias, "conv", to=F32, winograd=0
        )
    return im2col(steps, node, _rounded(steps, x, small), narrow, bias, "matmul", to=F32)


def _grouped(steps: Steps, node: Node, x: Value, bias: Value | None, small: DType) -> Replacement:
    """A convolution of groups where bytes count: images and weights are read rounded."""
    weights = steps.scope.constant(node.inputs[1])
    if weights is None or node.get("groups", 1) == 1:
        return None
    rounded = steps.scope.new_constant(weights.astype(small.numpy), "w", node)
    steps.nodes.append(rounded)
    attributes = {**dict(node.attributes), "to": F32, "winograd": 0}
    sums = steps.add("conv", _rounded(steps, x, small), rounded.output, **attributes)
    if bias is not None:
        if node.get("layout") != CHANNELS_LAST:  # channels come before places
            places = (1,) * (len(shape_of(sums) or ()) - 2)
            bias = steps.add("reshape", bias, shape=(len(weights), *places))
        steps.add("add", sums, bias)
    return steps.done()


def attention(node: Node, scope: Scope, *, tiles: bool, streams: bool, small: DType) -> Replacement:
    """Attention of rows that fill tiles: weights are rounded too, the rest of softmax is not."""
    if node.op != "attention" or not (tiles or streams) or len(node.outputs) > 1:
        return None
    q, k, v, *others = node.inputs
    assert q is not None
    assert k is not None
    assert v is not None
    if streams:
        if streamed_features(node, (F32,)) is None:
            return None
        steps = Steps(node, scope)
        filled = [_with_features(steps, value, small) for value in (q, k, v)]
        scale = node.get("scale")
        scale = 1 / math.sqrt(features_of(q)) if scale is None else scale
        attributes = {**dict(node.attributes), "to": F32, "scale": scale}
        made = steps.add("attention", *filled, *others, **attributes)
        if missing_features(v):
            steps.add("slice", made, starts=(0,), ends=(features_of(v),), axes=(3,), steps=(1,))
        return steps.done()
    sizes = [dim for value in (q, k, v) for dim in (shape_of(value) or ())[2:]]
    known = [int(dim.value) for dim in sizes if isinstance(dim, Const)]
    if q.tensor.dtype is not F32 or len(known) < len(sizes) or min(known) < TILE_ROWS:
        return None
    steps = Steps(node, scope)
    rounded = [_rounded_behind(steps, value, small) for value in (q, k, v)]
    attributes = {**dict(node.attributes), "rounded": True, "to": F32}
    steps.add("attention", *rounded, *others, **attributes)
    return steps.done()


def _with_features(steps: Steps, value: Value, small: DType) -> Value:
    """Heads in fewer bits, zeros behind their last features where copies could not read them."""
    rounded = _rounded_behind(steps, value, small)
    missing = missing_features(value)
    return steps.add("pad", rounded, pads=(0, missing), axes=(3,)) if missing else rounded


def split_attention(node: Node, scope: Scope, *, streams: bool) -> Replacement:
    """Attention of several queries that no one kernel streams: as a GEMM, a softmax and a GEMM.
    Rows of scores whose length is dynamic are no rows that tensor cores are given."""
    q, k = node.inputs[:2] if node.op == "attention" else (None, None)
    if q is None or k is None or q.tensor.dtype is not F32:
        return None
    queries, keys = ((shape_of(value) or (ONE,) * 4)[2] for value in (q, k))
    if queries is ONE or not isinstance(keys, Const):
        return None
    if streams and streamed_features(node, (F32,)) is not None:
        return None
    return pieces_of(node, scope)


def recurrent(node: Node, scope: Scope, *, small: DType) -> Replacement:
    """A recurrent layer: its weights, which every step reads; states keep their precision."""
    r = node.inputs[1] if node.op in RECURRENT else None
    if r is None or r.tensor.dtype is not F32 or not is_long(r):
        return None
    steps = Steps(node, scope)
    gates, _, *others = node.inputs
    rounded = _rounded(steps, r, small)
    return [*steps.nodes, replace(node, inputs=(gates, rounded, *others))]


def read_rounded(node: Node, scope: Scope, *, small: DType, kept_bytes: int) -> Replacement:
    """A sum whose large operand is there in bf16, for a product, reads that."""
    if node.op != "add":
        return None
    steps = Steps(node, scope)
    given = [
        None if value is None else _read(steps, value, small, kept_bytes) for value in node.inputs
    ]
    if given == list(node.inputs):
        return None
    steps.add("add", *given)
    return steps.done()


def _read(steps: Steps, value: Value, small: DType, kept_bytes: int) -> Value:
    """What a sum reads of a value: what is kept of it, or of what it is a reshape of."""
    if _is_kept(value, steps.scope, kept_bytes):
        return steps.add("cast", _rounded(steps, value, small), to=F32)
    view = steps.scope.producer(value, "reshape")
    source = None if view is None else view.inputs[0]
    if view is None or source is None or not _is_kept(source, steps.scope, kept_bytes):
        return value
    moved = steps.add("reshape", _rounded(steps, source, small), **dict(view.attributes))
    return steps.add("cast", moved, to=F32)


def round_first(node: Node, scope: Scope, *, small: DType) -> Replacement:
    """The greatest of numbers, rounded, is the greatest of the rounded: less is moved."""
    pooled = node.inputs[0] if node.op == "cast" and node["to"] is small else None
    pool = scope.producer(pooled, "max_pool")
    if pool is None or pooled is None or len(pool.outputs) > 1 or pool.inputs[0] is None:
        return None
    users = scope.users.get(pooled, [])
    if {user.op for user in users} != {"cast"} or scope.uses[pooled] != len(users):
        return None
    if pooled.tensor.dtype is not F32:
        return None
    steps = Steps(node, scope)
    steps.add("max_pool", _rounded(steps, pool.inputs[0], small), **dict(pool.attributes))
    return steps.done()


def _is_kept(value: Value, scope: Scope, kept_bytes: int) -> bool:
    """Whether a value of so many bytes is rounded for somebody."""
    is_rounded = value.tensor.dtype is F32 and scope.is_used_by(value, "cast")
    return is_rounded and size_bytes(value) >= kept_bytes


def _rounded_behind(steps: Steps, value: Value, small: DType) -> Value:
    """A value rounded by whoever makes it, though products look at parts of it, or turn it."""
    view = steps.scope.producer(value)
    before = None if view is None or not view.inputs else view.inputs[0]
    if view is None or before is None or not is_view(view):
        return _rounded(steps, value, small)
    source = _rounded_behind(steps, before, small)
    return steps.add(view.op, source, *view.inputs[1:], **dict(view.attributes))


def _rounded(steps: Steps, value: Value, small: DType) -> Value:
    """A value in fewer bits; itself before it was widened, where it had no more."""
    wide = steps.scope.producer(value, "cast")
    source = None if wide is None else wide.inputs[0]
    if source is not None and source.tensor.dtype is small:
        return source
    return steps.add("cast", value, to=small)


def is_long(value: Value) -> bool:
    """Whether products along the last axis of a value are worth rounding it."""
    last = (shape_of(value) or (ONE,))[-1]
    return not isinstance(last, Const) or int(last.value) >= TILE_ROWS
