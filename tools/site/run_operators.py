"""Try every single-operator test of the `onnx` package; the outcomes as JSON."""

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
from tilewright.base.target import Target
from tilewright.driver.compile import Options, load_graph, optimize
from tilewright.driver.placement import placement
from tilewright.driver.unfuse import unfuse_foreign
from tilewright.graph.types import is_tensor


def outcome(model: Any, target: Target) -> str:
    try:
        graph = optimize(load_graph(model), target, Options())
    except TilewrightError:
        return "refused"
    graph = unfuse_foreign(graph)
    placed = placement(graph, target)
    whole = placed.is_native and all(is_tensor(param.type) for param in graph.main.params)
    return "native" if whole else "fallback"


def told(tests: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the table says of each test: its operators, and how it ends."""
    target = Target.parse("cpu")
    found = {}
    for name, test in tests.items():
        ops = dict.fromkeys(
            (node.domain or "ai.onnx", node.op_type) for node in test.model.graph.node
        )
        found[name] = {"ops": list(ops), "status": outcome(test.model, target)}
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    print(json.dumps(told(cases("node"))))


if __name__ == "__main__":
    main()
