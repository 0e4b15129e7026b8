"""Sorting and selection."""

import numpy as np
import pytest

from tilewright.base.errors import ExecutionError, UserError
from tilewright.graph import parse


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_top_k(run_op, rng, largest, axis):
    x = rng.integers(0, 4, (5, 6)).astype(np.float32)
    values, indices = run_op("top_k", x, outputs=2, k=(3,), axis=axis, largest=largest)
    ranked = np.sort(x, axis=axis)
    ranked = np.flip(ranked, axis) if largest else ranked
    np.testing.assert_array_equal(values, np.take(ranked, range(3), axis=axis))
    np.testing.assert_array_equal(np.take_along_axis(x, indices, axis), values)


def test_of_equals_the_first(run_op):
    x = np.array([1, 3, 3, 1, 3])
    _, indices = run_op("top_k", x, np.array([4]), outputs=2, axis=0)
    assert indices.tolist() == [1, 2, 4, 0]
    _, indices = run_op("top_k", x, np.array([4]), outputs=2, axis=0, largest=False)
    assert indices.tolist() == [0, 3, 1, 2]


def test_extremes_of_integers(run_op):
    x = np.array([np.iinfo(np.int64).min, 0, np.iinfo(np.int64).max])
    values, _ = run_op("top_k", x, outputs=2, k=(3,), axis=0)
    assert values.tolist() == x.tolist()[::-1]


def test_more_than_there_are(run_op):
    with pytest.raises(ExecutionError, match="TW1017"):
        run_op("top_k", np.zeros(3), outputs=2, k=(4,), axis=0)


def test_less_than_none():
    with pytest.raises(UserError, match=r"TW1017.*: the -1 greatest of 3 elements"):
        parse("graph @main(%x: f32[3]) { %y, %at = top_k(%x) {k = (-1,), axis = 0} return %y }")


def suppress(run_op, boxes, scores, limit=9, overlap=0.5, threshold=None, **attributes):
    given = [np.asarray(boxes, np.float32)[None], np.asarray(scores, np.float32)[None, None]]
    given += [np.array([limit]), np.array([overlap], np.float32)]
    given += [None if threshold is None else np.array([threshold], np.float32)]
    made = run_op("non_max_suppression", *given, symbolic=False, **attributes)
    assert (made[:, :2] == 0).all()
    return made[:, 2].tolist()


BOXES = [[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11], [1, 1, 0, 0]]
SCORES = [0.9, 0.75, 0.6, 0.95]


def test_overlapping_boxes_go(run_op):
    assert suppress(run_op, BOXES, SCORES) == [3, 2]
    assert suppress(run_op, BOXES, SCORES, overlap=0.95) == [3, 1, 2]
    assert suppress(run_op, BOXES, SCORES, overlap=1.0) == [3, 0, 1, 2]


def test_limits(run_op):
    assert suppress(run_op, BOXES, SCORES, limit=1) == [3]
    assert suppress(run_op, BOXES, SCORES, limit=0) == []
    assert suppress(run_op, BOXES, SCORES, threshold=0.6) == [3]


def test_boxes_by_their_centers(run_op):
    boxes = [[0.5, 0.5, 1, 1], [0.5, 0.6, 1, 1], [0.5, 10.5, 1, 1]]
    assert suppress(run_op, boxes, SCORES[:3], center=True) == [0, 2]


def test_boxes_and_scores_fit(run_op):
    with pytest.raises(UserError, match="TW1015"):
        suppress(run_op, BOXES, SCORES[:2])
    with pytest.raises(UserError, match="TW1304"):
        run_op("non_max_suppression", np.zeros((4, 4)), np.zeros((1, 1, 4)))


@pytest.mark.parametrize("right", [True, False])
def test_search_in_rows(run_op, rng, right):
    rows = np.sort(rng.integers(0, 9, (2, 3, 7)), -1).astype(np.float32)
    values = rng.integers(-1, 10, (2, 3, 5)).astype(np.float32)
    places = run_op("search_sorted", rows, values, right=right)
    each, all_ = values[..., None], rows[..., None, :]
    below = all_ <= each if right else all_ < each
    np.testing.assert_array_equal(places, below.sum(-1))
    one = run_op("search_sorted", rows[0, 0], values, right=right)
    np.testing.assert_array_equal(one[0, 0], places[0, 0])


def test_values_that_are_no_numbers_belong_last(run_op):
    row = np.array([1, 2, np.nan], np.float32)
    values = np.array([np.nan, np.inf], np.float32)
    assert run_op("search_sorted", row, values).tolist() == [2, 2]
    assert run_op("search_sorted", row, values, right=True).tolist() == [3, 2]


@pytest.mark.parametrize("shapes", [((), (3,)), ((2, 3), (3,)), ((2, 3), (4, 3))], ids=str)
def test_search_needs_rows_that_fit(run_op, shapes):
    with pytest.raises(UserError):
        run_op("search_sorted", *(np.zeros(shape) for shape in shapes))


@pytest.mark.parametrize(("op", "fn"), [("cummax", np.maximum), ("cummin", np.minimum)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_extremes_so_far(run_op, rng, op, fn, axis):
    x = rng.integers(0, 4, (5, 6)).astype(np.float32)
    values, places = run_op(op, x, outputs=2, axis=axis)
    np.testing.assert_array_equal(values, fn.accumulate(x, axis=axis))
    np.testing.assert_array_equal(np.take_along_axis(x, places, axis), values)


def test_of_equals_so_far_the_last_and_nan_stays(run_op):
    x = np.array([3, 1, 3, np.nan, 5, np.nan, 0], np.float32)
    values, places = run_op("cummax", x, outputs=2, axis=0)
    assert values.tolist()[:3] == [3, 3, 3]
    assert np.isnan(values[3:]).all()
    assert places.tolist() == [0, 0, 2, 3, 3, 5, 5]
