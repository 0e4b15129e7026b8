"""Synthesize the RTL with yosys and count multipliers, block memories and look-up tables.

synthesize(Geometry(), chip_of("xc7z020"))
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.accel.hardware import TOP, write_rtl
from tilewright.base.errors import UserError
from tilewright.base.geometry import Geometry


@dataclass(frozen=True, slots=True)
class Chip:
    """yosys's name of a chip's family, and the chip's resources."""

    family: str
    dsp48: int
    ramb36: int
    luts: int


CHIPS = {
    "xc7z020": Chip("xc7", dsp48=220, ramb36=140, luts=53_200),  # Zynq-7020: Pynq, ZedBoard
    "xczu3eg": Chip("xcup", dsp48=360, ramb36=216, luts=70_560),  # Ultra96
}
_SCRIPT = """
import sys
from pyosys import libyosys
design = libyosys.Design()
for line in sys.argv[1:]:
    libyosys.run_pass(line, design)
"""


def chip_of(name: str) -> Chip:
    if name not in CHIPS:
        known = ", ".join(CHIPS)
        raise UserError("TW7034", f"there is no chip {name!r}", help=f"there are: {known}")
    return CHIPS[name]


def missing() -> str:
    """Why synthesis is not available; "" if it is."""
    return "" if importlib.util.find_spec("pyosys") else "pyosys is not installed"


def synthesize(
    geometry: Geometry, chip: Chip, *, with_luts: bool = True
) -> dict[str, tuple[int, int]]:
    """Used and available amounts of every resource; look-up tables take longest to compute."""
    run = "" if with_luts else " -run begin:map_ffram"
    cells = count_cells(geometry, f"synth_xilinx -family {chip.family} -top {TOP}{run}")
    found = resources(cells, chip)
    return found if with_luts else {name: found[name] for name in found if name != "LUT"}


def resources(cells: Counter[str], chip: Chip) -> dict[str, tuple[int, int]]:
    """Convert cells of a netlist to resources: two half memories are one, as fitters pair them."""
    luts = sum(count for name, count in cells.items() if name.startswith("LUT"))
    luts += sum(count * _LUTS_OF_RAM.get(name, 0) for name, count in cells.items())
    halves = sum(count for name, count in cells.items() if name.startswith("RAMB18"))
    whole = sum(count for name, count in cells.items() if name.startswith("RAMB36"))
    multipliers = sum(count for name, count in cells.items() if name.startswith("DSP48"))
    return {
        "DSP48": (multipliers, chip.dsp48),
        "RAMB36": (whole + -(-halves // 2), chip.ramb36),
        "LUT": (luts, chip.luts),
    }


_LUTS_OF_RAM = {"RAM32M": 4, "RAM64M": 4, "RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1D": 4}


def count_cells(geometry: Geometry, command: str) -> Counter[str]:
    """Number of cells of each kind after a synthesis command, in all modules."""
    with tempfile.TemporaryDirectory() as name:
        # Cells are modules too, counted only in their own module: flatten.
        run_yosys(geometry, Path(name), command, "flatten", "tee -q -o cells.json stat -json")
        return _cells(json.loads((Path(name) / "cells.json").read_text()))


def run_yosys(geometry: Geometry, folder: Path, *commands: str) -> None:
    """Write the RTL to a folder, and run commands on it."""
    if missing():
        raise UserError(
            "TW7035", f"the RTL cannot be synthesized: {missing()}", help="pip install pyosys"
        )
    files = [one.name for one in write_rtl(geometry, folder)]
    lines = [f"read_verilog -sv {' '.join(files)}", f"hierarchy -check -top {TOP}", *commands]
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *lines],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(
            "TW7035",
            f"yosys refuses the RTL: {(done.stdout + done.stderr)[-1000:]}",
            help="was a file of the RTL changed?",
        )


def _cells(report: dict[str, Any]) -> Counter[str]:
    top = report["modules"][f"\\{TOP}"]
    kinds = {**top["num_cells_by_type"], **top.get("num_submodules_by_type", {})}
    return Counter({name: int(count) for name, count in kinds.items()})
