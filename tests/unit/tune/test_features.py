"""Formulas over columns, and what is made of them."""

import numpy as np

from tilewright import sym
from tilewright.tune.features import RELATION_BYTES, Access, Formulas, levels, relation

I, K = sym.var("i"), sym.var("k")


def test_formulas_are_evaluated_row_by_row():
    i = np.array([1, 3, 8])
    k = np.array([5, 7, 2])
    made = Formulas(
        {
            "area": I * K,
            "tiles": sym.ceildiv(100, I),
            "least": sym.minimum(I * K, 10) - sym.maximum(I, K),
            "rest": sym.floormod(100, K),
            "constant": sym.const(4),
        }
    )
    found = made.columns({"i": i, "k": k})
    assert found["area"].tolist() == (i * k).tolist()
    assert found["tiles"].tolist() == (-(-100 // i)).tolist()
    assert found["least"].tolist() == (np.minimum(i * k, 10) - np.maximum(i, k)).tolist()
    assert found["rest"].tolist() == (100 % k).tolist()
    assert found["constant"] == 4
    assert "area = %i * %k" in str(made)


def test_formulas_agree_with_the_interpreter_of_expressions():
    random = np.random.default_rng(0)
    columns = {"i": random.integers(1, 65, 1000), "k": random.integers(1, 65, 1000)}
    exprs = levels(
        [Access("A", 4, (200, 200), ({0: 1}, {1: 1}), (0, 2), 64)],
        {"tile": {0: I, 1: K}, "whole": {0: sym.const(150), 1: sym.const(100)}},
        {0: 150, 1: 100},
    )
    got = Formulas(exprs).columns(columns)
    for name, expr in exprs.items():
        want = sym.evaluate(expr, {I: columns["i"], K: columns["k"]})
        assert np.array_equal(np.broadcast_to(got[name], 1000), np.broadcast_to(want, 1000)), name


def test_a_window_touches_its_overlap_once():
    access = Access("X", 4, (100, 100), ({0: 1, 2: 1}, {1: 2, 3: 1}), (0, 0), 4)
    sizes = {0: sym.const(4), 1: sym.const(8), 2: sym.const(3), 3: sym.const(3)}
    (trips, touched) = levels([access], {"tile": sizes}, {0: 20, 1: 40, 2: 3, 3: 3}).values()
    assert sym.evaluate(trips, {}) == 5 * 5
    assert sym.evaluate(touched, {}) == (4 + 2) * (7 * 2 + 2 + 1) * 4


def test_relation_features_are_the_best_reuse_within_so_many_bytes():
    curve = relation(
        [np.array([100.0]), np.array([5000.0])], [np.array([4.0]), np.array([64.0])], 1
    )
    assert curve.shape == (1, len(RELATION_BYTES))
    assert curve[0].tolist() == [2.0 if size < 5000 else 6.0 for size in RELATION_BYTES]
