"""Tutorials: Python files that are run, and pages made of their text, code, output and pictures.

A file is cut at comments that begin a line after an empty one: those are text, in Markdown. What
the code between them prints stands below it, and so does every .svg file that it writes into the
current folder. A trailing block under `if __name__` is for running the file by hand.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sources import digest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "tutorials"
# In the order they are read.
ORDER = (
    "matmul",
    "blur",
    "convolution",
    "softmax",
    "tensorize",
    "gpu_race",
    "accelerator",
    "model_to_c",
    "graph_pass",
    "miniature",
    "miniature_measured",
)
SECONDS = 120


@dataclass
class Cell:
    """Text, or code with what it printed and drew."""

    kind: str
    source: str
    output: str = ""
    pictures: list[str] = field(default_factory=list)


def cells_of(source: str) -> list[Cell]:
    """The text and code of a file, in order."""
    found: list[Cell] = []
    for block in _blocks(source):
        is_text = all(line.startswith("#") for line in block)
        if is_text:
            text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in block)
            found.append(Cell("text", text))
        elif found and found[-1].kind == "code":
            found[-1].source += "\n\n" + "\n".join(block)
        else:
            found.append(Cell("code", "\n".join(block)))
    return found


def _blocks(source: str) -> Iterator[list[str]]:
    """Runs of lines between empty ones, where text begins or ends."""
    block: list[str] = []
    for line in source.split("\n"):
        begins_text = line.startswith("#") and (not block or not block[-1].strip())
        if begins_text and block:
            yield _trimmed(block)
            block = []
        ends_text = bool(block) and block[0].startswith("#") and not line.strip()
        if ends_text:
            yield _trimmed(block)
            block = []
        else:
            block.append(line)
    if any(line.strip() for line in block):
        yield _trimmed(block)


def _trimmed(block: list[str]) -> list[str]:
    while block and not block[-1].strip():
        block = block[:-1]
    while block and not block[0].strip():
        block = block[1:]
    return block


def run(path: Path) -> list[Cell]:
    """The cells of a tutorial, run in this process and the current folder."""
    tree, rest = _docstring(path.read_text(encoding="utf-8"))
    cells = [Cell("text", tree), *(cell for cell in cells_of(rest) if cell.source.strip())]
    module = types.ModuleType("tutorial")
    module.__file__ = str(path)
    sys.modules["tutorial"] = module  # dataclasses look there
    source = path.read_text(encoding="utf-8")
    seen: set[Path] = set()
    for cell in cells:
        if cell.kind != "code":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            lines = "\n" * source[: source.index(cell.source)].count("\n")  # errors name the place
            exec(compile(lines + cell.source, str(path), "exec"), vars(module))
        cell.output = printed.getvalue().rstrip()
        made = {found for found in Path.cwd().glob("*.svg") if found not in seen}
        seen |= made
        cell.pictures = [each.read_text(encoding="utf-8") for each in sorted(made)]
    return cells


def _docstring(source: str) -> tuple[str, str]:
    found = re.match(r'"""(.*?)"""\n', source, re.DOTALL)
    assert found is not None, "a tutorial begins with a docstring"
    return found[1].strip(), source[found.end() :]


def pages(folder: Path) -> dict[str, str | bytes]:
    """The page of every tutorial, run unless it was with these sources."""
    made: dict[str, str | bytes] = {"tutorials/index.md": _index()}
    for name in names():
        made[f"tutorials/{name}.md"] = _page(_run_apart(FOLDER / f"{name}.py", folder))
    return made


def names() -> list[str]:
    present = {path.stem for path in FOLDER.glob("*.py")}
    unknown = present - set(ORDER)
    if unknown:
        raise RuntimeError(f"tutorials outside the navigation: {', '.join(sorted(unknown))}")
    return [name for name in ORDER if name in present]


def nav() -> list[object]:
    titles = ({_title(name): f"tutorials/{name}.md"} for name in names())
    return ["tutorials/index.md", *titles]


def _title(name: str) -> str:
    text, _ = _docstring((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    return text.split("\n")[0].rstrip(".")


def _index() -> str:
    rows = []
    for name in names():
        text, _ = _docstring((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
        first, _, rest = text.partition("\n\n")
        rows.append(f"- [{first.rstrip('.')}]({name}.md): {rest.split(chr(10) * 2)[0]}")
    return (
        "# Tutorials\n\nEvery page here is a Python file of `docs/tutorials`, run when this site "
        "was built: below the code stands what it printed, on the machine that built it.\n\n"
        + "\n".join(rows)
        + "\n"
    )


def _run_apart(path: Path, folder: Path) -> list[Cell]:
    """The cells, from a process of its own.

    Times are measured anew in every build, unless TILEWRIGHT_DOCS_REUSE is set, for writers.
    """
    kept = kept_at(path, folder)
    if not (os.environ.get("TILEWRIGHT_DOCS_REUSE") and kept.exists()):
        with tempfile.TemporaryDirectory() as place:
            done = subprocess.run(
                [sys.executable, str(Path(__file__).resolve()), str(path)],
                capture_output=True,
                text=True,
                cwd=place,
                timeout=SECONDS,
                env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"},
                check=False,
            )
        if done.returncode:
            raise RuntimeError(f"the tutorial {path.name} failed:\n{done.stderr[-3000:]}")
        kept.write_text(done.stdout.splitlines()[-1], encoding="utf-8")
    return [Cell(**each) for each in json.loads(kept.read_text(encoding="utf-8"))]


def kept_at(path: Path, folder: Path) -> Path:
    """Where the cells of a run with these sources are; tutorials may use each other."""
    texts = [each.read_bytes() for each in sorted(path.parent.iterdir()) if each.is_file()]
    whole = b"".join(texts) + digest().encode()
    return folder / f"{path.stem}-{hashlib.sha256(whole).hexdigest()[:12]}.json"


def _page(cells: list[Cell]) -> str:
    first, _, rest = cells[0].source.partition("\n")
    parts = [f"# {first.rstrip('.')}\n\n{rest.strip()}\n"]
    for cell in cells[1:]:
        if cell.kind == "text":
            parts.append(cell.source + "\n")
            continue
        if cell.source.startswith("if __name__"):
            continue
        parts.append(f"```python\n{cell.source}\n```\n")
        if cell.output:
            parts.append(
                f'<div class="output" markdown>\n\n```text\n{cell.output}\n```\n\n</div>\n'
            )
        parts += [f'<div class="figure">{_inline(each)}</div>\n' for each in cell.pictures]
    return "\n".join(parts)


def _inline(picture: str) -> str:
    """An SVG as a part of a page: names of its own, one line."""
    body = picture[picture.index("<svg") :]
    mark = hashlib.sha256(body.encode()).hexdigest()[:6]
    body = re.sub(r'(id="|#)(?=[a-zA-Z])(?![0-9a-fA-F]{6}[";])', rf"\1f{mark}", body)
    return re.sub(r"\s*\n\s*", " ", body)


if __name__ == "__main__":
    print(json.dumps([asdict(cell) for cell in run(Path(sys.argv[1]))]))
