"""bench/RESULTS.md and the chart of README.md, from what bench/ recorded in RESULTS.json.

    make results        or: python tools/results.py

`tests/unit/bench/test_results.py` sees that both are up to date.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "bench" / "RESULTS.json"
PAGE = ROOT / "bench" / "RESULTS.md"
CHART = ROOT / "docs" / "assets" / "speed.svg"
COMMAND = "python bench/zoo.py --peers onnxruntime openvino"
SHOWN = {
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "mobilenet_v2": "MobileNet-V2",
    "bert_base": "BERT base",
    "minilm6": "MiniLM-L6",
    "gpt2_small_prefill": "GPT-2, 128 tokens",
    "vit_b16": "ViT-B/16",
    "lstm_lm_seq35": "LSTM, 35 steps",
    "dcgan_generator": "DCGAN",
}
THREADS = 2
PEERS = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "tilewright": "Tilewright"}
COLOURS = {"onnxruntime": "#90a4ae", "openvino": "#b39ddb", "tilewright": "#3f51b5"}
Figure = dict[str, Any]


def read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


# --------------------------------------------------------------------------- the page


def page(results: dict[str, Any]) -> str:
    """RESULTS.md."""
    parts = [
        "# Results\n\n<!-- Generated from RESULTS.json by tools/results.py: `make results`. -->",
        results["about"],
    ]
    for section in results["sections"]:
        parts.append(f"## {section['title']}")
        parts += map(_part, section["parts"])
    return "\n\n".join(parts) + "\n"


def _part(part: str | dict[str, Any]) -> str:
    if isinstance(part, str):
        return part
    if "figures" in part:
        return f"`{part['command']}`, {part['machine']}:\n\n{_figures(part['figures'])}"
    return _table(part["columns"], part["rows"])


def _table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    columns = list(columns)
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines)


def _figures(figures: list[Figure]) -> str:
    """One row a figure; of figures named `row: column`, one row for all that share it."""
    paired = [figure for figure in figures if ": " in figure["name"]]
    single = [figure for figure in figures if figure not in paired]
    tables = []
    if paired:
        rows: dict[str, dict[str, str]] = {}
        for figure in paired:
            row, column = figure["name"].split(": ", 1)
            rows.setdefault(row, {})[column] = _measured(figure, with_unit=False)
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        units = {f["name"].split(": ", 1)[1]: f["unit"] for f in paired}
        heads = [f"{PEERS.get(c, c)}{', ms' if units[c] == 'ms' else ''}" for c in columns]
        cells = ([row, *(inside.get(c, "") for c in columns)] for row, inside in rows.items())
        tables.append(_table(["", *heads], cells))
    if single:
        cells = ([f["name"], _measured(f), _asked(f)] for f in single)
        tables.append(_table(["what", "measured", "asked"], cells))
    return "\n\n".join(tables)


def _measured(figure: Figure, with_unit: bool = True) -> str:
    unit, value = figure["unit"], figure["value"]
    short = "" if figure["ok"] is not False else ", short"
    if unit == "x":
        return f"{value:.2f}{short}"
    text = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
    return f"{text} {unit if with_unit else ''}".rstrip() + short


def _asked(figure: Figure) -> str:
    return str(figure["want"]).replace("<=", "at most").replace(">=", "at least")


# --------------------------------------------------------------------------- the chart

BAR, GAP, LEFT, WIDTH, TOP = 9, 12, 140, 720, 62


def chart(results: dict[str, Any]) -> str:
    """Speed of whole models relative to the better peer, as SVG."""
    run = next(
        part
        for section in results["sections"]
        for part in section["parts"]
        if isinstance(part, dict) and part.get("command") == COMMAND
    )
    values = {figure["name"]: float(figure["value"]) for figure in run["figures"]}
    scale = (WIDTH - LEFT - 130) / 1.7
    parts, y = [], TOP
    for model, title in SHOWN.items():
        times = {peer: values[f"{model}, {THREADS} threads: {peer}"] for peer in PEERS}
        best = min(ms for peer, ms in times.items() if peer != "tilewright")
        top = y
        for peer, ms in times.items():
            length = scale * best / ms
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" '
                f'fill="{COLOURS[peer]}"><title>{PEERS[peer]}: {ms:g} ms</title></rect>'
            )
            y += BAR + 1
        parts.append(
            f'<text x="{LEFT + scale * best / times["tilewright"] + 6:.1f}" y="{y - 1}">'
            f'<tspan font-weight="600">{best / times["tilewright"]:.2f}x</tspan> '
            f"{times['tilewright']:g} ms</text>"
        )
        parts.append(
            f'<text x="{LEFT - 10}" y="{(top + y) / 2 + 4:.0f}" text-anchor="end">{title}</text>'
        )
        y += GAP
    legend, x = [], LEFT
    for peer, name in PEERS.items():
        legend.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{COLOURS[peer]}"/>')
        legend.append(f'<text x="{x + 18}" y="23">{name}</text>')
        x += 130
    legend.append(
        f'<text x="{LEFT}" y="44" font-size="12">f32, {THREADS} threads, {run["machine"]}</text>'
    )
    line = LEFT + scale
    rule = (
        f'<line x1="{line:.1f}" y1="{TOP - 8}" x2="{line:.1f}" y2="{y}" stroke="#808080" '
        f'stroke-dasharray="4 3"/>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
        f'height="{y}" font-family="system-ui, sans-serif" font-size="13" fill="#808080" '
        f'role="img" aria-label="Speed of whole models relative to the better peer">'
        f"{''.join(legend)}{rule}{''.join(parts)}</svg>\n"
    )


def main() -> None:
    results = read()
    PAGE.write_text(page(results), encoding="utf-8")
    CHART.write_text(chart(results), encoding="utf-8")


if __name__ == "__main__":
    main()
