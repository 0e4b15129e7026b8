"""Every error of the integer layer has a page, and the page's example raises it."""

import re
from pathlib import Path

import pytest

from tilewright.base.errors import TilewrightError

ROOT = Path(__file__).parents[3]
CODES = sorted(
    {
        code
        for path in (ROOT / "src/tilewright/sym").glob("*.py")
        for code in re.findall(r"TW01\d{2}", path.read_text())
    }
)
NEVER_THE_USERS_FAULT = {"TW0107"}


@pytest.mark.parametrize("code", CODES)
def test_example_on_the_page_raises_its_error(code: str) -> None:
    page = (ROOT / f"docs/errors/{code}.md").read_text()
    assert page.startswith(f"# {code}: ")
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == (0 if code in NEVER_THE_USERS_FAULT else 1)
    for example in examples:
        with pytest.raises(TilewrightError) as caught:
            exec(example, {})
        assert caught.value.code == code


def test_every_page_has_an_error() -> None:
    assert {path.stem for path in (ROOT / "docs/errors").glob("TW01*.md")} == set(CODES)
