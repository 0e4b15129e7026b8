"""The site in a browser: search, keys, contrast, small screens, nothing from elsewhere.

Needs `make docs`.
"""

import importlib.util
from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "site"
PAGES = (
    "index",
    "guides/getting-started",
    "guides/coming-from",
    "tutorials/matmul",
    "tutorials/miniature",
    "howto/operator",
    "reference/api/models",
    "reference/api/primitives",
    "reference/cli",
    "reference/operators",
    "reference/packages",
    "reference/changelog",
    "errors/index",
    "errors/TW2304",
    "glossary",
    "internals/schedules",
    "decisions/0008-documentation-site",
)
LOOKED_AT = ("index", "guides/coming-from", "tutorials/matmul", "reference/cli", "errors/TW2304")
needs_axe = pytest.mark.skipif(
    importlib.util.find_spec("axe_playwright_python") is None, reason="no axe-playwright-python"
)


@pytest.fixture(autouse=True)
def _built():
    if not (SITE / "index.html").exists():
        pytest.skip("the site is not built: make docs")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_and_does_not_scroll_sideways(visit, name):
    page = visit(SITE / f"{name}.html", 1280)
    assert page.inner_text("h1")
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_page_opens_on_a_small_screen(visit):
    page = visit(SITE / "index.html", 390)
    assert page.inner_text("h1")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_search_finds_dynamic_shapes_in_pages_opened_as_files(visit):
    page = visit(SITE / "index.html")
    page.click(".md-search__input")
    page.keyboard.type("dynamic shapes", delay=20)
    page.wait_for_selector(".md-search-result__item")
    found = page.inner_text(".md-search-result__list")
    assert "Dynamic shapes" in found


def test_the_keyboard_alone_searches_and_opens_what_is_found(visit):
    page = visit(SITE / "index.html")
    page.keyboard.press("/")
    page.keyboard.type("dynamic shapes", delay=20)
    page.wait_for_selector(".md-search-result__item")
    for _ in range(4):
        page.keyboard.press("ArrowDown")
        if "dynamic-shapes" in page.evaluate("document.activeElement.href || ''"):
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/guides/dynamic-shapes.html**")


def test_the_keyboard_alone_reaches_every_link_of_a_page(visit):
    page = visit(SITE / "index.html")
    shown = """[...document.querySelectorAll('a[href], button, input')].filter(
        e => e.checkVisibility() && e.tabIndex >= 0 && e.getClientRects().length)"""
    wanted = page.evaluate(f"{shown}.filter(e => e.closest('.md-content, .md-tabs')).length")
    reached = set()
    for _ in range(250):
        page.keyboard.press("Tab")
        at = page.evaluate(f"{shown}.indexOf(document.activeElement)")
        inside = page.evaluate("!!document.activeElement.closest('.md-content, .md-tabs')")
        if inside and at in reached:
            break
        if inside:
            reached.add(at)
    assert len(reached) >= wanted > 10


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", LOOKED_AT)
def test_contrast_passes_axe(visit, name, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = visit(SITE / f"{name}.html", scheme=scheme)
    wanted = {"light": "default", "dark": "slate"}[scheme]
    assert page.get_attribute("body", "data-md-color-scheme") == wanted
    options = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
    found = Axe().run(page, options=options).response["violations"]
    assert not [n["html"][:120] for each in found for n in each["nodes"]]
