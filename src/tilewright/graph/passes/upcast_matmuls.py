"""upcast_matmuls: products of f16, floats of eight bits and weights of eight bits read their
operands in f32.

Sums of products of f16 are taken in f32 anyway, and rounded once. A processor that multiplies f32
would convert what it reads in the innermost loop, again and again; here whoever computes an operand
converts it once, and weights are converted at compile time. The results are the same. Products of
few rows stay: nothing counts but reading B, which is half as long in f16, and a quarter as long
in bytes. So do floats of eight bits where tensor cores multiply them.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from tilewright.base.dtype import F16, F32
from tilewright.base.passes import PassContext
from tilewright.base.target import CPU, Target
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.match import Replacement, Scope, Steps, rewrite_matches, shape_of
from tilewright.graph.passes.fold_constants import is_packed_weight
from tilewright.graph.passes.recognize_float8 import F8E4M3, multiplies_float8
from tilewright.graph.rates import Rates, rates_of
from tilewright.graph.types import TensorType
from tilewright.sym import Const

PRODUCTS = ("matmul", "conv", "conv_transpose", "attention")


def upcast_matmuls(module: Module, ctx: PassContext) -> Module:
    """Before: matmul(%a, %b) of f16.   After: cast(matmul(cast(%a), cast(%b)))."""
    target = ctx.target
    is_cpu = not isinstance(target, Target) or target.kind == CPU
    rates = rates_of(target) if is_cpu else None
    keeps = multiplies_float8(target)
    module = rewrite_matches(module, (partial(_float8, keeps=keeps),))
    module = rewrite_matches(module, (partial(_weights, rates=rates),))
    return rewrite_matches(module, (partial(_widened, rates=rates),)) if rates else module


def _weights(node: Node, scope: Scope, *, rates: Rates | None) -> Replacement:
    """A product with weights of few bits: of few rows it reads them as they are; else they become
    floats now, once."""
    made = scope.producer(node.inputs[1], "cast") if node.op == "matmul" else None
    packed = None if made is None else scope.constant(made.inputs[0])
    if made is None or packed is None or not is_packed_weight(made, scope.users):
        return None
    steps = Steps(node, scope)
    weights = made.inputs[0]
    if rates is None or not _has_few_rows(node.inputs[0], rates, packed.dtype.itemsize):
        weights = steps.constant(packed.astype(np.float32), TensorType(F32, ()), "weights")
    steps.add("matmul", node.inputs[0], weights, **dict(node.attributes))
    return steps.done()


def _float8(node: Node, scope: Scope, *, keeps: bool) -> Replacement:
    """A product of floats of eight bits, where none but those of f32 are multiplied."""
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
    if node.op == "matmul" and _has_few_rows(node.inputs[0], rates, F16.size_bytes):
        return None
    steps = Steps(node, scope)
    wide = [
        steps.add("cast", value, to=F32) if _is_small(value) else value for value in node.inputs
    ]
    steps.add("cast", steps.add(node.op, *wide, **dict(node.attributes)), to=F16)
    return steps.done()


def _is_small(value: Value | None) -> bool:
    return value is not None and value.tensor.dtype is F16


def _has_few_rows(a: Value | None, rates: Rates, size_bytes: int) -> bool:
    """Whether a product's rows are so few that converting B, of elements of so many bytes, for each
    of them takes no longer than reading it as f32."""
    shape = None if a is None else shape_of(a)
    if shape is None or not all(isinstance(dim, Const) for dim in shape[:-1]):
        return False
    rows = prod(int(dim.value) for dim in shape[:-1] if isinstance(dim, Const))
    return rows * rates.operation_ns < (F32.size_bytes - size_bytes) * rates.byte_ns
