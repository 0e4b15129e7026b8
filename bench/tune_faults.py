"""Fault injection for the tuner: candidates that crash, hang or are wrong; tuners that are killed.

What `bench/tune.py faults` shows: every planted candidate is rejected for its own reason and no
other one is, the best that is found is a sound one, no finished record is ever lost, and tasks of
workers that die are recorded once.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import report
import tune_cases
from ray_cluster import ray_cluster
from report import Figure
from tune_faulty_server import KINDS, NONE, planted
from tune_kernels import KERNELS

SERVER = (sys.executable, str(Path(__file__).parent / "tune_faulty_server.py"))
HANG_S = 8.0  # how long a candidate may take
NAME = "matmul 100x100x100"  # one kernel
RECORDED, COMPILATIONS = "5x5", 42  # several; pairs of compilations
BATCH = 64
RAY_TASKS = 60
REASONS = {
    "crash": "crashed",
    "hang": "took over",
    "memory": "took over",
    "wrong": "another answer",
}


def faults(options: argparse.Namespace) -> list[Figure]:
    return [
        *rejections(options),
        *found_best(options),
        *budget_used(options),
        *kills(options),
        *lost_workers(),
        *compile_cost(options.threads),
    ]


def subject(threads: int, name: str = NAME) -> tuple[Any, Any]:
    """An optimized model of the tail, and what it is compiled for."""
    from tilewright.base.target import Target
    from tilewright.driver.kernels import KernelSetting
    from tilewright.driver.optimize import optimize
    from tilewright.driver.options import Options

    target = Target.parse("cpu")
    kernel = next(each for each in KERNELS if each.name == name)
    graph = optimize(kernel.module(), target, Options(threads=threads))
    return graph, KernelSetting(target, threads)


# --------------------------------------------------------------------------- planted candidates


def rejections(options: argparse.Namespace) -> list[Figure]:
    """So many candidates of every kind: all that were planted fail, for their reason."""
    from tilewright.driver.lowering import jobs_of
    from tilewright.driver.tuning.lab import Checkers
    from tilewright.driver.tuning.messages import Check
    from tilewright.driver.tuning.table import Built, built
    from tilewright.tune.process import Limits

    graph, setting = subject(options.threads)
    (job,) = jobs_of(graph, setting).values()
    default = built(job)
    checkers = Checkers(Limits(seconds=HANG_S, memory_bytes=8 << 30), command=SERVER)
    wanted = dict.fromkeys(KINDS, options.count)
    caught: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    sound = unsound = 0
    try:
        for jobs in batches(job, wanted):
            questions = {name: Check(each, default, {}) for name, each in jobs.items()}
            for name, answer in checkers.ask(questions, 600.0):
                kind, refused = planted(name), not isinstance(answer, Built)
                if kind == NONE:
                    sound, unsound = sound + (not refused), unsound + refused
                elif refused and REASONS[kind] in str(answer):
                    caught[kind] += 1
                else:
                    missed[kind] += 1
    finally:
        checkers.close()
    print(f"sound candidates: {sound} passed, {unsound} refused")
    return [
        *(report.at_least(f"{kind}: rejected", caught[kind], "", wanted[kind]) for kind in KINDS),
        report.at_most("planted candidates that passed", sum(missed.values()), "", 0),
        report.at_most("sound candidates that were refused", unsound, "", 0),
    ]


def batches(job: Any, wanted: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Jobs with choices at random until there are enough of every kind; few that are sound."""
    from tilewright.driver.tuning.records import choices_of
    from tilewright.driver.tuning.tuning import spaces_of

    (space,) = spaces_of(job)
    left, sound = dict(wanted), max(wanted.values())
    points = space.sample(40 * sum(wanted.values()), np.random.default_rng(16))
    batch: dict[str, Any] = {}
    for row in range(len(points)):
        made = replace(job, choices=choices_of({space.name: space.choice(points, row)}))
        kind = planted(made.name)
        if kind == NONE:
            sound -= 1
        else:
            left[kind] -= 1
        if (sound if kind == NONE else left[kind]) >= 0:
            batch[made.name] = made
        done = not any(each > 0 for each in left.values())
        if len(batch) == BATCH or done:
            yield batch
            batch = {}
        if done:
            return


def found_best(options: argparse.Namespace) -> list[Figure]:
    """Tuning among such candidates: what wins is sound."""
    from tilewright.driver.lowering import jobs_of
    from tilewright.driver.tuning.records import choices_of
    from tilewright.driver.tuning.tuning import Settings, tune_model
    from tilewright.tune.budget import Budget
    from tilewright.tune.database import Records
    from tilewright.tune.process import Limits

    graph, setting = subject(options.threads)
    jobs = jobs_of(graph, setting)
    limits = Limits(seconds=HANG_S, memory_bytes=8 << 30)
    settings = Settings(limits=limits, command=SERVER)
    budget = Budget(minutes=options.minutes)
    outcome = tune_model(graph, setting, budget, Records.open(None), settings)
    kinds = [
        planted(replace(jobs[name], choices=choices_of(winner.choices)).name)
        for name, winner in outcome.winners.items()
    ]
    print(f"{outcome.trials} candidates, {outcome.failed} failed, gain {outcome.gain:.2f}")
    return [report.at_most("planted candidates that won", sum(map(bool, kinds)), "", 0)]


def budget_used(options: argparse.Namespace) -> list[Figure]:
    """The whole of `tw.compile(tune=...)`, choices of the graph included, with nothing cached: by
    the clock of who waits for it."""
    import tilewright as tw
    from tilewright.tune.budget import Budget

    model = next(each for each in KERNELS if each.name == RECORDED).module()
    budget = Budget(minutes=options.minutes)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TILEWRIGHT_CACHE_DIR"], before = folder, os.environ.get("TILEWRIGHT_CACHE_DIR")
        try:
            begin = time.monotonic()
            module: Any = tw.compile(model, threads=options.threads, tune=budget, database="")
            seconds = time.monotonic() - begin
        finally:
            if before is None:
                del os.environ["TILEWRIGHT_CACHE_DIR"]
            else:
                os.environ["TILEWRIGHT_CACHE_DIR"] = before
    print(f"{module.tuning.trials} candidates in {seconds:.1f} of {budget.seconds:.0f} s")
    return [
        report.at_most("budget used", seconds / budget.seconds, "", 1.05),
        report.at_least("candidates of kernels within the budget", module.tuning.trials, "", 1),
    ]


# --------------------------------------------------------------------------- workers that die


def lost_workers() -> list[Figure]:
    """Of three workers on a Ray cluster of its own two die while they measure a convolution's
    sketches: every task is answered, and once."""
    if importlib.util.find_spec("ray") is None:
        print("Ray is not installed: no cluster to lose workers of")
        return []
    from tilewright.tune.fleet.cluster import ray_fleet

    (space,) = tune_cases.spaces("", 1, ("bert 7",)).values()
    points = space.sample(RAY_TASKS, np.random.default_rng(16))
    messages = [
        tune_cases.message_of(space, space.choice(points, row)) for row in range(len(points))
    ]
    token = secrets.token_hex(16)
    with ray_cluster(token) as address, ray_fleet(address, token=token, workers=3) as fleet:
        echoes = [{"kind": "echo"}] * 6
        pids = {each.value["pid"] for _ in range(4) for each in fleet.submit(echoes)}
        results = []
        for result in fleet.submit(messages):
            results.append(result)
            if len(results) == RAY_TASKS // 4:
                for pid in sorted(pids)[:2]:
                    os.kill(pid, signal.SIGKILL)
        lost = sum(worker.lost for worker in fleet.workers)
    times = Counter(result.task for result in results)
    print(f"{len(pids)} workers, {lost} lost, {len(results)} answers to {len(messages)} tasks")
    failed = [result.error for result in results if result.error]
    return [
        report.at_least("Ray workers that died", lost, "", 2),
        report.at_least("tasks that were recorded", len(times), "", len(messages)),
        report.at_most("tasks that were recorded twice", len(results) - len(times), "", 0),
        report.at_most("tasks that failed", len(failed), "", 0),
    ]


# --------------------------------------------------------------------------- what records cost


def compile_cost(threads: int) -> list[Figure]:
    """Compiling with records, of these kernels and of others, against compiling without.

    All kernels come from the cache. Of processors' time, since other work makes none of it.
    """
    import tilewright as tw
    from tilewright.driver.lowering import jobs_of
    from tilewright.driver.tuning.records import task_key
    from tilewright.driver.tuning.tuning import spaces_of
    from tilewright.tune.database import Database
    from tilewright.tune.record import Trial, Winner

    graph, setting = subject(threads, RECORDED)
    model = next(each for each in KERNELS if each.name == RECORDED).module()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.sqlite"
        with Database(path) as database:
            for job in jobs_of(graph, setting).values():
                own = task_key(job)
                defaults = {each.name: each.choice(each.default(), 0) for each in spaces_of(job)}
                database.keep(own, Winner(defaults, 1.1))
                for at in range(200):
                    other = replace(own, text=f"{at} {own.text}")
                    database.add(other, *(Trial("y", str(number), 1.0) for number in range(20)))
                    database.keep(other, Winner(defaults, 1.1))
        seconds: dict[str, list[float]] = {"without": [], "with": []}
        for turn in range(COMPILATIONS):
            sides = [("without", ""), ("with", path)]
            for side, given in sides if turn % 2 else sides[::-1]:
                begin = time.process_time()
                tw.compile(model, threads=threads, database=given)
                seconds[side].append(time.process_time() - begin)
    first, second = (report.median(each[2:]) for each in seconds.values())
    return [report.at_most("compiling with records by without", second / first, "x", 1.05)]


# --------------------------------------------------------------------------- killed tuners


def kills(options: argparse.Namespace) -> list[Figure]:
    """Tuners that are killed at random moments: what they had finished is on disk."""
    from tilewright.tune.database import Database

    lost = told = 0
    moments = random.Random(16)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.sqlite"
        for _ in range(options.kills):
            choices = killed(path, moments, options.threads)
            with Database(path) as database:
                known = {(line.record.space, line.record.choice) for line in database.query()
                         if hasattr(line.record, "choice")}  # fmt: skip
            told += len(choices)
            lost += len([each for each in choices if each not in known])
    print(f"{options.kills} kills, {told} records were told before them")
    return [report.at_most("finished records that were lost", lost, "", 0)]


def killed(path: Path, moments: random.Random, threads: int) -> list[tuple[str, str]]:
    """What a tuner told before it was killed."""
    command = [sys.executable, __file__, str(path), str(threads)]
    victim = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert victim.stdout is not None
    told = []
    try:
        first = victim.stdout.readline()
        told += [first] if first else []
        time.sleep(moments.uniform(0.0, 1.0))
    finally:
        victim.kill()
    told += victim.stdout.readlines()
    victim.wait()
    victim.stdout.close()
    whole = [line for line in told if line.endswith("\n")]
    return [
        (space, choice) for space, _, choice in (line.strip().partition("\t") for line in whole)
    ]


def be_victim(path: str, threads: int) -> None:
    """Tune, and say of each record when it is written."""
    from tilewright.driver.tuning.tuning import tune_model
    from tilewright.tune.budget import Budget
    from tilewright.tune.database import Database, Records
    from tilewright.tune.record import TaskKey, Trial

    class Telling(Database):
        def add(self, key: TaskKey, *trials: Trial) -> None:
            super().add(key, *trials)
            for each in trials:
                print(f"{each.space}\t{each.choice}", flush=True)

    graph, setting = subject(threads)
    tune_model(graph, setting, Budget(minutes=10), Records(Telling(path)))


if __name__ == "__main__":
    be_victim(sys.argv[1], int(sys.argv[2]))
