"""Class probabilities from pairwise probabilities, as in LIBSVM and ONNX Runtime.

Wu, Lin and Weng, "Probability estimates for multi-class classification by pairwise coupling",
second method. With r[i, j] the probability of i among i and j, the p that minimizes sum over i, j
of (r[j, i] p[i] - r[i, j] p[j])**2 is found by coordinate descent, until all components of Q p
equal p Q p within a tolerance. Rows converge independently.
"""

from __future__ import annotations

import numpy as np

from tilewright.base.dtype import BOOL, F32, I64
from tilewright.frontends.onnx.rules.base import Context
from tilewright.graph import Builder, Value
from tilewright.graph.types import TensorType, items_of

ROUNDS = 100  # maximum, as in LIBSVM
TOLERANCE = 0.005  # of the sum over classes, as in LIBSVM
LEAST = 1e-7  # minimal probability of a pair


def coupled(node: Context, first: Value, classes: int) -> Value:
    """Probabilities [rows, classes]; `first` contains those of the first class of each pair."""
    first = node.emit("clip", first, node.like(first, LEAST), node.like(first, 1 - LEAST))
    quadratic = _quadratic(node, first, classes)
    shape = items_of([node.dims(first)[0], classes])
    start = node.emit("expand", node.like(first, 1 / classes), shape=shape)
    builder = Builder(outer=node.builder)
    builder.param("round", TensorType(I64, ()))
    builder.param("goes_on", TensorType(BOOL, ()))
    guess = builder.param("guess", start.type)
    inside = builder.param("quadratic", quadratic.type)
    within = Context(
        node.node, [guess, inside], builder, node.opset, node.loc, node.importer, node.scope
    )
    body = builder.graph(*_round(within, guess, inside, classes), name="body")
    rounds = node.constant(np.asarray(ROUNDS, np.int64))
    go = node.constant(np.asarray(True))
    made = node.builder.add_many(
        "loop",
        rounds,
        go,
        start,
        quadratic,
        outputs=1,
        bodies=(body,),
        loc=node.loc,
        carried=1,
    )
    return made[0]


def _quadratic(node: Context, first: Value, classes: int) -> Value:
    """Q[rows, classes, classes]: sums of the others' squared probabilities on the diagonal, minus
    products elsewhere."""
    is_upper = np.triu(np.ones((classes, classes), bool), 1)
    pair = np.zeros((classes, classes), np.int64)
    pair[is_upper] = np.arange(is_upper.sum())  # order of pairs: (0, 1), (0, 2), ...
    pair += pair.T
    won = node.emit("gather", first, node.constant(pair.reshape(-1)), axis=1)
    won = node.reshape(won, (-1, classes, classes))  # of the first class in the pair of i and j
    lost = node.emit("sub", node.like(first, 1.0), won)
    by_other = node.emit("where", node.constant(is_upper), lost, won)
    apart = node.constant(1.0 - np.eye(classes, dtype=np.float32))
    squares = node.emit("mul", node.emit("mul", by_other, by_other), apart)
    total = node.emit("reduce_sum", squares, axes=(2,), keepdims=True)
    diagonal = node.emit("mul", total, node.constant(np.eye(classes, dtype=np.float32)))
    products = node.emit("mul", node.emit("mul", won, lost), apart)
    return node.emit("sub", diagonal, products)


def _round(node: Context, guess: Value, quadratic: Value, classes: int) -> tuple[Value, Value]:
    """Whether any row has not converged, and the guess after a step along every coordinate."""

    def total(x: Value) -> Value:
        return node.emit("reduce_sum", x, axes=(1,))

    products = node.reshape(
        node.emit("matmul", quadratic, node.unsqueeze(guess, -1)), (-1, classes)
    )
    form = total(node.emit("mul", guess, products))
    gap = node.emit("abs", node.emit("sub", products, form))
    most = node.emit("reduce_max", gap, axes=(1,))
    goes_on = node.emit("less_equal", node.like(most, TOLERANCE / classes), most)
    made = guess
    for at in range(classes):
        unit = node.constant(np.eye(classes, dtype=np.float32)[at])
        row = node.emit("reduce_sum", node.emit("mul", quadratic, node.unsqueeze(unit, -1)),
                        axes=(1,), keepdims=False)  # fmt: skip
        curvature, slope = (total(node.emit("mul", x, unit)) for x in (row, products))
        step = node.emit("div", node.emit("sub", form, slope), curvature)
        size = node.emit("add", step, 1.0)
        grown = node.emit("mul", step, node.emit("add", node.emit("mul", step, curvature),
                                                 node.emit("mul", slope, 2.0)))  # fmt: skip
        form = node.emit("div", node.emit("div", node.emit("add", form, grown), size), size)
        moved = node.emit("add", products, node.emit("mul", step, row))
        products = node.emit("div", moved, size)
        made = node.emit("div", node.emit("add", made, node.emit("mul", step, unit)), size)
    kept = node.emit("where", goes_on, made, guess)
    some = node.emit("reduce_max", node.emit("cast", goes_on, to=F32), keepdims=False)
    return node.emit("greater", some, 0.0), kept
