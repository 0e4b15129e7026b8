"""The first pass that changes the answer, and a small model that shows it."""

from dataclasses import replace

import numpy as np

from tilewright.driver.bisect import CODE, SCHEDULE, bisect, part_of
from tilewright.driver.compare import difference, is_close
from tilewright.graph import parse
from tilewright.graph.interp import interpret
from tilewright.graph.visit import map_graphs

TEXT = """graph @main(%x: f32[n, 4], %y: f32[n, 4]) {
  %a = exp(%x)
  %b = tanh(%y)
  %c = add(%a, %b)
  %d = mul(%c, %c)
  %e = neg(%d)
  %f = sigmoid(%e)
  return %f, %b
}"""


def inputs():
    random = np.random.default_rng(0)
    return [random.standard_normal((3, 4)).astype(np.float32) for _ in range(2)]


def harmless(module, ctx):
    return map_graphs(module, lambda graph: replace(graph, nodes=graph.nodes))


def lose_signs(module, ctx):
    """A wrong pass: it takes the absolute value where it should negate."""

    def change(graph):
        nodes = tuple(replace(n, op="abs") if n.op == "neg" else n for n in graph.nodes)
        return replace(graph, nodes=nodes)

    return map_graphs(module, change)


def test_a_wrong_pass_is_named_and_shown_by_one_node():
    found = bisect(parse(TEXT), inputs(), (harmless, lose_signs, harmless))
    assert found.culprit == "lose_signs"
    assert found.difference > 0.1
    assert [name for name, _ in found.steps] == ["harmless", "lose_signs"]
    assert [node.op for node in found.reproducer.main.nodes] == ["neg"]
    (given,) = found.inputs
    assert given.shape == (3, 4)


def test_right_passes_are_not_blamed():
    found = bisect(parse(TEXT), inputs(), (harmless,))
    assert (found.culprit, found.reproducer) == ("", None)


def wrong_tanh(module, arrays):
    """Native code that is wrong where there is a tanh."""
    made = interpret(module, *arrays)
    return [a + 1 for a in made] if any(n.op == "tanh" for n in module.main.nodes) else made


def test_wrong_code_is_told_from_wrong_schedules():
    module = parse(TEXT)
    found = bisect(module, inputs(), (harmless,), native=wrong_tanh, plain=wrong_tanh)
    assert found.culprit == CODE
    assert [node.op for node in found.reproducer.main.nodes] == ["tanh"]

    def plain(module, arrays):
        return interpret(module, *arrays)

    assert bisect(module, inputs(), (), native=wrong_tanh, plain=plain).culprit == SCHEDULE


def test_a_pass_that_native_code_needs_off_is_told():
    def drop_tanh(module, ctx):
        return module

    def crash_after(module, arrays):
        wrong = any(n.op == "abs" for n in module.main.nodes)
        return [a * 2 if wrong else a for a in interpret(module, *arrays)]

    def to_abs(module, ctx):  # right: exp is never negative
        def change(graph):
            nodes = tuple(
                replace(n, op="abs") if n.op == "neg" and n.output.name == "k" else n
                for n in graph.nodes
            )
            return replace(graph, nodes=nodes)

        return map_graphs(module, change)

    text = """graph @main(%x: f32[4]) { %a = exp(%x) %j = neg(%a) %k = neg(%j) return %k }"""
    (x, _) = inputs()
    found = bisect(parse(text), [x[0]], (drop_tanh, to_abs), native=crash_after)
    assert (found.culprit, found.triggers) == (CODE, ("to_abs",))


def test_a_part_of_a_model_is_a_model():
    module = parse(TEXT)
    nodes = [node for node in module.main.nodes if node.op in ("add", "neg")]
    part = part_of(module, nodes)
    assert [value.name for value in part.main.params] == ["a", "b", "d"]
    assert [value.name for value in part.main.results] == ["c", "e"]


def test_answers_are_compared_by_the_largest_number():
    a = np.array([1.0, 1000.0], np.float32)
    assert is_close(a + np.float32(0.01), a)
    assert not is_close(a + 1, a)
    assert difference(a, a.astype(np.float64)) == float("inf")
    assert difference(np.array([np.nan, 1]), np.array([np.nan, 1])) == 0
    assert not is_close(np.array([np.inf], np.float32), np.array([1], np.float32))
    assert is_close([np.arange(3)], [np.arange(3)])
    assert not is_close([np.arange(3)], [np.arange(3) + 1])
    assert is_close(None, None)
