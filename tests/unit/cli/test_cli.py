"""The commands, on tiny models: what they print, write and answer."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import numpy_helper, parser
from typer.testing import CliRunner

import tilewright as tw
from tilewright.base.host import host_machine
from tilewright.cli import app
from tilewright.cli.common import write_arrays
from tilewright.cli.ort import SessionRecord, _row
from tilewright.driver import calibrate
from tilewright.frontends.torch.peer import program_run

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[n, 8] x) => (float[n, 4] y) {
  h = MatMul (x, w)
  y = Relu (h)
}"""
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    model = parser.parse_model(TEXT)
    w = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    path = tmp_path_factory.mktemp("cli") / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def invoke(*args, code=0):
    done = CliRunner().invoke(app, [str(arg) for arg in args])
    assert done.exit_code == code, done.output
    return done


def report(*args, code=0):
    return json.loads(invoke(*args, "--json", code=code).stdout)


def test_the_compiler_is_loaded_by_the_commands_that_need_it():
    asked = "import sys, tilewright.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    heavy = ("tilewright.rules", "tilewright.tune", "tilewright.driver.compile", "llvmlite")
    assert not [name for name in done.stdout.split() if name.startswith(heavy)]


def test_compile_says_first_that_it_cannot_write(path, tmp_path, monkeypatch):
    monkeypatch.setattr("tilewright.cli.common.read_module", None)  # nothing is compiled
    assert "TW3032" in invoke("compile", path, "-o", tmp_path / "net.txt", code=1).output
    assert "TW3033" in invoke("compile", path, "-o", tmp_path / "none" / "net.so", code=1).output


@needs_compiler
def test_compile_writes_a_library(path, tmp_path):
    out = tmp_path / "net.so"
    told = report("compile", path, "-o", out)
    assert told["bytes"] == out.stat().st_size
    assert told["fallbacks"] == []
    assert tw.load(out)(np.ones((2, 8), np.float32))[0].shape == (2, 4)
    assert "net.so" in invoke("compile", path, "-o", out, "--without", "fuse").stdout
    assert report("run", out, "--dim", "n=3")["outputs"][0]["shape"] == [3, 4]
    assert report("inspect", out)["kernels"]
    assert "holds only native code" in invoke("run", out, "--check", code=1).stderr


@needs_compiler
def test_compile_saves_dynamic_models_for_gpus(tmp_path):
    path = tmp_path / "net.tw"
    path.write_text("graph @main(%x: f32[n, 8]) { %y = relu(%x) return %y }")
    how = ("compile", path, "--target", "cuda", "-o", tmp_path / "net.so")
    assert "--sizes n=1,8" in " ".join(invoke(*how, code=1).stderr.split())
    assert report(*how, "--sizes", "n=1,8")["bytes"] == (tmp_path / "net.so").stat().st_size
    for words in (["--sizes", "n=a"], ["--sizes", "n=1", "--target", "cpu"]):
        invoke(*how, *words, code=2)


def test_run_checks_against_the_interpreter(path, tmp_path):
    told = report("run", path, "--dim", "n=5", "--check", "--save", tmp_path / "y.npz")
    assert told["outputs"][0]["shape"] == [5, 4]
    assert told["check"][0]["same"]
    with np.load(tmp_path / "y.npz") as stored:
        assert stored["y"].shape == (5, 4)


def test_run_takes_inputs_from_a_file(path, tmp_path):
    x = np.eye(8, dtype=np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    native = report("run", path, "--inputs", tmp_path / "in.npz")
    interpreted = report("run", path, "--inputs", tmp_path / "in.npz", "--interp")
    first = [one["outputs"][0]["first"] for one in (native, interpreted)]
    np.testing.assert_allclose(*first, rtol=1e-5)
    np.savez(tmp_path / "bad.npz", z=x)
    assert "TW6032" in invoke("run", path, "--inputs", tmp_path / "bad.npz", code=1).stderr
    np.save(tmp_path / "one.npy", x)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "in.npz").read_bytes()[:100])
    (tmp_path / "empty.npz").write_bytes(b"")
    for name in ("one.npy", "cut.npz", "empty.npz", "none.npz"):
        assert "TW6030" in invoke("run", path, "--inputs", tmp_path / name, code=1).stderr


def test_arrays_of_any_name_are_saved(tmp_path):
    names = ["file", "a/b", "allow_pickle", "é"]
    arrays = [np.arange(at) for at in range(3)] + [np.float32(1)]
    write_arrays(tmp_path / "all", names, arrays)
    with np.load(tmp_path / "all.npz") as stored:
        assert stored.files == names
        for name, array in zip(names, arrays, strict=True):
            np.testing.assert_array_equal(stored[name], array)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--save"),
        ("bench", "--trace"),
        ("report", "-o"),
        ("bisect", "-o"),
        ("tune", "--html"),
        ("ort", "--report"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_the_work(words, tmp_path):
    command, option = words
    model = tmp_path / "none.onnx"  # would be an error of its own
    said = invoke(command, option, tmp_path / "none" / "file", model, code=1).stderr
    assert "TW6012" in said


def test_run_takes_tensor_functions_too(tmp_path):
    path = tmp_path / "double.tw"
    path.write_text(
        "func @double(%x: f32[n], %y: f32[n]) stage scheduled "
        "{ for %i in 0..n { %y[%i] = %x[%i] * 2 } }"
    )
    told = report("run", path, "--dim", "n=5", "--check")
    assert [one["name"] for one in told["outputs"]] == ["y"]
    assert told["outputs"][0]["shape"] == [5]
    assert told["check"][0]["same"]
    assert report("run", path, "--interp")["outputs"][0]["shape"] == [1]


@pytest.mark.parametrize(
    ("results", "outputs"),
    [
        (lambda y: y, 1),
        (lambda y: (y, y.relu()), 2),
        (lambda y: {"a": y, "b": [y + 1, y * 2]}, 3),
    ],
    ids=["one output", "a tuple", "a dict"],
)
def test_exported_programs_are_run_measured_and_inspected(results, outputs, tmp_path):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x):
            return results(self.layer(x))

    net, x, program = Net().eval(), torch.randn(2, 4), tmp_path / "net.pt2"
    torch.export.save(torch.export.export(net, (x,)), program)
    np.savez(tmp_path / "in.npz", x=x.numpy())
    done = report("run", program, "--check", "--inputs", tmp_path / "in.npz")
    assert [one["same"] for one in done["check"]] == [True] * outputs
    want = [each.detach().reshape(-1) for each in torch.utils._pytree.tree_leaves(net(x))]
    for one, array in zip(done["outputs"], want, strict=True):
        np.testing.assert_allclose(one["first"], array, rtol=1e-5, atol=1e-6)
    measured = report("bench", program, "--seconds", 0, "--peer", "torch")["runs"]
    assert {name: one["calls"] for name, one in measured.items()} == {"tilewright": 3, "torch": 3}
    assert "give the .onnx file" in invoke("bench", program, "--peer", "onnxruntime", code=1).stderr
    assert not report("bisect", program, "-o", tmp_path / "small.tw")["culprit"]
    assert len(report("inspect", program)["outputs"]) == outputs


@pytest.mark.filterwarnings("ignore")  # those of inductor
@needs_compiler
def test_inductor_is_measured_with_arguments_of_any_structure(tmp_path):
    class Net(torch.nn.Module):
        def forward(self, x, scale, *, more):
            return x * scale + more[0].to(x.dtype) + more[1].real

    more = [torch.arange(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.complex64)]
    exported = torch.export.export(Net(), (torch.ones(2, 3), 2), {"more": more})
    torch.export.save(exported, tmp_path / "net.pt2")
    given = [np.ones((2, 3), np.float32), tw.array(more[0]), np.ones((3, 2), np.float32)]
    run = program_run(str(tmp_path / "net.pt2"), given, 1, is_compiled=False)
    torch.testing.assert_close(run(), Net()(torch.ones(2, 3), 2, more=more))
    told = report("bench", tmp_path / "net.pt2", "--seconds", 0, "--peer", "inductor")
    assert told["runs"]["inductor"]["calls"] == 3


@pytest.mark.skipif(find_spec("openvino") is None, reason="no OpenVINO")
def test_openvino_is_measured(path):
    assert report("bench", path, "--seconds", 0, "--peer", "openvino")["runs"]["openvino"]


def test_run_prints_a_table(path):
    assert "(1, 4)" in invoke("run", path, "--check").stdout


def test_bench_tells_times_and_kernels(path, tmp_path):
    told = report("bench", path, "--seconds", "0.01", "--trace", tmp_path / "trace.json")
    assert told["runs"]["tilewright"]["median_ms"] > 0
    assert any("matmul" in one["kernel"] for one in told["kernels"])
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert "median ms" in invoke("bench", path, "--seconds", "0").stdout


def test_inspect_shows_all_of_a_model(path):
    told = report("inspect", path)
    assert told["inputs"] == [{"name": "x", "type": "f32", "shape": ["n", 8]}]
    assert {"import", "passes", "code"} == set(told["timings_s"]["stages"])
    assert "fuse" in told["timings_s"]["passes"]
    assert told["memory"][0]["weights_bytes"] >= 128
    text = invoke("inspect", path, "--nodes").stdout
    assert "memory plan" in text
    assert "fallbacks: none" in text
    name = told["kernels"][0]["kernel"]
    assert f"@{name}" in invoke("inspect", path, "--kernel", name).stdout
    assert "kernel" in invoke("inspect", path, "--graph").stdout
    assert told["placement"] == {"cpu": len(told["kernels"])}
    assert told["products"] == {"integers": 0, "floats": 1}
    assert "GEMMs and convolutions: 0 of integers, 1 of floats" in text
    assert "cpu: %relu = fused(matmul, relu)" in invoke("inspect", path, "--placement").stdout


def test_inspect_shows_a_model_for_a_gpu_where_there_may_be_none(tmp_path):
    path = tmp_path / "net.tw"
    path.write_text("graph @main(%x: f32[n, 8]) { %y = relu(%x) return %y }")
    told = report("inspect", path, "--target", "cuda")
    assert told["placement"] == {"cuda": 1}
    (kernel,) = told["kernels"]
    assert kernel["code_bytes"] > 0
    row, *_ = report("inspect", path, "--target", "cuda", "--schedules")
    assert [each["rule"] for each in row["decisions"]] == ["elementwise"]


def test_inspect_shows_schedules_where_a_model_refuses_random_inputs(tmp_path):
    """A signal of one sample has no window of three."""
    path = tmp_path / "signal.tw"
    path.write_text(
        "graph @main(%x: f32[1, 1, n], %w: f32[1, 1, 3]) {"
        " %y = conv(%x, %w) {strides = (1), pads = (0, 0), dilations = (1)} return %y }"
    )
    refused = invoke("inspect", path, "--schedules")
    assert "--dim NAME=SIZE" in refused.stderr
    assert "conv" in refused.stdout
    timed = report("inspect", path, "--schedules", "--dim", "n=8")
    assert all(row["measured_us"] for row in timed)


def test_inspect_shows_what_was_chosen_and_what_it_was_chosen_from(tmp_path):
    text = """graph @main(%x: f32[1, 4, 8, 8], %w: f32[8, 4, 1, 1]) {
      %y: f32[1, 8, 8, 8] = conv(%x, %w) {strides = (1, 1), pads = (0, 0, 0, 0), dilations = (1, 1)}
      return %y
    }"""
    (tmp_path / "conv.tw").write_text(text)
    (row,) = report("inspect", tmp_path / "conv.tw", "--choices")
    assert (row["pass"], row["what"], row["source"]) == ("assign_layout", "conv", "estimated")
    assert set(row["us"]) == {"channels first", "channels last"} >= {row["chosen"]}
    assert row["chosen"] in invoke("inspect", tmp_path / "conv.tw", "--choices").stdout


HYBRID = """
graph @main(%t: str[n], %x: f32[n]) {
  %words: str[n, k], %count: i64[n] = string_split(%t) {delimiter = " "}
  %c: f32[n] = cast(%count) {to = dtype f32}
  %y: f32[n] = add(%c, %x)
  return %y
}
"""


def test_inspect_shows_what_the_interpreter_runs(tmp_path):
    path = tmp_path / "words.tw"
    path.write_text(HYBRID)
    told = report("inspect", path)
    assert told["placement"] == {"interpreter": 1, "cpu": 1}
    assert told["fallbacks"] == ["string_split"]
    placed = invoke("inspect", path, "--placement").stdout
    assert "interpreter: %words, %count = string_split  // %t is str[n]" in placed
    printed = invoke("inspect", path, "--graph").stdout
    assert "foreign(%t)" in printed
    assert "graph @part1" in printed
    assert "interpreter: 1 nodes" in invoke("inspect", path).stdout


def test_a_saved_model_that_needs_the_interpreter_is_inspected(tmp_path):
    path = tmp_path / "words.tw"
    path.write_text(HYBRID)
    invoke("compile", path, "-o", tmp_path / "words.so")
    told = report("inspect", tmp_path / "words.so")
    assert told["fallbacks"] == ["string_split"]
    assert [one["type"] for one in told["inputs"]] == ["str", "f32"]


def test_targets_are_listed():
    assert any(one["target"] == "wasm32" for one in report("targets"))
    assert "this machine" in invoke("targets").stdout


def test_the_machine_model_of_a_target_is_shown():
    told = report("targets", "x86_64-linux-gnu -mcpu=haswell")["machine"]
    assert (told["source"], told["fma-latency-cycles"]) == ("known", 5)
    shown = invoke("targets", "x86_64-linux-gnu -mcpu=haswell").stdout
    assert "known" in shown
    assert "bytes/cycle" in shown


def test_calibrating_tells_what_is_kept_and_what_is_not(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    found = (
        calibrate.Measurement("l2-bytes-per-cycle", 20.5, 16.0),
        calibrate.Measurement("thread-wake-ns", 1e9, 5000.0),
        calibrate.Measurement("frequency-ghz", float("nan"), 2.6),
    )
    monkeypatch.setattr(calibrate, "calibrate", lambda progress: found)
    try:
        told = report("targets", "--calibrate")
        assert json.loads(Path(told["file"]).read_text()) == {"l2-bytes-per-cycle": 20.5}
        assert [bool(each["refused"]) for each in told["numbers"]] == [False, True, True]
        assert "too noisy to tell" in invoke("targets", "--calibrate").stdout
        assert report("targets", "--calibrate", "--forget") == {"removed": True}
        assert "nothing was measured" in invoke("targets", "--forget").stdout
    finally:
        host_machine.cache_clear()


def test_opt_runs_passes_on_text(tmp_path):
    model = tmp_path / "a.tw"
    model.write_text("graph @main(%x: f32[8]) { %a = exp(%x) %b = neg(%a) return %b }")
    done = invoke("opt", model, "--passes", "fuse", "--dump-after", "all", "--time-passes")
    assert "fused" in done.stdout
    assert "// after fuse" in done.stdout
    assert "total" in done.stderr
    assert (
        report("opt", model, "--passes=fuse{limit = 1}", "--verify-each")["timings_s"]["fuse"] >= 0
    )
    function = tmp_path / "f.tw"
    function.write_text("func @f(%x: f32[4]) stage scheduled { for %i in 0..4 { %x[%i] = 0 } }")
    assert "@f" in invoke("opt", function, "--passes", "remove_no_ops").stdout


def test_bisect_finds_nothing_in_a_right_compiler(path, tmp_path):
    told = report("bisect", path, "-o", tmp_path / "small.tw")
    assert told["culprit"] == ""
    assert told["reproducer"] is None


def test_bisect_runs_no_code_of_another_machine(path, tmp_path):
    how = ("--target", "riscv64-linux-gnu", "-o", tmp_path / "small.tw")
    told = report("bisect", path, *how)
    assert (told["culprit"], told["native"]) == ("", False)
    assert told["steps"]
    assert "riscv64-linux-gnu is not run here" in invoke("bisect", path, *how).stdout
    assert "TW6002" in invoke("bisect", path, "--target", "wasm32", code=1).stderr


def test_the_demo_runs_any_model(path):
    told = report("demo", "--model", path, "--seconds", "0.01")
    assert told["right"]


def test_failures_end_with_1_and_wrong_usage_with_2(tmp_path, path):
    assert "TW1111" in invoke("run", tmp_path / "none.onnx", code=1).stderr
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    assert "TW1112" in invoke("inspect", tmp_path / "bad.onnx", code=1).stderr
    invoke("run", code=2)
    invoke("nonsense", code=2)
    invoke("bench", path, "--peer", "nobody", code=2)
    for dim in ("n", "n=", "n=-1", "n=²"):
        invoke("run", path, "--dim", dim, code=2)
    invoke("tune", path, "--dim", "n=²", code=2)
    assert "known: n" in invoke("run", path, "--dim", "rows=3", code=1).stderr
    written = tmp_path / "stage.onnx"
    for words in (["bisect"], ["inspect", "--onnx", written]):
        assert "TW6003" in invoke(*words, path, "--precision", "f16", code=1).stderr
    assert not written.exists()


# ------------------------------------------------------------------ onnx out, onnxruntime's place


def test_inspect_writes_a_stage_as_onnx(path, tmp_path):
    import onnx

    for stage in ("imported", "canonical", "fused"):
        to = tmp_path / f"{stage}.onnx"
        invoke("inspect", path, "--onnx", to, "--stage", stage)
        onnx.checker.check_model(onnx.load(to))
    invoke("inspect", path, "--onnx", tmp_path / "x.onnx", "--stage", "boiled", code=2)


PROGRAM = """
import sys
import numpy as np
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

session = onnxruntime.InferenceSession(sys.argv[1])
for _ in range(3):
    session.run(None, {"x": np.ones((2, 8), np.float32)})
try:
    onnxruntime.InferenceSession("no such file.onnx")
except Exception as error:
    print(type(error).__name__)
print(onnxruntime.__name__, sys.argv[2:])
sys.exit(int(sys.argv[3]))
"""


def test_a_program_runs_with_onnxruntime_answered(path, tmp_path):
    program, told = tmp_path / "program.py", tmp_path / "told.json"
    program.write_text(PROGRAM)
    options = ("--no-compare", "--report", told)
    done = invoke("ort", *options, program, path, "--flag", 0)
    assert "NoSuchFile" in done.output
    assert "tilewright.ort ['--flag', '0']" in done.output
    good, bad = json.loads(told.read_text())["sessions"]
    assert (good["model"], good["runs"], good["fallbacks"]) == ("net.onnx", 3, [])
    assert "no such file" in bad["error"]
    invoke("ort", "--no-compare", program, path, "--flag", 3, code=3)
    invoke("ort", tmp_path / "nothing.py", code=1)


def test_what_onnxruntime_would_have_taken_is_told(path, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: bench)")
    program, told = tmp_path / "program.py", tmp_path / "told.json"
    program.write_text(PROGRAM)
    invoke("ort", "--report", told, program, path, "--flag", 0)
    good = json.loads(told.read_text())["sessions"][0]
    assert good["theirs_s"] > 0
    assert good["saved_s"] == pytest.approx(3 * (good["theirs_s"] - good["ours_s"]))


def test_a_ratio_is_of_the_two_times_shown_beside_it():
    one = SessionRecord("net.onnx", 0.5, 4, 0.02, ours_s=0.002, theirs_s=0.003)
    assert _row(one) == (
        *("net.onnx", "0.5", "4", "5.00"),
        *("2.00", "3.00", "1.50", "0.00", "nothing"),
    )
