"""Decision tree ensembles: find leaves, sum weights, select labels.

Trees that each contribute to one target, as boosted ones do, are grouped by target, so that every
leaf has a single weight:

    %leaves = tree_leaves(%x, ...)                     rows x (targets * trees of a target)
    %sums = reduce_sum(gather(weights, reshape(%leaves, rows x targets x trees)), axes = (2))
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import sym
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
MAX_PADDED = 2  # limit of trees after padding all targets to the same number, relative to before
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass
class Table:
    """The nodes of all trees, and per leaf a weight for each target; NaN means no vote."""

    features: list[int] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    modes: list[int] = field(default_factory=list)
    yes: list[int] = field(default_factory=list)
    no: list[int] = field(default_factory=list)
    missing: list[bool] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)

    def add(self, feature: int, split: float, mode: int, *, missing: bool) -> int:
        """Add a node; its children are set later."""
        self.features.append(feature)
        self.splits.append(split)
        self.modes.append(mode)
        self.yes.append(0)
        self.no.append(0)
        self.missing.append(missing)
        return len(self.features) - 1


@dataclass(frozen=True)
class Votes:
    """The leaves of all trees that rows reach, and their votes for each target."""

    leaves: Value  # [rows, trees]
    weights: Array  # [leaves, targets]; NaN means no vote
    targets: range | None  # if trees are grouped by target: the targets, of equal numbers of trees
    are_for_all: bool  # every row has a vote for every target


def _votes(node: Context, table: Table, weights: Array, how: str) -> Votes:
    """The votes of trees under an aggregation; for sums, grouped by target if possible."""
    x = as_rows(node, node[0])
    if not x.tensor.dtype.is_float:
        x = node.emit("cast", x, to=F32)
    of = x.tensor.dtype.numpy
    yes, no, roots = (np.asarray(each, np.int32) for each in (table.yes, table.no, table.roots))
    depth = trees.depth_of(yes, no, roots)
    are_for_all, targets = not np.isnan(weights).any(), None
    if how == "SUM" and depth is not None:
        one_each = _targets_of_trees(yes, no, roots, weights)
        groups = None if one_each is None else _side_by_side(roots, one_each, len(weights))
        if one_each is not None and groups is not None:
            targets = range(one_each.min(), one_each.max() + 1)
            are_for_all = np.unique(one_each).size == weights.shape[1]
            roots, nobody = groups.ravel(), np.full((1, weights.shape[1]), np.nan)
            weights = np.concatenate([weights, nobody])
    columns = (
        np.asarray(table.features, np.int32),
        np.asarray(table.splits).astype(of),
        np.asarray(table.modes, np.int32),
        np.stack([no, yes], 1),
        np.asarray(table.missing, bool),
        roots,
    )
    least = min((int(each.min()) for each in (yes, no, roots) if each.size), default=0)
    told = {
        "depth": depth,
        "modes": tuple(sorted(set(table.modes))) or trees.MODES,
        "is_missing": any(table.missing),
        "leaves": len(weights) if depth is not None and -least <= len(weights) else None,
    }
    leaves = node.emit("tree_leaves", x, *(node.constant(column) for column in columns), **told)
    return Votes(leaves, weights.astype(of), targets, are_for_all)


def _targets_of_trees(yes: Array, no: Array, roots: Array, weights: Array) -> Array | None:
    """The target that each tree votes for; None if one votes for several, or for none."""
    voted = ~np.isnan(weights)
    if not (voted.sum(1) == 1).all():
        return None
    target = voted.argmax(1)
    found = np.full(len(roots), -1)
    tree, at = np.arange(len(roots)), roots
    while at.size:
        leaf = at < 0
        mine, theirs = tree[leaf], target[-1 - at[leaf]]
        found[mine] = np.where(found[mine] < 0, theirs, found[mine])
        if (found[mine] != theirs).any():
            return None
        tree, at = np.tile(tree[~leaf], 2), np.concatenate([yes[at[~leaf]], no[at[~leaf]]])
        tree, at = np.unique(np.stack([tree, at]), axis=1)  # a node may have several parents
    return found


def _side_by_side(roots: Array, targets: Array, nobody: int) -> Array | None:
    """Roots grouped by target, padded with a leaf; None if that takes too many."""
    if not roots.size:
        return None
    counts = np.bincount(targets - targets.min())
    if counts.size * counts.max() > MAX_PADDED * len(roots):
        return None
    made = np.full((counts.size, counts.max()), -1 - nobody, roots.dtype)
    order = np.argsort(targets, kind="stable")
    made[np.arange(counts.max()) < counts[:, None]] = roots[order]
    return made


def _reduced(node: Context, op: str, table: Array, leaves: Value) -> Value:
    """Reduce a table [leaves, targets] over the leaves of all trees to one value per target."""
    picked = node.emit("gather", node.constant(table), leaves, axis=0)
    return node.emit(op, picked, axes=(1,), keepdims=False)


def _aggregate(node: Context, votes: Votes, how: str) -> Value:
    """Aggregate the votes of all trees for each target; a target without votes has 0."""
    weights, voted = votes.weights, ~np.isnan(votes.weights)
    if how == "SUM" and votes.targets is not None:
        return _sums_by_target(node, votes, votes.targets)
    if how in ("SUM", "AVERAGE"):
        op = "reduce_sum" if how == "SUM" else "reduce_mean"
        return _reduced(node, op, np.where(voted, weights, 0), votes.leaves)
    fill, op = (np.inf, "reduce_min") if how == "MIN" else (-np.inf, "reduce_max")
    fill = weights.dtype.type(fill)
    best = _reduced(node, op, np.where(voted, weights, fill), votes.leaves)
    if votes.are_for_all:
        return best
    return node.emit("where", _any_vote(node, votes), best, node.like(best, 0.0))


def _sums_by_target(node: Context, votes: Votes, targets: range) -> Value:
    """The same for trees grouped by target: a leaf has one weight."""
    weights, (rows, count) = votes.weights, node.dims(votes.leaves)
    one = np.nansum(weights, axis=1, dtype=weights.dtype)
    apart = node.reshape(
        votes.leaves, (rows, sym.const(len(targets)), sym.floordiv(count, len(targets)))
    )
    picked = node.emit("gather", node.constant(one), apart, axis=0)
    sums = node.emit("reduce_sum", picked, axes=(2,), keepdims=False)
    others = weights.shape[1] - targets.stop
    if targets.start == others == 0:
        return sums
    return node.emit("pad", sums, pads=(targets.start, others), axes=(1,))


def _any_vote(node: Context, votes: Votes) -> Value:
    return _reduced(node, "reduce_max", ~np.isnan(votes.weights), votes.leaves)


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
        # A chain of one test per member: all except the last lead to the next one.
        chain = [table.add(feature, v, trees.EQ, missing=tracks) for v in next(members)]
        if not chain:  # an empty set
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
    how = AGGREGATES[node.attr("aggregate_function", 1)]
    scores = _aggregate(node, _votes(node, table, dense, how), how)
    return transformed(node, scores, TRANSFORMS[node.attr("post_transform", 0)])


def _member_sets(node: Context) -> list[list[float]]:
    """Sets of members, in order of the nodes that test membership."""
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
    """A list of numbers, possibly in a tensor of another attribute."""
    found = node.attr(f"{name}_as_tensor")
    given = node.attr(name) if found is None else found
    return None if given is None else np.asarray(given)


def _old_votes(node: Context, kind: str, targets: int, how: str) -> Votes:
    """Votes of trees in the format of TreeEnsembleRegressor and TreeEnsembleClassifier."""
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
    return _votes(node, table, weights, how)


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
    how = node.attr("aggregate_function", "SUM")
    scores = _aggregate(node, _old_votes(node, "target", node.attr("n_targets", 1), how), how)
    scores = transformed(node, _with_base(node, scores), node.attr("post_transform", "NONE"))
    return _as_f32(node, scores)


def _classifier(node: Context) -> tuple[Value, Value]:
    """The class with the largest sum of votes, among those with any."""
    labels = labels_of(node, "classlabels_int64s", "classlabels_strings")
    votes = _old_votes(node, "class", len(labels), "SUM")
    scores = _with_base(node, _aggregate(node, votes, "SUM"))
    how = node.attr("post_transform", "NONE")
    used = set(node.attr("class_ids"))
    if len(labels) == 2 and len(used) == 1:
        # One score represents both classes; votes for the first class are for the second.
        weights, (at,) = _floats(node, "class_weights"), used
        assert weights is not None
        one = node.emit("slice", scores, starts=(at,), ends=(at + 1,), axes=(1,))
        positive = bool((weights >= 0).all())
        chosen, both = binary_scores(node, one, labels, how, positive=positive, rest=positive)
        return chosen, _as_f32(node, both if at == 0 else transformed(node, scores, how))
    counted = scores
    if _floats(node, "base_values") is None and not votes.are_for_all:
        heard = _any_vote(node, votes)
        counted = node.emit("where", heard, scores, node.like(scores, -np.inf))
    return pick_labels(node, counted, labels), _as_f32(node, transformed(node, scores, how))


RULES: dict[str, Rule] = {
    "TreeEnsemble": _tree_ensemble,
    "TreeEnsembleRegressor": _regressor,
    "TreeEnsembleClassifier": _classifier,
}
