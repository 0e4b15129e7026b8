"""Results whose rank only the call tells: branches at a model's end give them to the caller."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.errors import UserError

F = np.float32
SQUEEZED = """
graph @main(%c: bool[], %x: f32[n, 4]) {
  %y: f32[*] = if(%c, %x) do {
    graph(%a: f32[n, 4]) {
      %p: f32[n, 2, 2] = reshape(%a) {shape = (-1, 2, 2)}
      return %p
    }
    graph(%b: f32[n, 4]) {
      %q: f32[n] = reduce_sum(%b) {axes = (1,), keepdims = false}
      return %q
    }
  }
  %z = neg(%x)
  return %y, %z
}
"""
NESTED = """
graph @main(%c: bool[], %i: i32[], %x: f32[4]) {
  %y: f32[*] = if(%c, %i, %x) do {
    graph(%j: i32[], %a: f32[4]) {
      %s: f32[*] = switch(%j, %a) do {
        graph(%d: f32[4]) { %e = neg(%d) return %e }
        graph(%f: f32[4]) { %g: f32[] = reduce_max(%f) {axes = (0,), keepdims = false} return %g }
        graph(%h: f32[4]) { return %h }
      }
      return %s
    }
    graph(%k: i32[], %b: f32[4]) { %r: f32[1, 4] = reshape(%b) {shape = (1, 4)} return %r }
  }
  return %y
}
"""
CASES = {
    "reshaped": (SQUEEZED, np.array(True), np.arange(12, dtype=F).reshape(3, 4)),
    "summed": (SQUEEZED, np.array(False), np.arange(12, dtype=F).reshape(3, 4)),
    "empty": (SQUEEZED, np.array(True), np.zeros((0, 4), F)),
    "outer": (NESTED, np.array(False), np.int32(0), np.arange(4, dtype=F)),
    **{
        f"inner {at}": (NESTED, np.array(True), np.int32(at), np.arange(4, dtype=F))
        for at in range(3)
    },
}


@pytest.mark.parametrize("name", CASES)
def test_a_result_has_the_rank_of_its_branch(name, tmp_path):
    text, *args = CASES[name]
    module = graph.parse(text)
    compiled = tw.compile(module, threads=1)
    assert compiled.fallbacks == ()
    assert str(compiled.outputs[0]) == "y: f32[*]"
    loaded = tw.load(compiled.save(tmp_path / "net.so"))
    assert str(loaded.outputs[0]) == "y: f32[*]"
    want = graph.interpret(module, *args)
    for model in (compiled, loaded):
        for got, expected in zip(model(*args), want, strict=True):
            assert np.asarray(got).shape == expected.shape
            np.testing.assert_array_equal(got, expected)
        out = [np.full(expected.shape, 7, F) for expected in want]
        model(*args, out=out)
        for got, expected in zip(out, want, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_memory_of_another_shape_is_refused():
    model = tw.compile(graph.parse(NESTED), threads=1)
    args = np.array(False), np.int32(0), np.arange(4, dtype=F)
    for shape in ((4,), (1, 3), ()):
        with pytest.raises(UserError) as caught:
            model(*args, out=[np.zeros(shape, F)])
        assert caught.value.code in ("TW4002", "TW4003")


def test_the_header_says_that_any_rank_may_come(tmp_path):
    tw.compile(graph.parse(NESTED), threads=1).save(tmp_path / "net.h")
    assert "y: f32[*] (output)" in (tmp_path / "net.h").read_text()


def test_what_the_model_reads_itself_is_an_object():
    read = SQUEEZED.replace("return %y, %z", "%w: f32[*] = exp(%y) return %w, %y")
    model = tw.compile(graph.parse(read), threads=1)
    assert "if" in model.fallbacks
    given, twice = model(np.array(False), np.ones((3, 4), F))
    assert np.asarray(given).shape == np.asarray(twice).shape == (3,)


def test_a_result_that_is_given_twice_is_an_object():
    twice = SQUEEZED.replace("return %y, %z", "return %y, %y")
    made = tw.compile(graph.parse(twice), threads=1)(np.array(True), np.ones((3, 4), F))
    assert [np.asarray(each).shape for each in made] == [(3, 2, 2), (3, 2, 2)]
