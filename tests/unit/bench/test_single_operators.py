"""The models of one operator are valid, and no two have one name."""

import importlib
from collections import Counter
from pathlib import Path

import onnx
import pytest


@pytest.fixture
def cases(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "bench")
    return list(importlib.import_module("single_operator_cases").cases())


def test_models_of_one_operator_are_valid(cases):
    counts = Counter(case.name for case in cases)
    assert [name for name, count in counts.items() if count > 1] == []
    for case in cases:
        model = onnx.load_from_string(case.model())
        onnx.checker.check_model(model, full_check=True)
        ports = model.graph.input
        assert len(ports) == len(case.arrays())
        dims = [dim for port in ports for dim in port.type.tensor_type.shape.dim]
        assert any(dim.dim_param for dim in dims) == case.is_dynamic
