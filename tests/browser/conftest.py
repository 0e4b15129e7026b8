"""A browser for the site and for reports: Debian's chromium, driven by Playwright.

The tests skip where either is missing, and say so. Nothing may leave the machine.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
HAS_PLAYWRIGHT = importlib.util.find_spec("playwright") is not None
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser():
    if BROWSER is None or not HAS_PLAYWRIGHT:
        pytest.skip("needs chromium and the package playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def visit(browser):
    """Open a file at a size; the page, which must have been quiet when the test ends."""
    seen: list[str] = []
    contexts = []

    def opened(path: Path, width: int = 1280, height: int = 800, scheme: str = "light"):
        size = {"width": width, "height": height}
        context = browser.new_context(viewport=size, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: message.type == "error" and seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda request: seen.extend(_outside(request.url)))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not seen


def _outside(url: str) -> list[str]:
    return [] if url.startswith(("file:", "data:", "blob:")) else [f"asks for {url}"]
