"""Every how-to is applied to a copy of the sources.

Its text tests, and what stands at its end, run there.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pages import DOCS, ROOT, blocks_of

PAGES = [page for page in sorted((DOCS / "howto").glob("*.md")) if page.stem != "index"]

# Read by every process that runs in the copy: an editable install would come before it.
FIRST_THE_COPY = """
import sys

sys.meta_path = [f for f in sys.meta_path if not type(f).__module__.startswith("_editable")]
"""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    # With byte code, which fits as long as a file is as old; not what is being written of it.
    left_out = shutil.ignore_patterns("native", "*.pyc.*")
    shutil.copytree(ROOT / "src", folder / "src", ignore=left_out)
    (folder / "src" / "sitecustomize.py").write_text(FIRST_THE_COPY)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_howto_works(page, pristine, tmp_path):
    shutil.copytree(pristine, tmp_path, dirs_exist_ok=True)
    code, changed = "", []
    for block in blocks_of(page):
        if block.language == "diff":
            apply(tmp_path / block.title, block.body)
            changed.append(block.title)
        elif block.title:
            changed.append(block.title)
            path = tmp_path / block.title
            assert not path.exists()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body)
        elif block.language == "python":
            code += block.body
    assert code
    assert changed
    env = os.environ | {
        "PYTHONPATH": str(tmp_path / "src"),
        "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache"),
    }
    # from a file: worker processes import the changed tree, and tensor expressions have a source
    (tmp_path / "check.py").write_text(code)
    commands = [["check.py"]]
    texts = [title for title in changed if title.endswith(".tw")]
    if texts:
        shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
        commands.append(["-m", "pytest", "-q", "--import-mode=importlib", *texts])
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def apply(path, diff):
    """A change by its context: it must fit in one place."""
    lines = diff.splitlines()
    old = "\n".join(line[1:] for line in lines if not line.startswith("+"))
    new = "\n".join(line[1:] for line in lines if not line.startswith("-"))
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name} has {text.count(old)} places for:\n{diff}"
    path.write_text(text.replace(old, new))
