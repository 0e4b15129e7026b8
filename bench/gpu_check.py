"""Every model of the GPU benchmarks against torch on the CPU, and against its own sm_80 code.

python bench/gpu_check.py [--json FILE] [--only NAME ...] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gpu_zoo
import numpy as np
import report
import torch

import tilewright as tw
from tilewright.runtime import cuda

TOLERANCE = 2e-3  # of the largest output, between f32 evaluations of a deep model
TARGETS = ("cuda -arch=sm_90a", "cuda -arch=sm_80")


def error_of(name: str, target: str, folder: Path) -> float:
    """The largest difference from torch, as a part of the largest output."""
    made = gpu_zoo.case(name, folder)
    with torch.no_grad():
        wanted = made.module(*made.inputs.values())
    outputs = tw.compile(made.path, target=target)(*(x.numpy() for x in made.inputs.values()))
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    worst = 0.0
    for got, want in zip(outputs, wanted, strict=False):
        reference = want.numpy()
        found = cuda.to_host(got)
        worst = max(worst, float(np.abs(found - reference).max() / np.abs(reference).max()))
    return worst


def measure(options: argparse.Namespace) -> list[report.Figure]:
    if not cuda.is_available():
        print("skipped: no NVIDIA GPU can be used here")
        return []
    return [
        report.at_most(f"{name} on {target}: error", error_of(name, target, options.folder), "",
                       TOLERANCE)
        for name in options.only or gpu_zoo.NAMES
        for target in TARGETS
    ]  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "models")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
