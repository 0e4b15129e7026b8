"""Reports of real models in a browser: clicks, keys, contrast, small screens, large graphs."""

import importlib.util
import sys
from pathlib import Path

import pytest

from tilewright.cli.common import random_inputs
from tilewright.report import collect, write_page
from tilewright.report.collect import Box, Report

sys.path.insert(0, str(Path(__file__).parent))

from page_models import bert, control_flow, mobilenet_v2

MODELS = {"mobilenet_v2": mobilenet_v2, "bert": bert, "control_flow": control_flow}
LARGEST_BYTES = 5_000_000
MANY = 5000


@pytest.fixture(scope="module", params=MODELS)
def path(request, browser, tmp_path_factory):
    """A model's report, compared with itself."""
    told = collect(
        MODELS[request.param](),
        lambda m: random_inputs(m.inputs, {}),
        name=f"{request.param} <&>",
        threads=1,
    )
    return write_page(told, tmp_path_factory.mktemp("report") / f"{request.param}.html", told)


def test_a_report_is_small(path):
    assert path.stat().st_size < LARGEST_BYTES


def test_a_click_on_any_node_shows_its_kernel_down_to_assembly(visit, path):
    page = visit(path)
    boxes = page.locator(".box.kernel")
    for at in {0, boxes.count() // 2, boxes.count() - 1}:
        boxes.nth(at).dispatch_event("click")
        page.wait_for_selector("aside pre")
        assert "func @" in page.inner_text("aside pre")
        page.click("[data-stage=assembly]")
        assembly = page.inner_text("aside pre")
        assert "func @" not in assembly
        assert "ret" in assembly


def test_the_keyboard_alone_reaches_everything(visit, path):
    page = visit(path)
    reached, kernels = set(), page.locator(".box.kernel").count()
    names = [tab.get_attribute("id") for tab in page.query_selector_all(".tabs [role=tab]")]
    page.keyboard.press("Tab")
    for name in names:  # arrows go through the tabs, and every part is shown
        assert page.evaluate("document.activeElement.id") == name
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.id") == names[0]
    for _ in range(kernels + 40):
        page.keyboard.press("Tab")
        what = page.evaluate("document.activeElement.id")
        if what in reached and what.startswith("box-"):
            break
        reached.add(what)
    assert sum(each.startswith("box-") for each in reached) >= kernels
    page.locator(".box.kernel").first.focus()
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
    page.fill("#find", page.text_content(".box.kernel text").split()[0])
    page.wait_for_function("document.getElementById('found').textContent.endsWith('found')")
    assert page.query_selector(".box.kernel:not(.miss)")
    page.fill("#find", "no such thing")
    page.wait_for_function("document.getElementById('found').textContent.startsWith('0')")
    assert page.query_selector(".box.miss")


@pytest.mark.skipif(
    importlib.util.find_spec("axe_playwright_python") is None, reason="no axe-playwright-python"
)
def test_contrast_and_roles_pass_axe(visit, path):
    from axe_playwright_python.sync_playwright import Axe

    page = visit(path)
    page.click(".box.kernel >> nth=0")
    page.wait_for_selector("aside pre")
    # Roles are the same in the dark: there colours alone are looked at.
    everything = {"type": "tag", "values": ["wcag2a", "wcag2aa"]}
    colours = {"type": "rule", "values": ["color-contrast"]}
    for scheme, chosen in (("light", everything), ("dark", colours)):
        page.emulate_media(color_scheme=scheme)
        found = Axe().run(page, options={"runOnly": chosen}).response["violations"]
        assert not [(each["id"], [n["html"][:160] for n in each["nodes"][:3]]) for each in found]


def test_a_graph_of_five_thousand_nodes_draws_what_is_in_view(visit, tmp_path):
    boxes = [Box(f"node {at}", "kernel", (), (), (), (), 1e3, 1, 1) for at in range(MANY)]
    edges = [(at, at + 1, "f32[8]") for at in range(MANY - 1)]
    edges += [(at, at + 5, "f32[8]") for at in range(0, MANY - 5, 7)]
    origin = dict.fromkeys(("model", "processor", "threads"), "made up")
    told = Report(
        origin, (), (), (), (1e6,), tuple(boxes), tuple(edges), {}, peak_gflops=80, peak_gbytes=20
    )
    path = write_page(told, tmp_path / "large.html")
    page = visit(path)
    page.wait_for_selector(f"#box-{MANY - 1}", state="attached")
    assert page.query_selector("#view").get_attribute("transform")
    page.wait_for_selector("#box-0 text")  # those in view have their text
    assert page.query_selector(f"#box-{MANY - 1} text") is None
