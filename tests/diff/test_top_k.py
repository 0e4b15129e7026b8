"""The best of lines: to the bit of a stable sort, by insertion and by sorting, on one thread and
more."""

import re

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule

TYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64, "u8": np.uint8}


def numbers(dtype, shape, ties):
    random = np.random.default_rng(3)
    if np.issubdtype(dtype, np.integer):
        low = 0 if np.issubdtype(dtype, np.unsignedinteger) else -40
        made = random.integers(low, 40, shape).astype(dtype)
        made.flat[::11] = np.iinfo(dtype).min
        made.flat[5::11] = np.iinfo(dtype).max
        return made
    made = random.standard_normal(shape).astype(dtype)
    if ties:
        made = np.round(made)
        made.flat[::7], made.flat[1::7] = np.nan, -np.nan
        made.flat[2::7], made.flat[3::7], made.flat[4::7] = -0.0, np.inf, -np.inf
    return made


def expected(x, k, axis, largest):
    """A stable sort of places, NaN as the greatest."""
    lines = np.moveaxis(x, axis, -1)
    places = np.empty((*lines.shape[:-1], k), np.int64)
    for at in np.ndindex(lines.shape[:-1]):
        line = [(bool(v != v), 0 if v != v else v) for v in lines[at].tolist()]
        places[at] = sorted(range(len(line)), key=line.__getitem__, reverse=largest)[:k]
    places = np.moveaxis(places, -1, axis)
    return np.take_along_axis(x, places, axis), places


def compiled(dtype, shape, axis, largest, threads, k=None):
    dims = ", ".join(map(str, shape))
    count = "%k: i64[1]" if k is None else ""
    given = "" if k is None else f"%k = constant() {{data = i64[1]({k})}}"
    params = ", ".join(each for each in (f"%x: {dtype}[{dims}]", count) if each)
    text = (
        f"graph @main({params}) {{ {given} %y, %i = top_k(%x, %k) "
        f"{{axis = {axis}, largest = {str(largest).lower()}}} return %y, %i }}"
    )
    return tw.compile(graph.parse(text), threads=threads)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.sampled
def test_a_number_from_the_run_is_taken_by_insertion_or_sorting(dtype, largest):
    x = numbers(TYPES[dtype], (3, 700), ties=True)
    model = compiled(dtype, x.shape, 1, largest, threads=2)
    for k in (0, 1, 5, 33, 256, 257, 700):
        values, places = model(x, np.array([k]))
        want, where = expected(x, k, 1, largest)
        np.testing.assert_array_equal(places, where)
        assert np.asarray(values).tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("k", [299, 300, 698, 699])
@pytest.mark.sampled
def test_many_are_selected_before_they_are_sorted(dtype, k):
    """Many equal elements around the last that is kept; -NaN, infinities, the least integers."""
    x = numbers(TYPES[dtype], (2, 700), ties=True)
    for largest in (True, False):
        values, places = compiled(dtype, x.shape, 1, largest, threads=1, k=k)(x)
        want, where = expected(x, k, 1, largest)
        np.testing.assert_array_equal(places, where)
        assert np.asarray(values).tobytes() == want.tobytes()


def test_only_the_selected_elements_are_sorted():
    """A merge sort of all keys took 20 times as long for 300 of 8400."""
    text = "graph @main(%x: f32[1, n]) { %y, %i = top_k(%x) {axis = 1, k = 300} return %y, %i }"
    made = schedule(lower_graph(graph.parse(text).main, "best"), "cpu", threads=1)
    copied_back = re.findall(r"for %b0 in 0\.\.(\w+)", str(made.schedule.function))
    assert copied_back == ["300"]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("k", [1, 7, 40])
def test_lines_of_any_axis(axis, k):
    x = numbers(np.float32, (70, 90), ties=False)
    x[::5] = 1.0
    values, places = compiled("f32", x.shape, axis, True, threads=2, k=k)(x)
    want, where = expected(x, k, axis, True)
    np.testing.assert_array_equal(places, where)
    assert np.asarray(values).tobytes() == want.tobytes()


@pytest.mark.parametrize("order", ["up", "down", "same"])
def test_lines_in_order_already(order):
    x = np.arange(1000, dtype=np.float32)[None]
    x = {"up": x, "down": x[:, ::-1].copy(), "same": np.zeros_like(x)}[order]
    values, places = compiled("f32", x.shape, 1, True, threads=1, k=20)(x)
    want, where = expected(x, 20, 1, True)
    np.testing.assert_array_equal(places, where)
    np.testing.assert_array_equal(values, want)


def test_lines_are_shared_out_among_threads():
    text = """graph @main(%x: f32[20000, 64], %k: i64[1]) {
      %y, %i = top_k(%x, %k) {axis = 1} return %y, %i }"""
    made = schedule(lower_graph(graph.parse(text).main, "kernel"), "cpu", threads=2)
    assert [each.rule for each in made.decisions] == ["steps"]
    assert "parallel" in str(made.schedule.function)
