"""The page about integers runs."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/internals/integers.md"


def test_examples_give_what_the_page_says() -> None:
    failed, attempted = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert attempted > 10
    assert failed == 0
