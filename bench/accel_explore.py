"""Design space exploration of the accelerator for ResNet-18 and MobileNet-V2.

    python bench/accel_explore.py [--json FILE] [--designs 200] [--jobs N] [--confirm 3]
                                  [--plot FILE.svg]

Designs that fit 220 DSP48 and 140 RAMB36, by the estimated area; cycles by the cheapest plans of
all layers. The front is printed; its fastest designs are compiled and timed by the cycle model. The
gain is that on MobileNet-V2 over the default design, of designs with no more multipliers;
`bench/accel_machines.py --target "vta-sim DESIGN" --rtl` confirms it in RTL.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import report
from accel_models import MODELS

from tilewright.accel.explore import Limits, confirm, explore, front, plot, table
from tilewright.base.geometry import Geometry

NAMES = ("ResNet-18", "MobileNet-V2")
LIMITS = Limits(dsp=220, bram=140)


def measure(options: argparse.Namespace) -> list[report.Figure]:
    models = {name: MODELS[name][0]() for name in NAMES}
    begun = time.perf_counter()
    with ProcessPoolExecutor(options.jobs) as pool:
        found = list(explore(models, LIMITS, options.designs, run=pool.map))
        took = time.perf_counter() - begun
        default = next(one for one in found if one.geometry == Geometry())
        least = [one for one in found if one.area["DSP48"] <= default.area["DSP48"]]
        fastest = min(least, key=lambda one: one.cycles["MobileNet-V2"])
        best = front(found)
        chosen = {one.geometry: one for one in (default, fastest, *best[: options.confirm])}
        timed = list(pool.map(partial(confirm, models), chosen.values())) if options.confirm else []
        whole = time.perf_counter() - begun
    sure = {**chosen, **{one.geometry: one for one in timed}}
    print(table([sure.get(one.geometry, one) for one in best]))
    if options.plot:
        options.plot.write_text(plot(found))
    gain = sure[default.geometry].cycles["MobileNet-V2"]
    gain /= sure[fastest.geometry].cycles["MobileNet-V2"]
    worst = max(abs(sure[one.geometry].mean / one.mean - 1) for one in chosen.values())
    print(f"fastest for MobileNet-V2 at no more DSP48: {fastest.geometry.options}")
    return [
        report.at_least("designs", float(len(found)), "", 200),
        report.at_most("exploring", took, "s", 600),
        report.Figure(f"and timing {len(timed)} designs", whole, "s"),
        report.at_least("MobileNet-V2, gain at no more DSP48", gain, "x", 1.3),
        report.Figure("cycle model against plans, largest difference", worst, ""),
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--designs", type=int, default=220)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--confirm", type=int, default=3)
    parser.add_argument("--plot", type=Path)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
