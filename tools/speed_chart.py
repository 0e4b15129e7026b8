"""The chart of README.md, drawn from bench/RESULTS.json: models against their best peer.

    python tools/speed_chart.py             writes docs/assets/speed.svg
    python tools/speed_chart.py --read      writes bench/RESULTS.json from the tables of RESULTS.md

`tests/unit/bench/test_speed_chart.py` sees that both are up to date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "RESULTS.md"
FIGURES = ROOT / "bench" / "RESULTS.json"
CHART = ROOT / "docs" / "assets" / "speed.svg"
SECTION = "## Whole models: `python bench/zoo.py --peers onnxruntime openvino`"
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
COLOURS = {"ONNX Runtime": "#90a4ae", "OpenVINO": "#b39ddb", "Tilewright": "#3f51b5"}
Row = dict[str, str | float | int]


def read_results() -> list[Row]:
    """The rows of the table of whole models, f32."""
    text = RESULTS.read_text(encoding="utf-8")
    section = text[text.index(SECTION) :].split("\n## ")[0]
    rows: list[Row] = []
    for line in section.splitlines():
        found = re.match(r"\| ([\w.]+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", line)
        if found:
            onnxruntime, openvino, ours = (float(found[at]) for at in (3, 4, 5))
            rows.append(
                {
                    "model": found[1],
                    "threads": int(found[2]),
                    "onnxruntime_ms": onnxruntime,
                    "openvino_ms": openvino,
                    "tilewright_ms": ours,
                }
            )
    return rows


def as_json(rows: list[Row]) -> str:
    return json.dumps(rows, indent=1) + "\n"


BAR, GAP, LEFT, WIDTH = 9, 12, 140, 720


def chart(rows: list[Row]) -> str:
    """Speed relative to the better peer, per model, as SVG."""
    shown = [row for name in SHOWN for row in rows if row["model"] == name]
    shown = [row for row in shown if row["threads"] == THREADS]
    scale = (WIDTH - LEFT - 60) / 1.8
    parts, y = [], 44
    for row in shown:
        best = min(float(row["onnxruntime_ms"]), float(row["openvino_ms"]))
        top = y
        for name, colour in COLOURS.items():
            ms = float(
                row[
                    {"ONNX Runtime": "onnxruntime_ms", "OpenVINO": "openvino_ms"}.get(
                        name, "tilewright_ms"
                    )
                ]
            )
            length = scale * best / ms
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>'
            )
            if name == "Tilewright":
                parts.append(
                    f'<text x="{LEFT + length + 6:.1f}" y="{y + BAR}" font-weight="600">'
                    f"{best / ms:.2f}x</text>"
                )
            y += BAR + 1
        parts.append(
            f'<text x="{LEFT - 10}" y="{(top + y) / 2 + 4:.0f}" text-anchor="end">'
            f"{SHOWN[str(row['model'])]}</text>"
        )
        y += GAP
    legend, x = [], LEFT
    for name, colour in COLOURS.items():
        legend.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{colour}"/>')
        legend.append(f'<text x="{x + 18}" y="23">{name}</text>')
        x += 130
    line = LEFT + scale
    rule = (
        f'<line x1="{line:.1f}" y1="36" x2="{line:.1f}" y2="{y}" stroke="#808080" '
        f'stroke-dasharray="4 3"/>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
        f'height="{y}" font-family="system-ui, sans-serif" font-size="13" fill="#808080" '
        f'role="img" aria-label="Speed of whole models relative to the better peer">'
        f"{''.join(legend)}{rule}{''.join(parts)}</svg>\n"
    )


def main() -> None:
    if "--read" in sys.argv[1:]:
        FIGURES.write_text(as_json(read_results()), encoding="utf-8")
    rows: list[Row] = json.loads(FIGURES.read_text(encoding="utf-8"))
    CHART.write_text(chart(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
