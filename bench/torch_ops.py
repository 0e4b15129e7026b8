"""How much of PyTorch's own table of operators is native.

    python bench/torch_ops.py [--how native] [--jobs 2] [--filter REGEX] [--failures] [--limit N]
                              [--journal FILE] [--stop-after SECONDS]

Every entry of `op_db` on every sample, at f32, i64 and bool, through `tw.compile`, fallbacks
refused. Each entry runs in a worker process: a crash costs one. An entry is native where all its
samples are right; samples that torch.export itself cannot trace are left out, and counted.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import journal
import report
from journal import Journal
from report import Figure

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fuzz"))

from torch_cases import CRASHED, DTYPES, NATIVE, NONE, REFUSED, UNTRACED, WRONG, Outcome, names
from workers import Lost, run_jobs

WANT_NATIVE = 610  # of 701 entries, all samples of all three element types right
LEFT = "not reached"
SECONDS = 300.0  # for one entry and element type


def measure(options: argparse.Namespace) -> list[Figure]:
    chosen = {name: at for name, at in names() if re.search(options.filter, name)}
    kinds, kept = options.dtypes.split(","), Journal.of(options)
    cases = {f"{name} {dtype}": (at, dtype) for name, at in chosen.items() for dtype in kinds}
    case_of = {at_dtype: case for case, at_dtype in cases.items()}
    jobs = [(*cases[case], options.how, options.limit) for case in cases if case not in kept.found]
    ends = run_jobs("torch_cases", "run_entry", jobs, workers=options.jobs, seconds=SECONDS)
    for (at, dtype, *_), end in report.tracked(kept.limited(ends), "operators", len(jobs)):
        outcome = Outcome(CRASHED, end.why) if isinstance(end, Lost) else end
        case = case_of[at, dtype]
        kept.add(case, **asdict(outcome))
        if options.failures and outcome.status not in (NATIVE, NONE):
            print(f"{case}: {outcome.status}: {outcome.message[:400]}", flush=True)
    total: collections.Counter[str] = collections.Counter()
    by_name: dict[str, list[str]] = collections.defaultdict(list)
    for name in chosen:
        found = [kept.found.get(f"{name} {dtype}") for dtype in kinds]
        status = worst({LEFT if each is None else each["status"] for each in found})
        total[status] += 1
        by_name[status].append(name)
    for status in (WRONG, CRASHED, REFUSED, UNTRACED, LEFT):
        if by_name[status]:
            print(f"{status}: {', '.join(by_name[status])}")
    whole = len(chosen) == len(names())
    return [
        Figure("entries", len(chosen), "entries"),
        report.at_least(NATIVE, total[NATIVE], "entries", WANT_NATIVE if whole else 0),
        report.at_most(WRONG, total[WRONG], "entries", 0),
        report.at_most(CRASHED, total[CRASHED], "entries", 0),
        Figure(REFUSED, total[REFUSED], "entries"),
        Figure(UNTRACED, total[UNTRACED], "entries"),
        Figure(NONE, total[NONE], "entries"),
        Figure(LEFT, total[LEFT], "entries"),
        Figure("time of all entries", _seconds(kept, cases) / 60, "min of a core"),
    ]


def worst(found: set[str]) -> str:
    """What becomes of an entry: the worst of its element types."""
    order = (CRASHED, WRONG, REFUSED, LEFT, UNTRACED, NATIVE)
    return next((status for status in order if status in found), NONE)


def _seconds(kept: Journal, cases: Iterable[str]) -> float:
    return sum(kept.found[case].get("seconds", 0.0) for case in cases if case in kept.found)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--filter", default="", help="a regular expression on names of entries")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="which element types")
    parser.add_argument("--how", choices=(NATIVE, "reference"), default=NATIVE)
    parser.add_argument("--jobs", type=int, default=2, help="entries run at a time")
    parser.add_argument("--limit", type=int, default=0, help="samples of each entry; 0: all")
    journal.arguments(parser)
    parser.add_argument("--failures", action="store_true", help="say why an entry is not native")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
