"""The examples in docstrings run as written."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = sorted(path.stem for path in (ROOT / "src/tilewright/te").glob("*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = "tilewright.te" if name == "__init__" else f"tilewright.te.{name}"
    assert doctest.testmod(importlib.import_module(module)).failed == 0
