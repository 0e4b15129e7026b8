"""The accelerator's area model against yosys.

    python bench/accel_area.py [--json FILE] [--synthesize FILE] [--luts] [--seconds N] [--jobs N]
                               [--known FILE]

Designs are drawn at random: shapes of the array, taps, sizes of memories, widths of the bus; the
default is the last. Every third is what `accel/area.py` has its coefficients from, the rest it has
not seen. `--synthesize` runs yosys on designs, so many at a time, and appends what it counts to a
file, some minutes each (fewer without `--luts`); `--known` compares with such a file: the largest
error of the model on designs that it was not fitted to, and coefficients fitted anew to the others.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import numpy as np
import report

from tilewright.accel.area import RESOURCES, estimate, fit_luts
from tilewright.accel.synthesis import chip_of, synthesize
from tilewright.base.geometry import Geometry

CHIP = "xc7z020"
DESIGNS = 32
EVERY = 3  # of as many designs, one is fitted to
SHAPES = (
    *((1, 4, 4), (1, 8, 4), (1, 16, 4), (2, 4, 4), (1, 4, 8), (2, 8, 4), (1, 8, 8), (1, 16, 8)),
    *((1, 4, 4), (1, 8, 4), (1, 16, 4)),
)


def designs() -> list[Geometry]:
    """Most are so small that yosys takes minutes; by their lanes, the default last."""
    random = np.random.default_rng(0)
    found: list[Geometry] = []
    while len(found) < DESIGNS:
        batch, block_in, block_out = SHAPES[int(random.integers(len(SHAPES)))]
        entry = Geometry(batch, block_in, block_out).entry_bytes()
        depths = {
            name: 1 << int(random.integers(low, low + 4))
            for name, low in (("inp", 7), ("wgt", 6), ("acc", 7), ("uop", 7))
        }
        sizes = {f"{name}_bytes": depths[name] * entry[name] for name in depths}
        bus, taps = 64 << int(random.integers(2)), (1, 4)[int(random.integers(2))]
        made = Geometry(batch, block_in, block_out, bus_bits=bus, taps=taps, **sizes)
        if made not in found:
            found.append(made)
    return [*sorted(found, key=lambda one: one.batch * one.block_out), Geometry()]


def synthesize_some(options: argparse.Namespace) -> None:
    """Designs that the file does not have yet, behind what it has."""
    output = options.synthesize
    done = {row["target"] for row in rows_of(output)} if output.exists() else set()
    left = [one for one in designs() if key(one) not in done]
    run = partial(synthesize_one, options.luts, time.time() + options.seconds)
    with ProcessPoolExecutor(options.jobs) as pool:
        for row in as_completed([pool.submit(run, one) for one in left]):
            if row.result() is not None:
                with output.open("a") as file:
                    file.write(json.dumps(row.result()) + "\n")


def synthesize_one(
    with_luts: bool, until: float, geometry: Geometry
) -> dict[str, int | str | float] | None:
    """What yosys counts; None where time is over."""
    begun = time.time()
    if begun > until:
        return None
    used = synthesize(geometry, chip_of(CHIP), with_luts=with_luts)
    amounts = {name: amount for name, (amount, _) in used.items()}
    return {"target": key(geometry), **amounts, "seconds": round(time.time() - begun, 1)}


def rows_of(path: Path) -> list[dict[str, int | str | float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def measure(options: argparse.Namespace) -> list[report.Figure]:
    if options.synthesize:
        synthesize_some(options)
    source = options.known or options.synthesize
    known = {row["target"]: row for row in rows_of(source)}
    every = designs()
    fitted = [one for one in every[::EVERY] if key(one) in known]
    unseen = [one for one in every if one not in every[::EVERY] and key(one) in known]
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
    parser.add_argument("--jobs", type=int, default=1)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
