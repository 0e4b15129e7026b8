"""upcast_matmuls: f16 and fp8 contractions read their operands in f32.

f16 contractions accumulate in f32 anyway, and round once. A processor that multiplies f32 would
convert operands in the innermost loop, repeatedly; instead their producers convert them once, and
weights are converted at compile time. Results are the same. GEMMs of few rows stay: their time is
that of reading B, which has half the bytes in f16. So do fp8 contractions where tensor cores
multiply fp8.
"""

from __future__ import annotations

from functools import partial

from tilewright.base.dtype import F16, F32
from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, Target
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches
from tilewright.graph.passes.recognize_float8 import F8E4M3, multiplies_float8
from tilewright.graph.rates import Rates, has_few_rows, rates_of

PRODUCTS = ("matmul", "conv", "conv_transpose", "attention")


def upcast_matmuls(module: Module, ctx: PassContext) -> Module:
    """Before: matmul(%a, %b) of f16.   After: cast(matmul(cast(%a), cast(%b)))."""
    target = ctx.target
    module = rewrite_matches(module, (partial(_float8, keeps=multiplies_float8(target)),))
    if isinstance(target, Target) and target.kind != CPU:
        return module
    return rewrite_matches(module, (partial(_widened, rates=rates_of(target)),))


def _float8(node: Node, scope: Scope, *, keeps: bool) -> Replacement:
    """An fp8 contraction, on a target that multiplies f32 only."""
    if node.op != "matmul" or node.output.tensor.dtype is not F32:
        return None
    dtypes = [value.tensor.dtype for value in node.inputs if value is not None]
    if not all(of.is_float and of.bits == 8 for of in dtypes):
        return None
    if keeps and all(of is F8E4M3 for of in dtypes):
        return None
    steps = Steps(node, scope)
    wide = [steps.add("cast", value, to=F32) for value in node.inputs if value is not None]
    steps.add("matmul", *wide)
    return steps.done()


def _widened(node: Node, scope: Scope, *, rates: Rates) -> Replacement:
    if node.op not in PRODUCTS or len(node.outputs) != 1 or node.output.tensor.dtype is not F16:
        return None
    if node.op == "matmul" and has_few_rows(node.inputs[0], rates, F16.size_bytes):
        return None
    steps = Steps(node, scope)
    wide = [
        steps.add("cast", value, to=F32) if _is_small(value) else value for value in node.inputs
    ]
    steps.add("cast", steps.add(node.op, *wide, **dict(node.attributes)), to=F16)
    return steps.done()


def _is_small(value: Value | None) -> bool:
    return value is not None and value.tensor.dtype is F16
