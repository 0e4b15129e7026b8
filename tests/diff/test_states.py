"""Models that remember: states in the text, by the interpreter, in native code, in files."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from stateful_models import MEAN

import tilewright as tw
from tilewright import graph
from tilewright.graph.verify import VerifyError, verify


def inputs(count: int) -> list[np.ndarray]:
    random = np.random.default_rng(7)
    return [random.standard_normal(4).astype(np.float32) for _ in range(count)]


def interpreted(program: graph.Module, given: list[np.ndarray]) -> list[tuple]:
    states = [program.constants[name] for name in program.states]
    made = []
    for x in given:
        results = graph.interpret(program, x, *states)
        made.append(results)
        states = results[len(program.made) :]
    return made


def check(model: tw.Module, want: list[tuple], given: list[np.ndarray]) -> None:
    for x, (mean, *states) in zip(given, want, strict=True):
        (got,) = model(x)
        np.testing.assert_allclose(np.asarray(got), mean, rtol=1e-6)
        for state, expected in zip(model.states.values(), states, strict=True):
            np.testing.assert_allclose(state, expected, rtol=1e-6)


def test_the_text_of_a_model_with_states_parses_back():
    program = graph.parse(MEAN)
    verify(program)
    again = graph.parse(str(program))
    assert again == program
    assert [value.name for value in again.given] == ["x"]
    assert [value.name for value in again.made] == ["mean"]
    assert again != graph.parse(MEAN.replace("f32[](0.0)", "f32[](1.0)"))


def test_the_interpreter_begins_with_what_the_module_says():
    program, (x,) = graph.parse(MEAN), inputs(1)
    mean, total, count, last, before = graph.interpret(program, x)
    np.testing.assert_array_equal(mean, x)
    np.testing.assert_array_equal(total, x)
    assert (count, before.tolist()) == (1.0, [7.0] * 4)
    np.testing.assert_array_equal(last, x)


@pytest.mark.parametrize("without", [(), ("fuse",)])
def test_native_code_keeps_states_between_calls(without):
    program, given = graph.parse(MEAN), inputs(4)
    model = tw.compile(program, threads=1, without=without)
    want = interpreted(program, given)
    check(model, want, given)
    model.reset()
    check(model, want, given)


def test_inputs_are_counted_without_states():
    program, given = graph.parse(MEAN), inputs(1)
    model = tw.compile(program, threads=1)
    with pytest.raises(TypeError, match="takes 1 inputs, got 0"):
        model()
    with pytest.raises(TypeError, match="takes 1 inputs, got 2"):
        model(*given, *given)


def test_states_that_change_places_do():
    program = graph.parse(
        "module stage imported states (f32[2](1.0, 2.0), f32[2](3.0, 4.0), f32[2](5.0, 6.0)) {"
        " graph @main(%x: f32[2], %a: f32[2], %b: f32[2], %c: f32[2]) {"
        "  %y = add(%x, %a) return %y, %b, %c, %a } }"
    )
    model, zero = tw.compile(program, threads=1), np.zeros(2, np.float32)
    seen = [np.asarray(model(zero)[0]).tolist() for _ in range(4)]
    assert seen == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [1.0, 2.0]]


def test_a_state_that_is_also_a_result_is_given_as_it_was():
    program = graph.parse(
        "module stage imported states (f32[2](1.0, 2.0)) {"
        " graph @main(%x: f32[2], %a: f32[2]) { %b = add(%x, %a) return %a, %b, %b } }"
    )
    model, one = tw.compile(program, threads=1), np.ones(2, np.float32)
    for step in range(3):
        before, after = (np.asarray(each).tolist() for each in model(one))
        assert before == [1.0 + step, 2.0 + step]
        assert after == [2.0 + step, 3.0 + step]


def test_states_that_branches_read_and_replace():
    program = graph.parse(
        "module stage imported states (f32[2](1.0, 1.0)) {"
        " graph @main(%up: bool[], %a: f32[2]) {"
        "  %b: f32[2] = if(%up, %a) do {"
        "    graph (%p: f32[2]) { %q = add(%p, %p) return %q }"
        "    graph (%p: f32[2]) { %q = neg(%p) return %q } }"
        "  %c = add(%a, %b)"
        "  return %c, %b } }"
    )
    model = tw.compile(program, threads=1)
    made = [np.asarray(model(np.bool_(up))[0])[0] for up in (True, False, True)]
    assert made == [3.0, 0.0, -6.0]


def test_calls_on_many_threads_lose_nothing():
    model = tw.compile(graph.parse(MEAN), threads=1)
    one = np.ones(4, np.float32)

    def work() -> None:
        for _ in range(50):
            model(one)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.states["count"] == 400.0
    assert model.states["sum"].tolist() == [400.0] * 4


def test_forks_have_states_of_their_own():
    program, given = graph.parse(MEAN), inputs(5)
    model = tw.compile(program, threads=1)
    want = interpreted(program, given)
    check(model, want[:2], given[:2])
    other = model.fork()
    check(model, want[2:], given[2:])
    check(other, want[2:], given[2:])


def test_a_saved_model_begins_as_it_did(tmp_path):
    program, given = graph.parse(MEAN), inputs(3)
    model = tw.compile(program, threads=1)
    model(given[0])
    loaded = tw.load(model.save(tmp_path / "mean.so"))
    check(loaded, interpreted(program, given), given)
    text = (tmp_path / "mean.h").read_text()
    assert "sum: f32[4] (state: read, then changed)" in text
    assert "extern const void *const mean_constants[];" in text


def test_a_model_is_saved_with_its_current_states(tmp_path):
    program, given = graph.parse(MEAN), inputs(6)
    want = interpreted(program, given)
    model = tw.compile(program, threads=1)
    check(model, want[:2], given[:2])
    loaded = tw.load(model.save(tmp_path / "mean.so", states="current"))
    check(loaded, want[2:4], given[2:4])
    again = tw.load(loaded.save(tmp_path / "later.so", states="current"))
    first = tw.load(loaded.save(tmp_path / "same.so"))  # a copy begins as what it is a copy of
    check(again, want[4:], given[4:])
    check(first, want[2:], given[2:])
    again.reset()
    check(again, want[4:], given[4:])
    check(tw.load(model.save(tmp_path / "first.so")), want, given)


def test_states_that_begin_alike_are_saved_apart(tmp_path):
    text = (
        "module stage imported states (@zero, @zero) {"
        " graph @main(%x: f32[2], %a: f32[2], %b: f32[2]) {"
        "  %zero = constant() {data = @zero} %y = add(%x, %zero)"
        "  %s = add(%a, %y) %t = sub(%b, %y) return %y, %s, %t } }"
    )
    program = graph.parse(text, {"zero": np.zeros(2, np.float32)})
    model = tw.compile(program, threads=1)
    model(np.ones(2, np.float32))
    loaded = tw.load(model.save(tmp_path / "two.so", states="current"))
    assert [each.tolist() for each in loaded.states.values()] == [[1.0, 1.0], [-1.0, -1.0]]
    assert np.asarray(loaded(np.ones(2, np.float32))[0]).tolist() == [1.0, 1.0]


def test_only_states_that_exist_are_saved(tmp_path):
    model = tw.compile(graph.parse(MEAN), threads=1)
    with pytest.raises(tw.TilewrightError, match="TW4056"):
        model.save(tmp_path / "mean.so", states="last")


def test_states_beside_what_the_interpreter_runs():
    program = graph.parse(
        "module stage imported states (f32[1](0.0)) {"
        " graph @main(%x: f32[1], %text: str[1], %sum: f32[1]) {"
        "  %twice = string_concat(%text, %text) %y = add(%sum, %x) return %twice, %y } }"
    )
    model = tw.compile(program, threads=1)
    assert model.fallbacks == ("string_concat",)
    for _ in range(3):
        (twice,) = model(np.ones(1, np.float32), np.array(["ab"], object))
        assert list(twice) == ["abab"]
    assert model.states["sum"].tolist() == [3.0]


@pytest.mark.parametrize(
    ("begin", "result"),
    [("f32[3](0.0, 0.0, 0.0)", "%y"), ("i32[2](0, 0)", "%y"), ("f32[2](0.0, 0.0)", "%z")],
)
def test_a_state_has_one_type(begin, result):
    program = graph.parse(
        f"module stage imported states ({begin}) {{"
        " graph @main(%x: f32[2], %a: f32[2]) {"
        "  %y = add(%x, %a) %z = cast(%y) {to = dtype f64}"
        f"  return %y, {result} }} }}"
    )
    with pytest.raises(VerifyError, match="TW1409"):
        verify(program)


def test_a_module_has_the_parameters_and_results_of_its_states():
    program = graph.parse(
        "module stage imported states (f32[2](0.0, 0.0), f32[2](0.0, 0.0)) {"
        " graph @main(%x: f32[2]) { %y = neg(%x) return %y } }"
    )
    with pytest.raises(VerifyError, match="TW1409"):
        verify(program)
