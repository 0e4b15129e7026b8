"""Blocks with small changes: what passes recognize, and what only looks like it.

Each change leaves a valid model. Whether the answer stays the same is not asked: ONNX Runtime
computes the changed one, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_random.blocks import BLOCKS, extents, text_of
from onnx_random.build import Case
from onnx_random.values import CHOICES

MOST_CHANGES = 4
TRIES = 12  # of a change that may not fit
UNARY = ("Relu", "Sigmoid", "Tanh", "Erf", "Neg", "Abs", "Identity", "Exp", "Softplus", "Sqrt")
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow")
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2", "ReduceSumSquare")
NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 1e-6, 1e-12)
Model = onnx.ModelProto


def varied_case(seed: int) -> Case:
    """The block of a seed, changed up to a few times."""
    rng = random.Random(seed)
    sizes, dims = extents(rng), dims_of(rng)
    fixed = {name: each[0] for name, each in dims.items() if len(set(each)) == 1}
    model = parsed(text_of(rng.choice(sorted(BLOCKS)), sizes, fixed))
    for _ in range(rng.randint(0, MOST_CHANGES)):
        model = changed(model, rng)
    numbers = np.random.default_rng(seed)
    keep_weights(model, rng, numbers)
    feeds = [
        {info.name: drawn(info, choice, dims, numbers) for info in model.graph.input}
        for choice in range(CHOICES)
    ]
    return Case(seed, model, feeds, terms=max(64, *sizes.values()) * 9)


def dims_of(rng: random.Random) -> dict[str, tuple[int, ...]]:
    """Extents of batch and tokens under each choice; one extent of all: the dimension is fixed."""
    found = {}
    for name in ("N", "T"):
        extents = [rng.choice((1, 2, 3, 4, 5, 8)) for _ in range(CHOICES)]
        found[name] = (extents[0],) * CHOICES if rng.random() < 0.6 else tuple(extents)
    return found


def parsed(text: str) -> Model:
    """The model of a text; types of its results are inferred."""
    head, _, body = text.partition("=>")
    results, _, nodes = body.partition("{")
    names = [name.strip() for name in results.strip(" ()\n").split(",")]
    typed = ", ".join(f"float {name}" for name in names)
    header = '<ir_version: 10, opset_import: ["" : 21]>'
    model = onnx.parser.parse_model(f"{header} block {head} => ({typed}) {{{nodes}")
    return with_results(model, names)


def inferred(model: Model) -> dict[str, onnx.ValueInfoProto]:
    """The type of every value; raises where the model is not valid."""
    onnx.checker.check_model(model, full_check=True)
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    return {info.name: info for info in [*graph.input, *graph.value_info, *graph.output]}


def with_results(model: Model, names: list[str]) -> Model:
    """The model with these results, of inferred types, without what they do not need."""
    made = Model()
    made.CopyFrom(model)
    del made.graph.output[:]
    known = {info.name: info for info in onnx.shape_inference.infer_shapes(made).graph.value_info}
    for name in names:
        tensor = known[name].type.tensor_type
        dims = [None] * len(tensor.shape.dim)  # named by the run alone
        made.graph.output.append(helper.make_tensor_value_info(name, tensor.elem_type, dims))
    needed, kept = set(names), []
    for node in reversed(made.graph.node):
        if needed & set(node.output):
            kept.append(node)
            needed |= set(node.input)
    del made.graph.node[:]
    made.graph.node.extend(reversed(kept))
    inputs = [info for info in made.graph.input if info.name in needed]
    del made.graph.input[:]
    made.graph.input.extend(inputs)
    inferred(made)
    return made


def shape_of(info: onnx.ValueInfoProto) -> tuple[int | str, ...] | None:
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim)


# ------------------------------------------------------------------------------------ changes


def changed(model: Model, rng: random.Random) -> Model:
    """The model after one change that leaves it valid; the model itself if none does."""
    for _ in range(TRIES):
        made = Model()
        made.CopyFrom(model)
        try:
            if rng.choice(CHANGES)(made, rng):
                return with_results(made, [info.name for info in made.graph.output])
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, KeyError):
            continue  # another one
    return model


def show_value(model: Model, rng: random.Random) -> bool:
    """What was internal is a result, too."""
    there = {info.name for info in model.graph.output}
    names = [n for node in computing(model) for n in node.output if n and n not in there]
    if not names:
        return False
    model.graph.output.append(helper.make_tensor_value_info(rng.choice(names), 1, None))
    return True


def read_another(model: Model, rng: random.Random) -> bool:
    """An operand is another value of the same type: one that others read as well."""
    known = inferred(model)
    at = rng.randrange(len(model.graph.node))
    node = model.graph.node[at]
    if not node.input:
        return False
    slot = rng.randrange(len(node.input))
    before = [info.name for info in model.graph.input]
    before += [name for other in model.graph.node[:at] for name in other.output]
    own = known.get(node.input[slot])
    alike = [
        name
        for name in before
        if name in known and own is not None and name != own.name and known[name].type == own.type
    ]
    if not alike:
        return False
    node.input[slot] = rng.choice(alike)
    return True


def swap_operands(model: Model, rng: random.Random) -> bool:
    nodes = [node for node in model.graph.node if node.op_type in (*BINARY, "MatMul", "Concat")]
    if not nodes:
        return False
    node = rng.choice(nodes)
    order = list(node.input)
    rng.shuffle(order)
    node.input[:] = order
    return True


def other_operator(model: Model, rng: random.Random) -> bool:
    families = (UNARY, BINARY, REDUCTIONS)
    found = [(node, each) for node in model.graph.node for each in families if node.op_type in each]
    if not found:
        return False
    node, family = rng.choice(found)
    node.op_type = rng.choice(family)
    return True


def other_number(model: Model, rng: random.Random) -> bool:
    """A constant of the pattern, or a number among a node's attributes."""
    floats = [
        attribute
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.type == onnx.AttributeProto.FLOAT
    ]
    if not floats:
        return False
    attribute = rng.choice(floats)
    attribute.f = rng.choice(NUMBERS) if rng.random() < 0.6 else attribute.f * rng.choice((2, -1))
    return True


def other_axes(model: Model, rng: random.Random) -> bool:
    """Axes counted from the other end, others, or a permutation of them."""
    known = inferred(model)
    nodes = [node for node in computing(model) if {"axis", "perm"} & names_of(node)]
    if not nodes:
        return False
    node = rng.choice(nodes)
    rank = len(shape_of(known[node.input[0]]) or ())
    for attribute in node.attribute:
        if attribute.name == "perm":
            order = list(attribute.ints)
            i, j = rng.sample(range(len(order)), 2)
            order[i], order[j] = order[j], order[i]
            attribute.ints[:] = order
        elif attribute.name == "axis" and rank:
            kept = attribute.i - rank if attribute.i >= 0 else attribute.i + rank
            attribute.i = kept if rng.random() < 0.5 else rng.randrange(-rank, rank)
    return True


def other_lists(model: Model, rng: random.Random) -> bool:
    """Axes, shapes and bounds that are constants."""
    nodes = [node for node in model.graph.node if "value_ints" in names_of(node)]
    if not nodes:
        return False
    values = rng.choice(nodes).attribute[0].ints
    at = rng.randrange(len(values))
    if rng.random() < 0.5 and len(values) > 1:
        other = rng.randrange(len(values))
        values[at], values[other] = values[other], values[at]
    else:
        values[at] += rng.choice((-1, 1))
    return True


def insert_nothing(model: Model, rng: random.Random) -> bool:
    """An operand passes through nodes that change nothing."""
    known = inferred(model)
    places = [
        (at, slot)
        for at, node in enumerate(model.graph.node)
        for slot, name in enumerate(node.input)
        if name in known and known[name].type.tensor_type.elem_type == TensorProto.FLOAT
    ]
    if not places:
        return False
    at, slot = rng.choice(places)
    name = model.graph.node[at].input[slot]
    rank = len(shape_of(known[name]) or ())
    new = f"same{len(model.graph.node)}"
    nodes = nothing(rng.randrange(6), name, new, rank)
    model.graph.node[at].input[slot] = new
    later = list(model.graph.node[at:])
    del model.graph.node[at:]
    model.graph.node.extend([*nodes, *later])
    return True


def nothing(which: int, name: str, new: str, rank: int) -> list[onnx.NodeProto]:
    """Nodes that hand a value on under a new name."""
    if which == 0 and rank > 1:
        order = [*range(1, rank), 0]
        back = [rank - 1, *range(rank - 1)]
        return [
            helper.make_node("Transpose", [name], [f"{new}_t"], perm=order),
            helper.make_node("Transpose", [f"{new}_t"], [new], perm=back),
        ]
    if which == 1:
        return [
            helper.make_node("Shape", [name], [f"{new}_s"]),
            helper.make_node("Reshape", [name, f"{new}_s"], [new]),
        ]
    if which in (2, 3):
        number = helper.make_node("Constant", [], [f"{new}_c"], value_float=float(which == 2))
        return [number, helper.make_node(("Add", "Mul")[which == 2], [name, f"{new}_c"], [new])]
    if which == 4:
        return [
            helper.make_node("Constant", [], [f"{new}_a"], value_ints=[0]),
            helper.make_node("Unsqueeze", [name, f"{new}_a"], [f"{new}_u"]),
            helper.make_node("Squeeze", [f"{new}_u", f"{new}_a"], [new]),
        ]
    return [helper.make_node("Identity", [name], [new])]


def transpose_both(model: Model, rng: random.Random) -> bool:
    """A value turned around before it is read: valid where axes are equal, or read as it is."""
    known = inferred(model)
    at = rng.randrange(len(model.graph.node))
    node = model.graph.node[at]
    slots = [slot for slot, name in enumerate(node.input) if len(shape_of(known[name]) or ()) > 1]
    if not slots:
        return False
    slot = rng.choice(slots)
    name, new = node.input[slot], f"turned{len(model.graph.node)}"
    order = list(range(len(shape_of(known[name]) or ())))
    i, j = rng.sample(order, 2)
    order[i], order[j] = order[j], order[i]
    node.input[slot] = new
    model.graph.node.insert(at, helper.make_node("Transpose", [name], [new], perm=order))
    return True


def computing(model: Model) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type != "Constant"]


def names_of(node: onnx.NodeProto) -> set[str]:
    return {attribute.name for attribute in node.attribute}


CHANGES: tuple[Callable[[Model, random.Random], bool], ...] = (
    show_value,
    show_value,
    read_another,
    read_another,
    read_another,
    swap_operands,
    other_operator,
    other_number,
    other_axes,
    other_lists,
    insert_nothing,
    transpose_both,
)


# ------------------------------------------------------------------------------------ numbers


def keep_weights(model: Model, rng: random.Random, numbers: np.random.Generator) -> None:
    """Inputs called weights become initializers, most of them."""
    for info in list(model.graph.input):
        if not info.name.startswith("w") or rng.random() < 0.1:
            continue
        model.graph.input.remove(info)
        array = drawn(info, 0, {}, numbers)
        model.graph.initializer.append(numpy_helper.from_array(array, info.name))


def drawn(
    info: onnx.ValueInfoProto, choice: int, dims: dict[str, tuple[int, ...]], numbers: Any
) -> Any:
    """An array for an input."""
    shape = [dims[dim][choice] if isinstance(dim, str) else dim for dim in shape_of(info) or ()]
    code = info.type.tensor_type.elem_type
    if code == TensorProto.INT64:
        return numbers.integers(0, int(info.name.rpartition("_")[2]), shape)
    if code == TensorProto.INT8:
        return numbers.integers(-127, 128, shape).astype(np.int8)
    array = numbers.standard_normal(shape).astype(np.float32)
    if "variance" in info.name:
        return abs(array) + np.float32(0.1)
    if info.name.startswith("w") and len(shape) > 1:
        array /= np.float32(np.sqrt(max(1, array.size / array.shape[0])))
    return array
