"""Graphs of ATen operators as AOTAutograd makes them: flat inputs, flat outputs, no structure.

flat = import_graph(graph, {0: weight})    weights become constants
flat.module                                 the graph module; None if nothing is computed
flat.arguments(inputs)                      the arguments of the compiled module
flat.results(inputs, made)                  the graph's outputs, with the strides of PyTorch
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx

from tilewright.base.errors import TilewrightError
from tilewright.base.loc import Loc
from tilewright.frontends.common.report import Problems, Skip, report
from tilewright.frontends.torch.calling import as_lent
from tilewright.frontends.torch.importer import Env, Importer, location
from tilewright.frontends.torch.rules.complex import Pair, parted
from tilewright.frontends.torch.sizes import symbols_of
from tilewright.frontends.torch.tensors import PARTS, dtype_of
from tilewright.frontends.torch.views import Step, base_of, steps_to
from tilewright.graph import Builder, Graph, Module, Value
from tilewright.graph.types import TensorType
from tilewright.sym import size

Array = np.ndarray[Any, Any]
# The axes of a tensor in memory order, the outermost first; None if in order. The module takes and
# returns tensors permuted so, which are contiguous.
Order = tuple[int, ...] | None


@dataclass(frozen=True)
class Base:
    """A computed tensor that outputs are, or are views of."""

    result: int  # of the module
    back: Order  # the permutation from memory order to the order of its axes
    is_complex: bool  # real with a last axis of two
    shared: bool  # by another base with the same value, which must have its own memory


@dataclass
class FlatGraph:
    """A graph as a compiled module, and the mapping of its inputs and outputs to those of the
    module."""

    module: Module | None
    taken: list[tuple[int, Order]] = field(default_factory=list)  # inputs that the module takes
    # For each output: ("view", a node), ("constant", a value), ("number", a result's index)
    outputs: list[tuple[str, Any]] = field(default_factory=list)
    inputs: list[fx.Node] = field(default_factory=list)
    bases: dict[fx.Node, Base] = field(default_factory=dict)  # computed bases of outputs
    viewed: dict[fx.Node, int] = field(default_factory=dict)  # inputs that are bases of outputs
    steps: tuple[Step, ...] = ()  # views that each call recreates
    is_plain: bool = True  # whether the module takes only tensors, none of them complex

    def arguments(self, inputs: Sequence[Any]) -> list[Any]:
        """The arguments of the module."""
        given = [
            inputs[at] if order is None else inputs[at].permute(order) for at, order in self.taken
        ]
        if self.is_plain and not any(map(torch.Tensor.is_neg, given)):
            return given
        return list(map(as_lent, given))

    def results(self, inputs: Sequence[Any], made: Sequence[torch.Tensor]) -> list[Any]:
        """The outputs of the graph."""
        known: dict[fx.Node, Any] = {node: inputs[at] for node, at in self.viewed.items()}
        for node, base in self.bases.items():
            tensor = made[base.result]
            if base.is_complex:
                tensor = torch.view_as_complex(tensor)
            if base.back is not None:
                tensor = tensor.permute(base.back)
            known[node] = tensor.clone() if base.shared else tensor
        for step in self.steps:
            known[step.node] = step.taken(known)
        given: list[Any] = []
        for kind, which in self.outputs:
            if kind == "view":
                given.append(known[which])
            else:
                given.append(made[which].item() if kind == "number" else which)
        return given


def _back(order: Sequence[int]) -> tuple[int, ...]:
    """The inverse permutation."""
    return tuple(sorted(range(len(order)), key=lambda axis: order[axis]))


def memory_order(fake: torch.Tensor) -> Order:
    """The axes by decreasing stride."""
    if fake.is_contiguous() or fake.dim() < 2:
        return None
    strides = [int(_hint(each)) for each in fake.stride()]
    sizes = [int(_hint(each)) for each in fake.shape]
    order = sorted(range(fake.dim()), key=lambda axis: (-strides[axis], sizes[axis] == 1, axis))
    return None if order == list(range(fake.dim())) else tuple(order)


def _hint(value: int | torch.SymInt) -> int:
    """The value of a size when the graph was traced."""
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value


def import_graph(graph: fx.GraphModule, weights: Mapping[int, Array]) -> FlatGraph:
    """Import a graph."""
    importer = Importer("the graph")
    builder = Builder(importer.constants)
    env: Env = {}
    flat = FlatGraph(None)
    flat.inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    _parameters(importer, builder, env, flat, weights)
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            env[node] = importer.attribute(graph, node, builder)
    made = importer.run(graph.graph, env, builder)
    if importer.problems:
        raise report(importer.name, importer.problems)
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    wanted = output.args[0] if isinstance(output.args[0], (list, tuple)) else [output.args[0]]
    values = _results(importer, builder, env, flat, list(wanted), made)
    _prepare_views(flat)
    if values:
        values = importer.guarded(values, builder)
        names = tuple(f"out{at}" for at in range(len(values)))
        flat.module = Module({"main": builder.graph(*values)}, importer.constants, outputs=names)
    return flat


def _parameters(
    importer: Importer,
    builder: Builder,
    env: Env,
    flat: FlatGraph,
    weights: Mapping[int, Array],
) -> None:
    """Tensors first: sizes that they define need not be passed as numbers.

    A dimension that is a sum of several sizes defines one of them, if the others are known. An
    input with a product of unknown sizes is added to the problems.
    """
    tensors: list[tuple[int, fx.Node]] = []
    numbers: list[tuple[int, fx.Node]] = []
    for at, node in enumerate(flat.inputs):
        fake = node.meta.get("val")
        if _is_token(node):  # None at run time
            env[node] = None
        elif at in weights:
            env[node] = builder.constant(weights[at], node.name)
            if isinstance(fake, torch.Tensor) and fake.is_complex():
                env[node] = parted(builder, env[node])
        elif isinstance(fake, torch.SymInt):
            numbers.append((at, node))
        elif not isinstance(fake, torch.Tensor):
            env[node] = fake
        elif node.users or any(isinstance(dim, torch.SymInt) for dim in fake.shape):
            tensors.append((at, node))

    def count(at: int, node: fx.Node) -> None:
        fake = node.meta["val"]
        if importer.sizes.knows(fake):
            env[node] = importer.sizes.expr(fake)
        else:
            env[node] = importer.number(builder, node.name, fake)
            flat.taken.append((at, None))
            flat.is_plain = False

    for at, node in sorted(tensors, key=lambda each: _most_symbols(each[1].meta["val"])):
        fake = node.meta["val"]
        unsolved = importer.unsolved(fake.shape)
        for number in numbers:
            if number[1] not in env and number[1].meta["val"].node.expr in unsolved:
                count(*number)
        order = None if fake.is_complex() else memory_order(fake)
        turned = fake if order is None else fake.permute(order)
        try:
            env[node] = importer.param(builder, node.name, turned)
        except Skip as error:
            importer.problems.setdefault(str(error), []).append(node.name)
            continue
        if order is not None:
            env[node] = builder.add("transpose", env[node], perm=_back(order))
        flat.taken.append((at, order))
        flat.is_plain = flat.is_plain and not fake.is_complex()
    for at, node in numbers:
        if node not in env:
            count(at, node)


def _most_symbols(fake: torch.Tensor) -> int:
    """The maximum number of symbols in a dimension."""
    return max((len(symbols_of(dim)) for dim in fake.shape), default=0)


def _is_token(node: fx.Node) -> bool:
    """Whether an input only orders effects."""
    effects = torch.ops.higher_order.with_effects
    return bool(node.users) and all(
        user.target is effects and user.args[0] is node for user in node.users
    )


def _results(
    importer: Importer,
    builder: Builder,
    env: Env,
    flat: FlatGraph,
    wanted: Sequence[Any],
    made: Sequence[Any],
) -> list[Value]:
    """The values that are outputs, or bases of outputs, each once."""
    values: dict[Value, int] = {}
    viewers = Counter(base_of(node) for node in dict.fromkeys(wanted) if isinstance(node, fx.Node))
    for node, result in zip(wanted, made, strict=True):
        computed = isinstance(result, (Value, Pair))
        if isinstance(node, fx.Node) and (computed or node.op == "placeholder"):
            base = base_of(node)
            if not isinstance(env.get(base), (Value, Pair)):
                base = node
            elif base.op != "placeholder" and viewers[base] == 1 and _is_all_of(node, base):
                base = node  # no other output shares the base: the module returns the view itself
            if base.op != "placeholder" and base not in flat.bases:
                fake, is_complex = base.meta["val"], isinstance(env[base], Pair)
                value = importer.as_value(env[base], builder)
                order = memory_order(fake)
                if order is not None:
                    parts = (len(order),) if is_complex else ()
                    value = builder.add("transpose", value, perm=(*order, *parts))
                shared = value in values
                at = values.setdefault(value, len(values))
                back = None if order is None else _back(order)
                flat.bases[base] = Base(at, back, is_complex, shared)
            flat.outputs.append(("view", node))
        elif result is None or not isinstance(node, fx.Node):
            flat.outputs.append(("constant", result))
        else:
            value = importer.as_value(result, builder)
            flat.outputs.append(("number", values.setdefault(value, len(values))))
    return list(values)


def _is_all_of(node: fx.Node, base: fx.Node) -> bool:
    """Whether a view of static size has every element of its base once, without gaps."""
    fake, whole = node.meta.get("val"), base.meta.get("val")
    if not isinstance(fake, torch.Tensor) or not isinstance(whole, torch.Tensor):
        return False
    if fake.dtype != whole.dtype or fake.is_complex():
        return False
    extents = (*fake.shape, *whole.shape, *fake.stride())
    if any(isinstance(each, torch.SymInt) for each in extents):
        return False
    return fake.numel() == whole.numel() and _has_no_gaps(fake)


def _has_no_gaps(fake: torch.Tensor) -> bool:
    """Whether a tensor is contiguous in some order of its axes."""
    step = 1
    for stride, extent in sorted(zip(fake.stride(), fake.shape, strict=True)):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _prepare_views(flat: FlatGraph) -> None:
    """Determine once how every call recreates views."""
    outputs = [which for kind, which in flat.outputs if kind == "view"]
    flat.steps = steps_to(outputs, {*flat.inputs, *flat.bases})
    read = dict.fromkeys([*outputs, *(n for s in flat.steps for n in s.node.all_input_nodes)])
    flat.viewed = {node: at for at, node in enumerate(flat.inputs) if node in read}


# ------------------------------------------------------------------------------------ support


class _Trial(Importer):
    """An import that continues after untranslatable nodes, to find all of them."""

    def __init__(self, refuse: Callable[[fx.Node], bool]) -> None:
        super().__init__("the graph")
        self.refuse = refuse
        self.found: dict[fx.Node, str] = {}
        self.depth = 0  # of bodies: a problem inside is one of the node that holds it

    def body(self, module: fx.GraphModule, params: Sequence[TensorType], outer: Builder) -> Graph:
        self.depth += 1
        try:
            return super().body(module, params, outer)
        finally:
            self.depth -= 1

    def node(self, node: fx.Node, builder: Builder, env: Env) -> None:
        if self.depth:
            if self.refuse(node):
                raise Skip(f"operator {node.target}")
            super().node(node, builder, env)
            return
        if self.refuse(node):
            self.found[node] = f"operator {node.target}"
            env[node] = self.stand_in(node, builder)
            return
        before = self.counts()
        try:
            super().node(node, builder, env)
        except TilewrightError as error:
            self.found[node] = error.message
        else:
            if lacking := [*(self.counts() - before)]:
                self.found[node] = lacking[-1]  # earlier ones are of nodes inside
        if node not in env:
            env[node] = self.stand_in(node, builder)

    def stand_in(self, node: fx.Node, builder: Builder) -> Any:
        """A placeholder for the results of a node, with their types."""
        return _stand_ins(self, node.meta.get("val"), builder, location(self.name, node))


def _stand_ins(importer: Importer, meta: Any, builder: Builder, loc: Loc) -> Any:
    if isinstance(meta, (tuple, list)):
        return tuple(_stand_ins(importer, each, builder, loc) for each in meta)
    if isinstance(meta, torch.Tensor):
        extents: Sequence[int | torch.SymInt] = meta.shape
        for dim in extents:
            if isinstance(dim, torch.SymInt) and not importer.sizes.knows(dim):
                for symbol in dim.node.expr.free_symbols:
                    importer.sizes.symbols.setdefault(symbol, size(str(symbol)))
        dims = tuple(importer.sizes.expr(dim) for dim in extents)
        if meta.is_complex():
            parts = TensorType(dtype_of(PARTS[meta.dtype]), dims)
            return Pair(builder.param("stand_in", parts), builder.param("stand_in", parts))
        try:
            return builder.param("stand_in", TensorType(dtype_of(meta.dtype), dims))
        except TilewrightError:
            return None
    if isinstance(meta, torch.SymInt):
        for symbol in meta.node.expr.free_symbols:
            importer.sizes.symbols.setdefault(symbol, size(str(symbol)))
        return importer.sizes.expr(meta)
    return meta


def untaken(graph: fx.GraphModule) -> Problems:
    """The problems of inputs whose sizes cannot be passed to native code."""
    importer = Importer("the graph")
    flat = FlatGraph(None, inputs=[node for node in graph.graph.nodes if node.op == "placeholder"])
    try:
        _parameters(importer, Builder(importer.constants), {}, flat, {})
    except TilewrightError:  # other problems are reported for the users of the input
        return {}
    return importer.problems


def without_rules(
    graph: fx.GraphModule, refuse: Callable[[fx.Node], bool] = lambda node: False
) -> dict[fx.Node, str]:
    """The nodes of a graph without native code, and the reasons; all nodes if an input cannot be
    passed."""
    for problem in untaken(graph):
        return {node: problem for node in graph.graph.nodes if node.op == "call_function"}
    trial = _Trial(refuse)
    builder = Builder(trial.constants)
    env: Env = {}
    nodes = list(graph.graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    tensors = [node for node in inputs if isinstance(node.meta.get("val"), torch.Tensor)]
    for node in [*tensors, *(node for node in inputs if node not in tensors)]:
        try:
            env[node] = _stand_ins(trial, node.meta.get("val"), builder, location("", node))
        except Skip:
            env[node] = None
    for node in nodes:
        if node.op == "get_attr":
            env[node] = trial.attribute(graph, node, builder)
    trial.run(graph.graph, env, builder)
    return trial.found
