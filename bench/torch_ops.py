"""How much of PyTorch's own table of operators is native.

    python bench/torch_ops.py [--how native] [--jobs 2] [--filter REGEX] [--failures] [--limit N]

Every entry of `op_db` on every sample, at f32, i64 and bool, through `tw.compile`, fallbacks
refused. Each entry runs in a worker process: a crash costs one. An entry is native where all its
samples are right; samples that torch.export itself cannot trace are left out, and counted.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
from pathlib import Path

import report
from report import Figure

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fuzz"))

from torch_cases import CRASHED, DTYPES, NATIVE, NONE, REFUSED, UNTRACED, WRONG, Outcome, names
from workers import Lost, run_jobs

WANT_NATIVE = 610  # of 701 entries, all samples of all three element types right
SECONDS = 300.0  # for one entry and element type


def measure(options: argparse.Namespace) -> list[Figure]:
    chosen = {at: name for name, at in names() if re.search(options.filter, name)}
    kinds = options.dtypes.split(",")
    jobs = [(at, dtype, options.how, options.limit) for at in chosen for dtype in kinds]
    ended: dict[int, dict[str, Outcome]] = {at: {} for at in chosen}
    ends = run_jobs("torch_cases", "run_entry", jobs, workers=options.jobs, seconds=SECONDS)
    for (at, dtype, *_), end in report.tracked(ends, "operators", len(jobs)):
        outcome = Outcome(CRASHED, end.why) if isinstance(end, Lost) else end
        ended[at][dtype] = outcome
        if options.failures and outcome.status not in (NATIVE, NONE):
            reason = outcome.message[:400]
            print(f"{chosen[at]} {dtype}: {outcome.status}: {reason}", flush=True)
    total: collections.Counter[str] = collections.Counter()
    by_name: dict[str, list[str]] = collections.defaultdict(list)
    for at, outcomes in ended.items():
        status = worst(outcomes)
        total[status] += 1
        by_name[status].append(chosen[at])
    for status in (WRONG, CRASHED, REFUSED, UNTRACED):
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
    ]


def worst(outcomes: dict[str, Outcome]) -> str:
    """What becomes of an entry: the worst of its element types."""
    found = {outcome.status for outcome in outcomes.values()}
    order = (CRASHED, WRONG, REFUSED, UNTRACED, NATIVE)
    return next((status for status in order if status in found), NONE)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--filter", default="", help="a regular expression on names of entries")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="which element types")
    parser.add_argument("--how", choices=(NATIVE, "reference"), default=NATIVE)
    parser.add_argument("--jobs", type=int, default=2, help="entries run at a time")
    parser.add_argument("--limit", type=int, default=0, help="samples of each entry; 0: all")
    parser.add_argument("--failures", action="store_true", help="say why an entry is not native")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
