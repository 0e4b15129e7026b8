"""Nothing is documented that does not exist.

Files, targets of make, options, extras, variables, error codes, names of the package.
"""

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main

sys.path.insert(0, str(Path(__file__).parent))

from pages import DOCS, ROOT, blocks_of

import tilewright as tw
from tilewright.cli import app

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "errors"),
]
FOLDERS = r"(?:src|tests|bench|tools|docs|examples|cmake)"
PATH = re.compile(rf"`({FOLDERS}/[\w./-]+)`")
SCRIPT = re.compile(rf"\bpython ({FOLDERS}/[\w./-]+\.py)")
LINE = re.compile(r"`(tilewright [^`]+)`")
CODE = re.compile(r"\bTW\d{4}\b")
VARIABLE = re.compile(r"\bTILEWRIGHT_[A-Z_]+\b")
EXTRA = re.compile(r"tilewright\[(\w+)\]")
TARGET = re.compile(r"(?:`|^)make ([a-z-]+)", re.MULTILINE)
NAME = re.compile(r"\btw\.([A-Za-z]\w*)")
OPTION = re.compile(r"--[a-z][a-z-]*")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page):
    text = page.read_text(encoding="utf-8")
    made = {block.title for block in blocks_of(page)}  # by the change that a how-to is
    paths = {*PATH.findall(text), *SCRIPT.findall(text)}
    paths |= {f"docs/errors/{code}.md" for code in CODE.findall(text)}
    missing = [name for name in sorted(paths - made) if not (ROOT / name).exists()]
    missing += [f"tw.{name}" for name in NAME.findall(text) if name not in tw.__all__]
    missing += [f"make {name}" for name in TARGET.findall(text) if name not in targets()]
    missing += [f"[{name}]" for name in EXTRA.findall(text) if name not in extras()]
    missing += [name for name in VARIABLE.findall(text) if name not in sources()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_a_page_names_have_these_options(page):
    lines = LINE.findall(page.read_text(encoding="utf-8"))
    for block in blocks_of(page):
        lines += [line for line in block.body.splitlines() if line.startswith("tilewright ")]
    wrong = [line for line in lines if unknown(line)]
    assert not wrong


def unknown(line):
    """The options of a command line that its command does not have, or that there is no command."""
    try:
        words = shlex.split(line.split("#")[0])[1:]
    except ValueError:  # a line that goes on
        words = line.split()[1:]
    command = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        if words[0].startswith("-"):
            break
        name = words.pop(0)
        if name not in command.commands:
            return [name]
        command = command.commands[name]
    if command.name == "ort":  # what follows the program is the program's
        words = words[:1]
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    known |= {"--help"}
    return [w for word in words for w in OPTION.findall(word.split("=")[0])[:1] if w not in known]


def targets():
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def extras():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


_sources: list[str] = []


def sources():
    """All of the package as one text, read once."""
    if not _sources:
        texts = [p.read_text() for p in (ROOT / "src").rglob("*") if p.suffix in (".py", ".c")]
        texts += [p.read_text() for p in (ROOT / "tools" / "site").glob("*.py")]
        texts += [(ROOT / "tests" / "conftest.py").read_text()]
        _sources.append("\n".join(texts))
    return _sources[0]


def test_a_wrong_option_is_noticed():
    assert unknown("tilewright run model.onnx --no-such-thing") == ["--no-such-thing"]
    assert unknown("tilewright fly model.onnx") == ["fly"]
    assert not unknown("tilewright accel explore a.onnx --dsp 220")
