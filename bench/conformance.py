"""The share of ONNX's backend test suite that passes.

    python bench/conformance.py [--how native] [--jobs 2] [--filter REGEX] [--failures] [--table]

Compiles (or only interprets) every node, simple and PyTorch test inside the `onnx` package, runs it
and compares with the expected outputs, under the tolerances of each test. Each runs in a worker
process: a crash costs one test.
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
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fuzz"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tools" / "site"))

from run_operators import told
from suite import FAILED, KINDS, LIGHT, PASSED, UNSUPPORTED, WAYS, Outcome, cases
from workers import Lost, run_jobs

NATIVE, CRASHED = "native", "crashed"
STATUSES = (PASSED, NATIVE, FAILED, CRASHED, UNSUPPORTED)  # native are among the passed
WANT, WANT_NATIVE = 2010, 1800  # of all 2,024
SECONDS = 120.0  # for one test


def measure(options: argparse.Namespace) -> list[Figure]:
    kinds = (*KINDS, LIGHT) if options.light else KINDS
    chosen = [
        (kind, name, options.how)
        for kind in kinds
        for name in cases(kind)
        if re.search(options.filter, name)
    ]
    outcomes: dict[str, dict[str, Outcome]] = {kind: {} for kind in kinds}
    ends = run_jobs("suite", "run_named", chosen, workers=options.jobs, seconds=SECONDS)
    console = Console(stderr=True)
    for (kind, name, _), end in track(
        ends, "conformance", total=len(chosen), console=console, transient=True
    ):
        outcomes[kind][name] = Outcome(CRASHED, end.why) if isinstance(end, Lost) else end
    if options.failures:
        show_failures(outcomes)
    total = show_counts(outcomes, options.how)
    return [
        report.at_least(PASSED, total[PASSED], "tests", WANT),
        report.at_least(
            NATIVE, total[NATIVE], "tests", WANT_NATIVE if options.how == NATIVE else 0
        ),
        report.at_most(FAILED, total[FAILED], "tests", 0),
        report.at_most(CRASHED, total[CRASHED], "tests", 0),
        Figure(UNSUPPORTED, total[UNSUPPORTED], "tests"),
        *([unlike_the_table(outcomes["node"])] if options.table else ()),
    ]


def unlike_the_table(ended: dict[str, Outcome]) -> Figure:
    """How many tests the documentation's table of operators tells otherwise than they ended."""
    table = told({name: cases("node")[name] for name in ended})
    words = {PASSED: {False: NATIVE, True: "fallback"}, UNSUPPORTED: {False: "refused"}}
    unlike = [
        name
        for name, end in ended.items()
        if table[name]["status"] != words.get(end.status, {}).get(bool(end.fallbacks))
    ]
    if unlike:
        print("not as the table says:", ", ".join(unlike))
    return report.at_most("tests that end unlike the table of operators", len(unlike), "", 0)


def show_failures(outcomes: dict[str, dict[str, Outcome]]) -> None:
    for kind, ended in outcomes.items():
        for name, outcome in sorted(ended.items()):
            if outcome.fallbacks:
                print(f"{kind}/{name}: not native: {', '.join(outcome.fallbacks)}")
            if outcome.status != PASSED:
                reason = " ".join(outcome.message.split())[:300]
                print(f"{kind}/{name}: {outcome.status}: {reason}")


def show_counts(outcomes: dict[str, dict[str, Outcome]], how: str) -> collections.Counter[str]:
    """Print a line per kind of test; the counts over all."""
    table = Table("kind", *STATUSES, "total")
    total: collections.Counter[str] = collections.Counter()
    tests = 0
    for kind, ended in outcomes.items():
        count = collections.Counter(outcome.status for outcome in ended.values())
        whole = [end for end in ended.values() if end.status == PASSED and not end.fallbacks]
        count[NATIVE] = len(whole) if how == NATIVE else 0
        total += count
        tests += len(ended)
        table.add_row(kind, *(str(count[status]) for status in STATUSES), str(len(ended)))
    table.add_row("all", *(str(total[status]) for status in STATUSES), str(tests))
    Console().print(table)
    return total


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--filter", default="", help="a regular expression on the names of tests")
    parser.add_argument("--light", action="store_true", help="also the architectures of the zoo")
    parser.add_argument("--how", choices=tuple(WAYS), default=NATIVE, help="how models are run")
    parser.add_argument("--table", action="store_true", help="compare with the operator table")
    parser.add_argument("--jobs", type=int, default=2, help="tests run at a time")
    parser.add_argument("--failures", action="store_true", help="say why each test did not pass")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
