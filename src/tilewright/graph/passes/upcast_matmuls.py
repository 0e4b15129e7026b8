"""upcast_matmuls: products of f16 read their operands in f32.

Sums of products of f16 are taken in f32 anyway, and rounded once. A processor that multiplies f32
would convert what it reads in the innermost loop, again and again; here whoever computes an operand
converts it once, and weights are converted at compile time. The results are the same. Products of
few rows stay: nothing counts but reading B, which is half as long in f16.
"""

from __future__ import annotations

from functools import partial
from math import prod

from tilewright.base.dtype import F16, F32
from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, Target
from tilewright.graph.cost import Rates, rates_of
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches, shape_of
from tilewright.sym import Const

PRODUCTS = ("matmul", "conv", "conv_transpose", "attention")


def upcast_matmuls(module: Module, ctx: PassContext) -> Module:
    """Before: matmul(%a, %b) of f16.   After: cast(matmul(cast(%a), cast(%b)))."""
    target = ctx.target
    if isinstance(target, Target) and target.kind != CPU:
        return module
    return rewrite_matches(module, (partial(_widened, rates=rates_of(target)),))


def _widened(node: Node, scope: Scope, *, rates: Rates) -> Replacement:
    if node.op not in PRODUCTS or len(node.outputs) != 1 or node.output.tensor.dtype is not F16:
        return None
    if node.op == "matmul" and _has_few_rows(node.inputs[0], rates):
        return None
    steps = Steps(node, scope)
    wide = [
        steps.add("cast", value, to=F32) if _is_small(value) else value for value in node.inputs
    ]
    steps.add("cast", steps.add(node.op, *wide, **dict(node.attributes)), to=F16)
    return steps.done()


def _is_small(value: Value | None) -> bool:
    return value is not None and value.tensor.dtype is F16


def _has_few_rows(a: Value | None, rates: Rates) -> bool:
    """Whether a product's rows are so few that converting B for each of them takes no longer than
    reading it with twice the bytes."""
    shape = None if a is None else shape_of(a)
    if shape is None or not all(isinstance(dim, Const) for dim in shape[:-1]):
        return False
    rows = prod(int(dim.value) for dim in shape[:-1] if isinstance(dim, Const))
    return rows * rates.operation_ns < (F32.size_bytes - F16.size_bytes) * rates.byte_ns
