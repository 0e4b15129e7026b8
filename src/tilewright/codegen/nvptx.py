"""NVIDIA GPUs: functions of stage `device` as PTX kernels.

Each outermost thread loop is a kernel. Its loops over blockIdx and threadIdx become the launch's
grid and block; their variables are read from special registers. Buffers in `shared` memory are
module globals, `local` ones live in registers. Code between kernels runs on the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from types import MappingProxyType
from typing import TypeGuard

from tilewright import sym
from tilewright.base.dtype import BF16, F32, F64, DType
from tilewright.base.errors import Unsupported
from tilewright.base.multiprocessor import WARP, multiprocessor_of
from tilewright.base.target import Target
from tilewright.codegen import (
    ampere,
    clusters,
    hardware,
    hopper,
    hopper_attention,
    llvm,
    predicated,
    streams,
    wgmma,
)
from tilewright.codegen.builder import ModuleText, Value, i1, i64
from tilewright.codegen.calls import RULES
from tilewright.codegen.column_order import reordered
from tilewright.codegen.emitter import Emitter, flat_index
from tilewright.codegen.facts import as_ramp, split_sum, without_constant
from tilewright.codegen.handlers import Emitting, Handlers
from tilewright.codegen.index_ranges import fits, index_ranges, sizes_in_memory
from tilewright.codegen.launches import Kernel, Step, kernels_of, steps_of
from tilewright.codegen.machine import Machine
from tilewright.codegen.math.by_exp2 import FLUSHED_POWER, POWER, RECIPROCAL, join_calls
from tilewright.codegen.memory import Memory, Place
from tilewright.codegen.types import memory_type, register_type
from tilewright.intrin.cluster import CLUSTER
from tilewright.intrin.hopper import HELD, LEFT, PAIR, ROW, TILE, WIDE
from tilewright.intrin.wgmma import SUM
from tilewright.sym import ONE, Const, Expr, Var
from tilewright.tensor import ir
from tilewright.tensor.assembly import assembly_of
from tilewright.tensor.clusters import cluster_loop
from tilewright.tensor.dependent_launch import WAIT, weights_of
from tilewright.tensor.ir import RESIDENT, Buffer, Call, For, Function, Stmt, annotation
from tilewright.tensor.join_kernels import GRID_BARRIER
from tilewright.tensor.passes.accesses import reads_of, writes_of
from tilewright.tensor.passes.split_stream_k import WAIT as STREAM_WAIT
from tilewright.tensor.scopes import ARRIVALS, LOCAL, SHARED, Owner
from tilewright.tensor.visit import exprs, rewrite, walk

TRIPLE = "nvptx64-nvidia-cuda"
AXES = ("x", "y", "z")
REGISTERS = {"blockIdx": "ctaid", "threadIdx": "tid"}
GLOBAL = "ptr addrspace(1)"
BLOCK_SHARED_BYTES = 1024  # reserved by the system per block
ROUNDED = "rounded_bf16"  # f32 rounded to the nearest bf16
ARGUMENT_ALIGN = 16  # alignment of array arguments, in bytes
# Resident threads per multiprocessor to allow, with 128 registers each: for 2048 of them, ptxas
# would serialize loads.
READY_THREADS = 512
# CUDA's limits on grids and blocks along each axis.
LAUNCH_LIMITS = {
    **dict.fromkeys(("blockIdx.y", "blockIdx.z"), 65535),
    **dict.fromkeys(("threadIdx.x", "threadIdx.y"), 1024),
    "blockIdx.x": (1 << 31) - 1,
    "threadIdx.z": 64,
}


@dataclass(frozen=True)
class DeviceCode:
    """PTX, and the host's steps around its kernels."""

    ptx: str
    buffers: tuple[Buffer, ...]  # the function's parameters
    scalars: tuple[Var, ...]
    steps: tuple[Step, ...]

    @property
    def kernels(self) -> list[Kernel]:
        return list(kernels_of(self.steps))


def machine(target: Target) -> Machine:
    """The GPU as described to LLVM."""
    return Machine(
        triple=TRIPLE,
        cpu=target.mcpu or "sm_90a",
        features="+ptx83",
        relocation="default",
        narrows_indices=True,
        converts_f16=True,
        converts_bf16=True,
        splits_words=True,
        raises_two=True,
        vector_bits=target.vector_bits,
        vector_registers=target.vector_registers,
    )


def emit_kernels(fn: Function, target: Target) -> tuple[str, tuple[Step, ...]]:
    """The LLVM IR of a device function's kernels, and how to launch them."""
    gpu = machine(target)
    if fn.stage != ir.DEVICE:
        raise Unsupported("TW3050", f"@{fn.name} is of stage {fn.stage}, expected device", fn.loc)
    module = ModuleText(gpu.triple, llvm.data_layout(gpu), "nounwind")
    made: list[Kernel] = []

    def emit(loop: For) -> Kernel:
        kernel = _emit_kernel(module, target, fn, loop, f"{fn.name}_{len(made)}")
        made.append(_set_apart(kernel, loop, target))
        return made[-1]

    steps = steps_of(_join_roundings(join_calls(fn.body)), emit)
    return module.text(), steps


def device_code(fn: Function, target: str | Target = "cuda") -> DeviceCode:
    """PTX of a device function, and the host's steps around its kernels."""
    chosen = Target.parse(target)
    gpu = machine(chosen)
    text, steps = emit_kernels(fn, chosen)
    module = llvm.parse(text)
    llvm.optimize(module, gpu, slp=True)
    scalars = tuple(param for param in fn.params if isinstance(param, Var))
    return DeviceCode(llvm.to_assembly(module, gpu), fn.buffers, scalars, steps)


def _emit_kernel(module: ModuleText, target: Target, fn: Function, loop: For, name: str) -> Kernel:
    waits, meets = (any(node is each for node in exprs(loop)) for each in (WAIT, GRID_BARRIER))
    shares = any(isinstance(node, Call) and node.op == STREAM_WAIT for node in exprs(loop))
    buffers, scalars = _kernel_buffers(fn, loop, meets), _free_scalars(loop)
    written, maps = _written(loop, buffers), hopper.tile_maps(loop)
    params = []
    for buffer in buffers:
        access = "" if buffer in written else " readonly"
        params.append((f"ptr noalias align {ARGUMENT_ALIGN}{access}", buffer.name))
    params += [(register_type(var.dtype), var.name) for var in scalars]
    params += [(hopper.MAP_TYPE, f"map_{made.buffer.name}") for made in maps]
    extents = _extents(loop)
    bounds = _launch_bounds(loop, extents)
    with module.function("void", name, params, linkage="ptx_kernel", suffix=bounds) as (b, values):
        emitter = DeviceEmitter(module, machine(target), b, name, HANDLERS)
        _take_facts(emitter, fn, loop)
        for buffer, pointer in zip(buffers, values, strict=False):
            emitter.memories[buffer] = Memory(pointer, ARGUMENT_ALIGN)
        weights = weights_of(fn)
        emitter.awaited = tuple(buffer for buffer in buffers if buffer not in weights)
        _read_early(emitter, [buffer for buffer in buffers if buffer in weights], waits, meets)
        emitter.uniform = frozenset(scalars)
        for var, value in zip(scalars, values[len(buffers) :], strict=False):
            emitter.bind(var, value)
        handed = values[len(values) - len(maps) :]
        emitter.tile_maps = dict(zip(maps, handed, strict=True))
        emitter.stmt(loop)
        b.ret()
    _check_shared(emitter, loop, target)
    return Kernel(
        name,
        buffers,
        scalars,
        _along_axes("blockIdx", extents),
        _along_axes("threadIdx", extents),
        emitter.tile_bytes,
        maps,
        tuple([buffer for buffer in buffers if buffer in written]),
        can_start_early=waits,
        is_together=meets or shares,
        multiplies=ampere.uses_mma(loop) or wgmma.uses_wgmma(loop) or _adds_products(loop),
    )


def _kernel_buffers(fn: Function, loop: For, meets: bool) -> tuple[Buffer, ...]:
    """The buffers passed to a kernel; where its blocks meet, also how many have arrived."""
    buffers = _outer_buffers(fn, loop)
    if not meets:
        return buffers
    made = [stmt.buffer for stmt in walk(fn.body) if isinstance(stmt, ir.Alloc)]
    return (*buffers, *(buffer for buffer in made if buffer.memory == ARRIVALS))


def _written(loop: For, buffers: Sequence[Buffer]) -> set[Buffer]:
    """The buffers that a kernel may write: any whose address it takes is one."""
    written = {buffer for stmt in walk(loop) for buffer, _ in writes_of(stmt)}
    written |= {node.buffer for node in exprs(loop) if isinstance(node, ir.Address)}
    return written | {buffer for buffer in buffers if buffer.memory == ARRIVALS}


def _take_facts(emitter: DeviceEmitter, fn: Function, loop: For) -> None:
    """What the emitter has to know of a whole kernel."""
    emitter.assembly = assembly_of(fn)
    emitter.cluster = _cluster(loop)
    emitter.reordered = reordered(loop)
    emitter.branches = predicated.branches(loop)
    emitter.lets = {stmt.var: stmt.value for stmt in walk(loop) if isinstance(stmt, ir.Let)}
    emitter.ranges = index_ranges(loop, sizes_in_memory(fn), LAUNCH_LIMITS)


def _along_axes(level: str, extents: dict[str, Expr]) -> tuple[Expr, Expr, Expr]:
    """The extents of a grid or block."""
    x, y, z = (extents.get(f"{level}.{axis}", ONE) for axis in AXES)
    return x, y, z


def _adds_products(loop: For) -> bool:
    """Whether the kernel accumulates products."""
    return any(
        isinstance(stmt, ir.Store)
        and isinstance(stmt.value, sym.Add)
        and any(isinstance(part, sym.Mul) for part in (stmt.value.a, stmt.value.b))
        and any(
            isinstance(part, ir.Load) and part.buffer is stmt.buffer
            for part in (stmt.value.a, stmt.value.b)
        )
        for stmt in walk(loop)
    )


def _check_shared(emitter: DeviceEmitter, loop: For, target: Target) -> None:
    """Check shared memory against the block limit: the driver's error would name no buffer."""
    static, tiles = emitter.static_bytes, emitter.tile_bytes
    most = multiprocessor_of(target).static_shared_bytes
    if static > most or static + tiles > target.shared_bytes:
        raise Unsupported(
            "TW2219",
            f"{emitter.name} takes {static} bytes of shared memory, and {tiles} for tiles, of "
            f"{most}, and {target.shared_bytes} together",
            loop.loc,
            help="keep smaller tiles, or fewer at a time",
        )


def _set_apart(kernel: Kernel, loop: For, target: Target) -> Kernel:
    """Pad the shared memory of a kernel with bulk copies and at most one block per multiprocessor,
    so that each block has a multiprocessor to itself even with early launches; unless registers are
    divided to make room for others."""
    counts = [int(dim.value) for dim in kernel.grid if isinstance(dim, Const)]
    is_one_wave = len(counts) == len(AXES) and math.prod(counts) <= target.cores
    if not (kernel.can_start_early and kernel.maps and is_one_wave):
        return kernel
    if hopper.resident_blocks(loop, _threads(_extents(loop))) > 1:
        return kernel
    shared = max(kernel.shared_bytes, target.shared_bytes // 2 + BLOCK_SHARED_BYTES)
    return replace(kernel, shared_bytes=shared)


def _launch_bounds(loop: For, extents: dict[str, Expr]) -> str:
    """Attributes of a kernel: threads per block, blocks per multiprocessor, blocks per cluster."""
    threads = _block_threads(extents)
    bounds = "" if threads is None else f' "nvvm.maxntid"="{threads}"'
    if ampere.uses_mma(loop):  # accumulators of warps need many registers
        bounds += ' "nvvm.minctasm"="1"'
    elif hopper.gives_registers(loop):
        resident = hopper.resident_blocks(loop, _threads(extents))
        bounds += f' "nvvm.minctasm"="{resident}"'
    elif threads is not None:
        asked = annotation(loop, RESIDENT)
        whole = -(-threads // WARP) * WARP
        resident = asked * threads // whole if isinstance(asked, int) else READY_THREADS // whole
        bounds += f' "nvvm.minctasm"="{max(1, resident)}"'
    cluster = _cluster(loop)
    return bounds + (f' "nvvm.cluster_dim"="1,{cluster},1"' if cluster > 1 else "")


def _block_threads(extents: dict[str, Expr]) -> int | None:
    """Threads per block, if they are static."""
    axes = [extent for extent in _along_axes("threadIdx", extents) if isinstance(extent, Const)]
    return math.prod(int(axis.value) for axis in axes) if len(axes) == len(AXES) else None


def _threads(extents: dict[str, Expr]) -> int:
    """Threads per block, which are static."""
    return math.prod(hopper.known_number(extents.get(f"threadIdx.{axis}", ONE)) for axis in AXES)


def _extents(loop: For) -> dict[str, Expr]:
    return {
        stmt.thread: stmt.extent
        for stmt in walk(loop)
        if isinstance(stmt, For) and stmt.kind == ir.THREAD
    }


def _cluster(loop: For) -> int:
    """Blocks per cluster."""
    along = cluster_loop(loop)
    return 1 if along is None else hopper.known_number(along.extent)


def _outer_buffers(fn: Function, root: For) -> tuple[Buffer, ...]:
    """The buffers passed to a kernel: parameters first, then memory shared between kernels."""
    used: dict[Buffer, None] = {}
    own: set[Buffer] = set()
    for stmt in walk(root):
        if isinstance(stmt, ir.Alloc):
            own.add(stmt.buffer)
        used.update((buffer, None) for buffer, _ in writes_of(stmt))
        used.update((buffer, None) for buffer, *_ in reads_of(stmt))
    used.update((node.buffer, None) for node in exprs(root) if isinstance(node, ir.Address))
    given = [buffer for buffer in fn.buffers if buffer in used]
    return (*given, *(b for b in used if b not in own and b not in fn.buffers))


def _free_scalars(root: Stmt) -> tuple[Var, ...]:
    bound: set[Var] = set()
    for stmt in walk(root):
        if isinstance(stmt, (For, ir.Let)):
            bound.add(stmt.var)
    found = {node: None for node in exprs(root) if isinstance(node, Var) and node not in bound}
    return tuple(found)


# Pure arithmetic: nodes that read no memory.
UNIFORM = (Const, sym.Add, sym.Sub, sym.Mul, sym.FloorDiv, sym.FloorMod, sym.Min, sym.Max)


class DeviceEmitter(Emitter):
    """Writes a kernel: threads instead of loops, shared memory, barriers."""

    lets: Mapping[Var, Expr] = MappingProxyType({})  # of the kernel
    lane: Var | None = None  # the index along threadIdx.x
    uniform: frozenset[Var] = frozenset()  # variables that are uniform in a block
    holds: tuple[Expr, ...] = ()  # enclosing conditions of a statement
    predicate: Value | None = None  # a condition on loads
    branches: frozenset[Expr] = frozenset()  # conditions of more than stores

    def stmt(self, stmt: Stmt) -> None:
        if isinstance(stmt, For) and stmt.kind == ir.THREAD:
            if stmt.thread == "threadIdx.x":
                self.lane = stmt.var
            if stmt.thread.startswith("blockIdx"):
                self.uniform |= {stmt.var}
            self.variables[stmt.var] = self._thread_index(stmt)
            self.non_negative[stmt.var] = None
            self.stmt(stmt.body)
            return
        if isinstance(stmt, ir.Seq):
            stmt = ir.Seq(hopper.joined(stmt.stmts))
        super().stmt(stmt)

    def branch(self, stmt: ir.If) -> None:
        """Skip code that no thread reaches: its register operands would have no owner."""
        if self.lane is None or stmt.otherwise is not None:
            super().branch(stmt)
            return
        cond, outer = self._told(stmt.cond), self.holds
        if sym.prove(sym.logical_not(cond), self.ranges or sym.EMPTY):
            return
        guarded = None if stmt.cond in self.branches else predicated.guarded_store(stmt)
        if guarded is not None and self._store_if(*guarded):
            return
        self.holds = (*outer, cond)
        super().branch(stmt)
        self.holds = outer

    def _told(self, expr: Expr) -> Expr:
        """An expression with the kernel's lets substituted."""
        while any(isinstance(node, Var) and node in self.lets for node in sym.walk(expr)):
            expr = sym.substitute(expr, self.lets)
        return expr

    def allocate(self, stmt: ir.Alloc) -> None:
        """Refuse buffers larger than the stack: there is no runtime allocator."""
        size = stmt.buffer.constant_bytes
        if size is None or not self._fits_stack(stmt.buffer, size):
            raise Unsupported(
                "TW2219",
                f"%{stmt.buffer.name} takes {'a dynamic number of' if size is None else size} "
                "bytes of a thread's own memory",
                stmt.loc,
                help="keep fewer of its elements at a time, or put it into shared memory",
            )
        super().allocate(stmt)

    def _thread_index(self, loop: For) -> Value:
        level, axis = loop.thread.split(".")
        name = f"llvm.nvvm.read.ptx.sreg.{REGISTERS[level]}.{axis}"
        index = self.b.call(name, "i32")
        if loop.start is sym.ZERO:
            return index
        return self.b.op("add nsw", self.b.convert("zext", index, "i64"), self.expr(loop.start))

    def _place(self, buffer: Buffer, index: tuple[Expr, ...]) -> tuple[Place, int]:
        """Accumulators of a warpgroup are in its threads' registers: map the index to one."""
        if buffer.memory.name not in HELD or self.lane is None:
            return super()._place(buffer, index)
        flat = flat_index(buffer, index)
        lanes = flat.dtype.lanes
        ramp = as_ramp(flat) if lanes > 1 else (flat, sym.ONE)
        base, stride = (flat, sym.ZERO) if ramp is None else ramp
        base = self._told(base)
        register = hopper.place_of(buffer, base, self.lane, self.holds)
        is_run = stride is sym.ONE or buffer.memory == ROW
        if not isinstance(register, Const) or not is_run:
            raise Unsupported(
                "TW3054",
                f"the register of %{buffer.name}[{base}] is not known when compiling",
                help="unroll the loops over a thread's rows and runs",
            )
        at = int(register.value)
        apart = 0 if buffer.memory == ROW else 1  # per-row values are the same in all columns
        return Place(self.memories[buffer], i64(at), at or lanes, buffer.dtype, apart), lanes

    def _run(self, memory: Memory, index: Expr, of: DType) -> Place:
        """Add the block-uniform part of an index to the pointer, in uniform registers. What remains
        is a 32-bit offset per thread that accesses to several buffers share: one register, instead
        of two per buffer."""
        near, beyond = without_constant(index)
        common, own = split_sum(near, self._is_uniform)
        if sym.ZERO in (common, own):
            return super()._run(memory, index, of)
        element, start = memory_type(of), self.index(common)  # it may be outside of the buffer
        pointer = self.b.pure("ptr", f"getelementptr {element}, {memory.pointer}, {start}")
        memory = replace(memory, pointer=pointer)
        assert self.ranges is not None
        is_short = self.is_natural(own) and fits(sym.mul(own, of.size_bytes), self.ranges)
        return Place(memory, self.index(own), 1, of, beyond=beyond, is_short=is_short)

    def _is_uniform(self, expr: Expr) -> bool:
        """Whether an index is block-uniform."""
        nodes = sym.walk(self._told(expr))
        return all(
            node in self.uniform if isinstance(node, Var) else isinstance(node, UNIFORM)
            for node in nodes
        )

    def _guarded(self, cond: Expr, a: Expr, b: Expr) -> Value:
        """Predicate loads where there are few: all of them are in flight together then."""
        if cond.dtype.lanes > 1 or not predicated.may_predicate(a, b):
            return super()._guarded(cond, a, b)
        test, outer = self.expr(cond), self.predicate
        values = []
        for arm, own in ((a, test), (b, self.b.op("xor", test, i1(True)))):
            self.predicate = own if outer is None else self.b.op("and", outer, own)
            values.append(self._spread(self._apart(arm), max(a.dtype.lanes, b.dtype.lanes)))
        self.predicate = outer
        if predicated.is_zero(b) and predicated.is_zero_unloaded(a):
            return values[0]
        return self.b.select(test, *values)

    def _store_if(self, cond: Expr, store: ir.Store) -> bool:
        """A guarded store as one instruction, of a value that every thread computes. Not where an
        access takes several."""
        loads = [node for node in sym.walk(store.value) if self._is_of_device(node)]
        place, lanes = self._place(store.buffer, store.index)
        places = [self._place(load.buffer, load.index) for load in loads]
        if not all(starmap(predicated.is_single, [(place, lanes), *places])):
            return False
        test, outer = self.expr(cond), self.predicate
        self.predicate = test if outer is None else self.b.op("and", outer, test)
        value = self._spread(self._apart(store.value), lanes)
        self.predicate = outer
        predicated.store_if(self.access, place, lanes, value, test)
        return True

    def _is_of_device(self, node: Expr) -> TypeGuard[ir.Load]:
        return isinstance(node, ir.Load) and node.buffer.memory.owner is Owner.DEVICE

    def _load(self, node: Expr) -> Value:
        if self.predicate is None or not self._is_of_device(node):
            return super()._load(node)
        place, lanes = self._place(node.buffer, node.index)
        loaded = predicated.load_if(self.access, place, lanes, self.predicate)
        if loaded is not None:
            return loaded
        with self.b.branch(self.predicate) as (then, otherwise):
            with then:
                loaded = self.access.load(place, lanes)
            with otherwise:
                pass
        nothing = Value(loaded.type, "zeroinitializer")
        return self.b.phi((loaded, then.end), (nothing, otherwise.end))

    def fail(self, code: Value) -> None:
        """Kernels cannot report errors: the host checks whatever can fail."""
        self.b.ret()


# --------------------------------------------------------------------------- handlers


def _barrier(e: Emitting, node: Call, is_statement: bool) -> Value:
    return e.b.call("llvm.nvvm.barrier.cta.sync.aligned.all", "void", Value("i32", "0"))


def _grid_wait(e: Emitting, node: Call, is_statement: bool) -> Value:
    """Wait for preceding kernels. Memory gets addresses that are new to LLVM, which would otherwise
    hoist loads of memory that nothing here writes, and use the non-coherent cache."""
    e.b.line('call void asm sideeffect "griddepcontrol.wait;", "~{memory}"() convergent')
    _renew(e, e.awaited)
    e.memories.update(e.weights)
    return Value("void", "")


def _grid_barrier(e: Emitting, node: Call, is_statement: bool) -> Value:
    """A grid barrier: every block arrives once, and continues when a round is complete. The launch
    is cooperative, so all blocks are resident."""
    (arrived,) = [memory for buffer, memory in e.memories.items() if buffer.memory == ARRIVALS]
    b = e.b
    _barrier(e, node, is_statement)
    thread = b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32")
    with b.when(b.compare("icmp eq", thread, Value("i32", "0"))):
        here = b.value(GLOBAL, f"addrspacecast {arrived.pointer} to {GLOBAL}")
        asked = 'asm sideeffect "atom.add.acq_rel.gpu.global.u64 $0, [$1], 1;", "=l,l,~{memory}"'
        before = b.value("i64", f"call i64 {asked}({here})")
        grid = b.convert("zext", b.call("llvm.nvvm.read.ptx.sreg.nctaid.x", "i32"), "i64")
        rounds = b.op("add", b.op("udiv", before, grid), i64(1))
        wanted = b.op("mul", rounds, grid)

        def is_short() -> Value:
            seen = 'asm sideeffect "ld.acquire.gpu.global.u64 $0, [$1];", "=l,l,~{memory}"'
            return b.compare("icmp ult", b.value("i64", f"call i64 {seen}({here})"), wanted)

        with b.repeat(is_short):
            pass
    _barrier(e, node, is_statement)
    _renew(e, e.awaited)
    return Value("void", "")


def _read_early(e: Emitting, weights: Sequence[Buffer], waits: bool, meets: bool) -> None:
    """Loads prefetched before a grid wait do not use the non-coherent cache: ptxas would move them
    behind the wait. After it, and without grid barriers, they may."""
    if waits and not meets:
        e.weights.update((buffer, e.memories[buffer]) for buffer in weights)
    if waits or meets:
        _renew(e, weights)


def _renew(e: Emitting, buffers: Sequence[Buffer]) -> None:
    """Give memory addresses that are new to LLVM: others may have written it."""
    for buffer in buffers:
        memory = e.memories[buffer]
        near = e.b.value(GLOBAL, f"addrspacecast {memory.pointer} to {GLOBAL}")
        new = e.b.value(GLOBAL, f'call {GLOBAL} asm sideeffect "", "=l,0"({near})')
        pointer = e.b.value("ptr", f"addrspacecast {new} to ptr")
        e.memories[buffer] = replace(memory, pointer=pointer)


def _grid_launch(e: Emitting, node: Call, is_statement: bool) -> Value:
    return e.b.call("llvm.nvvm.griddepcontrol.launch.dependents", "void")


def _prefetch(e: Emitting, node: Call, is_statement: bool) -> Value:
    """Prefetch to L2, in assembly: LLVM's intrinsic is refused for processors before sm_90."""
    (place,) = node.args
    assert isinstance(place, ir.Address)
    there = e.b.value(GLOBAL, f"addrspacecast {e.pointer(place)} to {GLOBAL}")
    e.b.line(f'call void asm sideeffect "prefetch.global.L2 [$0];", "l"({there})')
    return Value("void", "")


def _by_instruction(e: Emitting, node: Call, is_statement: bool) -> Value:
    """An approximate f32 instruction, lane by lane. None branches to a slow path, which ptxas would
    move no loads across; the inverse square root is accurate to 2**-22.9."""
    given, of = e.expr(node.args[0]), node.dtype
    if of.scalar is F64:
        return RULES[node.op](e.arith, of, of, (given,))
    asked = f'asm "{INSTRUCTIONS[node.op]} $0, $1;", "=f,f"'

    def op(x: Value) -> Value:
        if x.lanes == 1:
            return e.b.value("float", f"call float {asked}({x})")
        result = Value(x.type, "undef")
        for at in range(x.lanes):
            made = e.b.value("float", f"call float {asked}({e.b.extract(x, at)})")
            result = e.b.value(x.type, f"insertelement {result}, {made}, i32 {at}")
        return result

    return e.arith.in_float(of, op, given)


INSTRUCTIONS = {
    POWER: "ex2.approx.f32",
    FLUSHED_POWER: "ex2.approx.ftz.f32",
    RECIPROCAL: "rcp.approx.ftz.f32",
    "rsqrt": "rsqrt.approx.f32",
}


def _join_roundings(body: Stmt) -> Stmt:
    """Merge casts from f32 to bf16 and back into one call."""

    def rule(expr: Expr) -> Expr:
        if not isinstance(expr, sym.Cast) or not isinstance(expr.value, sym.Cast):
            return expr
        inner, given = expr.value, expr.value.value
        is_rounding = expr.dtype.scalar is F32 and inner.dtype.scalar is BF16
        if not is_rounding or given.dtype is not expr.dtype:
            return expr
        return Call(ROUNDED, (given,), expr.dtype)

    made = rewrite(body, None, rule)
    assert made is not None
    return made


def _rounded(e: Emitting, node: Call, is_statement: bool) -> Value:
    """Rounding to bf16 lane by lane: the upper half of a packed pair whose other half is 0 is an
    f32."""
    given = e.expr(node.args[0])

    def one(value: Value) -> Value:
        pair = e.b.call("llvm.nvvm.ff2bf16x2.rn", "<2 x bfloat>", value, Value("float", "0.0"))
        return e.b.convert("bitcast", pair, "float")

    if node.dtype.lanes == 1:
        return one(given)
    result = Value(given.type, "undef")
    for at in range(node.dtype.lanes):
        lane = one(e.b.extract(given, at))
        result = e.b.value(given.type, f"insertelement {result}, {lane}, i32 {at}")
    return result


def _elements(stmt: ir.Alloc) -> int:
    """The elements of a buffer of static size."""
    count = 1
    for dim in stmt.buffer.shape:
        size = sym.simplify(dim)
        if not isinstance(size, Const):
            name = f"{stmt.buffer.scope} %{stmt.buffer.name}"
            raise Unsupported("TW3053", f"{name} has the symbolic size {size}", stmt.loc)
        count *= int(size.value)
    return count


def _local(e: Emitting, stmt: ir.Alloc) -> None:
    e.allocate(stmt)


def _shared(e: Emitting, stmt: ir.Alloc) -> None:
    buffer, count = stmt.buffer, _elements(stmt)
    align = buffer.memory.alignment_bytes
    e.static_bytes += -(-count * buffer.dtype.size_bytes // align) * align
    name = f"{e.name}.{buffer.name}.{len(e.module.global_lines)}"
    e.module.global_lines.append(
        f"@{name} = internal addrspace(3) global "
        f"[{count} x {memory_type(buffer.dtype)}] undef, align {align}"
    )
    pointer = e.b.value("ptr", f"addrspacecast ptr addrspace(3) @{name} to ptr", hint=buffer.name)
    e.memories[buffer] = Memory(pointer, align)
    e.stmt(stmt.body)


def _sum(e: Emitting, stmt: ir.Alloc) -> None:
    """Accumulators: each thread of a warpgroup holds its part of every tile."""
    part = f"[{_elements(stmt) // wgmma.THREADS} x float]"
    pointer = e.b.alloca(part, align=SUM.alignment_bytes, hint=stmt.buffer.name)
    e.memories[stmt.buffer] = Memory(pointer, SUM.alignment_bytes)
    e.stmt(stmt.body)


def _held(e: Emitting, stmt: ir.Alloc) -> None:
    """The same, by runs of a row, or one value per row."""
    count = 2 if stmt.buffer.memory == ROW else _elements(stmt) // wgmma.THREADS
    part = f"[{count} x float]"
    pointer = e.b.alloca(part, align=WIDE.alignment_bytes, hint=stmt.buffer.name)
    e.memories[stmt.buffer] = Memory(pointer, WIDE.alignment_bytes)
    e.stmt(stmt.body)


def _left(e: Emitting, stmt: ir.Alloc) -> None:
    """A left operand in registers, packed in pairs."""
    count = _elements(stmt) // wgmma.THREADS // PAIR
    pointer = e.b.alloca(f"[{count} x i32]", align=LEFT.alignment_bytes, hint=stmt.buffer.name)
    e.memories[stmt.buffer] = Memory(pointer, LEFT.alignment_bytes)
    e.stmt(stmt.body)


def _nowhere(e: Emitting, stmt: ir.Alloc) -> None:
    raise Unsupported(
        "TW3052",
        f"%{stmt.buffer.name} in {stmt.buffer.scope} memory cannot be made inside a kernel",
        stmt.loc,
        help="give it the scope shared or local, or pass it as an argument",
    )


def _tile(e: Emitting, stmt: ir.Alloc) -> None:
    """Swizzled tiles in dynamic shared memory, which may exceed 48 KB. A cluster-wide buffer is
    distributed over its blocks."""
    size = _elements(stmt) * stmt.buffer.dtype.size_bytes
    if stmt.buffer.memory.owner is Owner.CLUSTER:
        size //= e.cluster
    if DYNAMIC not in e.module.global_lines:
        e.module.global_lines.append(DYNAMIC)
    at = f"getelementptr (i8, ptr addrspace(3) @dynamic_shared, i64 {e.tile_bytes})"
    pointer = e.b.value("ptr", f"addrspacecast ptr addrspace(3) {at} to ptr")
    e.memories[stmt.buffer] = Memory(pointer, TILE.alignment_bytes)
    e.tile_bytes += -(-size // TILE.alignment_bytes) * TILE.alignment_bytes
    e.stmt(stmt.body)


DYNAMIC = f"@dynamic_shared = external addrspace(3) global [0 x i8], align {TILE.alignment_bytes}"
HANDLERS = Handlers(
    {
        **hardware.CALLS,
        wgmma.PREFIX: wgmma.emit,
        **dict.fromkeys(hopper.RULES, hopper.emit),
        **dict.fromkeys(clusters.RULES, clusters.emit),
        **dict.fromkeys(streams.RULES, streams.emit),
        **dict.fromkeys(hopper_attention.RULES, hopper_attention.emit),
        **dict.fromkeys(ampere.RULES, ampere.emit),
        "barrier.shared": _barrier,
        "prefetch": _prefetch,
        **dict.fromkeys(INSTRUCTIONS, _by_instruction),
        ROUNDED: _rounded,
        "grid.wait": _grid_wait,
        "grid.launch": _grid_launch,
        GRID_BARRIER.op: _grid_barrier,
    },
    {
        LOCAL.name: _local,
        SHARED.name: _shared,
        SUM.name: _sum,
        WIDE.name: _held,
        ROW.name: _held,
        LEFT.name: _left,
        TILE.name: _tile,
        CLUSTER.name: _tile,
    },
    other_alloc=_nowhere,
)
