"""Tests on this machine pretended to be a lesser one: code for processors that lack what it has.

    python tests/hosts.py                          some tests for each, in under a minute
    python tests/hosts.py -- tests/diff            others; what follows `--` is for pytest

`cpu` then stands for a processor without matrix tiles, without wide vectors, without dot products,
as `TILEWRIGHT_HOST` says. Processors whose code this machine cannot run are left out, and named.
Each is one process, two at a time: workers would load the same modules once more.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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


def tested(name: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """What tests say where this machine is pretended to be another."""
    return subprocess.run(
        (sys.executable, "-m", "pytest", *arguments),
        cwd=ROOT,
        env=os.environ | {"TILEWRIGHT_HOST": f"-mcpu={name}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pytest", nargs="*", help="arguments of pytest")
    options = parser.parse_args()
    chosen, missing = pretended(host_arch(), host_features())
    for name in missing:
        print(f"{name}: left out, this machine cannot run its code")
    arguments = {name: options.pytest or ("-q", *LESSER[host_arch()][name]) for name in chosen}
    failed = []
    with ThreadPoolExecutor(2) as pool:
        runs = pool.map(lambda name: tested(name, arguments[name]), chosen)
        for name, done in zip(chosen, runs, strict=True):
            print(f"{name}: pytest {' '.join(arguments[name])}\n{done.stdout}", flush=True)
            if done.returncode:
                failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else f"passed: {', '.join(chosen) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
