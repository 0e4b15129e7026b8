"""Try the tests of the `onnx` package that the table of operators has; the outcomes as JSON."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "conformance"))

from suite import cases

from tilewright.base.errors import TilewrightError
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.driver.optimize import load_graph, optimize
from tilewright.driver.options import Options
from tilewright.driver.placement import placement
from tilewright.driver.unfuse import unfuse_foreign
from tilewright.graph.types import is_tensor


def outcome(model: Any, target: Target) -> str:
    """How a model ends. Costs of kernels are not asked for: they do not decide what is native."""
    try:
        graph = optimize(load_graph(model), target, Options(), PassContext(target=target))
    except TilewrightError:
        return "refused"
    graph = unfuse_foreign(graph)
    placed = placement(graph, target)
    whole = placed.is_native and all(is_tensor(param.type) for param in graph.main.params)
    return "native" if whole else "fallback"


def operators_of(test: Any) -> list[tuple[str, str]]:
    """The domain and name of every operator that a test has."""
    nodes = test.model.graph.node
    return list(dict.fromkeys((node.domain or "ai.onnx", node.op_type) for node in nodes))


def told(tests: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the table says of each test: its operators, and how it ends."""
    target = Target.parse("cpu")
    return {
        name: {"ops": operators_of(test), "status": outcome(test.model, target)}
        for name, test in tests.items()
    }


def shown(tests: Mapping[str, Any]) -> dict[str, Any]:
    """The tests that the table has: of one operator, or with one that no test has alone."""
    ops = {name: set(operators_of(test)) for name, test in tests.items()}
    alone = set().union(*(found for found in ops.values() if len(found) == 1))
    return {name: tests[name] for name, found in ops.items() if len(found) == 1 or found - alone}


def main() -> None:
    warnings.simplefilter("ignore")
    print(json.dumps(told(shown(cases("node")))))


if __name__ == "__main__":
    main()
