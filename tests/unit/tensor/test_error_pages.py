"""Every error of the verifier and the interpreter has a page, and its example raises it."""

import re
from pathlib import Path

import pytest

from tilewright.base.errors import TilewrightError

ROOT = Path(__file__).parents[3]
TENSOR = ROOT / "src/tilewright/tensor"
SOURCES = [
    TENSOR / "calls.py",
    TENSOR / "intrin.py",
    TENSOR / "verify.py",
    *sorted((TENSOR / "interp").glob("*.py")),
]
CODES = sorted(
    {code for path in SOURCES for code in re.findall(r"\"(TW2[03]\d{2})\"", path.read_text())}
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
    pages = {path.stem for path in (ROOT / "docs/errors").glob("TW2[03]*.md")}
    assert pages == set(CODES)
