"""Every Python block and every `tilewright` command of the guides runs, in order of its page."""

import contextlib
import io
import os
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))

from pages import DOCS, LAYER, MODEL, ROOT, blocks_of, write_model

from tilewright.cli import app
from tilewright.driver.tuning import lab

PAGES = [DOCS / "index.md", *sorted((DOCS / "guides").glob("*.md"))]
# Run by other tests, or what a reader types elsewhere.
ELSEWHERE = ("pip ", "make ", "cmake ", "ctest ", "tilewright --install-completion")
LANGUAGES = {"python", "sh", "text", "cmake"}
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory):
    """Pages compile the same model."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_guide_runs(page, tmp_path, monkeypatch, cache_folder):
    if page.stem == "pytorch":
        pytest.importorskip("torch")
        if not entry_points(group="torch_dynamo_backends", name="tilewright"):
            pytest.skip("the package is not installed: its backend has no entry point")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(cache_folder))
    # Tuning takes long for every kernel, and every process that checks candidates.
    monkeypatch.setattr(lab, "host_cores", lambda: 1)
    write_model(tmp_path / "model.onnx", LAYER if page.stem == "tuning" else MODEL)
    space = {"__name__": "guide"}
    printed = ""
    for block in blocks_of(page):
        assert block.language in LANGUAGES
        if block.language == "python":
            caught = io.StringIO()
            with contextlib.redirect_stdout(caught):
                exec(compile(block.body, page.name, "exec"), space)
            printed = caught.getvalue()
        elif block.language == "sh":
            for line in block.body.splitlines():
                run_line(line.split("#")[0].strip())
        elif block.is_output:
            assert printed.strip() == block.body.strip()


def run_line(line):
    if not line or line.startswith(ELSEWHERE):
        return
    program, *arguments = shlex.split(line)
    assert program == "tilewright", f"nothing runs {line!r}"
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, f"{line}\n{done.output}{done.stderr}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no CMake")
@needs_compiler
def test_the_cmake_project_builds_and_runs(tmp_path):
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    configure = ["cmake", "-S", str(ROOT / "examples/cmake"), "-B", str(tmp_path)]
    for command in (
        [*configure, f"-DPython_EXECUTABLE={sys.executable}"],
        ["cmake", "--build", str(tmp_path)],
        ["ctest", "--test-dir", str(tmp_path), "--output-on-failure"],
    ):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
