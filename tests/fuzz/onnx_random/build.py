"""From a seed to a model and the inputs it is run on."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper

from onnx_random import control, elementwise, indexing, products, quantize, reduce, shapes
from onnx_random.large import KERNELS
from onnx_random.values import CHOICES, Dim, Scope, code_of

FAMILIES = (elementwise, reduce, shapes, products, indexing, quantize, control)
GENERATORS = tuple(entry for family in FAMILIES for entry in family.GENERATORS)
OPSETS = (13, 15, 17, 18, 19, 20, 21, 22, 23)
NAMES = ("n", "m", "k")


@dataclass
class Case:
    """A model and its inputs, under each choice of the named dimensions."""

    seed: int
    model: onnx.ModelProto
    feeds: list[dict[str, Any]]
    terms: int  # the longest sum in the model, for tolerances


def random_case(seed: int, *, most: int = 12) -> Case:
    """The model of a seed."""
    rng = random.Random(seed)
    scope = Scope(rng, rng.choice(OPSETS), random_names(rng), nasty=rng.random() < 0.12)
    made, wanted = 0, rng.randint(1, most)
    functions, weights = zip(*GENERATORS, strict=True)
    for _ in range(8 * wanted):
        before = len(scope.nodes)
        rng.choices(functions, weights)[0](scope)
        made += len(scope.nodes) > before
        if made >= wanted:
            break
    return finished(scope, seed)


def large_case(seed: int) -> Case:
    """The model of a seed that is one kernel, or a few, of the size of layers."""
    rng = random.Random(seed)
    functions, weights = zip(*KERNELS, strict=True)
    while True:
        scope = Scope(rng, rng.choice(OPSETS), {})
        if rng.choices(functions, weights)[0](scope) is not None:
            return finished(scope, seed)


def random_names(rng: random.Random) -> dict[str, Dim]:
    """Named dimensions with an extent for each choice; one may be zero or one."""
    names: dict[str, Dim] = {}
    for name in rng.sample(NAMES, rng.randint(0, 3)):
        extents = [rng.randint(2, 9) for _ in range(CHOICES)]
        if rng.random() < 0.3:
            extents[-1] = rng.choice([0, 1, 1])
        if len(set(extents)) == 1:
            extents[0] += 1
        if tuple(extents) not in names.values():
            names[name] = tuple(extents)
    return names


def finished(scope: Scope, seed: int) -> Case:
    """The model: results are what no node uses, and some of the others."""
    made = {name for node in scope.nodes for name in node.output}
    used = {name for node in scope.nodes for name in used_names(node)}
    results = [
        value
        for value in [*scope.values, *scope.ends]
        if value.name in made and (value.name not in used or scope.rng.random() < 0.15)
    ]
    for at, value in enumerate(results):
        if value.dtype == "bfloat16":  # the peer cannot hand it out
            results[at] = scope.add(
                "Cast", [value], [scope.like(value, dtype="float32")], to=code_of("float32")
            )
    used |= {value.name for value in results} | {n for node in scope.nodes for n in node.input}
    outputs = [
        helper.make_tensor_value_info(value.name, code_of(value.dtype), [None] * value.rank)
        for value in results
    ]
    read = used | {value.name for value in results}
    infos = [info for info in scope.infos if info.name in read]
    graph = helper.make_graph(scope.nodes, "fuzz", infos, outputs, scope.initializers)
    opsets = [helper.make_opsetid("", scope.opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    feeds = [
        {info.name: scope.inputs[info.name](choice) for info in infos} for choice in range(CHOICES)
    ]
    terms = max([1, *(value.terms for value in scope.visible())])
    return Case(seed, model, feeds, terms)


def used_names(node: onnx.NodeProto) -> list[str]:
    """Names a node reads, those of its bodies included."""
    names = list(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                names.extend(used_names(inner))
            names.extend(info.name for info in attribute.g.output)
    return names
