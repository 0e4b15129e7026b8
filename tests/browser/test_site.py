"""The site in a browser: search, small screens, nothing from elsewhere. Needs `make docs`."""

import importlib.util
from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "site"
PAGES = ("index", "guides/getting-started", "tutorials/matmul", "reference/cli", "errors/TW2304")


@pytest.fixture(autouse=True)
def _built():
    if not (SITE / "index.html").exists():
        pytest.skip("the site is not built: make docs")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_and_does_not_scroll_sideways(visit, name, width):
    page = visit(SITE / f"{name}.html", width)
    assert page.inner_text("h1")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_search_finds_dynamic_shapes_in_pages_opened_as_files(visit):
    page = visit(SITE / "index.html")
    page.click(".md-search__input")
    page.keyboard.type("dynamic shapes", delay=20)
    page.wait_for_selector(".md-search-result__item")
    found = page.inner_text(".md-search-result__list")
    assert "Dynamic shapes" in found


@pytest.mark.skipif(
    importlib.util.find_spec("axe_playwright_python") is None, reason="no axe-playwright-python"
)
def test_contrast_passes_axe(visit):
    from axe_playwright_python.sync_playwright import Axe

    page = visit(SITE / "guides/dynamic-shapes.html")
    options = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
    found = Axe().run(page, context=".md-content", options=options).response["violations"]
    assert not [n["html"][:120] for each in found for n in each["nodes"]]
