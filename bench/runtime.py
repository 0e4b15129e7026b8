"""What the runtime itself costs: a parallel region, a call, scratch memory, the profiler.

    python bench/runtime.py [--json FILE]

The C figures come from a program that is compiled here with the system's `cc` from the runtime's
own sources. Run it on an idle machine: a region's cost is a race between two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import timeit
from pathlib import Path

import numpy as np

from tilewright.base.dtype import F32
from tilewright.runtime import Param, Signature, _native
from tilewright.runtime.array import array
from tilewright.runtime.sources import FOLDER, runtime_sources

PROGRAM = Path(__file__).parent / "native" / "runtime.c"
LABELS = {
    # name: (what it is, the most it may cost in us)
    "empty_region": ("empty parallel region, 2 threads", 5.0),
    "checked_call": ("call from C, three checked arguments", 0.2),
    "workspace": ("scratch memory, taken and given back", 0.1),
    "profiler_off": ("profiler hooks while off", 0.01),
    "python_call": ("call from Python, three NumPy arrays", 8.0),
    "python_call_arrays": ("call from Python, three tilewright arrays", 8.0),
}


def measure_native() -> dict[str, float]:
    """The C program's figures, in us."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "runtime"
        sources = [str(path) for path in (PROGRAM, *runtime_sources())]
        subprocess.run(
            ["cc", "-std=c11", "-O2", "-pthread", "-I", FOLDER, *sources, "-o", program], check=True
        )
        lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: float(ns) / 1000 for name, ns in map(str.split, lines.splitlines())}


def measure_python() -> dict[str, float]:
    """The cost of a call to a function that does nothing, in us."""
    signature = Signature(
        "matmul",
        (
            Param("A", F32, ("n", "k")),
            Param("B", F32, ("k", "m")),
            Param("C", F32, ("n", "m"), writable=True),
        ),
    )
    nothing = signature.bind(_native.symbols()["tw_last_code"], None)
    matrices = [np.zeros((8, 8), np.float32) for _ in range(3)]
    cases = {"python_call": matrices, "python_call_arrays": [array(x) for x in matrices]}
    return {
        name: statistics.median(
            timeit.repeat(lambda args=args: nothing(*args), number=1000, repeat=51)
        )
        * 1000
        for name, args in cases.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    figures = []
    for name, us in {**measure_native(), **measure_python()}.items():
        label, want = LABELS[name]
        figures.append(
            {"name": label, "value": us, "unit": "us", "want": f"<= {want:g}", "ok": us <= want}
        )
    for figure in figures:
        verdict = "ok" if figure["ok"] else "TOO SLOW"
        print(f"{figure['name']:<44} {figure['value']:>8.3f} us  {figure['want']:>8}  {verdict}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
