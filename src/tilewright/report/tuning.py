"""Report on a tuning run as a self-contained HTML file: curves, choices, rooflines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path

from tilewright.base.target import Target
from tilewright.codegen.cache import write_atomically
from tilewright.report.charts import curves, moved_roofline
from tilewright.report.collect import peak_gbytes, peak_gflops
from tilewright.report.page import html_table
from tilewright.tune.outcome import Outcome
from tilewright.tune.record import Winner

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style} main {{ display: block; padding: 12px 20px; }}</style>
</head>
<body>
<header><h1>{title}</h1><p class="ports">{ports}</p><dl class="facts">{facts}</dl></header>
<main>
<h2>Gain over time</h2><figure>{curves}</figure>
<h2>Kernels</h2>{kernels}
<h2>Roofline</h2>
<p>A line leads from a kernel untuned to the same kernel tuned; nothing can be above the roof but
what finds its operands in a cache.</p>
<figure>{roofline}</figure>
{notes}
</main>
</body>
</html>
"""


def write_tuning_page(
    path: str | Path, name: str, runs: Mapping[str, Outcome], target: Target, threads: int
) -> Path:
    """Write the page of a tuning; `runs` are by search, with the one that was kept first."""
    path = Path(path)
    write_atomically(path, tuning_page(name, runs, target, threads).encode())
    return path


def tuning_page(name: str, runs: Mapping[str, Outcome], target: Target, threads: int) -> str:
    """The page as text."""
    outcome = next(iter(runs.values()))
    facts = [
        ("the whole model runs", f"{outcome.gain:.2f}x as fast"),
        ("with 95% confidence at least", f"{outcome.least_gain:.2f}x"),
        ("of this, choices of the graph", f"{outcome.graph_gain:.2f}x"),
        ("kernels kept", str(len(outcome.winners))),
        ("candidates", f"{outcome.trials} ({outcome.failed} failed)"),
        ("seconds", f"{outcome.seconds:.0f}"),
        ("cost model", outcome.model or "none"),
        ("it ended", outcome.stopped),
    ]
    shown = "".join(f"<div><dt>{head}</dt><dd>{escape(text)}</dd></div>" for head, text in facts)
    points = [
        (each.flops / each.size_bytes, each.flops / each.baseline_ns, each.flops / each.best_ns)
        for each in outcome.tasks
        if each.flops and each.size_bytes and each.baseline_ns and each.best_ns
    ]
    roof = moved_roofline(points, peak_gflops(target, threads), peak_gbytes(target, threads))
    assets = files("tilewright.report") / "assets"
    return PAGE.format(
        title=escape(f"{name}: tuning by Tilewright"),
        style=(assets / "page.css").read_text(encoding="utf-8"),
        ports=escape(f"{target.machine.name}, {threads} threads, {target}"),
        facts=shown,
        curves=curves({search: each.curve for search, each in runs.items()}),
        kernels=html_table(
            ("kernel", "untuned, us", "tuned, us", "gain", "of the roofline", "trials", "choices"),
            _rows(outcome),
            numbers=(1, 2, 3, 4, 5),
        ),
        roofline=roof or "<p>No kernel that was tuned does arithmetic.</p>",
        notes="".join(f"<p>{escape(note)}</p>" for note in outcome.notes),
    )


def _rows(outcome: Outcome) -> Iterable[tuple[str, ...]]:
    for each in sorted(outcome.tasks, key=lambda task: -task.baseline_ns):
        winner = outcome.winners.get(each.name)
        yield (
            escape(each.label),
            f"{each.baseline_ns / 1e3:.1f}",
            f"{each.best_ns / 1e3:.1f}",
            f"{each.gain:.2f}x" if winner else "",
            f"{min(each.floor_ns / each.best_ns, 1.0):.0%}" if each.best_ns else "",
            str(each.trials),
            _choices(winner) if winner else "as rules decide",
        )


def _choices(winner: Winner) -> str:
    return "<br>".join(escape(f"{block}: {text}") for block, text in winner.choices.items())
