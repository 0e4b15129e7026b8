"""Tests on this machine pretended to be a lesser one: code for processors that lack what it has.

    python tests/hosts.py                          some tests for each, in under a minute
    python tests/hosts.py -- tests/diff -n 2       others; what follows `--` is for pytest

`cpu` then stands for a processor without matrix tiles, without wide vectors, without dot products,
as `TILEWRIGHT_HOST` says. Processors whose code this machine cannot run are left out, and named.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tilewright.base.host import host_arch, host_features
from tilewright.base.processors import processor_features

ROOT = Path(__file__).parents[1]

# Every rule for CPUs against plain loops, and models of integers against their references.
RULES, INTEGERS = "tests/diff/test_rules.py", "tests/diff/test_quantized.py"
TILED = "tests/diff/test_winograd_of_bytes.py"
NARROW = ("test_operators_keep_their_answers", "test_types_keep_their_lanes",
          "test_recurrent_layers_keep_the_answer")  # fmt: skip
# What machines that people have lack, with tests of it: AVX2 alone, AVX-512 without AMX and without
# VNNI; NEON without dot products and arithmetic of 16 bits, whose vectors of f32 are those of every
# other.
LESSER: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "haswell": (RULES, INTEGERS),
        "cascadelake": (RULES, INTEGERS),
        "skylake-avx512": (INTEGERS, TILED),
    },
    "aarch64": {"cortex-a53": (*(f"{RULES}::{name}" for name in NARROW), INTEGERS)},
}


def pretended(arch: str, features: frozenset[str]) -> tuple[list[str], list[str]]:
    """Processors to pretend, and those whose code does not run here; one that has all that this
    machine has is neither: every other test is of it."""
    had = {name: processor_features(arch, name) for name in LESSER.get(arch, {})}
    lesser = [name for name, its in had.items() if its < features]
    return lesser, [name for name, its in had.items() if not its <= features]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pytest", nargs="*", help="arguments of pytest")
    options = parser.parse_args()
    chosen, missing = pretended(host_arch(), host_features())
    for name in missing:
        print(f"{name}: left out, this machine cannot run its code")
    failed = []
    for name in chosen:
        asked = options.pytest or ("-q", "-n", "2", *LESSER[host_arch()][name])
        print(f"{name}: pytest {' '.join(asked)}", flush=True)
        environment = os.environ | {"TILEWRIGHT_HOST": f"-mcpu={name}"}
        command = (sys.executable, "-m", "pytest", *asked)
        if subprocess.run(command, cwd=ROOT, env=environment).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else f"passed: {', '.join(chosen) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
