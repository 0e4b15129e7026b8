"""What only results are made of: run after native code, without callbacks."""

import ctypes
import subprocess

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.target import Target
from tilewright.driver.foreign_parts import call_foreign_parts
from tilewright.driver.parts import CLOSING
from tilewright.driver.placement import placement

# A classifier: the name of the best class, and the scores by names.
CLASSIFIER = """
graph @main(%x: f32[n, 2]) {
  %names = constant() {data = str[2]("no", "yes")}
  %y: f32[n, 2] = exp(%x)
  %best: i64[n] = arg_max(%x) {axis = 1, keepdims = false}
  %name = gather(%names, %best) {axis = 0}
  %maps = zip_map(%y) {keys = ("no", "yes")}
  return %name, %y, %maps
}
"""
X = np.array([[0.0, 1.0], [2.0, 1.0]], np.float32)


def classifier():
    return graph.parse(CLASSIFIER)


def split(module):
    return call_foreign_parts(module, placement(module, Target.host()))


@pytest.fixture(scope="module")
def module():
    return tw.compile(classifier(), threads=1)


def check(module, x=X):
    names, scores, maps = module(x)
    scores = np.asarray(scores)
    np.testing.assert_allclose(scores, np.exp(x), rtol=1e-6)
    assert np.asarray(names).tolist() == ["no" if a > b else "yes" for a, b in x]
    assert maps == [{"no": float(a), "yes": float(b)} for a, b in scores]


def test_native_code_calls_nobody_for_them():
    main, parts = split(classifier())
    assert not any(node.op in ("foreign", "fetch") for node in main.main.nodes)
    assert (parts.parts, parts.fallbacks) == ((), ("gather", "zip_map"))
    assert [str(value.type) for value in main.main.results] == ["f32[n, 2]", "i64[n]"]
    assert parts.closing.gives == (2, 0, 3)
    assert len(parts.module.graphs[CLOSING].params) == 2


def test_results_are_in_the_order_of_the_model_for_every_size(module):
    for count in (2, 1, 0, 2):
        check(module, X[:count])
    assert [spec.name for spec in module.outputs] == ["name", "y", "maps"]
    assert module.fallbacks == ("gather", "zip_map")


def test_a_saved_model_makes_them_when_it_is_loaded(module, tmp_path):
    check(tw.load(module.save(tmp_path / "net.so")))


def test_c_programs_get_the_numbers_they_are_made_of(module, tmp_path):
    library = module.save(tmp_path / "net.so")
    text = library.with_suffix(".h").read_text()
    assert "set_foreign" not in text
    assert "handle" not in text
    assert "y: f32[n, 2]" in text
    assert not hasattr(ctypes.CDLL(str(library)), "net_set_foreign")
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True)
    assert " T net\n" in symbols.stdout


def test_memory_of_the_callers_is_filled_where_all_are_numbers():
    text = """graph @main(%x: f32[n]) {
      %y: f32[n] = exp(%x)
      %s: str[n] = cast(%y) {to = dtype str}
      %z: f32[n] = cast(%s) {to = dtype f32}
      return %z
    }"""
    out = np.zeros(1, np.float32)
    (made,) = tw.compile(graph.parse(text), threads=1)(np.zeros(1, np.float32), out=(out,))
    assert made is out
    assert out.tolist() == [1.0]


def test_what_native_code_reads_is_a_part_still():
    text = """graph @main(%x: f32[n]) {
      %s: str[n] = cast(%x) {to = dtype str}
      %a: f32[n] = cast(%s) {to = dtype f32}
      %b: f32[n] = exp(%a)
      return %s, %b
    }"""
    _, parts = split(graph.parse(text))
    assert parts.closing is None
    assert len(parts.parts) == 1
    names, made = tw.compile(graph.parse(text), threads=1)(np.zeros(2, np.float32))
    assert np.asarray(made).tolist() == [1.0, 1.0]
    assert len(names) == 2


def test_a_node_that_tells_a_size_is_a_part_and_the_next_one_closes():
    text = """graph @main(%t: str[n], %x: f32[n]) {
      %a: str[n, k], %count: i64[n] = string_split(%t) {delimiter = " "}
      %y: str[k, n] = reshape(%a) {shape = (expr k, expr n)}
      %z: f32[n] = exp(%x)
      return %y, %z
    }"""
    _, parts = split(graph.parse(text))
    assert parts.closing is not None
    assert [node.op for node in parts.module.graphs[CLOSING].nodes] == ["reshape"]
    assert any(part.tells for part in parts.parts)
    model = tw.compile(graph.parse(text), threads=1)
    y, _ = model(np.array(["a b c", "d"], object), np.zeros(2, np.float32))
    assert np.asarray(y).shape == (3, 2)


def test_errors_name_the_node():
    text = """graph @main(%x: f32[n]) {
      %s: str[n] = cast(%x) {to = dtype str}
      %t: str[n] = string_concat(%s, %s)
      %y: i64[n] = cast(%t) {to = dtype i64}
      return %y
    }"""
    model = tw.compile(graph.parse(text), threads=1)
    with pytest.raises(tw.TilewrightError, match="cast"):
        model(np.ones(1, np.float32))
