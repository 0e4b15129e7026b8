"""tilewright accel, on a small stream."""

import contextlib
import json

import pytest
from typer.testing import CliRunner

from tilewright.accel.build import build_gemm
from tilewright.accel.isa import print_stream
from tilewright.base.geometry import Geometry
from tilewright.cli import app, common


def invoke(*args, code=0):
    done = CliRunner().invoke(app, ["accel", *(str(arg) for arg in args)])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def bars(monkeypatch):
    """What progress bars said, in place of bars."""
    said = []

    @contextlib.contextmanager
    def told(what):
        said.append(what)
        yield lambda stage, count, total: said.append(f"{what}: {stage} {count} of {total}")

    monkeypatch.setattr(common, "progress", told)
    return said


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "gemm.vta"
    path.write_text(print_stream(build_gemm(Geometry(), (4, 2, 4), (2, 1, 2))))
    return path


def test_assembled_streams_are_disassembled(text, tmp_path):
    words = tmp_path / "gemm.bin"
    invoke("asm", text, "-o", words)
    assert invoke("dis", words).stdout == text.read_text()
    invoke("dis", words, "-o", tmp_path / "again.vta")
    assert (tmp_path / "again.vta").read_text() == text.read_text()


def test_streams_are_verified(text):
    assert "no fault found" in invoke("verify", text).stdout
    assert json.loads(invoke("verify", text, "--json").stdout)["ok"] is True
    text.write_text(text.read_text().replace("gemm pop=load,aux", "gemm pop=aux", 1))
    assert "TW70" in invoke("verify", text, code=1).stderr


def test_streams_are_timed_and_traced(text, tmp_path, bars):
    out = tmp_path / "trace.json"
    found = json.loads(invoke("trace", text, "-o", out, "--json").stdout)
    assert found["gemm_steps"] == 4 * 2 * 4
    spans = [one for one in json.loads(out.read_text())["traceEvents"] if one["ph"] == "X"]
    assert max(one["ts"] + one["dur"] for one in spans) == found["cycles"]
    assert f"cycles: {found['cycles']}" in invoke("trace", text).stdout
    assert bars[0] == "verifying gemm.vta"
    assert bars[1].startswith("timing")


def test_the_header_is_that_of_the_geometry(tmp_path):
    assert "#define VTA_BLOCK_IN 16" in invoke("header").stdout
    invoke("header", "--target", "vta-sim -geometry=1x8x16", "-o", tmp_path / "isa.h")
    assert "#define VTA_BLOCK_IN 8" in (tmp_path / "isa.h").read_text()


@pytest.mark.parametrize("command", ["dis", "verify", "trace"])
def test_files_that_are_not_streams_are_refused(command, tmp_path):
    assert "TW6030" in invoke(command, tmp_path / "none", code=1).stderr
    bad = tmp_path / "bad"
    bad.write_bytes(b"{}")
    assert "TW7003" in invoke(command, bad, code=1).stderr
    bad.write_bytes(b"\xff\xfe")
    assert "TW6030" in invoke(command, bad, code=1).stderr


def test_the_rtl_is_written_for_a_geometry(tmp_path):
    told = invoke("rtl", "-o", tmp_path / "rtl", "--target", "vta-rtl -geometry=1x8x16").stdout
    package = (tmp_path / "rtl/vta_pkg.sv").read_text()
    assert "localparam int BLOCK_IN = 8;" in package
    assert "vta_top.sv" in told
    assert (tmp_path / "rtl/vta_top.sv").exists()
    assert "TW7034" in invoke("rtl", "-o", tmp_path, "--target", "vta-rtl -bus=32", code=1).stderr


def test_chips_have_names():
    assert "TW7034" in invoke("report", "--chip", "abacus", code=1).stderr


def test_designs_are_explored_for_models(tmp_path, bars):
    model = tmp_path / "sum.tw"
    model.write_text(
        "graph @main(%x: i8[1, 16, 4, 4], %z: i8[1, 16, 4, 4]) { "
        "%y = quantized_add(%x, %z) {a = 3, b = 4, bias = 0, multiplier = 1073741824, shift = 33} "
        "return %y }"
    )
    drawn = tmp_path / "designs.svg"
    given = ("explore", model, "--dsp", 60, "--bram", 100, "--designs", 3)
    text = invoke(*given, "--confirm", 1, "--plot", drawn).stdout
    assert "sum, Mcycles" in text
    assert "exploring: designs 3 of 3" in bars
    assert "confirming: designs 0 of 1" in bars
    assert drawn.read_text().startswith("<svg")
    found = json.loads(invoke(*given, "--json").stdout)
    assert found["designs"] == 3
    model.write_text("graph @main(%x: f32[2]) { %y = neg(%x) return %y }")
    assert "TW7052" in invoke("explore", model, code=1).stderr


@pytest.mark.parametrize("command", ["asm", "dis", "trace"])
def test_a_file_that_cannot_be_written_is_named(command, text, tmp_path):
    told = invoke(command, text, "-o", tmp_path / "none" / "out", code=1).stderr
    assert "TW6012" in told
    assert "No such file" in told


def test_a_folder_that_cannot_be_made_is_named(text):
    assert "TW6012" in invoke("rtl", "-o", text / "rtl", code=1).stderr
