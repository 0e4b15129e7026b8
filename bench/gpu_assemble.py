"""Every kernel of the models for GPUs, assembled by ptxas; no GPU is needed.

    python bench/gpu_assemble.py [--json FILE] [--only NAME ...] [--arch sm_90a sm_80]
                                 [--precision f32 f16 bf16 tf32 int8] [--folder FOLDER]

Needs NVIDIA's assembler: `pip install 'tilewright[ptxas]'`, or one on the path. What it must not
find: a fault, products that are serialized, a `setmaxnreg` that is ignored, and registers spilled
to memory in kernels that do a hundredth of a model's work or more. Lower precisions than f16 have
kernels of their own in some of the models; those for int8 are quantized by ONNX Runtime first.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import gpu_zoo
import numpy as np
import report
import zoo

import tilewright as tw
from tilewright.driver.device_module import DeviceModule
from tilewright.sym import Const

NAMES = (*gpu_zoo.NAMES, "resnet50")
HOT = 0.01  # of a model's operations
ARCHITECTURES = ("sm_90a", "sm_80")
VARIED = ("dqn", "mobilenet_v2", "bert")  # convolutions, depthwise too, GEMMs and attention
BYTES = "int8"
COVERED = {
    "f32": NAMES,
    "f16": NAMES,
    "bf16": VARIED,
    "tf32": VARIED,
    BYTES: ("dqn",),
}
TROUBLE = ("serialized", "setmaxnreg")  # words of warnings


def assembler() -> str | None:
    """ptxas on the path, or of the package that has it."""
    found = shutil.which("ptxas")
    spec = None if found else find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        found = found or next((str(path) for path in Path(folder).glob("*/bin/ptxas")), None)
    return found


@dataclass(frozen=True)
class Assembled:
    """What the assembler said of a function's kernels."""

    name: str
    flops: float
    ok: bool
    said: str

    @property
    def spilled_bytes(self) -> int:
        return sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", self.said)))

    @property
    def trouble(self) -> bool:
        return not self.ok or any(word in self.said for word in TROUBLE)


@cache  # models have kernels in common
def said_of(ptxas: str, ptx: str, arch: str) -> tuple[bool, str]:
    """Whether the assembler takes a program, and what it says."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [ptxas, f"-arch={arch}", "-v", str(source), "-o", f"{folder}/kernel.cubin"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stderr


def assembled(ptxas: str, module: DeviceModule, arch: str) -> list[Assembled]:
    """All kernels of a model, through the assembler."""
    codes = module.codes

    def run(name: str) -> Assembled:
        flops = module.program.kernels[name].flops
        known = float(flops.value) if isinstance(flops, Const) else 0.0
        return Assembled(name, known, *said_of(ptxas, codes[name].ptx, arch))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(run, codes))


def path_of(name: str, precision: str, folder: Path) -> Path:
    """The file of a model, quantized where it is to be of bytes."""
    made = gpu_zoo.case(name, folder)
    if precision != BYTES:
        return made.path
    inputs = made.path.with_suffix(".in.npz")
    np.savez(inputs, **{key: value.numpy() for key, value in made.inputs.items()})
    return zoo.quantized(zoo.Case(name, made.path, inputs), folder / BYTES).model


def figures_of(
    ptxas: str, name: str, arch: str, precision: str, folder: Path
) -> list[report.Figure]:
    path = path_of(name, precision, folder)
    module = tw.compile(path, target=f"cuda -arch={arch}", precision=precision)
    assert isinstance(module, DeviceModule)
    found = assembled(ptxas, module, arch)
    work = sum(each.flops for each in found)
    for each in found:
        if each.trouble or each.spilled_bytes:
            print(f"{name} {arch} {precision} {each.name}: {each.said.strip()[-400:]}")
    spilled = [each for each in found if each.spilled_bytes and each.flops >= HOT * work]
    title = f"{name} {arch} {precision}"
    return [
        report.Figure(f"{title}: functions", len(found), ""),
        report.at_most(f"{title}: with trouble", sum(e.trouble for e in found), "", 0),
        report.at_most(f"{title}: hot and spilled", len(spilled), "", 0),
    ]


def measure(options: argparse.Namespace) -> list[report.Figure]:
    ptxas = assembler()
    if ptxas is None:
        print("skipped: ptxas is not installed (pip install 'tilewright[ptxas]')")
        return []
    return [
        figure
        for precision in options.precision
        for name in options.only or COVERED[precision]
        for arch in options.arch
        for figure in figures_of(ptxas, name, arch, precision, options.folder)
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--arch", nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--precision", nargs="*", default=list(COVERED), choices=list(COVERED))
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "models")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
