"""Operators of ai.onnx.ml: preprocessing, linear models, support vector machines."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from tilewright.base.dtype import F32, I64
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.frontends.onnx.rules.coupling import coupled
from tilewright.frontends.onnx.rules.scores import (
    as_rows,
    binary_scores,
    labels_of,
    pick_labels,
    transformed,
)
from tilewright.frontends.onnx.rules.strings import lookup
from tilewright.graph import Value

Array = np.ndarray[Any, Any]


def _f32(node: Context, at: int = 0) -> Value:
    x = node[at]
    return x if x.tensor.dtype is F32 else node.emit("cast", x, to=F32)


def _rows(node: Context) -> Value:
    """The first input in f32, [rows, features]; a vector becomes one row."""
    return as_rows(node, _f32(node))


def _row(node: Context, values: Any) -> Value:
    return node.constant(np.asarray(values, np.float32))


# ------------------------------------------------------------------------------------ features


def _binarizer(node: Context) -> Value:
    above = node.emit("greater", node[0], node.attr("threshold", 0.0))
    return node.emit("cast", above, to=node[0].tensor.dtype)


def _scaler(node: Context) -> Value:
    moved = node.emit("sub", _f32(node), _row(node, node.attr("offset", (0.0,))))
    return node.emit("mul", moved, _row(node, node.attr("scale", (1.0,))))


def _normalizer(node: Context) -> Value:
    x, axis = _f32(node), (node.rank() - 1,)
    match node.attr("norm", "MAX"):
        case "MAX":
            size = node.emit("reduce_max", x, axes=axis)
        case "L1":
            size = node.emit("reduce_sum", node.emit("abs", x), axes=axis)
        case "L2":
            squares = node.emit("reduce_sum", node.emit("mul", x, x), axes=axis)
            size = node.emit("sqrt", squares)
        case other:
            raise Skip(f"Normalizer with the norm {other}")
    empty = node.emit("equal", size, 0.0)
    return node.emit("div", x, node.emit("where", empty, node.like(x, 1.0), size))


def _imputer(node: Context) -> Value:
    x = node[0]
    of = x.tensor.dtype
    kind = ("imputed_value_floats", "replaced_value_float")
    if of.is_int:
        kind = ("imputed_value_int64s", "replaced_value_int64")
    values, replaced = node.attr(kind[0]), node.attr(kind[1], 0)
    if values is None:
        raise Skip(f"Imputer of {of} without values of that kind")
    if isinstance(replaced, float) and math.isnan(replaced):
        gone = node.emit("isnan", x)
    else:
        gone = node.emit("equal", x, replaced)
    return node.emit("where", gone, node.constant(np.asarray(values).astype(of.numpy)), x)


def _feature_vectorizer(node: Context) -> Value:
    parts = []
    for at in range(len(node.inputs)):
        x = _f32(node, at)
        parts.append(node.unsqueeze(x, 0) if x.tensor.rank == 1 else x)
    return node.emit("concat", *parts, axis=1)


def _one_hot_encoder(node: Context) -> Value:
    x, names = node[0], node.attr("cats_strings")
    if names is not None and len(names):
        known = node.constant(np.asarray(names, object))
    else:
        known = node.constant(np.asarray(node.attr("cats_int64s", ()), np.int64))
        x = x if x.tensor.dtype is I64 else node.emit("cast", x, to=I64)
    encoded = node.emit("cast", node.emit("equal", node.unsqueeze(x, -1), known), to=F32)
    if node.attr("zeros", 1):
        return encoded
    found = node.emit("reduce_max", encoded, axes=(-1,), keepdims=False)
    unknown = node.emit(
        "reduce_sum", node.emit("sub", node.like(found, 1.0), found), keepdims=False
    )
    message = "a value is of no category that OneHotEncoder knows"
    return node.emit("require", node.emit("equal", unknown, 0.0), encoded, message=message)


def _array_feature_extractor(node: Context) -> Value:
    x, rank = node[0], node.rank()
    picked = node.reshape(node[1], (-1,))
    out = node.emit("gather", x, picked, axis=rank - 1)
    return node.unsqueeze(out, 0) if rank == 1 else out


# ------------------------------------------------------------------------------------ labels


def _label_encoder(node: Context) -> Value:
    def given(side: str, kinds: tuple[str, ...]) -> tuple[Array, str]:
        for kind in kinds:
            found = node.attr(f"{side}_{kind}")
            if found is not None:
                of: Any = {"strings": object, "int64s": np.int64, "floats": np.float32}.get(kind)
                return np.asarray(found, of), kind
        raise Skip(f"LabelEncoder without {side}")

    if node.opset < 2:
        return _old_label_encoder(node)
    kinds = ("tensor", "strings", "int64s", "floats")
    (keys, _), (values, kind) = given("keys", kinds), given("values", kinds)
    if kind == "tensor":
        default = node.attr("default_tensor")
        if default is None:
            plain = {"O": "_Unused", "i": -1, "f": -0.0}.get(values.dtype.kind, 0)
            default = np.asarray(plain, values.dtype)
    else:
        name, plain = {
            "strings": ("default_string", "_Unused"),
            "int64s": ("default_int64", -1),
            "floats": ("default_float", -0.0),
        }[kind]
        default = np.asarray(node.attr(name, plain), values.dtype)
    if node.opset < 4:  # the first of equal keys counts; since version 4 the last
        keys, values = keys[::-1], values[::-1]
    return lookup(node, node[0], keys.astype(node[0].tensor.dtype.numpy), values, default)


def _old_label_encoder(node: Context) -> Value:
    """Before version 2: a list of classes, from strings to indices or conversely."""
    names = np.asarray(node.attr("classes_strings", ()), object)
    places = np.arange(len(names))
    if node[0].tensor.dtype.is_str:
        return lookup(node, node[0], names, places, np.int64(node.attr("default_int64", -1)))
    default = np.asarray(node.attr("default_string", "_Unused"), object)
    return lookup(node, node[0], places, names, default)


def _category_mapper(node: Context) -> Value:
    names = np.asarray(node.attr("cats_strings", ()), object)
    numbers = np.asarray(node.attr("cats_int64s", ()), np.int64)
    if node[0].tensor.dtype.is_str:
        return lookup(node, node[0], names, numbers, np.int64(node.attr("default_int64", -1)))
    default = np.asarray(node.attr("default_string", "_Unused"), object)
    return lookup(node, node[0], numbers, names, default)


# ------------------------------------------------------------------------------------ linear


def _linear(node: Context, targets: int) -> Value:
    x = _rows(node)
    weights = np.asarray(node.attr("coefficients"), np.float32).reshape(targets, -1)
    scores = node.emit("matmul", x, node.constant(np.ascontiguousarray(weights.T)))
    intercepts = node.attr("intercepts")
    return scores if not intercepts else node.emit("add", scores, _row(node, intercepts))


def _linear_regressor(node: Context) -> Value:
    scores = _linear(node, node.attr("targets", 1))
    return transformed(node, scores, node.attr("post_transform", "NONE"))


def _linear_classifier(node: Context) -> tuple[Value, Value]:
    labels = labels_of(node, "classlabels_ints", "classlabels_strings")
    intercepts = node.attr("intercepts")
    targets = len(intercepts) if intercepts else len(labels)
    scores, how = _linear(node, targets), node.attr("post_transform", "NONE")
    if targets == 1 and len(labels) == 2:
        return binary_scores(node, scores, labels, how, positive=False, rest=True)
    return pick_labels(node, scores, labels), transformed(node, scores, how)


# ------------------------------------------------------------------------------------ vectors


def _kernel(node: Context, x: Value, vectors: Array) -> Value:
    """The kernel function of each row with each vector, [rows, vectors]."""
    gamma, offset, degree = (*(node.attr("kernel_params") or ()), 0.0, 0.0, 0.0)[:3]
    product = node.emit("matmul", x, node.constant(np.ascontiguousarray(vectors.T)))
    match node.attr("kernel_type", "LINEAR"):
        case "LINEAR":
            return product
        case "POLY":
            base = node.emit("add", node.emit("mul", product, gamma), offset)
            return node.emit("pow", base, degree)
        case "SIGMOID":
            return node.emit("tanh", node.emit("add", node.emit("mul", product, gamma), offset))
        case "RBF":
            gap = node.emit("sub", node.unsqueeze(x, 1), node.constant(vectors))
            squares = node.emit("reduce_sum", node.emit("mul", gap, gap), axes=(2,), keepdims=False)
            return node.emit("exp", node.emit("mul", squares, -gamma))
        case other:
            raise Skip(f"{node.op_type} with the kernel {other}")


def _vectors(node: Context, count: int) -> Array:
    return np.asarray(node.attr("support_vectors", ()), np.float32).reshape(count, -1)


def _svm_regressor(node: Context) -> Value:
    x, count = _rows(node), node.attr("n_supports", 0)
    weights = np.asarray(node.attr("coefficients"), np.float32)
    if count:
        scores = _kernel(node, x, _vectors(node, count))
        scores = node.emit("matmul", scores, node.constant(weights.reshape(-1, 1)))
    else:
        scores = _kernel(node, x, weights.reshape(1, -1))
    scores = node.emit("add", scores, _row(node, node.attr("rho", (0.0,))[:1]))
    if node.attr("one_class", 0):
        above = node.emit("greater", scores, 0.0)
        return node.emit("where", above, node.like(scores, 1.0), node.like(scores, -1.0))
    return transformed(node, scores, node.attr("post_transform", "NONE"))


def _svm_classifier(node: Context) -> tuple[Value, Value]:
    """One against one: each pair of classes has a score, and votes for one of the two."""
    labels = labels_of(node, "classlabels_ints", "classlabels_strings")
    counts, x = node.attr("vectors_per_class"), _rows(node)
    weights = np.asarray(node.attr("coefficients"), np.float32)
    rho, how = node.attr("rho", ()), node.attr("post_transform", "NONE")
    if not counts:
        raise Skip("SVMClassifier without vectors per class")
    ends = np.cumsum((0, *counts))
    pairs = list(itertools.combinations(range(len(counts)), 2))
    columns = np.zeros((ends[-1], len(pairs)), np.float32)
    sides = np.zeros((2, len(pairs), len(counts)), np.float32)
    table = weights.reshape(len(counts) - 1, -1)
    for at, (i, j) in enumerate(pairs):
        columns[ends[i] : ends[i + 1], at] = table[j - 1, ends[i] : ends[i + 1]]
        columns[ends[j] : ends[j + 1], at] = table[i, ends[j] : ends[j + 1]]
        sides[0, at, i] = sides[1, at, j] = 1
    kernels = _kernel(node, x, _vectors(node, int(ends[-1])))
    scores = node.emit("matmul", kernels, node.constant(columns))
    scores = node.emit("add", scores, _row(node, rho))
    first = node.emit("cast", node.emit("greater", scores, 0.0), to=F32)
    second = node.emit("sub", node.like(first, 1.0), first)
    votes = node.emit(
        "add",
        node.emit("matmul", first, node.constant(sides[0])),
        node.emit("matmul", second, node.constant(sides[1])),
    )
    if node.attr("prob_a"):
        scores = _svm_probabilities(node, scores, len(labels))
    elif len(labels) == 2:
        scores = node.emit("concat", node.emit("neg", scores), scores, axis=1)
    return pick_labels(node, votes, labels), transformed(node, scores, how)


def _svm_probabilities(node: Context, scores: Value, classes: int) -> Value:
    """Platt scaling of each pair of classes, coupled to class probabilities."""
    slopes, offsets = (_row(node, node.attr(name)) for name in ("prob_a", "prob_b"))
    line = node.emit("add", node.emit("mul", scores, slopes), offsets)
    return coupled(node, node.emit("sigmoid", node.emit("neg", line)), classes)


RULES: dict[str, Rule] = {
    "Binarizer": _binarizer,
    "Scaler": _scaler,
    "Normalizer": _normalizer,
    "Imputer": _imputer,
    "FeatureVectorizer": _feature_vectorizer,
    "OneHotEncoder": _one_hot_encoder,
    "ArrayFeatureExtractor": _array_feature_extractor,
    "LabelEncoder": _label_encoder,
    "CategoryMapper": _category_mapper,
    "LinearRegressor": _linear_regressor,
    "LinearClassifier": _linear_classifier,
    "SVMRegressor": _svm_regressor,
    "SVMClassifier": _svm_classifier,
}
