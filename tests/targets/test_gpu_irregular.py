"""Operators that go step by step, for a GPU: what they keep has room, whatever its size."""

import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph

sys.path.insert(0, str(Path(__file__).parent))
from host_gpu import assembled, fetched, on_host

UNIQUE = "%y, %first, %back, %count = unique(%x) {axis = 0}"
CONSTANTS = '%most = constant() {data = "most"} %overlap = constant() {data = "overlap"}'


def repeated(*shape):
    return np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)


def symmetric(*shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return x + np.swapaxes(x, -1, -2)


def boxes(count):
    corners = np.random.default_rng(1).random((1, count, 2)).astype(np.float32)
    return np.concatenate([corners, corners + 0.3], -1)


def scores(kinds, count):
    return np.random.default_rng(2).random((1, kinds, count)).astype(np.float32)


def told(text, results, params):
    return f"graph @main({params}) {{ {text} return {results} }}"


NUMBERS = {"most": np.array(4), "overlap": np.array(0.4, np.float32)}
FOUR = "%y, %first, %back, %count"
CASES = {
    "unique rows": (
        told(UNIQUE, FOUR, "%x: f32[n, 2]"),
        [repeated(6, 2)],
    ),
    "det": (told("%y = det(%x)", "%y", "%x: f32[n, m, m]"), [symmetric(2, 3, 3)]),
    "eigh": (told("%w, %v = eigh(%x)", "%w", "%x: f32[n, m, m]"), [symmetric(1, 3, 3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_steps_of_open_sizes_have_room_to_work(name):
    text, args = CASES[name]
    module = on_host(tw.compile(graph.parse(text, NUMBERS), target="cuda -arch=sm_90a"))
    got = fetched(module, module(*args))
    want = tw.compile(graph.parse(text, NUMBERS), target="cpu", threads=1)(*args)
    for mine, other in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, np.asarray(other), rtol=1e-5, atol=1e-6)
    for code in module.codes.values():
        assembled(code.ptx)


def shared_out(text, numbers, *calls):
    """What threads compute side by side is what the operators say, for all arguments."""
    net = graph.parse(text, numbers)
    module = on_host(tw.compile(net, target="cuda -arch=sm_90a"))
    rules = {each.rule for k in module.program.kernels.values() for each in k.decisions}
    assert "fallback" not in rules
    assert "steps" in rules
    for code in module.codes.values():
        assembled(code.ptx)
    for args in calls:
        for mine, want in zip(
            fetched(module, module(*args)), graph.interpret(net, *args), strict=True
        ):
            np.testing.assert_allclose(mine, want, rtol=1e-6)
    return module


SORTED = """graph @main(%x: {dtype}[{shape}]) {{ %k = constant() {{data = "k"}}
  %y, %at = top_k(%x, %k) {{axis = {axis}, largest = {largest}, runs = {runs}}} return %y, %at }}"""


@pytest.mark.parametrize(
    ("dtype", "shape", "axis", "largest", "runs", "count"),
    [
        (np.float32, "2, 37", 1, "true", (4, 4, 4), 37),
        (np.float32, "2, 37", 1, "false", (64,), 5),
        (np.float16, "9, 2", 0, "true", (3, 3), 9),
        (np.int64, "2, 20", 1, "false", (5, 4), 20),
        (np.float32, "n, m", 1, "true", (2, 4, 4), 3),
        (np.float32, "2, n", 1, "true", (2, 4, 4), 3),
        (np.float32, "3, 1, 5", 2, "true", (2, 4), 5),
    ],
)
def test_runs_are_merged_by_all_threads(dtype, shape, axis, largest, runs, count):
    """Of equals the first, NaN the greatest, whatever is left of the last run."""
    names = {np.float32: "f32", np.float16: "f16", np.int64: "i64"}
    text = SORTED.format(dtype=names[dtype], shape=shape, axis=axis, largest=largest, runs=runs)
    calls = []
    for length in (11, 3) if "n" in shape else (0,):
        dims = [int(dim) if dim.strip().isdigit() else length for dim in shape.split(",")]
        x = np.random.default_rng(length).integers(-9, 9, dims).astype(dtype)
        if dtype != np.int64:
            x.flat[:3], x.flat[-1] = (np.inf, -np.inf, -0.0), np.nan
        calls.append([x])
    shared_out(text, {"k": np.array([count])}, *calls)


SCATTERED = {
    "rows": ("scatter_nd", "", "6, 3", "n, 1", "n, 3", (6, 3), (9, 1), (9, 3)),
    "elements": ("scatter_nd", "", "6, 3", "9, 2", "9", (6, 3), (9, 2), (9,)),
    "along lines": (
        "scatter_elements", "axis = 1, ", "4, 7", "3, n", "3, n", (4, 7), (3, 9), (3, 9)),
    "across lines": (
        "scatter_elements", "axis = 0, ", "7, 2", "9, 2", "9, 2", (7, 2), (9, 2), (9, 2)),
    "rows of one": ("scatter_nd", "", "6, 1", "9, 1", "9, 1", (6, 1), (9, 1), (9, 1)),
    "no rows": ("scatter_nd", "", "6, 3", "n, 1", "n, 3", (6, 3), (0, 1), (0, 3)),
}  # fmt: skip


@pytest.mark.parametrize(("reduction", "dtype"), [("none", "f32"), ("add", "f16")])
@pytest.mark.parametrize("form", SCATTERED)
@pytest.mark.sampled
def test_updates_are_sorted_by_their_places(form, reduction, dtype):
    """Of several at one place the last stays, or all are joined as they come."""
    op, axis, x, at, u, *dims = SCATTERED[form]
    call = f'{op}(%x, %at, %u) {{{axis}reduction = "{reduction}", runs = (4, 4)}}'
    params = f"%x: {dtype}[{x}], %at: i64[{at}], %u: {dtype}[{u}]"
    random, kind = np.random.default_rng(0), {"f32": np.float32, "f16": np.float16}[dtype]
    args = [
        random.standard_normal(dims[0]).astype(kind),
        random.integers(-3, 3, dims[1]),
        random.standard_normal(dims[2]).astype(kind),
    ]
    shared_out(f"graph @main({params}) {{ %y = {call} return %y }}", {}, args)


@pytest.mark.parametrize("kinds", ["c", "2"])
def test_boxes_of_all_classes_are_visited_side_by_side(kinds):
    call = "suppress_boxes(%b, %s, %most, %overlap) {runs = (2, 4)}"
    params = f"%b: f32[1, n, 4], %s: f32[1, {kinds}, n]"
    rows = "%y = list_boxes(%k, %m) {side_by_side = true}"
    text = f"graph @main({params}) {{ {CONSTANTS} %k, %m = {call} {rows} return %y }}"
    shared_out(text, NUMBERS, [boxes(6), scores(2, 6)])


def test_rows_of_no_segment_are_left_out():
    text = """graph @main(%x: f32[n, 2], %s: i64[n]) { %k = constant() {data = "k"}
      %y = segment_reduce(%x, %s, %k) {reduction = "add"} return %y }"""
    random = np.random.default_rng(0)
    args = [random.standard_normal((11, 2)).astype(np.float32), random.integers(-1, 7, 11)]
    shared_out(text, {"k": np.array(5)}, args)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("is_sorted", ["true", "false"])
@pytest.mark.sampled
def test_what_is_distinct_is_found_by_all_threads(dtype, is_sorted):
    name = {np.float32: "f32", np.int64: "i64", np.bool_: "bool"}[dtype]
    call = f"{FOUR} = unique(%x) {{sorted = {is_sorted}, runs = (2, 4)}}"
    x = np.random.default_rng(0).integers(-3, 4, (3, 2)).astype(dtype)
    shared_out(f"graph @main(%x: {name}[3, 2]) {{ {call} return {FOUR} }}", {}, [x])


def test_what_is_distinct_in_tensors_of_any_size():
    text = f"graph @main(%x: f32[n, 2]) {{ {FOUR} = unique(%x) {{runs = (2, 4)}} return {FOUR} }}"
    shared_out(text, {}, [repeated(3, 2)], [repeated(0, 2)])


def test_what_is_not_zero_is_counted_by_all_threads():
    text = "graph @main(%x: f32[9, 2]) { %y = nonzero(%x) {piece = 4} return %y }"
    some = np.random.default_rng(0).integers(-1, 2, (9, 2)).astype(np.float32)
    module = shared_out(text, {}, [some], [np.zeros((9, 2), np.float32)])
    assert all(kernel.device for kernel in module.program.kernels.values())


@pytest.mark.parametrize(
    ("call", "results"),
    [
        ("%y = nonzero(%x) {piece = 4}", "%y"),
        (f"{FOUR} = unique(%x) {{runs = (2,)}}", FOUR),
    ],
)
def test_of_no_elements_none_is_found(call, results):
    net = graph.parse(f"graph @main(%x: f32[0]) {{ {call} return {results} }}")
    x = np.zeros(0, np.float32)
    module = on_host(tw.compile(net, target="cuda -arch=sm_90a"))
    for mine, want in zip(fetched(module, module(x)), graph.interpret(net, x), strict=True):
        np.testing.assert_array_equal(mine, want)


def test_places_of_values_are_looked_for_by_all_threads():
    text = "graph @main(%x: f32[k, n], %v: f32[k, m]) { %y = search_sorted(%x, %v) return %y }"
    random = np.random.default_rng(0)
    rows = np.sort(random.integers(-5, 5, (2, 9)).astype(np.float32), 1)
    shared_out(text, {}, [rows, random.integers(-6, 6, (2, 7)).astype(np.float32)])


def test_running_sums_of_any_length_go_in_pieces():
    text = "graph @main(%x: f32[n]) { %y = cumsum(%x) {axis = 0, piece = 4} return %y }"
    module = on_host(tw.compile(graph.parse(text), target="cuda -arch=sm_90a"))
    for length in (1, 21):
        x = np.random.default_rng(0).integers(-9, 9, length).astype(np.float32)
        (got,) = fetched(module, module(x))
        np.testing.assert_array_equal(got, np.cumsum(x))
