"""Export a module as an ONNX model."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from onnx import helper

from tilewright.base.errors import UserError
from tilewright.base.passes import PassContext
from tilewright.frontends.onnx.export.emitter import DOMAIN, Emitter, Shared, value_info
from tilewright.frontends.onnx.export.rules import COMPOSITES, RULES
from tilewright.graph.ir import Graph, Module, Value
from tilewright.graph.passes.nest_switches import nest_switches
from tilewright.graph.types import TensorType, tensor_of
from tilewright.graph.visit import walk
from tilewright.sym import Const

OPSET, IR_VERSION = 21, 10
# Element types by the opset and format version that introduced them.
LATER = {"f4e2m1": (23, 11), "f8e8m0": (24, 12), "i2": (25, 13), "u2": (25, 13)}
LATER_OPERATORS = {"bitcast": (26, 13), "cumprod": (26, 13)}


def to_onnx(module: Module, name: str = "model") -> onnx.ModelProto:
    """Export a graph at any stage as an ONNX model, valid for `onnx.checker`.

    Examples:
        >>> import tilewright as tw
        >>> from tilewright import graph
        >>> module = graph.parse("graph @main(%x: f32[2]) { %y = neg(%x) return %y }")
        >>> [node.op_type for node in tw.to_onnx(module).graph.node]
        ['Neg', 'Identity']
    """
    module = nest_switches(module, PassContext())
    main = module.main
    opset, ir_version = _versions(module)
    shared = Shared(module, opset, RULES, COMPOSITES)
    emitter = Emitter(shared)
    inputs = [value_info(shared.fresh(param.name), param) for param in main.params]
    wanted = [shared.fresh(name) for name in module.result_names]
    for param, info in zip(main.params, inputs, strict=True):
        emitter.define(param, info.name)
    emitter.translate(main)
    outputs = []
    for result, output in zip(main.results, wanted, strict=True):
        emitter.nodes.append(helper.make_node("Identity", [emitter.name(result)], [output]))
        outputs.append(value_info(output, result, named=_is_open(result, main)))
    graph = helper.make_graph(emitter.nodes, name, inputs, outputs, emitter.initializers)
    opsets = [helper.make_opsetid("", opset)]
    if shared.needs_domain or shared.functions:
        opsets.append(helper.make_opsetid(DOMAIN, 1))
    if any(node.domain == "ai.onnx.ml" for node in emitter.nodes):
        opsets.append(helper.make_opsetid("ai.onnx.ml", 3))
    return helper.make_model(
        graph,
        producer_name="tilewright",
        ir_version=ir_version,
        opset_imports=opsets,
        functions=list(shared.functions.values()),
    )


def write_onnx(module: Module, path: str | os.PathLike[str], name: str = "model") -> Path:
    """Write a module as ONNX to a file; a partial file is removed on failure."""
    path = Path(path)
    model = to_onnx(module, name)
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_bytes(model.SerializeToString())
        os.replace(partial, path)
    except (OSError, ValueError) as error:
        raise UserError("TW1118", f"cannot write {path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return path


def _is_open(result: Value, main: Graph) -> bool:
    """Whether a result's sizes are those of parameters, so that their names are meaningful."""
    of = result.type
    if not isinstance(of, TensorType):
        return False
    told = {
        dim
        for param in main.params
        if isinstance(param.type, TensorType)
        for dim in param.type.shape or ()
    }
    return all(isinstance(dim, Const) or dim in told for dim in of.shape or ())


def _versions(module: Module) -> tuple[int, int]:
    """The minimal opset and format version for a module's element types."""
    names = set()
    for graph in module.graphs.values():
        values = [*graph.params, *(v for node in walk(graph) for v in node.outputs)]
        for value in values:
            inner = tensor_of(value.type)
            if inner is not None:
                names.add(str(inner.dtype))
        names |= {node.op for node in walk(graph)}
    later = LATER | LATER_OPERATORS
    found = [later[name] for name in names if name in later]
    newest = onnx.defs.onnx_opset_version()
    opset, version = max([(OPSET, IR_VERSION), *found])
    return min(opset, newest), version
