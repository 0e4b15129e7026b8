"""Number of measurements that search needs: random, GA, trees, TreeGRU, and transfer.

    python bench/tune_quality.py [--json FILE] [--space rules|sketches] [--points 1500] [--only X]
                                 [--save FILE] [--seconds S] [--load FILE ...] [--seeds 3]
                                 [--workers N] [--threads 1] [--target "cpu -mcpu=..."]

For every kernel (12 convolutions of ResNet-18, 9 depthwise ones, 8 GEMMs of BERT) a pool of points
is built, checked and timed once: half at random, half those that the estimate likes, each in turns
with the default plan, since a machine has phases. The fastest are timed once more, for longer: of
1,500 times that vary by a few percent the least is one of luck. Each search then picks from the
pool, eight at a time, knowing only the first times of what it has picked before; `trees` picks as
the tuner does (`tune.search.mixed`). Told is the share of the pool's best speed that it has reached
after 40 measurements, by the second times, and how many it needs for the best that 2/3 of the pool
at random holds.

What is timed is saved as it comes, and what a file has already is not timed again: pools grow over
several runs, a part of every kernel's at a time. Pools that were saved are read instead of
measured, from any machine, with the target that they are of.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import report
import tune_cases

from tilewright.rules import schedule
from tilewright.tensor.ir import Function
from tilewright.tensor.schedule import Schedule
from tilewright.tune.cost.choose import Layered, choose
from tilewright.tune.cost.model import Array, CostModel
from tilewright.tune.cost.trees import is_installed as has_trees
from tilewright.tune.fleet import Fleet
from tilewright.tune.functions import FunctionSpace, local_fleet
from tilewright.tune.plans import RuleSpace, parse_choice
from tilewright.tune.search import View, mixed
from tilewright.tune.sketch import SketchSpace
from tilewright.tune.space import Points
from tilewright.tune.treegru import is_installed as has_torch

BUDGET, BATCH = 40, 8
MARKS = (8, 16, 24, 40, 80, 200)
WANTED_MEDIAN, WANTED_EACH, WANTED_COUNT = 0.99, 0.97, 200
PAIRS, AGAIN, AGAIN_PAIRS = 3, 48, 15  # turns with the default plan; how many points once more
SECONDS = 0.4  # of a point's turns, at most
TOGETHER, PART = 50, 500  # points that are asked for at a time; of one kernel in turn


class RulePlans(RuleSpace):
    """The plans of the rule that takes a function's last block, as schedules."""

    def __init__(self, fn: Function, target: str, threads: int) -> None:
        self.function, self._target, self._threads = fn, target, threads
        super().__init__([schedule(fn, target, threads=threads).offers[-1]])

    def schedule(self, choice: str) -> Schedule:
        chosen = {self.name: parse_choice(choice)}
        made = schedule(self.function, self._target, threads=self._threads, choices=chosen)
        return made.schedule


@dataclass(frozen=True)
class Pool:
    """Points of one kernel that were timed."""

    name: str
    choices: list[str]
    points: Points
    features: Array
    ns: Array  # as searches see them
    true_ns: Array  # measured again where a point was among the fastest
    space: FunctionSpace

    @property
    def log_ratio(self) -> Array:
        return np.log(self.ns) - self.features[:, 0]


def space_of(kind: str, fn: Function, target: str, threads: int) -> FunctionSpace:
    made: type[RulePlans | SketchSpace] = RulePlans if kind == "rules" else SketchSpace
    return made(fn, target, threads=threads)


@dataclass
class Times:
    """What was timed of a kernel, by the time of its default plan: first, and of some once more."""

    first: dict[str, float] = field(default_factory=dict)  # by choice
    again: dict[str, float] = field(default_factory=dict)
    default_ns: list[float] = field(default_factory=list)

    def add(self, told: Mapping[str, Any]) -> None:
        self.first |= told["first"]
        self.again |= told["again"]
        self.default_ns += told["default_ns"]

    @property
    def fastest(self) -> list[str]:
        return sorted(self.first, key=lambda choice: self.first[choice])[:AGAIN]


def pool_of(name: str, space: FunctionSpace, times: Times) -> Pool | None:
    """What was timed, as far as this version still knows it."""
    kept = [
        (choice, point, ratio)
        for choice, ratio in times.first.items()
        if (point := space.point(choice)) is not None
    ]
    if len(kept) < min(2 * BATCH, space.size - 1):
        return None
    choices = [choice for choice, _, _ in kept]
    points = np.concatenate([point for _, point, _ in kept])
    ratios = np.array([ratio for _, _, ratio in kept])
    true = np.array([times.again.get(choice, ratio) for choice, _, ratio in kept])
    # What was not measured again is slower than what was: no luck of a first time counts.
    unsure = np.array([choice not in times.again for choice in choices])
    if times.again:
        slowest = max(times.again.get(each, 0.0) for each in times.fastest)
        true = np.where(unsure, np.maximum(true, slowest), true)
    ns = median(times.default_ns)
    return Pool(name, choices, points, space.features(points), ns * ratios, ns * true, space)


def wanted(space: FunctionSpace, count: int) -> list[str]:
    """Choices to time, in turn: half at random, half those that the estimate likes."""
    random = np.random.default_rng(7)
    drawn = space.sample(max(4 * count, 64), random)
    order = np.argsort(space.estimate(drawn), kind="stable")
    rows = np.concatenate([order[: count // 2], random.permutation(order[count // 2 :])])[:count]
    return [space.choice(drawn, int(row)) for row in random.permutation(rows)]


@dataclass(frozen=True)
class Raced:
    """Of turns of a point and the default plan."""

    ratio: float  # the point's time by the default's, in the middle
    default_ns: float


def raced(
    space: FunctionSpace,
    choices: Sequence[str],
    *,
    target: str,
    threads: int,
    fleet: Fleet,
    pairs: int,
) -> dict[str, Raced]:
    """Choices in turns with the default plan; those that fail are left out."""
    default = str(space.schedule(space.choice(space.default(), 0)).trace)
    asked, messages = [], []
    for choice in choices:
        try:
            trace = str(space.schedule(choice).trace)
        except ValueError:  # a refusal of the schedule
            continue
        asked.append(choice)
        messages.append(
            {
                "kind": "measure",
                "function": str(space.function),
                "target": target,
                "threads": threads,
                "trace": trace,
                "against": default,
                "pairs": pairs,
                "seconds": SECONDS,
                "lease_s": 60.0,
            }
        )
    found: dict[str, Raced] = {}
    for result in fleet.submit(messages):
        if not result.error:
            ns, against = result.value["ns"], result.value["against"]
            ratio = median(a / b for a, b in zip(ns, against, strict=True))
            found[asked[result.task]] = Raced(ratio, median(against))
    return found


# --------------------------------------------------------------------------- searches

Search = Callable[[Pool, np.random.Generator], list[int]]  # the order in which points are picked


def at_random(pool: Pool, random: np.random.Generator) -> list[int]:
    return random.permutation(len(pool.ns)).tolist()


def by_estimate(pool: Pool, random: np.random.Generator) -> list[int]:
    return np.argsort(pool.features[:, 0], kind="stable").tolist()


def genetic(pool: Pool, random: np.random.Generator) -> list[int]:
    """Mixtures of the best so far, or rather what is most like them in the pool."""
    order = at_random(pool, random)[: 2 * BATCH]
    left = set(range(len(pool.ns))) - set(order)
    while left:
        best = sorted(order, key=lambda at: pool.ns[at])[:BATCH]
        for _ in range(BATCH):
            if not left:
                break
            one, other = (pool.points[at] for at in random.choice(best, 2))
            child = np.where(random.random(len(one)) < 0.5, one, other)
            rest = np.array(sorted(left))
            near = (pool.points[rest] != child).sum(axis=1)
            pick = int(rest[np.argmin(near + random.random(len(rest)))])
            order.append(pick)
            left.discard(pick)
    return order


Make = Callable[[Pool], CostModel]


def by_model(make: Make, pool: Pool, random: np.random.Generator) -> list[int]:
    """The tuner's batches: what a model expects to be best, what it doubts, what is unlike."""
    view = View(pool.space, make(pool), random)
    order: list[int] = []
    left = np.ones(len(pool.ns), bool)
    places = {point.tobytes(): at for at, point in enumerate(np.ascontiguousarray(pool.points))}
    while left.any() and len(order) < max(MARKS):
        picked = mixed(view, pool.points[left], BATCH)
        rows = [places[point.tobytes()] for point in np.ascontiguousarray(picked)]
        order += rows
        left[rows] = False
        view.fit(pool.points[order], np.log(pool.ns[order]))
    return order


def with_transfer(others: Sequence[Pool], model: str) -> Make:
    """A model that has learned from other kernels what it may of features they share, and one that
    learns what is left."""

    def make(pool: Pool) -> CostModel:
        names = pool.space.feature_names
        places = {name: at for at, name in enumerate(names)}
        overall = choose(model, names)
        rows = []
        for each in others:
            told = each.space.feature_names
            shared = [at for at, name in enumerate(told) if name in places]
            row = np.zeros((len(each.ns), len(names)), np.float32)
            row[:, [places[told[at]] for at in shared]] = each.features[:, shared]
            rows.append(row)
        middles = [each.log_ratio - np.median(each.log_ratio) for each in others]
        overall.fit(np.concatenate(rows), np.concatenate(middles))
        return Layered(overall, choose(model, names))

    return make


# --------------------------------------------------------------------------- figures


def reached(pool: Pool, order: Sequence[int], count: int) -> float:
    """The share of the best speed after so many measurements."""
    return float(pool.true_ns.min() / pool.true_ns[list(order[:count])].min())


def needed(pool: Pool, order: Sequence[int], ns: float) -> int:
    """Measurements until something is as fast."""
    for count, at in enumerate(order, 1):
        if pool.true_ns[at] <= ns * 1.0001:
            return count
    return len(pool.ns)


def measure(options: argparse.Namespace) -> list[report.Figure]:
    pools = loaded(options) if options.load else measured(options)
    if not pools:
        raise SystemExit("no kernel has enough points")
    learner = options.model or ("trees" if has_trees() else "gaussian")
    curves: dict[str, list[list[float]]] = {}
    share: dict[str, list[float]] = {}
    count: dict[str, list[int]] = {}
    for pool in pools:
        others = [each for each in pools if each is not pool]
        for name, search in searches(learner, others).items():
            orders = [search(pool, np.random.default_rng(seed)) for seed in range(options.seeds)]
            curves.setdefault(name, []).append(
                [median(reached(pool, order, mark) for order in orders) for mark in MARKS]
            )
            share.setdefault(name, []).append(
                median(reached(pool, order, BUDGET) for order in orders)
            )
            held = np.random.default_rng(99).permutation(len(pool.ns))[: 2 * len(pool.ns) // 3]
            best = float(pool.true_ns[held].min())
            count.setdefault(name, []).append(
                int(median(needed(pool, order, best) for order in orders))
            )
    show(curves, len(pools))
    for pool, value in zip(pools, share[learner], strict=True):
        print(f"{pool.name:20} {learner} after {BUDGET}: {value:.3f}")
    return [*figures(share, learner), *sketch_figures(count, learner, options.space)]


def searches(learner: str, others: Sequence[Pool]) -> Mapping[str, Search]:
    found: dict[str, Search] = {
        "random": at_random,
        "GA": genetic,
        "estimate": by_estimate,
        learner: partial(by_model, lambda pool: choose(learner, pool.space.feature_names)),
    }
    if has_torch():
        found["treegru"] = partial(
            by_model, lambda pool: choose("treegru", pool.space.feature_names)
        )
    if others:
        found["transfer"] = partial(by_model, with_transfer(others, learner))
    return found


def show(curves: Mapping[str, list[list[float]]], kernels: int) -> None:
    print(f"share of the best speed after so many measurements, median of {kernels} kernels")
    print(f"{'':12}" + "".join(f"{mark:>8}" for mark in MARKS))
    for name, rows in curves.items():
        cells = [median(row[at] for row in rows) for at in range(len(MARKS))]
        print(f"{name:12}" + "".join(f"{cell:8.3f}" for cell in cells))


def figures(share: Mapping[str, list[float]], learner: str) -> list[report.Figure]:
    mine, what = share[learner], f"of the best after {BUDGET}"
    found = [
        report.at_least(f"{learner}: {what}", median(mine), "", WANTED_MEDIAN),
        report.at_least(f"{learner}: the worst kernel", min(mine), "", WANTED_EACH),
    ]
    others = {name: values for name, values in share.items() if name != learner}
    return found + [
        report.Figure(f"{name}: {what}", median(values), "") for name, values in others.items()
    ]


def sketch_figures(count: Mapping[str, list[int]], learner: str, space: str) -> list[report.Figure]:
    """How many measurements each search needs; what is asked for is asked of sketches alone."""
    found: list[report.Figure] = []
    needs = {name: float(median(counts)) for name, counts in count.items()}
    most = {learner: float(WANTED_COUNT), "transfer": needs[learner] / 2}
    for name, value in needs.items():
        what = f"{name}: measurements to random's best of 2/3"
        is_asked = space == "sketches" and name in most
        found.append(
            report.at_most(what, value, "", most[name])
            if is_asked
            else report.Figure(what, value, "")
        )
    return found


# --------------------------------------------------------------------------- pools


def is_chosen(name: str, only: str) -> bool:
    """Whether a kernel, `bert 3`, is one of those that are named, or of that kind: `bert`."""
    return not only or not {name, name.split()[0]}.isdisjoint(only.split(","))


def measured(options: argparse.Namespace) -> list[Pool]:
    latest = time.monotonic() + options.seconds
    spaces = {
        name: space_of(options.space, make(), options.target, options.threads)
        for name, make in tune_cases.CASES.items()
        if is_chosen(name, options.only)
    }
    before = saved([options.save], options) if options.save and options.save.exists() else {}
    times = {name: before.get(name, Times()) for name in spaces}
    asked = {name: wanted(space, options.points) for name, space in spaces.items()}
    with local_fleet(options.workers) as fleet:
        race = partial(raced, target=options.target, threads=options.threads, fleet=fleet)
        for at in range(0, options.points, PART):
            for name, space in spaces.items():
                some = [
                    each for each in asked[name][at : at + PART] if each not in times[name].first
                ]
                for begin in range(0, len(some), TOGETHER):
                    if time.monotonic() < latest:
                        part = some[begin : begin + TOGETHER]
                        keep(name, options, times[name], race(space, part, pairs=PAIRS))
                if time.monotonic() < latest:
                    part = [each for each in times[name].fastest if each not in times[name].again]
                    found = race(space, part, pairs=AGAIN_PAIRS)
                    keep(name, options, times[name], found, "again")
                    spare = latest - time.monotonic()
                    print(
                        f"{name}: {len(times[name].first)} points, {spare:.0f} s left", flush=True
                    )
    pools = [pool_of(name, space, times[name]) for name, space in spaces.items()]
    return [pool for pool in pools if pool is not None]


def keep(
    name: str,
    options: argparse.Namespace,
    times: Times,
    found: Mapping[str, Raced],
    which: str = "first",
) -> None:
    """Add what was timed, to the file too."""
    told: dict[str, Any] = {"first": {}, "again": {}}
    told["default_ns"] = [each.default_ns for each in found.values()]
    told[which] = {choice: each.ratio for choice, each in found.items()}
    times.add(told)
    if options.save and found:
        of = {"name": name, "space": options.space, "threads": options.threads}
        with options.save.open("a") as file:
            file.write(json.dumps(of | told) + "\n")


def saved(paths: Sequence[Path], options: argparse.Namespace) -> dict[str, Times]:
    """What files hold of the kernels that are asked for."""
    found: dict[str, Times] = {}
    for line in (line for path in paths for line in path.read_text().splitlines()):
        told = json.loads(line)
        if (told["space"], told["threads"]) != (options.space, options.threads):
            continue
        if is_chosen(told["name"], options.only):
            found.setdefault(told["name"], Times()).add(told)
    return found


def loaded(options: argparse.Namespace) -> list[Pool]:
    pools: list[Pool] = []
    for name, times in saved(options.load, options).items():
        fn = tune_cases.CASES[name]()
        pool = pool_of(name, space_of(options.space, fn, options.target, options.threads), times)
        if pool is not None:
            print(f"{name}: {len(pool.ns)} points")
            pools.append(pool)
    return pools


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--space", choices=("rules", "sketches"), default="sketches")
    parser.add_argument("--points", type=int, default=1500, help="timed of each kernel")
    parser.add_argument("--only", default="", help='kernels or kinds of them: "bert,resnet18 3"')
    parser.add_argument("--seconds", type=float, default=math.inf, help="of timing")
    parser.add_argument("--save", type=Path, help="go on with the pools in this file")
    parser.add_argument("--load", type=Path, nargs="*", help="read pools from these files")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--model", default="", help="the learner: trees, gaussian, rank")


if __name__ == "__main__":
    report.run(__doc__, measure, options_of)
