"""Every refusal of the primitives on loops and computations has a page that runs."""

import re
from pathlib import Path

import pytest

from tilewright.base.errors import TilewrightError

ROOT = Path(__file__).parents[4]
SOURCES = sorted((ROOT / "src/tilewright/tensor/schedule").glob("*.py"))
CODES = sorted(
    {
        code
        for path in SOURCES
        for code in re.findall(r"TW21(?:0\d|1\d|5\d|6\d|7\d|8\d|9\d)", path.read_text())
    }
)
IN_PYTHON = {"TW2190", "TW2191", "TW2192", "TW2193", "TW2194"}  # tested in test_trace.py


@pytest.mark.parametrize("code", CODES)
def test_example_on_the_page_raises_its_error(code: str) -> None:
    page = (ROOT / f"docs/errors/{code}.md").read_text()
    assert page.startswith(f"# {code}: ")
    assert "\n## What to do\n" in page
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with pytest.raises(TilewrightError) as caught:
        exec(example, {})
    assert caught.value.code == code


@pytest.mark.parametrize("code", [code for code in CODES if code not in IN_PYTHON])
def test_every_refusal_has_a_text_test(code: str) -> None:
    texts = (ROOT / "tests/ir/schedule").glob("*.tw")
    assert any(re.search(rf"// error {code}[ :]", path.read_text()) for path in texts)


def test_every_page_has_a_refusal() -> None:
    pages = {path.stem for path in (ROOT / "docs/errors").glob("TW21*.md")}
    assert {page for page in pages if page < "TW2120" or page > "TW2149"} == set(CODES)
