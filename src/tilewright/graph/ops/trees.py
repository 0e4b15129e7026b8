"""Decision tree ensembles.

All trees of an ensemble share one table of nodes. A nonnegative child is a node; a negative one is
leaf -1 - child. Node modes compare x[feature] with the split.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.dtype import I64
from tilewright.graph.op import BOOLEAN, INTEGER, NUMBER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.rules import check_one_dtype, same_dim
from tilewright.graph.types import TensorType, Type
from tilewright.sym import const

Array = np.ndarray[Any, Any]

MODES = LEQ, LT, GTE, GT, EQ, NEQ = tuple(range(6))


def depth_of(yes: Array, no: Array, roots: Array) -> int | None:
    """The maximal number of nodes on a path from a root to a leaf; None if there are cycles."""
    at, depth = np.unique(roots[roots >= 0]), 0
    while at.size and depth < len(yes):
        below = np.unique(np.concatenate([yes[at], no[at]]))
        at, depth = below[below >= 0], depth + 1
    return None if at.size else depth


def _leaves_type(call: Call) -> tuple[Type, ...]:
    shape, roots = call.shape(0), call.shape(6)
    if [len(call.shape(at)) for at in range(7)] != [2, 1, 1, 1, 2, 1, 1]:
        raise call.error("TW1304", "tree_leaves takes [rows, features], children [nodes, 2] and "
                         f"columns of nodes, not {', '.join(map(str, call.types))}")  # fmt: skip
    check_one_dtype(Call(call.op, (call.types[0], call.types[2]), {}, loc=call.loc))
    for at in range(2, 6):
        same_dim(call, call.shape(1)[0], call.shape(at)[0], "the columns of nodes")
    same_dim(call, call.shape(4)[1], const(2), "the children of a node")
    return (TensorType(I64, (shape[0], roots[0])),)


def _leaves(
    call: Call,
    x: Array,
    features: Array,
    splits: Array,
    modes: Array,
    children: Array,
    missing: Array,
    roots: Array,
) -> Array:
    at = np.broadcast_to(roots.astype(np.int64), (len(x), len(roots))).copy()
    rows = np.broadcast_to(np.arange(len(x))[:, None], at.shape)
    for _ in range(len(features) + 1):
        inner = at >= 0
        if not inner.any():
            return -1 - at
        node = at[inner]
        value, split, mode = x[rows[inner], features[node]], splits[node], modes[node]
        tests = (
            *(value <= split, value < split, value >= split),
            *(value > split, value == split, value != split),
        )
        hit = np.choose(mode, tests)
        if value.dtype.kind == "f":
            hit = np.where(np.isnan(value), missing[node] | (mode == NEQ), hit)
        at[inner] = children[node, hit.astype(int)]
    raise ValueError("the nodes of a tree form a cycle")


OPS = (
    Op(
        "tree_leaves",
        "The leaf of each tree that each row reaches.",
        (
            Input("x", NUMBER),
            Input("features", INTEGER),
            Input("splits", NUMBER),
            Input("modes", INTEGER),
            Input("children", INTEGER),  # [nodes, 2]: for a false and a true test
            Input("missing", BOOLEAN),  # result of the test for NaN
            Input("roots", INTEGER),
        ),
        _leaves_type,
        _leaves,
        OPAQUE,
        attributes=(
            Attr("depth", int, None),  # maximal path length; default: all nodes
            Attr("modes", tuple, MODES),  # those in use
            Attr("is_missing", bool, True),  # whether NaN passes any test
            Attr("leaves", int, None),  # number of leaves, if all paths end at one within the depth
        ),
    ),
)
