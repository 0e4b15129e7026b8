"""Default plans of the accelerator's layers against random ones, by the cycle model.

    python bench/accel_defaults.py [--json FILE] [--models NAME ...] [--points 500] [--jobs N]
                                   [--seconds N] [--first N] [--details FILE]

Every distinct layer of ResNet-18, ResNet-50 and MobileNet-V2, as they are compiled (residual sums
joined): the default plan of its rule, and so many plans drawn from the same space, the cheapest
prediction first. A plan is compiled and timed unless it cannot be the best: unless what its slowest
unit takes, and what happens before the first and after the last tile, is more than the best plan so
far took with all that it waited for, or the same tiles have room to take turns and do not, or it is
predicted to take so much longer that no prediction of what was timed was as wrong. Layers are
spread over processes, the smallest first, of which `--first` leaves some out. Cycles do not depend
on the machine that runs this.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import report
from accel_models import MODELS

from tilewright.accel.compiler import compile_function
from tilewright.accel.device import time_on
from tilewright.accel.operators import Operator, function_of
from tilewright.accel.part import fuse_sums, kernels_of
from tilewright.accel.rules import problems_of, schedule
from tilewright.accel.rules.tiles import SLOTS
from tilewright.base.errors import TilewrightError
from tilewright.base.target import Target
from tilewright.rules.context import RuleContext
from tilewright.rules.rule import Choice
from tilewright.rules.space import plan_text

TARGET = Target.parse("vta-sim")
NAMES = ("ResNet-18", "ResNet-50", "MobileNet-V2")
WIDE = Target.parse("vta-sim -bus=1024")  # what a plan takes there, the units take
SURE = 1.01  # what the least time of a plan may be too high
MAX_OVER = 1.15  # what a prediction may be too high: the figures say what it was at most


@dataclass(frozen=True)
class Compared:
    """A layer's default plan and the best of many, in cycles."""

    operator: str
    default: int
    default_plan: str
    best: int
    best_plan: str
    points: int
    timed: int
    left: int  # when time was over
    seconds: float
    over_predicted: float  # the largest prediction over what was timed

    @property
    def over(self) -> float:
        return self.default / self.best


def operators(names: list[str]) -> list[Operator]:
    """Distinct layers, the smallest first."""
    geometry = TARGET.geometry
    assert geometry is not None
    found: dict[Operator, int] = {}
    for name in names:
        graph, constants = MODELS[name][0]()
        for kernel in fuse_sums(graph, kernels_of(graph, constants, geometry), TARGET):
            found.setdefault(kernel.operator, kernel.macs)
    return sorted(found, key=lambda one: found[one])


def compare(points: int, until: float, operator: Operator) -> Compared | None:
    """None where time is over."""
    if time.time() > until:
        return None
    geometry = TARGET.geometry
    assert geometry is not None
    begun = time.process_time()
    fn, context = function_of(operator, geometry), RuleContext(TARGET)
    ((rule, problem),) = problems_of(fn, TARGET)
    space = rule.plans(problem, context)
    assert space is not None
    columns = space.sample(points, np.random.default_rng(0))
    cost = rule.cost(problem, columns, context)
    overlapped = {**columns, "slots": np.full_like(columns["slots"], max(SLOTS))}
    terms = rule.cost(problem, overlapped, context).terms
    units, first, last = (
        np.broadcast_to(terms[name], cost.cycles.shape) for name in ("units", "first", "last")
    )
    computing = rule.cost(problem, overlapped, RuleContext(WIDE)).terms["units"]
    least = np.maximum(units + last, np.minimum(computing, units) + first + last)
    assert space.legal is not None
    least[(columns["slots"] < max(SLOTS)) & space.legal(overlapped)] = np.inf
    _, log = schedule(fn, TARGET)
    default_plan = best_plan = log.decisions[0].plan
    default = best = cycles_of(operator, rule.name, default_plan)
    timed = left = 0
    worst = 0.0
    for row in np.argsort(cost.cycles, kind="stable"):
        if least[row] > best * SURE or cost.cycles[row] > best * MAX_OVER:
            continue
        if time.time() > until:
            left += 1
            continue
        plan = plan_text(space.plan_at(columns, int(row)))
        timed += 1
        try:
            took = cycles_of(operator, rule.name, plan)
        except TilewrightError:  # a plan that does not fit after all
            continue
        worst = max(worst, float(cost.cycles[row]) / took)
        if took < best:
            best, best_plan = took, plan
    seconds = time.process_time() - begun
    return Compared(
        str(operator), default, default_plan, best, best_plan, len(least), timed, left, seconds,
        worst,
    )  # fmt: skip


def cycles_of(operator: Operator, rule: str, plan: str) -> int:
    assert TARGET.geometry is not None
    made = schedule(function_of(operator, TARGET.geometry), TARGET, Choice(rule, plan))[0].function
    return time_on("timing", compile_function(made, TARGET)).total


def measure(options: argparse.Namespace) -> list[report.Figure]:
    layers = operators(options.models)[options.first :]
    run = partial(compare, options.points, time.time() + options.seconds)
    found = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for one in pool.map(run, layers):
            if one is None:
                continue
            found.append(one)
            print(
                f"{one.over:.3f}  {one.default} by {one.default_plan}, {one.best} by "
                f"{one.best_plan}; {one.timed} of {one.points} timed in {one.seconds:.1f} s, "
                f"{one.left} left, predicted {one.over_predicted:.3f}: {one.operator}",
                flush=True,
            )
    found.sort(key=lambda one: -one.over)
    if options.details:
        options.details.write_text(json.dumps([asdict(one) for one in found], indent=1))
    seconds = sum(one.seconds for one in found)
    whole = [one for one in found if not one.left]
    return [
        report.at_least("layers compared", float(len(whole)), "", len(layers)),
        report.at_most("default over the best, largest", found[0].over, "x", 1.03),
        report.Figure("layers within 3%", float(sum(one.over <= 1.03 for one in found)), ""),
        report.Figure("points timed", float(sum(one.timed for one in found)), ""),
        report.Figure("points left", float(sum(one.left for one in found)), ""),
        report.at_most(
            "prediction over cycles, largest",
            max(one.over_predicted for one in found),
            "x",
            MAX_OVER,
        ),
        report.at_least(
            "points", sum(one.points - one.left for one in found) / seconds, "1/s of a core", 20
        ),
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="*", default=list(NAMES), choices=list(MODELS))
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e6)
    parser.add_argument("--first", type=int, default=0, help="layer")
    parser.add_argument("--details", type=Path)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
