"""Every tutorial runs, finds its own assertions true, and prints something.

`make docs` runs them too: what it ran with the very same sources is not run again.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "site"))

from tutorials import FOLDER, cells_of, kept_at, names

MAX_LINES = {"miniature": 400, "accelerator": 300}


@pytest.mark.parametrize("name", names())
def test_a_tutorial_runs(name, tmp_path):
    if kept_at(FOLDER / f"{name}.py", ROOT / "build" / "site").exists():
        return
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("name", MAX_LINES)
def test_tutorials_that_build_a_whole_stay_small(name):
    assert (FOLDER / f"{name}.py").read_text().count("\n") <= MAX_LINES[name]


def test_a_tutorial_is_cut_into_text_and_code():
    text, code = "# ## Text\n#\n# more", "x = 1  # no text\n\n\ndef f():\n    # inside\n    pass"
    source = f"import os\n\n{text}\n\n{code}\n"
    kinds = [(cell.kind, cell.source) for cell in cells_of(source)]
    assert kinds == [
        ("code", "import os"),
        ("text", "## Text\n\nmore"),
        ("code", code),
    ]
