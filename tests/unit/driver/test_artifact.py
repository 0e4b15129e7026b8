"""Models as files: saved, loaded, called from C."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph
from tilewright.base.dtype import F32
from tilewright.base.errors import UserError
from tilewright.base.target import Target
from tilewright.codegen.artifact import header
from tilewright.runtime.seal import check_whole
from tilewright.runtime.signature import Param, Signature

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(scope="module")
def saved(module, tmp_path_factory):
    return module.save(tmp_path_factory.mktemp("saved") / "net.so")


def test_a_loaded_model_gives_the_same_bits(module, saved, x):
    loaded = tw.load(saved)
    assert loaded.name == "net"
    assert (loaded.inputs, loaded.outputs) == (module.inputs, module.outputs)
    for threads in (1, 2):
        for got, want in zip(loaded(x, threads=threads), module(x), strict=True):
            np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
    outputs = [np.empty((3, 4), np.float32), np.empty((3, 8), np.float32)]
    loaded(x=x, out=outputs)
    np.testing.assert_array_equal(outputs[0], np.asarray(module(x)[0]))


def test_a_model_saved_over_a_loaded_one_is_what_is_loaded_next(tmp_path):
    path, x, loaded = tmp_path / "net.so", np.ones(3, np.float32), []
    for factor in (2.0, 3.0, 4.0):
        text = "graph @main(%x: f32[3]) { %c = constant() {data = f32[](FACTOR)} %y = mul(%x, %c) "
        module = graph.parse(text.replace("FACTOR", str(factor)) + "return %y }")
        tw.compile(module, threads=1).save(path)
        loaded += [tw.load(path), tw.load(path)]
    made = [float(np.asarray(each(x)[0])[0]) for each in loaded]
    assert made == [2.0, 2.0, 3.0, 3.0, 4.0, 4.0]


def test_a_loaded_model_names_its_kernels_and_checks_its_arguments(saved, x):
    loaded = tw.load(saved)
    assert {event.kernel.split()[0] for event in loaded.profile(x).events}
    assert loaded.arena_bytes >= 0
    with pytest.raises(UserError) as caught:
        loaded(x[:, :3])
    assert caught.value.code == "TW4003"


def test_the_manifest_tells_where_kernels_come_from(saved):
    told = tw.load(saved).manifest["model"]
    assert told["weights_bytes"] >= 8 * 4 * 4
    assert [one["shape"] for one in told["inputs"]] == [["n", 8]]
    assert all(set(one) == {"kernel", "label", "nodes"} for one in told["kernels"])


def test_two_loaded_models_run_side_by_side(module, saved, tmp_path, x):
    first, second = tw.load(saved), tw.load(module.save(tmp_path / "other.so"))
    for one in (first, second, first):
        np.testing.assert_array_equal(np.asarray(one(x)[0]), np.asarray(module(x)[0]))


def test_a_loaded_model_can_be_copied(saved, tmp_path, x):
    copy = tw.load(tw.load(saved).save(tmp_path / "copy.so"))
    assert copy(x)[0].shape == (3, 4)
    with pytest.raises(UserError) as caught:
        copy.save(tmp_path / "copy.o")
    assert caught.value.code == "TW4043"
    with pytest.raises(UserError, match="there is no folder"):
        copy.save(tmp_path / "none" / "copy.so")


def test_loading_a_model_does_not_load_the_compiler(saved):
    program = f"""
import sys, json
import tilewright as tw
tw.load({str(saved)!r})
import tilewright.runtime
tilewright.runtime.load({str(saved)!r})
print(json.dumps(sorted(name for name in sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = json.loads(done.stdout)
    roots = {name.split(".")[0] for name in loaded}
    assert not roots & {"llvmlite", "onnx", "rich", "typer"}
    ours = [name for name in loaded if name.startswith("tilewright.")]
    assert {name.split(".")[1] for name in ours} == {"base", "driver", "runtime"}
    assert {name for name in ours if ".driver" in name} == {
        "tilewright.driver",
        "tilewright.driver.load",
    }


def test_weights_are_mapped_from_the_file(saved):
    loaded = tw.load(saved)
    (address,) = {loaded.library.address("net_constants")}
    assert address
    sections = subprocess.run(
        ["readelf", "-SW", saved], capture_output=True, text=True, check=True
    ).stdout
    line = next(line for line in sections.splitlines() if ".tw_weights" in line)
    assert "PROGBITS" in line
    assert " A " in line  # read only: the pages of the file itself
    assert line.split()[-1] == "64"


@pytest.mark.parametrize("damage", ["cut", "flip", "text"])
def test_damaged_files_are_refused(saved, tmp_path, damage):
    data = bytearray(saved.read_bytes())
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "flip":
        data[len(data) // 3] ^= 1
    else:
        data = bytearray(b"not a library")
    path = tmp_path / "bad.so"
    path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        tw.load(path)
    assert caught.value.code == ("TW4030" if damage == "text" else "TW4033")


def test_a_file_without_its_seal_is_checked_by_its_headers(saved, tmp_path):
    path = tmp_path / "plain.so"
    path.write_bytes(saved.read_bytes()[:-72])
    check_whole(path)
    path.write_bytes(saved.read_bytes()[:-2000])
    with pytest.raises(UserError):
        check_whole(path)


def test_a_model_for_another_processor_is_refused(module, tmp_path, monkeypatch):
    from dataclasses import replace

    features = module.inside.target.features | {"magic"}
    elsewhere = replace(module.inside.target, features=features)
    monkeypatch.setattr(module, "inside", replace(module.inside, target=elsewhere))
    with pytest.raises(UserError) as caught:
        tw.load(module.save(tmp_path / "net.so"))
    assert caught.value.code == "TW4034"
    assert "magic" in caught.value.message


def test_a_failed_link_leaves_nothing(module, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "false")
    with pytest.raises(UserError) as caught:
        module.save(tmp_path / "net.so")
    assert caught.value.code == "TW3031"
    assert os.listdir(tmp_path) == []


def test_a_wrong_suffix_or_folder_is_refused(module, tmp_path):
    for path, code in (("net.txt", "TW3032"), ("none/net.so", "TW3033")):
        with pytest.raises(UserError) as caught:
            module.save(tmp_path / path)
        assert caught.value.code == code


MAIN = """
#include <math.h>
#include <stdio.h>
#include "net.h"
int main(void) {
  float x[24], y[12], z[24];
  for (int i = 0; i < 24; ++i) x[i] = 0.1f * i - 1;
  int64_t in[2] = {3, 8}, out[2] = {3, 4};
  DLTensor tx = {x, {1, 0}, 2, {2, 32, 1}, in, 0, 0}, ty = tx, tz = tx;
  ty.data = y, ty.shape = out, tz.data = z;
  const DLTensor *args[3] = {&tx, &ty, &tz};
  for (int run = 0; run < 2; ++run) {
    if (net(args, 3)) return puts(tw_last_error()), 1;
  }
  for (int i = 0; i < 24; ++i) if (fabsf(z[i] - tanhf(x[i])) > 1e-5f) return 2;
  out[0] = 2;
  if (net(args, 3) == 0) return 3;
  puts(tw_last_error());
  ty.dtype.bits = 64, out[0] = 3;
  if (net(args, 3) == 0) return 4;
  puts(tw_last_error());
  if (net(args, 2) == 0) return 5;
  puts(tw_last_error());
  return 0;
}
"""
WANT = """net: argument y: dimension 0 is 2, expected n = 3
net: argument y: the dtype is f64, expected f32
net: it takes 3 arguments, got 2
"""


def run_c(folder, *inputs):
    (folder / "main.c").write_text(MAIN)
    command = ["cc", "-Wall", "-Werror", "main.c", *inputs, "-lm", "-lpthread", "-o", "main"]
    subprocess.run(command, cwd=folder, check=True)
    done = subprocess.run([folder / "main"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_c_program_runs_a_saved_model_without_python(module, tmp_path):
    module.save(tmp_path / "net.so")
    assert run_c(tmp_path, "./net.so") == WANT
    linked = subprocess.run(["ldd", tmp_path / "main"], capture_output=True, text=True).stdout
    assert "python" not in linked


def test_a_c_program_links_a_saved_object_with_the_runtime(module, tmp_path):
    from tilewright.runtime.sources import FOLDER, runtime_sources

    module.save(tmp_path / "net.o")
    run_c(tmp_path, "net.o", f"-I{FOLDER}", *map(str, runtime_sources()))


def test_the_header_describes_the_arguments(module, tmp_path):
    text = module.save(tmp_path / "net.h").read_text()
    assert "x: f32[n, 8]" in text
    assert "y: f32[n, 4] (output)" in text
    assert os.listdir(tmp_path) == ["net.h"]


def test_names_of_arguments_do_not_end_the_comment_of_a_header(tmp_path):
    param = Param("a */ b\n#error /* c", F32, (2,))
    state = Param("s */", F32, (2,), writable=True, is_state=True)
    told = header((Signature("net", (param, state)),), Target.host(), ("",) * 2, begins=(0,))
    (tmp_path / "net.c").write_text(told)
    check = ["cc", "-Wall", "-Werror", "-fsyntax-only", "-x", "c", tmp_path / "net.c"]
    subprocess.run(check, check=True)
