"""How many measurements search needs: curves of random, GA, trees, TreeGRU, and with transfer.

    python bench/tune_quality.py [--json FILE] [--space rules|sketches] [--points 1500] [--only X]
                                 [--save FILE] [--load FILE] [--seeds 3] [--workers N] [--threads 1]
                                 [--target "cpu -mcpu=..."]

For every kernel (12 convolutions of ResNet-18, 9 depthwise ones, 8 GEMMs of BERT) a pool of points
is built, checked and timed once: half at random, half those that the estimate likes, each in turns
with the default plan, since a machine has phases. The fastest are timed once more, for longer: of
1,500 times that vary by a few percent the least is one of luck. Each search then picks from the
pool, eight at a time, knowing only the first times of what it has picked before; `trees` picks as
the tuner does (`tune.search.mixed`). Told is the share of the pool's best speed that it has reached
after 40 measurements, by the second times, and how many it needs for the best that 2/3 of the pool
at random holds. A pool that was saved is read instead of measured, with the target that it is of.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

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
TOGETHER = 100  # points that are asked for at a time


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


@dataclass(frozen=True)
class Times:
    """What was timed of a kernel: choices, nanoseconds, and once more of some."""

    choices: list[str]
    ns: list[float]
    again_ns: dict[str, float]


def pool_of(name: str, space: FunctionSpace, times: Times) -> Pool | None:
    """What was timed, as far as this version still knows it."""
    kept = [
        (choice, point, took)
        for choice, took in zip(times.choices, times.ns, strict=True)
        if (point := space.point(choice)) is not None
    ]
    if len(kept) < 2 * BATCH:
        return None
    choices = [choice for choice, _, _ in kept]
    points = np.concatenate([point for _, point, _ in kept])
    ns = np.array([took for _, _, took in kept])
    true_ns = np.array([times.again_ns.get(choice, took) for choice, _, took in kept])
    # What was not measured again is slower than what was: no luck of a first time counts.
    unsure = np.array([choice not in times.again_ns for choice in choices])
    if times.again_ns:
        true_ns = np.where(unsure, np.maximum(true_ns, max(times.again_ns.values())), true_ns)
    return Pool(name, choices, points, space.features(points), ns, true_ns, space)


def timed(space: FunctionSpace, options: argparse.Namespace, fleet: Fleet) -> Times:
    """Time points: half at random, half those that the estimate likes; the fastest once more."""
    count: int = options.points
    race = partial(raced, space, target=options.target, threads=options.threads, fleet=fleet)
    random = np.random.default_rng(7)
    drawn = space.sample(max(4 * count, 64), random)
    order = np.argsort(space.estimate(drawn), kind="stable")
    rows = np.concatenate([order[: count // 2], random.permutation(order[count // 2 :])])[:count]
    choices = [space.choice(drawn, int(row)) for row in random.permutation(rows)]
    latest = time.monotonic() + options.seconds
    first: dict[str, Raced] = {}
    for at in range(0, len(choices), TOGETHER):
        if time.monotonic() > latest:
            break
        first |= race(choices[at : at + TOGETHER], pairs=PAIRS)
    default_ns = median(each.default_ns for each in first.values())
    ns = {choice: each.ratio * default_ns for choice, each in first.items()}
    fastest = sorted(ns, key=lambda choice: ns[choice])[:AGAIN]
    again = race(fastest, pairs=AGAIN_PAIRS)
    again_ns = {choice: each.ratio * default_ns for choice, each in again.items()}
    return Times(list(ns), list(ns.values()), again_ns)


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
    pools: list[Pool] = []
    with local_fleet(options.workers) as fleet:
        for name, make in tune_cases.CASES.items():
            if not is_chosen(name, options.only):
                continue
            begin = time.perf_counter()
            space = space_of(options.space, make(), options.target, options.threads)
            times = timed(space, options, fleet)
            pool = pool_of(name, space, times)
            spent = time.perf_counter() - begin
            print(f"{name}: {len(times.ns)} points in {spent:.0f} s", flush=True)
            if options.save:
                told = {"name": name, "space": options.space, "threads": options.threads}
                with options.save.open("a") as file:
                    file.write(json.dumps(told | asdict(times)) + "\n")
            if pool is not None:
                pools.append(pool)
    return pools


def loaded(options: argparse.Namespace) -> list[Pool]:
    pools: list[Pool] = []
    for line in options.load.read_text().splitlines():
        told = json.loads(line)
        if told["space"] != options.space:
            continue
        if not is_chosen(told["name"], options.only):
            continue
        fn = tune_cases.CASES[told["name"]]()
        space = space_of(options.space, fn, options.target, told["threads"])
        times = Times(told["choices"], told["ns"], told["again_ns"])
        pool = pool_of(told["name"], space, times)
        if pool is not None:
            pools.append(pool)
    return pools


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--space", choices=("rules", "sketches"), default="sketches")
    parser.add_argument("--points", type=int, default=1500, help="timed of each kernel")
    parser.add_argument("--only", default="", help='kernels or kinds of them: "bert,resnet18 3"')
    parser.add_argument("--seconds", type=float, default=math.inf, help="of timing, per kernel")
    parser.add_argument("--save", type=Path, help="append pools to this file")
    parser.add_argument("--load", type=Path, help="read pools from this file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--model", default="", help="the learner: trees, gaussian, rank")


if __name__ == "__main__":
    report.run(__doc__, measure, options_of)
