"""merge_query_heads: grouped query attention with the query heads of a key head as queries.

    attention(%q: f16[b, 32, 1, 128], %k: f16[b, 8, m, 128], ..)
    reshape(attention(reshape(%q): f16[b, 8, 4, 128], %k: f16[b, 8, m, 128], ..))

Keys are then loaded once for all of these heads, if they fit in a tile of queries. Both reshapes
must be views; with several queries a transpose may stand between, and attention reads the original
layout in place. Masks must not depend on the query's position or head.
"""

from __future__ import annotations

from tilewright import sym
from tilewright.base.multiprocessor import STREAMED_QUERIES
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_node
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Replacement, Scope, remade, rewrite_matches, shape_of
from tilewright.graph.types import items_of
from tilewright.sym import ONE, Const, Expr


def merge_query_heads(module: Module, ctx: PassContext) -> Module:
    return rewrite_matches(module, (merged,))


def merged(node: Node, scope: Scope) -> Replacement:
    """Streaming attention with fewer tiles of queries."""
    if node.op != "attention" or not node.get("keys"):
        return None
    q, k, v, *others = node.inputs
    shapes = [shape_of(value) or () if value is not None else () for value in (q, k)]
    known = [dim for shape in shapes for dim in shape[1:2]] + list(shapes[0][2:3])
    if len(known) != 3 or not all(isinstance(dim, Const) for dim in known):
        return None
    heads, shared, rows = (int(str(dim)) for dim in known)
    if heads == shared or rows >= STREAMED_QUERIES or not _sees_alike(node, shapes, others):
        return None
    if rows > 1 and q is not None and scope.producer(q, "transpose") is not None:
        return None
    batch, *_, features = shapes[0]
    together = scope.new(
        "reshape", q, like=node, shape=items_of((batch, shared, heads // shared * rows, features))
    )
    same = {**dict(node.attributes), "causal": False, "past": 0}
    found = make_node("attention", (together.output, k, v, *others), same, node.loc)
    whole = items_of(shape_of(node.output) or ())
    return together, found, remade(node, "reshape", found.output, shape=whole)


def _sees_alike(node: Node, shapes: list[tuple[Expr, ...]], others: list[Value | None]) -> bool:
    """Whether all queries of a sequence have the same mask and bias."""
    mask = others[0] if others else None
    lengths = others[1] if len(others) > 1 else None
    if mask is not None:
        added = shape_of(mask)
        if added is None or any(dim is not ONE for dim in added[-3:-1]):
            return False
    if any(bound >= 0 for bound in node.get("window", ())):
        return False
    if not node.get("causal"):
        return True
    # A single query after all keys sees all of them.
    last = sym.le(shapes[1][2], sym.add(node.get("past", 0), 1))
    return shapes[0][2] is ONE and (lengths is not None or sym.prove(last))
