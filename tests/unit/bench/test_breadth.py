"""What the benchmark of many models keeps of a run, and what it asks for."""

import argparse
import importlib
import math
import sys
import types
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"
OURS = "tilewright"


@pytest.fixture
def breadth(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    names = types.SimpleNamespace(
        NAMES=("a", "b", "c"), QUANTIZED=("b",)
    )  # the real ones need torch
    monkeypatch.setitem(sys.modules, "breadth_models", names)
    yield importlib.import_module("breadth")
    for name in ("breadth", "int8", "journal", "report", "zoo", "peers", "gemm"):
        sys.modules.pop(name, None)


def told(ours, **others):
    times = {peer: [2 * ms, ms] for peer, ms in {OURS: ours, **others}.items()}
    return {"times_ms": times, "failed": {}, "wrong": 0.0, "tolerance": 1e-3}


def options_for(folder, parser_of, *given):
    parser = argparse.ArgumentParser()
    parser_of(parser)
    for name in ("a", "b", "c"):
        (folder / f"{name}.onnx").touch()
        (folder / f"{name}.base.in.npz").touch()
    return parser.parse_args(["--models", str(folder), *given])


def test_the_ratio_is_that_of_the_best_peer(breadth):
    assert breadth.ratio(told(2.0, onnxruntime=3.0, openvino=5.0)) == 1.5
    assert breadth.ratio(told(2.0, onnxruntime=3.0), 1) == 1.5
    assert math.isnan(breadth.ratio({"times_ms": {"onnxruntime": [1.0, 1.0]}}))


def test_figures_are_worst_first_and_name_what_did_not_run(breadth):
    found = {
        "good, f32": told(1.0, openvino=2.0),
        "slow, f32": told(1.0, openvino=0.5),
        "broken, f32": {"times_ms": {"openvino": [1.0, 1.0]}, "failed": {OURS: "why"}},
        "bytes, static": told(1.0, openvino=3.0),
    }
    figures = {each.name: each for each in breadth.figures(found, "f32")}
    assert [name.partition(",")[0] for name in figures][:2] == ["broken", "slow"]
    assert not figures["broken, f32: runs"].ok
    assert not figures["slow, f32: best peer / ours"].ok
    assert figures["geometric mean of 2 cases, f32, best peer / ours"].value == pytest.approx(1.0)
    (mean,) = [each for each in breadth.figures(found, "int8") if "mean" in each.name]
    assert mean.value == pytest.approx(3.0)


def test_kernels_that_no_rule_took_are_counted(breadth):
    found = {"a, f32": told(1.0, openvino=2.0), "b, static": told(1.0, openvino=2.0)}
    found["a, f32"]["fell_back"] = ["sum0: no rule knows what it computes"]
    for precision, count in (("f32", 1), ("int8", 0)):
        figures = {each.name: each for each in breadth.figures(found, precision)}
        figure = figures[f"kernels that no rule took, {precision}"]
        assert (figure.value, figure.ok) == (count, count == 0)


def test_what_a_journal_has_is_not_measured_again(breadth, tmp_path, monkeypatch):
    ran = []

    def outcome(job, options):
        ran.append(job.name)
        if job.name == "a, f32":
            raise RuntimeError("one case")
        return told(1.0, onnxruntime=1.5)

    monkeypatch.setattr(breadth, "outcome", outcome)
    kept = str(tmp_path / "kept.jsonl")
    options = options_for(tmp_path, breadth.arguments, "--journal", kept, "--precisions", "f32")
    first = breadth.measure(options)
    assert sorted(ran) == ["a, f32", "b, f32", "c, f32"]
    assert [each.name for each in first if each.ok is False] == ["models exported", "a, f32: runs"]
    second = options_for(tmp_path, breadth.arguments, "--journal", kept)
    assert len(breadth.measure(second)) > len(first)
    assert sorted(ran[3:]) == ["b, dynamic", "b, static"]


def test_where_a_quantizer_fails_nothing_is_asked_of_us(breadth):
    lost = {"times_ms": {}, "failed": {breadth.QUANTIZER: "why"}, "wrong": 0.0, "tolerance": 1.0}
    found = {"a, static": lost, "b, static": told(1.0, openvino=3.0)}
    names = [each.name for each in breadth.figures(found, "int8")]
    assert not any(name.startswith("a,") for name in names)
    assert "geometric mean of 1 cases, int8, best peer / ours" in names
