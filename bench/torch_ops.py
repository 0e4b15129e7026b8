"""The share of PyTorch's operator database (OpInfo) that is native.

    python bench/torch_ops.py [--how native] [--jobs 2] [--filter REGEX] [--failures] [--limit N]
                              [--journal FILE] [--stop-after SECONDS]

Every entry of `op_db` on every sample, at f32, i64 and bool, through `tw.compile`, fallbacks
refused, a hundred samples at a time in a worker process: a crash costs those. An entry is native
where all its samples are right; what torch.export itself cannot trace is left out, and counted.
Beside it, the entries whose first samples inductor hands to ATen, by its own tables of lowerings.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import journal
import report
from journal import Journal
from report import Figure

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fuzz"))

from torch_cases import (
    CRASHED,
    DTYPES,
    HANDED,
    INDUCTOR,
    LEFT,
    NATIVE,
    NONE,
    REFUSED,
    UNTRACED,
    WRONG,
    Job,
    Outcome,
    count_samples,
    names,
    worst,
)
from workers import Lost, run_jobs

WANT_NATIVE = 610  # of 701 entries, all samples of all three element types right
STATUSES = (NATIVE, WRONG, CRASHED, REFUSED, UNTRACED)
WANT_MINUTES = 90  # for all entries
SECONDS = 600.0  # for one part of an entry
PART = 100  # samples
MANY = 50


def measure(options: argparse.Namespace) -> list[Figure]:
    chosen = {name: at for name, at in names() if re.search(options.filter, name)}
    kept, parts = Journal.of(options), dict[str, list[Job]]()
    jobs = _left(chosen, options, kept, parts)
    ends = run_jobs(
        "torch_cases", "run_part", jobs, workers=options.jobs, seconds=SECONDS, pinned=True
    )
    for job, end in kept.limited(ends):
        lost = {CRASHED: job.last - job.first}
        outcome = Outcome(CRASHED, end.why, lost) if isinstance(end, Lost) else end
        case = _case(job)
        kept.add(case, **asdict(outcome))
        if options.failures and outcome.status not in (NATIVE, NONE, HANDED):
            print(f"{case}: {outcome.status}: {outcome.message[:400]}", flush=True)
    by_name: dict[str, list[str]] = defaultdict(list)
    samples = Counter[str]()
    in_part: list[str] = []  # native, but for samples that cannot be traced
    for name in chosen:
        cases = [_case(job) for job in parts[name]] if name in parts else [""]
        found = [kept.found.get(case, {"status": LEFT}) for case in cases]
        status = worst(each["status"] for each in found)
        by_name[status].append(name)
        counts = sum((Counter(each.get("counts", {})) for each in found), Counter[str]())
        samples.update(counts)
        if status == NATIVE and counts[UNTRACED]:
            in_part.append(name)
    for status in (WRONG, CRASHED, REFUSED, UNTRACED, LEFT):
        if by_name[status]:
            print(f"{status}: {', '.join(by_name[status])}")
    handed = [name for name, at in chosen.items() if _by_inductor(name, at, kept) == HANDED]
    print(f"{HANDED} by {INDUCTOR}: {', '.join(handed)}")
    want = WANT_NATIVE if len(chosen) == len(names()) else 0
    return [
        Figure("entries", len(chosen), "entries"),
        report.at_least(NATIVE, len(by_name[NATIVE]), "entries", want),
        report.at_most(WRONG, len(by_name[WRONG]), "entries", 0),
        report.at_most(CRASHED, len(by_name[CRASHED]), "entries", 0),
        *(Figure(kind, len(by_name[kind]), "entries") for kind in (REFUSED, UNTRACED, NONE, LEFT)),
        Figure("native but for samples without a trace", len(in_part), "entries"),
        Figure(f"{HANDED} by {INDUCTOR}, first samples", len(handed), "entries"),
        *(Figure(f"{kind}, samples", samples[kind], "samples") for kind in STATUSES),
        *_times(_seconds(kept, parts) / 60, options, is_whole=want > 0),
    ]


def _times(core_minutes: float, options: argparse.Namespace, *, is_whole: bool) -> list[Figure]:
    """The time of all samples: of one core, and with so many workers side by side."""
    minutes = core_minutes / options.jobs
    name = "time of all entries, side by side"
    is_goal = is_whole and not options.limit
    return [
        Figure("time of all entries", core_minutes, "min of a core"),
        report.at_most(name, minutes, "min", WANT_MINUTES)
        if is_goal
        else Figure(name, minutes, "min"),
    ]


def _left(
    chosen: Mapping[str, int],
    options: argparse.Namespace,
    kept: Journal,
    parts: dict[str, list[Job]],
) -> Iterator[Job]:
    """What is to be run, found while workers are at it; `parts` gets all there is of ours."""
    later: list[list[Job]] = []  # entries of many samples: the others have their turn first
    for name, at in report.tracked(chosen.items(), "operators", len(chosen)):
        parts[name] = []
        for dtype in options.dtypes.split(","):
            total = count_samples(at, dtype)
            total = min(total, options.limit) if options.limit else total
            for first in range(0, total, PART):
                last = min(first + PART, total)
                parts[name].append(Job(name, at, dtype, first, last, options.how))
        left = [job for job in parts[name] if _case(job) not in kept.found]
        if _samples(left) > MANY:
            later.append(left)
        else:
            yield from left
    for left in sorted(later, key=_samples):
        yield from left
    others = [job for name, at in chosen.items() for job in _first_samples(name, at)]
    yield from (job for job in others if _case(job) not in kept.found)


def _first_samples(name: str, at: int) -> list[Job]:
    """What inductor is asked about."""
    return [Job(name, at, dtype, 0, 1, INDUCTOR) for dtype in DTYPES]


def _by_inductor(name: str, at: int, kept: Journal) -> str:
    found = (kept.found.get(_case(job), {"status": LEFT}) for job in _first_samples(name, at))
    statuses = [each["status"] for each in found]
    return HANDED if HANDED in statuses else worst(statuses)


def _case(job: Job) -> str:
    engine = f" {job.engine}" if job.engine == INDUCTOR else ""
    return f"{job.name}{engine} {job.dtype} {job.first}:{job.last}"


def _samples(jobs: Iterable[Job]) -> int:
    return sum(job.last - job.first for job in jobs)


def _seconds(kept: Journal, parts: Mapping[str, list[Job]]) -> float:
    cases = [_case(job) for jobs in parts.values() for job in jobs]
    return sum(kept.found.get(case, {}).get("seconds", 0.0) for case in cases)


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
