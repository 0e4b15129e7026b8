"""A miniature Tilewright.

A compiler for neural networks in one file: a graph, fusion, tensor expressions, schedules and LLVM.
It compiles a small network to correct native code that is not much slower than the real compiler's.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

# ## 1. The graph
#
# A node has an operator, inputs (other nodes) and a shape. It contains no closures.


@dataclass(eq=False)
class Node:
    op: str  # "input", "weight", "matmul", "add", "relu", "square"
    inputs: tuple[Node, ...]
    shape: tuple[int, ...]
    data: np.ndarray | None = None


def weight(data: np.ndarray) -> Node:
    return Node("weight", (), data.shape, np.ascontiguousarray(data, np.float32))


def apply(op: str, *inputs: Node) -> Node:
    return Node(op, inputs, (*inputs[0].shape[:-1], inputs[-1].shape[-1]))


def in_order(node: Node, found: dict[Node, None] | None = None) -> dict[Node, None]:
    found = {} if found is None else found  # each node after its inputs
    for each in node.inputs:
        in_order(each, found)
    found.setdefault(node)
    return found


# Every operator is defined in NumPy. So the graph has an interpreter, the reference for the rest.

MEANING: dict[str, Callable[..., np.ndarray]] = {
    "matmul": np.matmul,
    "add": np.add,
    "relu": lambda x: np.maximum(x, 0),
    "square": lambda x: x * x,
}


def interpret(result: Node, *given: np.ndarray) -> np.ndarray:
    values: dict[Node, np.ndarray] = {}
    inputs = iter(given)
    for node in in_order(result):
        if node.op == "input":
            values[node] = next(inputs)
        elif node.op == "weight":
            values[node] = node.data
        else:
            values[node] = MEANING[node.op](*(values[each] for each in node.inputs))
    return values[result]


# Here is our network: two hidden layers and a result.

rng = np.random.default_rng(0)
BATCH, SIZES = 64, (256, 480, 480, 96)


def network() -> Node:
    x = Node("input", (), (BATCH, SIZES[0]))
    for at, (rows, columns) in enumerate(itertools.pairwise(SIZES)):
        w = rng.standard_normal((rows, columns)) / rows**0.5
        x = apply("add", apply("matmul", x, weight(w)), weight(rng.standard_normal(columns)))
        if at < len(SIZES) - 2:
            x = apply("relu", x)
    return apply("square", x)


model = network()
print(" -> ".join(node.op for node in in_order(model) if node.op not in ("input", "weight")))

# ## 2. Fusion
#
# Going through memory costs more than an addition. A kernel is a matrix multiplication with all
# element-wise operators that follow it, as long as the intermediate values have no other users.

Group = list[Node]  # the first may be a matmul, the rest is elementwise; the last is the result


def operands(group: Group) -> list[Node]:
    reads = [each for node in group for each in node.inputs if each not in group]
    return list(dict.fromkeys(reads))


def fuse(result: Node) -> list[Group]:
    nodes = in_order(result)
    uses = {node: sum(node in other.inputs for other in nodes) for node in nodes}
    groups: list[Group] = []
    for node in nodes:
        if node.op in ("input", "weight"):
            continue
        before = next((group for group in groups if group[-1] is node.inputs[0]), None)
        if node.op == "matmul" or before is None or uses[before[-1]] > 1:
            groups.append(before := [])
        before.append(node)
    return groups


groups = fuse(model)
for group in groups:
    print(" + ".join(node.op for node in group))

# ## 3. Tensor expressions
#
# What a kernel computes, for one element: an expression of loads. An index is a linear combination of
# axes, represented as a mapping from axis to factor.


@dataclass(frozen=True)
class Axis:
    name: str
    extent: int
    kind: str = "serial"  # or "unroll", "vector"


Index = dict[Axis, int]  # axis -> stride, in elements


@dataclass(frozen=True, eq=False)
class Load:
    tensor: Node
    index: Index


@dataclass(frozen=True, eq=False)
class Apply:
    op: str
    operands: tuple[Load | Apply | str, ...]  # the string "sum" stands for the reduction


@dataclass(frozen=True, eq=False)
class Kernel:
    """out[i, j] = epilogue(sum over k of a * b), loops in this order."""

    axes: tuple[Axis, ...]
    reduced: Axis | None
    product: tuple[Load, Load] | None
    epilogue: Load | Apply | str
    out: Load


def describe(group: Group) -> Kernel:
    """The tensor expression of a group."""
    rows, columns = group[-1].shape
    i, j = Axis("i", rows), Axis("j", columns)
    at: Index = {i: columns, j: 1}
    values: dict[Node, Load | Apply | str] = {}
    reduced, product = None, None
    for node in operands(group):
        values[node] = Load(node, {j: 1} if len(node.shape) == 1 else at)  # a bias, or a matrix
    for node in group:
        if node.op == "matmul":
            a, b = node.inputs
            reduced = Axis("k", a.shape[1])
            product = Load(a, {i: a.shape[1], reduced: 1}), Load(b, {reduced: columns, j: 1})
            values[node] = "sum"
        else:
            values[node] = Apply(node.op, tuple(values[each] for each in node.inputs))
    axes = (i, j) if reduced is None else (i, j, reduced)
    return Kernel(axes, reduced, product, values[group[-1]], Load(group[-1], at))


# ## 4. Schedules
#
# A schedule changes the loops, never the expression. Two primitives suffice: `split` replaces an axis
# by two in every index, and `order` sets the order and kind of the loops. Loops inside the reduction
# are unrolled or vectorized: they form the register tile.


def split(kernel: Kernel, name: str, factor: int) -> Kernel:
    axis = next(each for each in kernel.axes if each.name == name)
    if axis.extent % factor:
        raise ValueError(f"{factor} does not divide {axis.extent}, the extent of {name}")
    outer, inner = Axis(f"{name}_o", axis.extent // factor), Axis(f"{name}_i", factor)
    axes = tuple(
        new for each in kernel.axes for new in ((outer, inner) if each is axis else (each,))
    )
    return _with_axes(kernel, axes, {axis: ((outer, factor), (inner, 1))})


def order(kernel: Kernel, *loops: str) -> Kernel:
    """Loops from the outermost, as "name" or "name:kind"."""
    named = {axis.name: axis for axis in kernel.axes}
    pairs = [(named[text.partition(":")[0]], text.partition(":")[2] or "serial") for text in loops]
    new = {axis: replace(axis, kind=kind) for axis, kind in pairs}
    return _with_axes(kernel, tuple(new.values()), {old: ((axis, 1),) for old, axis in new.items()})


def _with_axes(
    kernel: Kernel, axes: tuple[Axis, ...], changed: dict[Axis, tuple[tuple[Axis, int], ...]]
) -> Kernel:
    def load(of: Load) -> Load:
        index: Index = {}
        for axis, stride in of.index.items():
            for new, factor in changed.get(axis, ((axis, 1),)):
                index[new] = stride * factor
        return Load(of.tensor, index)

    def expr(of: Load | Apply | str) -> Load | Apply | str:
        if isinstance(of, Load):
            return load(of)
        return of if isinstance(of, str) else Apply(of.op, tuple(map(expr, of.operands)))

    reduced = kernel.reduced
    if reduced in changed:
        ((reduced, _),) = changed[reduced]  # it stays whole in the miniature
    product = kernel.product and (load(kernel.product[0]), load(kernel.product[1]))
    return Kernel(axes, reduced, product, expr(kernel.epilogue), load(kernel.out))


# The default schedule is the register tile of [the first tutorial](matmul.md): rows by vectors of
# columns, as many as registers hold.

FEATURES = llvm.get_host_cpu_features()
LANES = next((n for name, n in (("avx512f", 16), ("avx", 8)) if FEATURES.get(name)), 4)
ROWS = 4 if LANES == 8 else 8  # AVX has 16 registers, the others have 32


def divisor(extent: int, wanted: int) -> int:
    return next(each for each in range(wanted, 0, -1) if extent % each == 0)


def schedule(kernel: Kernel) -> Kernel:
    i, j, *rest = kernel.axes
    if not rest or j.extent % LANES:
        return kernel
    vectors = divisor(j.extent // LANES, 3)
    kernel = split(split(kernel, "i", divisor(i.extent, ROWS)), "j", vectors * LANES)
    kernel = split(kernel, "j_i", LANES)
    return order(kernel, "j_o", "i_o", "k", "i_i:unroll", "j_i_o:unroll", "j_i_i:vector")


print([f"{axis.name}: {axis.extent} {axis.kind}" for axis in schedule(describe(groups[0])).axes])

# ## 5. LLVM
#
# Loops become basic blocks, unrolled axes become Python loops at compile time, the vector axis a vector
# type. The accumulators of a tile are local variables, which LLVM keeps in registers.

F32, I64 = ir.FloatType(), ir.IntType(64)
FAST = ("contract",)  # a multiplication and an addition may be one instruction


class Emitter:
    def __init__(self, kernel: Kernel, function: ir.Function, operands: list[Node]) -> None:
        self.kernel = kernel
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self.pointers = dict(zip([*operands, kernel.out.tensor], function.args, strict=True))
        inside = kernel.axes.index(kernel.reduced) if kernel.reduced else len(kernel.axes)
        self.outer, tile = kernel.axes[:inside], kernel.axes[inside + 1 :]
        self.lanes = next((axis for axis in tile if axis.kind == "vector"), None)
        self.unrolled = [axis for axis in tile if axis is not self.lanes]
        self.type = ir.VectorType(F32, self.lanes.extent) if self.lanes else F32
        self.zero = ir.Constant(self.type, [0.0] * self.lanes.extent if self.lanes else 0.0)
        self.at: dict[Axis, ir.Value] = {}

    def emit(self) -> None:
        self.sums = {point: self.b.alloca(self.type) for point in self.points()}
        self.loops(self.outer, self.body)
        self.b.ret_void()

    def points(self) -> Iterator[tuple[int, ...]]:
        """The places of the tile, a vector as one; `at` knows where we are."""
        for point in np.ndindex(*(axis.extent for axis in self.unrolled)):
            self.at |= {
                axis: ir.Constant(I64, n) for axis, n in zip(self.unrolled, point, strict=True)
            }
            yield point

    def body(self) -> None:
        if self.kernel.reduced:
            for variable in self.sums.values():
                self.b.store(self.zero, variable)
            self.loops((self.kernel.reduced,), self.multiply)
        for point in self.points():
            self.b.store(self.value(self.kernel.epilogue, point), self.address(self.kernel.out), 4)

    def multiply(self) -> None:
        for point in self.points():
            a, b = (self.load(of) for of in self.kernel.product)
            total = self.b.load(self.sums[point], typ=self.type)
            total = self.b.fadd(total, self.b.fmul(a, b, flags=FAST), flags=FAST)
            self.b.store(total, self.sums[point])

    def loops(self, axes: tuple[Axis, ...], body: Callable[[], None]) -> None:
        """A nest of serial loops around a body."""
        if not axes:
            body()
            return
        head, after = (self.b.append_basic_block(name) for name in ("loop", "after"))
        before = self.b.block
        self.b.branch(head)
        self.b.position_at_end(head)
        counter = self.at[axes[0]] = self.b.phi(I64)
        counter.add_incoming(ir.Constant(I64, 0), before)
        self.loops(axes[1:], body)
        following = self.b.add(counter, ir.Constant(I64, 1))
        counter.add_incoming(following, self.b.block)
        more = self.b.icmp_signed("<", following, ir.Constant(I64, axes[0].extent))
        self.b.cbranch(more, head, after)
        self.b.position_at_end(after)

    def address(self, of: Load) -> ir.Value:
        offset: ir.Value = ir.Constant(I64, 0)
        for axis, stride in of.index.items():
            if axis is not self.lanes:
                offset = self.b.add(offset, self.b.mul(self.at[axis], ir.Constant(I64, stride)))
        return self.b.gep(self.pointers[of.tensor], [offset], source_etype=F32)

    def load(self, of: Load) -> ir.Value:
        """A vector where the vector axis moves by one; one number for all lanes where it does not."""
        if self.lanes is None or of.index.get(self.lanes, 0) == 1:
            return self.b.load(self.address(of), typ=self.type, align=4)
        undefined = ir.Constant(self.type, ir.Undefined)
        one = self.b.load(self.address(of), typ=F32)
        alone = self.b.insert_element(undefined, one, ir.Constant(I64, 0))
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes.extent), None)
        return self.b.shuffle_vector(alone, undefined, everywhere)

    def value(self, of: Load | Apply | str, point: tuple[int, ...]) -> ir.Value:
        if isinstance(of, Load):
            return self.load(of)
        if isinstance(of, str):
            return self.b.load(self.sums[point], typ=self.type)
        x, *others = (self.value(each, point) for each in of.operands)
        if of.op == "add":
            return self.b.fadd(x, *others, flags=FAST)
        if of.op == "square":
            return self.b.fmul(x, x)
        return self.b.select(self.b.fcmp_ordered(">", x, self.zero), x, self.zero)


# ## 6. The driver
#
# One LLVM module for all kernels, optimized and loaded into this process; memory for intermediate
# values; and a function that calls the kernels in order.

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()


class Compiled:
    def __init__(self, result: Node) -> None:
        self.result, self.groups = result, fuse(result)
        module = ir.Module("miniature")
        for at, group in enumerate(self.groups):
            kind = ir.FunctionType(ir.VoidType(), [ir.PointerType()] * (len(operands(group)) + 1))
            function = ir.Function(module, kind, f"kernel{at}")
            for argument in function.args:
                argument.add_attribute("noalias")
            Emitter(schedule(describe(group)), function, operands(group)).emit()
        here = llvm.Target.from_default_triple()
        machine = here.create_target_machine(llvm.get_host_cpu_name(), FEATURES.flatten(), 3)
        parsed = llvm.parse_assembly(str(module))
        passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
        passes.getModulePassManager().run(parsed, passes)
        self.engine = llvm.create_mcjit_compiler(parsed, machine)
        self.values = {
            node: np.empty(node.shape, np.float32) if node.data is None else node.data
            for node in in_order(result)
        }
        self.calls = [self._bound(f"kernel{at}", group) for at, group in enumerate(self.groups)]

    def _bound(self, name: str, group: Group) -> tuple[Callable[..., None], list[int]]:
        nodes = [*operands(group), group[-1]]
        pointers = [self.values[node].ctypes.data for node in nodes]
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(nodes))
        return kind(self.engine.get_function_address(name)), pointers

    def __call__(self, x: np.ndarray) -> np.ndarray:
        (given,) = (node for node in self.values if node.op == "input")
        self.values[given][...] = x
        for kernel, pointers in self.calls:
            kernel(*pointers)
        return self.values[self.result]


compiled = Compiled(model)
x = rng.standard_normal((BATCH, SIZES[0]), dtype=np.float32)
np.testing.assert_allclose(compiled(x), interpret(model, x), rtol=1e-3, atol=1e-3)
print("agrees with the interpreter")

# [The miniature, measured](miniature_measured.md) runs the same network through `tw.compile`.
