"""The accelerator's area model against yosys.

    python bench/accel_area.py [--json FILE] [--synthesize FILE] [--luts] [--seconds N]
                               [--known FILE]

Designs are drawn at random: shapes of the array, sizes of memories, widths of the bus. The first
`FITTED` are what `accel/area.py` has its coefficients from, the rest it has not seen.
`--synthesize` runs yosys on design after design and appends what it counts to a file, some minutes
each (fewer without `--luts`); `--known` compares with such a file: the largest error of the model
on designs that it was not fitted to, and coefficients fitted anew to the others.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import report

from tilewright.accel.area import RESOURCES, estimate, fit_luts
from tilewright.accel.synthesis import chip_of, synthesize
from tilewright.base.geometry import Geometry

CHIP = "xc7z020"
FITTED = 14
DESIGNS = 34
SHAPES = ((1, 4, 4), (1, 4, 8), (1, 8, 8), (1, 4, 16), (2, 4, 4), (1, 8, 16), (2, 4, 8), (2, 8, 8))


def designs() -> list[Geometry]:
    """Small enough that yosys takes minutes; the default among those fitted to."""
    random = np.random.default_rng(0)
    found = [Geometry()]
    while len(found) < DESIGNS:
        batch, block_in, block_out = SHAPES[int(random.integers(len(SHAPES)))]
        entry = Geometry(batch, block_in, block_out).entry_bytes()
        depths = {
            name: 1 << int(random.integers(low, low + 4))
            for name, low in (("inp", 7), ("wgt", 6), ("acc", 7), ("uop", 7))
        }
        sizes = {f"{name}_bytes": depths[name] * entry[name] for name in depths}
        made = Geometry(batch, block_in, block_out, bus_bits=64 << int(random.integers(2)), **sizes)
        if made not in found:
            found.append(made)
    return found


def synthesize_some(output: Path, seconds: float, with_luts: bool) -> None:
    """One design after the other, behind what the file has already."""
    begun = time.monotonic()
    done = {row["target"] for row in rows_of(output)} if output.exists() else set()
    order = [*range(1, DESIGNS), 0]  # the default takes longest
    for number in order:
        geometry = designs()[number]
        target = key(geometry)
        if target in done:
            continue
        if time.monotonic() - begun > seconds:
            return
        used = synthesize(geometry, chip_of(CHIP), with_luts=with_luts)
        row = {"target": target, **{name: amount for name, (amount, _) in used.items()}}
        with output.open("a") as file:
            file.write(json.dumps(row) + "\n")


def rows_of(path: Path) -> list[dict[str, int | str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def measure(options: argparse.Namespace) -> list[report.Figure]:
    if options.synthesize:
        synthesize_some(options.synthesize, options.seconds, options.luts)
    source = options.known or options.synthesize
    known = {row["target"]: row for row in rows_of(source)}
    every = designs()
    fitted = [one for one in every[:FITTED] if key(one) in known]
    unseen = [one for one in every[FITTED:] if key(one) in known]
    figures = [report.Figure("designs fitted to", float(len(fitted)), "")]
    figures.append(report.at_least("designs not fitted to", float(len(unseen)), "", 20))
    for name in RESOURCES:
        counted = [(one, int(row[name])) for one in unseen if name in (row := known[key(one)])]
        if counted:
            errors = [abs(estimate(one)[name] / max(1, many) - 1) for one, many in counted]
            figures.append(report.at_most(f"{name}, largest error", max(errors), "", 0.1))
    luts = {one: float(row["LUT"]) for one in fitted if "LUT" in (row := known[key(one)])}
    if luts:
        print(
            "coefficients of LUTs:", [round(one, 3) for one in fit_luts([*luts], [*luts.values()])]
        )
    return figures


def key(geometry: Geometry) -> str:
    return f"vta-rtl {geometry.options}"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--synthesize", type=Path)
    parser.add_argument("--known", type=Path)
    parser.add_argument("--luts", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
