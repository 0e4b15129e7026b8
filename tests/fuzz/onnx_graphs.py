"""Random valid ONNX models, by ONNX Runtime and by us, at several sizes of their dimensions.

    python tests/fuzz/onnx_graphs.py --graphs 1000 --jobs 2
    python tests/fuzz/onnx_graphs.py --first 4000     that run again: each prints its first seed
    python tests/fuzz/onnx_graphs.py --seed 4711        one of them again, made small if it fails
    python tests/fuzz/onnx_graphs.py --kind large       kernels of the sizes that layers have
    python tests/fuzz/onnx_graphs.py --kind varied      blocks of real models, with small changes
    python tests/fuzz/onnx_graphs.py --how planned      kernels by plans drawn at random
    python tests/fuzz/onnx_graphs.py --how optimized    no kernels: graph passes of many targets
    python tests/fuzz/onnx_graphs.py --how device       kernels for GPUs, interpreted

Needs onnxruntime (the extra `bench`). Differences that are no faults are listed, with reasons, in
onnx_differences.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from onnx_check import (
    AGREED,
    DEVICE,
    EXPLAINED,
    FAILED,
    INTERPRETED,
    NATIVE,
    OPTIMIZED,
    PLANNED,
    REFUSED,
    Outcome,
    check_case,
)
from onnx_random import KINDS
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from seeds import begin, until
from workers import Lost, run_jobs

SECONDS = 120.0  # for one model
HOW = (NATIVE, PLANNED, DEVICE, OPTIMIZED, INTERPRETED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--first", type=int, help="the first seed; without it, a fresh one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.0, help="begin none after so long")
    parser.add_argument(
        "--how", choices=(NATIVE, PLANNED, DEVICE, OPTIMIZED, INTERPRETED), default=NATIVE
    )
    parser.add_argument("--kind", choices=tuple(KINDS), default="random", help="of models")
    parser.add_argument("--seed", type=int, help="just this one, explained")
    parser.add_argument("--explain", type=int, default=3, help="how many failures to make small")
    options = parser.parse_args()
    console = Console()
    if options.seed is not None:
        return 0 if explain(options.seed, options, console) else 1
    start = time.perf_counter()
    outcomes = run(options, console)
    report(console, outcomes, time.perf_counter() - start)
    failures = [outcome for outcome in outcomes if outcome.status == FAILED]
    shown: set[str] = set()
    for outcome in failures:
        if outcome.why[:40] not in shown and len(shown) < options.explain:
            shown.add(outcome.why[:40])
            if "crash" not in outcome.why and "time limit" not in outcome.why:
                explain(outcome.seed, options, console)
    return 1 if failures else 0


def run(options: argparse.Namespace, console: Console) -> list[Outcome]:
    first = begin(options.first, options.graphs, console)
    jobs = [(first + at, options.how, options.kind) for at in range(options.graphs)]
    outcomes: list[Outcome] = []
    bar = Progress(
        TextColumn("{task.completed}/{task.total} models"),
        BarColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeRemainingColumn(),
        console=console,
    )
    with bar:
        task = bar.add_task("", total=len(jobs), failed=0)
        for job, end in run_jobs(
            "onnx_check",
            "check_seed",
            until(jobs, options.seconds),
            workers=options.jobs,
            seconds=SECONDS,
            pinned=True,
        ):
            outcomes.append(Outcome(job[0], FAILED, end.why) if isinstance(end, Lost) else end)
            failed = sum(outcome.status == FAILED for outcome in outcomes)
            bar.update(task, advance=1, failed=failed)
            if (last := outcomes[-1]).status == FAILED:  # at once: a long run may be cut off
                console.print(f"seed {last.seed}: {last.why}", markup=False, soft_wrap=True)
                sys.stdout.flush()
            if not console.is_terminal and len(outcomes) % max(1, len(jobs) // 10) == 0:
                console.print(f"{len(outcomes)}/{len(jobs)} models, {failed} failed")
    return sorted(outcomes, key=lambda outcome: outcome.seed)


def report(console: Console, outcomes: list[Outcome], seconds: float) -> None:
    operators: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    for outcome in outcomes:
        operators.update(outcome.operators)
        dtypes.update(outcome.dtypes)
    runs = sum(outcome.runs for outcome in outcomes)
    console.print(f"models: {len(outcomes)}, runs: {runs}, in {seconds:.0f} s")
    console.print(f"operators: {len(operators)} kinds, {operators.total()} nodes")
    line = ", ".join(f"{name} {count}" for name, count in operators.most_common())
    console.print(line, markup=False, soft_wrap=True)
    line = ", ".join(f"{name} {count}" for name, count in dtypes.most_common())
    console.print(f"element types of inputs: {line}", markup=False, soft_wrap=True)
    fallbacks = Counter(name for outcome in outcomes for name in outcome.fallbacks)
    partly = sum(bool(outcome.fallbacks) for outcome in outcomes)
    console.print(f"models with operators that are not native: {partly} {dict(fallbacks)}")
    for status in (AGREED, EXPLAINED, REFUSED, FAILED):
        chosen = [outcome for outcome in outcomes if outcome.status == status]
        console.print(f"{status}: {len(chosen)}")
        if status == AGREED:
            continue
        for why, count in Counter(outcome.why for outcome in chosen).most_common(40):
            seeds = [str(outcome.seed) for outcome in chosen if outcome.why == why]
            line = f"  {count} x {why}: seeds {', '.join(seeds[:6])}"
            console.print(line, markup=False, soft_wrap=True)


def explain(seed: int, options: argparse.Namespace, console: Console) -> bool:
    """Run one seed and show, if it fails, a small part that does."""
    import onnx
    from onnx_shrink import shrunk

    how = options.how
    case = KINDS[options.kind](seed)
    outcome = check_case(case, how)
    console.print(f"seed {seed}: {outcome.status} {outcome.why}", markup=False, soft_wrap=True)
    if outcome.status != FAILED:
        return True
    small, why = shrunk(case, how)
    text = onnx.printer.to_text(small.model)
    console.print(f"{text}\n{why.why}", markup=False, soft_wrap=True)
    for feeds in small.feeds:
        shapes = {name: f"{array.dtype}{list(array.shape)}" for name, array in feeds.items()}
        console.print(str(shapes), markup=False, soft_wrap=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
