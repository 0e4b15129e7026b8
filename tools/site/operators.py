"""The table of ONNX operators: what is imported, and what of it runs as native code.

Which operators exist is the importer's table; which opsets and types each has is ONNX's own schema;
how each ends is tried: every single-operator test of the `onnx` package is imported and optimized,
and asked for nodes without native code.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import onnx.defs
from sources import digest

from tilewright.frontends.onnx.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
FIRST_OPSET = 7
NATIVE, FALLBACK, REFUSED, UNTRIED = "native", "fallback", "refused", "imported"


def page(folder: Path) -> str:
    found = outcomes(folder)
    rows = rows_of(found)
    count = Counter(row["status"] for row in rows)
    lines = [
        "# ONNX operators\n",
        f"{len(RULES)} operators are imported, at the default domain's opsets {FIRST_OPSET} to "
        f"{onnx.defs.onnx_opset_version()}. What is not here is refused with "
        "[TW1101](../errors/TW1101.md), all of a model's problems at once.\n",
        f"- **native** ({count[NATIVE]}): in every test of the `onnx` package that has it, the"
        " operator becomes native code.",
        f"- **fallback** ({count[FALLBACK]}): in some tests it does not (strings, sequences, maps,"
        " shapes that only the data tells); the interpreter runs that node, and `model.fallbacks`"
        " names it.",
        f"- **refused** ({count[REFUSED]}): imported, but some of its tests are refused; the"
        " number says how many.",
        f"- **imported** ({count[UNTRIED]}): there is a rule, and no test of `onnx` to try it on;"
        " ours, which are named, compare it with a reference.\n",
    ]
    for domain in dict.fromkeys(domain for domain, _ in RULES):
        lines.append(f"\n## {domain}\n")
        lines.append(
            "| operator | opsets | element types | status | tests |\n|---|---|---|---|---|"
        )
        lines += [_line(row) for row in rows if row["domain"] == domain]
    return "\n".join(lines) + "\n"


def rows_of(found: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """One row per operator; `found` is test -> {"op": ..., "status": ...}."""
    rows = []
    for domain, name in sorted(RULES, key=lambda key: (list(RULES_DOMAINS).index(key[0]), key[1])):
        ends = {t: o["status"] for t, o in found.items() if [domain, name] in o["ops"]}
        alone = {t: s for t, s in ends.items() if len(found[t]["ops"]) == 1}
        shown = alone or ends
        statuses = Counter(shown.values())
        worst = next((s for s in (REFUSED, FALLBACK, NATIVE) if statuses[s]), UNTRIED)
        rows.append(
            {"domain": domain, "name": name, "status": worst, "tests": shown, "count": statuses}
        )
    return rows


RULES_DOMAINS = dict.fromkeys(domain for domain, _ in RULES)


def _line(row: dict[str, Any]) -> str:
    opsets, types = _schema(row["domain"], row["name"])
    count: Counter[str] = row["count"]
    status = f"**{row['status']}**" if row["status"] in (FALLBACK, REFUSED) else row["status"]
    if row["status"] == REFUSED:
        status += f" {count[REFUSED]} of {sum(count.values())}"
    tests = sorted(row["tests"])
    if row["status"] == UNTRIED:
        shown = f"`{own_test(row['name'])}`"
    else:
        shown = f"`{tests[0]}`" + (f" and {len(tests) - 1} more" if len(tests) > 1 else "")
    return f"| `{row['name']}` | {opsets} | {types} | {status} | {shown} |"


def own_test(name: str) -> str:
    """The file of ours that tries an operator which no test of `onnx` has."""
    word = re.compile(rf"\b{name}\b")
    found = next((path for path, text in _own_tests().items() if word.search(text)), None)
    if found is None:
        raise RuntimeError(f"no test has the operator {name}")
    return found


@cache
def _own_tests() -> dict[str, str]:
    """Tests that compare with references first, then those of the importer."""
    folders = (ROOT / "tests" / name for name in ("diff", "unit/frontends/onnx", "unit", "fuzz"))
    paths = dict.fromkeys(path for folder in folders for path in sorted(folder.rglob("*.py")))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def _schema(domain: str, name: str) -> tuple[str, str]:
    """The opsets an operator changed at, and its element types, as ONNX has them."""
    where = "" if domain == "ai.onnx" else domain
    if not onnx.defs.has(name, where):
        return "1", ""
    versions = sorted(
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.name == name and schema.domain == where
    )
    first = [v for v in versions if v <= FIRST_OPSET][-1:]
    shown = [*first, *(v for v in versions if v > FIRST_OPSET)]
    newest = onnx.defs.get_schema(name, domain=where)
    types: dict[str, None] = {}
    for part in (*newest.inputs[:1], *newest.outputs[:1]):
        types |= dict.fromkeys(sorted(part.types))
    return ", ".join(map(str, shown)), _shorter([t for t in types if t.startswith("tensor(")])


def _shorter(types: list[str]) -> str:
    names = {t[len("tensor(") : -1] for t in types}
    groups = {
        "ints": {f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)},
        "floats": {"float", "double", "float16", "bfloat16"},
        "float8s": {"float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"},
    }
    shown = []
    for word, group in groups.items():
        if group <= names:
            shown.append(word)
            names -= group
    return ", ".join([*shown, *sorted(names)])


def outcomes(folder: Path) -> dict[str, dict[str, Any]]:
    """test -> its operators and how it ends; tried once for a state of the sources."""
    path = folder / f"operators-{digest()[:16]}.json"
    if not path.exists():
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("run_operators.py"))],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        path.write_text(done.stdout.splitlines()[-1], encoding="utf-8")
    read: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return read
