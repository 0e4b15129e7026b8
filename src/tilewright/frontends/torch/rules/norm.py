"""Normalization."""

from __future__ import annotations

from tilewright import sym
from tilewright.base.dtype import F32, U8, DType
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.reduction import moments
from tilewright.frontends.torch.tensors import dtype_of
from tilewright.graph import Value
from tilewright.graph.ops.shape import product
from tilewright.sym import ONE, Expr


def _wide(of: DType) -> DType:
    return F32 if of.bits < 32 else of


def _per_channel(node: Context, name: str, default: float, to: DType, channels: Expr) -> Value:
    """A vector with a number per channel; a default for all if absent."""
    given = node.get(name)
    return node.full(default, to, (channels,)) if given is None else node.cast(given, to)


def _batch_norm(node: Context, mean: Value, variance: Value) -> Value:
    x = node["input"]
    to = _wide(x.tensor.dtype)
    channels = node.dims("input")[1]
    scale = _per_channel(node, "weight", 1.0, to, channels)
    bias = _per_channel(node, "bias", 0.0, to, channels)
    made = node.emit(
        "batch_norm",
        node.cast(x, to),
        scale,
        bias,
        node.cast(mean, to),
        node.cast(variance, to),
        epsilon=float(node.args["eps"]),
    )
    return node.cast(made, x.tensor.dtype)


def _inference(node: Context) -> tuple[Value, Value, Value]:
    nothing = node.full(0, _wide(node.to), (0,))
    made = _batch_norm(node, node["running_mean"], node["running_var"])
    return made, nothing, nothing


def _own_moments(node: Context) -> tuple[Value, Value, Value]:
    """Mean, variance and its inverse root of each channel over the batch."""
    x = node["input"]
    to = _wide(x.tensor.dtype)
    rank, channels = node.rank("input"), node.dims("input")[1]
    axes = (0, *range(2, rank))
    variance, mean = moments(node, node.cast(x, to), axes, 0.0)
    variance, mean = (node.reshape(each, (channels,)) for each in (variance, mean))
    inverse = node.emit("rsqrt", node.emit("add", variance, float(node.args["eps"])))
    return mean, variance, inverse


def _training(node: Context) -> list[Value]:
    """Normalize by the batch's moments, which also update the running ones."""
    if "training" in node.args and not node.args["training"]:
        made, nothing, _ = _inference(node)
        return [made, nothing, nothing, *_running(node, None, None)]
    mean, variance, inverse = _own_moments(node)
    made = _batch_norm(node, mean, variance)
    saved = [node.cast(each, dtype_of(fake.dtype))
             for each, fake in zip((mean, inverse), node.results[1:], strict=False)]  # fmt: skip
    return [made, *saved, *_running(node, mean, variance)]


def _with_update(node: Context) -> list[Value]:
    """The same, with the reserve buffer for gradients that is empty on CPUs."""
    made, mean, inverse, *moved = _training(node)
    nothing = node.full(0, U8, (0,))
    return [made, mean, inverse, nothing, *moved]


def _running(node: Context, mean: Value | None, variance: Value | None) -> list[Value]:
    """(1 - momentum) * running + momentum * the batch's, with the unbiased variance."""
    if len(node.results) < 5:
        return []
    old_mean, old_variance = node["running_mean"], node["running_var"]
    if mean is None or variance is None:
        return [old_mean, old_variance]
    share = float(node.args["momentum"])
    dims = node.dims("input")
    count: Expr = ONE
    for axis, dim in enumerate(dims):
        if axis != 1:
            count = sym.mul(count, dim)
    number = node.cast(node.number(sym.simplify(count)), variance.tensor.dtype)
    unbiased = node.emit("mul", variance, node.emit("div", number, node.emit("sub", number, 1.0)))
    moved = []
    for old, new in ((old_mean, mean), (old_variance, unbiased)):
        kept = node.emit("mul", old, 1.0 - share)
        added = node.emit("mul", node.cast(new, old.tensor.dtype), share)
        moved.append(node.emit("add", kept, added))
    return moved


def _together(node: Context) -> DType:
    """The wider type of input and weights, which may differ under autocast."""
    given = [node[name].tensor.dtype for name in ("input", "weight", "bias")
             if isinstance(node.get(name), Value)]  # fmt: skip
    return max(given, key=lambda of: of.bits)


def _layer_norm(node: Context) -> Value:
    return _normalised(node, outputs=1)[0]


def _normalised(node: Context, outputs: int) -> tuple[Value, ...]:
    to, of = _together(node), node["input"].tensor.dtype
    x = node.cast(node["input"], to)
    axis = node.rank("input") - len(node.args["normalized_shape"])
    epsilon = node.get("eps")
    scale, bias = (
        None if node.get(name) is None else node.cast(node[name], to) for name in ("weight", "bias")
    )
    if axis == node.rank("input"):  # no axes to normalize over: an axis of one
        x = node.unsqueeze(x, axis)
    made, *statistics = node.emit_many(
        "layer_norm",
        x,
        scale,
        bias,
        outputs=outputs,
        axis=axis,
        epsilon=1e-5 if epsilon is None else float(epsilon),
    )
    return node.cast(made, of), *statistics


def _native_layer_norm(node: Context) -> tuple[Value, ...]:
    if not (node.wants(1) or node.wants(2)):
        return _normalised(node, outputs=1)
    made, *rest = _normalised(node, outputs=3)
    kept = [
        node.reshape(node.cast(value, dtype_of(fake.dtype)), node.dims_of(fake))
        for value, fake in zip(rest, node.results[1:], strict=True)
    ]
    return made, *kept


def _rms_norm(node: Context) -> Value:
    x = node["input"]
    axis = node.rank("input") - len(node.args["normalized_shape"])
    to = x.tensor.dtype
    epsilon = node.get("eps")
    if epsilon is None:
        epsilon = {"f64": 2.0**-52, "f32": 2.0**-23}.get(to.name, 2.0**-23)
    weight = node.get("weight")
    dims = node.dims("input")[axis:]
    scale = node.full(1, to, dims) if weight is None else node.cast(weight, to)
    return node.emit("rms_norm", x, scale, axis=axis, epsilon=float(epsilon))


def _group_norm(node: Context) -> tuple[Value, ...]:
    """group_norm, and the mean and inverse deviation of each group if they are used."""
    x, groups = node["input"], int(node.args["group"])
    made = _grouped(node, groups, float(node.args["eps"]))
    if not (node.wants(1) or node.wants(2)):
        return (made,)
    return made, *group_moments(node, x, groups, float(node.args["eps"]))


def group_moments(node: Context, x: Value, groups: int, epsilon: float) -> tuple[Value, Value]:
    batch, channels, *spatial = node.shape(x)
    each = sym.simplify(sym.floordiv(product((channels, *spatial)), groups))
    flat = node.reshape(node.cast(x, _wide(x.tensor.dtype)), (batch, groups, each))
    variance, mean = moments(node, flat, (2,), 0.0)
    inverse = node.emit("rsqrt", node.emit("add", variance, epsilon))
    return (
        node.cast(node.reshape(mean, (batch, groups)), x.tensor.dtype),
        node.cast(node.reshape(inverse, (batch, groups)), x.tensor.dtype),
    )


def _grouped(node: Context, groups: int, epsilon: float) -> Value:
    channels, to = node.dims("input")[1], _together(node)
    made = node.emit(
        "group_norm",
        node.cast(node["input"], to),
        _per_channel(node, "weight", 1.0, to, channels),
        _per_channel(node, "bias", 0.0, to, channels),
        groups=groups,
        epsilon=epsilon,
    )
    return node.cast(made, node["input"].tensor.dtype)


def _plain_group_norm(node: Context) -> Value:
    return _grouped(node, int(node.args["num_groups"]), float(node.get("eps", 1e-5)))


RULES: dict[str, Rule] = {
    "aten._native_batch_norm_legit_no_training": _inference,
    "aten._native_batch_norm_legit_functional": _training,
    "aten._native_batch_norm_legit": _training,
    "aten._batch_norm_with_update_functional": _with_update,
    "aten._native_batch_norm_legit.no_stats": _training,
    "aten.native_batch_norm": _training,
    "aten.layer_norm": _layer_norm,
    "aten.native_layer_norm": _native_layer_norm,
    "aten.rms_norm": _rms_norm,
    "aten.group_norm": _plain_group_norm,
    "aten.native_group_norm": _group_norm,
}
