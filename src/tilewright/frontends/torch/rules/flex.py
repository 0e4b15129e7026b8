"""Attention with scores and masks that a program computes: flex_attention and its gradient.

PyTorch has a dense form of both, which takes what modifies scores as functions of single numbers.
"""

from __future__ import annotations

from torch._higher_order_ops.flex_attention import sdpa_dense, sdpa_dense_backward

from tilewright.frontends.torch.rules.base import Rule
from tilewright.frontends.torch.rules.traced import traced

RULES: dict[str, Rule] = {
    "flex_attention": traced(sdpa_dense),
    "flex_attention_backward": traced(sdpa_dense_backward),
}
