"""Every refusal of the primitives that move blocks and buffers has a page that runs."""

import re
from pathlib import Path

import pytest

from tilewright.base.errors import ScheduleError

ROOT = Path(__file__).parents[4]
CODES = [f"TW{number}" for number in range(2120, 2149)]


@pytest.mark.parametrize("code", CODES)
def test_example_on_the_page_raises_its_error(code):
    page = (ROOT / f"docs/errors/{code}.md").read_text()
    assert page.startswith(f"# {code}: ")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with pytest.raises(ScheduleError) as caught:
        exec(example, {})
    assert caught.value.code == code
    assert caught.value.excerpt is not None
    assert caught.value.context.startswith("@f")


@pytest.mark.parametrize("code", CODES)
def test_every_refusal_has_a_text_test(code):
    texts = (ROOT / "tests/ir/schedule").glob("*.tw")
    assert any(f"// error {code} " in path.read_text() for path in texts)


def test_no_refusal_is_without_a_page():
    sources = (ROOT / "src/tilewright/tensor/schedule").glob("*.py")
    named = {code for path in sources for code in re.findall(r"TW21[234]\d", path.read_text())}
    assert named == set(CODES)
