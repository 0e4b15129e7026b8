"""Every block on the pages about internals and decisions is run, or says that it is no program."""

import doctest
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pages import DOCS, blocks_of

PAGES = [*sorted((DOCS / "internals").glob("*.md")), *sorted((DOCS / "decisions").glob("*.md"))]
SHOWN = {"text", "c", "diff"}  # grammars, programs of the IRs, pieces of C
RUN = {"python", "pycon"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_run_or_marked(page):
    for block in blocks_of(page):
        assert block.language in SHOWN | RUN, block.body
        if block.language in RUN:
            assert ">>> " in block.body, block.body


@pytest.mark.parametrize(
    "page", [p for p in PAGES if ">>> " in p.read_text()], ids=lambda page: page.stem
)
def test_a_page_runs(page):
    failed, tried = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert tried
    assert not failed
