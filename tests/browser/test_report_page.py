"""Reports in a browser: clicks, keys, contrast, small screens, large graphs."""

import importlib.util
import time

import pytest

from tilewright import graph
from tilewright.cli.common import random_inputs
from tilewright.report import collect, write_page
from tilewright.report.collect import Box, Report

NET = """
graph @main(%x: f32[8, 16], %w: f32[16, 32]) {
  %a = matmul(%x, %w)
  %b = relu(%a)
  %c = softmax(%b) {axes = (1,)}
  %d = add(%c, %b)
  return %d
}
"""
MANY = 5000


@pytest.fixture(scope="module")
def path(browser, tmp_path_factory):
    told = collect(
        graph.parse(NET), lambda m: random_inputs(m.inputs, {}), name="net <&>", threads=1
    )
    return write_page(told, tmp_path_factory.mktemp("report") / "report.html", told)


def test_a_click_shows_the_kernel_down_to_assembly(visit, path):
    page = visit(path)
    page.click(".box.kernel >> nth=0")
    page.wait_for_selector("aside pre")
    assert "func @" in page.inner_text("aside pre")
    page.click("[data-stage=assembly]")
    assert page.inner_text("aside pre").strip()
    assert "func @" not in page.inner_text("aside pre")


def test_the_keyboard_alone_reaches_everything(visit, path):
    page = visit(path)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "tab-graph"
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.is_visible("#memory")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('kernel')"):
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("aside pre")
    assert page.evaluate("document.activeElement.id") == "detail"


def test_every_part_opens_and_no_page_scrolls_sideways(visit, path):
    for width in (1280, 390):
        page = visit(path, width)
        for tab in page.query_selector_all(".tabs [role=tab]"):
            tab.click()
            assert page.is_visible(f"#{tab.get_attribute('aria-controls')}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.click("#tab-graph")
        page.click(".box.kernel >> nth=0")
        page.wait_for_selector("aside pre")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_finding_marks_what_does_not_match(visit, path):
    page = visit(path)
    page.fill("#find", "softmax")
    page.wait_for_function("document.getElementById('found').textContent.endsWith('found')")
    assert page.query_selector(".box.miss")
    assert page.query_selector(".box.kernel:not(.miss)")


@pytest.mark.skipif(
    importlib.util.find_spec("axe_playwright_python") is None, reason="no axe-playwright-python"
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_and_roles_pass_axe(visit, path, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = visit(path)
    page.emulate_media(color_scheme=scheme)
    page.click(".box.kernel >> nth=0")
    page.wait_for_selector("aside pre")
    options = {"runOnly": ["wcag2a", "wcag2aa"]}
    found = Axe().run(page, options=options).response["violations"]
    assert not [(each["id"], [n["html"][:160] for n in each["nodes"][:3]]) for each in found]


def test_a_graph_of_five_thousand_nodes_opens_soon(visit, tmp_path):
    boxes = [Box(f"node {at}", "kernel", (), (), (), (), 1e3, 1, 1) for at in range(MANY)]
    edges = [(at, at + 1, "f32[8]") for at in range(MANY - 1)]
    edges += [(at, at + 5, "f32[8]") for at in range(0, MANY - 5, 7)]
    origin = dict.fromkeys(("model", "processor", "threads"), "made up")
    told = Report(
        origin, (), (), (), (1e6,), tuple(boxes), tuple(edges), {}, peak_gflops=80, peak_gbytes=20
    )
    path = write_page(told, tmp_path / "large.html")
    begun = time.perf_counter()
    page = visit(path)
    page.wait_for_selector(f"#box-{MANY - 1}", state="attached")
    assert page.query_selector("#view").get_attribute("transform")
    assert time.perf_counter() - begun < 15  # 3 s on an idle machine
