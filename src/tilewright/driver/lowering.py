"""Lower a model of fused nodes to calls of compiled kernels.

    program = lower_model(module, setting)
    program.module      stage `lowered`: constants, kernels, sizes, views, control flow
    program.kernels     their object code, by name

Equal kernels are compiled once. Weights are packed here, at compile time, where kernels want it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.base.dtype import I64
from tilewright.base.errors import CompilerBug, Unsupported
from tilewright.base.target import CUDA, Target
from tilewright.driver.kernels import Job, Kernel, KernelSetting, try_cached
from tilewright.driver.packing import MissingPackers, Packing, cached_images
from tilewright.driver.size_variants import Limit, has_other_plan, variants_of
from tilewright.driver.workers import compile_all
from tilewright.graph import ir
from tilewright.graph.build import constant_type
from tilewright.graph.collapse import collapse_axes
from tilewright.graph.costs import alone, place_of
from tilewright.graph.ir import Graph, Module, Node, Value
from tilewright.graph.memory import VIEWS
from tilewright.graph.types import TensorType
from tilewright.graph.visit import users, walk
from tilewright.lower.graph import sizes_of
from tilewright.lower.native import CONTROL
from tilewright.lower.sizes import fresh_sizes, lower_sizes
from tilewright.rules.rule import Choice
from tilewright.sym import Expr, Var, const
from tilewright.tensor.constants import Given

Array = np.ndarray[Any, Any]
_log = logging.getLogger("tilewright")

# Calls of foreign parts, and the sizes they define (driver/foreign_parts.py), pass unchanged.
UNCHANGED = ("sizes", "foreign", "fetch")


@dataclass(frozen=True)
class Recorded:
    """The plans of a kernel by block; and plans for limited sizes, of which the first that fits is
    used."""

    choices: Mapping[str, Choice]
    variants: tuple[tuple[Limit, Mapping[str, Choice]], ...] = ()


Choices = Mapping[str, Recorded]  # by the keys of jobs


@dataclass(frozen=True)
class Program:
    """A lowered model and its kernels."""

    module: Module
    kernels: Mapping[str, Kernel]


def called_kernels(graph: Graph) -> set[str]:
    """The names of all kernels that a lowered graph may call, size variants included."""
    calls = [node for node in walk(graph) if node.op == "kernel"]
    return {name for node in calls for name in (node["function"], *node.get("variants", ()))}


def lower_model(
    module: Module,
    setting: KernelSetting,
    *,
    use_cache: bool = True,
    progress: Callable[[int, int], None] = lambda count, total: None,
    choose: Callable[[Mapping[str, Job]], Choices] = lambda jobs: {},
) -> Program:
    """Compile every kernel of the module's main graph, and replace its nodes by calls.

    `choose` is asked once for given plans, by the keys of jobs.
    """
    lowering = _Lowering(module, setting)
    graph = lowering.graph(module.main)
    lowering.use_choices(choose(lowering.called))
    kernels, packers = _compiled(lowering, use_cache, progress)
    for kernel in kernels.values():
        if setting.schedule and kernel.fell_back:
            _log.warning("kernel %s runs slowly: %s", kernel.name, kernel.fell_back)
    return _linked(lowering, graph, kernels, packers)


def lower_with(
    module: Module,
    setting: KernelSetting,
    kernels: Mapping[str, Kernel],
    packers: Mapping[str, bytes],
    packed: Mapping[str, Array],
) -> Program:
    """The model with kernels that are already compiled, by the names of their jobs, and packers by
    their texts. Weights in `packed` are not packed again."""
    lowering = _Lowering(module, setting)
    graph = lowering.graph(module.main)
    available = {key: job for key, job in lowering.jobs.items() if job.name in kernels}
    by_key = {key: kernels[job.name] for key, job in {**lowering.called, **available}.items()}
    return _linked(lowering, graph, by_key, packers, packed)


def _linked(
    lowering: _Lowering,
    graph: Graph,
    kernels: Mapping[str, Kernel],
    packers: Mapping[str, bytes],
    packed: Mapping[str, Array] | None = None,
) -> Program:
    """The program that calls compiled kernels, with weights packed as each needs them."""
    module, target = lowering.module, lowering.setting.target
    packing = Packing({**module.constants, **(packed or {})}, kernels, packers, target)
    lowered = _with_packed(graph, lowering, packing)
    names = dict.fromkeys((*_used_constants(lowered), *module.states))
    constants = packing.finish(names, moved=packed is None)
    lowered_module = replace(
        module, graphs={"main": lowered}, constants=constants, functions={}, stage=ir.LOWERED
    )
    called = called_kernels(lowered)
    return Program(
        lowered_module, {each.name: each for each in kernels.values() if each.name in called}
    )


@dataclass(frozen=True)
class PlannedCall:
    """A kernel call that lowering will emit: the node of main, and the names of its kernel."""

    node: Node
    kernel: str
    label: str
    sizes: tuple[Expr, ...] = ()  # the values of its size arguments


def planned_calls(
    module: Module,
    setting: KernelSetting,
    choose: Callable[[Mapping[str, Job]], Choices] = lambda jobs: {},
) -> tuple[list[PlannedCall], dict[str, Job]]:
    """The calls that `lower_model` would emit, in order, and their jobs by name; compiles nothing.

    Names are those of jobs without given plans.
    """
    lowering = _Lowering(module, setting)
    lowering.graph(module.main)
    names = {key: job.name for key, job in lowering.called.items()}
    lowering.use_choices(choose(lowering.called))
    calls = [
        PlannedCall(node, made["function"], made["label"], made["sizes"])
        for node, made in lowering.calls
    ]
    return calls, {name: lowering.jobs[key] for key, name in names.items()}


@dataclass(frozen=True)
class Site:
    """A call of a kernel through a table, so that the kernel can be exchanged."""

    kernel: str  # the job's name
    weights: Mapping[int, str]  # names of the constants among its inputs, by position


@dataclass(frozen=True)
class SitedProgram:
    """A lowered model that calls every kernel through a table; see codegen/adapter.py."""

    module: Module
    sites: tuple[Site, ...]
    # the initial kernels: their signatures determine the calls and the memory plan
    kernels: Mapping[str, Kernel]


def jobs_of(module: Module, setting: KernelSetting) -> dict[str, Job]:
    """The jobs of a model's kernels, by name."""
    return planned_calls(module, setting)[1]


def lower_sited(
    module: Module, setting: KernelSetting, kernels: Mapping[str, Kernel]
) -> SitedProgram:
    """The model with all kernel calls through a table. Weights are not packed: each kernel put into
    the table brings its own. `kernels`, by name, are the initial ones."""
    lowering = _Lowering(module, setting)
    graph = lowering.graph(module.main)
    sites: list[Site] = []

    def sited(graph: Graph) -> Graph:
        nodes = []
        for node in graph.nodes:
            if node.op == "kernel":
                kernel = kernels[lowering.jobs[lowering.keys[node]].name]
                given = [value for value in node.inputs if value is not None]
                names = {at: lowering.constants.get(value) for at, value in enumerate(given)}
                weights = {at: name for at, name in names.items() if name is not None}
                node = sited_node(node, kernel, len(sites))
                sites.append(Site(kernel.name, weights))
            elif node.bodies:
                node = replace(node, bodies=tuple(sited(body) for body in node.bodies))
            nodes.append(node)
        return replace(graph, nodes=tuple(nodes))

    lowered = sited(graph)
    constants = {name: module.constants[name] for name in _used_constants(lowered)}
    lowered_module = replace(
        module, graphs={"main": lowered}, constants=constants, functions={}, stage=ir.LOWERED
    )
    return SitedProgram(lowered_module, tuple(sites), kernels)


def sited_node(node: Node, kernel: Kernel, site: int) -> Node:
    """A kernel call that goes through a table."""
    given = sum(value is not None for value in node.inputs)
    attributes = dict(node.attributes) | {
        "function": kernel.name,
        "flops": kernel.flops,
        "site": site,
        "label": str(site),
        "in_place": tuple((at, to - given) for at, to in in_place_of(kernel)),
    }
    return replace(node, attributes=ir.attributes(**attributes))


def in_place_of(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """Pairs of an input and a result of the kernel's job that may share memory."""
    found = []
    for pair in kernel.in_place:
        at, to = (kernel.params[each] for each in pair)
        if isinstance(at, Given) and isinstance(to, Given):
            found.append((at.position, to.position))
    return tuple(found)


@dataclass
class _Lowering:
    """Replaces nodes by kernel calls, and collects the jobs of their kernels."""

    module: Module
    setting: KernelSetting
    jobs: dict[str, Job] = field(default_factory=dict)  # by key
    keys: dict[Node, str] = field(default_factory=dict)  # of kernel nodes
    constants: dict[Value, str] = field(default_factory=dict)  # names of constants
    calls: list[tuple[Node, Node]] = field(default_factory=list)  # node of main, kernel node
    # keys of size variants, by the key of the general kernel
    variants: dict[str, list[tuple[Limit, str]]] = field(default_factory=dict)
    # with a GPU: nodes that run on the host, since what is launched depends on them
    on_host: set[Node] = field(default_factory=set)

    def graph(self, graph: Graph, holder: Node | None = None) -> Graph:
        """Lower main, or a body that a node of main holds."""
        nodes: list[Node] = []
        if self.setting.target.kind == CUDA:
            self.on_host |= size_computations(graph)
        for node in graph.nodes:
            of_main = node if holder is None else holder
            if node.op == "constant":
                self.constants[node.output] = node["data"]
                nodes.append(node)
            elif node.op in UNCHANGED:
                nodes.append(node)
            elif node.op in CONTROL:
                nodes.append(
                    replace(node, bodies=tuple(self.graph(b, of_main) for b in node.bodies))
                )
            else:
                nodes.extend(self._node(node, of_main))
        return replace(graph, nodes=tuple(nodes))

    @property
    def called(self) -> dict[str, Job]:
        """The jobs of called kernels by key, without size variants."""
        return {key: self.jobs[key] for key in dict.fromkeys(self.keys.values())}

    def use_choices(self, given: Choices) -> None:
        """Give jobs the plans of tuning records."""
        for key, recorded in given.items():
            job = self.jobs[key]
            self.jobs[key] = _with_choices(job, recorded.choices)
            self.variants.pop(key, None)  # measured plans replace estimated variants
            for at, (limit, choices) in enumerate(recorded.variants):
                name = f"{key}\nvariant {at}"
                self.jobs[name] = _with_choices(job, choices)
                self.variants.setdefault(key, []).append((limit, name))
        variants = {name for each in self.variants.values() for _, name in each}
        wanted = variants.union(self.keys.values())  # calls may share a variant
        self.jobs = {key: job for key, job in self.jobs.items() if key in wanted}

    def _node(self, node: Node, of_main: Node) -> list[Node]:
        inner = _single(node)
        out: list[Node] = []
        if inner is not None and fresh_sizes(inner):
            out.extend(self._sizes(inner, of_main))
        if node.op in VIEWS:
            return [*out, node]
        kernel = node.bodies[0] if node.op == "fused" else alone(node)
        body = collapse_axes(kernel, self.setting.target.kind)
        label = _label(body)
        weights = frozenset(
            at
            for at in range(len(body.params))
            if self.setting.packing and self._constant_input(node, at)
        )
        numbers = {
            n["data"]: self.module.constants[n["data"]] for n in walk(body) if n.op == "constant"
        }
        setting = host_setting(self.setting) if node in self.on_host else self.setting
        job = Job(label, body, numbers, weights, setting)
        inputs = tuple(value for value in node.inputs if value is not None)
        out.append(self._call(job, inputs, node.outputs, tuple(sizes_of(body)), node, of_main))
        return out

    def _constant_input(self, node: Node, at: int) -> bool:
        given = [value for value in node.inputs if value is not None]
        return given[at] in self.constants

    def _sizes(self, node: Node, of_main: Node) -> list[Node]:
        """Nodes that compute the dynamic sizes a node defines, before it runs."""
        fn = lower_sizes(node)
        assert fn is not None
        defined = fresh_sizes(node)
        values = Value("sizes", TensorType(I64, (const(len(defined)),)))
        # A node that counts in parallel on a GPU computes the size there; the host reads a single
        # number.
        is_shared_out = any(node.get(how) for how in ("runs", "piece", "side_by_side"))
        setting = self.setting if is_shared_out else host_setting(self.setting)
        job = Job(f"sizes_of_{node.op}", fn, {}, frozenset(), setting)
        scalars = tuple(param for param in fn.params if isinstance(param, Var))
        inputs = tuple(dict.fromkeys(value for value in node.inputs if value is not None))
        call = self._call(job, inputs, (values,), scalars, node, of_main)
        label = place_of(node.loc)
        read = Node("sizes", (values,), (), ir.attributes(sizes=defined, label=label), (), node.loc)
        return [call, read]

    def _call(
        self,
        job: Job,
        inputs: tuple[Value, ...],
        outputs: tuple[Value, ...],
        sizes: tuple[Expr, ...],
        origin: Node,
        of_main: Node,
    ) -> Node:
        key = job.key
        if key not in self.jobs:
            self.jobs[key] = job
            for limit, variant in variants_of(job):
                self.jobs[variant.key] = variant
                self.variants.setdefault(key, []).append((limit, variant.key))
        label = f"{job.label} {place_of(origin.loc)}".strip()
        attributes = ir.attributes(function=self.jobs[key].name, sizes=sizes, label=label)
        made = Node("kernel", inputs, outputs, attributes, (), origin.loc)
        self.keys[made] = key
        self.calls.append((of_main, made))
        return made


def _with_choices(job: Job, choices: Mapping[str, Choice]) -> Job:
    """A job with recorded plans; without any, rules decide as usual."""
    return replace(job, choices=choices, recorded=True) if choices else job


def size_computations(graph: Graph) -> set[Node]:
    """Nodes that depend on nothing but sizes, and whose results only `require` nodes use."""
    used_by, results = users(graph), set(graph.results)
    checking: set[Node] = set()
    for node in reversed(graph.nodes):
        uses = [(user, value) for value in node.outputs for user in used_by.get(value, ())]
        is_only_checked = all(
            user in checking or _is_condition_of(user, value) for user, value in uses
        )
        if uses and is_only_checked and not results & set(node.outputs):
            checking.add(node)
    from_sizes: set[Value | None] = {None}
    found: set[Node] = set()
    for node in graph.nodes:
        if node in checking and from_sizes.issuperset(node.inputs):
            found.add(node)
            from_sizes.update(node.outputs)
    return found


def _is_condition_of(node: Node, value: Value) -> bool:
    return node.op == "require" and node.inputs[0] is value and value not in node.inputs[1:]


def host_setting(setting: KernelSetting) -> KernelSetting:
    """The setting of kernels that compute sizes: with a GPU they run on the host, since launches
    depend on their results."""
    return replace(setting, target=Target.host()) if setting.target.kind == CUDA else setting


def _single(node: Node) -> Node | None:
    """The only node of a kernel, as if it were not fused; None if there are several."""
    if node.op != "fused":
        return node
    (body,) = node.bodies
    work = [inner for inner in body.nodes if inner.op != "constant"]
    if len(work) != 1:
        return None
    arguments = dict(zip(body.params, node.inputs, strict=True))
    constants = {n.output for n in body.nodes if n.op == "constant"}
    if any(value in constants for value in work[0].inputs):
        return None
    inputs = tuple(None if v is None else arguments[v] for v in work[0].inputs)
    return replace(work[0], inputs=inputs)


def _label(graph: Graph) -> str:
    """The operators of a kernel, each once, as a name."""
    ops = dict.fromkeys(node.op for node in graph.nodes if node.op != "constant")
    return "_".join(ops) or "copy"


# --------------------------------------------------------------------------- kernels


def _compiled(
    lowering: _Lowering, use_cache: bool, progress: Callable[[int, int], None]
) -> tuple[dict[str, Kernel], dict[str, bytes]]:
    """The kernels by key, and their packers; processes are started only for what is not cached.

    A size variant without code, or with a generic schedule only, is dropped in favour of the kernel
    for all sizes.
    """
    jobs, target = lowering.jobs, lowering.setting.target
    found: dict[str, Kernel] = {}
    packers: dict[str, bytes] = {}
    if use_cache:
        stored = {key: kernel for key, job in jobs.items() if (kernel := try_cached(job))}
        packers = cached_images(stored.values(), target)
        found = {k: v for k, v in stored.items() if v.packer is None or v.packer.text in packers}
    missing = {key: job for key, job in jobs.items() if key not in found}
    have, total = len(found), len(jobs)
    made, images = compile_all(
        list(missing.values()),
        MissingPackers(packers, target).of,
        use_cache=use_cache,
        done=lambda count, _: progress(have + count, total),
    )
    called = set(lowering.keys.values())
    for (key, job), outcome in zip(missing.items(), made, strict=True):
        if not isinstance(outcome, Unsupported):
            found[key] = outcome
        elif key in called:
            raise _placed_wrongly(job, outcome) from outcome
    found = {key: kernel for key, kernel in found.items() if key in called or not kernel.fell_back}
    return found, {**packers, **images}


def _placed_wrongly(job: Job, reason: Unsupported) -> CompilerBug:
    """Placement checked that the kernel has code; if compilation finds none, that is a compiler
    bug."""
    return CompilerBug(
        "TW6006",
        f"{job.label} was placed on {job.setting.target}, which has no code for it: "
        f"error[{reason.code}]: {reason.message}",
        reason.loc,
        help="please report this; lower/native.py should have refused it",
    )


# --------------------------------------------------------------------------- weights


def _with_packed(graph: Graph, lowering: _Lowering, packing: Packing) -> Graph:
    """Kernel nodes with the inputs that their compiled kernels take: packed weights replace
    weights."""

    def renewed(graph: Graph) -> Graph:
        nodes: list[Node] = []
        for node in graph.nodes:
            if node.op == "kernel":
                nodes.extend(_kernel_node(node, lowering, packing))
            elif node.bodies:
                nodes.append(replace(node, bodies=tuple(renewed(body) for body in node.bodies)))
            else:
                nodes.append(node)
        read = {value for node in nodes for value in node.inputs} | set(graph.results)
        live = [n for n in nodes if n.op != "constant" or n.output in read]
        return replace(graph, nodes=tuple(live))

    return renewed(graph)


def _kernel_node(node: Node, lowering: _Lowering, packing: Packing) -> list[Node]:
    key = lowering.keys[node]
    kernel = packing.kernels[key]
    out, inputs = _kernel_inputs(node, kernel, lowering, packing)
    in_place = _in_place(kernel, node)
    attributes = dict(node.attributes) | {"function": kernel.name, "flops": kernel.flops}
    own_inputs, takes = inputs, [tuple(range(len(inputs)))]
    variants = _variants(key, lowering, packing)
    for _, other in variants:
        new_nodes, taken = (
            ([], own_inputs) if other is kernel else _kernel_inputs(node, other, lowering, packing)
        )
        out += new_nodes
        shared = {(taken[at], to) for at, to in _in_place(other, node)}
        in_place = [(at, to) for at, to in in_place if (inputs[at], to) in shared]
        inputs += tuple(value for value in dict.fromkeys(taken) if value not in inputs)
        takes.append(tuple(inputs.index(value) for value in taken))
    if len(takes) > 1:
        attributes |= {
            "variants": tuple(other.name for _, other in variants),
            "limits": tuple((limit.size, limit.most) for limit, _ in variants),
            "takes": tuple(takes),
        }
    attributes["in_place"] = tuple(in_place)
    out.append(replace(node, inputs=inputs, attributes=ir.attributes(**attributes)))
    return out


def _variants(key: str, lowering: _Lowering, packing: Packing) -> list[tuple[Limit, Kernel]]:
    """The size variants of a call. A variant that is missing, or whose plan is that of the general
    kernel, is replaced by the general kernel instead of left out, since the next variant is not
    planned for its sizes. Trailing ones are dropped."""
    kernel, found = packing.kernels[key], []
    for limit, name in lowering.variants.get(key, ()):
        other = packing.kernels.get(name, kernel)
        found.append((limit, other if has_other_plan(other, kernel) else kernel))
    while found and found[-1][1] is kernel:
        found.pop()
    return found


def _in_place(kernel: Kernel, node: Node) -> list[tuple[int, int]]:
    """Pairs of positions, of a call's inputs and results, that may share memory."""
    before = len(kernel.params) - len(kernel.scalars) - len(node.outputs)
    return [(at, to - before) for at, to in kernel.in_place]


def _kernel_inputs(
    node: Node, kernel: Kernel, lowering: _Lowering, packing: Packing
) -> tuple[list[Node], tuple[Value, ...]]:
    """The inputs that a kernel takes, packed weights in place of weights; and new constants for
    them."""
    inputs = tuple(value for value in node.inputs if value is not None)
    if kernel.packer is None:
        return [], inputs
    weights = tuple(lowering.constants[inputs[at]] for at in kernel.packer.weights)
    out: list[Node] = []
    packed = []
    for name in packing.pack(kernel, weights):
        value = Value("packed", constant_type(packing.constants[name]))
        out.append(Node("constant", (), (value,), ir.attributes(data=name), (), node.loc))
        packed.append(value)
    taken: list[Value] = []
    for param in kernel.params:
        if not isinstance(param, Given):
            taken.append(packed[param.position])
        elif param.position < len(inputs):
            taken.append(inputs[param.position])
    return out, tuple(taken)


def _used_constants(graph: Graph) -> list[str]:
    return list(dict.fromkeys(node["data"] for node in walk(graph) if node.op == "constant"))
