"""Some of what PyTorch's own tables hold: control flow, modules, examples of export."""

import importlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("expecttest", reason="PyTorch's tables of tests need it")
BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def suites(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module("torch_suites")
    for name in ("torch_suites", "report"):
        sys.modules.pop(name, None)


def entry(suites, suite, name):
    return next(each for each in suites._entries(suite) if each.partition(":")[2] == name)


@pytest.mark.parametrize(
    ("suite", "name"),
    [
        ("flow", "while_loop_stack_output"),
        ("flow", "invoke_quant"),
        ("flow", "cond"),
        ("flow", "invoke_subgraph"),
        ("modules", "Linear"),
        ("modules", "Softplus"),
    ],
)
def test_an_entry_is_right(suites, suite, name):
    assert suites.run_entry((suite, entry(suites, suite, name))) == (suites.RIGHT, "")


def test_an_example_of_export_is_right(suites):
    assert suites.run_entry(("programs", "cond_operands"))[0] == suites.RIGHT
