"""lower_precision: f32 contractions read operands in bf16, and accumulate in f32.

Only if the user asks for it by name. Weights are rounded at compile time; other operands are
rounded by their producers, which also reduces memory traffic. Between contractions everything stays
f32: norms, softmax and sums lose no precision. However, where a large value is rounded for a
contraction anyway, sums read the rounded value, too: storing both would cost more than the
contraction. On GPUs that applies to all values, since a second form would be a kernel of its own.

Convolutions take their cheapest form (`graph/conv_forms.py`), on GPUs im2col; grouped ones stay,
but GPUs read their operands rounded.
Attention stays if there are no matrix units. Recurrent layers read rounded weights, since steps are
bound by reading them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from tilewright.base.dtype import BF16, F16, F32, DType
from tilewright.base.multiprocessor import BULK_ROW_BYTES, WINDOW_BYTES
from tilewright.base.passes import PassContext
from tilewright.base.target import CUDA
from tilewright.base.tiles import COLUMNS, tile_product
from tilewright.base.tiles import ROWS as TILE_ROWS
from tilewright.graph.conv_forms import FormPrices, Problem
from tilewright.graph.im2col import (
    as_banded_matrix,
    constant_weights,
    fits_banded_matrix,
    flatten_rows,
    foldable_weights,
    im2col,
    im2col_by_groups,
    reads_group_windows,
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
from tilewright.graph.rates import Rates, context_rates
from tilewright.graph.views import is_view
from tilewright.sym import ONE, Const

MIN_FILLED_RATIO = 8  # of a length to the granularity of copies: shorter ones are mostly padding
RECURRENT = ("rnn", "gru", "lstm")


def lower_precision(module: Module, ctx: PassContext) -> Module:
    """Before: matmul(%a, %b).   After: matmul(cast(%a), cast(%b)) {to = dtype f32}."""
    return _lowered(module, ctx, BF16)


def lower_precision_f16(module: Module, ctx: PassContext) -> Module:
    """The same with f16, whose range is smaller: larger values become infinite."""
    return _lowered(module, ctx, F16)


def lower_precision_tf32(module: Module, ctx: PassContext) -> Module:
    """f32 contractions on tensor cores that round operands to 10 bits of mantissa. Everything else,
    stored values included, stays f32."""
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
    """A convolution, as an implicit GEMM."""
    x = node.inputs[0] if node.op == "conv" else None
    weights = None if x is None else foldable_weights(node, scope)
    if x is None or weights is None or x.tensor.dtype is not F32:
        return None
    bias, steps = (*node.inputs[2:], None)[0], Steps(node, scope)
    whole = BULK_ROW_BYTES // F32.size_bytes
    return im2col(steps, node, x, weights, bias, "matmul", multiple=whole, tf32=True)


def _lowered(module: Module, ctx: PassContext, small: DType) -> Module:
    tiles = tile_product(ctx.target, small.name, small.name) is not None
    streams = has_streams(ctx.target)
    gpu = ctx.target is not None and ctx.target.kind == CUDA
    rules = (
        partial(matmul, small=small, streams=streams),
        partial(conv_gpu, streams=streams, small=small)
        if gpu
        else partial(conv, prices=FormPrices(module, ctx, "lower_precision"), small=small),
        partial(attention, tiles=tiles, streams=streams, small=small),
        partial(recurrent, small=small),
    )
    if gpu:
        module = rewrite_matches(module, (partial(split_attention, streams=streams),))
    rounded = rewrite_matches(rewrite_matches(module, rules), (flatten_rows,))
    rates = context_rates(ctx)
    rates = replace(rates, kept_bytes=0) if streams else rates
    reading = partial(read_rounded, small=small, rates=rates)
    rounded = remove_dead_nodes(rewrite_matches(rounded, (reading,)), ctx)
    rounded = rewrite_matches(rounded, (partial(round_first, small=small),))
    return rewrite_matches(rounded, (flatten_rows,))


def matmul(node: Node, scope: Scope, *, small: DType, streams: bool) -> Replacement:
    """A GEMM; operands that bulk copies read are padded to the granularity of these."""
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
    left = _padded(steps, a, small, ranks[0] - 1, missing)
    steps.add("matmul", left, _padded(steps, b, small, ranks[1] - 2, missing), to=F32)
    return steps.done()


def _padded(steps: Steps, value: Value, small: DType, axis: int, missing: int) -> Value:
    """A rounded value, zero-padded along an axis. A transposed matrix is rounded before the
    transpose: tensor cores read either order."""
    turned = steps.scope.producer(value, "transpose")
    source, rank = None if turned is None else turned.inputs[0], len(shape_of(value) or ())
    swap = (*range(rank - 2), rank - 1, rank - 2)
    if turned is not None and source is not None and tuple(turned["perm"]) == swap:
        inner = _padded(steps, source, small, swap[axis], missing)
        return steps.add("transpose", inner, perm=swap)
    rounded = _rounded(steps, value, small)
    return steps.add("pad", rounded, pads=(0, missing), axes=(axis,)) if missing else rounded


def conv(node: Node, scope: Scope, *, prices: FormPrices, small: DType) -> Replacement:
    """A convolution in the cheapest form, which may be the one of f32."""
    x = node.inputs[0] if node.op == "conv" else None
    weights = None if x is None else constant_weights(node, scope)
    if x is None or weights is None or x.tensor.dtype is not F32:
        return None
    bias, steps = (*node.inputs[2:], None)[0], Steps(node, scope)
    image, narrow = _rounded(steps, x, small), weights.astype(small.numpy)
    made = prices.cheapest(steps, Problem(node, image, narrow, bias, {"to": F32}, node))
    return None if made is None or made[-1] is node else made


def conv_gpu(node: Node, scope: Scope, *, streams: bool, small: DType) -> Replacement:
    """A convolution on a GPU, as an implicit GEMM. The image takes the time there, not columns of
    tiles that few filters leave empty."""
    x = node.inputs[0] if node.op == "conv" else None
    if x is None or x.tensor.dtype is not F32:
        return None
    bias, steps = (*node.inputs[2:], None)[0], Steps(node, scope)
    whole = BULK_ROW_BYTES // small.size_bytes
    weights = foldable_weights(node, scope, least=whole if streams else COLUMNS)
    if weights is None:
        return _grouped(steps, node, x, bias, small) if streams else None
    narrow, image = weights.astype(small.numpy), _rounded(steps, x, small)
    if not streams:
        return im2col(steps, node, image, narrow, bias, "matmul", to=F32)
    pixel = WINDOW_BYTES // small.size_bytes
    if fits_banded_matrix(node, weights, pixel, whole):
        return as_banded_matrix(steps, node, image, narrow, bias, "matmul", pixel=pixel, to=F32)
    return im2col(steps, node, image, narrow, bias, "matmul", multiple=whole, to=F32)


def _grouped(steps: Steps, node: Node, x: Value, bias: Value | None, small: DType) -> Replacement:
    """A grouped convolution: an implicit GEMM for each group, where bulk copies read windows of its
    channels; or bound by memory, with operands that are read rounded."""
    weights = steps.scope.constant(node.inputs[1])
    if weights is None or node.get("groups", 1) == 1:
        return None
    if reads_group_windows(node, weights, small.size_bytes):
        narrow, image = weights.astype(small.numpy), _rounded(steps, x, small)
        return im2col_by_groups(steps, node, image, narrow, bias, "matmul", to=F32)
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
    """Attention with enough queries for tiles: probabilities are rounded, too, but softmax is
    not."""
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
    attributes = {**dict(node.attributes), "round_weights": True, "to": F32}
    steps.add("attention", *rounded, *others, **attributes)
    return steps.done()


def _with_features(steps: Steps, value: Value, small: DType) -> Value:
    """Heads rounded, and zero-padded where copies need a larger multiple."""
    rounded = _rounded_behind(steps, value, small)
    missing = missing_features(value)
    return steps.add("pad", rounded, pads=(0, missing), axes=(3,)) if missing else rounded


def split_attention(node: Node, scope: Scope, *, streams: bool) -> Replacement:
    """Attention of several queries without a streaming kernel, as GEMM, softmax, GEMM.

    Not with a dynamic number of keys: tensor cores could not read rows of scores.
    """
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
    """A recurrent layer: rounds the weights, which every step reads, but not the states."""
    r = node.inputs[1] if node.op in RECURRENT else None
    if r is None or r.tensor.dtype is not F32 or not is_long(r):
        return None
    steps = Steps(node, scope)
    gates, _, *others = node.inputs
    rounded = _rounded(steps, r, small)
    return [*steps.nodes, replace(node, inputs=(gates, rounded, *others))]


def read_rounded(node: Node, scope: Scope, *, small: DType, rates: Rates) -> Replacement:
    """Let a sum read the bf16 form of a large operand that exists for a contraction."""
    if node.op != "add":
        return None
    steps = Steps(node, scope)
    given = [None if value is None else _read(steps, value, small, rates) for value in node.inputs]
    if given == list(node.inputs):
        return None
    steps.add("add", *given)
    return steps.done()


def _read(steps: Steps, value: Value, small: DType, rates: Rates) -> Value:
    """The operand as a sum should read it: the stored form of it, or of what it is a reshape of."""
    if _is_kept(value, steps.scope, rates):
        return steps.add("cast", _rounded(steps, value, small), to=F32)
    view = steps.scope.producer(value, "reshape")
    source = None if view is None else view.inputs[0]
    if view is None or source is None or not _is_kept(source, steps.scope, rates):
        return value
    moved = steps.add("reshape", _rounded(steps, source, small), **dict(view.attributes))
    return steps.add("cast", moved, to=F32)


def round_first(node: Node, scope: Scope, *, small: DType) -> Replacement:
    """max(x) rounded is max of x rounded: moves fewer bytes."""
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


def _is_kept(value: Value, scope: Scope, rates: Rates) -> bool:
    """Whether a large value is rounded for some contraction."""
    is_rounded = value.tensor.dtype is F32 and scope.is_used_by(value, "cast")
    return is_rounded and rates.size_bytes(value) >= rates.kept_bytes


def _rounded_behind(steps: Steps, value: Value, small: DType) -> Value:
    """A value rounded by its producer, through slices and transposes."""
    view = steps.scope.producer(value)
    before = None if view is None or not view.inputs else view.inputs[0]
    if view is None or before is None or not is_view(view):
        return _rounded(steps, value, small)
    source = _rounded_behind(steps, before, small)
    return steps.add(view.op, source, *view.inputs[1:], **dict(view.attributes))


def _rounded(steps: Steps, value: Value, small: DType) -> Value:
    """A value in fewer bits; if it was widened from no more bits, the original."""
    wide = steps.scope.producer(value, "cast")
    source = None if wide is None else wide.inputs[0]
    if source is not None and source.tensor.dtype is small:
        return source
    return steps.add("cast", value, to=small)


def is_long(value: Value) -> bool:
    """Whether contractions along the last axis of a value are long enough to round it."""
    last = (shape_of(value) or (ONE,))[-1]
    return not isinstance(last, Const) or int(last.value) >= TILE_ROWS
