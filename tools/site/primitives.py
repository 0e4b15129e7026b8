"""Schedule primitives and tensor intrinsics as pages: what each does to a program.

The example of a primitive is the first case of its text tests, `tests/ir/schedule/NAME.tw`: the
program before, the call, and the program after, which the tests compare in every run.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from tilewright import intrin
from tilewright.tensor.intrin import declared
from tilewright.tensor.schedule import Schedule

CASES = Path(__file__).resolve().parents[2] / "tests" / "ir" / "schedule"
SEPARATOR = re.compile(r"(?m)^// ={4,}.*\n")
BECOMES = "// ---- becomes\n"
SHARED = {"unannotate": "annotate"}  # shown by the tests of another
HARDWARE = declared() if intrin else ()  # before an example declares one of its own


def names() -> list[str]:
    """The primitives: methods of Schedule that text tests show."""
    shown = {path.stem for path in CASES.glob("*.tw")} | SHARED.keys()
    return [name for name in vars(Schedule) if name in shown]


def page() -> str:
    rows = "\n".join(f"| [`{name}`](#{name}) | {_says(name)} |" for name in names())
    entries = "\n".join(map(_entry, names()))
    return (
        "# Schedule primitives\n\nMethods of [`Schedule`](schedule.md). None can change the answer:"
        " each checks that it may be applied, and refuses otherwise. Below each stands a program "
        f"before and after it, from the tests.\n\n| primitive | |\n|---|---|\n{rows}\n\n{entries}"
    )


def _says(name: str) -> str:
    return (inspect.getdoc(getattr(Schedule, name)) or "").split("\n")[0]


def _entry(name: str) -> str:
    method = getattr(Schedule, name)
    signature = str(inspect.signature(method)).replace("'", "").replace("(self, ", "(", 1)
    title, steps, before, after = example(name)
    return (
        f"## {name}\n\n```text\nsch.{name}{signature}\n```\n\n{inspect.getdoc(method)}\n\n"
        f"{title.capitalize()}: before,\n\n```text\n{before}\n```\n\nthe calls,\n\n"
        f"```text\n{steps}\n```\n\nand after:\n\n```text\n{after}\n```\n"
    )


def example(name: str) -> tuple[str, str, str, str]:
    """What is shown, the calls, the program before and after: the first case that succeeds."""
    text = (CASES / f"{SHARED.get(name, name)}.tw").read_text(encoding="utf-8")
    for case in SEPARATOR.split(text):
        given, found, after = case.partition(BECOMES)
        lines = given.strip().split("\n")
        remarks = [line.removeprefix("//") for line in lines if line.startswith("//")]
        title = next((r.partition("test:")[2].strip() for r in remarks if "test:" in r), name)
        steps = [f"sch.{r.strip()}" if "=" not in r.split("(")[0] else r for r in remarks[2:]]
        calls = "\n".join(_on_schedule(step.strip()) for step in steps)
        if found and f"{name}(" in calls:
            program = "\n".join(line for line in lines if not line.startswith("//"))
            return title, calls, program.strip(), after.strip()
    raise RuntimeError(f"no text test shows {name}")


METHODS = re.compile(rf"(?<![\w.])({'|'.join(vars(Schedule))})\(")


def _on_schedule(step: str) -> str:
    """A step of a text test as a program says it: every method on `sch`."""
    return METHODS.sub(r"sch.\1(", step.removeprefix("sch."))


def intrinsics() -> str:
    """The intrinsics of real hardware, each by what it declares to do."""
    parts = [
        "# Tensor intrinsics\n",
        "`from tilewright import intrin` declares what instructions of real hardware do. "
        "`sch.tensorize(loop, NAME)` replaces a loop nest that computes the same; members of a "
        "family are named with their parameters, `amx_bf16_dot(rows=14)`.\n",
        "| intrinsic | parameters | inputs | outputs |\n|---|---|---|---|",
    ]
    details = []
    for family in HARDWARE:
        values = {each.name: each.default or each.least for each in family.parameters}
        member = family.make(**values)
        ends = (", ".join(str(b.name) for b in side) for side in (member.inputs, member.outputs))
        told = "; ".join(map(str, family.parameters))
        parts.append(f"| [`{family.name}`](#{family.name}) | {told} | {' | '.join(ends)} |")
        details.append(f"\n## {family.name}\n\nWhat it does:\n\n```text\n{member.behavior}\n```\n")
    return "\n".join(parts + details) + "\n"
