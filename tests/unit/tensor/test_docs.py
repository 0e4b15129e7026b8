"""The examples on the pages about the loop IR and its schedules run."""

import doctest
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[3] / "docs/internals"


@pytest.mark.parametrize("name", ["tensor", "intrinsics", "loops-and-blocks", "moving-blocks"])
def test_the_page_runs(name: str) -> None:
    result = doctest.testfile(str(PAGES / f"{name}.md"), module_relative=False)
    assert result.attempted
    assert not result.failed
