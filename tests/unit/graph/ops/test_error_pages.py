"""Every refusal of these operators has a page, and the page's example raises it."""

import re
from pathlib import Path

import pytest

from tilewright.base.errors import TilewrightError

ROOT = Path(__file__).parents[4]
CODES = sorted(
    {
        code
        for path in (ROOT / "src/tilewright/graph/ops").glob("*.py")
        for code in re.findall(r"TW12\d{2}", path.read_text())
    }
)


@pytest.mark.parametrize("code", [*CODES, "TW1013", "TW1014", "TW1015", "TW1016"])
def test_example_on_the_page_raises_its_error(code):
    page = (ROOT / f"docs/errors/{code}.md").read_text()
    assert page.startswith(f"# {code}: ")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with pytest.raises(TilewrightError) as caught:
        exec(example, {})
    assert caught.value.code == code


def test_every_page_has_an_error():
    pages = {path.stem for path in (ROOT / "docs/errors").glob("TW12*.md")}
    assert pages == set(CODES)


def test_every_code_is_tested_with_its_message():
    tests = (path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert set(CODES) <= set(re.findall(r"TW12\d{2}", "".join(tests)))
