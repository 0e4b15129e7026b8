"""NVIDIA GPUs: functions of stage `device` as PTX kernels.

Each outermost thread loop is a kernel. Its loops over blockIdx and threadIdx become the launch's
grid and block; their variables are read from special registers. Buffers in `shared` memory are
module globals, `local` ones live in registers. What lies between kernels runs on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright import sym
from tilewright.base.errors import Unsupported
from tilewright.base.target import Target
from tilewright.codegen import hopper, llvm, wgmma
from tilewright.codegen.builder import ModuleText, Value
from tilewright.codegen.emitter import STMTS, Emitter
from tilewright.codegen.launches import Kernel, Step, kernels_of, steps_of
from tilewright.codegen.machine import Machine
from tilewright.codegen.memory import Memory
from tilewright.codegen.types import memory_type, register_type
from tilewright.sym import ONE, Const, Expr, Var
from tilewright.tensor import ir
from tilewright.tensor.ir import Buffer, Call, For, Function, Stmt
from tilewright.tensor.passes.accesses import reads_of, writes_of
from tilewright.tensor.visit import exprs, walk

TRIPLE = "nvptx64-nvidia-cuda"
AXES = ("x", "y", "z")
REGISTERS = {"blockIdx": "ctaid", "threadIdx": "tid"}
ARGUMENT_ALIGN = 16  # of arrays that kernels are called with, in bytes
DYNAMIC = f"@dynamic_shared = external addrspace(3) global [0 x i8], align {hopper.TILE_ALIGN}"
SHARED_ALIGN = 128  # of shared buffers: what bulk copies and matrix instructions ask for


@dataclass(frozen=True)
class DeviceCode:
    """PTX, and what the host does with its kernels."""

    ptx: str
    buffers: tuple[Buffer, ...]  # the function's parameters
    scalars: tuple[Var, ...]
    steps: tuple[Step, ...]

    @property
    def kernels(self) -> list[Kernel]:
        return list(kernels_of(self.steps))


def machine(target: Target) -> Machine:
    """The GPU as LLVM is told about it."""
    return Machine(
        triple=TRIPLE,
        cpu=target.mcpu or "sm_90a",
        features="+ptx83",
        relocation="default",
        converts_f16=True,
        converts_bf16=True,
    )


def emit_kernels(fn: Function, gpu: Machine) -> tuple[str, tuple[Step, ...]]:
    """The LLVM IR of a device function's kernels, and how to launch them."""
    if fn.stage != ir.DEVICE:
        raise Unsupported("TW3050", f"@{fn.name} is of stage {fn.stage}, expected device", fn.loc)
    module = ModuleText(gpu.triple, llvm.data_layout(gpu), "nounwind")
    made: list[Kernel] = []

    def emit(loop: For) -> Kernel:
        made.append(_emit_kernel(module, gpu, fn, loop, f"{fn.name}_{len(made)}"))
        return made[-1]

    steps = steps_of(fn.body, emit)
    return module.text(), steps


def device_code(fn: Function, target: str | Target = "cuda") -> DeviceCode:
    """PTX of a device function, and what the host does with it."""
    gpu = machine(Target.parse(target))
    text, steps = emit_kernels(fn, gpu)
    module = llvm.parse(text)
    llvm.optimize(module, gpu)
    scalars = tuple(param for param in fn.params if isinstance(param, Var))
    return DeviceCode(llvm.to_assembly(module, gpu), fn.buffers, scalars, steps)


def to_ptx(fn: Function, target: str | Target = "cuda") -> tuple[str, list[Kernel]]:
    """PTX of a device function, and its kernels."""
    code = device_code(fn, target)
    return code.ptx, code.kernels


def _emit_kernel(module: ModuleText, gpu: Machine, fn: Function, loop: For, name: str) -> Kernel:
    buffers = _outer_buffers(fn, loop)
    scalars = _free_scalars(loop)
    written = {buffer for stmt in walk(loop) for buffer, _ in writes_of(stmt)}
    written |= {node.buffer for node in exprs(loop) if isinstance(node, ir.Address)}
    params = []
    for buffer in buffers:
        access = "" if buffer in written else " readonly"
        params.append((f"ptr noalias align {ARGUMENT_ALIGN}{access}", buffer.name))
    params += [(register_type(var.dtype), var.name) for var in scalars]
    maps = hopper.tile_maps(loop)
    params += [(hopper.MAP_TYPE, f"map_{made.buffer.name}") for made in maps]
    extents = _extents(loop)
    with module.function("void", name, params, linkage="ptx_kernel") as (b, values):
        emitter = DeviceEmitter(module, gpu, b, name)
        emitter.fences_shared = wgmma.uses_wgmma(loop)
        for buffer, pointer in zip(buffers, values, strict=False):
            emitter.memories[buffer] = Memory(pointer, ARGUMENT_ALIGN)
        for var, value in zip(scalars, values[len(buffers) :], strict=False):
            emitter.variables[var] = value
        given = values[len(values) - len(maps) :]
        emitter.tile_maps = dict(zip(maps, given, strict=True))
        emitter.stmt(loop)
        b.ret()
    module.functions[-1] = _with_launch_bound(module.functions[-1], extents)
    if hopper.gives_registers(loop):  # one block per multiprocessor, or registers stay as they are
        head = ' #0 "nvvm.minctasm"="1" '
        module.functions[-1] = module.functions[-1].replace(" #0 ", head, 1)
    grid = tuple(extents.get(f"blockIdx.{axis}", ONE) for axis in AXES)
    block = tuple(extents.get(f"threadIdx.{axis}", ONE) for axis in AXES)
    return Kernel(name, buffers, scalars, grid, block, emitter.tile_bytes, maps)  # type: ignore[arg-type]  # three axes each


def _with_launch_bound(text: str, extents: dict[str, Expr]) -> str:
    """Tell the assembler how many threads a block has, so that it can spend registers."""
    threads = 1
    for axis in AXES:
        extent = extents.get(f"threadIdx.{axis}", ONE)
        if not isinstance(extent, Const):
            return text
        threads *= int(extent.value)
    return text.replace(" #0 {", f' #0 "nvvm.maxntid"="{threads}" {{', 1)


def _extents(loop: For) -> dict[str, Expr]:
    return {
        stmt.thread: stmt.extent
        for stmt in walk(loop)
        if isinstance(stmt, For) and stmt.kind == ir.THREAD
    }


def _outer_buffers(fn: Function, root: For) -> tuple[Buffer, ...]:
    """The buffers that a kernel is given: parameters first, then memory between kernels."""
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


class DeviceEmitter(Emitter):
    """Writes a kernel: threads instead of loops, shared memory, barriers."""

    fences_shared = False  # matrix units read shared memory behind the threads' backs
    tile_bytes = 0  # of dynamic shared memory, so far

    def stmt(self, stmt: Stmt) -> None:
        if isinstance(stmt, For) and stmt.kind == ir.THREAD:
            self.variables[stmt.var] = self._thread_index(stmt)
            self.non_negative[stmt.var] = None
            self.stmt(stmt.body)
            return
        super().stmt(stmt)

    def _thread_index(self, loop: For) -> Value:
        level, axis = loop.thread.split(".")
        name = f"llvm.nvvm.read.ptx.sreg.{REGISTERS[level]}.{axis}"
        index = self.b.convert("zext", self.b.call(name, "i32"), "i64")
        return self.b.op("add nsw", index, self.expr(loop.start))

    def statement_rules(self) -> dict[type[Stmt], Callable[[Any, Any], None]]:
        return _DEVICE_STMTS

    def _device_eval(self, stmt: ir.Eval) -> None:
        value = stmt.value
        if isinstance(value, Call) and value.op == "barrier.shared":
            if self.fences_shared:
                self.b.line(wgmma.FENCE)
            self.b.call("llvm.nvvm.barrier.cta.sync.aligned.all", "void", Value("i32", "0"))
            return
        self._eval(stmt)

    def _device_alloc(self, stmt: ir.Alloc) -> None:
        buffer = stmt.buffer
        if buffer.scope == "local":
            self._alloc(stmt)
            return
        if buffer.scope == wgmma.SCOPE:
            self._alloc_sum(stmt)
            return
        if buffer.scope == hopper.TILE_SCOPE:
            self._alloc_tile(stmt)
            return
        if buffer.scope != "shared":
            raise Unsupported(
                "TW3052",
                f"%{buffer.name} in {buffer.scope} memory cannot be made inside a kernel",
                stmt.loc,
                help="give it the scope shared or local, or pass it as an argument",
            )
        count = 1
        for dim in buffer.shape:
            size = sym.simplify(dim)
            if not isinstance(size, Const):
                raise Unsupported(
                    "TW3053", f"shared %{buffer.name} has the symbolic size {size}", stmt.loc
                )
            count *= int(size.value)
        name = f"{self.name}.{buffer.name}.{len(self.module.global_lines)}"
        self.module.global_lines.append(
            f"@{name} = internal addrspace(3) global "
            f"[{count} x {memory_type(buffer.dtype)}] undef, align {SHARED_ALIGN}"
        )
        pointer = self.b.value(
            "ptr", f"addrspacecast ptr addrspace(3) @{name} to ptr", hint=buffer.name
        )
        self.memories[buffer] = Memory(pointer, SHARED_ALIGN)
        self.stmt(stmt.body)

    def _alloc_tile(self, stmt: ir.Alloc) -> None:
        """Swizzled tiles are in dynamic shared memory, which may be more than 48 KB."""
        count = stmt.buffer.dtype.size_bytes
        for dim in stmt.buffer.shape:
            assert isinstance(dim, Const)
            count *= int(dim.value)
        if DYNAMIC not in self.module.global_lines:
            self.module.global_lines.append(DYNAMIC)
        at = f"getelementptr (i8, ptr addrspace(3) @dynamic_shared, i64 {self.tile_bytes})"
        pointer = self.b.value("ptr", f"addrspacecast ptr addrspace(3) {at} to ptr")
        self.memories[stmt.buffer] = Memory(pointer, hopper.TILE_ALIGN)
        self.tile_bytes += -(-count // hopper.TILE_ALIGN) * hopper.TILE_ALIGN
        self.stmt(stmt.body)

    def _alloc_sum(self, stmt: ir.Alloc) -> None:
        """Each thread of a warpgroup holds its part of every tile."""
        count = 1
        for dim in stmt.buffer.shape:
            assert isinstance(dim, Const)
            count *= int(dim.value)
        part = f"[{count // wgmma.THREADS} x float]"
        pointer = self.b.alloca(part, align=16, hint=stmt.buffer.name)
        self.memories[stmt.buffer] = Memory(pointer, 16)
        self.stmt(stmt.body)

    def fail(self, code: Value) -> None:
        """A kernel has no way to report: what can fail is checked on the host."""
        self.b.ret()


_DEVICE_STMTS: dict[type[Stmt], Callable[[Any, Any], None]] = {
    **STMTS,
    ir.Eval: DeviceEmitter._device_eval,
    ir.Alloc: DeviceEmitter._device_alloc,
}
