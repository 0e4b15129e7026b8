"""The `dynamic` option: bounds or values for the dynamic sizes of a model's inputs.

dynamic={"batch": (1, 64)}    any size in the range, by one module; others are refused
dynamic={"batch": 4}          this size only, as (4, 4): compiled as a constant
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base.errors import UserError
from tilewright.graph import ir
from tilewright.graph.build import make_node, store_constant
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.memory import given_sizes
from tilewright.graph.types import sizes_of
from tilewright.graph.visit import Edit
from tilewright.sym import Expr, Size, Var, const

Dynamic = Mapping[str, Any]
Ranges = tuple[tuple[Var, int, int], ...]  # lower and upper bounds of dynamic sizes


def size_names(module: Module) -> list[str]:
    """The names of the dynamic sizes of a model's inputs."""
    return [size.name for size in given_sizes(module.main)]


def check_size_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Check that the sizes a user names are sizes of the model."""
    there = list(dict.fromkeys(known))
    for name in names:
        if name not in there:
            raise UserError(
                "TW6005",
                f"no dimension of an input is called {name}",
                help=f"known: {', '.join(there) or 'none'}",
            )


def with_sizes(module: Module, dynamic: Dynamic | None) -> Module:
    """The module with sizes replaced by constants, or with checks of their ranges at entry."""
    if not dynamic:
        return module
    sizes = {size.name: size for size in given_sizes(module.main) if isinstance(size, Size)}
    check_size_names(dynamic, sizes)
    bounds: dict[Size, tuple[int, int]] = {}
    for name, wanted in dynamic.items():
        bounds[sizes[name]] = bounds_of(name, wanted)
    fixed: dict[Var, Expr] = {at: const(low) for at, (low, high) in bounds.items() if low == high}
    ranges = {at: each for at, each in bounds.items() if at not in fixed}
    graph = Edit(sizes=fixed).body(module.main) if fixed else module.main
    constants = dict(module.constants)
    if ranges:
        graph = _checked(graph, ranges, constants)
    return replace(module, graphs={**module.graphs, "main": graph}, constants=constants)


def bounds_of(name: str, wanted: Any) -> tuple[int, int]:
    """The least and the greatest value of a size: of a number, or of a range."""
    try:
        low, high = map(operator.index, wanted if isinstance(wanted, Iterable) else (wanted,) * 2)
    except (TypeError, ValueError):
        raise UserError(
            "TW6005",
            f"the size {name} cannot be {wanted!r}",
            help="write a number, 4, or a range, (1, 64)",
        ) from None
    if not 0 <= low <= high:
        raise UserError("TW6005", f"the size {name} cannot be in {low}..{high}")
    return low, high


def sizes_to_measure(dynamic: Dynamic | None) -> dict[str, tuple[int, ...]]:
    """Sizes to measure for each range: its lower end, geometric middle and upper end."""
    found = {}
    for name, wanted in (dynamic or {}).items():
        if isinstance(wanted, Iterable):
            low, high = (max(each, 1) for each in bounds_of(name, wanted))  # 0: nothing to measure
            found[name] = tuple(sorted({low, math.isqrt(low * high), high}))
    return found


def ranges_of(module: Module) -> Ranges:
    """The bounds of dynamic sizes that a model checks at entry."""
    within = [node.get("within", ()) for node in module.main.nodes if node.op == "require"]
    return tuple((each[0], int(each[1]), int(each[2])) for each in within if each)


def _checked(
    graph: Graph, ranges: Mapping[Size, tuple[int, int]], constants: dict[str, np.ndarray]
) -> Graph:
    """The graph with its inputs passed through checks of their sizes."""
    edit = Edit()
    head: list[Node] = []

    def add(op: str, *inputs: Value, **attributes: ir.Attribute) -> Value:
        head.append(make_node(op, inputs, attributes))
        return head[-1].output

    def number(value: int) -> Value:
        head.append(store_constant(constants, np.array(value, np.int64), f"bound_{value}"))
        return head[-1].output

    for size, (low, high) in ranges.items():
        param = next(p for p in graph.params if size in sizes_of(p.type))
        told = add("dims", values=size)
        fits = add(
            "logical_and",
            add("less_equal", number(low), told),
            add("less_equal", told, number(high)),
        )
        message = f"the size {size.name} is not in {low}..{high}"
        within = (size, low, high)
        edit.values[param] = add("require", fits, edit.value(param), message=message, within=within)
    nodes = tuple(edit.node(node) for node in graph.nodes)
    results = tuple(edit.value(result) for result in graph.results)
    return replace(graph, nodes=(*head, *nodes), results=results)
