"""ai.onnx.ml with random parameters, against ONNX Runtime."""

import zlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.base.errors import UserError
from tilewright.frontends.onnx import import_model
from tilewright.frontends.onnx.rules.base import Context
from tilewright.graph import interpret
from tilewright.graph.verify import verify

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: bench)")


@pytest.fixture
def rng(request):
    """Numbers of its own for each case."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


def check(op, *inputs, outputs=1, opset=3, atol=1e-5, **attributes):
    node = helper.make_node(
        op,
        [f"x{at}" for at in range(len(inputs))],
        [f"y{at}" for at in range(outputs)],
        domain="ai.onnx.ml",
        **attributes,
    )
    infos = []
    for at, value in enumerate(inputs):
        is_text = value.dtype == object
        code = TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(value.dtype)
        infos.append(helper.make_tensor_value_info(f"x{at}", code, value.shape))
    results = [onnx.ValueInfoProto(name=f"y{at}") for at in range(outputs)]
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("ai.onnx.ml", opset)]
    graph = helper.make_graph([node], "test", infos, results)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    expected = session.run(None, {f"x{at}": value for at, value in enumerate(inputs)})
    module = import_model(model)
    verify(module)
    for have, want in zip(interpret(module, *inputs, check=True), expected, strict=True):
        assert have.shape == want.shape
        assert have.dtype == want.dtype
        if have.dtype.kind in "OiU":
            np.testing.assert_array_equal(have, want)
        else:
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=atol)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_features(norm, rng):
    x = floats(rng, 5, 3)
    check("Scaler", x, offset=[0.5, 1.0, 2.0], scale=[2.0, 3.0, 4.0])
    check("Scaler", x.astype(np.float64), offset=[0.5], scale=[2.0])
    check("Normalizer", np.vstack([x, 0 * x[:1]]), norm=norm)
    check("Binarizer", x, threshold=0.2)
    holes = np.where(x > 0, np.float32(np.nan), x)
    check("Imputer", holes, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float("nan"))
    check("Imputer", (x > 0).astype(np.int64), imputed_value_int64s=[7], replaced_value_int64=1)
    check("FeatureVectorizer", x, x[:, :2].copy(), inputdimensions=[3, 2])
    check("ArrayFeatureExtractor", x, np.array([0, 2]))
    check("ArrayFeatureExtractor", x[0], np.array([0, 2]))


def test_categories():
    words = np.array(["a", "z", "b"], object)
    check("OneHotEncoder", np.array([1, 5, 2, 9]), cats_int64s=[1, 2, 5])
    check("OneHotEncoder", np.array([[1.5, 2.0]], np.float32), cats_int64s=[1, 2, 5])
    check("OneHotEncoder", words, cats_strings=["a", "b"])
    pairs = {"cats_strings": ["a", "b"], "cats_int64s": [4, 5]}
    check("CategoryMapper", words, **pairs, default_int64=-7)
    check("CategoryMapper", np.array([4, 9]), **pairs, default_string="q")
    check("LabelEncoder", words, keys_strings=["a", "b"], values_floats=[1.0, 2.0])
    check("LabelEncoder", np.array([1, 2, 1]), keys_int64s=[1, 1], values_int64s=[5, 6])
    keyed = {"keys_int64s": [1, 3], "values_strings": ["one", "three"]}
    check("LabelEncoder", np.array([1, 2, 3]), **keyed, default_string="?")


@pytest.mark.parametrize("how", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 2, 3])
def test_linear_models(how, targets, rng):
    x, weights = floats(rng, 5, 3), floats(rng, 3 * targets).tolist()
    given = {"coefficients": weights, "intercepts": [0.1] * targets, "post_transform": how}
    if targets > 1 or how == "NONE":  # the peer leaves a single target as it is
        check("LinearRegressor", x, targets=targets, **given)
    labels = [[4, 5], [4, 5], [7, 8, 9]][targets - 1]
    check("LinearClassifier", x, outputs=2, classlabels_ints=labels, **given)
    names = [chr(97 + label) for label in labels]
    check("LinearClassifier", x, outputs=2, classlabels_strings=names, **given)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("classes", [2, 3])
def test_support_vectors(kernel, classes, rng):
    x, count = floats(rng, 5, 3), 2 * classes
    pairs = classes * (classes - 1) // 2
    given = {
        "kernel_type": kernel,
        "kernel_params": [0.3, 0.2, 3.0],
        "support_vectors": floats(rng, count * 3).tolist(),
    }
    weights = floats(rng, count).tolist()
    check("SVMRegressor", x, coefficients=weights, rho=[0.2], n_supports=count, **given)
    check(
        "SVMRegressor", x, coefficients=weights, rho=[0.2], n_supports=count, one_class=1, **given
    )
    more = {
        "coefficients": floats(rng, count * (classes - 1)).tolist(),
        "rho": floats(rng, pairs).tolist(),
        "vectors_per_class": [2] * classes,
        "classlabels_ints": list(range(3, 3 + classes)),
    }
    check("SVMClassifier", x, outputs=2, **given, **more)
    platt = {"prob_a": [-1.0, -0.5, -2.0][:pairs], "prob_b": [0.1, 0.0, -0.3][:pairs]}
    check("SVMClassifier", x, outputs=2, **platt, **given, **more)


def test_rows_stop_by_themselves_when_probabilities_of_pairs_are_coupled(rng):
    classes, pairs = 5, 10
    given = {
        "kernel_type": "RBF",
        "kernel_params": [0.3, 0.0, 3.0],
        "support_vectors": floats(rng, 2 * classes * 3).tolist(),
        "coefficients": (3 * floats(rng, 2 * classes * (classes - 1))).tolist(),
        "rho": floats(rng, pairs).tolist(),
        "vectors_per_class": [2] * classes,
        "classlabels_ints": list(range(classes)),
        "prob_a": (-2 * np.abs(floats(rng, pairs))).tolist(),
        "prob_b": floats(rng, pairs).tolist(),
    }
    check("SVMClassifier", floats(rng, 40, 3), outputs=2, **given)


def test_categories_that_must_be_known():
    node = helper.make_node(
        "OneHotEncoder", ["x"], ["y"], domain="ai.onnx.ml", cats_int64s=[3, 5, 9], zeros=0
    )
    infos = [helper.make_tensor_value_info("x", TensorProto.INT64, [None, 2])]
    graph = helper.make_graph([node], "test", infos, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    compiled = tw.compile(helper.make_model(graph, opset_imports=opsets, ir_version=9), threads=1)
    (made,) = compiled(np.array([[5, 3], [9, 9]]))
    np.testing.assert_array_equal(np.asarray(made)[:, 0], [[0, 1, 0], [0, 0, 1]])
    with pytest.raises(UserError, match="no category"):
        compiled(np.array([[5, 4]]))


def test_a_vector_is_one_row(rng):
    x = floats(rng, 3)
    given = {"kernel_type": "RBF", "kernel_params": [0.3, 0.2, 3.0]}
    given |= {"support_vectors": floats(rng, 6).tolist(), "coefficients": [0.5, -0.7]}
    check("SVMRegressor", x, rho=[0.2], n_supports=2, **given)
    labels = {"vectors_per_class": [1, 1], "classlabels_strings": ["a", "b"]}
    check("SVMClassifier", x, outputs=2, rho=[0.2], **given, **labels)
    check("LinearRegressor", x, coefficients=[0.5, 0.2, -1.0], intercepts=[0.1])
    trees = forest(rng, "target", 3, 2)
    trees["nodes_featureids"] = [0] * len(trees["nodes_featureids"])  # the peer allows no other
    check("TreeEnsembleRegressor", x, opset=1, n_targets=2, **trees)


MODES = ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"]


def forest(rng, kind, trees, targets, *, only=None, positive=False, depth=2):
    """The attributes of random complete trees."""
    nodes = {
        key: []
        for key in (
            *("treeids", "nodeids", "featureids", "values", "modes"),
            *("truenodeids", "falsenodeids", "missing_value_tracks_true"),
        )
    }
    votes = {key: [] for key in ("treeids", "nodeids", "ids", "weights")}
    inner = 2**depth - 1
    for tree in range(trees):
        for at in range(2 * inner + 1):
            leaf = at >= inner
            row = [tree, at, int(rng.integers(3)), float(rng.integers(-2, 3))]
            row += ["LEAF" if leaf else f"BRANCH_{rng.choice(MODES)}"]
            row += [0, 0] if leaf else [2 * at + 1, 2 * at + 2]
            for key, item in zip(nodes, [*row, int(rng.integers(2))], strict=True):
                nodes[key].append(item)
            if leaf:
                for target in [only] if only is not None else range(targets):
                    weight = float(rng.standard_normal())
                    vote = [tree, at, target, abs(weight) if positive else weight]
                    for key, item in zip(votes, vote, strict=True):
                        votes[key].append(item)
    return {
        **{f"nodes_{key}": column for key, column in nodes.items()},
        **{f"{kind}_{key}": column for key, column in votes.items()},
    }


def rows(rng):
    x = rng.integers(-2, 3, (9, 3)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    return x


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 2])
def test_tree_regressors(how, targets, rng):
    for base in ({}, {"base_values": [0.3] * targets}):
        given = {"n_targets": targets, "aggregate_function": how, **base}
        check("TreeEnsembleRegressor", rows(rng), **given, **forest(rng, "target", 3, targets))


@pytest.mark.parametrize("how", TRANSFORMS)
@pytest.mark.parametrize("positive", [False, True])
def test_tree_classifiers(how, positive, rng):
    given = {"post_transform": how, "outputs": 2}
    trees = forest(rng, "class", 3, 3, positive=positive)
    check("TreeEnsembleClassifier", rows(rng), classlabels_int64s=[3, 4, 5], **given, **trees)
    trees = forest(rng, "class", 3, 2, only=0, positive=positive)
    for base in ({}, {"base_values": [0.3]}):
        names = {"classlabels_strings": ["no", "yes"]}
        check("TreeEnsembleClassifier", rows(rng), **names, **given, **trees, **base)


@pytest.mark.parametrize("of_trees", [(0, 1, 2, 0, 1, 2), (2, 1, 1, 2, 2), (0, 2, 2), (0, 0, 2, 1)])
def test_trees_that_vote_for_one_target_each(of_trees, rng):
    """Of each target as many, some with fewer, one with none, and one with far more than others."""
    trees = forest(rng, "class", 60, 3, only=0)
    trees["class_ids"] = [of_trees[tree % len(of_trees)] for tree in trees["class_treeids"]]
    for base in ({}, {"base_values": [0.3, -0.2, 0.1]}):
        names = {"classlabels_int64s": [3, 4, 5], "outputs": 2, **base}
        for count in (1, 40):  # few walk side by side down many trees, many down one
            x = np.resize(rows(rng), (count, 3))
            check("TreeEnsembleClassifier", x, **names, **trees)


def test_nodes_with_several_parents_are_walked_once(rng):
    """Both children of a node are the next: there are 2**60 ways to the leaf."""
    inner = list(range(60))
    columns = {
        **{f"nodes_{key}": [0] * 61 for key in ("treeids", "featureids")},
        "nodes_values": [0.5] * 61,
        "nodes_nodeids": [*inner, 60],
        "nodes_modes": ["BRANCH_LEQ"] * 60 + ["LEAF"],
        **{f"nodes_{key}nodeids": [*(at + 1 for at in inner), 0] for key in ("true", "false")},
        "target_treeids": [0],
        "target_nodeids": [60],
        "target_ids": [0],
        "target_weights": [3.0],
    }
    check("TreeEnsembleRegressor", rows(rng), n_targets=1, **columns)


def test_an_ensemble_reads_its_columns_once(monkeypatch, rng):
    """Not once for each node: of 35,000 nodes that took ten minutes."""
    trees = 40
    leaf = np.arange(2 * trees)
    columns = {
        "nodes_splits": numpy_helper.from_array(floats(rng, trees)),
        "nodes_modes": numpy_helper.from_array(np.zeros(trees, np.uint8)),
        "nodes_featureids": rng.integers(0, 3, trees).tolist(),
        "nodes_truenodeids": leaf[0::2].tolist(),
        "nodes_falsenodeids": leaf[1::2].tolist(),
        "nodes_trueleafs": [1] * trees,
        "nodes_falseleafs": [1] * trees,
        "tree_roots": list(range(trees)),
        "leaf_weights": numpy_helper.from_array(floats(rng, 2 * trees)),
        "leaf_targetids": [0] * (2 * trees),
    }
    read, attr = [], Context.attr
    monkeypatch.setattr(
        Context, "attr", lambda self, name, *more: read.append(name) or attr(self, name, *more)
    )
    check("TreeEnsemble", floats(rng, 9, 3), opset=5, n_targets=1, **columns)
    assert max(map(read.count, columns)) == 1
