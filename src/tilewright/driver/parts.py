"""Parts of a model that the interpreter runs, as data; made by `driver/foreign_parts.py`."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.graph.ir import Module

# graphs without nodes: the types of main's parameters and results
INPUTS, OUTPUTS = "inputs", "outputs"
CLOSING = "closing"  # the graph that the interpreter runs after main


@dataclass(frozen=True)
class Part:
    """How main calls a part."""

    weights: frozenset[int]  # positions of constant inputs: their memory never changes
    tells: bool  # whether the first result is the dynamic sizes that the part defines
    # Objects that are freed after the part: its input position, and the part that must have made
    # the object. A loop-carried object of the first iteration comes from outside and is not freed.
    ends: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Closing:
    """How the graph @closing is called after main."""

    takes: tuple[int, ...]  # the positions in main's results of its parameters
    # For each output of the model: its position among main's results followed by @closing's.
    gives: tuple[int, ...]


@dataclass(frozen=True)
class Parts:
    """The graphs @part0, @part1, ... of a module and @closing, if there is one; @inputs and
    @outputs have the types of main's parameters and results."""

    module: Module
    parts: tuple[Part, ...]
    fallbacks: tuple[str, ...]  # the operators in the parts
    closing: Closing | None = None


def part_name(number: int) -> str:
    return f"part{number}"
