"""fold_constants: evaluate what depends on constants only, by the reference implementations.

A result may be as large as its operands, or `limit` bytes: weights are transposed at compile time,
but a small constant is not broadcast to a large tensor. It may be on the way to a small result, as
the hidden layer of a network that makes position biases is. Weights of few bits are widened, except
large ones that only matmuls read as floats: `pack_weights` decides about those. Small weights that
the model itself packs for a matmul are widened, too. An `if` with a constant condition is replaced
by the branch taken.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base.dtype import F32, U8
from tilewright.base.errors import TilewrightError
from tilewright.base.passes import PassContext
from tilewright.graph.build import make_call, store_constant
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.op import as_arrays
from tilewright.graph.ops import OPS
from tilewright.graph.ops.control import BRANCHES, branch_of
from tilewright.graph.ops.linalg import unpacked
from tilewright.graph.types import TensorType
from tilewright.graph.visit import (
    Edit,
    Instead,
    Rule,
    attribute_sizes,
    map_graphs,
    rewrite_by,
    same_sizes,
    users,
)

Array = np.ndarray[Any, Any]

FOLDED_BYTES = 1 << 20  # a constant larger than its operands that is still worth storing
BETWEEN_BYTES = 1 << 26  # the same on the way to a smaller one: it is not stored
WIDENING = ("cast", "dequantize")  # elementwise, with wider results


def fold_constants(module: Module, ctx: PassContext) -> Module:
    """Before: %a = constant; %b = neg(%a).   After: %b = constant."""
    limit = ctx.option("fold_constants.limit", FOLDED_BYTES)
    between = ctx.option("fold_constants.between_limit", BETWEEN_BYTES)
    constants = dict(module.constants)

    def make_rule(graph: Graph) -> Rule:
        known: dict[Value, Array] = {}
        large: dict[Value, Node] = {}  # of constants only, but not worth storing
        readers = users(graph)

        def rule(node: Node) -> Instead | None:
            if node.op == "constant":
                known[node.output] = constants[node["data"]]
                return None
            if node.op in BRANCHES and node.inputs[0] in known:
                chosen = branch_of(node.op, known[node.inputs[0]], len(node.bodies))
                return inlined(node, node.bodies[chosen], node.inputs[1:])
            if is_packed_weight(node, readers) and _bytes(node.output) > limit:
                return None
            arrays = computed(node, known, limit)
            if arrays is None and _is_constant(node, known, large):
                arrays = _through(node, known, large, limit, between)
            if arrays is None and node.op == "matmul_packed":
                return _widened(node, known, constants, limit)
            if arrays is None:
                return None
            nodes = []
            for value, array in zip(node.outputs, arrays, strict=True):
                nodes.append(store_constant(constants, array, value.name, node.loc))
                known[nodes[-1].output] = array
            values = tuple(made.output for made in nodes)
            return Instead(tuple(nodes), values, same_sizes(node, values) or {})

        return rule

    changed = map_graphs(module, lambda graph: rewrite_by(graph, make_rule))
    return module if changed is module else replace(changed, constants=constants)


def _is_constant(node: Node, known: Mapping[Value, Array], large: Mapping[Value, Node]) -> bool:
    """Whether a node reads constants only, and what is computed from them."""
    given = [value for value in node.inputs if value is not None]
    return bool(given) and all(value in known or value in large for value in given)


def _through(
    node: Node, known: Mapping[Value, Array], large: dict[Value, Node], limit: int, between: int
) -> list[Array] | None:
    """The outputs of a node whose operands are larger than what is stored; None where its outputs
    are so themselves: those of up to `between` bytes are left for nodes that follow."""
    most = max(_bytes(value) if _has_sizes(value) else sys.maxsize for value in node.outputs)
    if most > limit:
        if len(node.outputs) == 1 and most <= between:
            large[node.output] = node
        return None
    needed, stack = {node}, [node]
    while stack:  # from a node to its operands
        operands = {large[value] for value in stack.pop().inputs if value in large} - needed
        needed |= operands
        stack += operands
    found = dict(known)
    for value, each in large.items():
        arrays = computed(each, found) if each in needed else []
        if arrays is None:
            return None
        found.update(zip((value,), arrays, strict=False))
    return computed(node, found)


def _has_sizes(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.static_shape is not None


def _widened(
    node: Node, known: Mapping[Value, Array], constants: dict[str, Array], limit: int
) -> Instead | None:
    """A matmul by f32 weights in place of one by packed weights, if these are small."""
    a, *weights = [value for value in node.inputs if value is not None]
    arrays = [known[value] for value in weights if value in known]
    per_byte = node.get("per_byte", 1)
    if a.tensor.dtype is not F32 or len(arrays) != len(weights):
        return None
    if arrays[0].size * per_byte * F32.size_bytes > limit:
        return None
    array = unpacked(*arrays, per_byte=per_byte, zero=node.get("zero", 0))
    made = store_constant(constants, array, "weights", node.loc)
    product = replace(node, op="matmul", inputs=(a, made.output), attributes=())
    return Instead((made, product), product.outputs)


def computed(
    node: Node, known: Mapping[Value, Array], limit: int = sys.maxsize
) -> list[Array] | None:
    """The outputs of a node as arrays, if its inputs are known and the results not too large."""
    op = OPS.get(node.op)
    if op is None or not op.pure or node.bodies or attribute_sizes(node):
        return None
    arrays = [None if value is None else known.get(value) for value in node.inputs]
    if any(a is None and v is not None for a, v in zip(arrays, node.inputs, strict=True)):
        return None
    given = sum(array.nbytes for array in arrays if array is not None)
    if node.op in WIDENING:
        given *= 8
    for value in node.outputs:
        shape = value.type.static_shape if isinstance(value.type, TensorType) else None
        if shape is not None and _bytes(value) > max(given, limit):
            return None
        if shape is None and (not isinstance(value.type, TensorType) or given > limit):
            return None  # its size is data-dependent
    try:
        _, call = make_call(
            node.op,
            node.inputs,
            dict(node.attributes),
            loc=node.loc,
            outputs=len(node.outputs),
        )
        arrays += [None] * (len(call.types) - len(arrays))
        every = [call.array(at) if array is None else array for at, array in enumerate(arrays)]
        with np.errstate(all="ignore"):
            made = as_arrays(op.reference(call, *every))
    except (TilewrightError, ArithmeticError, LookupError, ValueError):
        return None  # errors in the data are reported when the model runs
    if not all(isinstance(array, np.ndarray) for array in made):
        return None
    return [
        array if any(_is_moved(array, each) for each in every) else _contiguous(array)
        for array in made
    ]


def _is_moved(made: Array, given: Array | None) -> bool:
    """Whether an array is a permuted view of all of another one, such as a transpose. Whoever packs
    it makes the copy, one weight at a time."""
    return given is not None and made.size == given.size and np.may_share_memory(made, given)


def _contiguous(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(array.shape)


def is_packed_weight(node: Node, readers: Mapping[Value, Sequence[Node]]) -> bool:
    """Whether narrow numbers are widened to f32 only as right operands of matmuls, possibly
    transposed."""
    given = node.inputs[0] if node.op in WIDENING else None
    if given is None or node.output.tensor.dtype is not F32:
        return False
    of = given.tensor.dtype
    if of.is_bool or of.bits > U8.bits or len(given.tensor.shape or ()) != 2:
        return False

    def multiplies(value: Value) -> bool:
        found = readers.get(value, ())
        return bool(found) and all(
            each.op == "matmul" and each.inputs[1] is value is not each.inputs[0] for each in found
        )

    moves = [each for each in readers.get(node.output, ()) if each.op == "transpose"]
    if any(tuple(each["perm"]) != (1, 0) for each in moves):
        return False
    if len(moves) == len(readers.get(node.output, ())) == 1:
        return multiplies(moves[0].output)
    return multiplies(node.output)


def _bytes(value: Value) -> int:
    shape = value.tensor.static_shape or ()
    return int(np.prod(shape, dtype=np.int64)) * value.tensor.dtype.size_bytes


def inlined(node: Node, body: Graph, inputs: Sequence[Value | None]) -> Instead | None:
    """The body of a node in place of the node."""
    edit = Edit({param: v for param, v in zip(body.params, inputs, strict=True) if v is not None})
    nodes = tuple(edit.node(inner) for inner in body.nodes)
    values = tuple(edit.value(value) for value in body.results)
    sizes = same_sizes(node, values)
    return None if sizes is None else Instead(nodes, values, sizes)
