"""How much of ONNX's own backend suite passes.

    python bench/conformance.py [--filter REGEX] [--light] [--passes] [--failures] [--json FILE]

Imports and interprets every node, simple and PyTorch test inside the `onnx` package and compares
with the expected outputs, under the tolerances of each test.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
from pathlib import Path

import report
from report import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "conformance"))

from suite import (
    FAILED,
    KINDS,
    LIGHT,
    PASSED,
    UNSUPPORTED,
    Outcome,
    canonical,
    cases,
    interpreted,
    run_test,
)

STATUSES = (PASSED, FAILED, UNSUPPORTED)
WANT = 1950  # of all 2,024


def measure(options: argparse.Namespace) -> list[Figure]:
    kinds = (*KINDS, LIGHT) if options.light else KINDS
    chosen = [
        (kind, test)
        for kind in kinds
        for name, test in cases(kind).items()
        if re.search(options.filter, name)
    ]
    run = canonical if options.passes else interpreted
    outcomes: dict[str, dict[str, Outcome]] = {kind: {} for kind in kinds}
    for kind, test in track(chosen, "conformance", console=Console(stderr=True), transient=True):
        outcomes[kind][test.name] = run_test(test, run)
    if options.failures:
        show_failures(outcomes)
    total = show_counts(outcomes)
    return [
        report.at_least(PASSED, total[PASSED], "tests", WANT),
        report.at_most(FAILED, total[FAILED], "tests", 0),
        Figure(UNSUPPORTED, total[UNSUPPORTED], "tests"),
    ]


def show_failures(outcomes: dict[str, dict[str, Outcome]]) -> None:
    for kind, ended in outcomes.items():
        for name, outcome in ended.items():
            if outcome.status != PASSED:
                reason = " ".join(outcome.message.split())[:300]
                print(f"{kind}/{name}: {outcome.status}: {reason}")


def show_counts(outcomes: dict[str, dict[str, Outcome]]) -> collections.Counter[str]:
    """Print a line per kind of test; the counts over all."""
    table = Table("kind", *STATUSES, "total")
    total: collections.Counter[str] = collections.Counter()
    for kind, ended in outcomes.items():
        count = collections.Counter(outcome.status for outcome in ended.values())
        total += count
        table.add_row(kind, *(str(count[status]) for status in STATUSES), str(count.total()))
    table.add_row("all", *(str(total[status]) for status in STATUSES), str(total.total()))
    Console().print(table)
    return total


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--filter", default="", help="a regular expression on the names of tests")
    parser.add_argument("--light", action="store_true", help="also the architectures of the zoo")
    parser.add_argument("--passes", action="store_true", help="run the passes first")
    parser.add_argument("--failures", action="store_true", help="say why each test did not pass")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
