"""Report on graphs compiled through torch.compile: operators that PyTorch runs, and why.

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
    """An operator in a graph that PyTorch runs."""

    operator: str
    reason: str
    lines: tuple[str, ...]  # in the user's program, where known


@dataclass(frozen=True)
class GraphReport:
    """A graph: its number of operators, and those without native code."""

    operators: int
    fallbacks: tuple[Fallback, ...]


@dataclass(frozen=True)
class Report:
    """Live graphs, in order of compilation."""

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
    """Include a graph in reports while it is alive."""
    _graphs[next(_numbers)] = graph


def report() -> Report:
    """Report on the live graphs of this process."""
    return Report(tuple(_told(graph) for _, graph in sorted(_graphs.items())))


def _told(graph: CompiledGraph) -> GraphReport:
    operators = sum(node.op == "call_function" for node in graph.graph.graph.nodes)
    return GraphReport(operators, _fallbacks(graph.without))


def _fallbacks(without: Mapping[fx.Node, str]) -> tuple[Fallback, ...]:
    """Distinct operators with reasons, and all their source lines."""
    lines: dict[tuple[str, str], dict[str, None]] = {}
    for node, reason in without.items():
        found = lines.setdefault((str(node.target), reason), {})
        found.update(dict.fromkeys(map(str, lines_of(node))))
    return tuple(Fallback(*key, tuple(found)) for key, found in lines.items())
