"""A failing model made small: the nodes near one output, fed with what the peer computed there."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper
from onnx_check import FAILED, Outcome, check_case, peer_answers
from onnx_differences import ancestors, read_by
from onnx_random import Case


def shrunk(case: Case, how: str) -> tuple[Case, Outcome]:
    """The smallest part of a model found that fails as well; the model itself if none does."""
    for output in [info.name for info in case.model.graph.output]:
        alone = part(case, output, ancestors(case.model, output), {})
        if check_case(alone, how).status != FAILED:
            continue
        values = intermediate(alone)
        for depth in range(1, len(alone.model.graph.node) + 1):
            small = part(alone, output, near(alone.model, output, depth), values)
            if is_valid(small.model) and (outcome := check_case(small, how)).status == FAILED:
                return small, outcome
        return alone, check_case(alone, how)
    return case, check_case(case, how)


def is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # a part that takes a sequence from outside, say
        return False
    return True


def near(model: onnx.ModelProto, output: str, depth: int) -> list[onnx.NodeProto]:
    """The nodes at most so many steps before an output; constants cost nothing."""
    producer = {name: node for node in model.graph.node for name in node.output}
    level, found = [output], []
    for _ in range(depth):
        nodes = [producer[name] for name in level if name in producer]
        found += nodes
        level = [name for node in nodes for name in read_by(node)]
    names = {name for node in found for name in read_by(node)}
    found += [producer[n] for n in names if n in producer and producer[n].op_type == "Constant"]
    return [node for node in reversed(model.graph.node) if any(node is other for other in found)]


def intermediate(case: Case) -> dict[str, list[Any]]:
    """Every value of a model, under each choice, as the peer computes it."""
    made = [n for node in case.model.graph.node if node.op_type != "Constant" for n in node.output]
    wide = onnx.ModelProto()
    wide.CopyFrom(case.model)
    del wide.graph.output[:]
    typed = onnx.shape_inference.infer_shapes(case.model)
    known = {info.name: info for info in [*typed.graph.value_info, *typed.graph.output]}
    names = [name for name in made if name and name in known]
    wide.graph.output.extend(known[name] for name in names)
    answers, _ = peer_answers(Case(case.seed, wide, case.feeds, case.terms), plain=True)
    return {name: [row[at] for row in answers] for at, name in enumerate(names) if answers}


def part(
    case: Case, output: str, nodes: list[onnx.NodeProto], values: dict[str, list[Any]]
) -> Case:
    """Some nodes of a model; what others gave is an input."""
    ordered = [node for node in case.model.graph.node if any(node is other for other in nodes)]
    made = {name for node in ordered for name in node.output}
    read = {name for node in ordered for name in read_by(node)} - made
    infos = [info for info in case.model.graph.input if info.name in read]
    feeds = [{i.name: row[i.name] for i in infos} for row in case.feeds]
    for name in [name for name in values if name in read]:
        arrays = values[name]
        if not all(hasattr(array, "dtype") for array in arrays):
            continue
        code = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
        same = all(array.shape == arrays[0].shape for array in arrays)
        dims = list(arrays[0].shape) if same else [None] * arrays[0].ndim
        infos.append(helper.make_tensor_value_info(name, code, dims))
        for row, array in zip(feeds, arrays, strict=True):
            row[name] = array
    outputs = [info for info in case.model.graph.output if info.name == output]
    constants = [tensor for tensor in case.model.graph.initializer if tensor.name in read]
    graph = helper.make_graph(ordered, "small", infos, outputs, constants)
    model = helper.make_model(
        graph, opset_imports=case.model.opset_import, ir_version=case.model.ir_version
    )
    return Case(case.seed, model, feeds, case.terms)
