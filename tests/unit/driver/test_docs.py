"""The examples on the page of placement run as written."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/internals/placement.md"


def test_the_page_of_placement():
    assert doctest.testfile(str(PAGE), module_relative=False).failed == 0
