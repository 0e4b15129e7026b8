"""The examples on the page of operators run as written."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/internals/operators.md"


def test_the_page_of_operators():
    assert doctest.testfile(str(PAGE), module_relative=False).failed == 0
