"""A report as one self-contained HTML file: style, script, pictures and data."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from tilewright.codegen.cache import write_atomically
from tilewright.report.charts import arena, bars, roofline
from tilewright.report.collect import Box, Report
from tilewright.report.layout import HEIGHT, WIDTH, layered

LONGEST_TEXT = 400_000  # characters of one stage of one kernel, at most
LABEL = 26  # characters that fit into a box
LISTED = 1000  # rows of the list, at most
LABELLED = 500  # more boxes get their text lazily: text is the slowest to render


def write_page(report: Report, path: str | Path, against: Report | None = None) -> Path:
    """Write a report's page, with another report's figures for comparison if given."""
    path = Path(path)
    write_atomically(path, page(report, against).encode())
    return path


def page(report: Report, against: Report | None = None) -> str:
    """The page as text."""
    assets = files("tilewright.report") / "assets"
    parts = {
        "TITLE": escape(f"{report.provenance['model']}: Tilewright report"),
        "STYLE": (assets / "page.css").read_text(encoding="utf-8"),
        "SCRIPT": (assets / "page.js").read_text(encoding="utf-8"),
        "HEAD": _head(report),
        "GRAPH": graph_svg(report),
        "KERNELS": _kernels(report),
        "ROOFLINE": roofline(report) or "<p>No kernel of this model does arithmetic.</p>",
        "ARENA": _memory(report),
        "PASSES": _passes(report),
        "COMPILE": _compile(report),
        "PROVENANCE": html_table(("", ""), ((k, escape(v)) for k, v in report.provenance.items())),
        "AGAINST": "" if against is None else _comparison(report, against),
        "AGAINST_TAB": "" if against is None else _tab("against", "Compared"),
        "DATA": _data(report),
    }
    text = (assets / "page.html").read_text(encoding="utf-8")
    for name, value in parts.items():
        text = text.replace(f"<!--{name}-->", value)
    return text


def _tab(name: str, title: str) -> str:
    return (
        f'<button role="tab" id="tab-{name}" aria-controls="{name}" aria-selected="false" '
        f'tabindex="-1">{title}</button>'
    )


def _data(report: Report) -> str:
    """Data shown on clicks, compressed: texts of kernels are long and repetitive."""
    shown = {
        "boxes": [
            {
                "label": box.label,
                "kind": box.kind,
                "kernels": box.kernels,
                "nodes": box.nodes,
                "ops": box.ops,
                "outputs": box.outputs,
                "ns": box.nanoseconds,
                "flops": box.flops,
                "bytes": box.size_bytes,
            }
            for box in report.boxes
        ],
        "kernels": {
            name: {
                "texts": {k: _cut(v) for k, v in stages.texts.items()},
                "decisions": stages.decisions,
            }
            for name, stages in report.stages.items()
        },
        "peak": {"gflops": report.peak_gflops, "gbytes": report.peak_gbytes},
        "total": sum(box.nanoseconds for box in report.boxes),
    }
    packed = zlib.compress(json.dumps(shown).encode(), 9)
    return base64.b64encode(packed).decode()


def _cut(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return text[:LONGEST_TEXT] + f"\n... {len(text) - LONGEST_TEXT:,} characters more"


# --------------------------------------------------------------------------- parts


def _head(report: Report) -> str:
    kernels = sum(box.nanoseconds for box in report.boxes)
    facts = [
        ("a call takes at least", _time(min(report.run_ns))),
        ("of it in kernels", _time(kernels)),
        ("kernels", f"{len(report.stages)}"),
        ("arena", _bytes(report.arena_bytes) if report.arena_bytes else "at run time"),
        ("threads", report.provenance["threads"]),
        ("fallbacks", ", ".join(report.fallbacks) or "none"),
    ]
    items = "".join(f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>" for name, text in facts)
    ports = f"{', '.join(report.inputs)} → {', '.join(report.outputs)}"
    name, target = report.provenance["model"], report.provenance["processor"]
    return (
        f'<h1>{escape(name)}</h1><p class="ports">{escape(ports)}<br>on {escape(target)}</p>'
        f'<dl class="facts">{items}</dl>'
    )


def colour(share: float) -> str:
    """A colour from pale to red by a kernel's share of the time; text on it stays readable."""
    heat = min(1.0, share / 0.12) ** 0.6
    return f"hsl({48 - 38 * heat:.0f} {30 + 60 * heat:.0f}% {93 - 28 * heat:.0f}%)"


def graph_svg(report: Report) -> str:
    """The graph as SVG: a box per kernel, a line per value."""
    layout = layered(len(report.boxes), ((a, b) for a, b, _ in report.edges))
    total = sum(box.nanoseconds for box in report.boxes) or 1.0
    is_large = len(report.boxes) > LABELLED
    lines = []
    for begin, end, of in report.edges:
        (x, y), (u, v) = layout.places[begin], layout.places[end]
        y, v = y + HEIGHT / 2, v - HEIGHT / 2
        bend = max(20.0, (v - y) / 2)
        lines.append(
            f'<path d="M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {u:.0f} {v - bend:.0f} '
            f'{u:.0f} {v:.0f}"><title>{escape(of)}</title></path>'
        )
    boxes = [
        _box_svg(at, box, layout.places[at], box.nanoseconds / total, is_large)
        for at, box in enumerate(report.boxes)
    ]
    return (
        f'<svg id="graph-svg" data-width="{layout.width:.0f}" data-height="{layout.height:.0f}" '
        f'aria-label="the graph of the model"><g id="view"><g class="lines">{"".join(lines)}</g>'
        f"{''.join(boxes)}</g></svg>"
    )


def _box_svg(at: int, box: Box, place: tuple[float, float], share: float, is_bare: bool) -> str:
    """A box; the page's script adds the text of `aria-label` to bare ones when they become
    visible."""
    x, y = place[0] - WIDTH / 2, place[1] - HEIGHT / 2
    label = box.label if len(box.label) <= LABEL else box.label[: LABEL - 1] + "…"
    time = f"{_time(box.nanoseconds)}, {share:.1%}" if box.nanoseconds else box.kind
    fill = colour(share) if box.nanoseconds else ""
    style = f' style="fill:{fill}"' if fill else ""
    whole = escape(f"{box.label}: {time}")
    text = (
        ""
        if is_bare
        else (
            f'<text x="{WIDTH / 2:.0f}" y="18">{escape(label)}</text>'
            f'<text x="{WIDTH / 2:.0f}" y="35" class="small">{escape(time)}</text>'
        )
    )
    return (
        f'<g class="box {box.kind}" id="box-{at}" tabindex="0" role="button" '
        f'aria-label="{whole}" transform="translate({x:.0f} {y:.0f})">'
        f'<rect width="{WIDTH:.0f}" height="{HEIGHT:.0f}" rx="6"{style}/>{text}</g>'
    )


def _time(nanoseconds: float) -> str:
    """Format a time with a suitable unit."""
    if nanoseconds >= 1e6:
        return f"{nanoseconds / 1e6:.2f} ms"
    return f"{nanoseconds / 1e3:.1f} µs" if nanoseconds >= 100 else f"{nanoseconds:.0f} ns"


def _bytes(count: float) -> str:
    """Format a size with three digits: 6.02 MB, 768 B."""
    for unit, name in ((1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} B"


def _kernels(report: Report) -> str:
    """The list of boxes in decreasing order of time."""
    total = sum(box.nanoseconds for box in report.boxes) or 1.0
    order = sorted(
        (at for at, box in enumerate(report.boxes) if box.nanoseconds),
        key=lambda at: -report.boxes[at].nanoseconds,
    )
    rows = []
    for at in order[:LISTED]:
        box = report.boxes[at]
        rows.append(
            (
                f'<a href="#box-{at}">{escape(box.label)}</a>',
                f"{box.nanoseconds / 1e3:,.1f}",
                f"{box.nanoseconds / total:.1%}",
                f"{box.flops / box.nanoseconds:.1f}",
                f"{box.size_bytes / box.nanoseconds:.1f}",
                escape(", ".join(_rules(report, box))),
                escape(", ".join(box.nodes[:3]) + (" …" if len(box.nodes) > 3 else "")),
            )
        )
    heads = ("kernel", "µs", "share", "GFLOP/s", "GB/s", "rules", "nodes of the model")
    left = len(order) - len(rows)
    note = f"<p>{left:,} more take less time each; the graph has them.</p>" if left else ""
    return html_table(heads, rows, numbers=(1, 2, 3, 4)) + note


def _rules(report: Report, box: Box) -> Iterable[str]:
    found = (
        decision["rule"]
        for name in box.kernels
        if name in report.stages
        for decision in report.stages[name].decisions
    )
    return dict.fromkeys(found)


def _memory(report: Report) -> str:
    if not report.slots:
        return (
            "<p>The sizes of values are known only at run time, or nothing lies in the arena.</p>"
        )
    alive: dict[int, int] = {}
    for slot in report.slots:
        for step in range(slot.first, slot.last + 1):
            alive[step] = alive.get(step, 0) + slot.size_bytes
    most = max(alive.values())
    text = (
        f"{len(report.slots)} values share {_bytes(report.arena_bytes)}; "
        f"at most {_bytes(most)} are live at once."
    )
    largest = sorted(report.slots, key=lambda slot: -slot.size_bytes)[:20]
    rows = [
        (escape(slot.name), f"{slot.size_bytes:,}", f"{slot.offset:,}", slot.first, slot.last)
        for slot in largest
    ]
    heads = ("value", "bytes", "offset", "first step", "last step")
    table = html_table(heads, rows, numbers=(1, 2, 3, 4))
    return f"<p>{text}</p><figure>{arena(report)}</figure><h3>The largest values</h3>{table}"


def _passes(report: Report) -> str:
    rows = []
    for step in report.passes:
        more = " ".join(f"+{count} {op}" for op, count in step.more.items())
        fewer = " ".join(f"−{count} {op}" for op, count in step.fewer.items())
        what = f"{fewer} {more}".strip() or ("rewritten" if step.changed else "nothing to do")
        nodes = f"{step.nodes_before} → {step.nodes_after}" if step.changed else ""
        rows.append(
            (step.name.replace("_", "_<wbr>"), f"{step.seconds * 1e3:.1f}", nodes, escape(what))
        )
    return html_table(("pass", "ms", "nodes", "what changed"), rows, numbers=(1,))


def _compile(report: Report) -> str:
    names = list(report.compile_s)
    values = [report.compile_s[name] * 1e3 for name in names]
    return bars("compile times", names, values, "milliseconds", "compile")


def _comparison(report: Report, other: Report) -> str:
    """Compare two modules."""
    rows: list[tuple[object, ...]] = []
    for label, a, b in _matched(report, other):
        ratio = f"{b / a:.2f}" if a and b else "only here" if a else "only there"
        rows.append((escape(label), _microseconds(a), _microseconds(b), ratio))
    totals = [min(each.run_ns) / 1e6 for each in (report, other)]
    text = f"A call takes at least {totals[0]:.3g} ms here and {totals[1]:.3g} ms there."
    heads = ("kernels", *(f"{escape(name)}, µs" for name in _titles(report, other)), "ratio")
    table = html_table(heads, rows, numbers=(1, 2, 3))
    sides = [
        html_table(("", ""), ((k, escape(v)) for k, v in each.provenance.items()))
        for each in (report, other)
    ]
    return (
        f'<section role="tabpanel" id="against" aria-labelledby="tab-against" hidden>'
        f'<p>{text}</p>{table}<h3>What was compared</h3><div class="sides">{"".join(sides)}</div>'
        f"</section>"
    )


def _matched(report: Report, other: Report) -> list[tuple[str, float, float]]:
    """Match kernels of two modules that compute the same nodes, with the nanoseconds of both.

    Several kernels of one module that correspond to one kernel of the other share a row.
    """
    sides = [[box for box in each.boxes if box.nanoseconds] for each in (report, other)]
    leader: dict[str, str] = {}

    def lead(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    for box in (*sides[0], *sides[1]):
        first, *rest = _names(box)
        for name in rest:
            leader[lead(name)] = lead(first)
    groups: dict[str, tuple[list[Box], list[Box]]] = {}
    for at, side in enumerate(sides):
        for box in side:
            groups.setdefault(lead(_names(box)[0]), ([], []))[at].append(box)
    rows = []
    for ours, theirs in groups.values():
        fewer = min((each for each in (ours, theirs) if each), key=len)
        label = ", ".join(dict.fromkeys(box.label for box in fewer))
        times = [sum(box.nanoseconds for box in each) for each in (ours, theirs)]
        rows.append((label, times[0], times[1]))
    return sorted(rows, key=lambda row: (-row[1], -row[2]))


def _names(box: Box) -> tuple[str, ...]:
    """A box's identity between modules: nodes of the model, or else its label."""
    return box.nodes or (" ".join((box.label, *box.outputs)),)


def _titles(*reports: Report) -> list[str]:
    """Distinct titles of modules: the model's name, or else the options."""
    names = [each.provenance["model"] for each in reports]
    if len(set(names)) == len(names):
        return names
    asked = ("target", "threads", "precision", "without")
    apart = [key for key in asked if len({each.provenance.get(key) for each in reports}) > 1]
    notes = [", ".join(f"{key} {each.provenance[key]}" for key in apart) for each in reports]
    return [f"{name} ({more})" if more else name for name, more in zip(names, notes, strict=True)]


def _microseconds(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e3:,.1f}" if nanoseconds else ""


def html_table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()
) -> str:
    """A table of HTML cells."""
    kind = ["number" if at in numbers else "" for at in range(len(heads))]
    head = "".join(f'<th class="{k}">{h}</th>' for h, k in zip(heads, kind, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{k}">{cell}</td>' for cell, k in zip(row, kind, strict=True))
        + "</tr>"
        for row in rows
    )
    shown = f"<thead><tr>{head}</tr></thead>" if any(heads) else ""
    return f'<div class="scroll" tabindex="0"><table>{shown}<tbody>{body}</tbody></table></div>'
