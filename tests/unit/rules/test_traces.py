"""What a rule did to a program is its trace: written as text and replayed, it gives the same."""

import re
from pathlib import Path

import pytest

from tilewright import graph
from tilewright.lower.graph import lower_graph
from tilewright.rules import schedule
from tilewright.rules.cpu import RULES
from tilewright.rules.cpu.fallback import FALLBACK
from tilewright.tensor.schedule import Schedule
from tilewright.tensor.schedule.trace import Trace

CASES = Path(__file__).parents[2] / "ir/rules"
NAMES = [rule.name for entry in RULES for rule in entry]
DECISION = re.compile(r"^(?P<processor>\S+): \S+: (?P<rule>\w+) ", re.MULTILINE)
HEAD = re.compile(r"^// (?P<word>threads|constants): (?P<text>.*)$", re.MULTILINE)


def cases():
    """For each rule, the first text case that it decides: its graph, processor and setting."""
    found = {}
    for path in sorted(CASES.glob("*.tw")):
        for text in path.read_text().split("// ====\n"):
            given, _, decided = text.partition("// ---- becomes\n")
            for match in DECISION.finditer(decided):
                found.setdefault(match["rule"], (given, match["processor"]))
    return found


BY_RULE = cases()


def made_by(rule):
    """A function, and a schedule of it that the rule takes part in."""
    if rule == FALLBACK.name:  # takes any block, if no other is asked
        given, processor = BY_RULE["elementwise"]
        only = {FALLBACK.name}
    else:
        (given, processor), only = BY_RULE[rule], None
    words = {match["word"]: match["text"] for match in HEAD.finditer(given)}
    arch = "aarch64" if processor.startswith(("neoverse", "cortex")) else "x86_64"
    name, *switches = processor.split(",")
    target = f"{arch}-linux-gnu -mcpu={name}"
    target += f" -mattr={','.join(switches)}" if switches else ""
    fn = lower_graph(graph.parse(given).main, "kernel")
    constants = words.get("constants", "").split()
    threads = int(words.get("threads", "1"))
    return fn, schedule(fn, target, threads=threads, constants=constants, only=only)


@pytest.mark.parametrize("rule", NAMES)
def test_a_schedule_is_its_trace(rule):
    fn, made = made_by(rule)
    assert rule in [each.rule for each in made.decisions]
    again = Schedule(fn)
    Trace.parse(str(made.schedule.trace)).apply(again)
    assert str(again.function) == str(made.schedule.function)
    assert again.trace == made.schedule.trace
