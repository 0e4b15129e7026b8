"""Ensembles of decision trees: leaves found, weights summed, labels picked."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.base.dtype import F32
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.frontends.onnx.rules.scores import (
    as_rows,
    binary_scores,
    labels_of,
    pick_labels,
    transformed,
)
from tilewright.graph import Value
from tilewright.graph.ops import trees

Array = np.ndarray[Any, Any]

MODES = {
    "BRANCH_LEQ": trees.LEQ,
    "BRANCH_LT": trees.LT,
    "BRANCH_GTE": trees.GTE,
    "BRANCH_GT": trees.GT,
    "BRANCH_EQ": trees.EQ,
    "BRANCH_NEQ": trees.NEQ,
}
MEMBER = 6
MAX_WEIGHTS = 1 << 28  # leaves times targets
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass
class Table:
    """The nodes of all trees, and per leaf a weight for each target; NaN is no vote."""

    features: list[int] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    modes: list[int] = field(default_factory=list)
    yes: list[int] = field(default_factory=list)
    no: list[int] = field(default_factory=list)
    missing: list[bool] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)

    def add(self, feature: int, split: float, mode: int, *, missing: bool) -> int:
        """A node, its children to be filled in."""
        self.features.append(feature)
        self.splits.append(split)
        self.modes.append(mode)
        self.yes.append(0)
        self.no.append(0)
        self.missing.append(missing)
        return len(self.features) - 1


def _leaf_weights(node: Context, table: Table, weights: Array) -> Value:
    """The weights, [rows, trees, targets], of the leaves that rows come to."""
    x = as_rows(node, node[0])
    if not x.tensor.dtype.is_float:
        x = node.emit("cast", x, to=F32)
    of = x.tensor.dtype.numpy
    columns = (
        np.asarray(table.features, np.int32),
        np.asarray(table.splits).astype(of),
        np.asarray(table.modes, np.int32),
        np.asarray(table.yes, np.int32),
        np.asarray(table.no, np.int32),
        np.asarray(table.missing, bool),
        np.asarray(table.roots, np.int32),
    )
    told = {
        "depth": trees.depth_of(*(columns[at] for at in (3, 4, 6))),
        "modes": tuple(sorted(set(table.modes))) or trees.MODES,
    }
    leaves = node.emit("tree_leaves", x, *(node.constant(column) for column in columns), **told)
    return node.emit("gather", node.constant(weights.astype(of)), leaves, axis=0)


def _voted(node: Context, votes: Value) -> Value:
    return node.emit("logical_not", node.emit("isnan", votes))


def _aggregate(node: Context, votes: Value, how: str) -> Value:
    """Votes of all trees for each target; a target nobody votes for has 0."""
    voted, zero = _voted(node, votes), node.like(votes, 0.0)
    if how in ("SUM", "AVERAGE"):
        counted = node.emit("where", voted, votes, zero)
        op = "reduce_sum" if how == "SUM" else "reduce_mean"
        return node.emit(op, counted, axes=(1,), keepdims=False)
    fill = node.like(votes, np.inf if how == "MIN" else -np.inf)
    op = "reduce_min" if how == "MIN" else "reduce_max"
    best = node.emit(op, node.emit("where", voted, votes, fill), axes=(1,), keepdims=False)
    return node.emit("where", _any_vote(node, voted), best, zero)


def _any_vote(node: Context, voted: Value) -> Value:
    return node.emit("reduce_max", voted, axes=(1,), keepdims=False)


# ------------------------------------------------------------------------------------ TreeEnsemble


def _tree_ensemble(node: Context) -> Value:
    splits, modes = node.attr("nodes_splits"), node.attr("nodes_modes")
    missing = node.attr("nodes_missing_value_tracks_true") or (0,) * len(splits)
    members = iter(_member_sets(node))
    table, places, ends = Table(), [], []
    for at, feature in enumerate(node.attr("nodes_featureids")):
        tracks = bool(missing[at])
        if int(modes[at]) != MEMBER:
            places.append(table.add(feature, splits[at], int(modes[at]), missing=tracks))
            ends.append([places[-1]])
            continue
        # One test for each member: all but the last go on to the next.
        chain = [table.add(feature, v, trees.EQ, missing=tracks) for v in next(members)]
        if not chain:  # nothing is a member
            chain = [table.add(feature, np.nan, trees.EQ, missing=tracks)]
        for one, following in itertools.pairwise(chain):
            table.no[one] = following
        places.append(chain[0])
        ends.append(chain)
    for side, column in (("true", table.yes), ("false", table.no)):
        children, are_leaves = node.attr(f"nodes_{side}nodeids"), node.attr(f"nodes_{side}leafs")
        for child, is_leaf, chain in zip(children, are_leaves, ends, strict=True):
            target = -1 - child if is_leaf else places[child]
            for one in chain if side == "true" else chain[-1:]:
                column[one] = target
    table.roots = [places[root] for root in node.attr("tree_roots")]
    weights = np.asarray(node.attr("leaf_weights"), np.float64)
    _check_size(node, len(weights), node.attr("n_targets"))
    dense = np.full((len(weights), node.attr("n_targets")), np.nan)
    dense[np.arange(len(weights)), list(node.attr("leaf_targetids"))] = weights
    votes = _leaf_weights(node, table, dense)
    scores = _aggregate(node, votes, AGGREGATES[node.attr("aggregate_function", 1)])
    return transformed(node, scores, TRANSFORMS[node.attr("post_transform", 0)])


def _member_sets(node: Context) -> list[list[float]]:
    """Sets of members, in order of the nodes that test for them."""
    values = node.attr("membership_values")
    sets: list[list[float]] = [[]]
    for value in [] if values is None else np.ravel(values).tolist():
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    return sets


# ------------------------------------------------------------------------------------ older forms


def _floats(node: Context, name: str) -> Array | None:
    """A list of numbers, which may be a tensor of another attribute."""
    found = node.attr(f"{name}_as_tensor")
    given = node.attr(name) if found is None else found
    return None if given is None else np.asarray(given)


def _old_votes(node: Context, kind: str, targets: int) -> Value:
    """Votes of trees in the form of TreeEnsembleRegressor and TreeEnsembleClassifier."""
    columns = {
        name: node.attr(f"nodes_{name}")
        for name in ("treeids", "nodeids", "featureids", "modes", "truenodeids", "falsenodeids")
    }
    values = _floats(node, "nodes_values")
    if values is None or any(column is None for column in columns.values()):
        raise Skip(f"{node.op_type} without nodes")
    count = len(columns["nodeids"])
    missing = node.attr("nodes_missing_value_tracks_true") or (0,) * count
    table, place, leaves = Table(), {}, 0
    keys = list(zip(columns["treeids"], columns["nodeids"], strict=True))
    for at, key in enumerate(keys):
        if columns["modes"][at] == "LEAF":
            place[key] = -1 - leaves
            leaves += 1
        else:
            mode, feature = MODES[columns["modes"][at]], columns["featureids"][at]
            place[key] = table.add(feature, values[at], mode, missing=bool(missing[at]))
    for at, (tree, _) in enumerate(keys):
        spot = place[keys[at]]
        if spot >= 0:
            table.yes[spot] = place[tree, columns["truenodeids"][at]]
            table.no[spot] = place[tree, columns["falsenodeids"][at]]
    starts: dict[int, int] = {}
    for key in keys:  # the first node of a tree is its root
        starts.setdefault(key[0], place[key])
    table.roots = list(starts.values())
    _check_size(node, max(leaves, 1), targets)
    weights = np.full((max(leaves, 1), targets), np.nan)
    amounts = _floats(node, f"{kind}_weights")
    assert amounts is not None
    fields = (node.attr(f"{kind}_{name}") for name in ("treeids", "nodeids", "ids"))
    for tree, place_in, target, amount in zip(*fields, amounts, strict=True):
        row = -1 - place[tree, place_in]
        weights[row, target] = amount + np.nan_to_num(weights[row, target], nan=0.0)
    return _leaf_weights(node, table, weights)


def _check_size(node: Context, leaves: int, targets: int) -> None:
    if leaves * targets > MAX_WEIGHTS:
        raise Skip(f"{node.op_type} with {leaves} leaves and {targets} targets")


def _with_base(node: Context, scores: Value) -> Value:
    base = _floats(node, "base_values")
    if base is None or not base.size:
        return scores
    return node.emit("add", scores, node.constant(base.astype(scores.tensor.dtype.numpy)))


def _as_f32(node: Context, x: Value) -> Value:
    return x if x.tensor.dtype is F32 else node.emit("cast", x, to=F32)


def _regressor(node: Context) -> Value:
    votes = _old_votes(node, "target", node.attr("n_targets", 1))
    scores = _aggregate(node, votes, node.attr("aggregate_function", "SUM"))
    scores = transformed(node, _with_base(node, scores), node.attr("post_transform", "NONE"))
    return _as_f32(node, scores)


def _classifier(node: Context) -> tuple[Value, Value]:
    """The class with the greatest sum of votes, among those with any."""
    labels = labels_of(node, "classlabels_int64s", "classlabels_strings")
    votes = _old_votes(node, "class", len(labels))
    scores = _with_base(node, _aggregate(node, votes, "SUM"))
    how = node.attr("post_transform", "NONE")
    used = set(node.attr("class_ids"))
    if len(labels) == 2 and len(used) == 1:
        # One score tells both classes; votes for the first class mean the second.
        weights, (at,) = _floats(node, "class_weights"), used
        assert weights is not None
        one = node.emit("slice", scores, starts=(at,), ends=(at + 1,), axes=(1,))
        positive = bool((weights >= 0).all())
        chosen, both = binary_scores(node, one, labels, how, positive=positive, rest=positive)
        return chosen, _as_f32(node, both if at == 0 else transformed(node, scores, how))
    counted = scores
    if _floats(node, "base_values") is None:
        heard = _any_vote(node, _voted(node, votes))
        counted = node.emit("where", heard, scores, node.like(scores, -np.inf))
    return pick_labels(node, counted, labels), _as_f32(node, transformed(node, scores, how))


RULES: dict[str, Rule] = {
    "TreeEnsemble": _tree_ensemble,
    "TreeEnsembleRegressor": _regressor,
    "TreeEnsembleClassifier": _classifier,
}
