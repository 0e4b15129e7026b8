"""Attention with scores and masks that a program computes: flex_attention and its gradient.

The program gives functions of single numbers: the score, and the batch, head, query and key that it
belongs to. Of the common ones the graph has attention itself: keys within a band along the diagonal
(causal, sliding window) are attributes, whose blocks outside are skipped; other masks, and what is
added to scores, are tensors, of one batch, head, query or key where they are alike for all. Any
other function takes PyTorch's dense form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._higher_order_ops.flex_attention import sdpa_dense, sdpa_dense_backward
from torch.nn.attention.flex_attention import _vmap_for_bhqkv

from tilewright.frontends.torch.modifiers import Part, Reading, try_read
from tilewright.frontends.torch.rules.base import Context, Rule
from tilewright.frontends.torch.rules.traced import traced
from tilewright.graph import Value
from tilewright.graph.types import items_of

_dense = traced(sdpa_dense)


def _flex(node: Context) -> Value | Sequence[Value | None]:
    score, mask, scale = node.args["3"], node.args["4"][-1], node.args["5"]
    # Sums of each query, for gradients; programs pick them, whether used or not.
    wants_sums = any(each.args[1] in (1, 2) and each.users for each in node.node.users)
    read = None if wants_sums or not isinstance(scale, float) else try_read(score, mask)
    if read is None:
        return _dense(node)
    left, right = read.band
    q, k, v = (_batched(node, node[name]) for name in "012")
    made = node.emit(
        "attention",
        q,
        k,
        v,
        _mask(node, read),
        scale=scale * read.scale,
        softcap=read.softcap,
        causal=right == 0,
        window=(-1 if left is None else left, right or -1),
    )
    return node.cast(made, node.to), None, None


def _batched(node: Context, x: Value) -> Value:
    """Keys of one batch serve all."""
    dims = node.shape(x)
    if dims[0] is node.out[0]:
        return x
    return node.emit("expand", x, shape=items_of((node.out[0], *dims[1:])))


def _mask(node: Context, read: Reading) -> Value | None:
    """Which keys are seen, or what is added to the scores; None if neither is a tensor."""

    def run(query: Any, key: Any, *rest: Any) -> Any:
        sizes = [*query.shape[:3], key.shape[2]]
        mask = bias = None
        for part in read.seen:
            seen = _over(part, sizes, rest[-2:])
            mask = seen if mask is None else mask & seen
        for part in read.added:
            added = _over(part, sizes, rest[-2:]).to(wide)
            bias = added if bias is None else bias + added
        if mask is None or bias is None:
            return [mask if bias is None else bias]
        return [torch.where(mask, bias, -float("inf"))]

    wide = torch.float64 if node.results[0].dtype is torch.float64 else torch.float32
    if not (read.seen or read.added):
        return None
    made = traced(run)(node)
    return made if isinstance(made, Value) else made[0]


def _over(part: Part, sizes: Sequence[Any], buffers: Sequence[Sequence[Any]]) -> Any:
    """A part of a function for all batches, heads, queries and keys: of size 1 along those that it
    does not depend on."""
    given = buffers[0 if part.of_score else 1]
    places = [torch.arange(size if at in part.axes else 1) for at, size in enumerate(sizes)]
    run = _vmap_for_bhqkv(part.function(), prefix=(), suffix=(None,) * len(given))
    with TransformGetItemToIndex():
        return run(*places, *given)  # type: ignore[no-any-return]


RULES: dict[str, Rule] = {
    "flex_attention": _flex,
    "flex_attention_backward": traced(sdpa_dense_backward),
}
