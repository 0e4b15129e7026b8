"""Models with parts for the interpreter, against their meaning: compiled, saved and loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.errors import UserError
from tilewright.driver.compare import is_close
from tilewright.driver.placement import INTERPRETER

F = np.float32


def words(*items: str) -> np.ndarray:
    return np.array(items, object)


def plain(value: Any) -> Any:
    if isinstance(value, tw.Array):
        return np.asarray(value)
    return [plain(item) for item in value] if isinstance(value, list) else value


def check(text: str, *args: Any, folder=None, fallbacks: tuple[str, ...] = ()) -> tw.Module:
    """The same answers, twice, by the compiled model and by one that was saved and loaded."""
    module = graph.parse(text)
    compiled = tw.compile(module, threads=1)
    assert compiled.fallbacks == fallbacks
    models = [compiled]
    if folder is not None:
        models.append(tw.load(compiled.save(folder / "net.so")))
    want = graph.interpret(module, *args)
    for model in models:
        assert model.fallbacks == fallbacks
        assert [str(spec) for spec in model.inputs] == [str(spec) for spec in compiled.inputs]
        for _ in range(2):
            for got, expected in zip(model(*args), want, strict=True):
                assert is_close(plain(got), expected), (got, expected)
    return compiled


TEXT = """
graph @main(%x: str[n], %y: f32[n, 2]) {
  %c = constant() {data = str[1]("!")}
  %s: str[n] = string_concat(%x, %c)
  %e: bool[n] = equal(%s, %c)
  %f: f32[n] = cast(%e) {to = dtype f32}
  %g: f32[n] = reduce_sum(%y) {axes = (1,), keepdims = false}
  %h: f32[n] = add(%f, %g)
  return %h, %s
}
"""


@pytest.mark.parametrize("given", [("", "b", "!"), ()], ids=["three", "none"])
def test_text_beside_numbers(given, tmp_path):
    y = np.arange(2 * len(given), dtype=F).reshape(-1, 2)
    check(TEXT, words(*given), y, folder=tmp_path, fallbacks=("equal", "string_concat"))


TOLD = """
graph @main(%x: str[n]) {
  %a: str[n, k], %count: i64[n] = string_split(%x) {delimiter = ","}
  %d: i64[2] = dims() {values = (expr n, expr k)}
  %z: f32[n, k] = expand(%zero, %d)
  %out: f32[n, k] = exp(%z)
  return %out, %count, %a
}
""".replace("  %d: i64[2]", "  %zero = constant() {data = f32[](0.5)}\n  %d: i64[2]")


def test_parts_tell_sizes_that_native_code_needs(tmp_path):
    check(TOLD, words("a,b", "c", "d,e,f"), folder=tmp_path, fallbacks=("string_split",))


SEQUENCES = """
graph @main(%x: f32[2, n], %i: i64[]) {
  %a = exp(%x)
  %s: seq<f32[2, n]> = sequence(%a, %x)
  %b: f32[2, n] = sequence_at(%s, %i)
  %c = neg(%b)
  %t: seq<f32[2, n]> = sequence_insert(%s, %c, none)
  %d: f32[2, m] = concat_from_sequence(%t) {axis = 1}
  %e = relu(%d)
  return %e, %t
}
"""


@pytest.mark.parametrize("at", [0, 1, -1])
def test_several_parts_with_native_code_between(at, tmp_path):
    x = np.linspace(-1, 1, 6, dtype=F).reshape(2, 3)
    used = ("concat_from_sequence", "sequence", "sequence_at", "sequence_insert")
    compiled = check(SEQUENCES, x, np.array(at), folder=tmp_path, fallbacks=used)
    assert len(compiled.parts.parts) == 2


GATHERED = """
graph @main(%n: i64[], %x: f32[3]) {
  %s: seq<f32[3]> = sequence_empty() {of = dtype f32}
  %f: seq<f32[3]>, %g: f32[3] = loop(%n, none, %s, %x) {carried = 2} do {
    graph(%i: i64[], %go: bool[], %t: seq<f32[3]>, %v: f32[3]) {
      %w = tanh(%v)
      %u: seq<f32[3]> = sequence_insert(%t, %w, none)
      return %go, %u, %w
    }
  }
  %l: i64[] = sequence_length(%f)
  %y = neg(%g)
  return %f, %l, %y
}
"""


def test_loops_carry_sequences_natively(tmp_path):
    for count in (0, 4):
        used = ("sequence_empty", "sequence_insert", "sequence_length")
        x = np.array([1, -2, 3], F)
        compiled = check(GATHERED, np.array(count), x, folder=tmp_path, fallbacks=used)
    placed = {node.op: device for _, node, device, _ in compiled.inside.placement.rows()}
    assert str(placed["loop"]) == "cpu"
    assert placed["sequence_insert"] == INTERPRETER


LENGTHS = """
graph @main(%c: bool[], %x: str[n], %y: f32[m]) {
  %s: str[k] = if(%c, %x) do {
    graph(%a: str[n]) {
      %p: str[n] = string_concat(%a, %a)
      %q: str[2] = slice(%p) {starts = (0,), ends = (2,), axes = (0,)}
      %one: f32[2] = constant() {data = f32[2](1.0, 2.0)}
      %two: f32[2] = exp(%one)
      return %q
    }
    graph(%b: str[n]) {
      return %b
    }
  }
  %d: i64[1] = dims() {values = (expr k,)}
  %z: f32[k] = expand(%half, %d)
  %w: f32[k] = exp(%z)
  return %s, %w
}
""".replace("  %s: str[k]", "  %half = constant() {data = f32[1](0.5)}\n  %s: str[k]")


@pytest.mark.parametrize("cond", [True, False])
def test_branches_give_text_of_different_sizes(cond, tmp_path):
    x, y = words("a", "b", "c"), np.zeros(4, F)
    module = graph.parse(LENGTHS)
    compiled = tw.compile(module, threads=1)
    for model in (compiled, tw.load(compiled.save(tmp_path / "net.so"))):
        got = model(np.array(cond), x, y)
        for a, b in zip(got, graph.interpret(module, np.array(cond), x, y), strict=True):
            assert is_close(plain(a), b)


SCANNED = """
graph @main(%x: f32[n, 2], %w: str[k]) {
  %s: f32[2] = constant() {data = f32[2](0.0, 0.0)}
  %f: f32[2], %y: f32[n, 2] = scan(%s, %x, %w) {states = 1, inputs = 1} do {
    graph(%a: f32[2], %e: f32[2], %v: str[k]) {
      %t: f32[2] = add(%a, %e)
      %q: bool[k] = equal(%v, %v)
      %p: f32[k] = cast(%q) {to = dtype f32}
      %r: f32[] = reduce_sum(%p) {keepdims = false}
      %u: f32[2] = mul(%t, %r)
      return %t, %u
    }
  }
  return %f, %y
}
"""


def test_scans_call_parts_in_each_round(tmp_path):
    x = np.arange(6, dtype=F).reshape(3, 2)
    check(SCANNED, x, words("a", "b"), folder=tmp_path, fallbacks=("equal",))


STACKED = """
graph @main(%n: i64[], %x: str[2]) {
  %f: str[2], %rows: str[k, 2] = loop(%n, none, %x) {carried = 1} do {
    graph(%i: i64[], %go: bool[], %s: str[2]) {
      %t: str[2] = string_concat(%s, %s)
      return %go, %t, %s
    }
  }
  %y: bool[2] = equal(%f, %f)
  %z = logical_not(%y)
  return %rows, %z
}
"""


def test_loops_that_stack_text_run_whole(tmp_path):
    used = ("equal", "loop", "string_concat")
    check(STACKED, np.array(3), words("a", "b"), folder=tmp_path, fallbacks=used)


RANKLESS = """
graph @main(%c: bool[], %x: f32[4]) {
  %y: f32[*] = if(%c, %x) do {
    graph(%a: f32[4]) {
      %p: f32[2, 2] = reshape(%a) {shape = (2, 2)}
      return %p
    }
    graph(%b: f32[4]) {
      %q = neg(%b)
      return %q
    }
  }
  %z: f32[*] = exp(%y)
  return %z
}
"""


@pytest.mark.parametrize("cond", [True, False])
def test_tensors_of_any_rank_are_objects(cond, tmp_path):
    used = ("exp", "if", "neg", "reshape")
    check(RANKLESS, np.array(cond), np.arange(4, dtype=F), folder=tmp_path, fallbacks=used)


OPTIONAL = """
graph @main(%x: opt<f32[3]>, %y: f32[3]) {
  %h: bool[] = optional_has_element(%x)
  %n = logical_not(%h)
  %z = neg(%y)
  return %n, %z, %x
}
"""


def test_optional_inputs_may_be_absent(tmp_path):
    for given in (None, np.ones(3, F)):
        check(
            OPTIONAL,
            given,
            np.ones(3, F),
            folder=tmp_path,
            fallbacks=("optional_has_element",),
        )


WEIGHTS = """
graph @main(%x: f32[3, 3], %t: str[1]) {
  %w = constant() {data = f32[3, 3](1, 2, 3, 4, 5, 6, 7, 8, 9)}
  %s: seq<f32[3, 3]> = sequence(%w, %x)
  %i = constant() {data = i64[](0)}
  %b: f32[3, 3] = sequence_at(%s, %i)
  %y = matmul(%x, %b)
  %z = matmul(%y, %w)
  return %z, %t
}
"""


def test_weights_serve_both_sides(tmp_path):
    compiled = check(
        WEIGHTS,
        np.eye(3, dtype=F),
        words("t"),
        folder=tmp_path,
        fallbacks=("sequence", "sequence_at"),
    )
    assert any(part.weights for part in compiled.parts.parts)


LABELS = """
graph @main(%i: i64[n]) {
  %names = constant() {data = str[40](NAMES)}
  %a: str[n] = gather(%names, %i) {axis = 0}
  %b = neg(%i)
  return %a, %b
}
""".replace("NAMES", ", ".join(f'"name {at} \\\\ \\"é\\""' for at in range(40)))


def test_large_tables_of_text_are_saved(tmp_path):
    check(LABELS, np.array([3, 39, 0]), folder=tmp_path, fallbacks=("gather",))


UNCHANGED = """
graph @main(%x: str[2], %s: seq<f32[n]>, %y: f32[3]) {
  %z = neg(%y)
  return %x, %z, %s, %x
}
"""


def test_objects_pass_through_a_model_that_is_native(tmp_path):
    several = [np.ones(2, F), np.zeros(1, F)]
    check(UNCHANGED, words("a", "b"), several, np.ones(3, F), folder=tmp_path)


def test_constants_of_text_are_results(tmp_path):
    text = """
    graph @main(%x: f32[2]) {
      %t = constant() {data = str[2]("a", "b")}
      %y = neg(%x)
      return %t, %y
    }
    """
    check(text, np.ones(2, F), folder=tmp_path)


def test_calls_run_side_by_side_on_threads():
    from concurrent.futures import ThreadPoolExecutor

    compiled = tw.compile(graph.parse(TEXT), threads=1)

    def one(count: int) -> bool:
        x, y = words(*("abc!"[at % 4] for at in range(count))), np.ones((count, 2), F)
        want = graph.interpret(graph.parse(TEXT), x, y)
        return all(is_close(plain(a), b) for a, b in zip(compiled(x, y), want, strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(1, 24)))


def test_what_a_sequence_holds_stays_when_memory_is_used_again():
    compiled = tw.compile(graph.parse(GATHERED), threads=1)
    kept, *_ = compiled(np.array(3), np.array([1, 2, 3], F))
    first = [np.array(item) for item in kept]
    compiled(np.array(3), np.array([7, 8, 9], F))
    for a, b in zip(kept, first, strict=True):
        np.testing.assert_array_equal(np.asarray(a), b)


CARRIED = """
graph @main(%n: i64[], %x: f32[2], %s: seq<f32[2]>) {
  %f: seq<f32[2]>, %g: seq<f32[2]> = loop(%n, none, %s, %s, %x) {carried = 2} do {
    graph(%i: i64[], %go: bool[], %t: seq<f32[2]>, %p: seq<f32[2]>, %v: f32[2]) {
      %w = neg(%v)
      %u: seq<f32[2]> = sequence_insert(%t, %w, none)
      RESULTS
    }
  }
  %a: i64[] = sequence_length(%f)
  %b: i64[] = sequence_length(%g)
  %c: i64[] = sequence_length(%s)
  return %a, %b, %c, %f, %g, %s
}
"""


PASSED = """%z: seq<f32[2]> = if(%go, %u) do {
  graph(%one: seq<f32[2]>) { return %one }
  graph(%two: seq<f32[2]>) { return %two }
}"""


@pytest.mark.parametrize(
    ("results", "ends"),
    [
        ("%q: seq<f32[2]> = sequence_insert(%p, %v, none) return %go, %u, %q", 2),
        ("return %go, %u, %t", 0),  # the one before is kept for another round
        ("return %go, %u, %u", 0),
        ("return %go, %u, %p", 1),  # what came from outside stays
        (f"{PASSED} return %go, %u, %z", 0),
    ],
    ids=["both", "before", "twice", "outside", "passed"],
)
def test_what_loops_carry_ends_when_it_is_replaced(results, ends, tmp_path):
    used = ("sequence_insert", "sequence_length")
    text, several = CARRIED.replace("RESULTS", results), [np.ones(2, F)]
    for count in (0, 1, 5):
        args = np.array(count), np.arange(2, dtype=F), several
        compiled = check(text, *args, folder=tmp_path, fallbacks=used)
    assert sum(len(part.ends) for part in compiled.parts.parts) == ends


def test_long_loops_keep_few_sequences(monkeypatch):
    from tilewright.driver import hybrid

    most = 0
    handle = hybrid._Run.handle

    def counted(run, *args):
        nonlocal most
        made = handle(run, *args)
        most = max(most, len(run.objects))
        return made

    monkeypatch.setattr(hybrid._Run, "handle", counted)
    tw.compile(graph.parse(GATHERED), threads=1)(np.array(300), np.ones(3, F))
    assert most < 8


NESTED = """
graph @main(%n: i64[], %x: f32[2], %s: seq<f32[2]>) {
  %f: seq<f32[2]>, %l: i64[k] = loop(%n, none, %s, %x) {carried = 1} do {
    graph(%i: i64[], %go: bool[], %t: seq<f32[2]>, %v: f32[2]) {
      %g: seq<f32[2]> = loop(%i, none, %t, %v) {carried = 1} do {
        graph(%j: i64[], %on: bool[], %p: seq<f32[2]>, %w: f32[2]) {
          %y = neg(%w)
          %q: seq<f32[2]> = sequence_insert(%p, %y, none)
          return %on, %q
        }
      }
      %a: i64[] = sequence_length(%t)
      return %go, %g, %a
    }
  }
  return %f, %l
}
"""


def test_loops_in_loops_begin_with_what_others_hold(tmp_path):
    args = np.array(4), np.ones(2, F), [np.zeros(2, F)]
    check(NESTED, *args, folder=tmp_path, fallbacks=("sequence_insert", "sequence_length"))


@pytest.mark.parametrize(
    "out",
    [
        [np.empty(2, F)],
        [np.empty(4, F), words("", "", "")],
        [np.empty(3, F), words("")],
        [np.empty(3), words("", "", "")],
    ],
    ids=["one", "a wrong shape", "a wrong shape of text", "a wrong type"],
)
def test_memory_for_outputs_must_fit(out):
    module = tw.compile(graph.parse(TEXT), threads=1)
    with pytest.raises(UserError, match="TW4042"):
        module(words("a", "b", "c"), np.zeros((3, 2), F), out=out)


def test_outputs_are_written_to_memory_only():
    module = tw.compile(graph.parse(TEXT), threads=1)
    given, out = (words("a", "b", "c"), np.ones((3, 2), F)), np.zeros(3, F)
    module(*given, out=[out, words("", "", "")])
    assert out.tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(TypeError, match="TW4010"):  # a copy of the list would be filled
        module(*given, out=[[0.0, 0.0, 0.0], words("", "", "")])
    out.flags.writeable = False
    with pytest.raises(UserError, match="TW4006"):
        module(*given, out=[out, words("", "", "")])


def test_what_a_sequence_shows_of_weights_belongs_to_the_caller():
    module = graph.parse(
        """
graph @main(%x: f32[3]) {
  %w: f32[3] = constant() {data = f32[3](1.0, 2.0, 3.0)}
  %s: seq<f32[3]> = sequence(%w, %x)
  return %s
}
"""
    )
    model = tw.compile(module, threads=1)
    ((first, _),) = model(np.zeros(3, F))
    np.asarray(first)[...] = 7
    ((again, _),) = model(np.zeros(3, F))
    np.testing.assert_array_equal(np.asarray(again), np.array([1, 2, 3], F))


def test_what_nodes_mean_is_kept_between_calls_unless_sizes_are_part_of_it():
    text = """graph @main(%x: str[n], %y: f32[n, 2]) {
      %r = reshape(%x) {shape = (expr n * 2 // 2, 1)}
      %m = zip_map(%y) {keys = ("a", "b")}
      return %r, %m
    }"""
    module = graph.parse(text)
    model = tw.compile(module, threads=1)
    assert set(model.fallbacks) == {"reshape", "zip_map"}
    for count in (3, 2, 0, 3):
        args = (words(*"pqr"[:count]), np.arange(2 * count, dtype=F).reshape(count, 2))
        strings, maps = model(*args)
        assert plain(strings).tolist() == [[word] for word in "pqr"[:count]]
        assert maps == [{"a": 2.0 * at, "b": 2.0 * at + 1} for at in range(count)]
