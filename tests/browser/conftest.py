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


@pytest.fixture(scope="session")
def page(browser):
    """One page for all visits: a process for each, and what it compiles anew, takes two seconds."""
    opened = browser.new_context().new_page()
    opened.set_default_timeout(600_000)
    opened.add_init_script("try { localStorage.clear() } catch { }")  # a colour scheme, say
    return opened


@pytest.fixture
def visit(page):
    """Open a file at a size; the page, which must have been quiet when the test ends."""
    seen: list[str] = []
    heard = {
        "console": lambda message: message.type == "error" and seen.append(message.text),
        "pageerror": lambda error: seen.append(str(error)),
        "request": lambda request: seen.extend(_outside(request.url)),
    }
    for event, note in heard.items():
        page.on(event, note)

    def opened(path: Path, width: int = 1280, height: int = 800, scheme: str = "light"):
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.goto(path.as_uri())
        return page

    yield opened
    page.goto("about:blank")
    for event, note in heard.items():
        page.remove_listener(event, note)
    assert not seen


def _outside(url: str) -> list[str]:
    return [] if url.startswith(("file:", "data:", "blob:")) else [f"asks for {url}"]
