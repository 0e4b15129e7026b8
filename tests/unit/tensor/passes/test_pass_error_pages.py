"""Every error of lowering has a page, and its example raises it."""

import re
from pathlib import Path

import pytest

from tilewright.base.errors import TilewrightError

ROOT = Path(__file__).parents[4]
SOURCES = [
    ROOT / "src/tilewright/base/passes.py",
    *sorted((ROOT / "src/tilewright/tensor/passes").glob("*.py")),
]
CODES = sorted(
    {code for path in SOURCES for code in re.findall(r"\"(TW\d{4})\"", path.read_text())}
)


@pytest.mark.parametrize("code", CODES)
def test_the_example_on_a_page_raises_its_error(code: str) -> None:
    page = (ROOT / f"docs/errors/{code}.md").read_text()
    assert page.startswith(f"# {code}: ")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with pytest.raises(TilewrightError) as caught:
        exec(example, {})
    assert caught.value.code == code


def test_every_page_has_an_error() -> None:
    pages = {path.stem for path in (ROOT / "docs/errors").glob("TW22*.md")}
    assert pages == {code for code in CODES if code.startswith("TW22")}
