"""Import ONNX models to graph modules.

Every node is translated by a rule: a function in `rules/`, one family per file, in one table. An
operator without a rule that ONNX defines as a function is expanded. All unsupported nodes of a
model are reported at once, by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tilewright.base.errors import TilewrightError, Unsupported, UserError
from tilewright.base.loc import Loc, ModelNode
from tilewright.frontends.common.report import report
from tilewright.frontends.onnx.branches import branches_apart, has_unclear_ranks
from tilewright.frontends.onnx.check import check_node, schema_of
from tilewright.frontends.onnx.frames import Frame, frame_of, free_names, ordered
from tilewright.frontends.onnx.load import Source, load_model
from tilewright.frontends.onnx.peel import Peel, peeled
from tilewright.frontends.onnx.rules import RULES
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip, element_type
from tilewright.frontends.onnx.rules.microsoft_blocked import channel_block
from tilewright.frontends.onnx.squeeze import squeeze_apart
from tilewright.frontends.onnx.tensors import Tensors
from tilewright.graph import Builder, Graph, Module, Value
from tilewright.graph.types import MapType, OptionalType, SequenceType, TensorType, Type
from tilewright.sym import Const, Expr, Size, const, size

Array = np.ndarray[Any, Any]


MAX_NODES = 300_000  # nested functions can expand exponentially
MAX_CALLS = 100  # depth of nested functions


@dataclass(frozen=True)
class Given:
    """The caller's overrides of a model."""

    initializers: Mapping[str, Array] = field(default_factory=dict)  # replace the model's
    inputs: frozenset[str] = frozenset()  # initializers that become parameters
    files: Mapping[str, bytes] = field(default_factory=dict)  # contents of external data, by name


NOTHING = Given()


def import_model(source: Source, *, name: str = "", given: Given = NOTHING) -> Module:
    """Import a model: a path, bytes, or an onnx.ModelProto."""
    with load_model(source, name=name, files=given.files) as loaded:
        importer = Importer(loaded.model, loaded.name, loaded.tensors, given)
        main = importer.main()
        outputs = tuple(value.name for value in loaded.model.graph.output)
    if importer.problems:
        raise report(loaded.name, importer.problems)
    return Module({"main": main, **importer.graphs}, importer.constants, outputs=outputs)


@dataclass
class Importer:
    """The state of one import."""

    model: onnx.ModelProto
    name: str
    tensors: Tensors
    given: Given = NOTHING
    constants: dict[str, Array] = field(default_factory=dict)
    graphs: dict[str, Graph] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)
    sizes: dict[str, Size] = field(default_factory=dict)
    expanding: list[tuple[str, str, str]] = field(default_factory=list)
    nodes: int = 0
    apart: int = 0  # depth of duplicated continuations, see `branches`

    def __post_init__(self) -> None:
        self.opsets = {
            entry.domain or "ai.onnx": entry.version for entry in self.model.opset_import
        }
        self.functions = {
            (f.domain or "ai.onnx", f.name, f.overload): f for f in self.model.functions
        }

    @functools.cached_property
    def channel_block(self) -> int:
        """The channels in a block of ONNX Runtime's blocked layout."""
        return channel_block(self.model)

    def main(self) -> Graph:
        proto = self.model.graph
        self.check_expansion()
        builder = Builder(self.constants)
        given = {tensor.name for tensor in proto.initializer} - self.given.inputs
        given |= {tensor.values.name for tensor in proto.sparse_initializer}
        scope: dict[str, Value] = {}
        scope |= {
            info.name: builder.param(info.name, self.type_of(info.type, info.name))
            for info in proto.input
            if info.name not in given
        }
        self.initializers(proto, builder, scope, self.stored)
        return builder.graph(*self.run([frame_of(proto, scope)], builder))

    def check_expansion(self) -> None:
        """Check the number of expanded nodes before expanding functions."""
        counts: dict[tuple[str, str, str], int] = {}
        if sum(self.expansion(node, counts, ()) for node in self.model.graph.node) > MAX_NODES:
            raise UserError("TW1117", f"the functions of {self.name} expand to too many nodes")

    def expansion(
        self,
        node: onnx.NodeProto,
        counts: dict[tuple[str, str, str], int],
        within: tuple[tuple[str, str, str], ...],
    ) -> int:
        """The number of nodes that a node expands to, without bodies."""
        key = (node.domain or "ai.onnx", node.op_type, node.overload)
        function = self.functions.get(key)
        if function is None or key in within or len(within) > MAX_CALLS:
            return 1
        if key not in counts:
            inner = [self.expansion(n, counts, (*within, key)) for n in function.node]
            counts[key] = min(1 + sum(inner), MAX_NODES + 1)
        return counts[key]

    def initializers(
        self,
        proto: onnx.GraphProto,
        builder: Builder,
        scope: dict[str, Value],
        read: Callable[[int, onnx.TensorProto], Array],
    ) -> None:
        for at, tensor in enumerate(proto.initializer):
            if tensor.name in scope and tensor.name in self.given.inputs:
                continue
            loc = ModelNode(self.name, tensor.name)
            scope[tensor.name] = builder.constant(read(at, tensor), tensor.name, loc)
        for sparse in proto.sparse_initializer:
            dense = self.tensors.dense(sparse)
            scope[sparse.values.name] = builder.constant(dense, sparse.values.name)

    def stored(self, at: int, tensor: onnx.TensorProto) -> Array:
        """The contents of an initializer of the model, or the caller's override."""
        other = self.given.initializers.get(tensor.name)
        return self.tensors.initializer(at, tensor) if other is None else other

    def body(
        self, proto: onnx.GraphProto, builder: Builder, scope: dict[str, Value]
    ) -> list[Value]:
        """Translate a graph into `builder`, extending `scope`; returns its results."""
        return self.run([self.frame(proto, builder, scope)], builder)

    def frame(
        self,
        proto: onnx.GraphProto,
        builder: Builder,
        scope: dict[str, Value],
        into: Sequence[str] = (),
    ) -> Frame:
        """The frame of a graph nested in another, with its initializers in scope."""
        self.initializers(proto, builder, scope, lambda _, tensor: self.tensors.array(tensor))
        return frame_of(proto, scope, into)

    def run(self, frames: list[Frame], builder: Builder) -> list[Value]:
        """Translate the remaining nodes of nested frames; returns the results of the first.

        Branches with a known condition are frames. So the continuation of a branch, in all
        enclosing frames, is available where it must be duplicated into both branches.
        """
        while True:
            frame = frames[-1]
            if frame.is_done:
                results = self.results(frame.outputs, frame.scope)
                frames.pop()
                if not frames:
                    return results
                frames[-1].scope.update(zip(frame.into, results, strict=False))
                continue
            node = frame.next()
            apart = squeeze_apart(node, frame.scope, self.opsets.get("ai.onnx", 1))
            if apart is not None:
                nodes, outputs = apart
                inner = Frame(nodes, dict(frame.scope), outputs, node.output)
                frames.append(inner)
                continue
            taken = self.known_branch(node, frame.scope, builder)
            if taken is not None:
                frames.append(self.frame(taken, builder, dict(frame.scope), node.output))
                continue
            try:
                self.node(node, builder, frame.scope, frame.later)
            except Peel:
                nodes, outputs = peeled(node)
                frames.append(Frame(nodes, dict(frame.scope), outputs, node.output))
                continue
            if has_unclear_ranks(node, frame.scope) and not self.problems:
                results_apart = branches_apart(self, node, frames, builder)
                if results_apart is not None:
                    return results_apart

    def known_branch(
        self, node: onnx.NodeProto, scope: Mapping[str, Value], builder: Builder
    ) -> onnx.GraphProto | None:
        """The taken branch of an If with a known condition."""
        if node.op_type != "If" or node.domain not in ("", "ai.onnx") or len(node.input) != 1:
            return None
        ((known,), _) = builder.contents.of((scope.get(node.input[0]),))
        if not known or not isinstance(known[0], Const):
            return None
        name = "then_branch" if known[0].value else "else_branch"
        branch = next((a for a in node.attribute if a.name == name and a.HasField("g")), None)
        same = branch is not None and len(branch.g.output) == len(node.output)
        return branch.g if branch is not None and same else None

    def node(
        self,
        node: onnx.NodeProto,
        builder: Builder,
        scope: dict[str, Value],
        later: Container[str] = (),
    ) -> None:
        """Translate a node; `later` contains the names that later nodes may define."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise UserError("TW1117", f"the functions of {self.name} expand to too many nodes")
        label = node.name or (node.output[0] if node.output else node.op_type)
        loc = ModelNode(self.name, label)
        domain = node.domain or "ai.onnx"
        inputs: list[Value | None] = []
        for name in node.input:
            if name and name not in scope:
                if self.problems:  # the producer was reported already
                    return
                why = "depends on it in turn" if name in later else "nothing defines"
                raise UserError("TW1102", f"{node.op_type} uses {name!r}, which {why}", loc)
            inputs.append(scope[name] if name else None)
        try:
            outputs = self.translate(domain, node, inputs, builder, loc, scope)
        except (Unsupported, Skip) as error:
            reason = error.message if isinstance(error, Unsupported) else str(error)
            if reason or not self.problems:
                self.problems.setdefault(reason, []).append(label)
            return
        except (TilewrightError, Peel):
            raise
        except Exception as error:
            message = f"{node.op_type} cannot be read: {type(error).__name__}: {error}"
            raise UserError("TW1110", message, loc) from error
        named = zip(node.output, outputs, strict=False)
        scope.update((name, value) for name, value in named if name and value is not None)

    def translate(
        self,
        domain: str,
        node: onnx.NodeProto,
        inputs: Sequence[Value | None],
        builder: Builder,
        loc: Loc,
        scope: dict[str, Value],
    ) -> Sequence[Value | None]:
        """Map a node's output names to values."""
        function = self.functions.get((domain, node.op_type, node.overload))
        if function is not None:
            return self.expand(function, node, inputs, builder)
        rule: Rule | None = RULES.get((domain, node.op_type))
        version = self.opsets.get(domain, 1)
        if domain == "ai.onnx" and version < 7 and _changed_since(node.op_type, version):
            raise Skip(f"operator {domain}.{node.op_type} at opset {version}")
        check_node(node, version, domain, loc)
        if rule is None:
            body = schema_function(node, domain, version, inputs)
            if body is None:
                raise Skip(f"operator {domain}.{node.op_type} at opset {version}")
            return self.expand(body, node, inputs, builder)
        context = Context(node, list(inputs), builder, version, loc, self, scope)
        made = rule(context)
        return made if isinstance(made, (tuple, list)) else (made,)

    def expand(
        self,
        function: onnx.FunctionProto,
        node: onnx.NodeProto,
        inputs: Sequence[Value | None],
        builder: Builder,
    ) -> Sequence[Value | None]:
        """Inline a function at a call."""
        if len(function.input) < len(inputs):
            message = f"{function.name} takes {len(function.input)} inputs, got {len(inputs)}"
            raise UserError("TW1106", message, ModelNode(self.name, node.name or node.op_type))
        key = (function.domain, function.name, function.overload)
        if key in self.expanding:
            raise UserError("TW1108", f"function {function.name} of {self.name} calls itself")
        if len(self.expanding) > MAX_CALLS:
            raise UserError("TW1117", f"the functions of {self.name} call each other too deeply")
        given_inputs = zip(function.input, inputs, strict=False)
        scope = {name: value for name, value in given_inputs if value is not None}
        absent = set(function.input) - scope.keys()
        given = {attribute.name: attribute for attribute in node.attribute}
        for default in function.attribute_proto:
            given.setdefault(default.name, default)
        saved = self.opsets
        self.expanding.append(key)
        self.opsets = {**saved, **{e.domain or "ai.onnx": e.version for e in function.opset_import}}
        try:
            nodes = [bind_attributes(inner, given) for inner in function.node]
            for inner in nodes:
                present = ["" if name in absent else name for name in inner.input]
                del inner.input[:]
                inner.input.extend(present)
            made = {name for inner in nodes for name in inner.output} | scope.keys()
            outputs = [name for name in function.output if name in made]
            results = self.run([Frame(ordered(nodes), scope, outputs)], builder)
            named = dict(zip(outputs, results, strict=False))
        finally:
            self.opsets = saved
            self.expanding.pop()
        return [named.get(name) for name in function.output]

    def subgraph(
        self,
        proto: onnx.GraphProto,
        param_types: Sequence[Type],
        captured: Mapping[str, Value],
        scope: Mapping[str, Value],
        outer: Builder,
    ) -> Graph:
        """Translate a body. Captured values become its last parameters; constants are copied into
        it."""
        builder = Builder(outer=outer)
        inner: dict[str, Value] = {}
        for info, of in zip(proto.input, param_types, strict=True):
            inner[info.name] = builder.param(info.name, of)
        for name, value in captured.items():
            inner[name] = builder.param(name, value.type)
        for name in free_names(proto):
            if name not in inner and name in scope:
                inner[name] = builder.restate(scope[name])
        return builder.graph(*self.body(proto, builder, inner), name="body")

    def captures(
        self, protos: Sequence[onnx.GraphProto], scope: Mapping[str, Value], outer: Builder
    ) -> dict[str, Value]:
        """The outer values used in bodies that are not compile-time constants."""
        names = [name for proto in protos for name in free_names(proto) if name in scope]
        return {name: scope[name] for name in names if not outer.can_restate(scope[name])}

    def results(self, outputs: Sequence[str], scope: Mapping[str, Value]) -> list[Value]:
        missing = [name for name in outputs if name not in scope]
        if missing and not self.problems:
            raise UserError("TW1102", f"nothing defines the output {missing[0]!r} of {self.name}")
        return [scope[name] for name in outputs if name in scope]

    # ------------------------------------------------------------------ types

    def type_of(self, proto: onnx.TypeProto, name: str) -> Type:
        """The declared type of an input; a named dimension is one size throughout the model."""
        if proto.HasField("sequence_type"):
            return SequenceType(self.type_of(proto.sequence_type.elem_type, name))
        if proto.HasField("optional_type"):
            return OptionalType(self.type_of(proto.optional_type.elem_type, name))
        if proto.HasField("map_type"):
            inner = proto.map_type.value_type.tensor_type
            return MapType(element_type(proto.map_type.key_type), element_type(inner.elem_type))
        if not proto.HasField("tensor_type"):
            raise Unsupported("TW1103", f"input {name!r} has a type that is not supported")
        tensor = proto.tensor_type
        of = element_type(tensor.elem_type)
        if not tensor.HasField("shape"):
            return TensorType(of, None)
        dims: list[Expr] = []
        for at, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                dims.append(const(dim.dim_value))
            else:
                dims.append(self.size_named(dimension_name(dim.dim_param, name, at)))
        return TensorType(of, tuple(dims))

    def size_named(self, word: str) -> Size:
        if word not in self.sizes:
            self.sizes[word] = size(word)
        return self.sizes[word]


NO_NAMES = ("none", "null", "unk", "unknown", "dynamic")  # exporters' names of dynamic dimensions


def dimension_name(given: str, tensor: str, at: int) -> str:
    """The name of a dynamic dimension; derived from its tensor if it has none.

    Empty names, names without a letter such as "?", and those in NO_NAMES are no names.
    """
    is_name = any(c.isalnum() for c in given) and given.lower() not in NO_NAMES
    return size_name(given if is_name else f"{tensor}_{at}")


def size_name(name: str) -> str:
    """Make a valid name of graphs."""
    word = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return word if word and not word[0].isdigit() else f"d{word}"


# Operators with rules for versions before opset 7.
BEFORE_7 = {"Add", "Sub", "Mul", "Div", "Pow", "AveragePool", "BatchNormalization", "Gemm", "PRelu"}


def _changed_since(op_type: str, version: int) -> bool:
    """Whether an operator of an old opset differs from that of opset 7."""
    old, new = schema_of(op_type, version, "ai.onnx"), schema_of(op_type, 7, "ai.onnx")
    if op_type in BEFORE_7 or old is None or new is None:
        return False
    return bool(old.since_version != new.since_version)


def bind_attributes(
    node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]
) -> onnx.NodeProto:
    """A function's node with references to the function's attributes resolved."""
    bound = onnx.NodeProto()
    bound.CopyFrom(node)
    del bound.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            source = given.get(attribute.ref_attr_name)
            if source is None:
                continue
            copy = onnx.AttributeProto()
            copy.CopyFrom(source)
            copy.name = attribute.name
            bound.attribute.append(copy)
            continue
        copy = onnx.AttributeProto()
        copy.CopyFrom(attribute)
        bodies = [copy.g] if copy.HasField("g") else list(copy.graphs)
        for body in bodies:
            inner = [bind_attributes(n, given) for n in body.node]
            del body.node[:]
            body.node.extend(inner)
        bound.attribute.append(copy)
    return bound


def schema_function(
    node: onnx.NodeProto, domain: str, version: int, inputs: Sequence[Value | None]
) -> onnx.FunctionProto | None:
    """The function body of an operator in ONNX's definition, if any."""
    schema = schema_of(node.op_type, version, domain)
    if schema is None:
        return None
    body = onnx.FunctionProto()
    if schema.has_function:
        body.CopyFrom(schema.function_body)
    elif schema.has_context_dependent_function:
        body.ParseFromString(_dependent_function(schema, node, inputs))
    else:
        return None
    defaults = [attribute.default_value for attribute in schema.attributes.values()]
    body.attribute_proto.extend(default for default in defaults if default.name)
    return body


def _dependent_function(
    schema: onnx.defs.OpSchema, node: onnx.NodeProto, inputs: Sequence[Value | None]
) -> bytes:
    """A function body that depends on attributes and types."""
    types = [
        b"" if value is None else type_proto(value.type).SerializeToString() for value in inputs
    ]
    made: bytes = schema.get_context_dependent_function(  # type: ignore[attr-defined]
        node.SerializeToString(), types
    )
    return made


def type_proto(of: Type) -> onnx.TypeProto:
    """The ONNX type, for context-dependent functions."""
    if isinstance(of, SequenceType):
        return helper.make_sequence_type_proto(type_proto(of.element))
    if isinstance(of, OptionalType):
        return helper.make_optional_type_proto(type_proto(of.element))
    if isinstance(of, MapType):
        key = helper.np_dtype_to_tensor_dtype(of.key.numpy)
        return helper.make_map_type_proto(key, type_proto(TensorType(of.value, ())))
    dims = None
    if of.shape is not None:
        dims = [int(d.value) if hasattr(d, "value") else str(d) for d in of.shape]
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(of.dtype.numpy), dims)
