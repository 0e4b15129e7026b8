"""The examples in docstrings and on the language's page run as written."""

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


def test_the_page_of_the_language():
    page = ROOT / "docs/internals/te.md"
    assert doctest.testfile(str(page), module_relative=False).failed == 0
