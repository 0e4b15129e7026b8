"""What the benchmarks of whole models make of their measurements."""

import importlib
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    names = ("zoo", "compile", "ablation", "peers", "report", "gemm")
    yield lambda name: importlib.import_module(name)
    for name in names:
        sys.modules.pop(name, None)


def test_cases_are_found_beside_their_models(bench, tmp_path):
    zoo = bench("zoo")
    for name in ("a.onnx", "b.onnx", "c.onnx"):
        (tmp_path / name).touch()
    for name in ("a.base.in.npz", "b.s1.in.npz", "b.s2.in.npz", "a.base.ref.npz"):
        (tmp_path / name).touch()
    names = [case.name for case in zoo.cases_of(tmp_path, None)]
    assert names == ["a", "b.s1", "b.s2"]
    assert [case.name for case in zoo.cases_of(tmp_path, ["b"])] == ["b.s1", "b.s2"]


def test_the_ratio_is_that_of_the_best_peer(bench):
    zoo = bench("zoo")
    case = zoo.Case("a", Path("a.onnx"), Path("a.npz"))
    times = {"onnxruntime": [4.0, 5.0, 6.0], "openvino": [3.0, 3.0, 9.0], "tilewright": [2.0]}
    result = zoo.Result(case, 1, times, {"tilewright": 1e-6})
    assert (result.ratio, result.ratio_of_least) == (1.5, 1.5)
    figures = {one.name: one for one in zoo.figures([result])}
    assert figures["geometric mean, best peer / ours"].ok
    assert math.isnan(zoo.Result(case, 1, {"tilewright": [2.0]}).ratio)


def test_kernels_that_no_rule_took_are_counted(bench, capsys):
    zoo = bench("zoo")
    case = zoo.Case("a", Path("a.onnx"), Path("a.npz"))
    told = {"times": {"tilewright": [2.0]}, "wrong": {"tilewright": 0.0}}
    good = zoo.Result(case, 1, **told)
    bad = zoo.Result(case, 2, **told, fell_back=["sum0: no rule knows what"])
    for results, count in (([good], 0), ([good, bad], 1)):
        (figure,) = [each for each in zoo.figures(results) if "no rule" in each.name]
        assert (figure.value, figure.ok) == (count, count == 0)
    zoo.show([bad], ["tilewright"])
    assert "a: no rule: sum0: no rule knows what" in capsys.readouterr().out


def test_kernels_are_held_against_what_is_attainable(bench, capsys):
    zoo = bench("zoo")
    case = zoo.Case("a", Path("a.onnx"), Path("a.npz"))
    slow = {"kernel": "conv_relu slow", "ms": 8.0, "flops": 3000, "bytes": 10}
    others = [
        {"kernel": "matmul fast", "ms": 3.0, "flops": 3000, "bytes": 10},
        {"kernel": "softmax", "ms": 2.0, "flops": 1, "bytes": 1},
        {"kernel": "tiny", "ms": 0.1, "flops": 1, "bytes": 1},
    ]
    roof = zoo.Roof([], 1000.0, 1000.0)
    for ms in (8.0, 6.0, 7.0):  # the least counts
        roof.add([slow | {"ms": ms}, *others])
    worst, share = zoo.roofline(zoo.Result(case, 1, {"tilewright": [9.0]}), roof)
    assert (worst.value, worst.ok) == (0.5, False)
    assert share.value == 3.0 / (3.0 + 6.0)
    printed = capsys.readouterr().out
    assert printed.index("softmax") < printed.index("slow") < printed.index("fast")
    assert "tiny" not in printed


def test_the_peak_is_one_of_multiply_adds(bench, tmp_path):
    gemm = bench("gemm")
    kernel = tw.build(gemm.peak_kernel(), "x86_64-linux-gnu -mcpu=skylake-avx512")
    path = kernel.save(tmp_path / "peak.s")
    assert path.read_text().count("vfmadd") == gemm.ACCUMULATORS


def test_losses_of_an_optimization_are_told(bench):
    ablation = bench("ablation")
    results = {"a": {"": 1.0, "fuse": 2.0}, "b": {"": 1.0, "fuse": 0.5}}
    mean, least = ablation._figures(results, ["fuse", "absent"])
    assert mean.value == 1.0
    assert (least.name, least.ok) == ("fuse: least, b", False)
    assert "fuse" in ablation.optimizations()


def test_a_contender_runs_in_a_process_of_its_own(bench, tmp_path):
    peers = bench("peers")
    from onnx import parser

    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg (x) }'
    (tmp_path / "a.onnx").write_bytes(parser.parse_model(text).SerializeToString())
    np.savez(tmp_path / "a.npz", x=np.ones(2, np.float32))
    contender = peers.Contender("tilewright", tmp_path / "a.onnx", tmp_path / "a.npz", 1)
    try:
        assert contender.loaded["peak_mb"] > 1
        assert len(contender.ask("run 0")["times_ms"]) == 1
        assert contender.ask("profile")["kernels"]
        contender.ask(f"outputs {tmp_path / 'out.npz'}")
        with np.load(tmp_path / "out.npz") as stored:
            np.testing.assert_array_equal(stored["0"], -np.ones(2))
    finally:
        contender.stop()
    with pytest.raises(RuntimeError):
        peers.Contender("tilewright", tmp_path / "none.onnx", tmp_path / "a.npz", 1)
