"""Join chains of GEMV kernels on a GPU into one persistent kernel.

A recurrent step consists of a few GEMVs, each of which needs the whole result of the previous one.
Joined (`tensor/join_kernels.py`), the thread blocks stay resident, prefetch the weights of the next
GEMV while results of the previous one are in flight, and synchronize on a grid barrier in between.
Kernels are joined if they are consecutive in a model, all blocks fit on the GPU at once, at least
two of them are GEMVs, and a grid barrier costs less than a launch.
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
# key and value of the record that says a model is faster with chains
CHAINS, JOINED = "chains", "joined"


@dataclass(frozen=True)
class Member:
    """A node of a chain, and its kernel as a stage."""

    node: Node
    kernel: Kernel
    function: Function
    stage: Stage


def _is_gemv(kernel: Kernel) -> bool:
    return any(decision.rule == GEMV for decision in kernel.decisions)


def chains_key(program: Program, target: Target, threads: int) -> TaskKey:
    """The database key for "this program is faster with chains": its kernels, in order, each by a
    name that is a digest of its code."""
    called = [node["function"] for node in program.module.main.nodes if node.op == "kernel"]
    return TaskKey("\n".join([CHAINS, *called]), target.key, threads)


def join_chains(program: Program, target: Target, *, use_cache: bool = True) -> Program:
    """The program with each chain joined into one kernel; the same program if it has none."""
    sm, main = multiprocessor_of(target), program.module.main
    called = [program.kernels[node["function"]] for node in main.nodes if node.op == "kernel"]
    if sm.meeting_cycles >= sm.launch_cycles or sum(map(_is_gemv, called)) < LEAST_GEMVS:
        return program
    joiner = _ChainJoiner(program, target, use_cache)
    for node in main.nodes:
        joiner.take(node)
    joiner.end()
    if len(joiner.kernels) == len(program.kernels):
        return program
    main = replace(main, nodes=tuple(joiner.nodes))
    used = called_kernels(main)
    kernels = {name: kernel for name, kernel in joiner.kernels.items() if name in used}
    module = replace(program.module, graphs={**program.module.graphs, "main": main})
    return replace(program, module=module, kernels=kernels)


class _ChainJoiner:
    """Walks the nodes of a model; `chain` collects kernels that may be joined."""

    def __init__(self, program: Program, target: Target, use_cache: bool) -> None:
        self.kernels = dict(program.kernels)
        self.target, self.use_cache = target, use_cache
        self.roots: dict[Value, Value] = {}  # views: the value that each reshape's result aliases
        self.weights: set[Value] = set()
        self.nodes: list[Node] = []
        self.chain: list[Member] = []
        self.views: list[Node] = []  # reshapes of the chain's results
        self.passed: list[Node] = []  # all nodes since the chain began, in order

    def take(self, node: Node) -> None:
        if node.op == "constant":
            self.weights.add(node.output)
            self.nodes.append(node)
            return
        if node.op == "reshape":
            (source,) = node.inputs
            assert source is not None
            self.roots[node.output] = self.root(source)
            produced = {value for member in self.chain for value in member.node.outputs}
            is_late = self.root(source) in produced
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
        """The kernel of a node as a stage; None if its blocks are not all resident at once."""
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
        """Replace the collected chain by a joined kernel, or emit its nodes unchanged."""
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
        """The chain with GEMVs and their producers first, all other kernels last."""
        needed: set[Value] = set()
        first: list[Member] = []
        for member in reversed(self.chain):
            if _is_gemv(member.kernel) or needed.intersection(member.node.outputs):
                first.append(member)
                needed.update(self.root(v) for v in member.node.inputs if v is not None)
        first.reverse()
        return [*first, *(member for member in self.chain if member not in first)]

    def _joined(self, members: list[Member]) -> tuple[Node, Kernel] | None:
        """The node and kernel of a joined chain; None if its stages need too much shared memory."""
        buffers: dict[Value, Buffer] = {}
        stages, barriers = [], []
        since_barrier: set[Value] = set()  # values produced since the last barrier
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
            barriers.append(bool(since_barrier.intersection(inputs)))
            since_barrier = {*(since_barrier if not barriers[-1] else ()), *member.node.outputs}
        produced = {value for member in members for value in member.node.outputs}
        arguments = [value for value in buffers if value not in produced]
        results = [value for value in buffers if value in produced]
        params = tuple(buffers[value] for value in (*arguments, *results))
        weights = tuple(at for at, value in enumerate(arguments) if value in self.weights)
        body = join_kernels(stages, barriers)
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
        node_attributes = tuple((key, attributes.get(key, value)) for key, value in last.attributes)
        node = replace(
            last, inputs=tuple(arguments), outputs=tuple(results), attributes=node_attributes
        )
        return node, kernel

    def _image(self, fn: Function, text: str) -> bytes:
        """The code of a chain, from the cache if possible."""
        key = cache_key(self.target, f"chain\n{text}")
        found = cache.try_read(key) if self.use_cache else None
        if found is None:
            found = pickle.dumps(device_code(fn, self.target))
            if self.use_cache:
                cache.write(key, found)
        return found


def _shared_bytes(body: Stmt) -> int:
    """Shared memory of all stages of a block; each buffer is aligned to a line."""
    allocs = [stmt.buffer for stmt in walk(body) if isinstance(stmt, Alloc)]
    size = 0
    for buffer in allocs:
        if buffer.memory == SHARED:
            count = math.prod(int(dim.value) for dim in buffer.shape if isinstance(dim, Const))
            size += -(-count * buffer.dtype.size_bytes // LINE_BYTES) * LINE_BYTES
    return size
