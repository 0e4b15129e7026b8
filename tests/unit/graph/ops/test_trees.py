"""Decision trees, against a walk down each tree."""

import numpy as np
import pytest

from tilewright.base.errors import ExecutionError, UserError
from tilewright.graph.ops.trees import depth_of

TESTS = [
    lambda x, s: x <= s,
    lambda x, s: x < s,
    lambda x, s: x >= s,
    lambda x, s: x > s,
    lambda x, s: x == s,
    lambda x, s: x != s,
]


def forest(rng, trees=3, depth=3, features=4):
    """Complete trees: nodes level by level, one tree after the other."""
    inner = 2**depth - 1
    yes, no, roots = [], [], []
    for tree in range(trees):
        roots.append(tree * inner)
        for at in range(inner):
            for column, child in ((yes, 2 * at + 1), (no, 2 * at + 2)):
                leaf = -1 - (tree * (inner + 1) + child - inner)
                column.append(tree * inner + child if child < inner else leaf)
    count = trees * inner
    return {
        "features": rng.integers(0, features, count),
        "splits": rng.integers(-2, 3, count).astype(np.float32),
        "modes": rng.integers(0, 6, count),
        "children": np.stack([no, yes], 1),
        "missing": rng.integers(0, 2, count).astype(bool),
        "roots": np.array(roots),
    }


def walked(table, row, root):
    at = root
    while at >= 0:
        value, split = row[table["features"][at]], table["splits"][at]
        hit = TESTS[table["modes"][at]](value, split)
        if np.isnan(value) and table["modes"][at] != 5:
            hit = table["missing"][at]
        at = table["children"][at, int(hit)]
    return -1 - at


def test_leaves(run_op, rng):
    table = forest(rng)
    x = rng.integers(-2, 3, (20, 4)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    made = run_op("tree_leaves", x, *table.values(), symbolic=False)
    for (n, t), leaf in np.ndenumerate(made):
        assert leaf == walked(table, x[n], table["roots"][t])


def test_cycles_are_faults(run_op, rng):
    table = forest(rng, trees=1, depth=1)
    table["children"][0] = 0
    with pytest.raises(ExecutionError, match="TW1017"):
        run_op("tree_leaves", np.zeros((1, 4), np.float32), *table.values(), symbolic=False)


def test_rows_are_rows(run_op, rng):
    with pytest.raises(UserError, match="TW1304"):
        run_op("tree_leaves", np.zeros(4, np.float32), *forest(rng).values(), symbolic=False)


@pytest.mark.parametrize("column", ["features", "splits", "children", "roots"])
def test_columns_have_their_dimensions(run_op, rng, column):
    table = forest(rng)
    table[column] = table[column][0]
    with pytest.raises(UserError, match="TW1304"):
        run_op("tree_leaves", np.zeros((2, 4), np.float32), *table.values(), symbolic=False)


def test_depth_is_the_longest_way_down(rng):
    table = forest(rng, trees=2, depth=3)
    sides = tuple(table["children"].T)
    assert depth_of(*sides, table["roots"]) == 3
    assert depth_of(*sides, np.array([-1, 5])) == 1  # a lone leaf, and a node above leaves
    assert depth_of(*sides, np.array([-1])) == 0
    table["children"][6, 1] = 0  # never ends
    assert depth_of(*sides, table["roots"]) is None
