"""Every error code has a page in docs/errors, and the example on the page raises that error."""

import re
from pathlib import Path

import pytest

from tilewright.base.errors import TilewrightError

ROOT = Path(__file__).parents[2]
PAGES = {path.stem: path for path in sorted((ROOT / "docs/errors").glob("TW*.md"))}
RAISED = {
    code
    for path in (ROOT / "src/tilewright").rglob("*.py")
    for code in re.findall(r'"(TW\d{4})"', path.read_text())
}
# No example can show a broken invariant of ours, or the lack of a device that is there.
WITHOUT_EXAMPLE = {code for code, path in PAGES.items() if "```python" not in path.read_text()}


def test_every_code_has_a_page():
    assert not RAISED - PAGES.keys()


def test_every_page_has_a_code():
    assert not PAGES.keys() - RAISED


def test_only_bugs_and_devices_lack_an_example():
    for code in WITHOUT_EXAMPLE:
        text = PAGES[code].read_text()
        assert "bug in Tilewright" in text or "GPU" in text, code


@pytest.mark.parametrize("code", [code for code in PAGES if code not in WITHOUT_EXAMPLE])
def test_the_example_on_a_page_raises_its_error(code):
    page = PAGES[code].read_text()
    assert page.startswith(f"# {code}: ")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    if "import torch\n" in example or ".torch" in example or ".pt2" in example:
        pytest.importorskip("torch")
    with pytest.raises(TilewrightError) as caught:
        exec(example, {})
    assert caught.value.code == code
