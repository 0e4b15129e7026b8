"""Chains: GEMV kernels one after the other, and what lies between them, as one kernel.

A recurrent step is a few products of one row, each of which needs all of the last. As one kernel
(`tensor/join_kernels.py`) its blocks stay, prefetch the weights of the next product while the
results of the last are still on their way, and meet in between. Kernels are joined where they
follow each other in a model, have a place on the GPU all at once, and more of them than one is a
GEMV; and where meeting costs less than launches.
"""

from __future__ import annotations

import hashlib
import math
import pickle
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.multiprocessor import LINE_BYTES, multiprocessor_of
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.codegen import cache
from tilewright.codegen.nvptx import device_code
from tilewright.driver.kernels import Kernel, cache_key
from tilewright.driver.lowering import Program, called_kernels
from tilewright.graph.ir import Attribute, Node, Value
from tilewright.sym import Const
from tilewright.tensor import parse
from tilewright.tensor.dependent_launch import WEIGHTS
from tilewright.tensor.ir import DEVICE, Alloc, Buffer, For, Function, Stmt, annotated
from tilewright.tensor.join_kernels import Stage, join_kernels, stage_of
from tilewright.tensor.passes import lower
from tilewright.tensor.printer import canonical_text
from tilewright.tensor.scopes import SHARED
from tilewright.tensor.visit import replace_buffers, walk
from tilewright.tune.record import TaskKey

GEMV = "gemv"
RULES = {GEMV, "elementwise"}
LEAST_GEMVS = 2
CHAINS, JOINED = "chains", "joined"  # what a record of a model's chains is about, and says


@dataclass(frozen=True)
class Member:
    """A node of a chain, and its kernel as a stage of it."""

    node: Node
    kernel: Kernel
    function: Function
    stage: Stage


def _is_gemv(kernel: Kernel) -> bool:
    return any(decision.rule == GEMV for decision in kernel.decisions)


def chains_key(program: Program, target: Target, threads: int) -> TaskKey:
    """What it is remembered by that a program is faster with chains: all of its kernels in order,
    each by a name that tells what it computes and how."""
    called = [node["function"] for node in program.module.main.nodes if node.op == "kernel"]
    return TaskKey("\n".join([CHAINS, *called]), target.key, threads)


def join_chains(program: Program, target: Target, *, use_cache: bool = True) -> Program:
    """The program with its chains, each as one kernel; the same where it has none."""
    sm, main = multiprocessor_of(target), program.module.main
    called = [program.kernels[node["function"]] for node in main.nodes if node.op == "kernel"]
    if sm.meeting_cycles >= sm.launch_cycles or sum(map(_is_gemv, called)) < LEAST_GEMVS:
        return program
    joining = _Joining(program, target, use_cache)
    for node in main.nodes:
        joining.take(node)
    joining.end()
    if len(joining.kernels) == len(program.kernels):
        return program
    main = replace(main, nodes=tuple(joining.nodes))
    used = called_kernels(main)
    kernels = {name: kernel for name, kernel in joining.kernels.items() if name in used}
    module = replace(program.module, graphs={**program.module.graphs, "main": main})
    return replace(program, module=module, kernels=kernels)


class _Joining:
    """Goes through the nodes of a model; `chain` has those that may be one kernel."""

    def __init__(self, program: Program, target: Target, use_cache: bool) -> None:
        self.kernels = dict(program.kernels)
        self.target, self.use_cache = target, use_cache
        self.roots: dict[Value, Value] = {}  # what values are, seen in another shape
        self.weights: set[Value] = set()
        self.nodes: list[Node] = []
        self.chain: list[Member] = []
        self.views: list[Node] = []  # of what the chain makes
        self.passed: list[Node] = []  # all since the chain began, as they came

    def take(self, node: Node) -> None:
        if node.op == "constant":
            self.weights.add(node.output)
            self.nodes.append(node)
            return
        if node.op == "reshape":
            (source,) = node.inputs
            assert source is not None
            self.roots[node.output] = self.root(source)
            made = {value for member in self.chain for value in member.node.outputs}
            is_late = self.root(source) in made
            (self.views if is_late else self.nodes).append(node)
            if is_late:
                self.passed.append(node)
            return
        member = self._member(node)
        if member is None:
            self.end()
            self.nodes.append(node)
            return
        self.chain.append(member)
        self.passed.append(node)

    def root(self, value: Value) -> Value:
        return self.roots.get(value, value)

    def _member(self, node: Node) -> Member | None:
        """A kernel whose blocks all have a place at once."""
        if node.op != "kernel":
            return None
        kernel = self.kernels[node["function"]]
        if not kernel.device or kernel.scalars or kernel.requires:
            return None
        if not {decision.rule for decision in kernel.decisions} <= RULES:
            return None
        fn = parse(kernel.text)
        values = [*(v for v in node.inputs if v is not None), *node.outputs]
        known = tuple(at for at, value in enumerate(values) if self.root(value) in self.weights)
        fn = replace(fn, attrs=annotated(fn.attrs, WEIGHTS, known))
        device = lower(fn, "gpu", PassContext(target=self.target))
        stage, sm = stage_of(device), multiprocessor_of(self.target)
        if stage is None or stage.blocks > sm.count or stage.threads > sm.block_threads:
            return None
        return Member(node, kernel, device, stage)

    def end(self) -> None:
        """What was gathered becomes a kernel, or stays as it was."""
        gemvs = sum(_is_gemv(member.kernel) for member in self.chain)
        found = self._joined(self._in_order()) if gemvs >= LEAST_GEMVS else None
        if found is None:
            self.nodes += self.passed
        else:
            node, kernel = found
            self.kernels[kernel.name] = kernel
            self.nodes += [node, *self.views]
        self.chain, self.views, self.passed = [], [], []

    def _in_order(self) -> list[Member]:
        """What products need, and these; the rest comes last."""
        needed: set[Value] = set()
        first: list[Member] = []
        for member in reversed(self.chain):
            if _is_gemv(member.kernel) or needed.intersection(member.node.outputs):
                first.append(member)
                needed.update(self.root(v) for v in member.node.inputs if v is not None)
        first.reverse()
        return [*first, *(member for member in self.chain if member not in first)]

    def _joined(self, members: list[Member]) -> tuple[Node, Kernel] | None:
        """The node and the kernel of a chain; None where its stages need too much memory."""
        buffers: dict[Value, Buffer] = {}
        stages, meets = [], []
        fresh: set[Value] = set()  # made since blocks met
        for member in members:
            inputs = [self.root(v) for v in member.node.inputs if v is not None]
            values = [*inputs, *member.node.outputs]
            mapping = {}
            for value, own in zip(values, member.function.buffers, strict=True):
                name = f"{own.name}_{len(buffers)}"
                mapping[own] = buffers.setdefault(value, replace(own, name=name))
            loop = replace_buffers(member.stage.kernel, mapping)
            assert isinstance(loop, For)
            stages.append(replace(member.stage, kernel=loop))
            meets.append(bool(fresh.intersection(inputs)))
            fresh = {*(fresh if not meets[-1] else ()), *member.node.outputs}
        made = {value for member in members for value in member.node.outputs}
        given = [value for value in buffers if value not in made]
        results = [value for value in buffers if value in made]
        params = tuple(buffers[value] for value in (*given, *results))
        weights = tuple(at for at, value in enumerate(given) if value in self.weights)
        body = join_kernels(stages, meets)
        if _shared_bytes(body) > multiprocessor_of(self.target).static_shared_bytes:
            return None
        fn = Function("chain", params, body, attrs=annotated((), WEIGHTS, weights), stage=DEVICE)
        text = canonical_text(fn)
        name = f"chain_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        fn = replace(fn, name=name)
        flops = sym.simplify(sum((m.kernel.flops for m in members), start=sym.ZERO))
        kernel = Kernel(
            name=name,
            image=self._image(fn, text),
            params=(),
            scalars=(),
            requires=(),
            flops=flops,
            in_place=(),
            packer=None,
            text=str(fn),
            decisions=tuple(d for member in members for d in member.kernel.decisions),
            device=True,
        )
        attributes: dict[str, Attribute] = {
            "function": name, "label": "chain", "sizes": (), "flops": flops,
        }  # fmt: skip
        last = members[-1].node
        kept = tuple((key, attributes.get(key, value)) for key, value in last.attributes)
        node = replace(last, inputs=tuple(given), outputs=tuple(results), attributes=kept)
        return node, kernel

    def _image(self, fn: Function, text: str) -> bytes:
        """The code of a chain, from the cache where it was made before."""
        key = cache_key(self.target, f"chain\n{text}")
        found = cache.try_read(key) if self.use_cache else None
        if found is None:
            found = pickle.dumps(device_code(fn, self.target))
            if self.use_cache:
                cache.write(key, found)
        return found


def _shared_bytes(body: Stmt) -> int:
    """What all stages have of a block's memory; each buffer begins a line."""
    allocs = [stmt.buffer for stmt in walk(body) if isinstance(stmt, Alloc)]
    size = 0
    for buffer in allocs:
        if buffer.memory == SHARED:
            count = math.prod(int(dim.value) for dim in buffer.shape if isinstance(dim, Const))
            size += -(-count * buffer.dtype.size_bytes // LINE_BYTES) * LINE_BYTES
    return size
