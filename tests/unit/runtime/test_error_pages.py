"""Every error of the runtime has a page, and the page's example raises it."""

import re
from pathlib import Path

import pytest

from tilewright.base.errors import TilewrightError

ROOT = Path(__file__).parents[3]
CODES = sorted(
    {
        code
        for path in (ROOT / "src/tilewright/runtime").glob("*.py")
        for code in re.findall(r"TW4\d{3}", path.read_text())
    }
)


@pytest.mark.parametrize("code", CODES)
def test_example_on_the_page_raises_its_error(code):
    page = (ROOT / f"docs/errors/{code}.md").read_text()
    assert page.startswith(f"# {code}: ")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with pytest.raises(TilewrightError) as caught:
        exec(example, {})
    assert caught.value.code == code
