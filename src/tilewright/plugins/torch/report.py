"""What became of the graphs that torch.compile handed over: which operators PyTorch runs, and why.

compiled(x)
print(tilewright.plugins.torch.report())
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from tilewright.frontends.torch.importer import lines_of
from tilewright.plugins.torch.graphs import CompiledGraph


@dataclass(frozen=True)
class Fallback:
    """An operator that PyTorch runs in a graph."""

    operator: str
    reason: str
    lines: tuple[str, ...]  # of the user's program, as far as PyTorch tells


@dataclass(frozen=True)
class GraphReport:
    """One graph: how many operators it has, and those without code."""

    operators: int
    fallbacks: tuple[Fallback, ...]


@dataclass(frozen=True)
class Report:
    """The graphs that are there, in the order in which they were compiled."""

    graphs: tuple[GraphReport, ...]

    def __str__(self) -> str:
        told = [f"{len(self.graphs)} graphs"]
        for at, graph in enumerate(self.graphs):
            told.append(
                f"graph {at}: {graph.operators} operators, {len(graph.fallbacks)} fall back"
            )
            for each in graph.fallbacks:
                where = f" ({', '.join(each.lines)})" if each.lines else ""
                told.append(f"  {each.operator}: {each.reason}{where}")
        return "\n".join(told)


_numbers = itertools.count()
_graphs: weakref.WeakValueDictionary[int, CompiledGraph] = weakref.WeakValueDictionary()


def note(graph: CompiledGraph) -> None:
    """Have a graph among those reported, for as long as it is there."""
    _graphs[next(_numbers)] = graph


def report() -> Report:
    """What became of the graphs of this process that are still in use."""
    return Report(tuple(_told(graph) for _, graph in sorted(_graphs.items())))


def _told(graph: CompiledGraph) -> GraphReport:
    operators = sum(node.op == "call_function" for node in graph.graph.graph.nodes)
    return GraphReport(operators, _fallbacks(graph.without))


def _fallbacks(without: Mapping[fx.Node, str]) -> tuple[Fallback, ...]:
    """Operators with their reasons, each once, and all lines they stand in."""
    lines: dict[tuple[str, str], dict[str, None]] = {}
    for node, reason in without.items():
        found = lines.setdefault((str(node.target), reason), {})
        found.update(dict.fromkeys(map(str, lines_of(node))))
    return tuple(Fallback(*key, tuple(found)) for key, found in lines.items())
