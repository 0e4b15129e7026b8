"""propagate_sizes: dynamic sizes of inputs that the model's contractions determine.

    graph @main(%x: f32[n, m]) { %w: f32[12, 4] = constant() ... %y = matmul(%x, %w) ... }

works for m = 12 only: so %x becomes f32[n, 12], which is checked at entry, and kernels know the
stride of rows. Nodes that may not run, such as those inside of branches, determine nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.types import TensorType
from tilewright.graph.visit import Edit
from tilewright.sym import Const, Expr, Size, Var


def propagate_sizes(module: Module, ctx: PassContext) -> Module:
    """Before: matmul(%x: f32[n, m], %w: f32[12, 4]).   After: with 12 for m, in all of main."""
    main = module.graphs.get("main")
    if main is None:
        return module
    given = {dim for param in main.params for dim in _dims(param) if isinstance(dim, Size)}
    found: dict[Var, Expr] = {}
    for size, number in (pair for node in main.nodes for pair in _required_sizes(node)):
        if size in given:
            # a contradicting size is reported by the checks of the contraction
            found.setdefault(size, number)
    if not found:
        return module
    return replace(module, graphs={**module.graphs, "main": Edit(sizes=found).body(main)})


def _required_sizes(node: Node) -> Iterator[tuple[Size, Expr]]:
    """Dynamic sizes with the numbers that a contraction requires."""
    shapes = [_dims(value) for value in node.inputs[:2]]
    if len(shapes) < 2 or not all(shapes):
        return
    a, b = shapes
    if node.op == "matmul":
        pairs = [(a[-1], b[-2] if len(b) > 1 else b[-1])]
    elif node.op == "conv" and node.get("layout") is None and len(a) > 1 and len(b) > 1:
        pairs = [(a[1], sym.simplify(sym.mul(b[1], node.get("groups", 1))))]
    else:
        return
    for one, other in (*pairs, *[pair[::-1] for pair in pairs]):
        if isinstance(one, Size) and isinstance(other, Const) and other.value > 0:
            yield one, other


def _dims(value: Value | None) -> tuple[Expr, ...]:
    of = None if value is None else value.type
    return of.shape or () if isinstance(of, TensorType) else ()
