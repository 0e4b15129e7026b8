"""Charts of a report, drawn by matplotlib as SVG in the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.base.errors import Unsupported
from tilewright.report.collect import Box, Report

INK = "#010203"  # replaced by the colour of the surrounding text
COLOURS = ("#5c6bc0", "#26a69a", "#ef6c00", "#ab47bc", "#8d6e63", "#29b6f6", "#9ccc65", "#ec407a")


def check_charts() -> None:
    """Check that matplotlib is installed, for callers that need it much later."""
    _pyplot()


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise Unsupported(
            "TW9001", "reports need the package matplotlib", help="pip install 'tilewright[report]'"
        ) from error
    matplotlib.use("svg")
    from matplotlib import pyplot

    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    settings: Any = dict.fromkeys(inked, INK)
    settings |= {"svg.fonttype": "none", "svg.hashsalt": "tilewright", "font.size": 11}
    pyplot.rcParams.update(settings)
    return pyplot


def _finished(pyplot: Any, figure: Any, title: str, mark: str) -> str:
    """A figure as inline SVG, with the page's colours, unique ids and a flexible size."""
    made = io.StringIO()
    figure.tight_layout()
    figure.savefig(made, format="svg", transparent=True, metadata={"Date": None})
    pyplot.close(figure)
    text = made.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r'\bid="', f'id="{mark}-', text)
    text = re.sub(r'"#(?!box-)(?=[\w-]+")', f'"#{mark}-', text)
    text = re.sub(r"url\(#", f"url(#{mark}-", text)
    text = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", text, count=1)
    return text.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)


POINTS = 500  # limit, of the longest kernels: more would overlap


def roofline(report: Report) -> str:
    """Roofline plot of kernels: arithmetic intensity and throughput."""
    pyplot = _pyplot()
    shown = [(at, box) for at, box in enumerate(report.boxes) if _has_point(box)]
    shown = sorted(shown, key=lambda each: -each[1].nanoseconds)[:POINTS]
    if not shown:
        return ""
    figure, axes = pyplot.subplots(figsize=(8, 4.6))
    xs = [box.flops / box.size_bytes for _, box in shown]
    ys = [box.flops / box.nanoseconds for _, box in shown]
    longest = max(box.nanoseconds for _, box in shown)
    sizes = [20 + 380 * box.nanoseconds / longest for _, box in shown]
    low, high = min(min(xs), 0.05) / 2, max(max(xs), 100) * 2
    knee = report.peak_gflops / report.peak_gbytes
    roof = [(x, min(report.peak_gflops, x * report.peak_gbytes)) for x in (low, knee, high)]
    axes.plot(*zip(*roof, strict=True), color=INK, linewidth=1.4)
    points = axes.scatter(xs, ys, s=sizes, color=COLOURS[0], alpha=0.55, linewidths=0)
    points.set_urls([f"#box-{at}" for at, _ in shown])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte of operands")
    axes.set_ylabel("GFLOP/s")
    peak = f"{report.peak_gflops:.0f} GFLOP/s, {report.peak_gbytes:.0f} GB/s by the machine model"
    axes.set_title(peak, fontsize=10, loc="left")
    axes.grid(visible=True, which="major", color=INK, alpha=0.12)
    return _finished(pyplot, figure, "roofline of all kernels", "roofline")


def moved_roofline(
    points: Sequence[tuple[float, float, float]], peak_gflops: float, peak_gbytes: float
) -> str:
    """Roofline plot of kernels before and after tuning."""
    pyplot = _pyplot()
    if not points:
        return ""
    figure, axes = pyplot.subplots(figsize=(8, 4.6))
    xs = [x for x, _, _ in points]
    low, high = min(min(xs), 0.05) / 2, max(max(xs), 100) * 2
    knee = peak_gflops / peak_gbytes
    roof = [(x, min(peak_gflops, x * peak_gbytes)) for x in (low, knee, high)]
    axes.plot(*zip(*roof, strict=True), color=INK, linewidth=1.4)
    for x, before, after in points:
        axes.plot([x, x], [before, after], color=INK, linewidth=0.8, alpha=0.5)
    axes.scatter(xs, [b for _, b, _ in points], color=COLOURS[2], alpha=0.6, label="untuned")
    axes.scatter(xs, [a for _, _, a in points], color=COLOURS[1], alpha=0.8, label="tuned")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations per byte of operands")
    axes.set_ylabel("GFLOP/s")
    axes.legend(frameon=False)
    axes.grid(visible=True, which="major", color=INK, alpha=0.12)
    return _finished(pyplot, figure, "roofline before and after tuning", "roofline")


def curves(lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Gain over time, a line per search; empty without measurements."""
    pyplot = _pyplot()
    if not any(lines.values()):
        return ""
    figure, axes = pyplot.subplots(figsize=(8, 4.2))
    for at, (name, points) in enumerate(lines.items()):
        if points:
            colour = COLOURS[at % len(COLOURS)]
            axes.step(*zip(*points, strict=True), where="post", color=colour, label=name)
    axes.set_xlabel("seconds")
    axes.set_ylabel("untuned by tuned time of all kernels")
    axes.legend(frameon=False)
    axes.grid(visible=True, which="major", color=INK, alpha=0.12)
    return _finished(pyplot, figure, "gain over time", "curves")


def _has_point(box: Box) -> bool:
    return box.flops > 0 and box.nanoseconds > 0 and box.size_bytes > 0


def arena(report: Report) -> str:
    """Live bytes of the arena over the steps of the model."""
    pyplot = _pyplot()
    if not report.slots:
        return ""
    figure, axes = pyplot.subplots(figsize=(8, 4.2))
    for at, slot in enumerate(report.slots):
        axes.broken_barh(
            [(slot.first, slot.last - slot.first + 1)],
            (slot.offset / 1e6, slot.size_bytes / 1e6),
            facecolor=COLOURS[at % len(COLOURS)],
            alpha=0.75,
            linewidth=0,
        )
    axes.set_xlim(min(s.first for s in report.slots), max(s.last for s in report.slots) + 1)
    axes.set_ylim(0, max(report.arena_bytes, 1) / 1e6)
    axes.set_xlabel("step of the model")
    axes.set_ylabel("arena, MB")
    return _finished(pyplot, figure, "memory of the arena over time", "arena")


def bars(title: str, names: Sequence[str], values: Sequence[float], unit: str, mark: str) -> str:
    """Horizontal bars, from top to bottom."""
    pyplot = _pyplot()
    if not names:
        return ""
    figure, axes = pyplot.subplots(figsize=(8, 1.0 + 0.3 * len(names)))
    drawn = axes.barh(list(names), list(values), color=COLOURS[0])
    axes.bar_label(drawn, fmt=lambda value: f" {value:,.0f}", color=INK)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.margins(x=0.12)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return _finished(pyplot, figure, title, mark)
