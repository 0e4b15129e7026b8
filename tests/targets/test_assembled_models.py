"""Kernels of whole models by NVIDIA's assembler: some of bench/gpu_assemble.py, which has all.

`make assemble-gpu`, and with it `make fuzz`, puts every model of the zoo through it, for both
architectures and all precisions. That takes minutes; here are those with the most kinds of kernels.
"""

import importlib
import sys
from pathlib import Path

import pytest

import tilewright as tw

pytest.importorskip("torch", reason="torch is not installed (extra: torch)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: bench)")
pytest.importorskip("rich", reason="rich is not installed (extra: bench)")
BENCH = Path(__file__).parents[2] / "bench"
# Convolutions as GEMM, attention, GEMV: by wgmma and by mma.sync.
CASES = [
    ("dqn", "sm_90a", "f16"),
    ("dqn", "sm_80", "f16"),
    ("dqn", "sm_90a", "bf16"),
    ("dqn", "sm_90a", "tf32"),
    ("dqn", "sm_80", "int8"),
    ("smallbert", "sm_90a", "f16"),
    ("resnet50", "sm_90a", "f16"),
    ("lstm_lm_step", "sm_90a", "f32"),
]


SHARED = (
    "gpu_assemble",
    "gpu_zoo",
    "models",
    "report",
    "zoo",
    "peers",
)  # of bench, whose other tests load them anew


@pytest.fixture
def assemble(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    for name in SHARED:
        monkeypatch.delitem(sys.modules, name, raising=False)
    made = importlib.import_module("gpu_assemble")
    if made.assembler() is None:
        pytest.skip("ptxas is not installed (extra: ptxas)")
    yield made
    for name in SHARED:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("name", "arch", "precision"), CASES)
def test_the_assembler_finds_no_trouble(assemble, name, arch, precision, tmp_path):
    figures = assemble.figures_of(assemble.assembler(), name, arch, precision, tmp_path)
    functions, trouble, spilled = (figure.value for figure in figures)
    assert functions > 4
    assert (trouble, spilled) == (0, 0)


def test_attention_is_among_what_is_assembled(assemble, tmp_path):
    path = assemble.gpu_zoo.case("smallbert", tmp_path).path
    module = tw.compile(path, target="cuda -arch=sm_90a", precision="f16")
    assert "attention_hopper" in {
        each.rule for kernel in module.program.kernels.values() for each in kernel.decisions
    }


SPILLED = "8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads"


@pytest.mark.parametrize(
    ("ok", "said", "spilled", "trouble"),
    [
        (True, SPILLED, 40, False),
        (True, "Potential Performance Loss: wgmma.mma_async instructions are serialized", 0, True),
        (True, "setmaxnreg ignored to maintain minimum register requirements", 0, True),
        (False, "syntax error", 0, True),
    ],
)
def test_what_the_assembler_says_is_understood(assemble, ok, said, spilled, trouble):
    found = assemble.Assembled("kernel", 1.0, ok, said)
    assert (found.spilled_bytes, found.trouble) == (spilled, trouble)
