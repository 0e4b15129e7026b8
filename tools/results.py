"""bench/RESULTS.md and the chart of README.md, from what RESULTS.json says.

    make results        or: python tools/results.py

RESULTS.json has a line for each figure on each machine: `figure`, `machine`, `measured`, and where
they apply `wanted`, `command`, `state` (of the machine: busy, CPU time), `version` (an older one),
`unit`, `note`, and `limit`: why it is short of what was wanted, and what was tried. `measured` is a
number, a text that begins with one ("1.30 (1.27)": medians and, in brackets, least times), or an
object of several by name; `wanted` is ">= 1.0", "<= 5 s", a text to be equal to, or an object by
the same names. Whether a figure holds is computed, never written.

Tables for breakdowns have a line for each column: `column`, `machine`, `values` by row.

`tests/unit/bench/test_results.py` sees that page and chart are up to date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "bench" / "RESULTS.json"
PAGE = ROOT / "bench" / "RESULTS.md"
CHART = ROOT / "docs" / "assets" / "speed.svg"
Row = dict[str, Any]

NOT_MEASURED = "not measured"
NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"


def read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


# --------------------------------------------------------------------------- what holds


class Value(NamedTuple):
    """One measured value: its name among those of its row, its text, what was wanted of it."""

    name: str
    text: str
    wanted: str

    @property
    def holds(self) -> bool | None:
        """None where nothing was wanted, or nothing was measured."""
        if not self.wanted or self.text.startswith(NOT_MEASURED):
            return None
        for sign in (">=", "<="):
            if self.wanted.startswith(sign):
                limit = numbers(self.wanted)[0]
                found = numbers(self.text)
                if not found:
                    raise ValueError(f"{self.name}: {self.text!r} does not begin with a number")
                return min(found) >= limit if sign == ">=" else max(found) <= limit
        if self.wanted == "all" and (whole := re.match(r"([\d,]+) of ([\d,]+)", self.text)):
            return whole[1] == whole[2]
        return self.text.split(":")[0] == self.wanted


def numbers(text: str) -> list[float]:
    """The numbers that a text begins with: `0.9 to 1.1 (1.0), mlp`: two; `20:48`: seconds."""
    text = re.sub(r" ?\(.*?\)", "", re.sub("^([<>]=?|under) ", "", text))
    text = re.sub(r"(\d),(?=\d{3}\b)", r"\1", text)
    text = re.sub(r"(\d+):(\d\d)", lambda at: str(int(at[1]) * 60 + int(at[2])), text)
    begun = re.match(f"{NUMBER}((, | to | and ){NUMBER})*", text)
    return [float(one) for one in re.findall(NUMBER, begun[0])] if begun else []


def values(row: Row) -> list[Value]:
    """What a row, or a column of a table, measured."""
    measured, wanted = row.get("measured", row.get("values")), row.get("wanted", "")
    if not isinstance(measured, dict):
        measured = {"": measured}
    return [
        Value(name, shown(value, row), wanted.get(name, "") if isinstance(wanted, dict) else wanted)
        for name, value in measured.items()
    ]


def shown(value: str | float, row: Row) -> str:
    """A value as text; of scripts it is a number, with the unit of its row."""
    if isinstance(value, str):
        return value
    unit = row.get("unit", "") if "figure" in row else ""  # columns name theirs in the head
    if row.get("unit") == "x":
        return f"{value:.2f}"
    return f"{value:.3g} {unit}".rstrip() if abs(value) < 1000 else f"{value:,.0f} {unit}".rstrip()


def verdict(every: Iterable[Value]) -> str:
    """The cell that says whether a figure holds."""
    told = [(value.holds, value.text) for value in every if value.wanted]
    if any(held is False for held, _ in told):
        return "**short**"
    if any(text.startswith(NOT_MEASURED) for _, text in told):
        return NOT_MEASURED
    return "yes" if told else ""


def entries(results: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, Row]]:
    """Every row and every column: its section, what it is called, itself."""
    for section in results["sections"]:
        for row in section["rows"]:
            yield section, row["figure"], row
        for table in section["tables"]:
            for column in table["columns"]:
                yield section, f"{table['title']}: {column['column']}", column


# --------------------------------------------------------------------------- the page


def page(results: dict[str, Any]) -> str:
    """RESULTS.md."""
    parts = [
        "# Results\n\n<!-- Generated from RESULTS.json by tools/results.py: `make results`. -->",
        results["about"],
        _table(
            ["machine", "what it is"], ([one["name"], one["is"]] for one in results["machines"])
        ),
        _shortfalls(results),
    ]
    for section in results["sections"]:
        parts.append(f"## {section['title']}")
        if "text" in section:
            parts.append(section["text"])
        if section["rows"]:
            parts.append(_rows(section["rows"]))
        for table in section["tables"]:
            parts += _breakdown(table)
        parts += _remarks("Notes", "note", section["rows"])
        parts += _remarks("What limits it", "limit", map(_with_limit, section["rows"]))
    return "\n\n".join(parts) + "\n"


def _shortfalls(results: dict[str, Any]) -> str:
    """The table of all that is short of what was wanted, and how much is not."""
    every = list(entries(results))
    told = [verdict(values(row)) for _, _, row in every]
    held, short = told.count("yes"), told.count("**short**")
    missing = told.count(NOT_MEASURED)
    lines = []
    for section, name, row in every:
        for value in values(row):
            missed = value.wanted and value.text.startswith(NOT_MEASURED)
            if value.holds is False or missed:
                part = f"{value.name}: " if value.name else ""
                title = section["title"]
                anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
                found = value.text if missed else f"**{value.text}**"
                cells = [name, row["machine"], part + found, _limit(value.wanted)]
                lines.append([*cells, f"[{title}](#{anchor})"])
    merged = []
    for (name, where, where_to), group in groupby(lines, lambda one: (one[0], one[1], one[4])):
        same = list(group)
        wants = list(dict.fromkeys(one[3] for one in same))
        merged.append([name, where, "; ".join(o[2] for o in same), "; ".join(wants), where_to])
    summary = (
        f"Of {held + short + missing} figures with a goal, counted per machine, {held} meet it, "
        f"{short} miss it in at least one value, and {missing} were not measured. The table lists "
        "the latter two; the reasons, and what was tried, are at the end of each section."
    )
    head = ["figure", "machine", "measured", "goal", "section"]
    return f"## Figures that miss their goal\n\n{summary}\n\n{_table(head, merged)}"


def _rows(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        every = values(row)
        lines.append(
            [
                row["figure"],
                _where(row),
                "; ".join(_measured(value) for value in every),
                _wanted(row.get("wanted", "")),
                verdict(every),
                _command(row.get("command", "")),
            ]
        )
    return _table(["figure", "machine", "measured", "goal", "met?", "command"], lines)


def _where(row: Row) -> str:
    version = f"version {row['version']}" if "version" in row else ""
    return ", ".join(filter(None, (row["machine"], row.get("state"), version)))


def _measured(value: Value) -> str:
    text = f"**{value.text}**" if value.holds is False else value.text
    return f"{value.name}: {text}" if value.name else text


def _wanted(wanted: str | dict[str, str]) -> str:
    if isinstance(wanted, str):
        return _limit(wanted)
    return "; ".join(f"{name}: {_limit(limit)}" for name, limit in wanted.items())


def _limit(wanted: str) -> str:
    return wanted.replace("<=", "at most").replace(">=", "at least")


def _command(command: str) -> str:
    is_command = re.match(
        r"([A-Z_]+=(\"[^\"]*\"|\S+) )*(python|pytest|make|tilewright|bash) ", f"{command} "
    )
    return f"`{command}`" if is_command else command


def _breakdown(table: Row) -> list[str]:
    """Ratios of all machines side by side; times, which have units, machine by machine."""
    columns = table["columns"]
    timed = [one for one in columns if one.get("unit", "x") != "x"]
    machines = dict.fromkeys(one["machine"] for one in timed)
    groups = [[one for one in columns if one not in timed]]
    groups += [[one for one in timed if one["machine"] == each] for each in machines]
    parts = [f"### {table['title']}", *filter(None, [table.get("text")])]
    for group in filter(None, groups):
        commands = dict.fromkeys(_command(one["command"]) for one in group if "command" in one)
        where = {_where(one) for one in group}
        caption = ", ".join([*commands, *(where if len(where) == 1 else [])])
        parts.append(f"{caption}:")
        cells: dict[str, list[str]] = {}
        for at, one in enumerate(group):
            for value in values(one):
                row = cells.setdefault(value.name, [value.name])
                row += [""] * (at + 1 - len(row))
                row.append(f"**{value.text}**" if value.holds is False else value.text)
        filled = ([*row, *[""] * (len(group) + 1 - len(row))] for row in cells.values())
        parts.append(_table([table["of"], *(_head(one, len(where) > 1) for one in group)], filled))
    return parts


def _head(column: Row, with_machine: bool) -> str:
    unit = column.get("unit", "x")
    machine = f"{_where(column)}: " if with_machine else ""
    return f"{machine}{column['column']}" + (f", {unit}" if unit not in ("x", "") else "")


def _with_limit(row: Row) -> Row:
    """A row that is short says why, or that nobody knows."""
    short = verdict(values(row)) == "**short**"
    return {"limit": "Not established."} | row if short else row


def _remarks(title: str, key: str, rows: Iterable[Row]) -> list[str]:
    """What is said of rows under that key, each text once."""
    of: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if key in row:
            of.setdefault(row[key], {}).setdefault(row["figure"], []).append(row["machine"])
    lines = []
    for text, figures in of.items():
        names = (f"{name} ({', '.join(dict.fromkeys(at))})" for name, at in figures.items())
        lines.append(f"- {'; '.join(names)}: {text}")
    return [f"### {title}", "\n".join(lines)] if lines else []


def _table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    columns = list(columns)
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines)


# --------------------------------------------------------------------------- the chart

COMMAND = "python bench/zoo.py "
COLUMN = "2 threads"
COLOURS = {"Emerald Rapids": "#3f51b5", "Cascade Lake": "#26a69a", "Skylake-SP": "#ef6c00"}
SHOWN = {
    "bert_base": "BERT base",
    "minilm6": "MiniLM-L6",
    "gpt2_small_prefill": "GPT-2, 128 tokens",
    "vit_b16": "ViT-B/16",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "mobilenet_v2": "MobileNet-V2",
    "dcgan_generator": "DCGAN",
    "lstm_lm_seq35": "LSTM, 35 steps",
    "lstm_lm_step": "LSTM, one step",
    "dqn": "DQN",
    "mlp": "MLP",
}
BAR, GAP, LEFT, WIDTH, TOP = 9, 12, 140, 720, 62
LONGEST = 1.7  # ratio


def ratios(results: dict[str, Any], machine: str) -> dict[str, float]:
    """How much faster each model of the zoo is than the better peer, f32, if measured."""
    for _, _, row in entries(results):
        same = row.get("column") == COLUMN and row["machine"] == machine
        if same and row.get("command", "").startswith(COMMAND):
            return {value.name: numbers(value.text)[0] for value in values(row)}
    return {}


def measured(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The ratios of the machines on which all models of the chart were measured."""
    found = {machine: ratios(results, machine) for machine in COLOURS}
    return {machine: of for machine, of in found.items() if of.keys() >= SHOWN.keys()}


def chart(results: dict[str, Any]) -> str:
    """Speed of whole models relative to the better peer, as SVG."""
    found = measured(results)
    scale = (WIDTH - LEFT - 60) / LONGEST
    parts, y = [], TOP
    for model, title in SHOWN.items():
        top = y
        for machine, of in found.items():
            ratio = of[model]
            length = scale * ratio
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" '
                f'fill="{COLOURS[machine]}">'
                f"<title>{machine}: {ratio:.2f}</title></rect>"
                f'<text x="{LEFT + length + 6:.1f}" y="{y + BAR}" font-size="11">{ratio:.2f}</text>'
            )
            y += BAR + 2
        parts.append(
            f'<text x="{LEFT - 10}" y="{(top + y) / 2 + 4:.0f}" text-anchor="end">{title}</text>'
        )
        y += GAP
    legend, x = [], LEFT
    for machine in found:
        legend.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{COLOURS[machine]}"/>')
        legend.append(f'<text x="{x + 18}" y="23">{machine}</text>')
        x += 150
    legend.append(
        f'<text x="{LEFT}" y="44" font-size="12">time of the faster of ONNX Runtime and OpenVINO '
        f"over Tilewright's, f32, {COLUMN}</text>"
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
        f"{''.join(legend)}{''.join(parts)}{rule}</svg>\n"
    )


def main() -> None:
    results = read()
    PAGE.write_text(page(results), encoding="utf-8")
    CHART.write_text(chart(results), encoding="utf-8")


if __name__ == "__main__":
    main()
