"""What the interpreter runs of a model, as data: made by `driver/foreign_parts.py`."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.ir import Module

INPUTS, OUTPUTS = "inputs", "outputs"  # graphs that only tell the types of main's
CLOSING = "closing"  # the graph of what main's results alone are needed for


@dataclass(frozen=True)
class Part:
    """How a part is called."""

    weights: frozenset[int]  # inputs that are constants: their memory never changes
    tells: bool  # whether the first result is the sizes that it defines
    # Objects that end with the part: the input, and the part that made those which end. What a
    # loop carries comes from outside in its first round, and is not the loop's to end.
    ends: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Closing:
    """How the graph @closing is called, when main has ended."""

    takes: tuple[int, ...]  # which of main's results
    gives: tuple[int, ...]  # for each result of the model: its place among main's, then @closing's


@dataclass(frozen=True)
class Parts:
    """Graphs @part0, @part1, ... of a module, and @closing if there is one; @inputs and @outputs
    tell the types of main's."""

    module: Module
    parts: tuple[Part, ...]
    fallbacks: tuple[str, ...]  # the operators in them
    closing: Closing | None = None


def part_name(number: int) -> str:
    return f"part{number}"
