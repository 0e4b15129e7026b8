"""The index of errors, and on every page the message as it is printed: its example is run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from sources import digest

DOCS = Path(__file__).resolve().parents[2] / "docs" / "errors"
EXAMPLE = re.compile(r"```python\n(.*?)```\n", re.DOTALL)
TITLE = re.compile(r"# (TW\d{4}): (.*)")
GROUPS = {
    "0": "Types, targets, symbolic integers, programs as text",
    "1": "Models: import, operators, passes",
    "2": "Tensor expressions, the loop IR, schedules",
    "3": "Code generation",
    "4": "The runtime",
    "5": "Tuning",
    "6": "The driver and the command line",
    "7": "Accelerators",
    "8": "Serving",
    "9": "Reports and tools",
}


def _pages() -> dict[str, str]:
    """code -> what it says."""
    found = {}
    for path in sorted(DOCS.glob("TW*.md")):
        match = TITLE.match(path.read_text(encoding="utf-8"))
        if match is None:
            raise RuntimeError(f"{path.name} does not begin with its code")
        found[match[1]] = match[2]
    return found


def _groups() -> Iterable[tuple[str, dict[str, str]]]:
    pages = _pages()
    for digit, name in GROUPS.items():
        inside = {code: text for code, text in pages.items() if code[2] == digit}
        if inside:
            yield name, inside


def nav() -> list[object]:
    groups = [
        {name: [{code: f"errors/{code}.md"} for code in inside]} for name, inside in _groups()
    ]
    return ["errors/index.md", *groups]


def index() -> str:
    lines = [
        "# Errors\n",
        "Every error of Tilewright carries a code. Its page says what is wrong, shows a program"
        " that raises it with the message as printed, what to do, and the program mended. Tests run"
        " both.\n",
    ]
    for name, inside in _groups():
        lines.append(f"\n## {name}\n\n| code | |\n|---|---|")
        lines += [f"| [{code}]({code}.md) | {text} |" for code, text in inside.items()]
    return "\n".join(lines) + "\n"


def with_message(markdown: str, folder: Path) -> str:
    """The page with what its example prints below it."""
    found = EXAMPLE.search(markdown)
    if found is None:
        return markdown
    message = messages(folder).get(found[1])
    if message is None:  # on this machine; tests/errors demands that every example raises
        return markdown
    shown = f"\nPrinted:\n\n```text\n{message}\n```\n"
    return markdown[: found.end()] + shown + markdown[found.end() :]


@cache
def messages(folder: Path) -> dict[str, str]:
    """example -> message. Each is run once for a state of the sources."""
    examples = [
        found[1]
        for path in sorted(DOCS.glob("TW*.md"))
        if (found := EXAMPLE.search(path.read_text(encoding="utf-8")))
    ]
    text = json.dumps(examples)
    path = folder / f"errors-{hashlib.sha256((text + digest()).encode()).hexdigest()[:16]}.json"
    if not path.exists():
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("run_errors.py"))],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": str(DOCS.parents[1] / "src")},
        )
        path.write_text(done.stdout.splitlines()[-1], encoding="utf-8")
    return dict(zip(examples, json.loads(path.read_text(encoding="utf-8")), strict=True))
