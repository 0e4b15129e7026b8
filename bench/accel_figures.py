"""Figures of the accelerator: its roofline, and the time of models by layer.

    python bench/accel_figures.py [--json FILE] [--folder FOLDER] [--models NAME ...]

Both by the cycle model, at the default geometry. `roofline.svg`: convolutions of ResNet-18,
products a cycle over products per byte read, with tiles that take turns and without; below the
roof, latency is not hidden. `time.svg` and a table: cycles of whole models by kind of layer, on a
small processor alone (as many products a cycle as the compiler's cut takes for it) and beside the
accelerator.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import report
from accel_compiler import GEOMETRY, LAYERS, TARGET, timed, with_and_without_slots
from accel_models import MODELS

from tilewright.accel.part import compile_part, kernels_of
from tilewright.base.geometry import HOST_MACS_PER_CYCLE
from tilewright.graph.ir import Node

WIDE, TALL, EDGE = 640, 420, 60
NAMES = ("ResNet-18", "ResNet-50", "MobileNet-V2")
KINDS = {
    "convolution": "#36c",
    "depthwise": "#c63",
    "dense": "#393",
    "sum": "#963",
    "pool": "#639",
}


@dataclass(frozen=True)
class Point:
    name: str
    intensity: float  # products per byte that is read
    alone: float  # products a cycle without slots that take turns
    both: float


def points() -> list[Point]:
    found = []
    for name, _, shape, _ in LAYERS:
        two, one = map(timed, with_and_without_slots(shape))
        macs = two.gemm_steps * GEOMETRY.macs_per_cycle
        read = two.read_beats * GEOMETRY.bus_bytes
        found.append(Point(name, macs / read, macs / one.total, macs / two.total))
    return found


def kind_of(node: Node) -> str:
    named = {"quantized_matmul": "dense", "quantized_add": "sum", "quantized_max_pool": "pool"}
    if node.op in named:
        return named[node.op]
    return "depthwise" if node.get("groups", 1) > 1 else "convolution"


def times(name: str) -> tuple[Counter[str], Counter[str]]:
    """Cycles by kind of layer on the host alone, and beside the accelerator."""
    graph, constants = MODELS[name][0]()
    part = compile_part(graph, constants, TARGET)
    kinds = {node.output.name: kind_of(node) for node in graph.nodes}
    there, host = Counter[str](), Counter[str]()
    for row in part.report():
        # A sum that a convolution ends in counts as that convolution.
        fused = [kinds[one] for one in row["fused"]]
        there[fused[0] if fused else kinds[row["name"]]] += row["cycles"]
    for node, kernel in kernels_of(graph, constants, GEOMETRY).items():
        elements = math.prod(node.output.tensor.static_shape or ())
        host[kind_of(node)] += (kernel.macs + elements) // HOST_MACS_PER_CYCLE
    return host, there


def line(x0: float, y0: float, x1: float, y1: float, colour: str = "#444") -> str:
    return f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{colour}" fill="none"/>'


def text(x: float, y: float, what: str, anchor: str = "start") -> str:
    style = f'font-size="11" font-family="sans-serif" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{what}</text>'


def drawn(parts: list[str]) -> str:
    body = "".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {TALL}">{body}</svg>\n'


def draw_roofline(found: list[Point]) -> str:
    """Both axes logarithmic."""
    peak, bus = GEOMETRY.macs_per_cycle, GEOMETRY.bus_bytes
    least, most = 4.0, 2.0 * max(one.intensity for one in found)
    low, high = 16.0, 2.0 * peak

    def x(value: float) -> float:
        return EDGE + (WIDE - 2 * EDGE) * math.log(value / least) / math.log(most / least)

    def y(value: float) -> float:
        return TALL - EDGE - (TALL - 2 * EDGE) * math.log(value / low) / math.log(high / low)

    parts = [
        line(EDGE, TALL - EDGE, WIDE - EDGE, TALL - EDGE),
        line(EDGE, TALL - EDGE, EDGE, EDGE),
        line(x(least), y(least * bus), x(peak / bus), y(peak), "#c33"),
        line(x(peak / bus), y(peak), x(most), y(peak), "#c33"),
        text(EDGE, TALL - 20, "products per byte that is read"),
        text(EDGE, EDGE - 14, f"products a cycle; the roof is {bus} bytes a cycle and {peak}"),
    ]
    for one in found:
        at = x(one.intensity)
        parts.append(line(at, y(one.alone), at, y(one.both), "#bbc"))
        for value, colour in ((one.alone, "#99a"), (one.both, "#36c")):
            told = f"<title>{one.name}: {value:.0f}</title>"
            parts.append(
                f'<circle cx="{at:.1f}" cy="{y(value):.1f}" r="3.5" fill="{colour}">{told}</circle>'
            )
    return drawn(parts)


def draw_times(found: dict[str, tuple[Counter[str], Counter[str]]]) -> str:
    """Two bars a model, of its share: the host alone is 1."""
    parts = [line(EDGE, TALL - EDGE, WIDE - EDGE, TALL - EDGE)]
    step = (WIDE - 2 * EDGE) / (2 * len(found))
    for at, (name, pair) in enumerate(found.items()):
        whole = sum(pair[0].values())
        for which, of in enumerate(pair):
            left = EDGE + step * (2 * at + which)
            top = float(TALL - EDGE)
            for kind, colour in KINDS.items():
                height = (TALL - 2 * EDGE) * math.sqrt(of[kind] / whole)
                told = f"<title>{name}, {kind}: {of[kind] / 1e6:.2f}M cycles</title>"
                top -= height
                parts.append(
                    f'<rect x="{left + 4:.1f}" y="{top:.1f}" width="{step - 8:.1f}" '
                    f'height="{height:.1f}" fill="{colour}">{told}</rect>'
                )
            total = f"{sum(of.values()) / 1e6:.1f}M"
            parts.append(text(left + step / 2, top - 4, total, "middle"))
        parts.append(text(EDGE + step * (2 * at + 1), TALL - 40, name, "middle"))
    for at, (kind, colour) in enumerate(KINDS.items()):
        left = EDGE + 110 * at
        parts.append(f'<rect x="{left}" y="14" width="10" height="10" fill="{colour}"/>')
        parts.append(text(left + 14, 23, kind))
    parts.append(text(EDGE, TALL - 20, "cycles, heights as their roots: host alone, with it"))
    return drawn(parts)


def measure(options: argparse.Namespace) -> list[report.Figure]:
    options.folder.mkdir(parents=True, exist_ok=True)
    layers = points()
    (options.folder / "roofline.svg").write_text(draw_roofline(layers))
    found = {name: times(name) for name in options.models}
    (options.folder / "time.svg").write_text(draw_times(found))
    figures = [
        report.at_least(f"{one.name}, of its roof", one.both / _roof(one), "", 0.6)
        for one in layers
    ]
    for name, (host, there) in found.items():
        for kind in KINDS:
            if host[kind]:
                print(
                    f"{name}, {kind}: {host[kind] / 1e6:.2f}M cycles on the host, "
                    f"{there[kind] / 1e6:.2f}M there"
                )
        gain = sum(host.values()) / sum(there.values())
        figures.append(report.Figure(f"{name}, over the host alone", gain, "x"))
    return figures


def _roof(one: Point) -> float:
    return min(GEOMETRY.macs_per_cycle, one.intensity * GEOMETRY.bus_bytes)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, default=Path("figures"))
    parser.add_argument("--models", nargs="*", default=list(NAMES), choices=list(MODELS))


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
