"""The share of models of torchvision, timm and transformers that are right.

    python bench/torch_models.py [--sources torchvision,timm,transformers] [--filter REGEX]
                                 [--first REGEX] [--jobs 1] [--threads 1] [--failures]
                                 [--journal FILE] [--stop-after SECONDS]

Every float builder of torchvision, the smallest model of each file of timm, the base model of every
type that transformers knows, from shrunk configs; weights made up. Each is exported with its batch
left open (torchvision's detectors run by torch.compile), compiled, run at two batch sizes and held
against itself in f64, in a process of its own.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import sys
import zlib
from dataclasses import asdict
from pathlib import Path

import journal
import report
from journal import Journal
from report import Figure

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fuzz"))

from torch_zoo import BUILDERS, CRASHED, LOADED, REFUSED, RIGHT, UNTRACED, WRONG, Outcome, names_of
from workers import Lost, run_jobs

SECONDS = 900.0  # for one model
WANT = {"torchvision": 109, "timm": 93, "transformers": 250}


def measure(options: argparse.Namespace) -> list[Figure]:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # PyTorch that has seen a GPU cannot be forked
    figures: list[Figure] = []
    kept, first = Journal.of(options), re.compile(options.first)
    sources = options.sources.split(",")
    loaded = [module for source in sources for module in LOADED[source]]
    for source in sources:
        chosen = [name for name in names_of(source) if re.search(options.filter, name)]
        left = [name for name in chosen if f"{source}/{name}" not in kept.found]
        # In part, a sample of all families.
        left.sort(key=lambda name: (not first.search(name), zlib.crc32(name.encode())))
        jobs = [(source, name, options.threads) for name in left]
        ends = run_jobs(
            *("torch_zoo", "run_model", jobs),
            workers=options.jobs,
            seconds=SECONDS,
            most=1,
            pinned=options.threads == 1,
            preload=("torch_zoo", *loaded, "torch_warm"),
        )
        for (_, name, _), end in report.tracked(kept.limited(ends), source, len(jobs)):
            outcome = Outcome(CRASHED, end.why) if isinstance(end, Lost) else end
            kept.add(f"{source}/{name}", **asdict(outcome))
            if options.failures or outcome.status in (WRONG, CRASHED):
                spent = f" ({outcome.seconds:.1f} s)" if outcome.seconds else ""
                print(
                    f"{source}/{name}: {outcome.status}{spent}: {outcome.message[:300]}", flush=True
                )
        found = [kept.found.get(f"{source}/{name}") for name in chosen]
        total = collections.Counter(each["status"] for each in found if each is not None)
        whole = len(chosen) == len(names_of(source))
        limit = WANT[source] if whole else 0
        figures += [
            report.at_least(f"{source} {RIGHT}", total[RIGHT], "models", limit),
            report.at_most(f"{source} {WRONG}", total[WRONG], "models", 0),
            report.at_most(f"{source} {CRASHED}", total[CRASHED], "models", 0),
            Figure(f"{source} {REFUSED}", total[REFUSED], "models"),
            Figure(f"{source} {UNTRACED}", total[UNTRACED], "models"),
            Figure(f"{source} not reached", found.count(None), "models"),
        ]
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sources", default=",".join(BUILDERS), help="which libraries")
    parser.add_argument("--filter", default="", help="a regular expression on names of models")
    parser.add_argument("--first", default="", help="of these, the ones to run before all others")
    parser.add_argument("--jobs", type=int, default=1, help="models run at a time")
    parser.add_argument("--threads", type=int, default=1, help="threads of each")
    journal.arguments(parser)
    parser.add_argument("--failures", action="store_true", help="say how every model fared")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
