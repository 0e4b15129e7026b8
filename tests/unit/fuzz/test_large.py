"""Models of the size of layers are valid, and plans drawn at random enter as recorded ones do."""

import sys
from pathlib import Path

import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "fuzz"))

import drawn_plans
from onnx_random import large, large_case

import tilewright as tw


@pytest.mark.parametrize("seed", range(5))
def test_models_are_valid_under_all_sizes(seed):
    case = large_case(seed)
    onnx.checker.check_model(case.model, full_check=True)
    assert case.model.graph.output
    assert all(len(feeds) == len(case.model.graph.input) for feeds in case.feeds)


def test_kernels_follow_the_plans_that_were_drawn(monkeypatch):
    monkeypatch.setattr(drawn_plans, "LEFT", 0.0)
    source = """graph @main(%x: f32[8, 24], %w: f32[24, 40]) -> (f32[8, 40]) {
      %y = matmul(%x, %w)
      return %y
    }"""
    with drawn_plans.random_plans(3):
        model = tw.compile(tw.graph.parse(source), target="cpu", threads=1)
    (kernel,) = model.inside.program.kernels.values()
    assert kernel.tuned


def test_every_kind_of_kernel_is_drawn():
    seen = {node.op_type for seed in range(60) for node in large_case(seed).model.graph.node}
    wanted = {"Conv", "MatMul", "Softmax", "QLinearConv", "MatMulInteger", "LSTM", "MaxPool"}
    assert wanted <= seen
    assert len(large.KERNELS) == 9
