"""Every error of targets and code generation has a page, and the page's example raises it."""

import re
from pathlib import Path

import pytest

from tilewright.base.errors import TilewrightError

ROOT = Path(__file__).parents[3]
SOURCES = [*(ROOT / "src/tilewright/codegen").rglob("*.py"), ROOT / "src/tilewright/base/target.py"]
CODES = sorted(
    {code for path in SOURCES for code in re.findall(r"TW3\d{3}|TW03\d{2}", path.read_text())}
)


@pytest.mark.parametrize("code", CODES)
def test_example_on_the_page_raises_its_error(code):
    page = (ROOT / f"docs/errors/{code}.md").read_text()
    assert page.startswith(f"# {code}: ")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with pytest.raises(TilewrightError) as caught:
        exec(example, {})
    assert caught.value.code == code


def test_every_page_has_an_error():
    pages = {
        path.stem
        for pattern in ("TW3*.md", "TW03*.md")
        for path in (ROOT / "docs/errors").glob(pattern)
    }
    assert pages == set(CODES)
