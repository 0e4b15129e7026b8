"""The examples on the page about the loop IR run."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/internals/tensor.md"


def test_the_page_runs() -> None:
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted
    assert not result.failed
