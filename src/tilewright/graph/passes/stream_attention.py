"""Attention of 16-bit numbers takes keys some at a time where tensor cores do the products.

    attention(%q, %k, %v)  becomes  attention(%q, %k, %v) {keys = 128}
    attention(%q, %k, %v)  becomes  attention(%q, %k, %v) {skips = false}    otherwise

Scores then never go to memory. Heads, and their features, are as many as is known beforehand, and
the instructions take those; numbers of sequences, queries and keys may be told by calls. Other uses
are GEMMs over all keys: one that skips masked keys is none to a rule of a GPU.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.dtype import BF16, F16, DType
from tilewright.base.multiprocessor import BULK_ROW_BYTES, STREAMED_FEATURES, STREAMED_KEYS
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.graph.ir import Module, Node, Value, attributes
from tilewright.graph.match import Replacement, Scope, rewrite_matches, shape_of
from tilewright.sym import Const


def stream_attention(module: Module, ctx: PassContext) -> Module:
    rules = (streamed, over_all_keys) if has_streams(ctx.target) else (over_all_keys,)
    return rewrite_matches(module, rules)


def has_streams(target: Target | None) -> bool:
    """Whether the target's tensor cores multiply what is in registers."""
    return target is not None and target.has("wgmma")


def streamed(node: Node, scope: Scope) -> Replacement:
    """Attention of small numbers."""
    if node.op != "attention" or node.get("keys"):
        return None
    if streamed_features(node, (BF16, F16)) is None:
        return None
    if any(map(missing_features, node.inputs[:3])):
        return None
    return [
        replace(node, attributes=attributes(**{**dict(node.attributes), "keys": STREAMED_KEYS}))
    ]


def over_all_keys(node: Node, scope: Scope) -> Replacement:
    """Other attention, as GEMMs."""
    if node.op != "attention" or node.get("keys") or not node.get("skips", True):
        return None
    return [replace(node, attributes=attributes(**{**dict(node.attributes), "skips": False}))]


def streamed_features(node: Node, dtypes: tuple[DType, ...]) -> int | None:
    """The features of a head once copies fill it up with zeros to what instructions take; None
    where it has more, where their number or that of heads is not known, and where attention gives
    more than its result."""
    q, k, v = node.inputs[:3]
    if len(node.outputs) > 1 or q is None or k is None or v is None:
        return None
    shapes = [shape_of(value) or () for value in (q, k, v)]
    heads = [dim for shape in shapes for dim in (*shape[1:2], *shape[3:])]
    known = [int(dim.value) for shape in shapes for dim in shape if isinstance(dim, Const)]
    if not heads or not all(isinstance(dim, Const) for dim in heads) or min(known) < 1:
        return None
    if any(value.tensor.dtype not in dtypes for value in (q, k, v)):
        return None
    most = max(features_of(value) for value in (q, v))
    return next((whole for whole in STREAMED_FEATURES if most <= whole), None)


def missing_features(value: Value | None) -> int:
    """Those that rows of 16-bit heads need for bulk copies to read them."""
    return -features_of(value) % (BULK_ROW_BYTES // F16.size_bytes)


def features_of(value: Value | None) -> int:
    """Those of a head, which are known."""
    assert value is not None
    features = (shape_of(value) or ())[3]
    assert isinstance(features, Const)
    return int(features.value)
