"""The share of models that survive export as ONNX.

    python bench/onnx_out.py [--stage imported] [--light] [--jobs 2] [--filter REGEX] [--failures]

Every model of ONNX's own backend suite (with --light, the zoo's too) is imported, brought to a
stage, written by `to_onnx`, checked by `onnx.checker` and run by ONNX Runtime, each in a worker
process. Models that ONNX Runtime cannot run as they came need only be valid.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import report
from report import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "conformance"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fuzz"))

from out import CHECKED, STAGES
from suite import FAILED, KINDS, LIGHT, PASSED, UNSUPPORTED, Outcome, cases
from workers import Lost, run_jobs

WANT = 0.98
SECONDS = 120.0  # for one model


def measure(options: argparse.Namespace) -> list[Figure]:
    chosen = [
        (kind, name, options.stage)
        for kind in ((*KINDS, LIGHT) if options.light else KINDS)
        for name in cases(kind)
        if re.search(options.filter, name)
    ]
    ends = run_jobs("out", "run_named", chosen, workers=options.jobs, seconds=SECONDS)
    console = Console(stderr=True)
    outcomes: dict[str, Outcome] = {}
    for (_, name, _), end in track(ends, "writing", len(chosen), console=console, transient=True):
        outcomes[name] = Outcome(FAILED, end.why) if isinstance(end, Lost) else end
    counts = {
        status: sum(end.status == status for end in outcomes.values())
        for status in (PASSED, CHECKED, FAILED, UNSUPPORTED)
    }
    table = Table("stage", *counts, "models")
    table.add_row(options.stage, *map(str, counts.values()), str(len(outcomes)))
    Console().print(table)
    if options.failures:
        for name, end in outcomes.items():
            if end.status in (FAILED, UNSUPPORTED):
                print(f"{end.status} {name}: {end.message[:300]}")
    share = (counts[PASSED] + counts[CHECKED]) / max(1, len(outcomes))
    return [
        report.at_least(f"{options.stage}: valid, same answer", round(share, 4), "of 1", WANT),
        report.at_least(f"{options.stage}: run by ONNX Runtime", counts[PASSED], "models", 0),
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--filter", default="", help="a regular expression on the names of models")
    parser.add_argument("--light", action="store_true", help="also the architectures of the zoo")
    parser.add_argument("--stage", choices=tuple(STAGES), default="imported", help="what to write")
    parser.add_argument("--jobs", type=int, default=2, help="models at a time")
    parser.add_argument("--failures", action="store_true", help="say why each did not pass")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
