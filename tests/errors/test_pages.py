"""Every error code has a page in docs/errors: a program that raises it, and the program mended.

Both are run. The site adds the message as it is printed (tools/site/errors.py).
"""

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
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
EXTRAS = {
    "torch": ("import torch\n", ".torch", ".pt2"),
    "onnxruntime": ("import onnxruntime_run",),
    "PIL": ("import drawn",),
    "transformers": ("from transformers import",),
}


def test_every_code_has_a_page():
    assert not RAISED - PAGES.keys()


def test_every_page_has_a_code():
    assert not PAGES.keys() - RAISED


def blocks_of(code):
    """The broken program of a page and the mended one; skipped where an extra is not installed."""
    text = PAGES[code].read_text()
    assert text.startswith(f"# {code}: ")
    first, _, rest = text.partition("\n## What to do\n")
    (broken,), (mended,) = BLOCK.findall(first), BLOCK.findall(rest)
    for package, marks in EXTRAS.items():
        if any(mark in broken + mended for mark in marks):
            pytest.importorskip(package)
    return broken, mended


@pytest.mark.parametrize("code", PAGES)
def test_the_broken_program_on_a_page_raises_its_error(code):
    broken, _ = blocks_of(code)
    with pytest.raises(TilewrightError) as caught:
        exec(broken, {})
    assert caught.value.code == code


HAVE_RUN = set()  # some pages have the same mended program


@pytest.mark.parametrize("code", PAGES)
def test_the_mended_program_on_a_page_runs(code, tmp_path, monkeypatch):
    _, mended = blocks_of(code)
    if mended in HAVE_RUN:
        return
    monkeypatch.chdir(tmp_path)
    exec(mended, {})
    assert not list(tmp_path.iterdir())  # it leaves nothing behind
    HAVE_RUN.add(mended)
