"""Throughput and accuracy of scoring candidates: features and trees.

    python bench/tune_speed.py [--json FILE] [--points N] [--trials 200] [--only X] [--workers N]
                               [--save FILE] [--load FILE --target "cpu -mcpu=..."]

A score is what search ranks by: the estimate, corrected by the cost model from the features, for
points of sketches that nobody has built. Two threads score halves, as a tuner on two cores does.
Rank correlations are Spearman's, over points that were not learned from: of the estimate alone, and
after some trials. Points are timed on one thread, one at a time; what was timed and saved is read
instead, with the target that it is of.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import report
import tune_cases

from tilewright.tune.cost.choose import choose
from tilewright.tune.cost.model import Array, CostModel
from tilewright.tune.functions import local_fleet
from tilewright.tune.sketch import SketchSpace
from tilewright.tune.space import Points

WANTED_PER_SECOND = 200_000
WANTED_ESTIMATE, WANTED_LEARNED = 0.6, 0.9
HELD_OUT = 80
RANKED = ("resnet18 5", "resnet18 8", "bert 0", "depthwise 4")
CORES = 2
CHUNK = 1 << 14


def score(space: SketchSpace, model: CostModel, points: Points) -> Array:
    """What search ranks by."""
    found = np.empty(len(points))
    for start in range(0, len(points), CHUNK):
        features = space.features(points[start : start + CHUNK])
        found[start : start + CHUNK] = features[:, 0] + model.predict(features).mean
    return found


def ranks(a: Array, b: Array) -> float:
    """Spearman's correlation."""
    order = [np.argsort(np.argsort(each, kind="stable")) for each in (a, b)]
    return float(np.corrcoef(*order)[0, 1])


def speed(options: argparse.Namespace) -> list[report.Figure]:
    space = SketchSpace(tune_cases.CASES["resnet18 5"](), threads=2)
    random = np.random.default_rng(0)
    points = space.sample(min(options.points, 40_000), random)
    repeats = -(-options.points // len(points))
    known = space.features(points[:200])
    model = choose(options.model, space.feature_names)
    model.fit(known, random.standard_normal(200) * 0.3)
    score(space, model, points[:CHUNK])
    halves = np.array_split(np.tile(points, (repeats, 1))[: options.points], CORES)
    rates: dict[str, float] = {}
    with ThreadPoolExecutor(CORES) as pool:
        begin, used = time.perf_counter(), time.process_time()
        list(pool.map(lambda half: score(space, model, half), halves))
        spent, cpu = time.perf_counter() - begin, time.process_time() - used
    rates["wall"] = options.points / spent
    begin = time.perf_counter()
    space.features(points)
    rates["features"] = len(points) / (time.perf_counter() - begin)
    print(f"{model.name}: {options.points} points in {spent:.2f} s, {cpu:.2f} s of processors")
    return [
        report.at_least("candidates scored, 2 cores", rates["wall"], "1/s", WANTED_PER_SECOND),
        report.Figure("candidates scored per second of a core", options.points / cpu, "1/s"),
        report.Figure("features alone, 1 core", rates["features"], "1/s"),
    ]


def timed(options: argparse.Namespace) -> Iterator[tuple[SketchSpace, Points, Array]]:
    """Spaces of kernels, points of each, and their nanoseconds."""
    if options.load:
        for line in options.load.read_text().splitlines():
            told = json.loads(line)
            name = told["name"]
            space = SketchSpace(tune_cases.CASES[name](), options.target, threads=1)
            rows = [space.point(choice) for choice in told["choices"]]
            known = [(row, ns) for row, ns in zip(rows, told["ns"], strict=True) if row is not None]
            points = np.concatenate([row for row, _ in known])
            yield space, points, np.array([ns for _, ns in known])
        return
    with local_fleet(options.workers) as fleet:
        for name in RANKED:
            if options.only not in name:
                continue
            space = tune_cases.spaces("", 1, (name,))[name]
            points = space.sample(options.trials + HELD_OUT, np.random.default_rng(1))
            found = tune_cases.measured(space, points, fleet)
            rows = np.array(list(found))
            ns = np.array(list(found.values()))
            if options.save:
                choices = [space.choice(points, int(row)) for row in rows]
                told = {"name": name, "choices": choices, "ns": ns.tolist()}
                with options.save.open("a") as file:
                    file.write(json.dumps(told) + "\n")
            yield space, points[rows], ns


def quality(options: argparse.Namespace) -> list[report.Figure]:
    figures, alone, learned = [], [], []
    for space, points, ns in timed(options):
        features = space.features(points)
        trials = min(options.trials, len(ns) - 20)
        logs = np.log(ns) - features[:, 0]
        rest = slice(trials, None)
        before = ranks(features[rest, 0], ns[rest])
        model = choose(options.model, space.feature_names)
        model.fit(features[:trials], logs[:trials])
        after = ranks(features[rest, 0] + model.predict(features[rest]).mean, ns[rest])
        print(
            f"{space.function.name}: {len(ns)} points timed, rank correlation "
            f"{before:.2f} by the estimate, {after:.2f} after {trials} by {model.name}",
            flush=True,
        )
        alone.append(before)
        learned.append(after)
    if alone:
        figures.append(
            report.at_least(
                "rank correlation of the estimate", float(np.mean(alone)), "", WANTED_ESTIMATE
            )
        )
        figures.append(
            report.at_least(
                f"rank correlation after {options.trials} trials",
                float(np.mean(learned)),
                "",
                WANTED_LEARNED,
            )
        )
    return figures


def measure(options: argparse.Namespace) -> list[report.Figure]:
    return speed(options) + (quality(options) if options.trials else [])


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--points", type=int, default=400_000)
    parser.add_argument("--trials", type=int, default=200, help="0: speed alone")
    parser.add_argument("--workers", type=int, default=2, help="processes that build")
    parser.add_argument("--only", default="")
    parser.add_argument("--save", type=Path, help="append what was timed to this file")
    parser.add_argument("--load", type=Path, help="read what was timed from this file")
    parser.add_argument("--target", default="cpu", help="of what is loaded")
    parser.add_argument("--model", default="")


if __name__ == "__main__":
    report.run(__doc__, measure, options_of)
