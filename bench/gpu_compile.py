"""Time from a fresh process to the first answer on an NVIDIA GPU, and saved libraries in C.

    python bench/gpu_compile.py [--json FILE] [--only NAME] [--precision f16] [--folder FOLDER]
                                [--compiler CC]

`cold` starts with empty caches, `cached` again with those that the first run left; both count the
imports of packages. The saved library answers a C program; its answer is compared with the
process's own.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gpu_zoo
import numpy as np
import report

from tilewright.runtime.sources import FOLDER

WANT_COLD_S, WANT_CACHED_S = 12.0, 1.5
TOLERANCE = 1e-5  # of the largest output: the same kernels
HERE = Path(__file__).parent
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"  # packages that are installed have theirs

FIRST_ANSWER = """
import sys, time, json
begun = time.perf_counter()
import numpy as np
import tilewright as tw
from tilewright.runtime import cuda
model, x, y, library, precision = sys.argv[1:6]
module = tw.compile(model, target="cuda", precision=precision)
compiled = time.perf_counter()
(out,) = module(np.load(x))
np.save(y, cuda.to_host(out))
answered = time.perf_counter()
if library:
    module.save(library)
print(json.dumps({"compile": compiled - begun, "answer": answered - begun}))
"""


def first_answer(
    model: Path, folder: Path, library: str, cache: Path, precision: str
) -> tuple[float, float]:
    """Seconds of a process until its answer, and those of them until it had compiled."""
    kept = {key: value for key, value in os.environ.items() if key != NO_BYTECODE}
    environment = {
        **kept,
        "TILEWRIGHT_CACHE_DIR": str(cache),
        "CUDA_CACHE_PATH": str(cache / "driver"),
    }
    command = [sys.executable, "-c", FIRST_ANSWER, str(model), str(folder / "x.npy")]
    begun = time.perf_counter()
    done = subprocess.run(
        [*command, str(folder / "y.npy"), library, precision],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    took = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    told = json.loads(done.stdout.splitlines()[-1])
    return told["answer"] if library else took, told["compile"]


def without_python(library: Path, folder: Path, shapes: list[tuple[int, ...]], cc: str) -> str:
    """Build the C program, and run the library with it; what it prints."""
    program = folder / "run_saved"
    source = HERE / "native" / "run_saved.c"
    command = [*shlex.split(cc), "-O2", f"-I{FOLDER}", str(source), "-o", str(program), "-ldl"]
    subprocess.run(command, check=True)
    dims = [",".join(map(str, shape)) for shape in shapes]
    files = [str(folder / name) for name in ("x.bin", "y.bin")]
    run = [str(program), str(library), library.stem, files[0], dims[0], files[1], dims[1], "50"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def figures_of(name: str, options: argparse.Namespace) -> list[report.Figure]:
    made, precision = gpu_zoo.case(name, options.folder), options.precision
    ((_, given),) = made.inputs.items()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        x = given.numpy()
        np.save(folder / "x.npy", x)
        x.tofile(folder / "x.bin")
        library = folder / "saved_model.so"
        cold, compiled = first_answer(made.path, folder, "", folder / "cache", precision)
        cached, _ = first_answer(made.path, folder, "", folder / "cache", precision)
        first_answer(made.path, folder, str(library), folder / "cache", precision)
        y = np.load(folder / "y.npy")
        figures = [
            report.at_most(f"{name}: first answer, cold", cold, "s", WANT_COLD_S),
            report.Figure(f"{name}: of which compiling", compiled, "s"),
            report.at_most(f"{name}: first answer, cached", cached, "s", WANT_CACHED_S),
        ]
        if shutil.which(shlex.split(options.compiler)[0]) is None:
            return figures
        told = without_python(library, folder, [x.shape, y.shape], options.compiler)
        first, best = map(float, told.split())
        got = np.fromfile(folder / "y.bin", np.float32).reshape(y.shape)
        error = float(np.abs(got - y).max() / np.abs(y).max())
        return [
            *figures,
            report.at_most(f"{name}: saved library without Python: error", error, "", TOLERANCE),
            report.Figure(f"{name}: saved library: first answer", first, "ms"),
            report.Figure(f"{name}: saved library: one more answer, copies included", best, "ms"),
        ]


@report.on_gpu
def measure(options: argparse.Namespace) -> list[report.Figure]:
    return [figure for name in options.only for figure in figures_of(name, options)]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="*", default=["resnet18"])
    parser.add_argument("--precision", default="f16")
    parser.add_argument("--compiler", default=os.environ.get("CC", "cc"))
    parser.add_argument("--folder", type=Path, default=HERE / "models")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
