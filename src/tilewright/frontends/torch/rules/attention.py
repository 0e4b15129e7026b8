"""Attention: what PyTorch calls scaled_dot_product_attention, and its forms on the CPU."""

from __future__ import annotations

import math

from tilewright.base.dtype import F32
from tilewright.frontends.common.report import Skip
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.creation import dropout
from tilewright.frontends.torch.rules.shape import transpose
from tilewright.frontends.torch.tensors import dtype_of
from tilewright.graph import Value
from tilewright.graph.ops.shape import product
from tilewright.graph.types import items_of
from tilewright.sym import ONE, Const, Expr


def _heads(node: Context, x: Value, lead: tuple[Expr, ...]) -> Value:
    """[*lead, sequence, features] as [batch, heads, sequence, features]."""
    dims = node.shape(x)
    if len(lead) == 2:
        x = node.unsqueeze(x, *range(4 - len(dims))) if len(dims) < 4 else x
        return x if dims[:-2] == lead else _batched(node, x, lead)
    if dims[:-2] != lead:
        x = node.emit("expand", x, shape=items_of((*lead, *dims[-2:])))
    return node.reshape(x, (product(lead), ONE, *dims[-2:]))


def _batched(node: Context, x: Value, lead: tuple[Expr, ...]) -> Value:
    """Keys of one batch for all, and of one head for all; several heads may share a key's."""
    dims = node.shape(x)
    heads = lead[1] if dims[1] is ONE else dims[1]
    if dims[0] is lead[0] and dims[1] is heads:
        return x
    return node.emit("expand", x, shape=items_of((lead[0], heads, *dims[2:])))


def _mask(node: Context, mask: Value, lead: tuple[Expr, ...]) -> Value:
    """A mask as [batch, heads, queries, keys], or what broadcasts to it."""
    dims = node.shape(mask)
    if len(lead) == 2:
        return mask
    if len(dims) <= 2:
        return mask
    if len(dims) < len(lead) + 2:
        mask = node.unsqueeze(mask, *range(len(lead) + 2 - len(dims)))
    full = node.emit("expand", mask, shape=items_of((*lead, *dims[-2:])))
    return node.reshape(full, (product(lead), ONE, *dims[-2:]))


def attend(node: Context, mask: Value | None, *, causal: bool) -> Value:
    """The values that the queries attend to, in the shape of the queries."""
    lead = node.out[:-2]
    q, k, v = (_heads(node, node[name], lead) for name in ("query", "key", "value"))
    mask = None if mask is None else _mask(node, mask, lead)
    scale, dropped = node.get("scale"), float(node.get("dropout_p", 0.0))
    if dropped:
        weights = node.emit("softmax", _scores(node, q, k, mask, causal=causal), axes=(3,))
        weights = node.cast(weights, v.tensor.dtype)
        made = node.emit("matmul", dropout(node, weights, dropped)[0], v)
    else:
        scale = None if scale is None else float(scale)
        made = node.emit("attention", q, k, v, mask, scale=scale, causal=causal)
    return node.cast(made if len(lead) == 2 else node.reshape(made, node.out), node.to)


def _attention(node: Context) -> Value:
    return attend(node, node.get("attn_mask"), causal=bool(node.get("is_causal", False)))


def _flash(node: Context) -> tuple[Value, Value | None]:
    """Attention, and the logarithm of the sums of its weights, for gradients."""
    mask, causal = node.get("attn_mask"), bool(node.get("is_causal", False))
    made = attend(node, mask, causal=causal)
    return made, _log_sums(node, mask, causal=causal) if node.wants(1) else None


def _wide(node: Context, x: Value) -> Value:
    return node.cast(x, F32) if x.tensor.dtype.bits < 32 else x


def _scores(node: Context, q: Value, k: Value, mask: Value | None, *, causal: bool) -> Value:
    """The scaled products of queries and keys, of at least f32; what may not be seen is -inf."""
    q, k = _wide(node, q), _wide(node, k)
    features = node.shape(q)[-1]
    scale = node.get("scale")
    if scale is None:
        if not isinstance(features, Const):
            raise Skip(f"{node.op_type} with a dynamic number of features")
        scale = 1 / math.sqrt(int(features.value))
    scores = node.emit(
        "matmul", node.emit("mul", q, float(scale)), transpose(node, k, (0, 1, 3, 2))
    )
    if mask is not None and mask.tensor.dtype.is_bool:
        scores = node.emit("where", mask, scores, -math.inf)
    elif mask is not None:
        scores = node.emit("add", scores, node.cast(mask, scores.tensor.dtype))
    if causal:
        rows, columns = node.shape(scores)[-2:]
        seen = node.emit("less_equal", node.iota(columns), node.unsqueeze(node.iota(rows), 1))
        scores = node.emit("where", seen, scores, node.like(scores, -math.inf))
    return scores


def _log_sums(node: Context, mask: Value | None, *, causal: bool) -> Value:
    """log(sum(exp(scores))) for each query, the greatest score taken out."""
    scores = _scores(node, node["query"], node["key"], mask, causal=causal)
    most = node.emit("reduce_max", scores, axes=(3,), keepdims=True)
    powers = node.emit("exp", node.emit("sub", scores, most))
    total = node.emit("reduce_sum", powers, axes=(3,), keepdims=True)
    made = node.emit("add", node.emit("log", total), most)
    dims = node.shape(made)
    return node.cast(node.reshape(made, dims[:3]), dtype_of(node.results[1].dtype))


def _flash_gradient(node: Context) -> tuple[Value, Value, Value]:
    """Weights anew from the scores and their sums; then the derivative of each product.

    p = exp(s - l); dv = p' @ g; ds = p * (g @ v' - sum(g * out)); dq = ds @ k; dk = ds' @ q

    Scores are computed in at least f32; operands of the last GEMMs have the inputs' dtype.
    """
    g, out, sums = node["grad_out"], node["out"], _wide(node, node["logsumexp"])
    q, k, v = node["query"], node["key"], node["value"]
    of = q.tensor.dtype
    scores = _scores(node, q, k, node.get("attn_mask"), causal=bool(node.get("is_causal", False)))
    weights = node.emit("exp", node.emit("sub", scores, node.unsqueeze(sums, 3)))
    turn = (0, 1, 3, 2)
    dv = node.emit("matmul", transpose(node, node.cast(weights, of), turn), g)
    g = _wide(node, g)
    along = node.emit("matmul", g, transpose(node, _wide(node, v), turn))
    products = node.emit("mul", g, _wide(node, out))
    shared = node.emit("reduce_sum", products, axes=(3,), keepdims=True)
    ds = node.emit("mul", weights, node.emit("sub", along, shared))
    scale = node.get("scale")
    if scale is None:
        features = node.shape(q)[-1]
        assert isinstance(features, Const)
        scale = 1 / math.sqrt(int(features.value))
    ds = node.cast(node.emit("mul", ds, float(scale)), of)
    dq = node.emit("matmul", ds, k)
    dk = node.emit("matmul", transpose(node, ds, turn), q)
    return dq, dk, dv


RULES: dict[str, Rule] = {
    "aten.scaled_dot_product_attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": _flash,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _flash_gradient,
}
