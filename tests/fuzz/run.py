"""Random programs under random schedules, in several processes.

    python tests/fuzz/run.py --programs 5000 --jobs 2
    python tests/fuzz/run.py --first 4000     that run again: each prints its first seed
    python tests/fuzz/run.py --seed 4711            one of them again, with the smallest trace

Each program is scheduled at random; the schedule is printed and parsed, its trace written and
replayed, and it is run by the interpreter before and after lowering, and then as native code. The
answer must not change.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["TILEWRIGHT_CHECKED"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import check
import programs
import traces
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from seeds import begin, until
from workers import Lost, run_jobs

from tilewright.tensor.schedule import Schedule

SECONDS = 120.0  # for one program; an idle machine needs a hundredth


def outcome_of(seed: int, failure: str = "") -> dict[str, Any]:
    return {"seed": seed, "kind": "", "applied": {}, "refused": {}, "failure": failure}


def one(job: tuple[int, bool]) -> dict[str, Any]:
    """The outcome of one seed, as plain data."""
    seed, lowered = job
    found = outcome_of(seed)
    try:
        program = programs.random_program(seed)
        found["kind"] = program.kind
        outcome = traces.random_trace(program.function, seed)
        found["applied"], found["refused"] = dict(outcome.applied), dict(outcome.refused)
        sch = outcome.schedule
        failure = check.check_function(program, sch.function, sch.trace, seed=seed, lowered=lowered)
        if failure is not None:
            found["failure"] = failure.kind
    except Exception as error:
        found["failure"] = f"crash: {type(error).__name__}: {str(error)[:200]}"
    return found


def explain(seed: int, lowered: bool, console: Console) -> bool:
    """Run one seed and show, if it fails, the smallest trace that does."""
    program = programs.random_program(seed)
    try:
        outcome = traces.random_trace(program.function, seed)
    except Exception:
        console.print(f"seed {seed}: a primitive crashed on\n{program.function}", markup=False)
        console.print(traceback.format_exc(), markup=False)
        return False
    sch = outcome.schedule
    failure = check.check_function(program, sch.function, sch.trace, seed=seed, lowered=lowered)
    if failure is None:
        console.print(f"seed {seed}: {program.kind}, {len(sch.trace)} steps, all well")
        return True
    small = check.smallest(program, sch.trace, failure, seed=seed)
    again = Schedule(program.function)
    console.print(f"seed {seed}: {failure.kind}\n\n{program.function}\n{small}", markup=False)
    try:
        small.apply(again)
        console.print(str(again.function), markup=False)
    except Exception as error:
        console.print(str(error), markup=False)
    found = check.check(program, small, seed=seed, lowered=lowered)
    console.print("" if found is None else found.story, markup=False)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--first", type=int, help="the first seed; without it, a fresh one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.0, help="begin none after so long")
    parser.add_argument("--seed", type=int, help="just this one, explained")
    parser.add_argument("--no-lower", action="store_true", help="leave lowering out")
    parser.add_argument("--explain", type=int, default=3, help="how many failures to shrink")
    options = parser.parse_args()
    console = Console()
    lowered = not options.no_lower
    if options.seed is not None:
        return 0 if explain(options.seed, lowered, console) else 1
    first = begin(options.first, options.programs, console)
    jobs = [(first + at, lowered) for at in range(options.programs)]
    start = time.perf_counter()
    applied: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    bar = Progress(
        TextColumn("{task.completed}/{task.total} programs"),
        BarColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeRemainingColumn(),
        console=console,
    )
    with bar:
        task = bar.add_task("", total=len(jobs), failed=0)
        for job, found in run_jobs(
            "run",
            "one",
            until(jobs, options.seconds),
            workers=options.jobs,
            seconds=SECONDS,
            most=1000,
        ):
            if isinstance(found, Lost):
                found = outcome_of(job[0], failure=found.why)
            kinds[found["kind"]] += 1
            applied.update(found["applied"])
            refused.update(found["refused"])
            if found["failure"]:
                failures.append(found)
                # At once: a long run may be cut off.
                line = f"seed {found['seed']}: {found['failure']}"
                console.print(line, markup=False, soft_wrap=True)
                sys.stdout.flush()
            bar.update(task, advance=1, failed=len(failures))
            done = sum(kinds.values())
            if not console.is_terminal and done % max(1, len(jobs) // 10) == 0:
                console.print(f"{done}/{len(jobs)} programs, {len(failures)} failed")
    report(console, kinds, applied, refused, time.perf_counter() - start)
    failures.sort(key=lambda found: found["seed"])
    console.print(f"failures: {len(failures)}")
    for kind, count in Counter(found["failure"] for found in failures).most_common():
        seeds = [str(found["seed"]) for found in failures if found["failure"] == kind]
        console.print(f"  {count} x {kind}: seeds {', '.join(seeds[:10])}", markup=False)
    shown: set[str] = set()
    for found in failures:
        if found["failure"] not in shown and len(shown) < options.explain:
            shown.add(found["failure"])
            if "crash (" in found["failure"] or "time limit" in found["failure"]:
                continue
            explain(found["seed"], lowered, console)
    return 1 if failures else 0


def report(
    console: Console,
    kinds: Counter[str],
    applied: Counter[str],
    refused: Counter[str],
    seconds: float,
) -> None:
    console.print(f"programs: {sum(kinds.values())} in {seconds:.0f} s")
    for kind, count in kinds.most_common():
        console.print(f"  {kind:<24}{count:>8}")
    console.print(f"primitives applied: {sum(applied.values())}{'':<12}(refused)")
    for name, count in applied.most_common():
        console.print(f"  {name:<24}{count:>8}{refused.get(name, 0):>12}")


if __name__ == "__main__":
    sys.exit(main())
