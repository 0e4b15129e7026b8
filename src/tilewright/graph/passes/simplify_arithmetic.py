"""simplify_arithmetic: replace element-wise operators by cheaper ones (strength reduction).

Powers with small exponents become products and roots, division by a constant becomes
multiplication, two constant factors become one. Results may differ in the last place, so nothing is
changed whose result reaches an operator that rounds to integers or compares, directly or through
arithmetic.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright import sym
from tilewright.base.passes import PassContext
from tilewright.graph.ir import Module, Node, Value
from tilewright.graph.lower_bounds import lower_bound
from tilewright.graph.match import (
    Any,
    Apply,
    Array,
    Number,
    Replacement,
    Scope,
    remade,
    rewrite_matches,
    shape_of,
)
from tilewright.graph.op import BROADCAST, ELEMENTWISE, INJECTIVE
from tilewright.graph.ops import OPS
from tilewright.graph.passes.canonicalize import MAX_PARTS
from tilewright.graph.passes.fold_constants import FOLDED_BYTES
from tilewright.graph.types import items_of
from tilewright.sym import ONE

ROUNDING = {"round", "floor", "ceil", "trunc", "quantize", "mod", "fmod", "floordiv"}
ROUNDING |= {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "sign"}


def simplify_arithmetic(module: Module, ctx: PassContext) -> Module:
    """Before: %y = pow(%x, 3.0).   After: %s = mul(%x, %x); %y = mul(%s, %x)."""
    return rewrite_matches(module, RULES)


def _is_float(value: Value | None) -> bool:
    return value is not None and value.tensor.dtype.is_float and value.tensor.dtype.bits >= 32


def power(node: Node, scope: Scope) -> Replacement:
    """x ** 3, x ** 0.5 and the like."""
    if node.op != "pow" or not _is_float(node.inputs[0]) or not _keeps_type(node, 0):
        return None
    x, exponent = node.inputs[0], scope.number(node.inputs[1])
    unary = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    if exponent in unary:
        return (remade(node, unary[exponent], x),)
    if exponent not in (2, 3, 4, -2):
        return None
    if exponent == 2:
        return (remade(node, "mul", x, x),)
    square = scope.new("mul", x, x, like=node, hint="square")
    if exponent == -2:
        return square, remade(node, "reciprocal", square.output)
    return square, remade(node, "mul", square.output, x if exponent == 3 else square.output)


def _keeps_type(node: Node, at: int) -> bool:
    value = node.inputs[at]
    return value is not None and value.type == node.output.type


def division(node: Node, scope: Scope) -> Replacement:
    """x / c = x * (1 / c)."""
    if node.op != "div" or not _is_float(node.inputs[0]) or not _keeps_type(node, 0):
        return None
    x, divisor = node.inputs[0], scope.constant(node.inputs[1])
    if divisor is None or divisor.nbytes > FOLDED_BYTES:
        return None
    inverse = _inverse(divisor)
    if inverse is None or not (_is_exact(divisor) or _may_round(node, scope)):
        return None
    factor = scope.new_constant(inverse, "factor", node)
    return factor, remade(node, "mul", x, factor.output)


def _inverse(divisor: Array) -> Array | None:
    """1 / c in c's type, if neither overflows nor loses digits."""
    lower_bound = np.finfo(divisor.dtype).tiny * 4
    size = np.abs(divisor.astype(np.float64))
    if not bool(np.all((size > lower_bound) & (size < 1 / lower_bound))):
        return None
    return np.asarray(1 / divisor.astype(np.float64)).astype(divisor.dtype)


def _is_exact(divisor: Array) -> bool:
    """Whether dividing by powers of two only changes exponents."""
    return bool(np.all(np.abs(np.frexp(divisor)[0]) == 0.5))


def _may_round(node: Node, scope: Scope) -> bool:
    """Whether the last place may change: no element-wise user rounds to integers or compares."""
    seen = {node.output}
    stack = [node.output]
    while stack:
        for user in scope.users.get(stack.pop(), ()):
            if _rounds(user):
                return False
            if OPS[user.op].pattern in (ELEMENTWISE, BROADCAST, INJECTIVE):
                new = [value for value in user.outputs if value not in seen]
                seen.update(new)
                stack += new
    return True


def _rounds(node: Node) -> bool:
    return node.op in ROUNDING or (node.op == "cast" and not node.output.tensor.dtype.is_float)


def factors(node: Node, scope: Scope) -> Replacement:
    """(x * a) * b = x * (a * b) for constants a, b."""
    if node.op != "mul" or not _is_float(node.inputs[0]) or not _keeps_type(node, 0):
        return None
    outer = scope.number(node.inputs[1])
    inner = scope.producer(node.inputs[0], "mul")
    if outer is None or inner is None or not scope.is_used_once(inner.output):
        return None
    number, x = scope.number(inner.inputs[1]), inner.inputs[0]
    if number is None or x is None or x.type != node.output.type or not _may_round(node, scope):
        return None
    product = np.array(number * outer, node.output.tensor.dtype.numpy)
    if not np.isfinite(product) or abs(float(product)) < float(np.finfo(product.dtype).tiny):
        return None
    factor = scope.new_constant(product, "factor", node)
    return factor, remade(node, "mul", x, factor.output)


def difference(node: Node, scope: Scope) -> Replacement:
    """x - c = x + -c, which is exact."""
    if node.op != "sub" or not _is_float(node.inputs[0]) or not _keeps_type(node, 0):
        return None
    term = scope.constant(node.inputs[1])
    if term is None or term.nbytes > FOLDED_BYTES:
        return None
    negative = scope.new_constant(-term, "term", node)
    return negative, remade(node, "add", node.inputs[0], negative.output)


EXPONENTIAL = Apply("add", Apply("exp", Apply("neg", Any("x"))), Number(1.0))
SIGMOID = (Apply("div", Number(1.0), EXPONENTIAL), Apply("reciprocal", EXPONENTIAL))
RELU = (Apply("maximum", Any("x"), Number(0.0)),)
NAMED = ((SIGMOID, "sigmoid"), (RELU, "relu"))


def named(node: Node, scope: Scope) -> Replacement:
    """1 / (1 + exp(-x)) is sigmoid(x), max(x, 0) is relu(x)."""
    for patterns, op in NAMED:
        for pattern in patterns:
            found = scope.match_node(pattern, node)
            if found is None or not scope.is_private(found, node):
                continue
            if found["x"].type == node.output.type and found["x"].tensor.dtype.is_float:
                return (remade(node, op, found["x"]),)
    return None


def least_of(node: Node, scope: Scope) -> Replacement:
    """min(reduce_min(x), c) = c if no element of x is below c, without reading x.

    Dynamic quantization computes the range of activations so. NaN would be lost, hence the
    condition that the maximum, which propagates it, is computed as well.
    """
    if node.op != "minimum":
        return None
    shape = node.output.tensor.static_shape
    for of, other in (node.inputs[:2], node.inputs[1::-1]):
        number, made = scope.number(other), scope.producer(of, "reduce_min")
        if number is None or made is None or made.inputs[0] is None or shape is None:
            continue
        bound = lower_bound(made.inputs[0], scope)
        has_range = scope.is_used_by(made.inputs[0], "reduce_max")
        if has_range and bound is not None and number <= bound:
            array = np.full(shape, number, node.output.tensor.dtype.numpy)
            return [replace(scope.new_constant(array, "least", node), outputs=node.outputs)]
    return None


def sum_of_stack(node: Node, scope: Scope) -> Replacement:
    """The sum along the axis of a stack is the sum of the stacked tensors."""
    axes, x = node.get("axes"), node.inputs[0] if node.inputs else None
    if node.op != "reduce_sum" or len(node.inputs) > 1 or not axes or len(axes) > 1 or x is None:
        return None
    split = scope.producer(x, "reshape")
    stack = scope.producer(x if split is None else split.inputs[0], "concat")
    shape, out = shape_of(x), shape_of(node.output)
    if stack is None or shape is None or out is None or len(stack.inputs) > MAX_PARTS:
        return None
    axis, parts = axes[0] % len(shape), [part for part in stack.inputs if part is not None]
    if split is None:
        own = (*shape[:axis], ONE, *shape[axis + 1 :])
    else:  # [.., n * size, ..] as [.., n, size, ..]
        own = (*shape[:axis], *shape[axis + 1 :])
    if stack["axis"] % len(own) != axis or shape[axis] is not sym.const(len(parts)):
        return None
    for part in parts:
        dims = shape_of(part)
        exact = part.tensor.dtype is node.output.tensor.dtype and part.tensor.dtype.bits >= 32
        if not exact or dims is None or len(dims) != len(own) or not all(map(sym.equal, dims, own)):
            return None
    nodes: list[Node] = []
    total = parts[0]
    for part in parts[1:]:
        nodes.append(scope.new("add", total, part, like=node))
        total = nodes[-1].output
    return *nodes, remade(node, "reshape", total, shape=items_of(out))


RULES = (named, power, division, difference, factors, least_of, sum_of_stack)
