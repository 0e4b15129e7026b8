"""Parts for the interpreter: how main calls them, files, C programs, mistakes."""

import json
import subprocess
import sys

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph, runtime
from tilewright.base.errors import TilewrightError, UserError
from tilewright.base.target import Target
from tilewright.driver.foreign_parts import call_foreign_parts
from tilewright.driver.placement import placement
from tilewright.driver.saved_parts import hybrid_module

# How many words each text has, added to a number.
PROGRAM = """
graph @main(%t: str[n], %x: f32[n]) {
  %a: str[n, k], %count: i64[n] = string_split(%t) {delimiter = " "}
  %c: f32[n] = cast(%count) {to = dtype f32}
  %y: f32[n] = add(%c, %x)
  return %y
}
"""


@pytest.fixture(scope="module")
def module():
    return tw.compile(graph.parse(PROGRAM), threads=1)


@pytest.fixture(scope="module")
def saved(module, tmp_path_factory):
    return module.save(tmp_path_factory.mktemp("saved") / "net.so")


@pytest.fixture
def given():
    return np.array(["a b", "", "c d e"], object), np.array([0.5, 1.5, 2.5], np.float32)


# --------------------------------------------------------------------------- the program


def split(text):
    model = graph.parse(text)
    return call_foreign_parts(model, placement(model, Target.host()))


def test_a_part_is_called_and_its_results_fetched():
    main, parts = split(PROGRAM)
    ops = [node.op for node in main.main.nodes]
    assert ops == ["foreign", "foreign", "sizes", "fetch", "cast", "add"]
    (checks, split_text, told, fetch, *_) = main.main.nodes
    assert checks.inputs == split_text.inputs == (main.main.params[0],)
    assert str(main.main.params[0].type) == "i64[]"  # a handle
    assert [size.name for size in told["sizes"]] == ["k"]
    assert fetch.inputs == split_text.outputs
    assert list(parts.module.graphs) == ["inputs", "outputs", "part0", "part1"]


def test_parts_print_and_parse():
    _, parts = split(PROGRAM)
    assert graph.parse(str(parts.module), parts.module.constants) == parts.module


def test_a_lowered_model_with_parts_prints_and_parses(module):
    text = str(module.inside.program.module)
    assert str(graph.parse(text)) == text


def test_the_parts_of_a_round_are_one():
    text = """
    graph @main(%t: str[2], %u: str[2], %x: f32[2]) {
      %a: str[2] = string_concat(%t, %u)
      %y = neg(%x)
      %b: str[2] = string_concat(%u, %t)
      %c: f32[2] = cast(%a) {to = dtype f32}
      %d: f32[2] = cast(%b) {to = dtype f32}
      %e = div(%c, %d)
      return %e, %y
    }
    """
    main, parts = split(text)
    assert [node.op for node in main.main.nodes] == ["foreign", "neg", "foreign", "fetch", "div"]
    assert len(parts.module.graphs["part1"].results) == 2


def test_the_interpreter_learns_sizes():
    text = """
    graph @main(%s: i64[2]) {
      sizes(%s) {sizes = (expr a, expr b)}
      %d: i64[] = dims() {values = expr a * b}
      return %d
    }
    """
    (made,) = graph.interpret(graph.parse(text), np.array([3, 4]))
    assert made == 12


# --------------------------------------------------------------------------- calls


def test_inputs_come_by_name_and_outputs_go_where_wanted(module, given):
    t, x = given
    want = [2.5, 2.5, 5.5]
    assert np.asarray(module(x=x, t=t)[0]).tolist() == want
    out = np.zeros(3, np.float32)
    module(t, x, out=[out])
    assert out.tolist() == want
    with pytest.raises(UserError) as caught:
        module(t, x, out=[np.zeros(2, np.float32)])
    assert caught.value.code == "TW4003"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ((np.array(["a"], object),), "TW4042"),
        ((np.array(["a"], object), np.zeros(2, np.float32)), "TW1013"),
        ((np.zeros(2, np.float32), np.zeros(2, np.float32)), "TW1013"),
        ((np.array([["a"]], object), np.zeros(1, np.float32)), "TW1013"),
        ((np.array(["a"], object), np.zeros(1)), "TW4001"),
    ],
)
def test_wrong_inputs_are_refused(module, args, code):
    with pytest.raises(TilewrightError) as caught:
        module(*args)
    assert caught.value.code == code


def test_a_failing_part_tells_its_reason(given):
    text = """
    graph @main(%s: seq<f32[2]>, %i: i64[]) {
      %x: f32[2] = sequence_at(%s, %i)
      %y = neg(%x)
      return %y
    }
    """
    model = tw.compile(graph.parse(text), threads=1)
    several = [np.ones(2, np.float32)]
    with pytest.raises(TilewrightError, match="sequence") as caught:
        model(several, np.array(5))
    assert caught.value.code not in ("TW4019", "TW4013")
    assert np.asarray(model(several, np.array(0))[0]).tolist() == [-1, -1]


def test_other_exceptions_pass_through_main(module, given, monkeypatch):
    from tilewright.driver import hybrid

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(hybrid.Interpreter, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        module(*given)
    monkeypatch.undo()
    assert len(module(*given)) == 1


def test_parts_are_timed_with_the_kernels(module, given):
    names = [event.kernel for event in module.profile(*given).events]
    assert any("string_split" in name for name in names)


# --------------------------------------------------------------------------- files


def test_a_loaded_model_is_the_model(module, saved, given):
    loaded = tw.load(saved)
    assert loaded.fallbacks == module.fallbacks == ("string_split",)
    assert loaded.inputs == module.inputs
    assert loaded.outputs == module.outputs
    assert loaded.name == "net"
    np.testing.assert_array_equal(np.asarray(loaded(*given)[0]), np.asarray(module(*given)[0]))


def test_a_loaded_model_can_be_copied(saved, given, tmp_path):
    copy = tw.load(tw.load(saved).save(tmp_path / "copy.so"))
    assert np.asarray(copy(*given)[0]).tolist() == [2.5, 2.5, 5.5]


def test_sessions_take_such_files(saved, given):
    session = tw.InferenceSession(saved)
    assert [one.type for one in session.get_inputs()] == ["tensor(string)", "tensor(float)"]
    (y,) = session.run(None, {"t": given[0], "x": given[1]})
    assert y.tolist() == [2.5, 2.5, 5.5]


def test_loading_loads_the_interpreter_and_no_compiler(saved):
    program = f"""
import sys, json
import tilewright as tw
tw.load({str(saved)!r})
print(json.dumps(sorted(name for name in sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = json.loads(done.stdout)
    assert not {name.split(".")[0] for name in loaded} & {"llvmlite", "onnx", "rich", "typer"}
    ours = {name.split(".")[1] for name in loaded if name.startswith("tilewright.")}
    assert not ours & {"codegen", "lower", "rules", "te", "frontends"}


def test_the_runtime_alone_has_nobody_to_run_parts(saved):
    loaded = runtime.load(saved)
    with pytest.raises(TilewrightError) as caught:
        loaded(np.array(0), np.zeros(3, np.float32))
    assert caught.value.code == "TW4019"
    assert "the sizes of %t has no native code" in caught.value.message


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"graphs": "graph @"}, "TW4033"),
        ({"constants": {"x": {}}}, "TW4033"),
        ({"parts": 3}, "TW4033"),
    ],
)
def test_damaged_parts_are_refused(saved, monkeypatch, change, code):
    from tilewright.runtime.saved import LoadedModule

    told = dict(runtime.load(saved).foreign) | change
    monkeypatch.setattr(LoadedModule, "foreign", told)
    with pytest.raises(UserError) as caught:
        tw.load(saved)
    assert caught.value.code == code


def test_constants_of_all_kinds_survive():
    import ml_dtypes

    from tilewright.driver.parts import Parts
    from tilewright.driver.saved_parts import Foreign, _array

    arrays = {
        "words": np.array([["a", 'b"\n'], ["", "\u00e9"]], object),
        "half": np.arange(3).astype(ml_dtypes.bfloat16),
        "four": np.arange(3).astype(ml_dtypes.int4),
        "flags": np.array([True, False]),
        "none": np.zeros((0, 3), np.float32),
    }
    empty = {name: graph.ir.Graph(name, (), (), ()) for name in ("inputs", "outputs")}
    told = Foreign(Parts(graph.ir.Module(empty, arrays), (), ()), (), ()).told()
    for name, one in json.loads(json.dumps(told))["constants"].items():
        again = _array(one)
        assert again.dtype == arrays[name].dtype
        np.testing.assert_array_equal(again, arrays[name])


# --------------------------------------------------------------------------- other machines


def test_a_model_for_another_machine_is_saved_not_called(given, tmp_path):
    elsewhere = "x86_64" if Target.host().arch != "x86_64" else "aarch64"
    module = tw.compile(graph.parse(PROGRAM), target=f"{elsewhere}-linux-gnu", threads=1)
    assert module.fallbacks == ("string_split",)
    with pytest.raises(UserError) as caught:
        module(*given)
    assert caught.value.code == "TW3005"
    assert "net_set_foreign" in module.save(tmp_path / "net.h").read_text()


# --------------------------------------------------------------------------- C

MAIN = """
#include <stdio.h>
#include <string.h>
#include "net.h"
/* Handles are places in this table. */
static const char *texts[1][2] = {{"a b", "c"}};
static int64_t counts[2];

static int32_t run(void *context, int32_t part, const DLTensor *const *inputs, int32_t n,
                   const int64_t *sizes, int64_t *told) {
  int64_t handle = *(const int64_t *)inputs[0]->data;
  if (n != 1 || inputs[0]->ndim != 0) return 7;
  ++*(int *)context;
  if (part == 0) return sizes[0] == 2 ? 0 : 7; /* main tells what else it got */
  told[0] = 0;
  for (int i = 0; i < 2; ++i) {
    counts[i] = 1;
    for (const char *c = texts[handle][i]; *c; ++c) counts[i] += *c == ' ';
    if (counts[i] > told[0]) told[0] = counts[i];
  }
  return 0;
}

static int32_t fetch(void *context, int32_t part, const DLTensor *const *outputs, int32_t n) {
  (void)context;
  if (part != 1 || n != 1 || outputs[0]->shape[0] != 2) return 8;
  memcpy(outputs[0]->data, counts, sizeof counts);
  return 0;
}

int main(void) {
  int64_t handle = 0, shape[1] = {2};
  float x[2] = {0.5f, 1.5f}, y[2];
  DLTensor tt = {&handle, {1, 0}, 0, {0, 64, 1}, 0, 0, 0};
  DLTensor tx = {x, {1, 0}, 1, {2, 32, 1}, shape, 0, 0}, ty = tx;
  ty.data = y;
  const DLTensor *args[3] = {&tt, &tx, &ty};
  printf("%d %s\\n", net(args, 3), tw_last_error());
  int called = 0;
  tw_foreign mine = {run, fetch, &called};
  if (net_set_foreign(&mine) || net(args, 3)) return puts(tw_last_error()), 1;
  printf("%d %g %g\\n", called, y[0], y[1]);
  shape[0] = 1;
  printf("%d %s\\n", net(args, 3), tw_last_error());
  net_set_foreign(0);
  printf("%d\\n", net(args, 3));
  return 0;
}
"""
WANT = """14 the sizes of %t has no native code, and no callback is registered to run it
2 2.5 2.5
14 the sizes of %t has no native code, and its callback failed with code 7
14
"""


@pytest.mark.parametrize("kind", ["so", "o"])
def test_a_c_program_runs_parts_by_callbacks(module, tmp_path, kind):
    from tilewright.runtime.sources import FOLDER, runtime_sources

    module.save(tmp_path / f"net.{kind}")
    more = [] if kind == "so" else [f"-I{FOLDER}", *map(str, runtime_sources())]
    (tmp_path / "main.c").write_text(MAIN)
    command = ["cc", "-Wall", "-Werror", "main.c", f"./net.{kind}", *more, "-lm", "-lpthread"]
    subprocess.run([*command, "-o", "main"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "main"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, WANT)


def test_the_header_tells_what_handles_stand_for(module, tmp_path):
    text = module.save(tmp_path / "net.h").read_text()
    assert "t: i64[], a handle of str[n]" in text
    assert "x: f32[n]" in text
    assert "net_set_foreign(const tw_foreign *foreign)" in text


def test_hybrid_modules_come_from_what_a_file_tells(module, saved, given):
    loaded = runtime.load(saved)
    again = hybrid_module(loaded, json.loads(json.dumps(dict(loaded.foreign))))
    assert np.asarray(again(*given)[0]).tolist() == [2.5, 2.5, 5.5]
